/* Names, where the name service gives no answer: the caller goes on at its deadline, or when it gives up, and what
 * it left behind ends by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <netdb.h>

#include "os/socket.h"
#include "world_ranks.h"

static _Atomic bool answers = true;
static _Atomic int calls;

int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found) {
    atomic_fetch_add(&calls, 1);
    while (!atomic_load(&answers))
        usleep(1000);
    return __real_getaddrinfo(node, service, hints, found);
}

static _Atomic uint32_t give_up;

static spark_comm_status look_up(const char *host, int ms, size_t *count, struct sc_error *error) {
    struct sc_socket_address found[8];
    return sc_socket_look_up(host, 29500, sc_deadline_after(ms), &give_up, found, 8, count, error);
}

static void test_answers(void **state) {
    struct sc_error error;
    size_t count = 0;
    (void)state;
    assert_int_equal(look_up("localhost", 10000, &count, &error), SPARK_COMM_OK);
    assert_true(count >= 1);
    assert_int_equal(look_up("no-such-host.invalid", 60000, &count, &error),
                     SPARK_COMM_UNAVAILABLE);
    assert_int_equal(count, 0);
    assert_non_null(strstr(error.message, "cannot resolve no-such-host.invalid: "));
}

static void *set_later(void *arg) {
    (void)arg;
    usleep(100000);
    atomic_store(&give_up, 1);
    return NULL;
}

static void test_no_answer(void **state) {
    int threads = world_count_threads();
    struct sc_error error;
    pthread_t setter;
    size_t count = 7;
    (void)state;
    atomic_store(&answers, false);
    int64_t start = sc_deadline_now();
    assert_int_equal(look_up("localhost", 200, &count, &error), SPARK_COMM_OPEN_TIMEOUT);
    assert_int_equal(count, 0);
    assert_true(world_ms_since(start) >= 200 && world_ms_since(start) < 2000);
    assert_string_equal(error.message, "the name service gave no answer for 'localhost' in time");
    start = sc_deadline_now();
    assert_int_equal(pthread_create(&setter, NULL, set_later, NULL), 0);
    assert_int_equal(look_up("localhost", 60000, &count, &error), SPARK_COMM_OPEN_TIMEOUT);
    assert_true(world_ms_since(start) < 2000);
    pthread_join(setter, NULL);
    atomic_store(&give_up, 0);
    assert_int_equal(atomic_load(&calls), 4);
    atomic_store(&answers, true);
    assert_int_equal(world_settle_threads(threads), threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
