/*
 * A new epoch after a fault. One rank alone renews itself; with more ranks the joint decision of
 * all survivors and replacements is needed, which this version does not have: NOT_SUPPORTED, and
 * the communicator stays as it is.
 */
#include <string.h>

#include "api/lane.h"
#include "api/submit.h"

static spark_comm_status renew_alone(struct spark_comm *comm) {
    struct sc_error error;
    spark_comm_status st = sc_world_renew(comm->world);
    if (st != SPARK_COMM_OK)
        return sc_handle_refuse(comm, st, SPARK_COMM_OP_RECONNECT, -1,
                                "the epoch cannot be renewed");
    comm->host.table.epoch = sc_world_epoch(comm->world);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        struct sc_world_line *line = comm->lanes[lane].line;
        comm->lanes[lane].number = 0;
        atomic_store_explicit(&line->completed, 0, memory_order_release);
        atomic_store_explicit(&line->submitted, 0, memory_order_release);
    }
    memset(comm->sent, 0, (size_t)comm->world_size * sizeof *comm->sent);
    memset(comm->received, 0, (size_t)comm->world_size * sizeof *comm->received);
    pthread_mutex_lock(&comm->errors.lock);
    sc_error_clear(&comm->errors.last);
    pthread_mutex_unlock(&comm->errors.lock);
    if (comm->backend.reopen == NULL) return SPARK_COMM_OK;
    st = comm->backend.reopen(comm->backend_state);
    if (st == SPARK_COMM_OK) return st;
    sc_error_clear(&error);
    sc_host_take_explanation(&comm->host, st, &error);
    error.operation = SPARK_COMM_OP_RECONNECT;
    return sc_handle_failed(comm, &error);
}

spark_comm_status spark_comm_attempt_reconnect(spark_comm *comm) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_RECONNECT;
    int64_t deadline = sc_lane_deadline(comm, 0);
    if (comm->world_size > 1)
        return sc_handle_refuse(
            comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
            "this version cannot reconnect more than one rank: close and open again on all ranks");
    st = sc_submit_check_group(comm, kind);
    if (st == SPARK_COMM_OK)
        st = sc_lane_enter(comm, SPARK_COMM_LANE_COMMAND, kind, deadline, true);
    if (st != SPARK_COMM_OK) return st;
    st = sc_lane_enter(comm, SPARK_COMM_LANE_DATA, kind, deadline, true);
    if (st == SPARK_COMM_OK) {
        st = renew_alone(comm);
        sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    }
    sc_lane_leave(comm, SPARK_COMM_LANE_COMMAND);
    return st;
}
