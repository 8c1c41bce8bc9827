/*
 * The rendezvous, rank 0's half, for opening and for reconnect alike. The hub listens on every
 * address that master_addr resolves to, for as long as the world lives, and runs the monitor's rounds
 * in the caller's thread until every place is held: a caller that proved the token and fits is given
 * the place of its rank, and becomes a link. Then the hub proposes an epoch: each rank gets the table
 * of all members (MEMBERS) and WELCOME, in this order. At the deadline all that did come are told who
 * did not. Steps R2 to R6 and R11 of docs/models/README.md.
 *
 * Which callers are told what:
 *   another job, version, world size, rank out of range, other settings: refused for good
 *   a claim that is stale: refused for good, its rank was replaced
 *   a place that is held by as good a claim: to keep dialling, or refused (see sc_hub_judge)
 *   the hub is not gathering: nothing yet (see src/world/door.c)
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
#define LOOK_NS INT64_C(50000000) /* how often an attempt looks whether its caller gives up */
#define LEAST_SETUP_MS 5000 /* for the set-up, when the last rank came late */
#define PROBE_MS 1000 /* for an answer at the own master address */
#define PROBE_STEP_NS INT64_C(5000000)
#define LATE_MS 1000 /* for those that come when the attempt has failed already */

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
        snprintf(
            text, size,
            "rank %d runs spark_comm %s and the head %s (both speak protocol %u): use one version",
            hello->rank, hello->library, spark_comm_version(), SC_WIRE_PROTOCOL);
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

static bool same_epoch(struct sc_wire_epoch a, struct sc_wire_epoch b) {
    return a.number == b.number && a.stamp == b.stamp;
}

static struct sc_wire_epoch newer(struct sc_wire_epoch a, struct sc_wire_epoch b) {
    return a.number >= b.number ? a : b;
}

/* What a claim counts as: a fresh one states nothing, whatever it has seen. */
static struct sc_wire_epoch stated(struct sc_wire_epoch lived, struct sc_wire_epoch seen) {
    return lived.number == 0 ? lived : seen;
}

/* It was in an epoch, and not in the newest, of which all places were held: it was replaced. */
static bool is_stale(struct sc_wire_epoch claim, struct sc_wire_epoch newest) {
    return claim.number != 0 && !same_epoch(claim, newest) && claim.number <= newest.number;
}

/* For the sentence about missing ranks: the last refusal of each of the last few. */
static void note_refusal(struct sc_door *door, int rank, const char *text) {
    struct sc_refusal *place = NULL;
    const char *words = strchr(text + sizeof "rank", ' ');

    for (int i = 0; i < SC_DOOR_REFUSALS; i++)
        if (door->refusals[i].rank == rank) place = &door->refusals[i];
    if (place == NULL) place = &door->refusals[door->refused++ % SC_DOOR_REFUSALS];
    place->rank = rank;
    snprintf(place->text, sizeof place->text, "%.150s", words != NULL ? words + 1 : text);
}

/* R4: the holder of a place loses it. A fresh one dials again; another is refused for good. */
static void dismiss(struct sc_world *world, int rank) {
    struct sc_peer *peer = &world->epoch->peers[rank];
    struct sc_wire_header header = sc_header(world, SC_WIRE_ANSWER, SC_WIRE_FAULT_BYTES);
    uint8_t payload[SC_WIRE_FAULT_BYTES];
    struct sc_error reason;

    if (peer->stated.number != 0) {
        sc_error_clear(&reason);
        sc_error_set(&reason, SPARK_COMM_REFUSED, rank, 0, "rank %d was replaced", rank);
        header.number = SC_WIRE_REFUSED;
        sc_wire_put_fault(payload, &reason);
        sc_link_send(world, &peer->link, &header, payload, SC_LINK_NOW);
    }
    sc_hub_vacate(world, rank);
}

/* R4d, R4e: the place of a claim that is not stale. */
static int judge_place(struct sc_world *world, const struct sc_wire_hello *hello, char *text,
                       size_t size) {
    struct sc_peer *peer = &world->epoch->peers[hello->rank];
    const struct sc_world_member *holder = &world->epoch->members[hello->rank];
    struct sc_wire_epoch claim = stated(hello->lived, hello->seen);

    if (sc_peer_state(world->epoch, hello->rank) != SC_PEER_PRESENT) return SC_WIRE_ACCEPTED;
    if (peer->instance == hello->instance) { /* R5: its first connection is gone */
        sc_hub_vacate(world, hello->rank);
        return SC_WIRE_ACCEPTED;
    }
    if (claim.number > peer->stated.number) {
        dismiss(world, hello->rank);
        return SC_WIRE_ACCEPTED;
    }
    snprintf(text, size, "rank %d is held by process %d at %s", hello->rank, holder->pid,
             holder->listener);
    return claim.number == 0 ? SC_WIRE_RETRY : SC_WIRE_REFUSED;
}

/* R3: this rank's own attempt has not begun. A claim waits for it, unless the place is held in an
 * epoch that is good; one by a member of this epoch asks for the next (R1). */
static int judge_early(struct sc_world *world, const struct sc_wire_hello *hello, char *text,
                       size_t size) {
    bool is_good = atomic_load_explicit(&world->gate, memory_order_acquire) == 0;
    struct sc_error error;

    if (!is_good) return SC_HUB_PARK;
    if (hello->lived.number != 0 && same_epoch(hello->lived, world->lived)) {
        sc_error_clear(&error);
        sc_error_set(&error, SPARK_COMM_ABORTED, hello->rank, 0, "rank %d asks for a new epoch",
                     hello->rank);
        sc_world_fault(world, &error);
        return SC_HUB_PARK;
    }
    if (sc_peer_state(world->epoch, hello->rank) != SC_PEER_PRESENT) return SC_HUB_PARK;
    snprintf(text, size, "rank %d is held by process %d at %s", hello->rank,
             world->epoch->members[hello->rank].pid, world->epoch->members[hello->rank].listener);
    return SC_WIRE_RETRY;
}

static void find_itself_replaced(struct sc_world *world) {
    struct sc_error reason;

    world->is_replaced = true;
    sc_error_clear(&reason);
    sc_error_set(&reason, SPARK_COMM_REFUSED, SC_HUB, 0, "rank 0 was replaced");
    sc_verdict_adopt(world, &reason, -1);
}

int sc_hub_judge(struct sc_world *world, const struct sc_wire_hello *hello, char *text,
                 size_t size) {
    struct sc_epoch *epoch = world->epoch;
    uint32_t phase = world->monitor.phase;

    if (!same_job(world, hello, text, size)) {
        if (hello->rank > SC_HUB && hello->rank < world->size)
            note_refusal(&world->door, hello->rank, text);
        return SC_WIRE_REFUSED;
    }
    if (phase == SC_PHASE_SETTING_UP) return SC_HUB_PARK; /* R6 */
    struct sc_wire_epoch newest = newer(world->lived, hello->lived);
    for (int rank = SC_HUB + 1; phase == SC_PHASE_GATHERING && rank < world->size; rank++)
        if (sc_peer_state(epoch, rank) == SC_PEER_PRESENT)
            newest = newer(newest, epoch->peers[rank].lived);
    if (is_stale(stated(hello->lived, hello->seen), newest)) { /* R4a */
        snprintf(text, size, "rank %d was replaced", hello->rank);
        return SC_WIRE_REFUSED;
    }
    if (phase == SC_PHASE_RUNNING) return judge_early(world, hello, text, size);
    if (is_stale(stated(world->lived, world->seen), newest)) { /* R4b */
        find_itself_replaced(world);
        return SC_HUB_PARK;
    }
    for (int rank = SC_HUB + 1; rank < world->size; rank++) /* R4c */
        if (sc_peer_state(epoch, rank) == SC_PEER_PRESENT &&
            is_stale(epoch->peers[rank].stated, newest))
            dismiss(world, rank);
    return judge_place(world, hello, text, size);
}

/* ---- Places ---- */

/* A reason of this rank's own, in words for all. */
static void name_reason(const struct sc_world *world, struct sc_error *error) {
    struct sc_error own = *error;

    sc_error_set(error, (spark_comm_status)own.status, SC_HUB, own.native_code,
                 "rank 0 cannot %s: %.400s", world->entered == 0 ? "open" : "reconnect",
                 own.message);
}

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
    struct sc_error *failure = &world->door.failure;
    if (world->refusal != NULL || sc_link_open(&peer->link, fd, failure) != SPARK_COMM_OK) {
        struct sc_error reason = world->refusal != NULL ? *world->refusal : *failure;
        if (world->refusal == NULL) name_reason(world, &reason);
        sc_verdict_say(world, fd, SC_WIRE_FAIL, &reason);
        close(fd);
        atomic_store_explicit(&peer->state, SC_PEER_LEFT, memory_order_release);
        return;
    }
    member->rank = hello->rank;
    member->pid = hello->pid;
    memcpy(member->listener, hello->listener, sizeof member->listener);
    memcpy(member->version, hello->library, sizeof member->version);
    peer->same_ids = has_same_ids(hello);
    peer->lived = hello->lived;
    peer->stated = stated(hello->lived, hello->seen);
    peer->instance = hello->instance;
    atomic_store_explicit(&peer->heard, sc_deadline_now(), memory_order_relaxed);
    atomic_store_explicit(&peer->state, SC_PEER_PRESENT, memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d has come (process %d at %s)",
                 hello->rank, hello->pid, hello->listener);
}

void sc_hub_vacate(struct sc_world *world, int rank) {
    struct sc_peer *peer = &world->epoch->peers[rank];

    sc_link_close(&peer->link);
    if (sc_peer_state(world->epoch, rank) == SC_PEER_LEFT) return; /* was told why */
    atomic_store_explicit(&peer->state, SC_PEER_ABSENT, memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d: rank %d went away before all had come",
                 world->rank, rank);
}

static bool is_absent(const struct sc_world *world, int rank) {
    return sc_peer_state(world->epoch, rank) != SC_PEER_PRESENT;
}

static int count_absent(const struct sc_world *world) {
    int absent = 0;

    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        absent += is_absent(world, rank);
    return absent;
}

/* Neither have a place nor have been told that there is none. */
static int count_untold(const struct sc_world *world) {
    int untold = 0;

    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        untold += sc_peer_state(world->epoch, rank) == SC_PEER_ABSENT;
    return untold;
}

static const struct sc_refusal *find_refusal(const struct sc_door *door, int rank) {
    for (int i = 0; i < SC_DOOR_REFUSALS; i++)
        if (door->refusals[i].rank == rank) return &door->refusals[i];
    return NULL;
}

/* "rank 2", "ranks 2 and 5", "ranks 1, 2, 3 and 40 more": those that are not there, but for those that
 * were turned away. False: there are none. */
static bool list_never(const struct sc_world *world, char *text, size_t size) {
    int never = 0, listed = 0;

    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        never += is_absent(world, rank) && find_refusal(&world->door, rank) == NULL;
    int used = snprintf(text, size, never == 1 ? "rank" : "ranks");
    for (int rank = SC_HUB + 1; rank < world->size; rank++) {
        if (!is_absent(world, rank) || find_refusal(&world->door, rank) != NULL) continue;
        bool is_last = ++listed == never;
        const char *join = listed == 1 ? " " : is_last ? " and " : ", ";
        if ((size_t)used + 32 > size) {
            snprintf(text + used, size - (size_t)used, " and %d more", never - listed + 1);
            break;
        }
        used += snprintf(text + used, size - (size_t)used, "%s%d", join, rank);
    }
    return never > 0;
}

/* Who is missing and what is known of them: "rank 2 never came to 127.0.0.1:29500 within 5.0 s; rank
 * 1 came and was turned away: it was started with world_size 3 and the head with 2". */
static spark_comm_status never_came(const struct sc_world *world, int ms, struct sc_error *error) {
    const struct sc_door *door = &world->door;
    char ranks[128], known[320] = "";
    size_t used = 0;
    bool some_never = list_never(world, ranks, sizeof ranks);

    for (int i = 0; i < SC_DOOR_REFUSALS; i++) {
        const struct sc_refusal *refusal = &door->refusals[i];
        if (refusal->rank == 0 || !is_absent(world, refusal->rank) ||
            used + 48 + strlen(refusal->text) > sizeof known)
            continue; /* or it does not fit whole */
        used += (size_t)snprintf(known + used, sizeof known - used,
                                 "; rank %d came and was turned away: it %s", refusal->rank,
                                 refusal->text);
    }
    if (door->dropped > 0 && used + 56 + strlen(door->last_dropped) <= sizeof known)
        snprintf(known + used, sizeof known - used, "; %llu %s dropped, the last %s",
                 (unsigned long long)door->dropped,
                 door->dropped == 1 ? "connection was" : "connections were", door->last_dropped);
    if (known[0] == '\0')
        snprintf(known, sizeof known, ": see that they run, and with this address and port");
    return sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, -1, 0, "%s %s to %s within %.1f s%s",
                        some_never ? ranks : "no rank that fits",
                        some_never ? "never came" : "came", world->head, ms / 1000.0, known);
}

/* R11. Gathering goes on in sc_hub_gather, which finds the cause and tells all. */
void sc_hub_excuse(struct sc_world *world, int rank, int ms) {
    struct sc_error reason;

    (void)rank;
    sc_error_clear(&reason);
    never_came(world, ms, &reason);
    sc_verdict_adopt(world, &reason, -1);
}

/* ---- Listening ---- */

/* All addresses that can be listened on; a port in use on one of them is final. */
static spark_comm_status listen_on_all(struct sc_world *world, int64_t deadline,
                                       struct sc_error *error) {
    const struct sc_settings *settings = world->settings;
    struct sc_socket_address addresses[SC_DOOR_LISTENERS];
    struct sc_door *door = &world->door;
    char text[80];
    size_t count = 0;
    spark_comm_status st;

    st = sc_socket_look_up(settings->master_addr, settings->master_port, deadline, &world->given_up,
                           addresses, SC_DOOR_LISTENERS, &count, error);
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
        if (st != SPARK_COMM_OK && error->native_code == EADDRINUSE)
            sc_error_set(error, st, -1, EADDRINUSE,
                         "%.300s: another process listens there; choose another master_port on all "
                         "ranks, or end that process",
                         error->message);
        if (st != SPARK_COMM_OK && !is_absent) return st;
        sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank 0 of %d %s %s", world->size,
                     is_absent ? "has no address" : "listens on", text);
        if (!is_absent) door->listener_count++;
    }
    if (door->listener_count == 0) return st;
    sc_error_clear(error);
    return SPARK_COMM_OK;
}

/* ---- R2: does this process still lead? ---- */

/* The attempt has a reason to fail. */
static bool is_over(const struct sc_world *world) {
    return atomic_load_explicit(&world->poison, memory_order_acquire) != 0;
}

/* True: a process that is not this one answers as the head. */
static bool another_answers(struct sc_world *world, const struct sc_socket_address *address) {
    struct sc_door *door = &world->door;
    int64_t until = sc_deadline_after(PROBE_MS);
    uint8_t out[SC_WIRE_PREAMBLE_BYTES], in[SC_WIRE_CHALLENGE_BYTES], proof[SC_WIRE_TAG_BYTES];
    struct sc_wire_preamble preamble = {.version = SC_WIRE_PROTOCOL};
    struct sc_wire_challenge said;
    struct sc_error error;
    ssize_t got = -1;
    int fd = -1;

    spark_comm_status st;
    do { /* ends early for an abort, and not for what the monitor was poked for before */
        sc_monitor_drain(world);
        st = sc_socket_connect(address, until, world->monitor.wake_fd, &fd, NULL);
    } while (st == SPARK_COMM_ABORTED && !is_over(world));
    if (st != SPARK_COMM_OK) return false;
    sc_auth_random(preamble.nonce, sizeof preamble.nonce);
    memcpy(door->probe_nonce, preamble.nonce, sizeof preamble.nonce);
    door->is_probing = true;
    door->met_itself = false;
    sc_wire_put_preamble(out, &preamble);
    if (sc_socket_send(fd, out, sizeof out, until, -1, NULL) != SPARK_COMM_OK) goto out;
    while (!door->met_itself && got < (ssize_t)sizeof in && !is_over(world) &&
           !sc_deadline_passed(until)) {
        sc_error_clear(&error);
        sc_monitor_step(world, sc_deadline_min(until, sc_deadline_now() + PROBE_STEP_NS), &error);
        got = recv(fd, in, sizeof in, MSG_DONTWAIT | MSG_PEEK);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    }
    if (door->met_itself || got != (ssize_t)sizeof in || !sc_wire_get_challenge(in, &said))
        got = -1;
    if (got > 0) sc_auth_prove(&world->auth, preamble.nonce, said.nonce, in, proof);
out:
    close(fd);
    door->is_probing = false;
    return got > 0 && said.verdict == SC_WIRE_ACCEPTED && sc_auth_equal(proof, said.proof);
}

static spark_comm_status look_around(struct sc_world *world, struct sc_error *error) {
    const struct sc_settings *settings = world->settings;
    struct sc_socket_address addresses[SC_DOOR_LISTENERS];
    size_t count = 0;

    if (sc_socket_look_up(settings->master_addr, settings->master_port, sc_deadline_after(PROBE_MS),
                          &world->given_up, addresses, SC_DOOR_LISTENERS, &count,
                          NULL) != SPARK_COMM_OK)
        return SPARK_COMM_OK; /* the workers know the old address, if any */
    for (size_t i = 0; i < count && !world->is_replaced && !is_over(world); i++)
        if (another_answers(world, &addresses[i])) find_itself_replaced(world);
    return world->is_replaced ? sc_verdict_end(world, error) : SPARK_COMM_OK;
}

/* ---- R6: the proposal ---- */

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

static int limit_of_setup(int64_t deadline) {
    int left = sc_deadline_poll_ms(deadline);

    if (left < 0) return SPARK_COMM_FOREVER;
    return left > LEAST_SETUP_MS ? left : LEAST_SETUP_MS;
}

static spark_comm_status propose(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_world_member *own = &epoch->members[SC_HUB];
    uint32_t last = stated(world->lived, world->seen).number;

    own->rank = SC_HUB;
    own->pid = (int32_t)getpid();
    snprintf(own->listener, sizeof own->listener, "%.63s", world->head);
    snprintf(own->version, sizeof own->version, "%s", spark_comm_version());
    spark_comm_status st = sc_share_offer(world, error);
    if (st != SPARK_COMM_OK) return st;
    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        if (epoch->peers[rank].stated.number > last) last = epoch->peers[rank].stated.number;
    world->seen.number = last + 1;
    do {
        sc_auth_random((uint8_t *)&world->seen.stamp, sizeof world->seen.stamp);
    } while (world->seen.stamp == 0);
    epoch->welcome.stamp = world->seen.stamp;
    epoch->welcome.limit_ms = limit_of_setup(deadline);
    world->setup_until = sc_deadline_after(epoch->welcome.limit_ms);
    epoch->number = world->seen.number;
    world->monitor.phase = SC_PHASE_SETTING_UP;
    for (int rank = SC_HUB + 1; rank < world->size && st == SPARK_COMM_OK; rank++)
        st = send_members(world, rank, error);
    return st;
}

/* Those that have come wait for nothing any more, and those that still come, within a moment (but an abort
 * waits for nobody), are told the same. */
static void tell_why(struct sc_world *world, spark_comm_status st, struct sc_error *error) {
    struct sc_error reason = *error, unwanted;
    bool is_own = st != SPARK_COMM_OPEN_TIMEOUT && !is_over(world);
    bool may_come = st != SPARK_COMM_OPEN_TIMEOUT && world->entered != 0;
    int64_t until = may_come ? sc_deadline_after(LATE_MS) : 0;

    if (is_own) name_reason(world, &reason);
    for (int rank = SC_HUB + 1; rank < world->size; rank++)
        if (sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT) {
            sc_verdict_tell(world, rank, &reason);
            atomic_store_explicit(&world->epoch->peers[rank].state, SC_PEER_LEFT,
                                  memory_order_release);
        }
    if (world->entered == 0) return;
    *error = reason; /* one reason for all */
    world->refusal = error;
    while (world->monitor.phase == SC_PHASE_GATHERING && count_untold(world) > 0 &&
           !sc_deadline_passed(until) &&
           atomic_load_explicit(&world->given_up, memory_order_acquire) == 0)
        sc_monitor_step(world, sc_deadline_min(until, sc_deadline_now() + LOOK_NS), &unwanted);
    world->refusal = NULL;
}

spark_comm_status sc_hub_gather(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    world->monitor.phase = SC_PHASE_GATHERING;
    world->monitor.round_at = sc_deadline_now();
    world->door.refused = world->door.dropped = 0;
    memset(world->door.refusals, 0, sizeof world->door.refusals);
    spark_comm_status st = world->door.listener_count == 0 ? listen_on_all(world, deadline, error)
                                                           : look_around(world, error);

    while (st == SPARK_COMM_OK && (count_absent(world) > 0 || is_over(world))) {
        if (is_over(world)) {
            sc_monitor_step(world, 0, error); /* those that wait at the door are told as well */
            st = sc_verdict_end(world, error); /* R4b, R11, or this rank gives up */
        } else if (sc_deadline_passed(deadline)) {
            st = never_came(world, world->settings->rendezvous_timeout_ms, error);
        } else {
            st = sc_monitor_step(world, sc_deadline_min(deadline, sc_deadline_now() + LOOK_NS),
                                 error);
        }
    }
    if (st == SPARK_COMM_OK) st = propose(world, deadline, error);
    if (st == SPARK_COMM_OK || world->is_replaced) return st;
    tell_why(world, st, error);
    return st;
}
