/*
 * Copies of command words and small broadcasts between the GPU and host memory: after what is queued
 * on options.stream, on a stream of our own, through a block of pinned memory. The command lane is
 * held, so one copy runs at a time; nothing of the data lane is touched. No kernel waits for a peer.
 */
#include <string.h>

#include "backends/nccl/state.h"

spark_comm_status sc_stage_open(struct sc_nccl *nccl) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_stage *stage = &nccl->stage;
    int result = cuda->stream_create(&stage->stream, SC_CU_STREAM_NON_BLOCKING, 0);
    if (result == SC_CU_OK) result = cuda->event_create(&stage->before, SC_CU_EVENT_DISABLE_TIMING);
    if (result == SC_CU_OK) result = cuda->event_create(&stage->after, SC_CU_EVENT_DISABLE_TIMING);
    if (result == SC_CU_OK)
        result = cuda->host_alloc(&stage->pinned, SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES,
                                  SC_CU_HOST_PORTABLE);
    return result == SC_CU_OK ? SPARK_COMM_OK
                              : sc_nccl_cuda_fail(nccl, result, "making the copies' stream");
}

void sc_stage_close(struct sc_nccl *nccl) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_stage *stage = &nccl->stage;
    if (stage->pinned != NULL) cuda->host_free(stage->pinned);
    if (stage->before != NULL) cuda->event_destroy(stage->before);
    if (stage->after != NULL) cuda->event_destroy(stage->after);
    if (stage->stream != NULL) cuda->stream_destroy(stage->stream);
    memset(stage, 0, sizeof *stage);
}

/* Context current. */
static spark_comm_status run(struct sc_nccl *nccl, bool to_host, uint64_t ptr, size_t bytes,
                             int64_t deadline) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_stage *stage = &nccl->stage;
    int result = cuda->event_record(stage->before, nccl->default_stream);
    if (result == SC_CU_OK) result = cuda->stream_wait(stage->stream, stage->before, 0);
    if (result == SC_CU_OK && to_host)
        result = cuda->copy_to_host(stage->pinned, ptr, bytes, stage->stream);
    else if (result == SC_CU_OK)
        result = cuda->copy_to_device(ptr, stage->pinned, bytes, stage->stream);
    if (result == SC_CU_OK) result = cuda->event_record(stage->after, stage->stream);
    if (result != SC_CU_OK) return sc_nccl_cuda_fail(nccl, result, "copying a small buffer");
    return sc_order_await(nccl, stage->after, deadline);
}

spark_comm_status sc_stage_to_host(void *state, void *host_memory, uint64_t ptr, size_t bytes,
                                   int64_t deadline_ns) {
    struct sc_nccl *nccl = state;
    struct sc_device_scope scope;
    sc_device_enter(&nccl->device, &scope, true);
    spark_comm_status st = run(nccl, true, ptr, bytes, deadline_ns);
    sc_device_leave(&nccl->device, &scope);
    if (st == SPARK_COMM_OK) memcpy(host_memory, nccl->stage.pinned, bytes);
    return st;
}

spark_comm_status sc_stage_from_host(void *state, uint64_t ptr, const void *host_memory,
                                     size_t bytes, int64_t deadline_ns) {
    struct sc_nccl *nccl = state;
    struct sc_device_scope scope;
    memcpy(nccl->stage.pinned, host_memory, bytes);
    sc_device_enter(&nccl->device, &scope, true);
    spark_comm_status st = run(nccl, false, ptr, bytes, deadline_ns);
    sc_device_leave(&nccl->device, &scope);
    return st;
}
