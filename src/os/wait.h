/*
 * Waiting for a word in shared memory: spin, then (only with more ranks than CPUs) yield, then
 * sleep on a futex.
 *
 * Each sleeper owns a doorbell in shared memory. A publisher stores its data, then calls sc_wait_ring
 * on the reader's doorbell, which costs one load of a line that rarely changes while nobody sleeps.
 * The store of the data and the load of `sleepers` would need a full fence between them (Dekker);
 * the sleeper pays for it instead, with membarrier(2) GLOBAL_EXPEDITED, between raising `sleepers`
 * and its last look. Every process that publishes must have registered
 * (sc_wait_membarrier_available). Where membarrier is not to be had on any member, `fence` is set on
 * all of them and publishers execute the fence. wait.c says why no wake-up is lost, and why with
 * membarrier the first sleep is short.
 *
 * Spinning is sized as measured on shared CPUs (docs/decisions.md): ranks that have a CPU each spin
 * for about 12 us before they sleep and never yield; with more ranks than CPUs 5 pauses, then 100
 * yields, then sleep.
 */
#ifndef SC_OS_WAIT_H
#define SC_OS_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* In shared memory, one per rank and lane. */
struct sc_wait_doorbell {
    /* The futex word; each ring that finds a sleeper adds one. */
    _Alignas(64) _Atomic uint32_t value;
    /* Threads that sleep or are about to. */
    _Atomic uint32_t sleepers;
};

/* In private memory: how this rank waits. */
struct sc_wait_policy {
    const _Atomic uint32_t *poison; /* non-zero: waits end with ABORTED */
    struct sc_wait_doorbell *doorbell; /* where this waiter sleeps */
    uint32_t spins; /* pauses before anything else */
    uint32_t yields; /* sched_yield calls after them */
    bool fence; /* publishers execute a full fence (membarrier not to be had) */
    /* Told, unless NULL, when a wait that sleeps has looked last and must go on: sc_ticks_now from
     * before that look. Release; written by the waiter alone. */
    _Atomic uint64_t *looked;
};

/* True once what is waited for is there. Must read with acquire order whatever makes the data
 * valid. Called often. */
typedef bool (*sc_wait_ready)(void *arg);

/* OK; OP_TIMEOUT at the deadline; ABORTED on poison, after one more look. */
spark_comm_status sc_wait_until(const struct sc_wait_policy *policy, sc_wait_ready ready, void *arg,
                                int64_t deadline);

/* Waits until (int32_t)(*word - target) >= 0: a counter that only grows, modulo 2^32. Inline
 * first look, then the slow way. */
spark_comm_status sc_wait_counter_slow(const struct sc_wait_policy *policy,
                                       const _Atomic uint32_t *word, uint32_t target,
                                       int64_t deadline);
static inline bool sc_wait_reached(const _Atomic uint32_t *word, uint32_t target) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}
static inline spark_comm_status sc_wait_counter(const struct sc_wait_policy *policy,
                                                const _Atomic uint32_t *word, uint32_t target,
                                                int64_t deadline) {
    if (sc_wait_reached(word, target)) return SPARK_COMM_OK;
    return sc_wait_counter_slow(policy, word, target, deadline);
}

/* The thread sanitizer does not know atomic_thread_fence: a read-modify-write stands for it there. */
#if defined(__SANITIZE_THREAD__)
#define SC_WAIT_NO_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SC_WAIT_NO_FENCES 1
#endif
#endif

void sc_wait_ring_slow(struct sc_wait_doorbell *doorbell);
/* After the data was stored (release order at least). */
static inline void sc_wait_ring(const struct sc_wait_policy *policy,
                                struct sc_wait_doorbell *doorbell) {
#ifdef SC_WAIT_NO_FENCES
    (void)policy;
    if (atomic_fetch_add_explicit(&doorbell->sleepers, 0, memory_order_seq_cst) != 0)
        sc_wait_ring_slow(doorbell);
#else
    /* Partner: the sleeper's fence, or its membarrier, see wait.c. */
    if (policy->fence)
        atomic_thread_fence(memory_order_seq_cst);
    else
        atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&doorbell->sleepers, memory_order_relaxed) != 0, 0))
        sc_wait_ring_slow(doorbell);
#endif
}
/* Wakes every sleeper of a doorbell whether or not it is ready, for interrupt and poison (full
 * fence inside). */
void sc_wait_wake_all(struct sc_wait_doorbell *doorbell);

/* Registers this process with membarrier; false where it is not to be had. Cheap when repeated. */
bool sc_wait_membarrier_available(void);
/* One CPU pause (PAUSE, YIELD). */
static inline void sc_wait_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Plain futex calls on a word in shared memory (process-shared). wait returns when woken, when
 * *word != expected, at the deadline, or for no reason. */
void sc_wait_futex_sleep(const _Atomic uint32_t *word, uint32_t expected, int64_t deadline);
void sc_wait_futex_wake(const _Atomic uint32_t *word, int count);

#endif
