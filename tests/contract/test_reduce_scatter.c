/* reduce_scatter: every type, reduction and size; into a buffer of its own and into the rank's own
 * slot of what it sends. */
#include "contract.h"
#include "ops.h"

static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    uint64_t index = 1u << 20;
    const size_t most = ops_max_bytes(rank) / (size_t)(rank->size > 2 ? rank->size : 1);
    for (int d = 0; d < REFERENCE_DTYPES; d++) {
        const size_t used = ops_counts(reference_size(reference_dtypes[d]), most, counts);
        for (int o = 0; o < REFERENCE_REDOPS; o++) {
            for (size_t i = 0; i < used; i++) {
                struct ops_call call = {.kind = SPARK_COMM_OP_REDUCE_SCATTER,
                                        .dtype = reference_dtypes[d],
                                        .redop = reference_redops[o],
                                        .count = counts[i]};
                index++;
                const bool large = counts[i] * reference_size(call.dtype) > (size_t)300 << 10;
                if (large && call.redop != SPARK_COMM_SUM && harness_level() < 2) continue;
                if (!harness_wants(rank, index)) continue;
                /* Beyond the small sizes the reductions differ little from each other. */
                const bool medium = counts[i] * reference_size(call.dtype) > (size_t)64 << 10;
                if (medium && call.redop != SPARK_COMM_SUM && index % 4 != 0 && harness_level() < 2)
                    continue;
                ops_shuffle(&call, reference_mix(index, 1, 2));
                if (!ops_run(rank, &call)) return;
                if (large) continue;
                call.in_place = !call.in_place;
                if (!ops_run(rank, &call)) return;
            }
        }
    }
}

static void named(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 800);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 3);
        struct ops_call call = {.kind = SPARK_COMM_OP_REDUCE_SCATTER,
                                .dtype = rank->dtype,
                                .redop = SPARK_COMM_SUM,
                                .count = (size_t)(random >> 32) % (random % 16 == 0 ? 20000 : 200)};
        ops_shuffle(&call, random);
        call.named = true;
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

static void tune_f16(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_F16;
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix, .limit_s = 240}, 0},
    {"named_bf16", {.run = named}, 0},
    {"named_f16", {.run = named, .tune = tune_f16}, CONTRACT_PAIR},
};

CONTRACT_MAIN("reduce_scatter", tests)
