/*
 * Ranks as forked processes on the public interface, to be killed, stopped and compared: each round
 * opens a world, runs one function as every rank, and leaves on a board of shared memory what each
 * rank was told and when. Nothing here waits without a limit.
 */
#ifndef TESTS_SUPPORT_FAULT_RANKS_H
#define TESTS_SUPPORT_FAULT_RANKS_H

#include <spark_comm.h>

#include "world_ranks.h"

#define FAULT_RANKS 4

struct fault_seen {
    _Atomic int64_t at; /* CLOCK_MONOTONIC ns; 0: nothing yet */
    spark_comm_status status;
    spark_comm_error error;
};

struct fault_board {
    _Atomic int ready; /* ranks that have come so far */
    _Atomic int go; /* set by the test */
    _Atomic int64_t struck;
    _Atomic uint64_t words[16]; /* as a test likes */
    struct fault_seen seen[FAULT_RANKS];
};

struct fault_round;
struct fault_rank {
    int rank;
    struct fault_board *board;
    struct fault_round *round;
    spark_comm *comm;
};

struct fault_round {
    int size;
    int op_ms, liveness_ms;
    const char *backend;
    void (*body)(struct fault_rank *rank);
    const void *arg;
    struct fault_board *board; /* made by the first fault_start */
    pid_t pids[FAULT_RANKS];
};

static inline void fault_open(struct fault_rank *rank, int port) {
    const struct fault_round *round = rank->round;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_options options;

    spark_comm_options_init(&options, sizeof options);
    options.rank = rank->rank;
    options.world_size = round->size;
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    options.backend = round->backend != NULL ? round->backend : "shm";
    options.op_timeout_ms = round->op_ms > 0 ? round->op_ms : 20000;
    options.liveness_timeout_ms = round->liveness_ms > 0 ? round->liveness_ms : 10000;
    options.rendezvous_timeout_ms = 20000;
    if (spark_comm_open(&options, &rank->comm) == SPARK_COMM_OK) return;
    spark_comm_last_error(NULL, &error);
    world_check_failed(__FILE__, __LINE__, "open", error.message);
}

/* Every rank as a process of its own. */
static inline void fault_start(struct fault_round *round) {
    int port = world_free_port();

    CHECK(round->size <= FAULT_RANKS);
    if (round->board == NULL) round->board = world_board(sizeof *round->board);
    memset(round->board, 0, sizeof *round->board);
    fflush(NULL);
    for (int i = 0; i < round->size; i++) {
        round->pids[i] = fork();
        CHECK(round->pids[i] >= 0);
        if (round->pids[i] != 0) continue;
        struct fault_rank rank = {.rank = i, .board = round->board, .round = round};
        fault_open(&rank, port);
        round->body(&rank);
        spark_comm_close(rank.comm);
        exit(0);
    }
}

static inline void fault_await(_Atomic int *word, int value) {
    int64_t until = sc_deadline_after(120000); /* longer than the longest idle time */
    while (atomic_load(word) < value) {
        CHECK(!sc_deadline_passed(until));
        usleep(100);
    }
}

/* Says that this rank is where the test wants it. */
static inline void fault_is_ready(struct fault_rank *rank) {
    atomic_fetch_add(&rank->board->ready, 1);
}

static inline void fault_strike(struct fault_round *round, int rank, int signal) {
    if (round->board->struck == 0) round->board->struck = sc_deadline_now();
    CHECK(kill(round->pids[rank], signal) == 0);
}

/* Notes what a failed call returned, and the words. */
static inline void fault_note(struct fault_rank *rank, spark_comm_status status) {
    struct fault_seen *seen = &rank->board->seen[rank->rank];

    seen->status = status;
    seen->error.struct_size = sizeof seen->error;
    CHECK(spark_comm_last_error(rank->comm, &seen->error) == SPARK_COMM_OK);
    atomic_store(&seen->at, sc_deadline_now());
}

/* Waits for a rank's process: its exit code, or minus the signal that ended it. */
static inline int fault_wait(struct fault_round *round, int rank) {
    int status = 0;
    while (waitpid(round->pids[rank], &status, 0) < 0) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* All of `survivors` (bit per rank) were given this status and the same words; returns when the last
 * of them was, in milliseconds after the strike. */
static inline double fault_same(const struct fault_round *round, unsigned survivors,
                                spark_comm_status status) {
    const struct fault_seen *first = NULL;
    int64_t last = 0;

    for (int i = 0; i < round->size; i++) {
        const struct fault_seen *seen = &round->board->seen[i];
        if ((survivors >> i & 1) == 0) continue;
        if (first == NULL) first = seen;
        bool is_same = seen->status == status && seen->at != 0 &&
                       strcmp(seen->error.message, first->error.message) == 0;
        if (!is_same) {
            for (int k = 0; k < round->size; k++)
                fprintf(stderr, "rank %d: status %d: %s\n", k, (int)round->board->seen[k].status,
                        round->board->seen[k].error.message);
            world_check_failed(__FILE__, __LINE__, "one verdict on all survivors", NULL);
        }
        if (seen->at > last) last = seen->at;
    }
    return (double)(last - round->board->struck) / 1e6;
}

static inline uint64_t fault_address(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

/* A number that is the same in every run. */
static inline unsigned fault_random(unsigned *state) {
    *state = *state * 1103515245u + 12345u;
    return *state >> 8;
}

/* How often, or how long: the environment's word, else the usual, or what a soak wants. */
static inline int fault_count(const char *name, int usual, int soak) {
    const char *word = getenv(name);
    if (word != NULL && atoi(word) > 0) return atoi(word);
    if (getenv("SC_TEST_SOAK") != NULL) return soak;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return usual > 40 ? usual / 5 : usual; /* everything takes so much longer */
#else
    return usual;
#endif
}

static inline int fault_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void fault_print(const char *what, double *ms, int count) {
    qsort(ms, (size_t)count, sizeof *ms, fault_compare);
    printf("%s: p50 %.2f ms, p99 %.2f ms, most %.2f ms in %d rounds\n", what, ms[count / 2],
           ms[(count * 99) / 100], ms[count - 1], count);
}

#endif
