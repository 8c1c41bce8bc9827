/*
 * The command lane: small broadcasts, command words and the idle-tolerant receive, all carried by
 * the world's control plane, so that an idle worker needs no GPU and no data-lane turn. Device
 * buffers are staged through a block on the stack. exchange_host is here too, although it takes the
 * data lane: it is the control plane's host all-gather.
 *
 * The error that a call hands down is not cleared first, which would cost more than the call: whoever
 * fails fills it, and sc_lane_end the rest.
 */
#include "api/commands.h"

#include <string.h>

#include "api/lane.h"
#include "api/submit.h"
#include "base/deadline.h"

/* Copies for backends whose pointers are not host addresses. */
static spark_comm_status to_host(struct spark_comm *comm, void *host, uint64_t ptr, size_t bytes,
                                 int64_t deadline, struct sc_error *error) {
    if (comm->backend.copy_to_host == NULL) {
        memcpy(host, (const void *)(uintptr_t)ptr, bytes);
        return SPARK_COMM_OK;
    }
    spark_comm_status st =
        comm->backend.copy_to_host(comm->backend_state, host, ptr, bytes, deadline);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, error);
    return st;
}

static spark_comm_status from_host(struct spark_comm *comm, uint64_t ptr, const void *host,
                                   size_t bytes, int64_t deadline, struct sc_error *error) {
    if (comm->backend.copy_from_host == NULL) {
        memcpy((void *)(uintptr_t)ptr, host, bytes);
        return SPARK_COMM_OK;
    }
    spark_comm_status st =
        comm->backend.copy_from_host(comm->backend_state, ptr, host, bytes, deadline);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, error);
    return st;
}

static spark_comm_status send_broadcast(const struct sc_lane_call *lane, uint64_t ptr,
                                        uint32_t digest, struct sc_error *error) {
    struct spark_comm *comm = lane->comm;
    unsigned char block[SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES];
    const void *data = (const void *)(uintptr_t)ptr;
    spark_comm_status st = SPARK_COMM_OK;
    if (comm->backend.copy_to_host != NULL) {
        st = to_host(comm, block, ptr, lane->bytes, lane->deadline, error);
        data = block;
    }
    if (st == SPARK_COMM_OK)
        st = sc_world_command_send(comm->world, SC_WORLD_RECORD_BROADCAST, lane->number, digest,
                                   data, lane->bytes, lane->deadline, error);
    return st;
}

static spark_comm_status recv_broadcast(const struct sc_lane_call *lane, uint64_t ptr,
                                        uint32_t digest, struct sc_error *error) {
    struct spark_comm *comm = lane->comm;
    unsigned char block[SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES];
    bool staged = comm->backend.copy_from_host != NULL;
    void *data = staged ? block : (void *)(uintptr_t)ptr;
    size_t bytes = 0;
    spark_comm_status st =
        sc_world_command_recv(comm->world, lane->peer, SC_WORLD_RECORD_BROADCAST, lane->number,
                              digest, data, lane->bytes, &bytes, lane->deadline, error);
    if (st == SPARK_COMM_OK && staged)
        st = from_host(comm, ptr, block, lane->bytes, sc_lane_deadline(comm, 0), error);
    return st;
}

/* Both halves of a small broadcast; `deadline` is the operation's own, which for the idle
 * receive is "never". */
static spark_comm_status broadcast(struct sc_lane_call *lane, uint64_t ptr) {
    struct spark_comm *comm = lane->comm;
    struct sc_error error;
    bool captured;
    spark_comm_status st =
        sc_submit_check_stream(comm, lane->operation, comm->settings.stream, &captured);
    if (st == SPARK_COMM_OK) st = sc_lane_begin(lane);
    if (st != SPARK_COMM_OK) return st;
    /* The digest is that of a broadcast for the idle receive as well: it is the other half of one. */
    uint32_t digest = sc_lane_digest(SPARK_COMM_OP_BROADCAST, 0, 0, lane->peer, lane->bytes);
    if (lane->bytes != 0 && comm->world_size > 1) {
        if (lane->peer == comm->rank)
            st = send_broadcast(lane, ptr, digest, &error);
        else
            st = recv_broadcast(lane, ptr, digest, &error);
    }
    return sc_lane_end(lane, st, &error);
}

spark_comm_status sc_commands_broadcast(struct spark_comm *comm, const spark_comm_op *op) {
    struct sc_lane_call lane = {.comm = comm,
                                .lane = SPARK_COMM_LANE_COMMAND,
                                .operation = SPARK_COMM_OP_BROADCAST,
                                .peer = op->peer,
                                .bytes = op->bytes,
                                .stream = op->stream,
                                .timeout_ms = op->timeout_ms};
    uint64_t ptr = op->peer == comm->rank ? op->send : op->recv;
    return broadcast(&lane, ptr);
}

spark_comm_status spark_comm_recv_command_u32(spark_comm *comm, uint64_t ptr, int root) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_RECV_COMMAND_U32;
    st = sc_submit_check_start(comm, kind);
    if (st != SPARK_COMM_OK) return st;
    if (root < 0 || root >= comm->world_size)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, root,
                                "root is %d, ranks are 0 to %d", root, comm->world_size - 1);
    if (root == comm->rank)
        return sc_handle_refuse(
            comm, SPARK_COMM_INVALID_ARGUMENT, kind, root,
            "root is %d, this rank itself: the root sends the word with broadcast", root);
    if (ptr == 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "ptr is null");
    struct sc_lane_call lane = {.comm = comm,
                                .lane = SPARK_COMM_LANE_COMMAND,
                                .operation = kind,
                                .peer = root,
                                .bytes = 4,
                                .stream = comm->settings.stream,
                                .timeout_ms = SPARK_COMM_FOREVER};
    return broadcast(&lane, ptr);
}

spark_comm_status spark_comm_send_command(spark_comm *comm, const uint32_t *words, size_t count) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_SEND_COMMAND;
    st = sc_submit_check_start(comm, kind);
    if (st != SPARK_COMM_OK) return st;
    if (comm->rank != 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, 0,
                                "rank is %d: only rank 0 sends commands", comm->rank);
    if (count > SPARK_COMM_MAX_COMMAND_WORDS)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "count is %zu, at most %d words are allowed", count,
                                SPARK_COMM_MAX_COMMAND_WORDS);
    if (words == NULL && count > 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "words is null with count %zu", count);
    struct sc_lane_call lane = {.comm = comm,
                                .lane = SPARK_COMM_LANE_COMMAND,
                                .operation = kind,
                                .peer = 0,
                                .bytes = count * sizeof *words};
    struct sc_error error;
    st = sc_lane_begin(&lane);
    if (st != SPARK_COMM_OK) return st;
    if (comm->world_size > 1) {
        st = sc_world_command_send(comm->world, SC_WORLD_RECORD_COMMAND, lane.number, 0, words,
                                   lane.bytes, lane.deadline, &error);
    }
    return sc_lane_end(&lane, st, &error);
}

/* A command that does not fit stays for the next call, and the number with it. */
static spark_comm_status recv_words(struct sc_lane_call *lane, uint32_t *words, size_t capacity,
                                    size_t *count) {
    struct spark_comm *comm = lane->comm;
    struct sc_error error;
    size_t bytes = 0;
    spark_comm_status st = sc_lane_begin(lane);
    if (st != SPARK_COMM_OK) return st;
    st = sc_world_command_recv(comm->world, 0, SC_WORLD_RECORD_COMMAND, lane->number, 0, words,
                               capacity * sizeof *words, &bytes, lane->deadline, &error);
    if (st == SPARK_COMM_OK || st == SPARK_COMM_INVALID_ARGUMENT) *count = bytes / sizeof *words;
    if (st == SPARK_COMM_INVALID_ARGUMENT) {
        sc_error_set(&error, st, 0, 0,
                     "recv_command: capacity is %zu, the command has %zu words and stays in place",
                     capacity, *count);
    }
    return sc_lane_end(lane, st, &error);
}

spark_comm_status spark_comm_recv_command(spark_comm *comm, uint32_t *words, size_t capacity,
                                          size_t *count) {
    spark_comm_status st = sc_handle_check(comm);
    if (count != NULL) *count = 0;
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_RECV_COMMAND;
    st = sc_submit_check_start(comm, kind);
    if (st != SPARK_COMM_OK) return st;
    if (count == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "count is null");
    if (comm->rank == 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, 0,
                                "rank is 0, which sends the commands");
    if (words == NULL && capacity > 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "words is null with capacity %zu", capacity);
    if (capacity > SPARK_COMM_MAX_COMMAND_WORDS) capacity = SPARK_COMM_MAX_COMMAND_WORDS;
    struct sc_lane_call lane = {.comm = comm,
                                .lane = SPARK_COMM_LANE_COMMAND,
                                .operation = kind,
                                .peer = 0,
                                .timeout_ms = SPARK_COMM_FOREVER};
    return recv_words(&lane, words, capacity, count);
}

spark_comm_status spark_comm_exchange_host(spark_comm *comm, const void *send, void *recv,
                                           size_t bytes) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_EXCHANGE_HOST;
    st = sc_submit_check_start(comm, kind);
    if (st != SPARK_COMM_OK) return st;
    if (bytes > SPARK_COMM_MAX_EXCHANGE_BYTES)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "bytes is %zu, at most %d are allowed", bytes,
                                SPARK_COMM_MAX_EXCHANGE_BYTES);
    if (bytes > 0 && (send == NULL || recv == NULL))
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "%s is null with bytes %zu", send == NULL ? "send" : "recv", bytes);
    struct sc_lane_call lane = {
        .comm = comm, .lane = SPARK_COMM_LANE_DATA, .operation = kind, .peer = -1, .bytes = bytes};
    struct sc_error error;
    st = sc_lane_begin(&lane);
    if (st != SPARK_COMM_OK) return st;
    if (bytes > 0) {
        sc_error_clear(&error);
        st = sc_world_all_gather(comm->world, lane.number, sc_lane_digest(kind, 0, 0, -1, bytes),
                                 send, recv, bytes, lane.deadline, &error);
    }
    return sc_lane_end(&lane, st, &error);
}
