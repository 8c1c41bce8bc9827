/*
 * Too few descriptors, and memory that runs out at every point of an open: a clean failure on that
 * rank, the others told or timed out, nothing left behind. Ranks are processes, since limits and
 * injected failures are a process's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "base/alloc.h"
#include "world_ranks.h"

/* What forked ranks tell the test. */
struct board {
    struct {
        int status;
        int64_t native_code;
        char message[512];
        int descriptors_left, threads_left; /* more than before */
        long refused;
    } seen[4];
};

static struct board *board;
static long fail_after = -1; /* allocations that the odd rank may make */
static int spare_descriptors = -1; /* that the odd rank may open */
static int odd_rank;

static int lowest_free_descriptor(void) {
    int fd = dup(0);
    CHECK(fd >= 0);
    close(fd);
    return fd;
}

static void limit_descriptors(int count) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = (rlim_t)count;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void run(struct world_rank *rank) {
    bool is_odd = rank->rank == odd_rank;
    struct rlimit before;

    fflush(NULL);
    rank->pid = fork();
    CHECK(rank->pid >= 0);
    if (rank->pid != 0) return;
    int descriptors = world_count_descriptors(), threads = world_count_threads();
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    if (is_odd && spare_descriptors >= 0)
        limit_descriptors(lowest_free_descriptor() + spare_descriptors);
    if (is_odd) sc_alloc_fail_after(fail_after);
    world_open(rank);
    long refused = sc_alloc_refused();
    sc_alloc_fail_after(-1);
    if (rank->status == SPARK_COMM_OK) {
        /* Open is one thing, a later fault of the other rank another. */
        world_barrier(rank, 1);
        sc_world_close(rank->world);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    board->seen[rank->rank].status = rank->status;
    board->seen[rank->rank].native_code = rank->error.native_code;
    memcpy(board->seen[rank->rank].message, rank->error.message, sizeof rank->error.message);
    board->seen[rank->rank].refused = refused;
    board->seen[rank->rank].descriptors_left = world_count_descriptors() - descriptors;
    board->seen[rank->rank].threads_left = world_settle_threads(threads) - threads;
    exit(0);
}

static void run_pair(void) {
    struct world_plan plan = world_plan_for(2);
    struct world_rank ranks[2];

    plan.rendezvous_ms = 400;
    memset(board, 0, sizeof *board);
    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        run(&ranks[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(world_wait_process(&ranks[i]), 0);
        assert_int_equal(board->seen[i].descriptors_left, 0);
        assert_int_equal(board->seen[i].threads_left, 0);
    }
}

/* The other rank is told the same, or meets a peer that is not there. */
static void check_other(int status) {
    int other = board->seen[1 - odd_rank].status;
    if (other == SPARK_COMM_OK) return; /* the odd one failed in closing, or not at all */
    assert_true(other == status || other == SPARK_COMM_OPEN_TIMEOUT ||
                other == SPARK_COMM_PEER_LOST || other == SPARK_COMM_ABORTED);
}

static void sweep_memory(int rank) {
    int failures = 0;

    odd_rank = rank;
    for (fail_after = 0;; fail_after++) {
        run_pair();
        if (board->seen[rank].refused == 0) break;
        int status = board->seen[rank].status;
        if (status != SPARK_COMM_OK && status != SPARK_COMM_NO_MEMORY)
            fprintf(stderr, "rank %d, allocation %ld: %d %s\n", rank, fail_after, status,
                    board->seen[rank].message);
        assert_true(status == SPARK_COMM_OK || status == SPARK_COMM_NO_MEMORY);
        check_other(SPARK_COMM_NO_MEMORY);
        failures += status == SPARK_COMM_NO_MEMORY;
        assert_true(fail_after < 200);
    }
    assert_int_equal(board->seen[rank].status, SPARK_COMM_OK);
    assert_int_equal(board->seen[1 - rank].status, SPARK_COMM_OK);
    printf("rank %d: %ld allocations, %d of them failed the open\n", rank, fail_after, failures);
    assert_true(failures >= 5);
    fail_after = -1;
}

static void test_memory_of_head(void **state) {
    (void)state;
    sweep_memory(0);
}

static void test_memory_of_worker(void **state) {
    (void)state;
    sweep_memory(1);
}

static void sweep_descriptors(int rank) {
    int failures = 0;

    odd_rank = rank;
    for (spare_descriptors = 0;; spare_descriptors++) {
        run_pair();
        int status = board->seen[rank].status;
        if (status == SPARK_COMM_OK && board->seen[1 - rank].status == SPARK_COMM_OK) break;
        if (status == SPARK_COMM_OK || status == SPARK_COMM_OPEN_TIMEOUT) continue;
        if (status != SPARK_COMM_SYSTEM) fprintf(stderr, "%s\n", board->seen[rank].message);
        assert_int_equal(status, SPARK_COMM_SYSTEM);
        assert_int_equal(board->seen[rank].native_code, EMFILE);
        /* The limit in force and what is needed. */
        if (strstr(board->seen[rank].message, "limit") == NULL ||
            strstr(board->seen[rank].message, "needs 11") == NULL)
            fprintf(stderr, "%s\n", board->seen[rank].message);
        assert_non_null(strstr(board->seen[rank].message, "limit"));
        assert_non_null(strstr(board->seen[rank].message, "needs 11"));
        check_other(SPARK_COMM_SYSTEM);
        failures++;
        assert_true(spare_descriptors < 40);
    }
    printf("rank %d: opens with %d descriptors\n", rank, spare_descriptors);
    assert_true(failures >= 3 && spare_descriptors <= 11);
    spare_descriptors = -1;
}

static void test_descriptors_of_head(void **state) {
    (void)state;
    sweep_descriptors(0);
}

static void test_descriptors_of_worker(void **state) {
    (void)state;
    sweep_descriptors(1);
}

/* A limit of 24 for the head of sixteen. */
static void test_limit_of_24(void **state) {
    struct world_plan plan = world_plan_for(16);
    struct world_rank rank;
    struct rlimit before;
    (void)state;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit_descriptors(24);
    world_prepare(&rank, &plan, 0);
    world_open(&rank);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rank.status, SPARK_COMM_SYSTEM);
    assert_int_equal(rank.error.native_code, EMFILE);
    assert_string_equal(rank.error.message,
                        "rank 0 of 16 needs 53 file descriptors and the limit is 24: raise it "
                        "(ulimit -n)");
    assert_true(rank.open_ns < INT64_C(1000000000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_head),      cmocka_unit_test(test_memory_of_worker),
        cmocka_unit_test(test_descriptors_of_head), cmocka_unit_test(test_descriptors_of_worker),
        cmocka_unit_test(test_limit_of_24),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
