/*
 * One operation on one lane: turn taken, poison looked at, number given, status line and record
 * written, and all of it closed again. Every public call that takes a number goes through
 * sc_lane_begin and sc_lane_end, in this order.
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
    int64_t deadline; /* given by begin: for the turn and for the operation alike */
    uint64_t number; /* given by begin */
    struct sc_recorder_record *record;
};

/* Takes the lane and gives the number. On failure nothing is held and no number was taken: BUSY
 * naming the holder, or the first cause when poisoned. */
spark_comm_status sc_lane_begin(struct sc_lane_call *call);
/* Ends the operation with the backend's or the world's status and gives the lane back. `error`
 * says why when status is not OK (its operation, number and epoch are filled in here); a fatal
 * one poisons the communicator, and what is returned is the first cause. */
spark_comm_status sc_lane_end(struct sc_lane_call *call, spark_comm_status status,
                              struct sc_error *error);

/* Makes the sentence name the operation where the backend's words do not. */
void sc_lane_name_operation(struct sc_error *error, int operation, uint64_t number);

/* Digest of what must be equal on all ranks of a collective. */
uint32_t sc_lane_digest(int operation, int dtype, int redop, int peer, uint64_t bytes);
/* Deadline of an operation: timeout_ms 0 is options.op_timeout_ms. */
int64_t sc_lane_deadline(const struct spark_comm *comm, int timeout_ms);

/* What a record shows of a stream: no address, but equal for equal streams. */
uint64_t sc_lane_stream_label(uint64_t stream);

/* A turn on a lane without a number, for local calls that must not meet an operation. */
spark_comm_status sc_lane_enter(struct spark_comm *comm, int lane, int operation, int64_t deadline,
                                bool even_if_poisoned);
void sc_lane_leave(struct spark_comm *comm, int lane);

#endif
