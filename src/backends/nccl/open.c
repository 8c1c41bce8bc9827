/* The life of the NCCL backend: probe, open, close, reopen. */
#include "backends/nccl/open.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"

#if defined(__aarch64__)
#define IS_AARCH64 true
#else
#define IS_AARCH64 false
#endif

#define GRAPHS_MS 3000 /* for stuck replays of destroyed graphs to leave the GPU */

static int64_t limit(int timeout_ms) {
    return timeout_ms == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(timeout_ms);
}

/* Says why not, or what it would use. */
spark_comm_status sc_nccl_open_probe(void *user, const spark_comm_options *options, char *why,
                                     size_t why_size) {
    const struct sc_nccl_library *api;
    const struct sc_driver *cuda;
    struct sc_settings settings;
    struct sc_error error;
    char version[32];
    (void)user;
    sc_error_clear(&error);
    sc_settings_of_environment(&settings);
    if (options->world_size > SC_NCCL_MAX_RANKS) {
        snprintf(why, why_size, "it serves at most %d ranks", SC_NCCL_MAX_RANKS);
        return SPARK_COMM_UNAVAILABLE;
    }
    spark_comm_status st = sc_driver_load(settings.cuda_library, &cuda, &error);
    if (st == SPARK_COMM_OK) st = sc_nccl_library_load(settings.nccl_library, &api, &error);
    if (st != SPARK_COMM_OK) {
        snprintf(why, why_size, "%s", error.message);
        return st;
    }
    sc_nccl_library_version_text(api->version, version, sizeof version);
    snprintf(why, why_size, "NCCL %s (%s), CUDA driver %d.%d, %d GPUs", version, api->file,
             cuda->version / 1000, cuda->version % 1000 / 10, cuda->devices);
    return SPARK_COMM_OK;
}

static void warn(struct sc_nccl *nccl) {
    const char *warning = sc_nccl_library_warning(nccl->api, IS_AARCH64);
    char version[32];
    sc_nccl_library_version_text(nccl->api->version, version, sizeof version);
    sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_INFO, "NCCL %s from %s, GPU %d: %s (%s)",
                 version, nccl->api->file, nccl->device.ordinal, nccl->device.name,
                 nccl->device.pci);
    if (warning != NULL)
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_WARN, "NCCL %s: %s", version, warning);
}

/* All that needs no other rank. */
static spark_comm_status prepare(struct sc_nccl *nccl) {
    const spark_comm_options *options = nccl->host->options;
    struct sc_device_scope scope;
    struct sc_error error;
    sc_error_clear(&error);
    spark_comm_status st = sc_nccl_library_load(nccl->settings.nccl_library, &nccl->api, &error);
    if (st == SPARK_COMM_OK)
        st = sc_device_open(&nccl->device, nccl->settings.cuda_library,
                            options->device >= 0 ? options->device : 0, &error);
    if (st != SPARK_COMM_OK) return sc_host_pass(nccl->host, &error);
    warn(nccl);
    sc_device_enter(&nccl->device, &scope, true);
    if (!sc_kernels_load(&nccl->kernels, &nccl->device, &error) && error.status != SPARK_COMM_OK)
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_WARN, "%s; going on without them",
                     error.message);
    st = sc_order_open(nccl);
    if (st == SPARK_COMM_OK) st = sc_stage_open(nccl);
    sc_device_leave(&nccl->device, &scope);
    return st;
}

/* What is left when no kernel of ours can be on the GPU. */
static void release(struct sc_nccl *nccl) {
    struct sc_device_scope scope;
    if (nccl->device.context != NULL) {
        sc_device_enter(&nccl->device, &scope, true);
        sc_exchange_close(nccl);
        sc_align_close(nccl);
        sc_nccl_memory_close(nccl);
        sc_stage_close(nccl);
        sc_order_close(nccl);
        sc_kernels_unload(&nccl->kernels, &nccl->device);
        sc_device_leave(&nccl->device, &scope);
    }
    sc_device_close(&nccl->device);
    sc_free(nccl);
}

/* What is stuck uses all of it still: left alone. */
static void release_unless_stuck(struct sc_nccl *nccl, bool ended) {
    if (ended) {
        release(nccl);
        return;
    }
    sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_ERROR,
                 "nccl: the communicator could not be ended (%d captured graphs live); its memory "
                 "is left alone until they are destroyed, or the process ends",
                 sc_watch_live_graphs(nccl));
    sc_watch_leave_job(nccl);
}

spark_comm_status sc_nccl_open_backend(void *user, const spark_comm_host *host, void **state) {
    int64_t deadline = limit(host->options->rendezvous_timeout_ms);
    struct sc_nccl *nccl = sc_alloc_aligned(64, sizeof *nccl);
    spark_comm_status st;
    (void)user;
    if (nccl == NULL) return sc_host_fail(host, SPARK_COMM_NO_MEMORY, -1, 0, "open: out of memory");
    nccl->host = host;
    nccl->rank = host->rank;
    nccl->size = host->member_count;
    nccl->default_stream = (sc_cu_stream)(uintptr_t)host->options->stream;
    sc_settings_of_environment(&nccl->settings);
    st = sc_connect_run(nccl, prepare(nccl), deadline);
    if (st == SPARK_COMM_OK && !nccl->shared_gpu) st = sc_watch_start(nccl);
    if (st != SPARK_COMM_OK) goto fail;
    *state = nccl;
    return st;
fail:
    deadline = limit(host->options->close_timeout_ms);
    release_unless_stuck(nccl, sc_watch_end(nccl, deadline, deadline));
    return st;
}

/* A healthy communicator's operations are given time to end. */
static bool drained(void *arg) {
    struct sc_nccl *nccl = arg;
    sc_lock_take(&nccl->order.lock, SC_DEADLINE_NEVER, NULL);
    sc_order_mark_rest(nccl);
    sc_order_poll(nccl);
    bool done =
        atomic_load_explicit(&nccl->order.completed, memory_order_relaxed) == nccl->order.marked;
    sc_lock_give(&nccl->order.lock);
    return done;
}

void sc_nccl_open_close(void *state) {
    struct sc_nccl *nccl = state;
    const spark_comm_host *host = nccl->host;
    int64_t deadline = limit(host->options->close_timeout_ms);
    /* Half of the time for what is enqueued, the rest for NCCL. */
    int64_t half = deadline == SC_DEADLINE_NEVER ? deadline : (sc_deadline_now() + deadline) / 2;
    struct sc_device_scope scope;
    bool ended = nccl->shared_gpu;
    sc_watch_stop(nccl);
    if (!ended) {
        sc_device_enter(&nccl->device, &scope, true);
        bool healthy = __atomic_load_n(host->poison, __ATOMIC_ACQUIRE) == 0 &&
                       sc_watch_await_graphs(nccl) == 0 &&
                       host->wait(host->context, drained, nccl, half) == SPARK_COMM_OK;
        if (healthy) {
            sc_nccl_memory_deregister_all(nccl);
            ended = sc_watch_destroy(nccl, deadline);
        } else {
            /* Graphs of a healthy communicator are not stuck: whoever destroys them late does so. */
            bool poisoned = __atomic_load_n(host->poison, __ATOMIC_ACQUIRE) != 0;
            ended = sc_watch_end(nccl, deadline,
                                 sc_deadline_min(deadline, limit(poisoned ? GRAPHS_MS : 0)));
        }
        sc_device_leave(&nccl->device, &scope);
    }
    release_unless_stuck(nccl, ended);
}

/* The watcher does what is to be done; callers' own waits look at the poison word. */
void sc_nccl_open_interrupt(void *state) {
    sc_watch_wake_slow(state);
}

/* This rank's own part of a new epoch: the old communicator must be gone. */
static spark_comm_status leave_epoch(struct sc_nccl *nccl, int64_t deadline) {
    bool ended = sc_watch_end(nccl, deadline, limit(GRAPHS_MS));
    /* NCCL may end it beside live graphs: with one rank, or after a revoke. */
    int graphs = ended ? sc_watch_await_graphs(nccl) : sc_watch_live_graphs(nccl);
    if (graphs > 0)
        return sc_host_fail(nccl->host, SPARK_COMM_WRONG_STATE, -1, 0,
                            "%d captured graphs hold operations of the old epoch: destroy them, "
                            "then reconnect",
                            graphs);
    if (!ended)
        return sc_host_fail(nccl->host, SPARK_COMM_BACKEND, -1, 0,
                            "NCCL could not end the old communicator: the process must end");
    sc_nccl_memory_forget(nccl);
    sc_order_reset(nccl);
    return SPARK_COMM_OK;
}

spark_comm_status sc_nccl_open_reopen(void *state) {
    struct sc_nccl *nccl = state;
    int64_t deadline = limit(nccl->host->options->rendezvous_timeout_ms);
    struct sc_device_scope scope;
    sc_watch_stop(nccl);
    sc_device_enter(&nccl->device, &scope, true);
    spark_comm_status local = leave_epoch(nccl, limit(nccl->host->options->close_timeout_ms));
    sc_exchange_close(nccl);
    sc_device_leave(&nccl->device, &scope);
    spark_comm_status st = sc_connect_run(nccl, local, deadline);
    if (st == SPARK_COMM_OK && !nccl->shared_gpu) {
        sc_nccl_memory_restore(nccl);
        st = sc_watch_start(nccl);
    } else if (st != SPARK_COMM_OK && local == SPARK_COMM_OK) {
        deadline = limit(nccl->host->options->close_timeout_ms);
        sc_watch_end(nccl, deadline, deadline);
    }
    return st;
}
