/*
 * Pipelined exchanges of any size. A call is cut into steps; a rank has four chunks to write steps
 * into. Each rank stores step k + 1 before it takes step k, so that its peers have work while it
 * reads. mailbox.h says why four chunks suffice without acknowledgements; that rests on two rules,
 * kept over the borders of calls: every rank stores every step, and stores step s only after it has
 * taken step s - 2.
 *
 *   one-shot        a step is a piece of the buffer; taking it means to reduce it from all ranks
 *   two-shot        the same piece, divided into a share per rank: each rank reduces its share,
 *                   writes the result over that share in its own chunk (which nobody reads before),
 *                   flags `reduced`, and copies the other shares from their ranks' chunks
 *   all_gather      a step is a piece of each rank's block; taking it means to copy the others'
 *   reduce_scatter  a chunk holds a piece of each rank's block; a rank reduces its own from all
 *
 * Reductions take whole elements: pieces and shares are multiples of 64 bytes but for the last.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"

struct pipeline {
    struct sc_shm *shm;
    const spark_comm_call *call;
    sc_dtype_reduce_fn reduce;
    enum sc_path path;
    const unsigned char *send;
    unsigned char *recv;
    size_t bytes; /* of one block */
    size_t step_bytes; /* of a block that one step carries */
    uint32_t first; /* number of step 0 */
};

static unsigned char *chunk_of(const struct pipeline *line, int rank, size_t step) {
    uint32_t place = (line->first + (uint32_t)step) % SC_MAILBOX_CHUNKS;
    return line->shm->mail.of[rank]->chunk_data[place];
}

static size_t step_length(const struct pipeline *line, size_t step) {
    size_t left = line->bytes - step * line->step_bytes;
    return left < line->step_bytes ? left : line->step_bytes;
}

static void reduce_piece(const struct pipeline *line, void *to, const void *const *sources,
                         size_t bytes) {
    line->reduce(to, sources, (size_t)line->shm->size,
                 bytes >> sc_dtype_shift(line->call->ops->dtype));
}

/* Stores a flag of this rank's for `step`; `offset` is that of the flag in a mailbox's chunk 0. */
static void store_flag(const struct pipeline *line, size_t step, size_t offset) {
    const struct sc_shm *shm = line->shm;
    uint32_t number = line->first + (uint32_t)step;
    unsigned char *box = (unsigned char *)shm->mail.of[shm->rank];
    offset += number % SC_MAILBOX_CHUNKS * sizeof(struct sc_mailbox_chunk);
    /* Release: the data before it, and this rank's reads of earlier steps, come before it. Partner:
     * the acquire load in sc_flags_look. */
    atomic_store_explicit((_Atomic uint64_t *)(box + offset),
                          sc_mailbox_word(number, line->call->digest), memory_order_release);
}

static spark_comm_status await_flags(const struct pipeline *line, size_t step, size_t offset) {
    uint32_t number = line->first + (uint32_t)step;
    struct sc_flags_wait wait = {
        .shm = line->shm,
        .offset = offset + number % SC_MAILBOX_CHUNKS * sizeof(struct sc_mailbox_chunk),
        .number = number,
        .digest = line->call->digest,
        .end = line->shm->size,
    };
    bool entering = step == 0 && offset == offsetof(struct sc_mailbox, chunk[0].ready);
    return sc_flags_await(&wait, line->call, entering ? SC_FLAGS_ENTER : SC_FLAGS_GO_ON);
}

static void publish(const struct pipeline *line, size_t step) {
    const struct sc_shm *shm = line->shm;
    unsigned char *chunk = chunk_of(line, shm->rank, step);
    size_t at = step * line->step_bytes, length = step_length(line, step);
    if (line->call->ops->kind == SPARK_COMM_OP_REDUCE_SCATTER) {
        for (int rank = 0; rank < shm->size; rank++)
            if (rank != shm->rank)
                memcpy(chunk + (size_t)rank * line->step_bytes,
                       line->send + (size_t)rank * line->bytes + at, length);
    } else {
        memcpy(chunk, line->send + at, length);
    }
    store_flag(line, step, offsetof(struct sc_mailbox, chunk[0].ready));
    if (step == 0) sc_state_entered(line->call);
    sc_state_ring_all(shm);
}

static void take_one_shot(const struct pipeline *line, size_t step) {
    const struct sc_shm *shm = line->shm;
    const void *sources[SC_MAILBOX_MAX_RANKS];
    size_t at = step * line->step_bytes;
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = rank == shm->rank ? line->send + at : chunk_of(line, rank, step);
    reduce_piece(line, line->recv + at, sources, step_length(line, step));
}

static void take_scatter(const struct pipeline *line, size_t step) {
    const struct sc_shm *shm = line->shm;
    const void *sources[SC_MAILBOX_MAX_RANKS];
    size_t at = step * line->step_bytes, own = (size_t)shm->rank;
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = rank == shm->rank ? line->send + own * line->bytes + at
                                          : chunk_of(line, rank, step) + own * line->step_bytes;
    reduce_piece(line, line->recv + at, sources, step_length(line, step));
}

static void take_gather(const struct pipeline *line, size_t step) {
    const struct sc_shm *shm = line->shm;
    size_t at = step * line->step_bytes, length = step_length(line, step);
    for (int rank = 0; rank < shm->size; rank++) {
        unsigned char *to = line->recv + (size_t)rank * line->bytes + at;
        if (rank != shm->rank)
            memcpy(to, chunk_of(line, rank, step), length);
        else if (to != line->send + at)
            memcpy(to, line->send + at, length);
    }
}

static spark_comm_status take_two_shot(const struct pipeline *line, size_t step) {
    const struct sc_shm *shm = line->shm;
    const void *sources[SC_MAILBOX_MAX_RANKS];
    size_t base = step * line->step_bytes, length = step_length(line, step), at;
    size_t share = sc_paths_share(length, shm->rank, shm->size, &at);
    unsigned char *own = chunk_of(line, shm->rank, step);
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = chunk_of(line, rank, step) + at;
    if (share > 0) {
        reduce_piece(line, own + at, sources, share);
        memcpy(line->recv + base + at, own + at, share);
    }
    store_flag(line, step, offsetof(struct sc_mailbox, chunk[0].reduced));
    sc_state_ring_all(shm);
    spark_comm_status st = await_flags(line, step, offsetof(struct sc_mailbox, chunk[0].reduced));
    if (st != SPARK_COMM_OK) return st;
    for (int rank = 0; rank < shm->size; rank++) {
        share = sc_paths_share(length, rank, shm->size, &at);
        if (rank != shm->rank && share > 0)
            memcpy(line->recv + base + at, chunk_of(line, rank, step) + at, share);
    }
    return SPARK_COMM_OK;
}

static spark_comm_status take(const struct pipeline *line, size_t step) {
    spark_comm_status st = await_flags(line, step, offsetof(struct sc_mailbox, chunk[0].ready));
    if (st != SPARK_COMM_OK) return st;
    if (line->path == SC_PATH_TWO_SHOT) return take_two_shot(line, step);
    /* Nobody waits for it; stored so that no word of a place misses a lap. */
    store_flag(line, step, offsetof(struct sc_mailbox, chunk[0].reduced));
    if (line->path == SC_PATH_ONE_SHOT)
        take_one_shot(line, step);
    else if (line->reduce == NULL)
        take_gather(line, step);
    else
        take_scatter(line, step);
    return st;
}

static spark_comm_status run(struct sc_shm *shm, const spark_comm_call *call,
                             sc_dtype_reduce_fn reduce, enum sc_path path) {
    const spark_comm_op *op = call->ops;
    struct pipeline line = {
        .shm = shm,
        .call = call,
        .reduce = reduce,
        .path = path,
        .send = sc_state_pointer(op->send),
        .recv = sc_state_pointer(op->recv),
        .bytes = op->bytes,
        .step_bytes = sc_paths_step_bytes(op->kind, shm->size),
        .first = shm->mail.next_chunk,
    };
    size_t steps = (line.bytes + line.step_bytes - 1) / line.step_bytes;
    spark_comm_status st = SPARK_COMM_OK;
    shm->mail.next_chunk += (uint32_t)steps;
    if (steps > 0) publish(&line, 0);
    for (size_t step = 0; step < steps && st == SPARK_COMM_OK; step++) {
        if (step + 1 < steps) publish(&line, step + 1);
        st = take(&line, step);
    }
    return st;
}

spark_comm_status sc_chunks_all_reduce(struct sc_shm *shm, const spark_comm_call *call,
                                       sc_dtype_reduce_fn reduce, enum sc_path path) {
    return run(shm, call, reduce, path);
}

spark_comm_status sc_chunks_reduce_scatter(struct sc_shm *shm, const spark_comm_call *call,
                                           sc_dtype_reduce_fn reduce) {
    return run(shm, call, reduce, SC_PATH_CHUNKS);
}

spark_comm_status sc_chunks_all_gather(struct sc_shm *shm, const spark_comm_call *call) {
    return run(shm, call, NULL, SC_PATH_CHUNKS);
}
