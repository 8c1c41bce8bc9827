/*
 * Waits for flags end in one of four ways: all are there; one shows that its owner made another
 * call (MISMATCH, naming both ranks); the deadline comes (OP_TIMEOUT, naming the ranks that are
 * missing); the communicator is poisoned or interrupted (ABORTED; the first cause is known
 * elsewhere).
 */
#include "backends/shm/flags.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

static bool was_left(const struct sc_shm *shm) {
    return sc_mailbox_was_left(shm->mail.of[shm->rank]);
}

static bool flags_ready(void *arg) {
    struct sc_flags_wait *wait = arg;
    return sc_flags_look(wait) || was_left(wait->shm);
}

/* "all_reduce #1841 (8192 bytes, bf16)". A group's members carry no number of their own here. */
static void describe(const spark_comm_call *call, const spark_comm_op *op, char *text,
                     size_t size) {
    char number[24] = "", bytes[48] = "";
    const char *dtype = op->dtype != 0 ? sc_dtype_name(op->dtype) : "";
    if (call->op_count == 1)
        snprintf(number, sizeof number, " #%llu", (unsigned long long)call->number);
    if (op->kind != SPARK_COMM_OP_BARRIER)
        snprintf(bytes, sizeof bytes, " (%zu bytes%s%s)", op->bytes, dtype[0] != '\0' ? ", " : "",
                 dtype);
    snprintf(text, size, "%s%s%s", sc_status_operation_name(op->kind), number, bytes);
}

/* "rank 2 has", "ranks 2, 3 and 5 have"; the lowest one is returned. */
static int name_ranks(const struct sc_shm *shm, uint64_t set, char *text, size_t size) {
    int first = -1;
    int length = snprintf(text, size, "%s", __builtin_popcountll(set) > 1 ? "ranks" : "rank");
    for (int rank = 0; rank < shm->size; rank++) {
        if ((set >> rank & 1) == 0 || (size_t)length >= size) continue;
        bool last = set >> rank == 1;
        const char *before = first < 0 ? " " : last ? " and " : ", ";
        length += snprintf(text + length, size - (size_t)length, "%s%d", before,
                           shm->host->members[rank]);
        if (first < 0) first = shm->host->members[rank];
    }
    if ((size_t)length < size)
        snprintf(text + length, size - (size_t)length, "%s",
                 __builtin_popcountll(set) > 1 ? " have" : " has");
    return first;
}

spark_comm_status sc_flags_fail(const struct sc_shm *shm, const spark_comm_call *call,
                                const spark_comm_op *op, spark_comm_status st, uint64_t missing,
                                enum sc_flags_reason reason) {
    char ranks[288], what[96];
    int peer = name_ranks(shm, missing, ranks, sizeof ranks);
    describe(call, op, what, sizeof what);
    if (st != SPARK_COMM_OP_TIMEOUT)
        return sc_host_fail(shm->host, st, -1, 0, "%s was interrupted", what);
    if (op->kind == SPARK_COMM_OP_SEND_TO)
        return sc_host_fail(shm->host, st, peer, 0, "%s not taken what %s sends", ranks, what);
    if (op->kind == SPARK_COMM_OP_RECV_FROM)
        return sc_host_fail(shm->host, st, peer, 0, "%s not sent what %s waits for", ranks, what);
    if (reason == SC_FLAGS_ENTER)
        return sc_host_fail(shm->host, st, peer, 0, "%s not entered %s", ranks, what);
    if (reason == SC_FLAGS_TAKE)
        return sc_host_fail(shm->host, st, peer, 0,
                            "%s not taken the data of earlier calls, and %s needs the room", ranks,
                            what);
    return sc_host_fail(shm->host, st, peer, 0, "%s entered %s, but not gone on in it", ranks,
                        what);
}

static uint64_t missing_of(const struct sc_flags_wait *wait) {
    struct sc_flags_wait look = *wait;
    uint64_t missing = 0;
    for (int rank = wait->next; rank < wait->end; rank++) {
        look.next = rank;
        look.end = rank + 1;
        if (!sc_flags_look(&look)) missing |= UINT64_C(1) << rank;
    }
    return missing;
}

spark_comm_status sc_flags_await_slow(struct sc_flags_wait *wait, const spark_comm_call *call,
                                      enum sc_flags_reason reason) {
    const struct sc_shm *shm = wait->shm;
    const int32_t *members = shm->host->members;
    spark_comm_status st = SPARK_COMM_OK;
    uint64_t missing = 0;
    char what[96];
    if (!wait->mismatch) st = sc_wait_until(shm->policy, flags_ready, wait, call->deadline_ns);
    if (st != SPARK_COMM_OK) missing = missing_of(wait);
    if (missing != 0) return sc_flags_fail(shm, call, call->ops, st, missing, reason);
    if (sc_flags_look(wait) && !wait->mismatch) return SPARK_COMM_OK;
    if (!wait->mismatch)
        return sc_host_fail(shm->host, SPARK_COMM_PEER_LOST, members[wait->next], 0,
                            "rank %d was left behind: rank %d has gone on to another epoch",
                            members[shm->rank], members[wait->next]);
    describe(call, call->ops, what, sizeof what);
    return sc_host_fail(shm->host, SPARK_COMM_MISMATCH, members[wait->next], 0,
                        "rank %d called %s, but rank %d made another call", members[shm->rank],
                        what, members[wait->next]);
}
