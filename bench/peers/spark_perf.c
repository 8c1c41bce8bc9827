/*
 * spark_comm under the same harness as its peers: for aligned starts, which `spark-comm perf` does
 * not time from a common instant, and to check that perf's own timing and the harness agree.
 *
 *   gcc -O3 spark_perf.c harness.c -lspark_comm -lm, then
 *   spark-comm run -n 2 --bind core -- ./spark_perf [--op all] [--sizes 8,1K] [--aligned]
 */
#include "harness.h"

#include <spark_comm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static spark_comm *comm;

/* Out of the way, so that the timed calls do not clear its struct. */
static __attribute__((noinline, cold)) void fail(spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "spark_perf: %s: %s\n", spark_comm_status_name(st), error.message);
    exit(1);
}

static void check(spark_comm_status st) {
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) fail(st);
}

static uint64_t address(const void *data) {
    return (uint64_t)(uintptr_t)data;
}

static void barrier(void) {
    check(spark_comm_barrier(comm));
}

/* The exchange takes at most 64 KiB per rank. */
static void largest(double *values, int count) {
    int size = spark_comm_world_size(comm);
    double *all = malloc((size_t)size * (size_t)count * sizeof *all);
    if (all == NULL) exit(1);
    check(spark_comm_exchange_host(comm, values, all, (size_t)count * sizeof *all));
    for (int i = 0; i < size * count; i++)
        if (all[i] > values[i % count]) values[i % count] = all[i];
    free(all);
}

static void all_reduce(float *data, size_t count) {
    check(spark_comm_all_reduce(comm, address(data), count * sizeof *data));
}

static void all_gather(const float *send, float *recv, size_t count) {
    check(spark_comm_all_gather(comm, address(send), address(recv), count * sizeof *send));
}

static void reduce_scatter(const float *send, float *recv, size_t count) {
    check(spark_comm_reduce_scatter(comm, address(send), address(recv), count * sizeof *send));
}

static void broadcast(float *data, size_t count) {
    check(spark_comm_broadcast(comm, address(data), count * sizeof *data, 0));
}

static void send_to(const float *data, size_t count, int peer) {
    check(spark_comm_send_to(comm, address(data), count * sizeof *data, peer, 0));
}

static void recv_from(float *data, size_t count, int peer) {
    check(spark_comm_recv_from(comm, address(data), count * sizeof *data, peer, 0));
}

int main(int argc, char **argv) {
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    options.dtype = SPARK_COMM_F32;
    check(spark_comm_open(&options, &comm));
    struct harness_peer peer = {.name = "spark_comm",
                                .version = spark_comm_version(),
                                .rank = spark_comm_rank(comm),
                                .size = spark_comm_world_size(comm),
                                .barrier = barrier,
                                .largest = largest,
                                .all_reduce = all_reduce,
                                .all_gather = all_gather,
                                .reduce_scatter = reduce_scatter,
                                .broadcast = broadcast,
                                .send = send_to,
                                .recv = recv_from};
    int code = harness_main(argc, argv, &peer);
    spark_comm_close(comm);
    return code;
}
