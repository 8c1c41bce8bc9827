/*
 * The hub's judgement of claims, R3 to R5 of docs/models/README.md, one rule after another: a world
 * of three ranks is put together by hand, and a hello is judged. Besides, the words of a verdict as
 * they are stored.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world/world_state.h"
#include "world_ranks.h"

static const struct sc_wire_epoch NONE = {0, 0}, FIRST = {1, 11}, SECOND = {2, 22},
                                  OTHER_SECOND = {2, 99}, THIRD = {3, 33};

static struct world_rank rank0;
static struct sc_world *world;
static char text[256];

static int set_up(void **state) {
    struct world_plan plan = world_plan_for(3);
    struct sc_error error;
    (void)state;

    world_prepare(&rank0, &plan, 0);
    world = sc_world_create(&rank0.settings, &rank0.log);
    assert_non_null(world);
    assert_int_equal(sc_auth_init(&world->auth, "", &error), SPARK_COMM_OK);
    assert_int_equal(sc_door_prepare(world, &error), SPARK_COMM_OK);
    assert_int_equal(sc_monitor_prepare(world, &error), SPARK_COMM_OK);
    world->monitor.phase = SC_PHASE_GATHERING;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sc_world_destroy(world);
    return 0;
}

static struct sc_wire_hello claim(int rank, struct sc_wire_epoch lived, struct sc_wire_epoch seen,
                                  uint64_t instance) {
    struct sc_wire_hello hello = {.version = SC_WIRE_PROTOCOL,
                                  .lived = lived,
                                  .seen = seen,
                                  .instance = instance,
                                  .rank = rank,
                                  .world_size = 3,
                                  .pid = 1000 + rank,
                                  .memory = rank0.settings.memory,
                                  .job = sc_auth_job(&world->auth),
                                  .settings = sc_settings_digest(&rank0.settings)};
    strcpy(hello.library, spark_comm_version());
    strcpy(hello.backend, rank0.settings.backend);
    return hello;
}

static int judge(int rank, struct sc_wire_epoch lived, struct sc_wire_epoch seen) {
    struct sc_wire_hello hello = claim(rank, lived, seen, 7000 + (uint64_t)rank);
    text[0] = '\0';
    return sc_hub_judge(world, &hello, text, sizeof text);
}

/* Gives the place; the other end of the connection is returned. */
static int seat(int rank, struct sc_wire_epoch lived, struct sc_wire_epoch seen) {
    struct sc_wire_hello hello = claim(rank, lived, seen, 100 + (uint64_t)rank);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    sc_hub_admit(world, &hello, fds[0]);
    return fds[1];
}

static bool holds(int rank) {
    return sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT;
}

/* R4d: a free place is given to whoever is not stale. */
static void test_free_place(void **state) {
    (void)state;
    assert_int_equal(judge(1, NONE, NONE), SC_WIRE_ACCEPTED);
    assert_int_equal(judge(1, NONE, THIRD), SC_WIRE_ACCEPTED); /* fresh, whatever it has seen */
    assert_int_equal(judge(1, FIRST, SECOND), SC_WIRE_ACCEPTED);
    world->lived = world->seen = SECOND;
    assert_int_equal(judge(1, SECOND, SECOND), SC_WIRE_ACCEPTED);
    assert_int_equal(judge(1, FIRST, THIRD), SC_WIRE_ACCEPTED); /* it lost the COMMIT of 3 */
    assert_int_equal(judge(1, FIRST, SECOND), SC_WIRE_ACCEPTED); /* and of 2 */
}

/* R4a: in an older epoch, or in another one of the same number. */
static void test_stale_claim(void **state) {
    (void)state;
    world->lived = world->seen = SECOND;
    assert_int_equal(judge(2, FIRST, FIRST), SC_WIRE_REFUSED);
    assert_string_equal(text, "rank 2 was replaced");
    assert_int_equal(judge(2, FIRST, OTHER_SECOND), SC_WIRE_REFUSED);
    assert_int_equal(judge(2, OTHER_SECOND, OTHER_SECOND), SC_WIRE_REFUSED);
    /* What a seated rank has lived in counts as well: a fresh hub knows nothing. */
    world->lived = world->seen = NONE;
    close(seat(1, THIRD, THIRD));
    assert_int_equal(judge(2, SECOND, SECOND), SC_WIRE_REFUSED);
    assert_string_equal(text, "rank 2 was replaced");
    /* And at any time but between WELCOME and the outcome. */
    world->lived = world->seen = SECOND;
    world->monitor.phase = SC_PHASE_RUNNING;
    assert_int_equal(judge(2, FIRST, FIRST), SC_WIRE_REFUSED);
    world->monitor.phase = SC_PHASE_SETTING_UP;
    assert_int_equal(judge(2, FIRST, FIRST), SC_HUB_PARK);
}

/* R4b: the hub itself. */
static void test_stale_hub(void **state) {
    struct sc_error cause;
    (void)state;
    world->lived = world->seen = FIRST;
    assert_int_equal(judge(1, SECOND, SECOND), SC_HUB_PARK);
    assert_int_equal(sc_world_cause(world, &cause), SPARK_COMM_OK);
    assert_int_equal(cause.status, SPARK_COMM_REFUSED);
    assert_string_equal(cause.message, "rank 0 was replaced");
    assert_true(world->is_replaced);
    assert_int_equal(sc_world_reconnect(world, &cause), SPARK_COMM_REFUSED);
}

/* R4c: a seat that the new claim shows to be stale. */
static void test_stale_seat(void **state) {
    uint8_t record[SC_WIRE_HEADER_BYTES + SC_WIRE_FAULT_BYTES];
    struct sc_wire_header header;
    struct sc_error reason;
    (void)state;
    int stale = seat(2, FIRST, FIRST), fresh = seat(1, NONE, NONE);
    assert_int_equal(judge(1, SECOND, SECOND), SC_WIRE_ACCEPTED);
    assert_false(holds(2));
    assert_int_equal(recv(stale, record, sizeof record, 0), sizeof record);
    assert_true(sc_wire_get_header(record, 3, &header));
    assert_int_equal(header.kind, SC_WIRE_ANSWER);
    assert_int_equal(header.number, SC_WIRE_REFUSED);
    assert_true(sc_wire_get_fault(record + SC_WIRE_HEADER_BYTES, SC_WIRE_FAULT_BYTES, 3, &reason));
    assert_string_equal(reason.message, "rank 2 was replaced");
    assert_int_equal(recv(stale, record, 1, 0), 0);
    /* R4e: and the fresh holder gives way, to dial again. */
    assert_false(holds(1));
    assert_int_equal(recv(fresh, record, 1, 0), 0);
    close(stale);
    close(fresh);
}

/* R4e: on a held place the newer `seen` wins, and the holder a draw. */
static void test_held_place(void **state) {
    (void)state;
    int fd = seat(2, FIRST, SECOND);
    assert_int_equal(judge(2, NONE, NONE), SC_WIRE_RETRY);
    assert_non_null(strstr(text, "rank 2 is held by process 1002"));
    assert_int_equal(judge(2, FIRST, SECOND), SC_WIRE_REFUSED);
    assert_int_equal(judge(2, FIRST, OTHER_SECOND), SC_WIRE_REFUSED);
    assert_true(holds(2));
    assert_int_equal(judge(2, FIRST, THIRD), SC_WIRE_ACCEPTED);
    assert_false(holds(2));
    close(fd);
}

/* R5: a second hello of the same process. */
static void test_same_process(void **state) {
    (void)state;
    int fd = seat(2, FIRST, FIRST);
    struct sc_wire_hello hello = claim(2, FIRST, FIRST, 102);
    assert_int_equal(sc_hub_judge(world, &hello, text, sizeof text), SC_WIRE_ACCEPTED);
    assert_false(holds(2));
    close(fd);
}

/* R3 and R1: before the hub's own attempt. */
static void test_early(void **state) {
    struct sc_error cause;
    (void)state;
    int fd = seat(2, SECOND, SECOND);
    world->lived = world->seen = SECOND;
    world->epoch->number = 2;
    world->monitor.phase = SC_PHASE_RUNNING;
    assert_int_equal(judge(2, NONE, NONE), SC_WIRE_RETRY); /* all is well, and it is one too many */
    assert_int_equal(judge(1, NONE, NONE), SC_HUB_PARK); /* that place is free */
    assert_int_equal(*sc_world_poison(world), 0);
    assert_int_equal(judge(2, SECOND, SECOND), SC_HUB_PARK);
    assert_int_equal(sc_world_cause(world, &cause), SPARK_COMM_OK);
    assert_int_equal(cause.status, SPARK_COMM_ABORTED);
    assert_string_equal(cause.message, "rank 2 asks for a new epoch");
    assert_int_equal(judge(2, NONE, NONE), SC_HUB_PARK); /* the place may become free */
    close(fd);
}

/* ---- A cause that arrives while another thread looks ---- */

static void *await_final(void *arg) {
    struct sc_error *cause = arg;

    /* Looks at both words, so that both stores have to fetch their line. */
    while (sc_verdict_state(world) != SC_CAUSE_FINAL)
        (void)atomic_load_explicit(&world->poison, memory_order_relaxed);
    sc_verdict_end(world, cause);
    return NULL;
}

/* Who sees that the words are final gets those words, at any moment of their being stored. */
static void test_final_words(void **state) {
    struct sc_error told, seen;
    pthread_t waiter;
    (void)state;

    sc_error_clear(&told);
    sc_error_set(&told, SPARK_COMM_NO_MEMORY, 1, 0, "rank 1 cannot open: no memory");
    for (int round = 0; round < 3000; round++) {
        sc_error_clear(&seen);
        assert_int_equal(pthread_create(&waiter, NULL, await_final, &seen), 0);
        for (volatile int i = 0; i < 20000; i++) {
        }
        sc_verdict_adopt(world, &told, SC_HUB);
        assert_int_equal(pthread_join(waiter, NULL), 0);
        assert_int_equal(seen.status, SPARK_COMM_NO_MEMORY);
        assert_string_equal(seen.message, told.message);
        sc_verdict_put_aside(world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_free_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stale_claim, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stale_hub, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stale_seat, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_held_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_same_process, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_early, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_final_words, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
