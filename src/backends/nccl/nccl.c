/*
 * The table of the NCCL backend. Operations that stay on the GPU return when they are enqueued;
 * broadcasts (above 4 KiB, the smaller ones are the control plane's) and the barrier wait on the
 * host.
 */
#include "backends/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

#include "backends/nccl/open.h"
#include "backends/nccl/state.h"
#include "base/deadline.h"

/* Indexed by SPARK_COMM_BF16 and so on, and by SPARK_COMM_SUM and so on. */
static const sc_nccl_dtype dtypes[] = {
    [SPARK_COMM_BF16] = SC_NCCL_BF16, [SPARK_COMM_F16] = SC_NCCL_F16,
    [SPARK_COMM_F32] = SC_NCCL_F32,   [SPARK_COMM_F64] = SC_NCCL_F64,
    [SPARK_COMM_I8] = SC_NCCL_I8,     [SPARK_COMM_U8] = SC_NCCL_U8,
    [SPARK_COMM_I32] = SC_NCCL_I32,   [SPARK_COMM_I64] = SC_NCCL_I64,
};
static const sc_nccl_redop redops[] = {
    [SPARK_COMM_SUM] = SC_NCCL_SUM,
    [SPARK_COMM_MAX] = SC_NCCL_MAX,
    [SPARK_COMM_MIN] = SC_NCCL_MIN,
    [SPARK_COMM_AVG] = SC_NCCL_AVG,
};
static const uint8_t sizes[] = {
    [SPARK_COMM_BF16] = 2, [SPARK_COMM_F16] = 2, [SPARK_COMM_F32] = 4, [SPARK_COMM_F64] = 8,
    [SPARK_COMM_I8] = 1,   [SPARK_COMM_U8] = 1,  [SPARK_COMM_I32] = 4, [SPARK_COMM_I64] = 8,
};

static void *pointer(uint64_t value) {
    return (void *)(uintptr_t)value;
}

static spark_comm_status all_reduce_aligned(struct sc_nccl *nccl, const spark_comm_op *op,
                                            sc_cu_stream stream) {
    if (sc_exchange_serves(nccl, op)) return sc_exchange_run(nccl, op, stream);
    int result =
        nccl->api->all_reduce(pointer(op->send), pointer(op->recv), op->bytes / sizes[op->dtype],
                              dtypes[op->dtype], redops[op->redop], nccl->comm, stream);
    return result == SC_NCCL_OK ? SPARK_COMM_OK : sc_nccl_fail(nccl, result, "ncclAllReduce");
}

static spark_comm_status reduce_scatter_aligned(struct sc_nccl *nccl, const spark_comm_op *op,
                                                sc_cu_stream stream) {
    int result = nccl->api->reduce_scatter(pointer(op->send), pointer(op->recv),
                                           op->bytes / sizes[op->dtype], dtypes[op->dtype],
                                           redops[op->redop], nccl->comm, stream);
    return result == SC_NCCL_OK ? SPARK_COMM_OK : sc_nccl_fail(nccl, result, "ncclReduceScatter");
}

/* NCCL's kernels load whole elements. One rank alone needs no kernel: NCCL runs one for averages, after
 * which the last of 8193 F16 elements was once found unwritten (2.28.3; the cause was not looked for). */
static inline bool is_for_nccl(const struct sc_nccl *nccl, const spark_comm_op *op) {
    bool aligned = ((op->send | op->recv) & (sizes[op->dtype] - 1u)) == 0;
    return aligned && (nccl->size > 1 || op->redop != SPARK_COMM_AVG);
}

static inline spark_comm_status reduce(struct sc_nccl *nccl, const spark_comm_call *call,
                                       sc_reduction *run) {
    const spark_comm_op *op = call->ops;
    struct sc_order_turn turn;
    spark_comm_status st = sc_order_begin(nccl, call, &turn);
    if (st != SPARK_COMM_OK) return st;
    if (__builtin_expect(is_for_nccl(nccl, op), 1))
        st = run(nccl, op, turn.stream);
    else
        st = sc_align_run(nccl, op, run, turn.stream);
    return sc_order_end(nccl, &turn, st);
}

static spark_comm_status all_reduce(void *state, const spark_comm_call *call) {
    return reduce(state, call, all_reduce_aligned);
}

static spark_comm_status reduce_scatter(void *state, const spark_comm_call *call) {
    return reduce(state, call, reduce_scatter_aligned);
}

static spark_comm_status all_gather(void *state, const spark_comm_call *call) {
    struct sc_nccl *nccl = state;
    const spark_comm_op *op = call->ops;
    struct sc_order_turn turn;
    spark_comm_status st = sc_order_begin(nccl, call, &turn);
    if (st != SPARK_COMM_OK) return st;
    int result = nccl->api->all_gather(pointer(op->send), pointer(op->recv), op->bytes, SC_NCCL_U8,
                                       nccl->comm, turn.stream);
    if (result != SC_NCCL_OK) st = sc_nccl_fail(nccl, result, "ncclAllGather");
    return sc_order_end(nccl, &turn, st);
}

/* Host-complete: `before` tells when what was queued earlier is done, `after` when the data is there.
 * Both events are the data lane's, which is held. */
static spark_comm_status broadcast(void *state, const spark_comm_call *call) {
    struct sc_nccl *nccl = state;
    const struct sc_driver *cuda = nccl->device.cuda;
    const spark_comm_op *op = call->ops;
    struct sc_order_turn turn;
    struct sc_device_scope scope;
    spark_comm_status st = sc_order_begin(nccl, call, &turn);
    if (st != SPARK_COMM_OK) return st;
    void *data = pointer(op->peer == nccl->rank ? op->send : op->recv);
    int failed = cuda->event_record(nccl->before, turn.stream);
    int result =
        nccl->api->broadcast(data, data, op->bytes, SC_NCCL_U8, op->peer, nccl->comm, turn.stream);
    if (result != SC_NCCL_OK) st = sc_nccl_fail(nccl, result, "ncclBroadcast");
    if (failed == SC_CU_OK) failed = cuda->event_record(nccl->after, turn.stream);
    if (st == SPARK_COMM_OK && failed != SC_CU_OK)
        st = sc_nccl_cuda_fail(nccl, failed, "cuEventRecord");
    st = sc_order_end(nccl, &turn, st);
    if (st != SPARK_COMM_OK) return st;
    sc_device_enter(&nccl->device, &scope, true);
    st = sc_order_await(nccl, nccl->before, call->deadline_ns);
    if (st == SPARK_COMM_OK) st = sc_order_await(nccl, nccl->after, sc_order_deadline(nccl, op));
    sc_device_leave(&nccl->device, &scope);
    return st;
}

/* Of hosts, not of streams: no GPU takes part. */
static spark_comm_status barrier(void *state, const spark_comm_call *call) {
    struct sc_nccl *nccl = state;
    unsigned char mine = 0, all[SC_NCCL_MAX_RANKS];
    struct sc_error error;
    if (nccl->size == 1) return SPARK_COMM_OK;
    sc_error_clear(&error);
    spark_comm_status st =
        sc_world_all_gather(sc_host_world(nccl->host), call->number, call->digest, &mine, all, 1,
                            call->deadline_ns, &error);
    return st == SPARK_COMM_OK ? st : sc_host_pass(nccl->host, &error);
}

/* All posts of a group in one launch. The group is closed whatever happens: it belongs to the thread,
 * and would swallow that thread's later calls. */
static spark_comm_status point_to_point(void *state, const spark_comm_call *call) {
    struct sc_nccl *nccl = state;
    const struct sc_nccl_library *api = nccl->api;
    struct sc_order_turn turn;
    int result, ended;
    spark_comm_status st = sc_order_begin(nccl, call, &turn);
    if (st != SPARK_COMM_OK) return st;
    result = api->group_start();
    for (size_t i = 0; i < call->op_count && result == SC_NCCL_OK; i++) {
        const spark_comm_op *op = &call->ops[i];
        sc_cu_stream stream = (sc_cu_stream)(uintptr_t)op->stream;
        if (op->kind == SPARK_COMM_OP_SEND_TO)
            result =
                api->send(pointer(op->send), op->bytes, SC_NCCL_U8, op->peer, nccl->comm, stream);
        else
            result =
                api->recv(pointer(op->recv), op->bytes, SC_NCCL_U8, op->peer, nccl->comm, stream);
    }
    ended = api->group_end();
    if (result == SC_NCCL_OK) result = ended;
    /* A group that failed half-way has reached NCCL: never the caller's fault alone. */
    if (result != SC_NCCL_OK) {
        st = sc_nccl_fail(nccl, result, "a group of ncclSend and ncclRecv");
        if (st == SPARK_COMM_INVALID_ARGUMENT) st = SPARK_COMM_BACKEND;
    }
    return sc_order_end(nccl, &turn, st);
}

static spark_comm_status set_add_kernel(void *state, uint64_t kernel) {
    struct sc_nccl *nccl = state;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    nccl->add = kernel != 0 ? (sc_cu_function)(uintptr_t)kernel : nccl->kernels.add_bf16;
    sc_lock_give(&nccl->order.lock);
    return SPARK_COMM_OK;
}

static spark_comm_status check_pointer(void *state, uint64_t ptr, size_t bytes) {
    struct sc_nccl *nccl = state;
    struct sc_device_scope scope;
    struct sc_error error;
    if (!nccl->settings.check_pointers) return SPARK_COMM_OK;
    sc_error_clear(&error);
    sc_device_enter(&nccl->device, &scope, false);
    spark_comm_status st = sc_device_check_pointer(&nccl->device, ptr, bytes, &error);
    sc_device_leave(&nccl->device, &scope);
    return st == SPARK_COMM_OK ? st : sc_host_pass(nccl->host, &error);
}

/* 0, 1 and 2 name the legacy and the per-thread stream of whatever context is current: ours. */
static spark_comm_status stream_state(void *state, uint64_t stream, bool *captured) {
    struct sc_nccl *nccl = state;
    const struct sc_driver *cuda = nccl->device.cuda;
    sc_cu_stream handle = (sc_cu_stream)(uintptr_t)stream;
    sc_cu_capture_status status = (sc_cu_capture_status)0;
    sc_cu_context context = nccl->device.context;
    struct sc_device_scope scope;
    sc_device_enter(&nccl->device, &scope, false);
    int result = SC_CU_OK;
    if (stream > 2 && nccl->settings.check_pointers)
        result = cuda->stream_context(handle, &context);
    bool foreign = result != SC_CU_OK || context != nccl->device.context;
    /* The legacy stream cannot capture; asked while another stream does, the driver answers with an
     * error that would harm that capture. */
    if (!foreign && stream != 0 && stream != 1) result = cuda->stream_capturing(handle, &status);
    sc_device_leave(&nccl->device, &scope);
    *captured = status != 0;
    if (!foreign && result == SC_CU_OK) return SPARK_COMM_OK;
    return sc_host_fail(nccl->host, SPARK_COMM_INVALID_ARGUMENT, -1, result,
                        "the stream does not belong to the primary context of GPU %d",
                        nccl->device.ordinal);
}

static void library(void *state, char *file, size_t file_size, char *version, size_t version_size) {
    const struct sc_nccl *nccl = state;
    char number[32];
    if (nccl->api == NULL) return;
    sc_nccl_library_version_text(nccl->api->version, number, sizeof number);
    snprintf(file, file_size, "%s", nccl->api->file);
    snprintf(version, version_size, "%s, %zu MiB of device memory", number,
             nccl->device_bytes >> 20);
}

static uint64_t device_progress(void *state) {
    struct sc_nccl *nccl = state;
    uint32_t ticks = nccl->ticks != NULL ? __atomic_load_n(nccl->ticks, __ATOMIC_RELAXED) : 0;
    return atomic_load_explicit(&nccl->order.completed, memory_order_relaxed) + ticks;
}

const spark_comm_backend sc_nccl_backend = {
    .struct_size = sizeof(spark_comm_backend),
    .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
    .traits =
        SPARK_COMM_TRAIT_STREAM_ORDERED | SPARK_COMM_TRAIT_CAPTURABLE | SPARK_COMM_TRAIT_MULTI_HOST,
    .name = "nccl",
    .memory = SPARK_COMM_MEMORY_DEVICE,
    .probe = sc_nccl_open_probe,
    .open = sc_nccl_open_backend,
    .close = sc_nccl_open_close,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .barrier = barrier,
    .point_to_point = point_to_point,
    .register_buffer = sc_nccl_memory_register,
    .deregister_buffer = sc_nccl_memory_deregister,
    .symmetric_alloc = sc_nccl_memory_alloc,
    .symmetric_free = sc_nccl_memory_free,
    .set_add_kernel = set_add_kernel,
    .interrupt = sc_nccl_open_interrupt,
    .reopen = sc_nccl_open_reopen,
    .describe = sc_thresholds_describe,
    .device_progress = device_progress,
    .check_pointer = check_pointer,
    .copy_to_host = sc_stage_to_host,
    .copy_from_host = sc_stage_from_host,
    .stream_state = stream_state,
    .library = library,
};
