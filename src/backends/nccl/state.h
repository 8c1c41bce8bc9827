/*
 * Inside of the NCCL backend: its state, and what its files offer each other.
 *
 *   nccl.c      the table: one function per operation
 *   open.c      life: probe, open, close, reopen
 *   connect.c   comparing the ranks, init in bounded steps, warm-up
 *   order.c     streams, events, marks: what is submitted and how far the GPU is
 *   exchange.c  the two-rank exchange
 *   align.c     reductions of buffers that are not aligned to their element
 *   stage.c     copies between device and host for the command lane
 *   memory.c    registrations and symmetric memory
 *   watch.c     the watcher's thread, and ending a communicator that is stuck
 *   thresholds.c     which path serves which size
 *
 * Threads: the data lane's caller, the command lane's caller (stage.c alone), the watcher, and a
 * helper while something is ended. order.lock is held over every call into NCCL that uses the
 * communicator, so that none of them meets its end.
 */
#ifndef SC_NCCL_STATE_H
#define SC_NCCL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/nccl/library.h"
#include "backends/nccl/nccl.h"
#include "base/settings.h"
#include "gpu/kernels.h"
#include "os/lock.h"
#include "os/wait.h"
#include "world/host.h"

#define SC_NCCL_RUN_AHEAD 512 /* launches that may be outstanding */
#define SC_NCCL_WINDOW 64 /* launches between two marks */
#define SC_NCCL_MARKS 1024 /* a power of two above the run-ahead */
#define SC_NCCL_FORKS 16
#define SC_NCCL_RING 4 /* receive buffers of the exchange */
#define SC_NCCL_CHUNK ((size_t)1 << 20) /* bytes of each */
#define SC_NCCL_ALIGNED 32 /* blocks of align.c: a chunk, twice that, ... */
#define SC_NCCL_MAX_RANKS 256

/* An event behind the submissions up to `count`, and as many launches. */
struct sc_nccl_mark {
    sc_cu_event event;
    uint64_t count, launched;
};

/* What is submitted, and on which stream. Everything under `lock` but for the atomics. */
struct sc_nccl_order {
    struct sc_lock lock;
    sc_cu_stream last; /* where the latest operation runs */
    bool any; /* `last` is valid */
    bool eager; /* the operation that has its turn is not captured */
    struct sc_nccl_mark marks[SC_NCCL_MARKS];
    uint64_t head, tail; /* marks recorded, marks passed */
    uint64_t submitted, marked; /* operations; up to which a mark was recorded */
    /* What they put into the driver's queue, likewise; up to which the GPU is known to be. */
    uint64_t launched, marked_launches, passed_launches;
    _Atomic uint64_t
        completed; /* operations the GPU is known to have passed; relaxed, for readers */
    int64_t progress_ns; /* when that rose last */
    sc_cu_event forks[SC_NCCL_FORKS]; /* a ring: from a caller's stream to ours */
    unsigned next_fork;
    uint64_t graph_id; /* the capture that holds operations of ours already */
};

/* Graphs that hold operations of this communicator. The driver gives a reference back when the last
 * copy of a graph is destroyed, perhaps after the communicator has gone. */
struct sc_nccl_graphs {
    _Atomic int32_t live;
    _Atomic int32_t references; /* one for each graph, one for the communicator */
};

struct sc_nccl_registration {
    struct sc_nccl_registration *next;
    uint64_t ptr;
    size_t bytes;
    uint64_t handle;
    void *of_nccl; /* NULL: lost at a reconnect */
};

struct sc_nccl_symmetric {
    struct sc_nccl_symmetric *next;
    void *memory;
    sc_nccl_window window; /* NULL: plain memory */
};

/* A block of pinned memory and a stream for the copies of one direction. */
struct sc_nccl_stage {
    sc_cu_stream stream;
    sc_cu_event before, after;
    void *pinned; /* SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES */
};

struct sc_nccl_watch {
    pthread_t thread;
    bool running;
    _Atomic uint32_t word; /* futex; counts what the watcher should look at */
    _Atomic uint32_t idle; /* the watcher sleeps until it is told of work. Partner: sc_watch_wake */
    _Atomic bool leave;
    _Atomic bool ended; /* the communicator was ended because of a fault */
    _Atomic bool stuck; /* it could not be: the process must end */
    bool told; /* what keeps it from being ended; the watcher's own */
    struct sc_nccl_job *job; /* an abort that waits for graphs; of who ends the communicator */
};

struct sc_nccl {
    const spark_comm_host *host;
    const struct sc_nccl_library *api;
    struct sc_settings settings; /* those without an option */
    struct sc_device device;
    struct sc_kernels kernels;
    int rank, size;
    bool shared_gpu; /* NCCL is kept out */
    sc_nccl_comm parent, comm; /* comm: the blocking child that everything runs on */
    bool shares; /* the child shares the parent's resources, and its abort flag */
    bool revoked; /* of helpers that end the communicator, which run one after another */
    sc_cu_stream stream; /* ours: event-ordered operations, warm-up */
    sc_cu_stream default_stream; /* options.stream */
    struct sc_nccl_order order;
    struct sc_nccl_graphs *graphs;
    sc_cu_event before, after; /* of a host-complete broadcast; data lane */
    struct sc_nccl_stage stage; /* command lane */
    uint32_t *ticks; /* mapped host memory: replays of captured graphs */
    sc_cu_pointer ticks_device;
    sc_cu_function add; /* of the exchange: the caller's or ours; NULL: none */
    sc_cu_pointer ring[SC_NCCL_RING];
    unsigned next_ring;
    sc_cu_pointer aligned[SC_NCCL_ALIGNED]; /* 0: not needed so far; under order.lock */
    size_t exchange_bytes; /* the exchange serves sums up to here; 0: none */
    struct sc_nccl_registration *registrations;
    struct sc_nccl_symmetric *symmetric;
    uint64_t last_handle;
    struct sc_nccl_watch watch;
    size_t device_bytes; /* that NCCL took at open */
};

/* ---- Failures (connect.c): explain() is called, the status returned ---- */

/* A result of NCCL: its code, name and last text. INVALID_ARGUMENT stays the caller's; all else is
 * fatal. */
spark_comm_status sc_nccl_fail(const struct sc_nccl *nccl, int result, const char *what);
/* A result of the driver. */
spark_comm_status sc_nccl_cuda_fail(const struct sc_nccl *nccl, int result, const char *what);

/* ---- connect.c ---- */

/* Collective, at open and at reopen: compares the ranks, makes the communicators, warms every path.
 * `local` is this rank's own state so far, explained if it is not OK. One outcome on all ranks. */
spark_comm_status sc_connect_run(struct sc_nccl *nccl, spark_comm_status local, int64_t deadline);

/* ---- order.c ---- */

struct sc_order_turn {
    struct sc_device_scope scope;
    sc_cu_stream stream; /* where the operation goes */
    sc_cu_stream caller; /* event-ordered: the stream that it is ordered with */
    bool captured, forked;
};

spark_comm_status sc_order_open(struct sc_nccl *nccl);
void sc_order_close(struct sc_nccl *nccl);
/* A new epoch: nothing is submitted. */
void sc_order_reset(struct sc_nccl *nccl);
/* Takes the lock, makes the context current, orders the stream behind the latest operation. On
 * failure nothing is held. */
spark_comm_status sc_order_begin(struct sc_nccl *nccl, const spark_comm_call *call,
                                 struct sc_order_turn *turn);
/* Counts the operation, marks it where that is due, gives everything back. Returns `status`, or the
 * failure of the marking. */
spark_comm_status sc_order_end(struct sc_nccl *nccl, struct sc_order_turn *turn,
                               spark_comm_status status);
/* Inside an operation of many launches, lock held, context current: counts `launches` that go to
 * `stream`, and first waits for the GPU where too much is outstanding. Nothing is counted in a capture. */
spark_comm_status sc_order_breathe(struct sc_nccl *nccl, const spark_comm_op *op,
                                   sc_cu_stream stream, unsigned launches);
/* A limit of `op` from now on: work that was queued before it has its own. */
int64_t sc_order_deadline(const struct sc_nccl *nccl, const spark_comm_op *op);
/* Launches the tick that counts a replay. CUDA's result. */
int sc_order_tick(struct sc_nccl *nccl, sc_cu_stream stream);
/* Lock held, context current: passes the marks that the GPU has passed. */
void sc_order_poll(struct sc_nccl *nccl);
/* Lock held, context current: marks what is unmarked, if its stream is one that stays. */
void sc_order_mark_rest(struct sc_nccl *nccl);
/* Waits until `event` has passed. OK, OP_TIMEOUT, ABORTED. */
spark_comm_status sc_order_await(struct sc_nccl *nccl, sc_cu_event event, int64_t deadline);

/* ---- exchange.c ---- */

bool sc_exchange_serves(const struct sc_nccl *nccl, const spark_comm_op *op);
spark_comm_status sc_exchange_run(struct sc_nccl *nccl, const spark_comm_op *op,
                                  sc_cu_stream stream);
spark_comm_status sc_exchange_open(struct sc_nccl *nccl);
void sc_exchange_close(struct sc_nccl *nccl);

/* ---- align.c ---- */

/* Enqueues a reduction whose pointers are aligned. */
typedef spark_comm_status sc_reduction(struct sc_nccl *nccl, const spark_comm_op *op,
                                       sc_cu_stream stream);
/* The same for pointers of any alignment. Order lock held, context current. */
spark_comm_status sc_align_run(struct sc_nccl *nccl, const spark_comm_op *op, sc_reduction *run,
                               sc_cu_stream stream);
void sc_align_close(struct sc_nccl *nccl);

/* ---- stage.c ---- */

spark_comm_status sc_stage_open(struct sc_nccl *nccl);
void sc_stage_close(struct sc_nccl *nccl);
spark_comm_status sc_stage_to_host(void *state, void *host_memory, uint64_t ptr, size_t bytes,
                                   int64_t deadline_ns);
spark_comm_status sc_stage_from_host(void *state, uint64_t ptr, const void *host_memory,
                                     size_t bytes, int64_t deadline_ns);

/* ---- memory.c ---- */

spark_comm_status sc_nccl_memory_register(void *state, uint64_t ptr, size_t bytes, uint64_t *handle);
spark_comm_status sc_nccl_memory_deregister(void *state, uint64_t handle);
spark_comm_status sc_nccl_memory_alloc(void *state, size_t bytes, int64_t deadline_ns, uint64_t *ptr);
spark_comm_status sc_nccl_memory_free(void *state, uint64_t ptr);
/* Registers again what was registered before a reconnect; what cannot be loses only the speed-up. */
void sc_nccl_memory_restore(struct sc_nccl *nccl);
/* Forgets what belongs to a communicator that has ended. */
void sc_nccl_memory_forget(struct sc_nccl *nccl);
/* Before the communicator is destroyed, and after. */
void sc_nccl_memory_deregister_all(struct sc_nccl *nccl);
void sc_nccl_memory_close(struct sc_nccl *nccl);

/* ---- watch.c ---- */

spark_comm_status sc_watch_start(struct sc_nccl *nccl);
/* The watcher has left when it returns. */
void sc_watch_stop(struct sc_nccl *nccl);
void sc_watch_wake_slow(struct sc_nccl *nccl);
/* After a submission: free while the watcher is awake. The watcher sets `idle` and then looks under
 * order.lock, where submissions are counted: either it sees the submission, or its turn with the lock
 * came first and this load sees that it sleeps. */
static inline void sc_watch_wake(struct sc_nccl *nccl) {
    if (__builtin_expect(atomic_load_explicit(&nccl->watch.idle, memory_order_relaxed) != 0, 0))
        sc_watch_wake_slow(nccl);
}
/* Ends both communicators by force. False when that did not come back by the deadline (watch.stuck),
 * and while a caller does not leave NCCL or captured graphs live, which are waited for until
 * `graphs_until` at most: then again later. */
bool sc_watch_end(struct sc_nccl *nccl, int64_t deadline, int64_t graphs_until);
/* Destroys healthy communicators in order; false at the deadline (watch.stuck). */
bool sc_watch_destroy(struct sc_nccl *nccl, int64_t deadline);
/* Leaves an abort that still waits for graphs to itself: what it uses is never freed. */
void sc_watch_leave_job(struct sc_nccl *nccl);
int sc_watch_live_graphs(const struct sc_nccl *nccl);
/* The same after a moment: the driver tells of a destroyed graph a little later. */
int sc_watch_await_graphs(const struct sc_nccl *nccl);
void sc_watch_release_graphs(struct sc_nccl_graphs *graphs);

/* ---- thresholds.c ---- */

/* The largest BF16 sum that the exchange serves on this type of GPU, from the table. */
size_t sc_thresholds_exchange_bytes(int major, int minor);
size_t sc_thresholds_describe(void *state, spark_comm_info_row *rows, size_t capacity);

#endif
