/* Several threads of one rank: two lanes at the same time, turns and BUSY, groups that belong to a
 * thread, readers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "contract.h"
#include "ops.h"

/* ---- Lanes ---- */

static void wait_for_command(struct harness_rank *rank) {
    uint32_t words[4] = {0};
    size_t count = 0;
    if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, words, 4, &count))) return;
    CHECK_INT(rank, 2, count);
    CHECK_INT(rank, 4242, words[1]);
}

/* An idle receive keeps nobody from the data lane. */
static void idle_receive(struct harness_rank *rank) {
    struct harness_thread helper;
    const uint32_t words[2] = {1, 4242};
    const bool waits = rank->rank != 0;
    if (waits && !harness_help(rank, &helper, wait_for_command)) return;
    for (int i = 0; i < 60; i++) {
        struct ops_call call = {.kind =
                                    i % 3 == 0 ? SPARK_COMM_OP_BARRIER : SPARK_COMM_OP_ALL_REDUCE,
                                .dtype = SPARK_COMM_F32,
                                .redop = SPARK_COMM_SUM,
                                .count = 37u * (unsigned)i};
        if (!ops_run(rank, &call)) break;
    }
    if (rank->rank == 0) CHECK_OK(rank, spark_comm_send_command(rank->comm, words, 2));
    if (waits) harness_join(&helper);
}

static void command_loop(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 500);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 1);
        struct ops_call call = {.kind = random % 3 == 0 ? SPARK_COMM_OP_SEND_COMMAND
                                                        : SPARK_COMM_OP_BROADCAST,
                                .count = (size_t)(random >> 8) % 1000,
                                .root = (int)((random >> 32) % (unsigned)rank->size)};
        ops_shuffle(&call, random >> 40);
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

/* Both lanes work at the same time, each in its own order. */
static void both_lanes(struct harness_rank *rank) {
    struct harness_thread helper;
    static const int kinds[] = {SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_OP_ALL_GATHER,
                                SPARK_COMM_OP_EXCHANGE_HOST, SPARK_COMM_OP_SEND_TO,
                                SPARK_COMM_OP_BARRIER};
    const int rounds = harness_rounds(rank, 500);
    if (!harness_help(rank, &helper, command_loop)) return;
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 2);
        struct ops_call call = {.kind = kinds[random % 5],
                                .dtype = SPARK_COMM_BF16,
                                .redop = SPARK_COMM_MAX,
                                .count = (size_t)(random >> 8) % 5000,
                                .root = 1};
        ops_shuffle(&call, random >> 40);
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) break;
    }
    harness_join(&helper);
}

/* ---- Turns ---- */

static void enter_barrier(struct harness_rank *rank) {
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
}

static uint64_t last_number(struct harness_rank *rank, int lane) {
    spark_comm_health_report report = {.struct_size = sizeof report};
    spark_comm_health(rank->comm, &report);
    return report.lanes[lane].submitted;
}

/* A call that gets no turn by its deadline is BUSY: the holder is named, no number is taken, and
 * all goes on. */
static void busy_data(struct harness_rank *rank) {
    struct harness_thread helper;
    float value = 1;
    const uint64_t before = last_number(rank, SPARK_COMM_LANE_DATA);
    if (rank->rank == 0) {
        const spark_comm_op op = {.struct_size = sizeof op,
                                  .kind = SPARK_COMM_OP_ALL_REDUCE,
                                  .dtype = SPARK_COMM_F32,
                                  .send = harness_address(&value),
                                  .recv = harness_address(&value),
                                  .bytes = sizeof value,
                                  .timeout_ms = 150};
        if (!harness_help(rank, &helper, enter_barrier)) return;
        if (harness_await_number(rank, SPARK_COMM_LANE_DATA, before + 1)) {
            const int64_t start = harness_now_ms();
            CHECK_REFUSED(rank, SPARK_COMM_BUSY, spark_comm_submit(rank->comm, &op), "barrier");
            const int64_t took = harness_now_ms() - start;
            CHECK_TRUE(rank, took >= 140 && took < 150 + 1000 * harness_slowness(),
                       "150 ms became %lld ms", (long long)took);
            CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "BUSY has poisoned");
        }
        atomic_store(harness_word(rank, 0), 1);
        harness_join(&helper);
    } else {
        harness_await(rank, 0, 1, 20000);
        enter_barrier(rank);
    }
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 99};
    ops_run(rank, &call);
}

static void wait_for_word(struct harness_rank *rank) {
    uint32_t word = 0;
    if (CHECK_OK(rank, spark_comm_recv_command_u32(rank->comm, harness_address(&word), 0)))
        CHECK_INT(rank, 31, word);
}

/* The same on the command lane, where the holder is an idle receive. */
static void busy_command(struct harness_rank *rank) {
    struct harness_thread helper;
    uint32_t word = 31;
    if (rank->rank == 1) {
        const spark_comm_op op = {.struct_size = sizeof op,
                                  .kind = SPARK_COMM_OP_BROADCAST,
                                  .peer = 1,
                                  .send = harness_address(&word),
                                  .bytes = sizeof word,
                                  .timeout_ms = 150};
        if (!harness_help(rank, &helper, wait_for_word)) return;
        /* Whether the receive has a number before its word is there is not said, so time must
         * do. */
        harness_sleep_ms(150 * harness_slowness());
        const spark_comm_status st = spark_comm_submit(rank->comm, &op);
        if (CHECK_STATUS(rank, SPARK_COMM_BUSY, st))
            CHECK_MESSAGE(rank, SPARK_COMM_BUSY, "recv_command_u32");
        atomic_store(harness_word(rank, 0), 1);
        harness_join(&helper);
    } else if (rank->rank == 0) {
        harness_await(rank, 0, 1, 20000);
        CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(&word), sizeof word, 0));
    } else {
        wait_for_word(rank);
    }
}

static void same_sums(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 200);
    for (int i = 0; i < rounds; i++) {
        int64_t values[5];
        for (int k = 0; k < 5; k++)
            values[k] = 1000 * rank->rank + k;
        if (!CHECK_OK(rank,
                      spark_comm_all_reduce(rank->comm, harness_address(values), sizeof values)))
            return;
        const int64_t want = 1000 * rank->size * (rank->size - 1) / 2;
        for (int k = 0; k < 5; k++)
            if (!CHECK_INT(rank, want + (int64_t)k * rank->size, values[k])) return;
    }
}

/* Threads that make the same call need no order of their own: every turn is a whole operation. */
static void many_threads(struct harness_rank *rank) {
    struct harness_thread helpers[3];
    int started = 0;
    while (started < 3 && harness_help(rank, &helpers[started], same_sums))
        started++;
    same_sums(rank);
    while (started > 0)
        harness_join(&helpers[--started]);
}

static void tune_i64(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_I64;
}

/* ---- Groups ---- */

static void outside_the_group(struct harness_rank *rank) {
    /* Not this thread's group: there is none to end, and the next one must wait its turn. */
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_group_end(rank->comm), "group_end");
    CHECK_REFUSED(rank, SPARK_COMM_BUSY, spark_comm_group_start(rank->comm), "group");
    /* Everything else goes on as usual. */
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 77};
    ops_run(rank, &call);
    call.kind = SPARK_COMM_OP_BARRIER;
    ops_run(rank, &call);
}

/* One group is open at a time, and it belongs to its thread. */
static void group_ownership(struct harness_rank *rank) {
    struct harness_thread helper;
    const int next = (rank->rank + 1) % rank->size;
    const int previous = (rank->rank + rank->size - 1) % rank->size;
    uint32_t sent = 100u + (unsigned)rank->rank, got = 0;
    spark_comm *comm = rank->comm;
    if (!CHECK_OK(rank, spark_comm_group_start(comm))) return;
    CHECK_OK(rank, spark_comm_send_to(comm, harness_address(&sent), sizeof sent, next, 0));
    if (harness_help(rank, &helper, outside_the_group)) harness_join(&helper);
    CHECK_INT(rank, 0, got); /* still only collected */
    CHECK_OK(rank, spark_comm_recv_from(comm, harness_address(&got), sizeof got, previous, 0));
    if (CHECK_OK(rank, spark_comm_group_end(comm)))
        CHECK_INT(rank, rank->world->backend->moves_data ? 100u + (unsigned)previous : 0, got);
}

static void tune_short(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->op_timeout_ms = 400 * harness_slowness();
}

/* ---- Readers ---- */

static void read_everything(struct harness_rank *rank) {
    char path[64];
    spark_comm_info_row rows[64];
    snprintf(path, sizeof path, "/tmp/spark_comm_test_%d_%d.jsonl", (int)getpid(), rank->rank);
    uint64_t last = 0;
    for (int i = 0; atomic_load(harness_word(rank, 1)) < (uint64_t)rank->size; i++) {
        spark_comm_health_report health = {.struct_size = sizeof health};
        spark_comm_error error = {.struct_size = sizeof error};
        spark_comm_info_report info = {.struct_size = sizeof info,
                                       .rows = rows,
                                       .row_size = sizeof rows[0],
                                       .row_capacity = 64};
        CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "not healthy");
        CHECK_INT(rank, rank->rank, spark_comm_rank(rank->comm));
        CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
        CHECK_OK(rank, spark_comm_info(rank->comm, &info));
        if (i % 20 == 0) CHECK_OK(rank, spark_comm_trace_write(rank->comm, path));
        if (!CHECK_OK(rank, spark_comm_health(rank->comm, &health))) break;
        const uint64_t now = health.lanes[SPARK_COMM_LANE_DATA].completed;
        CHECK_TRUE(rank, now >= last, "completed went back from %llu to %llu",
                   (unsigned long long)last, (unsigned long long)now);
        last = now;
        if (harness_failed(rank)) break;
        harness_sleep_ms(1);
    }
    unlink(path);
}

/* Readers on any thread at any time: they disturb nothing and are not disturbed. */
static void readers(struct harness_rank *rank) {
    struct harness_thread helpers[2];
    int started = 0;
    while (started < 2 && harness_help(rank, &helpers[started], read_everything))
        started++;
    const int rounds = harness_rounds(rank, 800);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 2);
        struct ops_call call = {.kind =
                                    random % 2 ? SPARK_COMM_OP_ALL_REDUCE : SPARK_COMM_OP_BROADCAST,
                                .dtype = SPARK_COMM_I8,
                                .redop = SPARK_COMM_SUM,
                                .count = (size_t)(random >> 8) % 9000};
        ops_shuffle(&call, random >> 30);
        if (!ops_run(rank, &call)) break;
    }
    atomic_fetch_add(harness_word(rank, 1), 1);
    while (started > 0)
        harness_join(&helpers[--started]);
}

static const struct contract_test tests[] = {
    {"idle_receive", {.run = idle_receive}, CONTRACT_SEVERAL},
    {"both_lanes", {.run = both_lanes}, CONTRACT_SEVERAL},
    {"busy_data", {.run = busy_data}, CONTRACT_SEVERAL},
    {"busy_command", {.run = busy_command}, CONTRACT_SEVERAL},
    {"many_threads", {.run = many_threads, .tune = tune_i64}, CONTRACT_NO_SINGLE},
    {"group_ownership", {.run = group_ownership, .tune = tune_short}, 0},
    {"readers", {.run = readers}, 0},
};

CONTRACT_MAIN("threads", tests)
