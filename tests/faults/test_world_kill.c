/*
 * Ranks that end or stop: every survivor learns who, in the same words, at once (a killed one) or
 * within liveness_timeout_ms and a second (a stopped one). Ranks are processes; on one host and,
 * with host identities made different, over TCP.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "os/thread.h"
#include "world_ranks.h"

#define SIZE 3

/* What forked ranks tell the test. */
struct board {
    _Atomic int ready; /* ranks that wait for the fault */
    _Atomic int64_t struck;
    struct {
        _Atomic int64_t noticed;
        int status, peer, lost_count, lost_rank;
        char message[512];
    } seen[SIZE];
};

static struct board *board;
static bool over_tcp;

void __real_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t calls;
    __real_sc_thread_host_id(id);
    if (over_tcp) id->network_namespace = (uint64_t)getpid() << 20 | calls++;
}

static void note(struct world_rank *rank) {
    spark_comm_health_report report = {0};
    struct sc_error cause;

    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    sc_world_health(rank->world, &report);
    board->seen[rank->rank].status = cause.status;
    board->seen[rank->rank].peer = cause.peer;
    board->seen[rank->rank].lost_count = report.lost_count;
    board->seen[rank->rank].lost_rank = report.lost_rank;
    memcpy(board->seen[rank->rank].message, cause.message, sizeof cause.message);
}

static void wait_for_the_fault(struct world_rank *rank) {
    int64_t until = sc_deadline_after(30000);
    uint32_t word;
    size_t bytes;

    atomic_fetch_add(&board->ready, 1);
    /* One survivor is in an idle receive, the others look at the poison. */
    if (rank->rank == 1) {
        CHECK_STATUS(rank,
                     sc_world_command_recv(rank->world, 2, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4,
                                           &bytes, SC_DEADLINE_NEVER, &rank->error),
                     SPARK_COMM_PEER_LOST);
    }
    while (*sc_world_poison(rank->world) == 0) {
        CHECK(!sc_deadline_passed(until));
        sc_wait_futex_sleep(sc_world_poison(rank->world), 0, until);
    }
    atomic_store(&board->seen[rank->rank].noticed, sc_deadline_now());
}

static void body_survive(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK(sc_world_one_host(rank->world) != over_tcp);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    wait_for_the_fault(rank);
    note(rank);
    int64_t start = sc_deadline_now();
    sc_world_close(rank->world);
    CHECK(world_ms_since(start) < 2000);
}

static void start_all(struct world_rank *ranks, const struct world_plan *plan,
                      void (*body)(struct world_rank *rank)) {
    memset(board, 0, sizeof *board);
    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], plan, i);
        world_start_process(&ranks[i], body);
    }
    int64_t until = sc_deadline_after(20000);
    while (atomic_load(&board->ready) < SIZE) {
        CHECK(!sc_deadline_passed(until));
        usleep(200);
    }
    usleep(5000);
}

static void expect_same_words(const struct world_rank *ranks, int victim, const char *how) {
    char want[160];

    snprintf(want, sizeof want, "rank %d (process %d) is lost: it %s", victim,
             (int)ranks[victim].pid, how);
    for (int i = 0; i < SIZE; i++) {
        if (i == victim) continue;
        /* What follows tells what each rank was in: nothing here. */
        assert_memory_equal(board->seen[i].message, want, strlen(want));
        assert_string_equal(board->seen[i].message, board->seen[victim == 0 ? 1 : 0].message);
        assert_int_equal(board->seen[i].status, SPARK_COMM_PEER_LOST);
        assert_int_equal(board->seen[i].peer, victim);
        assert_int_equal(board->seen[i].lost_count, 1);
        assert_int_equal(board->seen[i].lost_rank, victim);
    }
}

static double slowest_ms(int victim) {
    int64_t last = 0;
    for (int i = 0; i < SIZE; i++)
        if (i != victim && board->seen[i].noticed > last) last = board->seen[i].noticed;
    return (double)(last - board->struck) / 1e6;
}

static void kill_rounds(int rounds, void (*body)(struct world_rank *rank), double limit_ms) {
    struct world_rank ranks[SIZE];
    double worst = 0;

    for (int round = 0; round < rounds; round++) {
        struct world_plan plan = world_plan_for(SIZE);
        int victim = round % SIZE;
        start_all(ranks, &plan, body);
        board->struck = sc_deadline_now();
        kill(ranks[victim].pid, SIGKILL);
        for (int i = 0; i < SIZE; i++)
            assert_int_equal(world_wait_process(&ranks[i]), i == victim ? -SIGKILL : 0);
        expect_same_words(ranks, victim, "ended without a goodbye");
        double took = slowest_ms(victim);
        assert_true(took < limit_ms);
        if (took > worst) worst = took;
    }
    printf("killed to noticed by all: at most %.2f ms in %d rounds\n", worst, rounds);
}

static void test_killed(void **state) {
    (void)state;
    over_tcp = false;
    kill_rounds(12, body_survive, 1000);
}

static void test_killed_over_tcp(void **state) {
    (void)state;
    over_tcp = true;
    kill_rounds(6, body_survive, 1000);
    over_tcp = false;
}

/* A child of the victim holds all its sockets open: only its pidfd tells. */
static void body_with_child(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    pid_t child = fork();
    if (child == 0) {
        sleep(5);
        _exit(0);
    }
    wait_for_the_fault(rank);
    note(rank);
    sc_world_close(rank->world);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_killed_with_child(void **state) {
    (void)state;
    kill_rounds(3, body_with_child, 1000);
}

static void stop_round(int victim) {
    struct world_rank ranks[SIZE];
    struct world_plan plan = world_plan_for(SIZE);

    plan.liveness_ms = 1000;
    start_all(ranks, &plan, body_survive);
    board->struck = sc_deadline_now();
    kill(ranks[victim].pid, SIGSTOP);
    for (int i = 0; i < SIZE; i++)
        if (i != victim) assert_int_equal(world_wait_process(&ranks[i]), 0);
    expect_same_words(ranks, victim, "gave no sign of life for 1.0 s (liveness_timeout_ms)");
    double took = slowest_ms(victim);
    printf("rank %d stopped to noticed by all: %.0f ms\n", victim, took);
    assert_true(took > 700 && took < 2000);
    /* Woken, it finds itself without the others and ends with an error of its own. */
    kill(ranks[victim].pid, SIGCONT);
    assert_int_equal(world_wait_process(&ranks[victim]), 0);
    assert_int_equal(board->seen[victim].status, SPARK_COMM_PEER_LOST);
}

static void test_stopped(void **state) {
    (void)state;
    for (int victim = 0; victim < SIZE; victim++)
        stop_round(victim);
}

static void test_stopped_over_tcp(void **state) {
    (void)state;
    over_tcp = true;
    stop_round(0);
    stop_round(2);
    over_tcp = false;
}

/* All stop together for longer than liveness_timeout_ms and go on: nobody is blamed. */
static void body_all_stopped(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    atomic_fetch_add(&board->ready, 1);
    int64_t until = sc_deadline_after(20000);
    while (board->struck == 0)
        CHECK(!sc_deadline_passed(until) && usleep(1000) == 0);
    CHECK_STATUS(rank, world_barrier(rank, 2), SPARK_COMM_OK);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

static void test_all_stopped(void **state) {
    struct world_rank ranks[SIZE];
    struct world_plan plan = world_plan_for(SIZE);
    (void)state;

    plan.liveness_ms = 1000;
    start_all(ranks, &plan, body_all_stopped);
    for (int i = 0; i < SIZE; i++)
        kill(ranks[i].pid, SIGSTOP);
    usleep(2500 * 1000);
    for (int i = 0; i < SIZE; i++)
        kill(ranks[i].pid, SIGCONT);
    usleep(500 * 1000);
    board->struck = 1;
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
}

/* The head dies while it gathers; another one starts, and the waiting rank finds it. */
static void body_joined(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
}

static void body_never(struct world_rank *rank) {
    (void)rank;
    CHECK(false);
}

static void test_head_replaced_early(void **state) {
    struct world_rank ranks[SIZE], first;
    struct world_plan plan = world_plan_for(SIZE);
    (void)state;

    world_prepare(&first, &plan, 0);
    world_start_process(&first, body_never);
    world_prepare(&ranks[1], &plan, 1);
    world_start_process(&ranks[1], body_joined);
    usleep(300 * 1000);
    kill(first.pid, SIGKILL);
    assert_int_equal(world_wait_process(&first), -SIGKILL);
    for (int i = 0; i < SIZE; i += 2) {
        world_prepare(&ranks[i], &plan, i);
        world_start_process(&ranks[i], body_joined);
    }
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
}

/* A rank dies while the others still come; its replacement takes the place. */
static void test_rank_replaced_early(void **state) {
    struct world_rank ranks[SIZE], first;
    struct world_plan plan = world_plan_for(SIZE);
    (void)state;

    world_prepare(&ranks[0], &plan, 0);
    world_start_process(&ranks[0], body_joined);
    world_prepare(&first, &plan, 1);
    world_start_process(&first, body_never);
    usleep(300 * 1000);
    kill(first.pid, SIGKILL);
    assert_int_equal(world_wait_process(&first), -SIGKILL);
    for (int i = 1; i < SIZE; i++) {
        world_prepare(&ranks[i], &plan, i);
        world_start_process(&ranks[i], body_joined);
    }
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
}

/* ---- Closing beside a rank that is stopped ---- */

static void body_close(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    if (rank->rank == 1) raise(SIGSTOP);
    while (rank->rank == 0 && atomic_load(&board->struck) == 0)
        usleep(200);
    int64_t start = sc_deadline_now();
    sc_world_close(rank->world);
    board->seen[rank->rank].status = (int)world_ms_since(start);
}

/* The sockets of one that closed are not gone before all have read what came on them. */
static void test_close_awaits_farewell(void **state) {
    struct world_plan plan = world_plan_for(SIZE);
    struct world_rank ranks[SIZE];
    int status;
    (void)state;

    memset(board, 0, sizeof *board);
    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], &plan, i);
        world_start_process(&ranks[i], body_close);
    }
    assert_int_equal(waitpid(ranks[1].pid, &status, WUNTRACED), ranks[1].pid);
    assert_true(WIFSTOPPED(status));
    atomic_store(&board->struck, 1);
    usleep(300 * 1000);
    assert_int_equal(waitpid(ranks[0].pid, &status, WNOHANG), 0); /* still in its close */
    kill(ranks[1].pid, SIGCONT);
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
    assert_true(board->seen[0].status < 4000); /* it was answered, the limit is 5000 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_killed_over_tcp),
        cmocka_unit_test(test_killed_with_child),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_stopped_over_tcp),
        cmocka_unit_test(test_all_stopped),
        cmocka_unit_test(test_head_replaced_early),
        cmocka_unit_test(test_rank_replaced_early),
        cmocka_unit_test(test_close_awaits_farewell),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
