/*
 * An NCCL of our own on the fake driver: ranks are threads or processes of one host, data goes
 * through a memfd that the unique id names. Like the real one it checks no arguments between ranks
 * (ranks that call differently wait for ever), honours abort inside its kernels, and blocks in abort
 * while graphs hold it. Revoke takes its flag down again, after which abort no longer waits for graphs: to
 * call it then ends the process here. It proves control flow, not NCCL.
 *
 * Scripted by the environment, read when a communicator is initialised; SC_FAKE_NCCL_FAULT is a list
 * of name[:count][@rank], separated by commas:
 *   init_hang         init stays in progress
 *   init_error        init fails with ncclSystemError
 *   split_late        the child's pointer appears 30 ms after success
 *   async_error:N     the N-th collective makes an asynchronous error
 *   kernel_hang:N     the N-th collective never ends, until abort
 *   kernel_deaf:N     the same, and it ignores abort and revoke
 *   kernel_slow:MS    kernels look at the abort flag every so often only
 *   abort_hang        abort never returns
 *   destroy_hang      destroy never returns
 *   wrong_device      init and collectives leave another context current
 *   group_error:N     the N-th send or receive inside a group is refused
 *   call_error:N      the N-th collective returns ncclUnhandledCudaError
 *   register_null     registrations succeed and do nothing
 * SC_FAKE_NCCL_VERSION is what ncclGetVersion says (22809); "version@rank" pairs may follow after
 * commas, for ranks that are processes.
 */
#ifndef FAKES_NCCL_FAKE_H
#define FAKES_NCCL_FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX_RANKS 16
#define FAKE_SLOTS 8 /* communicators of one id: the first, and those split from it */
#define FAKE_CHUNK ((size_t)256 << 10) /* of a collective, per rank */
#define FAKE_PIECE ((size_t)64 << 10) /* of a message, per pair of ranks */

enum {
    FAKE_SUCCESS = 0,
    FAKE_CUDA_ERROR = 1,
    FAKE_SYSTEM_ERROR = 2,
    FAKE_BAD_ARGUMENT = 4,
    FAKE_BAD_USAGE = 5,
    FAKE_IN_PROGRESS = 7,
};

struct fake_id {
    uint64_t magic;
    int32_t pid, fd;
    uint64_t nonce;
    char unused[104];
};

/* What a rank says of its collective; all must say the same, or none goes on. */
struct fake_call {
    int32_t kind, type, op, root;
    uint64_t count;
};

struct fake_slot {
    _Atomic uint32_t attached;
    _Atomic uint32_t arrived; /* futex; counts up by one per rank and barrier */
    struct fake_call calls[FAKE_MAX_RANKS];
};

struct fake_channel {
    _Atomic uint32_t written, taken; /* pieces */
    uint32_t bytes;
    unsigned char data[FAKE_PIECE];
};

struct fake_region {
    struct fake_slot slots[FAKE_SLOTS];
    unsigned char chunks[FAKE_MAX_RANKS][FAKE_CHUNK];
    struct fake_channel channels[FAKE_MAX_RANKS][FAKE_MAX_RANKS]; /* from, to */
};

struct fake_mapping {
    struct fake_region *region;
    int users;
    int fd; /* of the process that made the id; -1: none */
};

/* A child that shares its parent's resources has its flag too. */
struct fake_flag {
    _Atomic int references;
    _Atomic bool raised;
};

struct fake_comm {
    struct fake_flag *flag;
    struct fake_mapping *mapping;
    struct fake_slot *slot;
    int rank, size, index;
    int splits; /* children made so far */
    struct fake_comm **late_child; /* where a child's pointer is still to be put */
    struct fake_comm *child;
    int64_t late_until_ns;
    bool blocking, shares;
    uint32_t round; /* barriers so far; worker thread alone */
    _Atomic int users; /* queued work and nodes of graphs */
    struct fake_comm *next_kept; /* of those that graphs outlive */
    _Atomic bool revoked;
    _Atomic int error;
    _Atomic long collectives, posts;
    long hang_at, deaf_at, slow_ms, async_at, post_error_at, call_error_at;
    bool init_hang, abort_hang, destroy_hang, wrong_device, register_null;
    struct fake_registered *registered;
};

struct fake_registered {
    struct fake_registered *next;
    uintptr_t start;
    size_t bytes;
    int uses;
};

/* One message of a group. */
struct fake_post {
    bool sends, done;
    int peer;
    unsigned char *data;
    size_t bytes, moved;
    struct fake_comm *comm;
    void *stream;
};

/* kernels.c: enqueue work on a stream. */
int fake_collective(struct fake_comm *comm, const struct fake_call *call, const void *send,
                    void *recv, void *stream);
int fake_messages(struct fake_comm *comm, const struct fake_post *posts, size_t count,
                  void *stream);
void fake_comm_let_go(struct fake_comm *comm);
int64_t fake_now_ns(void);
void fake_nap(void);

enum { FAKE_ALL_REDUCE = 1, FAKE_REDUCE_SCATTER, FAKE_ALL_GATHER, FAKE_BROADCAST };

#endif
