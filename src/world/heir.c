/*
 * Between hosts: who takes the hub's place. When the hub is lost or has closed, the lowest live rank
 * judges, relays goodbyes and finds the silent. The others dial its listener, which all know since
 * WELCOME, and show the cookie of the epoch in their first record (KIN); from then on it is a link
 * like that to the hub. A head that can't be reached, or gives no answer, is lost like any other,
 * and the next one follows. Collectives need all ranks, so of the hub's work nothing else goes on.
 *
 * A successor that closes as well has said goodbye to the hub, if that was still there to pass it on. So
 * where the hub has closed, a successor that cannot be reached is dialled again for a moment, and lost only
 * if no goodbye of it has come by then.
 *
 * On one host nobody needs a successor: see watch.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)
#define GOODBYE_NS \
    (300 * NS_PER_MS) /* for one that the hub has passed on, and that is still on its way */
#define RETRY_NS (10 * NS_PER_MS)

static int lowest_live(const struct sc_world *world) {
    int rank = 0;

    while (rank != world->rank && sc_peer_state(world->epoch, rank) != SC_PEER_PRESENT)
        rank++;
    return rank;
}

static void use_link(struct sc_world *world, int rank) {
    struct sc_epoch *epoch = world->epoch;

    atomic_store_explicit(&epoch->peers[rank].heard, sc_deadline_now(), memory_order_relaxed);
    if (epoch->link_end <= rank) epoch->link_end = rank + 1;
    sc_monitor_tell_lines(world, rank, SC_LINES_ANSWER);
    sc_verdict_repeat(world, rank);
    /* Sequentially consistent: partner is sc_goodbye_say. Either it finds the link or this finds
     * that it was there. */
    if (atomic_load_explicit(&epoch->has_said_goodbye, memory_order_seq_cst))
        sc_goodbye_tell(world, rank);
}

/* The address in "127.0.0.1:29500" or "[::1]:29500". */
static bool parse(const char *text, struct sc_socket_address *address) {
    const char *colon = strrchr(text, ':');
    char host[64];
    size_t count = 0;

    if (colon == NULL || (size_t)(colon - text) >= sizeof host) return false;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    long port = strtol(colon + 1, NULL, 10);
    return port > 0 && port < 65536 &&
           sc_socket_resolve(host, (int)port, address, 1, &count, NULL) == SPARK_COMM_OK &&
           count == 1;
}

/* Does not wait: what is sent goes out when the connection stands, and its failure ends the link. */
static bool dial(struct sc_world *world, int rank) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_wire_header header = sc_header(world, SC_WIRE_KIN, SC_WIRE_COOKIE_BYTES);
    struct sc_socket_address address;
    int fd = -1;

    if (sc_link_is_open(&epoch->peers[rank].link)) return true;
    if (!parse(epoch->members[rank].listener, &address) ||
        sc_socket_connect_start(&address, &fd, NULL) != SPARK_COMM_OK)
        return false;
    sc_socket_tune(fd, 0);
    if (sc_link_open(&epoch->peers[rank].link, fd, NULL) != SPARK_COMM_OK) {
        close(fd);
        return false;
    }
    sc_link_send(world, &epoch->peers[rank].link, &header, epoch->welcome.cookie, SC_LINK_NOW);
    use_link(world, rank);
    return true;
}

bool sc_heir_may_have_left(const struct sc_world *world, int rank) {
    const struct sc_epoch *epoch = world->epoch;

    return sc_is_settled(world) && !epoch->one_host && rank != SC_HUB &&
           rank == atomic_load_explicit(&epoch->hub, memory_order_relaxed) &&
           !sc_deadline_passed(epoch->heir_until);
}

static void reach(struct sc_world *world, int head) {
    if (dial(world, head) || sc_heir_may_have_left(world, head)) return;
    world->epoch->peers[head].is_silent = true;
    sc_verdict_lose(world, head, "cannot be reached"); /* follows the next one */
}

int64_t sc_heir_step(struct sc_world *world, int64_t now) {
    struct sc_epoch *epoch = world->epoch;
    int head = atomic_load_explicit(&epoch->hub, memory_order_relaxed);

    if (epoch->heir_until == 0 || head == world->rank || epoch->peers[head].link.fd >= 0 ||
        sc_peer_state(epoch, head) != SC_PEER_PRESENT)
        return SC_DEADLINE_NEVER;
    reach(world, head);
    return now + RETRY_NS;
}

void sc_heir_follow(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    int head = atomic_load_explicit(&epoch->hub, memory_order_relaxed);

    if (!sc_is_settled(world) || epoch->one_host || head == world->rank ||
        sc_peer_state(epoch, head) == SC_PEER_PRESENT)
        return;
    bool has_closed = sc_peer_state(epoch, head) == SC_PEER_LEFT;
    epoch->heir_until = has_closed ? sc_deadline_now() + GOODBYE_NS : 0;
    head = lowest_live(world);
    atomic_store_explicit(&epoch->hub, head, memory_order_relaxed);
    epoch->judge.asked_at = 0;
    epoch->judge.is_late = false;
    if (atomic_load_explicit(&epoch->judge.since, memory_order_relaxed) != 0)
        atomic_store_explicit(&epoch->judge.since, sc_deadline_now(), memory_order_release);
    sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d: rank %d takes the hub's place",
                 world->rank, head);
    if (head != world->rank) reach(world, head);
}

void sc_heir_doubt(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    int head = atomic_load_explicit(&epoch->hub, memory_order_relaxed);

    epoch->peers[head].is_silent = true;
    if (sc_peer_state(epoch, head) == SC_PEER_PRESENT)
        sc_verdict_lose(world, head, "gives no answer");
    else
        sc_heir_follow(world);
}

bool sc_heir_admit(struct sc_world *world, int fd, const uint8_t *in) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_wire_header header;

    if (!sc_is_settled(world) || epoch->one_host || !sc_wire_get_header(in, world->size, &header) ||
        header.kind != SC_WIRE_KIN || header.epoch != epoch->number ||
        header.source == world->rank ||
        !sc_auth_equal(in + SC_WIRE_HEADER_BYTES, epoch->welcome.cookie))
        return false;
    struct sc_peer *peer = &epoch->peers[header.source];
    if (peer->link.fd >= 0 || sc_peer_state(epoch, header.source) != SC_PEER_PRESENT) return false;
    sc_socket_tune(fd, 0);
    if (sc_link_open(&peer->link, fd, NULL) != SPARK_COMM_OK) return false;
    use_link(world, header.source);
    return true;
}
