/* A mutex that can be waited for until a deadline and says who holds it. Private to the process.
 * Uncontended: one atomic exchange to take it, one to give it back. Not recursive. */
#ifndef SC_OS_LOCK_H
#define SC_OS_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SC_LOCK_INIT \
    { 0, 0 }

struct sc_lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and somebody sleeps */
    _Atomic int32_t holder; /* a note of the holder's, for messages: an operation code */
};

/* Takes it if it is free. */
static inline bool sc_lock_try(struct sc_lock *lock) {
    uint32_t expected = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}
bool sc_lock_take_slow(struct sc_lock *lock, int64_t deadline, const _Atomic uint32_t *give_up);
/* True when taken. False at the deadline, or once *give_up (may be NULL) is non-zero (looked at
 * every 50 ms at least, and at once after sc_lock_shake). */
static inline bool sc_lock_take(struct sc_lock *lock, int64_t deadline,
                                const _Atomic uint32_t *give_up) {
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return true;
    return sc_lock_take_slow(lock, deadline, give_up);
}
void sc_lock_wake(struct sc_lock *lock);
static inline void sc_lock_give(struct sc_lock *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2) sc_lock_wake(lock);
}
/* Makes every waiter look at its give_up word. */
void sc_lock_shake(struct sc_lock *lock);

#endif
