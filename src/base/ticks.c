/*
 * From ticks to CLOCK_MONOTONIC: a straight line through two points at which both clocks were read,
 * the first taken by sc_ticks_start and the second when somebody converts. Ticks read between them
 * are off by the reading error alone, about 100 ns; older and younger ones are on the same line.
 */
#include "base/ticks.h"

#include <pthread.h>

#include "base/deadline.h"

struct point {
    uint64_t ticks;
    int64_t ns;
};

static pthread_once_t started = PTHREAD_ONCE_INIT;
static struct point first; /* written once, under `started` */

/* Both clocks as close together as can be: the tightest of a few tries, since a thread may be moved
 * away in between. */
static struct point read_point(void) {
    struct point best = {0, 0};
    uint64_t best_gap = UINT64_MAX;

    for (int i = 0; i < 5; i++) {
        uint64_t before = sc_ticks_now();
        int64_t ns = sc_deadline_now();
        uint64_t gap = sc_ticks_now() - before;
        if (gap < best_gap) {
            best_gap = gap;
            best = (struct point){before + gap / 2, ns};
        }
    }
    return best;
}

static void take_first(void) {
    first = read_point();
}

void sc_ticks_start(void) {
    pthread_once(&started, take_first);
}

int64_t sc_ticks_to_ns(uint64_t ticks) {
    sc_ticks_start();
    struct point last = read_point();
    int64_t tick_span = (int64_t)(last.ticks - first.ticks);
    int64_t behind = (int64_t)(last.ticks - ticks);

    if (tick_span <= 0) return last.ns;
    return last.ns - (int64_t)((__int128)behind * (last.ns - first.ns) / tick_span);
}

/* One second of nanoseconds in 32.32 needs 62 bits, so the product in sc_ticks_scale_ns fits. */
void sc_ticks_scale_refresh(struct sc_ticks_scale *scale) {
    sc_ticks_start();
    struct point last = read_point();
    int64_t tick_span = (int64_t)(last.ticks - first.ticks);
    int64_t ns_span = last.ns - first.ns;

    scale->base_ticks = last.ticks;
    scale->base_ns = last.ns;
    scale->valid_ticks = 0; /* too early to know the slope: ask again next time */
    if (tick_span <= 0 || ns_span < INT64_C(1000000)) return;
    scale->ns_per_tick = (uint64_t)(((__int128)ns_span << 32) / tick_span);
    scale->valid_ticks = (uint64_t)((__int128)tick_span * INT64_C(1000000000) / ns_span);
}
