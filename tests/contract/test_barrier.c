/* barrier: returns on no rank before every rank has entered, whoever comes last. */
#include "contract.h"
#include "ops.h"

#define ROUNDS_PER_WORD 64

/* Each rank says on the board that it enters; on return all must have said so. */
static void nobody_leaves_early(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 400);
    for (int i = 0; i < rounds; i++) {
        _Atomic uint64_t *entered = harness_word(rank, i / ROUNDS_PER_WORD);
        harness_step(rank, "barrier %d", i);
        /* The last one to come is another each time; now and then it comes late. */
        if (i % rank->size == rank->rank && i % 16 < rank->size) harness_sleep_ms(3);
        atomic_fetch_add_explicit(entered, 1, memory_order_relaxed);
        if (!CHECK_OK(rank, spark_comm_barrier(rank->comm))) return;
        const uint64_t seen = atomic_load_explicit(entered, memory_order_relaxed);
        const uint64_t least = (uint64_t)(i % ROUNDS_PER_WORD + 1) * (unsigned)rank->size;
        if (!CHECK_TRUE(rank, seen >= least,
                        "barrier %d returned when %llu of %llu entries were made", i,
                        (unsigned long long)seen, (unsigned long long)least))
            return;
    }
}

static void many(struct harness_rank *rank) {
    const int rounds = harness_rounds(rank, 3000);
    struct ops_call call = {.kind = SPARK_COMM_OP_BARRIER};
    for (int i = 0; i < rounds; i++) {
        call.named = i % 3 != 0;
        if (!ops_run(rank, &call)) return;
    }
}

/* It is bounded: a rank that never comes ends it with OP_TIMEOUT, and that is fatal. */
static void deadline(struct harness_rank *rank) {
    if (rank->rank == 0) {
        const spark_comm_op op = {
            .struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER, .timeout_ms = 300};
        const int64_t start = harness_now_ms();
        if (!CHECK_STATUS(rank, SPARK_COMM_OP_TIMEOUT, spark_comm_submit(rank->comm, &op))) return;
        const int64_t took = harness_now_ms() - start;
        CHECK_TRUE(rank, took >= 290 && took < 300 + 1000 * harness_slowness(),
                   "300 ms became %lld ms", (long long)took);
        CHECK_MESSAGE(rank, SPARK_COMM_OP_TIMEOUT, "barrier");
        CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "still healthy after OP_TIMEOUT");
        CHECK_STATUS(rank, SPARK_COMM_OP_TIMEOUT, spark_comm_barrier(rank->comm));
    }
    harness_meet(rank);
}

static const struct contract_test tests[] = {
    {"nobody_leaves_early", {.run = nobody_leaves_early}, 0},
    {"many", {.run = many}, 0},
    {"deadline", {.run = deadline}, CONTRACT_SEVERAL | CONTRACT_NO_SINGLE},
};

CONTRACT_MAIN("barrier", tests)
