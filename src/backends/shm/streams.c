/*
 * Broadcasts: a ring of eight places per root, one writer, every other rank a reader. The root
 * stores a chunk when all readers have taken the one that lay in its place before, and returns when
 * all its chunks are stored; it waits for nobody at the end. A reader copies a chunk out, then says
 * so in its own mailbox.
 */
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/flags.h"

struct room_wait {
    struct sc_shm *shm;
    uint32_t target; /* number that every reader must have taken */
    int next; /* first reader that has not, as far as is known */
};

static bool look_for_room(struct room_wait *wait) {
    struct sc_shm *shm = wait->shm;
    for (; wait->next < shm->size; wait->next++) {
        uint32_t *taken = &shm->mail.taken[wait->next];
        if (wait->next == shm->rank || sc_mailbox_reached(*taken, wait->target)) continue;
        /* Acquire: partner of the release store in receive(); the reader's copying is over. */
        *taken = atomic_load_explicit(&shm->mail.of[wait->next]->stream_taken[shm->rank].value,
                                      memory_order_acquire);
        if (!sc_mailbox_reached(*taken, wait->target)) return false;
    }
    return true;
}

static bool room_ready(void *arg) {
    return look_for_room(arg);
}

static spark_comm_status await_room(struct sc_shm *shm, const spark_comm_call *call,
                                    uint32_t number) {
    struct room_wait wait = {.shm = shm, .target = number - SC_MAILBOX_STREAM_PLACES};
    if (look_for_room(&wait)) return SPARK_COMM_OK;
    spark_comm_status st = sc_wait_until(shm->policy, room_ready, &wait, call->deadline_ns);
    if (st == SPARK_COMM_OK) return st;
    uint64_t missing = 0;
    for (int rank = 0; rank < shm->size; rank++)
        if (rank != shm->rank && !sc_mailbox_reached(shm->mail.taken[rank], wait.target))
            missing |= UINT64_C(1) << rank;
    return sc_flags_fail(shm, call, call->ops, st, missing, SC_FLAGS_TAKE);
}

static spark_comm_status send(struct sc_shm *shm, const spark_comm_call *call, uint32_t number,
                              const unsigned char *from, size_t bytes) {
    struct sc_mailbox *own = shm->mail.of[shm->rank];
    uint32_t place = number % SC_MAILBOX_STREAM_PLACES;
    spark_comm_status st = await_room(shm, call, number);
    if (st != SPARK_COMM_OK) return st;
    memcpy(own->stream_data[place], from, bytes);
    /* Release: the data come before it. Partner: the acquire load in sc_flags_look. */
    atomic_store_explicit(&own->stream[place].flag, sc_mailbox_word(number, call->digest),
                          memory_order_release);
    sc_state_ring_all(shm);
    return st;
}

static spark_comm_status receive(struct sc_shm *shm, const spark_comm_call *call, bool first,
                                 uint32_t number, unsigned char *to, size_t bytes) {
    int root = call->ops->peer;
    uint32_t place = number % SC_MAILBOX_STREAM_PLACES;
    struct sc_flags_wait wait = {
        .shm = shm,
        .offset = offsetof(struct sc_mailbox, stream) + place * sizeof(struct sc_mailbox_flag),
        .number = number,
        .digest = call->digest,
        .next = root,
        .end = root + 1,
    };
    spark_comm_status st = sc_flags_await(&wait, call, first ? SC_FLAGS_ENTER : SC_FLAGS_GO_ON);
    if (st != SPARK_COMM_OK) return st;
    memcpy(to, shm->mail.of[root]->stream_data[place], bytes);
    /* Release: the copying comes before it. Partner: the acquire load in look_for_room. */
    atomic_store_explicit(&shm->mail.of[shm->rank]->stream_taken[root].value, number,
                          memory_order_release);
    sc_wait_ring(shm->policy, shm->mail.doorbells[root]);
    return st;
}

spark_comm_status sc_streams_broadcast(struct sc_shm *shm, const spark_comm_call *call) {
    const spark_comm_op *op = call->ops;
    const unsigned char *from = sc_state_pointer(op->send);
    unsigned char *to = sc_state_pointer(op->recv);
    size_t piece = sc_paths_stream_bytes(op->bytes);
    spark_comm_status st = SPARK_COMM_OK;
    sc_state_entered(call);
    for (size_t at = 0; at < op->bytes && st == SPARK_COMM_OK; at += piece) {
        size_t bytes = op->bytes - at < piece ? op->bytes - at : piece;
        uint32_t number = shm->mail.next_stream[op->peer]++;
        if (op->peer == shm->rank)
            st = send(shm, call, number, from + at, bytes);
        else
            st = receive(shm, call, at == 0, number, to + at, bytes);
    }
    if (st == SPARK_COMM_OK && op->peer == shm->rank && to != NULL && to != from)
        memcpy(to, from, op->bytes);
    return st;
}
