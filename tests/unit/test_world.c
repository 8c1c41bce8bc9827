/*
 * The world, ranks as threads: rendezvous, members, all-gathers, shared regions, commands, faults,
 * goodbyes. Built twice: test_world on shared memory, test_world_tcp (WORLD_OVER_TCP) with host
 * identities made different, so that everything goes over the star.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/status.h"
#include "counter.h"
#include "os/thread.h"
#include "world_ranks.h"

#ifdef WORLD_OVER_TCP
#define ONE_HOST false
/* Every call gives another host. */
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id);
void __wrap_sc_thread_host_id(struct sc_thread_host_id *id) {
    static _Atomic uint64_t next = 1;
    memset(id, 0, sizeof *id);
    snprintf(id->boot_id, sizeof id->boot_id, "test");
    id->network_namespace = next++;
}
#else
#define ONE_HOST true
#endif

static struct world_rank ranks[WORLD_MAX_RANKS];

static int64_t in_ms(int ms) {
    return sc_deadline_after(ms);
}

/* ---- One rank alone ---- */

static void test_alone(void **state) {
    struct world_plan plan = world_plan_for(1);
    struct world_rank *rank = &ranks[0];
    struct sc_error cause;
    int value = 7, all = 0;
    size_t bytes;
    (void)state;
    int threads = world_count_threads(), descriptors = world_count_descriptors();

    world_prepare(rank, &plan, 0);
    world_open(rank);
    assert_int_equal(rank->status, SPARK_COMM_OK);
    assert_int_equal(world_settle_threads(threads), threads);
    assert_int_equal(world_count_descriptors(), descriptors);
    struct sc_world *world = rank->world;
    assert_int_equal(sc_world_size(world), 1);
    assert_int_equal(sc_world_rank(world), 0);
    assert_int_equal(sc_world_epoch(world), 1);
    assert_true(sc_world_one_host(world));
    assert_int_equal(sc_world_members(world)[0].pid, getpid());
    assert_non_null(sc_world_own_line(world, SPARK_COMM_LANE_DATA));
    assert_int_equal(
        sc_world_all_gather(world, 1, 1, &value, &all, sizeof value, in_ms(100), &rank->error),
        SPARK_COMM_OK);
    assert_int_equal(all, 7);
    assert_int_equal(sc_world_command_send(world, SC_WORLD_RECORD_COMMAND, 1, 0, &value,
                                           sizeof value, in_ms(100), &rank->error),
                     SPARK_COMM_OK);
    assert_int_equal(sc_world_command_recv(world, 0, SC_WORLD_RECORD_COMMAND, 1, 0, &value,
                                           sizeof value, &bytes, in_ms(100), &rank->error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_world_cause(world, &cause), SPARK_COMM_WRONG_STATE);
    sc_world_abort(world);
    assert_int_equal(*sc_world_poison(world), SPARK_COMM_ABORTED);
    assert_int_equal(sc_world_cause(world, &cause), SPARK_COMM_OK);
    assert_string_equal(cause.message, "rank 0 aborted");
    sc_world_ask(world);
    assert_int_equal(sc_world_renew(world, &cause), SPARK_COMM_OK);
    assert_int_equal(*sc_world_gate(world), SPARK_COMM_ABORTED);
    assert_int_equal(sc_world_agree(world, SPARK_COMM_OK, &cause), SPARK_COMM_OK);
    assert_int_equal(*sc_world_gate(world), 0);
    assert_int_equal(sc_world_epoch(world), 2);
    assert_int_equal(*sc_world_poison(world), 0);
    sc_world_close(world);
    sc_world_close(NULL);
}

/* ---- Opening ---- */

static void body_members(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    const struct sc_world_member *members = sc_world_members(rank->world);
    int size = sc_world_size(rank->world);
    spark_comm_health_report report = {0};

    CHECK(sc_world_rank(rank->world) == rank->rank);
    CHECK(sc_world_epoch(rank->world) == 1);
    CHECK(sc_world_one_host(rank->world) == ONE_HOST);
    for (int i = 0; i < size; i++) {
        CHECK(members[i].rank == i && members[i].pid == getpid());
        CHECK(strncmp(members[i].listener, "127.0.0.1:", 10) == 0);
        CHECK(strcmp(members[i].version, spark_comm_version()) == 0);
        CHECK((members[i].same_host != 0) == ONE_HOST || i == 0);
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
            CHECK((sc_world_doorbell(rank->world, i, lane) != NULL) == ONE_HOST);
    }
    CHECK(sc_world_policy(rank->world, 0)->poison == sc_world_poison(rank->world));
    sc_world_health(rank->world, &report);
    CHECK(report.state == SPARK_COMM_STATE_HEALTHY && report.epoch == 1);
    CHECK(report.lost_count == 0 && report.lost_rank == -1);
    CHECK(report.silent_rank >= 0 && report.silent_rank != rank->rank);
    CHECK(report.silent_ms < 5000);
    CHECK(sc_world_renew(rank->world, &rank->error) == SPARK_COMM_WRONG_STATE);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
}

static void test_members(void **state) {
    (void)state;
    for (int size = 2; size <= 8; size++) {
        struct world_plan plan = world_plan_for(size);
        world_run_threads(ranks, &plan, body_members, NULL);
    }
}

static void test_token(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    plan.token = "a secret";
    world_run_threads(ranks, &plan, body_members, NULL);
}

/* Nothing stays behind: descriptors, threads. */
static void test_nothing_left(void **state) {
    struct world_plan plan = world_plan_for(4);
    (void)state;
    int threads = world_count_threads(), descriptors = world_count_descriptors();
    for (int i = 0; i < 20; i++)
        world_run_threads(ranks, &plan, body_members, NULL);
    assert_int_equal(world_count_descriptors(), descriptors);
    assert_int_equal(world_settle_threads(threads), threads);
}

/* ---- All-gather ---- */

static void fill(unsigned char *data, size_t bytes, int rank, uint64_t number) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((uint64_t)rank * 31 + number * 7 + i * 3 + i / 251);
}

static void body_gather(struct world_rank *rank) {
    static const size_t sizes[] = {0, 1, 7, 64, 4096, 65536};
    int size = sc_world_size(rank->world);
    unsigned char *send = malloc(65536), *recv = malloc(65536u * (size_t)size + 1);
    unsigned char *want = malloc(65536);
    uint64_t number = 0;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    for (int round = 0; round < 3; round++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            size_t bytes = sizes[s];
            number++;
            fill(send, bytes, rank->rank, number);
            recv[(size_t)size * bytes] = 0xa5;
            CHECK_STATUS(rank,
                         sc_world_all_gather(rank->world, number, 3, send, recv, bytes,
                                             in_ms(20000), &rank->error),
                         SPARK_COMM_OK);
            CHECK(recv[(size_t)size * bytes] == 0xa5);
            for (int i = 0; i < size; i++) {
                fill(want, bytes, i, number);
                CHECK(memcmp(recv + (size_t)i * bytes, want, bytes) == 0);
            }
        }
    }
    CHECK_STATUS(rank,
                 sc_world_all_gather(rank->world, number + 1, 3, send, recv, 65537, in_ms(1000),
                                     &rank->error),
                 SPARK_COMM_INVALID_ARGUMENT);
    CHECK(*sc_world_poison(rank->world) == 0);
    /* Nobody closes before all have looked. */
    CHECK_STATUS(rank,
                 sc_world_all_gather(rank->world, number + 1, 3, send, recv, 1, in_ms(20000),
                                     &rank->error),
                 SPARK_COMM_OK);
    sc_world_close(rank->world);
    free(send);
    free(recv);
    free(want);
}

static void test_gather(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) {
        struct world_plan plan = world_plan_for(size);
        world_run_threads(ranks, &plan, body_gather, NULL);
    }
}

/* What differs on the last rank: 0 the number, 1 the digest, 2 the size. */
static void body_gather_mismatch(struct world_rank *rank) {
    int what = *(int *)rank->arg;
    int odd = rank->rank == sc_world_size(rank->world) - 1;
    unsigned char send[16] = {0}, recv[16 * 4];
    struct sc_error cause;

    world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_EXCHANGE_HOST, -1, 5);
    spark_comm_status st =
        sc_world_all_gather(rank->world, what == 0 && odd ? 6 : 5, what == 1 && odd ? 8u : 9u, send,
                            recv, what == 2 && odd ? 12 : 16, in_ms(20000), &rank->error);
    CHECK_STATUS(rank, st, SPARK_COMM_MISMATCH);
    sc_world_fault(rank->world, &rank->error);
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    CHECK(cause.status == SPARK_COMM_MISMATCH);
    CHECK(strstr(cause.message, "is in exchange_host #5 (16 bytes per rank, digest") != NULL);
    if (what == 0) CHECK(strstr(cause.message, "is in exchange_host #6 (16 bytes") != NULL);
    if (what == 2) CHECK(strstr(cause.message, "is in exchange_host #5 (12 bytes") != NULL);
    sc_world_close(rank->world);
}

static void test_gather_mismatch(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct world_plan plan = world_plan_for(3);
        world_run_threads(ranks, &plan, body_gather_mismatch, &what);
    }
}

static void body_gather_timeout(struct world_rank *rank) {
    unsigned char send = 0, recv[8];
    struct sc_error cause;
    int64_t start = sc_deadline_now();

    if (rank->rank != 1) {
        spark_comm_status st = sc_world_all_gather(
            rank->world, 1, 0, &send, recv, 1, in_ms(rank->rank == 0 ? 300 : 20000), &rank->error);
        if (rank->rank == 0) {
            CHECK_STATUS(rank, st, SPARK_COMM_OP_TIMEOUT);
            CHECK(rank->error.peer == 1);
            CHECK(strcmp(rank->error.message, "rank 1 has not entered it") == 0);
            sc_world_fault(rank->world, &rank->error);
        } else {
            /* The wait was ended by rank 0's fault, and says what that was. */
            CHECK_STATUS(rank, st, SPARK_COMM_OP_TIMEOUT);
            CHECK(strcmp(rank->error.message, "rank 1 has not entered it") == 0);
        }
        CHECK(world_ms_since(start) > 290 && world_ms_since(start) < 5000);
    } else {
        while (*sc_world_poison(rank->world) == 0)
            sc_wait_futex_sleep(sc_world_poison(rank->world), 0, in_ms(10000));
    }
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    CHECK(cause.status == SPARK_COMM_OP_TIMEOUT);
    CHECK(strcmp(cause.message, "rank 1 has not entered it") == 0);
    sc_world_close(rank->world);
}

static void test_gather_timeout(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    world_run_threads(ranks, &plan, body_gather_timeout, NULL);
}

/* ---- Shared regions ---- */

static void check_region(struct world_rank *rank, size_t bytes, size_t part, uint64_t number) {
    int size = sc_world_size(rank->world);
    size_t total = part > 0 ? part * (size_t)size : bytes;
    size_t own = total / (size_t)size;
    struct sc_mapping mapping;

    CHECK_STATUS(rank,
                 sc_world_share(rank->world, bytes, part, in_ms(20000), &mapping, &rank->error),
                 SPARK_COMM_OK);
    unsigned char *at = mapping.address;
    CHECK(mapping.bytes >= total && ((uintptr_t)at & 4095) == 0);
    for (size_t i = 0; i < own; i += 97)
        CHECK(at[(size_t)rank->rank * own + i] == 0);
    fill(at + (size_t)rank->rank * own, own, rank->rank, 1);
    CHECK_STATUS(rank, world_barrier(rank, number), SPARK_COMM_OK);
    for (int i = 0; i < size; i++)
        for (size_t j = 0; j < own; j += 97)
            CHECK(at[(size_t)i * own + j] ==
                  (unsigned char)((uint64_t)i * 31 + 7 + j * 3 + j / 251));
    sc_mapping_release(&mapping);
}

static void body_share(struct world_rank *rank) {
    struct sc_mapping mapping;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    if (!ONE_HOST) {
        CHECK_STATUS(rank, sc_world_share(rank->world, 1, 0, in_ms(1000), &mapping, &rank->error),
                     SPARK_COMM_UNAVAILABLE);
        CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
        sc_world_close(rank->world);
        return;
    }
    check_region(rank, 1, 0, 1);
    check_region(rank, 100000, 0, 2);
    check_region(rank, 0, 4096, 3);
    check_region(rank, 0, 3 * 65536, 4);
    /* More than there is: the same on all ranks, and the world stays good. */
    CHECK_STATUS(
        rank, sc_world_share(rank->world, (size_t)1 << 46, 0, in_ms(20000), &mapping, &rank->error),
        SPARK_COMM_NO_MEMORY);
    CHECK(strncmp(rank->error.message, "rank 0: ", 8) == 0 && rank->error.peer == 0);
    CHECK(mapping.address == NULL);
    CHECK_STATUS(rank,
                 sc_world_share(rank->world, 0, SIZE_MAX / 2, in_ms(20000), &mapping, &rank->error),
                 SPARK_COMM_INVALID_ARGUMENT);
    check_region(rank, 8192, 0, 5);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

static void test_share(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size++) {
        struct world_plan plan = world_plan_for(size);
        world_run_threads(ranks, &plan, body_share, NULL);
    }
}

/* ---- Commands ---- */

static spark_comm_status command(struct world_rank *rank, int root, int kind, uint64_t number,
                                 uint32_t digest, void *data, size_t bytes, int ms) {
    size_t got = 0;
    if (rank->rank == root)
        return sc_world_command_send(rank->world, kind, number, digest, data, bytes, in_ms(ms),
                                     &rank->error);
    spark_comm_status st = sc_world_command_recv(
        rank->world, root, kind, number, digest, data, bytes, &got,
        ms == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : in_ms(ms), &rank->error);
    if (st == SPARK_COMM_OK) CHECK(got == bytes);
    return st;
}

static void body_commands(struct world_rank *rank) {
    static const size_t sizes[] = {4, 0, 1, 31, 32, 33, 4096, 65536, 12345};
    int size = sc_world_size(rank->world);
    unsigned char *data = malloc(65536), *want = malloc(65536);
    uint64_t number = 0;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    for (int round = 0; round < 60; round++) {
        size_t bytes = sizes[(size_t)round % (sizeof sizes / sizeof sizes[0])];
        int root = round % size;
        int kind = round % 3 == 0 ? SC_WORLD_RECORD_COMMAND : SC_WORLD_RECORD_BROADCAST;
        fill(want, bytes, root, ++number);
        if (rank->rank == root)
            memcpy(data, want, bytes);
        else
            memset(data, 0, bytes);
        CHECK_STATUS(rank, command(rank, root, kind, number, 77, data, bytes, 20000),
                     SPARK_COMM_OK);
        CHECK(memcmp(data, want, bytes) == 0);
    }
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
    free(data);
    free(want);
}

static void test_commands(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) {
        struct world_plan plan = world_plan_for(size);
        world_run_threads(ranks, &plan, body_commands, NULL);
    }
}

/* Far more than the window, so that the sender waits for readers again and again. */
static void body_flood(struct world_rank *rank) {
    unsigned char *data = malloc(65536);

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    for (uint64_t number = 1; number <= 400; number++) {
        size_t bytes = number % 5 == 0 ? 65536 : 1024 + number;
        int root = (int)(number / 100) % sc_world_size(rank->world);
        fill(data, bytes, root, number);
        CHECK_STATUS(rank,
                     command(rank, root, SC_WORLD_RECORD_COMMAND, number, 0, data, bytes, 20000),
                     SPARK_COMM_OK);
        unsigned char last = data[bytes - 1];
        fill(data + bytes - 1, 1, root, number);
        data[bytes - 1] =
            (unsigned char)((uint64_t)root * 31 + number * 7 + (bytes - 1) * 3 + (bytes - 1) / 251);
        CHECK(data[bytes - 1] == last);
    }
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
    free(data);
}

static void test_flood(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    world_run_threads(ranks, &plan, body_flood, NULL);
}

static void body_small_buffer(struct world_rank *rank) {
    uint32_t words[4] = {1, 2, 3, 4};
    size_t got = 0;

    if (rank->rank == 0) {
        CHECK_STATUS(rank, command(rank, 0, SC_WORLD_RECORD_COMMAND, 1, 0, words, 16, 5000),
                     SPARK_COMM_OK);
    } else {
        memset(words, 0, sizeof words);
        for (int i = 0; i < 2; i++) {
            CHECK_STATUS(rank,
                         sc_world_command_recv(rank->world, 0, SC_WORLD_RECORD_COMMAND, 1, 0, words,
                                               8, &got, in_ms(5000), &rank->error),
                         SPARK_COMM_INVALID_ARGUMENT);
            CHECK(got == 16 && words[0] == 0);
        }
        CHECK_STATUS(rank,
                     sc_world_command_recv(rank->world, 0, SC_WORLD_RECORD_COMMAND, 1, 0, words, 16,
                                           &got, in_ms(5000), &rank->error),
                     SPARK_COMM_OK);
        CHECK(got == 16 && words[3] == 4);
        CHECK_STATUS(rank,
                     sc_world_command_recv(rank->world, 0, SC_WORLD_RECORD_COMMAND, 2, 0, words, 16,
                                           &got, in_ms(50), &rank->error),
                     SPARK_COMM_OP_TIMEOUT);
        CHECK(rank->error.peer == 0);
    }
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

static void test_small_buffer(void **state) {
    struct world_plan plan = world_plan_for(2);
    (void)state;
    world_run_threads(ranks, &plan, body_small_buffer, NULL);
}

/* What differs: 0 the number, 1 the kind, 2 the digest of a broadcast, 3 that of a command (fine). */
static void body_command_mismatch(struct world_rank *rank) {
    int what = *(int *)rank->arg;
    int kind = what == 3 ? SC_WORLD_RECORD_COMMAND : SC_WORLD_RECORD_BROADCAST;
    uint32_t word = 5;

    if (rank->rank == 0) {
        CHECK_STATUS(rank, command(rank, 0, kind, 3, 1, &word, 4, 5000), SPARK_COMM_OK);
    } else {
        if (what == 1) kind = SC_WORLD_RECORD_COMMAND;
        spark_comm_status st =
            command(rank, 0, kind, what == 0 ? 4 : 3, what >= 2 ? 2 : 1, &word, 4, 5000);
        CHECK_STATUS(rank, st, what == 3 ? SPARK_COMM_OK : SPARK_COMM_MISMATCH);
        if (what != 3)
            CHECK(strstr(rank->error.message, "rank 0 sent a broadcast of 4 bytes as "
                                              "#3 of the command lane") != NULL);
        if (what == 0) CHECK(strstr(rank->error.message, "of 4 bytes as #4") != NULL);
        if (what == 1) CHECK(strstr(rank->error.message, "receives a command of") != NULL);
    }
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
}

static void test_command_mismatch(void **state) {
    (void)state;
    for (int what = 0; what < 4; what++) {
        struct world_plan plan = world_plan_for(2);
        world_run_threads(ranks, &plan, body_command_mismatch, &what);
    }
}

/* A reader that does not read stops the sender at its deadline, and is named. */
static void body_window(struct world_rank *rank) {
    unsigned char *data = calloc(1, 65536);
    uint64_t sent = 0;

    if (rank->rank == 0) {
        spark_comm_status st = SPARK_COMM_OK;
        while (st == SPARK_COMM_OK && sent < 20)
            st = command(rank, 0, SC_WORLD_RECORD_COMMAND, ++sent, 0, data, 65536, 200);
        CHECK_STATUS(rank, st, SPARK_COMM_OP_TIMEOUT);
        CHECK(rank->error.peer == 2);
        CHECK(sent >= 3 && sent <= 5);
        CHECK(strncmp(rank->error.message, "rank 2 has not received", 23) == 0);
    } else if (rank->rank == 1) {
        uint64_t number = 0;
        while (command(rank, 0, SC_WORLD_RECORD_COMMAND, ++number, 0, data, 65536, 1000) ==
               SPARK_COMM_OK) {
        }
        CHECK(number >= 3 && number <= 5);
    }
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
    free(data);
}

static void test_window(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    world_run_threads(ranks, &plan, body_window, NULL);
}

/* ---- Faults ---- */

static pthread_barrier_t together; /* of the test, not of the library */

static _Atomic int interrupted[8];

static void interrupt(void *arg) {
    atomic_fetch_add((_Atomic int *)arg, 1);
}

/* One rank finds a fault; all have the same cause, word for word. */
static void body_fault(struct world_rank *rank) {
    int finder = *(int *)rank->arg;
    struct sc_error cause, again;
    spark_comm_health_report report = {0};

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    atomic_store(&interrupted[rank->rank], 0);
    sc_world_on_poison(rank->world, interrupt, &interrupted[rank->rank]);
    pthread_barrier_wait(&together);
    if (rank->rank == finder) {
        sc_error_clear(&rank->error);
        rank->error.operation = SPARK_COMM_OP_ALL_REDUCE;
        rank->error.sequence = 1841;
        sc_error_set(&rank->error, SPARK_COMM_BACKEND, 2, -17, "it broke on rank %d", finder);
        sc_world_fault(rank->world, &rank->error);
    }
    world_await_poison(rank);
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    CHECK(cause.status == SPARK_COMM_BACKEND &&
          *sc_world_poison(rank->world) == SPARK_COMM_BACKEND);
    CHECK(cause.peer == 2 && cause.native_code == -17 && cause.epoch == 1);
    CHECK(cause.operation == SPARK_COMM_OP_ALL_REDUCE && cause.sequence == 1841);
    char want[64];
    snprintf(want, sizeof want, "it broke on rank %d", finder);
    CHECK(strcmp(cause.message, want) == 0);
    sc_world_health(rank->world, &report);
    CHECK(report.state == SPARK_COMM_STATE_POISONED && report.lost_count == 0);
    /* The first cause stays. */
    sc_world_abort(rank->world);
    CHECK(sc_world_cause(rank->world, &again) == SPARK_COMM_OK);
    CHECK(strcmp(again.message, want) == 0 && again.status == SPARK_COMM_BACKEND);
    sc_world_on_poison(rank->world, NULL, NULL);
    CHECK(atomic_load(&interrupted[rank->rank]) == 1);
    int64_t start = sc_deadline_now();
    sc_world_close(rank->world);
    CHECK(world_ms_since(start) < 2000);
}

static void test_fault(void **state) {
    (void)state;
    pthread_barrier_init(&together, NULL, 3);
    for (int finder = 0; finder < 3; finder++) {
        struct world_plan plan = world_plan_for(3);
        world_run_threads(ranks, &plan, body_fault, &finder);
    }
    pthread_barrier_destroy(&together);
}

/* Several ranks abort at once: each is told one and the same name, as long as the head's word comes
 * within the 200 ms that a rank waits for it. A round in which these CPUs took longer says nothing. */
static char told[8][64];
static double told_after_ms[8];

static void body_two_faults(struct world_rank *rank) {
    struct sc_error cause;

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    pthread_barrier_wait(&together);
    int64_t start = sc_deadline_now();
    if (rank->rank != 1) sc_world_abort(rank->world);
    world_await_poison(rank);
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    told_after_ms[rank->rank] = world_ms_since(start);
    snprintf(told[rank->rank], sizeof told[0], "%.60s", cause.message);
    sc_world_close(rank->world);
}

static void test_two_faults(void **state) {
    int rounds_in_time = 0;
    (void)state;

    pthread_barrier_init(&together, NULL, 4);
    for (int round = 0; round < 20; round++) {
        struct world_plan plan = world_plan_for(4);
        bool in_time = true;
        world_run_threads(ranks, &plan, body_two_faults, NULL);
        for (int i = 0; i < 4; i++) {
            assert_non_null(strstr(told[i], "aborted"));
            in_time &= told_after_ms[i] < 150;
        }
        for (int i = 1; i < 4 && in_time; i++)
            assert_string_equal(told[i], told[0]);
        rounds_in_time += in_time;
    }
    assert_true(rounds_in_time > 0);
    pthread_barrier_destroy(&together);
}

static void *abort_soon(void *arg) {
    struct world_rank *rank = arg;
    usleep(50 * 1000);
    rank->arg = (void *)(intptr_t)sc_deadline_now();
    sc_world_abort(rank->world);
    return NULL;
}

/* Abort ends an idle receive, here and on the peers. */
static void body_abort_receive(struct world_rank *rank) {
    uint32_t word;
    struct sc_error cause;
    pthread_t thread;

    if (rank->rank == 1) pthread_create(&thread, NULL, abort_soon, rank);
    if (rank->rank == 0) {
        world_await_poison(rank);
    } else {
        spark_comm_status st =
            command(rank, 0, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4, SPARK_COMM_FOREVER);
        CHECK_STATUS(rank, st, SPARK_COMM_ABORTED);
    }
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    CHECK(strcmp(cause.message, "rank 1 aborted") == 0 && cause.peer == 1);
    if (rank->rank == 1) {
        pthread_join(thread, NULL);
        CHECK(world_ms_since((int64_t)(intptr_t)rank->arg) < 1000);
    }
    sc_world_close(rank->world);
}

static void test_abort_receive(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    world_run_threads(ranks, &plan, body_abort_receive, NULL);
}

/* ---- Goodbyes ---- */

/* Ranks leave one after the other, in every order; nobody is harmed. */

static void body_leave_in_order(struct world_rank *rank) {
    const int *order = rank->arg;
    int size = sc_world_size(rank->world);

    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    for (int i = 0; i < size; i++) {
        if (order[i] == rank->rank) {
            int64_t start = sc_deadline_now();
            CHECK(*sc_world_poison(rank->world) == 0);
            sc_world_close(rank->world);
            CHECK(world_ms_since(start) < 1000);
        }
        pthread_barrier_wait(&together);
    }
}

static void test_leave_in_order(void **state) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    (void)state;
    pthread_barrier_init(&together, NULL, 3);
    for (int i = 0; i < 6; i++) {
        struct world_plan plan = world_plan_for(3);
        world_run_threads(ranks, &plan, body_leave_in_order, (void *)(uintptr_t)orders[i]);
    }
    pthread_barrier_destroy(&together);
}

/* A rank closes while others wait for it in a gather, in a command, in a collective. */
enum needed { NEEDED_GATHER, NEEDED_COMMAND, NEEDED_COLLECTIVE, NEEDED_PAIR, NEEDED_COUNT };

struct needed_case {
    enum needed what;
    int leaver;
};

static spark_comm_status wait_in(struct world_rank *rank, const struct needed_case *test) {
    unsigned char one = 0, all[8];
    uint32_t word;
    static const _Atomic uint32_t never;

    switch (test->what) {
    case NEEDED_GATHER:
        world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_EXCHANGE_HOST, -1, 2);
        return sc_world_all_gather(rank->world, 2, 0, &one, all, 1, in_ms(10000), &rank->error);
    case NEEDED_COMMAND:
        world_enter(rank, SPARK_COMM_LANE_COMMAND, SPARK_COMM_OP_RECV_COMMAND, test->leaver, 1);
        return command(rank, test->leaver, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4,
                       SPARK_COMM_FOREVER);
    case NEEDED_COLLECTIVE:
        world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_ALL_REDUCE, -1, 2);
        return sc_counter_wait(sc_world_policy(rank->world, SPARK_COMM_LANE_DATA), &never, 1,
                               in_ms(10000));
    default: {
        struct sc_world_line *line = sc_world_own_line(rank->world, SPARK_COMM_LANE_DATA);
        atomic_store(&line->descriptor,
                     sc_world_describe(SPARK_COMM_OP_RECV_FROM, 0, 0, test->leaver));
        atomic_store(&line->submit_ticks, sc_ticks_now());
        return sc_counter_wait(sc_world_policy(rank->world, SPARK_COMM_LANE_DATA), &never, 1,
                               in_ms(10000));
    }
    }
}

static void body_needed(struct world_rank *rank) {
    const struct needed_case *test = rank->arg;
    struct sc_error cause;
    char want[32];

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_BARRIER, -1, 1);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    world_done(rank, SPARK_COMM_LANE_DATA, 1);
    if (rank->rank == test->leaver) {
        usleep(100 * 1000);
        sc_world_close(rank->world);
        return;
    }
    int64_t start = sc_deadline_now();
    spark_comm_status st = wait_in(rank, test);
    CHECK(world_ms_since(start) < 3000);
    if (st == SPARK_COMM_PEER_LOST)
        sc_world_fault(rank->world, &rank->error);
    else
        CHECK_STATUS(rank, st, SPARK_COMM_ABORTED);
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    snprintf(want, sizeof want, "rank %d closed", test->leaver);
    CHECK(cause.status == SPARK_COMM_PEER_LOST && cause.peer == test->leaver);
    CHECK(strncmp(cause.message, want, strlen(want)) == 0);
    sc_world_close(rank->world);
}

static void test_needed(void **state) {
    (void)state;
    for (int what = 0; what < NEEDED_COUNT; what++) {
        for (int leaver = 0; leaver < 3; leaver++) {
            struct needed_case test = {(enum needed)what, leaver};
            struct world_plan plan = world_plan_for(3);
            world_run_threads(ranks, &plan, body_needed, &test);
        }
    }
}

/* After the hub has gone, a worker that goes too is missed by the other, on one host. */
static void body_needed_later(struct world_rank *rank) {
    static const _Atomic uint32_t never;
    struct sc_error cause;

    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    if (rank->rank == 0) sc_world_close(rank->world);
    pthread_barrier_wait(&together);
    if (rank->rank == 1) {
        usleep(50 * 1000);
        CHECK(*sc_world_poison(rank->world) == 0);
        sc_world_close(rank->world);
    }
    if (rank->rank != 2) return;
    struct sc_world_line *line = sc_world_own_line(rank->world, SPARK_COMM_LANE_DATA);
    atomic_store(&line->descriptor, sc_world_describe(SPARK_COMM_OP_SEND_TO, 0, 0, 1));
    atomic_store(&line->submit_ticks, sc_ticks_now());
    CHECK_STATUS(rank,
                 sc_counter_wait(sc_world_policy(rank->world, SPARK_COMM_LANE_DATA), &never, 1,
                                 in_ms(10000)),
                 ONE_HOST ? SPARK_COMM_ABORTED : SPARK_COMM_OP_TIMEOUT);
    CHECK(sc_world_cause(rank->world, &cause) == SPARK_COMM_OK);
    CHECK(strcmp(cause.message, "rank 1 closed, and send_to needs it") == 0);
    sc_world_close(rank->world);
}

static void test_needed_later(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    if (!ONE_HOST) skip();
    pthread_barrier_init(&together, NULL, 3);
    world_run_threads(ranks, &plan, body_needed_later, NULL);
    pthread_barrier_destroy(&together);
}

/* Commands sent before the root closed are received after it. */
static void body_late_reader(struct world_rank *rank) {
    uint32_t word = 0;

    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    if (rank->rank == 0) {
        for (uint32_t i = 1; i <= 100; i++) {
            world_enter(rank, SPARK_COMM_LANE_COMMAND, SPARK_COMM_OP_SEND_COMMAND, 0, i);
            CHECK_STATUS(rank, command(rank, 0, SC_WORLD_RECORD_COMMAND, i, 0, &i, 4, 5000),
                         SPARK_COMM_OK);
            world_done(rank, SPARK_COMM_LANE_COMMAND, i);
        }
        sc_world_close(rank->world);
    }
    pthread_barrier_wait(&together);
    if (rank->rank == 0) return;
    for (uint32_t i = 1; i <= 100; i++) {
        world_enter(rank, SPARK_COMM_LANE_COMMAND, SPARK_COMM_OP_RECV_COMMAND, 0, i);
        CHECK_STATUS(rank, command(rank, 0, SC_WORLD_RECORD_COMMAND, i, 0, &word, 4, 5000),
                     SPARK_COMM_OK);
        CHECK(word == i);
        world_done(rank, SPARK_COMM_LANE_COMMAND, i);
    }
    CHECK(*sc_world_poison(rank->world) == 0);
    CHECK_STATUS(rank,
                 command(rank, 0, SC_WORLD_RECORD_COMMAND, 101, 0, &word, 4, SPARK_COMM_FOREVER),
                 SPARK_COMM_PEER_LOST);
    CHECK(strcmp(rank->error.message, "rank 0 closed") == 0);
    sc_world_close(rank->world);
}

static void test_late_reader(void **state) {
    struct world_plan plan = world_plan_for(2);
    (void)state;
    pthread_barrier_init(&together, NULL, 2);
    world_run_threads(ranks, &plan, body_late_reader, NULL);
    pthread_barrier_destroy(&together);
}

/* A closing rank's own running call ends; the others are told nothing but goodbye. */
static void *receive_for_ever(void *arg) {
    struct world_rank *rank = arg;
    uint32_t word;
    world_enter(rank, SPARK_COMM_LANE_COMMAND, SPARK_COMM_OP_RECV_COMMAND, 0, 1);
    CHECK_STATUS(rank,
                 command(rank, 0, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4, SPARK_COMM_FOREVER),
                 SPARK_COMM_ABORTED);
    return NULL;
}

static void body_cut_off(struct world_rank *rank) {
    pthread_t thread;
    uint32_t word = 1;

    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    if (rank->rank == 1) {
        pthread_create(&thread, NULL, receive_for_ever, rank);
        usleep(50 * 1000);
        sc_world_leave(rank->world);
        pthread_join(thread, NULL);
        sc_world_close(rank->world);
    }
    pthread_barrier_wait(&together);
    if (rank->rank == 1) return;
    usleep(100 * 1000);
    CHECK(*sc_world_poison(rank->world) == 0);
    if (rank->rank == 0) {
        CHECK_STATUS(rank, command(rank, 0, SC_WORLD_RECORD_COMMAND, 1, 0, &word, 4, 5000),
                     SPARK_COMM_PEER_LOST);
        CHECK(strcmp(rank->error.message, "rank 1 closed") == 0);
    }
    sc_world_close(rank->world);
}

static void test_cut_off(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;
    pthread_barrier_init(&together, NULL, 3);
    world_run_threads(ranks, &plan, body_cut_off, NULL);
    pthread_barrier_destroy(&together);
}

/* The first to leave the last barrier closes at once, again and again: never an error. The barrier
 * is one in shared memory, as a backend makes it, or the control plane's. */
struct last_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
};

static void body_last_barrier(struct world_rank *rank) {
    struct sc_mapping mapping;
    int size = sc_world_size(rank->world);

    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    if (!ONE_HOST) {
        world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_BARRIER, -1, 1);
        CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
        world_done(rank, SPARK_COMM_LANE_DATA, 1);
        sc_world_close(rank->world);
        return;
    }
    CHECK_STATUS(rank, sc_world_share(rank->world, 4096, 0, in_ms(10000), &mapping, &rank->error),
                 SPARK_COMM_OK);
    struct last_barrier *counters = mapping.address;
    const struct sc_wait_policy *policy = sc_world_policy(rank->world, SPARK_COMM_LANE_DATA);
    for (uint32_t number = 1; number <= 3; number++) {
        world_enter(rank, SPARK_COMM_LANE_DATA, SPARK_COMM_OP_BARRIER, -1, number);
        atomic_store_explicit(&counters[rank->rank].arrived, number, memory_order_release);
        for (int i = 0; i < size; i++)
            sc_wait_ring(policy, sc_world_doorbell(rank->world, i, SPARK_COMM_LANE_DATA));
        for (int i = 0; i < size; i++)
            CHECK_STATUS(rank, sc_counter_wait(policy, &counters[i].arrived, number, in_ms(10000)),
                         SPARK_COMM_OK);
        world_done(rank, SPARK_COMM_LANE_DATA, number);
    }
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_mapping_release(&mapping);
    sc_world_close(rank->world);
}

static void test_last_barrier(void **state) {
    const char *rounds = getenv("WORLD_TEST_ROUNDS");
    int count = rounds != NULL ? atoi(rounds) : 100;
    struct world_plan plan = world_plan_for(3);
    (void)state;
    for (int round = 0; round < count; round++) {
        plan.size = 2 + round % 3;
        world_run_threads(ranks, &plan, body_last_barrier, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),          cmocka_unit_test(test_members),
        cmocka_unit_test(test_token),          cmocka_unit_test(test_nothing_left),
        cmocka_unit_test(test_gather),         cmocka_unit_test(test_gather_mismatch),
        cmocka_unit_test(test_gather_timeout), cmocka_unit_test(test_share),
        cmocka_unit_test(test_commands),       cmocka_unit_test(test_flood),
        cmocka_unit_test(test_small_buffer),   cmocka_unit_test(test_command_mismatch),
        cmocka_unit_test(test_window),         cmocka_unit_test(test_fault),
        cmocka_unit_test(test_two_faults),     cmocka_unit_test(test_abort_receive),
        cmocka_unit_test(test_leave_in_order), cmocka_unit_test(test_needed),
        cmocka_unit_test(test_needed_later),   cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_cut_off),        cmocka_unit_test(test_last_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
