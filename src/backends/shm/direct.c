/*
 * Zero copy: collectives over symmetric memory (symmetric.c), in which each rank reads what it needs
 * where its peers have it. Only reads cross: no rank ever stores into a peer's buffer, so one that
 * was lost in the middle of a call and wakes later can do no harm there.
 *
 *   1. Every rank tells all where its buffers are, or that they are not in symmetric memory; this
 *      also says that its data are ready. All see the same records, so all choose alike. The
 *      ranges of all ranks must lie in the same region, at any offset: a rank's own record then
 *      proves that it has that region mapped, which it may have freed.
 *   2. all_reduce goes in pieces: each rank reduces its share of the piece, reading all ranks in
 *      order, into its own buffer at that share, flags the step, and copies the other shares from
 *      their owners once those have flagged it. In place too: peers read of a rank's input their
 *      own shares alone, and share j is overwritten only after rank j has flagged it as reduced.
 *      Of its result they read its own share alone, which it writes once. A rank reduces a piece
 *      ahead, so that it seldom waits.
 *      all_gather and reduce_scatter read everything at once; in place a rank writes only where
 *      nobody reads.
 *   3. A last step without data: nobody returns while a peer may still read its buffer.
 *
 * Steps are numbered with those of chunks.c, and keep the rule of that channel (mailbox.h). After a
 * call that did not end well the last step of some rank is missing, so no rank succeeds that may have
 * read a buffer after its owner gave up.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"
#include "backends/shm/symmetric.h"

/* Between two looks at poison, where no flag is waited for. */
#define LOOK_BYTES ((size_t)1 << 20)

/* What each rank tells. */
struct record {
    uint32_t send_region, recv_region; /* 0: not symmetric */
    uint64_t send_offset, recv_offset;
};
_Static_assert(sizeof(struct record) <= SC_MAILBOX_TINY_BYTES, "one line per rank");

struct direct {
    struct sc_shm *shm;
    const spark_comm_call *call;
    sc_dtype_reduce_fn reduce; /* NULL: all_gather */
    size_t piece_bytes;
    uint32_t first; /* number of step 0 */
    const unsigned char *send[SC_MAILBOX_MAX_RANKS];
    unsigned char *recv[SC_MAILBOX_MAX_RANKS]; /* all_reduce; elsewhere this rank's alone */
};

/* Says that this rank has done its part of `step`. */
static void flag(const struct direct *direct, size_t step) {
    const struct sc_shm *shm = direct->shm;
    uint32_t number = direct->first + (uint32_t)step;
    struct sc_mailbox_chunk *chunk = &shm->mail.of[shm->rank]->chunk[number % SC_MAILBOX_CHUNKS];
    uint64_t word = sc_mailbox_word(number, direct->call->digest);
    /* Nobody waits for it; stored so that no word of a place misses a lap. */
    atomic_store_explicit(&chunk->ready, word, memory_order_relaxed);
    /* Release: what this rank wrote, and what it read of its peers' buffers, come before it.
     * Partner: the acquire load in sc_flags_look. */
    atomic_store_explicit(&chunk->reduced, word, memory_order_release);
    sc_state_ring_all(shm);
}

static spark_comm_status await(const struct direct *direct, size_t step) {
    uint32_t number = direct->first + (uint32_t)step;
    struct sc_flags_wait wait = {
        .shm = direct->shm,
        .offset = offsetof(struct sc_mailbox, chunk[0].reduced) +
                  number % SC_MAILBOX_CHUNKS * sizeof(struct sc_mailbox_chunk),
        .number = number,
        .digest = direct->call->digest,
        .end = direct->shm->size,
    };
    return sc_flags_await(&wait, direct->call, SC_FLAGS_GO_ON);
}

/* Reduces `bytes` at `from` in every rank's input into this rank's result at `to`. */
static void reduce_range(const struct direct *direct, size_t to, size_t from, size_t bytes) {
    const struct sc_shm *shm = direct->shm;
    const void *sources[SC_MAILBOX_MAX_RANKS];
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = direct->send[rank] + from;
    direct->reduce(direct->recv[shm->rank] + to, sources, (size_t)shm->size,
                   bytes >> sc_dtype_shift(direct->call->ops->dtype));
}

/* ---- all_reduce ---- */

static size_t piece_length(const struct direct *direct, size_t step) {
    size_t left = direct->call->ops->bytes - step * direct->piece_bytes;
    return left < direct->piece_bytes ? left : direct->piece_bytes;
}

static void reduce_share(const struct direct *direct, size_t step) {
    size_t at, base = step * direct->piece_bytes;
    size_t share =
        sc_paths_share(piece_length(direct, step), direct->shm->rank, direct->shm->size, &at);
    if (share > 0) reduce_range(direct, base + at, base + at, share);
    flag(direct, step);
}

static void copy_shares(const struct direct *direct, size_t step) {
    const struct sc_shm *shm = direct->shm;
    size_t at, base = step * direct->piece_bytes, length = piece_length(direct, step);
    for (int i = 1; i < shm->size; i++) {
        int rank = (shm->rank + i) % shm->size; /* not all at one owner */
        size_t share = sc_paths_share(length, rank, shm->size, &at);
        if (share > 0)
            memcpy(direct->recv[shm->rank] + base + at, direct->recv[rank] + base + at, share);
    }
}

static spark_comm_status all_reduce(struct direct *direct) {
    size_t bytes = direct->call->ops->bytes;
    direct->piece_bytes = direct->shm->paths.direct_bytes;
    size_t steps = (bytes + direct->piece_bytes - 1) / direct->piece_bytes;
    spark_comm_status st = SPARK_COMM_OK;
    direct->shm->mail.next_chunk += (uint32_t)steps + 1;
    reduce_share(direct, 0);
    for (size_t step = 0; step < steps && st == SPARK_COMM_OK; step++) {
        if (step + 1 < steps) reduce_share(direct, step + 1);
        st = await(direct, step);
        if (st == SPARK_COMM_OK) copy_shares(direct, step);
    }
    if (st != SPARK_COMM_OK) return st;
    flag(direct, steps);
    return await(direct, steps);
}

/* ---- all_gather, reduce_scatter ---- */

static void gather_range(const struct direct *direct, size_t at, size_t bytes) {
    const struct sc_shm *shm = direct->shm;
    for (int i = 0; i < shm->size; i++) {
        int rank = (shm->rank + i) % shm->size;
        unsigned char *to = direct->recv[shm->rank] + (size_t)rank * direct->call->ops->bytes;
        if (to != direct->send[rank]) memcpy(to + at, direct->send[rank] + at, bytes);
    }
}

static spark_comm_status move(struct direct *direct) {
    const struct sc_shm *shm = direct->shm;
    const spark_comm_op *op = direct->call->ops;
    direct->shm->mail.next_chunk++;
    for (size_t at = 0; at < op->bytes; at += LOOK_BYTES) {
        size_t bytes = op->bytes - at < LOOK_BYTES ? op->bytes - at : LOOK_BYTES;
        if (direct->reduce == NULL)
            gather_range(direct, at, bytes);
        else
            reduce_range(direct, at, (size_t)shm->rank * op->bytes + at, bytes);
        /* Acquire: partner of the release store of whoever poisons. */
        if (atomic_load_explicit(shm->policy->poison, memory_order_acquire) != 0)
            return sc_flags_fail(shm, direct->call, op, SPARK_COMM_ABORTED, 0, SC_FLAGS_GO_ON);
    }
    flag(direct, 0);
    return await(direct, 0);
}

/* ---- The choice ---- */

bool sc_direct_run(struct sc_shm *shm, const spark_comm_call *call, sc_dtype_reduce_fn reduce,
                   spark_comm_status *st) {
    const spark_comm_op *op = call->ops;
    size_t bytes = op->bytes;
    if (op->kind == SPARK_COMM_OP_REDUCE_SCATTER) bytes *= (size_t)shm->size;
    struct sc_symmetric_place send = sc_symmetric_locate(shm, op->send, bytes), recv = send;
    if (op->kind == SPARK_COMM_OP_ALL_REDUCE) recv = sc_symmetric_locate(shm, op->recv, bytes);
    struct record all[SC_MAILBOX_MAX_RANKS];
    struct record own = {send.region, recv.region, send.offset, recv.offset};
    *st = sc_slots_gather(shm, call, &own, sizeof own, all);
    if (*st != SPARK_COMM_OK) return true;
    struct direct direct = {
        .shm = shm, .call = call, .reduce = reduce, .first = shm->mail.next_chunk};
    if (own.send_region == 0 || own.recv_region == 0) return false;
    for (int rank = 0; rank < shm->size; rank++) {
        if (all[rank].send_region != own.send_region || all[rank].recv_region != own.recv_region)
            return false;
        direct.send[rank] = send.parts + (size_t)rank * send.part_bytes + all[rank].send_offset;
        direct.recv[rank] = recv.parts + (size_t)rank * recv.part_bytes + all[rank].recv_offset;
    }
    direct.recv[shm->rank] = sc_state_pointer(op->recv);
    *st = op->kind == SPARK_COMM_OP_ALL_REDUCE ? all_reduce(&direct) : move(&direct);
    return true;
}
