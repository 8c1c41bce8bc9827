/* broadcast: every root and size on both sides of the command lane's limit; the root's buffer is
 * free on return. */
#include <string.h>

#include "contract.h"
#include "ops.h"

static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t used = ops_counts(1, ops_max_bytes(rank), counts);
    for (int root = 0; root < rank->size; root++) {
        for (size_t i = 0; i < used; i++) {
            struct ops_call call = {
                .kind = SPARK_COMM_OP_BROADCAST, .count = counts[i], .root = root};
            for (unsigned variant = 0; variant < 3; variant++) {
                const uint64_t index = ((uint64_t)root << 32) + i * 4 + variant;
                if (variant > 0 && (counts[i] > (size_t)1100 << 10 || !harness_wants(rank, index)))
                    continue;
                ops_shuffle(&call, reference_mix(index, variant, 5));
                if (!ops_run(rank, &call)) return;
            }
        }
    }
}

/* Roots take turns at random, without anything between them. */
static void changing_roots(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 1000);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 3);
        struct ops_call call = {.kind = SPARK_COMM_OP_BROADCAST,
                                .root = (int)(random % (unsigned)rank->size),
                                .count = (size_t)(random >> 32) % (random >> 8 & 1 ? 4200 : 40000)};
        ops_shuffle(&call, random >> 3);
        harness_jitter(rank, 300);
        if (!ops_run(rank, &call)) return;
    }
}

/* The root does not wait for an acknowledgement: it may run ahead of receivers that have not come
 * yet. */
static void root_runs_ahead(struct harness_rank *rank) {
    uint32_t word = 0;
    if (rank->rank == 0) {
        for (uint32_t i = 0; i < 100; i++) {
            word = i;
            if (!CHECK_OK(rank,
                          spark_comm_broadcast(rank->comm, harness_address(&word), sizeof word, 0)))
                return;
        }
        atomic_store(harness_word(rank, 0), 1);
        return;
    }
    /* Nobody has received yet, and still the root got through. */
    if (!harness_await(rank, 0, 1, 10000)) return;
    for (uint32_t i = 0; i < 100; i++) {
        if (!CHECK_OK(rank,
                      spark_comm_broadcast(rank->comm, harness_address(&word), sizeof word, 0)))
            return;
        CHECK_INT(rank, i, word);
    }
}

/* Small ones count on the command lane, larger ones on the data lane. */
static void lanes(struct harness_rank *rank) {
    static const size_t sizes[] = {1, SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES,
                                   SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES + 1};
    static const int lane_of[] = {SPARK_COMM_LANE_COMMAND, SPARK_COMM_LANE_COMMAND,
                                  SPARK_COMM_LANE_DATA};
    unsigned char buffer[SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES + 1] = {0};
    for (int i = 0; i < 3; i++) {
        spark_comm_health_report before = {.struct_size = sizeof before},
                                 after = {.struct_size = sizeof after};
        CHECK_OK(rank, spark_comm_health(rank->comm, &before));
        if (!CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(buffer), sizes[i], 0)))
            return;
        CHECK_OK(rank, spark_comm_health(rank->comm, &after));
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
            CHECK_INT(rank, before.lanes[lane].submitted + (lane == lane_of[i]),
                      after.lanes[lane].submitted);
    }
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix}, 0},
    {"changing_roots", {.run = changing_roots}, 0},
    {"root_runs_ahead", {.run = root_runs_ahead}, CONTRACT_SEVERAL | CONTRACT_NO_SINGLE},
    {"lanes", {.run = lanes}, 0},
};

CONTRACT_MAIN("broadcast", tests)
