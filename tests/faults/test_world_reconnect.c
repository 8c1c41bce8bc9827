/*
 * The world's part of reconnect alone, over TCP: host identities are made different, so there is no
 * shared memory. Ranks are processes; one is killed and replaced, and the control plane works again.
 * Each loss is told in one sentence, by the successor where it was the hub's.
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
    struct sc_error causes[EPOCHS + 1][SIZE]; /* of the end of each epoch */
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
        CHECK(
            sc_world_cause(rank->world, &board->causes[sc_world_epoch(rank->world)][rank->rank]) ==
            SPARK_COMM_OK);
        sc_world_ask(rank->world);
        spark_comm_status st = sc_world_reconnect(rank->world, &rank->error);
        if (st == SPARK_COMM_OK) st = sc_world_agree(rank->world, st, &rank->error);
        CHECK_STATUS(rank, st, SPARK_COMM_OK);
        verify(rank);
    }
    sc_world_close(rank->world);
}

static void expect_same_cause(uint32_t epoch, int victim, int pid) {
    const struct sc_error *causes = board->causes[epoch];
    int first = victim == 0;
    char want[96];

    snprintf(want, sizeof want, "rank %d (process %d) is lost: it ended without a goodbye", victim,
             pid);
    assert_memory_equal(causes[first].message, want, strlen(want));
    for (int rank = 0; rank < SIZE; rank++) {
        if (rank == victim) continue;
        assert_int_equal(causes[rank].status, SPARK_COMM_PEER_LOST);
        assert_int_equal(causes[rank].epoch, epoch);
        assert_string_equal(causes[rank].message, causes[first].message);
    }
}

static void test_over_tcp(void **state) {
    struct world_rank ranks[SIZE];
    struct world_plan plan = world_plan_for(SIZE);
    int victim = -1, pid = 0;
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
        if (epoch > 1) expect_same_cause(epoch - 1, victim, pid);
        if (epoch == EPOCHS) break;
        victim = (int)(epoch % SIZE); /* 1, 2, 0 */
        pid = (int)ranks[victim].pid;
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
