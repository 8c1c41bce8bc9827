/*
 * What the public call adds to the exchange: an all_reduce through spark_comm_all_reduce beside the
 * shm backend's own function of the same build, and beside the machine's limit, one line handed over
 * each way. Two processes, each pinned to a CPU; the three alternate, and the median and range over
 * rounds count. Back to back, and with aligned starts: both ranks enter at one instant of the common
 * clock, and the last one done counts.
 *
 *   shm_call [ROUNDS [BYTES...]]      nine rounds, 8 bytes
 *
 * It looks inside the library, to call the backend without the api layer.
 */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/handle.h"
#include "api/lane.h"

enum { BARE, PUBLIC, LINES, WAYS, CALLS = 100000, BATCHES = 5, ALIGNED = 2000, PERIOD_NS = 6000 };

struct line {
    _Alignas(128) _Atomic uint64_t flag;
};

/* Of both processes. */
struct common {
    struct line lines[4];
    _Atomic uint64_t start; /* ticks of the first of a row of aligned calls; 0: not known yet */
    double spent[2][ALIGNED]; /* ticks from the instant of entry to the end, by rank */
};

static struct common *common;
static double ticks_per_ns;
static spark_comm *comm;
static int rank;
static uint64_t turn;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Out of the way, so that the loops do not clear its struct. */
static __attribute__((noinline, cold)) void fail(spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "shm_call: %s: %s\n", spark_comm_status_name(st), error.message);
    exit(1);
}

static void check(spark_comm_status st) {
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) fail(st);
}

static void hand_over(void) {
    turn++;
    atomic_store_explicit(&common->lines[(turn & 1) * 2 + (uint64_t)rank].flag, turn,
                          memory_order_release);
    while (atomic_load_explicit(&common->lines[(turn & 1) * 2 + 1 - (uint64_t)rank].flag,
                                memory_order_acquire) != turn)
        sc_wait_pause();
}

static void call_once(int way, void *data, size_t bytes) {
    if (way == PUBLIC) {
        check(spark_comm_all_reduce(comm, (uintptr_t)data, bytes));
    } else if (way == LINES) {
        hand_over();
    } else {
        spark_comm_op op = {.struct_size = sizeof op,
                            .kind = SPARK_COMM_OP_ALL_REDUCE,
                            .send = (uintptr_t)data,
                            .recv = (uintptr_t)data,
                            .bytes = bytes,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .peer = -1};
        spark_comm_call call = {.struct_size = sizeof call,
                                .ops = &op,
                                .op_count = 1,
                                .number = 1,
                                .epoch = 1,
                                .digest = 1,
                                .deadline_ns = INT64_MAX};
        check(comm->backend.all_reduce(comm->backend_state, &call));
    }
}

/* Nanoseconds per call: the least of a few batches. */
static double measure(int way, void *data, size_t bytes, int calls) {
    double least = 1e300;
    for (int batch = 0; batch < BATCHES; batch++) {
        memset(data, 0, bytes);
        check(spark_comm_barrier(comm));
        double start = now_ns();
        for (int i = 0; i < calls; i++)
            call_once(way, data, bytes);
        double each = (now_ns() - start) / calls;
        if (each < least) least = each;
    }
    return least;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds from the instant at which both enter until the last is done: the median of the calls
 * for which nobody came late. Rank 0's; 0 elsewhere. */
static double measure_aligned(int way, void *data, size_t bytes, int calls) {
    uint64_t period = (uint64_t)(ticks_per_ns * (PERIOD_NS + (double)bytes));
    uint64_t late = (uint64_t)(ticks_per_ns * 20);
    int good = 0;
    memset(data, 0, bytes);
    check(spark_comm_barrier(comm));
    if (rank == 0) atomic_store(&common->start, sc_ticks_now() + 20 * period);
    check(spark_comm_barrier(comm));
    uint64_t at = atomic_load(&common->start);
    for (int i = 0; i < calls; i++, at += period) {
        uint64_t entered;
        while ((entered = sc_ticks_now()) < at) {
        }
        call_once(way, data, bytes);
        common->spent[rank][i] = entered - at < late ? (double)(sc_ticks_now() - at) : INFINITY;
    }
    check(spark_comm_barrier(comm));
    for (int i = 0; rank == 0 && i < calls; i++) {
        double spent = fmax(common->spent[0][i], common->spent[1][i]);
        if (isfinite(spent)) common->spent[0][good++] = spent;
    }
    qsort(common->spent[0], (size_t)good, sizeof(double), compare);
    double median = common->spent[0][good / 2] / ticks_per_ns;
    check(spark_comm_barrier(comm));
    return rank == 0 ? median : 0;
}

static void print_row(const char *name, double *figures, int rounds) {
    qsort(figures, (size_t)rounds, sizeof *figures, compare);
    printf("  %-24s %8.1f ns   (%.1f .. %.1f)\n", name, figures[rounds / 2], figures[0],
           figures[rounds - 1]);
}

/* One table: back to back, or with aligned starts. */
static void compare_at(size_t bytes, int rounds, bool aligned) {
    double *figures = calloc((size_t)rounds * (WAYS + 1), sizeof *figures);
    void *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    int calls = bytes < 65536 ? CALLS / (1 + (int)bytes / 256) : CALLS / (int)(bytes / 256);
    if (figures == NULL || data == NULL) exit(1);
    if (calls < 20) calls = 20;
    if (aligned && calls > ALIGNED) calls = ALIGNED;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < WAYS; i++) {
            int way = (round + i) % WAYS;
            figures[way * rounds + round] = aligned ? measure_aligned(way, data, bytes, calls)
                                                    : measure(way, data, bytes, calls);
        }
        figures[WAYS * rounds + round] =
            figures[PUBLIC * rounds + round] - figures[BARE * rounds + round];
    }
    if (rank == 0) {
        printf("%zu bytes, %s\n", bytes, aligned ? "aligned starts" : "back to back");
        print_row("bare exchange", figures + BARE * rounds, rounds);
        print_row("public call", figures + PUBLIC * rounds, rounds);
        print_row("public minus bare", figures + WAYS * rounds, rounds);
        print_row("one line each way", figures + LINES * rounds, rounds);
    }
    free(data);
    free(figures);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED || rounds < 1) return 1;
    uint64_t ticks = sc_ticks_now();
    for (double begin = now_ns(); now_ns() - begin < 2e7;) {
    }
    ticks_per_ns = (double)(sc_ticks_now() - ticks) / 2e7;
    pid_t child = fork();
    rank = child == 0 ? 1 : 0;
    pin(rank);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = 2;
    options.master_addr = "127.0.0.1";
    options.master_port = 29517;
    options.dtype = SPARK_COMM_F32;
    check(spark_comm_open(&options, &comm));
    for (int i = 2; i < (argc > 2 ? argc : 3); i++) {
        size_t bytes = argc > 2 ? (size_t)strtoull(argv[i], NULL, 10) : 8;
        compare_at(bytes, rounds, false);
        compare_at(bytes, rounds, true);
    }
    spark_comm_close(comm);
    if (rank != 0) return 0;
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}
