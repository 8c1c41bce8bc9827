/*
 * Turns, numbers and records. The hot path is sc_lane_begin and sc_lane_end with nothing wrong: one
 * lock, two reads of the tick counter, plain stores into lines that this rank alone writes; no
 * system call.
 */
#include "api/lane.h"

#include <stdio.h>
#include <string.h>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/status.h"

uint32_t sc_lane_digest(int operation, int dtype, int redop, int peer, uint64_t bytes) {
    uint64_t key = (uint64_t)(uint8_t)operation | (uint64_t)(uint8_t)dtype << 8 |
                   (uint64_t)(uint8_t)redop << 16 | (uint64_t)(uint32_t)peer << 32;
    /* Two rounds of multiply and fold (constants: 64-bit fractions of the golden ratio and of
     * the square root of 2). */
    uint64_t mixed = (key ^ UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0x6a09e667f3bcc909) + bytes;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32);
}

int64_t sc_lane_deadline(const struct spark_comm *comm, int timeout_ms) {
    int limit = timeout_ms != 0 ? timeout_ms : comm->settings.op_timeout_ms;
    return limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(limit);
}

static spark_comm_status no_turn(struct spark_comm *comm, int lane, int operation, bool poisoned) {
    int holder = (int)atomic_load_explicit(&comm->lanes[lane].lock.holder, memory_order_relaxed);
    if (poisoned) return sc_handle_poisoned(comm, operation);
    return sc_handle_refuse(
        comm, SPARK_COMM_BUSY, operation, -1,
        "another thread's %s held the %s lane until the deadline; this call took no number",
        sc_status_operation_name(holder), lane == SPARK_COMM_LANE_COMMAND ? "command" : "data");
}

/* Lane held: what may have happened while it was waited for. */
static spark_comm_status look_around(struct spark_comm *comm, int lane, int operation,
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
        sc_lock_give(&own->lock);
        return sc_handle_poisoned(comm, operation);
    }
    return SPARK_COMM_OK;
}

spark_comm_status sc_lane_enter(struct spark_comm *comm, int lane, int operation, int64_t deadline,
                                bool even_if_poisoned) {
    const _Atomic uint32_t *give_up = even_if_poisoned ? NULL : comm->poison;
    spark_comm_status st;
    if (!sc_handle_hold(comm)) return SPARK_COMM_ABORTED; /* closed since the call began */
    if (sc_lock_take(&comm->lanes[lane].lock, deadline, give_up))
        st = look_around(comm, lane, operation, even_if_poisoned);
    else
        st = no_turn(comm, lane, operation,
                     give_up != NULL && atomic_load_explicit(give_up, memory_order_acquire) != 0);
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

/* Takes the number, and shows the peers what this rank is in. */
static inline void show(struct sc_lane *own, const struct sc_lane_call *call, uint64_t descriptor,
                        uint64_t ticks) {
    struct sc_world_line *line = own->line;
    own->number = call->number;
    atomic_store_explicit(&line->descriptor, descriptor, memory_order_relaxed);
    atomic_store_explicit(&line->bytes, call->bytes, memory_order_relaxed);
    atomic_store_explicit(&line->submit_ticks, ticks, memory_order_relaxed);
    /* Release: whoever acquires this number sees the fields above, or later ones. */
    atomic_store_explicit(&line->submitted, call->number, memory_order_release);
}

spark_comm_status sc_lane_begin(struct sc_lane_call *call) {
    struct spark_comm *comm = call->comm;
    struct sc_lane *own = &comm->lanes[call->lane];
    int limit = call->timeout_ms != 0 ? call->timeout_ms : comm->settings.op_timeout_ms;
    uint64_t ticks = sc_ticks_now();
    spark_comm_status st;
    if (__builtin_expect(sc_lock_try(&own->lock), 1)) {
        st = look_around(comm, call->lane, call->operation, false);
        call->deadline = SC_DEADLINE_NEVER;
        if (limit != SPARK_COMM_FOREVER)
            call->deadline = sc_ticks_scale_ns(&own->scale, ticks) + limit * INT64_C(1000000);
    } else {
        call->deadline = limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(limit);
        st = sc_lane_enter(comm, call->lane, call->operation, call->deadline, false);
    }
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) return st;
    call->number = own->number + !call->captured;
    uint64_t descriptor = sc_world_describe(call->operation, call->dtype, call->redop, call->peer);
    if (__builtin_expect(!call->captured, 1)) show(own, call, descriptor, ticks);
    call->record = sc_recorder_begin(&comm->recorder, call->lane, call->number, descriptor,
                                     call->bytes, sc_lane_stream_label(call->stream), ticks);
    if (__builtin_expect(comm->logs_submissions, 0)) log_submission(call);
    return SPARK_COMM_OK;
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
    return sc_handle_poisoned(comm, call->operation);
}

spark_comm_status sc_lane_end(struct sc_lane_call *call, spark_comm_status status,
                              struct sc_error *error) {
    struct spark_comm *comm = call->comm;
    struct sc_lane *own = &comm->lanes[call->lane];
    if (__builtin_expect(status != SPARK_COMM_OK, 0)) status = end_failed(call, status, error);
    uint64_t ticks = sc_ticks_now();
    if (status == SPARK_COMM_OK && !call->captured) {
        atomic_store_explicit(&own->line->complete_ticks, ticks, memory_order_relaxed);
        /* Release: partner of the readers of status lines. */
        atomic_store_explicit(&own->line->completed, call->number, memory_order_release);
    }
    sc_recorder_end(call->record, (int)status, call->captured, comm->host.table.epoch, ticks);
    sc_lock_give(&own->lock);
    return status;
}
