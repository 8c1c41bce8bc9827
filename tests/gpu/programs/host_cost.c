/*
 * What a call costs: ncclAllReduce called directly and spark_comm_all_reduce in turns, in one run. Alone
 * it is one rank on one GPU, where both make a copy or nothing, so only the host's cost says something;
 * as a job of `spark-comm run` each rank takes its own GPU. Prints tables in Markdown.
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

static int rank, size = 1;

/* NCCL's own default: blocking. The id goes round by our library. */
static sc_nccl_comm direct_communicator(const struct sc_nccl_library *nccl, spark_comm *comm) {
    sc_nccl_id id, ids[16];
    sc_nccl_comm direct = NULL;
    if (nccl->unique_id(&id) != SC_NCCL_OK) fail("ncclGetUniqueId", 1);
    if (spark_comm_exchange_host(comm, &id, ids, sizeof id) != SPARK_COMM_OK) fail("the id", 1);
    int result = nccl->init(&direct, size, ids[0], rank, NULL);
    sc_nccl_result state = SC_NCCL_IN_PROGRESS;
    while (result == SC_NCCL_OK || result == SC_NCCL_IN_PROGRESS) {
        nccl->async_error(direct, &state);
        if (state != SC_NCCL_IN_PROGRESS) break;
    }
    if (state != SC_NCCL_OK) fail("ncclCommInitRankConfig", result);
    return direct;
}

/* What is compared, and with what. */
struct subject {
    const struct sc_nccl_library *nccl;
    sc_nccl_comm direct;
    spark_comm *comm;
    void *stream;
    uint64_t buffer;
    size_t bytes;
};
enum { PLAIN, OURS, ASYNC, WAYS };

static void call(const struct subject *s, int way) {
    void *buffer = (void *)(uintptr_t)s->buffer;
    int result;
    if (way == PLAIN)
        result = s->nccl->all_reduce(buffer, buffer, s->bytes / 2, SC_NCCL_BF16, SC_NCCL_SUM,
                                     s->direct, s->stream);
    else if (way == OURS)
        result = spark_comm_all_reduce(s->comm, s->buffer, s->bytes);
    else
        result = spark_comm_all_reduce_async(s->comm, s->buffer, s->bytes,
                                             (uint64_t)(uintptr_t)s->stream);
    if (result != 0) fail("a call", result);
}

/* Eager: the host's cost of a call, and the time until the GPU is done, both in us per call. */
static void measure(const struct subject *s, const char *label) {
    double host[WAYS][ROUNDS], all[WAYS][ROUNDS], h[WAYS], t[WAYS];
    for (int round = -5; round < ROUNDS; round++) {
        for (int way = 0; way < WAYS; way++) {
            if (size > 1) spark_comm_barrier(s->comm);
            const double start = now_us();
            for (int i = 0; i < CALLS; i++)
                call(s, way);
            const double end = now_us();
            device_driver()->stream_sync(s->stream);
            if (round < 0) continue;
            host[way][round] = (end - start) / CALLS;
            all[way][round] = (now_us() - start) / CALLS;
        }
    }
    for (int way = 0; way < WAYS; way++) {
        h[way] = median(host[way]);
        t[way] = median(all[way]);
    }
    if (rank == 0)
        printf("| %s | %zu | %.2f | %.2f | %+.2f | %.2f | %.2f | %.2f | %.2f |\n", label, s->bytes,
               h[PLAIN], h[OURS], h[OURS] - h[PLAIN], h[ASYNC], t[PLAIN], t[OURS], t[ASYNC]);
}

/* Calls timed one by one: what the slow ones take, and whether they are NCCL's own. */
static void measure_singles(const struct subject *s) {
    static const char *const names[WAYS] = {"ncclAllReduce", "spark_comm_all_reduce",
                                            "spark_comm_all_reduce_async"};
    enum { SINGLES = 5000 };
    static double took[WAYS][SINGLES];
    for (int i = -200; i < SINGLES; i++)
        for (int way = 0; way < WAYS; way++) {
            const double start = now_us();
            call(s, way);
            if (i >= 0) took[way][i] = now_us() - start;
            if (i % 20 == 0) device_driver()->stream_sync(s->stream);
        }
    for (int way = 0; way < WAYS && rank == 0; way++) {
        qsort(took[way], SINGLES, sizeof took[way][0], compare);
        if (way == 0)
            printf("\n| one call of %zu bytes, us | median | p90 | p99 | p99.9 | most |\n"
                   "|---|---|---|---|---|---|\n",
                   s->bytes);
        printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f |\n", names[way], took[way][SINGLES / 2],
               took[way][SINGLES * 9 / 10], took[way][SINGLES * 99 / 100],
               took[way][SINGLES * 999 / 1000], took[way][SINGLES - 1]);
    }
}

/* The same from a graph of so many calls: us per call. */
static void measure_graphs(const struct subject *s) {
    const struct device_driver *cuda = device_driver();
    void *graphs[2], *execs[2];
    double took[2][ROUNDS], m[2];
    const int calls = s->bytes > (4 << 20) ? 10 : CALLS;
    for (int way = 0; way < 2; way++) {
        if (cuda->begin(s->stream, 2) != 0) fail("capture", way);
        for (int i = 0; i < calls; i++)
            call(s, way);
        if (cuda->end(s->stream, &graphs[way]) != 0) fail("capture", way);
        if (cuda->instantiate(&execs[way], graphs[way], 0) != 0) fail("instantiate", way);
    }
    for (int round = -3; round < ROUNDS; round++) {
        for (int way = 0; way < 2; way++) {
            if (size > 1) spark_comm_barrier(s->comm);
            const double start = now_us();
            cuda->launch(execs[way], s->stream);
            cuda->stream_sync(s->stream);
            if (round >= 0) took[way][round] = (now_us() - start) / calls;
        }
    }
    for (int way = 0; way < 2; way++) {
        m[way] = median(took[way]);
        cuda->exec_destroy(execs[way]);
        cuda->graph_destroy(graphs[way]);
    }
    if (rank == 0)
        printf("| %zu | %.2f | %.2f | %.3f |\n", s->bytes, m[PLAIN], m[OURS], m[OURS] / m[PLAIN]);
}

static spark_comm *open_comm(void *stream) {
    spark_comm_options options;
    spark_comm *comm = NULL;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_options_init(&options, sizeof options);
    options.backend = "nccl";
    options.rank = rank;
    options.world_size = size;
    options.device = rank;
    options.stream = (uint64_t)(uintptr_t)stream;
    if (spark_comm_open(&options, &comm) == SPARK_COMM_OK) return comm;
    spark_comm_last_error(NULL, &error);
    fprintf(stderr, "host_cost: %s\n", error.message);
    exit(1);
}

/* One row: how long open took, and what info says of NCCL. */
static int show_memory(const char *share) {
    spark_comm_info_report info = {.struct_size = sizeof info};
    if (!device_use(rank)) fail("no GPU", rank);
    const uint64_t buffer = device_make(NULL, 1 << 20);
    const double start = now_us();
    spark_comm *comm = open_comm(NULL);
    const double opened = now_us();
    if (spark_comm_all_reduce(comm, buffer, 1 << 20) != SPARK_COMM_OK) fail("a call", 0);
    device_settle(NULL, 10000);
    const double called = now_us();
    spark_comm_info(comm, &info);
    spark_comm_close(comm);
    if (rank == 0)
        printf("| nccl_split_share | info | open, ms | first sum, ms | close, ms |\n"
               "|---|---|---|---|---|\n| %s | %s | %.0f | %.2f | %.0f |\n",
               share, info.library_version, (opened - start) / 1e3, (called - opened) / 1e3,
               (now_us() - called) / 1e3);
    return 0;
}

static void compare_costs(struct subject *s) {
    static const size_t sizes[] = {4096, 16384, 65536, 1 << 20, 16 << 20, 256 << 20};
    const size_t count = size > 1 ? sizeof sizes / sizeof sizes[0] : 4;
    if (rank == 0)
        printf(
            "Host cost per call and time per call until the GPU is done, us, medians of %d rounds "
            "of %d calls, in turns; %d rank(s)\n\n"
            "| pointer check | bytes | ncclAllReduce, host | spark_comm_all_reduce, host | more | "
            "all_reduce_async, host | ncclAllReduce, done | spark_comm_all_reduce, done | "
            "all_reduce_async, done |\n|---|---|---|---|---|---|---|---|---|\n",
            ROUNDS, CALLS, size);
    for (int check = 0; check < 2; check++) {
        setenv("SPARK_COMM_CHECK_POINTERS", check ? "1" : "0", 1);
        s->comm = open_comm(s->stream);
        if (s->direct == NULL) s->direct = direct_communicator(s->nccl, s->comm);
        for (size_t i = 0; i < (count < 4 ? count : 4); i++) {
            s->bytes = sizes[i];
            measure(s, check ? "on" : "off");
        }
        s->bytes = 16384;
        measure_singles(s);
        if (check == 1 && size > 1) {
            if (rank == 0)
                printf(
                    "\nFrom graphs of %d calls (10 above 4 MiB), us per call\n\n"
                    "| bytes | ncclAllReduce | spark_comm_all_reduce | ratio |\n|---|---|---|---|\n",
                    CALLS);
            for (size_t i = 0; i < count; i++) {
                s->bytes = sizes[i];
                measure_graphs(s);
            }
        }
        spark_comm_close(s->comm);
    }
}

int main(int argc, char **argv) {
    struct subject s = {0};
    const char *file = getenv("SPARK_COMM_NCCL_LIBRARY");
    struct sc_error error;
    if (getenv("RANK") != NULL) {
        rank = atoi(getenv("RANK"));
        size = atoi(getenv("WORLD_SIZE"));
    }
    if (argc == 3 && strcmp(argv[1], "--memory") == 0) return show_memory(argv[2]);
    if (sc_nccl_library_load(file != NULL ? file : "", &s.nccl, &error) != SPARK_COMM_OK) {
        fprintf(stderr, "host_cost: %s\n", error.message);
        return 1;
    }
    if (!device_use(rank)) fail("no GPU", rank);
    device_driver()->stream_create(&s.stream, 1, 0);
    s.buffer = device_make(NULL, size > 1 ? 256 << 20 : 1 << 20);
    compare_costs(&s);
    s.nccl->destroy(s.direct);
    return 0;
}
