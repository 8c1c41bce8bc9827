/*
 * Point to point. Between group_start and group_end the posts of the group's thread are only
 * collected, so that a refused post can cancel the whole group before anything moves; group_end
 * takes one turn on the data lane, numbers the members in posting order and hands them to the
 * backend as one call. The group's lock is held from start to end: a second thread that wants a
 * group waits for it, and is BUSY at its deadline.
 */
#include "api/groups.h"

#include <string.h>

#include "api/lane.h"
#include "api/submit.h"
#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"

static bool group_is_mine(const struct spark_comm *comm) {
    return atomic_load_explicit(&comm->group.owner, memory_order_relaxed) == sc_handle_thread();
}

static uint64_t *message_counter(struct spark_comm *comm, const spark_comm_op *op) {
    return op->kind == SPARK_COMM_OP_SEND_TO ? &comm->sent[op->peer] : &comm->received[op->peer];
}

/* The members of a call in the recorder and in the status line; ends like sc_lane_end for each. */
struct members {
    struct spark_comm *comm;
    const spark_comm_op *posts;
    size_t count;
    int timeout_ms;
    int operation; /* for turns, errors and the status line: SEND_TO, RECV_FROM, or GROUP */
    bool captured; /* recorded into a graph: no numbers are taken */
};

/* Records each member. Positions in the ring are consecutive, so the first record leads to the
 * others. */
static uint64_t record_members(const struct members *members, uint64_t ticks) {
    struct spark_comm *comm = members->comm;
    uint64_t first = atomic_load_explicit(&comm->recorder.header->heads[SPARK_COMM_LANE_DATA],
                                          memory_order_relaxed);
    for (size_t i = 0; i < members->count; i++) {
        const spark_comm_op *post = &members->posts[i];
        sc_recorder_begin(&comm->recorder, SPARK_COMM_LANE_DATA, ++*message_counter(comm, post),
                          sc_recorder_describe(post->kind, 0, 0, post->peer), post->bytes,
                          sc_lane_stream_label(post->stream), ticks);
        if (comm->logs_submissions)
            sc_log_write(&comm->log, SPARK_COMM_LOG_DEBUG,
                         "%s #%llu (%zu bytes, peer %d) submitted",
                         sc_status_operation_name(post->kind),
                         (unsigned long long)*message_counter(comm, post), post->bytes, post->peer);
    }
    return first;
}

static void complete_members(const struct members *members, uint64_t first,
                             spark_comm_status status) {
    struct spark_comm *comm = members->comm;
    uint64_t ticks = sc_ticks_now();
    for (size_t i = 0; i < members->count; i++) {
        struct sc_recorder_record *record =
            &comm->recorder.rings[SPARK_COMM_LANE_DATA][(first + i) & comm->recorder.mask];
        sc_recorder_end(record, (int)status, members->captured,
                        atomic_load_explicit(&comm->epoch, memory_order_relaxed), ticks);
        if (members->captured && status == SPARK_COMM_OK)
            --*message_counter(comm, &members->posts[i]);
    }
    /* What failed for good stays in the line as what this rank is in. */
    if (sc_status_is_fatal(status)) return;
    /* Release: partner of the world's monitor, which asks whether this rank waits for a peer. */
    atomic_store_explicit(&comm->lanes[SPARK_COMM_LANE_DATA].line->complete_ticks, ticks,
                          memory_order_release);
}

/* Shows the peers what this rank is in; point to point has no lane number, so `submitted` stays
 * as it is. */
static void show_members(const struct members *members, uint64_t ticks) {
    const spark_comm_op *post = &members->posts[0];
    struct sc_world_line *line = members->comm->lanes[SPARK_COMM_LANE_DATA].line;
    uint64_t descriptor = sc_world_describe(members->operation, 0, 0, post->peer);
    atomic_store_explicit(&line->descriptor, descriptor, memory_order_relaxed);
    atomic_store_explicit(&line->bytes, post->bytes, memory_order_relaxed);
    /* A group's are shown by the backend that knows which of them are still open. */
    atomic_store_explicit(&line->peers, 0, memory_order_relaxed);
    if (members->operation == SPARK_COMM_OP_GROUP)
        sc_world_show_group(members->comm->world, members->posts, members->count);
    atomic_store_explicit(&line->submit_ticks, ticks, memory_order_release);
}

static spark_comm_status members_failed(const struct members *members, spark_comm_status status) {
    struct spark_comm *comm = members->comm;
    struct sc_error error;
    sc_error_clear(&error);
    sc_host_take_explanation(&comm->host, status, &error);
    error.operation = members->operation;
    error.sequence = *message_counter(comm, &members->posts[0]);
    error.epoch = sc_world_epoch(comm->world);
    sc_lane_name_operation(&error, members->operation, error.sequence);
    bool poisoned = atomic_load_explicit(comm->poison, memory_order_acquire) != 0;
    if (status < SPARK_COMM_PEER_LOST) {
        for (size_t i = 0; i < members->count; i++)
            --*message_counter(comm, &members->posts[i]);
        return sc_handle_failed(comm, &error);
    }
    if (!(status == SPARK_COMM_ABORTED && poisoned)) sc_world_fault(comm->world, &error);
    return sc_handle_poisoned(comm);
}

/* Every stream of the group: all of them capture, or none does. */
static spark_comm_status check_streams(struct members *members) {
    for (size_t i = 0; i < members->count; i++) {
        size_t before = 0;
        bool captured;
        while (before < i && members->posts[before].stream != members->posts[i].stream)
            before++;
        if (before < i) continue;
        spark_comm_status st = sc_submit_check_stream(members->comm, members->operation,
                                                      members->posts[i].stream, &captured);
        if (st != SPARK_COMM_OK) return st;
        if (i == 0) members->captured = captured;
        if (captured != members->captured)
            return sc_handle_refuse(members->comm, SPARK_COMM_WRONG_STATE, members->operation, -1,
                                    "one of its streams captures a graph, and another does not");
    }
    return SPARK_COMM_OK;
}

static spark_comm_status run_members(struct members *members) {
    struct spark_comm *comm = members->comm;
    int64_t deadline = 0;
    spark_comm_status st = check_streams(members);
    if (st != SPARK_COMM_OK) return st;
    st = sc_lane_turn(comm, SPARK_COMM_LANE_DATA, members->operation, members->timeout_ms,
                      &deadline);
    if (st != SPARK_COMM_OK) return st;
    uint32_t epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed);
    if (members->operation == SPARK_COMM_OP_GROUP && comm->group.epoch != epoch) {
        sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
        return sc_handle_refuse(comm, SPARK_COMM_ABORTED, members->operation, -1,
                                "it was opened in epoch %u, and this is epoch %u",
                                comm->group.epoch, epoch);
    }
    uint64_t ticks = sc_ticks_now();
    if (deadline == 0)
        deadline = sc_lane_deadline_at(comm, SPARK_COMM_LANE_DATA, members->timeout_ms, ticks);
    show_members(members, ticks);
    uint64_t first = record_members(members, ticks);
    spark_comm_call call = {.struct_size = sizeof call,
                            .ops = members->posts,
                            .op_count = members->count,
                            .number = *message_counter(comm, &members->posts[members->count - 1]),
                            .epoch = epoch,
                            .deadline_ns = deadline,
                            .captured = members->captured};
    st = comm->backend.point_to_point(comm->backend_state, &call);
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) st = members_failed(members, st);
    complete_members(members, first, st);
    sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    return st;
}

/* One message alone: the same, but noted late where the backend knows how. `call` is the first member,
 * so that the one leads to the other. */
struct single {
    spark_comm_call call;
    struct members members;
    uint64_t record;
    bool noted;
};

static void note_single(const spark_comm_call *call) {
    struct single *single = (struct single *)(uintptr_t)call;
    struct spark_comm *comm = single->members.comm;
    if (single->noted) return;
    uint64_t ticks = sc_ticks_now();
    if (single->call.deadline_ns == 0)
        single->call.deadline_ns =
            sc_lane_deadline_at(comm, SPARK_COMM_LANE_DATA, single->members.timeout_ms, ticks);
    show_members(&single->members, ticks);
    single->record = record_members(&single->members, ticks);
    single->noted = true;
}

static spark_comm_status run_single(struct spark_comm *comm, const spark_comm_op *op) {
    bool late = (comm->backend.traits & SPARK_COMM_TRAIT_LATE_ENTRY) != 0;
    struct single single;
    single.members = (struct members){comm, op, 1, op->timeout_ms, op->kind, false};
    single.noted = false;
    single.call.deadline_ns = 0;
    spark_comm_status st =
        sc_submit_check_stream(comm, op->kind, op->stream, &single.members.captured);
    if (st != SPARK_COMM_OK) return st;
    st = sc_lane_turn(comm, SPARK_COMM_LANE_DATA, op->kind, op->timeout_ms,
                      &single.call.deadline_ns);
    if (st != SPARK_COMM_OK) return st;
    single.call.struct_size = sizeof single.call;
    single.call.ops = op;
    single.call.op_count = 1;
    single.call.number = *message_counter(comm, op) + 1;
    single.call.epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed);
    single.call.digest = 0;
    single.call.captured = single.members.captured;
    single.call.reserved = 0;
    single.call.entered = late ? note_single : NULL;
    if (!late) note_single(&single.call);
    st = comm->backend.point_to_point(comm->backend_state, &single.call);
    note_single(&single.call);
    if (__builtin_expect(st != SPARK_COMM_OK, 0)) st = members_failed(&single.members, st);
    complete_members(&single.members, single.record, st);
    sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    return st;
}

/* A message to oneself needs its other half in the same group, in the same order and of the same
 * size. */
static spark_comm_status check_self(struct spark_comm *comm, const spark_comm_op *posts,
                                    size_t count) {
    size_t send = 0, recv = 0;
    if (comm->is_single) return SPARK_COMM_OK;
    for (;; send++, recv++) {
        while (send < count &&
               !(posts[send].kind == SPARK_COMM_OP_SEND_TO && posts[send].peer == comm->rank))
            send++;
        while (recv < count &&
               !(posts[recv].kind == SPARK_COMM_OP_RECV_FROM && posts[recv].peer == comm->rank))
            recv++;
        if (send >= count && recv >= count) return SPARK_COMM_OK;
        if (send >= count || recv >= count)
            return sc_handle_refuse(
                comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_GROUP, comm->rank,
                "a message to this rank itself (rank %d) has no %s in the group", comm->rank,
                send >= count ? "send_to" : "recv_from");
        if (posts[send].bytes != posts[recv].bytes)
            return sc_handle_refuse(
                comm, SPARK_COMM_INVALID_ARGUMENT, SPARK_COMM_OP_GROUP, comm->rank,
                "a message to this rank itself (rank %d) is sent with %zu bytes and received with %zu",
                comm->rank, posts[send].bytes, posts[recv].bytes);
    }
}

static spark_comm_status keep_post(struct spark_comm *comm, const spark_comm_op *op) {
    struct sc_group *group = &comm->group;
    if (group->count == group->capacity) {
        size_t capacity = group->capacity == 0 ? 16 : 2 * group->capacity;
        spark_comm_op *posts = sc_alloc_array(capacity, sizeof *posts);
        if (posts == NULL)
            return sc_handle_refuse(comm, SPARK_COMM_NO_MEMORY, op->kind, op->peer,
                                    "no memory for %zu posts of a group", capacity);
        if (group->count > 0) memcpy(posts, group->posts, group->count * sizeof *posts);
        sc_free(group->posts);
        group->posts = posts;
        group->capacity = capacity;
    }
    group->posts[group->count++] = *op;
    return SPARK_COMM_OK;
}

static spark_comm_status post_in_group(struct spark_comm *comm, spark_comm_op *op, bool general) {
    spark_comm_status st = sc_submit_check(comm, op, general);
    if (st == SPARK_COMM_OK && op->bytes > 0) st = keep_post(comm, op);
    if (st != SPARK_COMM_OK && comm->group.refused.status == SPARK_COMM_OK) {
        sc_handle_last_error(comm, &comm->group.refused);
        comm->group.refused.status = st;
    }
    return st;
}

spark_comm_status sc_groups_post(struct spark_comm *comm, spark_comm_op *op, bool general) {
    spark_comm_status st = sc_submit_check_poison(comm);
    if (st != SPARK_COMM_OK) return st;
    if (comm->backend.point_to_point == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, op->kind, -1,
                                "backend %s does not have it", comm->backend.name);
    if (group_is_mine(comm)) {
        if (!sc_handle_hold(comm)) return SPARK_COMM_ABORTED; /* closed since the call began */
        st = post_in_group(comm, op, general);
        sc_handle_let_go(comm);
        return st;
    }
    st = sc_submit_check(comm, op, general);
    if (st != SPARK_COMM_OK) return st;
    if (op->peer == comm->rank && !comm->is_single)
        return sc_handle_refuse(
            comm, SPARK_COMM_INVALID_ARGUMENT, op->kind, op->peer,
            "%s is %d, this rank itself: a message to oneself is only paired inside a group",
            sc_submit_name_peer(op->kind, general), op->peer);
    if (op->bytes == 0) return SPARK_COMM_OK; /* a zero-byte message is no message on either side */
    return run_single(comm, op);
}

/* Inside: close waits for it. */
static spark_comm_status start_group(struct spark_comm *comm) {
    if (group_is_mine(comm))
        return sc_handle_refuse(
            comm, SPARK_COMM_WRONG_STATE, SPARK_COMM_OP_GROUP, -1,
            "group_start: a group is open on this thread already, and groups do not nest");
    int64_t deadline = sc_lane_deadline(comm, 0);
    for (;;) {
        bool is_held = sc_lock_take(&comm->group.lock, deadline, comm->poison);
        bool is_poisoned = atomic_load_explicit(comm->poison, memory_order_acquire) != 0;
        if (is_held && !is_poisoned) break;
        if (is_held) sc_lock_give(&comm->group.lock);
        spark_comm_status st = is_poisoned ? sc_handle_poisoned(comm) : SPARK_COMM_OK;
        if (st != SPARK_COMM_OK) return st;
        if (sc_deadline_passed(deadline))
            return sc_handle_refuse(
                comm, SPARK_COMM_BUSY, SPARK_COMM_OP_GROUP, -1,
                "group_start: another thread's group stayed open until the deadline");
    }
    comm->group.count = 0;
    comm->group.epoch = atomic_load_explicit(&comm->epoch, memory_order_relaxed);
    sc_error_clear(&comm->group.refused);
    atomic_store_explicit(&comm->group.owner, sc_handle_thread(), memory_order_relaxed);
    return SPARK_COMM_OK;
}

spark_comm_status spark_comm_group_start(spark_comm *comm) {
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    spark_comm_status st = start_group(comm);
    sc_handle_let_go(comm);
    return st;
}

/* The shortest of the posts' limits. */
static int shortest_limit(const struct spark_comm *comm, const struct sc_group *group) {
    int shortest = SPARK_COMM_FOREVER;
    for (size_t i = 0; i < group->count; i++) {
        int limit = group->posts[i].timeout_ms;
        if (limit == 0) limit = comm->settings.op_timeout_ms;
        if (limit != SPARK_COMM_FOREVER && (shortest == SPARK_COMM_FOREVER || limit < shortest))
            shortest = limit;
    }
    return shortest;
}

/* What is left to do once the group is known to be closed whatever happens. */
static spark_comm_status end_group(struct spark_comm *comm) {
    struct sc_group *group = &comm->group;
    spark_comm_status st = SPARK_COMM_OK;
    if (atomic_load_explicit(comm->poison, memory_order_acquire) != 0)
        st = sc_handle_poisoned(comm);
    if (st != SPARK_COMM_OK) return st;
    if (group->refused.status != SPARK_COMM_OK) return sc_handle_failed(comm, &group->refused);
    st = check_self(comm, group->posts, group->count);
    if (st != SPARK_COMM_OK || group->count == 0) return st;
    struct members members = {
        comm, group->posts, group->count, shortest_limit(comm, group), SPARK_COMM_OP_GROUP, false};
    return run_members(&members);
}

spark_comm_status spark_comm_group_end(spark_comm *comm) {
    spark_comm_status st;
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    if (group_is_mine(comm)) {
        st = end_group(comm);
        comm->group.count = 0;
        atomic_store_explicit(&comm->group.owner, 0, memory_order_relaxed);
        sc_lock_give(&comm->group.lock);
    } else {
        st = sc_handle_refuse(comm, SPARK_COMM_WRONG_STATE, SPARK_COMM_OP_GROUP, -1,
                              "group_end: no group is open on this thread; group_start opens one");
    }
    sc_handle_let_go(comm);
    return st;
}

void sc_groups_release(struct spark_comm *comm) {
    sc_free(comm->group.posts);
    comm->group.posts = NULL;
    comm->group.count = comm->group.capacity = 0;
}
