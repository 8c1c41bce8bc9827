/*
 * The first row of each stream at which the ranks differ: not the same call, or one of them has not
 * entered it.
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

static int order(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

bool sc_trace_is_message(const struct sc_trace_record *record) {
    return record->operation == SPARK_COMM_OP_SEND_TO ||
           record->operation == SPARK_COMM_OP_RECV_FROM;
}

int sc_trace_compare_places(const struct sc_trace_item *a, const struct sc_trace_item *b) {
    int result = order(a->communicator, b->communicator);
    if (!result) result = (a->epoch > b->epoch) - (a->epoch < b->epoch);
    if (!result) result = order(a->kind, b->kind);
    if (!result) result = order(a->from, b->from);
    return result ? result : order(a->to, b->to);
}

size_t sc_trace_row_end(const struct sc_trace *trace, size_t begin, size_t end) {
    size_t row = begin + 1;
    while (row < end && trace->items[row].number == trace->items[begin].number) {
        row++;
    }
    return row;
}

/* A broadcast of one word meets recv_command_u32, and a command its receiver, who does not know its
 * size beforehand. */
bool sc_trace_same_call(const struct sc_trace_record *a, const struct sc_trace_record *b) {
    if (sc_trace_is_message(a) || sc_trace_is_message(b)) return a->bytes == b->bytes;
    int first = a->operation, second = b->operation;
    if (first == SPARK_COMM_OP_RECV_COMMAND_U32) first = SPARK_COMM_OP_BROADCAST;
    if (second == SPARK_COMM_OP_RECV_COMMAND_U32) second = SPARK_COMM_OP_BROADCAST;
    bool is_command =
        (first == SPARK_COMM_OP_SEND_COMMAND || first == SPARK_COMM_OP_RECV_COMMAND) &&
        (second == SPARK_COMM_OP_SEND_COMMAND || second == SPARK_COMM_OP_RECV_COMMAND);
    if (is_command)
        return a->operation != b->operation || a->operation == SPARK_COMM_OP_RECV_COMMAND;
    return first == second && a->bytes == b->bytes && a->dtype == b->dtype &&
           a->redop == b->redop && a->peer == b->peer;
}

bool sc_trace_is_meeting(const struct sc_trace_item *item) {
    const struct sc_trace_record *record = item->record;
    if (item->kind == SC_TRACE_MESSAGES || !record->is_complete || record->status) return false;
    switch (record->operation) {
    case SPARK_COMM_OP_BARRIER: return true;
    case SPARK_COMM_OP_EXCHANGE_HOST: return record->bytes > 0;
    case SPARK_COMM_OP_ALL_REDUCE:
    case SPARK_COMM_OP_ALL_GATHER:
    case SPARK_COMM_OP_REDUCE_SCATTER:
        return record->bytes > 0 && strcmp(item->file->backend, "shm") == 0;
    default: return false;
    }
}

/* By the time of a row's first call: would this rank's ring still hold its own? */
static bool would_be_kept(const struct sc_trace *trace, size_t begin,
                          const struct sc_trace_rank *rank) {
    const struct sc_trace_item *item = &trace->items[begin];
    int lane = item->kind == SC_TRACE_MESSAGES ? SPARK_COMM_LANE_DATA : item->kind;
    return item->record->submit_ns + item->file->shift_ns > rank->since_ns[lane];
}

/* Within one stream: which slots have been in a row already. Slots of collectives are ranks with
 * files, in their order; of messages sender and receiver. */
struct slots {
    const struct sc_trace_rank *ranks[2]; /* of messages; NULL: no file */
    size_t begin, end; /* of collectives, in trace->ranks */
    bool *has_entered; /* of each of trace->ranks; messages use the first two */
};

static void find_slots(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                       struct slots *slots) {
    const struct sc_trace_item *item = &trace->items[stream->begin];
    slots->ranks[0] = slots->ranks[1] = NULL;
    slots->end = sc_trace_ranks_of(trace, item->communicator, &slots->begin);
    for (size_t i = slots->begin; i < slots->end; i++) {
        slots->has_entered[i] = false;
        if (trace->ranks[i].rank == item->from) slots->ranks[0] = &trace->ranks[i];
        if (trace->ranks[i].rank == item->to) slots->ranks[1] = &trace->ranks[i];
    }
    if (item->kind == SC_TRACE_MESSAGES) slots->has_entered[0] = slots->has_entered[1] = false;
}

static bool is_missing(const struct sc_trace *trace, size_t begin, size_t end,
                       const struct sc_trace_rank *rank, bool has_entered) {
    if (!rank || rank->since_ns[0] == INT64_MAX) return false;
    /* Who has left a meeting shows that all were in it: this file was read before its rank came, in
     * a job that still runs. */
    for (size_t i = begin; i < end; i++) {
        if (sc_trace_is_meeting(&trace->items[i])) return false;
    }
    return has_entered || would_be_kept(trace, begin, rank);
}

static bool message_differs(const struct sc_trace *trace, size_t begin, size_t end,
                            struct slots *slots) {
    bool differs = false;
    if (end - begin == 1) {
        int other = !trace->items[begin].slot;
        differs = is_missing(trace, begin, end, slots->ranks[other], slots->has_entered[other]);
    }
    for (size_t i = begin; i < end; i++) {
        slots->has_entered[trace->items[i].slot] = true;
    }
    return differs;
}

static bool collective_differs(const struct sc_trace *trace, size_t begin, size_t end,
                               struct slots *slots) {
    size_t item = begin;
    bool differs = false;
    for (size_t i = slots->begin; i < slots->end; i++) {
        if (item < end && trace->items[item].file->owner == i) {
            slots->has_entered[i] = true;
            item++;
        } else if (is_missing(trace, begin, end, &trace->ranks[i], slots->has_entered[i])) {
            differs = true;
        }
    }
    return differs;
}

static void find_divergence(const struct sc_trace *trace, struct sc_trace_stream *stream,
                            struct slots *slots) {
    bool is_message = trace->items[stream->begin].kind == SC_TRACE_MESSAGES;
    stream->divergence = stream->end;
    stream->divergence_ns = INT64_MAX;
    find_slots(trace, stream, slots);
    for (size_t row = stream->begin, end; row < stream->end; row = end) {
        end = sc_trace_row_end(trace, row, stream->end);
        bool differs = is_message ? message_differs(trace, row, end, slots)
                                  : collective_differs(trace, row, end, slots);
        for (size_t i = row + 1; i < end && !differs; i++) {
            differs = !sc_trace_same_call(trace->items[row].record, trace->items[i].record);
        }
        if (!differs) continue;
        stream->divergence = row;
        for (size_t i = row; i < end; i++) {
            int64_t ns = trace->items[i].record->submit_ns + trace->items[i].file->shift_ns;
            if (ns < stream->divergence_ns) stream->divergence_ns = ns;
        }
        return;
    }
}

bool sc_trace_is_missing(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                         size_t begin, int slot) {
    const struct sc_trace_item *item = &trace->items[begin];
    int number = item->kind != SC_TRACE_MESSAGES ? slot : slot == 0 ? item->from : item->to;
    const struct sc_trace_rank *rank = NULL;
    size_t first, last = sc_trace_ranks_of(trace, item->communicator, &first);
    bool has_entered = false;
    for (size_t i = first; i < last && !rank; i++) {
        if (trace->ranks[i].rank == number) rank = &trace->ranks[i];
    }
    for (size_t i = stream->begin; i < begin && !has_entered; i++) {
        has_entered = trace->items[i].slot == slot;
    }
    return is_missing(trace, begin, sc_trace_row_end(trace, begin, stream->end), rank, has_entered);
}

static int compare_divergences(const void *left, const void *right) {
    const struct sc_trace_stream *a = left, *b = right;
    int result = order(a->divergence_ns, b->divergence_ns);
    return result ? result : (a->begin > b->begin) - (a->begin < b->begin);
}

bool sc_trace_compare(struct sc_trace *trace) {
    size_t capacity = 0;
    for (size_t i = 0; i < trace->item_count; i++) {
        if (i == 0 || sc_trace_compare_places(&trace->items[i - 1], &trace->items[i])) capacity++;
    }
    struct slots slots = {.has_entered = calloc(trace->rank_count + 2, sizeof(bool))};
    trace->streams = calloc(capacity + 1, sizeof *trace->streams);
    if (!trace->streams || !slots.has_entered) {
        free(slots.has_entered);
        return false;
    }
    for (size_t i = 0; i < trace->item_count; i++) {
        if (i == 0 || sc_trace_compare_places(&trace->items[i - 1], &trace->items[i]))
            trace->streams[trace->stream_count++].begin = i;
        trace->streams[trace->stream_count - 1].end = i + 1;
    }
    for (size_t i = 0; i < trace->stream_count; i++) {
        find_divergence(trace, &trace->streams[i], &slots);
    }
    free(slots.has_entered);
    qsort(trace->streams, trace->stream_count, sizeof *trace->streams, compare_divergences);
    return true;
}
