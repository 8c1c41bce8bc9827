/* Waiting for a counter in shared memory, which only grows, modulo 2^32. */
#ifndef SC_TESTS_SUPPORT_COUNTER_H
#define SC_TESTS_SUPPORT_COUNTER_H

#include "os/wait.h"

struct sc_counter {
    const _Atomic uint32_t *word;
    uint32_t target;
};

static inline bool sc_counter_is_there(void *arg) {
    const struct sc_counter *counter = arg;
    /* Acquire: partner of the release store of whoever counts. */
    return (int32_t)(atomic_load_explicit(counter->word, memory_order_acquire) - counter->target) >=
           0;
}

static inline spark_comm_status sc_counter_wait(const struct sc_wait_policy *policy,
                                                const _Atomic uint32_t *word, uint32_t target,
                                                int64_t deadline) {
    struct sc_counter counter = {word, target};
    return sc_wait_until(policy, sc_counter_is_there, &counter, deadline);
}

#endif
