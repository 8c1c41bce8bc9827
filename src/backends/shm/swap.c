/*
 * All-reduce between two ranks through swapped slots: loading a line that the peer has modified
 * brings it here, so the next step is written over the one that was just read, where the lines are,
 * instead of into a place of its own. (Technique and figures of the prototypes: docs/results/shm.md.)
 *
 * The channel is two slots, one in each mailbox, and belongs to this path alone. A rank begins with
 * the slot of its own mailbox; in each step it stores its data and a flag into the slot that it
 * holds, waits for the peer's flag of the same number in the other slot, reads that, and holds that
 * one from then on. So both ranks write every slot in turn. Why nothing is overwritten unread: a rank
 * stores step s + 1 only into the slot that it has itself read step s from. Why no old flag can
 * match: the slot that a rank waits at has the flag s - 1, which it stored there itself, until the
 * peer, which read that, stores s. No acknowledgement, and one line handed over per line of data.
 *
 * Reading a step and writing the next one go together in blocks that fit the first-level cache.
 *
 * What goes by it: one-shot, the data of each rank, which both reduce; or two-shot, in turns the half
 * of the data that the peer reduces and the half of the result that this rank has reduced. A line
 * crosses as often either way, and two-shot has half of the arithmetic, but one step more.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"

/* Reading and writing alternate at this grain; 2 to 8 KiB are alike. */
#define BLOCK_BYTES ((size_t)4096)
#define FIRST_BYTES ((size_t)2048)

static struct sc_mailbox_swap *slot_of(const struct sc_shm *shm, int which) {
    return &shm->mail.of[which]->swap;
}

/* Announces the step that lies in slot `which`. */
static void announce(struct sc_shm *shm, const spark_comm_call *call, int which, bool first) {
    /* Release: the data, and this rank's reads of what lay there, come before it. Partner: the
     * acquire loads in flags.h. */
    atomic_store_explicit(&slot_of(shm, which)->flag,
                          sc_mailbox_word(shm->mail.next_swap, call->digest), memory_order_release);
    if (first) sc_state_entered(call);
    sc_wait_ring(shm->policy, shm->mail.doorbells[1 - shm->rank]);
}

/* Between the arithmetic of 16-bit types the processor sees too few lines ahead, and the first ones
 * come one by one: 2 KiB took 0.45 us without this and 0.32 with it. Later ones are no gain. */
static inline void ask_for_first(const unsigned char *theirs, size_t bytes, unsigned shift) {
    size_t end = bytes < FIRST_BYTES ? bytes : FIRST_BYTES;
    for (size_t at = 0; shift == 1 && at < end; at += 64)
        __builtin_prefetch(theirs + at, 0, 3);
}

static spark_comm_status await_step(const struct sc_shm *shm, const spark_comm_call *call,
                                    uint32_t number, int which, enum sc_flags_reason reason) {
    uint64_t word = sc_mailbox_word(number, call->digest);
    if (sc_flags_brisk(shm, &slot_of(shm, which)->flag, word)) return SPARK_COMM_OK;
    struct sc_flags_wait wait = {
        .shm = shm,
        .flag = &slot_of(shm, which)->flag,
        .number = number,
        .digest = call->digest,
        .next = 1 - shm->rank,
        .end = 2 - shm->rank,
    };
    return sc_flags_await_slow(&wait, call, reason);
}

/* Reduces `bytes` at `mine` with the peer's at `theirs` into `to` (copies the peer's where `reduce`
 * is NULL), and writes `next_bytes` of the step after it over them. */
static void take(const struct sc_shm *shm, sc_dtype_reduce_fn reduce, unsigned shift,
                 unsigned char *to, const unsigned char *mine, unsigned char *theirs, size_t bytes,
                 const unsigned char *next, size_t next_bytes) {
    size_t block = next_bytes == 0 ? bytes : BLOCK_BYTES;
    const void *sources[2];
    for (size_t at = 0; at < bytes; at += block) {
        size_t length = bytes - at < block ? bytes - at : block;
        sources[shm->rank] = mine + at;
        sources[1 - shm->rank] = theirs + at;
        if (reduce != NULL)
            reduce(to + at, sources, 2, length >> shift);
        else
            memcpy(to + at, theirs + at, length);
        if (at >= next_bytes) continue;
        memcpy(theirs + at, next + at, next_bytes - at < length ? next_bytes - at : length);
    }
}

static spark_comm_status one_shot(struct sc_shm *shm, const spark_comm_call *call, size_t step) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    unsigned char *recv = sc_state_pointer(op->recv);
    size_t length = op->bytes < step ? op->bytes : step;
    int held = shm->mail.swap_held;
    memcpy(slot_of(shm, held)->data, send, length);
    announce(shm, call, held, true);
    /* While the peer's data are on their way, and not before. */
    sc_dtype_reduce_fn reduce = sc_dtype_reducer_now(op->dtype, op->redop);
    unsigned shift = sc_dtype_shift(op->dtype);
    enum sc_flags_reason reason = SC_FLAGS_ENTER;
    for (size_t at = 0; at < op->bytes; at += step) {
        uint32_t number = shm->mail.next_swap++;
        size_t next_at = at + length;
        size_t next = op->bytes - next_at < step ? op->bytes - next_at : step;
        spark_comm_status st = await_step(shm, call, number, 1 - held, reason);
        if (st != SPARK_COMM_OK) return st;
        held = 1 - held;
        ask_for_first(slot_of(shm, held)->data, length, shift);
        take(shm, reduce, shift, recv + at, send + at, slot_of(shm, held)->data, length,
             send + next_at, next);
        if (next > 0) announce(shm, call, held, false);
        length = next;
        reason = SC_FLAGS_GO_ON;
    }
    shm->mail.swap_held = held;
    return SPARK_COMM_OK;
}

/* Share of `rank` in the chunk of two steps at `at`; *share is where it begins in the buffer. */
static size_t share_of(size_t bytes, size_t at, size_t step, int rank, size_t *share) {
    size_t left = bytes - at < 2 * step ? bytes - at : 2 * step;
    size_t length = sc_paths_share(left, rank, 2, share);
    *share += at;
    return length;
}

static spark_comm_status two_shot(struct sc_shm *shm, const spark_comm_call *call, size_t step) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    unsigned char *recv = sc_state_pointer(op->recv);
    int held = shm->mail.swap_held, peer = 1 - shm->rank;
    size_t own_at, peer_at, peer_bytes = share_of(op->bytes, 0, step, peer, &peer_at);
    memcpy(slot_of(shm, held)->data, send + peer_at, peer_bytes);
    announce(shm, call, held, true);
    sc_dtype_reduce_fn reduce = sc_dtype_reducer_now(op->dtype, op->redop);
    unsigned shift = sc_dtype_shift(op->dtype);
    enum sc_flags_reason reason = SC_FLAGS_ENTER;
    for (size_t at = 0; at < op->bytes; at += 2 * step) {
        /* The peer's part of this rank's share, which the result is written over. */
        spark_comm_status st = await_step(shm, call, shm->mail.next_swap++, 1 - held, reason);
        if (st != SPARK_COMM_OK) return st;
        held = 1 - held;
        size_t own_bytes = share_of(op->bytes, at, step, shm->rank, &own_at);
        ask_for_first(slot_of(shm, held)->data, own_bytes, shift);
        take(shm, reduce, shift, recv + own_at, send + own_at, slot_of(shm, held)->data, own_bytes,
             recv + own_at, own_bytes);
        announce(shm, call, held, false);
        /* The result of the peer's share, which the next chunk is written over. */
        reason = SC_FLAGS_GO_ON;
        st = await_step(shm, call, shm->mail.next_swap++, 1 - held, reason);
        if (st != SPARK_COMM_OK) return st;
        held = 1 - held;
        unsigned char *to = recv + peer_at;
        size_t bytes = peer_bytes, next = at + 2 * step;
        peer_bytes = next < op->bytes ? share_of(op->bytes, next, step, peer, &peer_at) : 0;
        take(shm, NULL, shift, to, to, slot_of(shm, held)->data, bytes, send + peer_at, peer_bytes);
        if (next < op->bytes) announce(shm, call, held, false);
    }
    shm->mail.swap_held = held;
    return SPARK_COMM_OK;
}

spark_comm_status sc_swap_all_reduce(struct sc_shm *shm, const spark_comm_call *call) {
    bool halves;
    size_t step = sc_paths_swap_bytes(call->ops->bytes, sc_dtype_shift(call->ops->dtype), &halves);
    return halves ? two_shot(shm, call, step) : one_shot(shm, call, step);
}
