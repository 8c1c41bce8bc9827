/*
 * The communicator behind the public handle, and the rules of touching it.
 *
 * Handles come from a pool that is never returned to malloc: a stale pointer is answered
 * WRONG_STATE by its magic word instead of undefined behaviour (until the pool gives the handle to
 * a later open).
 *
 * Locks, in the order in which they may be taken: attempt.lock, group.lock, lanes[COMMAND].lock or
 * lanes[DATA].lock (never both, except in close and reconnect, command first), errors.lock (leaf).
 * A lane's lock is held for the whole of an operation.
 */
#ifndef SC_API_HANDLE_H
#define SC_API_HANDLE_H

#include <pthread.h>
#include <spark_comm_backend.h>

#include "base/log.h"
#include "base/settings.h"
#include "os/lock.h"
#include "os/thread.h"
#include "trace/recorder.h"
#include "world/host.h"
#include "world/world.h"

#define SC_HANDLE_ALIVE 0x5343414cu /* "SCAL" */
#define SC_HANDLE_CLOSED 0x5343434cu /* "SCCL" */

struct sc_lane {
    struct sc_lock lock;
    uint64_t number; /* last number given; lane held */
    struct sc_ticks_scale scale; /* turns ticks into deadlines; lane held */
    struct sc_world_line *line; /* this rank's status line, read by the peers */
};

/* One attempt at a time; whoever comes while it runs shares its outcome. */
struct sc_attempt {
    struct sc_lock lock; /* guards all but count; taken before any other */
    _Atomic uint32_t count; /* attempts that have ended; release */
    struct sc_error outcome; /* of the last one; its status OK: a new epoch */
};

/* An open group: its posts wait here until group_end. `owner` is 0 while none is open. */
struct sc_group {
    struct sc_lock lock;
    _Atomic uintptr_t owner; /* sc_handle_thread() of the thread that opened it */
    spark_comm_op *posts;
    size_t count, capacity;
    uint32_t epoch; /* in which it was opened */
    struct sc_error refused; /* the first post that was refused; status OK: none */
};

struct sc_registration {
    uint64_t ptr;
    size_t bytes;
    uint64_t handle; /* the caller's, the same in every epoch */
    uint64_t inner; /* the backend's; 0: it lost the speed-up */
    uint64_t uses;
};

struct spark_comm {
    _Atomic uint32_t magic;
    _Atomic uint32_t inside; /* futex: calls that close must wait for and that hold no lane */
    uint32_t fork_count; /* sc_thread_fork_count() of the process that opened it */
    int32_t rank, world_size;
    const _Atomic uint32_t *poison; /* the world's gate */
    _Atomic uint32_t epoch; /* relaxed; written with both lanes held */
    spark_comm_backend backend; /* a copy: NULL for what an older table lacks */
    void *backend_state; /* NULL: not open */
    bool is_single;
    bool logs_submissions; /* the log wants DEBUG lines */
    struct sc_lane lanes[SPARK_COMM_LANE_COUNT];
    struct sc_recorder recorder;
    struct sc_group group;
    uint64_t *sent, *received; /* point-to-point messages per peer; data lane held */
    struct sc_registration *registrations; /* data lane held */
    size_t registration_count, registration_capacity;
    uint64_t last_handle;
    struct sc_attempt attempt;
    struct sc_settings settings;
    struct sc_log log;
    struct sc_world *world;
    struct sc_host host;
    struct {
        pthread_mutex_t lock;
        struct sc_error last; /* status OK: none yet */
    } errors;
    struct spark_comm *next_free; /* in the pool */
};

/* From the pool, zeroed apart from what the pool needs; magic is still CLOSED. NULL: no memory. */
struct spark_comm *sc_handle_take(void);
void sc_handle_give(struct spark_comm *comm);

/* WRONG_STATE for NULL, closed handles and calls in a forked child, with nothing written to the
 * handle. */
static inline spark_comm_status sc_handle_check(const struct spark_comm *comm) {
    /* Acquire: partner of the release in open; whoever sees ALIVE sees a whole communicator. */
    bool good = comm != NULL &&
                atomic_load_explicit(&comm->magic, memory_order_acquire) == SC_HANDLE_ALIVE &&
                comm->fork_count == sc_thread_fork_count_again();
    return __builtin_expect(good, 1) ? SPARK_COMM_OK : SPARK_COMM_WRONG_STATE;
}

/* For calls that touch the communicator without a lane (readers, abort, waits for a turn): close
 * waits until they have let go. False, and nothing is held, when it is closed. */
bool sc_handle_hold(const struct spark_comm *comm);
void sc_handle_let_go(const struct spark_comm *comm);
/* At close, after the magic word says so: waits until nobody is inside; false at the deadline. */
bool sc_handle_drain(struct spark_comm *comm, int64_t deadline);

/* Remembers a failure for last_error and returns its status. While poisoned last_error shows the first
 * cause, which the world keeps. */
spark_comm_status sc_handle_failed(struct spark_comm *comm, const struct sc_error *error);
/* The same from parts, for failures found before an operation has a number. */
spark_comm_status sc_handle_refuse(struct spark_comm *comm, spark_comm_status status, int operation,
                                   int peer, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The first cause of the poison, remembered; its status. OK: another thread's reconnect has made all well,
 * which cannot be while a lane is held. */
spark_comm_status sc_handle_poisoned(struct spark_comm *comm);
/* What last_error shows while good, or the cause. */
void sc_handle_last_error(struct spark_comm *comm, struct sc_error *error);

/* The failure that spark_comm_last_error(NULL) shows: this thread's last failure to open. */
struct sc_error *sc_handle_open_error(void);

/* A value that names the calling thread, never 0. */
uintptr_t sc_handle_thread(void);

#endif
