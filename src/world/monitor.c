/*
 * The monitor: one thread per world that sleeps in poll over everything the world listens to, and
 * the dispatch of what comes. It owns the reading side of all sockets, sends heartbeats, finds the
 * silent and the dead, and flushes what others could not send. It never blocks but in poll. During
 * the rendezvous the hub's opening thread runs the same rounds itself.
 *
 * A rank is lost when its connection ends without a goodbye, when its process ends (pidfd: a forked
 * child may hold the socket open), or when it is silent for liveness_timeout. Sockets are read
 * before pidfds and clocks are believed, so that a goodbye which is already here counts. A monitor
 * that was itself stopped for long blames nobody for the silence.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "os/thread.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)
#define LONGEST_HEARTBEAT_MS 1000
/* How often own operations are held against the numbers of ranks that have left. */
#define LEFT_TICK_NS (20 * NS_PER_MS)
#define TICK_NS (100 * NS_PER_MS)
#define IDLE_TICK_NS (250 * NS_PER_MS)

/* ---- Making and ending ---- */

spark_comm_status sc_monitor_prepare(struct sc_world *world, struct sc_error *error) {
    struct sc_monitor *monitor = &world->monitor;
    int liveness_ms = world->settings->liveness_timeout_ms;
    int heartbeat_ms = LONGEST_HEARTBEAT_MS;
    size_t peers = (size_t)world->size - 1;

    monitor->liveness_ns = SC_DEADLINE_NEVER;
    if (liveness_ms != SPARK_COMM_FOREVER) {
        monitor->liveness_ns = liveness_ms * NS_PER_MS;
        if (liveness_ms / 4 < heartbeat_ms) heartbeat_ms = liveness_ms / 4;
    }
    monitor->heartbeat_ns = (heartbeat_ms > 0 ? heartbeat_ms : 1) * NS_PER_MS;
    /* The wake-up, links, pidfds, callers, listeners: all that there can ever be. */
    monitor->capacity = 1 + 2 * peers + (size_t)world->door.caller_capacity + SC_DOOR_LISTENERS + 1;
    monitor->fds = sc_alloc_array(monitor->capacity, sizeof *monitor->fds);
    monitor->ranks = sc_alloc_array(monitor->capacity, sizeof *monitor->ranks);
    if (monitor->fds == NULL || monitor->ranks == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory to watch %zu sockets",
                            monitor->capacity);
    monitor->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (monitor->wake_fd < 0)
        return sc_error_system(error, errno, "cannot make the monitor's wake-up");
    return SPARK_COMM_OK;
}

void sc_monitor_poke(struct sc_world *world) {
    const uint64_t one = 1;
    ssize_t written;

    if (world->monitor.wake_fd < 0) return;

    /* A full counter (EAGAIN) is a wake-up that is already under way. */
    do {
        written = write(world->monitor.wake_fd, &one, sizeof one);
    } while (written < 0 && errno == EINTR);
}

void sc_monitor_drain(struct sc_world *world) {
    uint64_t pokes;

    while (read(world->monitor.wake_fd, &pokes, sizeof pokes) < 0 && errno == EINTR) {
    }
}

static void *run(void *arg) {
    struct sc_world *world = arg;

    while (!atomic_load_explicit(&world->monitor.stop, memory_order_acquire)) {
        struct sc_error error;
        sc_error_clear(&error);
        spark_comm_status st = sc_monitor_step(world, SC_DEADLINE_NEVER, &error);
        if (st == SPARK_COMM_OK) continue;
        sc_world_name_descriptors(world, &error);
        sc_world_fault(world, &error); /* only while the world opens */
    }
    return NULL;
}

spark_comm_status sc_monitor_start(struct sc_world *world, struct sc_error *error) {
    int64_t now = sc_deadline_now();

    world->monitor.heartbeat_at = world->monitor.round_at = now;
    world->monitor.pair_begun = 0;
    atomic_store_explicit(&world->monitor.stop, false, memory_order_relaxed);
    for (int rank = 0; rank < world->size; rank++)
        atomic_store_explicit(&world->epoch->peers[rank].heard, now, memory_order_relaxed);
    spark_comm_status st = sc_thread_start(&world->monitor.thread, "sc-monitor", run, world, error);
    world->monitor.is_running = st == SPARK_COMM_OK;
    return st;
}

void sc_monitor_stop(struct sc_world *world) {
    struct sc_monitor *monitor = &world->monitor;

    if (!monitor->is_running) return;
    atomic_store_explicit(&monitor->stop, true, memory_order_release);
    sc_monitor_poke(world);
    pthread_join(monitor->thread, NULL);
    monitor->is_running = false;
}

void sc_monitor_release(struct sc_world *world) {
    struct sc_monitor *monitor = &world->monitor;

    if (monitor->wake_fd >= 0) close(monitor->wake_fd);
    monitor->wake_fd = -1;
    sc_free(monitor->fds);
    sc_free(monitor->ranks);
    monitor->fds = NULL;
    monitor->ranks = NULL;
}

/* ---- Records ---- */

/* A suspicion, or the final sentence. */
static void take_fault(struct sc_world *world, int rank, const struct sc_wire_header *header,
                       const uint8_t *payload) {
    struct sc_error error;

    sc_error_clear(&error);
    if (!sc_wire_get_fault(payload, header->bytes, world->size, &error)) return;
    if (error.status == SPARK_COMM_OK) return;
    /* R11: a rank that has come cannot go on, and all are told. */
    bool ends_gathering = world->monitor.phase == SC_PHASE_GATHERING;
    if (ends_gathering && sc_is_hub(world)) /* it knows */
        atomic_store_explicit(&world->epoch->peers[rank].state, SC_PEER_LEFT, memory_order_release);
    if (header->kind == SC_WIRE_VERDICT || header->kind == SC_WIRE_FAIL || ends_gathering) {
        sc_verdict_adopt(world, &error, rank);
        return;
    }
    sc_world_fault(world, &error);
    /* What is final here counts for whoever asks. */
    if (sc_verdict_state(world) == SC_CAUSE_FINAL) sc_verdict_repeat(world, rank);
    if (header->kind != SC_WIRE_SUSPECT) return;
    sc_judge_hear(world, rank);
    sc_monitor_tell_lines(world, rank, SC_LINES_ANSWER);
}

/* Is this record meant for this side, now? What comes from another epoch is dropped. */
static bool is_expected(const struct sc_world *world, int rank,
                        const struct sc_wire_header *header) {
    bool from_hub = rank == SC_HUB;
    bool from_head = rank == atomic_load_explicit(&world->epoch->hub, memory_order_relaxed);

    if (!from_hub && !from_head && header->source != rank) return false; /* nobody else relays */
    switch (header->kind) {
    case SC_WIRE_MEMBERS:
    case SC_WIRE_WELCOME: return from_hub;
    case SC_WIRE_ANSWER: /* the connection is that of one claim: no other epoch can be meant */
    case SC_WIRE_FAIL: return from_hub && world->monitor.phase != SC_PHASE_RUNNING;
    case SC_WIRE_VERDICT:
    case SC_WIRE_SUSPECT:
        if (world->monitor.phase == SC_PHASE_GATHERING) return false;
        break;
    case SC_WIRE_FAULT:
        if (world->monitor.phase == SC_PHASE_RUNNING) break;
        /* R11: one that crosses WELCOME has no epoch yet. */
        return sc_is_hub(world) && (header->epoch == 0 || header->epoch == world->epoch->number);
    default: break;
    }
    return header->epoch == world->epoch->number;
}

void sc_monitor_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                     const uint8_t *payload) {
    bool is_hub = sc_is_hub(world);

    if (!is_expected(world, rank, header)) return;
    switch (header->kind) {
    case SC_WIRE_MEMBERS: sc_dial_members(world, header, payload); break;
    case SC_WIRE_WELCOME: sc_dial_welcome(world, header, payload); break;
    case SC_WIRE_ANSWER: sc_dial_dismissed(world, header, payload); break;
    case SC_WIRE_READY:
        if (is_hub) sc_reconnect_take_ready(world, header, payload);
        break;
    case SC_WIRE_COMMIT:
        if (!is_hub) sc_reconnect_take_commit(world, header);
        break;
    case SC_WIRE_GIVE_UP:
        if (is_hub && world->monitor.phase == SC_PHASE_GATHERING)
            sc_hub_excuse(world, rank, (int)(header->number & INT32_MAX));
        break;
    case SC_WIRE_FAULT:
    case SC_WIRE_SUSPECT:
    case SC_WIRE_FAIL: /* R10 */
    case SC_WIRE_VERDICT: take_fault(world, rank, header, payload); break;
    case SC_WIRE_HEARTBEAT: sc_lines_take(world, rank, header, payload); break;
    case SC_WIRE_GATHER:
        if (is_hub) sc_gather_take_part(world, header, payload);
        break;
    case SC_WIRE_GATHERED:
        if (!is_hub) sc_gather_take_result(world, header, payload);
        break;
    case SC_WIRE_COMMAND: sc_command_lane_take(world, rank, header, payload); break;
    case SC_WIRE_CREDIT: sc_command_lane_credit(world, header); break;
    case SC_WIRE_GOODBYE: sc_goodbye_take(world, rank, header, payload); break;
    case SC_WIRE_FAREWELL: sc_goodbye_take_farewell(world, rank); break;
    default: break;
    }
}

/* ---- One round ---- */

static void end_link(struct sc_world *world, int rank, const char *how) {
    struct sc_peer *peer = &world->epoch->peers[rank];

    if (world->monitor.phase == SC_PHASE_GATHERING) {
        sc_hub_vacate(world, rank);
        return;
    }
    sc_link_close(&peer->link);
    /* A goodbye may have been left where nobody has looked yet. */
    sc_goodbye_read_cards(world);
    if (rank != SC_HUB && world->epoch->peers[SC_HUB].link.fd >= 0 && !sc_is_hub(world))
        sc_link_read(world, SC_HUB);
    if (sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT && !sc_heir_may_have_left(world, rank))
        sc_verdict_lose(world, rank, how);
    else
        sc_verdict_wake(world); /* close may wait for a farewell that does not come any more */
}

/* After a read that failed. Running out of memory is this rank's fault, not the peer's. */
static void give_up_link(struct sc_world *world, int rank, spark_comm_status st) {
    struct sc_error error;

    sc_error_clear(&error);
    if (st == SPARK_COMM_NO_MEMORY && world->monitor.phase != SC_PHASE_GATHERING) {
        sc_error_set(&error, SPARK_COMM_ABORTED, world->rank, 0,
                     "rank %d has no memory for a record from rank %d", world->rank, rank);
        sc_world_fault(world, &error);
    }
    end_link(world, rank,
             st == SPARK_COMM_BACKEND ? "sent bytes that are no record of spark_comm"
                                      : "ended without a goodbye");
}

static void serve_link(struct sc_world *world, int rank, short events) {
    struct sc_link *link = &world->epoch->peers[rank].link;

    if (link->fd < 0) return;
    if ((events & POLLOUT) != 0) sc_link_flush(link);
    if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return;
    spark_comm_status st = sc_link_read(world, rank);
    if (st != SPARK_COMM_OK) give_up_link(world, rank, st);
}

/* The process of a peer has ended: what it still said is heard first. */
static void serve_pidfd(struct sc_world *world, int rank) {
    struct sc_peer *peer = &world->epoch->peers[rank];
    int left = 0;

    do {
        serve_link(world, rank, POLLIN);
    } while (peer->link.fd >= 0 && ioctl(peer->link.fd, FIONREAD, &left) == 0 && left > 0);
    close(peer->pidfd);
    peer->pidfd = -1;
    sc_goodbye_read_cards(world);
    if (sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT)
        give_up_link(world, rank, SPARK_COMM_PEER_LOST);
}

void sc_monitor_tell_lines(struct sc_world *world, int rank, int flavour) {
    struct sc_wire_header header = sc_header(world, SC_WIRE_HEARTBEAT, SC_WIRE_LINES_BYTES);
    uint8_t payload[SC_WIRE_LINES_BYTES];
    struct sc_wire_lines lines;

    header.flavour = (uint16_t)flavour;
    sc_world_fill_lines(world, &lines);
    sc_wire_put_lines(payload, &lines);
    sc_link_send(world, &world->epoch->peers[rank].link, &header, payload, SC_LINK_NOW);
}

static void send_heartbeats(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;

    for (int rank = 0; rank < epoch->link_end; rank++) {
        struct sc_peer *peer = &epoch->peers[rank];
        /* Whatever is queued already tells as much. */
        if (peer->link.fd < 0 || sc_peer_state(epoch, rank) != SC_PEER_PRESENT ||
            atomic_load_explicit(&peer->link.waits_out, memory_order_relaxed) != 0)
            continue;
        sc_monitor_tell_lines(world, rank, 0);
    }
}

/* This process was stopped, or starved, for so long that what the others said is still unread. */
static void forgive_silence(struct sc_world *world, int64_t now) {
    for (int rank = 0; rank < world->size; rank++) {
        atomic_store_explicit(&world->epoch->peers[rank].heard, now, memory_order_relaxed);
        world->epoch->judge.pulses[rank].at = now;
    }
}

/* Loses those that are silent for too long; returns when to look again. */
static int64_t find_silent(struct sc_world *world, int64_t now) {
    struct sc_epoch *epoch = world->epoch;
    int64_t limit = world->monitor.liveness_ns;
    int64_t next = SC_DEADLINE_NEVER;
    char how[96];

    if (limit == SC_DEADLINE_NEVER) return next;
    if (now - world->monitor.round_at > limit / 2) forgive_silence(world, now);
    for (int rank = 0; rank < epoch->link_end; rank++) {
        struct sc_peer *peer = &epoch->peers[rank];
        if (peer->link.fd < 0 || sc_peer_state(epoch, rank) != SC_PEER_PRESENT) continue;
        int64_t until = atomic_load_explicit(&peer->heard, memory_order_relaxed) + limit;
        if (now < until) {
            next = sc_deadline_min(next, until);
            continue;
        }
        snprintf(how, sizeof how, "gave no sign of life for %.1f s (liveness_timeout_ms)",
                 world->settings->liveness_timeout_ms / 1000.0);
        /* The connection stays: a late goodbye or end is then read in peace. But R5, R12: while ranks
         * come a silent one has no place. */
        if (world->monitor.phase == SC_PHASE_GATHERING) {
            sc_hub_vacate(world, rank);
            continue;
        }
        peer->is_silent = true;
        sc_verdict_lose(world, rank, how);
    }
    return next;
}

/* What each rank looks at now and then, more often while a call of the data lane runs. */
static int64_t tick(struct sc_world *world, int64_t now) {
    struct sc_epoch *epoch = world->epoch;

    if (!sc_is_settled(world)) return SC_DEADLINE_NEVER;
    if (now < epoch->judge.tick_at) return epoch->judge.tick_at;
    if (epoch->one_host) sc_watch_tick(world, now);
    bool is_idle = atomic_load_explicit(&world->poison, memory_order_relaxed) == 0 &&
                   !sc_mismatch_check(world);
    int64_t next = is_idle ? IDLE_TICK_NS : TICK_NS;
    epoch->judge.tick_at = now + sc_deadline_min(next, world->monitor.heartbeat_ns);
    return epoch->judge.tick_at;
}

/* What is due by the clock; returns when something is due next. */
static int64_t serve_clock(struct sc_world *world) {
    struct sc_monitor *monitor = &world->monitor;
    int64_t next = sc_door_deadline(world);
    int64_t now = sc_deadline_now();

    if (now >= monitor->heartbeat_at) {
        send_heartbeats(world);
        monitor->heartbeat_at = now + monitor->heartbeat_ns;
    }
    next = sc_deadline_min(next, monitor->heartbeat_at);
    next = sc_deadline_min(next, find_silent(world, now));
    next = sc_deadline_min(next, tick(world, now));
    next = sc_deadline_min(next, sc_heir_step(world, now));
    next = sc_deadline_min(next, sc_judge_step(world));
    if (atomic_load_explicit(&world->epoch->left_count, memory_order_relaxed) > 0 &&
        atomic_load_explicit(&world->poison, memory_order_relaxed) == 0) {
        sc_goodbye_check(world);
        next = sc_deadline_min(next, now + LEFT_TICK_NS);
    }
    return next;
}

/* The wake-up first, then links, then pidfds; returns their number. */
static size_t watch_peers(struct sc_world *world, size_t *pidfds_at) {
    struct sc_monitor *monitor = &world->monitor;
    struct sc_peer *peers = world->epoch->peers;
    int end = world->epoch->link_end;
    size_t count = 0;

    monitor->fds[count++] = (struct pollfd){.fd = monitor->wake_fd, .events = POLLIN};
    for (int rank = SC_HUB; rank < end; rank++) {
        if (peers[rank].link.fd < 0) continue;
        bool waits = atomic_load_explicit(&peers[rank].link.waits_out, memory_order_relaxed) != 0;
        monitor->ranks[count] = rank;
        monitor->fds[count++] = (struct pollfd){
            .fd = peers[rank].link.fd, .events = (short)(waits ? POLLIN | POLLOUT : POLLIN)};
    }
    *pidfds_at = count;
    for (int rank = SC_HUB; rank < end; rank++) {
        if (peers[rank].pidfd < 0) continue;
        monitor->ranks[count] = rank;
        monitor->fds[count++] = (struct pollfd){.fd = peers[rank].pidfd, .events = POLLIN};
    }
    return count;
}

spark_comm_status sc_monitor_step(struct sc_world *world, int64_t until, struct sc_error *error) {
    struct sc_monitor *monitor = &world->monitor;
    struct pollfd *fds = monitor->fds;
    size_t pidfds_at, door_at;

    int64_t due = sc_deadline_min(until, serve_clock(world));
    door_at = watch_peers(world, &pidfds_at);
    size_t count = door_at + sc_door_watch(world, fds + door_at);
    int ready = poll(fds, count, sc_deadline_poll_ms(due));
    monitor->round_at = sc_deadline_now();
    if (monitor->liveness_ns != SC_DEADLINE_NEVER && due != SC_DEADLINE_NEVER &&
        monitor->round_at - due > monitor->liveness_ns / 2)
        forgive_silence(world, monitor->round_at);
    if (ready < 0) {
        /* Interrupted, or short of kernel memory for a moment: the next round asks again. */
        for (size_t i = 0; i < count; i++)
            fds[i].revents = 0;
    }
    if (fds[0].revents != 0) sc_monitor_drain(world);
    for (size_t i = 1; i < pidfds_at; i++)
        if (fds[i].revents != 0) serve_link(world, monitor->ranks[i], fds[i].revents);
    for (size_t i = pidfds_at; i < door_at; i++)
        if (fds[i].revents != 0) serve_pidfd(world, monitor->ranks[i]);
    return sc_door_serve(world, fds + door_at, error);
}
