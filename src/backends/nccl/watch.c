/*
 * The watcher: the one thread of this backend. It reads NCCL's asynchronous errors, sees whether the
 * GPU makes progress, and after a fault ends the communicator, so that kernels that wait for a peer
 * leave the GPU. It sleeps while nothing is outstanding, but for a look every second.
 *
 * Whatever ends a communicator runs in a helper thread with a deadline, because abort and destroy may
 * never come back (live graphs, a kernel of a symmetric window, a stuck proxy). A helper that is late
 * is left alone with what it uses; then the communicator is `stuck`, and only the end of the process
 * frees the GPU.
 */
#include <stdio.h>
#include <string.h>

#include "backends/nccl/state.h"
#include "base/alloc.h"
#include "base/deadline.h"
#include "os/thread.h"

#define BUSY_NS INT64_C(10000000)
#define IDLE_NS INT64_C(1000000000)

/* ---- Helpers with a deadline ---- */

enum { JOB_RUNS, JOB_DONE, JOB_HELD };

struct job {
    struct sc_nccl *nccl;
    void (*work)(struct job *job);
    int64_t deadline;
    _Atomic uint32_t state; /* futex: JOB_*; release by the helper, acquire by who waits */
    _Atomic int32_t references; /* the helper's and that of who waits */
};

static void let_go(struct job *job) {
    if (atomic_fetch_sub_explicit(&job->references, 1, memory_order_acq_rel) == 1) sc_free(job);
}

static void finish(struct job *job, uint32_t state) {
    atomic_store_explicit(&job->state, state, memory_order_release);
    sc_wait_futex_wake(&job->state, INT32_MAX);
}

static void *helper_main(void *arg) {
    struct job *job = arg;
    sc_device_adopt(&job->nccl->device);
    job->work(job);
    let_go(job);
    return NULL;
}

/* Runs `work` and waits until it says how it went. False at the deadline, and when there is no thread
 * or memory for it. */
static bool run_job(struct sc_nccl *nccl, void (*work)(struct job *job), int64_t deadline) {
    struct sc_error error;
    pthread_t thread;
    struct job *job = sc_alloc_zero(sizeof *job);
    if (job == NULL) return false;
    *job = (struct job){.nccl = nccl, .work = work, .deadline = deadline};
    atomic_store_explicit(&job->references, 2, memory_order_relaxed);
    if (sc_thread_start(&thread, "sc-nccl-end", helper_main, job, &error) != SPARK_COMM_OK) {
        sc_free(job);
        return false;
    }
    uint32_t state;
    while ((state = atomic_load_explicit(&job->state, memory_order_acquire)) == JOB_RUNS &&
           !sc_deadline_passed(deadline))
        sc_wait_futex_sleep(&job->state, JOB_RUNS, deadline);
    if (state == JOB_RUNS)
        pthread_detach(thread);
    else
        pthread_join(thread, NULL);
    let_go(job);
    if (state == JOB_RUNS) atomic_store_explicit(&nccl->watch.stuck, true, memory_order_release);
    return state == JOB_DONE;
}

/* Early enough to say so in time. */
static int64_t before(int64_t deadline) {
    return deadline == SC_DEADLINE_NEVER ? deadline : deadline - INT64_C(100000000);
}

/* ---- Ending ---- */

int sc_watch_live_graphs(const struct sc_nccl *nccl) {
    if (nccl->graphs == NULL) return 0;
    return (int)atomic_load_explicit(&nccl->graphs->live, memory_order_acquire);
}

int sc_watch_await_graphs(const struct sc_nccl *nccl) {
    static const _Atomic uint32_t never;
    int64_t until = sc_deadline_now() + INT64_C(200000000);
    while (sc_watch_live_graphs(nccl) > 0 && !sc_deadline_passed(until))
        sc_wait_futex_sleep(&never, 0, sc_deadline_now() + INT64_C(2000000));
    return sc_watch_live_graphs(nccl);
}

void sc_watch_release_graphs(struct sc_nccl_graphs *graphs) {
    if (atomic_fetch_sub_explicit(&graphs->references, 1, memory_order_acq_rel) == 1)
        sc_free(graphs);
}

/* Revoke frees nothing, so it may meet a caller inside NCCL, and makes him return; abort frees, so it
 * needs the lock. NCCL's abort waits for graphs, which only the engine can destroy. */
static void end_by_force(struct job *job) {
    struct sc_nccl *nccl = job->nccl;
    const struct sc_nccl_library *api = nccl->api;
    if (api->revoke != NULL && nccl->comm != NULL) api->revoke(nccl->comm, 0);
    if (sc_watch_live_graphs(nccl) > 0) {
        finish(job, JOB_HELD);
        return;
    }
    /* A caller that does not come back from NCCL or the driver has it: nothing was begun, so this can be
     * tried again. */
    if (!sc_lock_take(&nccl->order.lock, before(job->deadline), NULL)) {
        finish(job, JOB_HELD);
        return;
    }
    sc_nccl_comm child = nccl->comm, parent = nccl->parent;
    nccl->comm = nccl->parent = NULL;
    sc_lock_give(&nccl->order.lock); /* nobody finds them any more */
    if (child != NULL) api->abort(child);
    if (parent != NULL) api->abort(parent);
    finish(job, JOB_DONE);
}

static void destroy_in_order(struct job *job) {
    struct sc_nccl *nccl = job->nccl;
    const struct sc_nccl_library *api = nccl->api;
    if (!sc_lock_take(&nccl->order.lock, before(job->deadline), NULL)) {
        finish(job, JOB_HELD);
        return;
    }
    sc_nccl_comm child = nccl->comm, parent = nccl->parent;
    nccl->comm = nccl->parent = NULL;
    sc_lock_give(&nccl->order.lock);
    if (child != NULL) {
        api->finalize(child);
        api->destroy(child);
    }
    if (parent != NULL) api->destroy(parent);
    finish(job, JOB_DONE);
}

static void log_stuck(struct sc_nccl *nccl, const char *what) {
    if (atomic_load_explicit(&nccl->watch.stuck, memory_order_relaxed))
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_ERROR,
                     "nccl: %s does not come back; GPU %d stays occupied until this process ends, "
                     "so the process must end",
                     what, nccl->device.ordinal);
}

bool sc_watch_end(struct sc_nccl *nccl, int64_t deadline) {
    if (atomic_load_explicit(&nccl->watch.stuck, memory_order_acquire)) return false;
    if (nccl->comm == NULL && nccl->parent == NULL) return true;
    bool ended = run_job(nccl, end_by_force, deadline);
    log_stuck(nccl, "ncclCommAbort");
    return ended;
}

bool sc_watch_destroy(struct sc_nccl *nccl, int64_t deadline) {
    if (nccl->comm == NULL && nccl->parent == NULL) return true;
    bool destroyed = run_job(nccl, destroy_in_order, deadline);
    log_stuck(nccl, "ncclCommDestroy");
    return destroyed;
}

/* ---- The thread ---- */

static void report(struct sc_nccl *nccl, spark_comm_status status, int code, const char *message) {
    nccl->host->report_fault(nccl->host->context, status, -1, code, message);
}

/* NCCL's own errors of the background. The pointer stays: only this thread has communicators ended
 * while it runs. */
static void look_at_nccl(struct sc_nccl *nccl) {
    char message[400];
    sc_nccl_result error = (sc_nccl_result)SC_NCCL_OK;
    if (nccl->comm == NULL) return;
    int result = nccl->api->async_error(nccl->comm, &error);
    if (result == SC_NCCL_OK) result = error;
    if (result == SC_NCCL_OK || result == SC_NCCL_IN_PROGRESS) return;
    const char *text = nccl->api->last_error(nccl->comm);
    snprintf(message, sizeof message, "rank %d: NCCL reports in the background: %s (%d): %.250s",
             nccl->rank, nccl->api->error_string((sc_nccl_result)result), result,
             text != NULL && text[0] != '\0' ? text
                                             : "no more is said (NCCL_DEBUG=WARN says more)");
    report(nccl, SPARK_COMM_BACKEND, result, message);
}

/* True while something is outstanding. */
static bool look_at_gpu(struct sc_nccl *nccl) {
    struct sc_nccl_order *order = &nccl->order;
    int limit = nccl->host->options->op_timeout_ms;
    char message[160];
    if (!sc_lock_try(&order->lock)) return true; /* a caller is at it */
    sc_order_mark_rest(nccl);
    sc_order_poll(nccl);
    uint64_t completed = atomic_load_explicit(&order->completed, memory_order_relaxed);
    uint64_t outstanding = order->submitted - completed;
    int64_t age = (sc_deadline_now() - order->progress_ns) / 1000000;
    sc_lock_give(&order->lock);
    if (outstanding == 0) return false;
    if (limit != SPARK_COMM_FOREVER && age > limit) {
        snprintf(message, sizeof message,
                 "rank %d: the GPU made no progress for %lld ms; %llu operations are enqueued and "
                 "not done",
                 nccl->rank, (long long)age, (unsigned long long)outstanding);
        report(nccl, SPARK_COMM_OP_TIMEOUT, 0, message);
    }
    return true;
}

static void end_after_fault(struct sc_nccl *nccl) {
    struct sc_nccl_watch *watch = &nccl->watch;
    if (atomic_load_explicit(&watch->ended, memory_order_relaxed) ||
        atomic_load_explicit(&watch->stuck, memory_order_relaxed) ||
        (watch->held && sc_watch_live_graphs(nccl) > 0))
        return;
    int limit = nccl->host->options->close_timeout_ms;
    bool ended = sc_watch_end(nccl, limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER
                                                                : sc_deadline_after(limit));
    watch->held = !ended && sc_watch_live_graphs(nccl) > 0;
    if (watch->held)
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_WARN,
                     "nccl: %d captured graphs hold operations of this communicator and keep NCCL "
                     "from ending it: destroy them",
                     sc_watch_live_graphs(nccl));
    atomic_store_explicit(&watch->ended, ended, memory_order_release);
}

static void *watch_main(void *arg) {
    struct sc_nccl *nccl = arg;
    struct sc_nccl_watch *watch = &nccl->watch;
    sc_device_adopt(&nccl->device);
    while (!atomic_load_explicit(&watch->leave, memory_order_acquire)) {
        uint32_t word = atomic_load_explicit(&watch->word, memory_order_acquire);
        bool poisoned = __atomic_load_n(nccl->host->poison, __ATOMIC_ACQUIRE) != 0;
        bool busy = poisoned;
        if (poisoned) {
            end_after_fault(nccl);
            busy = !atomic_load_explicit(&watch->ended, memory_order_relaxed);
        } else {
            look_at_nccl(nccl);
            /* First the flag, then the look: see sc_watch_wake. */
            atomic_store_explicit(&watch->idle, 1, memory_order_seq_cst);
            busy = look_at_gpu(nccl);
            if (busy) atomic_store_explicit(&watch->idle, 0, memory_order_relaxed);
        }
        sc_wait_futex_sleep(&watch->word, word, sc_deadline_now() + (busy ? BUSY_NS : IDLE_NS));
    }
    return NULL;
}

void sc_watch_wake_slow(struct sc_nccl *nccl) {
    atomic_store_explicit(&nccl->watch.idle, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&nccl->watch.word, 1, memory_order_release);
    sc_wait_futex_wake(&nccl->watch.word, INT32_MAX);
}

spark_comm_status sc_watch_start(struct sc_nccl *nccl) {
    struct sc_nccl_watch *watch = &nccl->watch;
    struct sc_error error;
    atomic_store_explicit(&watch->leave, false, memory_order_relaxed);
    atomic_store_explicit(&watch->ended, false, memory_order_relaxed);
    nccl->order.progress_ns = sc_deadline_now();
    sc_error_clear(&error);
    spark_comm_status st =
        sc_thread_start(&watch->thread, "sc-nccl-watch", watch_main, nccl, &error);
    if (st != SPARK_COMM_OK) return sc_host_pass(nccl->host, &error);
    watch->running = true;
    return st;
}

void sc_watch_stop(struct sc_nccl *nccl) {
    struct sc_nccl_watch *watch = &nccl->watch;
    if (!watch->running) return;
    atomic_store_explicit(&watch->leave, true, memory_order_release);
    sc_watch_wake_slow(nccl);
    pthread_join(watch->thread, NULL);
    watch->running = false;
}
