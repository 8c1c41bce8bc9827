/*
 * Deadlines on CLOCK_MONOTONIC. No state; any thread.
 */
#include "base/deadline.h"

#include <limits.h>
#include <time.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

int64_t sc_deadline_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t sc_deadline_after(int timeout_ms) {
    int64_t deadline;

    if (timeout_ms < 0) return SC_DEADLINE_NEVER;
    /* The product fits: 2^31 ms are 2.1e15 ns. */
    if (__builtin_add_overflow(sc_deadline_now(), timeout_ms * NS_PER_MS, &deadline))
        return SC_DEADLINE_NEVER;
    return deadline;
}

bool sc_deadline_passed(int64_t deadline) {
    return deadline != SC_DEADLINE_NEVER && sc_deadline_now() >= deadline;
}

int64_t sc_deadline_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int sc_deadline_poll_ms(int64_t deadline) {
    if (deadline == SC_DEADLINE_NEVER) return -1;
    int64_t now = sc_deadline_now();
    if (now >= deadline) return 0;
    /* Compared before subtracting: a deadline far below zero has passed already, so nothing
     * overflows here. */
    int64_t left = deadline - now;
    int64_t ms = left / NS_PER_MS + (left % NS_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}
