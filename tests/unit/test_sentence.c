/*
 * The words of a verdict from given views: nobody runs here. What each sentence must be is written
 * out in full.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "world/world_state.h"

#define MOST 64
#define DATA SPARK_COMM_LANE_DATA
#define COMMAND SPARK_COMM_LANE_COMMAND

static struct sc_view views[MOST];
static struct sc_epoch epoch;
static struct sc_world world = {.epoch = &epoch};

static uint64_t reduction(int dtype, int redop) {
    return sc_world_describe(SPARK_COMM_OP_ALL_REDUCE, dtype, redop, -1);
}

/* `size` ranks that have completed barrier #4 and are in no call. */
static void start(int size) {
    memset(views, 0, sizeof views);
    memset(&epoch, 0, sizeof epoch);
    epoch.one_host = true;
    world.size = size;
    for (int rank = 0; rank < size; rank++) {
        struct sc_view *view = &views[rank];
        view->state = SC_PEER_PRESENT;
        view->has_word = true;
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
            view->lines.age[lane] = view->lines.looked[lane] = SC_WIRE_NO_AGE;
        view->lines.submitted[DATA] = view->lines.completed[DATA] = 4;
        view->lines.last_descriptor[DATA] = view->lines.descriptor[DATA] =
            sc_world_describe(SPARK_COMM_OP_BARRIER, 0, 0, -1);
    }
}

static void enter(int rank, int lane, uint64_t descriptor, uint64_t number, uint64_t bytes,
                  double seconds) {
    struct sc_wire_lines *lines = &views[rank].lines;

    lines->descriptor[lane] = descriptor;
    lines->submitted[lane] = number;
    lines->bytes[lane] = bytes;
    lines->age[lane] = (uint64_t)(seconds * 1e9);
}

static void expect(int status, int operation, uint64_t number, int peer, const char *own,
                   const char *want) {
    struct sc_error cause;

    sc_error_clear(&cause);
    sc_error_set(&cause, (spark_comm_status)status, peer, 0, "%s", own);
    cause.operation = operation;
    cause.sequence = number;
    sc_sentence_write(&world, views, &cause);
    assert_string_equal(cause.message, want);
}

static void timed_out(int operation, uint64_t number, int peer, const char *want) {
    expect(SPARK_COMM_OP_TIMEOUT, operation, number, peer, "own words", want);
}

static void test_timeout(void **state) {
    (void)state;

    start(4);
    for (int rank = 0; rank < 4; rank++)
        if (rank != 2) enter(rank, DATA, reduction(SPARK_COMM_BF16, SPARK_COMM_SUM), 5, 8192, 30);
    timed_out(
        SPARK_COMM_OP_ALL_REDUCE, 5, -1,
        "rank 2 has not entered all_reduce #5 (8192 bytes, bf16); ranks 0, 1 and 3 wait in it "
        "since 30.0 s; rank 2 last completed barrier #4");
    /* It waits on the other lane. */
    enter(2, COMMAND, sc_world_describe(SPARK_COMM_OP_RECV_COMMAND_U32, 0, 0, 0), 7, 4, 29.5);
    timed_out(
        SPARK_COMM_OP_ALL_REDUCE, 5, -1,
        "rank 2 has not entered all_reduce #5 (8192 bytes, bf16); ranks 0, 1 and 3 wait in it "
        "since 30.0 s; rank 2 is in recv_command_u32 #7 from rank 0 of the command lane since "
        "29.5 s");
    /* It says nothing. */
    views[2].has_word = false;
    timed_out(
        SPARK_COMM_OP_ALL_REDUCE, 5, -1,
        "rank 2 gives no word and may not have entered all_reduce #5 (8192 bytes, bf16); ranks "
        "0, 1 and 3 wait in it since 30.0 s");
    /* Nobody is late. */
    views[2].has_word = true;
    enter(2, DATA, reduction(SPARK_COMM_BF16, SPARK_COMM_SUM), 5, 8192, 31);
    timed_out(
        SPARK_COMM_OP_ALL_REDUCE, 5, -1,
        "no rank that is in all_reduce #5 (8192 bytes, bf16) goes on; ranks 0, 1, 2 and 3 wait "
        "in it since 31.0 s");
    /* Nobody is in what the cause speaks of: its own words stay. */
    timed_out(SPARK_COMM_OP_BARRIER, 9, -1, "own words");
}

static void test_many(void **state) {
    (void)state;

    start(64);
    enter(63, DATA, reduction(SPARK_COMM_F32, SPARK_COMM_MAX), 5, 64, 1);
    timed_out(SPARK_COMM_OP_ALL_REDUCE, 5, -1,
              "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 55 more have not entered all_reduce #5 (64 bytes, "
              "f32, max); rank 63 waits in it since 1.0 s; rank 0 last completed barrier #4");
}

/* A receiver of commands waits for their root alone. */
static void test_command(void **state) {
    (void)state;

    start(3);
    enter(1, COMMAND, sc_world_describe(SPARK_COMM_OP_BROADCAST, 0, 0, 0), 3, 16, 2);
    timed_out(
        SPARK_COMM_OP_BROADCAST, 3, 0,
        "rank 0 has not entered broadcast #3 (16 bytes from rank 0); rank 1 waits in it since "
        "2.0 s; rank 0 last completed barrier #4");
}

static void test_message(void **state) {
    (void)state;

    start(2);
    enter(0, DATA, sc_world_describe(SPARK_COMM_OP_RECV_FROM, 0, 0, 1), 4, 64, 3);
    timed_out(SPARK_COMM_OP_RECV_FROM, 1, 1,
              "rank 0 is in recv_from rank 1 (64 bytes) since 3.0 s; rank 1 last completed barrier "
              "#4");
    views[1].state = SC_PEER_LEFT;
    timed_out(SPARK_COMM_OP_RECV_FROM, 1, 1,
              "rank 0 is in recv_from rank 1 (64 bytes) since 3.0 s; rank 1 has closed");
}

static void lost(const char *want) {
    expect(SPARK_COMM_PEER_LOST, SPARK_COMM_OP_NONE, 0, 1, "rank 1 (process 7) is lost: it ended",
           want);
}

static void test_loss(void **state) {
    (void)state;

    start(4);
    lost("rank 1 (process 7) is lost: it ended"); /* it has closed, or the like */
    views[1].state = SC_PEER_LOST;
    lost("rank 1 (process 7) is lost: it ended; rank 1 last completed barrier #4");
    enter(0, DATA, reduction(SPARK_COMM_F32, SPARK_COMM_SUM), 5, 64, 1);
    lost(
        "rank 1 (process 7) is lost: it ended; it had not entered all_reduce #5 (64 bytes, f32), in "
        "which rank 0 waits");
    enter(1, DATA, reduction(SPARK_COMM_F32, SPARK_COMM_SUM), 5, 64, 1);
    enter(2, DATA, reduction(SPARK_COMM_F32, SPARK_COMM_SUM), 5, 64, 1);
    lost("rank 1 (process 7) is lost: it ended; it was in all_reduce #5 (64 bytes, f32), in which "
         "ranks 0 and 2 wait");
    views[3].state = SC_PEER_LOST;
    lost("rank 1 (process 7) is lost: it ended; it was in all_reduce #5 (64 bytes, f32), in which "
         "ranks 0 and 2 wait; rank 3 is lost too");
    /* Between hosts its last words may be old, or there are none. */
    epoch.one_host = false;
    views[1].lines.submitted[DATA] = 4;
    views[2].has_word = false;
    lost(
        "rank 1 (process 7) is lost: it ended; as far as it has told, it had not entered all_reduce "
        "#5 (64 bytes, f32), in which rank 0 waits; rank 3 is lost too; rank 2 gives no word");
    views[1].has_word = false;
    lost("rank 1 (process 7) is lost: it ended; it was needed in all_reduce #5 (64 bytes, f32), in "
         "which rank 0 waits; rank 3 is lost too; rank 2 gives no word");
}

/* The longest that can be is cut, and ends. */
static void test_room(void **state) {
    struct sc_error cause;
    (void)state;

    start(64);
    for (int rank = 2; rank < 64; rank++)
        views[rank].state = SC_PEER_LOST;
    views[1].state = SC_PEER_LOST;
    enter(0, DATA, reduction(SPARK_COMM_F32, SPARK_COMM_SUM), UINT64_MAX, UINT64_MAX, 1);
    sc_error_clear(&cause);
    cause.status = SPARK_COMM_PEER_LOST;
    cause.peer = 1;
    memset(cause.message, 'x', sizeof cause.message - 1);
    sc_sentence_write(&world, views, &cause);
    assert_int_equal(strlen(cause.message), sizeof cause.message - 1);
}

static void test_differ(void **state) {
    struct sc_error error;
    struct sc_sentence_side one = {.rank = 1,
                                   .descriptor =
                                       sc_world_describe(SPARK_COMM_OP_BROADCAST, 0, 0, 0),
                                   .number = 5,
                                   .bytes = 4096};
    struct sc_sentence_side other = {.rank = 0,
                                     .descriptor = reduction(SPARK_COMM_F32, SPARK_COMM_SUM),
                                     .number = 5,
                                     .bytes = 4096};
    const char *want =
        "rank 0 is in all_reduce #5 (4096 bytes, f32, sum), rank 1 in broadcast #5 (4096 bytes from "
        "rank 0)";
    (void)state;

    sc_error_clear(&error);
    sc_sentence_differ(&error, &one, &other);
    assert_string_equal(error.message, want);
    sc_sentence_differ(&error, &other, &one);
    assert_string_equal(error.message, want);
    other.is_past = true;
    sc_sentence_differ(&error, &other, &one);
    assert_string_equal(error.message,
                        "rank 1 is in broadcast #5 (4096 bytes from rank 0), rank 0 was in "
                        "all_reduce #5 (4096 bytes, f32, sum)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeout), cmocka_unit_test(test_many), cmocka_unit_test(test_command),
        cmocka_unit_test(test_message), cmocka_unit_test(test_loss), cmocka_unit_test(test_room),
        cmocka_unit_test(test_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
