/*
 * spark_comm_backend.h: for those who write a backend of spark_comm outside its tree: another collective library, or an
 * engine's mock. The library's own backends implement the same table. docs/backends.md walks through an example.
 *
 * A backend only moves bytes. Checks, numbering, recording, health and error records are done by the library around it,
 * once, for every backend. The library calls one operation of a communicator at a time, except `interrupt`, which may come
 * from any thread at any time.
 *
 * Growth: both tables begin with struct_size and abi_version. The library reads a shorter backend table as NULL for the
 * rest; another major version (abi_version >> 16) is refused with UNAVAILABLE. New members are only ever appended.
 */
#ifndef SPARK_COMM_BACKEND_H
#define SPARK_COMM_BACKEND_H

#include <spark_comm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARK_COMM_BACKEND_ABI_MAJOR 1u
#define SPARK_COMM_BACKEND_ABI_MINOR 1u
#define SPARK_COMM_BACKEND_ABI_VERSION ((SPARK_COMM_BACKEND_ABI_MAJOR << 16) | SPARK_COMM_BACKEND_ABI_MINOR)

/* Name of the data symbol, of type spark_comm_backend, that a module exports to be opened by name. */
#define SPARK_COMM_BACKEND_MODULE_SYMBOL "spark_comm_backend_module"

/* A deadline on CLOCK_MONOTONIC in nanoseconds that never comes. */
#define SPARK_COMM_DEADLINE_NEVER INT64_MAX

/* One call, as a backend receives it: checked, numbered, every default filled in. */
typedef struct spark_comm_call {
    size_t struct_size;
    const spark_comm_op *ops; /* op_count operations; one, except for point_to_point, where a group may bring many */
    size_t op_count;
    uint64_t number;     /* of the operation in its epoch and lane; point_to_point: of the group's last member */
    uint32_t epoch;      /* epoch of the communicator */
    uint32_t digest;     /* digest of (operation, dtype, redop, root, bytes, number): equal on all ranks that call alike */
    int64_t deadline_ns; /* CLOCK_MONOTONIC; SPARK_COMM_DEADLINE_NEVER: none */
    /* Not NULL only with SPARK_COMM_TRAIT_LATE_ENTRY: the backend then calls entered(call) as soon as its part is
     * visible to the peers and before it waits or reads deadline_ns, which is set by then; again does no harm. The library does in it what
     * otherwise comes before the operation (the record, the status line), so that it costs nothing while data are on
     * their way. An operation that returns without it is recorded all the same. */
    void (*entered)(const struct spark_comm_call *call);
    int32_t captured;    /* 1: stream_state said that the stream captures; the call took no number. Since minor 1 */
    int32_t reserved;    /* zero */
} spark_comm_call;

/* What the library offers to a backend, valid from open to close. Every function takes `context` first. */
typedef struct spark_comm_host {
    size_t struct_size;
    uint32_t abi_version;
    int32_t rank;           /* this rank among the members, 0 to member_count - 1 */
    int32_t member_count;   /* ranks of the communicator */
    uint32_t epoch;         /* epoch at open; reopen brings the next */
    const int32_t *members; /* world rank of each member, ascending */
    const spark_comm_options *options; /* resolved: no field is "not set" */
    void *context;
    /* 0 while the communicator is good; a wait must look at it and return ABORTED once it is not. Read with acquire order
     * (__atomic_load_n). After seeing it set, look at what was waited for once more before giving up. */
    const uint32_t *poison;
    /* Host all-gather over all members, at most SPARK_COMM_MAX_EXCHANGE_BYTES per rank. In open, reopen, symmetric_alloc
     * and set_add_kernel only, by all members alike. */
    spark_comm_status (*all_gather)(void *context, const void *send, void *recv, size_t bytes, int64_t deadline_ns);
    /* Waits until ready(arg) is true, spinning first, then sleeping in steps that double from 50 us to 1 ms. OK, OP_TIMEOUT
     * at the deadline, or ABORTED on poison. */
    spark_comm_status (*wait)(void *context, bool (*ready)(void *arg), void *arg, int64_t deadline_ns);
    /* Attaches a peer (world rank or -1), a native code and a sentence to the failure that this thread is about to return. */
    void (*explain)(void *context, int peer, int64_t native_code, const char *message);
    /* Poisons the communicator from any thread: status in 200 to 299. The first cause stays. */
    void (*report_fault)(void *context, spark_comm_status status, int peer, int64_t native_code, const char *message);
    void (*log)(void *context, int level, const char *message);
} spark_comm_host;

/* An operation. OK, or a status with explain() called before. A fatal status poisons the communicator. */
typedef spark_comm_status (*spark_comm_backend_fn)(void *state, const spark_comm_call *call);

typedef struct spark_comm_backend {
    size_t struct_size;
    uint32_t abi_version; /* SPARK_COMM_BACKEND_ABI_VERSION */
    uint32_t traits;      /* SPARK_COMM_TRAIT_* */
    const char *name;     /* lower case, at most 31 characters */
    int32_t memory;       /* SPARK_COMM_MEMORY_* that its pointers live in */
    int32_t reserved;     /* zero */
    void *user;           /* given to probe and open; open_backend's argument replaces it */

    /* Can it serve on this machine? OK, or UNAVAILABLE with the reason in `why`. Runs before any peer is known; changes
     * nothing. NULL: always. */
    spark_comm_status (*probe)(void *user, const spark_comm_options *options, char *why, size_t why_size);
    /* Collective. On failure *state stays NULL and nothing is left behind; the library has all ranks fail alike. */
    spark_comm_status (*open)(void *user, const spark_comm_host *host, void **state);
    /* Local, bounded, never fails. No operation runs. */
    void (*close)(void *state);

    spark_comm_backend_fn all_reduce;
    spark_comm_backend_fn all_gather;
    spark_comm_backend_fn reduce_scatter;
    spark_comm_backend_fn broadcast; /* only those above SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES */
    spark_comm_backend_fn barrier;
    spark_comm_backend_fn point_to_point; /* all posts of a group progress together; a plain send or receive is one post; those to oneself pair up */

    /* Local. *handle 0 where it does nothing. The same range again gives the same handle (the library counts). */
    spark_comm_status (*register_buffer)(void *state, uint64_t ptr, size_t bytes, uint64_t *handle);
    spark_comm_status (*deregister_buffer)(void *state, uint64_t handle);
    /* Collective; all ranks return the same status. */
    spark_comm_status (*symmetric_alloc)(void *state, size_t bytes, int64_t deadline_ns, uint64_t *ptr);
    /* Local, allowed when poisoned. */
    spark_comm_status (*symmetric_free)(void *state, uint64_t ptr);
    /* Collective; the library has voted that all ranks pass a kernel or none does. */
    spark_comm_status (*set_add_kernel)(void *state, uint64_t kernel);
    /* Makes every running wait of this communicator return now. Any thread. */
    void (*interrupt)(void *state);
    /* Collective, while a new epoch is agreed: host->epoch is the new one, the poison word is clear, no operation runs.
     * Replacements are in `open` at the same time, so it must make the same all_gathers as open does. Everything of the
     * epoch before is forgotten, registrations too: the library makes those again afterwards. A failure is the reason for
     * which the attempt fails on all ranks, and it may be called again. NULL: attempt_reconnect is NOT_SUPPORTED. */
    spark_comm_status (*reopen)(void *state);
    /* Rows of spark_comm_info: fills up to capacity rows, returns how many there are. */
    size_t (*describe)(void *state, spark_comm_info_row *rows, size_t capacity);
    /* Counts up as device work completes. NULL: 0. Any thread. */
    uint64_t (*device_progress)(void *state);
    /* The range [ptr, ptr + bytes) reachable for this backend? OK or INVALID_ARGUMENT with explain(). NULL: not checked. */
    spark_comm_status (*check_pointer)(void *state, uint64_t ptr, size_t bytes);
    /* Host copies of device memory for small broadcasts and command words, ordered after work on options.stream.
     * NULL where memory is host. */
    spark_comm_status (*copy_to_host)(void *state, void *host_memory, uint64_t ptr, size_t bytes, int64_t deadline_ns);
    spark_comm_status (*copy_from_host)(void *state, uint64_t ptr, const void *host_memory, size_t bytes,
                                        int64_t deadline_ns);

    /* Since minor 1. Does the stream capture a graph? OK, or INVALID_ARGUMENT with explain() for a stream that this
     * backend cannot use. Called before an operation is numbered. NULL: no stream ever captures. */
    spark_comm_status (*stream_state)(void *state, uint64_t stream, bool *captured);
    /* Since minor 1. File and version of the native library in use, for spark_comm_info; both are empty strings before.
     * Any thread. NULL: there is none. */
    void (*library)(void *state, char *file, size_t file_size, char *version, size_t version_size);
} spark_comm_backend;

#ifdef __cplusplus
}
#endif

#endif
