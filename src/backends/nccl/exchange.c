/*
 * The two-rank exchange: each rank sends its buffer, receives the peer's into a buffer of the ring,
 * and adds. Addition commutes, so both ranks get the same bits, and with one rounding they are the
 * canonical sum. For links without peer access, where NCCL's own all-reduce costs more; the table in
 * thresholds.c and the setting nccl_exchange_bytes say where it serves, alike on all ranks.
 *
 * Payloads larger than a ring buffer go in chunks, each through the next buffer. Two operations never
 * run at the same time (order.c), so a buffer is free again when its turn comes.
 */
#include "backends/nccl/state.h"

bool sc_exchange_serves(const struct sc_nccl *nccl, const spark_comm_op *op) {
    return op->bytes <= nccl->exchange_bytes && op->dtype == SPARK_COMM_BF16 &&
           op->redop == SPARK_COMM_SUM && nccl->add != NULL;
}

static int swap(const struct sc_nccl *nccl, uint64_t from, sc_cu_pointer to, size_t bytes,
                sc_cu_stream stream) {
    const struct sc_nccl_library *api = nccl->api;
    int peer = 1 - nccl->rank;
    int result = api->group_start();
    if (result == SC_NCCL_OK)
        result =
            api->send((const void *)(uintptr_t)from, bytes, SC_NCCL_U8, peer, nccl->comm, stream);
    if (result == SC_NCCL_OK)
        result = api->recv((void *)(uintptr_t)to, bytes, SC_NCCL_U8, peer, nccl->comm, stream);
    int ended = api->group_end();
    return result == SC_NCCL_OK ? ended : result;
}

static int add(const struct sc_nccl *nccl, uint64_t to, sc_cu_pointer from, size_t bytes,
               sc_cu_stream stream) {
    sc_cu_pointer target = to;
    int count = (int)(bytes / 2);
    void *arguments[] = {&target, &from, &count};
    return nccl->device.cuda->launch(nccl->add, ((unsigned)count + 255) / 256, 1, 1, 256, 1, 1, 0,
                                     stream, arguments, NULL);
}

spark_comm_status sc_exchange_run(struct sc_nccl *nccl, const spark_comm_op *op,
                                  sc_cu_stream stream) {
    int failed = SC_CU_OK;
    if (op->send != op->recv)
        failed = nccl->device.cuda->copy(op->recv, op->send, op->bytes, stream);
    for (size_t at = 0; at < op->bytes && failed == SC_CU_OK; at += SC_NCCL_CHUNK) {
        size_t left = op->bytes - at;
        size_t bytes = left < SC_NCCL_CHUNK ? left : SC_NCCL_CHUNK;
        sc_cu_pointer buffer = nccl->ring[nccl->next_ring++ % SC_NCCL_RING];
        spark_comm_status st = sc_order_breathe(nccl, op, stream, 2);
        if (st != SPARK_COMM_OK) return st;
        int result = swap(nccl, op->recv + at, buffer, bytes, stream);
        if (result != SC_NCCL_OK) {
            sc_nccl_fail(nccl, result, "the exchange's ncclSend and ncclRecv");
            return SPARK_COMM_BACKEND;
        }
        failed = add(nccl, op->recv + at, buffer, bytes, stream);
    }
    if (failed == SC_CU_OK) return SPARK_COMM_OK;
    sc_nccl_cuda_fail(nccl, failed, "the exchange's add kernel");
    return SPARK_COMM_BACKEND; /* the peer has its half already */
}

spark_comm_status sc_exchange_open(struct sc_nccl *nccl) {
    for (size_t i = 0; i < SC_NCCL_RING && nccl->exchange_bytes > 0; i++) {
        int result = nccl->device.cuda->memory_alloc(&nccl->ring[i], SC_NCCL_CHUNK);
        if (result != SC_CU_OK) return sc_nccl_cuda_fail(nccl, result, "cuMemAlloc");
    }
    return SPARK_COMM_OK;
}

void sc_exchange_close(struct sc_nccl *nccl) {
    for (size_t i = 0; i < SC_NCCL_RING; i++) {
        if (nccl->ring[i] != 0) nccl->device.cuda->memory_free(nccl->ring[i]);
        nccl->ring[i] = 0;
    }
}
