/*
 * The table: each divergence with the rows around it, the earliest on top, then the lanes on which
 * the ranks agree, then what was read and how the clocks stand.
 */
#include "perf.h"
#include "trace.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { CELL_WIDTH = 20 };

static int64_t submit_ns(const struct sc_trace_item *item) {
    return item->record->submit_ns + item->file->shift_ns;
}

/* Nanoseconds with a unit that a reader grasps. */
static const char *span(int64_t ns, char *text, size_t size) {
    double value = (double)ns;
    double size_of = value < 0 ? -value : value;
    if (size_of < 1e6) {
        snprintf(text, size, "%.1fus", value / 1e3);
    } else if (size_of < 1e9) {
        snprintf(text, size, "%.1fms", value / 1e6);
    } else {
        snprintf(text, size, "%.1fs", value / 1e9);
    }
    return text;
}

static const char *date(int64_t ns, char *text, size_t size) {
    time_t seconds = (time_t)(ns / 1000000000);
    long rest = (long)(ns % 1000000000);
    struct tm tm;
    char day[64] = "?";
    if (rest < 0) {
        rest += 1000000000;
        seconds--;
    }
    if (gmtime_r(&seconds, &tm)) strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &tm);
    snprintf(text, size, "%s.%06ld UTC", day, rest / 1000);
    return text;
}

static const char *status_name(int status) {
    const char *name = spark_comm_status_name((spark_comm_status)status);
    const char prefix[] = "SPARK_COMM_";
    return strncmp(name, prefix, sizeof prefix - 1) ? name : name + sizeof prefix - 1;
}

/* --- words about one call ---------------------------------------------------------------------- */

static void describe(const struct sc_trace_record *record, char *text, size_t size) {
    const char *dtype = sc_perf_values_dtype_name(record->dtype);
    const char *redop = sc_perf_values_redop_name(record->redop);
    char peer[32] = "";
    if (record->operation == SPARK_COMM_OP_SEND_TO) {
        snprintf(peer, sizeof peer, ", to rank %d", record->peer);
    } else if (record->operation == SPARK_COMM_OP_RECV_FROM) {
        snprintf(peer, sizeof peer, ", from rank %d", record->peer);
    } else if (record->peer >= 0) {
        snprintf(peer, sizeof peer, ", root %d", record->peer);
    }
    snprintf(text, size, "%s (%" PRIu64 " bytes%s%s%s%s%s%s)",
             sc_trace_operation_name(record->operation), record->bytes, dtype ? ", " : "",
             dtype ? dtype : "", redop ? ", " : "", redop ? redop : "", peer,
             record->is_captured ? ", captured" : "");
}

static void print_outcome(const struct sc_trace *trace, const struct sc_trace_item *item,
                          FILE *out) {
    const struct sc_trace_record *record = item->record;
    char when[64], took[32];
    if (record->is_complete) {
        span(record->complete_ns - record->submit_ns, took, sizeof took);
        fprintf(out, "    rank %d: %s after %s\n", item->file->rank, status_name(record->status),
                took);
        return;
    }
    fprintf(out, "    rank %d: not complete, in it since %s (%s until the end of the traces)\n",
            item->file->rank, date(submit_ns(item), when, sizeof when),
            span(trace->end_ns - submit_ns(item), took, sizeof took));
}

/* The newest call of a slot before `before` that ended well. */
static void print_last_completed(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                                 size_t before, int slot, FILE *out) {
    for (size_t i = before; i > stream->begin; i--) {
        const struct sc_trace_item *item = &trace->items[i - 1];
        if (item->slot != slot || !item->record->is_complete || item->record->status) continue;
        fprintf(out, "last completed %s #%" PRIu64 "\n",
                sc_trace_operation_name(item->record->operation), item->number);
        return;
    }
    fprintf(out, "completed nothing before it here\n");
}

/* What the ranks of one row are in, those in the same call together; who is not in it. */
static void print_parties(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                          size_t begin, FILE *out) {
    size_t end = sc_trace_row_end(trace, begin, stream->end);
    bool is_message = trace->items[begin].kind == SC_TRACE_MESSAGES;
    char text[160], other[160];
    for (size_t i = begin; i < end; i++) {
        bool is_told = false;
        describe(trace->items[i].record, text, sizeof text);
        for (size_t j = begin; j < i && !is_told; j++) {
            describe(trace->items[j].record, other, sizeof other);
            is_told = strcmp(text, other) == 0;
        }
        if (is_told) continue;
        fprintf(out, "  %s\n", text);
        for (size_t j = i; j < end; j++) {
            describe(trace->items[j].record, other, sizeof other);
            if (strcmp(text, other) != 0) continue;
            print_outcome(trace, &trace->items[j], out);
            fprintf(out, "      ");
            print_last_completed(trace, stream, begin, trace->items[j].slot, out);
        }
    }
    size_t first, last = sc_trace_ranks_of(trace, trace->items[begin].communicator, &first);
    for (size_t i = first; i < last; i++) {
        int rank = trace->ranks[i].rank;
        for (int slot = is_message ? 0 : rank; slot <= (is_message ? 1 : rank); slot++) {
            const struct sc_trace_item *item = &trace->items[begin];
            if (is_message && rank != (slot ? item->to : item->from)) continue;
            bool is_there = false;
            for (size_t j = begin; j < end; j++) {
                if (trace->items[j].slot == slot) is_there = true;
            }
            if (is_there || !sc_trace_is_missing(trace, stream, begin, slot)) continue;
            fprintf(out, "  rank %d has not entered it\n      ", rank);
            print_last_completed(trace, stream, begin, slot, out);
        }
    }
}

/* --- rows -------------------------------------------------------------------------------------- */

static void print_statuses(const struct sc_trace *trace, size_t begin, size_t end, FILE *out) {
    const struct sc_trace_record *first = trace->items[begin].record;
    bool is_same = true;
    for (size_t i = begin; i < end; i++) {
        const struct sc_trace_record *record = trace->items[i].record;
        if (record->is_complete != first->is_complete || record->status != first->status)
            is_same = false;
    }
    if (is_same) {
        fprintf(out, "%s", first->is_complete ? status_name(first->status) : "waits");
        return;
    }
    const char *between = "";
    for (size_t i = begin; i < end; i++) {
        const struct sc_trace_record *record = trace->items[i].record;
        if (record->is_complete && !record->status) continue;
        fprintf(out, "%s%d:%s", between, trace->items[i].file->rank,
                record->is_complete ? status_name(record->status) : "waits");
        between = " ";
    }
}

/* "+start took" of each rank: microseconds after the first one of the row, and how long. */
static void print_cell(const struct sc_trace_item *item, int64_t begin_ns, const char *absent,
                       FILE *out) {
    char start[32], took[32], cell[80];
    if (item) {
        const struct sc_trace_record *record = item->record;
        span(submit_ns(item) - begin_ns, start, sizeof start);
        span(record->complete_ns - record->submit_ns, took, sizeof took);
        snprintf(cell, sizeof cell, "+%s %s", start, record->is_complete ? took : "waits");
    } else {
        snprintf(cell, sizeof cell, "%s", absent);
    }
    fprintf(out, " %-*s", CELL_WIDTH, cell);
}

static void print_head(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                       FILE *out) {
    const struct sc_trace_item *item = &trace->items[stream->begin];
    char name[48];
    fprintf(out, "  %10s %-17s %12s %-5s %-5s %5s %-10s", "number", "operation", "bytes", "dtype",
            "redop", "peer", "path");
    if (item->kind == SC_TRACE_MESSAGES) {
        snprintf(name, sizeof name, "sender %d", item->from);
        fprintf(out, " %-*s", CELL_WIDTH, name);
        snprintf(name, sizeof name, "receiver %d", item->to);
        fprintf(out, " %-*s", CELL_WIDTH, name);
    } else {
        size_t first, last = sc_trace_ranks_of(trace, item->communicator, &first);
        for (size_t i = first; i < last; i++) {
            snprintf(name, sizeof name, "rank %d", trace->ranks[i].rank);
            fprintf(out, " %-*s", CELL_WIDTH, name);
        }
    }
    fprintf(out, " status\n");
}

/* The items of [begin, end) that describe the same call as `like`, one line. */
static void print_line(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                       size_t begin, size_t end, const struct sc_trace_item *like, bool is_first,
                       FILE *out) {
    const struct sc_trace_record *record = like->record;
    const char *dtype = sc_perf_values_dtype_name(record->dtype);
    const char *redop = sc_perf_values_redop_name(record->redop);
    int64_t begin_ns = submit_ns(&trace->items[begin]);
    for (size_t i = begin; i < end; i++) {
        if (submit_ns(&trace->items[i]) < begin_ns) begin_ns = submit_ns(&trace->items[i]);
    }
    fprintf(out, "%c %10" PRIu64 " %-17s %12" PRIu64 " %-5s %-5s",
            begin == stream->divergence ? '>' : ' ', like->number,
            sc_trace_operation_name(record->operation), record->bytes, dtype ? dtype : "-",
            redop ? redop : "-");
    if (record->peer >= 0) {
        fprintf(out, " %5d", record->peer);
    } else {
        fprintf(out, " %5s", "-");
    }
    fprintf(out, " %-10s", record->path[0] ? record->path : "-");
    size_t first = 0, last = 2, next = begin;
    bool is_message = like->kind == SC_TRACE_MESSAGES;
    if (!is_message) last = sc_trace_ranks_of(trace, like->communicator, &first);
    for (size_t i = first; i < last; i++) {
        int slot = is_message ? (int)i : trace->ranks[i].rank;
        const struct sc_trace_item *item = NULL;
        if (next < end && trace->items[next].slot == slot) item = &trace->items[next++];
        bool is_other = item && !sc_trace_same_call(like->record, item->record);
        const char *absent = "";
        if (!item && is_first)
            absent = sc_trace_is_missing(trace, stream, begin, slot) ? "not entered" : "?";
        print_cell(is_other ? NULL : item, begin_ns, absent, out);
    }
    fprintf(out, " ");
    if (is_first) print_statuses(trace, begin, end, out);
    fprintf(out, "\n");
}

/* One line for each different call of the row. */
static void print_row(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                      size_t begin, size_t end, FILE *out) {
    for (size_t i = begin; i < end; i++) {
        bool is_told = false;
        for (size_t j = begin; j < i && !is_told; j++) {
            is_told = sc_trace_same_call(trace->items[j].record, trace->items[i].record);
        }
        if (!is_told) print_line(trace, stream, begin, end, &trace->items[i], i == begin, out);
    }
}

/* `rows` before and after the divergence, or the last ones; -1: all. */
static void print_rows(const struct sc_trace *trace, const struct sc_trace_stream *stream, int rows,
                       FILE *out) {
    size_t begin = stream->begin, end = stream->end;
    bool diverged = stream->divergence < stream->end;
    if (rows >= 0) {
        begin = stream->divergence;
        for (int i = 0; i < rows && begin > stream->begin; i++) {
            uint64_t number = trace->items[--begin].number;
            while (begin > stream->begin && trace->items[begin - 1].number == number) {
                begin--;
            }
        }
        end = stream->divergence;
        for (int i = 0; diverged && i <= rows && end < stream->end; i++) {
            end = sc_trace_row_end(trace, end, stream->end);
        }
    }
    if (begin == end) return;
    print_head(trace, stream, out);
    for (size_t row = begin, next; row < end; row = next) {
        next = sc_trace_row_end(trace, row, end);
        print_row(trace, stream, row, next, out);
    }
}

/* --- streams ----------------------------------------------------------------------------------- */

static void name_stream(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                        FILE *out) {
    const struct sc_trace_item *item = &trace->items[stream->begin];
    if (trace->communicators > 1) fprintf(out, "communicator %d, ", item->communicator + 1);
    fprintf(out, "epoch %u, ", item->epoch);
    if (item->kind == SC_TRACE_MESSAGES) {
        fprintf(out, "messages from rank %d to rank %d", item->from, item->to);
    } else {
        fprintf(out, "%s lane", item->kind == SPARK_COMM_LANE_COMMAND ? "command" : "data");
    }
}

static void print_divergence(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                             bool is_first, FILE *out) {
    char when[64];
    fprintf(out, "%s: ", is_first ? "FIRST DIVERGENCE" : "LATER DIVERGENCE");
    name_stream(trace, stream, out);
    fprintf(out, ", #%" PRIu64 ", %s\n", trace->items[stream->divergence].number,
            date(stream->divergence_ns, when, sizeof when));
    print_parties(trace, stream, stream->divergence, out);
}

/* The last row of a lane on which the ranks agree; what did not end well in it. */
static void print_agreement(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                            FILE *out) {
    size_t last = stream->end - 1;
    bool is_good = true;
    while (last > stream->begin && trace->items[last - 1].number == trace->items[last].number) {
        last--;
    }
    for (size_t i = last; i < stream->end; i++) {
        const struct sc_trace_record *record = trace->items[i].record;
        if (!record->is_complete || record->status) is_good = false;
    }
    fprintf(out, "no divergence: ");
    name_stream(trace, stream, out);
    fprintf(out, ", #%" PRIu64 " to #%" PRIu64 "%s\n", trace->items[stream->begin].number,
            trace->items[last].number, is_good ? "" : "; the last one did not end well:");
    if (!is_good) print_parties(trace, stream, last, out);
}

/* --- files and clocks -------------------------------------------------------------------------- */

static void print_files(const struct sc_trace *trace, FILE *out) {
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        fprintf(out, "%s: ", file->name);
        if (file->rank >= 0) {
            if (trace->communicators > 1) fprintf(out, "communicator %d, ", file->communicator + 1);
            fprintf(out, "rank %d of %d, process %d, %s, spark_comm %s, %zu records%s", file->rank,
                    file->world_size, file->pid, file->backend, file->library, file->count,
                    file->damage[0] ? "; " : "");
        }
        fprintf(out, "%s%s\n", file->damage[0] ? "DAMAGED: " : "", file->damage);
    }
}

/* Ranks without a file, in runs. */
static void print_missing_files(const struct sc_trace *trace, int communicator, FILE *out) {
    size_t first, last = sc_trace_ranks_of(trace, communicator, &first);
    int world_size = 0, expected = 0;
    for (size_t i = 0; i < trace->file_count; i++) {
        if (trace->files[i].communicator == communicator) world_size = trace->files[i].world_size;
    }
    for (size_t i = first; i <= last; i++) {
        int rank = i < last ? trace->ranks[i].rank : world_size;
        if (rank == expected + 1) fprintf(out, "NO FILE of rank %d\n", expected);
        if (rank > expected + 1) fprintf(out, "NO FILE of ranks %d to %d\n", expected, rank - 1);
        expected = rank + 1;
    }
}

static void print_clocks(const struct sc_trace *trace, FILE *out) {
    char low[32], high[32], shift[32];
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        if (file->rank >= 0 && file->count > 0 && !file->has_speed)
            fprintf(out, "clock of rank %d (process %d): killed before its speed was known\n",
                    file->rank, file->pid);
        if (file->rank < 0 || file->low_ns > file->high_ns) continue;
        span(file->low_ns, low, sizeof low);
        span(file->high_ns, high, sizeof high);
        span(file->shift_ns, shift, sizeof shift);
        fprintf(out, "clock of rank %d (process %d): ", file->rank, file->pid);
        if (file->shift_ns) {
            fprintf(out, "%s added, the calls allow %s to %s\n", shift, low, high);
        } else {
            fprintf(out, "as it is, right within %s to %s\n", low, high);
        }
    }
}

void sc_trace_print(const struct sc_trace *trace, int rows, FILE *out) {
    for (int i = 0; i < trace->communicators; i++) {
        print_missing_files(trace, i, out);
    }
    for (size_t i = 0; i < trace->stream_count; i++) {
        const struct sc_trace_stream *stream = &trace->streams[i];
        bool is_message = trace->items[stream->begin].kind == SC_TRACE_MESSAGES;
        if (stream->divergence < stream->end) {
            print_divergence(trace, stream, i == 0, out);
        } else {
            print_agreement(trace, stream, out);
        }
        /* There may be a pair of every two ranks: those that agree are one line each. */
        bool is_long = !is_message || rows < 0 || stream->divergence < stream->end;
        if (is_long) print_rows(trace, stream, rows, out);
        fprintf(out, "%s", is_long ? "\n" : "");
    }
    print_files(trace, out);
    print_clocks(trace, out);
}
