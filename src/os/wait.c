/*
 * Waiting on shared words, and the doorbell protocol.
 *
 * The sleeper: (1) adds one to `sleepers`; (2) membarrier; (3) reads `value`; (4) looks at what it
 * waits for and at poison; (5) sleeps while `value` is what it read in (3). The publisher: (a)
 * stores its data; (b) reads `sleepers`, the compiler keeping it after (a); (c) when it is not 0,
 * adds one to `value` and wakes.
 *
 * Why no wake-up is lost. membarrier makes every running thread of every registered process execute
 * a full fence at some instant between its start and its end. If that instant lies before (b) of
 * the publisher, (b) follows (1) and finds the sleeper. If it lies after (b), it lies after (a), so
 * the data is there for all to see when (2) ends, and (4) finds it. A publisher that is not running
 * at the time passed a full fence when it was scheduled out. There is no third case. Without
 * membarrier both sides execute a full fence, in the place of (2) and between (a) and (b): the same
 * two cases.
 *
 * Once the publisher rings: if its addition to `value` comes before (3), then (3) reads it with
 * acquire order, and the data stored before it is seen in (4). If it comes after (3), `value`
 * differs from what (5) expects, which the kernel checks under the lock that the wake needs: the
 * sleep ends at once or the wake finds the sleeper. Poison is stored before sc_wait_wake_all, which
 * always adds to `value`, so this paragraph alone covers it.
 *
 * membarrier alone is not trusted. Linux keeps for each CPU whether the process on it has
 * registered, and looks again only when the CPU changes to another address space: a CPU that the
 * process used before it registered, and that has only idled since, is passed over when one of its
 * threads runs there again (seen on Linux 6.18). So with membarrier the first sleep of a wait ends
 * after a millisecond: a store leaves its CPU within microseconds, so what (4) missed is there by
 * then. The price is one more look in a wait that lasts longer.
 *
 * `sleepers` stays raised while a sleeper loops, so membarrier is called once a wait. Every sleep
 * ends after a second at the latest, as a net that is not needed; the tests fail when it is.
 */
#include "os/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/ticks.h"
#include "os/thread.h"

#define NS_PER_S INT64_C(1000000000)
#define LONGEST_SLEEP_NS NS_PER_S
#define FIRST_SLEEP_NS INT64_C(1000000)

/* How far a wait may sleep: to `early` while that is ahead, then `longest` at a time. */
struct limits {
    int64_t early;
    int64_t longest;
};

/* ---- System calls ---- */

/* 0: not tried; else twice (forks + 1), plus 1 where it is to be had. A child registers anew: not every kernel hands the
 * registration down. Relaxed: threads that race register twice, which is harmless, and store the same. */
static _Atomic uint64_t registration;

static long membarrier(int command) {
    return syscall(SYS_membarrier, command, 0, 0);
}

static bool register_process(void) {
    long commands = membarrier(MEMBARRIER_CMD_QUERY);
    return commands >= 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0 &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

bool sc_wait_membarrier_available(void) {
    uint64_t process = ((uint64_t)sc_thread_fork_count() + 1) * 2;
    uint64_t known = atomic_load_explicit(&registration, memory_order_relaxed);

    if ((known & ~UINT64_C(1)) != process) {
        known = process | register_process();
        atomic_store_explicit(&registration, known, memory_order_relaxed);
    }
    return (known & 1) != 0;
}

void sc_wait_futex_sleep(const _Atomic uint32_t *word, uint32_t expected, int64_t deadline) {
    struct timespec until;
    struct timespec *limit = NULL;

    if (deadline != SC_DEADLINE_NEVER) {
        if (deadline <= 0) return;
        until.tv_sec = (time_t)(deadline / NS_PER_S);
        until.tv_nsec = (long)(deadline % NS_PER_S);
        limit = &until;
    }
    /* The bit-set form takes a point in time on CLOCK_MONOTONIC. Whatever ends it, the caller looks
     * again. */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, limit, NULL, FUTEX_BITSET_MATCH_ANY);
}

void sc_wait_futex_wake(const _Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* ---- The publisher's side ---- */

void sc_wait_ring_slow(struct sc_wait_doorbell *doorbell) {
    /* Release: the data stored before is seen by the sleeper that reads this value, in step (3). */
    atomic_fetch_add_explicit(&doorbell->value, 1, memory_order_release);
    sc_wait_futex_wake(&doorbell->value, INT_MAX);
}

void sc_wait_wake_all(struct sc_wait_doorbell *doorbell) {
    /* Sequentially consistent: a full fence for what the caller stored before. Partner: step (3).
     */
    atomic_fetch_add_explicit(&doorbell->value, 1, memory_order_seq_cst);
    sc_wait_futex_wake(&doorbell->value, INT_MAX);
}

/* ---- The sleeper's side ---- */

static bool is_poisoned(const struct sc_wait_policy *policy) {
    /* Acquire: partner is the release store of whoever poisons. */
    return policy->poison != NULL &&
           atomic_load_explicit(policy->poison, memory_order_acquire) != 0;
}

/* After poison was seen: what is waited for may have come before it. */
static spark_comm_status last_look(sc_wait_ready ready, void *arg) {
    return ready(arg) ? SPARK_COMM_OK : SPARK_COMM_ABORTED;
}

/* Steps (1) and (2). */
static struct limits announce(const struct sc_wait_policy *policy) {
    _Atomic uint32_t *sleepers = &policy->doorbell->sleepers;

    atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    if (policy->fence) {
        /* Partner: the fence in sc_wait_ring. */
#ifdef SC_WAIT_NO_FENCES
        atomic_fetch_add_explicit(sleepers, 0, memory_order_seq_cst);
#else
        atomic_thread_fence(memory_order_seq_cst);
#endif
        return (struct limits){INT64_MIN, LONGEST_SLEEP_NS};
    }
    bool done = membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
    /* Not done: a filter of system calls was set after publishers were told to do without fences. */
    return (struct limits){sc_deadline_now() + FIRST_SLEEP_NS,
                           done ? LONGEST_SLEEP_NS : FIRST_SLEEP_NS};
}

static spark_comm_status sleep_until(const struct sc_wait_policy *policy, sc_wait_ready ready,
                                     void *arg, int64_t deadline) {
    struct sc_wait_doorbell *doorbell = policy->doorbell;
    spark_comm_status st = SPARK_COMM_OK;
    struct limits limits = announce(policy);

    for (;;) {
        /* Acquire: partner is the addition in sc_wait_ring_slow and sc_wait_wake_all. */
        uint32_t value = atomic_load_explicit(&doorbell->value, memory_order_acquire);
        uint64_t ticks = sc_ticks_now();
        if (ready(arg)) break;
        if (is_poisoned(policy)) {
            st = last_look(ready, arg);
            break;
        }
        int64_t now = sc_deadline_now();
        if (deadline != SC_DEADLINE_NEVER && now >= deadline) {
            st = SPARK_COMM_OP_TIMEOUT;
            break;
        }
        if (policy->looked != NULL)
            atomic_store_explicit(policy->looked, ticks, memory_order_release);
        int64_t until = now < limits.early ? limits.early : now + limits.longest;
        sc_wait_futex_sleep(&doorbell->value, value, sc_deadline_min(deadline, until));
    }
    /* Relaxed: a publisher that still sees it raised only wakes nobody. */
    atomic_fetch_sub_explicit(&doorbell->sleepers, 1, memory_order_relaxed);
    return st;
}

/* What follows spinning. */
static spark_comm_status yield_and_sleep(const struct sc_wait_policy *policy, sc_wait_ready ready,
                                         void *arg, int64_t deadline) {
    for (uint32_t i = 0; i < policy->yields; i++) {
        if (ready(arg)) return SPARK_COMM_OK;
        if (is_poisoned(policy)) return last_look(ready, arg);
        /* A yield can give away a whole time slice, so the clock is read each time. */
        if (sc_deadline_passed(deadline)) return SPARK_COMM_OP_TIMEOUT;
        sched_yield();
    }
    return sleep_until(policy, ready, arg, deadline);
}

spark_comm_status sc_wait_until(const struct sc_wait_policy *policy, sc_wait_ready ready, void *arg,
                                int64_t deadline) {
    for (uint32_t i = 0; i < policy->spins; i++) {
        if (ready(arg)) return SPARK_COMM_OK;
        if (is_poisoned(policy)) return last_look(ready, arg);
        sc_wait_pause();
    }
    return yield_and_sleep(policy, ready, arg, deadline);
}

struct counter {
    const _Atomic uint32_t *word;
    uint32_t target;
};

static bool counter_is_ready(void *arg) {
    const struct counter *counter = arg;
    return sc_wait_reached(counter->word, counter->target);
}

spark_comm_status sc_wait_counter_slow(const struct sc_wait_policy *policy,
                                       const _Atomic uint32_t *word, uint32_t target,
                                       int64_t deadline) {
    struct counter counter = {word, target};

    /* The spinning of sc_wait_until, with the look inlined. */
    for (uint32_t i = 0; i < policy->spins; i++) {
        if (sc_wait_reached(word, target)) return SPARK_COMM_OK;
        if (is_poisoned(policy)) return last_look(counter_is_ready, &counter);
        sc_wait_pause();
    }
    return yield_and_sleep(policy, counter_is_ready, &counter, deadline);
}
