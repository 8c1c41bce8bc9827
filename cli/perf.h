/*
 * spark-comm perf: what its files share.
 *
 *   perf.c           the command line, and starting the ranks
 *   perf_device.c    device memory, for backends that work on it
 *   perf_session.c   one rank's run: open, agree, and for each operation and size verify and time
 *   perf_ops.c       the operations: their buffers, their call, their right result
 *   perf_values.c    input values whose right result is exact in every element type
 *   perf_measure.c   the clock work
 *   perf_report.c    table, progress line and JSON
 *   perf_plot.c      gnuplot
 */
#ifndef SC_PERF_H
#define SC_PERF_H

#include "spark_comm.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All ranks run the same code in the same order. Whatever could differ between them (memory, iteration
 * counts, verdicts) is exchanged first, so that they always make the same calls. */

enum { SC_PERF_BATCHES = 11, SC_PERF_MAX_SINGLES = 1000 };

/* --- the command line ------------------------------------------------------------------------ */

struct sc_perf_options {
    const char *command;
    int ranks; /* -n: start that many; 0: be one rank of the job of the environment */
    bool is_rank; /* started by `perf -n`: the ranks are there */
    const char *backend; /* NULL: not set */
    uint32_t ops; /* bit i: operation i of sc_perf_ops */
    bool all_ops; /* "all": those that the backend lacks are left out */
    size_t min_bytes;
    size_t max_bytes;
    int factor;
    int dtype;
    int redop;
    int iterations; /* calls per batch; 0: chosen by size */
    int warmup; /* untimed calls per size */
    bool symmetric;
    const char *json_file; /* NULL: none; "-": standard output, the table goes to standard error */
    const char *plot_file; /* NULL: none */
    char gnuplot[PATH_MAX];
};

/* --- values (perf_values.c) ------------------------------------------------------------------- */

/* Names as on the command line; NULL for an unknown number, 0 for an unknown name. */
const char *sc_perf_values_dtype_name(int dtype);
int sc_perf_values_dtype(const char *name);
const char *sc_perf_values_redop_name(int redop);
int sc_perf_values_redop(const char *name);
size_t sc_perf_values_size(int dtype); /* bytes per element */

/* Which values: a new seed gives new ones. */
struct sc_perf_values {
    int dtype;
    int redop;
    int world;
    uint64_t seed;
};

/* Elements first to first + count - 1 of a rank's input. */
void sc_perf_values_fill(const struct sc_perf_values *values, int rank, size_t first, size_t count,
                         void *out);
/* How many elements differ in any bit from the right result of the reduction. */
uint64_t sc_perf_values_wrong(const struct sc_perf_values *values, size_t first, size_t count,
                              const void *got);

/* Any bits, for operations that only move data; the owner is the rank that sends them. */
void sc_perf_values_fill_bits(uint64_t seed, int owner, size_t bytes, void *out);
uint64_t sc_perf_values_wrong_bits(uint64_t seed, int owner, size_t bytes, size_t element,
                                   const void *got);

/* --- operations (perf_ops.c) ------------------------------------------------------------------ */

/* One operation at one size, on one rank. */
struct sc_perf_call {
    const struct sc_perf_options *options;
    const struct sc_perf_op *op;
    spark_comm *comm;
    int rank;
    int world;
    size_t bytes; /* as passed to the call */
    unsigned char *send; /* in place: the same as recv */
    unsigned char *recv;
    struct sc_perf_device *device; /* NULL: the operation works on host memory */
    uint64_t send_address; /* what the operation is given: that memory, or the GPU's behind it */
    uint64_t recv_address;
    uint64_t seed; /* of the data under verification */
};

struct sc_perf_op {
    const char *name;
    int operation; /* SPARK_COMM_OP_*, for the rows of spark_comm_info */
    bool in_all; /* part of "--op all" */
    bool reduces; /* takes a reduction */
    bool sized; /* false: moves no data, one row */
    size_t max_bytes; /* 0: no limit of its own */
    size_t unit; /* sizes are multiples of it; 0: of the element */
    bool send_is_total; /* the send buffer holds every rank's share */
    bool recv_is_total;
    bool in_place; /* one buffer */
    spark_comm_status (*call)(const struct sc_perf_call *call);
    void (*fill)(const struct sc_perf_call *call);
    uint64_t (*wrong)(const struct sc_perf_call *call);
};

enum { SC_PERF_OP_COUNT = 8 };
extern const struct sc_perf_op sc_perf_ops[SC_PERF_OP_COUNT];

/* Bytes of the two buffers; recv is 0 when there is only one. */
size_t sc_perf_ops_send_bytes(const struct sc_perf_op *op, int world, size_t bytes);
size_t sc_perf_ops_recv_bytes(const struct sc_perf_op *op, int world, size_t bytes);
/* How much of its send buffer this rank sends in one call. */
size_t sc_perf_ops_source_bytes(const struct sc_perf_call *call);
/* What one call counts for: half for a ping-pong's round trip. */
double sc_perf_ops_time_share(const struct sc_perf_op *op, int world);
/* Bytes that the bandwidths are about, and the share of them that the busiest link carries. */
double sc_perf_ops_total_bytes(const struct sc_perf_op *op, int world, size_t bytes);
double sc_perf_ops_bus_factor(const struct sc_perf_op *op, int world);

/* --- device memory (perf_device.c) ------------------------------------------------------------- */

/* The driver, and the GPU of this rank; NULL with a message. */
struct sc_perf_device *sc_perf_device_open(const char *command);
void sc_perf_device_close(struct sc_perf_device *device);
uint64_t sc_perf_device_alloc(struct sc_perf_device *device, size_t bytes); /* 0: there is none */
void sc_perf_device_free(struct sc_perf_device *device, uint64_t address);
/* All that is enqueued has run. These three do nothing without a device. */
spark_comm_status sc_perf_device_sync(struct sc_perf_device *device);
/* The buffers of the call, to the GPU, and its result back. */
spark_comm_status sc_perf_device_upload(const struct sc_perf_call *call);
spark_comm_status sc_perf_device_download(const struct sc_perf_call *call);

/* --- timing (perf_measure.c) ------------------------------------------------------------------ */

struct sc_perf_times {
    double median_us; /* over batches, per call */
    double min_us; /* over batches, per call */
    double p99_us; /* over calls timed one by one */
    double aligned_us; /* median of those: all ranks enter together */
    int iterations; /* calls per batch */
};

spark_comm_status sc_perf_measure(const struct sc_perf_call *call, struct sc_perf_times *times);

/* spark_comm_exchange_host, and a plain copy in a world of one. */
spark_comm_status sc_perf_measure_gather(const struct sc_perf_call *call, const void *send,
                                         void *recv, size_t bytes);

/* --- results (perf_report.c, perf_plot.c) ------------------------------------------------------ */

struct sc_perf_result {
    const struct sc_perf_op *op;
    size_t bytes;
    uint64_t wrong;
    struct sc_perf_times times;
    double algbw_gbps; /* 10^9 bytes per second */
    double busbw_gbps;
    char path[32];
};

/* Only rank 0 has one; every function takes NULL and does nothing then. */
struct sc_perf_report;

/* Prints the heading. False with a message: the JSON file cannot be written, or memory ran out. */
bool sc_perf_report_open(const struct sc_perf_options *options, const char *backend,
                         const char *memory, int world, struct sc_perf_report **report);
void sc_perf_report_progress(struct sc_perf_report *report, const struct sc_perf_op *op,
                             size_t bytes);
__attribute__((format(printf, 2, 3))) void sc_perf_report_note(struct sc_perf_report *report,
                                                               const char *format, ...);
void sc_perf_report_add(struct sc_perf_report *report, const struct sc_perf_result *result);
/* Writes the summary, the JSON and the plot. SC_EXIT_GOOD or SC_EXIT_FAILED. */
int sc_perf_report_finish(struct sc_perf_report *report);
void sc_perf_report_close(struct sc_perf_report *report);

int sc_perf_plot(const struct sc_perf_options *options, const char *title,
                 const struct sc_perf_result *results, size_t count);

/* --- one rank's run (perf_session.c) ------------------------------------------------------------ */

int sc_perf_session(const struct sc_perf_options *options);

#endif
