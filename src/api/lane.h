/*
 * One operation on one lane: turn taken, poison looked at, number given, status line and record
 * written, and all of it closed again. Every public call that takes a number goes through
 * sc_lane_begin and sc_lane_end, in this order. A collective of a backend that has the trait
 * LATE_ENTRY begins in two halves: sc_lane_take_turn, and sc_lane_note_entry once the rank's part is
 * on its way to the peers, so that the second half costs nothing while they are awaited.
 */
#ifndef SC_API_LANE_H
#define SC_API_LANE_H

#include "api/handle.h"

struct sc_lane_call {
    struct spark_comm *comm;
    int lane;
    int operation;
    int dtype, redop, peer;
    uint64_t bytes, stream;
    bool captured; /* recorded into a graph: takes no number */
    int timeout_ms; /* 0: options.op_timeout_ms; SPARK_COMM_FOREVER: none */
    int64_t deadline; /* given by begin (0 before): for the turn and for the operation alike */
    uint64_t number; /* given by begin */
    bool noted; /* status line and record are written */
    struct sc_recorder_record *record;
};

/* Takes the lane and gives the number. On failure nothing is held and no number was taken: BUSY
 * naming the holder, or the first cause when poisoned. */
spark_comm_status sc_lane_begin(struct sc_lane_call *call);
/* Its second half; the first is sc_lane_take_turn, below. */
void sc_lane_note_entry(struct sc_lane_call *call);

/* Makes the sentence name the operation where the backend's words do not. */
void sc_lane_name_operation(struct sc_error *error, int operation, uint64_t number);

/* Digest of what must be equal on all ranks of a collective. */
static inline uint32_t sc_lane_digest(int operation, int dtype, int redop, int peer,
                                      uint64_t bytes) {
    uint64_t key = (uint64_t)(uint8_t)operation | (uint64_t)(uint8_t)dtype << 8 |
                   (uint64_t)(uint8_t)redop << 16 | (uint64_t)(uint32_t)peer << 32;
    /* Two rounds of multiply and fold (constants: 64-bit fractions of the golden ratio and of
     * the square root of 2). */
    uint64_t mixed = (key ^ UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0x6a09e667f3bcc909) + bytes;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32);
}

/* Deadline of an operation: timeout_ms 0 is options.op_timeout_ms. */
int64_t sc_lane_deadline(const struct spark_comm *comm, int timeout_ms);

/* What a record shows of a stream: no address, but equal for equal streams. */
uint64_t sc_lane_stream_label(uint64_t stream);

/* memory.c: the registrations again, in a new epoch. */
void sc_memory_restore(struct spark_comm *comm);

/* A turn on a lane without a number, for local calls that must not meet an operation. */
spark_comm_status sc_lane_enter(struct spark_comm *comm, int lane, int operation, int64_t deadline,
                                bool even_if_poisoned);
void sc_lane_leave(struct spark_comm *comm, int lane);
int64_t sc_lane_deadline_at(struct spark_comm *comm, int lane, int timeout_ms, uint64_t ticks);

/* ---- The hot path ---- */

/* Lane held: what may have happened while it was waited for. On failure it is given back. */
spark_comm_status sc_lane_look_around(struct spark_comm *comm, int lane, int operation,
                                      bool even_if_poisoned);
/* The slow ends of the functions below. */
spark_comm_status sc_lane_look_again(struct spark_comm *comm, int lane, int operation);
spark_comm_status sc_lane_await_turn(struct spark_comm *comm, int lane, int operation,
                                     int timeout_ms, int64_t *deadline);
spark_comm_status sc_lane_end_slow(struct sc_lane_call *call, spark_comm_status status,
                                   struct sc_error *error);

/* A turn for an operation, without a look at the clock where nobody is in the way: *deadline stays 0
 * then, and is for the caller to set from sc_lane_deadline_at, with the lane held. */
static inline spark_comm_status sc_lane_turn(struct spark_comm *comm, int lane, int operation,
                                             int timeout_ms, int64_t *deadline) {
    struct sc_lane *own = &comm->lanes[lane];
    if (__builtin_expect(!sc_lock_try(&own->lock), 0))
        return sc_lane_await_turn(comm, lane, operation, timeout_ms, deadline);
    atomic_store_explicit(&own->lock.holder, operation, memory_order_relaxed);
    /* As sc_lane_look_around. */
    bool good = atomic_load_explicit(&comm->magic, memory_order_relaxed) == SC_HANDLE_ALIVE &&
                atomic_load_explicit(comm->poison, memory_order_acquire) == 0;
    if (__builtin_expect(good, 1)) return SPARK_COMM_OK;
    return sc_lane_look_again(comm, lane, operation);
}

static inline spark_comm_status sc_lane_take_turn(struct sc_lane_call *call) {
    /* Read before the lock, where the compiler still knows what was stored there. */
    struct sc_lane *own = &call->comm->lanes[call->lane];
    bool counts = !call->captured;
    spark_comm_status st =
        sc_lane_turn(call->comm, call->lane, call->operation, call->timeout_ms, &call->deadline);
    if (__builtin_expect(st == SPARK_COMM_OK, 1)) call->number = own->number += counts;
    return st;
}

/* Ends the operation with the backend's or the world's status and gives the lane back. `error`
 * says why when status is not OK (its operation, number and epoch are filled in here); a fatal
 * one poisons the communicator, and what is returned is the first cause. */
static inline spark_comm_status sc_lane_end(struct sc_lane_call *call, spark_comm_status status,
                                            struct sc_error *error) {
    struct spark_comm *comm = call->comm;
    struct sc_lane *own = &comm->lanes[call->lane];
    if (__builtin_expect(status != SPARK_COMM_OK || !call->noted || call->captured, 0))
        return sc_lane_end_slow(call, status, error);
    uint64_t ticks = sc_ticks_now();
    atomic_store_explicit(&own->line->complete_ticks, ticks, memory_order_relaxed);
    /* Release: partner of the readers of status lines. */
    atomic_store_explicit(&own->line->completed, call->number, memory_order_release);
    sc_recorder_end(call->record, SPARK_COMM_OK, false,
                    atomic_load_explicit(&comm->epoch, memory_order_relaxed), ticks);
    sc_lock_give(&own->lock);
    return SPARK_COMM_OK;
}

#endif
