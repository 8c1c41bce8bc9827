/* exchange_host: a host all-gather of up to 64 KiB per rank on the control plane, whatever the
 * backend. */
#include <string.h>

#include "contract.h"
#include "ops.h"

static void matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t used = ops_counts(1, SPARK_COMM_MAX_EXCHANGE_BYTES, counts);
    for (size_t i = 0; i < used; i++) {
        struct ops_call call = {.kind = SPARK_COMM_OP_EXCHANGE_HOST, .count = counts[i]};
        ops_shuffle(&call, reference_mix(rank->seed, i, 5));
        harness_jitter(rank, 200);
        if (!ops_run(rank, &call)) return;
    }
}

/* The engine's vote: the smallest and the largest of all ranks' numbers. */
static void vote(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 400);
    for (int i = 0; i < rounds; i++) {
        int64_t mine = (rank->rank * 7 + i) % 5, all[HARNESS_MAX_RANKS];
        if (!CHECK_OK(rank, spark_comm_exchange_host(rank->comm, &mine, all, sizeof mine))) return;
        for (int r = 0; r < rank->size; r++)
            CHECK_INT(rank, (r * 7 + i) % 5, all[r]);
    }
}

static void refusals(struct harness_rank *rank) {
    static unsigned char memory[(SPARK_COMM_MAX_EXCHANGE_BYTES + 1) * 4];
    spark_comm *comm = rank->comm;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_exchange_host(comm, memory, memory, SPARK_COMM_MAX_EXCHANGE_BYTES + 1),
                  "bytes", "65537", "65536");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_exchange_host(comm, NULL, memory, 8), "send");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_exchange_host(comm, memory, NULL, 8), "recv");
    CHECK_OK(rank, spark_comm_exchange_host(comm, NULL, NULL, 0));
}

static const struct contract_test tests[] = {
    {"matrix", {.run = matrix}, 0},
    {"vote", {.run = vote}, 0},
    {"refusals", {.run = refusals}, 0},
};

CONTRACT_MAIN("exchange_host", tests)
