/*
 * The order of submissions. Operations of one communicator never run at the same time: while they
 * stay on one stream the stream orders them, and when the stream changes the new one waits for an
 * event behind the latest operation. Such events also serve as marks, which tell how far the GPU is:
 * at least one per window of 64 launches, and one behind every operation on a stream that may go
 * away (all but options.stream and our own). The watcher marks the rest of a window that stays short.
 *
 * A captured operation runs when its graph is launched, which the caller orders; nothing is chained
 * or marked inside a capture. Its graph gets an object that tells when it is destroyed, and a tick in
 * front of its first operation that counts replays.
 */
#include "backends/nccl/state.h"

#include "base/alloc.h"
#include "base/deadline.h"

static spark_comm_status make_events(struct sc_nccl *nccl) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_order *order = &nccl->order;
    int result = SC_CU_OK;
    for (size_t i = 0; i < SC_NCCL_MARKS && result == SC_CU_OK; i++)
        result = cuda->event_create(&order->marks[i].event, SC_CU_EVENT_DISABLE_TIMING);
    for (size_t i = 0; i < SC_NCCL_FORKS && result == SC_CU_OK; i++)
        result = cuda->event_create(&order->forks[i], SC_CU_EVENT_DISABLE_TIMING);
    if (result == SC_CU_OK) result = cuda->event_create(&nccl->before, SC_CU_EVENT_DISABLE_TIMING);
    if (result == SC_CU_OK) result = cuda->event_create(&nccl->after, SC_CU_EVENT_DISABLE_TIMING);
    return result == SC_CU_OK ? SPARK_COMM_OK : sc_nccl_cuda_fail(nccl, result, "cuEventCreate");
}

spark_comm_status sc_order_open(struct sc_nccl *nccl) {
    const struct sc_driver *cuda = nccl->device.cuda;
    int result = cuda->stream_create(&nccl->stream, SC_CU_STREAM_NON_BLOCKING, 0);
    if (result != SC_CU_OK) return sc_nccl_cuda_fail(nccl, result, "cuStreamCreateWithPriority");
    result = cuda->host_alloc((void **)&nccl->ticks, sizeof *nccl->ticks,
                              SC_CU_HOST_PORTABLE | SC_CU_HOST_MAPPED);
    if (result == SC_CU_OK) {
        *nccl->ticks = 0;
        result = cuda->host_device_pointer(&nccl->ticks_device, nccl->ticks, 0);
    }
    if (result != SC_CU_OK) return sc_nccl_cuda_fail(nccl, result, "cuMemHostAlloc");
    nccl->graphs = sc_alloc_zero(sizeof *nccl->graphs);
    if (nccl->graphs == NULL)
        return sc_host_fail(nccl->host, SPARK_COMM_NO_MEMORY, -1, 0, "open: out of memory");
    atomic_store_explicit(&nccl->graphs->references, 1, memory_order_relaxed);
    return make_events(nccl);
}

static void destroy_event(const struct sc_nccl *nccl, sc_cu_event *event) {
    if (*event != NULL) nccl->device.cuda->event_destroy(*event);
    *event = NULL;
}

void sc_order_close(struct sc_nccl *nccl) {
    const struct sc_driver *cuda = nccl->device.cuda;
    for (size_t i = 0; i < SC_NCCL_MARKS; i++)
        destroy_event(nccl, &nccl->order.marks[i].event);
    for (size_t i = 0; i < SC_NCCL_FORKS; i++)
        destroy_event(nccl, &nccl->order.forks[i]);
    destroy_event(nccl, &nccl->before);
    destroy_event(nccl, &nccl->after);
    if (nccl->stream != NULL) cuda->stream_destroy(nccl->stream);
    if (nccl->ticks != NULL) cuda->host_free(nccl->ticks);
    if (nccl->graphs != NULL) sc_watch_release_graphs(nccl->graphs);
    nccl->stream = NULL;
    nccl->ticks = NULL;
    nccl->graphs = NULL;
}

void sc_order_reset(struct sc_nccl *nccl) {
    struct sc_nccl_order *order = &nccl->order;
    sc_lock_take(&order->lock, SC_DEADLINE_NEVER, NULL);
    order->any = false;
    order->tail = order->head;
    order->marked = order->submitted;
    order->marked_launches = order->passed_launches = order->launched;
    atomic_store_explicit(&order->completed, order->submitted, memory_order_relaxed);
    order->graph_id = 0;
    order->progress_ns = sc_deadline_now();
    sc_lock_give(&order->lock);
}

/* ---- Marks ---- */

/* Marks pass in their order, so the newest is asked first, then the middle of what is left: a caller
 * may wait for this lock. An event that a capture took in tells nothing; the next mark will. */
void sc_order_poll(struct sc_nccl *nccl) {
    struct sc_nccl_order *order = &nccl->order;
    uint64_t high = order->head, at = high - 1;
    for (; order->tail < high; at = order->tail + (high - order->tail) / 2) {
        struct sc_nccl_mark *mark = &order->marks[at % SC_NCCL_MARKS];
        int result = nccl->device.cuda->event_query(mark->event);
        bool skipped = result == SC_CU_CAPTURED_EVENT && at == order->tail;
        if (result != SC_CU_OK && !skipped) {
            high = at;
            continue;
        }
        order->tail = at + 1;
        if (skipped) continue;
        atomic_store_explicit(&order->completed, mark->count, memory_order_relaxed);
        order->passed_launches = mark->launched;
        order->progress_ns = sc_deadline_now();
    }
}

/* Records an event behind everything submitted so far; `stream` is that of the latest operation. */
static int mark(struct sc_nccl *nccl, sc_cu_stream stream) {
    struct sc_nccl_order *order = &nccl->order;
    struct sc_nccl_mark *mark = &order->marks[order->head % SC_NCCL_MARKS];
    int result = nccl->device.cuda->event_record(mark->event, stream);
    if (result != SC_CU_OK) return result;
    mark->count = order->marked = order->submitted;
    mark->launched = order->marked_launches = order->launched;
    order->head++;
    return result;
}

static bool stream_stays(const struct sc_nccl *nccl, sc_cu_stream stream) {
    return stream == nccl->default_stream || stream == nccl->stream;
}

static bool is_capturing(const struct sc_nccl *nccl, sc_cu_stream stream) {
    sc_cu_capture_status status = (sc_cu_capture_status)0;
    return nccl->device.cuda->stream_capturing(stream, &status) != SC_CU_OK || status != 0;
}

void sc_order_mark_rest(struct sc_nccl *nccl) {
    struct sc_nccl_order *order = &nccl->order;
    if (order->marked == order->submitted || order->head - order->tail >= SC_NCCL_MARKS - 1) return;
    if (stream_stays(nccl, order->last) && !is_capturing(nccl, order->last))
        mark(nccl, order->last);
}

struct await {
    const struct sc_nccl *nccl;
    sc_cu_event event;
    int result;
};

static bool event_passed(void *arg) {
    struct await *await = arg;
    await->result = await->nccl->device.cuda->event_query(await->event);
    return await->result != SC_CU_NOT_READY;
}

spark_comm_status sc_order_await(struct sc_nccl *nccl, sc_cu_event event, int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    struct await await = {nccl, event, SC_CU_OK};
    spark_comm_status st = host->wait(host->context, event_passed, &await, deadline);
    if (st == SPARK_COMM_OP_TIMEOUT)
        return sc_host_fail(host, st, -1, 0,
                            "the GPU did not come so far before the deadline; a peer that does not "
                            "take part, or work queued before it");
    if (st == SPARK_COMM_ABORTED)
        return sc_host_fail(host, st, -1, 0, "ended while it waited for the GPU");
    return await.result == SC_CU_OK ? st : sc_nccl_cuda_fail(nccl, await.result, "cuEventQuery");
}

/* ---- One operation ---- */

int64_t sc_order_deadline(const struct sc_nccl *nccl, const spark_comm_op *op) {
    int limit = op->timeout_ms != 0 ? op->timeout_ms : nccl->host->options->op_timeout_ms;
    return limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(limit);
}

static inline bool is_ahead(const struct sc_nccl_order *order) {
    return order->launched - order->passed_launches >= SC_NCCL_RUN_AHEAD;
}

/* No more than so many launches may be outstanding: NCCL's proxy has a pool that runs dry, and a driver
 * whose queue is full keeps the caller inside. Context current. */
static spark_comm_status await_room(struct sc_nccl *nccl, int64_t deadline) {
    struct sc_nccl_order *order = &nccl->order;
    spark_comm_status st = SPARK_COMM_OK;
    for (;;) {
        sc_order_poll(nccl);
        if (!is_ahead(order) || order->tail == order->head) return st;
        st = sc_order_await(nccl, order->marks[order->tail % SC_NCCL_MARKS].event, deadline);
        if (st != SPARK_COMM_OK) return st;
    }
}

static spark_comm_status hold_back(struct sc_nccl *nccl, int64_t deadline) {
    struct sc_device_scope scope;
    if (__builtin_expect(!is_ahead(&nccl->order), 1)) return SPARK_COMM_OK;
    sc_device_enter(&nccl->device, &scope, true);
    spark_comm_status st = await_room(nccl, deadline);
    sc_device_leave(&nccl->device, &scope);
    return st;
}

spark_comm_status sc_order_breathe(struct sc_nccl *nccl, const spark_comm_op *op,
                                   sc_cu_stream stream, unsigned launches) {
    struct sc_nccl_order *order = &nccl->order;
    spark_comm_status st = SPARK_COMM_OK;
    if (!order->eager) return st;
    if (order->launched - order->marked_launches >= SC_NCCL_WINDOW) {
        int result = mark(nccl, stream);
        if (result != SC_CU_OK) return sc_nccl_cuda_fail(nccl, result, "cuEventRecord");
    }
    if (is_ahead(order)) st = await_room(nccl, sc_order_deadline(nccl, op));
    if (st == SPARK_COMM_OK) order->launched += launches;
    return st;
}

/* `stream` waits for the latest operation, which ran on another. */
static int chain(struct sc_nccl *nccl, sc_cu_stream stream) {
    struct sc_nccl_order *order = &nccl->order;
    if (!order->any || order->last == stream) return SC_CU_OK;
    if (order->marked != order->submitted) {
        /* Only a stream that stays has unmarked operations. While it captures, what was queued there
         * before the capture has no event; the caller orders graphs against eager calls. */
        if (is_capturing(nccl, order->last)) return SC_CU_OK;
        int result = mark(nccl, order->last);
        if (result != SC_CU_OK) return result;
    }
    return nccl->device.cuda->stream_wait(stream,
                                          order->marks[(order->head - 1) % SC_NCCL_MARKS].event, 0);
}

/* ---- Captured operations ---- */

static void graph_gone(void *arg) {
    struct sc_nccl_graphs *graphs = arg;
    atomic_fetch_sub_explicit(&graphs->live, 1, memory_order_release);
    sc_watch_release_graphs(graphs);
}

int sc_order_tick(struct sc_nccl *nccl, sc_cu_stream stream) {
    void *arguments[] = {&nccl->ticks_device};
    if (nccl->kernels.tick == NULL) return SC_CU_OK;
    return nccl->device.cuda->launch(nccl->kernels.tick, 1, 1, 1, 1, 1, 1, 0, stream, arguments,
                                     NULL);
}

/* The first operation in a graph makes the graph known. */
static int note_graph(struct sc_nccl *nccl, sc_cu_stream stream) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_graphs *graphs = nccl->graphs;
    sc_cu_capture_status status = (sc_cu_capture_status)0;
    sc_cu_user_object object = NULL;
    sc_cu_graph graph = NULL;
    uint64_t id = 0;
    int result = cuda->stream_capture_info(stream, &status, &id, &graph, NULL, NULL);
    if (result != SC_CU_OK || id == nccl->order.graph_id) return result;
    result = cuda->user_object(&object, graphs, graph_gone, 1, SC_CU_USER_OBJECT_NO_SYNC);
    if (result != SC_CU_OK) return result;
    atomic_fetch_add_explicit(&graphs->references, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&graphs->live, 1, memory_order_relaxed);
    result = cuda->graph_retain(graph, object, 1, SC_CU_GRAPH_MOVE);
    if (result != SC_CU_OK) graph_gone(graphs);
    if (result == SC_CU_OK) result = sc_order_tick(nccl, stream);
    nccl->order.graph_id = id;
    return result;
}

static int prepare_stream(struct sc_nccl *nccl, struct sc_order_turn *turn) {
    const struct sc_driver *cuda = nccl->device.cuda;
    struct sc_nccl_order *order = &nccl->order;
    if (turn->captured) return note_graph(nccl, turn->stream);
    int result = chain(nccl, turn->stream);
    if (result != SC_CU_OK || !turn->forked) return result;
    sc_cu_event fork = order->forks[order->next_fork++ % SC_NCCL_FORKS];
    result = cuda->event_record(fork, turn->caller);
    return result == SC_CU_OK ? cuda->stream_wait(turn->stream, fork, 0) : result;
}

spark_comm_status sc_order_begin(struct sc_nccl *nccl, const spark_comm_call *call,
                                 struct sc_order_turn *turn) {
    const spark_comm_op *op = call->ops;
    spark_comm_status st = SPARK_COMM_OK;
    turn->caller = (sc_cu_stream)(uintptr_t)op->stream;
    turn->captured = call->captured != 0;
    /* Inside a capture the operation stays on the stream that captures: it is ordered there anyway. */
    turn->forked = (op->flags & SPARK_COMM_FLAG_EVENT_ORDERED) != 0 && !turn->captured;
    turn->stream = turn->forked ? nccl->stream : turn->caller;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    if (nccl->comm == NULL) {
        st = nccl->shared_gpu
                 ? sc_host_fail(nccl->host, SPARK_COMM_NOT_SUPPORTED, -1, 0,
                                "ranks share a GPU (SPARK_COMM_ALLOW_SHARED_GPU), so NCCL is kept "
                                "out, and nothing else serves this")
                 : sc_host_fail(nccl->host, SPARK_COMM_ABORTED, -1, 0, "NCCL was ended before");
        goto fail;
    }
    if (!turn->captured) st = hold_back(nccl, call->deadline_ns);
    if (st != SPARK_COMM_OK) goto fail;
    sc_device_enter(&nccl->device, &turn->scope, false);
    nccl->order.eager = !turn->captured;
    int result = prepare_stream(nccl, turn);
    if (result == SC_CU_OK) return st;
    st = sc_nccl_cuda_fail(nccl, result, "ordering streams");
    sc_device_leave(&nccl->device, &turn->scope);
fail:
    sc_lock_give(&nccl->order.lock);
    return st;
}

spark_comm_status sc_order_end(struct sc_nccl *nccl, struct sc_order_turn *turn,
                               spark_comm_status status) {
    struct sc_nccl_order *order = &nccl->order;
    int result = SC_CU_OK;
    if (status == SPARK_COMM_OK && !turn->captured) {
        if (order->submitted == atomic_load_explicit(&order->completed, memory_order_relaxed))
            order->progress_ns =
                sc_deadline_now(); /* work begins: idle time is no lack of progress */
        order->submitted++;
        order->launched += turn->forked ? 2 : 1; /* waits of events queue up too */
        order->last = turn->stream;
        order->any = true;
        bool due = order->launched - order->marked_launches >= SC_NCCL_WINDOW;
        if (due || turn->forked || !stream_stays(nccl, turn->stream))
            result = mark(nccl, turn->stream);
        if (result == SC_CU_OK && turn->forked)
            result = nccl->device.cuda->stream_wait(
                turn->caller, order->marks[(order->head - 1) % SC_NCCL_MARKS].event, 0);
        if (result != SC_CU_OK) status = sc_nccl_cuda_fail(nccl, result, "ordering streams");
    }
    sc_device_leave(&nccl->device, &turn->scope);
    sc_lock_give(&order->lock);
    sc_watch_wake(nccl);
    return status;
}
