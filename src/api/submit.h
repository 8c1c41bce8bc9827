/* The checks that every data operation begins with, for groups and commands too. */
#ifndef SC_API_SUBMIT_H
#define SC_API_SUBMIT_H

#include "api/handle.h"

/* Checks the arguments of one operation; fills in defaults. INVALID_ARGUMENT with the argument's
 * name and value. */
spark_comm_status sc_submit_check(struct spark_comm *comm, spark_comm_op *op, bool general);
/* What its argument is called: in spark_comm_submit (`general`), or in the function of its kind. */
const char *sc_submit_name_peer(int kind, bool general);
/* On stream-ordered backends: is the stream one that the operation can use, and does it capture? One
 * that waits on the host must not be captured (WRONG_STATE, the capture unharmed). */
spark_comm_status sc_submit_check_stream(struct spark_comm *comm, int operation, uint64_t stream,
                                         bool *captured);
/* The slow ends of the checks below. */
spark_comm_status sc_submit_tell_poison(struct spark_comm *comm);
spark_comm_status sc_submit_tell_group(struct spark_comm *comm, int operation);

/* The first cause on a poisoned communicator, before any argument is looked at. */
static inline spark_comm_status sc_submit_check_poison(struct spark_comm *comm) {
    if (__builtin_expect(atomic_load_explicit(comm->poison, memory_order_acquire) == 0, 1))
        return SPARK_COMM_OK;
    return sc_submit_tell_poison(comm);
}

/* WRONG_STATE when this thread has a group open: only send_to and recv_from may be called then. */
static inline spark_comm_status sc_submit_check_group(struct spark_comm *comm, int operation) {
    /* Relaxed: only this thread's own value matters here. */
    uintptr_t owner = atomic_load_explicit(&comm->group.owner, memory_order_relaxed);
    if (__builtin_expect(owner == 0 || owner != sc_handle_thread(), 1)) return SPARK_COMM_OK;
    return sc_submit_tell_group(comm, operation);
}

/* Both. */
static inline spark_comm_status sc_submit_check_start(struct spark_comm *comm, int operation) {
    spark_comm_status st = sc_submit_check_poison(comm);
    return st == SPARK_COMM_OK ? sc_submit_check_group(comm, operation) : st;
}

#endif
