/*
 * The readers: health, last_error, info, rank, trace. They take no lane and may be called from any
 * thread at any time, also on a poisoned communicator.
 */
#include "api/report.h"

#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "api/lane.h"
#include "base/deadline.h"
#include "base/status.h"

bool sc_report_copy(void *theirs, const void *ours, size_t known) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    if (size < 2 * sizeof size) return false;
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)theirs)[i] != 0) return false;
    size_t copied = size < known ? size : known;
    memcpy((char *)theirs + sizeof size, (const char *)ours + sizeof size, copied - sizeof size);
    return true;
}

bool spark_comm_is_healthy(const spark_comm *comm) {
    if (!sc_handle_hold(comm)) return false;
    bool healthy = atomic_load_explicit(comm->poison, memory_order_acquire) == 0;
    sc_handle_let_go(comm);
    return healthy;
}

int spark_comm_rank(const spark_comm *comm) {
    return sc_handle_check(comm) == SPARK_COMM_OK ? comm->rank : -1;
}

int spark_comm_world_size(const spark_comm *comm) {
    return sc_handle_check(comm) == SPARK_COMM_OK ? comm->world_size : -1;
}

/* An idle receive is no work; anything else that runs is, and an operation is stuck when half of its
 * limit has passed since it was submitted. `is_open`: the last one submitted has not completed.
 * Otherwise a local call holds the lane, or one that has not been submitted yet, and `age` is that of
 * an operation long done. */
static int lane_activity(const struct spark_comm *comm, const struct sc_lane *lane, int64_t age,
                         bool is_open) {
    int operation = (int)atomic_load_explicit(&lane->lock.holder, memory_order_relaxed);
    bool held = atomic_load_explicit(&lane->lock.word, memory_order_relaxed) != 0;
    if (!held || operation == SPARK_COMM_OP_RECV_COMMAND ||
        operation == SPARK_COMM_OP_RECV_COMMAND_U32)
        return SPARK_COMM_ACTIVITY_IDLE;
    int limit = comm->settings.op_timeout_ms;
    if (is_open && limit != SPARK_COMM_FOREVER && age > limit / 2) return SPARK_COMM_ACTIVITY_STUCK;
    return SPARK_COMM_ACTIVITY_BUSY;
}

/* Handle held. The one lock on the way is a leaf that nobody waits under. */
static spark_comm_status refuse_report(const spark_comm *comm, const char *what, bool is_null) {
    return sc_handle_refuse((struct spark_comm *)comm, SPARK_COMM_INVALID_ARGUMENT,
                            SPARK_COMM_OP_NONE, -1, "%s%s", what,
                            is_null ? " is null"
                                    : "->struct_size is too small, or bytes that this library does "
                                      "not know are not zero");
}

spark_comm_status spark_comm_health(const spark_comm *comm, spark_comm_health_report *report) {
    spark_comm_health_report ours = {
        .lost_rank = -1, .silent_rank = -1, .activity = SPARK_COMM_ACTIVITY_IDLE};
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    sc_world_health(comm->world, &ours);
    for (int i = 0; i < SPARK_COMM_LANE_COUNT; i++) {
        bool is_open = sc_world_read_line(comm->world, i, &ours.lanes[i]);
        int activity =
            lane_activity(comm, &comm->lanes[i], ours.lanes[i].submitted_age_ms, is_open);
        if (activity > ours.activity) ours.activity = activity;
    }
    if (comm->backend.device_progress != NULL)
        ours.device_progress = comm->backend.device_progress(comm->backend_state);
    spark_comm_status st = report != NULL && sc_report_copy(report, &ours, sizeof ours)
                               ? SPARK_COMM_OK
                               : refuse_report(comm, "health: report", report == NULL);
    sc_handle_let_go(comm);
    return st;
}

spark_comm_status spark_comm_last_error(const spark_comm *comm, spark_comm_error *error) {
    struct sc_error last = *sc_handle_open_error();
    spark_comm_error ours = {.peer = -1};
    if (error == NULL) return SPARK_COMM_INVALID_ARGUMENT;
    if (comm != NULL) {
        if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
        sc_handle_last_error((struct spark_comm *)comm, &last);
        sc_handle_let_go(comm);
    }
    ours.status = last.status;
    ours.operation = last.operation;
    ours.sequence = last.sequence;
    ours.peer = last.peer;
    ours.epoch = last.epoch;
    ours.native_code = last.native_code;
    memcpy(ours.message, last.message, sizeof ours.message);
    return sc_report_copy(error, &ours, sizeof ours) ? SPARK_COMM_OK : SPARK_COMM_INVALID_ARGUMENT;
}

/* Copies rows into the caller's array, whose elements may be shorter or longer than ours. */
static void copy_rows(const spark_comm_info_report *info, const spark_comm_info_row *rows,
                      size_t count) {
    for (size_t i = 0; i < count && i < info->row_capacity && info->rows != NULL; i++) {
        char *to = (char *)info->rows + i * info->row_size;
        memset(to, 0, info->row_size);
        memcpy(to, &rows[i], info->row_size < sizeof rows[i] ? info->row_size : sizeof rows[i]);
    }
}

enum { MAX_ROWS = 128 };

/* What the command lane serves, for every backend that has peers. */
static size_t describe_command_lane(spark_comm_info_row *rows) {
    static const struct {
        int32_t operation;
        uint64_t up_to_bytes;
    } lane[] = {
        {SPARK_COMM_OP_BROADCAST, SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES},
        {SPARK_COMM_OP_SEND_COMMAND, SPARK_COMM_MAX_COMMAND_WORDS * sizeof(uint32_t)},
        {SPARK_COMM_OP_RECV_COMMAND, SPARK_COMM_MAX_COMMAND_WORDS * sizeof(uint32_t)},
        {SPARK_COMM_OP_RECV_COMMAND_U32, sizeof(uint32_t)},
    };
    size_t count = sizeof lane / sizeof lane[0];
    for (size_t i = 0; i < count; i++)
        rows[i] = (spark_comm_info_row){
            .operation = lane[i].operation,
            .canonical = -1,
            .up_to_bytes = lane[i].up_to_bytes,
            .path = "command lane",
        };
    return count;
}

static bool comes_after(const spark_comm_info_row *a, const spark_comm_info_row *b) {
    if (a->operation != b->operation) return a->operation > b->operation;
    return a->up_to_bytes > b->up_to_bytes;
}

/* All rows, by operation and then by size. */
static size_t describe(const struct spark_comm *comm, spark_comm_info_row *rows) {
    size_t count = comm->is_single ? 0 : describe_command_lane(rows);
    if (comm->backend.describe != NULL)
        count += comm->backend.describe(comm->backend_state, rows + count, MAX_ROWS - count);
    if (count > MAX_ROWS) count = MAX_ROWS;
    for (size_t i = 1; i < count; i++) {
        spark_comm_info_row row = rows[i];
        size_t place = i;
        for (; place > 0 && comes_after(&rows[place - 1], &row); place--)
            rows[place] = rows[place - 1];
        rows[place] = row;
    }
    return count;
}

spark_comm_status spark_comm_info(const spark_comm *comm, spark_comm_info_report *info) {
    spark_comm_info_report asked = {0}, ours = {0};
    spark_comm_info_row rows[MAX_ROWS];
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    spark_comm_status st = SPARK_COMM_OK;
    if (info == NULL) {
        st = refuse_report(comm, "info: info", true);
        goto out;
    }
    /* What an older caller's struct ends before is taken as zero: no rows wanted. */
    memcpy(&asked, info, info->struct_size < sizeof asked ? info->struct_size : sizeof asked);
    if (asked.rows != NULL && asked.row_capacity > 0 && asked.row_size < sizeof(int32_t)) {
        st = sc_handle_refuse((struct spark_comm *)comm, SPARK_COMM_INVALID_ARGUMENT,
                              SPARK_COMM_OP_NONE, -1,
                              "info: row_size is %zu: it is sizeof(spark_comm_info_row), %zu",
                              asked.row_size, sizeof rows[0]);
        goto out;
    }
    snprintf(ours.backend, sizeof ours.backend, "%s", comm->backend.name);
    ours.memory = comm->backend.memory;
    ours.traits = comm->backend.traits;
    if (comm->backend.library != NULL)
        comm->backend.library(comm->backend_state, ours.library_file, sizeof ours.library_file,
                              ours.library_version, sizeof ours.library_version);
    ours.rows = asked.rows;
    ours.row_size = asked.row_size;
    ours.row_capacity = asked.row_capacity;
    ours.row_count = describe(comm, rows);
    copy_rows(&asked, rows, ours.row_count);
    if (!sc_report_copy(info, &ours, sizeof ours)) st = refuse_report(comm, "info: info", false);
out:
    sc_handle_let_go(comm);
    return st;
}

/* The way an operation of that size is served, for the trace: the smallest row that holds it. */
struct paths {
    spark_comm_info_row rows[MAX_ROWS];
    size_t count;
};

static const char *find_path(void *arg, int operation, uint64_t bytes) {
    const struct paths *paths = arg;
    if (bytes == 0 && operation != SPARK_COMM_OP_BARRIER) return "none"; /* nothing moved */
    for (size_t i = 0; i < paths->count; i++)
        if (paths->rows[i].operation == operation && bytes <= paths->rows[i].up_to_bytes)
            return paths->rows[i].path;
    return NULL;
}

/* Inside: close waits for it. */
static spark_comm_status write_trace(struct spark_comm *comm, const char *path) {
    struct paths paths;
    struct sc_error error;
    if (path == NULL || path[0] == '\0')
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_NONE, -1,
                                "trace_write: path is %s", path == NULL ? "null" : "empty");
    paths.count = describe(comm, paths.rows);
    sc_error_clear(&error);
    spark_comm_status st = sc_recorder_write(
        &comm->recorder, path, atomic_load_explicit(&comm->epoch, memory_order_relaxed), find_path,
        &paths, &error);
    return st == SPARK_COMM_OK ? st : sc_handle_failed(comm, &error);
}

spark_comm_status spark_comm_trace_write(spark_comm *comm, const char *path) {
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    spark_comm_status st = write_trace(comm, path);
    sc_handle_let_go(comm);
    return st;
}
