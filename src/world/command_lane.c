/*
 * The command lane: one rank's words to all others, in order, without an acknowledgement.
 *
 * On one host each rank writes its own ring in shared memory (ring.h). Otherwise records go over the
 * star: a root's records to the hub, which queues them for all others before it delivers to its own
 * rank, so that all see one root's commands in one order. The monitor files them into an inbox per
 * root. No reader is ever more than WINDOW bytes behind: it tells the root how much it has received
 * (CREDIT, every CREDIT_STEP bytes, by way of the hub), and the root waits for the slowest. So
 * inboxes and queues are bounded, and the sockets never fill up with commands that nobody receives
 * while heartbeats and verdicts wait behind them.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"
#include "world/world_state.h"

#define WINDOW (256u * 1024u)
#define CREDIT_STEP (64u * 1024u)

_Static_assert(SC_RING_MAX_RECORD == SC_WIRE_MAX_PAYLOAD, "both ways take the same commands");
_Static_assert(WINDOW - CREDIT_STEP > SC_WIRE_MAX_PAYLOAD + SC_WIRE_HEADER_BYTES,
               "with all but the uncredited received there is room for the largest record");

static uint64_t cost(size_t bytes) {
    return SC_WIRE_HEADER_BYTES + bytes;
}

static const char *kind_name(uint32_t kind) {
    return kind == SC_WORLD_RECORD_COMMAND ? "a command" : "a broadcast";
}

/* ---- Sending ---- */

struct window {
    struct sc_world *world;
    uint64_t need; /* what every reader must have received */
};

/* The reader that is furthest behind `need`; -1: none is. */
static int find_slowest(const struct window *window) {
    struct sc_epoch *epoch = window->world->epoch;
    uint64_t least = window->need;
    int slowest = -1;

    for (int rank = 0; rank < window->world->size; rank++) {
        if (rank == window->world->rank || sc_peer_state(epoch, rank) != SC_PEER_PRESENT) continue;
        uint64_t credit = atomic_load_explicit(&epoch->peers[rank].credit, memory_order_acquire);
        if (credit >= least) continue;
        least = credit;
        slowest = rank;
    }
    return slowest;
}

static bool has_room(void *arg) {
    return find_slowest(arg) < 0;
}

static spark_comm_status too_slow(int rank, struct sc_error *error) {
    return sc_error_set(error, SPARK_COMM_OP_TIMEOUT, rank, 0,
                        "rank %d has not received the commands before it, and no more than %u KiB "
                        "may be under way",
                        rank, WINDOW / 1024);
}

static spark_comm_status send_over_star(struct sc_world *world, const struct sc_wire_header *header,
                                        const void *data, int64_t deadline,
                                        struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    uint64_t sent = epoch->commands_sent + cost(header->bytes);
    struct window window = {world, sent > WINDOW ? sent - WINDOW : 0};
    int end = sc_is_hub(world) ? world->size : SC_HUB + 1;
    spark_comm_status st =
        sc_wait_until(&epoch->inner[SPARK_COMM_LANE_COMMAND], has_room, &window, deadline);

    if (st == SPARK_COMM_OP_TIMEOUT) return too_slow(find_slowest(&window), error);
    if (st != SPARK_COMM_OK) return sc_verdict_end(world, error);
    for (int rank = SC_HUB; rank < end && st == SPARK_COMM_OK; rank++) {
        if (rank == world->rank || sc_peer_state(epoch, rank) != SC_PEER_PRESENT) continue;
        /* The window bounds the queue. */
        st = sc_link_send(world, &epoch->peers[rank].link, header, data, SC_LINK_NOW);
        if (st == SPARK_COMM_PEER_LOST) st = SPARK_COMM_OK; /* the monitor judges it */
    }
    if (st != SPARK_COMM_OK)
        return sc_error_set(error, st == SPARK_COMM_NO_MEMORY ? SPARK_COMM_ABORTED : st, -1, 0,
                            "the command cannot be queued: %s", sc_status_text((int)st));
    epoch->commands_sent = sent;
    return SPARK_COMM_OK;
}

static spark_comm_status send_to_ring(struct sc_world *world, const struct sc_wire_header *header,
                                      const void *data, int64_t deadline, struct sc_error *error) {
    struct sc_ring_header record = {.bytes = header->bytes,
                                    .kind = header->flavour,
                                    .epoch = header->epoch,
                                    .digest = header->digest,
                                    .number = header->number};
    int slowest = -1;
    spark_comm_status st = sc_ring_write(&world->epoch->rings, &record, data, deadline, &slowest);

    switch (st) {
    case SPARK_COMM_OK: return st;
    case SPARK_COMM_OP_TIMEOUT: return too_slow(slowest, error);
    case SPARK_COMM_ABORTED: return sc_verdict_end(world, error);
    case SPARK_COMM_BACKEND:
        return sc_error_set(error, st, slowest, 0, "rank %d has damaged the command rings",
                            slowest);
    default:
        return sc_error_set(error, st, -1, 0, "the command cannot be sent: %s",
                            sc_status_text((int)st));
    }
}

spark_comm_status sc_world_command_send(struct sc_world *world, int kind, uint64_t number,
                                        uint32_t digest, const void *data, size_t bytes,
                                        int64_t deadline, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;

    if (bytes > SC_WIRE_MAX_PAYLOAD)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "%zu bytes are more than one command holds (%u)", bytes,
                            SC_WIRE_MAX_PAYLOAD);
    if (world->size == 1) return SPARK_COMM_OK;
    int missing = sc_goodbye_missing(epoch, SPARK_COMM_LANE_COMMAND, number);
    if (missing >= 0) return sc_verdict_closed(world, missing, error);
    struct sc_wire_header header = sc_header(world, SC_WIRE_COMMAND, bytes);
    header.flavour = (uint16_t)kind;
    header.number = number;
    header.digest = digest;
    return epoch->one_host ? send_to_ring(world, &header, data, deadline, error)
                           : send_over_star(world, &header, data, deadline, error);
}

/* ---- Filing; monitor ---- */

static void out_of_memory(struct sc_world *world, const struct sc_wire_header *header) {
    struct sc_error error;

    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_ABORTED, world->rank, 0,
                 "rank %d has no memory for a command of %u bytes from rank %d", world->rank,
                 header->bytes, header->source);
    sc_world_fault(world, &error);
}

static void file(struct sc_world *world, const struct sc_wire_header *header,
                 const uint8_t *payload) {
    struct sc_inbox *inbox = &world->epoch->peers[header->source].inbox;
    struct sc_letter *letter = sc_alloc(sizeof *letter + header->bytes);

    if (letter == NULL) {
        out_of_memory(world, header);
        return;
    }
    letter->next = NULL;
    letter->header = *header;
    if (header->bytes > 0) memcpy(letter->payload, payload, header->bytes);
    sc_lock_take(&inbox->lock, SC_DEADLINE_NEVER, NULL);
    if (inbox->last != NULL)
        inbox->last->next = letter;
    else
        inbox->first = letter;
    inbox->last = letter;
    sc_lock_give(&inbox->lock);
    /* Release: partner of the acquire in has_letter. */
    atomic_fetch_add_explicit(&inbox->count, 1, memory_order_release);
    sc_wait_ring(&world->epoch->inner[SPARK_COMM_LANE_COMMAND],
                 &world->epoch->inner_bells[SPARK_COMM_LANE_COMMAND]);
}

void sc_command_lane_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                          const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;

    if (header->source == world->rank) return;
    for (int other = SC_HUB + 1; sc_is_hub(world) && other < world->size; other++) {
        if (other == rank || sc_peer_state(epoch, other) != SC_PEER_PRESENT) continue;
        /* The root's window bounds what is queued here. */
        if (sc_link_send(world, &epoch->peers[other].link, header, payload, SC_LINK_NOW) ==
            SPARK_COMM_NO_MEMORY)
            out_of_memory(world, header);
    }
    file(world, header, payload);
}

void sc_command_lane_credit(struct sc_world *world, const struct sc_wire_header *header) {
    struct sc_epoch *epoch = world->epoch;
    int root = (int)header->offset;

    if (root == world->rank) {
        /* Release: what the reader received it no longer needs of the queue. */
        atomic_store_explicit(&epoch->peers[header->source].credit, header->number,
                              memory_order_release);
        sc_wait_ring(&epoch->inner[SPARK_COMM_LANE_COMMAND],
                     &epoch->inner_bells[SPARK_COMM_LANE_COMMAND]);
    } else if (sc_is_hub(world)) {
        sc_link_send(world, &epoch->peers[root].link, header, NULL, SC_LINK_NOW);
    }
}

/* ---- Receiving ---- */

/* What was announced, however it came. */
struct arrival {
    uint32_t bytes, kind, digest;
    uint64_t number;
};

static spark_comm_status check_arrival(int rank, const struct arrival *arrival, int root, int kind,
                                       uint64_t number, uint32_t digest, size_t capacity,
                                       struct sc_error *error) {
    bool same = arrival->number == number && arrival->kind == (uint32_t)kind &&
                (kind != SC_WORLD_RECORD_BROADCAST || arrival->digest == digest);

    if (!same)
        return sc_error_set(error, SPARK_COMM_MISMATCH, root, 0,
                            "rank %d sent %s of %u bytes as #%llu of the command lane, and rank "
                            "%d receives %s of %zu bytes as #%llu",
                            root, kind_name(arrival->kind), arrival->bytes,
                            (unsigned long long)arrival->number, rank, kind_name((uint32_t)kind),
                            capacity, (unsigned long long)number);
    if (arrival->bytes > capacity)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, root, 0,
                            "the command from rank %d has %u bytes and the buffer %zu; it waits "
                            "for the next call",
                            root, arrival->bytes, capacity);
    return SPARK_COMM_OK;
}

/* Rings belong to one epoch, so a record of another one is damage. */
static spark_comm_status recv_from_ring(struct sc_world *world, int root, int64_t deadline,
                                        struct sc_ring_header *record) {
    spark_comm_status st = sc_ring_peek(&world->epoch->rings, root, deadline, record);

    if (st == SPARK_COMM_OK && record->epoch != world->epoch->number) st = SPARK_COMM_BACKEND;
    return st;
}

struct waiting {
    struct sc_world *world;
    int root;
    uint64_t number;
};

/* Will the root never send it? */
static bool root_is_missing(const struct waiting *waiting) {
    const struct sc_epoch *epoch = waiting->world->epoch;

    return sc_peer_state(epoch, waiting->root) == SC_PEER_LEFT &&
           waiting->number > epoch->peers[waiting->root].goodbye.submitted[SPARK_COMM_LANE_COMMAND];
}

static bool has_letter(void *arg) {
    const struct waiting *waiting = arg;
    const struct sc_inbox *inbox = &waiting->world->epoch->peers[waiting->root].inbox;

    return atomic_load_explicit(&inbox->count, memory_order_acquire) > 0 ||
           root_is_missing(waiting);
}

static void take_letter(struct sc_world *world, int root, void *data) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_inbox *inbox = &epoch->peers[root].inbox;

    sc_lock_take(&inbox->lock, SC_DEADLINE_NEVER, NULL);
    struct sc_letter *letter = inbox->first;
    inbox->first = letter->next;
    if (inbox->first == NULL) inbox->last = NULL;
    sc_lock_give(&inbox->lock);
    atomic_fetch_sub_explicit(&inbox->count, 1, memory_order_relaxed);
    if (letter->header.bytes > 0) memcpy(data, letter->payload, letter->header.bytes);
    inbox->taken += cost(letter->header.bytes);
    sc_free(letter);
    if (inbox->taken - inbox->credited < CREDIT_STEP) return;
    struct sc_wire_header header = sc_header(world, SC_WIRE_CREDIT, 0);
    header.offset = (uint64_t)root;
    header.number = inbox->taken;
    sc_link_send(world, &epoch->peers[sc_is_hub(world) ? root : SC_HUB].link, &header, NULL,
                 SC_LINK_NOW);
    inbox->credited = inbox->taken;
}

static spark_comm_status recv_over_star(struct sc_world *world, const struct waiting *waiting,
                                        int64_t deadline, struct arrival *arrival) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_inbox *inbox = &epoch->peers[waiting->root].inbox;
    spark_comm_status st = sc_wait_until(&epoch->inner[SPARK_COMM_LANE_COMMAND], has_letter,
                                         (void *)(uintptr_t)waiting, deadline);

    if (st != SPARK_COMM_OK) return st;
    sc_lock_take(&inbox->lock, SC_DEADLINE_NEVER, NULL);
    if (inbox->first == NULL)
        st = SPARK_COMM_PEER_LOST;
    else
        *arrival = (struct arrival){inbox->first->header.bytes, inbox->first->header.flavour,
                                    inbox->first->header.digest, inbox->first->header.number};
    sc_lock_give(&inbox->lock);
    return st;
}

spark_comm_status sc_world_command_recv(struct sc_world *world, int root, int kind, uint64_t number,
                                        uint32_t digest, void *data, size_t capacity, size_t *bytes,
                                        int64_t deadline, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct waiting waiting = {world, root, number};
    struct sc_ring_header record = {0};
    struct arrival arrival = {0};
    spark_comm_status st;

    *bytes = 0;
    if (root < 0 || root >= world->size || root == world->rank)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "rank %d cannot receive commands from rank %d", world->rank, root);
    if (epoch->one_host) {
        /* What a root that has left wrote before is still there: look, but don't wait. */
        if (root_is_missing(&waiting)) deadline = 0;
        st = recv_from_ring(world, root, deadline, &record);
        arrival = (struct arrival){record.bytes, record.kind, record.digest, record.number};
    } else {
        st = recv_over_star(world, &waiting, deadline, &arrival);
    }
    if (st != SPARK_COMM_OK && root_is_missing(&waiting))
        return sc_verdict_closed(world, root, error);
    if (st == SPARK_COMM_OP_TIMEOUT)
        return sc_error_set(error, st, root, 0, "rank %d has sent nothing", root);
    if (st == SPARK_COMM_BACKEND)
        return sc_error_set(error, st, root, 0, "the command ring of rank %d is damaged", root);
    if (st != SPARK_COMM_OK) return sc_verdict_end(world, error);
    *bytes = arrival.bytes;
    st = check_arrival(world->rank, &arrival, root, kind, number, digest, capacity, error);
    if (st != SPARK_COMM_OK) return st;
    if (epoch->one_host)
        sc_ring_take(&epoch->rings, root, &record, data);
    else
        take_letter(world, root, data);
    return SPARK_COMM_OK;
}
