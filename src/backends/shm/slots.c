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

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Where `rank` has put what it wrote in an exchange. */
ALWAYS_INLINE const unsigned char *content(const struct sc_shm *shm, int rank, uint32_t number,
                                           size_t bytes) {
    const struct sc_mailbox_slot *slot = &shm->mail.of[rank]->slot[number % SC_MAILBOX_SLOTS];
    return bytes <= SC_MAILBOX_TINY_BYTES ? slot->tiny : slot->data;
}

/* Up to 56 bytes in words, the last of which overlaps: no call, and no branch per byte. */
ALWAYS_INLINE void copy_tiny(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes < sizeof(uint64_t)) {
        for (size_t i = 0; i < bytes; i++)
            to[i] = from[i];
        return;
    }
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t))
        memcpy(to + at, from + at, sizeof(uint64_t));
    memcpy(to + bytes - sizeof(uint64_t), from + bytes - sizeof(uint64_t), sizeof(uint64_t));
}

/* Writes `bytes` under the number that is returned. The functions that take `size` are compiled once
 * more for two ranks, without loops over ranks. */
ALWAYS_INLINE uint32_t publish(struct sc_shm *shm, int size, const spark_comm_call *call,
                               const void *data, size_t bytes) {
    uint32_t number = shm->mail.next_slot++;
    struct sc_mailbox_slot *own = &shm->mail.of[shm->rank]->slot[number % SC_MAILBOX_SLOTS];
    if (bytes <= SC_MAILBOX_TINY_BYTES)
        copy_tiny(own->tiny, data, bytes);
    else
        memcpy(own->data, data, bytes);
    /* Release: the data above, and this rank's reads of the exchange before, come before it.
     * Partner: the acquire loads in flags.h. */
    atomic_store_explicit(&own->flag, sc_mailbox_word(number, call->digest), memory_order_release);
    sc_state_entered(call);
    if (size == 2)
        sc_wait_ring(shm->policy, shm->mail.doorbells[1 - shm->rank]);
    else
        sc_state_ring_all(shm);
    return number;
}

/* Waits until all others have written theirs. Then they have also read this rank's exchange before,
 * so the line that comes next is asked for while the caller goes on: a store that has to wait for it
 * is half of a call in which all enter at one time. */
ALWAYS_INLINE spark_comm_status await(const struct sc_shm *shm, int size,
                                      const spark_comm_call *call, uint32_t number) {
    size_t place = number % SC_MAILBOX_SLOTS;
    if (size == 2 && sc_flags_brisk(shm, &shm->mail.of[1 - shm->rank]->slot[place].flag,
                                    sc_mailbox_word(number, call->digest))) {
        sc_state_claim(&shm->mail.of[shm->rank]->slot[(number + 1) % SC_MAILBOX_SLOTS]);
        return SPARK_COMM_OK;
    }
    struct sc_flags_wait wait = {
        .shm = shm,
        .offset = offsetof(struct sc_mailbox, slot) + place * sizeof(struct sc_mailbox_slot),
        .number = number,
        .digest = call->digest,
        .end = size,
    };
    return size == 2 ? sc_flags_await_slow(&wait, call, SC_FLAGS_ENTER)
                     : sc_flags_await(&wait, call, SC_FLAGS_ENTER);
}

static spark_comm_status exchange(struct sc_shm *shm, const spark_comm_call *call, const void *data,
                                  size_t bytes, uint32_t *number) {
    *number = publish(shm, shm->size, call, data, bytes);
    return await(shm, shm->size, call, *number);
}

ALWAYS_INLINE spark_comm_status all_reduce(struct sc_shm *shm, int size,
                                           const spark_comm_call *call) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    uint32_t number = publish(shm, size, call, send, op->bytes);
    /* What follows until the wait is done while the others' lines are on their way. */
    const void *sources[SC_MAILBOX_MAX_RANKS];
    sc_dtype_reduce_fn reduce = sc_dtype_reducer_now(op->dtype, op->redop);
    size_t count = op->bytes >> sc_dtype_shift(op->dtype);
    for (int rank = 0; rank < size; rank++)
        sources[rank] = rank == shm->rank ? send : content(shm, rank, number, op->bytes);
    spark_comm_status st = await(shm, size, call, number);
    if (st == SPARK_COMM_OK) reduce(sc_state_pointer(op->recv), sources, (size_t)size, count);
    return st;
}

spark_comm_status sc_slots_all_reduce(struct sc_shm *shm, const spark_comm_call *call) {
    return shm->size == 2 ? all_reduce(shm, 2, call) : all_reduce(shm, shm->size, call);
}

spark_comm_status sc_slots_reduce_scatter(struct sc_shm *shm, const spark_comm_call *call,
                                          sc_dtype_reduce_fn reduce) {
    const spark_comm_op *op = call->ops;
    const unsigned char *send = sc_state_pointer(op->send);
    const void *sources[SC_MAILBOX_MAX_RANKS];
    size_t written = op->bytes * (size_t)shm->size;
    size_t offset = op->bytes * (size_t)shm->rank;
    uint32_t number;
    spark_comm_status st = exchange(shm, call, send, written, &number);
    if (st != SPARK_COMM_OK) return st;
    for (int rank = 0; rank < shm->size; rank++)
        sources[rank] = (rank == shm->rank ? send : content(shm, rank, number, written)) + offset;
    reduce(sc_state_pointer(op->recv), sources, (size_t)shm->size,
           op->bytes >> sc_dtype_shift(op->dtype));
    return st;
}

spark_comm_status sc_slots_gather(struct sc_shm *shm, const spark_comm_call *call, const void *send,
                                  size_t bytes, void *recv) {
    uint32_t number;
    spark_comm_status st = exchange(shm, call, send, bytes, &number);
    for (int rank = 0; rank < shm->size && st == SPARK_COMM_OK; rank++) {
        unsigned char *to = (unsigned char *)recv + (size_t)rank * bytes;
        if (rank != shm->rank)
            memcpy(to, content(shm, rank, number, bytes), bytes);
        else if (to != send)
            memcpy(to, send, bytes);
    }
    return st;
}

spark_comm_status sc_slots_all_gather(struct sc_shm *shm, const spark_comm_call *call) {
    const spark_comm_op *op = call->ops;
    return sc_slots_gather(shm, call, sc_state_pointer(op->send), op->bytes,
                           sc_state_pointer(op->recv));
}

ALWAYS_INLINE spark_comm_status barrier(struct sc_shm *shm, int size, const spark_comm_call *call) {
    return await(shm, size, call, publish(shm, size, call, NULL, 0));
}

spark_comm_status sc_slots_barrier(struct sc_shm *shm, const spark_comm_call *call) {
    return shm->size == 2 ? barrier(shm, 2, call) : barrier(shm, shm->size, call);
}
