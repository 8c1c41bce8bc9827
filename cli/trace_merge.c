/*
 * Laying files side by side: which of them are of one communicator, to which epoch each record
 * belongs, how their clocks stand to each other. Every record becomes one item whose place is
 * (communicator, epoch, lane or pair of ranks, number, rank); sorted by that, equal calls of all
 * ranks are neighbours.
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

static int order(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* A call that ended below 200 took no number: it is no part of the order that ranks agree on. */
static bool is_numbered(const struct sc_trace_record *record) {
    return !record->is_complete || record->status == SPARK_COMM_OK ||
           spark_comm_is_fatal((spark_comm_status)record->status);
}

static int64_t first_submit(const struct sc_trace_file *file) {
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < file->count; i++) {
        if (file->records[i].submit_ns < first) first = file->records[i].submit_ns;
    }
    return first;
}

/* --- which files belong together --------------------------------------------------------------- */

/* One place in the order of calls, small enough to sort millions of. */
struct mark {
    int rank;
    uint32_t epoch;
    uint64_t number;
    int lane;
    int64_t submit_ns;
    int file;
};

static int compare_marks(const void *left, const void *right) {
    const struct mark *a = left, *b = right;
    int result = order(a->rank, b->rank);
    if (!result) result = order(a->lane, b->lane);
    if (!result) result = (a->epoch > b->epoch) - (a->epoch < b->epoch);
    if (!result) result = (a->number > b->number) - (a->number < b->number);
    return result ? result : order(a->submit_ns, b->submit_ns);
}

/*
 * Two files of one rank with the same number at different times are of two communicators (two runs
 * in one folder, or two communicators of one process). Files are taken in order of time, and each
 * goes to the first communicator that it does not contradict. Two files with the same number at the
 * same time are two copies of one history (trace_write besides a ring).
 */
enum { SAME_CALL_NS = 1000000 };

static bool contradicts(const struct sc_trace_file *files, const bool *clash, size_t count,
                        size_t file, int communicator) {
    for (size_t i = 0; i < count; i++) {
        if (files[i].communicator != communicator || files[i].rank < 0) continue;
        if (files[i].world_size != files[file].world_size) return true;
        if (clash[file * count + i]) return true;
    }
    return false;
}

static bool find_clashes(const struct sc_trace_file *files, size_t count, bool *clash) {
    size_t total = 0, used = 0;
    for (size_t i = 0; i < count; i++) {
        total += files[i].count;
    }
    struct mark *marks = calloc(total + 1, sizeof *marks);
    if (!marks) return false;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < files[i].count; j++) {
            const struct sc_trace_record *record = &files[i].records[j];
            if (sc_trace_is_message(record) || !is_numbered(record) || !record->epoch) continue;
            marks[used++] = (struct mark){files[i].rank, record->epoch,     record->number,
                                          record->lane,  record->submit_ns, (int)i};
        }
    }
    qsort(marks, used, sizeof *marks, compare_marks);
    for (size_t i = 1; i < used; i++) {
        const struct mark *a = &marks[i - 1], *b = &marks[i];
        if (a->rank != b->rank || a->epoch != b->epoch || a->number != b->number ||
            a->lane != b->lane || b->submit_ns - a->submit_ns < SAME_CALL_NS)
            continue;
        clash[(size_t)a->file * count + (size_t)b->file] = true;
        clash[(size_t)b->file * count + (size_t)a->file] = true;
    }
    free(marks);
    return true;
}

struct start {
    int64_t submit_ns;
    size_t file;
};

static int compare_starts(const void *left, const void *right) {
    const struct start *a = left, *b = right;
    int result = order(a->submit_ns, b->submit_ns);
    return result ? result : (a->file > b->file) - (a->file < b->file);
}

static bool find_communicators(struct sc_trace *trace) {
    size_t count = trace->file_count;
    bool *clash = calloc(count * count + 1, sizeof *clash);
    struct start *starts = calloc(count + 1, sizeof *starts);
    bool good = clash && starts && find_clashes(trace->files, count, clash);
    for (size_t i = 0; good && i < count; i++) {
        starts[i] = (struct start){first_submit(&trace->files[i]), i};
        trace->files[i].communicator = -1;
    }
    if (good) qsort(starts, count, sizeof *starts, compare_starts);
    for (size_t i = 0; good && i < count; i++) {
        struct sc_trace_file *file = &trace->files[starts[i].file];
        if (file->rank < 0) continue;
        int communicator = 0;
        while (contradicts(trace->files, clash, count, starts[i].file, communicator)) {
            communicator++;
        }
        file->communicator = communicator;
        if (communicator >= trace->communicators) trace->communicators = communicator + 1;
    }
    free(starts);
    free(clash);
    return good;
}

/* --- epochs of calls that are not complete ------------------------------------------------------- */

struct beginning {
    uint32_t epoch;
    int64_t submit_ns;
};

static int compare_beginnings(const void *left, const void *right) {
    const struct beginning *a = left, *b = right;
    int result = (a->epoch > b->epoch) - (a->epoch < b->epoch);
    return result ? result : order(a->submit_ns, b->submit_ns);
}

/* When each epoch of a communicator began, by epoch, and no later than any epoch after it began. */
static size_t find_beginnings(const struct sc_trace *trace, int communicator,
                              struct beginning *found) {
    size_t used = 0, kept = 0;
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        for (size_t j = 0; file->communicator == communicator && j < file->count; j++) {
            const struct sc_trace_record *record = &file->records[j];
            if (record->epoch) found[used++] = (struct beginning){record->epoch, record->submit_ns};
        }
    }
    qsort(found, used, sizeof *found, compare_beginnings);
    for (size_t i = 0; i < used; i++) {
        if (kept == 0 || found[kept - 1].epoch != found[i].epoch) found[kept++] = found[i];
    }
    for (size_t i = kept; i > 1; i--) {
        if (found[i - 2].submit_ns > found[i - 1].submit_ns)
            found[i - 2].submit_ns = found[i - 1].submit_ns;
    }
    return kept;
}

/* A record gets its epoch when it is complete. One that is not belongs to the newest epoch that any
 * rank had begun by then; never to one that its own process had left: numbers start anew in each. */
static void infer_epochs(struct sc_trace_file *file, const struct beginning *known, size_t count) {
    uint32_t last = file->epoch;
    uint64_t highest[SPARK_COMM_LANE_COUNT] = {0};
    for (size_t i = 0; i < file->count; i++) {
        if (file->records[i].epoch > last) last = file->records[i].epoch;
    }
    for (size_t i = 0; i < file->count; i++) {
        const struct sc_trace_record *record = &file->records[i];
        if (record->epoch == last && !sc_trace_is_message(record) && is_numbered(record) &&
            record->number > highest[record->lane])
            highest[record->lane] = record->number;
    }
    for (size_t i = 0; i < file->count; i++) {
        struct sc_trace_record *record = &file->records[i];
        if (record->epoch) continue;
        bool is_anew = !sc_trace_is_message(record) && record->number <= highest[record->lane];
        uint32_t lowest = last + (is_anew && last < UINT32_MAX ? 1 : 0);
        size_t low = 0, high = count; /* known[low - 1] had begun, known[high] had not */
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (known[middle].submit_ns <= record->submit_ns) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        record->epoch = low > 0 && known[low - 1].epoch > lowest ? known[low - 1].epoch : lowest;
        if (record->epoch == 0) record->epoch = 1;
    }
}

static bool find_epochs(struct sc_trace *trace) {
    size_t total = 0;
    for (size_t i = 0; i < trace->file_count; i++) {
        total += trace->files[i].count;
    }
    struct beginning *found = calloc(total + 1, sizeof *found);
    if (!found) return false;
    for (int communicator = 0; communicator < trace->communicators; communicator++) {
        size_t count = find_beginnings(trace, communicator, found);
        for (size_t i = 0; i < trace->file_count; i++) {
            if (trace->files[i].communicator == communicator)
                infer_epochs(&trace->files[i], found, count);
        }
    }
    free(found);
    return true;
}

/* --- ranks ------------------------------------------------------------------------------------- */

static int compare_ranks(const void *left, const void *right) {
    const struct sc_trace_rank *a = left, *b = right;
    int result = order(a->communicator, b->communicator);
    return result ? result : order(a->rank, b->rank);
}

static bool find_ranks(struct sc_trace *trace) {
    size_t used = 0;
    trace->ranks = calloc(trace->file_count + 1, sizeof *trace->ranks);
    if (!trace->ranks) return false;
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        if (file->rank >= 0)
            trace->ranks[used++] =
                (struct sc_trace_rank){file->communicator, file->rank, {INT64_MIN, INT64_MIN}};
    }
    qsort(trace->ranks, used, sizeof *trace->ranks, compare_ranks);
    for (size_t i = 0; i < used; i++) {
        if (i == 0 || compare_ranks(&trace->ranks[trace->rank_count - 1], &trace->ranks[i]))
            trace->ranks[trace->rank_count++] = trace->ranks[i];
    }
    for (size_t i = 0; i < trace->file_count; i++) {
        struct sc_trace_file *file = &trace->files[i];
        struct sc_trace_rank key = {.communicator = file->communicator, .rank = file->rank};
        struct sc_trace_rank *owner =
            bsearch(&key, trace->ranks, trace->rank_count, sizeof key, compare_ranks);
        file->owner = owner ? (size_t)(owner - trace->ranks) : 0;
    }
    return true;
}

size_t sc_trace_ranks_of(const struct sc_trace *trace, int communicator, size_t *begin) {
    size_t end = 0;
    *begin = 0;
    while (*begin < trace->rank_count && trace->ranks[*begin].communicator < communicator) {
        ++*begin;
    }
    for (end = *begin; end < trace->rank_count; end++) {
        if (trace->ranks[end].communicator != communicator) break;
    }
    return end;
}

/* The oldest record of a lane that was overwritten tells from when on the others are there. */
static void find_since(struct sc_trace *trace) {
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        bool is_found[SPARK_COMM_LANE_COUNT] = {false};
        if (file->rank < 0) continue;
        int64_t *since = trace->ranks[file->owner].since_ns;
        if (file->is_partial) since[0] = since[1] = INT64_MAX;
        for (size_t j = 0; j < file->count; j++) {
            const struct sc_trace_record *record = &file->records[j];
            int64_t ns = record->submit_ns + file->shift_ns;
            if (is_found[record->lane]) continue;
            is_found[record->lane] = true;
            if (file->is_wrapped[record->lane] && ns > since[record->lane])
                since[record->lane] = ns;
        }
    }
}

/* --- rows -------------------------------------------------------------------------------------- */

static int compare_items(const void *left, const void *right) {
    const struct sc_trace_item *a = left, *b = right;
    int result = sc_trace_compare_places(a, b);
    if (!result) result = (a->number > b->number) - (a->number < b->number);
    if (!result) result = order(a->slot, b->slot);
    /* Of two copies of one record the complete one comes first. */
    return result ? result : order(b->record->is_complete, a->record->is_complete);
}

static struct sc_trace_item make_item(const struct sc_trace_file *file,
                                      const struct sc_trace_record *record) {
    struct sc_trace_item item = {file->communicator, record->epoch, record->lane, 0,   0,
                                 record->number,     file->rank,    record,       file};
    if (!sc_trace_is_message(record)) return item;
    bool is_send = record->operation == SPARK_COMM_OP_SEND_TO;
    item.kind = SC_TRACE_MESSAGES;
    item.from = is_send ? file->rank : record->peer;
    item.to = is_send ? record->peer : file->rank;
    item.slot = is_send ? 0 : 1;
    return item;
}

static bool collect_items(struct sc_trace *trace) {
    size_t total = 0, kept = 0;
    for (size_t i = 0; i < trace->file_count; i++) {
        total += trace->files[i].count;
    }
    trace->items = calloc(total + 1, sizeof *trace->items);
    if (!trace->items) return false;
    for (size_t i = 0; i < trace->file_count; i++) {
        const struct sc_trace_file *file = &trace->files[i];
        for (size_t j = 0; file->rank >= 0 && j < file->count; j++) {
            const struct sc_trace_record *record = &file->records[j];
            if (is_numbered(record)) trace->items[trace->item_count++] = make_item(file, record);
        }
    }
    qsort(trace->items, trace->item_count, sizeof *trace->items, compare_items);
    for (size_t i = 0; i < trace->item_count; i++) {
        struct sc_trace_item *last = kept > 0 ? &trace->items[kept - 1] : NULL;
        if (last && sc_trace_compare_places(last, &trace->items[i]) == 0 &&
            last->number == trace->items[i].number && last->slot == trace->items[i].slot)
            continue;
        trace->items[kept++] = trace->items[i];
    }
    trace->item_count = kept;
    return true;
}

/* --- clocks ------------------------------------------------------------------------------------ */

/* One call in so many may speak against the clocks. */
#define SELDOM 50

static void bound_shift(struct sc_trace_file *file, const struct sc_trace_record *own,
                        const struct sc_trace_record *reference) {
    int64_t low = reference->submit_ns - own->complete_ns;
    int64_t high = reference->complete_ns - own->submit_ns;
    if (low > high) return; /* no two clocks show that: a damaged record */
    bool is_first = file->met++ == 0;
    if (is_first || low > file->all_low_ns) file->all_low_ns = low;
    if (is_first || high < file->all_high_ns) file->all_high_ns = high;
    if (low > 0 || high < 0) {
        file->against++;
        return;
    }
    is_first = file->low_ns > file->high_ns;
    if (is_first || low > file->low_ns) file->low_ns = low;
    if (is_first || high < file->high_ns) file->high_ns = high;
}

/* Wall clocks are taken as they are, unless calls would end before another rank began them: then the
 * file's times are shifted to the middle of what is possible. A rank notes that it has begun a call
 * just after its part is visible to the others, and may lose its CPU between the two: so one such call
 * in fifty says nothing. */
static void align_clocks(struct sc_trace *trace) {
    for (size_t i = 0; i < trace->file_count; i++) {
        trace->files[i].shift_ns = 0;
        trace->files[i].low_ns = 1;
        trace->files[i].high_ns = 0;
        trace->files[i].met = trace->files[i].against = 0;
    }
    for (size_t row = 0, end; row < trace->item_count; row = end) {
        const struct sc_trace_item *reference = &trace->items[row];
        size_t lowest;
        sc_trace_ranks_of(trace, reference->communicator, &lowest);
        bool is_reference = reference->file->owner == lowest && sc_trace_is_meeting(reference);
        for (end = row + 1; end < trace->item_count; end++) {
            const struct sc_trace_item *item = &trace->items[end];
            if (sc_trace_compare_places(reference, item) != 0 || item->number != reference->number)
                break;
            if (!is_reference || !sc_trace_is_meeting(item)) continue;
            if (!sc_trace_same_call(reference->record, item->record)) continue;
            bound_shift(&trace->files[item->file - trace->files], item->record, reference->record);
        }
    }
    for (size_t i = 0; i < trace->file_count; i++) {
        struct sc_trace_file *file = &trace->files[i];
        if (file->against * SELDOM <= file->met) continue;
        file->low_ns = file->all_low_ns;
        file->high_ns = file->all_high_ns;
        int64_t middle = file->low_ns + (file->high_ns - file->low_ns) / 2;
        if (file->low_ns <= file->high_ns && (file->low_ns > 0 || file->high_ns < 0) &&
            middle > -SC_TRACE_SHIFT_LIMIT && middle < SC_TRACE_SHIFT_LIMIT)
            file->shift_ns = middle;
    }
}

static void find_end(struct sc_trace *trace) {
    trace->end_ns = INT64_MIN;
    for (size_t i = 0; i < trace->item_count; i++) {
        const struct sc_trace_record *record = trace->items[i].record;
        int64_t ns = record->is_complete ? record->complete_ns : record->submit_ns;
        ns += trace->items[i].file->shift_ns;
        if (ns > trace->end_ns) trace->end_ns = ns;
    }
}

bool sc_trace_merge(struct sc_trace *trace, struct sc_trace_file *files, size_t count) {
    *trace = (struct sc_trace){.files = files, .file_count = count};
    if (!find_communicators(trace) || !find_epochs(trace)) return false;
    if (!find_ranks(trace) || !collect_items(trace)) return false;
    align_clocks(trace);
    find_since(trace);
    find_end(trace);
    return sc_trace_compare(trace);
}

void sc_trace_destroy(struct sc_trace *trace) {
    free(trace->ranks);
    free(trace->items);
    free(trace->streams);
    *trace = (struct sc_trace){0};
}
