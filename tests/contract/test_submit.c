/* spark_comm_submit: the general form, what may stay unset, growth of the struct, and what is
 * refused. */
#include <string.h>

#include "contract.h"
#include "ops.h"

static spark_comm_op sum_op(float *values, size_t bytes) {
    return (spark_comm_op){.struct_size = sizeof(spark_comm_op),
                           .kind = SPARK_COMM_OP_ALL_REDUCE,
                           .dtype = SPARK_COMM_F32,
                           .send = harness_address(values),
                           .recv = harness_address(values),
                           .bytes = bytes};
}

/* dtype 0 is options.dtype, redop 0 is sum, flags of streams change nothing on host backends. */
static void defaults(struct harness_rank *rank) {
    int32_t values[3] = {1, 2, 3};
    const int32_t size = rank->size;
    spark_comm_op op = sum_op((float *)values, sizeof values);
    op.dtype = 0; /* i32, see tune */
    if (!CHECK_OK(rank, spark_comm_submit(rank->comm, &op))) return;
    const bool moves = rank->world->backend->moves_data;
    for (int i = 0; i < 3; i++)
        CHECK_INT(rank, (i + 1) * (moves ? size : 1), values[i]);
    op.flags = SPARK_COMM_FLAG_EVENT_ORDERED;
    /* A host backend looks at no stream. */
    op.stream = rank->world->backend->on_device ? 0 : 12345;
    op.timeout_ms = SPARK_COMM_FOREVER;
    if (!CHECK_OK(rank, spark_comm_submit(rank->comm, &op))) return;
    for (int i = 0; i < 3; i++)
        CHECK_INT(rank, (i + 1) * (moves ? size * size : 1), values[i]);
}

static void tune_i32(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_I32;
}

/* A struct of an older program is shorter: what it lacks has its default. One of a newer program is
 * longer, and must be zero where this library knows nothing. */
static void growth(struct harness_rank *rank) {
    struct {
        spark_comm_op op;
        unsigned char more[24];
    } longer = {0};
    float value = 1;
    const bool moves = rank->world->backend->moves_data;
    longer.op = sum_op(&value, sizeof value);
    longer.op.struct_size = sizeof longer;
    if (!CHECK_OK(rank, spark_comm_submit(rank->comm, &longer.op))) return;
    CHECK_TRUE(rank, value == (moves ? (float)rank->size : 1), "longer and zero: got %g",
               (double)value);
    longer.more[20] = 1;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(rank->comm, &longer.op),
                  "struct_size");

    /* Without `stream`, whose place then holds rubbish. */
    spark_comm_op shorter = sum_op(&value, sizeof value);
    value = 1;
    shorter.struct_size = offsetof(spark_comm_op, stream);
    shorter.stream = UINT64_MAX;
    if (!CHECK_OK(rank, spark_comm_submit(rank->comm, &shorter))) return;
    CHECK_TRUE(rank, value == (moves ? (float)rank->size : 1), "shorter: got %g", (double)value);
    shorter.struct_size = sizeof(size_t) - 1;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(rank->comm, &shorter),
                  "struct_size");
    shorter.struct_size = 0;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(rank->comm, &shorter),
                  "struct_size");
}

/* One wrong field at a time. */
static void refusals(struct harness_rank *rank) {
    static const int32_t wrong_kinds[] = {0,
                                          -1,
                                          SPARK_COMM_OP_GROUP,
                                          SPARK_COMM_OP_SEND_COMMAND,
                                          SPARK_COMM_OP_EXCHANGE_HOST,
                                          SPARK_COMM_OP_COUNT,
                                          1000};
    float value = 1;
    const spark_comm_op good = sum_op(&value, sizeof value);
    spark_comm *comm = rank->comm;
    spark_comm_op op = good;
    for (size_t i = 0; i < sizeof wrong_kinds / sizeof wrong_kinds[0]; i++) {
        op.kind = wrong_kinds[i];
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op),
                      "submit: kind is");
    }
    op = good;
    op.dtype = 9;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "all_reduce",
                  "dtype", "9");
    op.dtype = -1;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "dtype", "-1");
    /* Kinds that take no type and no reduction ignore known ones, but not unknown ones. */
    static const int32_t movers[] = {SPARK_COMM_OP_ALL_GATHER, SPARK_COMM_OP_BROADCAST,
                                     SPARK_COMM_OP_BARRIER, SPARK_COMM_OP_SEND_TO,
                                     SPARK_COMM_OP_RECV_FROM};
    for (size_t i = 0; i < sizeof movers / sizeof movers[0]; i++) {
        op = good;
        op.kind = movers[i];
        op.dtype = 99;
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "dtype",
                      "99");
        op.dtype = 0;
        op.redop = 98;
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "redop",
                      "98");
    }
    op = good;
    op.kind = SPARK_COMM_OP_BARRIER;
    op.dtype = SPARK_COMM_I8;
    op.redop = SPARK_COMM_AVG;
    op.flags = SPARK_COMM_FLAG_EVENT_ORDERED;
    CHECK_OK(rank, spark_comm_submit(comm, &op));
    op.kind = SPARK_COMM_OP_BROADCAST;
    op.peer = rank->size;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "peer is");
    op = good;
    op.redop = 5;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "redop", "5");
    op = good;
    op.flags = 2;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "flags");
    op = good;
    op.timeout_ms = -2;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "timeout_ms",
                  "-2");
    op = good;
    op.bytes = 3;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "bytes", "3");
    op = good;
    op.send = 0;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "send is null");
    op = good;
    op.recv = 0;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "recv is null");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, NULL),
                  "submit: op is null");
    CHECK_INT(rank, 1, value);
    /* After all that the good one still works, so no rank has taken a number. */
    op = good;
    CHECK_OK(rank, spark_comm_submit(comm, &op));
}

/* A limit of its own: the call ends at it although op_timeout is far, and that is fatal. */
static void own_limit(struct harness_rank *rank) {
    static const int kinds[] = {SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_OP_RECV_FROM};
    float value = 1;
    if (rank->rank == 1) {
        spark_comm_op op = sum_op(&value, sizeof value);
        op.kind = kinds[rank->world->way == HARNESS_THREADS];
        op.peer = 0;
        op.timeout_ms = 250;
        const int64_t start = harness_now_ms();
        CHECK_STATUS(rank, SPARK_COMM_OP_TIMEOUT, spark_comm_submit(rank->comm, &op));
        const int64_t took = harness_now_ms() - start;
        CHECK_TRUE(rank, took >= 240 && took < 250 + 1000 * harness_slowness(),
                   "250 ms became %lld ms", (long long)took);
        CHECK_MESSAGE(rank, SPARK_COMM_OP_TIMEOUT,
                      op.kind == SPARK_COMM_OP_ALL_REDUCE ? "all_reduce" : "recv_from", "rank");
    }
    harness_meet(rank);
}

static const struct contract_test tests[] = {
    {"defaults", {.run = defaults, .tune = tune_i32}, 0},
    {"growth", {.run = growth}, 0},
    {"refusals", {.run = refusals}, 0},
    {"own_limit", {.run = own_limit}, CONTRACT_SEVERAL | CONTRACT_NO_SINGLE | CONTRACT_ONLY_HOST},
};

CONTRACT_MAIN("submit", tests)
