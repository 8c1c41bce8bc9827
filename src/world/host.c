/*
 * The table of services that a backend gets. Each service is a thin step to the world: the host
 * all-gather is numbered apart from the lane's own operations (bit 63), since votes are made
 * between them, and alike on all ranks.
 */
#include "world/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/ticks.h"

#define VOTE_NUMBER_BIT (UINT64_C(1) << 63)

static spark_comm_status host_all_gather(void *context, const void *send, void *recv, size_t bytes,
                                         int64_t deadline_ns) {
    struct sc_host *host = context;
    struct sc_error error;
    sc_error_clear(&error);
    spark_comm_status st = sc_host_vote(host, send, recv, bytes, deadline_ns, &error);
    if (st != SPARK_COMM_OK) sc_host_pass(&host->table, &error);
    return st;
}

/* Sleeps on the poison word, so that a fault ends it; nobody rings for the caller's own condition. */
static spark_comm_status host_wait(void *context, bool (*ready)(void *arg), void *arg,
                                   int64_t deadline_ns) {
    struct sc_host *host = context;
    const _Atomic uint32_t *poison = sc_world_poison(host->world);
    _Atomic uint64_t *looked =
        &sc_world_own_line(host->world, SPARK_COMM_LANE_DATA)->looked_ticks;
    int64_t step = 50 * 1000;
    for (unsigned spin = 0; spin < 1000; spin++) {
        if (ready(arg)) return SPARK_COMM_OK;
        sc_wait_pause();
    }
    for (;;) {
        uint64_t ticks = sc_ticks_now();
        if (ready(arg)) return SPARK_COMM_OK;
        atomic_store_explicit(looked, ticks, memory_order_release);
        if (atomic_load_explicit(poison, memory_order_acquire) != 0)
            return ready(arg) ? SPARK_COMM_OK : SPARK_COMM_ABORTED;
        if (sc_deadline_passed(deadline_ns)) return SPARK_COMM_OP_TIMEOUT;
        sc_wait_futex_sleep(poison, 0, sc_deadline_min(deadline_ns, sc_deadline_now() + step));
        if (step < 1000 * 1000) step *= 2;
    }
}

static void host_explain(void *context, int peer, int64_t native_code, const char *message) {
    struct sc_host *host = context;
    sc_error_set(&host->pending, SPARK_COMM_BACKEND, peer, native_code, "%s", message);
    host->explained = true;
}

static void host_report_fault(void *context, spark_comm_status status, int peer,
                              int64_t native_code, const char *message) {
    struct sc_host *host = context;
    struct sc_error error;
    sc_error_clear(&error);
    if (!sc_status_is_fatal(status)) status = SPARK_COMM_BACKEND; /* a fault is fatal */
    sc_error_set(&error, status, peer, native_code, "%s", message);
    error.epoch = sc_world_epoch(host->world);
    sc_world_fault(host->world, &error);
}

static void host_log(void *context, int level, const char *message) {
    const struct sc_host *host = context;
    sc_log_write(host->log, level, "%s", message);
}

spark_comm_status sc_host_init(struct sc_host *host, struct sc_world *world,
                               const struct sc_settings *settings, const struct sc_log *log,
                               struct sc_error *error) {
    int size = sc_world_size(world);
    memset(host, 0, sizeof *host);
    host->members = sc_alloc((size_t)size * sizeof *host->members);
    if (host->members == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0,
                            "open: no memory for the list of %d members", size);
    for (int rank = 0; rank < size; rank++)
        host->members[rank] = rank;
    sc_settings_to_options(settings, &host->options);
    host->world = world;
    host->log = log;
    host->table = (spark_comm_host){
        .struct_size = sizeof host->table,
        .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
        .rank = sc_world_rank(world),
        .member_count = size,
        .epoch = sc_world_epoch(world),
        .members = host->members,
        .options = &host->options,
        .context = host,
        .poison = (const uint32_t *)sc_world_poison(world),
        .all_gather = host_all_gather,
        .wait = host_wait,
        .explain = host_explain,
        .report_fault = host_report_fault,
        .log = host_log,
    };
    return SPARK_COMM_OK;
}

void sc_host_release(struct sc_host *host) {
    sc_free(host->members);
    memset(host, 0, sizeof *host);
}

void sc_host_take_explanation(struct sc_host *host, spark_comm_status status,
                              struct sc_error *error) {
    if (host->explained) {
        *error = host->pending;
        error->status = status;
        host->explained = false;
    } else {
        sc_error_set(error, status, -1, 0, "the backend gave no reason (%s)",
                     sc_status_text(status));
    }
}

spark_comm_status sc_host_vote(struct sc_host *host, const void *send, void *recv, size_t bytes,
                               int64_t deadline, struct sc_error *error) {
    return sc_world_all_gather(host->world, VOTE_NUMBER_BIT | ++host->votes, 0, send, recv, bytes,
                               deadline, error);
}

struct sc_world *sc_host_world(const spark_comm_host *table) {
    return ((struct sc_host *)table->context)->world;
}

const struct sc_log *sc_host_log(const spark_comm_host *table) {
    return ((struct sc_host *)table->context)->log;
}

spark_comm_status sc_host_fail(const spark_comm_host *table, spark_comm_status status, int peer,
                               int64_t native_code, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    table->explain(table->context, peer, native_code, message);
    return status;
}

spark_comm_status sc_host_pass(const spark_comm_host *table, const struct sc_error *error) {
    table->explain(table->context, error->peer, error->native_code, error->message);
    return (spark_comm_status)error->status;
}
