/* Random sequences of all operations, the same on all ranks, with pauses that differ: what one
 * operation leaves behind must not disturb the next, whatever it is. A failure's name has the seed;
 * SPARK_COMM_TEST_LEVEL=2 runs far more. */
#include "contract.h"
#include "ops.h"

static const int kinds[] = {
    SPARK_COMM_OP_ALL_REDUCE,   SPARK_COMM_OP_ALL_REDUCE,     SPARK_COMM_OP_ALL_REDUCE,
    SPARK_COMM_OP_ALL_GATHER,   SPARK_COMM_OP_REDUCE_SCATTER, SPARK_COMM_OP_BROADCAST,
    SPARK_COMM_OP_BROADCAST,    SPARK_COMM_OP_BARRIER,        SPARK_COMM_OP_SEND_TO,
    SPARK_COMM_OP_SEND_COMMAND, SPARK_COMM_OP_EXCHANGE_HOST};

/* Mostly small, at times large: as many sizes of each magnitude. */
static size_t random_size(uint64_t *state, unsigned max_bits) {
    const unsigned bits = (unsigned)(reference_next(state) % (max_bits + 1));
    return (size_t)(reference_next(state) & (((uint64_t)1 << bits) - 1));
}

static void sequence(struct harness_rank *rank, int steps, unsigned max_bits,
                     unsigned max_pause_us) {
    uint64_t state = reference_mix(rank->seed, max_bits, max_pause_us);
    for (int i = 0; i < steps; i++) {
        struct ops_call call = {
            .kind = kinds[reference_next(&state) % (sizeof kinds / sizeof kinds[0])]};
        call.dtype = reference_dtypes[reference_next(&state) % REFERENCE_DTYPES];
        call.redop = reference_redops[reference_next(&state) % REFERENCE_REDOPS];
        call.root = (int)(reference_next(&state) % (unsigned)rank->size);
        call.count = random_size(&state, max_bits);
        if (call.kind == SPARK_COMM_OP_SEND_COMMAND) call.count %= SPARK_COMM_MAX_COMMAND_WORDS + 1;
        if (call.kind == SPARK_COMM_OP_EXCHANGE_HOST)
            call.count %= SPARK_COMM_MAX_EXCHANGE_BYTES + 1;
        ops_shuffle(&call, reference_next(&state));
        harness_jitter(rank, max_pause_us);
        if (!ops_run(rank, &call)) return;
    }
}

static void small(struct harness_rank *rank) {
    sequence(rank, harness_rounds(rank, 3000), 9, 150);
}
static void medium(struct harness_rank *rank) {
    sequence(rank, harness_rounds(rank, 600), 16, 400);
}
static void large(struct harness_rank *rank) {
    sequence(rank, harness_rounds(rank, 80), 20, 1500);
}
static void without_pause(struct harness_rank *rank) {
    sequence(rank, harness_rounds(rank, 3000), 11, 0);
}

static const struct contract_test tests[] = {
    {"small", {.run = small}, 0},
    {"medium", {.run = medium}, 0},
    {"large", {.run = large}, 0},
    {"without_pause", {.run = without_pause}, 0},
};

CONTRACT_MAIN("random", tests)
