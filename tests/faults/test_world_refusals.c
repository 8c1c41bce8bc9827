/*
 * Who is not let in, and what each is told: port taken, ranks that never come, other world size,
 * rank, token, version, settings; and that the true job still forms. Ranks are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>

#include "os/socket.h"
#include "world/wire.h"
#include "world_ranks.h"

/* ---- What this thread pretends ---- */

static _Thread_local const char *pretended_version;
static _Atomic bool pretended_remote;

const char *__real_spark_comm_version(void);
const char *__wrap_spark_comm_version(void);
const char *__wrap_spark_comm_version(void) {
    return pretended_version != NULL ? pretended_version : __real_spark_comm_version();
}

bool __real_sc_socket_is_loopback(const struct sc_socket_address *address);
bool __wrap_sc_socket_is_loopback(const struct sc_socket_address *address);
bool __wrap_sc_socket_is_loopback(const struct sc_socket_address *address) {
    return !atomic_load(&pretended_remote) && __real_sc_socket_is_loopback(address);
}

bool __real_sc_socket_same_host(const struct sc_socket_address *a,
                                const struct sc_socket_address *b);
bool __wrap_sc_socket_same_host(const struct sc_socket_address *a,
                                const struct sc_socket_address *b);
bool __wrap_sc_socket_same_host(const struct sc_socket_address *a,
                                const struct sc_socket_address *b) {
    return !atomic_load(&pretended_remote) && __real_sc_socket_same_host(a, b);
}

/* ---- Helpers ---- */

#define NEXT_STEP ": see that they run, and with this address and port"

static struct world_rank ranks[8];

static void open_and_close(struct world_rank *rank) {
    if (rank->status == SPARK_COMM_OK) {
        CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
        sc_world_close(rank->world);
    }
}

static void *thread_with_version(void *arg) {
    struct world_rank *rank = arg;
    pretended_version = rank->arg;
    return world_thread(rank);
}

static void start(struct world_rank *rank) {
    rank->body = open_and_close;
    CHECK(pthread_create(&rank->thread, NULL, thread_with_version, rank) == 0);
}

static void finish(struct world_rank *rank) {
    CHECK(pthread_join(rank->thread, NULL) == 0);
}

/* Opens with the odd rank first; expects its refusal in under two seconds, and that the ranks of
 * `plan` still form the job. `head` speaks for the true ranks. */
static void expect_refusal(const struct world_plan *plan, struct world_rank *odd,
                           const char *sentence) {
    world_prepare(&ranks[0], plan, 0);
    start(&ranks[0]);
    start(odd);
    finish(odd);
    assert_int_equal(odd->status, SPARK_COMM_REFUSED);
    assert_non_null(strstr(odd->error.message, sentence));
    assert_true(odd->open_ns < INT64_C(2000000000));
    for (int i = 1; i < plan->size; i++) {
        world_prepare(&ranks[i], plan, i);
        start(&ranks[i]);
    }
    for (int i = 0; i < plan->size; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OK);
    }
}

/* ---- Refused for good ---- */

static void test_world_size(void **state) {
    struct world_plan plan = world_plan_for(2), other = plan;
    struct world_rank odd;
    (void)state;
    other.size = 3;
    world_prepare(&odd, &other, 1);
    expect_refusal(&plan, &odd, "rank 1 was started with world_size 3 and the head with 2");
}

static void test_rank_out_of_range(void **state) {
    struct world_plan plan = world_plan_for(2);
    struct world_rank odd;
    (void)state;
    world_prepare(&odd, &plan, 7);
    expect_refusal(&plan, &odd,
                   "rank 7 is out of range: the head is rank 0, the others are 1 to 1");
}

static void test_library_version(void **state) {
    struct world_plan plan = world_plan_for(2);
    struct world_rank odd;
    char sentence[96];
    (void)state;
    world_prepare(&odd, &plan, 1);
    odd.arg = (void *)(uintptr_t) "9.8.7";
    snprintf(sentence, sizeof sentence, "rank 1 runs spark_comm 9.8.7 and the head %s",
             spark_comm_version());
    expect_refusal(&plan, &odd, sentence);
}

static void test_settings(void **state) {
    struct world_plan plan = world_plan_for(2), other = plan;
    struct world_rank odd;
    (void)state;
    other.op_ms = 12345;
    world_prepare(&odd, &other, 1);
    expect_refusal(&plan, &odd, "rank 1 has other settings than the head (op_timeout_ms 20000, ");
}

static void test_backend_wish(void **state) {
    struct world_plan plan = world_plan_for(2), other = plan;
    struct world_rank odd;
    (void)state;
    other.backend = "auto";
    world_prepare(&odd, &other, 1);
    expect_refusal(&plan, &odd, "rank 1 asks for backend auto and the head for shm");
    plan.port = world_free_port();
    world_prepare(&odd, &plan, 1);
    odd.settings.memory = SPARK_COMM_MEMORY_DEVICE;
    expect_refusal(&plan, &odd, "rank 1 asks for device memory and the head for host");
}

/* Another protocol version, spoken by hand. */
static void test_protocol_version(void **state) {
    struct world_plan plan = world_plan_for(2);
    struct sc_wire_preamble preamble = {.version = 99};
    struct sc_wire_challenge challenge;
    struct sc_socket_address address;
    uint8_t out[SC_WIRE_PREAMBLE_BYTES], in[SC_WIRE_CHALLENGE_BYTES];
    struct sc_error error;
    size_t count;
    int fd = -1;
    (void)state;

    for (int i = 0; i < 2; i++)
        world_prepare(&ranks[i], &plan, i);
    start(&ranks[0]);
    assert_int_equal(sc_socket_resolve("127.0.0.1", plan.port, &address, 1, &count, &error), 0);
    int64_t limit = sc_deadline_after(2000);
    while (sc_socket_connect(&address, limit, -1, &fd, &error) != SPARK_COMM_OK)
        CHECK(!sc_deadline_passed(limit));
    sc_wire_put_preamble(out, &preamble);
    assert_int_equal(sc_socket_send(fd, out, sizeof out, limit, -1, &error), SPARK_COMM_OK);
    assert_int_equal(sc_socket_recv(fd, in, sizeof in, limit, -1, &error), SPARK_COMM_OK);
    assert_true(sc_wire_get_challenge(in, &challenge));
    assert_int_equal(challenge.verdict, SC_WIRE_REFUSED);
    assert_non_null(strstr(challenge.text, "protocol 2 "));
    assert_non_null(strstr(challenge.text, "the caller protocol 99"));
    /* And the connection ends without having to be closed from here. */
    assert_int_equal(sc_socket_recv(fd, in, 1, limit, -1, &error), SPARK_COMM_PEER_LOST);
    close(fd);
    start(&ranks[1]);
    for (int i = 0; i < 2; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OK);
    }
}

static void test_remote_without_token(void **state) {
    struct world_plan plan = world_plan_for(2);
    (void)state;

    atomic_store(&pretended_remote, true);
    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        ranks[i].settings.rendezvous_timeout_ms = 1000;
        start(&ranks[i]);
    }
    for (int i = 0; i < 2; i++)
        finish(&ranks[i]);
    assert_int_equal(ranks[1].status, SPARK_COMM_REFUSED);
    assert_non_null(strstr(ranks[1].error.message, "SPARK_COMM_JOB_TOKEN"));
    assert_non_null(strstr(ranks[1].error.message, "SPARK_COMM_ALLOW_NO_TOKEN=1"));
    assert_int_equal(ranks[0].status, SPARK_COMM_OPEN_TIMEOUT);
    /* Allowed, or with a token, they form. */
    for (int round = 0; round < 2; round++) {
        plan.port = world_free_port();
        plan.token = round == 1 ? "secret" : NULL;
        for (int i = 0; i < 2; i++) {
            world_prepare(&ranks[i], &plan, i);
            ranks[i].settings.allow_no_token = round == 0;
            start(&ranks[i]);
        }
        for (int i = 0; i < 2; i++) {
            finish(&ranks[i]);
            assert_int_equal(ranks[i].status, SPARK_COMM_OK);
        }
    }
    atomic_store(&pretended_remote, false);
}

/* ---- Told to keep dialling ---- */

static void test_wrong_token(void **state) {
    static const char *const tokens[3][2] = {{"right", "wrong"}, {"right", NULL}, {NULL, "odd"}};
    struct world_rank odd;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct world_plan plan = world_plan_for(2), other;
        plan.token = tokens[i][0];
        other = plan;
        other.token = tokens[i][1];
        /* A third rank is missing until the odd one has given up. */
        plan.size = other.size = 3;
        for (int rank = 0; rank < 2; rank++) {
            world_prepare(&ranks[rank], &plan, rank);
            start(&ranks[rank]);
        }
        world_prepare(&odd, &other, 2);
        odd.settings.rendezvous_timeout_ms = 700;
        start(&odd);
        finish(&odd);
        assert_int_equal(odd.status, SPARK_COMM_REFUSED);
        assert_non_null(strstr(odd.error.message, "another job token"));
        assert_null(strstr(odd.error.message, "right"));
        assert_null(strstr(odd.error.message, "wrong"));
        assert_true(odd.open_ns > INT64_C(650000000) && odd.open_ns < INT64_C(2000000000));
        world_prepare(&ranks[2], &plan, 2);
        start(&ranks[2]);
        for (int rank = 0; rank < 3; rank++) {
            finish(&ranks[rank]);
            assert_int_equal(ranks[rank].status, SPARK_COMM_OK);
        }
    }
}

static void test_duplicate_rank(void **state) {
    struct world_plan plan = world_plan_for(3);
    struct world_rank odd;
    char sentence[64];
    (void)state;

    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        start(&ranks[i]);
    }
    usleep(100 * 1000);
    world_prepare(&odd, &plan, 1);
    odd.settings.rendezvous_timeout_ms = 700;
    start(&odd);
    finish(&odd);
    assert_int_equal(odd.status, SPARK_COMM_REFUSED);
    snprintf(sentence, sizeof sentence,
             "rank 1 is held by process %d at 127.0.0.1:", (int)getpid());
    assert_non_null(strstr(odd.error.message, sentence));
    world_prepare(&ranks[2], &plan, 2);
    start(&ranks[2]);
    for (int i = 0; i < 3; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OK);
    }
}

static void await_listener(const struct world_plan *plan) {
    struct sc_socket_address address;
    struct sc_error error;
    size_t count;
    int fd = -1;
    CHECK(sc_socket_resolve("127.0.0.1", plan->port, &address, 1, &count, &error) == 0);
    int64_t limit = sc_deadline_after(5000);
    while (sc_socket_connect(&address, limit, -1, &fd, &error) != SPARK_COMM_OK)
        CHECK(!sc_deadline_passed(limit));
    close(fd);
}

/* With equal limits the head gives up first, and the rank's last tries find nobody there. What the
 * head said while it lived is the reason all the same. */
static void test_refusal_outlives_head(void **state) {
    static const char *const sentences[] = {"another job token", "rank 1 is held by process"};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        for (int longer_ms = 0; longer_ms <= 400; longer_ms += 400) {
            struct world_plan plan = world_plan_for(3), other;
            struct world_rank odd;
            plan.token = "right";
            plan.rendezvous_ms = 700;
            other = plan;
            if (kind == 0) other.token = "wrong";
            for (int i = 0; i < 2; i++) {
                world_prepare(&ranks[i], &plan, i);
                start(&ranks[i]);
                if (i == 0) await_listener(&plan);
            }
            if (kind == 1) usleep(100 * 1000); /* rank 1 takes its place */
            world_prepare(&odd, &other, 1);
            odd.settings.rendezvous_timeout_ms += longer_ms;
            start(&odd);
            finish(&odd);
            assert_int_equal(odd.status, SPARK_COMM_REFUSED);
            assert_non_null(strstr(odd.error.message, sentences[kind]));
            for (int i = 0; i < 2; i++) {
                finish(&ranks[i]);
                assert_int_equal(ranks[i].status, SPARK_COMM_OPEN_TIMEOUT);
            }
            /* The head knows no rank of one with another token. */
            if (kind == 0)
                assert_non_null(strstr(ranks[0].error.message, "connections were dropped, the last "
                                                               "from 127.0.0.1:"));
        }
    }
}

/* A rank that came and was turned away is not one that never came. */
static void test_turned_away_is_told(void **state) {
    struct world_plan plan = world_plan_for(4), other = plan;
    struct world_rank odd[3];
    char want[320];
    (void)state;

    plan.rendezvous_ms = other.rendezvous_ms = 900;
    world_prepare(&ranks[0], &plan, 0);
    start(&ranks[0]);
    await_listener(&plan);
    /* Rank 2 twice: it is named once, with the last reason. */
    for (int i = 0; i < 3; i++) {
        other.size = i == 0 ? 7 : 5;
        world_prepare(&odd[i], &other, i < 2 ? 2 : 3);
        world_open(&odd[i]);
        assert_int_equal(odd[i].status, SPARK_COMM_REFUSED);
    }
    finish(&ranks[0]);
    assert_int_equal(ranks[0].status, SPARK_COMM_OPEN_TIMEOUT);
    snprintf(
        want, sizeof want,
        "rank 1 never came to 127.0.0.1:%d within 0.9 s; rank 2 came and was turned away: it was "
        "started with world_size 5 and the head with 4; rank 3 came and was turned away: it was "
        "started with world_size 5 and the head with 4; 1 connection was dropped",
        plan.port);
    assert_int_equal(strncmp(ranks[0].error.message, want, strlen(want)), 0);
}

static void linger(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    usleep(1200 * 1000);
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

/* The same while the job runs already. */
static void test_duplicate_of_running(void **state) {
    struct world_plan plan = world_plan_for(2);
    struct world_rank odd;
    (void)state;

    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        ranks[i].body = linger;
        CHECK(pthread_create(&ranks[i].thread, NULL, world_thread, &ranks[i]) == 0);
    }
    usleep(200 * 1000);
    world_prepare(&odd, &plan, 1);
    odd.settings.rendezvous_timeout_ms = 500;
    start(&odd);
    finish(&odd);
    assert_int_equal(odd.status, SPARK_COMM_REFUSED);
    assert_non_null(strstr(odd.error.message, "rank 1 is held by process"));
    for (int i = 0; i < 2; i++)
        finish(&ranks[i]);
}

/* ---- Nobody there ---- */

static void test_port_taken(void **state) {
    struct world_plan plan = world_plan_for(2);
    struct sc_socket_address address;
    struct sc_error error;
    char want[64];
    size_t count;
    int fd;
    (void)state;

    assert_int_equal(sc_socket_resolve("127.0.0.1", plan.port, &address, 1, &count, &error), 0);
    assert_int_equal(sc_socket_listen(&address, 1, &fd, &error), SPARK_COMM_OK);
    world_prepare(&ranks[0], &plan, 0);
    world_open(&ranks[0]);
    assert_int_equal(ranks[0].status, SPARK_COMM_SYSTEM);
    assert_int_equal(ranks[0].error.native_code, EADDRINUSE);
    snprintf(want, sizeof want, "127.0.0.1:%d", plan.port);
    assert_non_null(strstr(ranks[0].error.message, want));
    assert_non_null(strstr(ranks[0].error.message, "choose another master_port"));
    assert_true(ranks[0].open_ns < INT64_C(1000000000));
    close(fd);
}

static void test_address_elsewhere(void **state) {
    struct world_plan plan = world_plan_for(2);
    (void)state;

    plan.addr = "192.0.2.1"; /* for documentation: nobody has it */
    world_prepare(&ranks[0], &plan, 0);
    world_open(&ranks[0]);
    assert_int_equal(ranks[0].status, SPARK_COMM_SYSTEM);
    assert_int_equal(ranks[0].error.native_code, EADDRNOTAVAIL);
    assert_non_null(strstr(ranks[0].error.message, "192.0.2.1:"));
    plan.addr = "no-such-host.invalid";
    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        world_open(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_UNAVAILABLE);
        assert_non_null(strstr(ranks[i].error.message, "no-such-host.invalid"));
    }
}

static void test_missing_ranks(void **state) {
    struct world_plan plan = world_plan_for(6);
    static const int come[] = {0, 1, 3, 4};
    char want[160];
    (void)state;

    plan.rendezvous_ms = 1500; /* six ranks also come in time on loaded CPUs */
    for (int i = 0; i < 4; i++) {
        world_prepare(&ranks[i], &plan, come[i]);
        start(&ranks[i]);
    }
    snprintf(want, sizeof want, "ranks 2 and 5 never came to 127.0.0.1:%d within 1.5 s" NEXT_STEP,
             plan.port);
    for (int i = 0; i < 4; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OPEN_TIMEOUT);
        assert_string_equal(ranks[i].error.message, want);
        assert_true(ranks[i].open_ns < INT64_C(2800000000));
    }
}

/* The time of the first whose limit passes is the time of all: one outcome. */
static void test_missing_after_another_gave_up(void **state) {
    struct world_plan plan = world_plan_for(3);
    char want[160];
    (void)state;

    plan.rendezvous_ms = 1500;
    for (int i = 0; i < 2; i++) {
        world_prepare(&ranks[i], &plan, i);
        if (i == 1) ranks[i].settings.rendezvous_timeout_ms = 500;
        start(&ranks[i]);
    }
    for (int i = 0; i < 2; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OPEN_TIMEOUT);
        snprintf(want, sizeof want, "rank 2 never came to 127.0.0.1:%d within 0.5 s" NEXT_STEP,
                 plan.port);
        assert_string_equal(ranks[i].error.message, want);
    }
}

/* A rank whose own time is over is told who is missing, and so is the head: all begin anew. */
static void test_impatient_rank(void **state) {
    struct world_plan plan = world_plan_for(3);
    struct world_rank impatient;
    char want[160];
    (void)state;

    world_prepare(&ranks[0], &plan, 0);
    start(&ranks[0]);
    world_prepare(&impatient, &plan, 2);
    impatient.settings.rendezvous_timeout_ms = 500;
    start(&impatient);
    finish(&impatient);
    assert_int_equal(impatient.status, SPARK_COMM_OPEN_TIMEOUT);
    snprintf(want, sizeof want, "rank 1 never came to 127.0.0.1:%d within 0.5 s" NEXT_STEP,
             plan.port);
    assert_string_equal(impatient.error.message, want);
    finish(&ranks[0]);
    assert_int_equal(ranks[0].status, SPARK_COMM_OPEN_TIMEOUT);
    assert_string_equal(ranks[0].error.message, want);
    for (int i = 0; i < 3; i++) {
        world_prepare(&ranks[i], &plan, i);
        start(&ranks[i]);
    }
    for (int i = 0; i < 3; i++) {
        finish(&ranks[i]);
        assert_int_equal(ranks[i].status, SPARK_COMM_OK);
    }
}

static void test_no_head(void **state) {
    struct world_plan plan = world_plan_for(2);
    char want[64];
    (void)state;

    plan.rendezvous_ms = 300;
    plan.addr = "localhost";
    world_prepare(&ranks[1], &plan, 1);
    world_open(&ranks[1]);
    assert_int_equal(ranks[1].status, SPARK_COMM_OPEN_TIMEOUT);
    snprintf(want, sizeof want, "cannot connect to 127.0.0.1:%d", plan.port);
    assert_non_null(strstr(ranks[1].error.message, want));
    assert_non_null(strstr(ranks[1].error.message, "within 0.3 s"));
    assert_true(ranks[1].open_ns < INT64_C(1500000000));
}

/* Something else listens there: a server that says other things, one that says nothing, and one
 * that hangs up. The rank keeps dialling and says what it met. */
static void *strange_server(void *arg) {
    const int *setup = arg; /* listener, kind */
    char line[256];

    for (;;) {
        int fd = accept(setup[0], NULL, NULL);
        if (fd < 0) return NULL;
        if (setup[1] == 0) {
            memset(line, 'x', sizeof line);
            for (int i = 0; i < 4; i++)
                if (send(fd, line, sizeof line, MSG_NOSIGNAL) < 0) break;
            while (recv(fd, line, sizeof line, 0) > 0) {
            }
        }
        if (setup[1] == 1) usleep(50 * 1000);
        close(fd);
    }
}

static void test_strange_listener(void **state) {
    /* One that hangs up is met as an end or as a reset, whichever comes first. */
    static const char *const want[2][2] = {
        {"what listens there is not spark_comm", "what listens there is not spark_comm"},
        {"closed the connection", "lost the connection"}};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct world_plan plan = world_plan_for(2);
        int setup[2] = {socket(AF_INET, SOCK_STREAM, 0), kind};
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)plan.port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        pthread_t thread;
        assert_int_equal(bind(setup[0], (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(listen(setup[0], 16), 0);
        pthread_create(&thread, NULL, strange_server, setup);
        plan.rendezvous_ms = 500;
        world_prepare(&ranks[1], &plan, 1);
        world_open(&ranks[1]);
        assert_true(ranks[1].status == SPARK_COMM_REFUSED ||
                    ranks[1].status == SPARK_COMM_OPEN_TIMEOUT);
        if (kind == 0) assert_int_equal(ranks[1].status, SPARK_COMM_REFUSED);
        assert_true(strstr(ranks[1].error.message, want[kind][0]) != NULL ||
                    strstr(ranks[1].error.message, want[kind][1]) != NULL);
        assert_true(ranks[1].open_ns < INT64_C(2000000000));
        shutdown(setup[0], SHUT_RDWR);
        pthread_join(thread, NULL);
        close(setup[0]);
    }
}

/* Both families: localhost, ::1, the wildcard. */
static void test_families(void **state) {
    static const char *const addresses[] = {"localhost", "::1", "[::1]", "127.0.0.1"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct world_plan plan = world_plan_for(2);
        plan.addr = addresses[i];
        for (int rank = 0; rank < 2; rank++) {
            world_prepare(&ranks[rank], &plan, rank);
            ranks[rank].settings.listen_any = i == 3;
            start(&ranks[rank]);
        }
        for (int rank = 0; rank < 2; rank++) {
            finish(&ranks[rank]);
            bool no_ipv6 = ranks[rank].error.native_code == EADDRNOTAVAIL ||
                           ranks[rank].error.native_code == EAFNOSUPPORT;
            if (no_ipv6) skip();
            assert_int_equal(ranks[rank].status, SPARK_COMM_OK);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_size),
        cmocka_unit_test(test_rank_out_of_range),
        cmocka_unit_test(test_library_version),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_backend_wish),
        cmocka_unit_test(test_protocol_version),
        cmocka_unit_test(test_remote_without_token),
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_duplicate_rank),
        cmocka_unit_test(test_refusal_outlives_head),
        cmocka_unit_test(test_turned_away_is_told),
        cmocka_unit_test(test_duplicate_of_running),
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_address_elsewhere),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_missing_after_another_gave_up),
        cmocka_unit_test(test_impatient_rank),
        cmocka_unit_test(test_no_head),
        cmocka_unit_test(test_strange_listener),
        cmocka_unit_test(test_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
