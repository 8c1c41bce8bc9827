/*
 * A new epoch of survivors and replacements: ranks are processes that are really killed and started
 * again, and everything works afterwards. And attempts that have to fail, alike on all ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "api/handle.h"
#include "reconnect_ranks.h"

static const char *pretended_version;
const char *__real_spark_comm_version(void);
const char *__wrap_spark_comm_version(void);
const char *__wrap_spark_comm_version(void) {
    return pretended_version != NULL ? pretended_version : __real_spark_comm_version();
}

enum { ARRIVED, GO, STRUCK, LATE }; /* words */

/* ---- Replacing ---- */

static void replace(int count, const int *victims, uint32_t epoch) {
    for (int i = 0; i < count; i++)
        job_kill(victims[i]);
    for (int i = 0; i < count; i++)
        job_start(victims[i], job_body_reduce);
    job_await_epoch(epoch);
}

static void test_replace_each(void **state) {
    static const int sets[][2] = {{2, -1}, {0, -1}, {1, 2}, {0, 2}};
    (void)state;

    job_start_all(job_body_reduce);
    job_await_epoch(1);
    for (int i = 0; i < 4; i++)
        replace(sets[i][1] < 0 ? 1 : 2, sets[i], (uint32_t)i + 2);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
}

static void test_twenty_rounds(void **state) {
    unsigned seed = 12345;
    (void)state;

    job_start_all(job_body_reduce);
    job_await_epoch(1);
    for (uint32_t round = 0; round < 20; round++) {
        seed = seed * 1103515245u + 12345u;
        int victim = (int)(seed >> 16) % JOB_RANKS;
        usleep(seed >> 8 & 0xfff); /* somewhere in the loop */
        replace(1, &victim, round + 2);
    }
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
}

/* Another one goes while the first is still awaited. */
static void test_second_death(void **state) {
    static const int victim = 2;
    (void)state;

    job_start_all(job_body_reduce);
    job_await_epoch(1);
    job_kill(victim);
    usleep(100 * 1000); /* the others are in their attempts by now */
    job_kill(1);
    job_start(2, job_body_reduce);
    usleep(50 * 1000);
    job_kill(2); /* and a replacement that waits for the other */
    for (int rank = 1; rank < JOB_RANKS; rank++)
        job_start(rank, job_body_reduce);
    job_await_epoch(2);
    job_kill(1);
    usleep(20 * 1000);
    job_kill(0);
    for (int rank = 0; rank < 2; rank++)
        job_start(rank, job_body_reduce);
    job_await_epoch(3);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
}

/* ---- No replacement ---- */

static void expect_timeout(struct job_rank *rank) {
    spark_comm_error before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    spark_comm_health_report health = {.struct_size = sizeof health};
    int64_t start = sc_deadline_now();

    CHECK_OK(spark_comm_last_error(rank->comm, &before));
    CHECK(before.status == SPARK_COMM_PEER_LOST);
    CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_OPEN_TIMEOUT);
    CHECK(world_ms_since(start) < 5000);
    CHECK(!spark_comm_is_healthy(rank->comm));
    /* The first cause stays, and the attempt's own failure is this thread's. */
    CHECK_OK(spark_comm_last_error(rank->comm, &after));
    CHECK(strcmp(before.message, after.message) == 0 && after.status == before.status);
    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_PEER_LOST);
    CHECK_OK(spark_comm_health(rank->comm, &health));
    CHECK(health.lost_count == 1 && health.lost_rank == before.peer && health.epoch == 1);
    job_note(rank, NULL);
    atomic_fetch_add(&board->words[ARRIVED], 1);
}

static void body_in_vain(struct job_rank *rank) {
    spark_comm_status st;
    CHECK_OK(job_open(rank));
    job_verify(rank);
    while ((st = spark_comm_barrier(rank->comm)) == SPARK_COMM_OK) {
    }
    CHECK(st == SPARK_COMM_PEER_LOST);
    expect_timeout(rank);
    job_await(&board->words[GO], 1);
    CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
    job_verify(rank);
    spark_comm_close(rank->comm);
}

static void body_replacement(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    job_verify(rank);
    spark_comm_close(rank->comm);
}

static void in_vain(int victim, const char *want) {
    int first = victim == 0 ? 1 : 0, second = victim == 2 ? 1 : 2;

    board->rendezvous_ms = 1500;
    job_start_all(body_in_vain);
    job_await_epoch(1);
    board->rendezvous_ms = 20000; /* of the replacement */
    job_kill(victim);
    job_await(&board->words[ARRIVED], 2);
    assert_int_equal(board->seen[first].status, SPARK_COMM_OPEN_TIMEOUT);
    assert_non_null(strstr(board->seen[first].message, want));
    assert_string_equal(board->seen[first].message, board->seen[second].message);
    job_start(victim, body_replacement);
    atomic_store(&board->words[GO], 1);
    job_finish_all();
}

static void test_no_replacement(void **state) {
    (void)state;
    in_vain(2, "rank 2 never came to 127.0.0.1:");
}

static void test_no_head(void **state) {
    (void)state;
    in_vain(0, "rank 0 let nobody in within 1.5 s");
}

/* ---- A rank that is well is asked, and comes late ---- */

/* Rank LATE feels well until then; LATE + 1 waits for a command of it, and LATE + 2 asks. */
static void body_late(struct job_rank *rank) {
    int late = (int)atomic_load(&board->words[LATE]);
    int late_ms = late == 0 ? 4600 : 3000; /* rank 0 longer than it lets hellos wait at its door */
    uint32_t word;
    CHECK_OK(job_open(rank));
    job_verify(rank);
    if (rank->rank == late) {
        job_await(&board->words[GO], 1);
        int64_t until = sc_deadline_after(late_ms);
        while (!sc_deadline_passed(until))
            usleep(10000);
    } else if (rank->rank == (late + 1) % JOB_RANKS) {
        atomic_fetch_add(&board->words[ARRIVED], 1);
        CHECK(spark_comm_recv_command_u32(rank->comm, job_address(&word), late) ==
              SPARK_COMM_ABORTED);
        CHECK((sc_deadline_now() - atomic_load(&board->words[STRUCK])) / 1000000 < 1000);
        job_note(rank, rank->comm);
    } else {
        job_await(&board->words[ARRIVED], 1);
        atomic_store(&board->words[STRUCK], sc_deadline_now());
        atomic_store(&board->words[GO], 1);
    }
    int64_t start = sc_deadline_now();
    CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
    CHECK(rank->rank == late || world_ms_since(start) > late_ms - 500);
    CHECK(rank->rank != late || world_ms_since(start) < 2000);
    job_verify(rank);
    CHECK(job_epoch(rank) == 2);
    spark_comm_close(rank->comm);
}

static void late_rank(int late, const char *want) {
    job_start_all_with(body_late, LATE, late);
    job_finish_all();
    assert_string_equal(board->seen[(late + 1) % JOB_RANKS].message, want);
}

static void test_late_healthy_rank(void **state) {
    (void)state;
    late_rank(2, "rank 1 asks for a new epoch");
}

static void test_late_head(void **state) {
    (void)state;
    late_rank(0, "rank 2 asks for a new epoch");
}

/* ---- Two threads ---- */

static void *ask(void *arg) {
    struct job_rank *rank = arg;
    CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
    return NULL;
}

static void body_two_threads(struct job_rank *rank) {
    pthread_t threads[2];
    CHECK_OK(job_open(rank));
    job_verify(rank);
    if (rank->rank != 1) {
        /* The attempt cannot end before both of rank 1's threads are in it. */
        job_await(&board->words[GO], 1);
        ask(rank);
    } else {
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, ask, rank) == 0);
        while (atomic_load(&rank->comm->inside) != 2)
            usleep(100);
        usleep(5000);
        atomic_store(&board->words[GO], 1);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(job_epoch(rank) == 2);
    job_verify(rank);
    spark_comm_close(rank->comm);
}

static void test_two_threads(void **state) {
    (void)state;
    job_start_all(body_two_threads);
    job_finish_all();
}

/* ---- Memory ---- */

static void body_memory(struct job_rank *rank) {
    uint64_t symmetric, again, handle, same, plain_handle;
    static float plain[1024];
    CHECK_OK(job_open(rank));
    CHECK_OK(spark_comm_symmetric_alloc(rank->comm, 20000, &symmetric));
    unsigned char *bytes = (unsigned char *)(uintptr_t)symmetric;
    for (size_t i = 0; i < 20000; i++)
        bytes[i] = (unsigned char)(i * 7 + (size_t)rank->rank);
    CHECK_OK(spark_comm_register_buffer(rank->comm, symmetric, 20000, &handle));
    CHECK_OK(spark_comm_register_buffer(rank->comm, job_address(plain), 4096, &plain_handle));
    CHECK(handle != 0 && plain_handle == 0);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(spark_comm_barrier(rank->comm)); /* nobody is asked in the middle of things */
        CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
        for (size_t i = 0; i < 20000; i++)
            CHECK(bytes[i] == (unsigned char)(i * 7 + (size_t)rank->rank));
        CHECK_OK(spark_comm_register_buffer(rank->comm, symmetric, 20000, &same));
        CHECK(same == handle);
        CHECK_OK(spark_comm_deregister_buffer(rank->comm, same));
    }
    CHECK_OK(spark_comm_symmetric_alloc(rank->comm, 20000, &again));
    CHECK(again != symmetric);
    CHECK_OK(spark_comm_register_buffer(rank->comm, again, 20000, &same));
    CHECK(same != 0 && same != handle);
    CHECK_OK(spark_comm_deregister_buffer(rank->comm, handle));
    CHECK(spark_comm_deregister_buffer(rank->comm, handle) == SPARK_COMM_INVALID_ARGUMENT);
    CHECK_OK(job_sum(rank, (float *)(uintptr_t)symmetric, 5000, 1));
    CHECK_OK(job_sum(rank, (float *)(uintptr_t)again, 5000, 2));
    CHECK_OK(spark_comm_symmetric_free(rank->comm, symmetric));
    CHECK_OK(spark_comm_symmetric_free(rank->comm, again));
    CHECK_OK(spark_comm_deregister_buffer(rank->comm, same));
    job_verify(rank);
    spark_comm_close(rank->comm);
}

static void test_memory(void **state) {
    (void)state;
    job_start_all(body_memory);
    job_finish_all();
}

/* ---- Another build ---- */

static void body_other_build(struct job_rank *rank) {
    char want[128];
    pretended_version = "9.8.7";
    CHECK(job_open(rank) == SPARK_COMM_REFUSED);
    job_note(rank, NULL);
    pretended_version = NULL;
    snprintf(want, sizeof want, "rank 2 runs spark_comm 9.8.7 and the head %s",
             spark_comm_version());
    CHECK(strstr(board->seen[2].message, want) != NULL);
    body_replacement(rank);
}

static void body_once(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    job_verify(rank);
    while (spark_comm_barrier(rank->comm) == SPARK_COMM_OK) {
    }
    job_reconnect(rank);
    job_verify(rank);
    spark_comm_close(rank->comm);
}

static void test_other_build(void **state) {
    (void)state;
    job_start_all(body_once);
    job_await_epoch(1);
    job_kill(2);
    job_start(2, body_other_build);
    job_finish_all();
}

/* ---- Nothing is left behind ---- */

/* A sanitizer keeps what was freed, and shadows of it. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MOST_GROWTH_KIB LONG_MAX
#else
#define MOST_GROWTH_KIB 1024 /* the recorder's rings fill up, some 320 KiB */
#endif

static void body_two_hundred(struct job_rank *rank) {
    int descriptors = 0, threads = 0;
    long resident = 0;
    CHECK_OK(job_open(rank));
    for (int round = 0; round < 200; round++) {
        CHECK_OK(spark_comm_attempt_reconnect(rank->comm));
        job_verify(rank);
        if (round == 1) {
            descriptors = job_settled_descriptors(0);
            threads = world_count_threads();
            resident = job_resident_kib();
        }
    }
    CHECK(job_epoch(rank) == 201);
    CHECK(world_settle_threads(threads) == threads);
    CHECK(job_settled_descriptors(descriptors) == descriptors);
    long grown = job_resident_kib() - resident;
    printf("rank %d: %ld KiB more after 198 reconnects\n", rank->rank, grown);
    CHECK(grown < MOST_GROWTH_KIB);
    spark_comm_close(rank->comm);
}

static void test_two_hundred(void **state) {
    (void)state;
    job_start_all(body_two_hundred);
    job_finish_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace_each), cmocka_unit_test(test_twenty_rounds),
        cmocka_unit_test(test_second_death), cmocka_unit_test(test_no_replacement),
        cmocka_unit_test(test_no_head),      cmocka_unit_test(test_late_healthy_rank),
        cmocka_unit_test(test_late_head),    cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_other_build),
        cmocka_unit_test(test_two_hundred),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
