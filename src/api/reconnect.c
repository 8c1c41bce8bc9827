/*
 * A new epoch after a fault, collective among survivors and replacements. The world makes it
 * (docs/models/README.md); here the running calls are ended first, and the backend is made anew
 * between WELCOME and READY, so that its failure is one of the reasons for which the attempt fails
 * alike on all ranks. A replacement goes through the same votes in open, in the same order.
 *
 * Two threads that ask at once share one attempt and one outcome.
 */
#include <string.h>

#include "api/lane.h"
#include "api/open.h"
#include "api/submit.h"
#include "base/deadline.h"

/* ---- One attempt; both lanes held ---- */

static spark_comm_status reopen_backend(struct spark_comm *comm, struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    if (comm->backend.reopen != NULL) st = comm->backend.reopen(comm->backend_state);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, error);
    return st;
}

/* What belongs to one epoch. */
static void start_anew(struct spark_comm *comm) {
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        comm->lanes[lane].number = 0;
        atomic_store_explicit(&comm->lanes[lane].line->completed, 0, memory_order_release);
        atomic_store_explicit(&comm->lanes[lane].line->submitted, 0, memory_order_release);
    }
    memset(comm->sent, 0, (size_t)comm->world_size * sizeof *comm->sent);
    memset(comm->received, 0, (size_t)comm->world_size * sizeof *comm->received);
    if (comm->backend.register_buffer != NULL) sc_memory_restore(comm);
    pthread_mutex_lock(&comm->errors.lock);
    sc_error_clear(&comm->errors.last);
    pthread_mutex_unlock(&comm->errors.lock);
}

static spark_comm_status renew_alone(struct spark_comm *comm, struct sc_error *error) {
    spark_comm_status st = sc_world_renew(comm->world, error);
    if (st != SPARK_COMM_OK) return st;
    sc_open_attach(comm);
    return sc_world_agree(comm->world, reopen_backend(comm, error), error);
}

static spark_comm_status renew(struct spark_comm *comm, struct sc_error *error) {
    /* The backend's doorbells go with the old epoch. */
    sc_world_on_poison(comm->world, NULL, NULL);
    spark_comm_status st = sc_world_reconnect(comm->world, error);
    sc_open_attach(comm); /* whatever became of it, the old epoch's status lines are gone */
    if (st != SPARK_COMM_OK) return st;
    comm->host.votes = 0;
    comm->host.explained = false;
    /* As in open: the first vote is on whether there is a backend at all. */
    st = sc_open_vote(comm, SPARK_COMM_OK, error);
    if (st == SPARK_COMM_OK) st = sc_open_vote(comm, reopen_backend(comm, error), error);
    st = sc_world_agree(comm->world, st, error); /* R7 to R10 */
    sc_open_attach(comm);
    return st;
}

/* A call that runs in the old epoch has been ended, and an abort ends the wait for it. */
static spark_comm_status take_lane(struct spark_comm *comm, int lane, int64_t deadline,
                                   struct sc_error *error) {
    bool is_held = sc_lock_take(&comm->lanes[lane].lock, deadline, sc_world_given_up(comm->world));
    if (is_held && sc_lane_look_around(comm, lane, SPARK_COMM_OP_RECONNECT, true) == SPARK_COMM_OK)
        return SPARK_COMM_OK;
    if (sc_world_gives_up(comm->world, error)) return SPARK_COMM_ABORTED;
    return sc_error_set(error, is_held ? SPARK_COMM_ABORTED : SPARK_COMM_BUSY, -1, 0,
                        "a call on the %s lane does not end",
                        lane == SPARK_COMM_LANE_COMMAND ? "command" : "data");
}

static spark_comm_status run_attempt(struct spark_comm *comm, struct sc_error *error) {
    int64_t deadline = sc_deadline_after(comm->settings.rendezvous_timeout_ms);
    sc_world_ask(comm->world); /* R1: ends all running calls */
    spark_comm_status st = take_lane(comm, SPARK_COMM_LANE_COMMAND, deadline, error);
    if (st != SPARK_COMM_OK) return st;
    st = take_lane(comm, SPARK_COMM_LANE_DATA, deadline, error);
    if (st == SPARK_COMM_OK) {
        st = comm->world_size == 1 ? renew_alone(comm, error) : renew(comm, error);
        if (st == SPARK_COMM_OK) {
            start_anew(comm);
            sc_world_on_poison(comm->world, sc_open_interrupt, comm);
        }
        sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    }
    sc_lane_leave(comm, SPARK_COMM_LANE_COMMAND);
    /* Too late to end the attempt, it has poisoned the new epoch. */
    if (st == SPARK_COMM_OK && sc_world_gives_up(comm->world, error)) st = SPARK_COMM_ABORTED;
    return st;
}

/* ---- Sharing it ---- */

static spark_comm_status attempt(struct spark_comm *comm, struct sc_error *error) {
    struct sc_attempt *shared = &comm->attempt;
    /* Acquire: partner of the release below. */
    uint32_t before = atomic_load_explicit(&shared->count, memory_order_acquire);
    sc_lock_take(&shared->lock, SC_DEADLINE_NEVER, NULL); /* held for a bounded time */
    if (atomic_load_explicit(&shared->count, memory_order_relaxed) == before) {
        sc_error_clear(&shared->outcome);
        spark_comm_status st = run_attempt(comm, &shared->outcome);
        if (st == SPARK_COMM_OK) sc_error_clear(&shared->outcome);
        shared->outcome.status = st;
        shared->outcome.operation = SPARK_COMM_OP_RECONNECT;
        shared->outcome.epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed);
        atomic_fetch_add_explicit(&shared->count, 1, memory_order_release);
    }
    *error = shared->outcome;
    sc_lock_give(&shared->lock);
    return (spark_comm_status)error->status;
}

static spark_comm_status reconnect(struct spark_comm *comm) {
    int kind = SPARK_COMM_OP_RECONNECT;
    struct sc_error *failure = sc_handle_open_error();
    spark_comm_status st = sc_submit_check_group(comm, kind);
    if (st != SPARK_COMM_OK) return st;
    if (comm->world_size > 1 && comm->backend.reopen == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
                                "backend %s cannot begin another epoch: close and open again",
                                comm->backend.name);
    st = attempt(comm, failure);
    if (st == SPARK_COMM_OK) return st;
    /* last_error(comm) keeps the first cause; last_error(NULL) says why it could not be left. */
    sc_log_write(&comm->log, SPARK_COMM_LOG_ERROR, "reconnect: %s", failure->message);
    return sc_handle_failed(comm, failure);
}

spark_comm_status spark_comm_attempt_reconnect(spark_comm *comm) {
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    spark_comm_status st = reconnect(comm);
    sc_handle_let_go(comm);
    return st;
}
