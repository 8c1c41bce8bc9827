/* A cheap clock for records: the time stamp counter of x86-64 and aarch64 (at a constant rate on
 * every CPU of the last fifteen years), else CLOCK_MONOTONIC. One read costs a few nanoseconds.
 * Ticks become CLOCK_MONOTONIC nanoseconds only when somebody looks. */
#ifndef SC_BASE_TICKS_H
#define SC_BASE_TICKS_H

#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t sc_ticks_now(void) {
    return __rdtsc();
}
#elif defined(__aarch64__)
static inline uint64_t sc_ticks_now(void) {
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
}
#else
#include "base/deadline.h"
static inline uint64_t sc_ticks_now(void) {
    return (uint64_t)sc_deadline_now();
}
#endif

/* Nanoseconds on CLOCK_MONOTONIC at which `ticks` was read. Calibrated against CLOCK_MONOTONIC
 * between the first call of sc_ticks_start and now; within 1 % after 10 ms. Any thread. */
int64_t sc_ticks_to_ns(uint64_t ticks);
/* Takes the first calibration point; cheap when repeated. */
void sc_ticks_start(void);

/* The same conversion for hot paths: a straight line that is kept for about a second and then laid
 * anew, so that it costs a multiplication and drifts by less than a microsecond. Zeroed is valid;
 * one thread at a time. */
struct sc_ticks_scale {
    uint64_t base_ticks;
    int64_t base_ns;
    uint64_t ns_per_tick; /* 32.32 fixed point */
    uint64_t valid_ticks; /* from base_ticks on */
};
void sc_ticks_scale_refresh(struct sc_ticks_scale *scale);
static inline int64_t sc_ticks_scale_ns(struct sc_ticks_scale *scale, uint64_t ticks) {
    uint64_t age = ticks - scale->base_ticks;
    if (__builtin_expect(age >= scale->valid_ticks, 0)) {
        sc_ticks_scale_refresh(scale);
        return scale->base_ns;
    }
    return scale->base_ns + (int64_t)(age * scale->ns_per_tick >> 32);
}

#endif
