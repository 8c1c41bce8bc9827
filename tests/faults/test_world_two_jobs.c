/*
 * Two jobs with tokens of their own, started on one port at the same time: they never mix. One head
 * gets the port and the other is told at once that it is taken; the ranks of the other job are told
 * that this is another job's head, and keep dialling. When the first job is over the second one
 * forms in its place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "world_ranks.h"

#define RANKS 3
#define ROUNDS 200

struct job {
    struct world_plan plan;
    struct world_rank ranks[RANKS];
    unsigned char id;
};

static struct job jobs[2];
static _Atomic int refused; /* ranks that did not open */

/* Every rank of this world is of the same job, again and again. */
static void meet_own(struct world_rank *rank) {
    const struct job *job = rank->arg;
    unsigned char all[RANKS];

    for (uint64_t number = 1; number <= ROUNDS; number++) {
        spark_comm_status st = sc_world_all_gather(rank->world, number, 0, &job->id, all, 1,
                                                   sc_deadline_after(20000), &rank->error);
        CHECK_STATUS(rank, st, SPARK_COMM_OK);
        for (int i = 0; i < RANKS; i++)
            CHECK(all[i] == job->id);
    }
}

/* The job that has the port keeps it until the other's ranks have given up. */
static void meet_and_stay(struct world_rank *rank) {
    int64_t until = sc_deadline_after(20000);
    if (rank->status != SPARK_COMM_OK) {
        atomic_fetch_add(&refused, 1);
        return;
    }
    meet_own(rank);
    while (atomic_load(&refused) < RANKS) {
        CHECK(!sc_deadline_passed(until));
        usleep(10 * 1000);
    }
    CHECK(world_barrier(rank, ROUNDS + 1) == SPARK_COMM_OK);
    sc_world_close(rank->world);
}

static void meet_and_close(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    meet_own(rank);
    sc_world_close(rank->world);
}

/* A head that finds the port taken comes again, as one does whose launcher restarts it. */
static void *thread_that_insists(void *arg) {
    struct world_rank *rank = arg;
    int64_t until = sc_deadline_after(15000);

    world_open(rank);
    while (rank->status == SPARK_COMM_SYSTEM && rank->error.native_code == EADDRINUSE &&
           !sc_deadline_passed(until)) {
        usleep(10 * 1000);
        world_open(rank);
    }
    rank->body(rank);
    return NULL;
}

/* Rank by rank, the jobs by turns. */
static void run_both(int rendezvous_ms, void *(*thread)(void *),
                     void (*body)(struct world_rank *)) {
    int port = world_free_port();

    for (int i = 0; i < 2; i++) {
        jobs[i].id = (unsigned char)(i + 1);
        jobs[i].plan = world_plan_for(RANKS);
        jobs[i].plan.port = port;
        jobs[i].plan.token = i == 0 ? "the token of the first job" : "the token of the second job";
        jobs[i].plan.rendezvous_ms = rendezvous_ms;
    }
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < 2; i++) {
            struct world_rank *each = &jobs[i].ranks[rank];
            world_prepare(each, &jobs[i].plan, rank);
            each->body = body;
            each->arg = &jobs[i];
            CHECK(pthread_create(&each->thread, NULL, thread, each) == 0);
        }
    }
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < 2; i++)
            CHECK(pthread_join(jobs[i].ranks[rank].thread, NULL) == 0);
}

static void test_one_forms_and_the_other_is_told(void **state) {
    (void)state;
    run_both(1500, world_thread, meet_and_stay);
    int first = jobs[0].ranks[0].status == SPARK_COMM_OK ? 0 : 1;
    for (int rank = 0; rank < RANKS; rank++)
        CHECK_STATUS(&jobs[first].ranks[rank], jobs[first].ranks[rank].status, SPARK_COMM_OK);
    struct world_rank *others = jobs[!first].ranks;
    assert_int_equal(others[0].status, SPARK_COMM_SYSTEM);
    assert_int_equal(others[0].error.native_code, EADDRINUSE);
    assert_true(others[0].open_ns < INT64_C(2000000000));
    for (int rank = 1; rank < RANKS; rank++) {
        assert_int_equal(others[rank].status, SPARK_COMM_REFUSED);
        assert_non_null(strstr(others[rank].error.message, "another job token"));
        assert_null(strstr(others[rank].error.message, "the token of"));
    }
}

static void test_both_form_one_after_the_other(void **state) {
    (void)state;
    run_both(15000, thread_that_insists, meet_and_close);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_forms_and_the_other_is_told),
        cmocka_unit_test(test_both_form_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
