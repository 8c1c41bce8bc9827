/* 256 ranks as threads of one process open one world, on one host and over TCP (host identities made
 * different), agree on something and close. The descriptors that it takes are printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "os/thread.h"
#include "world_ranks.h"

#define RANKS 256
#define DESCRIPTORS_EACH 8 /* both ends of every connection are in this process */

static struct world_rank ranks[RANKS];
static bool over_tcp;
static _Atomic int most_descriptors;

void __real_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t calls = 1;
    __real_sc_thread_host_id(id);
    if (over_tcp) id->network_namespace = calls++;
}

static void body(struct world_rank *rank) {
    int mine = rank->rank * 3, all[RANKS];
    uint32_t word = 0;
    size_t bytes;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK(sc_world_one_host(rank->world) != over_tcp);
    CHECK_STATUS(rank,
                 sc_world_all_gather(rank->world, 1, 0, &mine, all, sizeof mine,
                                     sc_deadline_after(60000), &rank->error),
                 SPARK_COMM_OK);
    for (int i = 0; i < RANKS; i++)
        CHECK(all[i] == i * 3);
    if (rank->rank == 0) {
        atomic_store(&most_descriptors, world_count_descriptors());
        word = 4711;
        CHECK_STATUS(rank,
                     sc_world_command_send(rank->world, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4,
                                           sc_deadline_after(60000), &rank->error),
                     SPARK_COMM_OK);
    } else {
        CHECK_STATUS(rank,
                     sc_world_command_recv(rank->world, 0, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4,
                                           &bytes, sc_deadline_after(60000), &rank->error),
                     SPARK_COMM_OK);
        CHECK(word == 4711);
    }
    CHECK_STATUS(rank, world_barrier(rank, 2), SPARK_COMM_OK);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

static void run(void) {
    struct world_plan plan = world_plan_for(RANKS);
    int64_t slowest = 0;
    int before = world_count_descriptors(), threads = world_count_threads();

    plan.rendezvous_ms = 120000;
    plan.liveness_ms = 60000;
    world_run_threads(ranks, &plan, body, NULL);
    for (int i = 0; i < RANKS; i++)
        if (ranks[i].open_ns > slowest) slowest = ranks[i].open_ns;
    printf("%d ranks %s: slowest open %.0f ms, %d descriptors in this process\n", RANKS,
           over_tcp ? "over TCP" : "on one host", (double)slowest / 1e6,
           atomic_load(&most_descriptors) - before);
    assert_int_equal(world_count_descriptors(), before);
    assert_int_equal(world_settle_threads(threads), threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__x86_64__)
    assert_true(slowest < INT64_C(10000000000));
#endif
}

static void test_many(void **state) {
    struct rlimit limit;
    rlim_t needed = RANKS * DESCRIPTORS_EACH + 64;
    (void)state;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < needed) limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < needed) {
        printf("%d descriptors are needed, the hard limit is %llu\n", (int)needed,
               (unsigned long long)limit.rlim_cur);
        skip();
    }
    over_tcp = false;
    run();
    over_tcp = true;
    run();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
