/*
 * The head's check of a caller's proof of the job token. Our own dialler leaves when the head's proof is
 * wrong, so the caller here is made by hand: it ignores that proof and sends a hello that is right but
 * for its tag.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world/world_state.h"
#include "world_ranks.h"

static struct world_rank rank0;
static struct sc_world *world;

static int set_up(void **state) {
    struct world_plan plan = world_plan_for(3);
    struct sc_error error;
    (void)state;

    plan.token = "the token of this job";
    world_prepare(&rank0, &plan, 0);
    world = sc_world_create(&rank0.settings, &rank0.log);
    assert_non_null(world);
    assert_int_equal(sc_auth_init(&world->auth, rank0.settings.job_token, &error), SPARK_COMM_OK);
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

static void step(void) {
    struct sc_error error;

    sc_error_clear(&error);
    for (int i = 0; i < 4; i++)
        assert_int_equal(sc_monitor_step(world, sc_deadline_now(), &error), SPARK_COMM_OK);
}

/* A caller that has been challenged. */
struct caller {
    int fd;
    uint8_t nonce[SC_WIRE_NONCE_BYTES], its_nonce[SC_WIRE_NONCE_BYTES];
    uint8_t hello[SC_WIRE_HELLO_BYTES];
};

static struct caller call(void) {
    struct sc_wire_hello hello = {.version = SC_WIRE_PROTOCOL,
                                  .instance = 7,
                                  .rank = 1,
                                  .world_size = 3,
                                  .pid = 1001,
                                  .memory = rank0.settings.memory,
                                  .job = sc_auth_job(&world->auth),
                                  .settings = sc_settings_digest(&rank0.settings)};
    struct sc_socket_address from = {.length = sizeof(struct sockaddr_in)};
    struct sc_wire_preamble preamble = {.version = SC_WIRE_PROTOCOL};
    uint8_t out[SC_WIRE_PREAMBLE_BYTES], in[SC_WIRE_CHALLENGE_BYTES];
    struct sc_wire_challenge challenge;
    struct caller caller;
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    from.storage.ss_family = AF_INET;
    sc_door_add(world, fds[0], false, &from);
    caller.fd = fds[1];
    sc_auth_random(preamble.nonce, sizeof preamble.nonce);
    memcpy(caller.nonce, preamble.nonce, sizeof caller.nonce);
    sc_wire_put_preamble(out, &preamble);
    assert_int_equal(send(caller.fd, out, sizeof out, 0), sizeof out);
    step();
    assert_int_equal(recv(caller.fd, in, sizeof in, 0), sizeof in);
    assert_true(sc_wire_get_challenge(in, &challenge));
    assert_int_equal(challenge.verdict, SC_WIRE_ACCEPTED);
    memcpy(caller.its_nonce, challenge.nonce, sizeof caller.its_nonce);
    strcpy(hello.library, spark_comm_version());
    strcpy(hello.backend, rank0.settings.backend);
    sc_wire_put_hello(caller.hello, &hello);
    return caller;
}

static void sign(struct caller *caller, const struct sc_auth *auth) {
    sc_auth_tag(auth, caller->nonce, caller->its_nonce, caller->hello,
                caller->hello + SC_WIRE_HELLO_COVERED);
}

/* Was it let in? Otherwise it is dropped, without a word, and its rank's place stays free. */
static bool is_let_in(const struct caller *caller) {
    uint64_t strangers = world->door.strangers;
    uint8_t byte;

    assert_int_equal(send(caller->fd, caller->hello, sizeof caller->hello, MSG_NOSIGNAL),
                     sizeof caller->hello);
    step();
    if (sc_peer_state(world->epoch, 1) == SC_PEER_PRESENT) return true;
    assert_int_equal(world->door.strangers, strangers + 1);
    assert_int_equal(recv(caller->fd, &byte, 1, 0), 0);
    close(caller->fd);
    return false;
}

static void test_proof_of_token(void **state) {
    uint8_t *tag, overheard[SC_WIRE_TAG_BYTES];
    struct sc_auth other;
    struct sc_error error;
    struct caller caller;
    (void)state;

    caller = call();
    assert_false(is_let_in(&caller)); /* no tag */

    caller = call();
    assert_int_equal(sc_auth_init(&other, "another token", &error), SPARK_COMM_OK);
    sign(&caller, &other);
    assert_false(is_let_in(&caller));

    caller = call(); /* the whole tag counts */
    sign(&caller, &world->auth);
    tag = caller.hello + SC_WIRE_HELLO_COVERED;
    memcpy(overheard, tag, sizeof overheard);
    tag[SC_WIRE_TAG_BYTES - 1] ^= 1;
    assert_false(is_let_in(&caller));

    caller = call(); /* one that was right on another connection */
    memcpy(caller.hello + SC_WIRE_HELLO_COVERED, overheard, sizeof overheard);
    assert_false(is_let_in(&caller));

    caller = call(); /* signed, and changed on the way */
    sign(&caller, &world->auth);
    caller.hello[SC_WIRE_HELLO_COVERED - 1] ^= 1;
    assert_false(is_let_in(&caller));

    caller = call();
    sign(&caller, &world->auth);
    assert_true(is_let_in(&caller));
    close(caller.fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_proof_of_token, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
