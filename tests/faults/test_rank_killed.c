/* A rank that is killed, or stopped, in the middle of things: the others learn who, soon, whatever
 * they were doing. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract/contract.h"
#include "contract/ops.h"

/* The contract says 50 ms; a test machine that is busy gets a second. */
#define SOON_MS 1000
enum { KILLED_AT = 0, VICTIM_PID = 1, SURVIVORS_DONE = 2 };

static void die(struct harness_rank *rank) {
    atomic_store(harness_word(rank, KILLED_AT), (uint64_t)harness_now_ms());
    harness_die(rank);
}

/* What a survivor must see of the loss of `victim` after a call returned `st`. */
static void check_loss(struct harness_rank *rank, int victim, spark_comm_status st, int soon_ms) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_health_report health = {.struct_size = sizeof health};
    char name[32];
    float value = 0;
    const int64_t late = harness_now_ms() - (int64_t)atomic_load(harness_word(rank, KILLED_AT));
    if (!CHECK_STATUS(rank, SPARK_COMM_PEER_LOST, st)) return;
    CHECK_TRUE(rank, late < soon_ms * harness_slowness(), "told only after %lld ms",
               (long long)late);
    snprintf(name, sizeof name, "rank %d", victim);
    CHECK_MESSAGE(rank, SPARK_COMM_PEER_LOST, name);
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, victim, error.peer);
    CHECK_OK(rank, spark_comm_health(rank->comm, &health));
    CHECK_INT(rank, SPARK_COMM_STATE_POISONED, health.state);
    CHECK_INT(rank, 1, health.lost_count);
    CHECK_INT(rank, victim, health.lost_rank);
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "still healthy");
    const int64_t start = harness_now_ms();
    CHECK_STATUS(rank, SPARK_COMM_PEER_LOST,
                 spark_comm_all_reduce(rank->comm, harness_address(&value), 4));
    CHECK_STATUS(rank, SPARK_COMM_PEER_LOST,
                 spark_comm_broadcast(rank->comm, harness_address(&value), 4, rank->rank));
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    CHECK_TRUE(rank, harness_now_ms() - start < 2000 * harness_slowness(), "close took %lld ms",
               (long long)(harness_now_ms() - start));
}

/* All ranks reduce without end; the victim dies in the middle. */
static void in_a_loop(struct harness_rank *rank, int victim, size_t bytes) {
    const int fatal_round = bytes > 65536 ? 20 : 150;
    unsigned char *memory = calloc(1, bytes);
    spark_comm_status st = SPARK_COMM_OK;
    if (!CHECK_TRUE(rank, memory != NULL, "no memory")) return;
    for (int i = 0; st == SPARK_COMM_OK; i++) {
        if (i == fatal_round && rank->rank == victim) die(rank);
        st = spark_comm_all_reduce(rank->comm, harness_address(memory), bytes);
    }
    check_loss(rank, victim, st, SOON_MS);
    free(memory);
}

static void worker_small(struct harness_rank *rank) {
    in_a_loop(rank, rank->size - 1, 64);
}
static void worker_large(struct harness_rank *rank) {
    in_a_loop(rank, rank->size - 1, (size_t)1 << (rank->world->backend->thinning > 1 ? 17 : 20));
}
static void head_small(struct harness_rank *rank) {
    in_a_loop(rank, 0, 4096);
}

/* The others sleep in a barrier, or wait for a command from a rank that lives: they hear of it all
 * the same. */
static void while_waiting(struct harness_rank *rank) {
    const int victim = rank->size - 1;
    uint32_t word;
    if (!CHECK_OK(rank, spark_comm_barrier(rank->comm))) return;
    if (rank->rank == victim) {
        harness_sleep_ms(300);
        die(rank);
    }
    const uint64_t address = harness_address(&word);
    const spark_comm_status st = rank->rank == 0
                                     ? spark_comm_barrier(rank->comm)
                                     : spark_comm_recv_command_u32(rank->comm, address, 0);
    check_loss(rank, victim, st, SOON_MS);
}

/* Nobody is in a call: the loss shows in health, and at the next call. */
static void while_idle(struct harness_rank *rank) {
    const int victim = rank->size - 1;
    if (!CHECK_OK(rank, spark_comm_barrier(rank->comm))) return;
    if (rank->rank == victim) die(rank);
    const int64_t limit = harness_now_ms() + SOON_MS * harness_slowness();
    while (spark_comm_is_healthy(rank->comm) && harness_now_ms() < limit)
        harness_sleep_ms(2);
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "the loss does not show in is_healthy");
    check_loss(rank, victim, spark_comm_barrier(rank->comm), SOON_MS + 500);
}

static void tune_liveness(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->liveness_timeout_ms = 700 * harness_slowness();
}

/* A stopped process keeps its sockets, so only its silence tells. */
static void stopped(struct harness_rank *rank) {
    const int victim = rank->size - 1;
    if (rank->rank == victim) {
        harness_may_die(rank, victim);
        atomic_store(harness_word(rank, VICTIM_PID), (uint64_t)getpid());
        if (!CHECK_OK(rank, spark_comm_barrier(rank->comm))) return;
        atomic_store(harness_word(rank, KILLED_AT), (uint64_t)harness_now_ms());
        raise(SIGSTOP);
        return;
    }
    if (!CHECK_OK(rank, spark_comm_barrier(rank->comm))) return;
    check_loss(rank, victim, spark_comm_barrier(rank->comm), 700 + SOON_MS);
    atomic_fetch_add(harness_word(rank, SURVIVORS_DONE), 1);
    if (rank->rank != 0) return;
    harness_await(rank, SURVIVORS_DONE, (uint64_t)rank->size - 1, 20000);
    kill((pid_t)atomic_load(harness_word(rank, VICTIM_PID)), SIGKILL);
}

static const struct contract_test tests[] = {
    {"worker_small", {.run = worker_small}, CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
    {"worker_large", {.run = worker_large}, CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
    {"head_small", {.run = head_small}, CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
    {"while_waiting", {.run = while_waiting}, CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
    {"while_idle", {.run = while_idle}, CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
    {"stopped",
     {.run = stopped, .tune = tune_liveness},
     CONTRACT_ONLY_PROCESSES | CONTRACT_SEVERAL},
};

CONTRACT_MAIN("rank_killed", tests)
