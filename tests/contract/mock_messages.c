/* Messages of the mock backend: all posts of a call progress together, a chunk at a time; those of
 * one direction and peer keep their order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock_state.h"

struct progress {
    struct mock *mock;
    const spark_comm_call *call;
    size_t *done; /* bytes moved of each post */
};

static struct slot *box_of(const struct mock *mock, const spark_comm_op *op) {
    const int from = op->kind == SPARK_COMM_OP_SEND_TO ? mock->rank : op->peer;
    const int to = op->kind == SPARK_COMM_OP_SEND_TO ? op->peer : mock->rank;
    return &mock->boxes[from * mock->ranks + to];
}

/* Whether post i has something left and may move now: an earlier one of the same box comes
 * first. */
static bool can_move(const struct progress *progress, size_t i) {
    const spark_comm_op *ops = progress->call->ops;
    if (progress->done[i] == ops[i].bytes) return false;
    for (size_t k = 0; k < i; k++)
        if (ops[k].kind == ops[i].kind && ops[k].peer == ops[i].peer &&
            progress->done[k] < ops[k].bytes)
            return false;
    struct slot *box = box_of(progress->mock, &ops[i]);
    const uint64_t sent = atomic_load_explicit(&box->written, memory_order_acquire);
    const uint64_t received = atomic_load_explicit(&box->read, memory_order_acquire);
    return ops[i].kind == SPARK_COMM_OP_SEND_TO ? sent == received : sent > received;
}

static bool any_can_move(void *arg) {
    const struct progress *progress = arg;
    for (size_t i = 0; i < progress->call->op_count; i++)
        if (can_move(progress, i)) return true;
    return false;
}

static void move_chunk(struct progress *progress, size_t i) {
    const spark_comm_op *op = &progress->call->ops[i];
    struct slot *box = box_of(progress->mock, op);
    const size_t at = progress->done[i];
    const size_t bytes = chunk_at(at, op->bytes);
    if (op->kind == SPARK_COMM_OP_SEND_TO) {
        memcpy(box->chunk, host_memory(op->send) + at, bytes);
        atomic_fetch_add_explicit(&box->written, 1, memory_order_release);
    } else {
        memcpy(host_memory(op->recv) + at, box->chunk, bytes);
        atomic_fetch_add_explicit(&box->read, 1, memory_order_release);
    }
    progress->done[i] += bytes;
}

/* The peer of the first post that is not done. */
static void explain_timeout(const struct progress *progress) {
    const spark_comm_host *host = progress->mock->host;
    for (size_t i = 0; i < progress->call->op_count; i++) {
        const spark_comm_op *op = &progress->call->ops[i];
        char text[64];
        if (progress->done[i] == op->bytes) continue;
        snprintf(text, sizeof text, "rank %d did not come in time", host->members[op->peer]);
        host->explain(host->context, host->members[op->peer], 0, text);
        return;
    }
}

spark_comm_status mock_point_to_point(void *state, const spark_comm_call *call) {
    const spark_comm_host *host = ((struct mock *)state)->host;
    struct progress progress = {state, call, calloc(call->op_count + 1, sizeof(size_t))};
    spark_comm_status st = SPARK_COMM_OK;
    size_t left = 0;
    if (progress.done == NULL) return SPARK_COMM_NO_MEMORY;
    for (size_t i = 0; i < call->op_count; i++)
        left += call->ops[i].bytes;
    while (left > 0 && st == SPARK_COMM_OK) {
        st = host->wait(host->context, any_can_move, &progress, call->deadline_ns);
        for (size_t i = 0; i < call->op_count && st == SPARK_COMM_OK; i++) {
            if (!can_move(&progress, i)) continue;
            left -= chunk_at(progress.done[i], call->ops[i].bytes);
            move_chunk(&progress, i);
        }
    }
    if (st == SPARK_COMM_OP_TIMEOUT) explain_timeout(&progress);
    free(progress.done);
    return st;
}
