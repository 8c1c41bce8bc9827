/*
 * Calls beside a reconnect of another thread: one that was refused goes on when all is well again by the time
 * the reason is asked for, and a backend that is asked without a lane (stream_state) keeps its state until it
 * has answered. One rank, with the table of `single` and looks of the test's own. And groups: every stream is
 * looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <spark_comm_backend.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "backends/single.h"
#include "world_ranks.h"

static spark_comm *comm;
static _Atomic bool heals_first, look_waits, is_looking;
static _Atomic int reopened, reopened_during_look;
static uint64_t looked_at[8];
static int look_count;

/* Another thread's reconnect, just before a refused call asks why. */
spark_comm_status __real_sc_world_cause(struct sc_world *world, struct sc_error *cause);
spark_comm_status __wrap_sc_world_cause(struct sc_world *world, struct sc_error *cause);
spark_comm_status __wrap_sc_world_cause(struct sc_world *world, struct sc_error *cause) {
    if (atomic_exchange(&heals_first, false))
        CHECK(spark_comm_attempt_reconnect(comm) == SPARK_COMM_OK);
    return __real_sc_world_cause(world, cause);
}

/* Streams from 100 on capture. */
static spark_comm_status stream_state(void *state, uint64_t stream, bool *captured) {
    int before = atomic_load(&reopened);
    (void)state;
    atomic_store(&is_looking, true);
    while (atomic_load(&look_waits))
        usleep(100);
    if (atomic_load(&reopened) != before) atomic_store(&reopened_during_look, 1);
    atomic_store(&is_looking, false);
    looked_at[look_count++ % 8] = stream;
    *captured = stream >= 100;
    return SPARK_COMM_OK;
}

static spark_comm_status reopen(void *state) {
    (void)state;
    atomic_fetch_add(&reopened, 1);
    return SPARK_COMM_OK;
}

static int set_up(void **state) {
    spark_comm_backend backend = sc_single_backend;
    spark_comm_options options;
    (void)state;
    backend.name = "looks";
    backend.stream_state = stream_state;
    backend.reopen = reopen;
    spark_comm_options_init(&options, sizeof options);
    options.rank = 0;
    options.world_size = 1;
    look_count = 0;
    return spark_comm_open_backend(&backend, NULL, &options, &comm) == SPARK_COMM_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    spark_comm_close(comm);
    return 0;
}

static void test_goes_on(void **state) {
    char data[8] = {0};
    uint64_t ptr = (uint64_t)(uintptr_t)data;
    (void)state;
    for (int call = 0; call < 4; call++) {
        assert_int_equal(spark_comm_abort(comm), SPARK_COMM_OK);
        assert_int_equal(spark_comm_barrier(comm), SPARK_COMM_ABORTED);
        atomic_store(&heals_first, true);
        switch (call) {
        case 0: assert_int_equal(spark_comm_all_reduce(comm, ptr, 8), SPARK_COMM_OK); break;
        case 1: assert_int_equal(spark_comm_broadcast(comm, ptr, 4, 0), SPARK_COMM_OK); break;
        case 2: assert_int_equal(spark_comm_send_to(comm, ptr, 4, 0, 0), SPARK_COMM_OK); break;
        default:
            assert_int_equal(spark_comm_group_start(comm), SPARK_COMM_OK);
            assert_int_equal(spark_comm_group_end(comm), SPARK_COMM_OK);
        }
        assert_false(atomic_load(&heals_first));
        assert_true(spark_comm_is_healthy(comm));
    }
}

static void *reduce(void *arg) {
    char data[8] = {0};
    (void)arg;
    return (void *)(intptr_t)spark_comm_all_reduce(comm, (uint64_t)(uintptr_t)data, 8);
}

static void *reconnect(void *arg) {
    (void)arg;
    return (void *)(intptr_t)spark_comm_attempt_reconnect(comm);
}

static void test_state_stays(void **state) {
    pthread_t caller, other;
    void *result;
    (void)state;
    atomic_store(&look_waits, true);
    assert_int_equal(pthread_create(&caller, NULL, reduce, NULL), 0);
    while (!atomic_load(&is_looking))
        usleep(100);
    int before = atomic_load(&reopened);
    assert_int_equal(pthread_create(&other, NULL, reconnect, NULL), 0);
    while (spark_comm_is_healthy(comm)) /* the attempt has shut the gate */
        usleep(100);
    usleep(20000);
    assert_int_equal(atomic_load(&reopened), before);
    atomic_store(&look_waits, false);
    pthread_join(other, &result);
    assert_int_equal((intptr_t)result, SPARK_COMM_OK);
    pthread_join(caller, &result);
    assert_true((intptr_t)result == SPARK_COMM_OK || (intptr_t)result == SPARK_COMM_ABORTED);
    assert_int_equal(atomic_load(&reopened_during_look), 0);
    assert_int_equal(atomic_load(&reopened), before + 1);
}

static spark_comm_status group_on(const uint64_t *streams, int count) {
    char data[8] = {0};
    uint64_t ptr = (uint64_t)(uintptr_t)data;
    look_count = 0;
    assert_int_equal(spark_comm_group_start(comm), SPARK_COMM_OK);
    for (int i = 0; i < count; i++)
        assert_int_equal(i % 2 == 0 ? spark_comm_send_to(comm, ptr, 4, 0, streams[i])
                                    : spark_comm_recv_from(comm, ptr, 4, 0, streams[i]),
                         SPARK_COMM_OK);
    return spark_comm_group_end(comm);
}

static void test_streams_of_groups(void **state) {
    static const uint64_t plain[] = {5, 6, 5, 7}, both[] = {5, 5, 101, 5}, all[] = {101, 102};
    spark_comm_error error = {.struct_size = sizeof error};
    (void)state;
    assert_int_equal(group_on(plain, 4), SPARK_COMM_OK);
    assert_int_equal(look_count, 3);
    assert_true(looked_at[0] == 5 && looked_at[1] == 6 && looked_at[2] == 7);
    assert_int_equal(group_on(both, 4), SPARK_COMM_WRONG_STATE);
    assert_int_equal(spark_comm_last_error(comm, &error), SPARK_COMM_OK);
    assert_non_null(strstr(error.message, "one of its streams captures a graph"));
    assert_int_equal(group_on(all, 2), SPARK_COMM_OK);
    assert_int_equal(look_count, 2);
    assert_true(spark_comm_is_healthy(comm));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_goes_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_state_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_streams_of_groups, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
