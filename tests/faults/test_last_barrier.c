/*
 * The first rank to leave the last barrier closes at once: never an error on the others, whatever
 * the order, as processes and as threads of one process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "fault_ranks.h"

#define SIZE 3

/* Closes after the barrier, with no regard for the others. */
static void leave(struct fault_rank *rank) {
    float value[4] = {1, 2, 3, 4};
    unsigned late = (unsigned)((uintptr_t)rank->round->arg >> rank->rank & 1);

    CHECK(spark_comm_all_reduce(rank->comm, fault_address(value), sizeof value) == SPARK_COMM_OK);
    if (late) usleep(2000); /* the others wait for it */
    spark_comm_status st = spark_comm_barrier(rank->comm);
    if (st != SPARK_COMM_OK) {
        spark_comm_error error = {.struct_size = sizeof error};
        spark_comm_last_error(rank->comm, &error);
        world_check_failed(__FILE__, __LINE__, "the last barrier", error.message);
    }
}

static void test_processes(void **state) {
    struct fault_round round = {.size = SIZE, .body = leave};
    int rounds = fault_count("SC_FAULT_ROUNDS", 500, 1000);
    (void)state;

    for (int i = 0; i < rounds; i++) {
        round.arg = (void *)(uintptr_t)(i % 8);
        fault_start(&round);
        for (int rank = 0; rank < SIZE; rank++)
            assert_int_equal(fault_wait(&round, rank), 0);
    }
}

static int thread_port;

static void *run_thread(void *arg) {
    struct fault_rank *rank = arg;
    fault_open(rank, thread_port);
    leave(rank);
    spark_comm_close(rank->comm);
    return NULL;
}

static void test_threads(void **state) {
    struct fault_round round = {.size = SIZE};
    int rounds = fault_count("SC_FAULT_ROUNDS", 500, 1000);
    (void)state;

    for (int i = 0; i < rounds; i++) {
        struct fault_rank ranks[SIZE];
        pthread_t threads[SIZE];
        round.arg = (void *)(uintptr_t)(i % 8);
        thread_port = world_free_port();
        for (int rank = 0; rank < SIZE; rank++) {
            ranks[rank] = (struct fault_rank){.rank = rank, .round = &round};
            assert_int_equal(pthread_create(&threads[rank], NULL, run_thread, &ranks[rank]), 0);
        }
        for (int rank = 0; rank < SIZE; rank++)
            assert_int_equal(pthread_join(threads[rank], NULL), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
