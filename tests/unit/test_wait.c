/*
 * Waiting and doorbells. The stress tests make each side of a ping-pong sleep for every message, at ever other moments,
 * between threads and between processes, with membarrier and with fences, quietly and under a steady signal. A wake-up that
 * is lost shows as a wait that only the safety net of one second ended. An argument gives the milliseconds of each stress test
 * (for a soak; without membarrier's call in wait.c about 20 s of the racing ones find a loss).
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/deadline.h"
#include "counter.h"
#include "os/thread.h"
#include "os/wait.h"

#define MS INT64_C(1000000)
/* How long a wait takes that only the net ends. A busy machine may delay one by any time, but seldom by just this. */
#define NET_NS (1000 * MS)
#define NET_SLACK_NS (40 * MS)
#define PAYLOAD_LINES 16

static int stress_ms = 1500;

/* What the ranks of a test share. */
struct shared {
    struct sc_wait_doorbell doorbells[4];
    _Alignas(64) _Atomic uint32_t words[4][16];
    /* Data that goes with each word, plain: a line each, so that the word's own store waits behind theirs. */
    uint32_t payload[4][PAYLOAD_LINES][16];
    _Alignas(64) _Atomic uint32_t poison;
    _Atomic uint32_t failures;
    _Atomic uint32_t last; /* the round after which all stop; 0: not known yet */
    _Atomic uint32_t lost; /* waits that the net ended */
    _Atomic int64_t longest;
};

static struct shared *shared_make(void) {
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static struct sc_wait_policy policy_of(struct shared *shared, int self, bool fence) {
    return (struct sc_wait_policy){
        .poison = &shared->poison, .doorbell = &shared->doorbells[self], .fence = fence};
}

/* ---- Single waits ---- */

struct flag {
    _Atomic uint32_t set;
    uint32_t looks;
    uint32_t set_at; /* becomes true by itself at this look; 0: never */
};

static bool flag_is_set(void *arg) {
    struct flag *flag = arg;
    flag->looks++;
    return (flag->set_at != 0 && flag->looks >= flag->set_at) ||
           atomic_load_explicit(&flag->set, memory_order_acquire) != 0;
}

static void test_ready_at_once(void **state) {
    (void)state;
    struct shared *shared = shared_make();
    struct sc_wait_policy policy = policy_of(shared, 0, true);
    struct flag flag = {.set = 1};
    assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, 0), SPARK_COMM_OK);
    atomic_store(&shared->poison, 1);
    assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, 0), SPARK_COMM_OK);
    policy.spins = 5;
    assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, 0), SPARK_COMM_OK);
    assert_int_equal(atomic_load(&shared->doorbells[0].sleepers), 0);
    munmap(shared, sizeof *shared);
}

static void test_each_phase(void **state) {
    (void)state;
    struct shared *shared = shared_make();
    struct sc_wait_policy policy = policy_of(shared, 0, true);
    policy.spins = 10;
    policy.yields = 10;
    for (uint32_t at = 1; at <= 22; at++) {
        struct flag flag = {.set_at = at};
        assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, SC_DEADLINE_NEVER),
                         SPARK_COMM_OK);
        assert_int_equal(flag.looks, at);
    }
    munmap(shared, sizeof *shared);
}

static void test_deadline(void **state) {
    (void)state;
    struct shared *shared = shared_make();
    for (int kind = 0; kind < 3; kind++) {
        struct sc_wait_policy policy =
            policy_of(shared, 0, kind == 0 || !sc_wait_membarrier_available());
        policy.yields = kind == 2 ? 1000000000 : 0;
        struct flag flag = {.set = 0};
        int64_t start = sc_deadline_now();
        assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, sc_deadline_after(30)),
                         SPARK_COMM_OP_TIMEOUT);
        int64_t took = sc_deadline_now() - start;
        assert_true(took >= 30 * MS && took < 500 * MS);
        assert_int_equal(sc_counter_wait(&policy, &shared->words[0][0], 1, sc_deadline_after(1)),
                         SPARK_COMM_OP_TIMEOUT);
        assert_int_equal(sc_counter_wait(&policy, &shared->words[0][0], 1, 0),
                         SPARK_COMM_OP_TIMEOUT);
        assert_int_equal(atomic_load(&shared->doorbells[0].sleepers), 0);
    }
    munmap(shared, sizeof *shared);
}

static void test_poison_before(void **state) {
    (void)state;
    struct shared *shared = shared_make();
    atomic_store(&shared->poison, 7);
    for (int kind = 0; kind < 3; kind++) {
        struct sc_wait_policy policy = policy_of(shared, 0, true);
        policy.spins = kind == 0 ? 5 : 0;
        policy.yields = kind == 1 ? 5 : 0;
        struct flag flag = {.set = 0};
        assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, SC_DEADLINE_NEVER),
                         SPARK_COMM_ABORTED);
        assert_int_equal(flag.looks, 2); /* the first, and one more after poison was seen */
        flag = (struct flag){.set_at = 2};
        assert_int_equal(sc_wait_until(&policy, flag_is_set, &flag, SC_DEADLINE_NEVER),
                         SPARK_COMM_OK);
        assert_int_equal(sc_counter_wait(&policy, &shared->words[0][0], 1, SC_DEADLINE_NEVER),
                         SPARK_COMM_ABORTED);
    }
    munmap(shared, sizeof *shared);
}

static void test_futex(void **state) {
    (void)state;
    _Atomic uint32_t word = 5;
    int64_t start = sc_deadline_now();
    sc_wait_futex_sleep(&word, 6, SC_DEADLINE_NEVER); /* another value: returns */
    sc_wait_futex_sleep(&word, 5, start - 1);
    sc_wait_futex_sleep(&word, 5, -1);
    sc_wait_futex_sleep(&word, 5, INT64_MIN);
    sc_wait_futex_wake(&word, 1);
    assert_true(sc_deadline_now() - start < 500 * MS);
    start = sc_deadline_now();
    sc_wait_futex_sleep(&word, 5, start + 20 * MS);
    assert_true(sc_deadline_now() - start < 500 * MS);
}

static void test_membarrier_answer_is_steady(void **state) {
    (void)state;
    bool available = sc_wait_membarrier_available();
    for (int i = 0; i < 100; i++)
        assert_int_equal(sc_wait_membarrier_available(), available);
    pid_t child = fork();
    if (child == 0) _exit(sc_wait_membarrier_available() == available ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    print_message("membarrier: %s\n", available ? "available" : "not to be had");
}

/* ---- Stress ---- */

struct side {
    struct shared *shared;
    int self;
    int peers; /* ranks in the ring */
    bool fence;
    uint32_t spins;
    uint32_t yields;
};

static uint32_t next_random(uint32_t *random) {
    *random = *random * 1664525u + 1013904223u;
    return *random >> 10;
}

static void note_wait(struct shared *shared, int64_t took) {
    int64_t longest = atomic_load(&shared->longest);
    if (took >= NET_NS && took < NET_NS + NET_SLACK_NS) atomic_fetch_add(&shared->lost, 1);
    while (took > longest && !atomic_compare_exchange_weak(&shared->longest, &longest, took)) {
    }
}

/* Waits for the token of this round; false when that failed. */
static bool await_token(struct side *side, const struct sc_wait_policy *policy, uint32_t round) {
    int64_t start = sc_deadline_now();
    spark_comm_status st = sc_counter_wait(policy, &side->shared->words[side->self][0], round,
                                           sc_deadline_after(20000));
    note_wait(side->shared, sc_deadline_now() - start);
    bool good = st == SPARK_COMM_OK;
    for (int i = 0; good && i < PAYLOAD_LINES; i++)
        good = side->shared->payload[side->self][i][0] == round;
    if (!good) atomic_fetch_add(&side->shared->failures, 1);
    return good;
}

/* A token goes round the ring: each rank waits for its word to reach the round, then sets the next rank's. Rank 0 starts each
 * round, and tells the others which one is the last. */
static void *run_side(void *arg) {
    struct side *side = arg;
    struct shared *shared = side->shared;
    struct sc_wait_policy policy = policy_of(shared, side->self, side->fence);
    policy.yields = side->yields;
    int next = (side->self + 1) % side->peers;
    uint32_t random = (uint32_t)side->self + 1;
    int64_t end = sc_deadline_after(stress_ms);
    bool is_last = false;

    sc_wait_membarrier_available();
    for (uint32_t round = 1; !is_last; round++) {
        /* A wait that gives up spinning just when the answer comes is what the protocol is about. */
        policy.spins = side->spins > 0 ? next_random(&random) % side->spins : 0;
        if (side->self != 0 && !await_token(side, &policy, round)) break;
        for (uint32_t i = next_random(&random) % 64; i > 0; i--)
            sc_wait_pause();
        if (side->self == 0 && sc_deadline_passed(end)) atomic_store(&shared->last, round);
        is_last = atomic_load(&shared->last) == round;
        for (int i = 0; i < PAYLOAD_LINES; i++)
            shared->payload[next][i][0] = round;
        atomic_store_explicit(&shared->words[next][0], round, memory_order_release);
        sc_wait_ring(&policy, &shared->doorbells[next]);
        if (side->self == 0 && !await_token(side, &policy, round)) break;
    }
    return NULL;
}

static void check_stress(struct shared *shared, const char *what) {
    print_message("%s: %u rounds, longest wait %.1f ms\n", what, atomic_load(&shared->last),
                  (double)atomic_load(&shared->longest) / 1e6);
    assert_int_equal(atomic_load(&shared->failures), 0);
    assert_true(atomic_load(&shared->last) > 0);
    if (atomic_load(&shared->lost) > 0) fail_msg("%s: a wake-up was lost", what);
    for (int i = 0; i < 4; i++)
        assert_int_equal(atomic_load(&shared->doorbells[i].sleepers), 0);
    munmap(shared, sizeof *shared);
}

static void stress_threads(const char *what, int ranks, bool fence, uint32_t spins,
                           uint32_t yields) {
    struct shared *shared = shared_make();
    pthread_t threads[4];
    struct side sides[4];
    for (int i = 0; i < ranks; i++) {
        sides[i] = (struct side){shared, i, ranks, fence, spins, yields};
        assert_int_equal(sc_thread_start(&threads[i], "stress", run_side, &sides[i], NULL),
                         SPARK_COMM_OK);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    check_stress(shared, what);
}

static void on_signal(int number) {
    (void)number;
}

/* A signal without SA_RESTART every millisecond, for the calling process. */
static void start_storm(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval every = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void stress_processes(const char *what, int ranks, bool fence, uint32_t spins, bool storm) {
    struct shared *shared = shared_make();
    pid_t children[4];
    for (int i = 0; i < ranks; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct side side = {shared, i, ranks, fence, spins, 0};
            if (storm) start_storm();
            run_side(&side);
            _exit(0);
        }
    }
    for (int i = 0; i < ranks; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    check_stress(shared, what);
}

/* Without spinning every message finds a sleeper. With some, each wait may end either way: racing. With more ranks than CPUs
 * both happen, and yields too. */
static void test_stress_threads(void **state) {
    (void)state;
    stress_threads("2 threads, fence", 2, true, 0, 0);
    stress_threads("2 threads, fence, racing", 2, true, 300, 0);
    stress_threads("3 threads, fence, racing", 3, true, 40, 1);
    if (!sc_wait_membarrier_available()) return;
    stress_threads("2 threads, membarrier", 2, false, 0, 0);
    stress_threads("2 threads, membarrier, racing", 2, false, 300, 0);
    stress_threads("4 threads, membarrier, racing", 4, false, 40, 1);
}

static void test_stress_processes(void **state) {
    (void)state;
    stress_processes("2 processes, fence, racing", 2, true, 300, false);
    stress_processes("2 processes, fence, signals", 2, true, 0, true);
    if (!sc_wait_membarrier_available()) return;
    stress_processes("2 processes, membarrier, racing", 2, false, 300, false);
    stress_processes("3 processes, membarrier, signals", 3, false, 0, true);
}

/* ---- Poison while others sleep ---- */

struct sleeper {
    struct shared *shared;
    bool fence;
    spark_comm_status st;
    int64_t ended;
    int64_t cpu_ns;
};

static void *sleep_for_ever(void *arg) {
    struct sleeper *sleeper = arg;
    struct sc_wait_policy policy = policy_of(sleeper->shared, 0, sleeper->fence);
    struct timespec cpu;
    sleeper->st = sc_counter_wait(&policy, &sleeper->shared->words[0][0], 1, SC_DEADLINE_NEVER);
    sleeper->ended = sc_deadline_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    sleeper->cpu_ns = cpu.tv_sec * 1000 * MS + cpu.tv_nsec;
    return NULL;
}

static void nap(long us) {
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void test_poison_wakes(void **state) {
    (void)state;
    int64_t longest = 0;
    for (int round = 0; round < 500; round++) {
        struct shared *shared = shared_make();
        struct sleeper sleepers[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            sleepers[i] = (struct sleeper){
                .shared = shared, .fence = round % 2 != 0 || !sc_wait_membarrier_available()};
            assert_int_equal(
                sc_thread_start(&threads[i], "sleeper", sleep_for_ever, &sleepers[i], NULL),
                SPARK_COMM_OK);
        }
        nap(round % 50 * 4);
        int64_t start = sc_deadline_now();
        atomic_store_explicit(&shared->poison, 1, memory_order_release);
        sc_wait_wake_all(&shared->doorbells[0]);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(sleepers[i].st, SPARK_COMM_ABORTED);
            if (sleepers[i].ended - start > longest) longest = sleepers[i].ended - start;
        }
        assert_int_equal(atomic_load(&shared->doorbells[0].sleepers), 0);
        munmap(shared, sizeof *shared);
    }
    print_message("poison: the longest took %.1f ms\n", (double)longest / 1e6);
    assert_false(longest >= NET_NS && longest < NET_NS + NET_SLACK_NS);
}

static void test_sleep_costs_nothing(void **state) {
    (void)state;
    struct shared *shared = shared_make();
    struct sleeper sleeper = {.shared = shared, .fence = !sc_wait_membarrier_available()};
    pthread_t thread;
    assert_int_equal(sc_thread_start(&thread, "sleeper", sleep_for_ever, &sleeper, NULL),
                     SPARK_COMM_OK);
    nap(1500000);
    struct sc_wait_policy policy = policy_of(shared, 1, sleeper.fence);
    atomic_store_explicit(&shared->words[0][0], 1, memory_order_release);
    sc_wait_ring(&policy, &shared->doorbells[0]);
    pthread_join(thread, NULL);
    assert_int_equal(sleeper.st, SPARK_COMM_OK);
    print_message("1.5 s of sleep took %.0f us of a CPU\n", (double)sleeper.cpu_ns / 1e3);
    assert_true(sleeper.cpu_ns < 20 * MS);
    munmap(shared, sizeof *shared);
}

int main(int argc, char **argv) {
    if (argc > 1) stress_ms = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_at_once),
        cmocka_unit_test(test_each_phase),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_poison_before),
        cmocka_unit_test(test_futex),
        cmocka_unit_test(test_membarrier_answer_is_steady),
        cmocka_unit_test(test_stress_threads),
        cmocka_unit_test(test_stress_processes),
        cmocka_unit_test(test_poison_wakes),
        cmocka_unit_test(test_sleep_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
