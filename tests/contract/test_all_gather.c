/* all_gather: any number of bytes per rank, from a buffer of its own or from the rank's own slot of
 * the result. */
#include "contract.h"
#include "ops.h"

static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t most = ops_max_bytes(rank);
    for (size_t element = 1; element <= 4;
         element += 3) { /* sizes around limits in bytes, and as a user of f32 has them */
        const size_t used = ops_counts(element, most, counts);
        for (size_t i = 0; i < used; i++) {
            const uint64_t index = (element << 32) + i;
            struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = counts[i] * element};
            /* There are few points, so worlds that are thinned keep more of them. */
            for (unsigned variant = 0; variant < 4; variant++) {
                if (variant > 0 && (counts[i] * element > (size_t)1100 << 10 ||
                                    !harness_wants(rank, index + variant)))
                    continue;
                ops_shuffle(&call, reference_mix(index, variant, 5));
                call.in_place = variant % 2;
                if (!ops_run(rank, &call)) return;
            }
        }
    }
}

static void back_to_back(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 800);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 3);
        struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER,
                                .count = (size_t)(random >> 32) % (random % 4 == 0 ? 30000 : 200)};
        ops_shuffle(&call, random);
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix}, 0},
    {"back_to_back", {.run = back_to_back}, 0},
};

CONTRACT_MAIN("all_gather", tests)
