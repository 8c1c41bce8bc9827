/* Ticks become CLOCK_MONOTONIC nanoseconds, within 1 % of the time since the start and in their order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/deadline.h"
#include "base/ticks.h"

static void rest(long ms) {
    struct timespec time = {.tv_nsec = ms * 1000000};
    nanosleep(&time, NULL);
}

static void test_conversion(void **state) {
    (void)state;
    enum { POINTS = 20 };
    uint64_t ticks[POINTS];
    int64_t earliest[POINTS];
    int64_t latest[POINTS];
    sc_ticks_start();
    int64_t start = sc_deadline_now();
    for (int i = 0; i < POINTS; i++) {
        earliest[i] = sc_deadline_now();
        ticks[i] = sc_ticks_now();
        latest[i] = sc_deadline_now();
        rest(2);
        sc_ticks_start();
    }
    int64_t slack = (sc_deadline_now() - start) / 100;
    for (int i = 0; i < POINTS; i++) {
        int64_t ns = sc_ticks_to_ns(ticks[i]);
        assert_true(ns >= earliest[i] - slack && ns <= latest[i] + slack);
    }
    for (int i = 1; i < POINTS; i++)
        assert_true(sc_ticks_to_ns(ticks[i - 1]) <= sc_ticks_to_ns(ticks[i]));
}

static void test_now_is_now(void **state) {
    (void)state;
    sc_ticks_start();
    rest(10);
    int64_t off = sc_ticks_to_ns(sc_ticks_now()) - sc_deadline_now();
    assert_true(llabs(off) < 5000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversion),
                                       cmocka_unit_test(test_now_is_now)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
