/*
 * The table of the shm backend: opening, closing, and the choice of the path for each operation.
 * With two ranks or more the work is done by the channels (slots.c, swap.c, chunks.c, direct.c,
 * streams.c, pairs.c); one rank alone copies where a copy is due and has no mailbox.
 */
#include "backends/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/shm/channels.h"
#include "backends/shm/symmetric.h"
#include "base/alloc.h"
#include "base/deadline.h"

/* None where ranks share CPUs: there the policy's few pauses are all that is wanted. */
#define BRISK_LOOKS 64u

/* Shared memory without names is all it takes; tried with one page. What has only run out (memory,
 * descriptors) is no reason not to serve: open says so better. */
static spark_comm_status probe(void *user, const spark_comm_options *options, char *why,
                               size_t why_size) {
    struct sc_mapping mapping;
    struct sc_error error;
    (void)user;
    (void)options;
    sc_mapping_init(&mapping);
    sc_error_clear(&error);
    spark_comm_status st = sc_mapping_create(4096, true, &mapping, &error);
    bool ran_out = error.native_code == EMFILE || error.native_code == ENFILE;
    sc_mapping_release(&mapping);
    if (st != SPARK_COMM_SYSTEM || ran_out) return SPARK_COMM_OK;
    snprintf(why, why_size, "%s", error.message);
    return SPARK_COMM_UNAVAILABLE;
}

static spark_comm_status check_one_host(const spark_comm_host *host) {
    struct sc_world *world = sc_host_world(host);
    const struct sc_world_member *members = sc_world_members(world);
    if (host->member_count > SC_MAILBOX_MAX_RANKS)
        return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "shm serves at most %d ranks, and there are %d", SC_MAILBOX_MAX_RANKS,
                            host->member_count);
    if (host->member_count == 1 || sc_world_one_host(world)) return SPARK_COMM_OK;
    /* The exchange is between the hub, rank 0, and each other rank. */
    for (int i = 1; i < host->member_count; i++) {
        int rank = host->members[i];
        if (members[rank].same_host == 0)
            return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, rank, 0,
                                "shm needs all ranks on one host: rank %d (%s) could not exchange "
                                "memory with rank 0 (%s)",
                                rank, members[rank].listener, members[0].listener);
    }
    return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, -1, 0,
                        "shm needs all ranks on one host, and they could not exchange memory");
}

static void close_backend(void *state) {
    struct sc_shm *shm = state;
    sc_symmetric_close(shm);
    sc_mailbox_close(shm);
    sc_free(shm);
}

/* How the ranks of this epoch wait. */
static void take_policy(struct sc_shm *shm) {
    shm->policy = sc_world_policy(sc_host_world(shm->host), SPARK_COMM_LANE_DATA);
    shm->brisk_looks = shm->policy->spins < BRISK_LOOKS ? 0 : BRISK_LOOKS;
}

static spark_comm_status open_backend(void *user, const spark_comm_host *host, void **state) {
    int64_t deadline = sc_world_setup_deadline(sc_host_world(host));
    (void)user;
    spark_comm_status st = check_one_host(host);
    if (st != SPARK_COMM_OK) return st;
    struct sc_shm *shm = sc_alloc_zero(sizeof *shm);
    st = sc_mailbox_agree(host, "open", shm != NULL, 0, deadline);
    if (st != SPARK_COMM_OK || shm == NULL) goto fail; /* without a state the vote failed */
    sc_mapping_init(&shm->mail.mapping);
    shm->host = host;
    shm->rank = host->rank;
    shm->size = host->member_count;
    take_policy(shm);
    sc_paths_choose(&shm->paths, shm->size);
    st = sc_mailbox_open(shm, deadline);
    if (st != SPARK_COMM_OK) goto fail;
    *state = shm;
    return st;
fail:
    sc_free(shm);
    return st;
}

/* The result of one rank alone. */
static spark_comm_status copy_own(const spark_comm_op *op) {
    void *from = sc_state_pointer(op->send), *to = sc_state_pointer(op->recv);
    if (to != NULL && from != NULL && to != from) memmove(to, from, op->bytes);
    return SPARK_COMM_OK;
}

/* The api has checked that type and reduction are known, so there is a reducer. */
static spark_comm_status all_reduce(void *state, const spark_comm_call *call) {
    struct sc_shm *shm = state;
    const spark_comm_op *op = call->ops;
    if (op->bytes == 0) return SPARK_COMM_OK;
    spark_comm_status st;
    if (sc_direct_wanted(shm, op) &&
        sc_direct_run(shm, call, sc_dtype_reducer_now(op->dtype, op->redop), &st))
        return st;
    enum sc_path path = sc_paths_of(&shm->paths, op->kind, op->bytes);
    if (path == SC_PATH_SWAP) return sc_swap_all_reduce(shm, call);
    if (path == SC_PATH_TINY || path == SC_PATH_SLOTS) return sc_slots_all_reduce(shm, call);
    if (path == SC_PATH_COPY) return copy_own(op);
    return sc_chunks_all_reduce(shm, call, sc_dtype_reducer_now(op->dtype, op->redop), path);
}

static spark_comm_status reduce_scatter(void *state, const spark_comm_call *call) {
    struct sc_shm *shm = state;
    const spark_comm_op *op = call->ops;
    if (op->bytes == 0) return SPARK_COMM_OK;
    enum sc_path path = sc_paths_of(&shm->paths, op->kind, op->bytes);
    if (path == SC_PATH_COPY) return copy_own(op);
    sc_dtype_reduce_fn reduce = sc_dtype_reducer_now(op->dtype, op->redop);
    spark_comm_status st;
    if (sc_direct_wanted(shm, op) && sc_direct_run(shm, call, reduce, &st)) return st;
    if (path == SC_PATH_CHUNKS) return sc_chunks_reduce_scatter(shm, call, reduce);
    return sc_slots_reduce_scatter(shm, call, reduce);
}

static spark_comm_status all_gather(void *state, const spark_comm_call *call) {
    struct sc_shm *shm = state;
    const spark_comm_op *op = call->ops;
    if (op->bytes == 0) return SPARK_COMM_OK;
    enum sc_path path = sc_paths_of(&shm->paths, op->kind, op->bytes);
    if (path == SC_PATH_COPY) return copy_own(op);
    spark_comm_status st;
    if (sc_direct_wanted(shm, op) && sc_direct_run(shm, call, NULL, &st)) return st;
    if (path == SC_PATH_CHUNKS) return sc_chunks_all_gather(shm, call);
    return sc_slots_all_gather(shm, call);
}

static spark_comm_status broadcast(void *state, const spark_comm_call *call) {
    struct sc_shm *shm = state;
    if (call->ops->bytes == 0) return SPARK_COMM_OK;
    return shm->size == 1 ? copy_own(call->ops) : sc_streams_broadcast(shm, call);
}

static spark_comm_status barrier(void *state, const spark_comm_call *call) {
    struct sc_shm *shm = state;
    return shm->size == 1 ? SPARK_COMM_OK : sc_slots_barrier(shm, call);
}

static spark_comm_status point_to_point(void *state, const spark_comm_call *call) {
    return sc_pairs_point_to_point(state, call);
}

/* A new epoch: fresh mailboxes, by the same votes as in open, which a replacement goes through. */
static spark_comm_status reopen(void *state) {
    struct sc_shm *shm = state;
    const spark_comm_host *host = shm->host;
    int64_t deadline = sc_world_setup_deadline(sc_host_world(host));
    struct sc_error error;
    spark_comm_status st = check_one_host(host);
    if (st != SPARK_COMM_OK) return st;
    sc_error_clear(&error);
    sc_mailbox_leave(shm);
    spark_comm_status detached = sc_symmetric_detach(shm, &error);
    st = sc_mailbox_agree(host, "reconnect", detached == SPARK_COMM_OK, 0, deadline);
    if (st != SPARK_COMM_OK) return st;
    sc_mailbox_close(shm);
    take_policy(shm);
    return sc_mailbox_open(shm, deadline);
}

/* Waits look at poison when they wake; whoever interrupts has set it before. */
static void interrupt(void *state) {
    struct sc_shm *shm = state;
    if (shm->size > 1) sc_wait_wake_all(shm->mail.doorbells[shm->rank]);
}

static size_t describe(void *state, spark_comm_info_row *rows, size_t capacity) {
    const struct sc_shm *shm = state;
    return sc_paths_describe(&shm->paths, rows, capacity);
}

const spark_comm_backend sc_shm_backend = {
    .struct_size = sizeof(spark_comm_backend),
    .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
    .traits = SPARK_COMM_TRAIT_CANONICAL | SPARK_COMM_TRAIT_LATE_ENTRY,
    .name = "shm",
    .memory = SPARK_COMM_MEMORY_HOST,
    .probe = probe,
    .open = open_backend,
    .close = close_backend,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .barrier = barrier,
    .point_to_point = point_to_point,
    .register_buffer = sc_symmetric_register,
    .deregister_buffer = sc_symmetric_deregister,
    .symmetric_alloc = sc_symmetric_alloc,
    .symmetric_free = sc_symmetric_free,
    .interrupt = interrupt,
    .reopen = reopen,
    .describe = describe,
};
