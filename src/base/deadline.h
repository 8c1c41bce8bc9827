/* Deadlines: a limit in milliseconds is turned once into a point on CLOCK_MONOTONIC in nanoseconds. */
#ifndef SC_BASE_DEADLINE_H
#define SC_BASE_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

#define SC_DEADLINE_NEVER INT64_MAX

int64_t sc_deadline_now(void);
/* timeout_ms: positive, or SPARK_COMM_FOREVER (-1). Saturates. */
int64_t sc_deadline_after(int timeout_ms);
bool sc_deadline_passed(int64_t deadline);
/* The earlier of two. */
int64_t sc_deadline_min(int64_t a, int64_t b);
/* For poll(): remaining milliseconds rounded up, 0 when passed, -1 for never, at most INT_MAX. */
int sc_deadline_poll_ms(int64_t deadline);

#endif
