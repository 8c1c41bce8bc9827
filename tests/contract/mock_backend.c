/*
 * The mock backend: see mock_backend.h.
 *
 * Shared memory: a slot per rank for collectives, then one per ordered pair of ranks for messages.
 * A counter is stored with release order by its one writer, after the chunk was written or read,
 * and loaded with acquire order by those who wait.
 */
#include "mock_backend.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mock_state.h"

/* ---- Life ---- */

struct offer {
    int32_t pid;
    int32_t fd; /* -1: rank 0 has no memory */
};

/* Maps the shared memory that rank 0 made. Collective, so a rank that failed still takes part
 * in both gathers: the second one says that everybody has mapped, and rank 0 may close its
 * descriptor. */
static spark_comm_status map_memory(struct mock *mock) {
    const spark_comm_host *host = mock->host;
    struct offer own = {(int32_t)getpid(), -1}, all[MAX_RANKS];
    char path[64];
    void *memory = MAP_FAILED;
    uint8_t mapped, others[MAX_RANKS];
    int fd = -1;

    if (mock->rank == 0) {
        fd = memfd_create("mock", MFD_CLOEXEC);
        if (fd >= 0 && ftruncate(fd, (off_t)mock->bytes) == 0) own.fd = fd;
    }
    spark_comm_status st =
        host->all_gather(host->context, &own, all, sizeof own, SPARK_COMM_DEADLINE_NEVER);
    if (st == SPARK_COMM_OK && mock->rank != 0 && all[0].fd >= 0) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", all[0].pid, all[0].fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (st == SPARK_COMM_OK && fd >= 0 && all[0].fd >= 0)
        memory = mmap(NULL, mock->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mapped = memory != MAP_FAILED;
    if (st == SPARK_COMM_OK)
        st = host->all_gather(host->context, &mapped, others, 1, SPARK_COMM_DEADLINE_NEVER);
    if (fd >= 0) close(fd);
    if (st == SPARK_COMM_OK && memchr(others, 0, (size_t)mock->ranks) != NULL) {
        host->explain(host->context, -1, 0,
                      "a rank cannot map the shared memory of the mock backend");
        st = SPARK_COMM_NO_MEMORY;
    }
    if (st != SPARK_COMM_OK && memory != MAP_FAILED) munmap(memory, mock->bytes);
    if (st != SPARK_COMM_OK) return st;
    mock->seats = memory;
    mock->boxes = mock->seats + mock->ranks;
    mock->exchanges = 0;
    return SPARK_COMM_OK;
}

static void unmap_memory(struct mock *mock) {
    if (mock->seats != NULL) munmap(mock->seats, mock->bytes);
    mock->seats = NULL;
}

static spark_comm_status mock_probe(void *user, const spark_comm_options *options, char *why,
                                    size_t why_size) {
    (void)user;
    if (options->world_size <= MAX_RANKS) return SPARK_COMM_OK;
    snprintf(why, why_size, "it serves at most %d ranks, and the world has %d", MAX_RANKS,
             options->world_size);
    return SPARK_COMM_UNAVAILABLE;
}

static spark_comm_status mock_open(void *user, const spark_comm_host *host, void **state) {
    struct mock *mock = calloc(1, sizeof *mock);
    (void)user;
    if (mock == NULL) return SPARK_COMM_NO_MEMORY;
    mock->host = host;
    mock->rank = host->rank;
    mock->ranks = host->member_count;
    mock->bytes = (size_t)(mock->ranks + mock->ranks * mock->ranks) * sizeof(struct slot);
    const spark_comm_status st = map_memory(mock);
    if (st != SPARK_COMM_OK)
        free(mock);
    else
        *state = mock;
    return st;
}

static void mock_close(void *state) {
    unmap_memory(state);
    free(state);
}

/* A new epoch gets new memory, so nothing of the old one can be mistaken for its own. */
static spark_comm_status mock_reopen(void *state) {
    unmap_memory(state);
    return map_memory(state);
}

/* ---- The exchange ---- */

/* The first rank whose counter is below `least`, or -1. */
static int first_behind(const struct mock *mock, bool written, uint64_t least) {
    for (int r = 0; r < mock->ranks; r++) {
        const _Atomic uint64_t *counter = written ? &mock->seats[r].written : &mock->seats[r].read;
        if (atomic_load_explicit(counter, memory_order_acquire) < least) return r;
    }
    return -1;
}

static bool all_written(void *arg) {
    const struct mock *mock = arg;
    return first_behind(mock, true, mock->exchanges + 1) < 0;
}

static bool all_read(void *arg) {
    const struct mock *mock = arg;
    return first_behind(mock, false, mock->exchanges) < 0;
}

/* Shows `bytes` (at most CHUNK) to all ranks and returns when those of all ranks are to be seen in
 * their seats. They stay until exchange_done. */
static spark_comm_status exchange(struct mock *mock, const unsigned char *data, size_t bytes,
                                  int64_t deadline) {
    const spark_comm_host *host = mock->host;
    struct slot *own = &mock->seats[mock->rank];
    spark_comm_status st = host->wait(host->context, all_read, mock, deadline);
    if (st == SPARK_COMM_OK) {
        if (bytes > 0) memcpy(own->chunk, data, bytes);
        atomic_store_explicit(&own->written, mock->exchanges + 1, memory_order_release);
        st = host->wait(host->context, all_written, mock, deadline);
    }
    const int late =
        st == SPARK_COMM_OP_TIMEOUT ? first_behind(mock, true, mock->exchanges + 1) : -1;
    if (late >= 0) {
        char text[64];
        snprintf(text, sizeof text, "rank %d did not come in time", host->members[late]);
        host->explain(host->context, host->members[late], 0, text);
    }
    return st;
}

static void exchange_done(struct mock *mock) {
    mock->exchanges++;
    atomic_store_explicit(&mock->seats[mock->rank].read, mock->exchanges, memory_order_release);
}

/* ---- Collectives: chunk by chunk, an exchange and what is done with the seats ---- */

static void reduce_seats(const struct mock *mock, const spark_comm_op *op, unsigned char *out,
                         size_t bytes) {
    const unsigned char *sources[MAX_RANKS];
    for (int r = 0; r < mock->ranks; r++)
        sources[r] = mock->seats[r].chunk;
    mock_reduce(op->dtype, op->redop, sources, mock->ranks, out, bytes);
}

static spark_comm_status mock_all_reduce(void *state, const spark_comm_call *call) {
    const spark_comm_op *op = call->ops;
    for (size_t at = 0; at < op->bytes; at += CHUNK) {
        const size_t bytes = chunk_at(at, op->bytes);
        const spark_comm_status st =
            exchange(state, host_memory(op->send) + at, bytes, call->deadline_ns);
        if (st != SPARK_COMM_OK) return st;
        reduce_seats(state, op, host_memory(op->recv) + at, bytes);
        exchange_done(state);
    }
    return SPARK_COMM_OK;
}

static spark_comm_status mock_all_gather(void *state, const spark_comm_call *call) {
    const struct mock *mock = state;
    const spark_comm_op *op = call->ops;
    for (size_t at = 0; at < op->bytes; at += CHUNK) {
        const size_t bytes = chunk_at(at, op->bytes);
        const spark_comm_status st =
            exchange(state, host_memory(op->send) + at, bytes, call->deadline_ns);
        if (st != SPARK_COMM_OK) return st;
        for (int r = 0; r < mock->ranks; r++)
            memcpy(host_memory(op->recv) + (size_t)r * op->bytes + at, mock->seats[r].chunk, bytes);
        exchange_done(state);
    }
    return SPARK_COMM_OK;
}

static spark_comm_status mock_reduce_scatter(void *state, const spark_comm_call *call) {
    const struct mock *mock = state;
    const spark_comm_op *op = call->ops;
    for (int block = 0; block < mock->ranks; block++) {
        for (size_t at = 0; at < op->bytes; at += CHUNK) {
            const size_t bytes = chunk_at(at, op->bytes);
            const unsigned char *send = host_memory(op->send) + (size_t)block * op->bytes + at;
            const spark_comm_status st = exchange(state, send, bytes, call->deadline_ns);
            if (st != SPARK_COMM_OK) return st;
            if (block == mock->rank) reduce_seats(mock, op, host_memory(op->recv) + at, bytes);
            exchange_done(state);
        }
    }
    return SPARK_COMM_OK;
}

static spark_comm_status mock_broadcast(void *state, const spark_comm_call *call) {
    const struct mock *mock = state;
    const spark_comm_op *op = call->ops;
    const bool is_root = mock->rank == op->peer;
    for (size_t at = 0; at < op->bytes; at += CHUNK) {
        const size_t bytes = chunk_at(at, op->bytes);
        const unsigned char *send = is_root ? host_memory(op->send) + at : NULL;
        const spark_comm_status st = exchange(state, send, is_root ? bytes : 0, call->deadline_ns);
        if (st != SPARK_COMM_OK) return st;
        if (!is_root) memcpy(host_memory(op->recv) + at, mock->seats[op->peer].chunk, bytes);
        exchange_done(state);
    }
    return SPARK_COMM_OK;
}

static spark_comm_status mock_barrier(void *state, const spark_comm_call *call) {
    const spark_comm_status st = exchange(state, NULL, 0, call->deadline_ns);
    if (st == SPARK_COMM_OK) exchange_done(state);
    return st;
}

/* ---- The table ---- */

static size_t mock_describe(void *state, spark_comm_info_row *rows, size_t capacity) {
    (void)state;
    for (int kind = SPARK_COMM_OP_ALL_REDUCE; kind <= SPARK_COMM_OP_RECV_FROM; kind++) {
        const size_t i = (size_t)(kind - SPARK_COMM_OP_ALL_REDUCE);
        const bool reduces =
            kind == SPARK_COMM_OP_ALL_REDUCE || kind == SPARK_COMM_OP_REDUCE_SCATTER;
        if (i >= capacity) continue;
        rows[i] = (spark_comm_info_row){
            .operation = kind, .canonical = reduces ? 1 : -1, .up_to_bytes = UINT64_MAX};
        snprintf(rows[i].path, sizeof rows[i].path, "seats");
    }
    return SPARK_COMM_OP_RECV_FROM - SPARK_COMM_OP_ALL_REDUCE + 1;
}

/* Waits go through host->wait, which notices poison by itself, so there is nothing to interrupt;
 * nothing needs registering. */
const spark_comm_backend mock_backend = {
    .struct_size = sizeof(spark_comm_backend),
    .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
    .traits = SPARK_COMM_TRAIT_CANONICAL,
    .name = "mock",
    .memory = SPARK_COMM_MEMORY_HOST,
    .probe = mock_probe,
    .open = mock_open,
    .close = mock_close,
    .all_reduce = mock_all_reduce,
    .all_gather = mock_all_gather,
    .reduce_scatter = mock_reduce_scatter,
    .broadcast = mock_broadcast,
    .barrier = mock_barrier,
    .point_to_point = mock_point_to_point,
    .reopen = mock_reopen,
    .describe = mock_describe,
};
