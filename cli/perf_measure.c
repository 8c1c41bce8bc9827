/*
 * The clock work: how long one call takes.
 *
 *   batches   SC_PERF_BATCHES batches of back-to-back calls. All ranks start a batch together; per
 *             batch the slowest rank counts; median and minimum are over batches.
 *   singles   calls timed one by one, each after a barrier, the slowest rank counting again: their
 *             99th percentile, and their median, which is the time when all ranks enter together.
 *
 * With --symmetric no copy is made on the way in, so a loop over an unchanged buffer would move no
 * user data at all between the ranks: the buffer is rewritten before every call, and what
 * the rewriting alone costs is measured and subtracted. Each rank finds its numbers by itself and
 * all agree on the largest, so that they always make the same calls.
 *
 * On a GPU a batch ends when the GPU is done with it, and a single too.
 */
#include "cli.h"
#include "perf.h"

#include <stdlib.h>
#include <string.h>

enum {
    CALIBRATION_NS = 1000000, /* a probe this long is believed */
    BATCH_NS = 8000000,
    SINGLES_NS = 50000000,
    MAX_PROBE = 1 << 16,
    MAX_ITERATIONS = 100000,
    MIN_ITERATIONS = 3,
    MIN_SINGLES = 20,
    PROBE_SINGLES = 4
};

struct timing {
    const struct sc_perf_call *call;
    size_t rewrite_bytes; /* rewritten before each call; 0: nothing */
    uint64_t calls; /* made so far: decides what is written next */
    double *own; /* nanoseconds per call, this rank */
    double *all; /* the same of every rank */
};

spark_comm_status sc_perf_measure_gather(const struct sc_perf_call *call, const void *send,
                                         void *recv, size_t bytes) {
    if (call->world == 1) {
        memcpy(recv, send, bytes);
        return SPARK_COMM_OK;
    }
    return spark_comm_exchange_host(call->comm, send, recv, bytes);
}

/* Replaces each of this rank's numbers by the largest of all ranks. */
static spark_comm_status take_slowest(struct timing *t, size_t count) {
    spark_comm_status st = sc_perf_measure_gather(t->call, t->own, t->all, count * sizeof *t->own);
    if (st) return st;
    for (int rank = 0; rank < t->call->world; rank++) {
        for (size_t i = 0; i < count; i++) {
            double other = t->all[(size_t)rank * count + i];
            if (other > t->own[i]) t->own[i] = other;
        }
    }
    return SPARK_COMM_OK;
}

/* 0x3e3e... and 0x3f3f... are ordinary numbers in every element type. */
static void rewrite(struct timing *t) {
    if (t->call->send == NULL) return;
    memset(t->call->send, 0x3e + (int)(t->calls++ & 1), t->rewrite_bytes);
}

/* Calls back to back; *ns is the time of one. */
static spark_comm_status time_batch(struct timing *t, int calls, double *ns) {
    spark_comm_status st = spark_comm_barrier(t->call->comm);
    int64_t begin = sc_cli_now_ns();
    for (int i = 0; i < calls && !st; i++) {
        if (t->rewrite_bytes) rewrite(t);
        st = t->call->op->call(t->call);
    }
    if (!st) st = sc_perf_device_sync(t->call->device);
    *ns = (double)(sc_cli_now_ns() - begin) / calls;
    return st;
}

static spark_comm_status time_single(struct timing *t, double *ns) {
    if (t->rewrite_bytes) rewrite(t);
    spark_comm_status st = spark_comm_barrier(t->call->comm);
    if (st) return st;
    int64_t begin = sc_cli_now_ns();
    st = t->call->op->call(t->call);
    if (!st) st = sc_perf_device_sync(t->call->device);
    *ns = (double)(sc_cli_now_ns() - begin);
    return st;
}

/* What rewriting costs by itself, per call: the least of a few rounds, so that a disturbance can't
 * make the operation look faster than it is. */
static double time_rewrite(struct timing *t, int calls) {
    double least = 0;
    for (int round = 0; round < 3 && t->rewrite_bytes; round++) {
        int64_t begin = sc_cli_now_ns();
        for (int i = 0; i < calls; i++) {
            rewrite(t);
            __asm__ volatile("" : : "r"(t->call->send) : "memory");
        }
        double ns = (double)(sc_cli_now_ns() - begin) / calls;
        if (round == 0 || ns < least) least = ns;
    }
    return least;
}

static int clamp(double wanted, int low, int high) {
    if (wanted < low) return low;
    return wanted > high ? high : (int)wanted;
}

/* How many calls fill a batch, and how many singles there is time for. */
static spark_comm_status calibrate(struct timing *t, int *iterations, int *singles) {
    int given = t->call->options->iterations;
    spark_comm_status st = SPARK_COMM_OK;
    double ns = 0;
    for (int calls = 1; !given && !st && calls <= MAX_PROBE; calls *= 4) {
        st = time_batch(t, calls, &t->own[0]);
        if (!st) st = take_slowest(t, 1);
        ns = t->own[0];
        if (ns * calls >= CALIBRATION_NS) break;
    }
    *iterations = given ? given : clamp(BATCH_NS / (ns + 1), MIN_ITERATIONS, MAX_ITERATIONS);

    /* Singles cost their barrier and rewriting besides. */
    int64_t begin = sc_cli_now_ns();
    double ignored;
    for (int i = 0; i < PROBE_SINGLES && !st; i++) {
        st = time_single(t, &ignored);
    }
    t->own[0] = (double)(sc_cli_now_ns() - begin) / PROBE_SINGLES;
    if (!st) st = take_slowest(t, 1);
    *singles = clamp(SINGLES_NS / (t->own[0] + 1), MIN_SINGLES, SC_PERF_MAX_SINGLES);
    return st;
}

static int compare(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return (a > b) - (a < b);
}

/* Nearest rank, of sorted numbers. */
static double percentile(const double *sorted, int count, int percent) {
    int index = (count * percent + 99) / 100 - 1;
    return sorted[index < 0 ? 0 : index];
}

static spark_comm_status measure_batches(struct timing *t, int iterations,
                                         struct sc_perf_times *times) {
    double share = sc_perf_ops_time_share(t->call->op, t->call->world) / 1000;
    double rewriting = time_rewrite(t, iterations);
    for (int i = 0; i < SC_PERF_BATCHES; i++) {
        spark_comm_status st = time_batch(t, iterations, &t->own[i]);
        if (st) return st;
        t->own[i] = t->own[i] > rewriting ? t->own[i] - rewriting : 0;
    }
    spark_comm_status st = take_slowest(t, SC_PERF_BATCHES);
    qsort(t->own, SC_PERF_BATCHES, sizeof *t->own, compare);
    times->median_us = t->own[SC_PERF_BATCHES / 2] * share;
    times->min_us = t->own[0] * share;
    times->iterations = iterations;
    return st;
}

static spark_comm_status measure_singles(struct timing *t, int singles,
                                         struct sc_perf_times *times) {
    double share = sc_perf_ops_time_share(t->call->op, t->call->world) / 1000;
    for (int i = 0; i < singles; i++) {
        spark_comm_status st = time_single(t, &t->own[i]);
        if (st) return st;
    }
    spark_comm_status st = take_slowest(t, (size_t)singles);
    qsort(t->own, (size_t)singles, sizeof *t->own, compare);
    times->p99_us = percentile(t->own, singles, 99) * share;
    times->aligned_us = percentile(t->own, singles, 50) * share;
    return st;
}

spark_comm_status sc_perf_measure(const struct sc_perf_call *call, struct sc_perf_times *times) {
    struct timing t = {.call = call};
    int iterations = 0, singles = 0;
    spark_comm_status st = SPARK_COMM_NO_MEMORY;

    t.own = calloc(SC_PERF_MAX_SINGLES, sizeof *t.own);
    t.all = calloc((size_t)call->world * SC_PERF_MAX_SINGLES, sizeof *t.all);
    if (!t.own || !t.all) goto out;
    if (call->options->symmetric && !call->device) t.rewrite_bytes = sc_perf_ops_source_bytes(call);

    /* Sums of zeros stay zero, however often the same buffer is reduced in place. */
    if (call->send)
        memset(call->send, 0, sc_perf_ops_send_bytes(call->op, call->world, call->bytes));
    st = sc_perf_device_upload(call);
    for (int i = 0; i < call->options->warmup && !st; i++) {
        st = call->op->call(call);
    }
    if (!st) st = calibrate(&t, &iterations, &singles);
    if (!st) st = measure_batches(&t, iterations, times);
    if (!st) st = measure_singles(&t, singles, times);
out:
    free(t.all);
    free(t.own);
    return st;
}
