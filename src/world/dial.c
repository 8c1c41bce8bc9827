/*
 * The rendezvous, the half of every rank but 0, for opening and for reconnect alike: dials each
 * address that master_addr resolves to, again and again until the deadline, since rank 0 may start
 * minutes later. A listener that does not prove the job's token, or says "not now", is tried again;
 * one that refuses for good ends it. After the hello the rank waits for the table of members and
 * WELCOME; should the hub go away or be silent before, dialling goes on. When its own time is over it
 * says so (GIVE_UP) and is told who is missing; when it cannot go on with a reconnect, or is aborted, it
 * tells the hub why (FAULT), and the hub all others. Steps R2, R3, R7, R11 and R12 of
 * docs/models/README.md. The caller's thread only; all waits have deadlines.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "os/thread.h"
#include "world/world_state.h"

#define MAX_ADDRESSES 8
#define FIRST_PAUSE_NS INT64_C(1000000)
#define LOCAL_PAUSE_NS INT64_C(5000000) /* longest, on this host */
#define REMOTE_PAUSE_NS INT64_C(100000000) /* longest, otherwise, and after "not now" */
#define EXCUSE_MS 5000 /* for the hub's answer to GIVE_UP, where liveness has no limit */
#define LOOK_NS INT64_C(50000000) /* how often an attempt looks whether its caller gives up */
/* To tell a hub that is not reached yet why this rank cannot go on; after an abort. */
#define LAST_WORDS_MS 1000
#define ABORTED_WORDS_MS 20

/* What became of one try. */
enum outcome { JOINED, AGAIN, NOT_NOW, FINAL };

struct target {
    struct sc_socket_address address;
    char text[80];
    struct sc_error last; /* why the last try failed; a refusal outlasts lost connections */
    bool was_told; /* of this rank's abort, behind a hello that was not answered yet */
};

struct dialling {
    struct sc_world *world;
    int64_t deadline;
    struct target targets[MAX_ADDRESSES];
    size_t count;
};

/* ---- One try ---- */

/* Every rank listens on the address of its route to the hub, so that the others can find it when
 * the hub is lost. Once for all tries over the same address. */
static spark_comm_status own_listener(struct sc_world *world, int fd, struct sc_error *error) {
    struct sc_door *door = &world->door;
    struct sc_socket_address local;
    spark_comm_status st = sc_socket_local(fd, &local, error);

    if (st != SPARK_COMM_OK) return st;
    if (door->listener_count == 1) {
        if (sc_socket_same_host(&door->own, &local)) return SPARK_COMM_OK;
        close(door->listeners[0]);
        door->listener_count = 0;
    }
    struct sc_socket_address address = local;
    sc_door_set_port(&address, 0);
    if (world->settings->listen_any) sc_door_set_any(&address);
    st = sc_socket_listen(&address, SC_DOOR_CALLERS, &door->listeners[0], error);
    if (st != SPARK_COMM_OK) return st;
    door->listener_count = 1;
    st = sc_socket_local(door->listeners[0], &address, error);
    door->own = local;
    sc_door_set_port(&door->own, sc_socket_port(&address));
    return st;
}

static void fill_hello(struct sc_world *world, struct sc_wire_hello *hello) {
    const struct sc_settings *settings = world->settings;
    struct sc_thread_host_id host;

    sc_thread_host_id(&host);
    *hello = (struct sc_wire_hello){.version = SC_WIRE_PROTOCOL,
                                    .lived = world->lived,
                                    .seen = world->seen,
                                    .instance = world->instance,
                                    .rank = world->rank,
                                    .world_size = world->size,
                                    .pid = (int32_t)getpid(),
                                    .memory = settings->memory,
                                    .uid = host.uid,
                                    .job = sc_auth_job(&world->auth),
                                    .settings = sc_settings_digest(settings),
                                    .network_namespace = host.network_namespace};
    memcpy(hello->boot_id, host.boot_id, sizeof hello->boot_id);
    snprintf(hello->library, sizeof hello->library, "%s", spark_comm_version());
    snprintf(hello->backend, sizeof hello->backend, "%s", settings->backend);
    sc_socket_address_text(&world->door.own, hello->listener, sizeof hello->listener);
}

/* Preamble and challenge. */
static enum outcome challenge(struct sc_world *world, int fd, int64_t deadline, uint8_t *nonces,
                              struct sc_error *error) {
    int wake_fd = world->monitor.wake_fd;
    uint8_t out[SC_WIRE_PREAMBLE_BYTES], in[SC_WIRE_CHALLENGE_BYTES], proof[SC_WIRE_TAG_BYTES];
    struct sc_wire_preamble preamble = {.version = SC_WIRE_PROTOCOL};
    struct sc_wire_challenge said;

    sc_auth_random(preamble.nonce, sizeof preamble.nonce);
    sc_wire_put_preamble(out, &preamble);
    if (sc_socket_send(fd, out, sizeof out, deadline, wake_fd, error) != SPARK_COMM_OK ||
        sc_socket_recv(fd, in, sizeof in, deadline, wake_fd, error) != SPARK_COMM_OK)
        return AGAIN;
    if (!sc_wire_get_challenge(in, &said)) {
        sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0, "what listens there is not spark_comm");
        return NOT_NOW;
    }
    memcpy(nonces, preamble.nonce, sizeof preamble.nonce);
    memcpy(nonces + SC_WIRE_NONCE_BYTES, said.nonce, sizeof said.nonce);
    sc_auth_prove(&world->auth, nonces, nonces + SC_WIRE_NONCE_BYTES, in, proof);
    if (!sc_auth_equal(proof, said.proof)) {
        sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0,
                     "the head there has another job token than this rank");
        return NOT_NOW;
    }
    if (said.verdict == SC_WIRE_ACCEPTED) return JOINED;
    sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0, "%s", said.text);
    return said.verdict == SC_WIRE_REFUSED ? FINAL : NOT_NOW;
}

/* Hello and answer. */
static enum outcome introduce(struct sc_world *world, int fd, int64_t deadline,
                              const uint8_t *nonces, struct sc_error *error) {
    uint8_t out[SC_WIRE_HELLO_BYTES], in[SC_WIRE_HEADER_BYTES + SC_WIRE_FAULT_BYTES];
    int wake_fd = world->monitor.wake_fd;
    struct sc_wire_hello hello;
    struct sc_wire_header header;
    struct sc_error reason;

    if (own_listener(world, fd, error) != SPARK_COMM_OK) return FINAL;
    fill_hello(world, &hello);
    sc_wire_put_hello(out, &hello);
    sc_auth_tag(&world->auth, nonces, nonces + SC_WIRE_NONCE_BYTES, out,
                out + SC_WIRE_HELLO_COVERED);
    if (sc_socket_send(fd, out, sizeof out, deadline, wake_fd, error) != SPARK_COMM_OK ||
        sc_socket_recv(fd, in, sizeof in, deadline, wake_fd, error) != SPARK_COMM_OK)
        return AGAIN;
    sc_error_clear(&reason);
    if (!sc_wire_get_header(in, world->size, &header) || header.kind != SC_WIRE_ANSWER ||
        header.number > SC_WIRE_REFUSED ||
        !sc_wire_get_fault(in + SC_WIRE_HEADER_BYTES, SC_WIRE_FAULT_BYTES, world->size, &reason)) {
        sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0, "its answer is damaged");
        return NOT_NOW;
    }
    if (header.number == SC_WIRE_ACCEPTED) return JOINED;
    bool is_early = reason.status == SPARK_COMM_OPEN_TIMEOUT; /* the hub has not begun */
    sc_error_set(error, is_early ? SPARK_COMM_OPEN_TIMEOUT : SPARK_COMM_REFUSED, SC_HUB, 0, "%s",
                 reason.message);
    return header.number == SC_WIRE_REFUSED ? FINAL : NOT_NOW;
}

/* Connects and shakes hands; *fd is -1 unless it has JOINED. */
static enum outcome shake_hands(struct sc_world *world, struct target *target, int64_t limit,
                                int *fd, struct sc_error *error) {
    uint8_t nonces[2 * SC_WIRE_NONCE_BYTES];
    struct sc_error own;

    if (sc_socket_connect(&target->address, limit, world->monitor.wake_fd, fd, error) !=
        SPARK_COMM_OK) {
        bool is_own_fault = error->native_code == EMFILE || error->native_code == ENFILE ||
                            error->status == SPARK_COMM_NO_MEMORY;
        return is_own_fault ? FINAL : AGAIN;
    }
    sc_socket_tune(*fd, 0);
    enum outcome outcome = challenge(world, *fd, limit, nonces, error);
    if (outcome == JOINED) {
        outcome = introduce(world, *fd, limit, nonces, error);
        /* The hub may be about to let it in. */
        target->was_told = outcome == AGAIN && sc_world_gives_up(world, &own);
        if (target->was_told) sc_verdict_say(world, *fd, SC_WIRE_FAULT, &own);
    }
    if (outcome == JOINED) return outcome;
    close(*fd);
    *fd = -1;
    return outcome;
}

/* On success the connection is the link to the hub. */
static enum outcome meet(struct sc_world *world, struct target *target, int64_t limit,
                         struct sc_error *error) {
    struct sc_peer *hub = &world->epoch->peers[SC_HUB];
    int fd = -1;

    /* First: once it is let in, a rank that goes away is missed. */
    if (sc_link_reserve(&hub->link, error) != SPARK_COMM_OK) return FINAL;
    enum outcome outcome = shake_hands(world, target, limit, &fd, error);
    if (outcome != JOINED) return outcome;
    snprintf(world->head, sizeof world->head, "%s", target->text);
    sc_link_open(&hub->link, fd, NULL); /* has its memory */
    atomic_store_explicit(&hub->state, SC_PEER_PRESENT, memory_order_release);
    atomic_store_explicit(&hub->heard, sc_deadline_now(), memory_order_relaxed);
    return outcome;
}

static enum outcome try_target(struct sc_world *world, struct target *target, int64_t deadline,
                               struct sc_error *error) {
    int64_t limit = sc_deadline_min(deadline, sc_deadline_after(SC_HANDSHAKE_MS));
    struct sc_error failure;

    sc_error_clear(&failure);
    enum outcome outcome = meet(world, target, limit, &failure);
    /* A last try that had no time left says less than the one before it. */
    bool was_cut_short = failure.status == SPARK_COMM_OP_TIMEOUT && sc_deadline_passed(deadline);
    /* Nor does a connection that failed say more than the head's own word: with equal limits the head
     * closes first, and nobody listens there at the end. */
    bool was_told =
        failure.status == SPARK_COMM_REFUSED || failure.status == SPARK_COMM_OPEN_TIMEOUT;
    bool keeps = was_cut_short || (!was_told && target->last.status == SPARK_COMM_REFUSED);
    if (!keeps || target->last.status == SPARK_COMM_OK) target->last = failure;
    if (outcome == FINAL) *error = failure;
    return outcome;
}

/* ---- Waiting for all the others ---- */

void sc_dial_members(struct sc_world *world, const struct sc_wire_header *header,
                     const uint8_t *payload) {
    int first = (int)header->offset;
    int count = (int)(header->bytes / SC_WIRE_MEMBER_BYTES);

    if (world->monitor.phase != SC_PHASE_GATHERING || count > world->size - first) return;
    for (int i = 0; i < count; i++)
        sc_wire_get_member(payload + (size_t)i * SC_WIRE_MEMBER_BYTES, first + i,
                           &world->epoch->members[first + i]);
}

void sc_dial_welcome(struct sc_world *world, const struct sc_wire_header *header,
                     const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;

    if (world->monitor.phase != SC_PHASE_GATHERING || header->epoch == 0) return;
    if (!sc_wire_get_welcome(payload, header->bytes, &epoch->welcome)) return;
    if (header->epoch <= world->lived.number) return; /* epochs only grow */
    for (int rank = 0; rank < world->size; rank++) {
        /* A table with a hole is no table. */
        if (epoch->members[rank].rank != rank || epoch->members[rank].version[0] == '\0') return;
        if (rank != world->rank)
            atomic_store_explicit(&epoch->peers[rank].state, SC_PEER_PRESENT, memory_order_release);
    }
    /* R7: from here on the hub's limit counts; its silence is found by liveness. */
    world->seen = (struct sc_wire_epoch){header->epoch, epoch->welcome.stamp};
    world->setup_until = sc_deadline_after(epoch->welcome.limit_ms);
    if (world->setup_until < SC_DEADLINE_NEVER - world->monitor.liveness_ns)
        world->setup_until += world->monitor.liveness_ns;
    epoch->number = header->epoch;
    world->monitor.phase = SC_PHASE_SETTING_UP;
}

void sc_dial_dismissed(struct sc_world *world, const struct sc_wire_header *header,
                       const uint8_t *payload) {
    struct sc_error reason;

    if (world->monitor.phase != SC_PHASE_GATHERING || header->number != SC_WIRE_REFUSED) return;
    if (!sc_wire_get_fault(payload, header->bytes, world->size, &reason)) return;
    if (reason.status == SPARK_COMM_REFUSED) sc_verdict_adopt(world, &reason, SC_HUB);
}

/* R11: the hub answers with one word for all, or is silent. */
static int64_t give_up(struct sc_world *world) {
    struct sc_wire_header header = sc_header(world, SC_WIRE_GIVE_UP, 0);
    int64_t liveness = world->monitor.liveness_ns;

    header.number = (uint64_t)world->settings->rendezvous_timeout_ms;
    sc_link_send(world, &world->epoch->peers[SC_HUB].link, &header, NULL, SC_LINK_NOW);
    return liveness == SC_DEADLINE_NEVER ? sc_deadline_after(EXCUSE_MS)
                                         : sc_deadline_now() + liveness;
}

/* Until WELCOME, the hub's word that it is over, or the end of the connection (AGAIN: R12). */
static enum outcome await_welcome(struct sc_world *world, int64_t deadline,
                                  struct sc_error *error) {
    struct sc_link *link = &world->epoch->peers[SC_HUB].link;
    bool has_given_up = false;

    world->monitor.round_at = sc_deadline_now();
    while (world->monitor.phase == SC_PHASE_GATHERING) {
        if (atomic_load_explicit(&world->poison, memory_order_acquire) != 0) {
            sc_verdict_end(world, error);
            return FINAL;
        }
        if (link->fd < 0) {
            sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, SC_HUB, 0,
                         "the head let this rank in and went away before all ranks had come");
            return AGAIN;
        }
        if (sc_deadline_passed(deadline)) {
            if (has_given_up) break;
            deadline = give_up(world);
            has_given_up = true;
        }
        if (sc_monitor_step(world, sc_deadline_min(deadline, sc_deadline_now() + LOOK_NS), error) !=
            SPARK_COMM_OK)
            return FINAL;
    }
    if (world->monitor.phase != SC_PHASE_GATHERING) return JOINED;
    sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, SC_HUB, 0,
                 "rank 0 at %s let this rank in and then did not say who is missing within %.1f s",
                 world->head, world->settings->rendezvous_timeout_ms / 1000.0);
    return FINAL;
}

/* ---- Dialling ---- */

static spark_comm_status find_targets(struct dialling *dialling, struct sc_error *error) {
    const struct sc_settings *settings = dialling->world->settings;
    struct sc_socket_address addresses[MAX_ADDRESSES];
    spark_comm_status st = sc_socket_look_up(settings->master_addr, settings->master_port,
                                             dialling->deadline, &dialling->world->given_up,
                                             addresses, MAX_ADDRESSES, &dialling->count, error);

    for (size_t i = 0; i < dialling->count; i++) {
        struct target *target = &dialling->targets[i];
        target->address = addresses[i];
        sc_socket_address_text(&addresses[i], target->text, sizeof target->text);
    }
    return st;
}

/* Names every address with its last failure; REFUSED when somebody answered there. */
static spark_comm_status never_reached(const struct dialling *dialling, struct sc_error *error) {
    const struct sc_settings *settings = dialling->world->settings;
    spark_comm_status st = SPARK_COMM_OPEN_TIMEOUT;
    char text[400] = "";
    int used = 0;

    for (size_t i = 0; i < dialling->count; i++) {
        const struct target *target = &dialling->targets[i];
        if (target->last.status == SPARK_COMM_REFUSED) st = SPARK_COMM_REFUSED;
        if ((size_t)used >= sizeof text) break;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s: %s", i > 0 ? "; " : "",
                         target->text, target->last.message);
    }
    return sc_error_set(error, st, SC_HUB, dialling->targets[0].last.native_code,
                        "rank 0 let nobody in within %.1f s (%s)",
                        settings->rendezvous_timeout_ms / 1000.0, text);
}

/* Ends early when this rank gives up; what had woken the monitor before is of no interest. */
static void pause_until(struct sc_world *world, int64_t until) {
    struct pollfd wake = {.fd = world->monitor.wake_fd, .events = POLLIN};

    while (!sc_deadline_passed(until) && poll(&wake, 1, sc_deadline_poll_ms(until)) <= 0) {
    }
    sc_monitor_drain(world);
}

/* One try of each address. */
static enum outcome try_all(struct dialling *dialling, struct sc_error *error) {
    struct sc_world *world = dialling->world;
    enum outcome result = AGAIN;

    for (size_t i = 0; i < dialling->count; i++) {
        struct target *target = &dialling->targets[i];
        enum outcome outcome = try_target(world, target, dialling->deadline, error);
        if (outcome == JOINED) {
            outcome = await_welcome(world, dialling->deadline, &target->last);
            if (outcome == FINAL) *error = target->last;
            if (outcome != JOINED && outcome != FINAL)
                sc_link_close(&world->epoch->peers[SC_HUB].link);
        }
        if (outcome == JOINED || outcome == FINAL) return outcome;
        if (outcome == NOT_NOW) result = NOT_NOW;
    }
    return result;
}

static spark_comm_status dial_on(struct dialling *dialling, struct sc_error *error) {
    struct sc_world *world = dialling->world;
    int64_t pause = FIRST_PAUSE_NS, deadline = dialling->deadline;
    int64_t longest =
        sc_socket_is_loopback(&dialling->targets[0].address) ? LOCAL_PAUSE_NS : REMOTE_PAUSE_NS;

    for (;;) {
        if (atomic_load_explicit(&world->poison, memory_order_acquire) != 0)
            return sc_verdict_end(world, error);
        enum outcome outcome = try_all(dialling, error);
        if (outcome == JOINED) return SPARK_COMM_OK;
        if (outcome == FINAL) return (spark_comm_status)error->status;
        if (sc_deadline_passed(deadline)) return never_reached(dialling, error);
        if (outcome == NOT_NOW) pause = REMOTE_PAUSE_NS;
        pause_until(world, sc_deadline_min(deadline, sc_deadline_now() + pause));
        pause = pause * 2 < longest ? pause * 2 : longest;
    }
}

/* ---- Why this rank cannot go on (R11) ---- */

/* In a reconnect, and not because the hub has said so. */
static bool is_own_reason(const struct sc_world *world, spark_comm_status st) {
    bool is_told = atomic_load_explicit(&world->poison, memory_order_acquire) != 0;

    if (world->entered == 0) return false;
    if (atomic_load_explicit(&world->given_up, memory_order_acquire) != 0)
        return st == SPARK_COMM_ABORTED;
    return !is_told && (st == SPARK_COMM_NO_MEMORY || st == SPARK_COMM_SYSTEM);
}

/* Takes no memory. A hub that is not gathering yet finds this rank missing. */
static void say_last_words(struct dialling *dialling, const struct sc_error *reason) {
    struct sc_world *world = dialling->world;
    int64_t limit =
        sc_deadline_after(reason->status == SPARK_COMM_ABORTED ? ABORTED_WORDS_MS : LAST_WORDS_MS);
    struct sc_error unwanted;
    bool is_said = false;
    int fd = -1;

    sc_error_clear(&unwanted);
    sc_monitor_drain(world);
    for (size_t i = 0; i < dialling->count && !is_said; i++) {
        is_said = shake_hands(world, &dialling->targets[i], limit, &fd, &unwanted) == JOINED;
        if (is_said) sc_verdict_say(world, fd, SC_WIRE_FAULT, reason);
    }
    if (fd >= 0) close(fd);
}

static void explain(struct dialling *dialling, struct sc_error *error) {
    struct sc_world *world = dialling->world;
    struct sc_error reason = *error;

    if (reason.status != SPARK_COMM_ABORTED)
        sc_error_set(error, (spark_comm_status)reason.status, world->rank, reason.native_code,
                     "rank %d cannot reconnect: %.400s", world->rank, reason.message);
    bool was_told = false;
    for (size_t i = 0; i < dialling->count; i++)
        was_told |= dialling->targets[i].was_told;
    if (sc_link_is_open(&world->epoch->peers[SC_HUB].link))
        sc_verdict_tell(world, SC_HUB, error);
    else if (!was_told)
        say_last_words(dialling, error);
}

spark_comm_status sc_dial_join(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    struct dialling dialling = {.world = world, .deadline = deadline};
    spark_comm_status st;

    world->monitor.phase = SC_PHASE_GATHERING;
    pause_until(world, 0);
    st = find_targets(&dialling, error);
    if (st == SPARK_COMM_OK) st = dial_on(&dialling, error);
    if (st == SPARK_COMM_OK)
        sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d of %d joined at %s", world->rank,
                     world->size, world->head);
    else if (is_own_reason(world, st))
        explain(&dialling, error);
    return st;
}
