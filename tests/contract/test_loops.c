/* Each operation alone, over and over, of sizes and types that change, back to back and with pauses
 * that differ by rank. With SC_TEST_SOAK 10,000 times (scripts/soak_loops.sh does it on busy CPUs). */
#include <stdlib.h>

#include "contract.h"
#include "ops.h"

#define SIZE_BITS 15u /* elements of up to 8 bytes: 256 KiB */

static void loop(struct harness_rank *rank, int kind) {
    const int rounds = getenv("SC_TEST_SOAK") != NULL ? 10000 : harness_rounds(rank, 100);
    uint64_t state = reference_mix(rank->seed, (uint64_t)kind, 10);
    for (int i = 0; i < rounds; i++) {
        const unsigned bits = (unsigned)(reference_next(&state) % (SIZE_BITS + 1));
        struct ops_call call = {.kind = kind};
        call.dtype = reference_dtypes[reference_next(&state) % REFERENCE_DTYPES];
        call.redop = reference_redops[reference_next(&state) % REFERENCE_REDOPS];
        call.root = (int)(reference_next(&state) % (unsigned)rank->size);
        call.count = (size_t)(reference_next(&state) & (((uint64_t)1 << bits) - 1));
        if (kind == SPARK_COMM_OP_SEND_COMMAND) call.count %= SPARK_COMM_MAX_COMMAND_WORDS + 1;
        ops_shuffle(&call, reference_next(&state));
        if (i % 64 < 16) harness_jitter(rank, 100);
        if (!ops_run(rank, &call)) return;
    }
}

static void all_reduce(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_ALL_REDUCE);
}
static void all_gather(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_ALL_GATHER);
}
static void reduce_scatter(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_REDUCE_SCATTER);
}
static void broadcast(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_BROADCAST);
}
static void barrier(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_BARRIER);
}
static void messages(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_SEND_TO);
}
static void command(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_SEND_COMMAND);
}
static void exchange_host(struct harness_rank *rank) {
    loop(rank, SPARK_COMM_OP_EXCHANGE_HOST);
}

static const struct contract_test tests[] = {
    {"all_reduce", {.run = all_reduce, .limit_s = 300}, CONTRACT_SEVERAL},
    {"all_gather", {.run = all_gather, .limit_s = 300}, CONTRACT_SEVERAL},
    {"reduce_scatter", {.run = reduce_scatter, .limit_s = 300}, CONTRACT_SEVERAL},
    {"broadcast", {.run = broadcast, .limit_s = 300}, CONTRACT_SEVERAL},
    {"barrier", {.run = barrier, .limit_s = 300}, CONTRACT_SEVERAL},
    {"messages", {.run = messages, .limit_s = 300}, CONTRACT_SEVERAL},
    {"command", {.run = command, .limit_s = 300}, CONTRACT_SEVERAL},
    {"exchange_host", {.run = exchange_host, .limit_s = 300}, CONTRACT_SEVERAL},
};

CONTRACT_MAIN("loops", tests)
