/*
 * Allocation, and its injected failure for tests. Without SPARK_COMM_TESTING may_allocate() is a
 * constant and disappears. No lock: the counters are atomic, so tests with several threads may use
 * them.
 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef SPARK_COMM_TESTING
/* Both counters are read and written relaxed: they order nothing else. */
static _Atomic long allowance = -1;
static _Atomic long refusals;

void sc_alloc_fail_after(long count) {
    atomic_store_explicit(&refusals, 0, memory_order_relaxed);
    atomic_store_explicit(&allowance, count < 0 ? -1 : count, memory_order_relaxed);
}

long sc_alloc_refused(void) {
    return atomic_load_explicit(&refusals, memory_order_relaxed);
}

static bool may_allocate(void) {
    long left = atomic_load_explicit(&allowance, memory_order_relaxed);
    while (left > 0) {
        if (atomic_compare_exchange_weak_explicit(&allowance, &left, left - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
    if (left < 0) return true;
    atomic_fetch_add_explicit(&refusals, 1, memory_order_relaxed);
    return false;
}
#else
static inline bool may_allocate(void) {
    return true;
}
#endif

void *sc_alloc(size_t bytes) {
    return may_allocate() ? malloc(bytes > 0 ? bytes : 1) : NULL;
}

void *sc_alloc_zero(size_t bytes) {
    return may_allocate() ? calloc(1, bytes > 0 ? bytes : 1) : NULL;
}

void *sc_alloc_array(size_t count, size_t bytes) {
    size_t total;
    return __builtin_mul_overflow(count, bytes, &total) ? NULL : sc_alloc_zero(total);
}

void *sc_alloc_aligned(size_t alignment, size_t bytes) {
    void *memory = NULL;
    if (bytes == 0) bytes = 1;
    if (!may_allocate() || posix_memalign(&memory, alignment, bytes) != 0) return NULL;
    return memset(memory, 0, bytes);
}

void sc_free(void *memory) {
    free(memory);
}
