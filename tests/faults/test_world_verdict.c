/*
 * One verdict on all survivors: of a timeout, of deaths (rank 0's too, and two at once), of calls
 * that differ, and after rank 0 has closed. The world alone, ranks as processes, on one host and,
 * with host identities made different, over TCP.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "fault_ranks.h"
#include "os/thread.h"

#define SIZE 4
#define ALL 15u
#define SOON_MS 1000

static struct fault_round board_owner; /* for fault_same */
static struct fault_board *board;
static bool over_tcp;

void __real_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t calls;
    __real_sc_thread_host_id(id);
    if (over_tcp) id->network_namespace = (uint64_t)getpid() << 20 | calls++;
}

/* What the ranks of a round do. */
static struct plan {
    int away; /* rank that does not enter the second barrier; -1: none */
    int reporter; /* rank whose call times out; -1: none */
    int first; /* rank that closes before the fault; -1: none */
    int odd; /* rank that enters another call; -1: none */
} plan;
static const struct plan nothing = {-1, -1, -1, -1};

static void note(struct world_rank *rank) {
    struct fault_seen *seen = &board->seen[rank->rank];
    struct sc_error cause;

    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    seen->status = (spark_comm_status)cause.status;
    seen->error.peer = cause.peer;
    memcpy(seen->error.message, cause.message, sizeof cause.message);
    atomic_store(&seen->at, sc_deadline_now());
}

static void time_out(struct world_rank *rank) {
    struct sc_error error;

    usleep(150 * 1000);
    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_OP_TIMEOUT, -1, 0, "not all ranks have entered it");
    error.operation = SPARK_COMM_OP_BARRIER;
    error.sequence = 2;
    board->struck = sc_deadline_now();
    sc_world_fault(rank->world, &error);
}

static void body(struct world_rank *rank) {
    int lane = SPARK_COMM_LANE_DATA;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK(sc_world_one_host(rank->world) != over_tcp);
    world_enter(rank, lane, SPARK_COMM_OP_BARRIER, -1, 1);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    world_done(rank, lane, 1);
    if (rank->rank == plan.first) sc_world_close(rank->world);
    atomic_fetch_add(&board->ready, 1);
    if (rank->rank == plan.first) return;
    if (plan.first >= 0) usleep(100 * 1000); /* before the others need it */
    if (rank->rank != plan.away && plan.first < 0)
        world_enter(rank, lane,
                    rank->rank == plan.odd ? SPARK_COMM_OP_ALL_GATHER : SPARK_COMM_OP_BARRIER, -1,
                    2);
    if (rank->rank == plan.reporter) time_out(rank);
    world_await_poison(rank);
    note(rank);
    int64_t start = sc_deadline_now();
    sc_world_close(rank->world);
    CHECK(world_ms_since(start) < 2000);
}

static struct world_rank ranks[SIZE];

static void start(struct plan what, int liveness_ms) {
    struct world_plan world = world_plan_for(SIZE);

    memset(board, 0, sizeof *board);
    plan = what;
    world.liveness_ms = liveness_ms;
    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], &world, i);
        world_start_process(&ranks[i], body);
        board_owner.pids[i] = ranks[i].pid;
    }
    fault_await(&board->ready, SIZE);
    usleep(20 * 1000);
}

/* Ends all but the victims, who were killed; the latest word in milliseconds after the strike. */
static double finish(unsigned victims, unsigned survivors, spark_comm_status status) {
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), victims >> i & 1 ? -SIGKILL : 0);
    return fault_same(&board_owner, survivors, status);
}

static const char *words(int rank) {
    return board->seen[rank].error.message;
}

static void test_timeout(void **state) {
    const char *want = "rank 2 has not entered barrier #2; ranks 0, 1 and 3 wait in it since 0.";
    (void)state;

    for (int reporter = 0; reporter < SIZE; reporter += 3) {
        start((struct plan){.away = 2, .reporter = reporter, .first = -1, .odd = -1}, 10000);
        double took = finish(0, ALL, SPARK_COMM_OP_TIMEOUT);
        printf("rank %d's timeout to all ranks: %.1f ms\n", reporter, took);
        assert_memory_equal(words(0), want, strlen(want));
        assert_non_null(strstr(words(0), "; rank 2 last completed barrier #1"));
        assert_true(took < SOON_MS);
    }
}

static void kill_some(unsigned victims) {
    char want[64];
    int first = __builtin_ctz(victims);

    start(nothing, 10000);
    for (int i = 0; i < SIZE; i++)
        if (victims >> i & 1) fault_strike(&board_owner, i, SIGKILL);
    double took = finish(victims, ALL & ~victims, SPARK_COMM_PEER_LOST);
    printf("killed 0x%x to all survivors: %.1f ms: %s\n", victims, took,
           words(__builtin_ctz(ALL & ~victims)));
    assert_true(took < SOON_MS);
    if ((victims & (victims - 1)) != 0) return; /* either may be named first */
    snprintf(want, sizeof want, "rank %d (process %d) is lost: it ended without a goodbye", first,
             (int)ranks[first].pid);
    assert_memory_equal(words(__builtin_ctz(ALL & ~victims)), want, strlen(want));
}

static void test_killed(void **state) {
    static const unsigned sets[] = {1, 2, 8, 1 | 2, 1 | 8, 2 | 4, 1 | 4};
    (void)state;

    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
            kill_some(sets[i]);
}

/* Over TCP the successor waits for the others' view, on one host all find it alike. */
static void test_hub_stopped(void **state) {
    (void)state;

    start(nothing, 1000);
    fault_strike(&board_owner, 0, SIGSTOP);
    for (int i = 1; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
    double took = fault_same(&board_owner, ALL & ~1u, SPARK_COMM_PEER_LOST);
    printf("rank 0 stopped to all survivors: %.0f ms: %s\n", took, words(1));
    assert_true(took < 2000 + SOON_MS);
    kill(ranks[0].pid, SIGKILL);
    world_wait_process(&ranks[0]);
}

/* After rank 0 has closed, a death is heard by all that are left. */
static void test_killed_later(void **state) {
    (void)state;

    for (int victim = 1; victim < SIZE; victim++) {
        unsigned survivors = ALL & ~1u & ~(1u << victim);
        start((struct plan){.away = -1, .reporter = -1, .first = 0, .odd = -1}, 10000);
        usleep(200 * 1000);
        fault_strike(&board_owner, victim, SIGKILL);
        double took = finish(1u << victim, survivors, SPARK_COMM_PEER_LOST);
        printf("rank %d killed after rank 0 closed, to all: %.1f ms\n", victim, took);
        assert_true(took < SOON_MS);
        assert_int_equal(board->seen[__builtin_ctz(survivors)].error.peer, victim);
    }
}

/* The lines alone tell it, a quarter of a second after both were in. */
static void test_calls_differ(void **state) {
    (void)state;

    start((struct plan){.away = -1, .reporter = -1, .first = -1, .odd = 2}, 10000);
    board->struck = sc_deadline_now();
    printf("different calls to all ranks: %.0f ms\n", finish(0, ALL, SPARK_COMM_MISMATCH));
    assert_non_null(strstr(words(0), "rank 2"));
    assert_non_null(strstr(words(0), "in all_gather #2 (0 bytes)"));
    assert_non_null(strstr(words(0), "barrier #2"));
}

/* ---- Leaving in any order ---- */

static void leave(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    int turn = (rank->rank + (int)board->words[0]) % SIZE;
    usleep((unsigned)(turn * (int)board->words[1]));
    int64_t start_ns = sc_deadline_now();
    sc_world_close(rank->world);
    CHECK(world_ms_since(start_ns) < 3000);
}

static void test_leaving(void **state) {
    int rounds = fault_count("SC_FAULT_ROUNDS", 32, 1000);
    (void)state;

    for (int round = 0; round < rounds; round++) {
        struct world_plan world = world_plan_for(SIZE);
        memset(board, 0, sizeof *board);
        board->words[0] = (uint64_t)round;
        board->words[1] = round % 3 == 0 ? 0 : round % 3 == 1 ? 300 : 20000;
        for (int i = 0; i < SIZE; i++) {
            world_prepare(&ranks[i], &world, i);
            world_start_process(&ranks[i], leave);
        }
        for (int i = 0; i < SIZE; i++)
            assert_int_equal(world_wait_process(&ranks[i]), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeout),      cmocka_unit_test(test_killed),
        cmocka_unit_test(test_hub_stopped),  cmocka_unit_test(test_killed_later),
        cmocka_unit_test(test_calls_differ), cmocka_unit_test(test_leaving),
    };
    int failed = 0;

    board = board_owner.board = world_board(sizeof *board);
    board_owner.size = SIZE;
    for (int tcp = 0; tcp < 2; tcp++) {
        over_tcp = tcp != 0;
        printf("---- %s ----\n", over_tcp ? "over TCP" : "on one host");
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
