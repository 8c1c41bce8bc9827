/* What runs on a stream: collectives in chunks between barriers, and messages in pieces. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <spark_comm.h>

#include "../cuda/fake.h"
#include "base/dtype.h"
#include "os/wait.h"

int64_t fake_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void fake_nap(void) {
    struct timespec pause = {0, 50000};
    nanosleep(&pause, NULL);
}

/* A slow kernel looks at the flag every so often only. */
static bool gives_up(const struct fake_comm *comm) {
    struct timespec pause = {0, comm->slow_ms * 1000000};
    if (!atomic_load(&comm->flag->raised)) return false;
    if (comm->slow_ms > 0) nanosleep(&pause, NULL);
    return atomic_load(&comm->flag->raised);
}

/* False when given up. */
static bool barrier(struct fake_comm *comm) {
    uint32_t target = ++comm->round * (uint32_t)comm->size;
    uint32_t arrived = atomic_fetch_add(&comm->slot->arrived, 1) + 1;
    if (arrived == target) sc_wait_futex_wake(&comm->slot->arrived, INT32_MAX);
    for (unsigned spin = 0; (int32_t)(arrived - target) < 0; spin++) {
        if (gives_up(comm)) return false;
        if (spin > 100) sc_wait_futex_sleep(&comm->slot->arrived, arrived, fake_now_ns() + 2000000);
        arrived = atomic_load(&comm->slot->arrived);
    }
    return true;
}

/* NCCL's numbers to ours. */
static const int types[] = {
    SPARK_COMM_I8,  SPARK_COMM_U8,  SPARK_COMM_I32, 0, SPARK_COMM_I64, 0, SPARK_COMM_F16,
    SPARK_COMM_F32, SPARK_COMM_F64, SPARK_COMM_BF16};
static const int ops[] = {SPARK_COMM_SUM, 0, SPARK_COMM_MAX, SPARK_COMM_MIN, SPARK_COMM_AVG};

struct collective {
    struct fake_comm *comm;
    struct fake_call call;
    const unsigned char *send;
    unsigned char *recv;
    long number;
};

static void reduce(const struct collective *work, unsigned char *out, size_t elements) {
    const void *sources[FAKE_MAX_RANKS];
    for (int rank = 0; rank < work->comm->size; rank++)
        sources[rank] = work->comm->mapping->region->chunks[rank];
    sc_dtype_reducer(types[work->call.type],
                     ops[work->call.op])(out, sources, (size_t)work->comm->size, elements);
}

/* One block that every rank has: reduced into `out` (may be NULL). */
static bool reduce_block(const struct collective *work, const unsigned char *in,
                         unsigned char *out) {
    size_t size = sc_dtype_size(types[work->call.type]);
    size_t bytes = work->call.count * size;
    for (size_t at = 0; at < bytes; at += FAKE_CHUNK) {
        size_t piece = bytes - at < FAKE_CHUNK ? bytes - at : FAKE_CHUNK;
        memcpy(work->comm->mapping->region->chunks[work->comm->rank], in + at, piece);
        if (!barrier(work->comm)) return false;
        if (out != NULL) reduce(work, out + at, piece / size);
        if (!barrier(work->comm)) return false;
    }
    return true;
}

static void run_reduce_scatter(const struct collective *work) {
    size_t block = work->call.count * sc_dtype_size(types[work->call.type]);
    for (int rank = 0; rank < work->comm->size; rank++)
        if (!reduce_block(work, work->send + (size_t)rank * block,
                          rank == work->comm->rank ? work->recv : NULL))
            return;
}

static void run_all_gather(const struct collective *work) {
    size_t bytes = work->call.count * sc_dtype_size(types[work->call.type]);
    const struct fake_region *region = work->comm->mapping->region;
    for (size_t at = 0; at < bytes; at += FAKE_CHUNK) {
        size_t piece = bytes - at < FAKE_CHUNK ? bytes - at : FAKE_CHUNK;
        memcpy((void *)(uintptr_t)region->chunks[work->comm->rank], work->send + at, piece);
        if (!barrier(work->comm)) return;
        for (int rank = 0; rank < work->comm->size; rank++)
            memcpy(work->recv + (size_t)rank * bytes + at, region->chunks[rank], piece);
        if (!barrier(work->comm)) return;
    }
}

static void run_broadcast(const struct collective *work) {
    size_t bytes = work->call.count * sc_dtype_size(types[work->call.type]);
    int root = work->call.root;
    for (size_t at = 0; at < bytes; at += FAKE_CHUNK) {
        size_t piece = bytes - at < FAKE_CHUNK ? bytes - at : FAKE_CHUNK;
        unsigned char *chunk = work->comm->mapping->region->chunks[root];
        if (work->comm->rank == root) memcpy(chunk, work->send + at, piece);
        if (!barrier(work->comm)) return;
        if (work->comm->rank != root) memcpy(work->recv + at, chunk, piece);
        if (!barrier(work->comm)) return;
    }
}

/* As on a GPU: ranks that call differently wait for ever. */
static bool all_call_alike(const struct collective *work) {
    struct fake_slot *slot = work->comm->slot;
    slot->calls[work->comm->rank] = work->call;
    if (!barrier(work->comm)) return false;
    for (int rank = 0; rank < work->comm->size; rank++)
        while (memcmp(&slot->calls[rank], &work->call, sizeof work->call) != 0) {
            if (gives_up(work->comm)) return false;
            fake_nap();
        }
    return barrier(work->comm);
}

static void run_collective(void *blob) {
    const struct collective *work = blob;
    struct fake_comm *comm = work->comm;
    if (work->number == comm->async_at) atomic_store(&comm->error, FAKE_SYSTEM_ERROR);
    while (work->number == comm->deaf_at)
        fake_nap();
    while (work->number == comm->hang_at && !gives_up(comm))
        fake_nap();
    if (gives_up(comm) || !all_call_alike(work)) return;
    switch (work->call.kind) {
    case FAKE_ALL_REDUCE: reduce_block(work, work->send, work->recv); break;
    case FAKE_REDUCE_SCATTER: run_reduce_scatter(work); break;
    case FAKE_ALL_GATHER: run_all_gather(work); break;
    default: run_broadcast(work); break;
    }
}

/* The first member of both kinds of work is the communicator. */
static void keep(void *blob) {
    atomic_fetch_add(&(*(struct fake_comm **)blob)->users, 1);
}

static void let_go(void *blob) {
    fake_comm_let_go(*(struct fake_comm **)blob);
}

int fake_collective(struct fake_comm *comm, const struct fake_call *call, const void *send,
                    void *recv, void *stream) {
    struct fake_work work = {.run = run_collective, .retain = keep, .release = let_go};
    long number = atomic_fetch_add(&comm->collectives, 1) + 1;

    if (atomic_load(&comm->error) != FAKE_SUCCESS) return atomic_load(&comm->error);
    if (atomic_load(&comm->revoked)) return FAKE_BAD_USAGE;
    if (number == comm->call_error_at) return FAKE_CUDA_ERROR;
    if (call->count == 0) return FAKE_SUCCESS;
    /* The real one's kernels load whole elements, and the context is lost. */
    if ((((uintptr_t)send | (uintptr_t)recv) & (sc_dtype_size(types[call->type]) - 1)) != 0)
        return FAKE_CUDA_ERROR;
    *(struct collective *)(void *)work.blob = (struct collective){comm, *call, send, recv, number};
    keep(work.blob);
    int result = sc_fake_enqueue(stream, &work);
    if (comm->wrong_device) sc_fake_spoil_current();
    if (result == FAKE_OK) return FAKE_SUCCESS;
    let_go(work.blob);
    return FAKE_CUDA_ERROR;
}

/* ---- Messages ---- */

struct group {
    struct fake_comm *comm;
    size_t count;
    _Atomic int *references; /* copies of this work; before the posts, in one block */
    struct fake_post *posts;
};

static bool move_piece(struct fake_comm *comm, struct fake_post *post) {
    struct fake_region *region = comm->mapping->region;
    int from = post->sends ? comm->rank : post->peer, to = post->sends ? post->peer : comm->rank;
    struct fake_channel *channel = &region->channels[from][to];
    uint32_t written = atomic_load(&channel->written), taken = atomic_load(&channel->taken);
    size_t left = post->bytes - post->moved;
    size_t piece = left < FAKE_PIECE ? left : FAKE_PIECE;
    if (post->sends == (written != taken)) return false; /* still full, or still empty */
    if (post->sends) {
        memcpy(channel->data, post->data + post->moved, piece);
        atomic_store(&channel->written, written + 1);
    } else {
        memcpy(post->data + post->moved, channel->data, piece);
        atomic_store(&channel->taken, taken + 1);
    }
    post->moved += piece;
    post->done = post->moved == post->bytes;
    return true;
}

/* Messages between two ranks go in the order of their posts. */
static bool is_next(const struct group *group, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (!group->posts[i].done && group->posts[i].sends == group->posts[index].sends &&
            group->posts[i].peer == group->posts[index].peer)
            return false;
    return true;
}

static void run_group(void *blob) {
    struct group *group = blob;
    size_t left = group->count;
    unsigned idle = 0;
    for (size_t i = 0; i < group->count; i++)
        group->posts[i] = (struct fake_post){
            group->posts[i].sends, false, group->posts[i].peer, group->posts[i].data,
            group->posts[i].bytes, 0,     group->comm,          NULL};
    while (left > 0 && !gives_up(group->comm)) {
        bool moved = false;
        for (size_t i = 0; i < group->count; i++) {
            struct fake_post *post = &group->posts[i];
            if (post->done || !is_next(group, i) || !move_piece(group->comm, post)) continue;
            moved = true;
            left -= post->done;
        }
        idle = moved ? 0 : idle + 1;
        if (idle > 20) fake_nap();
    }
}

static void keep_group(void *blob) {
    struct group *group = blob;
    atomic_fetch_add(group->references, 1);
    keep(blob);
}

static void let_group_go(void *blob) {
    struct group *group = blob;
    if (atomic_fetch_sub(group->references, 1) == 1) free((void *)group->references);
    let_go(blob);
}

int fake_messages(struct fake_comm *comm, const struct fake_post *posts, size_t count,
                  void *stream) {
    struct fake_work work = {.run = run_group, .retain = keep_group, .release = let_group_go};
    struct group *group = (struct group *)(void *)work.blob;
    unsigned char *block = calloc(1, 64 + count * sizeof *posts);
    if (block == NULL) return FAKE_SYSTEM_ERROR;
    *group = (struct group){comm, count, (void *)block, (void *)(block + 64)};
    memcpy(group->posts, posts, count * sizeof *posts);
    keep_group(work.blob);
    if (sc_fake_enqueue(stream, &work) == FAKE_OK) return FAKE_SUCCESS;
    let_group_go(work.blob);
    return FAKE_CUDA_ERROR;
}
