/*
 * Exchanges of at most a slot: each rank writes its data and one flag, waits for the flags of all
 * others, and reads their slots. Data of up to 56 bytes stand in the line of the flag, so that one
 * line moves from each rank to each. No system call, no fence beyond the release store, no
 * acknowledgement: mailbox.h says why two slots suffice. That rests on every operation here being
 * an exchange in which every rank reads every other's flag.
 *
 * All ranks reduce the same sources in order of ranks, so all get the same bits.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"

/* Where `rank` has put what it wrote in an exchange. */
static const unsigned char *content(const struct sc_shm *shm, int rank, uint32_t number,
                                    size_t bytes) {
    const struct sc_mailbox_slot *slot = &shm->mail.of[rank]->slot[number % SC_MAILBOX_SLOTS];
    return bytes <= SC_MAILBOX_TINY_BYTES ? slot->tiny : slot->data;
}

/* Writes `bytes` and waits until all others have written theirs. */
static spark_comm_status exchange(struct sc_shm *shm, const spark_comm_call *call, const void *data,
                                  size_t bytes, uint32_t *number) {
    *number = shm->mail.next_slot++;
    uint32_t place = *number % SC_MAILBOX_SLOTS;
    struct sc_mailbox_slot *own = &shm->mail.of[shm->rank]->slot[place];
    if (bytes > 0) memcpy(bytes <= SC_MAILBOX_TINY_BYTES ? own->tiny : own->data, data, bytes);
    /* Release: the data above, and this rank's reads of the exchange before, come before it.
     * Partner: the acquire load in sc_flags_look. */
    atomic_store_explicit(&own->flag, sc_mailbox_word(*number, call->digest), memory_order_release);
    sc_state_ring_all(shm);
    struct sc_flags_wait wait = {
        .shm = shm,
        .offset = offsetof(struct sc_mailbox, slot) + place * sizeof *own,
        .number = *number,
        .digest = call->digest,
        .end = shm->size,
    };
    return sc_flags_await(&wait, call, SC_FLAGS_ENTER);
}

/* Reduces what all ranks have at `offset` of their data; this rank's own is at `mine`. */
static void reduce_all(const struct sc_shm *shm, const spark_comm_op *op, sc_dtype_reduce_fn reduce,
                       uint32_t number, size_t written, size_t offset, const unsigned char *mine) {
    const void *sources[SC_MAILBOX_MAX_RANKS];
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = rank == shm->rank ? mine : content(shm, rank, number, written) + offset;
    reduce(sc_state_pointer(op->recv), sources, (size_t)shm->size,
           op->bytes / sc_dtype_size(op->dtype));
}

spark_comm_status sc_slots_all_reduce(struct sc_shm *shm, const spark_comm_call *call,
                                      sc_dtype_reduce_fn reduce) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    uint32_t number;
    spark_comm_status st = exchange(shm, call, send, op->bytes, &number);
    if (st == SPARK_COMM_OK) reduce_all(shm, op, reduce, number, op->bytes, 0, send);
    return st;
}

spark_comm_status sc_slots_reduce_scatter(struct sc_shm *shm, const spark_comm_call *call,
                                          sc_dtype_reduce_fn reduce) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    size_t written = op->bytes * (size_t)shm->size;
    size_t offset = op->bytes * (size_t)shm->rank;
    uint32_t number;
    spark_comm_status st = exchange(shm, call, send, written, &number);
    if (st == SPARK_COMM_OK) reduce_all(shm, op, reduce, number, written, offset, send + offset);
    return st;
}

spark_comm_status sc_slots_all_gather(struct sc_shm *shm, const spark_comm_call *call) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    unsigned char *recv = sc_state_pointer(op->recv);
    uint32_t number;
    spark_comm_status st = exchange(shm, call, send, op->bytes, &number);
    if (st != SPARK_COMM_OK) return st;
    for (int rank = 0; rank < shm->size; rank++) {
        unsigned char *to = recv + (size_t)rank * op->bytes;
        if (rank != shm->rank)
            memcpy(to, content(shm, rank, number, op->bytes), op->bytes);
        else if (to != send)
            memcpy(to, send, op->bytes);
    }
    return SPARK_COMM_OK;
}

spark_comm_status sc_slots_barrier(struct sc_shm *shm, const spark_comm_call *call) {
    uint32_t number;
    return exchange(shm, call, NULL, 0, &number);
}
