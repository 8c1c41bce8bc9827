/*
 * One way of timing for every library that spark_comm is measured against. A peer program fills
 * struct harness_peer with its calls and hands it to harness_main, which takes the command line,
 * verifies, times and writes JSON (rank 0). The method is that of `spark-comm perf`: batches of
 * back-to-back calls, all ranks starting a batch together, the slowest rank counting per batch,
 * median and minimum over batches. With --aligned every call is timed alone besides, from an
 * instant on the common clock at which all ranks enter until the last one is done. With --rewrite
 * the input is written anew before every call, and the cost of that, measured alone, subtracted: the
 * only honest way to time memory in which nothing is copied.
 */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element type f32, counts in elements. A call that is NULL is left out. A failing call ends the
 * process with a message: there is nothing to save. */
struct harness_peer {
    const char *name;
    const char *version;
    int rank;
    int size;
    void (*barrier)(void);
    float *(*allocate)(size_t bytes); /* memory that needs no copies, zeros; kept until the end */
    /* Replaces each value by the largest of all ranks. */
    void (*largest)(double *values, int count);
    void (*all_reduce)(float *data, size_t count); /* sum, in place */
    void (*all_gather)(const float *send, float *recv, size_t count); /* count per rank */
    void (*reduce_scatter)(const float *send, float *recv, size_t count); /* sum, count per rank */
    void (*broadcast)(float *data, size_t count); /* from rank 0 */
    void (*send)(const float *data, size_t count, int peer);
    void (*recv)(float *data, size_t count, int peer);
};

/* Returns the exit code: 0, 1 on any wrong element, 2 for wrong usage. */
int harness_main(int argc, char **argv, const struct harness_peer *peer);

#ifdef __cplusplus
}
#endif

#endif
