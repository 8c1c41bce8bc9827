/*
 * How long a command word takes from the head's send to the worker's return, after gaps of several
 * lengths; after a second of idleness beside a raw futex wake between the same two processes. Two
 * processes, each pinned to a CPU; the common clock is CLOCK_MONOTONIC.
 *
 *   command_gap [ROUNDS]      200 words for each gap, 9 after a second
 */
#include <linux/futex.h>
#include <sched.h>
#include <spark_comm.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 200, MOST = 1000 };

static struct shared {
    _Atomic uint32_t futex;
    _Atomic int64_t sent; /* ns */
    int64_t took[MOST];
} * shared;
static spark_comm *comm;
static int rank;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static __attribute__((noinline, cold)) void fail(spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "command_gap: %s: %s\n", spark_comm_status_name(st), error.message);
    exit(1);
}

static void check(spark_comm_status st) {
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) fail(st);
}

static void pause_ns(int64_t ns) {
    int64_t end = now_ns() + ns;
    if (ns > INT64_C(2000000)) {
        struct timespec time = {.tv_sec = ns / INT64_C(1000000000),
                                .tv_nsec = ns % INT64_C(1000000000)};
        nanosleep(&time, NULL);
    }
    while (now_ns() < end) {
    }
}

/* The word carries no time: the head notes it in shared memory just before the call. */
static void one_word(int64_t gap, int64_t *took) {
    uint32_t word = 7;
    if (rank == 0) {
        pause_ns(gap);
        atomic_store(&shared->sent, now_ns());
        check(spark_comm_broadcast(comm, (uintptr_t)&word, sizeof word, 0));
    } else {
        check(spark_comm_recv_command_u32(comm, (uintptr_t)&word, 0));
        *took = now_ns() - atomic_load(&shared->sent);
    }
}

static void one_wake(int64_t gap, int64_t *took, uint32_t turn) {
    if (rank == 0) {
        pause_ns(gap);
        atomic_store(&shared->sent, now_ns());
        atomic_store(&shared->futex, turn);
        syscall(SYS_futex, &shared->futex, FUTEX_WAKE, 1, NULL, NULL, 0);
    } else {
        while (atomic_load(&shared->futex) != turn)
            syscall(SYS_futex, &shared->futex, FUTEX_WAIT, turn - 1, NULL, NULL, 0);
        *took = now_ns() - atomic_load(&shared->sent);
    }
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double print_row(const char *what, int64_t gap, int64_t *took, int count) {
    qsort(took, (size_t)count, sizeof *took, compare);
    double median = (double)took[count / 2] / 1e3;
    if (rank == 1)
        printf("  %-14s after %9.0f us   p50 %8.2f us   p90 %8.2f us   most %8.2f us\n", what,
               (double)gap / 1e3, median, (double)took[count * 9 / 10] / 1e3,
               (double)took[count - 1] / 1e3);
    return median;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void measure(int rounds) {
    static const int64_t gaps[] = {2000, 5000, 20000, 50000, 95000};
    static int64_t words[MOST], wakes[MOST];
    const int64_t second = INT64_C(1000000000);
    for (size_t g = 0; g < sizeof gaps / sizeof gaps[0]; g++) {
        for (int i = 0; i < WORDS; i++)
            one_word(gaps[g], &words[i]);
        print_row("command word", gaps[g], words, WORDS);
        check(spark_comm_barrier(comm));
    }
    for (int i = 0; i < rounds; i++) {
        one_word(second, &words[i]);
        check(spark_comm_barrier(comm));
        one_wake(second, &wakes[i], (uint32_t)i + 1);
        check(spark_comm_barrier(comm));
    }
    double word = print_row("command word", second, words, rounds);
    double wake = print_row("futex wake", second, wakes, rounds);
    if (rank == 1) printf("  a word after a second takes %.2f of a futex wake\n", word / wake);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || rounds < 1 || rounds > MOST) return 1;
    pid_t child = fork();
    rank = child == 0 ? 1 : 0;
    pin(rank);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = 2;
    options.master_addr = "127.0.0.1";
    options.master_port = 29518;
    check(spark_comm_open(&options, &comm));
    measure(rounds);
    check(spark_comm_barrier(comm));
    spark_comm_close(comm);
    if (rank != 0) return 0;
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}
