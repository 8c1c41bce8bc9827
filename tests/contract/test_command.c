/* Command words: whole commands of any length, the first word alone, idle receivers, too little
 * room, a receiver far behind. */
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "ops.h"

#define MAX_WORDS SPARK_COMM_MAX_COMMAND_WORDS

static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t used = ops_counts(sizeof(uint32_t), MAX_WORDS * sizeof(uint32_t), counts);
    for (size_t i = 0; i < used; i++) {
        struct ops_call call = {.kind = SPARK_COMM_OP_SEND_COMMAND, .count = counts[i]};
        ops_shuffle(&call, reference_mix(rank->seed, i, 5));
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

/* The engine's loop: the first word by recv_command_u32, then its payload by broadcast, then a step
 * of reductions. */
static void engine_steps(struct harness_rank *rank) {
    const int steps = harness_rounds(rank, 400);
    for (int step = 0; step < steps; step++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)step, 3);
        const int root = (int)((random >> 40) % (unsigned)rank->size);
        uint32_t word = rank->rank == root ? (uint32_t)step ^ 0xfffffff0u : 0;
        harness_step(rank, "step %d, root %d", step, root);
        harness_jitter(rank, 500);
        if (rank->rank == root) {
            if (!CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(&word),
                                                     sizeof word, root)))
                return;
        } else if (!CHECK_OK(rank, spark_comm_recv_command_u32(rank->comm, harness_address(&word),
                                                               root))) {
            return;
        }
        CHECK_INT(rank, (uint32_t)step ^ 0xfffffff0u, word);
        struct ops_call call = {
            .kind = SPARK_COMM_OP_BROADCAST, .count = (size_t)(random >> 8) % 6000, .root = root};
        ops_shuffle(&call, random);
        if (!ops_run(rank, &call)) return;
        call.kind = SPARK_COMM_OP_ALL_REDUCE;
        call.dtype = rank->dtype;
        call.redop = SPARK_COMM_SUM;
        if (step % 4 == 0 && !ops_run(rank, &call)) return;
    }
}

/* Too small a capacity leaves the command where it is, says how many words it has, and harms
 * nothing. */
static void little_room(struct harness_rank *rank) {
    uint32_t sent[20], got[20];
    for (uint32_t i = 0; i < 20; i++)
        sent[i] = 3000 + i;
    if (rank->rank == 0) {
        CHECK_OK(rank, spark_comm_send_command(rank->comm, sent, 20));
        CHECK_OK(rank, spark_comm_send_command(rank->comm, sent + 1, 1));
        return;
    }
    for (size_t capacity = 0; capacity < 20; capacity += 19) {
        size_t count = 0;
        memset(got, 0, sizeof got);
        if (!CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                          spark_comm_recv_command(rank->comm, got, capacity, &count)))
            return;
        CHECK_INT(rank, 20, count);
        CHECK_INT(rank, 0, got[0]);
        CHECK_MESSAGE(rank, SPARK_COMM_INVALID_ARGUMENT, "recv_command", "capacity", "20");
        CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "not healthy any more");
    }
    size_t count = 0;
    if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, got, 20, &count))) return;
    CHECK_INT(rank, 20, count);
    CHECK_TRUE(rank, memcmp(got, sent, sizeof got) == 0, "the command differs");
    if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, got, 20, &count))) return;
    CHECK_INT(rank, 1, count);
    CHECK_INT(rank, 3001, got[0]);
}

static void tune_short(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->op_timeout_ms = 300;
}

/* An idle receive has no deadline: it outlives op_timeout by far, and still gets the command. */
static void idle(struct harness_rank *rank) {
    const uint32_t words[3] = {5, 6, 7};
    uint32_t got[3] = {0}, word = 0;
    size_t count = 0;
    const int pause_ms = 1000;
    if (rank->rank == 0) {
        harness_sleep_ms(pause_ms);
        CHECK_OK(rank, spark_comm_send_command(rank->comm, words, 3));
        harness_sleep_ms(pause_ms);
        word = 99;
        CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(&word), sizeof word, 0));
        return;
    }
    if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, got, 3, &count))) return;
    CHECK_INT(rank, 3, count);
    CHECK_INT(rank, 7, got[2]);
    if (!CHECK_OK(rank, spark_comm_recv_command_u32(rank->comm, harness_address(&word), 0))) return;
    CHECK_INT(rank, 99, word);
}

/* A sender may be far ahead, and waits for room when it is too far: nothing is lost and nothing
 * comes out of order. */
static void slow_receivers(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 60);
    uint32_t *words = malloc(MAX_WORDS * sizeof *words);
    if (!CHECK_TRUE(rank, words != NULL, "no memory")) return;
    for (int i = 0; i < rounds; i++) {
        const size_t count =
            i % 3 == 0 ? MAX_WORDS : 1 + reference_mix(rank->seed, (uint64_t)i, 8) % MAX_WORDS;
        size_t got = 0;
        harness_step(rank, "command %d of %zu words", i, count);
        if (rank->rank == 0) {
            reference_fill_bytes((uint64_t)i, words, count * sizeof *words);
            if (!CHECK_OK(rank, spark_comm_send_command(rank->comm, words, count))) break;
            continue;
        }
        harness_sleep_ms(i < 10 ? 3 * rank->rank : 0);
        if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, words, MAX_WORDS, &got))) break;
        CHECK_INT(rank, count, got);
        uint32_t first;
        uint64_t seed = (uint64_t)i, word = reference_next(&seed);
        memcpy(&first, &word, sizeof first);
        CHECK_INT(rank, first, words[0]);
    }
    free(words);
}

/* Who may send and who may receive. */
static void refusals(struct harness_rank *rank) {
    uint32_t words[4] = {0};
    size_t count = 99;
    if (rank->rank == 0) {
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_recv_command(rank->comm, words, 4, &count), "recv_command");
        CHECK_INT(rank, 0, count);
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_send_command(rank->comm, words, MAX_WORDS + 1), "count", "16385",
                      "16384");
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_send_command(rank->comm, NULL, 1), "words");
    } else {
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_send_command(rank->comm, words, 4), "send_command", "rank 0");
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_recv_command(rank->comm, NULL, 4, &count), "words");
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                      spark_comm_recv_command(rank->comm, words, 4, NULL), "count");
    }
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_recv_command_u32(rank->comm, harness_address(words), rank->rank),
                  "recv_command_u32", "root");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_recv_command_u32(rank->comm, 0, rank->rank + 1), "");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_recv_command_u32(rank->comm, harness_address(words), rank->size),
                  "root");
    /* Nothing of this has disturbed the lane. */
    struct ops_call call = {.kind = SPARK_COMM_OP_SEND_COMMAND, .count = 5};
    ops_run(rank, &call);
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix}, 0},
    {"engine_steps", {.run = engine_steps}, CONTRACT_SEVERAL},
    {"little_room", {.run = little_room}, CONTRACT_SEVERAL},
    {"idle", {.run = idle, .tune = tune_short}, CONTRACT_PAIR},
    {"slow_receivers", {.run = slow_receivers}, CONTRACT_SEVERAL},
    {"refusals", {.run = refusals}, 0},
};

CONTRACT_MAIN("command", tests)
