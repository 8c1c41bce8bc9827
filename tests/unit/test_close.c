/*
 * Close and poison beside running calls: what waits for a turn or for a group ends with ABORTED and
 * is waited for; a poisoned communicator answers with its first cause whatever the arguments are; a
 * renewed one starts its numbers anew; a group notices that its peer has closed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <spark_comm.h>

#include "base/deadline.h"
#include "os/socket.h"

static spark_comm *open_rank(const char *backend, int rank, int size, int port) {
    spark_comm_options options;
    spark_comm *comm = NULL;
    spark_comm_options_init(&options, sizeof options);
    options.backend = backend;
    options.rank = rank;
    options.world_size = size;
    options.master_port = port;
    options.op_timeout_ms = 6000;
    options.rendezvous_timeout_ms = 20000;
    return spark_comm_open(&options, &comm) == SPARK_COMM_OK ? comm : NULL;
}

/* A port that nobody listens on; taken again at once by rank 0, which alone uses it. */
static int free_port(void) {
    struct sc_socket_address address, bound;
    size_t count;
    int fd = -1;
    assert_int_equal(sc_socket_resolve("127.0.0.1", 0, &address, 1, &count, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_listen(&address, 1, &fd, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_local(fd, &bound, NULL), SPARK_COMM_OK);
    close(fd);
    return sc_socket_port(&bound);
}

static void pause_ms(int ms) {
    struct timespec pause = {.tv_nsec = ms * 1000000L};
    nanosleep(&pause, NULL);
}

struct call {
    spark_comm *comm;
    _Atomic int begun;
    spark_comm_status status;
};

static void *start_group(void *arg) {
    struct call *call = arg;
    call->begun = 1;
    call->status = spark_comm_group_start(call->comm);
    return NULL;
}

static void *receive(void *arg) {
    struct call *call = arg;
    uint32_t word;
    call->begun = 1;
    call->status = spark_comm_recv_command_u32(call->comm, (uint64_t)(uintptr_t)&word, 1);
    return NULL;
}

static void close_ends_a_waiting_group(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct call call = {.comm = open_rank("single", 0, 1, 1)};
        pthread_t thread;
        assert_non_null(call.comm);
        assert_int_equal(spark_comm_group_start(call.comm), SPARK_COMM_OK);
        assert_int_equal(pthread_create(&thread, NULL, start_group, &call), 0);
        while (call.begun == 0)
            pause_ms(1);
        pause_ms(round % 5);
        spark_comm_close(call.comm);
        pthread_join(thread, NULL);
        /* A thread that had not entered yet finds the handle closed. */
        assert_true(call.status == SPARK_COMM_ABORTED || call.status == SPARK_COMM_WRONG_STATE);
        if (round % 5 == 4) assert_int_equal(call.status, SPARK_COMM_ABORTED);
    }
}

struct second_rank {
    int port;
    spark_comm *comm;
};

static void *open_second(void *arg) {
    struct second_rank *second = arg;
    second->comm = open_rank("shm", 1, 2, second->port);
    return NULL;
}

static spark_comm *open_two(spark_comm **other) {
    struct second_rank second = {.port = free_port()};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_second, &second), 0);
    spark_comm *comm = open_rank("shm", 0, 2, second.port);
    pthread_join(thread, NULL);
    assert_non_null(comm);
    assert_non_null(second.comm);
    *other = second.comm;
    return comm;
}

/* One thread waits in the lane, a second one for the lane: both end, with the right status. */
static void close_ends_calls_and_waiters(void **state) {
    (void)state;
    spark_comm *other, *comm = open_two(&other);
    struct call calls[2] = {{.comm = comm}, {.comm = comm}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, receive, &calls[i]), 0);
        while (calls[i].begun == 0)
            pause_ms(1);
        pause_ms(50);
    }
    int64_t begun = sc_deadline_now();
    spark_comm_close(comm);
    assert_true(sc_deadline_now() - begun < INT64_C(5500000000));
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(calls[i].status, SPARK_COMM_ABORTED);
    }
    spark_comm_close(other);
}

static void a_poisoned_one_gives_its_cause(void **state) {
    (void)state;
    spark_comm *comm = open_rank("single", 0, 1, 1);
    spark_comm_error error = {.struct_size = sizeof error};
    uint64_t handle;
    assert_non_null(comm);
    assert_int_equal(spark_comm_abort(comm), SPARK_COMM_OK);
    assert_int_equal(spark_comm_send_to(comm, 8, 0, 0, 0), SPARK_COMM_ABORTED);
    assert_int_equal(spark_comm_all_reduce(comm, 0, 4), SPARK_COMM_ABORTED);
    assert_int_equal(spark_comm_symmetric_alloc(comm, 4, &handle), SPARK_COMM_ABORTED);
    assert_int_equal(spark_comm_register_buffer(comm, 8, 8, &handle), SPARK_COMM_ABORTED);
    assert_int_equal(spark_comm_last_error(comm, &error), SPARK_COMM_OK);
    assert_int_equal(error.status, SPARK_COMM_ABORTED);
    assert_non_null(strstr(error.message, "rank 0 aborted"));
    spark_comm_close(comm);
}

static void a_renewed_one_counts_from_one(void **state) {
    (void)state;
    spark_comm *comm = open_rank("single", 0, 1, 1);
    spark_comm_health_report report = {.struct_size = sizeof report};
    assert_non_null(comm);
    for (int i = 0; i < 5; i++)
        assert_int_equal(spark_comm_all_reduce(comm, 8, 4), SPARK_COMM_OK);
    assert_int_equal(spark_comm_abort(comm), SPARK_COMM_OK);
    assert_int_equal(spark_comm_attempt_reconnect(comm), SPARK_COMM_OK);
    assert_true(spark_comm_is_healthy(comm));
    assert_int_equal(spark_comm_health(comm, &report), SPARK_COMM_OK);
    assert_int_equal(report.epoch, 2);
    assert_int_equal(report.lanes[SPARK_COMM_LANE_DATA].submitted, 0);
    assert_int_equal(spark_comm_all_reduce(comm, 8, 4), SPARK_COMM_OK);
    assert_int_equal(spark_comm_health(comm, &report), SPARK_COMM_OK);
    assert_int_equal(report.lanes[SPARK_COMM_LANE_DATA].submitted, 1);
    spark_comm_close(comm);
}

static void a_group_notices_a_closed_peer(void **state) {
    (void)state;
    spark_comm *other, *comm = open_two(&other);
    spark_comm_error error = {.struct_size = sizeof error};
    char buffer[64];
    spark_comm_close(other);
    int64_t begun = sc_deadline_now();
    assert_int_equal(spark_comm_group_start(comm), SPARK_COMM_OK);
    assert_int_equal(spark_comm_recv_from(comm, (uint64_t)(uintptr_t)buffer, 64, 1, 0),
                     SPARK_COMM_OK);
    assert_int_equal(spark_comm_group_end(comm), SPARK_COMM_PEER_LOST);
    assert_true(sc_deadline_now() - begun < INT64_C(4000000000)); /* far from op_timeout's 6 s */
    assert_int_equal(spark_comm_last_error(comm, &error), SPARK_COMM_OK);
    assert_non_null(strstr(error.message, "rank 1 closed"));
    spark_comm_close(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_ends_a_waiting_group),
        cmocka_unit_test(close_ends_calls_and_waiters),
        cmocka_unit_test(a_poisoned_one_gives_its_cause),
        cmocka_unit_test(a_renewed_one_counts_from_one),
        cmocka_unit_test(a_group_notices_a_closed_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
