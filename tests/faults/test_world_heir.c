/*
 * The world over TCP when the hub has gone, or is slow, at the moments that are hard to meet: a successor that
 * closes before it could be dialled, a survivor that dials one that already reconnects, a head that stalls
 * between the others' words and its own. Ranks are processes; host identities are made different.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "os/thread.h"
#include "world/world_state.h"
#include "world_ranks.h"

#define SIZE 3

struct board {
    _Atomic int leaving, closed[SIZE];
    _Atomic int stall_ms; /* of the head, once it has asked the others */
    _Atomic int dial_ms; /* of the dialling of rank 2 */
    struct sc_error causes[SIZE];
};

static struct board *board;
static _Atomic int own_rank = -1; /* of this process */

void __real_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t calls;
    __real_sc_thread_host_id(id);
    id->network_namespace = (uint64_t)getpid() << 20 | calls++;
}

static void await(const _Atomic int *word) {
    int64_t until = sc_deadline_after(20000);
    while (atomic_load(word) == 0) {
        CHECK(!sc_deadline_passed(until));
        usleep(500);
    }
}

/* Rank 2 dials the hub's successor. */
spark_comm_status __real_sc_socket_connect_start(const struct sc_socket_address *address, int *fd,
                                                 struct sc_error *error);
spark_comm_status __wrap_sc_socket_connect_start(const struct sc_socket_address *address, int *fd,
                                                 struct sc_error *error);
spark_comm_status __wrap_sc_socket_connect_start(const struct sc_socket_address *address, int *fd,
                                                 struct sc_error *error) {
    if (own_rank == 2 && atomic_load(&board->leaving) != 0) await(&board->closed[1]);
    if (own_rank == 2) usleep((unsigned)atomic_exchange(&board->dial_ms, 0) * 1000u);
    return __real_sc_socket_connect_start(address, fd, error);
}

int64_t __real_sc_judge_step(struct sc_world *world);
int64_t __wrap_sc_judge_step(struct sc_world *world);
int64_t __wrap_sc_judge_step(struct sc_world *world) {
    if (own_rank == 0 && world->epoch->judge.asked_at != 0)
        usleep((unsigned)atomic_exchange(&board->stall_ms, 0) * 1000u);
    return __real_sc_judge_step(world);
}

static void run(void (*body)(struct world_rank *rank), struct world_rank *ranks,
                struct world_plan *plan) {
    *plan = world_plan_for(SIZE);
    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], plan, i);
        world_start_process(&ranks[i], body);
    }
}

static void finish(struct world_rank *ranks) {
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
}

static void begin(struct world_rank *rank) {
    own_rank = rank->rank;
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK(!sc_world_one_host(rank->world));
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
}

/* ---- Everybody closes ---- */

/* The hub has passed rank 1's goodbye on, and rank 2 reads it after it has found rank 1 gone. */
static void body_leave(struct world_rank *rank) {
    spark_comm_health_report health = {0};
    begin(rank);
    atomic_store(&board->leaving, 1);
    if (rank->rank == 1) usleep(50000); /* rank 0's goodbye is out */
    if (rank->rank == 2) {
        await(&board->closed[1]);
        await(&board->closed[0]);
        usleep(600000); /* longer than a successor is dialled again */
        CHECK(*sc_world_poison(rank->world) == 0);
        sc_world_health(rank->world, &health);
        CHECK(health.state == SPARK_COMM_STATE_HEALTHY && health.lost_count == 0);
    }
    sc_world_close(rank->world);
    atomic_store(&board->closed[rank->rank], 1);
}

static void test_successor_closes(void **state) {
    struct world_rank ranks[SIZE];
    struct world_plan plan;
    (void)state;
    for (int round = 0; round < 5; round++) {
        memset(board, 0, sizeof *board);
        run(body_leave, ranks, &plan);
        finish(ranks);
    }
}

/* ---- One sentence ---- */

static void note_cause(struct world_rank *rank) {
    world_await_poison(rank);
    CHECK(sc_world_cause(rank->world, &board->causes[rank->rank]) == SPARK_COMM_OK);
}

static void body_reconnect(struct world_rank *rank) {
    begin(rank);
    while (sc_world_epoch(rank->world) < 2) {
        note_cause(rank);
        sc_world_ask(rank->world);
        spark_comm_status st = sc_world_reconnect(rank->world, &rank->error);
        if (st == SPARK_COMM_OK) st = sc_world_agree(rank->world, st, &rank->error);
        CHECK_STATUS(rank, st, SPARK_COMM_OK);
        CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    }
    sc_world_close(rank->world);
}

/* Rank 1 has its sentence, and reconnects, long before rank 2 dials it. */
static void test_follower_is_late(void **state) {
    struct world_rank ranks[SIZE];
    struct world_plan plan;
    (void)state;
    memset(board, 0, sizeof *board);
    run(body_reconnect, ranks, &plan);
    usleep(300000);
    atomic_store(&board->dial_ms, 300);
    assert_int_equal(kill(ranks[0].pid, SIGKILL), 0);
    assert_int_equal(world_wait_process(&ranks[0]), -SIGKILL);
    world_start_process(&ranks[0], body_reconnect);
    finish(ranks);
    assert_int_equal(board->causes[1].status, SPARK_COMM_PEER_LOST);
    assert_non_null(strstr(board->causes[1].message, "rank 0 (process "));
    assert_string_equal(board->causes[2].message, board->causes[1].message);
}

/* Ranks 0 and 1 wait for rank 2, and rank 1 finds that it has waited long enough. */
static void body_slow_head(struct world_rank *rank) {
    struct sc_error fault = {.operation = SPARK_COMM_OP_ALL_REDUCE, .sequence = 1, .peer = -1};
    begin(rank);
    if (rank->rank != 2) world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_ALL_REDUCE, -1, 1);
    CHECK_STATUS(rank, world_barrier(rank, 2), SPARK_COMM_OK);
    sc_error_set(&fault, SPARK_COMM_OP_TIMEOUT, -1, 0, "all_reduce #1 timed out");
    if (rank->rank == 1) sc_world_fault(rank->world, &fault);
    note_cause(rank);
    usleep(1200000); /* nobody leaves while the head may still judge */
    sc_world_close(rank->world);
}

/* Later than the others wait for it, and earlier. */
static void test_head_is_slow(void **state) {
    static const int stalls[] = {900, 500, 650, 1100};
    struct world_rank ranks[SIZE];
    struct world_plan plan;
    (void)state;
    for (int i = 0; i < 4; i++) {
        memset(board, 0, sizeof *board);
        atomic_store(&board->stall_ms, stalls[i]);
        run(body_slow_head, ranks, &plan);
        finish(ranks);
        assert_int_equal(atomic_load(&board->stall_ms), 0);
        for (int rank = 1; rank < SIZE; rank++)
            assert_string_equal(board->causes[rank].message, board->causes[0].message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_successor_closes),
        cmocka_unit_test(test_follower_is_late),
        cmocka_unit_test(test_head_is_slow),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
