/*
 * spark_comm: the communication layer of a distributed LLM inference engine.
 *
 * This header is all that a user needs, and it is the manual: general rules first, then the types,
 * then the functions with a comment each. It is plain C17 and C++17 and includes no CUDA, NCCL or
 * MPI header.
 *
 * CONVENTIONS
 *   - A pointer argument named ptr, send_ptr or recv_ptr is a uint64_t: a host address on host
 *     backends, a CUdeviceptr on device backends. Sizes are bytes. Streams are uint64_t: a CUstream
 *     taken literally, 0 is the legacy stream; host backends ignore it.
 *   - Every function that can fail returns a spark_comm_status, and its value tells its class: see
 *     STATUSES below. spark_comm_last_error has the sentence that belongs to it.
 *   - Structs that may grow begin with `size_t struct_size`, which the caller sets to sizeof. A
 *     shorter one (an older program) means defaults for the rest; a longer one (a newer program)
 *     must be zero beyond what this library knows, else INVALID_ARGUMENT. New fields never go into
 *     old padding, enums in structs are int32_t, and released values never change.
 *   - Ranks are int, 0 to world_size - 1. One communicator takes one master_port.
 *
 * LIFE
 *   spark_comm_open makes a communicator; every rank of the world calls it, and it returns OK on a
 *   rank only after all ranks have come and agreed. spark_comm_close ends it.
 *
 *   In between a communicator is HEALTHY, until the first fatal failure makes it POISONED, on every
 *   rank. Then every later call fails at once with the first cause, except these, which still work:
 *   spark_comm_close, _abort, _attempt_reconnect, _deregister_buffer, _symmetric_free, _group_end
 *   and all readers (_is_healthy, _health, _last_error, _info, _trace_write, _rank, _world_size). A
 *   poisoned communicator is left by spark_comm_attempt_reconnect, which begins a new epoch, or by
 *   spark_comm_close. Epochs count from 1.
 *
 *   A call on NULL or on a communicator that was closed is answered with WRONG_STATE; a program
 *   should not count on the latter, because the same address may serve a later communicator.
 *
 * LANES AND NUMBERS
 *   A communicator has two lanes, each with its own lock, order and numbers:
 *     command lane  send_command, recv_command, recv_command_u32, and broadcasts of at most
 *                   SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES
 *     data lane     everything else that is collective or point to point: all_reduce, all_gather,
 *                   reduce_scatter, larger broadcasts, barrier, send_to, recv_from, exchange_host,
 *                   symmetric_alloc, set_add_kernel
 *
 *   Ranks must make the collective calls of one lane in the same order. Between the lanes there is
 *   no order, so a worker that waits in an idle recv_command keeps nobody from the data lane.
 *
 *   In each epoch a 64-bit counter per lane numbers the collectives that were accepted, from 1, and
 *   one per peer and direction numbers the messages of send_to and recv_from. Zero-byte collectives
 *   count. Members of a group are numbered at group_end, in posting order. Local calls, and calls
 *   that fail with a status of 1 to 199, take no number.
 *
 * DEADLINES
 *   Times are int milliseconds and end in _ms: 0 means the default, a positive value a limit, and
 *   SPARK_COMM_FOREVER no limit; anything else is INVALID_ARGUMENT. On entry a limit is turned once
 *   into a point in time, and all that the call does is held to it, waiting for another thread's
 *   call on the same lane included: a call that gets no turn is BUSY, took no number and is not
 *   fatal. Nothing waits for ever, unless FOREVER was asked for, except recv_command and
 *   recv_command_u32: they wait through any idle time, and end when a peer is lost or on abort.
 *
 * SAME BITS, CANONICAL SUMS
 *   A reduction leaves the same bits on all ranks, always. Where spark_comm_info says canonical,
 *   more holds: bf16, f16 and f32 are summed in FP32 in rank order, rank 0 first, and rounded once
 *   to nearest even, whatever the size, the path, the alignment or the grouping into calls, so an
 *   element's result depends on its world_size inputs alone. f64 is summed in f64 in rank order.
 *   Integers wrap. avg is the sum divided by world_size: before the rounding for bf16, f16 and f32,
 *   by C division towards zero for integers. In max and min a NaN wins, as in maximum and minimum
 *   of IEEE 754-2019; which of -0 and +0 wins is not said. The payload of a NaN is not said either.
 *
 *   Reductions take whole elements. Everything else takes any byte count. Any alignment works.
 *
 *   bf16 is the upper half of an IEEE 754 binary32, f16 is binary16, f32 and f64 are binary32 and
 *   binary64; all values are in the byte order of the machine, which must be little-endian.
 *
 * THREADS
 *   Every function may be called from any thread. Calls on one lane take turns, in no promised
 *   order; a program that calls collectives of one lane from several threads orders them itself, so
 *   that all ranks agree. Readers and abort take no lane and never wait for a running operation.
 *   spark_comm_close is called once, by one thread; the calls that run then end with ABORTED, and
 *   no thread may begin another one.
 *
 * FORK
 *   A communicator belongs to the process that opened it. After fork every call in the child is
 *   WRONG_STATE, close included in that it frees nothing and says nothing to the peers. Descriptors
 *   are close-on-exec.
 *
 * STREAMS AND GRAPH CAPTURE
 *   On a backend with SPARK_COMM_TRAIT_STREAM_ORDERED an operation returns when it is enqueued, and
 *   is complete when its stream has passed it. Device operations of one communicator never run at
 *   the same time: eager ones are chained by an event when the stream changes; graph launches are
 *   ordered by the caller, against each other and against eager calls, alike on all ranks.
 *
 *   With SPARK_COMM_TRAIT_CAPTURABLE, all_reduce, all_gather and reduce_scatter may be called while
 *   their stream captures a CUDA graph. Such a call is recorded once, marked captured, and takes no
 *   number; replays count up device_progress of spark_comm_health. Calls that wait on the host
 *   (broadcast, the commands, barrier, exchange_host, symmetric_alloc) cannot be captured. An epoch
 *   cannot be left by reconnect while graphs that were captured in it live: WRONG_STATE.
 *
 *   Host backends ignore streams: their operations are complete when the call returns. Of the
 *   backends of this version single and shm are host backends, and nccl is stream-ordered; single
 *   touches no memory, so it also serves one rank with device memory, and may be called while a
 *   stream captures. options.stream must live as long as the communicator.
 *
 * GROUPS
 *   Between spark_comm_group_start and spark_comm_group_end, send_to and recv_from are only
 *   collected; group_end launches them together, and they progress together, so that two ranks may
 *   both send first. One group is open at a time on a communicator, it belongs to the thread that
 *   started it, and groups do not nest. group_end always closes it; when a post was refused, it
 *   launches nothing and returns that refusal. A collective inside a group is WRONG_STATE.
 *
 * MANNERS
 *   The library prints nothing, ends no process, installs no signal handler, and leaves the
 *   caller's CUDA device and capture mode as they were. It starts one thread per communicator (none
 *   on single, two on nccl), with all signals blocked but those of a fault of its own. Signals that interrupt
 *   system calls have no effect on calls. What it has to tell goes to the log callback of the
 *   options, and to a file when a setting names one.
 *
 * HOW TO READ THE COMMENTS OF THE FUNCTIONS
 *   Units          of the sizes, counts and times that go in or come out
 *   Ownership      who owns the memory that is named, and how long it must stay
 *   Blocking       what has happened when the call returns, and how long it may take
 *   Threads        who may call, and what it takes turns with
 *   Stream         how the work is ordered with the caller's streams
 *   In place       which of the buffers may be the same
 *   After failure  what state communicator and buffers are left in
 *   Statuses       what it may return
 */
#ifndef SPARK_COMM_H
#define SPARK_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARK_COMM_VERSION_MAJOR 0
#define SPARK_COMM_VERSION_MINOR 1
#define SPARK_COMM_VERSION_PATCH 0

#if defined(SPARK_COMM_BUILDING)
#define SPARK_COMM_API __attribute__((visibility("default")))
#else
#define SPARK_COMM_API
#endif

/* No limit, for fields and arguments that end in _ms. */
#define SPARK_COMM_FOREVER (-1)

/* Largest command of spark_comm_send_command, in 4-byte words: 64 KiB, one record of the control
 * plane. */
#define SPARK_COMM_MAX_COMMAND_WORDS 16384
/* Largest payload of spark_comm_exchange_host, in bytes per rank: one record as well. */
#define SPARK_COMM_MAX_EXCHANGE_BYTES 65536
/* Broadcasts of up to this many bytes travel on the command lane. */
#define SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES 4096

/*
 * STATUSES. One list makes the enum, the names and the texts; docs/errors.md has a paragraph each.
 *   1 to 99     the caller's: nothing happened, no number was taken.
 *   100 to 199  nothing happened either: the system, the peers or the set-up said no.
 *   200 to 299  fatal to the communicator: it is poisoned, and every later call fails at once with
 *               the first cause, until spark_comm_attempt_reconnect succeeds or it is closed.
 * A status may be added to a class later; a program that does not know it goes by the class.
 */
#define SPARK_COMM_STATUS_LIST(X)                                                                  \
    X(SPARK_COMM_OK, 0, "success")                                                                 \
    X(SPARK_COMM_INVALID_ARGUMENT, 1, "an argument is wrong; nothing happened")                    \
    X(SPARK_COMM_NOT_SUPPORTED, 2, "this backend does not have the operation")                     \
    X(SPARK_COMM_WRONG_STATE, 3, "the call is not allowed in the present state")                   \
    X(SPARK_COMM_BUSY, 4, "another thread's call held the lane until the deadline")                \
    X(SPARK_COMM_UNAVAILABLE, 100, "no backend can serve what was asked for")                      \
    X(SPARK_COMM_REFUSED, 101, "a peer refused this rank")                                         \
    X(SPARK_COMM_OPEN_TIMEOUT, 102, "not all ranks came before the rendezvous deadline")           \
    X(SPARK_COMM_NO_MEMORY, 103, "memory ran out")                                                 \
    X(SPARK_COMM_SYSTEM, 104, "a system call failed")                                              \
    X(SPARK_COMM_PEER_LOST, 200, "a peer died, went silent or closed while it was needed")         \
    X(SPARK_COMM_OP_TIMEOUT, 201, "an operation passed its deadline")                              \
    X(SPARK_COMM_MISMATCH, 202, "the ranks called different operations")                           \
    X(SPARK_COMM_BACKEND, 203, "the backend's own library or device failed")                       \
    X(SPARK_COMM_ABORTED, 204, "the communicator was aborted or closed")

typedef enum spark_comm_status {
#define SPARK_COMM_STATUS_ENUM(name, value, text) name = value,
    SPARK_COMM_STATUS_LIST(SPARK_COMM_STATUS_ENUM)
#undef SPARK_COMM_STATUS_ENUM
} spark_comm_status;

/* Kind of memory that a backend works on. 0: not set. */
enum { SPARK_COMM_MEMORY_HOST = 1, SPARK_COMM_MEMORY_DEVICE = 2 };

/* Element types. 0: options.dtype. */
enum {
    SPARK_COMM_BF16 = 1,
    SPARK_COMM_F16 = 2,
    SPARK_COMM_F32 = 3,
    SPARK_COMM_F64 = 4,
    SPARK_COMM_I8 = 5,
    SPARK_COMM_U8 = 6,
    SPARK_COMM_I32 = 7,
    SPARK_COMM_I64 = 8
};

/* Reductions. 0: SPARK_COMM_SUM. f16, bf16 and f32 are summed in FP32 in rank order and rounded once
 * on canonical paths; integers wrap; avg is the sum divided by the number of ranks (integers: C
 * division, towards zero); a NaN wins in max and min. See SAME BITS above. */
enum { SPARK_COMM_SUM = 1, SPARK_COMM_MAX = 2, SPARK_COMM_MIN = 3, SPARK_COMM_AVG = 4 };

/* Operations. The first seven can be given to spark_comm_submit; the others appear in errors,
 * reports and traces. */
enum {
    SPARK_COMM_OP_NONE = 0,
    SPARK_COMM_OP_ALL_REDUCE = 1,
    SPARK_COMM_OP_ALL_GATHER = 2,
    SPARK_COMM_OP_REDUCE_SCATTER = 3,
    SPARK_COMM_OP_BROADCAST = 4,
    SPARK_COMM_OP_BARRIER = 5,
    SPARK_COMM_OP_SEND_TO = 6,
    SPARK_COMM_OP_RECV_FROM = 7,
    SPARK_COMM_OP_GROUP = 8,
    SPARK_COMM_OP_SEND_COMMAND = 9,
    SPARK_COMM_OP_RECV_COMMAND = 10,
    SPARK_COMM_OP_RECV_COMMAND_U32 = 11,
    SPARK_COMM_OP_EXCHANGE_HOST = 12,
    SPARK_COMM_OP_SYMMETRIC_ALLOC = 13,
    SPARK_COMM_OP_SYMMETRIC_FREE = 14,
    SPARK_COMM_OP_REGISTER_BUFFER = 15,
    SPARK_COMM_OP_DEREGISTER_BUFFER = 16,
    SPARK_COMM_OP_SET_ADD_KERNEL = 17,
    SPARK_COMM_OP_OPEN = 18,
    SPARK_COMM_OP_RECONNECT = 19,
    SPARK_COMM_OP_CLOSE = 20,
    SPARK_COMM_OP_COUNT = 21
};

/* Flags of spark_comm_op. EVENT_ORDERED: starts after what is queued on op.stream, later work there
 * waits for it, and the operation itself runs on a stream of the library's
 * (spark_comm_all_reduce_async). Host backends ignore it. */
enum { SPARK_COMM_FLAG_EVENT_ORDERED = 1u };

/* Log levels, from rare to frequent. DEBUG writes a line for each submission. */
enum { SPARK_COMM_LOG_ERROR = 1, SPARK_COMM_LOG_WARN = 2, SPARK_COMM_LOG_INFO = 3, SPARK_COMM_LOG_DEBUG = 4 };

/* Traits of a backend, a bit set. LATE_ENTRY is between the backend and the library
 * (spark_comm_backend.h). */
enum {
    SPARK_COMM_TRAIT_STREAM_ORDERED = 1u,
    SPARK_COMM_TRAIT_CAPTURABLE = 2u,
    SPARK_COMM_TRAIT_MULTI_HOST = 4u,
    SPARK_COMM_TRAIT_CANONICAL = 8u,
    SPARK_COMM_TRAIT_LATE_ENTRY = 16u
};

/* State of a communicator. */
enum { SPARK_COMM_STATE_HEALTHY = 1, SPARK_COMM_STATE_POISONED = 2, SPARK_COMM_STATE_CLOSED = 3 };

/* What a communicator is doing. STUCK: an operation was submitted half of op_timeout ago and has not
 * completed. */
enum { SPARK_COMM_ACTIVITY_IDLE = 1, SPARK_COMM_ACTIVITY_BUSY = 2, SPARK_COMM_ACTIVITY_STUCK = 3 };

/* Lanes: commands (send_command, recv_command, recv_command_u32, broadcasts up to 4 KiB) and data
 * (everything else). */
enum { SPARK_COMM_LANE_COMMAND = 0, SPARK_COMM_LANE_DATA = 1, SPARK_COMM_LANE_COUNT = 2 };

/* A communicator. Opaque. */
typedef struct spark_comm spark_comm;

/* Receives log lines, without a newline. Called from any thread, also from the library's own; it
 * must not call back. */
typedef void (*spark_comm_log_fn)(void *user, int level, const char *message);

/* How to open. spark_comm_options_init sets every field to "not set". Strings are copied by open.
 * What is not set comes from the environment: SPARK_COMM_<FIELD IN CAPITALS> first, then one
 * launcher's family (torchrun, Open MPI, MPICH, Slurm), then the default. docs/settings.md lists
 * everything. An empty string is refused: it is "not set" in the environment only. */
typedef struct spark_comm_options {
    size_t struct_size;
    const char *backend;     /* "auto", "single", "shm", "nccl", "mpi", or a module's name; NULL: not set (auto) */
    const char *master_addr; /* where rank 0 listens; NULL: not set (127.0.0.1) */
    const char *job_token;   /* shared secret of the job; NULL: not set (local peers only) */
    spark_comm_log_fn log;   /* NULL: no log */
    void *log_user;          /* first argument of log */
    uint64_t stream;         /* stream of spark_comm_all_reduce and the like; 0: the legacy stream */
    int32_t memory;          /* SPARK_COMM_MEMORY_*; 0: not set (host, unless device is set) */
    int32_t rank;            /* -1: not set */
    int32_t world_size;      /* -1: not set */
    int32_t master_port;     /* 0: not set (29500) */
    int32_t device;          /* device ordinal; -1: not set */
    int32_t dtype;           /* element type of the calls that name none; 0: not set (BF16) */
    int32_t rendezvous_timeout_ms; /* until all ranks have come; 0: 600,000 */
    int32_t op_timeout_ms;         /* one operation; 0: 30,000 */
    int32_t liveness_timeout_ms;   /* silence of a peer's process or host; 0: 10,000 */
    int32_t close_timeout_ms;      /* the farewell in spark_comm_close; 0: 5,000 */
} spark_comm_options;

/* One operation in its general form. Zero-initialise, then set struct_size and what the kind
 * needs. */
typedef struct spark_comm_op {
    size_t struct_size;
    int32_t kind;    /* SPARK_COMM_OP_ALL_REDUCE to SPARK_COMM_OP_RECV_FROM */
    int32_t dtype;   /* SPARK_COMM_BF16 ...; 0: options.dtype; only reductions use it */
    int32_t redop;   /* SPARK_COMM_SUM ...; 0: sum */
    int32_t peer;    /* the other rank of send_to and recv_from; the root of broadcast */
    uint32_t flags;  /* SPARK_COMM_FLAG_* */
    int32_t timeout_ms; /* 0: options.op_timeout_ms; in a group the shortest of the posts' counts */
    uint64_t send;   /* what is sent; all_reduce and broadcast may give the same pointer twice */
    uint64_t recv;   /* where the result goes */
    size_t bytes;    /* all_reduce, broadcast, send_to, recv_from: the buffer; all_gather, reduce_scatter: per rank */
    uint64_t stream; /* the stream to order by; spark_comm_all_reduce and the like pass options.stream */
} spark_comm_op;

/* A failure in full. Fields that do not apply are -1 (ranks) or 0. */
typedef struct spark_comm_error {
    size_t struct_size;
    int32_t status;      /* spark_comm_status */
    int32_t operation;   /* SPARK_COMM_OP_* */
    uint64_t sequence;   /* number of the operation on its lane; 0: it took none */
    int32_t peer;        /* the rank the failure is about; -1: none */
    uint32_t epoch;      /* epoch of the communicator */
    int64_t native_code; /* errno, or the native library's code; 0: none */
    char message[512];   /* one sentence: the operation, the ranks, what to do next */
} spark_comm_error;

/* Progress of one lane. */
typedef struct spark_comm_lane_report {
    uint64_t submitted;    /* number of the last operation accepted */
    uint64_t completed;    /* number of the last operation completed */
    int64_t submitted_age_ms; /* since that submission; -1: none yet */
    int64_t completed_age_ms; /* since that completion; -1: none yet */
} spark_comm_lane_report;

typedef struct spark_comm_health_report {
    size_t struct_size;
    int32_t state;    /* SPARK_COMM_STATE_* */
    int32_t activity; /* SPARK_COMM_ACTIVITY_* */
    uint32_t epoch;   /* starts at 1; each reconnect adds at least one */
    int32_t lost_count; /* ranks lost in this epoch */
    int32_t lost_rank;  /* lowest of them; -1: none */
    int32_t silent_rank; /* the peer not heard of for longest; -1: alone */
    int64_t silent_ms;   /* since when */
    uint64_t device_progress; /* counts up as device work of the library completes, replays included; 0 on host backends */
    spark_comm_lane_report lanes[SPARK_COMM_LANE_COUNT];
} spark_comm_health_report;

/* How one operation is served up to a size. */
typedef struct spark_comm_info_row {
    int32_t operation;    /* SPARK_COMM_OP_* */
    int32_t canonical;    /* 1: summed in FP32 in rank order, rounded once; 0: not; -1: moves data only */
    uint64_t up_to_bytes; /* sizes up to here take this path; UINT64_MAX: all larger ones */
    char path[32];        /* name of the path */
} spark_comm_info_row;

typedef struct spark_comm_info_report {
    size_t struct_size;
    char backend[32];
    int32_t memory;         /* SPARK_COMM_MEMORY_* */
    uint32_t traits;        /* SPARK_COMM_TRAIT_* */
    char library_file[256]; /* file of the native library in use; empty: none */
    char library_version[64];
    spark_comm_info_row *rows; /* in: the caller's array, or NULL */
    size_t row_size;           /* in: sizeof(spark_comm_info_row) of the caller */
    size_t row_capacity;       /* in: elements of rows */
    size_t row_count;          /* out: rows there are; more than row_capacity: the rest was left out */
} spark_comm_info_report;

/* One setting, as spark_comm_describe_settings finds it. */
typedef struct spark_comm_setting_row {
    char name[40];      /* option field or setting, for example "op_timeout_ms" */
    char variable[56];  /* its own environment variable */
    char value[128];    /* effective value as text; a secret shows "set" or "not set" */
    char source[64];    /* "option", "default", or the environment variable that it came from */
    char range[64];     /* what is allowed */
    char help[160];     /* one line */
    char problem[160];  /* empty, or why the value is refused */
} spark_comm_setting_row;

/* One backend, as spark_comm_describe_backends finds it. */
typedef struct spark_comm_backend_row {
    char name[32];
    int32_t memory;    /* SPARK_COMM_MEMORY_*; 0: unknown, the module could not be loaded */
    int32_t status;    /* OK: can serve here; UNAVAILABLE: it cannot, see reason */
    int32_t wanted;    /* 1: the settings ask for it, by name or as a candidate of "auto" */
    uint32_t traits;   /* SPARK_COMM_TRAIT_* */
    char reason[256];  /* why it cannot serve; or what it would use */
} spark_comm_backend_row;

/* ---- Life ---- */

/*
 * Sets every field of `options` to "not set", and its struct_size to `struct_size`.
 *
 * Units: struct_size is bytes: sizeof(spark_comm_options) of the caller.
 * Ownership: the caller owns `options`; nothing is kept.
 * Blocking: never.
 * Threads: any.
 * Stream: none.
 * In place: none.
 * After failure: it cannot fail; NULL does nothing.
 * Statuses: none.
 */
SPARK_COMM_API void spark_comm_options_init(spark_comm_options *options, size_t struct_size);

/*
 * Opens a communicator: all ranks of the world meet, agree on one backend, and make it ready.
 * NULL options take everything from the environment. Rank 0 listens on every address that
 * master_addr resolves to, for as long as the communicator lives; the others dial until they reach
 * it, in any order of starting. Without a job_token only peers of this host are accepted, unless
 * the setting allow_no_token says otherwise; with one, both sides prove that they know it before
 * anything else is said. Every rank must name the same backend and world_size, and the settings
 * that must agree are compared. "auto" takes `single` for one rank, `shm` for ranks of one host with
 * host memory, and `nccl` for device memory. Strangers at the port are dropped and counted, and the wait
 * goes on. A world of one rank on `single` opens no socket and starts no thread. The default of
 * rendezvous_timeout_ms, 600,000, allows for rank 0 loading weights before it opens. 29500, the
 * default of master_port, is that of torchrun.
 *
 * Units: options ending in _ms are milliseconds.
 * Ownership: options and its strings are copied and may go at once; log and log_user must stay good
 *   until close. *comm is the caller's until spark_comm_close; on failure it is set to NULL.
 * Blocking: until all ranks are in, at most rendezvous_timeout_ms (the first rank whose limit passes
 *   ends it for all), and then for the set-up as much of it as is left, but at least 5 s.
 * Threads: any; several communicators may be opened at the same time, each on its own port.
 * Stream: options.stream becomes the stream of the calls that name none.
 * In place: none.
 * After failure: nothing is left behind, on no rank; spark_comm_last_error(NULL, ...) tells this
 *   thread why. The call may be repeated.
 * Statuses: OK, INVALID_ARGUMENT (a setting, with its name, value, source and range), UNAVAILABLE
 *   (no backend can serve, with every reason; or master_addr is not resolved), REFUSED (version,
 *   world size, rank, backend or settings differ; at the deadline also the token, or a rank that is
 *   held), OPEN_TIMEOUT (names the ranks that never came), NO_MEMORY, SYSTEM (port taken,
 *   descriptors), and a fatal status when a peer fails on the way.
 */
SPARK_COMM_API spark_comm_status spark_comm_open(const spark_comm_options *options, spark_comm **comm);

struct spark_comm_backend;

/*
 * Opens a communicator on a backend of the caller's, as spark_comm_open does on one of the
 * library's.
 * options.backend is ignored. `user` is given to the backend's probe and open in place of
 * backend->user. spark_comm_backend.h and docs/backends.md say how to write one.
 *
 * Units: as spark_comm_open.
 * Ownership: as spark_comm_open; *backend and what it points to must stay until close.
 * Blocking: as spark_comm_open, and for as long as the backend's open takes.
 * Threads: any.
 * Stream: as spark_comm_open.
 * In place: none.
 * After failure: as spark_comm_open.
 * Statuses: those of spark_comm_open; INVALID_ARGUMENT also for a NULL backend, UNAVAILABLE also
 *   for a table of another major version or without name, open, close or memory.
 */
SPARK_COMM_API spark_comm_status spark_comm_open_backend(const struct spark_comm_backend *backend, void *user,
                                                         const spark_comm_options *options, spark_comm **comm);

/*
 * Gives up: this rank's waits end with ABORTED, and the peers are told "rank 1 aborted".
 *
 * Units: none.
 * Ownership: nothing changes; the communicator must still be closed.
 * Blocking: never; it does not wait for the calls that it ends.
 * Threads: any, at any time before spark_comm_close begins; it takes no lane.
 * Stream: nothing is waited for; work already enqueued is told to leave.
 * In place: none.
 * After failure: the communicator is poisoned when it returns OK, which is its purpose; a second
 *   call changes nothing, and so does a call on one that is poisoned already (the first cause
 *   stays).
 * Statuses: OK, WRONG_STATE.
 */
SPARK_COMM_API spark_comm_status spark_comm_abort(spark_comm *comm);

/*
 * Says goodbye to the peers and frees the communicator; NULL is fine.
 * Peers do not lose an operation that this rank has completed: its last numbers go with the
 * goodbye, and the peers acknowledge them. Afterwards only an operation that still needs this rank
 * fails there, with PEER_LOST and "rank 1 closed". Close may be called in any order over the ranks.
 *
 * Units: close_timeout_ms of the options, milliseconds.
 * Ownership: the communicator is gone, with its symmetric memory and registrations; buffers are the
 *   caller's again when it returns.
 * Blocking: at most close_timeout_ms for the peers' acknowledgement.
 * Threads: one thread, once. Calls that run in other threads end with ABORTED and are waited for.
 * Stream: on device backends work that is enqueued is drained or told to leave, in the same limit;
 *   captured graphs must be destroyed before.
 * In place: none.
 * After failure: it never fails; what could not be said to the peers in time is left unsaid.
 * Statuses: none.
 */
SPARK_COMM_API void spark_comm_close(spark_comm *comm);

/*
 * ---- The engine's operations ----
 *
 * Common rules of the collectives and of send_to and recv_from:
 *   Agreement   A collective is called by every rank of the communicator, in the same order within
 *               its lane, with the same size, element type, reduction and root. On host backends
 *               every exchange carries a digest of these, so a difference is found, not summed.
 *   Zero bytes  succeed and move nothing; a collective counts all the same. The pointer may then
 *               be 0.
 *   Buffers     must be valid over their whole length, and left alone by everybody else until the
 *               operation is complete. They may have any alignment. Unless "In place" says more,
 *               two buffers of one call must not overlap.
 *   Completion  Host backends: when the call returns. Stream-ordered backends: when the stream has
 *               passed it; the call returns when it is enqueued.
 *   Limits      op_timeout_ms of the options, from entry, holds the wait for a turn on the lane and
 *               for the peers.
 *   Failure     1 to 199: nothing was read, written or numbered on this rank. 200 to 299: the
 *               communicator is poisoned, and buffers that the call writes hold undefined bytes.
 *   Statuses    "the common ones" are OK; INVALID_ARGUMENT with the argument's name and value;
 *               NOT_SUPPORTED where the backend lacks the operation; WRONG_STATE when the
 *               communicator is NULL, closed or inherited over a fork, or has a group open in this
 *               thread; BUSY; NO_MEMORY and SYSTEM; and the fatal PEER_LOST, OP_TIMEOUT, MISMATCH,
 *               BACKEND and ABORTED.
 */

/*
 * Sums a buffer of options.dtype elements over all ranks, in place, on every rank.
 * For other types and reductions see spark_comm_submit.
 *
 * Units: bytes of the whole buffer, a multiple of the element's size.
 * Ownership: the caller's buffer, lent until completion.
 * Blocking: host backends until the sum is there; stream-ordered ones until it is enqueued.
 * Threads: any; data lane.
 * Stream: options.stream; may be captured.
 * In place: always; send_ptr and recv_ptr of the general form are both ptr.
 * After failure: as the common rules say; the buffer is undefined after a fatal status.
 * Statuses: the common ones.
 */
SPARK_COMM_API spark_comm_status spark_comm_all_reduce(spark_comm *comm, uint64_t ptr, size_t bytes);

/*
 * Does what spark_comm_all_reduce does, ordered by events with a compute stream.
 * It starts after what is queued on compute_stream, and what is queued there later waits for it;
 * the sum itself runs on a stream of the library's. On host backends it is spark_comm_all_reduce.
 *
 * Units: bytes of the whole buffer, a multiple of the element's size.
 * Ownership: the caller's buffer, lent until compute_stream has passed the call.
 * Blocking: the host never waits for the sum, only for its turn on the lane (host backends: until
 *   the sum is there).
 * Threads: any; data lane.
 * Stream: compute_stream, on both sides; options.stream is not touched.
 * In place: always.
 * After failure: as the common rules say.
 * Statuses: the common ones.
 */
SPARK_COMM_API spark_comm_status spark_comm_all_reduce_async(spark_comm *comm, uint64_t ptr, size_t bytes,
                                                             uint64_t compute_stream);

/*
 * Collects one block of every rank, in rank order, on every rank.
 *
 * Units: bytes of one rank's block, any count; recv_ptr holds world_size * bytes.
 * Ownership: both buffers are the caller's, lent until completion; send_ptr is only read.
 * Blocking: host backends until all blocks are there; stream-ordered ones until it is enqueued.
 * Threads: any; data lane.
 * Stream: options.stream; may be captured.
 * In place: send_ptr may be this rank's own slot, recv_ptr + rank * bytes; no other overlap.
 * After failure: as the common rules say; recv_ptr is undefined after a fatal status.
 * Statuses: the common ones.
 */
SPARK_COMM_API spark_comm_status spark_comm_all_gather(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                                       size_t bytes);

/*
 * Sums world_size blocks of options.dtype elements over all ranks and leaves block r on rank r.
 *
 * Units: bytes of one block of the result, a multiple of the element's size; send_ptr holds
 *   world_size * bytes.
 * Ownership: both buffers are the caller's, lent until completion; send_ptr is only read, unless
 *   the result lies in it.
 * Blocking: host backends until the block is there; stream-ordered ones until it is enqueued.
 * Threads: any; data lane.
 * Stream: options.stream; may be captured.
 * In place: recv_ptr may be this rank's own slot of send_ptr, send_ptr + rank * bytes; no other
 *   overlap.
 * After failure: as the common rules say; recv_ptr is undefined after a fatal status.
 * Statuses: the common ones.
 */
SPARK_COMM_API spark_comm_status spark_comm_reduce_scatter(spark_comm *comm, uint64_t send_ptr, uint64_t recv_ptr,
                                                           size_t bytes);

/*
 * Copies a buffer of the root's to all ranks.
 * Up to SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES it travels on the command lane, above on the data
 * lane. The root does not wait for an acknowledgement: that it returned does not say that a peer
 * has called.
 *
 * Units: bytes of the buffer, any count.
 * Ownership: the caller's buffer, lent until the call returns.
 * Blocking: on the root until the buffer may be reused, on the others until the data is there; on
 *   every backend, also the stream-ordered ones. At most op_timeout_ms.
 * Threads: any; command lane or data lane, by size.
 * Stream: device memory is read or written after work queued on options.stream; not to be captured.
 * In place: always: ptr is the source on the root and the destination elsewhere.
 * After failure: as the common rules say; the buffer is undefined after a fatal status, except on
 *   the root.
 * Statuses: the common ones; INVALID_ARGUMENT for a root out of range.
 */
SPARK_COMM_API spark_comm_status spark_comm_broadcast(spark_comm *comm, uint64_t ptr, size_t bytes, int root);

/*
 * Receives the root's next 4-byte broadcast, waiting through any idle time for it.
 * It is the receiving half of spark_comm_broadcast(comm, ptr, 4, root), for the first word of a
 * command. Later words and payloads use spark_comm_broadcast, which is bounded.
 *
 * Units: ptr has room for 4 bytes, one uint32_t.
 * Ownership: the caller's buffer, lent until the call returns.
 * Blocking: until the word is there, without limit; it ends when a peer is lost, on abort, on
 *   close.
 * Threads: any; command lane, which it holds while it waits. The data lane stays free.
 * Stream: as spark_comm_broadcast.
 * In place: none.
 * After failure: as the common rules say.
 * Statuses: the common ones without BUSY and OP_TIMEOUT; INVALID_ARGUMENT on the root itself (so
 *   always on a world of one rank) and for a root out of range; MISMATCH when the root's next
 *   record on the command lane is another one.
 */
SPARK_COMM_API spark_comm_status spark_comm_recv_command_u32(spark_comm *comm, uint64_t ptr, int root);

/*
 * Returns on no rank before every rank has entered it.
 * It orders hosts, not streams: work that is enqueued may still run.
 *
 * Units: none.
 * Ownership: nothing changes.
 * Blocking: until all ranks have entered, at most op_timeout_ms.
 * Threads: any; data lane.
 * Stream: none.
 * In place: none.
 * After failure: as the common rules say.
 * Statuses: the common ones.
 */
SPARK_COMM_API spark_comm_status spark_comm_barrier(spark_comm *comm);

/*
 * Tells the backend of a buffer that will be used often, which may make its operations faster.
 * Nothing needs it. The same range gives the same handle and counts up. Where registration does
 * nothing the handle is 0: on single always, on shm unless the range lies in symmetric memory.
 * Registrations survive reconnect.
 *
 * Units: bytes of the range, not zero.
 * Ownership: the range stays the caller's, and must not be unmapped before it is deregistered.
 *   *handle is a number, not a resource to free; 0 on failure.
 * Blocking: never for a peer; the call is local.
 * Threads: any; it takes turns with the data lane.
 * Stream: none; not to be called while a stream of this thread captures.
 * In place: none.
 * After failure: the buffer is not registered and may be used all the same.
 * Statuses: OK, INVALID_ARGUMENT, NOT_SUPPORTED, WRONG_STATE (also inside a group), BUSY,
 *   NO_MEMORY, SYSTEM; the first cause when poisoned.
 */
SPARK_COMM_API spark_comm_status spark_comm_register_buffer(spark_comm *comm, uint64_t ptr, size_t bytes,
                                                            uint64_t *handle);

/*
 * Takes one registration of a buffer back; the last one ends it.
 * Handle 0 is OK and does nothing. It works on a poisoned communicator too.
 *
 * Units: none; handle as spark_comm_register_buffer gave it.
 * Ownership: after the last one the range may be unmapped.
 * Blocking: never for a peer; the call is local.
 * Threads: any; it takes turns with the data lane.
 * Stream: work that uses the range must be complete.
 * In place: none.
 * After failure: the registrations are as before.
 * Statuses: OK, INVALID_ARGUMENT (no such handle), WRONG_STATE, BUSY.
 */
SPARK_COMM_API spark_comm_status spark_comm_deregister_buffer(spark_comm *comm, uint64_t handle);

/*
 * Allocates memory on every rank that the peers can reach, for operations without a copy.
 * It is collective, with the same bytes on all ranks, and has one status on all ranks. The memory
 * is zero at first; the address differs between ranks. After a reconnect it stays valid, as plain
 * memory, until it is freed and allocated again.
 *
 * Units: bytes of this rank's memory, not zero; rounded up to whole pages.
 * Ownership: the caller's until spark_comm_symmetric_free or spark_comm_close. *ptr is 0 on
 *   failure.
 * Blocking: until all ranks have called, at most op_timeout_ms.
 * Threads: any; data lane.
 * Stream: none; not to be called while a stream captures.
 * In place: none.
 * After failure: nothing is allocated, on no rank.
 * Statuses: the common ones; NOT_SUPPORTED where there is no such memory (single).
 */
SPARK_COMM_API spark_comm_status spark_comm_symmetric_alloc(spark_comm *comm, size_t bytes, uint64_t *ptr);

/*
 * Frees memory of spark_comm_symmetric_alloc, on this rank alone.
 * The other ranks free theirs on their own. 0 is OK and does nothing. It works on a poisoned
 * communicator too.
 *
 * Units: ptr as spark_comm_symmetric_alloc gave it.
 * Ownership: the memory is gone; operations that use it must be complete, on all ranks.
 * Blocking: never for a peer; the call is local.
 * Threads: any; it takes turns with the data lane.
 * Stream: work that uses it must be complete.
 * In place: none.
 * After failure: nothing is freed.
 * Statuses: OK, INVALID_ARGUMENT (not such memory), NOT_SUPPORTED, WRONG_STATE, BUSY.
 */
SPARK_COMM_API spark_comm_status spark_comm_symmetric_free(spark_comm *comm, uint64_t ptr);

/*
 * Gives the 2-rank exchange path a kernel of the engine's for its addition, or the built-in one
 * back.
 * It is a CUfunction (dst, src, int n) that does dst[i] += src[i] in BF16, one thread for an
 * element. The call is collective: all ranks pass a kernel, or all pass 0.
 *
 * Units: handle is a CUfunction as a number; 0 restores the built-in kernel.
 * Ownership: the kernel's module must stay loaded until another kernel is set, or until close.
 * Blocking: until all ranks have called, at most op_timeout_ms.
 * Threads: any; data lane.
 * Stream: used by operations that are submitted later; graphs keep the kernel they captured.
 * In place: none.
 * After failure: the kernel that was set before stays.
 * Statuses: the common ones; OK on single, which needs no addition; NOT_SUPPORTED on shm;
 *   INVALID_ARGUMENT on all ranks when only some pass a kernel.
 */
SPARK_COMM_API spark_comm_status spark_comm_set_add_kernel(spark_comm *comm, uint64_t handle);

/*
 * Sends a buffer to one rank, which receives it with spark_comm_recv_from.
 * Messages of one pair and direction arrive in the order of sending, and the sizes must be equal. A
 * zero-byte message is no message, on either side, and takes no number. Never rely on buffering:
 * two ranks that send to each other first do so inside a group. To oneself only paired inside a
 * group (on single always OK).
 *
 * Units: bytes of the message, any count.
 * Ownership: the caller's buffer, lent until completion and only read.
 * Blocking: host backends until the buffer may be reused, which may be when the peer has received;
 *   stream-ordered ones until it is enqueued. Inside a group: never. At most op_timeout_ms.
 * Threads: any; data lane; inside a group the thread of the group.
 * Stream: `stream`.
 * In place: none.
 * After failure: as the common rules say. Inside a group a refused post makes group_end launch
 *   nothing.
 * Statuses: the common ones; INVALID_ARGUMENT for a rank out of range, and for oneself outside a
 *   group; MISMATCH when the sizes of the two sides differ. In a group a message to oneself that
 *   has no other half of the same size makes group_end return INVALID_ARGUMENT.
 */
SPARK_COMM_API spark_comm_status spark_comm_send_to(spark_comm *comm, uint64_t ptr, size_t bytes, int dest_rank,
                                                    uint64_t stream);

/*
 * Receives a buffer from one rank, which sends it with spark_comm_send_to.
 * The rules of spark_comm_send_to hold.
 *
 * Units: bytes of the message, equal to the sender's.
 * Ownership: the caller's buffer, lent until completion.
 * Blocking: host backends until the message is there; stream-ordered ones until it is enqueued.
 *   Inside a group: never. At most op_timeout_ms.
 * Threads: any; data lane; inside a group the thread of the group.
 * Stream: `stream`.
 * In place: none.
 * After failure: as the common rules say; the buffer is undefined after a fatal status.
 * Statuses: as spark_comm_send_to.
 */
SPARK_COMM_API spark_comm_status spark_comm_recv_from(spark_comm *comm, uint64_t ptr, size_t bytes, int src_rank,
                                                      uint64_t stream);

/*
 * Opens a group: the send_to and recv_from of this thread are collected until spark_comm_group_end.
 *
 * Units: none.
 * Ownership: the buffers of the posts are lent until the group is complete.
 * Blocking: never for a peer; at most op_timeout_ms for a group of another thread.
 * Threads: any; the group belongs to this thread.
 * Stream: none.
 * In place: none.
 * After failure: no group is open.
 * Statuses: OK, INVALID_ARGUMENT, WRONG_STATE (this thread has one open: groups do not nest), BUSY
 *   (another thread's group), NO_MEMORY; the first cause when poisoned.
 */
SPARK_COMM_API spark_comm_status spark_comm_group_start(spark_comm *comm);

/*
 * Closes the group and launches its posts together, as one operation.
 * It always closes the group, on a poisoned communicator too. An empty group is OK. If a post was
 * refused it launches nothing and returns that post's status.
 *
 * Units: none.
 * Ownership: the buffers of the posts come back on completion.
 * Blocking: host backends until all posts are complete; stream-ordered ones until they are
 *   enqueued. At most op_timeout_ms, or the shortest timeout_ms of a post.
 * Threads: the thread that started the group; data lane.
 * Stream: those of the posts.
 * In place: the buffers of different posts must not overlap where one of them is received into.
 * After failure: the group is closed; 200 to 299: what the group receives into is undefined.
 * Statuses: the common ones; WRONG_STATE when this thread has no group open; the status of a
 *   refused post.
 */
SPARK_COMM_API spark_comm_status spark_comm_group_end(spark_comm *comm);

/*
 * Says whether the communicator is open and not poisoned, as far as this rank knows.
 *
 * Units: none.
 * Ownership: nothing changes.
 * Blocking: never; lock-free, one load.
 * Threads: any, at any time before spark_comm_close begins.
 * Stream: none; may be called while a stream captures.
 * In place: none.
 * After failure: it cannot fail; false for NULL, closed, or in a child after fork.
 * Statuses: none.
 */
SPARK_COMM_API bool spark_comm_is_healthy(const spark_comm *comm);

/*
 * Begins a new epoch, in which a poisoned communicator is good again and numbers start anew.
 * Collective: every rank that is left calls it, and for each rank that is not a new process calls
 * spark_comm_open with that rank and the same settings, rank 0 included. All succeed or all fail, with
 * one reason. A rank that asks while all is well poisons the present epoch everywhere first (ABORTED,
 * "rank 2 asks for a new epoch"), so that running calls and idle receives of all ranks end and they can
 * join. Threads that call while an attempt of this process runs share its outcome. One rank alone renews
 * itself.
 *
 * A process that was only stopped, and was replaced meanwhile, is REFUSED for good: "rank 2 was
 * replaced". When somebody is missing at the first caller's limit, all get the same OPEN_TIMEOUT, which
 * names the missing ranks; call again. spark_comm_abort of any rank ends the attempt, on that rank within
 * 100 ms and on those that have come with "rank 1 aborted". spark_comm_last_error(comm, ...) keeps the first cause until an
 * attempt succeeds; spark_comm_last_error(NULL, ...) has the sentence of this thread's attempt.
 *
 * Units: none.
 * Ownership: registered buffers stay registered, with the same handles. Symmetric memory keeps
 *   address and content and is plain memory until it is freed and allocated again. While the call runs no
 *   other thread of this rank may store into it: its pages are exchanged, and such a store may be lost.
 * Blocking: at most rendezvous_timeout_ms until all have come, and then for the set-up as much of it as
 *   is left, but at least 5 s.
 * Threads: any; both lanes.
 * Stream: none; WRONG_STATE on device backends while graphs that an older epoch captured live.
 * In place: none.
 * After failure: the communicator is poisoned; it may be called again. After NOT_SUPPORTED and
 *   WRONG_STATE it is as before.
 * Statuses: OK, NOT_SUPPORTED (the backend cannot), WRONG_STATE (also inside a group), BUSY (a running
 *   call, or a thread in the log function or in the backend, does not end; the sentence names it), REFUSED, OPEN_TIMEOUT, PEER_LOST (another rank was lost meanwhile), ABORTED (by
 *   _abort or _close of another thread), SYSTEM, NO_MEMORY, and what the backend says when it begins
 *   the epoch.
 */
SPARK_COMM_API spark_comm_status spark_comm_attempt_reconnect(spark_comm *comm);

/*
 * This rank's number.
 *
 * Units: 0 to world_size - 1.
 * Ownership: nothing changes.
 * Blocking: never.
 * Threads: any, at any time before spark_comm_close begins.
 * Stream: none.
 * In place: none.
 * After failure: -1 for NULL, closed, or in a child after fork; it works when poisoned.
 * Statuses: none.
 */
SPARK_COMM_API int spark_comm_rank(const spark_comm *comm);

/*
 * The number of ranks.
 *
 * Units: ranks, 1 or more.
 * Ownership: nothing changes.
 * Blocking: never.
 * Threads: any, at any time before spark_comm_close begins.
 * Stream: none.
 * In place: none.
 * After failure: -1 for NULL, closed, or in a child after fork; it works when poisoned.
 * Statuses: none.
 */
SPARK_COMM_API int spark_comm_world_size(const spark_comm *comm);

/* ---- More than that ---- */

/*
 * Runs one operation in its general form; all data operations above are written with it.
 * Which fields a kind needs (the others stay 0):
 *   ALL_REDUCE      send, recv, bytes (of the buffer), dtype, redop, stream, flags
 *   ALL_GATHER      send, recv, bytes (per rank), stream, flags
 *   REDUCE_SCATTER  send, recv, bytes (per rank of the result), dtype, redop, stream, flags
 *   BROADCAST       send (root), recv (the others), bytes, peer (the root), stream
 *   BARRIER         none
 *   SEND_TO         send, bytes, peer, stream
 *   RECV_FROM       recv, bytes, peer, stream
 * all_reduce and broadcast may give the same pointer as send and recv. Fields that a kind does not
 * need are ignored, but for unknown values of dtype, redop and flags, which are refused for every
 * kind. EVENT_ORDERED is ignored by BARRIER, by BROADCAST of up to 4 KiB, and by host backends.
 *
 * Units: bytes as said above; reductions take whole elements. timeout_ms is milliseconds, 0 is
 *   options.op_timeout_ms.
 * Ownership: *op is read before the call returns and not kept; buffers are lent until completion.
 * Blocking: as the function of the same name, held to op->timeout_ms.
 * Threads: any; the lane of the function of the same name.
 * Stream: op->stream, taken literally: 0 is the legacy stream, not options.stream. With
 *   SPARK_COMM_FLAG_EVENT_ORDERED as spark_comm_all_reduce_async.
 * In place: all_reduce with send == recv; the others as their functions.
 * After failure: as the function of the same name.
 * Statuses: the common ones; INVALID_ARGUMENT for an unknown kind, dtype, redop or flag. Arguments are
 *   named as the fields of *op.
 */
SPARK_COMM_API spark_comm_status spark_comm_submit(spark_comm *comm, const spark_comm_op *op);

/*
 * Sends a whole command from rank 0 to all other ranks, which receive it with
 * spark_comm_recv_command.
 * The words travel through host memory and the control plane; no GPU is involved.
 *
 * Units: count is 4-byte words, 0 to SPARK_COMM_MAX_COMMAND_WORDS.
 * Ownership: the caller's words, only read, lent until the call returns.
 * Blocking: until the words may be reused; it waits only while a receiver is far behind, at most
 *   op_timeout_ms.
 * Threads: any; command lane.
 * Stream: none.
 * In place: none.
 * After failure: 1 to 199: nothing was sent. 200 to 299: poisoned.
 * Statuses: the common ones; INVALID_ARGUMENT on any rank but 0, and for a count out of range.
 */
SPARK_COMM_API spark_comm_status spark_comm_send_command(spark_comm *comm, const uint32_t *words, size_t count);

/*
 * Receives rank 0's next command, waiting through any idle time for it.
 * *count becomes the number of words. When that is more than `capacity`, the command stays in
 * place, no number is taken, and the call can be repeated with more room.
 *
 * Units: capacity and count are 4-byte words.
 * Ownership: the caller's words, lent until the call returns.
 * Blocking: until a command is there, without limit; it ends when a peer is lost, on abort, on
 *   close.
 * Threads: any; command lane, which it holds while it waits. The data lane stays free.
 * Stream: none.
 * In place: none.
 * After failure: 1 to 199: nothing was taken, *count as said above or 0. 200 to 299: poisoned.
 * Statuses: the common ones without BUSY and OP_TIMEOUT; INVALID_ARGUMENT on rank 0, and for too
 *   small a capacity; MISMATCH when rank 0's next record on the command lane is a broadcast.
 */
SPARK_COMM_API spark_comm_status spark_comm_recv_command(spark_comm *comm, uint32_t *words, size_t capacity,
                                                         size_t *count);

/*
 * Gathers a small block of host memory of every rank, in rank order, on every rank.
 * It travels on the control plane, on every backend: for votes, for minimum and maximum, for
 * comparing settings.
 *
 * Units: bytes of one rank's block, at most SPARK_COMM_MAX_EXCHANGE_BYTES and equal on all ranks;
 *   recv holds world_size * bytes.
 * Ownership: both buffers are the caller's, lent until the call returns; send is only read.
 * Blocking: until all blocks are there, at most op_timeout_ms.
 * Threads: any; data lane.
 * Stream: none.
 * In place: send may be this rank's own slot of recv; no other overlap.
 * After failure: 1 to 199: recv is as before. 200 to 299: poisoned, recv is undefined.
 * Statuses: the common ones; INVALID_ARGUMENT for too many bytes.
 */
SPARK_COMM_API spark_comm_status spark_comm_exchange_host(spark_comm *comm, const void *send, void *recv, size_t bytes);

/*
 * Reports what the communicator is doing, and whether it makes progress.
 * `activity` is STUCK when an operation was submitted half of op_timeout_ms ago and has not completed.
 * An idle receive is IDLE, not BUSY; a local call that holds a lane (register_buffer) is BUSY, however
 * long it takes.
 *
 * Units: ages and silent_ms are milliseconds; numbers count operations of the epoch.
 * Ownership: the caller owns *report and sets its struct_size; nothing is kept.
 * Blocking: never.
 * Threads: any, at any time before spark_comm_close begins; it takes no lane.
 * Stream: none; may be called while a stream captures.
 * In place: none.
 * After failure: *report is as before.
 * Statuses: OK, also when poisoned; INVALID_ARGUMENT, WRONG_STATE.
 */
SPARK_COMM_API spark_comm_status spark_comm_health(const spark_comm *comm, spark_comm_health_report *report);

/*
 * Tells the last failure in full: the first cause while poisoned, else the latest failure of a
 * call.
 * With comm NULL it is this thread's last failure to open. The message names the operation, the
 * ranks ("rank 1") and what to do next. After a fatal failure it is the verdict, the same sentence
 * on all ranks: who is missing, in which call, and what that rank did last. Calls that fail return
 * once it is there; until then, for some milliseconds, other threads read this rank's suspicion.
 * When there was no failure the status is OK and the message empty.
 *
 * Units: sequence counts operations of the lane; native_code is an errno or a native library's
 *   code.
 * Ownership: the caller owns *error and sets its struct_size; nothing is kept.
 * Blocking: never.
 * Threads: any, at any time before spark_comm_close begins; it takes no lane.
 * Stream: none.
 * In place: none.
 * After failure: *error is as before, and so is what it would have told: a wrong argument of this call
 *   is recorded nowhere.
 * Statuses: OK, also when poisoned; INVALID_ARGUMENT, WRONG_STATE.
 */
SPARK_COMM_API spark_comm_status spark_comm_last_error(const spark_comm *comm, spark_comm_error *error);

/*
 * Tells what serves this communicator: backend, memory, native library, traits, and a path for each
 * operation and size.
 * Call it with rows NULL to learn row_count, then with an array. Rows are ordered by operation,
 * then by up_to_bytes.
 *
 * Units: row_size is bytes, row_capacity and row_count are elements.
 * Ownership: the caller owns *info, sets its struct_size, and owns the array; nothing is kept.
 * Blocking: never.
 * Threads: any, at any time before spark_comm_close begins; it takes no lane.
 * Stream: none.
 * In place: none.
 * After failure: *info is as before.
 * Statuses: OK, also when poisoned and when row_capacity was too small; INVALID_ARGUMENT,
 *   WRONG_STATE.
 */
SPARK_COMM_API spark_comm_status spark_comm_info(const spark_comm *comm, spark_comm_info_report *info);

/*
 * Writes the records of the last operations to a file, as JSON lines.
 * docs/trace-format.md describes them. They hold no tensor contents and no addresses. How many
 * there are is the setting trace_records; with SPARK_COMM_TRACE_DIR the records are kept in a
 * mapped file besides, which outlives a killed process.
 *
 * Units: none.
 * Ownership: the caller's path, only read; the file is made or replaced.
 * Blocking: for the file system, never for a peer.
 * Threads: any, at any time before spark_comm_close begins; it takes no lane, and records that are
 *   written meanwhile may be missing.
 * Stream: none; operations that are enqueued but not complete show as such.
 * In place: none.
 * After failure: the communicator is untouched; the file may be incomplete.
 * Statuses: OK, also when poisoned; INVALID_ARGUMENT, WRONG_STATE, NO_MEMORY, SYSTEM.
 */
SPARK_COMM_API spark_comm_status spark_comm_trace_write(spark_comm *comm, const char *path);

/*
 * Lists every setting with its value, where that came from, and what is allowed.
 * No communicator is needed, and nothing is opened. A value that open would refuse shows in
 * `problem`.
 *
 * Units: row_size is bytes: sizeof(spark_comm_setting_row) of the caller; capacity and *count are
 *   rows.
 * Ownership: the caller owns the array and its options; nothing is kept. rows may be NULL when
 *   capacity is 0; *count is how many there are, more than capacity when the rest was left out.
 * Blocking: never.
 * Threads: any; the environment must not change meanwhile.
 * Stream: none.
 * In place: none.
 * After failure: the rows are as before.
 * Statuses: OK, also when a value would be refused; INVALID_ARGUMENT.
 */
SPARK_COMM_API spark_comm_status spark_comm_describe_settings(const spark_comm_options *options,
                                                              spark_comm_setting_row *rows, size_t row_size,
                                                              size_t capacity, size_t *count);

/*
 * Lists the backends: whether each can serve on this machine, and if not, why.
 * No communicator is needed, no peer is spoken to. These are the built-in ones, and the one that
 * the settings ask for when it is another; the probe of each is run.
 *
 * Units: row_size is bytes: sizeof(spark_comm_backend_row) of the caller; capacity and *count are
 *   rows.
 * Ownership: as spark_comm_describe_settings.
 * Blocking: for the probes, never for a peer.
 * Threads: any; the environment must not change meanwhile.
 * Stream: none.
 * In place: none.
 * After failure: the rows are as before, *count is 0; spark_comm_last_error(NULL, ...) tells why
 *   when it was a setting.
 * Statuses: OK, also when no backend can serve; INVALID_ARGUMENT, also for a setting that open
 *   would refuse.
 */
SPARK_COMM_API spark_comm_status spark_comm_describe_backends(const spark_comm_options *options,
                                                              spark_comm_backend_row *rows, size_t row_size,
                                                              size_t capacity, size_t *count);

/* ---- Statuses and version ---- */

/*
 * The name of a status, for example "SPARK_COMM_PEER_LOST".
 *
 * Units: none.
 * Ownership: the string is the library's and lives as long as it is loaded.
 * Blocking: never.
 * Threads: any.
 * Stream: none.
 * In place: none.
 * After failure: it cannot fail; "SPARK_COMM_UNKNOWN" for a value that is no status.
 * Statuses: none.
 */
SPARK_COMM_API const char *spark_comm_status_name(spark_comm_status status);

/*
 * A short text for a status, for example "an operation passed its deadline".
 * The sentence that belongs to one failure is in spark_comm_last_error.
 *
 * Units: none.
 * Ownership: the string is the library's and lives as long as it is loaded.
 * Blocking: never.
 * Threads: any.
 * Stream: none.
 * In place: none.
 * After failure: it cannot fail; "unknown status" for a value that is none.
 * Statuses: none.
 */
SPARK_COMM_API const char *spark_comm_status_text(spark_comm_status status);

/*
 * Says whether a status poisons a communicator, which is whether it is 200 to 299.
 *
 * Units: none.
 * Ownership: nothing changes.
 * Blocking: never.
 * Threads: any.
 * Stream: none.
 * In place: none.
 * After failure: it cannot fail; a value that names no status goes by its class.
 * Statuses: none.
 */
SPARK_COMM_API bool spark_comm_is_fatal(spark_comm_status status);

/*
 * The version of the library that is loaded, for example "0.1.0".
 * The SPARK_COMM_VERSION_ macros are those of the header.
 *
 * Units: none.
 * Ownership: the string is the library's and lives as long as it is loaded.
 * Blocking: never.
 * Threads: any.
 * Stream: none.
 * In place: none.
 * After failure: it cannot fail.
 * Statuses: none.
 */
SPARK_COMM_API const char *spark_comm_version(void);

#ifdef __cplusplus
}
#endif

#endif
