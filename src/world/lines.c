/*
 * Status lines as others read them: on one host from the shared page, which outlives its ranks,
 * otherwise from the last record that brought them. A view is a copy of one rank's lines with the
 * times turned into ages; views of all ranks are what a verdict is written from.
 */
#include <string.h>

#include "base/deadline.h"
#include "base/ticks.h"
#include "world/world_state.h"

static uint64_t age_of(uint64_t ticks, int64_t now) {
    int64_t age = now - sc_ticks_to_ns(ticks);
    return age > 0 ? (uint64_t)age : 0;
}

bool sc_lines_is_message(int kind) {
    return kind == SPARK_COMM_OP_SEND_TO || kind == SPARK_COMM_OP_RECV_FROM ||
           kind == SPARK_COMM_OP_GROUP;
}

static void read_lane(const struct sc_world_line *line, int lane, int64_t now,
                      struct sc_wire_lines *out) {
    /* Acquire: partners are the api's sc_lane_begin and sc_lane_end. */
    uint64_t submitted = atomic_load_explicit(&line->submitted, memory_order_acquire);
    uint64_t completed = atomic_load_explicit(&line->completed, memory_order_acquire);
    uint64_t begun = atomic_load_explicit(&line->submit_ticks, memory_order_acquire);
    uint64_t ended = atomic_load_explicit(&line->complete_ticks, memory_order_relaxed);
    uint64_t looked = atomic_load_explicit(&line->looked_ticks, memory_order_acquire);
    uint64_t descriptor = atomic_load_explicit(&line->descriptor, memory_order_relaxed);
    bool is_message = sc_lines_is_message(sc_lines_kind(descriptor));

    out->submitted[lane] = submitted;
    out->completed[lane] = completed;
    out->descriptor[lane] = descriptor;
    out->bytes[lane] = atomic_load_explicit(&line->bytes, memory_order_relaxed);
    out->peers[lane] = atomic_load_explicit(&line->peers, memory_order_relaxed);
    out->age[lane] = out->looked[lane] = SC_WIRE_NO_AGE;
    if (is_message ? begun > ended : submitted > completed) {
        out->age[lane] = age_of(begun, now);
        if (looked > begun) out->looked[lane] = age_of(looked, now);
    }
    if (completed == 0) return;
    sc_lines_past(line, completed, &out->last_descriptor[lane], &out->last_bytes[lane]);
}

bool sc_lines_past(const struct sc_world_line *line, uint64_t number, uint64_t *descriptor,
                   uint64_t *bytes) {
    /* Acquire: partner is the release of `submitted`, which comes after the entry. */
    uint64_t before = atomic_load_explicit(&line->submitted, memory_order_acquire);
    *descriptor =
        atomic_load_explicit(&line->past[number % SC_WORLD_PAST].descriptor, memory_order_relaxed);
    *bytes = atomic_load_explicit(&line->past[number % SC_WORLD_PAST].bytes, memory_order_acquire);
    uint64_t after = atomic_load_explicit(&line->submitted, memory_order_acquire);
    /* The entry that is written next is one that has been given up. */
    return number <= before && after - number < SC_WORLD_PAST - 1;
}

void sc_world_fill_lines(const struct sc_world *world, struct sc_wire_lines *lines) {
    const struct sc_epoch *epoch = world->epoch;
    int64_t now = sc_deadline_now();

    memset(lines, 0, sizeof *lines);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        lines->age[lane] = lines->looked[lane] = SC_WIRE_NO_AGE;
    if (!atomic_load_explicit(&epoch->ready, memory_order_acquire)) return;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        read_lane(sc_lines_of(epoch, world->rank, lane), lane, now, lines);
    lines->gathers = atomic_load_explicit(&epoch->gather.rounds, memory_order_relaxed);
}

/* What came in a record has grown older since. */
static void grow_older(uint64_t *age, int64_t by) {
    if (*age != SC_WIRE_NO_AGE && by > 0) *age += (uint64_t)by;
}

void sc_lines_view(const struct sc_world *world, int rank, struct sc_view *view) {
    const struct sc_epoch *epoch = world->epoch;
    const struct sc_peer *peer = &epoch->peers[rank];
    int64_t now = sc_deadline_now();
    bool is_own = rank == world->rank;

    memset(view, 0, sizeof *view);
    view->state = is_own ? SC_PEER_PRESENT : sc_peer_state(epoch, rank);
    view->has_word = is_own || epoch->one_host || peer->said_at != 0;
    if (!is_own && !epoch->one_host) {
        view->lines = peer->said;
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
            grow_older(&view->lines.age[lane], now - peer->said_at);
            grow_older(&view->lines.looked[lane], now - peer->said_at);
        }
        return;
    }
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        read_lane(sc_lines_of(epoch, rank, lane), lane, now, &view->lines);
}

void sc_lines_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                   const uint8_t *payload) {
    struct sc_peer *peer = &world->epoch->peers[rank];
    struct sc_wire_lines lines;

    /* On one host the lines themselves are shared. */
    if (!atomic_load_explicit(&world->epoch->ready, memory_order_acquire) ||
        !sc_wire_get_lines(payload, header->bytes, &lines))
        return;
    peer->said = lines;
    peer->said_at = sc_deadline_now();
    if (header->flavour == SC_LINES_ANSWER) peer->has_answered = true;
}
