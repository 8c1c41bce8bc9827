/*
 * The engine's data operations: each public call fills one spark_comm_op, which is checked and
 * dispatched here. Broadcasts of up to 4 KiB and messages take other ways (commands.c and groups.c);
 * everything else takes a turn on the data lane and goes to the backend.
 *
 * Dispatch is compiled into each public call, where the kind of operation is a constant and most of
 * it falls away; what is plainly good passes without the checks that know how to say what is wrong.
 * A descriptor is filled after the last atomic load and before the lock: elsewhere the compiler would
 * have to read it back from memory.
 */
#include "api/submit.h"

#include <stddef.h>
#include <string.h>

#include "api/commands.h"
#include "api/groups.h"
#include "api/lane.h"
#include "base/dtype.h"
#include "base/status.h"

spark_comm_status sc_submit_tell_poison(struct spark_comm *comm) {
    if (!sc_handle_hold(comm)) return SPARK_COMM_ABORTED; /* closed since the call began */
    spark_comm_status st = sc_handle_poisoned(comm);
    sc_handle_let_go(comm);
    return st;
}

spark_comm_status sc_submit_tell_group(struct spark_comm *comm, int operation) {
    return sc_handle_refuse(
        comm, SPARK_COMM_WRONG_STATE, operation, -1,
        "a group is open on this thread: only send_to and recv_from may be called before group_end");
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE bool takes_peer(int kind) {
    return kind == SPARK_COMM_OP_BROADCAST || kind == SPARK_COMM_OP_SEND_TO ||
           kind == SPARK_COMM_OP_RECV_FROM;
}

ALWAYS_INLINE bool reduces(int kind) {
    return kind == SPARK_COMM_OP_ALL_REDUCE || kind == SPARK_COMM_OP_REDUCE_SCATTER;
}

const char *sc_submit_name_peer(int kind, bool general) {
    if (general) return "peer";
    if (kind == SPARK_COMM_OP_BROADCAST) return "root";
    return kind == SPARK_COMM_OP_SEND_TO ? "dest_rank" : "src_rank";
}

/* A known type and a known reduction; where there is one, whole elements too. */
static spark_comm_status check_types(struct spark_comm *comm, spark_comm_op *op) {
    if (op->dtype == 0) op->dtype = comm->settings.dtype;
    if (op->redop == 0) op->redop = SPARK_COMM_SUM;
    size_t size = sc_dtype_size(op->dtype);
    if (size == 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, -1,
                                "dtype is %d, known are 1 to 8", op->dtype);
    if (op->redop < SPARK_COMM_SUM || op->redop > SPARK_COMM_AVG)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, -1,
                                "redop is %d, known are 1 to 4", op->redop);
    if (!reduces(op->kind)) {
        op->dtype = op->redop = 0;
        return SPARK_COMM_OK;
    }
    if (op->bytes % size != 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, -1,
                                "bytes is %zu, no whole number of %s elements (%zu bytes each)",
                                op->bytes, sc_dtype_name(op->dtype), size);
    return SPARK_COMM_OK;
}

/* Pointers: those that this rank's part in the operation reads or writes must not be null; the
 * whole must not overflow. */
static spark_comm_status check_memory(struct spark_comm *comm, const spark_comm_op *op,
                                      bool general) {
    int kind = op->kind;
    bool gathers = kind == SPARK_COMM_OP_ALL_GATHER || kind == SPARK_COMM_OP_REDUCE_SCATTER;
    bool root = kind == SPARK_COMM_OP_BROADCAST && op->peer == comm->rank;
    bool needs_send = kind != SPARK_COMM_OP_RECV_FROM && (kind != SPARK_COMM_OP_BROADCAST || root);
    bool needs_recv = kind != SPARK_COMM_OP_SEND_TO && !root;
    if (kind == SPARK_COMM_OP_BARRIER || op->bytes == 0) return SPARK_COMM_OK;
    bool no_send = needs_send && op->send == 0;
    if (no_send || (needs_recv && op->recv == 0))
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "%s is null with bytes %zu",
                                general   ? (no_send ? "send" : "recv")
                                : gathers ? (no_send ? "send_ptr" : "recv_ptr")
                                          : "ptr",
                                op->bytes);
    size_t whole = op->bytes;
    if (gathers && __builtin_mul_overflow(op->bytes, (size_t)comm->world_size, &whole))
        whole = SIZE_MAX;
    uint64_t highest = op->send > op->recv ? op->send : op->recv;
    if (whole > (size_t)PTRDIFF_MAX || highest + whole < highest)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "bytes is %zu: the range wraps around", op->bytes);
    return SPARK_COMM_OK;
}

/* Between these two the backend may be asked something without a lane: neither close nor another thread's
 * reconnect takes its state away. */
static spark_comm_status enter_backend(struct spark_comm *comm) {
    for (;;) {
        if (!sc_handle_hold(comm)) return SPARK_COMM_ABORTED; /* closed since the call began */
        sc_world_pin(comm->world, SC_PIN_BACKEND);
        /* Either this finds the gate shut, or the reconnect that shut it finds this thread inside. */
        if (atomic_load_explicit(comm->poison, memory_order_seq_cst) == 0) return SPARK_COMM_OK;
        sc_world_unpin(comm->world, SC_PIN_BACKEND);
        spark_comm_status st = sc_handle_poisoned(comm);
        sc_handle_let_go(comm);
        if (st != SPARK_COMM_OK) return st;
    }
}

static void leave_backend(struct spark_comm *comm) {
    sc_world_unpin(comm->world, SC_PIN_BACKEND);
    sc_handle_let_go(comm);
}

static spark_comm_status check_device_pointer(struct spark_comm *comm, const spark_comm_op *op) {
    struct sc_error error;
    uint64_t pointers[2] = {op->send, op->recv};
    spark_comm_status st = enter_backend(comm);
    if (st != SPARK_COMM_OK) return st;
    for (int i = 0; i < 2 && st == SPARK_COMM_OK; i++) {
        if (pointers[i] == 0 || op->bytes == 0 || (i == 1 && pointers[1] == pointers[0])) continue;
        st = comm->backend.check_pointer(comm->backend_state, pointers[i], op->bytes);
    }
    sc_error_clear(&error);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, &error);
    leave_backend(comm);
    if (st == SPARK_COMM_OK) return st;
    return sc_handle_refuse(comm, st, op->kind, -1, "%.400s", error.message);
}

/* What may become part of a graph: all that returns when it is enqueued. */
static bool can_be_captured(int operation) {
    return operation == SPARK_COMM_OP_ALL_REDUCE || operation == SPARK_COMM_OP_ALL_GATHER ||
           operation == SPARK_COMM_OP_REDUCE_SCATTER || operation == SPARK_COMM_OP_SEND_TO ||
           operation == SPARK_COMM_OP_RECV_FROM || operation == SPARK_COMM_OP_GROUP;
}

spark_comm_status sc_submit_check_stream(struct spark_comm *comm, int operation, uint64_t stream,
                                         bool *captured) {
    struct sc_error error;
    *captured = false;
    if (comm->backend.stream_state == NULL) return SPARK_COMM_OK;
    spark_comm_status st = enter_backend(comm);
    if (st != SPARK_COMM_OK) return st;
    st = comm->backend.stream_state(comm->backend_state, stream, captured);
    sc_error_clear(&error);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, &error);
    leave_backend(comm);
    if (st != SPARK_COMM_OK)
        return sc_handle_refuse(comm, st, operation, -1, "stream: %.400s", error.message);
    if (!*captured || can_be_captured(operation)) return st;
    return sc_handle_refuse(comm, SPARK_COMM_WRONG_STATE, operation, -1,
                            "the stream captures a graph, and this call waits on the host");
}

spark_comm_status sc_submit_check(struct spark_comm *comm, spark_comm_op *op, bool general) {
    if (op->kind < SPARK_COMM_OP_ALL_REDUCE || op->kind > SPARK_COMM_OP_RECV_FROM)
        return sc_handle_refuse(
            comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
            "submit: kind is %d, an operation is 1 to 7 (SPARK_COMM_OP_ALL_REDUCE to _RECV_FROM)",
            op->kind);
    if ((op->flags & ~(uint32_t)SPARK_COMM_FLAG_EVENT_ORDERED) != 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, -1,
                                "flags is 0x%x, known is 0x1", op->flags);
    if (op->timeout_ms < SPARK_COMM_FOREVER)
        return sc_handle_refuse(
            comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, -1,
            "timeout_ms is %d, allowed are -1 (no limit), 0 (default) and positive values",
            op->timeout_ms);
    if (takes_peer(op->kind)) {
        if (op->peer < 0 || op->peer >= comm->world_size)
            return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, op->peer,
                                    "%s is %d, ranks are 0 to %d",
                                    sc_submit_name_peer(op->kind, general), op->peer,
                                    comm->world_size - 1);
    } else {
        op->peer = -1;
    }
    spark_comm_status st = check_types(comm, op);
    if (op->kind == SPARK_COMM_OP_BARRIER) op->send = op->recv = op->bytes = 0;
    if (st == SPARK_COMM_OK) st = check_memory(comm, op, general);
    if (st == SPARK_COMM_OK && comm->backend.check_pointer != NULL)
        st = check_device_pointer(comm, op);
    return st;
}

ALWAYS_INLINE spark_comm_backend_fn find_function(const spark_comm_backend *backend, int kind) {
    switch (kind) {
    case SPARK_COMM_OP_ALL_REDUCE: return backend->all_reduce;
    case SPARK_COMM_OP_ALL_GATHER: return backend->all_gather;
    case SPARK_COMM_OP_REDUCE_SCATTER: return backend->reduce_scatter;
    case SPARK_COMM_OP_BROADCAST: return backend->broadcast;
    case SPARK_COMM_OP_BARRIER: return backend->barrier;
    default: return backend->point_to_point;
    }
}

/* A collective on the data lane. `call` is the first member, so that the one leads to the other. */
struct collective {
    spark_comm_call call;
    struct sc_lane_call lane;
};

static void note_entry(const spark_comm_call *call) {
    struct collective *whole = (struct collective *)(uintptr_t)call;
    if (!whole->lane.noted) sc_lane_note_entry(&whole->lane);
    whole->call.deadline_ns = whole->lane.deadline;
}

ALWAYS_INLINE spark_comm_status run_collective(struct spark_comm *comm, const spark_comm_op *op,
                                               int kind, spark_comm_backend_fn function) {
    bool late = (comm->backend.traits & SPARK_COMM_TRAIT_LATE_ENTRY) != 0;
    uint32_t digest = sc_lane_digest(kind, op->dtype, op->redop, op->peer, op->bytes);
    bool moves = op->bytes != 0 || kind == SPARK_COMM_OP_BARRIER, captured = false;
    struct collective whole; /* not cleared as a whole, which would cost as much as the rest */
    struct sc_error error;
    spark_comm_status st = SPARK_COMM_OK;
    if (comm->backend.stream_state != NULL) {
        st = sc_submit_check_stream(comm, kind, op->stream, &captured);
        if (st != SPARK_COMM_OK) return st;
    }
    whole.lane = (struct sc_lane_call){.comm = comm,
                                       .lane = SPARK_COMM_LANE_DATA,
                                       .operation = kind,
                                       .dtype = op->dtype,
                                       .redop = op->redop,
                                       .peer = op->peer,
                                       .bytes = op->bytes,
                                       .stream = op->stream,
                                       .captured = captured,
                                       .timeout_ms = op->timeout_ms};
    st = late ? sc_lane_take_turn(&whole.lane) : sc_lane_begin(&whole.lane);
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) return st;
    if (moves) {
        whole.call = (spark_comm_call){
            .struct_size = sizeof whole.call,
            .ops = op,
            .op_count = 1,
            .number = whole.lane.number,
            .epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed),
            /* With the number: a rank that skipped a call differs even where the calls are alike. */
            .digest = digest + (uint32_t)whole.lane.number * 0x9e3779b1u,
            .deadline_ns = whole.lane.deadline,
            .captured = whole.lane.captured,
            .entered = late ? note_entry : NULL};
        st = function(comm->backend_state, &whole.call);
        if (__builtin_expect(st != SPARK_COMM_OK, 0)) {
            sc_error_clear(&error);
            sc_host_take_explanation(&comm->host, st, &error);
        }
    }
    return sc_lane_end(&whole.lane, st, &error);
}

/* True only for arguments that sc_submit_check would accept; fills in its
 * defaults. The bounds on addresses and bytes are far from anything that could overflow. */
ALWAYS_INLINE bool is_plainly_good(const struct spark_comm *comm, spark_comm_op *op, int kind,
                                   bool general) {
    const uint64_t limit = UINT64_C(1) << 62;
    bool good = kind >= SPARK_COMM_OP_ALL_REDUCE && kind <= SPARK_COMM_OP_RECV_FROM &&
                op->flags <= SPARK_COMM_FLAG_EVENT_ORDERED &&
                op->timeout_ms >= SPARK_COMM_FOREVER && comm->backend.check_pointer == NULL;
    if (takes_peer(kind)) {
        good = good && (uint32_t)op->peer < (uint32_t)comm->world_size;
    } else {
        op->peer = -1;
    }
    if (reduces(kind)) {
        if (op->dtype == 0) op->dtype = comm->settings.dtype;
        if (op->redop == 0) op->redop = SPARK_COMM_SUM;
        good = good && (uint32_t)(op->dtype - 1) < SPARK_COMM_I64 &&
               (uint32_t)(op->redop - 1) < SPARK_COMM_AVG &&
               (op->bytes & (((size_t)1 << sc_dtype_shift(op->dtype)) - 1)) == 0;
    } else if (!general ||
               ((uint32_t)op->dtype <= SPARK_COMM_I64 && (uint32_t)op->redop <= SPARK_COMM_AVG)) {
        op->dtype = op->redop = 0;
    } else {
        return false;
    }
    if (kind == SPARK_COMM_OP_BARRIER) {
        op->send = op->recv = op->bytes = 0;
        return good;
    }
    return good && op->send - 1 < limit && op->recv - 1 < limit && op->bytes < (size_t)1 << 40;
}

ALWAYS_INLINE spark_comm_status dispatch(struct spark_comm *comm, spark_comm_op *op, int kind) {
    if (kind == SPARK_COMM_OP_BROADCAST && op->bytes <= SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES)
        return sc_commands_broadcast(comm, op);
    spark_comm_backend_fn function = find_function(&comm->backend, kind);
    if (function == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
                                "backend %s does not have it", comm->backend.name);
    return run_collective(comm, op, kind, function);
}

/* Any kind, with all checks where they are needed. `general`: given to spark_comm_submit, so that any
 * field may hold anything. */
static __attribute__((noinline)) spark_comm_status run_any(struct spark_comm *comm,
                                                           spark_comm_op *op, bool general) {
    if (!is_plainly_good(comm, op, op->kind, general)) {
        spark_comm_status st = sc_submit_check(comm, op, general);
        if (st != SPARK_COMM_OK) return st;
    }
    return dispatch(comm, op, op->kind);
}

/* `kind` is op->kind, and a constant. */
ALWAYS_INLINE spark_comm_status run(struct spark_comm *comm, spark_comm_op *op, int kind) {
    if (__builtin_expect(!is_plainly_good(comm, op, kind, false), 0))
        return run_any(comm, op, false);
    return dispatch(comm, op, kind);
}

ALWAYS_INLINE spark_comm_status enter(struct spark_comm *comm, int kind) {
    spark_comm_status st = sc_handle_check(comm);
    return st == SPARK_COMM_OK ? sc_submit_check_start(comm, kind) : st;
}

/* ---- The public calls ---- */

spark_comm_status spark_comm_all_reduce(spark_comm *comm, uint64_t ptr, size_t bytes) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_ALL_REDUCE);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return run(comm, &op, SPARK_COMM_OP_ALL_REDUCE);
}

spark_comm_status spark_comm_all_reduce_async(spark_comm *comm, uint64_t ptr, size_t bytes,
                                              uint64_t compute_stream) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_ALL_REDUCE);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .stream = compute_stream,
                        .flags = SPARK_COMM_FLAG_EVENT_ORDERED};
    return run(comm, &op, SPARK_COMM_OP_ALL_REDUCE);
}

spark_comm_status spark_comm_all_gather(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                        size_t bytes) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_ALL_GATHER);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_GATHER,
                        .send = send_ptr,
                        .recv = recv_ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return run(comm, &op, SPARK_COMM_OP_ALL_GATHER);
}

spark_comm_status spark_comm_reduce_scatter(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                            size_t bytes) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_REDUCE_SCATTER);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_REDUCE_SCATTER,
                        .send = send_ptr,
                        .recv = recv_ptr,
                        .bytes = bytes,
                        .stream = comm->settings.stream};
    return run(comm, &op, SPARK_COMM_OP_REDUCE_SCATTER);
}

spark_comm_status spark_comm_broadcast(spark_comm *comm, uint64_t ptr, size_t bytes, int root) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_BROADCAST);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_BROADCAST,
                        .send = ptr,
                        .recv = ptr,
                        .bytes = bytes,
                        .peer = root,
                        .stream = comm->settings.stream};
    return run(comm, &op, SPARK_COMM_OP_BROADCAST);
}

spark_comm_status spark_comm_barrier(spark_comm *comm) {
    spark_comm_status st = enter(comm, SPARK_COMM_OP_BARRIER);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_op op = {
        .struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER, .stream = comm->settings.stream};
    return run(comm, &op, SPARK_COMM_OP_BARRIER);
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
    return sc_groups_post(comm, &op, false);
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
    return sc_groups_post(comm, &op, false);
}

/* The caller's struct may be shorter (defaults for the rest) or longer (zero beyond what is
 * known here). */
spark_comm_status spark_comm_submit(spark_comm *comm, const spark_comm_op *op) {
    spark_comm_op whole;
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    if (op == NULL || op->struct_size < sizeof op->struct_size)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
                                "submit: op is %s", op == NULL ? "null" : "without a struct_size");
    for (size_t i = sizeof whole; i < op->struct_size; i++)
        if (((const unsigned char *)op)[i] != 0)
            return sc_handle_refuse(
                comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
                "submit: op.struct_size is %zu and byte %zu is not zero: this library (%zu bytes) does not know it",
                op->struct_size, i, sizeof whole);
    memset(&whole, 0, sizeof whole);
    memcpy(&whole, op, op->struct_size < sizeof whole ? op->struct_size : sizeof whole);
    whole.struct_size = sizeof whole;
    if (whole.kind == SPARK_COMM_OP_SEND_TO || whole.kind == SPARK_COMM_OP_RECV_FROM)
        return sc_groups_post(comm, &whole, true);
    st = sc_submit_check_start(comm, whole.kind);
    return st == SPARK_COMM_OK ? run_any(comm, &whole, true) : st;
}
