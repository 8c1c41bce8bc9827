/*
 * Messages between two ranks: per ordered pair a ring of four places, written by the sender in its
 * own mailbox. A message is cut into fragments, each with a header {flag, size of the whole
 * message}; one of up to 48 bytes stands in the header's line. The reader copies a fragment out,
 * then says so in its own mailbox. Size and number of the fragments follow from the size of the
 * message, which both sides must state alike: a header with another size is a MISMATCH. A message
 * that nobody posted a receive for stays in the ring, where the next receive finds it.
 *
 * All posts of a group progress together: every pass moves, for each peer and direction, what can
 * be moved of the messages posted, in the order of posting, and blocks for none. Only when a pass
 * has moved nothing does the rank wait, for any of its channels. So no order of posts can block
 * ranks that have posted what fits together.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"
#include "base/deadline.h"

/* One direction with one peer, while a group runs. */
struct channel {
    size_t post; /* index of the operation in progress */
    size_t offset; /* bytes of it that have moved */
};

struct group {
    struct sc_shm *shm;
    const spark_comm_call *call;
    uint64_t sending; /* peers with operations that are not done */
    uint64_t receiving;
    struct channel to[SC_MAILBOX_MAX_RANKS];
    struct channel from[SC_MAILBOX_MAX_RANKS];
};

/* The first operation from `post` on of this kind and peer that moves anything; op_count: none. */
static size_t find_post(const spark_comm_call *call, size_t post, int kind, int peer) {
    for (; post < call->op_count; post++) {
        const spark_comm_op *op = &call->ops[post];
        if (op->kind == kind && op->peer == peer && op->bytes > 0) break;
    }
    return post;
}

/* Place `place` of the channel from `sender` to `reader`. */
static unsigned char *place_data(const struct sc_shm *shm, int sender, int reader, uint32_t place) {
    size_t index = (size_t)(reader < sender ? reader : reader - 1);
    return shm->mail.of[sender]->pair_data +
           (index * SC_MAILBOX_PAIR_PLACES + place) * shm->mail.pair_bytes;
}

/* Bytes of the fragment of `op` that begins at `offset`, and whether it stands in the header. */
static size_t fragment_length(const struct sc_shm *shm, const spark_comm_op *op, size_t offset) {
    size_t piece = sc_paths_fragment_bytes(op->bytes, shm->mail.pair_bytes);
    return op->bytes - offset < piece ? op->bytes - offset : piece;
}

static bool has_room(struct sc_shm *shm, int peer) {
    struct sc_mailbox_pair *pair = &shm->mail.to[peer];
    uint32_t target = pair->next - SC_MAILBOX_PAIR_PLACES;
    if (sc_mailbox_reached(pair->taken, target)) return true;
    /* Acquire: partner of the release store in receive_fragment; the reader's copying is over. */
    pair->taken = atomic_load_explicit(&shm->mail.of[peer]->pair_taken[shm->rank].value,
                                       memory_order_acquire);
    return sc_mailbox_reached(pair->taken, target);
}

static const struct sc_mailbox_fragment *next_fragment(const struct sc_shm *shm, int peer) {
    uint32_t place = shm->mail.from[peer].next % SC_MAILBOX_PAIR_PLACES;
    return &shm->mail.of[peer]->pair[shm->rank][place];
}

static bool has_fragment(const struct sc_shm *shm, int peer) {
    /* Acquire: partner of the release store in send_fragment; header and data are valid. */
    uint64_t word = atomic_load_explicit(&next_fragment(shm, peer)->flag, memory_order_acquire);
    return (uint32_t)word == shm->mail.from[peer].next;
}

static void send_fragment(struct sc_shm *shm, const spark_comm_call *call, const spark_comm_op *op,
                          size_t *offset) {
    struct sc_mailbox_pair *pair = &shm->mail.to[op->peer];
    uint32_t place = pair->next % SC_MAILBOX_PAIR_PLACES;
    struct sc_mailbox_fragment *header = &shm->mail.of[shm->rank]->pair[op->peer][place];
    size_t length = fragment_length(shm, op, *offset);
    const unsigned char *from = (const unsigned char *)sc_state_pointer(op->send) + *offset;
    if (*offset == 0) pair->messages++;
    header->message_bytes = op->bytes;
    if (op->bytes <= SC_MAILBOX_PAIR_SMALL)
        memcpy(header->small, from, length);
    else
        memcpy(place_data(shm, shm->rank, op->peer, place), from, length);
    /* Release: header and data come before it. Partner: the acquire load in has_fragment. */
    atomic_store_explicit(&header->flag, sc_mailbox_word(pair->next++, (uint32_t)pair->messages),
                          memory_order_release);
    sc_state_entered(call);
    sc_wait_ring(shm->policy, shm->mail.doorbells[op->peer]);
    *offset += length;
}

static spark_comm_status receive_fragment(struct sc_shm *shm, const spark_comm_op *op,
                                          size_t *offset) {
    struct sc_mailbox_pair *pair = &shm->mail.from[op->peer];
    const struct sc_mailbox_fragment *header = next_fragment(shm, op->peer);
    const int32_t *members = shm->host->members;
    size_t length = fragment_length(shm, op, *offset);
    unsigned char *to = (unsigned char *)sc_state_pointer(op->recv) + *offset;
    if (*offset == 0) pair->messages++;
    if (header->message_bytes != op->bytes)
        return sc_host_fail(
            shm->host, SPARK_COMM_MISMATCH, members[op->peer], 0,
            "message %llu from rank %d to rank %d: rank %d sends %llu bytes, rank %d "
            "receives %zu",
            (unsigned long long)pair->messages, members[op->peer], members[shm->rank],
            members[op->peer], (unsigned long long)header->message_bytes, members[shm->rank],
            op->bytes);
    if (op->bytes <= SC_MAILBOX_PAIR_SMALL)
        memcpy(to, header->small, length);
    else
        memcpy(to, place_data(shm, op->peer, shm->rank, pair->next % SC_MAILBOX_PAIR_PLACES),
               length);
    /* Release: the copying comes before it. Partner: the acquire load in has_room. */
    atomic_store_explicit(&shm->mail.of[shm->rank]->pair_taken[op->peer].value, pair->next++,
                          memory_order_release);
    sc_wait_ring(shm->policy, shm->mail.doorbells[op->peer]);
    *offset += length;
    return SPARK_COMM_OK;
}

/* Moves all that can be moved to `peer`. Returns whether anything did. */
static bool send_some(struct group *group, int peer) {
    const spark_comm_call *call = group->call;
    struct channel *channel = &group->to[peer];
    bool moved = false;
    while (channel->post < call->op_count && has_room(group->shm, peer)) {
        const spark_comm_op *op = &call->ops[channel->post];
        send_fragment(group->shm, call, op, &channel->offset);
        moved = true;
        if (channel->offset < op->bytes) continue;
        channel->post = find_post(call, channel->post + 1, SPARK_COMM_OP_SEND_TO, peer);
        channel->offset = 0;
    }
    if (channel->post == call->op_count) group->sending &= ~(UINT64_C(1) << peer);
    return moved;
}

static spark_comm_status receive_some(struct group *group, int peer, bool *moved) {
    const spark_comm_call *call = group->call;
    struct channel *channel = &group->from[peer];
    while (channel->post < call->op_count && has_fragment(group->shm, peer)) {
        const spark_comm_op *op = &call->ops[channel->post];
        spark_comm_status st = receive_fragment(group->shm, op, &channel->offset);
        if (st != SPARK_COMM_OK) return st;
        *moved = true;
        if (channel->offset < op->bytes) continue;
        channel->post = find_post(call, channel->post + 1, SPARK_COMM_OP_RECV_FROM, peer);
        channel->offset = 0;
    }
    if (channel->post == call->op_count) group->receiving &= ~(UINT64_C(1) << peer);
    return SPARK_COMM_OK;
}

static bool group_ready(void *arg) {
    const struct group *group = arg;
    for (uint64_t set = group->sending; set != 0; set &= set - 1)
        if (has_room(group->shm, __builtin_ctzll(set))) return true;
    for (uint64_t set = group->receiving; set != 0; set &= set - 1)
        if (has_fragment(group->shm, __builtin_ctzll(set))) return true;
    return false;
}

/* Names the peers of the receives that wait; if there are none, of the sends. */
static spark_comm_status group_failed(const struct group *group, spark_comm_status st) {
    const spark_comm_call *call = group->call;
    bool receives = group->receiving != 0;
    uint64_t missing = receives ? group->receiving : group->sending;
    int peer = __builtin_ctzll(missing);
    size_t post = receives ? group->from[peer].post : group->to[peer].post;
    return sc_flags_fail(group->shm, call, &call->ops[post], st, missing, SC_FLAGS_GO_ON);
}

static spark_comm_status await_move(struct group *group) {
    struct sc_shm *shm = group->shm;
    /* For the ranks that ask who waits for whom. Relaxed: the wait's stamp is released after it. */
    atomic_store_explicit(&sc_world_own_line(sc_host_world(shm->host), SPARK_COMM_LANE_DATA)->peers,
                          group->sending | group->receiving, memory_order_relaxed);
    return sc_wait_until(shm->policy, group_ready, group, group->call->deadline_ns);
}

static spark_comm_status check_limits(const struct group *group) {
    if ((group->sending | group->receiving) == 0) return SPARK_COMM_OK;
    /* Acquire: partner of the release of whoever poisons. */
    if (atomic_load_explicit(group->shm->policy->poison, memory_order_acquire) != 0)
        return SPARK_COMM_ABORTED;
    return sc_deadline_passed(group->call->deadline_ns) ? SPARK_COMM_OP_TIMEOUT : SPARK_COMM_OK;
}

/* Sends to oneself meet the receives from oneself in the order of posting: the caller has seen to it
 * that they pair up. */
static void to_oneself(struct sc_shm *shm, const spark_comm_call *call) {
    size_t to = find_post(call, 0, SPARK_COMM_OP_SEND_TO, shm->rank);
    size_t from = find_post(call, 0, SPARK_COMM_OP_RECV_FROM, shm->rank);
    while (to < call->op_count && from < call->op_count) {
        const spark_comm_op *out = &call->ops[to], *in = &call->ops[from];
        memmove(sc_state_pointer(in->recv), sc_state_pointer(out->send), in->bytes);
        to = find_post(call, to + 1, SPARK_COMM_OP_SEND_TO, shm->rank);
        from = find_post(call, from + 1, SPARK_COMM_OP_RECV_FROM, shm->rank);
    }
}

/* Finds the first operation of each channel. Channels without any are left as they are. */
static void begin(struct group *group) {
    const spark_comm_call *call = group->call;
    group->sending = group->receiving = 0;
    for (size_t post = 0; post < call->op_count; post++) {
        const spark_comm_op *op = &call->ops[post];
        bool sends = op->kind == SPARK_COMM_OP_SEND_TO;
        uint64_t *set = sends ? &group->sending : &group->receiving;
        uint64_t bit = UINT64_C(1) << op->peer;
        if (op->bytes == 0 || op->peer == group->shm->rank || (*set & bit) != 0) continue;
        *set |= bit;
        (sends ? group->to : group->from)[op->peer] = (struct channel){post, 0};
    }
}

/* A message of one fragment, alone and to another rank, that goes at once or nearly so. False: nothing
 * has moved, and the general way goes on. */
static bool move_one(struct sc_shm *shm, const spark_comm_call *call, spark_comm_status *st) {
    const spark_comm_op *op = call->ops;
    size_t offset = 0;
    if (op->peer == shm->rank || fragment_length(shm, op, 0) != op->bytes) return false;
    if (op->kind == SPARK_COMM_OP_SEND_TO) {
        if (!has_room(shm, op->peer)) return false;
        send_fragment(shm, call, op, &offset);
        return true;
    }
    if (!has_fragment(shm, op->peer)) {
        sc_state_entered(call);
        for (uint32_t look = 0; !has_fragment(shm, op->peer); look++) {
            if (look >= shm->brisk_looks) return false;
            sc_wait_pause();
        }
    }
    *st = receive_fragment(shm, op, &offset);
    return true;
}

spark_comm_status sc_pairs_point_to_point(struct sc_shm *shm, const spark_comm_call *call) {
    struct group group;
    spark_comm_status st = SPARK_COMM_OK;
    if (call->op_count == 1 && call->ops->bytes > 0 && move_one(shm, call, &st)) return st;
    sc_state_entered(call);
    group.shm = shm;
    group.call = call;
    to_oneself(shm, call);
    begin(&group);
    while (group.sending != 0 || group.receiving != 0) {
        bool moved = false;
        for (uint64_t set = group.sending; set != 0; set &= set - 1)
            moved |= send_some(&group, __builtin_ctzll(set));
        for (uint64_t set = group.receiving; set != 0 && st == SPARK_COMM_OK; set &= set - 1)
            st = receive_some(&group, __builtin_ctzll(set), &moved);
        if (st != SPARK_COMM_OK) return st;
        /* A peer that keeps messages coming is no reason to pass the deadline, or poison. */
        if (moved) st = check_limits(&group);
        if (!moved) st = await_move(&group);
        if (st != SPARK_COMM_OK) return group_failed(&group, st);
    }
    return st;
}
