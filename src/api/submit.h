/*
 * The general form that all data operations are written with: spark_comm_submit and the calls named
 * after an operation end here. Check, number, record, dispatch.
 */
#ifndef SC_API_SUBMIT_H
#define SC_API_SUBMIT_H

#include "api/handle.h"

/* `op` is whole (struct_size of this library) and its handle was checked. */
spark_comm_status sc_submit_run(struct spark_comm *comm, const spark_comm_op *op);
/* Checks the arguments of one operation; fills in defaults. INVALID_ARGUMENT with the argument's
 * name and value. */
spark_comm_status sc_submit_check(struct spark_comm *comm, spark_comm_op *op);
/* On stream-ordered backends: is the stream one that the operation can use, and does it capture? One
 * that waits on the host must not be captured (WRONG_STATE, the capture unharmed). */
spark_comm_status sc_submit_check_stream(struct spark_comm *comm, int operation, uint64_t stream,
                                         bool *captured);
/* The first cause on a poisoned communicator, before any argument is looked at. */
spark_comm_status sc_submit_check_poison(struct spark_comm *comm, int operation);
/* WRONG_STATE when this thread has a group open: only send_to and recv_from may be called then. */
spark_comm_status sc_submit_check_group(struct spark_comm *comm, int operation);
/* Both. */
spark_comm_status sc_submit_check_start(struct spark_comm *comm, int operation);

#endif
