/*
 * A rank whose network is taken away: found by its silence, on both sides. Each rank lives in a
 * network namespace of its own (network.h), and the test says so where that cannot be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "fault_ranks.h"
#include "network.h"

#define SIZE NETWORK_RANKS
#define LIVENESS_MS 1000
#define SKIPPED 77

static struct fault_round board_owner;
static struct fault_board *board;
static struct world_plan plan;

static void note(struct world_rank *rank) {
    struct fault_seen *seen = &board->seen[rank->rank];
    struct sc_error cause;

    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    seen->status = (spark_comm_status)cause.status;
    seen->error.peer = cause.peer;
    memcpy(seen->error.message, cause.message, sizeof cause.message);
    atomic_store(&seen->at, sc_deadline_now());
}

static void body(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK(!sc_world_one_host(rank->world));
    world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_BARRIER, -1, 1);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    world_done(rank, SPARK_COMM_LANE_DATA, 1);
    world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_BARRIER, -1, 2);
    atomic_fetch_add(&board->ready, 1);
    world_await_poison(rank);
    note(rank);
    sc_world_close(rank->world);
}

static void cut_off(int victim) {
    struct world_rank ranks[SIZE];
    unsigned others = 7u & ~(1u << victim);
    char want[96];

    memset(board, 0, sizeof *board);
    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], &plan, i);
        fflush(NULL);
        ranks[i].pid = fork();
        CHECK(ranks[i].pid >= 0);
        if (ranks[i].pid != 0) continue;
        CHECK(network_enter(network_of[i]));
        world_open(&ranks[i]);
        body(&ranks[i]);
        exit(0);
    }
    fault_await(&board->ready, SIZE);
    board->struck = sc_deadline_now();
    assert_true(network_switch(victim, false));
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
    assert_true(network_switch(victim, true));
    double took = fault_same(&board_owner, others, SPARK_COMM_PEER_LOST);
    const char *words = board->seen[__builtin_ctz(others)].error.message;
    printf("rank %d cut off, to the others: %.0f ms: %s\n", victim, took, words);
    assert_true(took < LIVENESS_MS + 1000);
    snprintf(want, sizeof want, "rank %d (process %d) is lost: it gave no sign of life", victim,
             (int)ranks[victim].pid);
    assert_memory_equal(words, want, strlen(want));
    const struct fault_seen *own = &board->seen[victim];
    double late = (double)(own->at - board->struck) / 1e6;
    printf("                        to itself: %.0f ms: %s\n", late, own->error.message);
    snprintf(want, sizeof want, "rank %d is cut off from all others", victim);
    assert_int_equal(own->status, SPARK_COMM_PEER_LOST);
    assert_memory_equal(own->error.message, want, strlen(want));
    assert_true(late < LIVENESS_MS + 2500);
}

static void test_cut_off(void **state) {
    (void)state;
    for (int victim = 0; victim < SIZE; victim++)
        cut_off(victim);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut_off)};

    if (!network_set_up()) {
        printf("skipped: " NETWORK_NEEDS "\n");
        return SKIPPED;
    }
    board = board_owner.board = world_board(sizeof *board);
    board_owner.size = SIZE;
    plan = world_plan_for(SIZE);
    plan.addr = NETWORK_HEAD;
    plan.token = "a token, since the ranks are not local to each other";
    plan.liveness_ms = LIVENESS_MS;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
