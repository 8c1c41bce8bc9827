/*
 * The watcher: the one thread of this backend. It reads NCCL's asynchronous errors, sees whether the
 * GPU makes progress, and after a fault ends the communicator, so that kernels that wait for a peer
 * leave the GPU. It sleeps while nothing is outstanding, but for a look every second.
 *
 * Whatever ends a communicator runs in a helper thread with a deadline, because abort and destroy may
 * never come back (a kernel of a symmetric window, a stuck proxy). A helper that is late is left alone
 * with what it uses; then the communicator is `stuck`, and only the end of the process frees the GPU.
 *
 * Abort raises a flag that kernels look at, and then waits until the last graph that holds operations
 * has gone. It may begin while graphs live: their kernels, and replays queued behind, leave the GPU too.
 * It must begin then, because the driver keeps a destroyed graph for as long as a replay of it is stuck.
 */
#include <stdio.h>
#include <string.h>

#include "backends/nccl/state.h"
#include "base/alloc.h"
#include "base/deadline.h"
#include "os/thread.h"

#define BUSY_NS INT64_C(10000000)
#define IDLE_NS INT64_C(1000000000)
#define QUIET_LOOKS 100 /* of BUSY_NS each without a submission, before it sleeps for long */
#define ALONE_NS INT64_C(50000000) /* for a caller to leave NCCL by himself */

/* ---- Helpers with a deadline ---- */

/* JOB_ABORTS: inside ncclCommAbort, nobody else uses the communicator. JOB_HELD: not now, a caller is
 * inside NCCL, or graphs live that a revoked communicator must not leave behind. */
enum { JOB_RUNS, JOB_ABORTS, JOB_DONE, JOB_HELD };

struct sc_nccl_job {
    struct sc_nccl *nccl;
    void (*work)(struct sc_nccl_job *job);
    int64_t deadline;
    pthread_t thread;
    int took_ms; /* once it is done */
    bool shaken; /* a caller had to be shaken off */
    _Atomic uint32_t state; /* futex: JOB_*; release by the helper, acquire by who waits */
    _Atomic int32_t references; /* the helper's and that of who waits */
};

static void let_go(struct sc_nccl_job *job) {
    if (atomic_fetch_sub_explicit(&job->references, 1, memory_order_acq_rel) == 1) sc_free(job);
}

static void reach(struct sc_nccl_job *job, uint32_t state) {
    atomic_store_explicit(&job->state, state, memory_order_release);
    sc_wait_futex_wake(&job->state, INT32_MAX);
}

static void *helper_main(void *arg) {
    struct sc_nccl_job *job = arg;
    sc_device_adopt(&job->nccl->device);
    job->work(job);
    let_go(job);
    return NULL;
}

static struct sc_nccl_job *start_job(struct sc_nccl *nccl, void (*work)(struct sc_nccl_job *job),
                                     int64_t deadline) {
    struct sc_error error;
    struct sc_nccl_job *job = sc_alloc_zero(sizeof *job);
    if (job == NULL) return NULL;
    *job = (struct sc_nccl_job){.nccl = nccl, .work = work, .deadline = deadline};
    atomic_store_explicit(&job->references, 2, memory_order_relaxed);
    if (sc_thread_start(&job->thread, "sc-nccl-end", helper_main, job, &error) == SPARK_COMM_OK)
        return job;
    sc_free(job);
    return NULL;
}

/* Until the helper says how it went, or the deadline; for graphs alone, until `graphs_until`. */
static uint32_t await_job(const struct sc_nccl *nccl, struct sc_nccl_job *job, int64_t deadline,
                          int64_t graphs_until) {
    for (;;) {
        uint32_t state = atomic_load_explicit(&job->state, memory_order_acquire);
        int64_t until = deadline;
        if (state == JOB_DONE || state == JOB_HELD) return state;
        if (state == JOB_ABORTS && sc_watch_live_graphs(nccl) > 0) until = graphs_until;
        if (sc_deadline_passed(until)) return state;
        sc_wait_futex_sleep(&job->state, state, until);
    }
}

/* True when the helper is done. A job that graphs alone keep is kept too, for the next time. */
static bool run_job(struct sc_nccl *nccl, void (*work)(struct sc_nccl_job *job), int64_t deadline,
                    int64_t graphs_until) {
    struct sc_nccl_watch *watch = &nccl->watch;
    if (watch->job == NULL) watch->job = start_job(nccl, work, deadline);
    struct sc_nccl_job *job = watch->job;
    if (job == NULL) return false;
    uint32_t state = await_job(nccl, job, deadline, graphs_until);
    if (state == JOB_ABORTS && sc_watch_live_graphs(nccl) > 0) return false;
    watch->job = NULL;
    if (state == JOB_DONE || state == JOB_HELD) {
        pthread_join(job->thread, NULL);
        if (state == JOB_DONE)
            sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_INFO,
                         "nccl: the communicator was ended in %d ms%s", job->took_ms,
                         job->shaken ? ", after a caller was shaken off" : "");
    } else {
        pthread_detach(job->thread);
        atomic_store_explicit(&watch->stuck, true, memory_order_release);
    }
    let_go(job);
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

/* A caller sits in NCCL, or in the driver because its queue of launches is full of kernels that are
 * stuck. Makes those kernels leave without touching what he uses: the parent's abort raises the flag
 * that a child shares with it, and revoke frees nothing. */
static void shake_off(struct sc_nccl *nccl) {
    sc_nccl_comm parent = nccl->parent;
    if (nccl->shares && parent != NULL) {
        nccl->parent = NULL;
        nccl->api->abort(parent);
    } else if (nccl->api->revoke != NULL && nccl->comm != NULL && !nccl->revoked) {
        nccl->api->revoke(nccl->comm, 0);
        nccl->revoked = true;
    }
}

/* Abort frees, so it needs the lock. A revoked communicator's does not wait for graphs, and its flag is
 * down again: it must wait for them out here. */
static void end_by_force(struct sc_nccl_job *job) {
    struct sc_nccl *nccl = job->nccl;
    int64_t start = sc_deadline_now(),
            soon = sc_deadline_min(start + ALONE_NS, before(job->deadline));
    bool locked = sc_lock_take(&nccl->order.lock, soon, NULL);
    if (!locked) {
        job->shaken = true;
        shake_off(nccl);
        locked = sc_lock_take(&nccl->order.lock, before(job->deadline), NULL);
    }
    if (!locked || (nccl->revoked && sc_watch_live_graphs(nccl) > 0)) {
        if (locked) sc_lock_give(&nccl->order.lock);
        reach(job, JOB_HELD); /* nothing that cannot be tried again */
        return;
    }
    sc_nccl_comm child = nccl->comm, parent = nccl->parent;
    nccl->comm = nccl->parent = NULL;
    nccl->revoked = false;
    sc_lock_give(&nccl->order.lock); /* nobody finds them any more */
    reach(job, JOB_ABORTS);
    if (child != NULL) nccl->api->abort(child);
    if (parent != NULL) nccl->api->abort(parent);
    job->took_ms = (int)((sc_deadline_now() - start) / 1000000);
    reach(job, JOB_DONE);
}

static void destroy_in_order(struct sc_nccl_job *job) {
    struct sc_nccl *nccl = job->nccl;
    const struct sc_nccl_library *api = nccl->api;
    if (!sc_lock_take(&nccl->order.lock, before(job->deadline), NULL)) {
        reach(job, JOB_HELD);
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
    reach(job, JOB_DONE);
}

static void log_stuck(struct sc_nccl *nccl, const char *what) {
    if (atomic_load_explicit(&nccl->watch.stuck, memory_order_relaxed))
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_ERROR,
                     "nccl: %s does not come back; GPU %d stays occupied until this process ends, "
                     "so the process must end",
                     what, nccl->device.ordinal);
}

bool sc_watch_end(struct sc_nccl *nccl, int64_t deadline, int64_t graphs_until) {
    struct sc_nccl_watch *watch = &nccl->watch;
    if (atomic_load_explicit(&watch->stuck, memory_order_acquire)) return false;
    if (watch->job == NULL && nccl->comm == NULL && nccl->parent == NULL) return true;
    bool ended = run_job(nccl, end_by_force, deadline, graphs_until);
    log_stuck(nccl, "ncclCommAbort");
    return ended;
}

bool sc_watch_destroy(struct sc_nccl *nccl, int64_t deadline) {
    if (nccl->comm == NULL && nccl->parent == NULL) return true;
    bool destroyed = run_job(nccl, destroy_in_order, deadline, deadline);
    log_stuck(nccl, "ncclCommDestroy");
    return destroyed;
}

void sc_watch_leave_job(struct sc_nccl *nccl) {
    struct sc_nccl_job *job = nccl->watch.job;
    if (job == NULL) return;
    nccl->watch.job = NULL;
    pthread_detach(job->thread);
    let_go(job);
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

/* True while something is outstanding, and when there was a submission since the last look. */
static bool look_at_gpu(struct sc_nccl *nccl, uint64_t *seen) {
    struct sc_nccl_order *order = &nccl->order;
    int limit = nccl->host->options->op_timeout_ms;
    char message[160];
    if (!sc_lock_try(&order->lock)) return true; /* a caller is at it */
    sc_order_mark_rest(nccl);
    sc_order_poll(nccl);
    uint64_t completed = atomic_load_explicit(&order->completed, memory_order_relaxed);
    uint64_t outstanding = order->submitted - completed;
    int64_t age = (sc_deadline_now() - order->progress_ns) / 1000000;
    bool fresh = order->submitted != *seen;
    *seen = order->submitted;
    sc_lock_give(&order->lock);
    if (outstanding == 0) return fresh;
    if (limit != SPARK_COMM_FOREVER && age > limit) {
        snprintf(message, sizeof message,
                 "rank %d: the GPU made no progress for %lld ms; %llu operations are enqueued and "
                 "not done",
                 nccl->rank, (long long)age, (unsigned long long)outstanding);
        report(nccl, SPARK_COMM_OP_TIMEOUT, 0, message);
    }
    return true;
}

static int64_t limit_of(int timeout_ms) {
    return timeout_ms == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(timeout_ms);
}

/* What keeps it, told once. */
static void tell_held(struct sc_nccl *nccl) {
    int graphs = sc_watch_live_graphs(nccl);
    if (nccl->watch.told) return;
    nccl->watch.told = true;
    if (graphs > 0)
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_WARN,
                     "nccl: %d captured graphs hold operations of this communicator and keep NCCL "
                     "from ending it: destroy them",
                     graphs);
    else
        sc_log_write(sc_host_log(nccl->host), SPARK_COMM_LOG_ERROR,
                     "nccl: a call does not come back from NCCL or the driver, so GPU %d stays "
                     "occupied until this process ends%s",
                     nccl->device.ordinal,
                     nccl->api->revoke == NULL ? " (ncclCommRevoke came with NCCL 2.28.7)" : "");
}

static void end_after_fault(struct sc_nccl *nccl) {
    struct sc_nccl_watch *watch = &nccl->watch;
    if (atomic_load_explicit(&watch->ended, memory_order_relaxed) ||
        atomic_load_explicit(&watch->stuck, memory_order_relaxed) ||
        (watch->told && nccl->revoked && sc_watch_live_graphs(nccl) > 0))
        return;
    bool ended = sc_watch_end(nccl, limit_of(nccl->host->options->close_timeout_ms), 0);
    if (!ended && !atomic_load_explicit(&watch->stuck, memory_order_relaxed)) tell_held(nccl);
    atomic_store_explicit(&watch->ended, ended, memory_order_release);
}

static void *watch_main(void *arg) {
    struct sc_nccl *nccl = arg;
    struct sc_nccl_watch *watch = &nccl->watch;
    uint64_t seen = 0;
    int quiet = 0; /* looks since there was work: a wake costs a caller several us */
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
            if (quiet >= QUIET_LOOKS) atomic_store_explicit(&watch->idle, 1, memory_order_seq_cst);
            bool works = look_at_gpu(nccl, &seen);
            if (works) atomic_store_explicit(&watch->idle, 0, memory_order_relaxed);
            quiet = works ? 0 : quiet < QUIET_LOOKS ? quiet + 1 : quiet;
            busy = atomic_load_explicit(&watch->idle, memory_order_relaxed) == 0;
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
    watch->told = false;
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
