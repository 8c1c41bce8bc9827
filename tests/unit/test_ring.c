/*
 * Broadcast rings: what is written arrives, whole and in order, at every reader; a full ring holds
 * its writer back; nothing old is ever taken for a record. Ranks are threads over one mapping (so
 * that the thread sanitizer sees them) and, in one test, processes over a memfd.
 *
 * A record's size and bytes follow from its number, so that a reader knows what must come. Threads
 * count their findings; only the main thread asserts.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "world/ring.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOWER 20
#else
#define SLOWER 1
#endif
#define MAX_RANKS 8
#define LINE 64u
#define LINES (SC_RING_BYTES / LINE)

/* One world's shared part. */
struct shared {
    _Alignas(64) _Atomic uint32_t poison;
    _Alignas(64) _Atomic uint64_t wrong; /* findings of all ranks */
    struct sc_wait_doorbell doorbells[MAX_RANKS];
    _Alignas(4096) unsigned char rings[];
};

struct stage {
    struct shared *shared;
    size_t bytes;
    int size;
    struct sc_wait_policy policies[MAX_RANKS];
    struct sc_wait_doorbell *doorbells[MAX_RANKS];
    struct sc_ring_set sets[MAX_RANKS];
};

static void stage_map(struct stage *stage, int size, uint64_t start) {
    memset(stage, 0, sizeof *stage);
    stage->size = size;
    stage->bytes = sizeof(struct shared) + (size_t)size * sc_ring_size(size);
    int fd = memfd_create("test_ring", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)stage->bytes), 0);
    stage->shared = mmap(NULL, stage->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(stage->shared != MAP_FAILED);
    close(fd);
    sc_ring_preset(stage->shared->rings, size, start);
}

static void stage_join(struct stage *stage, int rank) {
    for (int i = 0; i < stage->size; i++)
        stage->doorbells[i] = &stage->shared->doorbells[i];
    /* More ranks than CPUs, as far as a test can know: few pauses, some yields, then sleep. */
    stage->policies[rank] = (struct sc_wait_policy){.poison = &stage->shared->poison,
                                                    .doorbell = &stage->shared->doorbells[rank],
                                                    .spins = 20,
                                                    .yields = 100,
                                                    .fence = !sc_wait_membarrier_available()};
    struct sc_error error;
    assert_int_equal(sc_ring_set_open(&stage->sets[rank], stage->shared->rings, rank, stage->size,
                                      &stage->policies[rank], stage->doorbells, &error),
                     SPARK_COMM_OK);
}

static void stage_open(struct stage *stage, int size, uint64_t start) {
    stage_map(stage, size, start);
    for (int rank = 0; rank < size; rank++)
        stage_join(stage, rank);
}

static void stage_close(struct stage *stage) {
    for (int rank = 0; rank < stage->size; rank++)
        sc_ring_set_close(&stage->sets[rank]);
    munmap(stage->shared, stage->bytes);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Half are command words, some are short, some up to 4 KiB, a few large. */
static uint32_t size_of(uint64_t number) {
    uint64_t random = mix(number);
    uint32_t value = (uint32_t)(random >> 32);
    switch (random % 32) {
    case 0: return value % (SC_RING_MAX_RECORD + 1);
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 6: return value % 4097;
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
    case 12:
    case 13:
    case 14: return value % 130;
    default: return 4;
    }
}

static void fill(unsigned char *data, uint64_t number, uint32_t bytes) {
    uint64_t word = mix(~number);
    uint32_t i = 0;
    for (; i + 8 <= bytes; i += 8, word += 0x9e3779b97f4a7c15u)
        memcpy(data + i, &word, 8);
    memcpy(data + i, &word, bytes - i);
}

static struct sc_ring_header header_of(uint64_t number, uint32_t bytes) {
    return (struct sc_ring_header){.bytes = bytes,
                                   .kind = (uint32_t)(number % 7),
                                   .epoch = 3,
                                   .digest = (uint32_t)mix(number),
                                   .number = number};
}

static spark_comm_status write_record(struct sc_ring_set *set, uint64_t number, uint32_t bytes,
                                      int64_t deadline, int *slowest) {
    unsigned char data[SC_RING_MAX_RECORD];
    struct sc_ring_header header = header_of(number, bytes);
    fill(data, number, bytes);
    return sc_ring_write(set, &header, bytes == 0 ? NULL : data, deadline, slowest);
}

/* Takes the next record of `writer` and tells whether it is `number` with `bytes`. */
static bool read_record(struct sc_ring_set *set, int writer, uint64_t number, uint32_t bytes) {
    unsigned char data[SC_RING_MAX_RECORD], expected[SC_RING_MAX_RECORD];
    struct sc_ring_header header, wanted = header_of(number, bytes);
    if (sc_ring_peek(set, writer, sc_deadline_after(30000), &header) != SPARK_COMM_OK) return false;
    if (memcmp(&header, &wanted, sizeof header) != 0) return false;
    sc_ring_take(set, writer, &header, data);
    fill(expected, number, bytes);
    return memcmp(data, expected, bytes) == 0;
}

static bool is_empty(struct sc_ring_set *set, int writer) {
    struct sc_ring_header header;
    return sc_ring_peek(set, writer, sc_deadline_now(), &header) == SPARK_COMM_OP_TIMEOUT;
}

/* ---- One thread ---- */

static void test_sizes(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0,  1,    4,    31,   32,   33,   95,    96,    97,
                                     64, 4032, 4095, 4096, 4097, 4128, 65535, 65536, 0};
    struct stage stage;
    stage_open(&stage, 3, 0);
    uint64_t number = 0;
    for (int lap = 0; lap < 40; lap++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++, number++) {
            assert_int_equal(
                write_record(&stage.sets[1], number, sizes[i], sc_deadline_now(), NULL),
                SPARK_COMM_OK);
            assert_true(read_record(&stage.sets[0], 1, number, sizes[i]));
            assert_true(read_record(&stage.sets[2], 1, number, sizes[i]));
            assert_true(is_empty(&stage.sets[0], 1));
        }
    }
    struct sc_ring_header header = {.bytes = SC_RING_MAX_RECORD + 1};
    assert_int_equal(sc_ring_write(&stage.sets[0], &header, &header, sc_deadline_now(), NULL),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_true(is_empty(&stage.sets[1], 0));
    stage_close(&stage);
    assert_int_equal(sc_ring_size(1) % 4096, 0);
    assert_true(sc_ring_size(64) > sc_ring_size(1));
}

static void test_alone(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, 1, 0);
    for (uint64_t number = 0; number < 2 * LINES; number++)
        assert_int_equal(write_record(&stage.sets[0], number, 4, sc_deadline_now(), NULL),
                         SPARK_COMM_OK);
    stage_close(&stage);
}

static void test_no_memory(void **state) {
    (void)state;
#ifdef SPARK_COMM_TESTING
    struct stage stage;
    stage_open(&stage, 2, 0);
    for (long allowed = 0; allowed < 2; allowed++) {
        struct sc_ring_set set;
        struct sc_error error;
        sc_error_clear(&error);
        sc_alloc_fail_after(allowed);
        spark_comm_status st = sc_ring_set_open(&set, stage.shared->rings, 0, 2, &stage.policies[0],
                                                stage.doorbells, &error);
        sc_alloc_fail_after(-1);
        assert_int_equal(st, SPARK_COMM_NO_MEMORY);
        assert_int_equal(error.status, SPARK_COMM_NO_MEMORY);
        sc_ring_set_close(&set);
    }
    stage_close(&stage);
#else
    skip();
#endif
}

/* Payloads made of the very words that readers wait for one lap later: none may be taken. */
static void check_no_stale_match(uint64_t start) {
    static unsigned char data[SC_RING_MAX_RECORD], got[SC_RING_MAX_RECORD];
    struct stage stage;
    stage_open(&stage, 2, start);
    uint64_t position = start;
    for (uint64_t number = 0; number < 20000; number++) {
        uint32_t bytes = size_of(number + 1000000);
        memset(data, 0, bytes);
        /* The first word of line i of the record is at 64 * i, 32 of which are the head's. */
        for (uint32_t i = 1; 64 * i - 32 + 8 <= bytes; i++) {
            uint64_t awaited = position + i + LINES + 1;
            memcpy(data + 64 * i - 32, &awaited, 8);
        }
        struct sc_ring_header header = header_of(number, bytes), seen;
        assert_int_equal(sc_ring_write(&stage.sets[0], &header, data, sc_deadline_now(), NULL),
                         SPARK_COMM_OK);
        assert_int_equal(sc_ring_peek(&stage.sets[1], 0, sc_deadline_now(), &seen), SPARK_COMM_OK);
        assert_memory_equal(&seen, &header, sizeof seen);
        sc_ring_take(&stage.sets[1], 0, &seen, got);
        assert_memory_equal(got, data, bytes);
        assert_true(is_empty(&stage.sets[1], 0));
        position += (32 + (uint64_t)bytes + 63) / 64;
    }
    stage_close(&stage);
}

static void test_no_stale_match(void **state) {
    (void)state;
    check_no_stale_match(0);
    check_no_stale_match(UINT64_MAX - 3 * LINES);
}

/* Counters just before they wrap, or before a narrower or signed one would. */
static void test_wrapping_positions(void **state) {
    (void)state;
    static const uint64_t starts[] = {UINT32_MAX - 100u, INT64_MAX - 100, UINT64_MAX - 100,
                                      UINT64_MAX - 1, INT32_MAX - 5};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        struct stage stage;
        int slowest = -1;
        stage_open(&stage, 3, starts[i]);
        for (uint64_t number = 0; number < 3000; number++) {
            uint32_t bytes = size_of(number);
            assert_int_equal(
                write_record(&stage.sets[0], number, bytes, sc_deadline_now(), &slowest),
                SPARK_COMM_OK);
            assert_true(read_record(&stage.sets[1], 0, number, bytes));
            assert_true(read_record(&stage.sets[2], 0, number, bytes));
        }
        stage_close(&stage);
    }
}

/* A reader that takes nothing holds the writer back, and is named; each take gives room again. */
static void test_full(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, 4, UINT64_MAX - LINES / 2);
    uint64_t written = 0, taken = 0;
    for (int round = 0; round < 5; round++) {
        int slowest = -1;
        spark_comm_status st;
        while ((st = write_record(&stage.sets[0], written, 4, sc_deadline_now(), &slowest)) ==
               SPARK_COMM_OK) {
            assert_true(read_record(&stage.sets[1], 0, written, 4));
            assert_true(read_record(&stage.sets[3], 0, written, 4));
            written++;
        }
        assert_int_equal(st, SPARK_COMM_OP_TIMEOUT);
        assert_int_equal(slowest, 2);
        assert_int_equal(written - taken, LINES - 1);
        assert_true(is_empty(&stage.sets[1], 0)); /* nothing of the refused one is seen */
        for (int i = 0; i < 1000; i++)
            assert_true(read_record(&stage.sets[2], 0, taken++, 4));
    }
    /* One that needs more room than there is: refused until the last line is free. */
    assert_int_equal(
        write_record(&stage.sets[0], written, 1000 * LINE - 32, sc_deadline_now(), NULL),
        SPARK_COMM_OK);
    assert_int_equal(write_record(&stage.sets[0], written, 0, sc_deadline_now(), NULL),
                     SPARK_COMM_OP_TIMEOUT);
    stage_close(&stage);
}

/* Finds the only place in the rings that holds `value`. */
static unsigned char *find(struct stage *stage, const void *value, size_t bytes, size_t from) {
    size_t all = (size_t)stage->size * sc_ring_size(stage->size);
    unsigned char *at = memmem(stage->shared->rings + from, all - from, value, bytes);
    assert_non_null(at);
    return at;
}

static void test_damage(void **state) {
    (void)state;
    struct stage stage;
    struct sc_ring_header header;
    uint64_t start = 0x123456789abcdefu;
    int slowest = -1;
    stage_open(&stage, 3, start);
    assert_int_equal(write_record(&stage.sets[0], 77, 12345, sc_deadline_now(), NULL),
                     SPARK_COMM_OK);
    header = header_of(77, 12345);
    uint32_t bytes = SC_RING_MAX_RECORD + 1;
    memcpy(find(&stage, &header, sizeof header, 0), &bytes, sizeof bytes);
    assert_int_equal(sc_ring_peek(&stage.sets[1], 0, sc_deadline_now(), &header),
                     SPARK_COMM_BACKEND);
    assert_int_equal(sc_ring_peek(&stage.sets[1], 0, sc_deadline_now(), &header),
                     SPARK_COMM_BACKEND);

    /* The positions of readers lie behind the lines, ranks 0 to 2: rank 2's is ahead of the head.
     */
    unsigned char *position = find(&stage, &start, sizeof start, SC_RING_BYTES);
    uint64_t impossible = start + 10 * LINES;
    memcpy(position + 2 * 128, &impossible, sizeof impossible);
    spark_comm_status st;
    do
        st = write_record(&stage.sets[0], 78, 60000, sc_deadline_now(), &slowest);
    while (st == SPARK_COMM_OK);
    assert_int_equal(st, SPARK_COMM_BACKEND);
    assert_int_equal(slowest, 2);
    stage_close(&stage);
}

/* ---- Threads ---- */

struct rank_job {
    struct stage *stage;
    pthread_t thread;
    int rank;
    uint64_t count;
    bool only_words;
    uint64_t nap_every; /* a reader sleeps 1 ms each so many records; 0: never */
};

static uint32_t job_bytes(const struct rank_job *job, uint64_t number) {
    return job->only_words ? 4 : size_of(number);
}

static void count_wrong(struct stage *stage) {
    atomic_fetch_add_explicit(&stage->shared->wrong, 1, memory_order_relaxed);
}

static void *write_all(void *arg) {
    struct rank_job *job = arg;
    for (uint64_t number = 0; number < job->count; number++) {
        uint32_t bytes = job_bytes(job, number);
        if (write_record(&job->stage->sets[job->rank], number, bytes, sc_deadline_after(30000),
                         NULL) == SPARK_COMM_OK)
            continue;
        count_wrong(job->stage);
        break;
    }
    return NULL;
}

static void *read_all(void *arg) {
    struct rank_job *job = arg;
    for (uint64_t number = 0; number < job->count; number++) {
        if (!read_record(&job->stage->sets[job->rank], 0, number, job_bytes(job, number))) {
            count_wrong(job->stage);
            break;
        }
        if (job->nap_every != 0 && number % job->nap_every == 0) usleep(1000);
    }
    return NULL;
}

/* Every rank writes and reads the others in turn, as with broadcasts of changing roots. */
static void *take_turns(void *arg) {
    struct rank_job *job = arg;
    struct sc_ring_set *set = &job->stage->sets[job->rank];
    for (uint64_t number = 0; number < job->count; number++) {
        int root = (int)(mix(number + 5) % (uint64_t)job->stage->size);
        uint32_t bytes = job_bytes(job, number);
        bool good = root == job->rank ? write_record(set, number, bytes, sc_deadline_after(30000),
                                                     NULL) == SPARK_COMM_OK
                                      : read_record(set, root, number, bytes);
        if (good) continue;
        count_wrong(job->stage);
        break;
    }
    return NULL;
}

static void run_threads(int size, uint64_t start, struct rank_job what, void *(*first)(void *),
                        void *(*others)(void *)) {
    struct stage stage;
    struct rank_job jobs[MAX_RANKS];
    stage_open(&stage, size, start);
    for (int rank = 0; rank < size; rank++) {
        jobs[rank] = what;
        jobs[rank].stage = &stage;
        jobs[rank].rank = rank;
        /* The last reader alone is the slow one. */
        if (rank != size - 1) jobs[rank].nap_every = 0;
        assert_int_equal(
            pthread_create(&jobs[rank].thread, NULL, rank == 0 ? first : others, &jobs[rank]), 0);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(jobs[rank].thread, NULL);
    assert_int_equal(atomic_load(&stage.shared->wrong), 0);
    stage_close(&stage);
}

static void test_words_to_readers(void **state) {
    (void)state;
    struct rank_job job = {.count = 1000000 / SLOWER, .only_words = true};
    run_threads(2, UINT32_MAX - 1000u, job, write_all, read_all);
    run_threads(3, UINT64_MAX - 1000u, job, write_all, read_all);
    job.count /= 4;
    run_threads(5, 0, job, write_all, read_all);
}

static void test_random_to_readers(void **state) {
    (void)state;
    struct rank_job job = {.count = 200000 / SLOWER};
    run_threads(3, 0, job, write_all, read_all);
    run_threads(4, UINT64_MAX - 100000u, job, write_all, read_all);
    run_threads(5, 0, job, write_all, read_all);
}

static void test_slow_reader(void **state) {
    (void)state;
    struct rank_job job = {.count = 30000 / SLOWER, .nap_every = 50};
    run_threads(3, 0, job, write_all, read_all);
}

static void test_turns(void **state) {
    (void)state;
    struct rank_job job = {.count = 100000 / SLOWER};
    run_threads(2, UINT64_MAX - 5000u, job, take_turns, take_turns);
    run_threads(4, 0, job, take_turns, take_turns);
}

/* ---- Ends of waits ---- */

struct wait_job {
    struct stage *stage;
    int rank;
    spark_comm_status st;
};

static void *wait_for_record(void *arg) {
    struct wait_job *job = arg;
    struct sc_ring_header header;
    job->st = sc_ring_peek(&job->stage->sets[job->rank], 0, SC_DEADLINE_NEVER, &header);
    return NULL;
}

static void *wait_for_space(void *arg) {
    struct wait_job *job = arg;
    do
        job->st = write_record(&job->stage->sets[job->rank], 1, 4096, SC_DEADLINE_NEVER, NULL);
    while (job->st == SPARK_COMM_OK);
    return NULL;
}

static void test_poison(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, 3, 0);
    struct wait_job reader = {&stage, 1, SPARK_COMM_OK}, writer = {&stage, 2, SPARK_COMM_OK};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, wait_for_record, &reader), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, wait_for_space, &writer), 0);
    usleep(50000);
    atomic_store(&stage.shared->poison, SPARK_COMM_PEER_LOST);
    for (int rank = 0; rank < stage.size; rank++)
        sc_wait_wake_all(&stage.shared->doorbells[rank]);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(reader.st, SPARK_COMM_ABORTED);
    assert_int_equal(writer.st, SPARK_COMM_ABORTED);

    /* What had arrived before the poison can still be taken. */
    struct sc_ring_header header;
    assert_int_equal(sc_ring_peek(&stage.sets[0], 2, sc_deadline_now(), &header), SPARK_COMM_OK);
    stage_close(&stage);
}

static void test_deadline(void **state) {
    (void)state;
    struct stage stage;
    struct sc_ring_header header;
    int slowest = -1;
    stage_open(&stage, 2, 0);
    int64_t begin = sc_deadline_now();
    assert_int_equal(sc_ring_peek(&stage.sets[1], 0, sc_deadline_after(50), &header),
                     SPARK_COMM_OP_TIMEOUT);
    int64_t waited = sc_deadline_now() - begin;
    assert_true(waited >= 50000000 && waited < 5000000000);

    for (int i = 0; i < 3; i++)
        assert_int_equal(write_record(&stage.sets[0], 1, 65536, SC_DEADLINE_NEVER, &slowest),
                         SPARK_COMM_OK);
    begin = sc_deadline_now();
    assert_int_equal(write_record(&stage.sets[0], 1, 65536, sc_deadline_after(50), &slowest),
                     SPARK_COMM_OP_TIMEOUT);
    waited = sc_deadline_now() - begin;
    assert_true(waited >= 50000000 && waited < 5000000000);
    assert_int_equal(slowest, 1);
    stage_close(&stage);
}

/* A writer that sleeps for room wakes by the very take that makes it. */
static void *write_four_large(void *arg) {
    struct wait_job *job = arg;
    for (uint64_t number = 0; number < 4 && job->st == SPARK_COMM_OK; number++)
        job->st = write_record(&job->stage->sets[0], number, 65536, sc_deadline_after(30000), NULL);
    return NULL;
}

static void test_wake_by_take(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct stage stage;
        pthread_t thread;
        stage_open(&stage, 3, 0);
        struct wait_job writer = {&stage, 0, SPARK_COMM_OK};
        assert_int_equal(pthread_create(&thread, NULL, write_four_large, &writer), 0);
        usleep((useconds_t)(round * 500)); /* asleep by then, or on the way there */
        for (uint64_t number = 0; number < 4; number++) {
            assert_true(read_record(&stage.sets[1], 0, number, 65536));
            assert_true(read_record(&stage.sets[2], 0, number, 65536));
        }
        pthread_join(thread, NULL);
        assert_int_equal(writer.st, SPARK_COMM_OK);
        stage_close(&stage);
    }
}

/* ---- Processes ---- */

static void test_processes(void **state) {
    (void)state;
    enum { READERS = 2 };
    struct stage stage;
    pid_t children[READERS];
    stage_map(&stage, READERS + 1, UINT32_MAX - 50u);
    struct rank_job job = {.stage = &stage, .count = 100000 / SLOWER};
    for (int i = 0; i < READERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] != 0) continue;
        job.rank = i + 1;
        stage_join(&stage, job.rank);
        read_all(&job);
        _exit(0);
    }
    stage_join(&stage, 0);
    write_all(&job);
    for (int i = 0; i < READERS; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(atomic_load(&stage.shared->wrong), 0);
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_stale_match),
        cmocka_unit_test(test_wrapping_positions),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_words_to_readers),
        cmocka_unit_test(test_random_to_readers),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_wake_by_take),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
