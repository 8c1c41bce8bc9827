/*
 * What a call costs the host: ncclAllReduce called directly and spark_comm_all_reduce in turns, in one
 * run, on one GPU (a world of one rank; both make a copy there or nothing). Prints a table in Markdown.
 * With --memory it opens once and prints what NCCL took. Not a test: tests/gpu/check runs it and keeps its
 * output.
 */
#include <spark_comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/nccl/library.h"
#include "device.h"

#define ROUNDS 41
#define CALLS 100 /* between two waits: within the run-ahead of both */

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

static void fail(const char *what, int code) {
    fprintf(stderr, "host_cost: %s: %d\n", what, code);
    exit(1);
}

static sc_nccl_comm direct_communicator(const struct sc_nccl_library *nccl) {
    sc_nccl_id id;
    sc_nccl_comm comm = NULL;
    if (nccl->unique_id(&id) != SC_NCCL_OK) fail("ncclGetUniqueId", 1);
    int result = nccl->init(&comm, 1, id, 0, NULL); /* NULL: NCCL's own default, blocking */
    sc_nccl_result state = SC_NCCL_IN_PROGRESS;
    while (result == SC_NCCL_OK || result == SC_NCCL_IN_PROGRESS) {
        nccl->async_error(comm, &state);
        if (state != SC_NCCL_IN_PROGRESS) break;
    }
    if (state != SC_NCCL_OK) fail("ncclCommInitRankConfig", result);
    return comm;
}

static void measure(const struct sc_nccl_library *nccl, sc_nccl_comm direct, spark_comm *comm,
                    void *stream, uint64_t buffer, size_t bytes, const char *label) {
    double plain[ROUNDS], ours[ROUNDS], async[ROUNDS];
    for (int round = -5; round < ROUNDS; round++) {
        double start = now_us();
        for (int i = 0; i < CALLS; i++)
            nccl->all_reduce((void *)(uintptr_t)buffer, (void *)(uintptr_t)buffer, bytes / 2,
                             SC_NCCL_BF16, SC_NCCL_SUM, direct, stream);
        double end = now_us();
        device_driver()->stream_sync(stream);
        if (round >= 0) plain[round] = (end - start) / CALLS;
        start = now_us();
        for (int i = 0; i < CALLS; i++)
            if (spark_comm_all_reduce(comm, buffer, bytes) != SPARK_COMM_OK) fail("all_reduce", i);
        end = now_us();
        device_driver()->stream_sync(stream);
        if (round >= 0) ours[round] = (end - start) / CALLS;
        start = now_us();
        for (int i = 0; i < CALLS; i++)
            if (spark_comm_all_reduce_async(comm, buffer, bytes, (uint64_t)(uintptr_t)stream) !=
                SPARK_COMM_OK)
                fail("all_reduce_async", i);
        end = now_us();
        device_driver()->stream_sync(stream);
        if (round >= 0) async[round] = (end - start) / CALLS;
    }
    double a = median(plain), b = median(ours), c = median(async);
    printf("| %s | %zu | %.2f | %.2f | %+.2f | %.2f |\n", label, bytes, a, b, b - a, c);
}

static spark_comm *open_comm(void *stream) {
    spark_comm_options options;
    spark_comm *comm = NULL;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_options_init(&options, sizeof options);
    options.backend = "nccl";
    options.rank = 0;
    options.world_size = 1;
    options.device = 0;
    options.stream = (uint64_t)(uintptr_t)stream;
    if (spark_comm_open(&options, &comm) == SPARK_COMM_OK) return comm;
    spark_comm_last_error(NULL, &error);
    fprintf(stderr, "host_cost: %s\n", error.message);
    exit(1);
}

/* One row: how long open took, and what info says of NCCL. */
static int show_memory(const char *share) {
    spark_comm_info_report info = {.struct_size = sizeof info};
    double start = now_us();
    spark_comm *comm = open_comm(NULL);
    double took = (now_us() - start) / 1e3;
    spark_comm_info(comm, &info);
    printf("| %s | %s | %.0f ms |\n", share, info.library_version, took);
    spark_comm_close(comm);
    return 0;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {4096, 16384, 65536, 1048576};
    const struct sc_nccl_library *nccl;
    const char *file = getenv("SPARK_COMM_NCCL_LIBRARY");
    struct sc_error error;
    void *stream = NULL;
    if (argc == 3 && strcmp(argv[1], "--memory") == 0) return show_memory(argv[2]);
    if (sc_nccl_library_load(file != NULL ? file : "", &nccl, &error) != SPARK_COMM_OK) {
        fprintf(stderr, "host_cost: %s\n", error.message);
        return 1;
    }
    if (!device_use(0)) fail("no GPU", 0);
    device_driver()->stream_create(&stream, 1, 0);
    uint64_t buffer = device_make(NULL, 1 << 20);
    sc_nccl_comm direct = direct_communicator(nccl);
    printf("Host cost per call, us, medians of %d rounds of %d calls, in turns; one rank\n\n",
           ROUNDS, CALLS);
    printf("| pointer check | bytes | ncclAllReduce | spark_comm_all_reduce | more | "
           "all_reduce_async |\n|---|---|---|---|---|---|\n");
    for (int check = 0; check < 2; check++) {
        setenv("SPARK_COMM_CHECK_POINTERS", check ? "1" : "0", 1);
        spark_comm *comm = open_comm(stream);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            measure(nccl, direct, comm, stream, buffer, sizes[i], check ? "on" : "off");
        spark_comm_close(comm);
    }
    nccl->destroy(direct);
    return 0;
}
