/*
 * Registered buffers and symmetric memory. A registration is kept as address and size, so that a new
 * communicator after a reconnect gets it again; NCCL's own handle may be shared by several ranges (it
 * counts), so each of ours is given back exactly once.
 */
#include "backends/nccl/state.h"

#include "base/alloc.h"
#include "base/deadline.h"

/* ---- Registrations: data lane held ---- */

static int register_with_nccl(struct sc_nccl *nccl, struct sc_nccl_registration *entry) {
    struct sc_device_scope scope;
    int result = SC_NCCL_OK;
    entry->of_nccl = NULL;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    sc_device_enter(&nccl->device, &scope, true);
    if (nccl->comm != NULL)
        result = nccl->api->comm_register(nccl->comm, (void *)(uintptr_t)entry->ptr, entry->bytes,
                                          &entry->of_nccl);
    sc_device_leave(&nccl->device, &scope);
    sc_lock_give(&nccl->order.lock);
    return result;
}

spark_comm_status sc_nccl_memory_register(void *state, uint64_t ptr, size_t bytes, uint64_t *handle) {
    struct sc_nccl *nccl = state;
    struct sc_nccl_registration *entry = sc_alloc_zero(sizeof *entry);
    *handle = 0;
    if (entry == NULL)
        return sc_host_fail(nccl->host, SPARK_COMM_NO_MEMORY, -1, 0,
                            "register_buffer: out of memory");
    entry->ptr = ptr;
    entry->bytes = bytes;
    int result = register_with_nccl(nccl, entry);
    sc_log_write(
        sc_host_log(nccl->host), SPARK_COMM_LOG_INFO, "register_buffer: %zu bytes, %s", bytes,
        entry->of_nccl != NULL ? "registered with NCCL" : "NCCL does nothing with it (handle 0)");
    if (result == SC_NCCL_OK && entry->of_nccl != NULL) {
        entry->handle = *handle = ++nccl->last_handle;
        entry->next = nccl->registrations;
        nccl->registrations = entry;
        return SPARK_COMM_OK;
    }
    sc_free(entry);
    return result == SC_NCCL_OK ? SPARK_COMM_OK : sc_nccl_fail(nccl, result, "ncclCommRegister");
}

static int deregister_with_nccl(struct sc_nccl *nccl, struct sc_nccl_registration *entry) {
    struct sc_device_scope scope;
    int result = SC_NCCL_OK;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    sc_device_enter(&nccl->device, &scope, true);
    if (nccl->comm != NULL && entry->of_nccl != NULL)
        result = nccl->api->comm_deregister(nccl->comm, entry->of_nccl);
    entry->of_nccl = NULL;
    sc_device_leave(&nccl->device, &scope);
    sc_lock_give(&nccl->order.lock);
    return result;
}

spark_comm_status sc_nccl_memory_deregister(void *state, uint64_t handle) {
    struct sc_nccl *nccl = state;
    struct sc_nccl_registration **at = &nccl->registrations;
    while (*at != NULL && (*at)->handle != handle)
        at = &(*at)->next;
    struct sc_nccl_registration *entry = *at;
    if (entry == NULL) return SPARK_COMM_OK;
    *at = entry->next;
    /* A poisoned communicator is being ended, and its registrations with it. */
    int result = SC_NCCL_OK;
    if (__atomic_load_n(nccl->host->poison, __ATOMIC_ACQUIRE) == 0)
        result = deregister_with_nccl(nccl, entry);
    sc_free(entry);
    return result == SC_NCCL_OK ? SPARK_COMM_OK : sc_nccl_fail(nccl, result, "ncclCommDeregister");
}

void sc_nccl_memory_restore(struct sc_nccl *nccl) {
    struct sc_nccl_registration *entry = nccl->registrations;
    for (; entry != NULL; entry = entry->next)
        if (register_with_nccl(nccl, entry) != SC_NCCL_OK || entry->of_nccl == NULL)
            sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_WARN,
                         "reconnect: a registered buffer of %zu bytes could not be registered "
                         "again; it works, without the speed-up",
                         entry->bytes);
}

/* ---- Symmetric memory ---- */

/* A window of NCCL before 2.29.7 brings kernels that neither revoke nor abort can end; on DGX Spark
 * windows fail before 2.30.4. */
static bool wants_window(const struct sc_nccl *nccl) {
    int version = nccl->api->version;
    bool spark = nccl->device.major == 12 && nccl->device.minor == 1;
    if (nccl->api->window_register == NULL || nccl->size == 1 || nccl->shared_gpu) return false;
    if (nccl->settings.nccl_windows == 2) return true;
    return nccl->settings.nccl_windows == 1 && version >= SC_NCCL_OWN_ABORT &&
           !(spark && version < 23004);
}

/* What each rank says of a step of symmetric_alloc. */
struct ballot {
    uint64_t bytes;
    int32_t result;
    int32_t window;
};

/* OK when all ranks ask for the same and all could; *windows: all have one. */
static spark_comm_status vote(struct sc_nccl *nccl, const struct ballot *mine, int64_t deadline,
                              bool *windows) {
    const spark_comm_host *host = nccl->host;
    struct ballot all[SC_NCCL_MAX_RANKS];
    spark_comm_status st = SPARK_COMM_OK;
    all[0] = *mine;
    if (nccl->size > 1) st = host->all_gather(host->context, mine, all, sizeof *mine, deadline);
    *windows = true;
    for (int rank = 0; rank < nccl->size && st == SPARK_COMM_OK; rank++) {
        *windows &= all[rank].window != 0;
        if (all[rank].bytes != all[0].bytes)
            st = sc_host_fail(host, SPARK_COMM_MISMATCH, rank, 0,
                              "symmetric_alloc: rank 0 asks for %llu bytes, rank %d for %llu",
                              (unsigned long long)all[0].bytes, rank,
                              (unsigned long long)all[rank].bytes);
        else if (all[rank].result != SC_NCCL_OK)
            st = sc_host_fail(host, SPARK_COMM_NO_MEMORY, rank, all[rank].result,
                              "symmetric_alloc: rank %d could not allocate %llu bytes of device "
                              "memory (%s)",
                              rank, (unsigned long long)all[rank].bytes,
                              nccl->api->error_string((sc_nccl_result)all[rank].result));
    }
    return st;
}

/* Order lock held, context current. */
static void drop_window(struct sc_nccl *nccl, struct sc_nccl_symmetric *entry) {
    if (entry->window != NULL && nccl->comm != NULL)
        nccl->api->window_deregister(nccl->comm, entry->window);
    entry->window = NULL;
}

static void release_entry(struct sc_nccl *nccl, struct sc_nccl_symmetric *entry) {
    struct sc_device_scope scope;
    if (entry == NULL) return;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    sc_device_enter(&nccl->device, &scope, true);
    drop_window(nccl, entry);
    /* Freeing waits for the GPU, and a kernel that cannot be ended never leaves it. */
    if (entry->memory != NULL && !atomic_load(&nccl->watch.stuck))
        nccl->api->memory_free(entry->memory);
    sc_device_leave(&nccl->device, &scope);
    sc_lock_give(&nccl->order.lock);
    sc_free(entry);
}

static int allocate(struct sc_nccl *nccl, struct sc_nccl_symmetric *entry, size_t bytes) {
    struct sc_device_scope scope;
    if (entry == NULL) return 2; /* ncclSystemError */
    sc_device_enter(&nccl->device, &scope, true);
    int result = nccl->api->memory_alloc(&entry->memory, bytes);
    sc_device_leave(&nccl->device, &scope);
    return result;
}

/* Collective. Success without a window is "not supported" from 2.29.2 on. */
static void make_window(struct sc_nccl *nccl, struct sc_nccl_symmetric *entry, size_t bytes) {
    struct sc_device_scope scope;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    sc_device_enter(&nccl->device, &scope, true);
    if (nccl->api->window_register(nccl->comm, entry->memory, bytes, &entry->window,
                                   SC_NCCL_WINDOW_SYMMETRIC) != SC_NCCL_OK)
        entry->window = NULL;
    sc_device_leave(&nccl->device, &scope);
    sc_lock_give(&nccl->order.lock);
}

spark_comm_status sc_nccl_memory_alloc(void *state, size_t bytes, int64_t deadline_ns, uint64_t *ptr) {
    struct sc_nccl *nccl = state;
    struct sc_nccl_symmetric *entry = sc_alloc_zero(sizeof *entry);
    struct ballot mine = {.bytes = bytes, .result = allocate(nccl, entry, bytes)};
    bool windows;
    spark_comm_status st = vote(nccl, &mine, deadline_ns, &windows);
    if (st != SPARK_COMM_OK || entry == NULL) goto fail;
    if (wants_window(nccl)) {
        make_window(nccl, entry, (bytes + 4095) & ~(size_t)4095);
        mine.window = entry->window != NULL;
        st = vote(nccl, &mine, deadline_ns, &windows);
        if (st != SPARK_COMM_OK) goto fail;
        sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
        if (!windows) drop_window(nccl, entry);
        sc_lock_give(&nccl->order.lock);
    }
    entry->next = nccl->symmetric;
    nccl->symmetric = entry;
    *ptr = (uint64_t)(uintptr_t)entry->memory;
    return st;
fail:
    release_entry(nccl, entry);
    return st;
}

spark_comm_status sc_nccl_memory_free(void *state, uint64_t ptr) {
    struct sc_nccl *nccl = state;
    struct sc_nccl_symmetric **at = &nccl->symmetric;
    while (*at != NULL && (uint64_t)(uintptr_t)(*at)->memory != ptr)
        at = &(*at)->next;
    struct sc_nccl_symmetric *entry = *at;
    if (entry == NULL)
        return sc_host_fail(nccl->host, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "symmetric_free: ptr is no memory that symmetric_alloc gave");
    *at = entry->next;
    release_entry(nccl, entry);
    return SPARK_COMM_OK;
}

void sc_nccl_memory_forget(struct sc_nccl *nccl) {
    for (struct sc_nccl_symmetric *entry = nccl->symmetric; entry != NULL; entry = entry->next)
        entry->window = NULL;
    struct sc_nccl_registration *registered = nccl->registrations;
    for (; registered != NULL; registered = registered->next)
        registered->of_nccl = NULL;
}

void sc_nccl_memory_deregister_all(struct sc_nccl *nccl) {
    struct sc_nccl_registration *registered = nccl->registrations;
    for (; registered != NULL; registered = registered->next)
        deregister_with_nccl(nccl, registered);
    for (struct sc_nccl_symmetric *entry = nccl->symmetric; entry != NULL; entry = entry->next)
        drop_window(nccl, entry);
}

void sc_nccl_memory_close(struct sc_nccl *nccl) {
    while (nccl->registrations != NULL) {
        struct sc_nccl_registration *entry = nccl->registrations;
        nccl->registrations = entry->next;
        sc_free(entry);
    }
    while (nccl->symmetric != NULL) {
        struct sc_nccl_symmetric *entry = nccl->symmetric;
        nccl->symmetric = entry->next;
        release_entry(nccl, entry);
    }
}
