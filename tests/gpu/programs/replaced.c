/*
 * The last rank of a job is killed and replaced again and again; the others reconnect. After each time
 * the sums must be right, and the device memory that is used stays what it was after the first. Run as
 * a job of `spark-comm run --restart`, which starts a killed rank again; prints a table in Markdown.
 */
#include <signal.h>
#include <spark_comm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

#define COUNT 4096
#define LEAK_BYTES ((size_t)64 << 20)

static int rank, size;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static spark_comm *comm;

static void fail(const char *what) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "replaced: rank %d: %s (%s)\n", rank, what, error.message);
    exit(1);
}

/* Which round it is, from rank 0 to all; false when the communicator is lost. */
static int agree_round(int round) {
    int32_t all[16];
    const int32_t mine = round;
    if (spark_comm_exchange_host(comm, &mine, all, sizeof mine) != SPARK_COMM_OK) return -1;
    return all[0];
}

static void check_sums(uint64_t buffer, int round) {
    float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(i + round + rank);
    if (device_driver()->to_device(buffer, values, sizeof values, NULL) != 0) fail("copy");
    if (spark_comm_all_reduce(comm, buffer, sizeof values) != SPARK_COMM_OK) fail("all_reduce");
    if (!device_settle(NULL, 10000)) fail("the sum does not end");
    if (!device_read(values, buffer, sizeof values)) fail("copy");
    for (int i = 0; i < COUNT; i++)
        if (values[i] != (float)(size * (i + round) + size * (size - 1) / 2)) fail("a wrong sum");
}

/* Sums until the communicator is lost. */
static void work(uint64_t buffer) {
    while (spark_comm_is_healthy(comm) &&
           spark_comm_all_reduce(comm, buffer, COUNT * 4) == SPARK_COMM_OK)
        device_settle(NULL, 5);
}

static void play_victim(uint64_t buffer, int rounds) {
    const int round = agree_round(0);
    check_sums(buffer, round);
    if (round >= rounds) return;
    for (int i = 0; i < 30; i++)
        spark_comm_all_reduce(comm, buffer, COUNT * 4);
    kill(getpid(), SIGKILL);
}

static void show(void *user, int level, const char *message) {
    (void)user;
    (void)level;
    fprintf(stderr, "replaced: rank %d: %.0f ms: %s\n", rank, now_ms(), message);
}

static spark_comm *open_comm(void) {
    spark_comm_options options;
    spark_comm *opened = NULL;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "nccl";
    options.device = rank;
    options.dtype = SPARK_COMM_F32;
    options.rendezvous_timeout_ms = 30000;
    options.log = show;
    if (spark_comm_open(&options, &opened) != SPARK_COMM_OK) fail("open");
    return opened;
}

static void fail_to_reconnect(void) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(NULL, &error);
    fprintf(stderr, "replaced: rank %d: reconnect: %s\n", rank, error.message);
    exit(1);
}

static void survive(uint64_t buffer, int rounds, double opened) {
    size_t unused = 0, total = 0, first = 0;
    double slowest = 0, fastest = 1e9, start = now_ms();
    if (rank == 0)
        printf("| round | open, or slowest reconnect so far, ms | first sum, ms | device memory "
               "used, MiB |\n|---|---|---|---|\n");
    for (int round = 0;; round++) {
        if (round > 0) {
            work(buffer);
            start = now_ms();
            if (spark_comm_attempt_reconnect(comm) != SPARK_COMM_OK) fail_to_reconnect();
            const double took = now_ms() - start;
            slowest = took > slowest ? took : slowest;
            fastest = took < fastest ? took : fastest;
        }
        agree_round(round);
        start = now_ms();
        check_sums(buffer, round);
        const double sum = now_ms() - start;
        device_driver()->memory_info(&unused, &total);
        if (round == 1) first = unused;
        if (round > 0 && first > unused && first - unused > LEAK_BYTES)
            fail("device memory is lost");
        if (rank == 0 && (round < 3 || round == rounds))
            printf("| %d | %.0f | %.2f | %zu |\n", round, round == 0 ? opened : slowest, sum,
                   (total - unused) >> 20);
        if (round == rounds) break;
    }
    if (rank == 0)
        printf("\nreconnect, with the start of the new process: %.0f to %.0f ms\n", fastest,
               slowest);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 20;
    if (getenv("RANK") == NULL) return 2;
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    if (!device_use(rank)) fail("no GPU");
    const uint64_t buffer = device_make(NULL, COUNT * 4);
    const double start = now_ms();
    comm = open_comm();
    if (rank == size - 1)
        play_victim(buffer, rounds);
    else
        survive(buffer, rounds, now_ms() - start);
    spark_comm_close(comm);
    return 0;
}
