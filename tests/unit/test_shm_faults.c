/* The shm backend when a call cannot go well: missing ranks, calls that differ, poison, full rings,
 * wrong arguments; and what is local to it: symmetric memory, registered ranges, the description of
 * its paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shm_ranks.h"

static void check_message(const struct rank *rank, const char *part) {
    CHECK(strstr(rank->error.message, part) != NULL, "\"%s\" is not in \"%s\"", part,
          rank->error.message);
}

static spark_comm_status run_one(struct rank *rank, spark_comm_op op, int timeout_ms) {
    return run_ops(rank, &op, 1, timeout_ms);
}

static spark_comm_op reduction(float *data, size_t bytes) {
    return make_op(SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_F32, SPARK_COMM_SUM, -1, data, data, bytes);
}

/* ---- Ranks that do not come ---- */

static void absent_body(struct rank *rank, void *arg) {
    size_t bytes = *(size_t *)arg;
    float *data = calloc(1, bytes);
    if (rank->rank != 2 && rank->rank != 1) {
        int64_t before = sc_deadline_now();
        spark_comm_status st = run_one(rank, reduction(data, bytes), 80);
        int64_t took = sc_deadline_now() - before;
        CHECK(st == SPARK_COMM_OP_TIMEOUT, "%s", sc_status_name((int)st));
        CHECK(took > 70 * INT64_C(1000000), "after %lld ns", (long long)took);
        CHECK(rank->error.peer == 1, "peer is %d", rank->error.peer);
        check_message(rank, "ranks 1 and 2 have not entered all_reduce #1 (");
        check_message(rank, " bytes, f32)");
    }
    free(data);
}

static void test_absent(void **state) {
    static size_t sizes[] = {8, 4096, 1 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        run_ranks(4, absent_body, &sizes[i]);
}

static void absent_root_body(struct rank *rank, void *arg) {
    static const int root = 1;
    unsigned char data[8192];
    (void)arg;
    if (rank->rank == root) return;
    spark_comm_op op = make_op(SPARK_COMM_OP_BROADCAST, 0, 0, root, data, data, sizeof data);
    CHECK(run_one(rank, op, 50) == SPARK_COMM_OP_TIMEOUT, "no timeout");
    check_message(rank, "rank 1 has not entered broadcast #1 (8192 bytes)");
}

static void test_absent_root(void **state) {
    (void)state;
    run_ranks(3, absent_root_body, NULL);
}

static void absent_message_body(struct rank *rank, void *arg) {
    static unsigned char data[1 << 20];
    (void)arg;
    if (rank->rank == 0) {
        spark_comm_op op = make_op(SPARK_COMM_OP_RECV_FROM, 0, 0, 1, NULL, data, 12);
        CHECK(run_one(rank, op, 50) == SPARK_COMM_OP_TIMEOUT, "no timeout");
        check_message(rank, "rank 1 has not sent what recv_from #1 (12 bytes) waits for");
    } else if (rank->rank == 2) {
        spark_comm_op op = make_op(SPARK_COMM_OP_SEND_TO, 0, 0, 1, data, NULL, sizeof data);
        CHECK(run_one(rank, op, 50) == SPARK_COMM_OP_TIMEOUT, "no timeout");
        CHECK(rank->error.peer == 1, "peer is %d", rank->error.peer);
        check_message(rank, "rank 1 has not taken what send_to #1 (1048576 bytes) sends");
    }
}

static void test_absent_message(void **state) {
    (void)state;
    run_ranks(3, absent_message_body, NULL);
}

/* A root runs ahead until its ring is full, then names the reader that holds it up. */
static void run_ahead_body(struct rank *rank, void *arg) {
    unsigned char data[8192] = {0};
    spark_comm_op op = make_op(SPARK_COMM_OP_BROADCAST, 0, 0, 0, data, data, sizeof data);
    (void)arg;
    if (rank->rank == 0) {
        for (unsigned i = 0; i < SC_MAILBOX_STREAM_PLACES; i++) {
            data[0] = (unsigned char)(i + 1);
            CHECK(run_one(rank, op, 1000) == SPARK_COMM_OK, "%s", rank->error.message);
        }
        CHECK(run_one(rank, op, 50) == SPARK_COMM_OP_TIMEOUT, "no timeout");
        check_message(rank, "ranks 1 and 2 have not taken the data of earlier calls");
    }
    pthread_barrier_wait(rank->together);
    for (unsigned i = 0; i < SC_MAILBOX_STREAM_PLACES && rank->rank != 0; i++) {
        CHECK(run_one(rank, op, 1000) == SPARK_COMM_OK, "%s", rank->error.message);
        CHECK(data[0] == i + 1, "broadcast %u brought %d", i, data[0]);
    }
}

static void test_run_ahead(void **state) {
    (void)state;
    run_ranks(3, run_ahead_body, NULL);
}

/* ---- Calls that differ ---- */

static void mismatch_body(struct rank *rank, void *arg) {
    size_t bytes = *(size_t *)arg;
    float *data = calloc(1, bytes + 8);
    spark_comm_op op = reduction(data, bytes);
    if (rank->rank == 1) op.redop = SPARK_COMM_MAX;
    CHECK(run_one(rank, op, 10000) == SPARK_COMM_MISMATCH, "no mismatch");
    CHECK(rank->error.peer == 1 - rank->rank, "peer is %d", rank->error.peer);
    check_message(rank,
                  rank->rank == 0 ? "rank 0 called all_reduce #1" : "rank 1 called all_reduce #1");
    check_message(rank, rank->rank == 0 ? "rank 1 made another call" : "rank 0 made another call");
    free(data);
}

static void test_mismatch(void **state) {
    static size_t sizes[] = {8, 4096, 1 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        run_ranks(2, mismatch_body, &sizes[i]);
}

static void mismatched_message_body(struct rank *rank, void *arg) {
    unsigned char data[64] = {0};
    (void)arg;
    if (rank->rank == 0) {
        CHECK(run_one(rank, make_op(SPARK_COMM_OP_SEND_TO, 0, 0, 1, data, NULL, 40), 1000) ==
                  SPARK_COMM_OK,
              "send");
        return;
    }
    spark_comm_op op = make_op(SPARK_COMM_OP_RECV_FROM, 0, 0, 0, NULL, data, 41);
    CHECK(run_one(rank, op, 10000) == SPARK_COMM_MISMATCH, "no mismatch");
    check_message(rank,
                  "message 1 from rank 0 to rank 1: rank 0 sends 40 bytes, rank 1 receives 41");
}

static void test_mismatched_message(void **state) {
    (void)state;
    run_ranks(2, mismatched_message_body, NULL);
}

static void oneself_body(struct rank *rank, void *arg) {
    unsigned char out[32] = "to oneself", in[32] = {0}, other[4] = {0};
    int self = rank->rank, peer = (self + 1) % rank->size;
    spark_comm_op ops[] = {
        make_op(SPARK_COMM_OP_SEND_TO, 0, 0, self, out, NULL, sizeof out),
        make_op(SPARK_COMM_OP_RECV_FROM, 0, 0, self, NULL, in, sizeof in),
        make_op(SPARK_COMM_OP_SEND_TO, 0, 0, peer, other, NULL, 0),
    };
    (void)arg;
    CHECK(run_ops(rank, ops, 3, 1000) == SPARK_COMM_OK, "%s", rank->error.message);
    CHECK(memcmp(in, out, sizeof in) == 0, "wrong bytes");
}

static void test_oneself(void **state) {
    (void)state;
    run_ranks(1, oneself_body, NULL);
    run_ranks(2, oneself_body, NULL);
}

static void no_bytes_body(struct rank *rank, void *arg) {
    float data[4] = {0};
    (void)arg;
    CHECK(run_one(rank, reduction(data, 0), 1000) == SPARK_COMM_OK, "nothing to do");
}

static void test_no_bytes(void **state) {
    (void)state;
    run_ranks(2, no_bytes_body, NULL);
}

/* ---- Poison ---- */

static void abort_body(struct rank *rank, void *arg) {
    unsigned char data[8192] = {0};
    int which = *(int *)arg;
    spark_comm_op ops[] = {
        make_op(SPARK_COMM_OP_BARRIER, 0, 0, -1, NULL, NULL, 0),
        make_op(SPARK_COMM_OP_BROADCAST, 0, 0, 1, data, data, sizeof data),
        make_op(SPARK_COMM_OP_RECV_FROM, 0, 0, 1, NULL, data, sizeof data),
    };
    if (rank->rank == 1) {
        usleep(30000); /* long enough for the others to sleep */
        sc_world_abort(rank->world);
        return;
    }
    int64_t before = sc_deadline_now();
    CHECK(run_one(rank, ops[which], 60000) == SPARK_COMM_ABORTED, "not aborted");
    CHECK(sc_deadline_now() - before < INT64_C(900000000),
          "it took until the net of the wait caught it");
    check_message(rank, "was interrupted");
    CHECK(run_one(rank, ops[which], SPARK_COMM_FOREVER) == SPARK_COMM_ABORTED,
          "poison does not last");
}

static void test_abort(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++)
        run_ranks(3, abort_body, &which);
}

/* ---- Symmetric memory and registered ranges ---- */

static void symmetric_body(struct rank *rank, void *arg) {
    const spark_comm_backend *shm = &sc_shm_backend;
    uint64_t ptr = 0, other = 0, handle = 0, again = 0, inner = 0;
    size_t bytes = 100000;
    (void)arg;
    CHECK(shm->symmetric_alloc(rank->state, bytes, in_ms(10000), &ptr) == SPARK_COMM_OK, "alloc");
    CHECK(shm->symmetric_alloc(rank->state, 1, in_ms(10000), &other) == SPARK_COMM_OK, "alloc");
    unsigned char *own = sc_state_pointer(ptr);
    for (size_t i = 0; i < bytes; i++)
        CHECK(own[i] == 0, "byte %zu is not zero", i);
    memset(own, rank->rank + 1, bytes);
    CHECK(run_one(rank, make_op(SPARK_COMM_OP_BARRIER, 0, 0, -1, NULL, NULL, 0), 10000) ==
              SPARK_COMM_OK,
          "barrier");
    struct sc_symmetric_place place = sc_symmetric_locate(rank->state, ptr + 5, bytes - 5);
    CHECK(place.region != 0, "not found");
    for (int i = 0; i < rank->size; i++) {
        const unsigned char *theirs = place.parts + (size_t)i * place.part_bytes + place.offset;
        CHECK(theirs[0] == i + 1 && theirs[bytes - 6] == i + 1, "part of rank %d", i);
    }
    CHECK(sc_symmetric_locate(rank->state, ptr - 1, 4).region == 0, "before it");
    CHECK(sc_symmetric_locate(rank->state, ptr, SIZE_MAX).region == 0, "beyond it");

    CHECK(shm->register_buffer(rank->state, ptr, bytes, &handle) == SPARK_COMM_OK && handle != 0,
          "register");
    CHECK(shm->register_buffer(rank->state, ptr, bytes, &again) == SPARK_COMM_OK && again == handle,
          "again");
    CHECK(shm->register_buffer(rank->state, ptr, 16, &inner) == SPARK_COMM_OK && inner != handle,
          "another range");
    CHECK(shm->register_buffer(rank->state, (uint64_t)(uintptr_t)&bytes, 8, &again) ==
                  SPARK_COMM_OK &&
              again == 0,
          "plain memory has no handle");
    CHECK(shm->deregister_buffer(rank->state, handle) == SPARK_COMM_OK, "deregister");
    CHECK(shm->deregister_buffer(rank->state, handle) == SPARK_COMM_INVALID_ARGUMENT, "twice");
    CHECK(shm->deregister_buffer(rank->state, 0) == SPARK_COMM_OK, "0");

    CHECK(run_one(rank, reduction(sc_state_pointer(ptr), 64), 10000) == SPARK_COMM_OK,
          "all_reduce in it");
    CHECK(shm->symmetric_free(rank->state, ptr + 8) == SPARK_COMM_INVALID_ARGUMENT,
          "inner pointer");
    CHECK(shm->symmetric_free(rank->state, ptr) == SPARK_COMM_OK, "free");
    CHECK(shm->symmetric_free(rank->state, ptr) == SPARK_COMM_INVALID_ARGUMENT, "twice");
    CHECK(shm->symmetric_alloc(rank->state, SIZE_MAX, in_ms(10000), &ptr) == SPARK_COMM_NO_MEMORY,
          "too much");
    /* `other` and `inner` are left to close. */
}

static void test_symmetric(void **state) {
    (void)state;
    run_ranks(1, symmetric_body, NULL);
    run_ranks(3, symmetric_body, NULL);
}

static void symmetric_mismatch_body(struct rank *rank, void *arg) {
    uint64_t ptr = 0;
    (void)arg;
    spark_comm_status st =
        sc_shm_backend.symmetric_alloc(rank->state, rank->rank == 1 ? 2 : 1, in_ms(10000), &ptr);
    CHECK(st == SPARK_COMM_MISMATCH, "%s", sc_status_name((int)st));
    sc_host_take_explanation(&rank->host, st, &rank->error);
    check_message(rank, "rank 0 asks for 1 bytes, rank 1 for 2");
}

static void test_symmetric_mismatch(void **state) {
    (void)state;
    run_ranks(3, symmetric_mismatch_body, NULL);
}

/* ---- What it says of itself ---- */

static void describe_body(struct rank *rank, void *arg) {
    spark_comm_info_row rows[64];
    size_t count = sc_shm_backend.describe(rank->state, rows, 64);
    (void)arg;
    CHECK(count >= 7 && count < 64, "%zu rows", count);
    CHECK(sc_shm_backend.describe(rank->state, rows, 2) == count, "with too little room");
    for (size_t i = 0; i < count; i++) {
        bool reduces = rows[i].operation == SPARK_COMM_OP_ALL_REDUCE ||
                       rows[i].operation == SPARK_COMM_OP_REDUCE_SCATTER;
        bool last = i + 1 == count || rows[i + 1].operation != rows[i].operation;
        CHECK(rows[i].canonical == (reduces ? 1 : -1) && rows[i].path[0] != '\0', "row %zu", i);
        CHECK((rows[i].up_to_bytes == UINT64_MAX) == last, "row %zu", i);
        CHECK(last || rows[i].up_to_bytes < rows[i + 1].up_to_bytes, "row %zu", i);
    }
}

static void test_describe(void **state) {
    char why[128] = "";
    spark_comm_options options;
    (void)state;
    sc_settings_options_init(&options, sizeof options);
    assert_int_equal(sc_shm_backend.probe(NULL, &options, why, sizeof why), SPARK_COMM_OK);
    for (int size = 1; size <= 5; size++)
        run_ranks(size, describe_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_absent_root),
        cmocka_unit_test(test_absent_message),
        cmocka_unit_test(test_run_ahead),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_mismatched_message),
        cmocka_unit_test(test_oneself),
        cmocka_unit_test(test_no_bytes),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_symmetric),
        cmocka_unit_test(test_symmetric_mismatch),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
