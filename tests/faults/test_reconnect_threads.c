/*
 * Reconnect with ranks that are threads of one process, so that the thread sanitizer sees them all:
 * readers that never stop while epochs come and go, a rank that closes and opens again in the place
 * of itself, and attempts that are given up by abort and by close.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "api/handle.h"
#include "reconnect_ranks.h"

#define EPOCHS 12

static _Atomic bool readers_stop;

static void run_ranks(void *(*body)(void *arg)) {
    pthread_t threads[JOB_RANKS];
    board->port = world_free_port();
    board->rendezvous_ms = 20000;
    board->liveness_ms = 10000;
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        job[rank] = (struct job_rank){.rank = rank};
        CHECK(pthread_create(&threads[rank], NULL, body, &job[rank]) == 0);
    }
    for (int rank = 0; rank < JOB_RANKS; rank++)
        CHECK(pthread_join(threads[rank], NULL) == 0);
}

/* Every call that takes no lane, as fast as it goes. */
static void *read_on(void *arg) {
    struct job_rank *rank = arg;
    spark_comm_info_row rows[32];
    char path[64];
    uint32_t epoch = 0;
    snprintf(path, sizeof path, "/dev/null");
    while (!atomic_load(&readers_stop)) {
        spark_comm_health_report health = {.struct_size = sizeof health};
        spark_comm_error error = {.struct_size = sizeof error};
        spark_comm_info_report info = {.struct_size = sizeof info,
                                       .rows = rows,
                                       .row_size = sizeof rows[0],
                                       .row_capacity = 32};
        spark_comm_is_healthy(rank->comm);
        CHECK(spark_comm_health(rank->comm, &health) == SPARK_COMM_OK);
        CHECK(spark_comm_last_error(rank->comm, &error) == SPARK_COMM_OK);
        CHECK(spark_comm_info(rank->comm, &info) == SPARK_COMM_OK);
        CHECK(spark_comm_rank(rank->comm) == rank->rank);
        spark_comm_trace_write(rank->comm, path);
        CHECK(health.epoch >= epoch || health.state == SPARK_COMM_STATE_POISONED);
        if (health.state == SPARK_COMM_STATE_HEALTHY) epoch = health.epoch;
    }
    return NULL;
}

static void *renew_while_read(void *arg) {
    struct job_rank *rank = arg;
    pthread_t reader;
    CHECK(job_open(rank) == SPARK_COMM_OK);
    CHECK(pthread_create(&reader, NULL, read_on, rank) == 0);
    for (uint32_t epoch = 2; epoch < EPOCHS; epoch++) {
        CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_OK);
        CHECK(job_epoch(rank) == epoch);
        for (int i = 0; i < 20; i++)
            CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    }
    atomic_store(&readers_stop, true);
    CHECK(pthread_join(reader, NULL) == 0);
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_readers(void **state) {
    (void)state;
    atomic_store(&readers_stop, false);
    run_ranks(renew_while_read);
}

/* Each rank in turn closes and opens again: its own replacement. */
static void *replace_itself(void *arg) {
    struct job_rank *rank = arg;
    float data[2000];
    CHECK(job_open(rank) == SPARK_COMM_OK);
    for (int round = 0; round < 6; round++) {
        CHECK(job_sum(rank, data, 2000, round) == SPARK_COMM_OK);
        if (round % JOB_RANKS == rank->rank) {
            spark_comm_close(rank->comm);
            CHECK(job_open(rank) == SPARK_COMM_OK);
        } else {
            CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_PEER_LOST);
            CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_OK);
        }
        CHECK(job_epoch(rank) == (uint32_t)round + 2);
        CHECK(job_sum(rank, data, 1000, 5) == SPARK_COMM_OK);
        CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    }
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_replace_itself(void **state) {
    (void)state;
    run_ranks(replace_itself);
}

/* ---- An attempt that is given up ---- */

struct attempt {
    struct job_rank *rank;
    spark_comm_status status;
    int64_t took_ns;
};

static void *attempt(void *arg) {
    struct attempt *own = arg;
    int64_t start = sc_deadline_now();
    own->status = spark_comm_attempt_reconnect(own->rank->comm);
    own->took_ns = sc_deadline_now() - start;
    return NULL;
}

static void *give_up(void *arg) {
    struct job_rank *rank = arg;
    struct attempt own = {.rank = rank};
    pthread_t thread;
    CHECK(job_open(rank) == SPARK_COMM_OK);
    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    if (rank->rank == (int)atomic_load(&board->words[0])) { /* is never there */
        job_await(&board->words[1], 2);
        spark_comm_close(rank->comm);
        return NULL;
    }
    for (int with_close = 0; with_close < 2; with_close++) {
        CHECK(pthread_create(&thread, NULL, attempt, &own) == 0);
        int64_t until = sc_deadline_after(10000);
        while (atomic_load(&rank->comm->attempt.lock.word) == 0)
            CHECK(!sc_deadline_passed(until) && usleep(100) == 0);
        usleep(100000); /* well into the wait for the missing rank */
        if (with_close)
            spark_comm_close(rank->comm);
        else
            CHECK(spark_comm_abort(rank->comm) == SPARK_COMM_OK);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(own.status == SPARK_COMM_ABORTED);
        CHECK(own.took_ns < INT64_C(2000000000));
        if (!with_close) CHECK(!spark_comm_is_healthy(rank->comm));
    }
    atomic_fetch_add(&board->words[1], 1);
    return NULL;
}

/* Seated at rank 0, and rank 0 itself; then at the door of a rank 0 that has not begun. */
static void test_given_up(void **state) {
    (void)state;
    for (int missing = 2; missing >= 0; missing -= 2) {
        memset(board, 0, sizeof *board);
        atomic_store(&board->words[0], missing);
        run_ranks(give_up);
    }
}

static void test_wrong_state(void **state) {
    (void)state;
    assert_int_equal(spark_comm_attempt_reconnect(NULL), SPARK_COMM_WRONG_STATE);
    assert_int_equal(spark_comm_attempt_reconnect(job[0].comm),
                     SPARK_COMM_WRONG_STATE); /* closed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_replace_itself),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_wrong_state),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
