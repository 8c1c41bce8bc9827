/*
 * The one sentence of a verdict, from what all ranks' status lines say:
 *
 *   rank 2 has not entered all_reduce #1841 (8192 bytes, bf16); ranks 0, 1 and 3 wait in it since
 *   30.0 s; rank 2 last completed broadcast #1840
 *
 * Pure text: reads views, writes the error's words, waits for nothing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "world/world_state.h"

#define MOST_LISTED 8

/* ---- Text ---- */

struct text {
    char words[sizeof((struct sc_error *)NULL)->message];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;
    size_t room = sizeof text->words - text->used;

    va_start(arguments, format);
    int length = vsnprintf(text->words + text->used, room, format, arguments);
    va_end(arguments);
    if (length > 0) text->used += (size_t)length < room ? (size_t)length : room - 1;
}

/* "all_reduce #1841 (8192 bytes, bf16)"; `whole` names a sum too. */
static void add_call(struct text *text, uint64_t descriptor, uint64_t number, uint64_t bytes,
                     bool whole) {
    int kind = sc_lines_kind(descriptor), peer = sc_lines_peer(descriptor);
    int dtype = (int)(descriptor >> 8 & 0xff), redop = (int)(descriptor >> 16 & 0xff);
    const char *name = sc_status_operation_name(kind);

    if (kind == SPARK_COMM_OP_GROUP) {
        add(text, "a group of messages");
        return;
    }
    if (sc_lines_is_message(kind)) {
        add(text, "%s rank %d (%llu bytes)", name, peer, (unsigned long long)bytes);
        return;
    }
    add(text, "%s #%llu", name, (unsigned long long)number);
    if (kind == SPARK_COMM_OP_BARRIER || kind == SPARK_COMM_OP_RECV_COMMAND ||
        kind == SPARK_COMM_OP_SET_ADD_KERNEL)
        return;
    if (kind == SPARK_COMM_OP_RECV_COMMAND_U32) {
        add(text, " from rank %d", peer);
        return;
    }
    add(text, " (%llu bytes", (unsigned long long)bytes);
    if (kind == SPARK_COMM_OP_BROADCAST) add(text, " from rank %d", peer);
    if (dtype != 0) add(text, ", %s", sc_dtype_name(dtype));
    if (redop != 0 && (whole || redop != SPARK_COMM_SUM))
        add(text, ", %s", sc_dtype_redop_name(redop));
    add(text, ")");
}

static int count(const struct sc_view *views, int size, enum sc_view_mark mark) {
    int marked = 0;
    for (int rank = 0; rank < size; rank++)
        marked += views[rank].mark == mark;
    return marked;
}

static int first_of(const struct sc_view *views, int size, enum sc_view_mark mark) {
    for (int rank = 0; rank < size; rank++)
        if (views[rank].mark == mark) return rank;
    return -1;
}

/* "rank 2", "ranks 0, 1 and 3"; returns how many. */
static int add_ranks(struct text *text, const struct sc_view *views, int size,
                     enum sc_view_mark mark) {
    int marked = count(views, size, mark), listed = 0;

    add(text, marked == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < size; rank++) {
        if (views[rank].mark != mark) continue;
        bool is_last = ++listed == marked;
        if (listed > MOST_LISTED && !is_last) {
            add(text, " and %d more", marked - listed + 1);
            break;
        }
        add(text, "%s%d", listed == 1 ? " " : is_last ? " and " : ", ", rank);
    }
    return marked;
}

static double seconds(uint64_t age) {
    return age == SC_WIRE_NO_AGE ? 0 : (double)age / 1e9;
}

/* ---- One rank ---- */

static void add_last(struct text *text, int rank, const struct sc_wire_lines *lines) {
    int lane = SPARK_COMM_LANE_DATA;

    if (lines->completed[lane] == 0) lane = SPARK_COMM_LANE_COMMAND;
    if (lines->completed[lane] == 0)
        add(text, "rank %d has completed no collective yet", rank);
    else
        add(text, "rank %d last completed %s #%llu", rank,
            sc_status_operation_name(sc_lines_kind(lines->last_descriptor[lane])),
            (unsigned long long)lines->completed[lane]);
}

/* "rank 2 is in recv_from rank 0 (64 bytes) since 1.0 s", or what it did last. */
static void add_whereabouts(struct text *text, int rank, const struct sc_view *view) {
    const struct sc_wire_lines *lines = &view->lines;

    if (view->state == SC_PEER_LEFT) {
        add(text, "rank %d has closed", rank);
        return;
    }
    if (!view->has_word) {
        add(text, "rank %d gives no word", rank);
        return;
    }
    for (int i = 0; i < SPARK_COMM_LANE_COUNT; i++) {
        int lane = i == 0 ? SPARK_COMM_LANE_DATA : SPARK_COMM_LANE_COMMAND;
        if (lines->age[lane] == SC_WIRE_NO_AGE) continue;
        add(text, "rank %d is in ", rank);
        add_call(text, lines->descriptor[lane], lines->submitted[lane], lines->bytes[lane], false);
        add(text, "%s since %.1f s", lane == SPARK_COMM_LANE_COMMAND ? " of the command lane" : "",
            seconds(lines->age[lane]));
        return;
    }
    add_last(text, rank, lines);
}

/* ---- Which call it is about ---- */

struct call {
    int lane;
    uint64_t number; /* 0: a message of `rank` */
    int rank; /* one that is in it */
};

static bool is_inside(const struct sc_view *view, int lane) {
    return view->has_word && view->lines.age[lane] != SC_WIRE_NO_AGE &&
           view->lines.descriptor[lane] != 0;
}

/* Marks, for collective `call`, who waits in it and who has not come. */
static void mark_collective(struct sc_view *views, int size, const struct call *call) {
    const struct sc_wire_lines *known = &views[call->rank].lines;
    int root = sc_lines_peer(known->descriptor[call->lane]);
    bool from_root = call->lane == SPARK_COMM_LANE_COMMAND;

    for (int rank = 0; rank < size; rank++) {
        struct sc_view *view = &views[rank];
        uint64_t submitted = view->lines.submitted[call->lane];
        view->mark = SC_VIEW_PLAIN;
        if (!view->has_word)
            view->mark = SC_VIEW_SILENT;
        else if (submitted == call->number && is_inside(view, call->lane))
            view->mark = view->state == SC_PEER_PRESENT ? SC_VIEW_WAITS : SC_VIEW_PLAIN;
        else if (submitted < call->number)
            view->mark = SC_VIEW_LATE;
    }
    /* A receiver waits for the root alone. */
    if (!from_root || root < 0 || root >= size || views[root].mark != SC_VIEW_LATE) return;
    for (int rank = 0; rank < size; rank++)
        if (rank != root && views[rank].mark == SC_VIEW_LATE) views[rank].mark = SC_VIEW_PLAIN;
}

/* The call that a failure of `operation` and `number` speaks of. */
static bool find_failed(const struct sc_view *views, int size, int operation, uint64_t number,
                        int peer, struct call *call) {
    for (int rank = 0; rank < size; rank++) {
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
            const struct sc_wire_lines *lines = &views[rank].lines;
            uint64_t descriptor = lines->descriptor[lane];
            bool is_message = sc_lines_is_message(operation);
            if (views[rank].state != SC_PEER_PRESENT || !is_inside(&views[rank], lane)) continue;
            if (sc_lines_kind(descriptor) != operation) continue;
            if (is_message ? operation != SPARK_COMM_OP_GROUP && sc_lines_peer(descriptor) != peer
                           : lines->submitted[lane] != number)
                continue;
            *call = (struct call){lane, is_message ? 0 : number, rank};
            return true;
        }
    }
    return false;
}

/* The call that the live ranks need a lost one for: the furthest collective of the data lane, else
 * what waits for it on the command lane, else a message. */
static bool find_missed(const struct sc_view *views, int size, int lost, struct call *call) {
    bool found = false;

    for (int rank = 0; rank < size; rank++) {
        const struct sc_wire_lines *lines = &views[rank].lines;
        if (views[rank].state != SC_PEER_PRESENT) continue;
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
            uint64_t descriptor = lines->descriptor[lane];
            if (!is_inside(&views[rank], lane)) continue;
            bool is_message = sc_lines_is_message(sc_lines_kind(descriptor));
            uint64_t number = is_message ? 0 : lines->submitted[lane];
            bool needs_it = lane == SPARK_COMM_LANE_DATA
                                ? !is_message || sc_lines_peer(descriptor) == lost
                                : sc_lines_peer(descriptor) == lost;
            if (!needs_it) continue;
            if (found && (lane < call->lane || (lane == call->lane && number <= call->number)))
                continue;
            *call = (struct call){lane, number, rank};
            found = true;
        }
    }
    return found;
}

static void add_subject(struct text *text, const struct sc_view *views, const struct call *call) {
    const struct sc_wire_lines *lines = &views[call->rank].lines;

    add_call(text, lines->descriptor[call->lane], call->number, lines->bytes[call->lane], false);
}

static uint64_t longest_wait(const struct sc_view *views, int size, int lane) {
    uint64_t longest = 0;

    for (int rank = 0; rank < size; rank++)
        if (views[rank].mark == SC_VIEW_WAITS && views[rank].lines.age[lane] > longest)
            longest = views[rank].lines.age[lane];
    return longest;
}

/* ---- A timeout ---- */

static void tell_also(struct text *text, const struct sc_view *views, int size,
                      enum sc_view_mark mark, const char *one, const char *several) {
    if (count(views, size, mark) == 0) return;
    add(text, "; ");
    int marked = add_ranks(text, views, size, mark);
    add(text, "%s", marked == 1 ? one : several);
}

static void tell_message(struct text *text, const struct sc_view *views, int size,
                         const struct call *call) {
    const struct sc_wire_lines *lines = &views[call->rank].lines;
    int peer = sc_lines_peer(lines->descriptor[call->lane]);
    uint64_t peers = lines->peers[call->lane];

    if (sc_lines_kind(lines->descriptor[call->lane]) == SPARK_COMM_OP_GROUP)
        peer = peers != 0 ? __builtin_ctzll(peers) : -1;
    add_whereabouts(text, call->rank, &views[call->rank]);
    if (peer < 0 || peer >= size || peer == call->rank) return;
    if (sc_lines_kind(lines->descriptor[call->lane]) == SPARK_COMM_OP_GROUP)
        add(text, " and waits for rank %d", peer);
    add(text, "; ");
    add_whereabouts(text, peer, &views[peer]);
}

static void tell_collective(struct text *text, struct sc_view *views, int size,
                            const struct call *call) {
    mark_collective(views, size, call);
    int late = first_of(views, size, SC_VIEW_LATE);
    bool is_silent = late < 0 && count(views, size, SC_VIEW_SILENT) > 0;

    if (late >= 0) {
        add(text, "%s not entered ",
            add_ranks(text, views, size, SC_VIEW_LATE) == 1 ? " has" : " have");
        add_subject(text, views, call);
    } else if (is_silent) {
        add(text, "%s no word and may not have entered ",
            add_ranks(text, views, size, SC_VIEW_SILENT) == 1 ? " gives" : " give");
        add_subject(text, views, call);
    } else {
        add(text, "no rank that is in ");
        add_subject(text, views, call);
        add(text, " goes on");
    }
    add(text, "; ");
    int waiting = add_ranks(text, views, size, SC_VIEW_WAITS);
    add(text, " %s in it since %.1f s", waiting == 1 ? "waits" : "wait",
        seconds(longest_wait(views, size, call->lane)));
    if (late < 0) return;
    add(text, "; ");
    add_whereabouts(text, late, &views[late]);
    tell_also(text, views, size, SC_VIEW_SILENT, " gives no word", " give no word");
}

static bool tell_timeout(struct text *text, struct sc_view *views, int size,
                         struct sc_error *cause) {
    struct call call;

    if (!find_failed(views, size, cause->operation, cause->sequence, cause->peer, &call))
        return false;
    if (call.number == 0) {
        tell_message(text, views, size, &call);
        return true;
    }
    tell_collective(text, views, size, &call);
    int late = first_of(views, size, SC_VIEW_LATE);
    if (late >= 0) cause->peer = late;
    return true;
}

/* ---- A loss ---- */

static void tell_last_act(struct text *text, const struct sc_view *lost, int rank, bool is_present,
                          const struct call *call) {
    const struct sc_wire_lines *lines = &lost->lines;

    if (!lost->has_word) return;
    add(text, is_present ? "; " : "; as far as it has told, ");
    if (call != NULL && call->number > 0 && lines->submitted[call->lane] < call->number) {
        add(text, "it had not entered ");
        return;
    }
    if (call != NULL && call->number > 0) {
        add(text,
            lines->completed[call->lane] >= call->number ? "it had completed " : "it was in ");
        return;
    }
    if (is_inside(lost, SPARK_COMM_LANE_DATA)) {
        add(text, "it was in ");
        add_call(text, lines->descriptor[SPARK_COMM_LANE_DATA],
                 lines->submitted[SPARK_COMM_LANE_DATA], lines->bytes[SPARK_COMM_LANE_DATA], false);
        return;
    }
    add_last(text, rank, lines);
}

/* Which call the others need it for. */
static void tell_need(struct text *text, struct sc_view *views, int size, int lost,
                      const struct call *call) {
    if (call->number == 0) {
        add(text, "; ");
        add_whereabouts(text, call->rank, &views[call->rank]);
        return;
    }
    if (!views[lost].has_word) add(text, "; it was needed in ");
    add_subject(text, views, call);
    mark_collective(views, size, call);
    add(text, ", in which ");
    int waiting = add_ranks(text, views, size, SC_VIEW_WAITS);
    add(text, " %s", waiting == 1 ? "waits" : "wait");
}

static uint8_t silence(const struct sc_view *view) {
    return view->has_word ? SC_VIEW_PLAIN : SC_VIEW_SILENT;
}

/* The words so far say who is lost, and how. */
static void tell_loss(struct text *text, struct sc_view *views, int size, bool one_host,
                      struct sc_error *cause) {
    struct call call;
    int lost = cause->peer;
    bool is_missed = find_missed(views, size, lost, &call);

    add(text, "%s", cause->message);
    tell_last_act(text, &views[lost], lost, one_host, is_missed ? &call : NULL);
    if (is_missed) {
        tell_need(text, views, size, lost, &call);
        cause->operation = sc_lines_kind(views[call.rank].lines.descriptor[call.lane]);
        cause->sequence = call.number;
    }
    for (int rank = 0; rank < size; rank++)
        views[rank].mark = rank == lost                           ? SC_VIEW_PLAIN
                           : views[rank].state == SC_PEER_LOST    ? SC_VIEW_LOST
                           : views[rank].state == SC_PEER_PRESENT ? silence(&views[rank])
                                                                  : SC_VIEW_PLAIN;
    tell_also(text, views, size, SC_VIEW_LOST, " is lost too", " are lost too");
    tell_also(text, views, size, SC_VIEW_SILENT, " gives no word", " give no word");
}

/* ---- Calls that differ ---- */

void sc_sentence_differ(struct sc_error *error, const struct sc_sentence_side *one,
                        const struct sc_sentence_side *other) {
    struct text text = {.used = 0};
    /* What goes on before what is past, then the lower rank: the same words whoever writes them. */
    bool swaps = one->is_past != other->is_past ? one->is_past : other->rank < one->rank;
    const struct sc_sentence_side *first = swaps ? other : one, *second = swaps ? one : other;

    add(&text, "rank %d is in ", first->rank);
    add_call(&text, first->descriptor, first->number, first->bytes, true);
    add(&text, second->is_past ? ", rank %d was in " : ", rank %d in ", second->rank);
    add_call(&text, second->descriptor, second->number, second->bytes, true);
    memcpy(error->message, text.words, sizeof text.words);
}

/* ---- All ---- */

void sc_sentence_write(struct sc_world *world, struct sc_view *views, struct sc_error *cause) {
    struct text text = {.used = 0};
    int size = world->size;
    bool is_written = false;

    if (cause->status == SPARK_COMM_OP_TIMEOUT) {
        is_written = tell_timeout(&text, views, size, cause);
    } else if (cause->status == SPARK_COMM_PEER_LOST && cause->peer >= 0 && cause->peer < size &&
               views[cause->peer].state == SC_PEER_LOST) {
        tell_loss(&text, views, size, world->epoch->one_host, cause);
        is_written = true;
    }
    if (is_written) memcpy(cause->message, text.words, sizeof text.words);
}
