/*
 * The slow ways of the lock: a futex mutex of three states. A waiter always sets 2 before it
 * sleeps, so the holder's give finds it; the price is at most one wake of nobody. No fairness is
 * promised.
 *
 * Why sc_lock_shake is never missed: it turns a 2 back into a 1 with a read-modify-write. A waiter
 * whose exchange came before finds that the word is no longer 2 and does not sleep (or is woken);
 * one whose exchange comes after reads what shake wrote, and with it sees the give_up word that was
 * set before shake was called.
 */
#include "os/lock.h"

#include <limits.h>
#include <stddef.h>

#include "base/deadline.h"
#include "os/wait.h"

#define LOOK_EVERY_NS INT64_C(50000000)

bool sc_lock_take_slow(struct sc_lock *lock, int64_t deadline, const _Atomic uint32_t *give_up) {
    for (;;) {
        /* Acquire and release: partner of give (to own what it guards), and of shake in both
         * directions. */
        if (atomic_exchange_explicit(&lock->word, 2, memory_order_acq_rel) == 0) return true;
        /* Acquire: partner is the release store of whoever gives the word its value. */
        if (give_up != NULL && atomic_load_explicit(give_up, memory_order_acquire) != 0)
            return false;
        int64_t now = sc_deadline_now();
        if (deadline != SC_DEADLINE_NEVER && now >= deadline) return false;
        sc_wait_futex_sleep(&lock->word, 2, sc_deadline_min(deadline, now + LOOK_EVERY_NS));
    }
}

void sc_lock_wake(struct sc_lock *lock) {
    sc_wait_futex_wake(&lock->word, 1);
}

void sc_lock_shake(struct sc_lock *lock) {
    uint32_t old = atomic_load_explicit(&lock->word, memory_order_relaxed);

    /* Writes even an unchanged value, so that a later exchange synchronises with it. */
    while (!atomic_compare_exchange_weak_explicit(&lock->word, &old, old == 2 ? 1 : old,
                                                  memory_order_acq_rel, memory_order_relaxed)) {
    }
    sc_wait_futex_wake(&lock->word, INT_MAX);
}
