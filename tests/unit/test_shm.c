/* The shm backend, driven through its table: every operation against references made here, then all
 * of them mixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shm_ranks.h"
#include "shm_reference.h"

#define GUARD 64
#define MOST_RANKS 64
/* Fewer rounds where everything takes ten times as long. */
#if defined(__SANITIZE_THREAD__)
#define SHARE 6
#elif defined(__SANITIZE_ADDRESS__)
#define SHARE 3
#else
#define SHARE 1
#endif

/* A buffer at an odd address with guards on both sides. */
struct buffer {
    unsigned char *memory;
    unsigned char *data;
    size_t bytes;
};

static struct buffer buffer_make(size_t bytes, size_t shift) {
    struct buffer buffer = {.memory = malloc(bytes + 2 * GUARD + shift + 1), .bytes = bytes};
    CHECK(buffer.memory != NULL, "%zu bytes", bytes);
    buffer.data = buffer.memory + GUARD + shift;
    memset(buffer.data - GUARD, 0xa5, bytes + 2 * GUARD);
    return buffer;
}

static void buffer_free(struct buffer *buffer, const char *what) {
    for (size_t i = 0; i < GUARD; i++)
        CHECK(buffer->data[-1 - (ptrdiff_t)i] == 0xa5 && buffer->data[buffer->bytes + i] == 0xa5,
              "%s wrote outside of its buffer", what);
    free(buffer->memory);
}

static void check_bytes(const unsigned char *data, size_t bytes, uint64_t seed, int from, size_t at,
                        const char *what) {
    unsigned char expected[256];
    for (size_t i = 0; i < bytes; i += sizeof expected) {
        size_t length = bytes - i < sizeof expected ? bytes - i : sizeof expected;
        input_fill(expected, length, seed, from, at + i);
        CHECK(memcmp(data + i, expected, length) == 0,
              "%s: of %zu bytes from rank %d those from %zu on are wrong", what, bytes, from, i);
    }
}

/* Checks `bytes` of a reduction whose inputs begin at byte `at` of each rank's: all elements within
 * a page of either end, and beyond that one in seven, other ones on each rank. */
static void check_reduced(const struct rank *self, const unsigned char *data, size_t bytes,
                          uint64_t seed, size_t at, int dtype, int redop, const char *what) {
    size_t size = element_size(dtype), step = size;
    unsigned char elements[MOST_RANKS][8], expected[8];
    for (size_t i = 0; i < bytes; i += step) {
        for (int rank = 0; rank < self->size; rank++)
            input_fill(elements[rank], size, seed, rank, at + i);
        reduce_reference(expected, (const unsigned char(*)[8])elements, self->size, dtype, redop);
        CHECK(same_element(data + i, expected, dtype, redop),
              "%s: %d ranks, dtype %d, redop %d: element %zu of %zu", what, self->size, dtype,
              redop, i / size, bytes / size);
        bool inside = i >= 4096 + (size_t)self->rank * 64 && i + 4096 + 7 * size < bytes;
        step = inside ? 7 * size : size;
    }
}

/* The same bits on all ranks, also where the reference leaves a choice. */
static void check_alike(struct rank *rank, const unsigned char *data, size_t bytes) {
    uint64_t digest = bytes, all[MOST_RANKS];
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ data[i]) * 0x100000001b3u;
    run_op(rank, make_op(SPARK_COMM_OP_ALL_GATHER, 0, 0, -1, &digest, all, sizeof digest));
    for (int i = 0; i < rank->size; i++)
        CHECK(all[i] == digest, "rank %d has other bits than rank %d", i, rank->rank);
}

/* ---- One operation each, verified ---- */

static void all_reduce_once(struct rank *rank, uint64_t seed, int dtype, int redop, size_t bytes,
                            bool in_place) {
    struct buffer send = buffer_make(bytes, seed % 9), recv = buffer_make(bytes, seed % 5);
    struct buffer *result = in_place ? &send : &recv;
    input_fill(send.data, bytes, seed, rank->rank, 0);
    run_op(rank,
           make_op(SPARK_COMM_OP_ALL_REDUCE, dtype, redop, -1, send.data, result->data, bytes));
    check_reduced(rank, result->data, bytes, seed, 0, dtype, redop, "all_reduce");
    check_alike(rank, result->data, bytes);
    if (!in_place) check_bytes(send.data, bytes, seed, rank->rank, 0, "send of all_reduce");
    buffer_free(&send, "all_reduce");
    buffer_free(&recv, "all_reduce");
}

static void reduce_scatter_once(struct rank *rank, uint64_t seed, int dtype, int redop,
                                size_t bytes, bool in_place) {
    size_t whole = bytes * (size_t)rank->size, at = bytes * (size_t)rank->rank;
    struct buffer send = buffer_make(whole, seed % 9), recv = buffer_make(bytes, seed % 5);
    unsigned char *result = in_place ? send.data + at : recv.data;
    input_fill(send.data, whole, seed, rank->rank, 0);
    run_op(rank, make_op(SPARK_COMM_OP_REDUCE_SCATTER, dtype, redop, -1, send.data, result, bytes));
    check_reduced(rank, result, bytes, seed, at, dtype, redop, "reduce_scatter");
    buffer_free(&send, "reduce_scatter");
    buffer_free(&recv, "reduce_scatter");
}

static void all_gather_once(struct rank *rank, uint64_t seed, size_t bytes, bool in_place) {
    size_t whole = bytes * (size_t)rank->size, at = bytes * (size_t)rank->rank;
    struct buffer send = buffer_make(bytes, seed % 9), recv = buffer_make(whole, seed % 5);
    unsigned char *from = in_place ? recv.data + at : send.data;
    input_fill(from, bytes, seed, rank->rank, 0);
    run_op(rank, make_op(SPARK_COMM_OP_ALL_GATHER, 0, 0, -1, from, recv.data, bytes));
    for (int i = 0; i < rank->size; i++)
        check_bytes(recv.data + (size_t)i * bytes, bytes, seed, i, 0, "all_gather");
    buffer_free(&send, "all_gather");
    buffer_free(&recv, "all_gather");
}

static void broadcast_once(struct rank *rank, uint64_t seed, size_t bytes, int root) {
    struct buffer data = buffer_make(bytes, seed % 9);
    if (rank->rank == root) input_fill(data.data, bytes, seed, root, 0);
    run_op(rank, make_op(SPARK_COMM_OP_BROADCAST, 0, 0, root, data.data, data.data, bytes));
    check_bytes(data.data, bytes, seed, root, 0, "broadcast");
    buffer_free(&data, "broadcast");
}

/* Every rank to every rank, itself included, `count` messages each, sizes from the seed; posted in
 * an order of the rank's own, but the messages of each pair in order. */
static void exchange_once(struct rank *rank, uint64_t seed, size_t largest, int count) {
    size_t posts = 0, total = (size_t)(2 * rank->size * count);
    spark_comm_op *ops = calloc(total, sizeof *ops);
    struct buffer *buffers = calloc(total, sizeof *buffers);
    for (int m = 0; m < count; m++) {
        for (int i = 0; i < 2 * rank->size; i++) {
            int turn =
                (int)((seed + (uint64_t)rank->rank * 7 + (uint64_t)i) % (uint64_t)(2 * rank->size));
            int peer = turn / 2;
            bool sends = turn % 2 == 0;
            int from = sends ? rank->rank : peer, to = sends ? peer : rank->rank;
            uint64_t key = mix(seed * 31 + (uint64_t)(from * 64 + to) * 8 + (uint64_t)m);
            size_t bytes = key % 5 == 0 ? 0 : (key >> 8) % (largest + 1);
            buffers[posts] = buffer_make(bytes, key % 7);
            if (sends) input_fill(buffers[posts].data, bytes, key, from, 0);
            ops[posts] = make_op(sends ? SPARK_COMM_OP_SEND_TO : SPARK_COMM_OP_RECV_FROM, 0, 0,
                                 peer, sends ? buffers[posts].data : NULL,
                                 sends ? NULL : buffers[posts].data, bytes);
            ops[posts++].flags =
                (uint32_t)key; /* a note for the check below; the backend ignores it */
        }
    }
    spark_comm_status st = run_ops(rank, ops, posts, 60000);
    CHECK(st == SPARK_COMM_OK, "rank %d: %s", rank->rank, rank->error.message);
    for (size_t i = 0; i < posts; i++) {
        if (ops[i].kind == SPARK_COMM_OP_RECV_FROM) {
            for (int m = 0; m < count; m++) {
                uint64_t key =
                    mix(seed * 31 + (uint64_t)(ops[i].peer * 64 + rank->rank) * 8 + (uint64_t)m);
                if ((uint32_t)key == ops[i].flags)
                    check_bytes(buffers[i].data, buffers[i].bytes, key, ops[i].peer, 0,
                                "recv_from");
            }
        }
        buffer_free(&buffers[i], "point_to_point");
    }
    free(buffers);
    free(ops);
}

static void barrier_once(struct rank *rank) {
    run_op(rank, make_op(SPARK_COMM_OP_BARRIER, 0, 0, -1, NULL, NULL, 0));
}

/* ---- Every type, reduction and path ---- */

static const size_t edges[] = {8,      40,        56,     64,     72,    1016,
                               4096,   16384 - 8, 16384,  16392,  65536, 131064,
                               131072, 131080,    262144, 524288, 700008};

static void reductions_body(struct rank *rank, void *arg) {
    uint64_t seed = 1;
    (void)arg;
    for (int dtype = SPARK_COMM_BF16; dtype <= SPARK_COMM_I64; dtype++) {
        for (int redop = SPARK_COMM_SUM; redop <= SPARK_COMM_AVG; redop++) {
            for (size_t elements = 1; elements < 70; elements += SHARE + elements / 9) {
                seed++;
                all_reduce_once(rank, seed, dtype, redop, elements * element_size(dtype),
                                seed % 2 == 0);
                reduce_scatter_once(rank, seed, dtype, redop, elements * element_size(dtype),
                                    seed % 3 == 0);
            }
            seed++;
            size_t bytes = edges[seed % (sizeof edges / sizeof edges[0])];
            all_reduce_once(rank, seed, dtype, redop, bytes, seed % 2 == 0);
            bytes =
                edges[(seed + 3) % (sizeof edges / sizeof edges[0])] / (size_t)rank->size / 8 * 8 +
                8;
            reduce_scatter_once(rank, seed, dtype, redop, bytes, seed % 2 == 0);
        }
    }
}

static void edges_body(struct rank *rank, void *arg) {
    (void)arg;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        uint64_t seed = 1000 + i;
        all_reduce_once(rank, seed, SPARK_COMM_F32, SPARK_COMM_SUM, edges[i], i % 2 == 0);
        all_reduce_once(rank, seed, SPARK_COMM_BF16, SPARK_COMM_SUM, edges[i] + 2, i % 2 == 1);
        reduce_scatter_once(rank, seed, SPARK_COMM_I32, SPARK_COMM_SUM, edges[i], i % 2 == 0);
        all_gather_once(rank, seed, edges[i] + 1, i % 2 == 0);
        all_gather_once(rank, seed, edges[i] / 2 + i, i % 2 == 1);
        for (int root = 0; root < rank->size; root++)
            broadcast_once(rank, seed, edges[i] + i, root);
        exchange_once(rank, seed, edges[i] / 2, 2);
        barrier_once(rank);
    }
    for (size_t bytes = 1; bytes < 70; bytes++) {
        all_gather_once(rank, bytes, bytes, bytes % 2 == 0);
        broadcast_once(rank, bytes, bytes, (int)bytes % rank->size);
        exchange_once(rank, bytes, bytes, 1);
    }
}

static void test_reductions(void **state) {
    static const int sizes[] = {1, 2, 3, 5};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        run_ranks(sizes[i], reductions_body, NULL);
}

static void test_edges(void **state) {
    static const int sizes[] = {1, 2, 4};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        run_ranks(sizes[i], edges_body, NULL);
}

/* ---- All operations mixed, ranks apart, numbers that wrap ---- */

struct mix {
    uint64_t seed;
    int rounds;
    uint32_t first; /* number that the channels begin with; 0: as open left them */
    size_t largest;
};

static void mixed_round(struct rank *rank, uint64_t seed, size_t largest) {
    uint64_t draw = mix(seed);
    size_t bytes = (draw >> 20) % 8 != 0 ? (draw >> 24) % 200 : (draw >> 24) % largest;
    int dtype = 1 + (int)(draw >> 8 & 7), redop = 1 + (int)(draw >> 12 & 3);
    size_t whole = (bytes / 8 + 1) * 8;
    switch (draw % 8) {
    case 0:
    case 1: all_reduce_once(rank, seed, dtype, redop, whole, draw >> 16 & 1); break;
    case 2: reduce_scatter_once(rank, seed, dtype, redop, whole, draw >> 16 & 1); break;
    case 3: all_gather_once(rank, seed, bytes + 1, draw >> 16 & 1); break;
    case 4:
    case 5:
        broadcast_once(rank, seed, bytes + 1, (int)((draw >> 17) % (uint64_t)rank->size));
        break;
    case 6: exchange_once(rank, seed, bytes + 1, 1 + (int)(draw >> 18 & 1)); break;
    default: barrier_once(rank); break;
    }
}

static void mixed_body(struct rank *rank, void *arg) {
    const struct mix *run = arg;
    uint64_t random = mix(run->seed + (uint64_t)rank->rank + 1) | 1;
    if (run->first != 0 && rank->size > 1) {
        sc_mailbox_preset(rank->state, run->first);
        pthread_barrier_wait(rank->together);
    }
    for (int i = 0; i < run->rounds; i++) {
        lose_time(&random);
        mixed_round(rank, run->seed * 100000 + (uint64_t)i, run->largest);
    }
}

static void test_mixed(void **state) {
    (void)state;
    for (int size = 1; size <= 8; size++) {
        struct mix run = {.seed = (uint64_t)size, .rounds = 3000 / size / SHARE, .largest = 300000};
        run_ranks(size, mixed_body, &run);
    }
}

static void test_wrap(void **state) {
    (void)state;
    for (uint32_t before = 1; before < 40; before += 3) {
        struct mix run = {
            .seed = before, .rounds = 150 / SHARE, .first = 0 - before, .largest = 600000};
        run_ranks(2 + (int)before % 3, mixed_body, &run);
    }
}

static void test_many_ranks(void **state) {
    struct mix run = {.seed = 77, .rounds = 20, .largest = 40000};
    (void)state;
    run_ranks(16, mixed_body, &run);
    run.rounds = 6;
    run_ranks(64, mixed_body, &run);
}

static void test_processes(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) {
        struct mix run = {
            .seed = 500 + (uint64_t)size, .rounds = 900 / size / SHARE, .largest = 300000};
        run_as(false, size, mixed_body, &run);
    }
}

/* Equal sizes back to back, as an engine does it, each result checked. */
static void loop_body(struct rank *rank, void *arg) {
    size_t bytes = *(size_t *)arg;
    for (uint64_t i = 0; i < 300 / SHARE; i++)
        all_reduce_once(rank, i, i % 2 == 0 ? SPARK_COMM_F32 : SPARK_COMM_BF16, SPARK_COMM_SUM,
                        bytes, true);
}

static void test_back_to_back(void **state) {
    static size_t sizes[] = {8, 56, 60, 4096, 16388, 140000, 393220};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run_ranks(2, loop_body, &sizes[i]);
        run_ranks(4, loop_body, &sizes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions),   cmocka_unit_test(test_edges),
        cmocka_unit_test(test_back_to_back), cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_wrap),         cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
