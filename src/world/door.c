/*
 * The listening side: connections that have not yet proved who they are. Each caller is a small
 * state machine fed by poll; none can make the door wait, none costs more than one fixed block, and
 * each has SC_HANDSHAKE_MS in all. A caller that says anything else than the protocol is a
 * stranger: dropped, counted, logged. The caller speaks first:
 *
 *   TCP   preamble -> challenge -> hello -> answer; an accepted one becomes a link (hub.c)
 *   TCP   record KIN: a member whose hub has gone; becomes a link (heir.c)
 *   Unix  ticket -> a descriptor; only for members of this world (share.c)
 *
 * A caller that is told why it is not wanted is kept until it hangs up, so that no reset overtakes
 * the reason. A hello that the hub cannot answer yet is parked (R3 of docs/models/README.md): it is
 * judged again in the next phase, and told to dial again when its time is over. Monitor only.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "world/world_state.h"

#define ACCEPTS_AT_ONCE 64
#define PAUSE_NS INT64_C(1000000000)
#define LEAVING_MS 1000
#define PARKED_MS 4000 /* less than SC_HANDSHAKE_MS, after which the caller dials again by itself */

void sc_door_init(struct sc_door *door) {
    memset(door, 0, sizeof *door);
    door->unix_listener = -1;
    sc_error_clear(&door->failure);
}

spark_comm_status sc_door_prepare(struct sc_world *world, struct sc_error *error) {
    struct sc_door *door = &world->door;

    door->caller_capacity = SC_DOOR_CALLERS + (sc_is_hub(world) ? world->size : 0);
    door->callers = sc_alloc_array((size_t)door->caller_capacity, sizeof *door->callers);
    door->pool = sc_alloc_array((size_t)door->caller_capacity, sizeof *door->pool);
    if (door->callers == NULL || door->pool == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for %d connections",
                            door->caller_capacity);
    return SPARK_COMM_OK;
}

static void drop(struct sc_door *door, int index) {
    struct sc_caller *caller = door->callers[index];

    if (caller == NULL) return;
    if (caller->fd >= 0) close(caller->fd);
    caller->is_used = false;
    door->callers[index] = NULL;
}

/* Moves the remaining callers together; their order stays. */
static void close_up(struct sc_door *door) {
    int kept = 0;

    for (int i = 0; i < door->caller_count; i++)
        if (door->callers[i] != NULL) door->callers[kept++] = door->callers[i];
    door->caller_count = kept;
}

void sc_door_shut_unix(struct sc_door *door) {
    if (door->unix_listener >= 0) close(door->unix_listener);
    door->unix_listener = -1;
    for (int i = 0; i < door->caller_count; i++)
        if (door->callers[i] != NULL && door->callers[i]->is_unix) drop(door, i);
    close_up(door);
}

void sc_door_shut(struct sc_door *door) {
    for (int i = 0; i < door->listener_count; i++)
        close(door->listeners[i]);
    door->listener_count = 0;
    for (int i = 0; i < door->caller_count; i++)
        drop(door, i);
    door->caller_count = 0;
}

void sc_door_close(struct sc_door *door) {
    sc_door_shut(door);
    sc_door_shut_unix(door);
    sc_free(door->callers);
    sc_free(door->pool);
    door->callers = NULL;
    door->pool = NULL;
}

void sc_door_set_port(struct sc_socket_address *address, int port) {
    if (address->storage.ss_family == AF_INET)
        ((struct sockaddr_in *)&address->storage)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)&address->storage)->sin6_port = htons((uint16_t)port);
}

void sc_door_set_any(struct sc_socket_address *address) {
    sa_family_t family = address->storage.ss_family;

    /* All zeros is the wildcard of either family. */
    memset(address, 0, sizeof *address);
    address->storage.ss_family = family;
    address->length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Kept for the hub's sentence about missing ranks. */
static void note_dropped(struct sc_door *door, const struct sc_caller *caller, const char *why) {
    char text[80];

    door->dropped++;
    snprintf(door->last_dropped, sizeof door->last_dropped, "from %s: %.120s",
             sc_socket_address_text(&caller->from, text, sizeof text), why);
}

static void drop_stranger(struct sc_world *world, int index, const char *why) {
    struct sc_door *door = &world->door;

    door->strangers++;
    note_dropped(door, door->callers[index], why);
    sc_log_write(world->log, SPARK_COMM_LOG_INFO,
                 "rank %d dropped a connection %s (%llu dropped so far)", world->rank,
                 door->last_dropped, (unsigned long long)door->strangers);
    drop(door, index);
}

/* ---- Answers ---- */

/* The socket is fresh and its buffer empty: what it does not take at once means that it is broken. */
static bool say(struct sc_caller *caller, const uint8_t *data, size_t bytes) {
    ssize_t sent;

    do {
        sent = send(caller->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

static void leave(struct sc_caller *caller) {
    shutdown(caller->fd, SHUT_WR);
    caller->is_leaving = true;
    caller->deadline = sc_deadline_min(caller->deadline, sc_deadline_after(LEAVING_MS));
}

static enum sc_wire_verdict judge_preamble(struct sc_world *world, const struct sc_caller *caller,
                                           const struct sc_wire_preamble *preamble, char *text,
                                           size_t size) {
    if (preamble->version != SC_WIRE_PROTOCOL) {
        snprintf(text, size,
                 "this head speaks protocol %u (spark_comm %s) and the caller protocol %u: use the "
                 "same version on all ranks",
                 SC_WIRE_PROTOCOL, spark_comm_version(), preamble->version);
        return SC_WIRE_REFUSED;
    }
    if (!sc_is_hub(world)) {
        snprintf(text, size, "this is rank %d; the head, rank 0, is at %s", world->rank,
                 world->head);
        return SC_WIRE_RETRY;
    }
    if (!world->auth.has_token && !caller->is_local && !world->settings->allow_no_token) {
        snprintf(text, size,
                 "the head has no job token and then accepts ranks of its own host only: set the "
                 "same SPARK_COMM_JOB_TOKEN on all ranks, or SPARK_COMM_ALLOW_NO_TOKEN=1 on the "
                 "head");
        return SC_WIRE_REFUSED;
    }
    return SC_WIRE_ACCEPTED;
}

static void take_preamble(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];
    uint8_t out[SC_WIRE_CHALLENGE_BYTES];
    struct sc_wire_preamble preamble;
    struct sc_wire_challenge challenge = {.version = SC_WIRE_PROTOCOL};

    if (!sc_wire_get_preamble(caller->in, &preamble)) {
        drop_stranger(world, index, "it is not spark_comm");
        return;
    }
    if (world->door.is_probing && sc_auth_equal(preamble.nonce, world->door.probe_nonce)) {
        world->door.met_itself = true;
        drop(&world->door, index);
        return;
    }
    memcpy(caller->its_nonce, preamble.nonce, sizeof caller->its_nonce);
    sc_auth_random(caller->our_nonce, sizeof caller->our_nonce);
    memcpy(challenge.nonce, caller->our_nonce, sizeof challenge.nonce);
    challenge.verdict =
        (uint32_t)judge_preamble(world, caller, &preamble, challenge.text, sizeof challenge.text);
    sc_wire_put_challenge(out, &challenge);
    sc_auth_prove(&world->auth, caller->its_nonce, caller->our_nonce, out,
                  out + SC_WIRE_CHALLENGE_COVERED);
    caller->said_preamble = true;
    caller->got = 0;
    if (!say(caller, out, sizeof out)) {
        drop_stranger(world, index, "it went away");
        return;
    }
    if (challenge.verdict != SC_WIRE_ACCEPTED) {
        note_dropped(&world->door, caller, challenge.text);
        sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d turned a caller away: %s",
                     world->rank, challenge.text);
        leave(caller);
    }
}

static void answer(struct sc_world *world, int index, enum sc_wire_verdict verdict,
                   spark_comm_status status, const char *text) {
    struct sc_caller *caller = world->door.callers[index];
    struct sc_wire_header header = sc_header(world, SC_WIRE_ANSWER, SC_WIRE_FAULT_BYTES);
    uint8_t out[SC_WIRE_HEADER_BYTES + SC_WIRE_FAULT_BYTES];
    struct sc_error reason;

    sc_error_clear(&reason);
    if (verdict != SC_WIRE_ACCEPTED) sc_error_set(&reason, status, -1, 0, "%s", text);
    header.number = (uint64_t)verdict;
    sc_wire_put_header(out, &header);
    sc_wire_put_fault(out + SC_WIRE_HEADER_BYTES, &reason);
    if (!say(caller, out, sizeof out)) {
        drop_stranger(world, index, "it went away");
        return;
    }
    if (verdict != SC_WIRE_ACCEPTED) {
        sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d turned a caller away: %s",
                     world->rank, text);
        leave(caller);
    }
}

/* For the first time, or again in another phase. */
static void judge_hello(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];
    struct sc_wire_hello hello;
    char text[256] = "";

    if (!sc_wire_get_hello(caller->in, &hello)) {
        drop_stranger(world, index, "its hello is damaged");
        return;
    }
    uint32_t phase = world->monitor.phase;
    int verdict = sc_hub_judge(world, &hello, text, sizeof text);
    if (verdict == SC_HUB_PARK) {
        caller->judged_in = phase;
        if (!caller->is_parked) caller->deadline = sc_deadline_after(PARKED_MS);
        caller->is_parked = true;
        return;
    }
    caller->is_parked = false;
    answer(world, index, (enum sc_wire_verdict)verdict, SPARK_COMM_REFUSED, text);
    /* `answer` may have dropped it. */
    caller = world->door.callers[index];
    if (verdict != SC_WIRE_ACCEPTED || caller == NULL) return;
    int fd = caller->fd;
    caller->fd = -1;
    drop(&world->door, index);
    sc_hub_admit(world, &hello, fd);
}

static void take_hello(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];
    uint8_t tag[SC_WIRE_TAG_BYTES];

    sc_auth_tag(&world->auth, caller->its_nonce, caller->our_nonce, caller->in, tag);
    if (!sc_auth_equal(tag, caller->in + SC_WIRE_HELLO_COVERED))
        drop_stranger(world, index, "it has another job token");
    else
        judge_hello(world, index);
}

/* Its time is over, and dialling again is its way to learn whether the hub still lives. */
static void unpark(struct sc_world *world, int index) {
    world->door.callers[index]->is_parked = false;
    answer(world, index, SC_WIRE_RETRY, SPARK_COMM_OPEN_TIMEOUT,
           "rank 0 is there and has not asked for a new epoch");
}

static void take_ticket(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];

    if (!sc_share_admit(world, caller->fd, caller->in)) {
        drop_stranger(world, index, "it is no member of this world");
        return;
    }
    caller->fd = -1; /* kept by the member */
    drop(&world->door, index);
}

static void take_kin(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];

    if (!sc_heir_admit(world, caller->fd, caller->in)) {
        drop_stranger(world, index, "it is no member of this world");
        return;
    }
    caller->fd = -1; /* the member's link */
    drop(&world->door, index);
}

/* ---- Callers ---- */

static size_t expected(const struct sc_caller *caller) {
    if (caller->is_unix) return SC_WIRE_TICKET_BYTES;
    if (!caller->said_preamble && sc_wire_is_record(caller->in, caller->got))
        return SC_WIRE_KIN_BYTES;
    return caller->said_preamble ? SC_WIRE_HELLO_BYTES : SC_WIRE_PREAMBLE_BYTES;
}

/* What a caller says after it was told to go is read and forgotten. */
static void hear_out(struct sc_door *door, int index) {
    struct sc_caller *caller = door->callers[index];
    uint8_t unwanted[1024]; /* `in` may hold a hello that is still to be judged */
    ssize_t got = recv(caller->fd, unwanted, sizeof unwanted, MSG_DONTWAIT);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) drop(door, index);
}

static void serve_caller(struct sc_world *world, int index) {
    struct sc_caller *caller = world->door.callers[index];

    if (caller->is_leaving || caller->is_parked) {
        hear_out(&world->door, index);
        return;
    }
    size_t want = expected(caller);
    ssize_t got = recv(caller->fd, caller->in + caller->got, want - caller->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        drop_stranger(world, index,
                      caller->said_preamble ? "it left before its hello (another job token?)"
                                            : "it left without a word");
        return;
    }
    caller->got += (size_t)got;
    bool is_tcp_start = !caller->is_unix && !caller->said_preamble;
    bool is_kin = is_tcp_start && sc_wire_is_record(caller->in, caller->got);
    if (is_kin) want = SC_WIRE_KIN_BYTES;
    if (is_tcp_start && !is_kin && !sc_wire_is_preamble(caller->in, caller->got)) {
        drop_stranger(world, index, "it is not spark_comm");
        return;
    }
    if (caller->got < want) return;
    if (caller->is_unix)
        take_ticket(world, index);
    else if (is_kin)
        take_kin(world, index);
    else if (!caller->said_preamble)
        take_preamble(world, index);
    else
        take_hello(world, index);
}

/* ---- Listeners ---- */

static bool is_local(int fd, const struct sc_socket_address *from) {
    struct sc_socket_address own;

    if (sc_socket_is_loopback(from)) return true;
    return sc_socket_local(fd, &own, NULL) == SPARK_COMM_OK && sc_socket_same_host(&own, from);
}

void sc_door_add(struct sc_world *world, int fd, bool is_unix,
                 const struct sc_socket_address *from) {
    struct sc_door *door = &world->door;

    if (door->caller_count == door->caller_capacity) {
        drop_stranger(world, 0, "too many others are waiting, and it is the oldest");
        close_up(door);
    }
    struct sc_caller *caller = door->pool;
    while (caller->is_used)
        caller++;
    memset(caller, 0, sizeof *caller);
    caller->is_used = true;
    caller->fd = fd;
    caller->is_unix = is_unix;
    caller->is_local = is_unix || is_local(fd, from);
    caller->from = *from;
    caller->deadline = sc_deadline_after(SC_HANDSHAKE_MS);
    door->callers[door->caller_count++] = caller;
}

static void accept_some(struct sc_world *world, int listener, bool is_unix) {
    struct sc_door *door = &world->door;
    struct sc_socket_address from;
    int fd;

    for (int i = 0; i < ACCEPTS_AT_ONCE && door->failure.status == SPARK_COMM_OK; i++) {
        if (sc_socket_accept(listener, &fd, &from, &door->failure) != SPARK_COMM_OK || fd < 0)
            break;
        sc_door_add(world, fd, is_unix, &from);
    }
}

/* Out of memory or descriptors. While the world forms that ends it, since ranks that can't be let in
 * would wait for nothing; later the door has a rest. */
static spark_comm_status judge_failure(struct sc_world *world, struct sc_error *error) {
    struct sc_door *door = &world->door;
    struct sc_error failure = door->failure;

    sc_error_clear(&door->failure);
    if (failure.status == SPARK_COMM_OK) return SPARK_COMM_OK;
    if (world->monitor.phase != SC_PHASE_RUNNING) {
        *error = failure;
        return (spark_comm_status)failure.status;
    }
    door->paused_until = sc_deadline_now() + PAUSE_NS;
    sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d: %s", world->rank, failure.message);
    return SPARK_COMM_OK;
}

/* ---- Poll ---- */

size_t sc_door_watch(struct sc_world *world, struct pollfd *fds) {
    struct sc_door *door = &world->door;
    size_t count = 0;

    for (int i = 0; i < door->caller_count; i++)
        fds[count++] = (struct pollfd){.fd = door->callers[i]->fd, .events = POLLIN};
    /* A negative descriptor is passed over by poll. */
    bool is_paused = !sc_deadline_passed(door->paused_until);
    for (int i = 0; i < door->listener_count; i++)
        fds[count++] = (struct pollfd){.fd = is_paused ? -1 : door->listeners[i], .events = POLLIN};
    fds[count++] = (struct pollfd){.fd = is_paused ? -1 : door->unix_listener, .events = POLLIN};
    return count;
}

spark_comm_status sc_door_serve(struct sc_world *world, const struct pollfd *fds,
                                struct sc_error *error) {
    struct sc_door *door = &world->door;
    const struct pollfd *listeners = fds + door->caller_count;

    for (int i = 0; i < door->caller_count; i++) {
        if (fds[i].revents != 0) serve_caller(world, i);
        if (door->callers[i] != NULL && door->callers[i]->is_parked &&
            door->callers[i]->judged_in != world->monitor.phase)
            judge_hello(world, i);
        if (door->callers[i] == NULL || !sc_deadline_passed(door->callers[i]->deadline)) continue;
        if (door->callers[i]->is_leaving)
            drop(door, i);
        else if (door->callers[i]->is_parked)
            unpark(world, i);
        else
            drop_stranger(world, i, "it was too slow");
    }
    close_up(door);
    for (int i = 0; i < door->listener_count; i++)
        if (listeners[i].revents != 0) accept_some(world, door->listeners[i], false);
    if (listeners[door->listener_count].revents != 0) accept_some(world, door->unix_listener, true);
    return judge_failure(world, error);
}

int64_t sc_door_deadline(const struct sc_world *world) {
    const struct sc_door *door = &world->door;
    int64_t deadline = SC_DEADLINE_NEVER;

    for (int i = 0; i < door->caller_count; i++) {
        const struct sc_caller *caller = door->callers[i];
        bool is_due = caller->is_parked && caller->judged_in != world->monitor.phase;
        deadline = sc_deadline_min(deadline, is_due ? 0 : caller->deadline);
    }
    if (!sc_deadline_passed(door->paused_until))
        deadline = sc_deadline_min(deadline, door->paused_until);
    return deadline;
}
