/*
 * The Chrome trace event format, which Perfetto and chrome://tracing open: one process per file, one
 * thread per lane, one event per call, microseconds since the first of them. Events are written one
 * by one, so that memory does not grow with the traces.
 */
#include "perf.h"
#include "trace.h"

#include <jansson.h>

/* Takes over the event. */
static bool write_event(json_t *event, bool *is_first, FILE *out) {
    bool good = event && fputs(*is_first ? "\n" : ",\n", out) >= 0 &&
                json_dumpf(event, out, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0;
    *is_first = false;
    json_decref(event);
    return good;
}

static json_t *name_event(const char *what, int process, int thread, const char *name) {
    return json_pack("{ss ss si si s{ss}}", "name", what, "ph", "M", "pid", process, "tid", thread,
                     "args", "name", name);
}

static bool write_names(const struct sc_trace_file *file, int process, bool *is_first, FILE *out) {
    char name[96];
    snprintf(name, sizeof name, "rank %d (process %d)", file->rank, file->pid);
    return write_event(name_event("process_name", process, 0, name), is_first, out) &&
           write_event(json_pack("{ss ss si s{si}}", "name", "process_sort_index", "ph", "M", "pid",
                                 process, "args", "sort_index", file->rank),
                       is_first, out) &&
           write_event(name_event("thread_name", process, SPARK_COMM_LANE_COMMAND, "command lane"),
                       is_first, out) &&
           write_event(name_event("thread_name", process, SPARK_COMM_LANE_DATA, "data lane"),
                       is_first, out);
}

/* A call that is not complete lasts to the end of the traces. */
static json_t *call_event(const struct sc_trace *trace, const struct sc_trace_item *item,
                          int64_t begin_ns) {
    const struct sc_trace_record *record = item->record;
    int64_t start = record->submit_ns + item->file->shift_ns;
    int64_t end = record->is_complete ? record->complete_ns + item->file->shift_ns : trace->end_ns;
    const char *status =
        record->is_complete ? spark_comm_status_name((spark_comm_status)record->status) : NULL;
    return json_pack("{ss ss ss si si sf sf s{sI sI sI ss* ss* si ss*}}", "name",
                     sc_trace_operation_name(record->operation), "cat",
                     record->lane == SPARK_COMM_LANE_COMMAND ? "command" : "data", "ph", "X", "pid",
                     (int)(item->file - trace->files) + 1, "tid", (int)record->lane, "ts",
                     (double)(start - begin_ns) / 1e3, "dur", (double)(end - start) / 1e3, "args",
                     "number", (json_int_t)record->number, "epoch", (json_int_t)record->epoch,
                     "bytes", (json_int_t)record->bytes, "dtype",
                     sc_perf_values_dtype_name(record->dtype), "redop",
                     sc_perf_values_redop_name(record->redop), "peer", (int)record->peer, "status",
                     status ? status : "not complete");
}

bool sc_trace_chrome(const struct sc_trace *trace, FILE *out) {
    bool is_first = true, good = fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", out) >= 0;
    int64_t begin_ns = INT64_MAX;
    for (size_t i = 0; i < trace->item_count; i++) {
        int64_t ns = trace->items[i].record->submit_ns + trace->items[i].file->shift_ns;
        if (ns < begin_ns) begin_ns = ns;
    }
    for (size_t i = 0; good && i < trace->file_count; i++) {
        if (trace->files[i].rank >= 0)
            good = write_names(&trace->files[i], (int)i + 1, &is_first, out);
    }
    for (size_t i = 0; good && i < trace->item_count; i++) {
        good = write_event(call_event(trace, &trace->items[i], begin_ns), &is_first, out);
    }
    return good && fputs("\n]}\n", out) >= 0 && fflush(out) == 0 && !ferror(out);
}
