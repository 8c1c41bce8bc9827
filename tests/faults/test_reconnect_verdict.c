/*
 * The verdict in epochs after the first: whoever dies, and whoever makes another call, is told of in
 * one sentence on all ranks, which counts in the new epoch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "reconnect_ranks.h"

/* What ends each epoch. */
enum { SIZES_DIFFER = 10, CIRCLE, END };
static const int ends[] = {0, 2, 0, 1, SIZES_DIFFER, 2, CIRCLE, 0, END}; /* [epoch]: rank killed */

struct told {
    _Atomic uint32_t epoch; /* in which it was told */
    int status; /* that the call returned */
    spark_comm_error error;
};
static struct told *told; /* by rank */

/* Rank 1 gives another size than the others. */
static spark_comm_status differ_in_size(struct job_rank *rank) {
    float data[1024] = {0};
    return spark_comm_all_reduce(rank->comm, job_address(data), rank->rank == 1 ? 4096 : 8);
}

/* Rank 0 waits for a message of rank 1, which waits for it in the barrier. */
static spark_comm_status wait_in_a_circle(struct job_rank *rank) {
    char data[64];
    return rank->rank == 0 ? spark_comm_recv_from(rank->comm, job_address(data), sizeof data, 1, 0)
                           : spark_comm_barrier(rank->comm);
}

static spark_comm_status fail_in(struct job_rank *rank, uint32_t epoch) {
    spark_comm_status st;
    if (ends[epoch] == SIZES_DIFFER) return differ_in_size(rank);
    if (ends[epoch] == CIRCLE) return wait_in_a_circle(rank);
    while ((st = spark_comm_barrier(rank->comm)) == SPARK_COMM_OK) {
    }
    return st;
}

static void body(struct job_rank *rank) {
    struct told *mine = &told[rank->rank];

    CHECK_OK(job_open(rank));
    for (;;) {
        job_verify(rank);
        uint32_t epoch = job_epoch(rank);
        if (ends[epoch] == END) break;
        mine->status = (int)fail_in(rank, epoch);
        mine->error.struct_size = sizeof mine->error;
        CHECK_OK(spark_comm_last_error(rank->comm, &mine->error));
        atomic_store(&mine->epoch, epoch);
        job_reconnect(rank);
    }
    spark_comm_close(rank->comm);
}

static void await_told(int rank, uint32_t epoch) {
    int64_t until = sc_deadline_after(30000);
    while (atomic_load(&told[rank].epoch) < epoch) {
        CHECK(!sc_deadline_passed(until));
        usleep(200);
    }
}

/* All but `victim` (-1: all) were told the same; returns the words. */
static const char *expect_same(uint32_t epoch, int victim, spark_comm_status status) {
    const struct told *first = &told[victim == 0 ? 1 : 0];
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        if (rank == victim) continue;
        assert_int_equal(told[rank].epoch, epoch);
        assert_int_equal(told[rank].status, status);
        assert_int_equal(told[rank].error.status, status);
        assert_int_equal(told[rank].error.epoch, epoch);
        assert_string_equal(told[rank].error.message, first->error.message);
    }
    return first->error.message;
}

static void kill_one(uint32_t epoch) {
    int victim = ends[epoch], pid = (int)job[victim].pid;
    char want[96];

    job_kill(victim);
    for (int rank = 0; rank < JOB_RANKS; rank++)
        if (rank != victim) await_told(rank, epoch);
    snprintf(want, sizeof want, "rank %d (process %d) is lost: it ended without a goodbye", victim,
             pid);
    assert_memory_equal(expect_same(epoch, victim, SPARK_COMM_PEER_LOST), want, strlen(want));
    job_start(victim, body);
}

static void find_mismatch(uint32_t epoch) {
    for (int rank = 0; rank < JOB_RANKS; rank++)
        await_told(rank, epoch);
    const char *words = expect_same(epoch, -1, SPARK_COMM_MISMATCH);
    if (ends[epoch] == SIZES_DIFFER) {
        assert_non_null(strstr(words, "(4096 bytes, bf16, sum)"));
        assert_non_null(strstr(words, "(8 bytes, bf16, sum)"));
    } else {
        assert_non_null(strstr(words, "rank 0 is in recv_from"));
        assert_non_null(strstr(words, "rank 1 in barrier"));
        assert_non_null(strstr(words, "each waits for the other"));
    }
}

static void test_every_epoch(void **state) {
    (void)state;

    job_start_all(body);
    for (uint32_t epoch = 1; ends[epoch] != END; epoch++) {
        job_await_epoch(epoch);
        if (ends[epoch] < JOB_RANKS)
            kill_one(epoch);
        else
            find_mismatch(epoch);
    }
    job_finish_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_epoch)};
    board = world_board(sizeof *board);
    told = world_board(JOB_RANKS * sizeof *told);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
