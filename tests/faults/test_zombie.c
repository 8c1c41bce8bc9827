/*
 * Two ranks that move large buffers, through swapped slots (private memory) and without a copy
 * (symmetric memory). One is stopped in the middle of moving data, replaced, and woken while the job
 * goes on in a new epoch: no byte of anyone's memory changes, and the woken one hears that it was
 * replaced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>

#define JOB_RANKS 2
#include "base/dtype.h"
#include "fault_ranks.h"
#include "reconnect_ranks.h"
#include "world/world_state.h"

#define GUARD ((size_t)4096)
#define MOST ((size_t)16 << 20)
#define BUSY ((size_t)1 << 20) /* of each part, in the new epoch; the rest holds still */
#define REGION (3 * GUARD + 2 * MOST) /* guard, input, guard, result, guard */
#define WORDS(bytes) ((bytes) / sizeof(uint32_t))
#define LIVENESS_MS 700
#define CLOSE_MS 2000
#define MOST_TRIES 20000
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define USUAL_ROUNDS 2 /* each path once: patterns take so much longer */
#else
#define USUAL_ROUNDS 5
#endif

enum path { SWAP, DIRECT };
enum { VICTIM, PATH, IN_CALL, ARRIVED, ENDED, MOVED }; /* words */

static uint32_t *private_memory;

/* Where the head's name leads to: a stopped head keeps its port, so its successor is elsewhere. */
spark_comm_status __real_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error);
spark_comm_status __wrap_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error);
spark_comm_status __wrap_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error) {
    const char *now = atomic_load(&board->words[MOVED]) != 0 ? "127.0.0.2" : host;
    return __real_sc_socket_resolve(now, port, out, capacity, count, error);
}

/* ---- Patterns ---- */

static uint32_t pattern(size_t i, int rank, unsigned salt) {
    return (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + salt * 97u;
}

static uint32_t *input_of(uint32_t *region) {
    return region + WORDS(GUARD);
}

static uint32_t *result_of(uint32_t *region) {
    return region + WORDS(2 * GUARD + MOST);
}

static void fill(uint32_t *region, int rank, unsigned salt) {
    for (size_t i = 0; i < WORDS(REGION); i++)
        region[i] = pattern(i, rank, salt);
}

static void expect(const uint32_t *region, size_t from, size_t to, int rank, unsigned salt) {
    for (size_t i = from; i < to; i++)
        CHECK(region[i] == pattern(i, rank, salt));
}

/* The sum of both ranks' inputs, which were filled alike. */
static void expect_sum(uint32_t *region, size_t bytes, unsigned salt) {
    size_t from = WORDS(GUARD);
    const uint32_t *result = result_of(region);
    for (size_t i = 0; i < WORDS(bytes); i++)
        CHECK(result[i] == pattern(from + i, 0, salt) + pattern(from + i, 1, salt));
}

static spark_comm_status sum(struct job_rank *rank, uint32_t *region, size_t bytes) {
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .dtype = SPARK_COMM_I32,
                        .redop = SPARK_COMM_SUM,
                        .send = job_address(input_of(region)),
                        .recv = job_address(result_of(region)),
                        .bytes = bytes};
    return spark_comm_submit(rank->comm, &op);
}

/* All of a region but the first `busy` bytes of its result is as it was filled. */
static void expect_still(uint32_t *region, size_t busy, int rank, unsigned salt) {
    size_t result = WORDS(2 * GUARD + MOST);
    expect(region, 0, result, rank, salt);
    expect(region, result + WORDS(busy), WORDS(REGION), rank, salt);
}

static uint32_t *allocate(struct job_rank *rank) {
    uint64_t symmetric;
    CHECK_OK(spark_comm_symmetric_alloc(rank->comm, REGION, &symmetric));
    return (uint32_t *)(uintptr_t)symmetric;
}

/* ---- The old epoch ---- */

/* Between the smallest size of the path and the largest one. */
static size_t size_of(enum path path, unsigned *random) {
    unsigned shift = path == SWAP ? 16 + fault_random(random) % 9 : 20 + fault_random(random) % 5;
    size_t bytes = (size_t)1 << shift;
    if (bytes < MOST) bytes += fault_random(random) % bytes & ~(size_t)3;
    return bytes;
}

static spark_comm_status move_on(struct job_rank *rank, uint32_t *region, enum path path) {
    unsigned random = 5;
    for (bool is_checked = false;; is_checked = true) {
        size_t bytes = size_of(path, &random);
        if (rank->rank == (int)board->words[VICTIM])
            atomic_store(&board->words[IN_CALL], is_checked);
        TRY(sum(rank, region, bytes));
        if (!is_checked) expect_sum(region, bytes, 1);
    }
}

static void hear_of_replacement(struct job_rank *rank, spark_comm_status st) {
    char want[64];
    snprintf(want, sizeof want, "rank %d was replaced", rank->rank);
    CHECK(st == SPARK_COMM_PEER_LOST || st == SPARK_COMM_ABORTED);
    for (int i = 0; i < 2; i++) {
        spark_comm_error error = {.struct_size = sizeof error};
        CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_REFUSED);
        CHECK_OK(spark_comm_last_error(NULL, &error));
        if (strcmp(error.message, want) != 0)
            world_check_failed(__FILE__, __LINE__, want, error.message);
        CHECK(!spark_comm_is_healthy(rank->comm));
        CHECK(spark_comm_barrier(rank->comm) == st);
    }
    int64_t start = sc_deadline_now();
    spark_comm_close(rank->comm);
    CHECK(world_ms_since(start) < CLOSE_MS);
}

/* ---- The new one ---- */

/* Calls on both paths until the woken one has ended; what they do not touch holds still. */
static void work_on(struct job_rank *rank, uint32_t *old) {
    uint32_t *fresh = allocate(rank);
    int32_t stop = 0;

    fill(private_memory, rank->rank, 2);
    fill(fresh, rank->rank, 3);
    if (old != NULL) fill(old, rank->rank, 4);
    CHECK_OK(spark_comm_barrier(rank->comm));
    atomic_fetch_add(&board->words[ARRIVED], 1);
    while (stop == 0) {
        spark_comm_op op = {.struct_size = sizeof op,
                            .kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_I32,
                            .redop = SPARK_COMM_MAX,
                            .send = job_address(&stop),
                            .recv = job_address(&stop),
                            .bytes = 4};
        CHECK_OK(sum(rank, private_memory, BUSY));
        expect_sum(private_memory, BUSY, 2);
        CHECK_OK(sum(rank, fresh, BUSY));
        expect_sum(fresh, BUSY, 3);
        stop = (int32_t)atomic_load(&board->words[ENDED]);
        CHECK_OK(spark_comm_submit(rank->comm, &op));
    }
    expect_still(private_memory, BUSY, rank->rank, 2);
    expect_still(fresh, BUSY, rank->rank, 3);
    if (old != NULL) expect_still(old, 0, rank->rank, 4);
    CHECK(spark_comm_is_healthy(rank->comm) && job_epoch(rank) == 2);
    job_verify(rank);
    CHECK_OK(spark_comm_symmetric_free(rank->comm, job_address(fresh)));
}

static void body_first(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    uint32_t *symmetric = allocate(rank);
    enum path path = (enum path)board->words[PATH];
    fill(private_memory, rank->rank, 1);
    fill(symmetric, rank->rank, 1);
    job_verify(rank);
    spark_comm_status st = move_on(rank, path == SWAP ? private_memory : symmetric, path);
    if (rank->rank == (int)board->words[VICTIM]) {
        hear_of_replacement(rank, st);
        return;
    }
    CHECK(st == SPARK_COMM_PEER_LOST);
    job_note(rank, rank->comm);
    job_reconnect(rank);
    work_on(rank, symmetric);
    CHECK_OK(spark_comm_symmetric_free(rank->comm, job_address(symmetric)));
    spark_comm_close(rank->comm);
}

static void body_instead(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    work_on(rank, NULL);
    spark_comm_close(rank->comm);
}

/* ---- In the middle of moving data ---- */

struct code {
    uintptr_t within, from, to;
};

static int find_object(struct dl_phdr_info *info, size_t size, void *arg) {
    struct code *code = arg;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        uintptr_t to = from + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || code->within < from || code->within >= to)
            continue;
        code->from = from;
        code->to = to;
        return 1;
    }
    return 0;
}

/* In the library that has this function, which all processes of the test have at one address? */
static bool is_in_library_of(uintptr_t place, uintptr_t function) {
    struct code code = {.within = function};
    dl_iterate_phdr(find_object, &code);
    return place >= code.from && place < code.to;
}

/* Where a stopped process stands; 0: in a system call, 1: that cannot be read here. */
static uintptr_t place_of(pid_t pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 1;
    const char *got = fgets(line, sizeof line, file);
    fclose(file);
    if (got == NULL) return 1;
    long number = 0;
    unsigned long long stack, counter = 0;
    if (sscanf(line, "%ld %llx %llx", &number, &stack, &counter) != 3 || number != -1) return 0;
    return (uintptr_t)counter;
}

/* In memcpy (a sanitizer's calls that of the C library), or in the arithmetic. */
static bool moves_data(uintptr_t place) {
    uintptr_t reducer = (uintptr_t)sc_dtype_reducer_now(SPARK_COMM_I32, SPARK_COMM_SUM);
    return is_in_library_of(place, (uintptr_t)gnu_get_libc_version) ||
           is_in_library_of(place, (uintptr_t)dlsym(RTLD_DEFAULT, "memcpy")) ||
           (place >= reducer && place < reducer + 4096);
}

static void stop_in_the_middle(pid_t pid, unsigned *random) {
    for (int try = 0; try < MOST_TRIES; try++) {
        siginfo_t info;
        CHECK(kill(pid, SIGSTOP) == 0 && waitid(P_PID, (id_t)pid, &info, WSTOPPED) == 0);
        uintptr_t place = place_of(pid);
        if (place == 1) printf("where a process was stopped cannot be read: any moment counts\n");
        if (place == 1 || (atomic_load(&board->words[IN_CALL]) != 0 && moves_data(place))) return;
        CHECK(kill(pid, SIGCONT) == 0);
        usleep(fault_random(random) % 2000);
    }
    world_check_failed(__FILE__, __LINE__, "the victim moves data", NULL);
}

static void run_round(int victim, enum path path, unsigned *random) {
    int status;

    memset(board->words, 0, sizeof board->words);
    board->liveness_ms = LIVENESS_MS;
    job_start_all_with(body_first, VICTIM, victim);
    atomic_store(&board->words[PATH], path);
    job_await_epoch(1);
    job_await(&board->words[IN_CALL], 1);
    usleep(fault_random(random) % 30000);
    pid_t zombie = job[victim].pid;
    stop_in_the_middle(zombie, random);
    if (victim == 0) atomic_store(&board->words[MOVED], 1);
    job_start(victim, body_instead);
    job_await(&board->words[ARRIVED], JOB_RANKS);
    usleep(fault_random(random) % 5000);
    CHECK(kill(zombie, SIGCONT) == 0);
    while (waitpid(zombie, &status, 0) < 0) {
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    atomic_store(&board->words[ENDED], 1);
    job_finish_all();
    assert_non_null(strstr(board->seen[1 - victim].message, "gave no sign of life for 0.7 s"));
}

static void test_woken(void **state) {
    int rounds = fault_count("SC_FAULT_ROUNDS", USUAL_ROUNDS, 100);
    unsigned seed = (unsigned)getpid(), random = seed;
    (void)state;

    printf("seed %u\n", seed);
    for (int round = 0; round < rounds; round++)
        run_round(round / 2 % 2, round % 2 == 0 ? SWAP : DIRECT, &random);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_woken)};
    board = world_board(sizeof *board);
    private_memory = aligned_alloc(4096, REGION);
    CHECK(private_memory != NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
