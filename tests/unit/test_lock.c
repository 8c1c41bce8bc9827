/*
 * The lock: mutual exclusion under contention, the deadline, giving up at once when shaken, and no time lost to a wake-up
 * that went astray.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "base/deadline.h"
#include "os/lock.h"
#include "os/thread.h"

#define MS INT64_C(1000000)
#define THREADS 4

static void nap(long us) {
    struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

static void test_take_and_give(void **state) {
    (void)state;
    struct sc_lock lock = SC_LOCK_INIT;
    _Atomic uint32_t give_up = 0;
    for (int i = 0; i < 3; i++) {
        assert_true(sc_lock_take(&lock, 0, NULL));
        assert_false(sc_lock_take(&lock, 0, NULL));
        assert_false(sc_lock_take(&lock, sc_deadline_after(1), &give_up));
        sc_lock_give(&lock);
        assert_int_equal(atomic_load(&lock.word), 0);
    }
    sc_lock_shake(&lock);
    assert_int_equal(atomic_load(&lock.word), 0);
    assert_true(sc_lock_take(&lock, 0, &give_up));
    sc_lock_shake(&lock);
    assert_int_equal(atomic_load(&lock.word), 1);
    atomic_store(&give_up, 1);
    assert_false(sc_lock_take(&lock, SC_DEADLINE_NEVER, &give_up));
    sc_lock_give(&lock);
}

static void test_deadline(void **state) {
    (void)state;
    struct sc_lock lock = SC_LOCK_INIT;
    assert_true(sc_lock_take(&lock, 0, NULL));
    int64_t start = sc_deadline_now();
    assert_false(sc_lock_take(&lock, sc_deadline_after(120), NULL));
    int64_t took = sc_deadline_now() - start;
    assert_true(took >= 120 * MS && took < 600 * MS);
    sc_lock_give(&lock);
    assert_true(sc_lock_take(&lock, 0, NULL));
}

struct contest {
    struct sc_lock lock;
    uint64_t count; /* guarded by lock */
    _Atomic uint32_t failures;
    int rounds;
};

static void *compete(void *arg) {
    struct contest *contest = arg;
    for (int i = 0; i < contest->rounds; i++) {
        if (!sc_lock_take(&contest->lock, sc_deadline_after(20000), NULL)) {
            atomic_fetch_add(&contest->failures, 1);
            break;
        }
        atomic_store_explicit(&contest->lock.holder, i, memory_order_relaxed);
        contest->count++;
        /* Now and then the holder loses its CPU, so that the others really sleep. */
        if (i % 512 == 0) nap(50);
        sc_lock_give(&contest->lock);
    }
    return NULL;
}

static void test_contention(void **state) {
    (void)state;
    struct contest contest = {.rounds = 20000};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(sc_thread_start(&threads[i], "contest", compete, &contest, NULL),
                         SPARK_COMM_OK);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&contest.failures), 0);
    assert_int_equal(contest.count, THREADS * contest.rounds);
    assert_true(sc_lock_take(&contest.lock, 0, NULL));
}

struct waiter {
    struct sc_lock *lock;
    _Atomic uint32_t *give_up;
    bool taken;
    int64_t ended;
};

static void *wait_for_lock(void *arg) {
    struct waiter *waiter = arg;
    waiter->taken = sc_lock_take(waiter->lock, SC_DEADLINE_NEVER, waiter->give_up);
    waiter->ended = sc_deadline_now();
    if (waiter->taken) sc_lock_give(waiter->lock);
    return NULL;
}

/* At every moment of the waiter's way to sleep a shake ends it, long before it would look by itself. */
static void test_shake(void **state) {
    (void)state;
    int slow = 0;
    enum { ROUNDS = 400 };
    for (int round = 0; round < ROUNDS; round++) {
        struct sc_lock lock = SC_LOCK_INIT;
        _Atomic uint32_t give_up = 0;
        struct waiter waiters[2] = {{.lock = &lock, .give_up = &give_up},
                                    {.lock = &lock, .give_up = &give_up}};
        pthread_t threads[2];
        assert_true(sc_lock_take(&lock, 0, NULL));
        for (int i = 0; i < 2; i++)
            assert_int_equal(
                sc_thread_start(&threads[i], "waiter", wait_for_lock, &waiters[i], NULL),
                SPARK_COMM_OK);
        nap(round % 50 * 4);
        int64_t start = sc_deadline_now();
        atomic_store_explicit(&give_up, 1, memory_order_release);
        sc_lock_shake(&lock);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_false(waiters[i].taken);
            slow += waiters[i].ended - start > 40 * MS;
        }
        sc_lock_give(&lock);
        assert_true(sc_lock_take(&lock, 0, NULL));
    }
    /* A busy machine may delay one or two; a shake that is missed costs 50 ms every time. */
    assert_true(slow <= 4);
}

/* The holder gives while others are on their way to sleep: none of them waits for its next look. */
static void test_hand_over(void **state) {
    (void)state;
    int slow = 0;
    for (int round = 0; round < 400; round++) {
        struct sc_lock lock = SC_LOCK_INIT;
        struct waiter waiters[2] = {{.lock = &lock}, {.lock = &lock}};
        pthread_t threads[2];
        assert_true(sc_lock_take(&lock, 0, NULL));
        for (int i = 0; i < 2; i++)
            assert_int_equal(
                sc_thread_start(&threads[i], "waiter", wait_for_lock, &waiters[i], NULL),
                SPARK_COMM_OK);
        nap(round % 50 * 4);
        int64_t start = sc_deadline_now();
        sc_lock_give(&lock);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_true(waiters[i].taken);
            slow += waiters[i].ended - start > 40 * MS;
        }
    }
    assert_true(slow <= 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_and_give), cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_contention),    cmocka_unit_test(test_shake),
        cmocka_unit_test(test_hand_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
