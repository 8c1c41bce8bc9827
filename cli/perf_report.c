/*
 * What perf says, on rank 0 alone: the table on standard output (on standard error when the JSON
 * takes standard output), a progress line while standard error is a terminal, and the JSON form.
 */
#include "cli.h"
#include "perf.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sc_perf_report {
    const struct sc_perf_options *options;
    char backend[32];
    int world;
    FILE *table;
    FILE *json; /* NULL: none wanted */
    bool progress_shown;
    int64_t begin_ms;
    uint64_t wrong;
    struct sc_perf_result *results;
    size_t count;
    size_t capacity;
};

static bool wants_stdout(const struct sc_perf_options *options) {
    return options->json_file && strcmp(options->json_file, "-") == 0;
}

static void print_heading(const struct sc_perf_report *r, const char *memory) {
    fprintf(r->table,
            "# spark-comm perf %s: backend %s, %d rank%s, %s memory%s\n"
            "# size: bytes as passed to the call; for all_gather and reduce_scatter that is one "
            "rank's share,\n"
            "#   and their bandwidths count the shares of all ranks.\n"
            "# time: per call, back to back; the slowest rank counts; median of %d batches.\n"
            "#\n"
            "# %-17s %10s %10s %5s %5s %10s %9s %9s %7s  %s\n"
            "# %-17s %10s %10s %5s %5s %10s %9s %9s\n",
            spark_comm_version(), r->backend, r->world, r->world == 1 ? "" : "s", memory,
            r->options->symmetric ? " (symmetric)" : "", SC_PERF_BATCHES, "operation", "size",
            "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "path", "", "(B)",
            "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)");
    fflush(r->table);
}

bool sc_perf_report_open(const struct sc_perf_options *options, const char *backend,
                         const char *memory, int world, struct sc_perf_report **report) {
    struct sc_perf_report *r = calloc(1, sizeof *r);
    if (!r) {
        sc_cli_error(options->command, "memory ran out");
        return false;
    }
    r->options = options;
    r->world = world;
    r->table = wants_stdout(options) ? stderr : stdout;
    r->begin_ms = sc_cli_now_ms();
    snprintf(r->backend, sizeof r->backend, "%s", backend);
    if (wants_stdout(options)) {
        r->json = stdout;
    } else if (options->json_file) {
        r->json = fopen(options->json_file, "we");
    }
    if (options->json_file && !r->json) {
        sc_cli_error(options->command, "--json %s: %s; name a file that can be written",
                     options->json_file, strerror(errno));
        free(r);
        return false;
    }
    FILE *plot = options->plot_file ? fopen(options->plot_file, "ae") : NULL;
    if (options->plot_file && !plot) {
        sc_cli_error(options->command, "--plot %s: %s; name a file that can be written",
                     options->plot_file, strerror(errno));
        if (r->json && r->json != stdout) fclose(r->json);
        free(r);
        return false;
    }
    if (plot) fclose(plot);
    print_heading(r, memory);
    *report = r;
    return true;
}

static void erase_progress(struct sc_perf_report *r) {
    if (r->progress_shown) fputs("\r\033[K", stderr);
    r->progress_shown = false;
}

void sc_perf_report_progress(struct sc_perf_report *r, const struct sc_perf_op *op, size_t bytes) {
    if (!r || !isatty(STDERR_FILENO)) return;
    erase_progress(r);
    fprintf(stderr, "measuring %s, %zu bytes (%zu rows done)", op->name, bytes, r->count);
    fflush(stderr);
    r->progress_shown = true;
}

void sc_perf_report_note(struct sc_perf_report *r, const char *format, ...) {
    if (!r) return;
    va_list arguments;
    erase_progress(r);
    fputs("# ", r->table);
    va_start(arguments, format);
    vfprintf(r->table, format, arguments);
    va_end(arguments);
    fputc('\n', r->table);
    fflush(r->table);
}

static const char *dtype_of(const struct sc_perf_report *r, const struct sc_perf_result *result) {
    if (result->op->unit) return "u32";
    return result->op->sized ? sc_perf_values_dtype_name(r->options->dtype) : "none";
}

static const char *redop_of(const struct sc_perf_report *r, const struct sc_perf_result *result) {
    return result->op->reduces ? sc_perf_values_redop_name(r->options->redop) : "none";
}

static size_t count_of(const struct sc_perf_report *r, const struct sc_perf_result *result) {
    size_t size = result->op->unit ? result->op->unit : sc_perf_values_size(r->options->dtype);
    return result->bytes / size;
}

static void keep(struct sc_perf_report *r, const struct sc_perf_result *result) {
    if (r->count == r->capacity) {
        size_t capacity = r->capacity * 2 + 64;
        struct sc_perf_result *results = realloc(r->results, capacity * sizeof *results);
        if (!results) return; /* the table still has it */
        r->results = results;
        r->capacity = capacity;
    }
    r->results[r->count++] = *result;
}

void sc_perf_report_add(struct sc_perf_report *r, const struct sc_perf_result *result) {
    if (!r) return;
    erase_progress(r);
    fprintf(r->table, "  %-17s %10zu %10zu %5s %5s %10.*f %9.3f %9.3f %7" PRIu64 "  %s\n",
            result->op->name, result->bytes, count_of(r, result), dtype_of(r, result),
            redop_of(r, result), result->times.median_us < 100 ? 3 : 1, result->times.median_us,
            result->algbw_gbps, result->busbw_gbps, result->wrong, result->path);
    fflush(r->table);
    r->wrong += result->wrong;
    keep(r, result);
}

static json_t *result_to_json(const struct sc_perf_report *r, const struct sc_perf_result *result) {
    return json_pack(
        "{s:s, s:I, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:i, s:s}", "op",
        result->op->name, "bytes", (json_int_t)result->bytes, "dtype", dtype_of(r, result), "redop",
        redop_of(r, result), "count", (json_int_t)count_of(r, result), "time_us_median",
        result->times.median_us, "time_us_min", result->times.min_us, "time_us_p99",
        result->times.p99_us, "time_us_aligned_median", result->times.aligned_us, "algbw_gbps",
        result->algbw_gbps, "busbw_gbps", result->busbw_gbps, "wrong", (json_int_t)result->wrong,
        "iterations", result->times.iterations, "path", result->path);
}

static bool write_json(const struct sc_perf_report *r) {
    json_t *results = json_array();
    for (size_t i = 0; i < r->count; i++) {
        json_array_append_new(results, result_to_json(r, &r->results[i]));
    }
    /* "o" takes over results, and a NULL in place of memory makes json_pack fail. */
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:b, s:i, s:o}", "backend", r->backend, "world_size", r->world,
                  "version", spark_comm_version(), "symmetric", (int)r->options->symmetric,
                  "batches", (int)SC_PERF_BATCHES, "results", results);
    bool good = root && json_dumpf(root, r->json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 &&
                fputc('\n', r->json) != EOF && fflush(r->json) == 0;
    json_decref(root);
    if (!good) {
        sc_cli_error(r->options->command, "--json %s: cannot write: %s", r->options->json_file,
                     strerror(errno));
    }
    return good;
}

static int make_plot(const struct sc_perf_report *r) {
    char title[96];
    snprintf(title, sizeof title, "spark-comm perf: %s, %d ranks, %s", r->backend, r->world,
             sc_perf_values_dtype_name(r->options->dtype));
    return sc_perf_plot(r->options, title, r->results, r->count);
}

int sc_perf_report_finish(struct sc_perf_report *r) {
    int code = SC_EXIT_GOOD;
    if (!r) return code;
    erase_progress(r);
    fprintf(r->table, "#\n# %zu rows, %" PRIu64 " wrong elements%s, %.1f s\n", r->count, r->wrong,
            r->wrong ? " (FAILED)" : "", (double)(sc_cli_now_ms() - r->begin_ms) / 1000);
    if (r->json && !write_json(r)) code = SC_EXIT_FAILED;
    if (r->options->plot_file && make_plot(r)) code = SC_EXIT_FAILED;
    if (sc_cli_flush_stdout(r->options->command)) code = SC_EXIT_FAILED;
    return code;
}

void sc_perf_report_close(struct sc_perf_report *r) {
    if (!r) return;
    if (r->json && r->json != stdout) fclose(r->json);
    free(r->results);
    free(r);
}
