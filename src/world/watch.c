/*
 * The ranks of one host among themselves. What the hub does for all while it is there, each rank can
 * do alone with the shared segment: goodbyes stand on the cards, a verdict in the slots, and a
 * card's beats tell that its rank's monitor runs. Once the hub has closed, pidfds tell at once who
 * ends. A process in another pid namespace cannot be named by its number, and is found by its
 * silence.
 */
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/deadline.h"
#include "os/thread.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)

/* A descriptor that becomes readable at that rank's end; -1: there can be none. */
static int open_pidfd(const struct sc_world *world, int rank) {
    const struct sc_card *cards = world->epoch->segment.cards;
    /* Acquire: partner is open_one_host in share.c. */
    int32_t pid = atomic_load_explicit(&cards[rank].pid, memory_order_acquire);
    uint64_t space = atomic_load_explicit(&cards[rank].pid_namespace, memory_order_relaxed);
    uint64_t own = atomic_load_explicit(&cards[world->rank].pid_namespace, memory_order_relaxed);

    if (pid <= 0 || pid == (int32_t)getpid() || own == 0 || space != own) return -1;
    return sc_thread_pidfd(pid);
}

void sc_watch_begin(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    int64_t now = sc_deadline_now();

    if (!sc_is_settled(world) || !epoch->one_host || epoch->link_end == world->size) return;
    epoch->link_end = world->size;
    for (int rank = 0; rank < world->size; rank++) {
        struct sc_peer *peer = &epoch->peers[rank];
        epoch->judge.pulses[rank].at = now;
        if (rank != world->rank && peer->pidfd < 0 && sc_peer_state(epoch, rank) == SC_PEER_PRESENT)
            peer->pidfd = open_pidfd(world, rank);
    }
}

static void take_pulse(struct sc_world *world, int rank, int64_t now) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_pulse *pulse = &epoch->judge.pulses[rank];
    uint64_t beats = atomic_load_explicit(&epoch->segment.cards[rank].beats, memory_order_relaxed);
    char how[96];

    if (beats != pulse->beats) {
        pulse->beats = beats;
        pulse->at = now;
        return;
    }
    if (now - pulse->at < world->monitor.liveness_ns) return;
    snprintf(how, sizeof how, "gave no sign of life for %.1f s (liveness_timeout_ms)",
             world->settings->liveness_timeout_ms / 1000.0);
    sc_verdict_lose(world, rank, how);
}

/* A verdict that came about without this rank. */
static void look_at_slots(struct sc_world *world) {
    const struct sc_segment *segment = &world->epoch->segment;
    /* Acquire: partner is publish() in judge.c. */
    uint32_t winner = atomic_load_explicit(segment->winner, memory_order_acquire);
    struct sc_error cause;

    if (winner == 0 || winner > (uint32_t)world->size || sc_verdict_state(world) == SC_CAUSE_FINAL)
        return;
    sc_error_clear(&cause);
    if (sc_wire_get_fault(segment->slots[winner - 1].fault, SC_WIRE_FAULT_BYTES, world->size,
                          &cause) &&
        cause.status != SPARK_COMM_OK)
        sc_verdict_adopt(world, &cause, -1);
}

void sc_watch_tick(struct sc_world *world, int64_t now) {
    struct sc_epoch *epoch = world->epoch;

    atomic_fetch_add_explicit(&epoch->segment.cards[world->rank].beats, 1, memory_order_relaxed);
    look_at_slots(world);
    if (sc_is_hub(world) || epoch->link_end < world->size ||
        world->monitor.liveness_ns == SC_DEADLINE_NEVER)
        return;
    for (int rank = 0; rank < world->size; rank++)
        if (rank != world->rank && sc_peer_state(epoch, rank) == SC_PEER_PRESENT)
            take_pulse(world, rank, now);
}

void sc_watch_find_dead(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;

    for (int rank = 0; rank < world->size; rank++) {
        if (rank == world->rank || sc_peer_state(epoch, rank) != SC_PEER_PRESENT) continue;
        struct pollfd ended = {.fd = open_pidfd(world, rank), .events = POLLIN};
        if (ended.fd < 0) continue;
        bool is_dead = poll(&ended, 1, 0) == 1;
        close(ended.fd);
        /* Acquire: a goodbye was left before the process ended. */
        if (is_dead &&
            atomic_load_explicit(&epoch->segment.cards[rank].left, memory_order_acquire) == 0)
            sc_verdict_lose(world, rank, "ended without a goodbye");
    }
}
