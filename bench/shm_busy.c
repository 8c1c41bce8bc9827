/*
 * An 8-byte all_reduce between two ranks, each pinned to a CPU, while a third process burns the second
 * CPU, beside the same on a quiet machine: does a call fall into waiting for whole time slices? Calls
 * are timed one by one on rank 0, quiet and busy alternate, and the ratio of the medians counts.
 *
 *   shm_busy [ROUNDS]      nine rounds of 20,000 calls each way
 */
#include <sched.h>
#include <signal.h>
#include <spark_comm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 20000, MOST_ROUNDS = 100 };

static spark_comm *comm;
static int rank;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static __attribute__((noinline, cold)) void fail(spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "shm_busy: %s: %s\n", spark_comm_status_name(st), error.message);
    exit(1);
}

static void check(spark_comm_status st) {
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) fail(st);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static pid_t start_burner(void) {
    pid_t burner = fork();
    if (burner != 0) return burner;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(1);
    for (;;) {
    }
}

/* Median of calls timed one by one. */
static double measure(void) {
    static double took[CALLS];
    float data[2] = {1, 2};
    check(spark_comm_barrier(comm));
    for (int i = 0; i < CALLS; i++) {
        double begin = now_us();
        check(spark_comm_all_reduce(comm, (uintptr_t)data, sizeof data));
        took[i] = now_us() - begin;
        data[0] = data[1] = 1;
    }
    qsort(took, CALLS, sizeof *took, compare);
    return took[CALLS / 2];
}

static double busy_measure(void) {
    pid_t burner = rank == 0 ? start_burner() : -1;
    double median = measure();
    if (burner > 0) {
        kill(burner, SIGKILL);
        waitpid(burner, NULL, 0);
    }
    return median;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    double quiet[MOST_ROUNDS], busy[MOST_ROUNDS];
    spark_comm_options options;
    if (rounds < 1 || rounds > MOST_ROUNDS) return 2;
    spark_comm_options_init(&options, sizeof options);
    pid_t child = fork();
    rank = child == 0 ? 1 : 0;
    pin(rank);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = 2;
    options.master_addr = "127.0.0.1";
    options.master_port = 29519;
    options.dtype = SPARK_COMM_F32;
    check(spark_comm_open(&options, &comm));
    for (int round = 0; round < rounds; round++) {
        quiet[round] = measure();
        check(spark_comm_barrier(comm));
        busy[round] = busy_measure();
        check(spark_comm_barrier(comm));
    }
    spark_comm_close(comm);
    if (rank != 0) return 0;
    qsort(quiet, (size_t)rounds, sizeof *quiet, compare);
    qsort(busy, (size_t)rounds, sizeof *busy, compare);
    printf("8 bytes, p50 of single calls, median (range) of %d rounds\n", rounds);
    printf("  quiet          %.3f us (%.3f..%.3f)\n", quiet[rounds / 2], quiet[0],
           quiet[rounds - 1]);
    printf("  one CPU busy   %.3f us (%.3f..%.3f), %.2f times\n", busy[rounds / 2], busy[0],
           busy[rounds - 1], busy[rounds / 2] / quiet[rounds / 2]);
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}
