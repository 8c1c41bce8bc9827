/*
 * Memory that runs out on one rank at every point of a reconnect: all ranks get the same, for the same
 * reason and soon, and the next attempt succeeds. Ranks are processes, since injected failures are a process's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "reconnect_ranks.h"

enum { VICTIM, ARRIVED, REFUSED }; /* words */

static void meet(int64_t round, int step) {
    atomic_fetch_add(&board->words[ARRIVED], 1);
    job_await(&board->words[ARRIVED], (round * 4 + step) * JOB_RANKS);
}

/* One refused allocation would be less: from there on all of them fail. */
static void body(struct job_rank *rank) {
    int victim = (int)atomic_load(&board->words[VICTIM]);
    char data[64] = {0};
    int failed = 0;
    CHECK_OK(job_open(rank));
    for (int64_t round = 0; round < 200; round++) {
        CHECK_OK(spark_comm_barrier(rank->comm));
        meet(round, 1);
        if (rank->rank == victim) sc_alloc_fail_after((long)round);
        int64_t start = sc_deadline_now();
        spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
        if (rank->rank == victim) {
            atomic_store(&board->words[REFUSED], sc_alloc_refused());
            sc_alloc_fail_after(-1);
        }
        CHECK(st != SPARK_COMM_OPEN_TIMEOUT && st != SPARK_COMM_REFUSED);
        board->seen[rank->rank].status = st;
        if (st != SPARK_COMM_OK) job_note(rank, NULL);
        CHECK(world_ms_since(start) < 5000);
        meet(round, 2);
        for (int other = 0; other < JOB_RANKS; other++) {
            CHECK(board->seen[other].status == (int)st);
            CHECK(st == SPARK_COMM_OK ||
                  strcmp(board->seen[other].message, board->seen[rank->rank].message) == 0);
        }
        failed += st != SPARK_COMM_OK;
        bool is_last = atomic_load(&board->words[REFUSED]) == 0;
        meet(round, 3);
        if (st != SPARK_COMM_OK) CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
        CHECK_OK(spark_comm_all_reduce(rank->comm, job_address(data), sizeof data));
        meet(round, 4);
        if (is_last) break;
        CHECK(round < 199);
    }
    CHECK(failed > 3);
    if (rank->rank == victim) printf("rank %d: %d points failed the attempt\n", victim, failed);
    spark_comm_close(rank->comm);
}

static void test_no_memory(void **state) {
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        job_start_all_with(body, VICTIM, victim);
        job_finish_all();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory)};
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
