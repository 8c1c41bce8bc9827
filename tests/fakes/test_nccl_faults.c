/* Faults of NCCL and of the GPU while a communicator works: who learns what, how soon, and that
 * nobody is kept. On the fakes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

/* Sums one float; only enqueued. */
static spark_comm_status sum(struct harness_rank *rank, float *value) {
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .dtype = SPARK_COMM_F32,
                        .send = harness_address(value),
                        .recv = harness_address(value),
                        .bytes = 4};
    return spark_comm_submit(rank->comm, &op);
}

/* After a fault the GPU is free again, and close is quick. */
static void check_way_out(struct harness_rank *rank, int close_ms) {
    float *value = script_memory(rank, 4);
    CHECK_TRUE(rank, device_settle(NULL, 3000 * harness_slowness()), "the stream is not free");
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "healthy after a fault");
    CHECK_TRUE(rank, sum(rank, value) >= 200, "a call after the fault went on");
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took < (close_ms + 1000) * harness_slowness(), "close took %lld ms",
               (long long)took);
}

/* warm-up makes collectives too: the counts of the scripts begin after them. 3 reductions, gather,
 * scatter, a broadcast per root. */
static void script_at(struct harness_rank *rank, const char *fault, int which, int at) {
    char text[64];
    snprintf(text, sizeof text, "%s:%d@%d", fault, 5 + rank->size + at, which);
    script_set(rank, "SC_FAKE_NCCL_FAULT", text);
}

static void async_error(struct harness_rank *rank) {
    spark_comm_error error = {.struct_size = sizeof error};
    float value = 0;
    script_at(rank, "async_error", 1, 3);
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 1000))) return;
    for (int i = 0; i < 3; i++)
        sum(rank, &value);
    if (!script_await_poison(rank, 2000)) return;
    CHECK_MESSAGE(rank, SPARK_COMM_BACKEND, "unhandled system error", "rank 1");
    spark_comm_last_error(rank->comm, &error);
    CHECK_INT(rank, 2, error.native_code);
    check_way_out(rank, 1000);
}

/* A kernel that never ends on rank 1 keeps the others in theirs: no progress for op_timeout. */
static void kernel_hangs(struct harness_rank *rank) {
    float value = 0;
    script_at(rank, "kernel_hang", 1, 2);
    if (!CHECK_OK(rank, script_open(rank, 0, 1200, 1000))) return;
    const int64_t start = harness_now_ms();
    for (int i = 0; i < 4; i++)
        CHECK_TRUE(rank, sum(rank, &value) == SPARK_COMM_OK, "not enqueued");
    if (!script_await_poison(rank, 2200)) return;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took >= 1000, "given up after %lld ms", (long long)took);
    CHECK_MESSAGE(rank, SPARK_COMM_OP_TIMEOUT, "rank");
    check_way_out(rank, 1000);
}

/* The same without ncclCommRevoke. */
static void kernel_hangs_old(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_NCCL_LIBRARY", SC_FAKE_DIR "/libfake_nccl_old.so");
    script_set(rank, "SC_FAKE_NCCL_VERSION", "22203");
    kernel_hangs(rank);
}

/* Neither revoke nor abort ends it: the rank says that its process must end, and close comes back. */
static void must_end(struct harness_rank *rank, const char *fault, int at) {
    float value = 0;
    script_at(rank, fault, 1, at);
    if (!CHECK_OK(rank, script_open(rank, 0, 1000, 800))) return;
    for (int i = 0; i < 3; i++)
        sum(rank, &value);
    if (rank->rank == 0 && at > 3) spark_comm_abort(rank->comm);
    if (!script_await_poison(rank, 2000)) return;
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took < 1800 * harness_slowness(), "close took %lld ms", (long long)took);
}

static void deaf_kernel(struct harness_rank *rank) {
    must_end(rank, "kernel_deaf", 2);
}
static void abort_hangs(struct harness_rank *rank) {
    must_end(rank, "abort_hang", 100);
}

/* A healthy close is bounded too. */
static void destroy_hangs(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NCCL_FAULT", "destroy_hang@1");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 800))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took < 1800 * harness_slowness(), "close took %lld ms", (long long)took);
}

/* Whatever NCCL leaves current, the caller finds his own context. */
static void wrong_device(struct harness_rank *rank) {
    void *before = NULL, *after = NULL;
    float value = 1;
    script_set(rank, "SC_FAKE_NCCL_FAULT", "wrong_device");
    device_driver()->current_get(&before);
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    device_driver()->current_get(&after);
    CHECK_TRUE(rank, before == after, "open left another context current");
    CHECK_OK(rank, sum(rank, &value));
    device_driver()->current_get(&after);
    CHECK_TRUE(rank, before == after, "submit left another context current");
    device_driver()->current_set(NULL);
    CHECK_TRUE(rank, sum(rank, &value) == SPARK_COMM_OK, "not without a current context");
    device_driver()->current_get(&after);
    CHECK_TRUE(rank, after == NULL, "a context is current that was not");
    device_driver()->current_set(before);
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    device_driver()->current_get(&after);
    CHECK_TRUE(rank, before == after, "close left another context current");
}

/* NCCL refuses a post in the middle of a group: fatal, and the group is closed. */
static void group_breaks(struct harness_rank *rank) {
    const int other = (rank->rank + 1) % rank->size;
    const int before = (rank->rank + rank->size - 1) % rank->size;
    uint32_t out = 1, in = 0;
    char text[64];
    snprintf(text, sizeof text, "group_error:%d@1", 2 * rank->size + 2);
    script_set(rank, "SC_FAKE_NCCL_FAULT", text);
    if (!CHECK_OK(rank, script_open(rank, 0, 3000, 1000))) return;
    spark_comm *comm = rank->comm;
    /* On the others any of these may already hear of rank 1's failure. */
    spark_comm_group_start(comm);
    spark_comm_send_to(comm, harness_address(&out), 4, other, 0);
    spark_comm_recv_from(comm, harness_address(&in), 4, before, 0);
    spark_comm_status st = spark_comm_group_end(comm);
    if (rank->rank == 1) CHECK_INT(rank, SPARK_COMM_BACKEND, st);
    if (!script_await_poison(rank, 2000)) return;
    CHECK_MESSAGE(rank, SPARK_COMM_BACKEND, "ncclSend", "unhandled system error");
    check_way_out(rank, 1000);
}

static void call_fails(struct harness_rank *rank) {
    spark_comm_error error = {.struct_size = sizeof error};
    float value = 0;
    script_at(rank, "call_error", 1, 2);
    if (!CHECK_OK(rank, script_open(rank, 0, 3000, 1000))) return;
    sum(rank, &value);
    spark_comm_status st = sum(rank, &value);
    if (rank->rank == 1) CHECK_INT(rank, SPARK_COMM_BACKEND, st);
    if (!script_await_poison(rank, 2000)) return;
    CHECK_MESSAGE(rank, SPARK_COMM_BACKEND, "ncclAllReduce", "unhandled cuda error");
    spark_comm_last_error(rank->comm, &error);
    CHECK_INT(rank, 1, error.native_code);
    check_way_out(rank, 1000);
}

static void blocked_caller(struct harness_rank *rank) {
    float *value = script_memory(rank, 4);
    /* The mark of the 64th submission is where the driver blocks. */
    for (int i = 0; i < 64; i++)
        if (sum(rank, value) != SPARK_COMM_OK) return;
}

/* A driver call that takes 4 s: the monitor goes on, so the rank is not lost although it is silent for
 * longer than liveness_timeout; health and abort answer at once. */
static void driver_blocks(struct harness_rank *rank) {
    struct harness_thread helper;
    spark_comm_health_report report = {.struct_size = sizeof report};
    spark_comm_options options;
    if (rank->rank == 1) setenv("SC_FAKE_BLOCK", "cuStreamIsCapturing:4000:30", 1);
    harness_options(rank, &options);
    options.liveness_timeout_ms = 1000 * harness_slowness();
    options.close_timeout_ms = 6000 * harness_slowness();
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    if (!harness_help(rank, &helper, blocked_caller)) return;
    const int64_t start = harness_now_ms();
    while (harness_now_ms() - start < 2500 * harness_slowness()) {
        const int64_t asked = harness_now_ms();
        spark_comm_health(rank->comm, &report);
        CHECK_TRUE(rank, harness_now_ms() - asked < 500 * harness_slowness(), "health took %lld ms",
                   (long long)(harness_now_ms() - asked));
        if (!CHECK_TRUE(rank, report.state == SPARK_COMM_STATE_HEALTHY, "poisoned")) break;
        harness_sleep_ms(20);
    }
    harness_join(&helper);
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    const int64_t asked = harness_now_ms();
    spark_comm_abort(rank->comm);
    CHECK_TRUE(rank, harness_now_ms() - asked < 500 * harness_slowness(), "abort was slow");
}

/* Rank 1 does not call: the kernels of the others wait, until nothing has moved for op_timeout. No
 * script, so a real GPU can be asked the same. */
static void absent_rank(struct harness_rank *rank) {
    float *value = script_memory(rank, 4);
    if (!CHECK_OK(rank, script_open(rank, 0, 1500, 3000))) return;
    if (rank->rank != 1)
        for (int i = 0; i < 3; i++)
            CHECK_TRUE(rank, sum(rank, value) == SPARK_COMM_OK, "not enqueued");
    if (!script_await_poison(rank, 2500)) return;
    CHECK_MESSAGE(rank, SPARK_COMM_OP_TIMEOUT, "rank");
    check_way_out(rank, 3000);
    /* The GPU does other work, and a new communicator. */
    harness_meet(rank);
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    *value = 1;
    CHECK_OK(rank, sum(rank, value));
    CHECK_INT(rank, rank->size, *value);
}

enum { KILLED_AT = 0 };

/* The peer dies in the middle of GPU work: over NVLink NCCL notices nothing, the world does. */
static void peer_dies(struct harness_rank *rank) {
    const int victim = rank->size - 1;
    float *value = script_memory(rank, 4);
    if (!CHECK_OK(rank, script_open(rank, 0, 20000, 1000))) return;
    for (int i = 0; i < 50; i++)
        CHECK_OK(rank, sum(rank, value));
    if (rank->rank == victim) {
        atomic_store(harness_word(rank, KILLED_AT), (uint64_t)harness_now_ms());
        harness_die(rank);
    }
    for (int i = 0; i < 20; i++)
        sum(rank, value);
    if (!script_await_poison(rank, 1000)) return;
    CHECK_STATUS(rank, SPARK_COMM_PEER_LOST, sum(rank, value));
    check_way_out(rank, 1000);
}

#define WHERE (CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL)
static const struct contract_test tests[] = {
    {"async_error", {.run = async_error, .opens_itself = true}, WHERE},
    {"kernel_hangs", {.run = kernel_hangs, .opens_itself = true}, WHERE},
    {"kernel_hangs_old", {.run = kernel_hangs_old, .opens_itself = true}, WHERE | CONTRACT_PAIR},
    {"deaf_kernel",
     {.run = deaf_kernel, .opens_itself = true, .keeps_things = true},
     WHERE | CONTRACT_PAIR},
    {"abort_hangs",
     {.run = abort_hangs, .opens_itself = true, .keeps_things = true},
     WHERE | CONTRACT_PAIR},
    {"destroy_hangs",
     {.run = destroy_hangs, .opens_itself = true, .keeps_things = true},
     WHERE | CONTRACT_PAIR},
    {"wrong_device", {.run = wrong_device, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
    {"group_breaks", {.run = group_breaks, .opens_itself = true}, WHERE},
    {"call_fails", {.run = call_fails, .opens_itself = true}, WHERE},
    {"driver_blocks", {.run = driver_blocks, .opens_itself = true}, WHERE | CONTRACT_PAIR},
    {"absent_rank", {.run = absent_rank, .opens_itself = true}, WHERE},
    {"peer_dies", {.run = peer_dies, .opens_itself = true}, WHERE},
};

CONTRACT_MAIN("nccl_faults", tests)
