/*
 * all_reduce over symmetric memory beside the same call over private memory: two processes, each
 * pinned to a CPU, f32 sums in place. Zero copy is only honest when the buffer is rewritten before
 * every call, since otherwise no data cross; so both rewrite it, and the cost of the rewrite, measured
 * alone in the same way, is subtracted from both. The ways alternate, and median and range over
 * rounds count.
 *
 *   shm_symmetric [OP [ROUNDS [BYTES...]]]      all_reduce, nine rounds, 4 KiB to 16 MiB
 *
 * OP is all_reduce, all_gather or reduce_scatter; BYTES are one rank's input.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <spark_comm.h>

enum { PRIVATE, SYMMETRIC, WAYS, BATCHES = 5, MOST_ROUNDS = 99 };
#define LARGEST ((size_t)16 << 20)
#define BATCH_BYTES ((size_t)32 << 20) /* reduced in one batch, but 3 to 2,000 calls */

static spark_comm *comm;
static int rank;
static unsigned char *memory[WAYS]; /* input and result, LARGEST each, of which the result is used
                                       out of place */
static int kind = SPARK_COMM_OP_ALL_REDUCE;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void check(spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    if (st == SPARK_COMM_OK) return;
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "shm_symmetric: %s: %s\n", spark_comm_status_name(st), error.message);
    exit(1);
}

/* As a producer of data would do it: every byte anew, and another value in each call. */
static void rewrite(unsigned char *data, size_t bytes, int turn) {
    memset(data, turn & 0x3f, bytes);
    __asm__ volatile("" : : "r"(data) : "memory");
}

static void call_once(unsigned char *data, size_t bytes) {
    uint64_t input = (uint64_t)(uintptr_t)data, result = input + LARGEST;
    if (kind == SPARK_COMM_OP_ALL_REDUCE)
        check(spark_comm_all_reduce(comm, input, bytes));
    else if (kind == SPARK_COMM_OP_ALL_GATHER)
        check(spark_comm_all_gather(comm, input, result, bytes));
    else
        check(spark_comm_reduce_scatter(comm, input, result, bytes / 2));
}

/* Nanoseconds per call with the rewrite, or (`call` false) of the rewrite alone: least of batches. */
static double measure(int way, size_t bytes, int calls, int call) {
    double least = 1e300;
    for (int batch = 0; batch < BATCHES; batch++) {
        check(spark_comm_barrier(comm));
        double start = now_ns();
        for (int i = 0; i < calls; i++) {
            rewrite(memory[way], bytes, i);
            if (call) call_once(memory[way], bytes);
        }
        double each = (now_ns() - start) / calls;
        if (each < least) least = each;
    }
    return least;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, double *figures, int rounds) {
    qsort(figures, (size_t)rounds, sizeof *figures, compare);
    printf("  %-10s %10.2f us   (%.2f .. %.2f)", name, figures[rounds / 2] / 1000,
           figures[0] / 1000, figures[rounds - 1] / 1000);
}

static void compare_at(size_t bytes, int rounds) {
    double figures[WAYS][MOST_ROUNDS];
    size_t wanted = BATCH_BYTES / bytes;
    int calls = wanted < 3 ? 3 : wanted > 2000 ? 2000 : (int)wanted;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < WAYS; i++) {
            int way = (round + i) % WAYS;
            double both = measure(way, bytes, calls, 1);
            figures[way][round] = both - measure(way, bytes, calls, 0);
        }
    }
    if (rank != 0) return;
    printf("%9zu bytes", bytes);
    print_row("private", figures[PRIVATE], rounds);
    print_row("symmetric", figures[SYMMETRIC], rounds);
    printf("  %5.2fx\n", figures[PRIVATE][rounds / 2] / figures[SYMMETRIC][rounds / 2]);
    fflush(stdout);
}

static void open_pinned(void) {
    spark_comm_options options;
    uint64_t ptr = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank, &set);
    sched_setaffinity(0, sizeof set, &set);
    spark_comm_options_init(&options, sizeof options);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = 2;
    options.master_addr = "127.0.0.1";
    options.master_port = 29518;
    options.dtype = SPARK_COMM_F32;
    check(spark_comm_open(&options, &comm));
    check(spark_comm_symmetric_alloc(comm, 3 * LARGEST, &ptr));
    memory[SYMMETRIC] = (unsigned char *)(uintptr_t)ptr;
    memory[PRIVATE] = aligned_alloc(4096, 3 * LARGEST);
    if (memory[PRIVATE] == NULL) exit(1);
    for (int way = 0; way < WAYS; way++)
        memset(memory[way], 0, 3 * LARGEST);
}

int main(int argc, char **argv) {
    static const char *const names[] = {[SPARK_COMM_OP_ALL_REDUCE] = "all_reduce",
                                        [SPARK_COMM_OP_ALL_GATHER] = "all_gather",
                                        [SPARK_COMM_OP_REDUCE_SCATTER] = "reduce_scatter"};
    int rounds = argc > 2 ? atoi(argv[2]) : 9;
    for (int k = SPARK_COMM_OP_ALL_REDUCE; argc > 1 && k <= SPARK_COMM_OP_REDUCE_SCATTER; k++)
        if (strcmp(argv[1], names[k]) == 0) kind = k;
    if (rounds < 1 || rounds > MOST_ROUNDS) return 2;
    pid_t child = fork();
    rank = child == 0 ? 1 : 0;
    open_pinned();
    for (size_t bytes = 4096; argc < 4 && bytes <= LARGEST; bytes *= 4)
        compare_at(bytes, rounds);
    for (int i = 3; i < argc; i++) {
        size_t bytes = (size_t)strtoull(argv[i], NULL, 0);
        if (bytes >= 8 && bytes % 8 == 0 && bytes <= LARGEST) compare_at(bytes, rounds);
    }
    spark_comm_close(comm);
    if (rank != 0) return 0;
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}
