/*
 * From ranks that have met to a communicator that is ready. NCCL is touched only after all ranks were
 * compared; then come named steps, each bounded and followed by a vote, so that all ranks go on or
 * none does:
 *
 *   compare   NCCL's version and file, the GPUs, the settings
 *   init      a non-blocking parent: bounded, and it can be aborted
 *   split     a blocking child of it, which everything runs on: an operation on a non-blocking
 *             communicator costs the host six times as much (docs/nccl.md)
 *   warm-up   every path once, so that nothing connects for the first time inside a capture
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/nccl/state.h"
#include "base/alloc.h"
#include "base/deadline.h"
#include "os/thread.h"

#define SCRATCH_BYTES ((size_t)1 << 20)

spark_comm_status sc_nccl_fail(const struct sc_nccl *nccl, int result, const char *what) {
    const char *text = nccl->api->last_error(NULL);
    spark_comm_status st =
        result == SC_NCCL_INVALID_ARGUMENT ? SPARK_COMM_INVALID_ARGUMENT : SPARK_COMM_BACKEND;
    return sc_host_fail(nccl->host, st, -1, result, "%s: %s (%d)%s%.300s", what,
                        nccl->api->error_string((sc_nccl_result)result), result,
                        text != NULL && text[0] != '\0' ? ": " : "", text != NULL ? text : "");
}

spark_comm_status sc_nccl_cuda_fail(const struct sc_nccl *nccl, int result, const char *what) {
    struct sc_error error;
    sc_error_clear(&error);
    sc_driver_fail(nccl->device.cuda, result, what, &error);
    return sc_host_pass(nccl->host, &error);
}

/* ---- Votes ---- */

struct ballot {
    int32_t status;
    int32_t native_code;
    char reason[232];
};

/* A vote that a fault cut short ends with that fault's cause. */
static spark_comm_status cause_of(struct sc_nccl *nccl, spark_comm_status st) {
    struct sc_error cause;
    sc_error_clear(&cause);
    if (sc_world_cause(sc_host_world(nccl->host), &cause) != SPARK_COMM_OK) return st;
    return sc_host_pass(nccl->host, &cause);
}

/* The failure that counts: of the lowest rank, but one that only gave up comes after all others. */
static int worst(const struct ballot *all, int size) {
    int given_up = -1;
    for (int rank = 0; rank < size; rank++) {
        if (all[rank].status != SPARK_COMM_OK && all[rank].status != SPARK_COMM_ABORTED)
            return rank;
        if (all[rank].status == SPARK_COMM_ABORTED && given_up < 0) given_up = rank;
    }
    return given_up;
}

/* All ranks return the same failure, if any rank has one. */
static spark_comm_status agree(struct sc_nccl *nccl, const char *step, spark_comm_status st,
                               int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    struct ballot mine = {.status = (int32_t)st}, *all = NULL;
    struct sc_error error;
    if (nccl->size == 1) return st;
    if (st != SPARK_COMM_OK) {
        sc_host_take_explanation(host->context, st, &error);
        mine.native_code = (int32_t)error.native_code;
        snprintf(mine.reason, sizeof mine.reason, "%.230s", error.message);
    }
    all = sc_alloc_array((size_t)nccl->size, sizeof *all);
    if (all == NULL) return sc_host_fail(host, SPARK_COMM_NO_MEMORY, -1, 0, "%s: no memory", step);
    st = host->all_gather(host->context, &mine, all, sizeof mine, deadline);
    int rank = st == SPARK_COMM_OK ? worst(all, nccl->size) : -1;
    if (st != SPARK_COMM_OK) st = cause_of(nccl, st);
    if (rank >= 0)
        st = sc_host_fail(host, (spark_comm_status)all[rank].status, rank, all[rank].native_code,
                          "nccl, %s: rank %d: %.231s", step, rank, all[rank].reason);
    sc_free(all);
    return st;
}

/* ---- Comparing ---- */

/* What every rank says of itself before NCCL is touched. */
struct identity {
    int32_t status; /* of this rank so far */
    int32_t version; /* of NCCL */
    int32_t device;
    int32_t exchange_setting;
    uint64_t exchange_bytes; /* by this GPU's table */
    uint32_t switches;
    int32_t has_add; /* the built-in kernel is there */
    uint64_t host; /* digest of boot id and network namespace */
    unsigned char uuid[16];
    char file[96];
    char reason[200];
};

static uint64_t host_digest(void) {
    struct sc_thread_host_id id;
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    memset(&id, 0, sizeof id);
    sc_thread_host_id(&id);
    for (size_t i = 0; i < sizeof id.boot_id && id.boot_id[i] != '\0'; i++)
        digest = (digest ^ (unsigned char)id.boot_id[i]) * UINT64_C(0x100000001b3);
    return digest;
}

static void introduce(struct sc_nccl *nccl, spark_comm_status local, struct identity *mine) {
    const struct sc_settings *settings = &nccl->settings;
    struct sc_error error;
    memset(mine, 0, sizeof *mine);
    mine->status = (int32_t)local;
    if (local != SPARK_COMM_OK) {
        sc_host_take_explanation(nccl->host->context, local, &error);
        snprintf(mine->reason, sizeof mine->reason, "%.198s", error.message);
        return;
    }
    mine->version = nccl->api->version;
    mine->device = nccl->device.ordinal;
    mine->exchange_setting = settings->nccl_exchange_bytes;
    mine->exchange_bytes = sc_thresholds_exchange_bytes(nccl->device.major, nccl->device.minor);
    mine->switches = (uint32_t)settings->allow_shared_gpu | (uint32_t)settings->nccl_windows << 1 |
                     (uint32_t)settings->nccl_split_share << 3;
    mine->has_add = nccl->kernels.add_bf16 != NULL;
    mine->host = host_digest();
    memcpy(mine->uuid, nccl->device.uuid, sizeof mine->uuid);
    /* The end of a path tells more than its beginning. */
    size_t length = strlen(nccl->api->file);
    size_t kept = length < sizeof mine->file ? length : sizeof mine->file - 1;
    memcpy(mine->file, nccl->api->file + (length - kept), kept);
}

/* Ranks that share a GPU; false: none do. */
static bool find_shared(const struct identity *all, int size, int *first, int *second) {
    for (*first = 0; *first < size; ++*first)
        for (*second = *first + 1; *second < size; ++*second)
            if (all[*first].host == all[*second].host &&
                memcmp(all[*first].uuid, all[*second].uuid, sizeof all->uuid) == 0)
                return true;
    return false;
}

/* Every rank judges the same table in the same order, so all come to the same words. */
static spark_comm_status judge(struct sc_nccl *nccl, const struct identity *all) {
    const spark_comm_host *host = nccl->host;
    const struct identity *zero = &all[0];
    char ours[32], theirs[32];
    int first, second;
    for (int rank = 0; rank < nccl->size; rank++)
        if (all[rank].status != SPARK_COMM_OK)
            return sc_host_fail(host, (spark_comm_status)all[rank].status, rank, 0,
                                "nccl, compare: rank %d: %.199s", rank, all[rank].reason);
    for (int rank = 1; rank < nccl->size; rank++) {
        const struct identity *other = &all[rank];
        sc_nccl_library_version_text(zero->version, ours, sizeof ours);
        sc_nccl_library_version_text(other->version, theirs, sizeof theirs);
        if (other->version != zero->version)
            return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, rank, 0,
                                "nccl, compare: rank 0 has NCCL %s (%.95s), rank %d has %s "
                                "(%.95s): NCCL needs one version on all ranks, and would hang",
                                ours, zero->file, rank, theirs, other->file);
        if (other->exchange_setting != zero->exchange_setting || other->switches != zero->switches)
            return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, rank, 0,
                                "nccl, compare: ranks 0 and %d have different settings "
                                "(nccl_exchange_bytes %d and %d; allow_shared_gpu, nccl_windows, "
                                "nccl_split_share 0x%x and 0x%x)",
                                rank, zero->exchange_setting, other->exchange_setting,
                                zero->switches, other->switches);
    }
    nccl->shared_gpu = find_shared(all, nccl->size, &first, &second);
    if (nccl->shared_gpu && !nccl->settings.allow_shared_gpu)
        return sc_host_fail(host, SPARK_COMM_UNAVAILABLE, second, 0,
                            "nccl, compare: ranks %d and %d both use GPU %d (%s here): give each "
                            "its own (options.device, SPARK_COMM_DEVICE, LOCAL_RANK), or set "
                            "SPARK_COMM_ALLOW_SHARED_GPU=1 to do without NCCL",
                            first, second, all[second].device, nccl->device.name);
    return SPARK_COMM_OK;
}

/* The exchange is for two ranks; its threshold is the least that any of them has. */
static void choose_exchange(struct sc_nccl *nccl, const struct identity *all) {
    uint64_t bytes = UINT64_MAX;
    bool has_add = true;
    for (int rank = 0; rank < nccl->size; rank++) {
        if (all[rank].exchange_bytes < bytes) bytes = all[rank].exchange_bytes;
        has_add &= all[rank].has_add != 0;
    }
    if (all[0].exchange_setting >= 0) bytes = (uint64_t)all[0].exchange_setting;
    nccl->exchange_bytes = nccl->size == 2 ? (size_t)bytes : 0;
    if (!has_add) nccl->kernels.add_bf16 = NULL;
    if (nccl->add == NULL) nccl->add = nccl->kernels.add_bf16;
}

static spark_comm_status compare(struct sc_nccl *nccl, spark_comm_status local, int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    struct identity mine, *all = sc_alloc_array((size_t)nccl->size, sizeof *all);
    spark_comm_status st = SPARK_COMM_OK;
    if (all == NULL)
        return sc_host_fail(host, SPARK_COMM_NO_MEMORY, -1, 0, "nccl, compare: no memory");
    introduce(nccl, local, &mine);
    all[0] = mine;
    if (nccl->size > 1) st = host->all_gather(host->context, &mine, all, sizeof mine, deadline);
    if (st == SPARK_COMM_OK) st = judge(nccl, all);
    if (st == SPARK_COMM_OK) choose_exchange(nccl, all);
    sc_free(all);
    return st;
}

/* ---- Init and split ---- */

struct poll {
    struct sc_nccl *nccl;
    sc_nccl_comm comm;
    sc_nccl_comm *child; /* not NULL: must have appeared too */
    int result;
};

/* Only this thread polls: NCCL joins its own helper in here. A split of a non-blocking parent may
 * report success before the child's pointer is there. */
static bool no_longer_in_progress(void *arg) {
    struct poll *poll = arg;
    sc_nccl_result state = (sc_nccl_result)SC_NCCL_IN_PROGRESS;
    int result = poll->nccl->api->async_error(poll->comm, &state);
    poll->result = result == SC_NCCL_OK ? (int)state : result;
    if (poll->result == SC_NCCL_IN_PROGRESS) return false;
    return poll->result != SC_NCCL_OK || poll->child == NULL ||
           __atomic_load_n(poll->child, __ATOMIC_ACQUIRE) != NULL;
}

static spark_comm_status await(struct sc_nccl *nccl, sc_nccl_comm comm, sc_nccl_comm *child,
                               const char *what, int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    struct poll poll = {nccl, comm, child, SC_NCCL_IN_PROGRESS};
    spark_comm_status st = host->wait(host->context, no_longer_in_progress, &poll, deadline);
    if (st == SPARK_COMM_OP_TIMEOUT)
        return sc_host_fail(host, SPARK_COMM_OPEN_TIMEOUT, -1, SC_NCCL_IN_PROGRESS,
                            "%s was still in progress at the deadline: NCCL may have chosen an "
                            "interface that the other ranks do not reach (NCCL_SOCKET_IFNAME, "
                            "NCCL_DEBUG=INFO)",
                            what);
    if (st == SPARK_COMM_ABORTED)
        return sc_host_fail(host, st, -1, 0, "%s was given up because another rank failed", what);
    return poll.result == SC_NCCL_OK ? st : sc_nccl_fail(nccl, poll.result, what);
}

static sc_nccl_config config_of(int blocking, int split_share) {
    return (sc_nccl_config){.size = SC_NCCL_CONFIG_BYTES,
                            .magic = SC_NCCL_CONFIG_MAGIC,
                            .version = SC_NCCL_CONFIG_VERSION,
                            .blocking = blocking,
                            .cga_cluster_size = SC_NCCL_UNSET,
                            .min_ctas = SC_NCCL_UNSET,
                            .max_ctas = SC_NCCL_UNSET,
                            .net_name = NULL,
                            .split_share = split_share};
}

/* Rank 0's id to all; an id that could not be made is a vote against. */
static spark_comm_status share_id(struct sc_nccl *nccl, sc_nccl_id *id, int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    spark_comm_status st = SPARK_COMM_OK;
    memset(id, 0, sizeof *id);
    int result = nccl->rank == 0 ? nccl->api->unique_id(id) : SC_NCCL_OK;
    if (result != SC_NCCL_OK) st = sc_nccl_fail(nccl, result, "ncclGetUniqueId");
    st = agree(nccl, "id", st, deadline);
    if (st != SPARK_COMM_OK || nccl->size == 1) return st;
    sc_nccl_id *all = sc_alloc_array((size_t)nccl->size, sizeof *all);
    if (all != NULL)
        st = host->all_gather(host->context, id, all, sizeof *id, deadline);
    else
        st = sc_host_fail(host, SPARK_COMM_NO_MEMORY, -1, 0, "nccl, id: no memory");
    if (st == SPARK_COMM_OK && all != NULL) *id = all[0];
    sc_free(all);
    return st;
}

static spark_comm_status init(struct sc_nccl *nccl, const sc_nccl_id *id, int64_t deadline) {
    /* Whether a child shares is asked of its parent. Without revoke it must: see shake_off. */
    nccl->shares = nccl->settings.nccl_split_share != 0 || nccl->api->revoke == NULL;
    nccl->revoked = false;
    sc_nccl_config config = config_of(0, nccl->shares);
    nccl->parent = NULL;
    int result = nccl->api->init(&nccl->parent, nccl->size, *id, nccl->rank, &config);
    if (result != SC_NCCL_OK && result != SC_NCCL_IN_PROGRESS)
        return sc_nccl_fail(nccl, result, "ncclCommInitRankConfig");
    return await(nccl, nccl->parent, NULL, "ncclCommInitRankConfig", deadline);
}

static spark_comm_status split(struct sc_nccl *nccl, int64_t deadline) {
    sc_nccl_config config = config_of(1, SC_NCCL_UNSET);
    nccl->comm = NULL;
    int result = nccl->api->split(nccl->parent, 0, nccl->rank, &nccl->comm, &config);
    if (result != SC_NCCL_OK && result != SC_NCCL_IN_PROGRESS)
        return sc_nccl_fail(nccl, result, "ncclCommSplit");
    spark_comm_status st = await(nccl, nccl->parent, &nccl->comm, "ncclCommSplit", deadline);
    return st == SPARK_COMM_OK ? await(nccl, nccl->comm, NULL, "ncclCommSplit", deadline) : st;
}

/* ---- Warm-up ---- */

/* Sends to every rank and receives from every rank, in one group. */
static int warm_messages(struct sc_nccl *nccl, char *send, char *recv) {
    const struct sc_nccl_library *api = nccl->api;
    int result = api->group_start();
    for (int peer = 0; peer < nccl->size && result == SC_NCCL_OK; peer++) {
        result = api->send(send, 1024, SC_NCCL_U8, peer, nccl->comm, nccl->stream);
        if (result == SC_NCCL_OK)
            result = api->recv(recv + 1024 * (size_t)peer, 1024, SC_NCCL_U8, peer, nccl->comm,
                               nccl->stream);
    }
    int ended = api->group_end();
    return result == SC_NCCL_OK ? ended : result;
}

static int warm_collectives(struct sc_nccl *nccl, char *send, char *recv) {
    const struct sc_nccl_library *api = nccl->api;
    static const size_t reductions[] = {1024, (size_t)64 << 10, SCRATCH_BYTES};
    size_t block = SCRATCH_BYTES / (size_t)nccl->size & ~(size_t)15;
    int result = SC_NCCL_OK;
    for (size_t i = 0; i < 3 && result == SC_NCCL_OK; i++)
        result = api->all_reduce(send, recv, reductions[i] / 2, SC_NCCL_BF16, SC_NCCL_SUM,
                                 nccl->comm, nccl->stream);
    if (result == SC_NCCL_OK)
        result = api->all_gather(send, recv, block, SC_NCCL_U8, nccl->comm, nccl->stream);
    if (result == SC_NCCL_OK)
        result = api->reduce_scatter(send, recv, block / 2, SC_NCCL_BF16, SC_NCCL_SUM, nccl->comm,
                                     nccl->stream);
    for (int root = 0; root < nccl->size && result == SC_NCCL_OK; root++)
        result = api->broadcast(recv, recv, 8192, SC_NCCL_U8, root, nccl->comm, nccl->stream);
    return result;
}

static spark_comm_status warm_up(struct sc_nccl *nccl, int64_t deadline) {
    const struct sc_driver *cuda = nccl->device.cuda;
    sc_cu_pointer scratch = 0;
    spark_comm_status st = SPARK_COMM_OK;
    int failed = cuda->memory_alloc(&scratch, 2 * SCRATCH_BYTES);
    if (failed != SC_CU_OK) return sc_nccl_cuda_fail(nccl, failed, "cuMemAlloc");
    char *send = (char *)(uintptr_t)scratch, *recv = send + SCRATCH_BYTES;
    int result = warm_collectives(nccl, send, recv);
    if (result == SC_NCCL_OK) result = warm_messages(nccl, send, recv);
    if (result != SC_NCCL_OK) st = sc_nccl_fail(nccl, result, "warm-up");
    spark_comm_op op = {.send = scratch,
                        .recv = scratch,
                        .bytes = 4096,
                        .dtype = SPARK_COMM_BF16,
                        .redop = SPARK_COMM_SUM};
    if (st == SPARK_COMM_OK && sc_exchange_serves(nccl, &op))
        st = sc_exchange_run(nccl, &op, nccl->stream);
    if (st == SPARK_COMM_OK) {
        /* A kernel that is loaded lazily must not be loaded inside a capture. */
        failed = sc_order_tick(nccl, nccl->stream);
        if (failed == SC_CU_OK) failed = cuda->event_record(nccl->after, nccl->stream);
        st = failed == SC_CU_OK ? sc_order_await(nccl, nccl->after, deadline)
                                : sc_nccl_cuda_fail(nccl, failed, "cuEventRecord");
    }
    /* Freeing waits for the GPU: not while kernels wait there for a rank that failed. */
    if (st == SPARK_COMM_OK) cuda->memory_free(scratch);
    if (st == SPARK_COMM_OK) *nccl->ticks = 0;
    return st;
}

/* ---- All of it ---- */

/* NCCL has a limit that leaves time for the votes on what became of it. */
static int64_t limit_of_nccl(int64_t deadline) {
    int64_t left = deadline - sc_deadline_now(), reserve = INT64_C(5000000000);
    if (deadline == SC_DEADLINE_NEVER) return deadline;
    return deadline - (left / 4 < reserve ? left / 4 : reserve);
}

/* Others may wait inside NCCL for a rank that failed, and NCCL tells them nothing: so a failure, other
 * than a limit that all ranks have, is made known as a fault at once. */
static spark_comm_status conclude(struct sc_nccl *nccl, const char *step, spark_comm_status st,
                                  int64_t deadline) {
    const spark_comm_host *host = nccl->host;
    char message[400];
    struct sc_error error;
    bool waits = st == SPARK_COMM_OPEN_TIMEOUT || st == SPARK_COMM_ABORTED;
    if (st != SPARK_COMM_OK && !waits && nccl->size > 1) {
        sc_host_take_explanation(host->context, st, &error);
        snprintf(message, sizeof message, "nccl, %s: rank %d: %.340s", step, nccl->rank,
                 error.message);
        host->report_fault(host->context, SPARK_COMM_BACKEND, nccl->rank, error.native_code,
                           message);
    }
    return agree(nccl, step, st, deadline);
}

static spark_comm_status steps(struct sc_nccl *nccl, int64_t deadline) {
    sc_nccl_id id;
    size_t before = 0, after = 0, total = 0;
    int64_t limit = limit_of_nccl(deadline);
    nccl->device.cuda->memory_info(&before, &total);
    spark_comm_status st = share_id(nccl, &id, deadline);
    if (st == SPARK_COMM_OK) st = conclude(nccl, "init", init(nccl, &id, limit), deadline);
    if (st == SPARK_COMM_OK) st = conclude(nccl, "split", split(nccl, limit), deadline);
    if (st == SPARK_COMM_OK) st = conclude(nccl, "warm-up", warm_up(nccl, limit), deadline);
    nccl->device.cuda->memory_info(&after, &total);
    nccl->device_bytes = before > after ? before - after : 0;
    return st;
}

spark_comm_status sc_connect_run(struct sc_nccl *nccl, spark_comm_status local, int64_t deadline) {
    struct sc_device_scope scope;
    spark_comm_status st = compare(nccl, local, deadline);
    if (st != SPARK_COMM_OK || nccl->shared_gpu) return st;
    sc_device_enter(&nccl->device, &scope, true);
    st = agree(nccl, "buffers", sc_exchange_open(nccl), deadline);
    if (st == SPARK_COMM_OK) st = steps(nccl, deadline);
    sc_device_leave(&nccl->device, &scope);
    return st;
}
