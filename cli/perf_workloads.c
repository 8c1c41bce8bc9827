/*
 * perf --workload: the communication of a known model, in the order in which an engine makes it.
 *
 *   decode step     a command word of rank 0's; for each layer its all-reduces of batch x hidden
 *                   elements; the logits of all parts of the vocabulary
 *   prefill chunk   the same with the chunk's tokens for the batch, and the logits of one token
 *
 * Nothing is computed in between, so the times bound what any engine on this layer can reach. On host
 * memory the calls are made one by one. With device memory a step would also be captured in a graph and
 * replayed, which is not there yet (perf_session.c refuses it).
 */
#include "cli.h"
#include "perf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tensor-parallel over all ranks: attention's output and the feed-forward net's (of the experts, where
 * there are some) are each reduced once. hidden_size, num_hidden_layers and vocab_size are those of
 * the config.json that each model is published with. */
static const struct workload {
    const char *name;
    size_t hidden, layers, reduces, vocabulary;
    const char *source;
} workloads[] = {
    {"smollm2-135m", 576, 30, 2, 49152, "config.json of HuggingFaceTB/SmolLM2-135M-Instruct"},
    {"llama-3.1-70b", 8192, 80, 2, 128256, "config.json of meta-llama/Llama-3.1-70B-Instruct"},
    {"qwen3-235b-a22b", 4096, 94, 2, 151936, "config.json of Qwen/Qwen3-235B-A22B"},
    {"deepseek-v3", 7168, 61, 2, 129280, "config.json of deepseek-ai/DeepSeek-V3"},
    {"gpt-oss-120b", 2880, 36, 2, 201088, "config.json of openai/gpt-oss-120b"},
};
enum { WORKLOADS = sizeof workloads / sizeof *workloads };
enum { WARMUP = 2, MIN_STEPS = 5, MAX_STEPS = 401, ENOUGH_NS = 1000000000, ALIGNMENT = 4096 };

struct replay {
    const struct sc_perf_call *call; /* communicator, rank, world, options */
    const struct workload *workload;
    size_t element; /* bytes */
    unsigned char *hidden, *logits;
    size_t tokens, rows; /* of this step; rows: tokens whose logits are wanted */
};

struct outcome {
    double median_us, min_us;
    int steps;
};

int sc_perf_workload_find(const char *name) {
    for (int i = 0; i < WORKLOADS; i++)
        if (strcmp(workloads[i].name, name) == 0) return i + 1;
    return 0;
}

static size_t reduce_bytes(const struct replay *r) {
    return r->tokens * r->workload->hidden * r->element;
}

/* One rank's part of the logits; the last part may have an unused end. */
static size_t gather_bytes(const struct replay *r) {
    const size_t world = (size_t)r->call->world;
    return r->rows * ((r->workload->vocabulary + world - 1) / world) * r->element;
}

static size_t reduces(const struct replay *r) {
    return r->workload->layers * r->workload->reduces;
}

static spark_comm_status command_word(const struct replay *r) {
    uint32_t word = 0;
    const uint64_t address = (uint64_t)(uintptr_t)&word;
    if (r->call->world == 1) return SPARK_COMM_OK;
    return r->call->rank == 0 ? spark_comm_broadcast(r->call->comm, address, sizeof word, 0)
                              : spark_comm_recv_command_u32(r->call->comm, address, 0);
}

static spark_comm_status step(const struct replay *r) {
    const uint64_t hidden = (uint64_t)(uintptr_t)r->hidden, logits = (uint64_t)(uintptr_t)r->logits;
    const size_t bytes = reduce_bytes(r), part = gather_bytes(r), count = reduces(r);
    spark_comm_status st = command_word(r);
    for (size_t i = 0; i < count && !st; i++)
        st = spark_comm_all_reduce(r->call->comm, hidden, bytes);
    if (!st)
        st = spark_comm_all_gather(r->call->comm, logits + (size_t)r->call->rank * part, logits,
                                   part);
    return st;
}

/* One reduction and one gather with known results; single moves nothing, and has nothing to move. */
static spark_comm_status verify(const struct replay *r, uint64_t *wrong) {
    struct sc_perf_values values = {r->call->options->dtype, SPARK_COMM_SUM, r->call->world, 1};
    const size_t bytes = reduce_bytes(r), part = gather_bytes(r);
    spark_comm_status st;

    sc_perf_values_fill(&values, r->call->rank, 0, bytes / r->element, r->hidden);
    st = spark_comm_all_reduce(r->call->comm, (uint64_t)(uintptr_t)r->hidden, bytes);
    if (st) return st;
    *wrong += sc_perf_values_wrong(&values, 0, bytes / r->element, r->hidden);

    unsigned char *own = r->logits + (size_t)r->call->rank * part;
    sc_perf_values_fill_bits(2, r->call->rank, part, own);
    st = spark_comm_all_gather(r->call->comm, (uint64_t)(uintptr_t)own,
                               (uint64_t)(uintptr_t)r->logits, part);
    for (int owner = 0; owner < r->call->world && !st; owner++)
        *wrong +=
            sc_perf_values_wrong_bits(2, owner, part, r->element, r->logits + (size_t)owner * part);
    /* Sums of zeros stay zero, however often they are made. */
    memset(r->hidden, 0, bytes);
    return st;
}

static int compare(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return (a > b) - (a < b);
}

/* All ranks begin a step together, and the slowest one counts. They stop together too, because all of
 * them have the same times. */
static spark_comm_status measure(const struct replay *r, struct outcome *outcome) {
    static double times[MAX_STEPS];
    double *all = calloc((size_t)r->call->world, sizeof *all), total = 0;
    spark_comm_status st = all ? SPARK_COMM_OK : SPARK_COMM_NO_MEMORY;
    int steps = 0;

    for (int i = 0; i < WARMUP && !st; i++)
        st = step(r);
    while (!st && steps < MAX_STEPS && (steps < MIN_STEPS || total < ENOUGH_NS)) {
        st = spark_comm_barrier(r->call->comm);
        int64_t begin = sc_cli_now_ns();
        if (!st) st = step(r);
        double own = (double)(sc_cli_now_ns() - begin), slowest = 0;
        if (!st) st = sc_perf_measure_gather(r->call, &own, all, sizeof own);
        for (int rank = 0; rank < r->call->world; rank++)
            if (all[rank] > slowest) slowest = all[rank];
        times[steps++] = slowest / 1000;
        total += slowest;
    }
    free(all);
    qsort(times, (size_t)steps, sizeof *times, compare);
    *outcome = (struct outcome){times[steps / 2], times[0], steps};
    return st;
}

static void print(FILE *out, const struct replay *r, const char *phase, const struct outcome *o) {
    char name[48];
    snprintf(name, sizeof name, "%s of %zu", phase, r->tokens);
    fprintf(out, "  %-17s %5zu x %10zu %12zu %12.1f %12.1f %12.2f %14.0f\n", name, reduces(r),
            reduce_bytes(r), gather_bytes(r), o->median_us, o->min_us,
            o->median_us / (double)r->tokens,
            o->median_us > 0 ? (double)r->tokens * 1e6 / o->median_us : 0);
    fflush(out);
}

static json_t *to_json(const struct replay *r, const struct outcome *o) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:i}", "tokens", (json_int_t)r->tokens,
        "all_reduces", (json_int_t)reduces(r), "all_reduce_bytes", (json_int_t)reduce_bytes(r),
        "all_gather_bytes", (json_int_t)gather_bytes(r), "time_us_median", o->median_us,
        "time_us_min", o->min_us, "time_us_per_token", o->median_us / (double)r->tokens,
        "tokens_per_second_bound", o->median_us > 0 ? (double)r->tokens * 1e6 / o->median_us : 0.0,
        "steps", o->steps);
}

static int write_json(const struct replay *r, const char *backend, json_t *decode,
                      json_t *prefill) {
    const struct sc_perf_options *o = r->call->options;
    FILE *file = strcmp(o->json_file, "-") ? fopen(o->json_file, "we") : stdout;
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:o, s:o}", "backend", backend, "world_size",
                  r->call->world, "version", spark_comm_version(), "workload", r->workload->name,
                  "source", r->workload->source, "dtype", sc_perf_values_dtype_name(o->dtype),
                  "decode", decode, "prefill", prefill);
    bool good = file && root &&
                json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 &&
                fputc('\n', file) != EOF && fflush(file) == 0;
    json_decref(root);
    if (file && file != stdout) fclose(file);
    if (!good) sc_cli_error(o->command, "--json %s: cannot write", o->json_file);
    return good ? SC_EXIT_GOOD : SC_EXIT_FAILED;
}

static void print_heading(FILE *out, const struct replay *r, const char *backend) {
    fprintf(
        out,
        "# spark-comm perf %s: workload %s (%s)\n"
        "# backend %s, %d rank%s, host memory, %s; %zu layers of %zu reductions of tokens x %zu\n"
        "# Calls one by one, nothing computed in between; the slowest rank counts. The last column is the\n"
        "# bound that communication alone sets.\n#\n"
        "# %-17s %18s %12s %12s %12s %12s %14s\n"
        "# %-17s %18s %12s %12s %12s %12s %14s\n",
        spark_comm_version(), r->workload->name, r->workload->source, backend, r->call->world,
        r->call->world == 1 ? "" : "s", sc_perf_values_dtype_name(r->call->options->dtype),
        r->workload->layers, r->workload->reduces, r->workload->hidden, "phase, tokens",
        "all_reduce", "all_gather", "time", "least", "per token", "bound", "", "(B)",
        "(B per rank)", "(us)", "(us)", "(us)", "(tokens/s)");
    fflush(out);
}

/* Decode first, then prefill, with buffers for the larger one. */
spark_comm_status sc_perf_workload(const struct sc_perf_call *call, const char *backend,
                                   size_t budget, uint64_t *wrong, int *code) {
    const struct sc_perf_options *o = call->options;
    struct replay r = {.call = call,
                       .workload = &workloads[o->workload - 1],
                       .element = sc_perf_values_size(o->dtype),
                       .tokens = o->chunk > o->batch ? (size_t)o->chunk : (size_t)o->batch,
                       .rows = (size_t)o->batch};
    FILE *out = o->json_file && strcmp(o->json_file, "-") == 0 ? stderr : stdout;
    struct outcome decode = {0}, prefill = {0};
    json_t *parts[2] = {NULL, NULL};
    const size_t hidden = (reduce_bytes(&r) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t logits =
        ((size_t)call->world * gather_bytes(&r) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    spark_comm_status st = SPARK_COMM_NO_MEMORY;

    if (hidden + logits > budget) goto out;
    r.hidden = aligned_alloc(ALIGNMENT, hidden);
    r.logits = aligned_alloc(ALIGNMENT, logits);
    if (!r.hidden || !r.logits) goto out;
    memset(r.logits, 0, logits);
    if (call->rank == 0) print_heading(out, &r, backend);

    r.tokens = (size_t)o->batch;
    st = verify(&r, wrong);
    if (!st) st = measure(&r, &decode);
    if (!st && call->rank == 0) print(out, &r, "decode", &decode);
    if (!st && call->rank == 0 && o->json_file) parts[0] = to_json(&r, &decode);
    r.tokens = (size_t)o->chunk;
    r.rows = 1;
    if (!st) st = verify(&r, wrong);
    if (!st) st = measure(&r, &prefill);
    if (st || call->rank != 0) goto out;
    print(out, &r, "prefill", &prefill);
    if (o->json_file) {
        parts[1] = to_json(&r, &prefill);
        *code = write_json(&r, backend, parts[0], parts[1]);
        parts[0] = parts[1] = NULL; /* json_pack took them over */
    }
out:
    json_decref(parts[0]);
    json_decref(parts[1]);
    free(r.logits);
    free(r.hidden);
    return st;
}
