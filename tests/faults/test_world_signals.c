/*
 * A signal every millisecond, with a handler that does not ask for system calls to be restarted:
 * no effect on opening, all-gathers, commands, shared regions and closing. Ranks are processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/time.h>

#include "world_ranks.h"

static volatile sig_atomic_t ticks;

static void on_tick(int signal) {
    (void)signal;
    ticks++;
}

static void tick(long every_us) {
    struct sigaction action = {.sa_handler = on_tick}; /* no SA_RESTART */
    struct itimerval timer = {{0, every_us}, {0, every_us}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void body(struct world_rank *rank) {
    struct sc_mapping mapping;
    unsigned char data[4096] = {0};
    size_t bytes;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    for (uint64_t number = 1; number <= 400; number++) {
        CHECK_STATUS(rank, world_barrier(rank, number), SPARK_COMM_OK);
        if (rank->rank == 0) {
            memset(data, (int)(number & 255), sizeof data);
            CHECK_STATUS(rank,
                         sc_world_command_send(rank->world, SC_WORLD_RECORD_COMMAND, number, 0,
                                               data, sizeof data, sc_deadline_after(20000),
                                               &rank->error),
                         SPARK_COMM_OK);
            continue;
        }
        CHECK_STATUS(rank,
                     sc_world_command_recv(rank->world, 0, SC_WORLD_RECORD_COMMAND, number, 0, data,
                                           sizeof data, &bytes, sc_deadline_after(20000),
                                           &rank->error),
                     SPARK_COMM_OK);
        CHECK(bytes == sizeof data && data[17] == (number & 255));
    }
    CHECK_STATUS(rank,
                 sc_world_share(rank->world, (size_t)8 << 20, 0, sc_deadline_after(20000), &mapping,
                                &rank->error),
                 SPARK_COMM_OK);
    sc_mapping_release(&mapping);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
    CHECK(ticks > 20);
}

static void run_rank(struct world_rank *rank) {
    fflush(NULL);
    rank->pid = fork();
    CHECK(rank->pid >= 0);
    if (rank->pid != 0) return;
    tick(1000);
    world_open(rank);
    body(rank);
    exit(0);
}

static void test_signals(void **state) {
    struct world_rank ranks[3];
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct world_plan plan = world_plan_for(3);
        for (int i = 0; i < 3; i++) {
            world_prepare(&ranks[i], &plan, i);
            run_rank(&ranks[i]);
            /* The first ranks wait for the last under fire. */
            if (round > 0) usleep(30 * 1000);
        }
        for (int i = 0; i < 3; i++)
            assert_int_equal(world_wait_process(&ranks[i]), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
