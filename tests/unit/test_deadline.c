/* Deadlines: saturation, order, and milliseconds for poll. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "base/deadline.h"

#define MS INT64_C(1000000)

static void test_now(void **state) {
    (void)state;
    struct timespec clock;
    int64_t before = sc_deadline_now();
    clock_gettime(CLOCK_MONOTONIC, &clock);
    int64_t between = clock.tv_sec * INT64_C(1000000000) + clock.tv_nsec;
    int64_t after = sc_deadline_now();
    assert_true(before <= between && between <= after);
}

static void test_after(void **state) {
    (void)state;
    int64_t before = sc_deadline_now();
    int64_t deadline = sc_deadline_after(1000);
    int64_t after = sc_deadline_now();
    assert_true(deadline >= before + 1000 * MS && deadline <= after + 1000 * MS);
    assert_true(sc_deadline_after(-1) == SC_DEADLINE_NEVER);
    assert_true(sc_deadline_after(INT_MAX) > after + 2147000000 * MS);
    assert_true(sc_deadline_after(INT_MAX) < SC_DEADLINE_NEVER);
}

static void test_passed(void **state) {
    (void)state;
    assert_false(sc_deadline_passed(SC_DEADLINE_NEVER));
    assert_false(sc_deadline_passed(sc_deadline_after(10000)));
    assert_true(sc_deadline_passed(sc_deadline_now()));
    assert_true(sc_deadline_passed(0));
    assert_true(sc_deadline_passed(INT64_MIN));
}

static void test_min(void **state) {
    (void)state;
    assert_true(sc_deadline_min(3, 4) == 3);
    assert_true(sc_deadline_min(4, 3) == 3);
    assert_true(sc_deadline_min(SC_DEADLINE_NEVER, 5) == 5);
}

static void test_poll(void **state) {
    (void)state;
    assert_int_equal(sc_deadline_poll_ms(SC_DEADLINE_NEVER), -1);
    assert_int_equal(sc_deadline_poll_ms(0), 0);
    assert_int_equal(sc_deadline_poll_ms(INT64_MIN), 0);
    assert_int_equal(sc_deadline_poll_ms(sc_deadline_now()), 0);
    /* Rounded up, so that a poll does not end just before the deadline and spin. */
    assert_int_equal(sc_deadline_poll_ms(sc_deadline_now() + 60000 * MS - MS / 2), 60000);
    assert_int_equal(sc_deadline_poll_ms(SC_DEADLINE_NEVER - 1), INT_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_now), cmocka_unit_test(test_after), cmocka_unit_test(test_passed),
        cmocka_unit_test(test_min), cmocka_unit_test(test_poll),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
