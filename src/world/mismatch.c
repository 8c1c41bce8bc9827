/*
 * Calls that can never meet. A rank that has waited for a quarter of a second compares its call with
 * those of the others, lane by lane (on one host by itself, between hosts the head does it for all):
 *
 *   the same number of one lane stands for different calls on two ranks: a rank took another branch,
 *   gave another size, or skipped a call; or
 *   data-lane waits form a circle: a rank in recv_from waits for one that is in a barrier, which
 *   waits for it.
 *
 * A rank that is in no call, or waits on the other lane, may still come: that is no mismatch.
 *
 * A circle is believed only when each rank in it has looked at what it waits for, in vain, after the
 * next one had entered its present call. Whatever that one sent before is then known not to be what
 * is waited for; and while it stays in its call it sends nothing else. So a rank that was stopped, or
 * starved, with everything it needs before it is never blamed.
 */
#include <string.h>

#include "base/status.h"
#include "base/deadline.h"
#include "world/world_state.h"

#define NS_PER_MS UINT64_C(1000000)
#define LONG_WAIT_NS (250 * NS_PER_MS)
#define NEWS_NS (500 * NS_PER_MS) /* until then the head is told of it at each tick */
#define MOST_TRIED 16 /* waits that the head follows at a tick */
/* By how much one look must be younger than the entry that it is held against. */
#define LOCAL_MARGIN_NS (20 * NS_PER_MS)
#define REMOTE_MARGIN_NS (1000 * NS_PER_MS) /* a message may be that long under way */

enum { DATA = SPARK_COMM_LANE_DATA };

struct search {
    struct sc_world *world;
    struct sc_view *views;
    int size;
};

static bool waits_long(const struct sc_view *view, int lane) {
    uint64_t age = view->lines.age[lane];
    return view->has_word && view->state == SC_PEER_PRESENT && age != SC_WIRE_NO_AGE &&
           age >= LONG_WAIT_NS;
}

/* ---- One number, two calls ---- */

/* What must be equal on all ranks: the halves of one operation become one. */
static void make_common(uint64_t *descriptor, uint64_t *bytes) {
    switch (sc_lines_kind(*descriptor)) {
    case SPARK_COMM_OP_RECV_COMMAND_U32:
        *descriptor = sc_world_describe(SPARK_COMM_OP_BROADCAST, 0, 0, sc_lines_peer(*descriptor));
        break;
    case SPARK_COMM_OP_SEND_COMMAND:
    case SPARK_COMM_OP_RECV_COMMAND:
        *descriptor = sc_world_describe(SPARK_COMM_OP_RECV_COMMAND, 0, 0, 0);
        *bytes = 0;
        break;
    case SPARK_COMM_OP_SYMMETRIC_ALLOC: *bytes = 0; break; /* it says itself what differs */
    default: break;
    }
}

/* What collective `number` was on `rank`. */
static bool recall(const struct search *search, int rank, int lane, uint64_t number,
                   struct sc_sentence_side *side) {
    const struct sc_wire_lines *lines = &search->views[rank].lines;
    const struct sc_epoch *epoch = search->world->epoch;

    *side = (struct sc_sentence_side){.rank = rank, .number = number};
    if (number > lines->submitted[lane] || number == 0) return false;
    side->is_past = number <= lines->completed[lane];
    if (epoch->one_host)
        return sc_lines_past(sc_lines_of(epoch, rank, lane), number, &side->descriptor,
                             &side->bytes);
    if (number == lines->completed[lane]) {
        side->descriptor = lines->last_descriptor[lane];
        side->bytes = lines->last_bytes[lane];
        return true;
    }
    side->descriptor = lines->descriptor[lane];
    side->bytes = lines->bytes[lane];
    return number == lines->submitted[lane];
}

static bool differ(const struct sc_sentence_side *one, const struct sc_sentence_side *other) {
    struct sc_sentence_side a = *one, b = *other;

    make_common(&a.descriptor, &a.bytes);
    make_common(&b.descriptor, &b.bytes);
    return a.descriptor != b.descriptor || a.bytes != b.bytes;
}

/* What `rank` is in on this lane; false: in no collective. */
static bool present_call(const struct search *search, int rank, int lane,
                         struct sc_sentence_side *side) {
    const struct sc_wire_lines *lines = &search->views[rank].lines;

    return search->views[rank].has_word && lines->age[lane] != SC_WIRE_NO_AGE &&
           !sc_lines_is_message(sc_lines_kind(lines->descriptor[lane])) &&
           recall(search, rank, lane, lines->submitted[lane], side);
}

/* A rank whose collective with the number of `rank`'s was another. */
static bool find_other_call(const struct search *search, int rank, int lane,
                            struct sc_sentence_side *own, struct sc_sentence_side *other) {
    if (!waits_long(&search->views[rank], lane) || !present_call(search, rank, lane, own))
        return false;
    for (int i = 0; i < search->size; i++)
        if (i != rank && search->views[i].has_word && recall(search, i, lane, own->number, other) &&
            differ(own, other))
            return true;
    return false;
}

/* ---- Circles ---- */

/* Does `a` wait for a message of `b`, or for `b` to take one? */
static bool needs_message(const struct sc_wire_lines *a, int b, const struct sc_wire_lines *of_b,
                          int rank_a) {
    int kind = sc_lines_kind(a->descriptor[DATA]), other = sc_lines_kind(of_b->descriptor[DATA]);
    bool they_meet = (kind == SPARK_COMM_OP_SEND_TO && other == SPARK_COMM_OP_RECV_FROM) ||
                     (kind == SPARK_COMM_OP_RECV_FROM && other == SPARK_COMM_OP_SEND_TO);

    if (they_meet && sc_lines_peer(of_b->descriptor[DATA]) == rank_a) return false;
    if (kind != SPARK_COMM_OP_GROUP) return sc_lines_peer(a->descriptor[DATA]) == b;
    return b < 64 && (a->peers[DATA] >> b & 1) != 0;
}

static bool needs(const struct search *search, int rank, int other) {
    const struct sc_wire_lines *a = &search->views[rank].lines, *b = &search->views[other].lines;
    uint64_t margin = search->world->epoch->one_host ? LOCAL_MARGIN_NS : REMOTE_MARGIN_NS;
    int kind = sc_lines_kind(a->descriptor[DATA]), root = sc_lines_peer(a->descriptor[DATA]);

    if (rank == other || !waits_long(&search->views[rank], DATA) ||
        !waits_long(&search->views[other], DATA))
        return false;
    if (a->looked[DATA] == SC_WIRE_NO_AGE || a->looked[DATA] + margin >= b->age[DATA]) return false;
    if (sc_lines_is_message(kind)) return needs_message(a, other, b, rank);
    /* A root waits for room alone, and nobody knows whose. */
    if (kind == SPARK_COMM_OP_BROADCAST && (root == rank || root != other)) return false;
    return b->submitted[DATA] < a->submitted[DATA];
}

/* A circle through `start`; gives the rank that it waits for, and how many there are. 0: none. */
static int find_circle(const struct search *search, int start, int *next) {
    bool goes_on = true;
    int length = 0;

    for (int rank = 0; rank < search->size; rank++)
        search->views[rank].before = -1;
    while (goes_on && search->views[start].before < 0) {
        goes_on = false;
        for (int rank = 0; rank < search->size; rank++) {
            if (rank != start && search->views[rank].before < 0) continue;
            for (int other = 0; other < search->size; other++) {
                if (search->views[other].before >= 0 || !needs(search, rank, other)) continue;
                search->views[other].before = rank;
                goes_on = true;
            }
        }
    }
    if (search->views[start].before < 0) return 0;
    for (int rank = start; length == 0 || rank != start; rank = search->views[rank].before) {
        *next = rank;
        length++;
    }
    return length;
}

static void describe_now(const struct search *search, int rank, struct sc_sentence_side *side) {
    const struct sc_wire_lines *lines = &search->views[rank].lines;

    *side = (struct sc_sentence_side){.rank = rank,
                                      .descriptor = lines->descriptor[DATA],
                                      .number = lines->submitted[DATA],
                                      .bytes = lines->bytes[DATA]};
}

/* ---- What is found ---- */

static void fill(struct sc_error *error, const struct sc_sentence_side *one,
                 const struct sc_sentence_side *other, int circle) {
    size_t used;

    sc_error_clear(error);
    error->status = SPARK_COMM_MISMATCH;
    error->peer = other->rank;
    error->operation = sc_lines_kind(one->descriptor);
    error->sequence = sc_lines_is_message(error->operation) ? 0 : one->number;
    sc_sentence_differ(error, one, other);
    used = strlen(error->message);
    if (circle > 0)
        strncpy(error->message + used,
                circle == 2 ? ": each waits for the other" : ": they and others wait in a circle",
                sizeof error->message - used - 1);
}

static bool search_from(const struct search *search, int rank, struct sc_error *error) {
    struct sc_judge *judge = &search->world->epoch->judge;
    struct sc_sentence_side own, other;
    int next = -1;

    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        if (!find_other_call(search, rank, lane, &own, &other)) continue;
        /* An entry may be read while it is replaced: twice the same is no accident. */
        uint64_t begun = own.number << 1 | (uint64_t)lane;
        bool is_again = judge->seen_begun == begun && judge->seen_rank == other.rank;
        judge->seen_begun = begun;
        judge->seen_rank = other.rank;
        if (is_again) fill(error, &own, &other, 0);
        return is_again;
    }
    int length = find_circle(search, rank, &next);
    if (length == 0) return false;
    describe_now(search, rank, &own);
    describe_now(search, next, &other);
    fill(error, &own, &other, length);
    return true;
}

/* Both sides under the number of the one, or of the other, that stands for different calls; else what
 * they are in, when the numbers differ. */
static bool find_sides(const struct search *search, int rank, int peer,
                       struct sc_sentence_side *one, struct sc_sentence_side *other) {
    struct sc_sentence_side now, past;
    bool has_other = present_call(search, peer, DATA, &now);

    if (recall(search, peer, DATA, one->number, other) && differ(one, other)) return true;
    if (!has_other) return false;
    *other = now;
    if (!recall(search, rank, DATA, other->number, &past) || !differ(&past, other))
        return one->number != other->number;
    *one = past;
    return true;
}

/* One that a backend found: its words know one side alone. */
void sc_mismatch_describe(struct sc_world *world, struct sc_view *views, struct sc_error *cause) {
    const struct search search = {world, views, world->size};
    struct sc_sentence_side one, other;

    if (cause->peer < 0 || sc_lines_is_message(cause->operation)) return;
    for (int rank = 0; rank < world->size; rank++) {
        if (rank == cause->peer || !present_call(&search, rank, DATA, &one) ||
            one.number != cause->sequence || !find_sides(&search, rank, cause->peer, &one, &other))
            continue;
        sc_sentence_differ(cause, &one, &other);
        return;
    }
}

/* The rank's own caller looks again at what it waits for, and says when it did. */
static void make_look(struct sc_world *world) {
    sc_wait_wake_all(world->epoch->policy[DATA].doorbell);
    if (world->epoch->one_host) sc_wait_wake_all(&world->epoch->inner_bells[DATA]);
}

bool sc_mismatch_check(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    struct search search = {world, epoch->judge.views, world->size};
    struct sc_error error;
    bool found = false, waits = false, is_news = false;
    int tried = 0;

    sc_lock_take(&epoch->judge.lock, SC_DEADLINE_NEVER, NULL);
    sc_lines_view(world, world->rank, &search.views[world->rank]);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        bool is_long = waits_long(&search.views[world->rank], lane);
        waits |= is_long;
        is_news |= is_long && search.views[world->rank].lines.age[lane] < NEWS_NS;
    }
    bool is_busy = search.views[world->rank].lines.age[DATA] != SC_WIRE_NO_AGE;
    if (waits_long(&search.views[world->rank], DATA)) make_look(world);
    /* Between hosts the head knows most, and looks for all: it is told as soon as a wait is long. */
    bool looks = epoch->one_host ? waits : sc_is_head(world);
    for (int rank = 0; looks && rank < world->size; rank++)
        if (rank != world->rank) sc_lines_view(world, rank, &search.views[rank]);
    for (int rank = 0; looks && !found && rank < world->size && tried < MOST_TRIED; rank++) {
        if (epoch->one_host && rank != world->rank) continue;
        tried += waits_long(&search.views[rank], DATA);
        found = search_from(&search, rank, &error);
    }
    sc_lock_give(&epoch->judge.lock);
    if (is_news && !epoch->one_host && !sc_is_head(world))
        sc_monitor_tell_lines(world, atomic_load_explicit(&epoch->hub, memory_order_relaxed), 0);
    if (found) sc_world_fault(world, &error);
    return is_busy;
}
