/*
 * The rendezvous, rank 0's half. The hub listens on every address that master_addr resolves to, and
 * runs the monitor's rounds in the opening thread until every place is taken: a caller that proved
 * the token and fits takes the place of its rank, and becomes a link. Then the epoch begins: each
 * rank gets the table of all members (MEMBERS) and WELCOME, in this order; a rank that goes away
 * before that only frees its place. At the deadline all that did come are told who did not.
 *
 * Which callers are told what:
 *   another job, version, world size, rank out of range, other settings: refused for good
 *   a place that is held: to keep dialling (its holder may be about to be lost)
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/dtype.h"
#include "os/thread.h"
#include "base/status.h"
#include "world/world_state.h"

#define MEMBERS_AT_ONCE 64 /* in one record */
#define BACKLOG 4096 /* the system cuts it to net.core.somaxconn */

/* ---- Judging ---- */

static const char *memory_name(int memory) {
    return memory == SPARK_COMM_MEMORY_DEVICE ? "device" : "host";
}

static bool same_job(const struct sc_world *world, const struct sc_wire_hello *hello, char *text,
                     size_t size) {
    const struct sc_settings *settings = world->settings;

    if (hello->job != sc_auth_job(&world->auth))
        snprintf(text, size, "rank %d belongs to another job", hello->rank);
    else if (strcmp(hello->library, spark_comm_version()) != 0)
        snprintf(text, size, "rank %d runs spark_comm %s and the head %s: use one version",
                 hello->rank, hello->library, spark_comm_version());
    else if (hello->world_size != world->size)
        snprintf(text, size, "rank %d was started with world_size %d and the head with %d",
                 hello->rank, hello->world_size, world->size);
    else if (hello->rank <= SC_HUB || hello->rank >= world->size)
        snprintf(text, size, "rank %d is out of range: the head is rank 0, the others are 1 to %d",
                 hello->rank, world->size - 1);
    else if (strcmp(hello->backend, settings->backend) != 0)
        snprintf(text, size, "rank %d asks for backend %s and the head for %s", hello->rank,
                 hello->backend, settings->backend);
    else if (hello->memory != settings->memory)
        snprintf(text, size, "rank %d asks for %s memory and the head for %s", hello->rank,
                 memory_name(hello->memory), memory_name(settings->memory));
    else if (hello->settings != sc_settings_digest(settings))
        snprintf(text, size,
                 "rank %d has other settings than the head (op_timeout_ms %d, dtype %s): they must "
                 "be the same on all ranks",
                 hello->rank, settings->op_timeout_ms, sc_dtype_name(settings->dtype));
    else
        return true;
    return false;
}

enum sc_wire_verdict sc_hub_judge(struct sc_world *world, const struct sc_wire_hello *hello,
                                  char *text, size_t size) {
    if (!same_job(world, hello, text, size)) return SC_WIRE_REFUSED;
    struct sc_epoch *epoch = world->epoch;
    const struct sc_world_member *holder = &epoch->members[hello->rank];
    if (sc_peer_state(epoch, hello->rank) == SC_PEER_PRESENT) {
        snprintf(text, size, "rank %d is held by process %d at %s", hello->rank, holder->pid,
                 holder->listener);
        return SC_WIRE_RETRY;
    }
    if (world->monitor.phase == SC_PHASE_GATHERING) return SC_WIRE_ACCEPTED;
    snprintf(text, size, "the job runs without rank %d and takes it back when it reconnects",
             hello->rank);
    return SC_WIRE_RETRY;
}

/* ---- Places ---- */

static bool has_same_ids(const struct sc_wire_hello *hello) {
    struct sc_thread_host_id own;

    sc_thread_host_id(&own);
    return hello->uid == own.uid && hello->network_namespace == own.network_namespace &&
           strcmp(hello->boot_id, own.boot_id) == 0;
}

void sc_hub_admit(struct sc_world *world, const struct sc_wire_hello *hello, int fd) {
    struct sc_peer *peer = &world->epoch->peers[hello->rank];
    struct sc_world_member *member = &world->epoch->members[hello->rank];

    sc_socket_tune(fd, 0);
    if (sc_link_open(&peer->link, fd, &world->door.failure) != SPARK_COMM_OK) return;
    member->rank = hello->rank;
    member->pid = hello->pid;
    memcpy(member->listener, hello->listener, sizeof member->listener);
    memcpy(member->version, hello->library, sizeof member->version);
    peer->same_ids = has_same_ids(hello);
    peer->stated = hello->epoch;
    peer->gave_up = false;
    atomic_store_explicit(&peer->heard, sc_deadline_now(), memory_order_relaxed);
    atomic_store_explicit(&peer->state, SC_PEER_PRESENT, memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d has come (process %d at %s)",
                 hello->rank, hello->pid, hello->listener);
}

void sc_hub_vacate(struct sc_world *world, int rank) {
    struct sc_peer *peer = &world->epoch->peers[rank];

    sc_link_close(&peer->link);
    atomic_store_explicit(&peer->state, SC_PEER_ABSENT, memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d went away before all had come", rank);
}

/* Ranks whose place is free; `never`: only those that have not been here and given up. */
static bool is_absent(const struct sc_world *world, int rank, bool never) {
    if (sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT) return false;
    return !never || !world->epoch->peers[rank].gave_up;
}

static int count_absent(const struct sc_world *world, bool never) {
    int absent = 0;

    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        absent += is_absent(world, rank, never);
    return absent;
}

/* "rank 2", "ranks 2 and 5", "ranks 1, 2, 3 and 40 more". */
static void list_absent(const struct sc_world *world, bool never, char *text, size_t size) {
    int absent = count_absent(world, never), listed = 0;
    int used = snprintf(text, size, absent == 1 ? "rank" : "ranks");

    for (int rank = SC_HUB + 1; rank < world->size; rank++) {
        if (!is_absent(world, rank, never)) continue;
        bool is_last = ++listed == absent;
        const char *join = listed == 1 ? " " : is_last ? " and " : ", ";
        if ((size_t)used + 32 > size) {
            snprintf(text + used, size - (size_t)used, " and %d more", absent - listed + 1);
            return;
        }
        used += snprintf(text + used, size - (size_t)used, "%s%d", join, rank);
    }
}

/* Ranks whose own time was over a moment earlier are not the ones that were waited for. */
static spark_comm_status never_came(const struct sc_world *world, int ms, struct sc_error *error) {
    bool never = count_absent(world, true) > 0;
    char ranks[192];

    list_absent(world, never, ranks, sizeof ranks);
    return sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, -1, 0, "%s %s to %s within %.1f s", ranks,
                        never ? "never came" : "came, gave up and did not come back", world->head,
                        ms / 1000.0);
}

void sc_hub_excuse(struct sc_world *world, int rank, int ms) {
    struct sc_error reason;

    world->epoch->peers[rank].gave_up = true;
    sc_error_clear(&reason);
    never_came(world, ms, &reason);
    sc_verdict_tell(world, rank, &reason);
}

/* ---- Listening ---- */

/* All addresses that can be listened on; a port in use on one of them is final. */
static spark_comm_status listen_on_all(struct sc_world *world, struct sc_error *error) {
    const struct sc_settings *settings = world->settings;
    struct sc_socket_address addresses[SC_DOOR_LISTENERS];
    struct sc_door *door = &world->door;
    char text[80];
    size_t count = 0;
    spark_comm_status st;

    st = sc_socket_resolve(settings->master_addr, settings->master_port, addresses,
                           SC_DOOR_LISTENERS, &count, error);
    if (st != SPARK_COMM_OK) return st;
    snprintf(world->head, sizeof world->head, "%s",
             sc_socket_address_text(&addresses[0], text, sizeof text));
    if (settings->listen_any) {
        count = 2;
        addresses[0].storage.ss_family = AF_INET;
        addresses[1].storage.ss_family = AF_INET6;
        for (size_t i = 0; i < count; i++) {
            sc_door_set_any(&addresses[i]);
            sc_door_set_port(&addresses[i], settings->master_port);
        }
    }
    for (size_t i = 0; i < count; i++) {
        sc_socket_address_text(&addresses[i], text, sizeof text);
        st =
            sc_socket_listen(&addresses[i], BACKLOG, &door->listeners[door->listener_count], error);
        bool is_absent = st != SPARK_COMM_OK && (error->native_code == EADDRNOTAVAIL ||
                                                 error->native_code == EAFNOSUPPORT);
        if (st != SPARK_COMM_OK && !is_absent) return st;
        sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank 0 of %d %s %s", world->size,
                     is_absent ? "has no address" : "listens on", text);
        if (!is_absent) door->listener_count++;
    }
    if (door->listener_count == 0) return st;
    sc_error_clear(error);
    return SPARK_COMM_OK;
}

/* ---- The epoch begins ---- */

static spark_comm_status send_members(struct sc_world *world, int rank, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_link *link = &epoch->peers[rank].link;
    uint8_t payload[MEMBERS_AT_ONCE * SC_WIRE_MEMBER_BYTES];
    spark_comm_status st = SPARK_COMM_OK;

    for (int first = 0; first < world->size && st == SPARK_COMM_OK; first += MEMBERS_AT_ONCE) {
        int left = world->size - first;
        int count = left < MEMBERS_AT_ONCE ? left : MEMBERS_AT_ONCE;
        struct sc_wire_header header =
            sc_header(world, SC_WIRE_MEMBERS, (size_t)count * SC_WIRE_MEMBER_BYTES);
        header.offset = (uint64_t)first;
        for (int i = 0; i < count; i++)
            sc_wire_put_member(payload + (size_t)i * SC_WIRE_MEMBER_BYTES,
                               &epoch->members[first + i]);
        st = sc_link_send(world, link, &header, payload, SC_LINK_NOW);
    }
    struct sc_wire_header header = sc_header(world, SC_WIRE_WELCOME, SC_WIRE_WELCOME_BYTES);
    sc_wire_put_welcome(payload, &epoch->welcome);
    if (st == SPARK_COMM_OK) st = sc_link_send(world, link, &header, payload, SC_LINK_NOW);
    /* A closed link is the monitor's to judge. */
    if (st == SPARK_COMM_OK || st == SPARK_COMM_PEER_LOST) return SPARK_COMM_OK;
    return sc_error_set(error, st, rank, 0, "rank %d cannot be told who the members are: %s", rank,
                        sc_status_text((int)st));
}

static spark_comm_status begin_epoch(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_world_member *own = &epoch->members[SC_HUB];
    uint32_t last = 0;

    own->rank = SC_HUB;
    own->pid = (int32_t)getpid();
    snprintf(own->listener, sizeof own->listener, "%.63s", world->head);
    snprintf(own->version, sizeof own->version, "%s", spark_comm_version());
    spark_comm_status st = sc_share_offer(world, error);
    if (st != SPARK_COMM_OK) return st;
    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        if (epoch->peers[rank].stated > last) last = epoch->peers[rank].stated;
    epoch->number = last + 1;
    world->monitor.phase = SC_PHASE_RUNNING;
    for (int rank = SC_HUB + 1; rank < world->size && st == SPARK_COMM_OK; rank++)
        st = send_members(world, rank, error);
    return st;
}

spark_comm_status sc_hub_gather(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    spark_comm_status st = listen_on_all(world, error);

    world->monitor.phase = SC_PHASE_GATHERING;
    while (st == SPARK_COMM_OK && count_absent(world, false) > 0) {
        if (sc_deadline_passed(deadline))
            st = never_came(world, world->settings->rendezvous_timeout_ms, error);
        else
            st = sc_monitor_step(world, deadline, error);
    }
    if (st == SPARK_COMM_OK) st = begin_epoch(world, error);
    if (st == SPARK_COMM_OK) return st;
    /* Those that came wait for nothing any more. */
    struct sc_error reason = *error;
    if (st != SPARK_COMM_OPEN_TIMEOUT)
        sc_error_set(&reason, st, SC_HUB, error->native_code, "rank 0 cannot open: %.400s",
                     error->message);
    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        if (sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT)
            sc_verdict_tell(world, rank, &reason);
    return st;
}
