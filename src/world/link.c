/*
 * A connection that carries records. Anybody writes, under the link's lock and never blocking: what
 * the socket does not take is queued, and the monitor sends it on when poll says so. Only the
 * monitor reads. Room for a whole record is made before its first byte is written, so that memory
 * running out never leaves half a record on the wire.
 *
 * A failing write is not judged here: the reading side meets the same end, and it alone knows
 * whether a goodbye came before.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "world/world_state.h"

#define QUEUE_LIMIT (1024u * 1024u) /* callers wait beyond it */
#define FIRST_CAPACITY 4096u
#define READS_AT_ONCE 16 /* then the other links have their turn */

spark_comm_status sc_link_reserve(struct sc_link *link, struct sc_error *error) {
    if (link->in == NULL) link->in = sc_alloc(FIRST_CAPACITY);
    if (link->out == NULL) link->out = sc_alloc(FIRST_CAPACITY);
    if (link->in != NULL && link->out != NULL) return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for a connection");
}

spark_comm_status sc_link_open(struct sc_link *link, int fd, struct sc_error *error) {
    spark_comm_status st = sc_link_reserve(link, error);
    if (st != SPARK_COMM_OK) return st;
    link->in_capacity = FIRST_CAPACITY;
    link->in_used = 0;
    /* Others may already try to send: the link to a rank that takes the hub's place opens late. */
    sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    link->out_capacity = FIRST_CAPACITY;
    link->out_start = link->out_used = 0;
    link->fd = fd;
    sc_lock_give(&link->lock);
    return SPARK_COMM_OK;
}

void sc_link_close(struct sc_link *link) {
    sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    int fd = link->fd;
    link->fd = -1;
    sc_free(link->out);
    link->out = NULL;
    link->out_start = link->out_used = link->out_capacity = 0;
    sc_lock_give(&link->lock);
    atomic_store_explicit(&link->waits_out, 0, memory_order_relaxed);
    if (fd >= 0) {
        /* The peer shall see an end, not a reset, even where something of its is still unread. */
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    sc_free(link->in);
    link->in = NULL;
    link->in_used = link->in_capacity = 0;
    sc_link_shake(link);
}

bool sc_link_is_open(struct sc_link *link) {
    sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    bool is_open = link->fd >= 0;
    sc_lock_give(&link->lock);
    return is_open;
}

void sc_link_shake(struct sc_link *link) {
    atomic_fetch_add_explicit(&link->drained, 1, memory_order_release);
    sc_wait_futex_wake(&link->drained, INT32_MAX);
}

/* ---- Writing; the lock is held ---- */

/* Room for `bytes` more at the end of the queue. */
static bool make_room(struct sc_link *link, size_t bytes) {
    size_t need = link->out_used + bytes;
    size_t capacity = link->out_capacity;

    if (link->out_start + need <= capacity) return true;
    if (need <= capacity) {
        memmove(link->out, link->out + link->out_start, link->out_used);
        link->out_start = 0;
        return true;
    }
    while (capacity < need)
        capacity *= 2;
    uint8_t *grown = sc_alloc(capacity);
    if (grown == NULL) return false;
    memcpy(grown, link->out + link->out_start, link->out_used);
    sc_free(link->out);
    link->out = grown;
    link->out_start = 0;
    link->out_capacity = capacity;
    return true;
}

static void append(struct sc_link *link, const void *data, size_t bytes) {
    if (bytes == 0) return;
    memcpy(link->out + link->out_start + link->out_used, data, bytes);
    link->out_used += bytes;
}

/* Bytes that the socket took at once; all of them when the connection is broken. */
static size_t write_now(int fd, const uint8_t *head, const void *payload, size_t bytes) {
    struct iovec parts[2] = {{(void *)(uintptr_t)head, SC_WIRE_HEADER_BYTES},
                             {(void *)(uintptr_t)payload, bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = bytes > 0 ? 2 : 1};

    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) return (size_t)sent;
        if (errno == EINTR) continue;
        return errno == EAGAIN ? 0 : SC_WIRE_HEADER_BYTES + bytes;
    }
}

static spark_comm_status write_or_queue(struct sc_link *link, const struct sc_wire_header *header,
                                        const void *payload) {
    uint8_t head[SC_WIRE_HEADER_BYTES];
    size_t bytes = header->bytes;
    size_t sent = 0;

    if (!make_room(link, sizeof head + bytes)) return SPARK_COMM_NO_MEMORY;
    sc_wire_put_header(head, header);
    if (link->out_used == 0) sent = write_now(link->fd, head, payload, bytes);
    if (sent < sizeof head) {
        append(link, head + sent, sizeof head - sent);
        append(link, payload, bytes);
    } else if (sent < sizeof head + bytes) {
        append(link, (const uint8_t *)payload + (sent - sizeof head), bytes - (sent - sizeof head));
    }
    return SPARK_COMM_OK;
}

/* Gives the lock back while it waits. */
static spark_comm_status wait_for_queue(struct sc_world *world, struct sc_link *link,
                                        int64_t deadline) {
    spark_comm_status st = SPARK_COMM_OK;

    while (st == SPARK_COMM_OK && link->fd >= 0 && link->out_used > QUEUE_LIMIT) {
        /* Acquire: partner of sc_link_shake. */
        uint32_t seen = atomic_load_explicit(&link->drained, memory_order_acquire);
        sc_lock_give(&link->lock);
        if (atomic_load_explicit(&world->poison, memory_order_acquire) != 0)
            st = SPARK_COMM_ABORTED;
        else if (sc_deadline_passed(deadline))
            st = SPARK_COMM_OP_TIMEOUT;
        else
            sc_wait_futex_sleep(&link->drained, seen, deadline);
        sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    }
    return st;
}

spark_comm_status sc_link_send(struct sc_world *world, struct sc_link *link,
                               const struct sc_wire_header *header, const void *payload,
                               int64_t deadline) {
    spark_comm_status st = SPARK_COMM_OK;
    bool queued = false;

    sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    if (deadline != SC_LINK_NOW) st = wait_for_queue(world, link, deadline);
    if (st == SPARK_COMM_OK && link->fd < 0) st = SPARK_COMM_PEER_LOST;
    if (st == SPARK_COMM_OK) st = write_or_queue(link, header, payload);
    /* Relaxed: the monitor learns it after the wake-up, or does not sleep. */
    if (link->out_used > 0)
        queued = atomic_exchange_explicit(&link->waits_out, 1, memory_order_relaxed) == 0;
    sc_lock_give(&link->lock);
    if (queued) sc_monitor_poke(world);
    return st;
}

void sc_link_flush(struct sc_link *link) {
    sc_lock_take(&link->lock, SC_DEADLINE_NEVER, NULL);
    while (link->fd >= 0 && link->out_used > 0) {
        ssize_t sent = send(link->fd, link->out + link->out_start, link->out_used,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) sent = (ssize_t)link->out_used; /* broken: see the top of the file */
        link->out_start += (size_t)sent;
        link->out_used -= (size_t)sent;
    }
    if (link->out_used == 0) {
        link->out_start = 0;
        atomic_store_explicit(&link->waits_out, 0, memory_order_relaxed);
    }
    sc_lock_give(&link->lock);
    sc_link_shake(link);
}

/* ---- Reading; monitor ---- */

static bool grow_input(struct sc_link *link, size_t bytes) {
    if (bytes <= link->in_capacity) return true;
    uint8_t *grown = sc_alloc(bytes);
    if (grown == NULL) return false;
    memcpy(grown, link->in, link->in_used);
    sc_free(link->in);
    link->in = grown;
    link->in_capacity = bytes;
    return true;
}

/* Hands on every whole record in the buffer. */
static spark_comm_status take_records(struct sc_world *world, int rank) {
    struct sc_link *link = &world->epoch->peers[rank].link;
    spark_comm_status st = SPARK_COMM_OK;
    size_t at = 0, whole = SC_WIRE_HEADER_BYTES;

    while (link->in_used - at >= SC_WIRE_HEADER_BYTES) {
        struct sc_wire_header header;
        if (!sc_wire_get_header(link->in + at, world->size, &header)) {
            st = SPARK_COMM_BACKEND;
            break;
        }
        whole = SC_WIRE_HEADER_BYTES + header.bytes;
        if (link->in_used - at < whole) break;
        sc_monitor_take(world, rank, &header, link->in + at + SC_WIRE_HEADER_BYTES);
        at += whole;
    }
    memmove(link->in, link->in + at, link->in_used - at);
    link->in_used -= at;
    if (st == SPARK_COMM_OK && !grow_input(link, whole)) st = SPARK_COMM_NO_MEMORY;
    return st;
}

spark_comm_status sc_link_read(struct sc_world *world, int rank) {
    struct sc_peer *peer = &world->epoch->peers[rank];
    struct sc_link *link = &peer->link;
    spark_comm_status st = SPARK_COMM_OK;

    for (int i = 0; i < READS_AT_ONCE && st == SPARK_COMM_OK; i++) {
        size_t room = link->in_capacity - link->in_used;
        ssize_t got = recv(link->fd, link->in + link->in_used, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) return SPARK_COMM_PEER_LOST;
        link->in_used += (size_t)got;
        atomic_store_explicit(&peer->heard, sc_deadline_now(), memory_order_relaxed);
        st = take_records(world, rank);
        if ((size_t)got < room) break;
    }
    return st;
}
