/* all_reduce: every type, reduction, size, place and alignment; the named functions; the order of a
 * sum. */
#include "contract.h"
#include "ops.h"

/* Every point is in place or not, aligned or not, by its number: over the types each size sees all
 * of them. */
static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    uint64_t index = 0;
    for (int d = 0; d < REFERENCE_DTYPES; d++) {
        const size_t used =
            ops_counts(reference_size(reference_dtypes[d]), ops_max_bytes(rank), counts);
        for (int o = 0; o < REFERENCE_REDOPS; o++) {
            for (size_t i = 0; i < used; i++) {
                struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                                        .dtype = reference_dtypes[d],
                                        .redop = reference_redops[o],
                                        .count = counts[i]};
                index++;
                const bool large = counts[i] * reference_size(call.dtype) > (size_t)1100 << 10;
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

/* The engine's own calls: in place, sums of options.dtype, small ones back to back and of changing
 * size. */
static void named(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 1000);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 3);
        struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                                .dtype = rank->dtype,
                                .redop = SPARK_COMM_SUM,
                                .count = (size_t)(random >> 32) % (random % 16 == 0 ? 40000 : 200)};
        ops_shuffle(&call, random);
        call.in_place = call.named = true;
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

static void tune_f32(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_F32;
}

static void tune_i64(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_I64;
}

/* A large number, a small one, the negative of the large one: only the order decides whether the
 * small one survives the sum. It must be that of the ranks, at every size. */
static void rank_order(struct harness_rank *rank) {
    static const float given[4] = {0x1p24f, 1.0f, -0x1p24f, 0.5f};
    static const size_t counts[] = {1, 2, 13, 14, 16, 63, 1000, 1024, 4096, 20000, 65536, 262145};
    struct guard_buffer place;
    if (!CHECK_TRUE(rank, guard_arena_reserve(&rank->send, 262145 * sizeof(float)), "no memory"))
        return;
    guard_place(&rank->send, 262145 * sizeof(float), 0, false, &place);
    float *own = (float *)(void *)place.data;
    float want = given[0];
    for (int r = 1; r < rank->size; r++)
        want = want + given[r];
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t i = 0; i < counts[c]; i++)
            own[i] = given[rank->rank];
        harness_step(rank, "rank order, %zu elements", counts[c]);
        const spark_comm_op op = {.struct_size = sizeof op,
                                  .kind = SPARK_COMM_OP_ALL_REDUCE,
                                  .dtype = SPARK_COMM_F32,
                                  .send = harness_address(own),
                                  .recv = harness_address(own),
                                  .bytes = counts[c] * 4};
        if (!CHECK_OK(rank, spark_comm_submit(rank->comm, &op))) return;
        for (size_t i = 0; i < counts[c]; i++) {
            if (!CHECK_TRUE(rank, own[i] == want, "element %zu of %zu: expected %a, got %a", i,
                            counts[c], (double)want, (double)own[i]))
                return;
        }
    }
}

/* A zero-byte call moves nothing, but counts. Its pointer may be anything. */
static void zero_bytes(struct harness_rank *rank) {
    spark_comm_health_report before = {.struct_size = sizeof before},
                             after = {.struct_size = sizeof after};
    if (!CHECK_OK(rank, spark_comm_health(rank->comm, &before))) return;
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, 0, 0));
    CHECK_OK(rank, spark_comm_all_reduce_async(rank->comm, 0, 0, 0));
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, 0x10, 0));
    if (!CHECK_OK(rank, spark_comm_health(rank->comm, &after))) return;
    CHECK_INT(rank, before.lanes[SPARK_COMM_LANE_DATA].submitted + 3,
              after.lanes[SPARK_COMM_LANE_DATA].submitted);
    CHECK_INT(rank, after.lanes[SPARK_COMM_LANE_DATA].submitted,
              after.lanes[SPARK_COMM_LANE_DATA].completed);
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix, .limit_s = 240}, 0},
    {"named_bf16", {.run = named}, 0},
    {"named_f32", {.run = named, .tune = tune_f32}, CONTRACT_PAIR},
    {"named_i64", {.run = named, .tune = tune_i64}, CONTRACT_TRIO},
    {"rank_order", {.run = rank_order}, CONTRACT_NO_SINGLE},
    {"zero_bytes", {.run = zero_bytes}, 0},
};

CONTRACT_MAIN("all_reduce", tests)
