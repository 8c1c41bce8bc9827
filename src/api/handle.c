/*
 * The pool of handles, their checks, and the error record that spark_comm_last_error shows.
 */
#include "api/handle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"
#include "os/thread.h"

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER; /* guards pool; leaf */
static struct spark_comm *pool;

/* What a handle that is not open looks at: late readers find it poisoned. */
static const _Atomic uint32_t closed_poison = SPARK_COMM_ABORTED;

struct spark_comm *sc_handle_take(void) {
    pthread_mutex_lock(&pool_lock);
    struct spark_comm *comm = pool;
    if (comm != NULL) pool = comm->next_free;
    pthread_mutex_unlock(&pool_lock);
    if (comm == NULL) {
        comm = sc_alloc_aligned(64, sizeof *comm);
        if (comm == NULL) return NULL;
        pthread_mutex_init(&comm->errors.lock, NULL);
        atomic_store_explicit(&comm->magic, SC_HANDLE_CLOSED, memory_order_relaxed);
    }
    comm->next_free = NULL;
    comm->poison = &closed_poison;
    comm->fork_count = sc_thread_fork_count();
    comm->errors.last = (struct sc_error){.peer = -1};
    return comm;
}

/* Everything but the magic word and the mutex goes back to zero: a late reader finds CLOSED and
 * stops. */
void sc_handle_give(struct spark_comm *comm) {
    atomic_store_explicit(&comm->magic, SC_HANDLE_CLOSED, memory_order_release);
    comm->poison = &closed_poison;
    memset(&comm->backend, 0, sizeof comm->backend);
    comm->backend_state = NULL;
    memset(comm->lanes, 0, sizeof comm->lanes);
    memset(&comm->group, 0, sizeof comm->group);
    comm->sent = comm->received = NULL;
    comm->registrations = NULL;
    comm->registration_count = comm->registration_capacity = 0;
    comm->last_handle = 0;
    memset(&comm->attempt, 0, sizeof comm->attempt);
    memset(&comm->settings, 0, sizeof comm->settings); /* the token does not stay in memory */
    comm->world = NULL;
    pthread_mutex_lock(&pool_lock);
    comm->next_free = pool;
    pool = comm;
    pthread_mutex_unlock(&pool_lock);
}

/* Sequentially consistent on both sides: either close sees this caller inside, or this caller sees
 * that it is closed (partner: the magic word in spark_comm_close, then sc_handle_drain). The handle's
 * own memory never goes away, so letting go may touch it. */
bool sc_handle_hold(const struct spark_comm *comm) {
    struct spark_comm *own = (struct spark_comm *)comm;
    if (sc_handle_check(comm) != SPARK_COMM_OK) return false;
    atomic_fetch_add_explicit(&own->inside, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&own->magic, memory_order_seq_cst) == SC_HANDLE_ALIVE) return true;
    sc_handle_let_go(comm);
    return false;
}

void sc_handle_let_go(const struct spark_comm *comm) {
    struct spark_comm *own = (struct spark_comm *)comm;
    uint32_t before = atomic_fetch_sub_explicit(&own->inside, 1, memory_order_seq_cst);
    if (before == 1 && atomic_load_explicit(&own->magic, memory_order_seq_cst) != SC_HANDLE_ALIVE)
        sc_wait_futex_wake(&own->inside, INT32_MAX);
}

bool sc_handle_drain(struct spark_comm *comm, int64_t deadline) {
    for (;;) {
        uint32_t inside = atomic_load_explicit(&comm->inside, memory_order_seq_cst);
        if (inside == 0) return true;
        if (sc_deadline_passed(deadline)) return false;
        for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
            sc_lock_shake(&comm->lanes[lane].lock);
        sc_lock_shake(&comm->group.lock);
        sc_wait_futex_sleep(&comm->inside, inside,
                            sc_deadline_min(deadline, sc_deadline_now() + INT64_C(20000000)));
    }
}

spark_comm_status sc_handle_failed(struct spark_comm *comm, const struct sc_error *error) {
    pthread_mutex_lock(&comm->errors.lock);
    comm->errors.last = *error;
    pthread_mutex_unlock(&comm->errors.lock);
    return (spark_comm_status)error->status;
}

spark_comm_status sc_handle_refuse(struct spark_comm *comm, spark_comm_status status, int operation,
                                   int peer, const char *format, ...) {
    struct sc_error error;
    va_list arguments;
    sc_error_clear(&error);
    int used = 0;
    /* Calls without an operation of their own name themselves. */
    if (operation != SPARK_COMM_OP_NONE && strncmp(format, "group_", 6) != 0)
        used = snprintf(error.message, sizeof error.message,
                        "%s: ", sc_status_operation_name(operation));
    va_start(arguments, format);
    vsnprintf(error.message + used, sizeof error.message - (size_t)used, format, arguments);
    va_end(arguments);
    error.status = status;
    error.operation = operation;
    error.peer = peer;
    error.epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed);
    return sc_handle_failed(comm, &error);
}

spark_comm_status sc_handle_poisoned(struct spark_comm *comm) {
    struct sc_error cause;
    sc_error_clear(&cause);
    /* Healed in between, by a reconnect of another thread: the call goes on in the new epoch. */
    if (sc_world_cause(comm->world, &cause) != SPARK_COMM_OK) return SPARK_COMM_OK;
    return sc_handle_failed(comm, &cause);
}

void sc_handle_last_error(struct spark_comm *comm, struct sc_error *error) {
    struct sc_error cause;
    sc_error_clear(&cause);
    if (sc_world_peek_cause(comm->world, &cause)) {
        *error = cause;
        return;
    }
    pthread_mutex_lock(&comm->errors.lock);
    *error = comm->errors.last;
    pthread_mutex_unlock(&comm->errors.lock);
}

struct sc_error *sc_handle_open_error(void) {
    static _Thread_local struct sc_error error = {.peer = -1};
    return &error;
}

uintptr_t sc_handle_thread(void) {
    static _Thread_local char here;
    return (uintptr_t)&here;
}
