/*
 * Reductions of buffers that are not aligned to their element. NCCL's kernels, and our add, load whole
 * elements: a pointer between two of them is a fault that costs the context. Such a call works on an
 * aligned copy in device memory of ours, with copies on the stream before and after, so it can be
 * captured too.
 *
 * The copy is whole, never in pieces: whether a pointer is aligned is one rank's own affair, and its
 * peers, who do not know, make one call of NCCL. A block serves all calls up to its size, since
 * operations of one communicator never run at the same time, and lives as long as the communicator,
 * since a captured graph may hold it.
 */
#include "backends/nccl/state.h"

/* The smallest block of a power of two that holds `bytes`; made when it is first needed. */
static int take_block(struct sc_nccl *nccl, size_t bytes, sc_cu_pointer *block) {
    struct sc_device_scope scope;
    int result = SC_CU_OK;
    unsigned i = 0;
    while (i + 1 < SC_NCCL_ALIGNED && SC_NCCL_CHUNK << i < bytes)
        i++;
    sc_device_enter(&nccl->device, &scope, true);
    if (nccl->aligned[i] == 0)
        result = nccl->device.cuda->memory_alloc(&nccl->aligned[i], SC_NCCL_CHUNK << i);
    sc_device_leave(&nccl->device, &scope);
    *block = nccl->aligned[i];
    return result;
}

/* The peers are in the operation: what fails on this rank alone is fatal. */
static spark_comm_status fail(const struct sc_nccl *nccl, int result, const char *what) {
    sc_nccl_cuda_fail(nccl, result, what);
    return SPARK_COMM_BACKEND;
}

spark_comm_status sc_align_run(struct sc_nccl *nccl, const spark_comm_op *op, sc_reduction *run,
                               sc_cu_stream stream) {
    const struct sc_driver *cuda = nccl->device.cuda;
    spark_comm_op moved = *op;
    size_t bytes = op->bytes, at = 0; /* of the input; of this rank's result in it */
    int result = SC_CU_OK;
    if (nccl->size == 1) {
        if (op->send != op->recv) result = cuda->copy(op->recv, op->send, bytes, stream);
        return result == SC_CU_OK ? SPARK_COMM_OK : fail(nccl, result, "cuMemcpyDtoDAsync");
    }
    if (op->kind == SPARK_COMM_OP_REDUCE_SCATTER) {
        at = bytes * (size_t)nccl->rank;
        bytes *= (size_t)nccl->size;
    }
    sc_cu_pointer block = 0;
    spark_comm_status st = sc_order_breathe(nccl, op, stream, 2);
    if (st != SPARK_COMM_OK) return st;
    result = take_block(nccl, bytes, &block);
    if (result != SC_CU_OK)
        return fail(nccl, result, "cuMemAlloc for a buffer that is not aligned");
    moved.send = block;
    moved.recv = block + at;
    result = cuda->copy(block, op->send, bytes, stream);
    st = result == SC_CU_OK ? run(nccl, &moved, stream) : SPARK_COMM_OK;
    if (st != SPARK_COMM_OK) return st;
    if (result == SC_CU_OK) result = cuda->copy(op->recv, moved.recv, op->bytes, stream);
    return result == SC_CU_OK ? SPARK_COMM_OK : fail(nccl, result, "cuMemcpyDtoDAsync");
}

void sc_align_close(struct sc_nccl *nccl) {
    for (unsigned i = 0; i < SC_NCCL_ALIGNED; i++) {
        if (nccl->aligned[i] != 0) nccl->device.cuda->memory_free(nccl->aligned[i]);
        nccl->aligned[i] = 0;
    }
}
