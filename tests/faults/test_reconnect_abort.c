/*
 * Abort in a reconnect. Three ranks are threads of one process; one of them aborts at a chosen step of its
 * attempt, through the linker, or at any time, and all of them hear of it. And a thread that does not leave
 * the old epoch: the attempt ends at its limit and says what is held.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "api/handle.h"
#include "reconnect_ranks.h"
#include "world/world_state.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOWER 10
#else
#define SLOWER 1
#endif

enum { AT_NO_STEP, AT_MONITOR_STOP, AT_SETTLE, AT_AGREE, STEPS };
enum { STEP, VICTIM, WAITING, ROUND, ABORTED_AT }; /* words */

/* In the victim's attempt, once. */
static void strike(const struct sc_world *world, int step) {
    int64_t here = step;
    if (world->rank != (int)atomic_load(&board->words[VICTIM])) return;
    if (!atomic_compare_exchange_strong(&board->words[STEP], &here, AT_NO_STEP)) return;
    atomic_store(&board->words[ABORTED_AT], sc_deadline_now());
    CHECK(spark_comm_abort(job[world->rank].comm) == SPARK_COMM_OK);
}

/* The old cause is final, and not yet put aside. */
void __real_sc_monitor_stop(struct sc_world *world);
void __wrap_sc_monitor_stop(struct sc_world *world);
void __wrap_sc_monitor_stop(struct sc_world *world) {
    strike(world, AT_MONITOR_STOP);
    __real_sc_monitor_stop(world);
}

spark_comm_status __real_sc_world_settle(struct sc_world *world, struct sc_error *error);
spark_comm_status __wrap_sc_world_settle(struct sc_world *world, struct sc_error *error);
spark_comm_status __wrap_sc_world_settle(struct sc_world *world, struct sc_error *error) {
    strike(world, AT_SETTLE);
    return __real_sc_world_settle(world, error);
}

spark_comm_status __real_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error);
spark_comm_status __wrap_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error);
spark_comm_status __wrap_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error) {
    strike(world, AT_AGREE);
    return __real_sc_world_agree(world, status, error);
}

static void run_ranks(void *(*body)(void *arg), int rendezvous_ms) {
    pthread_t threads[JOB_RANKS];
    memset(board, 0, sizeof *board);
    board->port = world_free_port();
    board->rendezvous_ms = rendezvous_ms;
    board->liveness_ms = 10000;
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        job[rank] = (struct job_rank){.rank = rank};
        CHECK(pthread_create(&threads[rank], NULL, body, &job[rank]) == 0);
    }
    for (int rank = 0; rank < JOB_RANKS; rank++)
        CHECK(pthread_join(threads[rank], NULL) == 0);
}

static void expect_words(const char *want) {
    spark_comm_error error = {.struct_size = sizeof error};
    CHECK(spark_comm_last_error(NULL, &error) == SPARK_COMM_OK);
    if (strcmp(error.message, want) != 0)
        world_check_failed(__FILE__, __LINE__, want, error.message);
}

/* Until all are in one epoch and have met there. */
static void heal(struct job_rank *rank) {
    do {
        job_reconnect(rank);
    } while (spark_comm_barrier(rank->comm) != SPARK_COMM_OK);
}

/* ---- At a step ---- */

static void *abort_at_steps(void *arg) {
    struct job_rank *rank = arg;
    char want[32];
    CHECK(job_open(rank) == SPARK_COMM_OK);
    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    for (int round = 0; round < JOB_RANKS * (STEPS - 1); round++) {
        int victim = round % JOB_RANKS, step = 1 + round / JOB_RANKS;
        if (rank->rank == victim) {
            job_await(&board->words[WAITING], 2 * round + 2);
            usleep(30000 * SLOWER); /* they are at the head's door, or have taken their places */
            atomic_store(&board->words[VICTIM], victim);
            atomic_store(&board->words[STEP], step);
        } else {
            atomic_fetch_add(&board->words[WAITING], 1);
        }
        int64_t start = sc_deadline_now();
        spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
        CHECK(st == SPARK_COMM_ABORTED);
        int64_t end = sc_deadline_now(), struck = atomic_load(&board->words[ABORTED_AT]);
        CHECK(struck >= start || rank->rank != victim);
        if (rank->rank == victim) CHECK(end - struck < SLOWER * INT64_C(100000000));
        CHECK(end - struck < SLOWER * INT64_C(1000000000));
        snprintf(want, sizeof want, "rank %d aborted", victim);
        expect_words(want);
        CHECK(!spark_comm_is_healthy(rank->comm));
        heal(rank);
    }
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_at_each_step(void **state) {
    (void)state;
    run_ranks(abort_at_steps, 20000);
}

/* ---- At any time ---- */

static void *abort_later(void *arg) {
    struct job_rank *rank = arg;
    int64_t round = atomic_load(&board->words[ROUND]);
    usleep((unsigned)(round * 131 % 4000) * SLOWER); /* an attempt takes some 3 ms */
    atomic_store(&board->words[ABORTED_AT], sc_deadline_now());
    CHECK(spark_comm_abort(rank->comm) == SPARK_COMM_OK);
    return NULL;
}

static void *abort_at_any_time(void *arg) {
    struct job_rank *rank = arg;
    CHECK(job_open(rank) == SPARK_COMM_OK);
    for (int round = 0; round < 60; round++) {
        bool is_victim = round % JOB_RANKS == rank->rank;
        pthread_t thread;
        CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
        if (is_victim) {
            atomic_store(&board->words[ROUND], round);
            CHECK(pthread_create(&thread, NULL, abort_later, rank) == 0);
        }
        spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
        int64_t end = sc_deadline_now();
        CHECK(st == SPARK_COMM_OK || st == SPARK_COMM_ABORTED);
        if (is_victim) {
            CHECK(pthread_join(thread, NULL) == 0);
            int64_t took = end - atomic_load(&board->words[ABORTED_AT]);
            CHECK(st == SPARK_COMM_OK || took < SLOWER * INT64_C(100000000));
            CHECK(st == SPARK_COMM_OK || !spark_comm_is_healthy(rank->comm));
        }
        while (st != SPARK_COMM_OK || spark_comm_barrier(rank->comm) != SPARK_COMM_OK)
            st = spark_comm_attempt_reconnect(rank->comm);
    }
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_at_any_time(void **state) {
    (void)state;
    run_ranks(abort_at_any_time, 20000);
}

/* ---- A thread that stays in the old epoch ---- */

static _Atomic bool is_inside, may_leave;

/* Called with the report of a fault, by the thread that makes it. */
static void log_and_stay(void *user, int level, const char *message) {
    (void)user;
    (void)level;
    if (strstr(message, "aborted") == NULL || atomic_exchange(&is_inside, true)) return;
    while (!atomic_load(&may_leave))
        usleep(1000);
}

static void *abort_now(void *arg) {
    CHECK(spark_comm_abort(arg) == SPARK_COMM_OK);
    return NULL;
}

static void *stay_inside(void *arg) {
    struct job_rank *rank = arg;
    spark_comm_options options;
    pthread_t thread;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "shm";
    options.rank = rank->rank;
    options.world_size = JOB_RANKS;
    options.master_addr = "127.0.0.1";
    options.master_port = board->port;
    options.rendezvous_timeout_ms = board->rendezvous_ms;
    if (rank->rank == 1) options.log = log_and_stay;
    CHECK(spark_comm_open(&options, &rank->comm) == SPARK_COMM_OK);
    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    if (rank->rank == 1) CHECK(pthread_create(&thread, NULL, abort_now, rank->comm) == 0);
    while (!atomic_load(&is_inside))
        usleep(100);
    int64_t start = sc_deadline_now();
    spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
    CHECK(sc_deadline_now() - start < (board->rendezvous_ms + 2000 * SLOWER) * INT64_C(1000000));
    CHECK(!spark_comm_is_healthy(rank->comm));
    if (rank->rank == 1) {
        CHECK(st == SPARK_COMM_BUSY);
        expect_words(
            "rank 1 cannot leave the old epoch: the report of a fault (the backend's interrupt, or "
            "the log function) does not return");
        atomic_store(&may_leave, true);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        CHECK(st == SPARK_COMM_OPEN_TIMEOUT);
    }
    heal(rank);
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_bounded(void **state) {
    (void)state;
    run_ranks(stay_inside, 1500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_each_step),
        cmocka_unit_test(test_at_any_time),
        cmocka_unit_test(test_bounded),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
