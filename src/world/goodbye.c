/*
 * Leaving without a fuss. A rank that closes sends GOODBYE, with the numbers of the last operations
 * that it took part in, and waits until the peers' monitors have read it (FAREWELL), so that no
 * reset can overtake it; then it closes its sockets. A fault that is known is told before it, so that
 * nobody takes the goodbye for the reason. A worker says it to the hub, which passes it on
 * to the others; the hub says it to all. On one host the numbers also stay on the rank's card in
 * shared memory, for when the hub has gone first;
 * between hosts its successor passes goodbyes on.
 *
 * A goodbye harms nobody by itself. It is a fault, "rank 1 closed", only for an operation of this
 * rank that the leaver took no part in: one whose number on its lane is higher than the leaver's
 * last. The numbers decide, never the time: a slow rank that still copies what the leaver has sent
 * is in an operation that the leaver took part in. A goodbye that overtakes a result does no harm
 * either, for the same reason. If the leaver cut its own calls off (sc_world_leave), the last that
 * counts is the last it completed.
 */
#include <string.h>

#include "base/deadline.h"
#include "base/status.h"
#include "base/ticks.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)
/* With a fault behind it a farewell is a courtesy. */
#define POISONED_TIMEOUT_MS 1000
/* Point to point has no lane numbers: a call that needs the leaver is given so long to find what
 * the leaver may have left for it. */
#define PAIR_PATIENCE_NS (500 * NS_PER_MS)

enum { CUT_OFF = 1 }; /* flavour of a goodbye whose sender's own calls were cut off */

/* ---- Saying it ---- */

/* A worker says goodbye to a hub that is itself leaving, too: its monitor still passes it on. */
static bool is_owed_a_goodbye(struct sc_world *world, int rank) {
    struct sc_epoch *epoch = world->epoch;
    uint32_t state = sc_peer_state(epoch, rank);

    if (rank == world->rank || state == SC_PEER_LOST || state == SC_PEER_ABSENT) return false;
    if (state == SC_PEER_LEFT && rank != SC_HUB) return false;
    return sc_link_is_open(&epoch->peers[rank].link);
}

/* Between hosts, a rank that takes the hub's place waits for those that are about to dial it, unless
 * a hub before it has passed its goodbye on: they would take its end for a loss. */
static bool is_owed_a_wait(struct sc_world *world, int rank) {
    struct sc_epoch *epoch = world->epoch;

    if (epoch->one_host || sc_is_hub(world) || !sc_is_head(world) || rank == world->rank ||
        sc_peer_state(epoch, rank) != SC_PEER_PRESENT)
        return false;
    for (int hub = 0; hub < world->rank; hub++)
        if (atomic_load_explicit(&epoch->peers[hub].farewell, memory_order_acquire)) return false;
    return true;
}

static bool all_said_farewell(void *arg) {
    struct sc_world *world = arg;

    for (int rank = 0; rank < world->size; rank++)
        if (!atomic_load_explicit(&world->epoch->peers[rank].farewell, memory_order_acquire) &&
            (is_owed_a_goodbye(world, rank) || is_owed_a_wait(world, rank)))
            return false;
    return true;
}

static uint64_t floor_of(const struct sc_wire_lines *lines, int lane, bool was_cut_off) {
    return was_cut_off ? lines->completed[lane] : lines->submitted[lane];
}

void sc_goodbye_leave_card(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    bool leaving = atomic_load_explicit(&world->leaving, memory_order_relaxed);
    struct sc_wire_lines lines;

    if (!epoch->one_host) return;
    sc_world_fill_lines(world, &lines);
    struct sc_card *card = &epoch->segment.cards[world->rank];
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        atomic_store_explicit(&card->floor[lane], floor_of(&lines, lane, leaving),
                              memory_order_relaxed);
    atomic_store_explicit(&card->gathers, lines.gathers, memory_order_relaxed);
    atomic_store_explicit(&card->left, 1, memory_order_release);
}

void sc_goodbye_tell(struct sc_world *world, int rank) {
    struct sc_wire_header header = sc_header(world, SC_WIRE_GOODBYE, SC_WIRE_LINES_BYTES);
    uint8_t payload[SC_WIRE_LINES_BYTES];
    struct sc_wire_lines lines;

    sc_world_fill_lines(world, &lines);
    sc_wire_put_lines(payload, &lines);
    if (atomic_load_explicit(&world->leaving, memory_order_relaxed)) header.flavour = CUT_OFF;
    sc_link_send(world, &world->epoch->peers[rank].link, &header, payload, SC_LINK_NOW);
}

void sc_goodbye_say(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    int limit_ms = world->settings->close_timeout_ms;
    struct sc_error cause;

    bool leaving = atomic_load_explicit(&world->leaving, memory_order_relaxed);
    if (atomic_load_explicit(&world->poison, memory_order_relaxed) != 0 && !leaving &&
        (limit_ms == SPARK_COMM_FOREVER || limit_ms > POISONED_TIMEOUT_MS))
        limit_ms = POISONED_TIMEOUT_MS;
    sc_world_cause(world, &cause); /* final, and told to all, before the goodbye */
    sc_goodbye_leave_card(world);
    atomic_store_explicit(&epoch->has_said_goodbye, true, memory_order_seq_cst);
    for (int rank = 0; rank < world->size; rank++) {
        if (!is_owed_a_goodbye(world, rank)) continue;
        sc_verdict_repeat(world, rank);
        sc_goodbye_tell(world, rank);
    }
    /* Poison does not end this wait. */
    struct sc_wait_policy policy = epoch->inner[SPARK_COMM_LANE_DATA];
    policy.poison = NULL;
    sc_wait_until(&policy, all_said_farewell, world, sc_deadline_after(limit_ms));
}

/* ---- Hearing it ---- */

static void wake_callers(struct sc_epoch *epoch) {
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        sc_wait_wake_all(&epoch->inner_bells[lane]);
}

/* `lines` holds in both fields what counts. */
static void mark_left(struct sc_world *world, int rank, const struct sc_wire_lines *lines) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_peer *peer = &epoch->peers[rank];

    if (sc_peer_state(epoch, rank) != SC_PEER_PRESENT) return;
    peer->goodbye = *lines;
    /* Release: whoever acquires the state or the count reads the goodbye. */
    atomic_store_explicit(&peer->state, SC_PEER_LEFT, memory_order_release);
    atomic_fetch_add_explicit(&epoch->left_count, 1, memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d heard rank %d's goodbye", world->rank,
                 rank);
    wake_callers(epoch);
    if (rank == SC_HUB) sc_watch_begin(world);
    sc_heir_follow(world);
    sc_goodbye_check(world);
}

void sc_goodbye_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                     const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_wire_header reply = sc_header(world, SC_WIRE_FAREWELL, 0);
    int leaver = header->source;
    struct sc_wire_lines lines;

    if (leaver == world->rank || !sc_wire_get_lines(payload, header->bytes, &lines)) return;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        lines.completed[lane] = lines.submitted[lane] =
            floor_of(&lines, lane, header->flavour == CUT_OFF);
    mark_left(world, leaver, &lines);
    /* Passed on first: whoever has the farewell relies on it. */
    for (int other = 0; other < world->size && sc_is_head(world); other++) {
        if (other == leaver || other == world->rank ||
            sc_peer_state(epoch, other) != SC_PEER_PRESENT)
            continue;
        sc_verdict_repeat(world, other);
        sc_link_send(world, &epoch->peers[other].link, header, payload, SC_LINK_NOW);
    }
    if (leaver == rank) sc_link_send(world, &epoch->peers[rank].link, &reply, NULL, SC_LINK_NOW);
}

void sc_goodbye_take_farewell(struct sc_world *world, int rank) {
    atomic_store_explicit(&world->epoch->peers[rank].farewell, true, memory_order_release);
    wake_callers(world->epoch);
}

/* Without the hub nobody passes goodbyes on: look at the cards. */
void sc_goodbye_read_cards(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;

    if (!atomic_load_explicit(&epoch->ready, memory_order_acquire) || !epoch->one_host) return;
    for (int rank = 0; rank < world->size; rank++) {
        struct sc_card *card = &epoch->segment.cards[rank];
        struct sc_wire_lines lines = {.gathers = 0};
        if (rank == world->rank || sc_peer_state(epoch, rank) != SC_PEER_PRESENT ||
            atomic_load_explicit(&card->left, memory_order_acquire) == 0)
            continue;
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
            lines.completed[lane] = lines.submitted[lane] =
                atomic_load_explicit(&card->floor[lane], memory_order_relaxed);
        lines.gathers = atomic_load_explicit(&card->gathers, memory_order_relaxed);
        mark_left(world, rank, &lines);
    }
}

/* ---- What it means for this rank's operations ---- */

int sc_goodbye_missing(const struct sc_epoch *epoch, int lane, uint64_t number) {
    if (atomic_load_explicit(&epoch->left_count, memory_order_acquire) == 0) return -1;
    for (int rank = 0; rank < epoch->size; rank++)
        if (sc_peer_state(epoch, rank) == SC_PEER_LEFT &&
            number > epoch->peers[rank].goodbye.submitted[lane])
            return rank;
    return -1;
}

int sc_goodbye_missing_gather(const struct sc_epoch *epoch, uint64_t round) {
    if (atomic_load_explicit(&epoch->left_count, memory_order_acquire) == 0) return -1;
    for (int rank = 0; rank < epoch->size; rank++)
        if (sc_peer_state(epoch, rank) == SC_PEER_LEFT &&
            round > epoch->peers[rank].goodbye.gathers)
            return rank;
    return -1;
}

/* Which rank that has left does the collective that runs on this lane wait for? -1: none. */
static int missing_from(const struct sc_world *world, int lane, int kind, int peer,
                        uint64_t number) {
    const struct sc_epoch *epoch = world->epoch;
    bool receives = lane == SPARK_COMM_LANE_COMMAND && peer != world->rank;

    if (kind == SPARK_COMM_OP_NONE) return -1;
    if (!receives) return sc_goodbye_missing(epoch, lane, number);
    /* A receiver of commands needs their root alone. */
    bool root_left = peer >= 0 && peer < world->size && sc_peer_state(epoch, peer) == SC_PEER_LEFT;
    return root_left && number > epoch->peers[peer].goodbye.submitted[lane] ? peer : -1;
}

static void blame(struct sc_world *world, int rank, int kind, uint64_t number) {
    struct sc_error error;

    sc_error_clear(&error);
    if (number > 0)
        sc_error_set(&error, SPARK_COMM_PEER_LOST, rank, 0, "rank %d closed, and %s #%llu needs it",
                     rank, sc_status_operation_name(kind), (unsigned long long)number);
    else
        sc_error_set(&error, SPARK_COMM_PEER_LOST, rank, 0, "rank %d closed, and %s needs it", rank,
                     sc_status_operation_name(kind));
    error.operation = kind;
    error.sequence = number;
    sc_world_fault(world, &error);
}

void sc_world_show_group(struct sc_world *world, const spark_comm_op *posts, size_t count) {
    for (int word = 0; word <= (world->size - 1) / 64; word++) {
        uint64_t bits = 0;
        for (size_t i = 0; i < count; i++)
            if (posts[i].peer / 64 == word) bits |= UINT64_C(1) << (posts[i].peer % 64);
        atomic_store_explicit(&world->group_peers[word], bits, memory_order_relaxed);
    }
}

/* A rank that has left and with which the running group exchanges messages; -1: none. */
static int missing_from_group(const struct sc_world *world) {
    for (int rank = 0; rank < world->size; rank++) {
        uint64_t bits = atomic_load_explicit(&world->group_peers[rank / 64], memory_order_relaxed);
        if ((bits >> (rank % 64) & 1) != 0 && rank != world->rank &&
            sc_peer_state(world->epoch, rank) == SC_PEER_LEFT)
            return rank;
    }
    return -1;
}

/* Calls that may be refused on all ranks alike in the end, and then give their number back: whoever
 * leaves right behind such a call does not count it, while others are still on their way out of it. Their
 * own waits look at goodbyes. */
static bool is_voted(int kind) {
    return kind == SPARK_COMM_OP_SET_ADD_KERNEL || kind == SPARK_COMM_OP_SYMMETRIC_ALLOC;
}

/* A send_to, recv_from or group with a rank that has left, in which nothing moves any more; or a vote
 * that does not end. */
static void check_pair(struct sc_world *world) {
    const struct sc_world_line *line =
        &world->epoch->lines[world->rank * SPARK_COMM_LANE_COUNT + SPARK_COMM_LANE_DATA];
    uint64_t begun = atomic_load_explicit(&line->submit_ticks, memory_order_acquire);
    uint64_t descriptor = atomic_load_explicit(&line->descriptor, memory_order_acquire);
    uint64_t ended = atomic_load_explicit(&line->complete_ticks, memory_order_acquire);
    int kind = (int)(descriptor & 0xff);
    int peer = (int)(int32_t)(uint32_t)(descriptor >> 32);

    if (kind == SPARK_COMM_OP_GROUP)
        peer = missing_from_group(world);
    else if (is_voted(kind))
        peer = sc_goodbye_missing(world->epoch, SPARK_COMM_LANE_DATA,
                                  atomic_load_explicit(&line->submitted, memory_order_relaxed));
    else if (kind != SPARK_COMM_OP_SEND_TO && kind != SPARK_COMM_OP_RECV_FROM)
        return;
    if (begun <= ended || peer < 0 || peer >= world->size) return;
    if (sc_peer_state(world->epoch, peer) != SC_PEER_LEFT) return;
    if (begun != world->monitor.pair_begun) {
        world->monitor.pair_begun = begun;
        world->monitor.pair_until = sc_deadline_now() + PAIR_PATIENCE_NS;
    } else if (sc_deadline_passed(world->monitor.pair_until)) {
        blame(world, peer, kind, 0);
    }
}

/* The collective that runs on `lane`, if it waits for a rank that has left. */
static int find_missing(const struct sc_world *world, int lane, int *kind, uint64_t *number) {
    const struct sc_world_line *line =
        &world->epoch->lines[world->rank * SPARK_COMM_LANE_COUNT + lane];
    uint64_t submitted = atomic_load_explicit(&line->submitted, memory_order_acquire);
    uint64_t descriptor = atomic_load_explicit(&line->descriptor, memory_order_acquire);
    uint64_t completed = atomic_load_explicit(&line->completed, memory_order_acquire);
    int peer = (int)(int32_t)(uint32_t)(descriptor >> 32);

    *kind = (int)(descriptor & 0xff);
    *number = submitted;
    if (*kind == SPARK_COMM_OP_SEND_TO || *kind == SPARK_COMM_OP_RECV_FROM ||
        *kind == SPARK_COMM_OP_GROUP || is_voted(*kind))
        return -1;
    return submitted > completed ? missing_from(world, lane, *kind, peer, submitted) : -1;
}

static void check_lane(struct sc_world *world, int lane) {
    uint64_t number, again;
    int kind, same_kind;
    int rank = find_missing(world, lane, &kind, &number);

    if (rank < 0) return;
    /* A line read while its owner writes it may mix two operations; twice the same is one. */
    if (find_missing(world, lane, &same_kind, &again) != rank) return;
    if (same_kind == kind && again == number) blame(world, rank, kind, number);
}

void sc_goodbye_check(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;

    if (!atomic_load_explicit(&epoch->ready, memory_order_acquire) ||
        atomic_load_explicit(&world->poison, memory_order_relaxed) != 0)
        return;
    if (epoch->one_host && !sc_is_hub(world) && sc_peer_state(epoch, SC_HUB) == SC_PEER_LEFT)
        sc_goodbye_read_cards(world);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        check_lane(world, lane);
    check_pair(world);
}
