/*
 * Reconnect under faults of its own: ranks that die between WELCOME and COMMIT and in the middle of
 * COMMIT, at the very step; ranks that die at random moments, many times; and ranks that were only
 * stopped, are replaced, and wake. The steps are those of docs/models/README.md.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "reconnect_ranks.h"
#include "world/world_state.h"

enum { DYING_RANK, DYING_STEP, STRUCK, ARRIVED, AWAKE, ENDED, MOVED }; /* words */
enum { NOWHERE, BEFORE_READY, AFTER_FIRST_COMMIT };

static int own_rank = -1; /* of this process */

static bool dies_at(int step) {
    if (atomic_load(&board->words[DYING_RANK]) != own_rank ||
        atomic_load(&board->words[DYING_STEP]) != step)
        return false;
    atomic_store(&board->words[DYING_STEP], NOWHERE);
    atomic_store(&board->words[STRUCK], 1);
    return true;
}

/* Everything is set up; of the hub nobody knows its decision (R8), of a worker the hub waits for
 * READY (R7). */
spark_comm_status __real_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error);
spark_comm_status __wrap_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error);
spark_comm_status __wrap_sc_world_agree(struct sc_world *world, spark_comm_status status,
                                        struct sc_error *error) {
    if (dies_at(BEFORE_READY)) raise(SIGKILL);
    return __real_sc_world_agree(world, status, error);
}

/* The hub has told rank 1 and not rank 2. */
spark_comm_status __real_sc_link_send(struct sc_world *world, struct sc_link *link,
                                      const struct sc_wire_header *header, const void *payload,
                                      int64_t deadline);
spark_comm_status __wrap_sc_link_send(struct sc_world *world, struct sc_link *link,
                                      const struct sc_wire_header *header, const void *payload,
                                      int64_t deadline);
spark_comm_status __wrap_sc_link_send(struct sc_world *world, struct sc_link *link,
                                      const struct sc_wire_header *header, const void *payload,
                                      int64_t deadline) {
    spark_comm_status st = __real_sc_link_send(world, link, header, payload, deadline);
    if (header->kind == SC_WIRE_COMMIT && dies_at(AFTER_FIRST_COMMIT)) raise(SIGKILL);
    return st;
}

/* Where the head's name leads to. */
spark_comm_status __real_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error);
spark_comm_status __wrap_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error);
spark_comm_status __wrap_sc_socket_resolve(const char *host, int port,
                                           struct sc_socket_address *out, size_t capacity,
                                           size_t *count, struct sc_error *error) {
    const char *now = atomic_load(&board->words[MOVED]) != 0 ? "127.0.0.2" : host;
    return __real_sc_socket_resolve(now, port, out, capacity, count, error);
}

/* ---- At the very step ---- */

/* The first attempt after the first fault is looked at; the rest is as usual. */
static void body_look(struct job_rank *rank) {
    own_rank = rank->rank;
    CHECK_OK(job_open(rank));
    job_verify(rank);
    CHECK(spark_comm_is_fatal(job_reduce_on(rank)));
    spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
    board->seen[rank->rank].status = st;
    if (st != SPARK_COMM_OK) {
        CHECK(!spark_comm_is_healthy(rank->comm));
        job_note(rank, NULL);
    }
    atomic_fetch_add(&board->words[ARRIVED], 1);
    for (;;) {
        if (st != SPARK_COMM_OK) job_reconnect(rank);
        st = job_try(rank);
        if (st == SPARK_COMM_OK) st = job_reduce_on(rank);
        if (st == SPARK_COMM_OK) break;
    }
    spark_comm_close(rank->comm);
}

static void body_replacement(struct job_rank *rank) {
    own_rank = rank->rank;
    job_body_reduce(rank);
}

static void await_death(int rank) {
    int status;
    while (waitpid(job[rank].pid, &status, 0) < 0) {
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    job[rank].pid = 0;
    atomic_store(&board->seen[rank].verified, 0);
}

/* Rank `first` is replaced, and rank `second` dies at `step` of that. */
static void die_at_step(int first, int second, int step) {
    job_start_all(body_look);
    job_await_epoch(1);
    atomic_store(&board->words[DYING_RANK], second);
    atomic_store(&board->words[DYING_STEP], step);
    job_kill(first);
    job_start(first, body_replacement);
    await_death(second);
    assert_int_equal(atomic_load(&board->words[STRUCK]), 1);
}

static void finish_well(int dead, uint32_t least) {
    job_start(dead, body_replacement);
    assert_true(job_await_one_epoch() >= least);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
}

/* R12: it is never guessed that an epoch began. */
static void test_hub_dies_before_commit(void **state) {
    (void)state;
    die_at_step(2, 0, BEFORE_READY);
    job_await(&board->words[ARRIVED], 1);
    assert_int_equal(board->seen[1].status, SPARK_COMM_PEER_LOST);
    assert_string_equal(board->seen[1].message, "rank 0 was lost while epoch 2 was agreed");
    finish_well(0, 3);
}

/* The disagreement that is left: one has entered, the other cannot know. Nothing of it lasts. */
static void test_hub_dies_in_commit(void **state) {
    (void)state;
    die_at_step(2, 0, AFTER_FIRST_COMMIT);
    job_await(&board->words[ARRIVED], 1);
    assert_int_equal(board->seen[1].status, SPARK_COMM_OK);
    finish_well(0, 3);
    die_at_step(1, 0, AFTER_FIRST_COMMIT);
    job_await(&board->words[ARRIVED], 1);
    assert_int_equal(board->seen[2].status, SPARK_COMM_PEER_LOST);
    assert_string_equal(board->seen[2].message, "rank 0 was lost while epoch 2 was agreed");
    finish_well(0, 3);
}

/* R8: FAIL for all, with one reason. */
static void test_worker_dies_before_ready(void **state) {
    (void)state;
    die_at_step(2, 1, BEFORE_READY);
    job_await(&board->words[ARRIVED], 1);
    assert_int_equal(board->seen[0].status, SPARK_COMM_PEER_LOST);
    assert_non_null(strstr(board->seen[0].message, "rank 1 (process "));
    assert_non_null(strstr(board->seen[0].message, "is lost: it ended without a goodbye"));
    finish_well(1, 3);
}

/* ---- At random ---- */

static void test_random_deaths(void **state) {
    int rounds = getenv("SC_TEST_SOAK") != NULL ? 500 : 40;
    unsigned seed = (unsigned)getpid();
    uint32_t epoch = 0;
    (void)state;

    printf("seed %u\n", seed);
    job_start_all(job_body_reduce);
    for (int round = 0; round < rounds; round++) {
        epoch = job_await_one_epoch();
        for (int blow = 0; blow < 2; blow++) {
            seed = seed * 1103515245u + 12345u;
            int victim = (int)(seed >> 16) % JOB_RANKS;
            job_kill(victim);
            job_start(victim, job_body_reduce);
            usleep(seed >> 8 & 0x3fff); /* an attempt takes about 10 ms */
        }
    }
    uint32_t last = job_await_one_epoch();
    assert_true(last > epoch);
    printf("%d rounds made %u epochs\n", rounds, last);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
}

/* ---- Stopped, replaced, woken ---- */

#define ZOMBIE_BYTES 300000

static void fill(unsigned char *bytes, int rank, int which) {
    for (size_t i = 0; i < ZOMBIE_BYTES; i++)
        bytes[i] = (unsigned char)(i * 31 + (size_t)rank * 5 + (size_t)which);
}

static void check_filled(const unsigned char *bytes, int rank, int which) {
    for (size_t i = 0; i < ZOMBIE_BYTES; i++)
        CHECK(bytes[i] == (unsigned char)(i * 31 + (size_t)rank * 5 + (size_t)which));
}

static spark_comm_status sum_both(struct job_rank *rank, uint64_t symmetric) {
    static float plain[ZOMBIE_BYTES / 4];
    for (int step = 0;; step++) {
        TRY(job_sum(rank, (float *)(uintptr_t)symmetric, ZOMBIE_BYTES / 4, step));
        TRY(job_sum(rank, plain, ZOMBIE_BYTES / 4, step));
        TRY(job_sum(rank, (float *)(uintptr_t)symmetric, 5, step));
    }
}

/* The woken one: its call ends, and it learns that it was replaced, for good. */
static void expect_replaced(struct job_rank *rank, spark_comm_status st) {
    CHECK(st == SPARK_COMM_PEER_LOST);
    for (int i = 0; i < 2; i++) {
        CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_REFUSED);
        job_note(rank, NULL);
        CHECK(strcmp(board->seen[rank->rank].message, "rank 2 was replaced") == 0);
        CHECK(!spark_comm_is_healthy(rank->comm));
        CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_PEER_LOST);
    }
    int64_t start = sc_deadline_now();
    spark_comm_close(rank->comm);
    CHECK(world_ms_since(start) < 2000);
    atomic_store(&board->words[ENDED], 1);
}

/* In the new epoch: whatever the woken one still does reaches nobody's memory. */
static void hold_still(struct job_rank *rank, unsigned char *old) {
    static unsigned char plain[ZOMBIE_BYTES];
    uint64_t symmetric;
    CHECK_OK(spark_comm_symmetric_alloc(rank->comm, ZOMBIE_BYTES, &symmetric));
    unsigned char *fresh = (unsigned char *)(uintptr_t)symmetric;
    fill(plain, rank->rank, 1);
    fill(fresh, rank->rank, 2);
    if (old != NULL) fill(old, rank->rank, 3);
    CHECK_OK(spark_comm_barrier(rank->comm));
    atomic_fetch_add(&board->words[ARRIVED], 1);
    job_await(&board->words[ENDED], 1);
    check_filled(plain, rank->rank, 1);
    check_filled(fresh, rank->rank, 2);
    if (old != NULL) check_filled(old, rank->rank, 3);
    CHECK(spark_comm_is_healthy(rank->comm));
    job_verify(rank);
    CHECK_OK(spark_comm_symmetric_free(rank->comm, symmetric));
}

static void body_before(struct job_rank *rank) {
    uint64_t symmetric;
    CHECK_OK(job_open(rank));
    CHECK_OK(spark_comm_symmetric_alloc(rank->comm, ZOMBIE_BYTES, &symmetric));
    job_verify(rank);
    spark_comm_status st = sum_both(rank, symmetric);
    if (rank->rank == 2) {
        expect_replaced(rank, st);
        return;
    }
    CHECK(st == SPARK_COMM_PEER_LOST);
    job_note(rank, rank->comm);
    job_reconnect(rank);
    job_verify(rank);
    hold_still(rank, (unsigned char *)(uintptr_t)symmetric);
    CHECK_OK(spark_comm_symmetric_free(rank->comm, symmetric));
    spark_comm_close(rank->comm);
}

static void body_instead(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    job_verify(rank);
    hold_still(rank, NULL);
    spark_comm_close(rank->comm);
}

static void test_zombie(void **state) {
    struct job_rank zombie;
    int status;
    (void)state;

    board->liveness_ms = 700;
    for (int round = 0; round < 4; round++) {
        job_start_all(body_before);
        job_await_epoch(1);
        usleep(20000 + (unsigned)round * 3333); /* somewhere in its sums */
        zombie = job[2];
        CHECK(kill(zombie.pid, SIGSTOP) == 0);
        job_start(2, body_instead);
        job_await(&board->words[ARRIVED], JOB_RANKS);
        CHECK(kill(zombie.pid, SIGCONT) == 0);
        while (waitpid(zombie.pid, &status, 0) < 0) {
        }
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        job_finish_all();
        assert_non_null(strstr(board->seen[0].message, "gave no sign of life for 0.7 s"));
        assert_string_equal(board->seen[0].message, board->seen[1].message);
    }
    board->liveness_ms = 0;
}

/* A head that is only stopped holds its port: the replacement names it, and comes once it is dead. */
static void body_head_instead(struct job_rank *rank) {
    CHECK(job_open(rank) == SPARK_COMM_SYSTEM);
    job_note(rank, NULL);
    atomic_fetch_add(&board->words[ARRIVED], 1);
    job_await(&board->words[AWAKE], 1);
    job_body_reduce(rank);
}

static void test_stopped_head(void **state) {
    char want[64];
    int status;
    (void)state;

    board->liveness_ms = 700;
    job_start_all(job_body_reduce);
    job_await_epoch(1);
    pid_t stopped = job[0].pid;
    CHECK(kill(stopped, SIGSTOP) == 0);
    atomic_store(&board->seen[0].verified, 0);
    job_start(0, body_head_instead);
    job_await(&board->words[ARRIVED], 1);
    snprintf(want, sizeof want, "127.0.0.1:%d", board->port);
    assert_non_null(strstr(board->seen[0].message, want));
    CHECK(kill(stopped, SIGKILL) == 0);
    while (waitpid(stopped, &status, 0) < 0) {
    }
    atomic_store(&board->words[AWAKE], 1);
    assert_int_equal(job_await_one_epoch(), 2);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
    board->liveness_ms = 0;
}

/* The name of the head has moved with it, and the old one is only stopped: it wakes, asks its own
 * address, and finds another process there (R2). */
static void body_moved(struct job_rank *rank) {
    CHECK_OK(job_open(rank));
    job_verify(rank);
    spark_comm_status st = job_reduce_on(rank);
    if (rank->rank == 0 && st == SPARK_COMM_PEER_LOST && atomic_load(&board->words[MOVED]) == 1) {
        for (int i = 0; i < 2; i++) {
            CHECK(spark_comm_attempt_reconnect(rank->comm) == SPARK_COMM_REFUSED);
            job_note(rank, NULL);
            CHECK(strcmp(board->seen[0].message, "rank 0 was replaced") == 0);
        }
        spark_comm_close(rank->comm);
        atomic_store(&board->words[ENDED], 1);
        return;
    }
    CHECK(st == SPARK_COMM_PEER_LOST);
    job_reconnect(rank);
    job_verify(rank);
    CHECK_OK(job_reduce_on(rank));
    spark_comm_close(rank->comm);
}

static void test_zombie_head(void **state) {
    int status;
    (void)state;

    board->liveness_ms = 700;
    job_start_all(body_moved);
    job_await_epoch(1);
    pid_t zombie = job[0].pid;
    CHECK(kill(zombie, SIGSTOP) == 0);
    atomic_store(&board->words[MOVED], 1);
    atomic_store(&board->seen[0].verified, 0);
    job_start(0, job_body_reduce);
    assert_int_equal(job_await_one_epoch(), 2);
    CHECK(kill(zombie, SIGCONT) == 0);
    while (waitpid(zombie, &status, 0) < 0) {
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(atomic_load(&board->words[ENDED]), 1);
    atomic_store(&board->words[JOB_STOP], 1);
    job_finish_all();
    board->liveness_ms = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_dies_before_commit),
        cmocka_unit_test(test_hub_dies_in_commit),
        cmocka_unit_test(test_worker_dies_before_ready),
        cmocka_unit_test(test_zombie),
        cmocka_unit_test(test_zombie_head),
        cmocka_unit_test(test_stopped_head),
        cmocka_unit_test(test_random_deaths),
    };
    board = world_board(sizeof *board);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
