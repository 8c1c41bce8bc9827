/*
 * Communicators of three ranks (or as many as JOB_RANKS says before) for tests of reconnect: every
 * rank is a process of its own, which the test starts, kills, stops, wakes and replaces. What ranks
 * tell the test, and the test them, stands on a board of shared memory.
 */
#ifndef TESTS_SUPPORT_RECONNECT_RANKS_H
#define TESTS_SUPPORT_RECONNECT_RANKS_H

#include <limits.h>
#include <spark_comm.h>

#include "world_ranks.h"

#ifndef JOB_RANKS
#define JOB_RANKS 3
#endif
#define JOB_SUM (JOB_RANKS * (JOB_RANKS + 1) / 2) /* 1 + 2 + ... */
#define JOB_WORDS 16

struct job_board {
    int port;
    int rendezvous_ms, liveness_ms;
    char addr[32], token[32]; /* empty: 127.0.0.1, and none */
    _Atomic int64_t words[JOB_WORDS]; /* as a test likes */
    struct {
        _Atomic uint32_t verified; /* the epoch in which this rank has found all to work */
        _Atomic int64_t done_ns; /* when its last attempt ended */
        int status; /* of its last failure, with its words */
        char message[512];
    } seen[JOB_RANKS];
};

struct job_rank {
    int rank;
    spark_comm *comm;
    pid_t pid;
    void (*body)(struct job_rank *rank);
};

static struct job_board *board;
static struct job_rank job[JOB_RANKS];

#define CHECK_OK(call)                                                                           \
    do {                                                                                         \
        int got_ = (int)(call);                                                                  \
        if (got_ != SPARK_COMM_OK) world_check_failed(__FILE__, __LINE__, #call, job_why(got_)); \
    } while (0)

static _Thread_local spark_comm *job_comm; /* of this rank, for messages */

static inline const char *job_why(int status) {
    static char text[700];
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(job_comm, &error);
    snprintf(text, sizeof text, "%s; %s", spark_comm_status_name((spark_comm_status)status),
             error.message);
    return text;
}

static inline void job_log(void *user, int level, const char *message) {
    (void)level;
    fprintf(stderr, "[%d %d] %.3f %s\n", ((struct job_rank *)user)->rank, (int)getpid(),
            (double)sc_deadline_now() / 1e9, message);
}

static inline uint64_t job_address(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

static inline spark_comm_status job_open(struct job_rank *rank) {
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "shm";
    options.rank = rank->rank;
    options.world_size = JOB_RANKS;
    options.master_addr = board->addr[0] != '\0' ? board->addr : "127.0.0.1";
    options.master_port = board->port;
    options.job_token = board->token[0] != '\0' ? board->token : NULL;
    options.rendezvous_timeout_ms = board->rendezvous_ms;
    options.liveness_timeout_ms = board->liveness_ms;
    options.op_timeout_ms = 20000;
    if (getenv("WORLD_TEST_LOG") != NULL) {
        options.log = job_log;
        options.log_user = rank;
    }
    spark_comm_status st = spark_comm_open(&options, &rank->comm);
    job_comm = rank->comm;
    return st;
}

/* ---- The test's side ---- */

static inline void job_start(int number, void (*body)(struct job_rank *rank)) {
    struct job_rank *rank = &job[number];
    fflush(NULL);
    rank->rank = number;
    rank->body = body;
    rank->pid = fork();
    CHECK(rank->pid >= 0);
    if (rank->pid != 0) return;
    body(rank);
    exit(0);
}

/* With one word set before they start. */
static inline void job_start_all_with(void (*body)(struct job_rank *rank), int word, int value) {
    int rendezvous_ms = board->rendezvous_ms, liveness_ms = board->liveness_ms;
    memset(board, 0, sizeof *board);
    board->port = world_free_port();
    board->rendezvous_ms = rendezvous_ms != 0 ? rendezvous_ms : 20000;
    board->liveness_ms = liveness_ms != 0 ? liveness_ms : 10000;
    board->words[word] = value;
    for (int rank = 0; rank < JOB_RANKS; rank++)
        job_start(rank, body);
}

static inline void job_start_all(void (*body)(struct job_rank *rank)) {
    job_start_all_with(body, 0, 0);
}

static inline void job_kill(int rank) {
    int status;
    CHECK(kill(job[rank].pid, SIGKILL) == 0);
    while (waitpid(job[rank].pid, &status, 0) < 0) {
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    job[rank].pid = 0;
    atomic_store(&board->seen[rank].verified, 0);
}

static inline void job_finish(int rank) {
    int status = 0;
    while (waitpid(job[rank].pid, &status, 0) < 0) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        world_check_failed(__FILE__, __LINE__, "a rank ended well", NULL);
}

static inline void job_finish_all(void) {
    for (int rank = 0; rank < JOB_RANKS; rank++)
        job_finish(rank);
}

/* Neither side sleeps longer than it has to; the limit ends a test that hangs. A rank process that
 * has failed ends the test at once. */
static inline void job_await(const _Atomic int64_t *word, int64_t least) {
    int64_t until = sc_deadline_after(30000);
    while (atomic_load(word) < least) {
        for (int rank = 0; rank < JOB_RANKS; rank++) {
            siginfo_t info = {0};
            if (job[rank].pid > 0 &&
                waitid(P_PID, (id_t)job[rank].pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                info.si_code == CLD_EXITED && info.si_status != 0)
                world_check_failed(__FILE__, __LINE__, "no rank fails", NULL);
        }
        CHECK(!sc_deadline_passed(until));
        usleep(200);
    }
}

/* Until all ranks have found all to work in one epoch. */
static inline uint32_t job_await_one_epoch(void) {
    int64_t until = sc_deadline_after(40000);
    for (;;) {
        uint32_t first = atomic_load(&board->seen[0].verified);
        bool is_one = first != 0;
        for (int rank = 1; rank < JOB_RANKS; rank++)
            is_one &= atomic_load(&board->seen[rank].verified) == first;
        if (is_one) return first;
        CHECK(!sc_deadline_passed(until));
        usleep(200);
    }
}

static inline void job_await_epoch(uint32_t least) {
    int64_t until = sc_deadline_after(30000);
    for (int rank = 0; rank < JOB_RANKS; rank++)
        while (atomic_load(&board->seen[rank].verified) < least) {
            CHECK(!sc_deadline_passed(until));
            usleep(200);
        }
}

/* ---- The ranks' side ---- */

static inline uint32_t job_epoch(struct job_rank *rank) {
    spark_comm_health_report health = {.struct_size = sizeof health};
    CHECK_OK(spark_comm_health(rank->comm, &health));
    return health.epoch;
}

/* Notes what last_error says of the first cause (comm), or of the last attempt (NULL). */
static inline void job_note(struct job_rank *rank, const spark_comm *comm) {
    spark_comm_error error = {.struct_size = sizeof error};
    CHECK_OK(spark_comm_last_error(comm, &error));
    board->seen[rank->rank].status = error.status;
    memcpy(board->seen[rank->rank].message, error.message, sizeof error.message);
}

/* Sums of `count` elements that name rank and step; wrong ones end the process. */
static inline spark_comm_status job_sum(struct job_rank *rank, float *data, size_t count,
                                        int step) {
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .dtype = SPARK_COMM_F32,
                        .redop = SPARK_COMM_SUM,
                        .send = job_address(data),
                        .recv = job_address(data),
                        .bytes = count * sizeof *data};
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(rank->rank + 1) * (float)(1 + (i + (size_t)step) % 97);
    spark_comm_status st = spark_comm_submit(rank->comm, &op);
    for (size_t i = 0; st == SPARK_COMM_OK && i < count; i++)
        CHECK(data[i] == (float)(JOB_SUM * (1 + (i + (size_t)step) % 97)));
    return st;
}

/* A fault ends it; anything else than OK but that ends the process. */
#define TRY(call)                                                              \
    do {                                                                       \
        spark_comm_status try_ = (call);                                       \
        if (spark_comm_is_fatal(try_)) return try_;                            \
        if (try_ != SPARK_COMM_OK)                                             \
            world_check_failed(__FILE__, __LINE__, #call, job_why((int)try_)); \
    } while (0)

/* Everything works: every path of the data lane, the command lane, barrier, symmetric memory. */
static inline spark_comm_status job_try(struct job_rank *rank) {
    static const size_t counts[] = {1, 14, 1000, 4096, 100000, 400000};
    static float data[400000];
    uint32_t words[5] = {7, 8, 9, 10, job_epoch(rank)};
    uint32_t got[8] = {0}, all[JOB_RANKS] = {0}, mine = (uint32_t)rank->rank + 40;
    size_t count = 0;
    uint64_t symmetric;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        TRY(job_sum(rank, data, counts[i], (int)i));
    if (rank->rank == 0) {
        TRY(spark_comm_send_command(rank->comm, words, 5));
    } else {
        TRY(spark_comm_recv_command(rank->comm, got, 8, &count));
        CHECK(count == 5 && memcmp(got, words, sizeof words) == 0);
    }
    TRY(spark_comm_exchange_host(rank->comm, &mine, all, sizeof mine));
    for (uint32_t i = 0; i < JOB_RANKS; i++)
        CHECK(all[i] == 40 + i);
    for (int root = 0; root < JOB_RANKS; root++) { /* both lanes */
        uint32_t small = rank->rank == root ? 77u + (uint32_t)root : 0;
        TRY(spark_comm_broadcast(rank->comm, job_address(&small), sizeof small, root));
        CHECK(small == 77u + (uint32_t)root);
        memset(data, rank->rank == root ? 5 + root : 0, 50000);
        TRY(spark_comm_broadcast(rank->comm, job_address(data), 50000, root));
        for (size_t i = 0; i < 50000; i++)
            CHECK(((unsigned char *)data)[i] == 5 + root);
    }
    /* Around the ring. */
    uint32_t to = mine, from = 0;
    TRY(spark_comm_group_start(rank->comm));
    /* A group is closed whatever happens: group_end says what went wrong. */
    spark_comm_send_to(rank->comm, job_address(&to), 4, (rank->rank + 1) % JOB_RANKS, 0);
    spark_comm_recv_from(rank->comm, job_address(&from), 4,
                         (rank->rank + JOB_RANKS - 1) % JOB_RANKS, 0);
    TRY(spark_comm_group_end(rank->comm));
    CHECK(from == 40 + (uint32_t)(rank->rank + JOB_RANKS - 1) % JOB_RANKS);
    TRY(spark_comm_symmetric_alloc(rank->comm, 65536, &symmetric));
    TRY(job_sum(rank, (float *)(uintptr_t)symmetric, 16384, 3));
    TRY(spark_comm_symmetric_free(rank->comm, symmetric));
    TRY(spark_comm_barrier(rank->comm));
    atomic_store(&board->seen[rank->rank].verified, job_epoch(rank));
    return SPARK_COMM_OK;
}

static inline void job_verify(struct job_rank *rank) {
    spark_comm_health_report health = {.struct_size = sizeof health};
    CHECK(spark_comm_is_healthy(rank->comm));
    CHECK_OK(spark_comm_health(rank->comm, &health));
    CHECK(health.state == SPARK_COMM_STATE_HEALTHY);
    CHECK(health.lost_count == 0 && health.lost_rank == -1);
    CHECK_OK(job_try(rank));
}

/* Until an attempt succeeds, 30 s at most. */
static inline void job_reconnect(struct job_rank *rank) {
    int64_t until = sc_deadline_after(30000);
    spark_comm_status st;
    do {
        st = spark_comm_attempt_reconnect(rank->comm);
        if (st != SPARK_COMM_OK) CHECK(!sc_deadline_passed(until));
        if (st == SPARK_COMM_REFUSED) CHECK_OK(st);
    } while (st != SPARK_COMM_OK);
    atomic_store(&board->seen[rank->rank].done_ns, sc_deadline_now());
}

/* Reduces until the word JOB_STOP is set, reconnects whenever that fails, verifies every epoch. */
enum { JOB_STOP = JOB_WORDS - 1 };

static inline spark_comm_status job_reduce_on(struct job_rank *rank) {
    static float data[5000];
    for (int step = 0;; step++) { /* from 0 in every epoch, as a replacement does */
        int32_t stop = (int32_t)atomic_load(&board->words[JOB_STOP]);
        spark_comm_op op = {.struct_size = sizeof op,
                            .kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_I32,
                            .redop = SPARK_COMM_MAX,
                            .send = job_address(&stop),
                            .recv = job_address(&stop),
                            .bytes = 4};
        TRY(spark_comm_submit(rank->comm, &op));
        if (stop != 0) return SPARK_COMM_OK;
        TRY(job_sum(rank, data, step % 2 == 0 ? 5000 : 3, step));
    }
}

static inline void job_body_reduce(struct job_rank *rank) {
    int64_t until = sc_deadline_after(60000);
    while (job_open(rank) != SPARK_COMM_OK) /* others may die while it opens */
        CHECK(!sc_deadline_passed(until));
    for (;;) {
        spark_comm_status st = job_try(rank);
        if (st == SPARK_COMM_OK) st = job_reduce_on(rank);
        if (st == SPARK_COMM_OK) break;
        CHECK(st == SPARK_COMM_PEER_LOST || st == SPARK_COMM_ABORTED);
        CHECK(!spark_comm_is_healthy(rank->comm));
        job_reconnect(rank);
    }
    spark_comm_close(rank->comm);
}

/* ---- What a process holds ---- */

static inline long job_resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The least within 200 ms, or `want` within 2 s: a caller at the door comes and goes. */
static inline int job_settled_descriptors(int want) {
    int64_t until = sc_deadline_after(want == 0 ? 200 : 2000);
    int least = INT_MAX;
    while (least != want && !sc_deadline_passed(until)) {
        int count = world_count_descriptors();
        if (count < least) least = count;
        usleep(1000);
    }
    return least;
}

#endif
