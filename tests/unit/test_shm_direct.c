/* Collectives over symmetric memory, driven through the backend's table: right values from an
 * independent reference, nothing written beside the result, inputs left alone, whatever mix of
 * symmetric and plain memory the ranks pass; and ranks that come apart at random, since what can go
 * wrong here is to read too late or to write too early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shm_ranks.h"
#include "shm_reference.h"

#define MOST_RANKS 4
#define PER_BORDER 3
#define AREA ((size_t)2 << 20) /* of inputs, and of results */
/* Threshold and piece of most tests here, so that small buffers have many pieces. */
#define LOW_FROM 2048
#define LOW_BYTES 8192
/* Fewer rounds where everything takes ten times as long. */
#if defined(__SANITIZE_THREAD__)
#define SHARE 10
#elif defined(__SANITIZE_ADDRESS__)
#define SHARE 4
#else
#define SHARE 1
#endif

enum { SENDS, RECVS, AREAS };

/* Where a rank's buffers may lie. */
struct arena {
    unsigned char *symmetric[AREAS]; /* of two regions */
    unsigned char *plain[AREAS];
};

struct trial {
    int kind, dtype, redop;
    size_t bytes; /* as in the call */
    size_t send_at, recv_at; /* this rank's offsets in the areas */
    bool in_place;
    bool plain_send, plain_recv; /* this rank's */
    uint64_t seed;
};

static unsigned char *alloc_symmetric(struct rank *rank, size_t bytes) {
    uint64_t ptr = 0;
    spark_comm_status st = sc_shm_backend.symmetric_alloc(rank->state, bytes, in_ms(60000), &ptr);
    CHECK(st == SPARK_COMM_OK, "symmetric_alloc: %s", sc_status_name((int)st));
    return sc_state_pointer(ptr);
}

static void free_symmetric(struct rank *rank, unsigned char *memory) {
    CHECK(sc_shm_backend.symmetric_free(rank->state, (uint64_t)(uintptr_t)memory) == SPARK_COMM_OK,
          "symmetric_free");
}

static void arena_open(struct rank *rank, struct arena *arena, bool low) {
    struct sc_shm *shm = rank->state;
    if (low) {
        for (int kind = 0; kind <= SPARK_COMM_OP_REDUCE_SCATTER; kind++)
            shm->paths.direct_from[kind] = LOW_FROM;
        shm->paths.direct_bytes = LOW_BYTES;
    }
    for (int i = 0; i < AREAS; i++) {
        arena->symmetric[i] = alloc_symmetric(rank, AREA);
        arena->plain[i] = malloc(AREA);
        CHECK(arena->plain[i] != NULL, "no memory");
    }
}

static void arena_close(struct rank *rank, struct arena *arena) {
    for (int i = 0; i < AREAS; i++) {
        if (arena->symmetric[i] != NULL) free_symmetric(rank, arena->symmetric[i]);
        free(arena->plain[i]);
    }
}

/* How often data moved without copies, as the count of steps in the chunk channel shows: a zero-copy
 * call of these sizes takes one step more than chunks, and swap takes none. */
static uint32_t steps_taken(const struct rank *rank) {
    const struct sc_shm *shm = rank->state;
    return shm->mail.next_chunk;
}

static size_t sent_bytes(const struct rank *rank, const struct trial *trial) {
    return trial->kind == SPARK_COMM_OP_REDUCE_SCATTER ? trial->bytes * (size_t)rank->size
                                                       : trial->bytes;
}

static size_t result_bytes(const struct rank *rank, const struct trial *trial) {
    return trial->kind == SPARK_COMM_OP_ALL_GATHER ? trial->bytes * (size_t)rank->size
                                                   : trial->bytes;
}

/* Checks a reduction whose inputs begin at byte `at` of each rank's: every element near the ends and
 * one in five of the others. */
static void check_reduced(const struct rank *rank, const struct trial *trial,
                          const unsigned char *data, size_t at) {
    size_t size = element_size(trial->dtype), step = size;
    unsigned char elements[MOST_RANKS][8], expected[8];
    for (size_t i = 0; i < trial->bytes; i += step) {
        for (int r = 0; r < rank->size; r++)
            input_fill(elements[r], size, trial->seed, r, at + i);
        reduce_reference(expected, (const unsigned char(*)[8])elements, rank->size, trial->dtype,
                         trial->redop);
        CHECK(same_element(data + i, expected, trial->dtype, trial->redop),
              "op %d, %d ranks, dtype %d, redop %d: rank %d has element %zu of %zu wrong",
              trial->kind, rank->size, trial->dtype, trial->redop, rank->rank, i / size,
              trial->bytes / size);
        step = i < 512 || i + 512 > trial->bytes ? size : 37 * size;
    }
}

static void check_input(const unsigned char *data, size_t bytes, uint64_t seed, int from,
                        const char *what) {
    unsigned char expected[256];
    for (size_t i = 0; i < bytes; i += sizeof expected) {
        size_t length = bytes - i < sizeof expected ? bytes - i : sizeof expected;
        input_fill(expected, length, seed, from, i);
        CHECK(memcmp(data + i, expected, length) == 0, "%s: byte %zu of %zu from rank %d", what, i,
              bytes, from);
    }
}

/* Marks 64 bytes on both sides of [area + at, + bytes), or checks the marks. */
static void guard(unsigned char *area, size_t at, size_t bytes, bool check) {
    for (size_t i = 0; i < 128; i++) {
        if (i < 64 && at < 64) continue;
        unsigned char *byte = area + at + (i < 64 ? i - 64 : bytes + i - 64);
        if (!check) *byte = 0xa5;
        CHECK(*byte == 0xa5, "a byte beside [%zu, +%zu) was written", at, bytes);
    }
}

static void run_trial(struct rank *rank, const struct arena *arena, const struct trial *trial) {
    size_t sent = sent_bytes(rank, trial), got = result_bytes(rank, trial),
           self = (size_t)rank->rank;
    unsigned char *sends = (trial->plain_send ? arena->plain : arena->symmetric)[SENDS];
    unsigned char *recvs = (trial->plain_recv ? arena->plain : arena->symmetric)[RECVS];
    unsigned char *send = sends + trial->send_at, *recv = recvs + trial->recv_at;
    guard(sends, trial->send_at, sent, false);
    guard(recvs, trial->recv_at, got, false);
    if (trial->in_place && trial->kind == SPARK_COMM_OP_ALL_GATHER)
        send = recv + self * trial->bytes;
    else if (trial->in_place)
        recv = send + (trial->kind == SPARK_COMM_OP_REDUCE_SCATTER ? self * trial->bytes : 0);
    else
        memset(recv, 0x5a, got);
    input_fill(send, sent, trial->seed, rank->rank, 0);
    run_op(rank, make_op(trial->kind, trial->dtype, trial->redop, -1, send, recv, trial->bytes));
    if (trial->kind == SPARK_COMM_OP_ALL_GATHER) {
        for (int r = 0; r < rank->size; r++)
            check_input(recv + (size_t)r * trial->bytes, trial->bytes, trial->seed, r, "gathered");
    } else {
        check_reduced(rank, trial, recv,
                      trial->kind == SPARK_COMM_OP_REDUCE_SCATTER ? self * trial->bytes : 0);
    }
    if (!trial->in_place) check_input(send, sent, trial->seed, rank->rank, "input");
    guard(sends, trial->send_at, sent, true);
    guard(recvs, trial->recv_at, got, true);
    /* The next user of this memory does not wait for anybody. */
    memset(send, 0xee, sent);
}

/* ---- Sizes around every border ---- */

static const int kinds[] = {SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_OP_REDUCE_SCATTER,
                            SPARK_COMM_OP_ALL_GATHER};
static const int dtypes[] = {SPARK_COMM_BF16, SPARK_COMM_F32, SPARK_COMM_I8};
static const int redops[] = {SPARK_COMM_SUM, SPARK_COMM_MAX, SPARK_COMM_AVG};

/* Some bytes about `border`, whole elements. */
static size_t about(size_t border, uint64_t draw, int dtype) {
    size_t bytes = border + (size_t)(draw % 9) * 4 - 16;
    return bytes / element_size(dtype) * element_size(dtype);
}

static struct trial border_trial(const struct rank *rank, uint64_t seed, int kind, size_t border) {
    uint64_t draw = mix(seed);
    struct trial trial = {.kind = kind,
                          .dtype = dtypes[draw % 3],
                          .redop = redops[(draw >> 8) % 3],
                          .in_place = draw >> 16 & 1,
                          .seed = seed};
    size_t most = kind == SPARK_COMM_OP_ALL_REDUCE ? AREA : AREA / (size_t)rank->size / 64 * 64;
    trial.bytes = about(border, draw >> 20, trial.dtype);
    if (trial.bytes > most - 8192) trial.bytes = most - 8192;
    /* At other offsets on each rank, of any alignment. */
    trial.send_at = mix(seed + 77 * (uint64_t)rank->rank) % 8000;
    trial.recv_at = mix(seed + 99 * (uint64_t)rank->rank) % 8000;
    if (draw >> 28 & 1) trial.send_at = trial.recv_at = 0;
    return trial;
}

static void borders_body(struct rank *rank, void *arg) {
    const struct sc_shm *shm = rank->state;
    struct arena arena;
    arena_open(rank, &arena, *(bool *)arg);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        size_t from = shm->paths.direct_from[kinds[k]], piece = shm->paths.direct_bytes;
        size_t borders[] = {from,  from + 64,  2 * from,  piece,  piece + 64,   2 * piece,
                            65536, 131072 + 8, 3 * piece, 777777, AREA - 16384, 64};
        for (size_t i = 0; i < sizeof borders / sizeof borders[0] * PER_BORDER; i++) {
            struct trial trial =
                border_trial(rank, 5000 * k + i, kinds[k], borders[i / PER_BORDER]);
            uint32_t before = steps_taken(rank);
            run_trial(rank, &arena, &trial);
            /* The zero-copy path was taken, and not below its threshold. */
            if (kinds[k] == SPARK_COMM_OP_ALL_REDUCE && rank->size == 2)
                CHECK((steps_taken(rank) != before) == (trial.bytes >= from), "%zu bytes",
                      trial.bytes);
        }
    }
    arena_close(rank, &arena);
}

static void test_borders(void **state) {
    bool low[] = {false, true};
    (void)state;
    for (int size = 2; size <= MOST_RANKS; size++) {
        for (size_t i = 0; i < 2; i++) {
            run_as(true, size, borders_body, &low[i]);
            run_as(false, size, borders_body, &low[i]);
        }
    }
}

/* ---- At random ---- */

struct mix_run {
    uint64_t seed;
    int rounds;
    uint32_t first; /* number that the channels begin with; 0: as open left them */
};

static struct trial random_trial(const struct rank *rank, uint64_t seed) {
    uint64_t draw = mix(seed * 3 + 1);
    struct trial trial =
        border_trial(rank, seed, kinds[draw % 3], 16 + (draw >> 8) % (draw & 64 ? 100000 : 20000));
    /* Now and then one rank, or each at random, has a buffer elsewhere. */
    if ((draw >> 32) % 4 == 0) {
        trial.plain_send = (int)((draw >> 40) % (uint64_t)rank->size) == rank->rank;
        trial.plain_recv = (int)((draw >> 48) % (uint64_t)rank->size) == rank->rank;
    } else if ((draw >> 32) % 8 == 1) {
        trial.plain_send = mix(seed + 5 + (uint64_t)rank->rank) & 1;
        trial.plain_recv = mix(seed + 9 + (uint64_t)rank->rank) & 1;
    }
    return trial;
}

static void random_body(struct rank *rank, void *arg) {
    const struct mix_run *run = arg;
    uint64_t random = mix(run->seed + (uint64_t)rank->rank + 1) | 1;
    struct arena arena;
    arena_open(rank, &arena, true);
    if (run->first != 0) {
        pthread_barrier_wait(rank->together);
        sc_mailbox_preset(rank->state, run->first);
        pthread_barrier_wait(rank->together);
    }
    for (int i = 0; i < run->rounds; i++) {
        struct trial trial = random_trial(rank, run->seed * 100000 + (uint64_t)i);
        lose_time(&random);
        run_trial(rank, &arena, &trial);
    }
    arena_close(rank, &arena);
}

static void test_random(void **state) {
    (void)state;
    for (int size = 2; size <= MOST_RANKS; size++) {
        struct mix_run run = {.seed = (uint64_t)size, .rounds = 2000 / SHARE / (size - 1)};
        run_as(true, size, random_body, &run);
        run.seed += 10;
        run_as(false, size, random_body, &run);
    }
}

static void test_wrap(void **state) {
    (void)state;
    for (uint32_t before = 1; before < 30; before += 4) {
        struct mix_run run = {.seed = 40 + before, .rounds = 60 / SHARE + 10, .first = 0 - before};
        run_ranks(2 + (int)before % 3, random_body, &run);
    }
}

/* ---- What may differ between ranks ---- */

/* Rank 0 frees the region of the inputs, and has its input in that of the results, which all have.
 * The others go on to use theirs. Then rank 0 has plain memory instead. */
static void freed_body(struct rank *rank, void *arg) {
    struct arena arena;
    (void)arg;
    arena_open(rank, &arena, true);
    unsigned char *behind = arena.symmetric[RECVS] + AREA / 2;
    struct arena other = {.symmetric = {behind, arena.symmetric[RECVS]},
                          .plain = {arena.plain[SENDS], arena.plain[RECVS]}};
    if (rank->rank == 0) {
        free_symmetric(rank, arena.symmetric[SENDS]);
        arena.symmetric[SENDS] = NULL;
    }
    for (uint64_t i = 0; i < 24; i++) {
        struct trial trial = border_trial(rank, 900 + i, kinds[i % 3], 110000);
        trial.in_place = false;
        trial.plain_send = rank->rank == 0 && i >= 12;
        run_trial(rank, rank->rank == 0 ? &other : &arena, &trial);
    }
    arena_close(rank, &arena);
}

static void test_freed(void **state) {
    (void)state;
    for (int size = 2; size <= MOST_RANKS; size++) {
        run_as(true, size, freed_body, NULL);
        run_as(false, size, freed_body, NULL);
    }
}

/* A rank that has returned rewrites its buffer at once. One that is late to read, because it reads
 * more slowly than the others, must still find what was there: sizes that no cache holds, and ranks
 * that start apart. Whole words that carry round and rank make any mixture show. */
static void rewrite_body(struct rank *rank, void *arg) {
    size_t count = *(size_t *)arg / sizeof(int32_t), bytes = count * sizeof(int32_t);
    int32_t *values = (int32_t *)(void *)alloc_symmetric(rank, 2 * bytes), *result = values + count;
    uint64_t random = (uint64_t)rank->rank + 7;
    for (int32_t round = 0; round < 400 / SHARE; round++) {
        int kind = kinds[round % 2 == 0 ? 0 : 1 + round / 2 % 2];
        size_t part = bytes / (size_t)rank->size / 4 * 4;
        bool reduces = kind != SPARK_COMM_OP_ALL_GATHER;
        int32_t *to = kind == SPARK_COMM_OP_ALL_REDUCE ? values : result, want;
        for (size_t i = 0; i < count; i++)
            values[i] = round * 1000 + rank->rank;
        lose_time(&random);
        run_op(rank, make_op(kind, SPARK_COMM_I32, reduces ? SPARK_COMM_SUM : 0, -1, values, to,
                             kind == SPARK_COMM_OP_ALL_REDUCE ? bytes : part));
        size_t results = kind == SPARK_COMM_OP_REDUCE_SCATTER ? part / 4
                         : reduces                            ? count
                                                              : part / 4 * (size_t)rank->size;
        for (size_t i = 0; i < results; i++) {
            want = rank->size * round * 1000 + rank->size * (rank->size - 1) / 2;
            if (!reduces) want = round * 1000 + (int32_t)(i / (part / 4));
            CHECK(to[i] == want, "op %d, round %d, rank %d: word %zu is %d, not %d", kind, round,
                  rank->rank, i, to[i], want);
        }
    }
    free_symmetric(rank, (unsigned char *)values);
}

static void test_rewrite(void **state) {
    static size_t sizes[] = {600000, 1200000};
    (void)state;
    for (int size = 2; size <= MOST_RANKS; size++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            run_as(i == 0, size, rewrite_body, &sizes[i]);
}

/* A rank that does not come: it is named, as on every other path. */
static void absent_body(struct rank *rank, void *arg) {
    struct arena arena;
    (void)arg;
    arena_open(rank, &arena, true);
    spark_comm_op op = make_op(SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_F32, SPARK_COMM_SUM, -1,
                               arena.symmetric[SENDS], arena.symmetric[SENDS], AREA);
    if (rank->rank != 1) {
        CHECK(run_ops(rank, &op, 1, 50) == SPARK_COMM_OP_TIMEOUT, "no timeout");
        CHECK(strstr(rank->error.message, "rank 1 has not entered all_reduce #1") != NULL, "%s",
              rank->error.message);
    }
    pthread_barrier_wait(rank->together);
    arena_close(rank, &arena);
}

static void test_absent(void **state) {
    (void)state;
    run_ranks(3, absent_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders), cmocka_unit_test(test_random),
        cmocka_unit_test(test_wrap),    cmocka_unit_test(test_freed),
        cmocka_unit_test(test_rewrite), cmocka_unit_test(test_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
