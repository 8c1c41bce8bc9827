/*
 * The world's part of reconnect alone, over TCP: host identities are made different, so there is no
 * shared memory. Ranks are processes; one is killed and replaced, and the control plane works again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "os/thread.h"
#include "world_ranks.h"

#define SIZE 3
#define EPOCHS 4

struct board {
    _Atomic uint32_t verified[SIZE];
};

static struct board *board;

void __real_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t calls;
    __real_sc_thread_host_id(id);
    id->network_namespace = (uint64_t)getpid() << 20 | calls++;
}

/* A gather, and a command from every rank to all. */
static void verify(struct world_rank *rank) {
    char word[32], got[32];
    size_t bytes = 0;
    CHECK(!sc_world_one_host(rank->world) && *sc_world_gate(rank->world) == 0);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    for (int root = 0; root < SIZE; root++) {
        uint64_t number = (uint64_t)root + 1;
        snprintf(word, sizeof word, "from %d", root);
        if (root == rank->rank)
            CHECK_STATUS(rank,
                         sc_world_command_send(rank->world, SC_WORLD_RECORD_COMMAND, number, 0,
                                               word, sizeof word, sc_deadline_after(10000),
                                               &rank->error),
                         SPARK_COMM_OK);
        else
            CHECK_STATUS(rank,
                         sc_world_command_recv(rank->world, root, SC_WORLD_RECORD_COMMAND, number,
                                               0, got, sizeof got, &bytes, sc_deadline_after(10000),
                                               &rank->error),
                         SPARK_COMM_OK);
        if (root != rank->rank) CHECK(bytes == sizeof word && strcmp(got, word) == 0);
    }
    atomic_store(&board->verified[rank->rank], sc_world_epoch(rank->world));
}

static void body(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    verify(rank);
    while (sc_world_epoch(rank->world) < EPOCHS) {
        world_await_poison(rank);
        sc_world_ask(rank->world);
        spark_comm_status st = sc_world_reconnect(rank->world, &rank->error);
        if (st == SPARK_COMM_OK) st = sc_world_agree(rank->world, st, &rank->error);
        CHECK_STATUS(rank, st, SPARK_COMM_OK);
        verify(rank);
    }
    sc_world_close(rank->world);
}

static void test_over_tcp(void **state) {
    struct world_rank ranks[SIZE];
    struct world_plan plan = world_plan_for(SIZE);
    (void)state;

    for (int i = 0; i < SIZE; i++) {
        world_prepare(&ranks[i], &plan, i);
        world_start_process(&ranks[i], body);
    }
    for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
        int64_t until = sc_deadline_after(20000);
        for (int i = 0; i < SIZE; i++)
            while (atomic_load(&board->verified[i]) < epoch) {
                CHECK(!sc_deadline_passed(until));
                usleep(500);
            }
        if (epoch == EPOCHS) break;
        int victim = (int)(epoch % SIZE); /* 1, 2, 0 */
        assert_int_equal(kill(ranks[victim].pid, SIGKILL), 0);
        assert_int_equal(world_wait_process(&ranks[victim]), -SIGKILL);
        world_start_process(&ranks[victim], body);
    }
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(world_wait_process(&ranks[i]), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_over_tcp)};
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
