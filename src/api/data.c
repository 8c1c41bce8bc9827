/*
 * The engine's data operations: each public call fills one spark_comm_op and hands it to
 * sc_submit_run.
 */
#include <string.h>

#include "api/submit.h"

spark_comm_status spark_comm_all_reduce(spark_comm *comm, uint64_t ptr, size_t bytes) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_all_reduce_async(spark_comm *comm, uint64_t ptr, size_t bytes,
                                              uint64_t compute_stream) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .stream = compute_stream,
                        .flags = SPARK_COMM_FLAG_EVENT_ORDERED};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_all_gather(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                        size_t bytes) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_GATHER,
                        .send = send_ptr,
                        .recv = recv_ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_reduce_scatter(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                            size_t bytes) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_REDUCE_SCATTER,
                        .send = send_ptr,
                        .recv = recv_ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_broadcast(spark_comm *comm, uint64_t ptr, size_t bytes, int root) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_BROADCAST,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .peer = root,
                        .stream = comm->settings.stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_barrier(spark_comm *comm) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {
        .struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER, .stream = comm->settings.stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_send_to(spark_comm *comm, uint64_t ptr, size_t bytes, int dest_rank,
                                     uint64_t stream) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_SEND_TO,
                        .send = ptr,
                        .bytes = bytes,
                        .peer = dest_rank,
                        .stream = stream};
    return sc_submit_run(comm, &op);
}

spark_comm_status spark_comm_recv_from(spark_comm *comm, uint64_t ptr, size_t bytes, int src_rank,
                                       uint64_t stream) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_RECV_FROM,
                        .recv = ptr,
                        .bytes = bytes,
                        .peer = src_rank,
                        .stream = stream};
    return sc_submit_run(comm, &op);
}

/* The caller's struct may be shorter (defaults for the rest) or longer (zero beyond what is
 * known here). */
spark_comm_status spark_comm_submit(spark_comm *comm, const spark_comm_op *op) {
    spark_comm_op whole;
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    if (op == NULL || op->struct_size < sizeof op->struct_size)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
                                "op is %s", op == NULL ? "null" : "without a struct_size");
    for (size_t i = sizeof whole; i < op->struct_size; i++)
        if (((const unsigned char *)op)[i] != 0)
            return sc_handle_refuse(
                comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
                "op.struct_size is %zu and byte %zu is not zero: this library (%zu bytes) does not know it",
                op->struct_size, i, sizeof whole);
    memset(&whole, 0, sizeof whole);
    memcpy(&whole, op, op->struct_size < sizeof whole ? op->struct_size : sizeof whole);
    whole.struct_size = sizeof whole;
    return sc_submit_run(comm, &whole);
}
