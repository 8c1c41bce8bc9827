/*
 * Ranks as threads, each with its world, its host table and its shm state, for tests that drive the
 * backend's table directly. A check that fails in any thread ends the program: cmocka's own can
 * only be used by its thread.
 */
#ifndef TESTS_SHM_RANKS_H
#define TESTS_SHM_RANKS_H

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/shm/channels.h"
#include "backends/shm/shm.h"
#include "backends/shm/symmetric.h"
#include "base/deadline.h"
#include "base/status.h"

#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fputc('\n', stderr);                                            \
            abort();                                                        \
        }                                                                   \
    } while (0)

struct rank {
    int rank;
    int size;
    struct sc_settings settings;
    struct sc_log log;
    struct sc_world *world;
    struct sc_host host;
    void *state;
    uint64_t number;
    struct sc_error error; /* of the last call that failed */
    pthread_barrier_t *together; /* of the test, not of the library */
    void (*body)(struct rank *rank, void *arg);
    void *arg;
    pthread_t thread; /* or */
    pid_t process;
};

static inline uint32_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 16);
}

static inline int64_t in_ms(int timeout_ms) {
    return sc_deadline_after(timeout_ms);
}

/* As the api does it: number, digest, deadline; the explanation of a failure is kept. */
static inline spark_comm_status run_ops(struct rank *rank, const spark_comm_op *ops, size_t count,
                                        int timeout_ms) {
    const spark_comm_backend *shm = &sc_shm_backend;
    spark_comm_backend_fn function[] = {
        NULL,           shm->all_reduce, shm->all_gather,     shm->reduce_scatter,
        shm->broadcast, shm->barrier,    shm->point_to_point, shm->point_to_point};
    const spark_comm_op *op = ops;
    uint32_t digest = 2166136261u;
    uint64_t words[] = {(uint64_t)op->kind, (uint64_t)op->dtype, (uint64_t)op->redop, op->bytes,
                        op->kind == SPARK_COMM_OP_BROADCAST ? (uint64_t)op->peer : 0};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        digest = (digest ^ (uint32_t)words[i]) * 16777619u;
    spark_comm_call call = {.struct_size = sizeof call,
                            .ops = ops,
                            .op_count = count,
                            .number = ++rank->number,
                            .epoch = 1,
                            .digest = digest,
                            .deadline_ns = in_ms(timeout_ms)};
    spark_comm_status st = function[op->kind](rank->state, &call);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&rank->host, st, &rank->error);
    return st;
}

static inline void run_op(struct rank *rank, spark_comm_op op) {
    op.struct_size = sizeof op;
    spark_comm_status st = run_ops(rank, &op, 1, 60000);
    CHECK(st == SPARK_COMM_OK, "rank %d: %s: %s", rank->rank, sc_status_name((int)st),
          rank->error.message);
}

static inline spark_comm_op make_op(int kind, int dtype, int redop, int peer, const void *send,
                                    void *recv, size_t bytes) {
    return (spark_comm_op){.struct_size = sizeof(spark_comm_op),
                           .kind = kind,
                           .dtype = dtype,
                           .redop = redop,
                           .peer = peer,
                           .send = (uint64_t)(uintptr_t)send,
                           .recv = (uint64_t)(uintptr_t)recv,
                           .bytes = bytes};
}

static inline int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0, "no port");
    getsockname(fd, (struct sockaddr *)&address, &length);
    close(fd);
    return ntohs(address.sin_port);
}

static inline void *rank_main(void *arg) {
    struct rank *rank = arg;
    struct sc_error error;
    sc_error_clear(&error);
    spark_comm_status st = sc_world_open(&rank->settings, &rank->log, &rank->world, &error);
    CHECK(st == SPARK_COMM_OK, "rank %d: world: %s", rank->rank, error.message);
    st = sc_host_init(&rank->host, rank->world, &rank->settings, &rank->log, &error);
    CHECK(st == SPARK_COMM_OK, "rank %d: host: %s", rank->rank, error.message);
    st = sc_shm_backend.open(NULL, &rank->host.table, &rank->state);
    if (st != SPARK_COMM_OK) sc_host_take_explanation(&rank->host, st, &rank->error);
    CHECK(st == SPARK_COMM_OK, "rank %d: open: %s", rank->rank, rank->error.message);
    sc_world_on_poison(rank->world, sc_shm_backend.interrupt, rank->state);
    rank->body(rank, rank->arg);
    pthread_barrier_wait(rank->together);
    sc_world_on_poison(rank->world, NULL, NULL);
    sc_shm_backend.close(rank->state);
    sc_host_release(&rank->host);
    sc_world_close(rank->world);
    return NULL;
}

static inline void prepare_rank(struct rank *rank, int port) {
    spark_comm_options options;
    struct sc_error error;
    sc_error_clear(&error);
    sc_settings_options_init(&options, sizeof options);
    options.backend = "shm";
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    options.rank = rank->rank;
    options.world_size = rank->size;
    options.rendezvous_timeout_ms = 60000;
    rank->log.fd = -1;
    spark_comm_status st = sc_settings_resolve(&options, &rank->settings, &error);
    CHECK(st == SPARK_COMM_OK, "settings: %s", error.message);
}

/* Runs `body` in `size` ranks, between open and close; as threads, or as processes. */
static inline void run_as(bool threads, int size, void (*body)(struct rank *, void *), void *arg) {
    struct rank *ranks = calloc((size_t)size, sizeof *ranks);
    pthread_barrier_t *together =
        mmap(NULL, sizeof *together, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    int port = free_port(), status;
    CHECK(ranks != NULL && together != MAP_FAILED, "no memory");
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(together, &shared, (unsigned)size);
    for (int i = 0; i < size; i++) {
        struct rank *rank = &ranks[i];
        *rank =
            (struct rank){.rank = i, .size = size, .body = body, .arg = arg, .together = together};
        prepare_rank(rank, port);
        if (threads) {
            CHECK(pthread_create(&rank->thread, NULL, rank_main, rank) == 0, "no thread");
            continue;
        }
        rank->process = fork();
        CHECK(rank->process >= 0, "no process");
        if (rank->process > 0) continue;
        rank_main(rank);
        _exit(0);
    }
    for (int i = 0; i < size; i++) {
        if (threads)
            pthread_join(ranks[i].thread, NULL);
        else
            CHECK(waitpid(ranks[i].process, &status, 0) > 0 && status == 0, "rank %d failed", i);
    }
    pthread_barrier_destroy(together);
    munmap(together, sizeof *together);
    free(ranks);
}

static inline void run_ranks(int size, void (*body)(struct rank *, void *), void *arg) {
    run_as(true, size, body, arg);
}

/* Time lost at random, so that ranks come apart: mostly none, sometimes a while. */
static inline void lose_time(uint64_t *random) {
    uint32_t draw = next_random(random) % 64;
    if (draw < 8)
        sched_yield();
    else if (draw < 16)
        for (uint32_t i = next_random(random) % 3000; i > 0; i--)
            sc_wait_pause();
    else if (draw == 16)
        usleep(next_random(random) % 200);
}

#endif
