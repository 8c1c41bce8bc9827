/*
 * Turns, numbers and records. The hot path is in lane.h, with sc_lane_note_entry here: one lock, two
 * reads of the tick counter, plain stores into lines that this rank alone writes; no system call.
 */
#include "api/lane.h"

#include <stdio.h>
#include <string.h>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/status.h"

int64_t sc_lane_deadline(const struct spark_comm *comm, int timeout_ms) {
    int limit = timeout_ms != 0 ? timeout_ms : comm->settings.op_timeout_ms;
    return limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(limit);
}

static spark_comm_status no_turn(struct spark_comm *comm, int lane, int operation) {
    int holder = (int)atomic_load_explicit(&comm->lanes[lane].lock.holder, memory_order_relaxed);
    return sc_handle_refuse(
        comm, SPARK_COMM_BUSY, operation, -1,
        "another thread's %s held the %s lane until the deadline; this call took no number",
        sc_status_operation_name(holder), lane == SPARK_COMM_LANE_COMMAND ? "command" : "data");
}

/* Lane held: what may have happened while it was waited for. */
spark_comm_status sc_lane_look_around(struct spark_comm *comm, int lane, int operation,
                                      bool even_if_poisoned) {
    struct sc_lane *own = &comm->lanes[lane];
    atomic_store_explicit(&own->lock.holder, operation, memory_order_relaxed);
    if (__builtin_expect(
            atomic_load_explicit(&comm->magic, memory_order_relaxed) != SC_HANDLE_ALIVE, 0)) {
        sc_lock_give(&own->lock);
        return SPARK_COMM_ABORTED; /* closed while this call waited for its turn */
    }
    /* Acquire: partner of the release with which the world stores the cause before the word. */
    if (!even_if_poisoned &&
        __builtin_expect(atomic_load_explicit(comm->poison, memory_order_acquire) != 0, 0)) {
        spark_comm_status st = sc_handle_poisoned(comm);
        sc_lock_give(&own->lock);
        return st;
    }
    return SPARK_COMM_OK;
}

spark_comm_status sc_lane_enter(struct spark_comm *comm, int lane, int operation, int64_t deadline,
                                bool even_if_poisoned) {
    const _Atomic uint32_t *give_up = even_if_poisoned ? NULL : comm->poison;
    spark_comm_status st = SPARK_COMM_OK;
    bool has_turn = false;
    if (!sc_handle_hold(comm)) return SPARK_COMM_ABORTED; /* closed since the call began */
    while (st == SPARK_COMM_OK && !has_turn) {
        has_turn = sc_lock_take(&comm->lanes[lane].lock, deadline, give_up);
        if (has_turn)
            st = sc_lane_look_around(comm, lane, operation, even_if_poisoned);
        else if (give_up != NULL && atomic_load_explicit(give_up, memory_order_acquire) != 0)
            st = sc_handle_poisoned(comm); /* OK: tries again */
        else
            st = sc_deadline_passed(deadline) ? no_turn(comm, lane, operation) : SPARK_COMM_OK;
    }
    sc_handle_let_go(comm);
    return st;
}

void sc_lane_leave(struct spark_comm *comm, int lane) {
    sc_lock_give(&comm->lanes[lane].lock);
}

/* Records hold no addresses: a stream is shown as a small number that tells it from others. */
uint64_t sc_lane_stream_label(uint64_t stream) {
    return stream == 0 ? 0 : (stream * UINT64_C(0x9e3779b97f4a7c15)) >> 40;
}

static void log_submission(const struct sc_lane_call *call) {
    sc_log_write(&call->comm->log, SPARK_COMM_LOG_DEBUG,
                 "%s #%llu (%llu bytes, %s, peer %d) submitted",
                 sc_status_operation_name(call->operation), (unsigned long long)call->number,
                 (unsigned long long)call->bytes,
                 call->dtype != 0 ? sc_dtype_name(call->dtype) : "no type", call->peer);
}

/* Inside before the lane is given back: close waits for lanes first, then for whoever is inside. */
spark_comm_status sc_lane_look_again(struct spark_comm *comm, int lane, int operation) {
    if (!sc_handle_hold(comm)) {
        sc_lock_give(&comm->lanes[lane].lock);
        return SPARK_COMM_ABORTED; /* closed while this call waited for its turn */
    }
    spark_comm_status st = sc_lane_look_around(comm, lane, operation, false);
    sc_handle_let_go(comm);
    return st;
}

spark_comm_status sc_lane_await_turn(struct spark_comm *comm, int lane, int operation,
                                     int timeout_ms, int64_t *deadline) {
    *deadline = sc_lane_deadline(comm, timeout_ms);
    return sc_lane_enter(comm, lane, operation, *deadline, false);
}

int64_t sc_lane_deadline_at(struct spark_comm *comm, int lane, int timeout_ms, uint64_t ticks) {
    int limit = timeout_ms != 0 ? timeout_ms : comm->settings.op_timeout_ms;
    if (limit == SPARK_COMM_FOREVER) return SC_DEADLINE_NEVER;
    return sc_ticks_scale_ns(&comm->lanes[lane].scale, ticks) + limit * INT64_C(1000000);
}

/* Shows the peers what this rank is in. */
static inline void show(struct sc_world_line *line, const struct sc_lane_call *call,
                        uint64_t descriptor, uint64_t ticks) {
    atomic_store_explicit(&line->descriptor, descriptor, memory_order_relaxed);
    atomic_store_explicit(&line->bytes, call->bytes, memory_order_relaxed);
    atomic_store_explicit(&line->submit_ticks, ticks, memory_order_relaxed);
    atomic_store_explicit(&line->past[call->number % SC_WORLD_PAST].descriptor, descriptor,
                          memory_order_relaxed);
    atomic_store_explicit(&line->past[call->number % SC_WORLD_PAST].bytes, call->bytes,
                          memory_order_relaxed);
    /* Release: whoever acquires this number sees the fields above, or later ones. */
    atomic_store_explicit(&line->submitted, call->number, memory_order_release);
}

void sc_lane_note_entry(struct sc_lane_call *call) {
    struct spark_comm *comm = call->comm;
    struct sc_world_line *line = comm->lanes[call->lane].line;
    uint64_t ticks = sc_ticks_now();
    uint64_t descriptor = sc_world_describe(call->operation, call->dtype, call->redop, call->peer);
    if (call->deadline == 0)
        call->deadline = sc_lane_deadline_at(comm, call->lane, call->timeout_ms, ticks);
    if (__builtin_expect(!call->captured, 1)) show(line, call, descriptor, ticks);
    call->record = sc_recorder_begin(&comm->recorder, call->lane, call->number, descriptor,
                                     call->bytes, sc_lane_stream_label(call->stream), ticks);
    call->noted = true;
    if (__builtin_expect(comm->logs_submissions, 0)) log_submission(call);
}

spark_comm_status sc_lane_begin(struct sc_lane_call *call) {
    spark_comm_status st = sc_lane_take_turn(call);
    if (__builtin_expect(st == SPARK_COMM_OK, 1)) sc_lane_note_entry(call);
    return st;
}

/* Whatever a backend says, the sentence names the operation. */
void sc_lane_name_operation(struct sc_error *error, int operation, uint64_t number) {
    char message[sizeof error->message];
    const char *name = sc_status_operation_name(operation);
    if (strstr(error->message, name) != NULL) return;
    memcpy(message, error->message, sizeof message);
    snprintf(error->message, sizeof error->message, "%s #%llu: %.400s", name,
             (unsigned long long)number, message);
}

/* Slow: the operation failed. Fills in what only the lane knows; a fatal status becomes the
 * communicator's first cause. */
static spark_comm_status end_failed(struct sc_lane_call *call, spark_comm_status status,
                                    struct sc_error *error) {
    struct spark_comm *comm = call->comm;
    error->status = status;
    error->operation = call->operation;
    error->sequence = call->number;
    error->epoch = sc_world_epoch(comm->world);
    sc_lane_name_operation(error, call->operation, call->number);
    bool poisoned = atomic_load_explicit(comm->poison, memory_order_acquire) != 0;
    if (!sc_status_is_fatal(status)) {
        if (call->captured) return sc_handle_failed(comm, error);
        /* Nothing happened, so the number is free again: the lane is held, nobody has a later one. */
        uint64_t before = --comm->lanes[call->lane].number;
        atomic_store_explicit(&comm->lanes[call->lane].line->submitted, before,
                              memory_order_release);
        return sc_handle_failed(comm, error);
    }
    if (!(status == SPARK_COMM_ABORTED && poisoned)) sc_world_fault(comm->world, error);
    return sc_handle_poisoned(comm);
}

spark_comm_status sc_lane_end_slow(struct sc_lane_call *call, spark_comm_status status,
                                   struct sc_error *error) {
    struct spark_comm *comm = call->comm;
    if (!call->noted) sc_lane_note_entry(call);
    if (status == SPARK_COMM_OK && !call->captured) return sc_lane_end(call, status, error);
    if (status != SPARK_COMM_OK) status = end_failed(call, status, error);
    sc_recorder_end(call->record, (int)status, call->captured,
                    atomic_load_explicit(&comm->epoch, memory_order_relaxed), sc_ticks_now());
    sc_lock_give(&comm->lanes[call->lane].lock);
    return status;
}
