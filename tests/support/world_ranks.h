/*
 * Worlds for tests: ranks as threads of this process, or as forked processes, each opening the
 * world alone (no communicator above it). Everything is bounded: a rank that does not come back ends
 * the test through its time limit.
 */
#ifndef TESTS_SUPPORT_WORLD_RANKS_H
#define TESTS_SUPPORT_WORLD_RANKS_H

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/ticks.h"
#include "world/world.h"

#define WORLD_MAX_RANKS 256

/* A failed check ends the process: a rank in a thread cannot use cmocka's long jump. */
#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) world_check_failed(__FILE__, __LINE__, #condition, NULL); \
    } while (0)
#define CHECK_STATUS(rank_pointer, got, want)                                              \
    do {                                                                                   \
        int got_ = (int)(got);                                                             \
        if (got_ != (int)(want)) {                                                         \
            fprintf(stderr, "rank %d: status %d, wanted %d\n", (rank_pointer)->rank, got_, \
                    (int)(want));                                                          \
            world_check_failed(__FILE__, __LINE__, #got, (rank_pointer)->error.message);   \
        }                                                                                  \
    } while (0)

static inline void world_check_failed(const char *file, int line, const char *what,
                                      const char *message) {
    fprintf(stderr, "%s:%d: failed: %s%s%s\n", file, line, what, message != NULL ? ": " : "",
            message != NULL ? message : "");
    fflush(NULL);
    _exit(1);
}

/* What each rank opens with; a test changes the fields it cares about. */
struct world_plan {
    int size;
    int port;
    const char *addr;
    const char *token;
    const char *backend;
    int rendezvous_ms, liveness_ms, op_ms, close_ms;
};

struct world_rank {
    int rank;
    struct sc_settings settings;
    struct sc_log log;
    struct sc_world *world; /* NULL: did not open */
    spark_comm_status status; /* of the open */
    struct sc_error error; /* of the last call */
    int64_t open_ns; /* how long the open took */
    void (*body)(struct world_rank *rank);
    void *arg;
    pthread_t thread;
    pid_t pid;
};

/* A port below the range of outgoing connections that nobody listens on. */
static inline int world_free_port(void) {
    static unsigned next;
    for (int i = 0; i < 2000; i++) {
        if (next == 0) next = (unsigned)getpid() * 37u + (unsigned)(sc_deadline_now() / 1000);
        int port = 12000 + (int)(next++ % 18000u);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_ANY)};
        int failed = bind(fd, (struct sockaddr *)&address, sizeof address);
        close(fd);
        if (failed == 0) return port;
    }
    world_check_failed(__FILE__, __LINE__, "a free port", NULL);
    return 0;
}

static inline struct world_plan world_plan_for(int size) {
    return (struct world_plan){.size = size,
                               .port = world_free_port(),
                               .addr = "127.0.0.1",
                               .backend = "shm",
                               .rendezvous_ms = 20000,
                               .liveness_ms = 10000,
                               .op_ms = 20000,
                               .close_ms = 5000};
}

static inline void world_log_line(void *user, int level, const char *message) {
    (void)level;
    fprintf(stderr, "[%d] %s\n", ((struct world_rank *)user)->rank, message);
}

static inline void world_prepare(struct world_rank *rank, const struct world_plan *plan,
                                 int number) {
    spark_comm_options options;
    struct sc_error error;

    memset(rank, 0, sizeof *rank);
    sc_settings_options_init(&options, sizeof options);
    options.rank = number < plan->size ? number : 0;
    options.world_size = plan->size;
    options.master_addr = plan->addr;
    options.master_port = plan->port;
    options.job_token = plan->token;
    options.backend = plan->backend;
    options.rendezvous_timeout_ms = plan->rendezvous_ms;
    options.liveness_timeout_ms = plan->liveness_ms;
    options.op_timeout_ms = plan->op_ms;
    options.close_timeout_ms = plan->close_ms;
    rank->rank = number;
    sc_error_clear(&error);
    if (sc_settings_resolve(&options, &rank->settings, &error) != SPARK_COMM_OK)
        world_check_failed(__FILE__, __LINE__, "settings", error.message);
    rank->settings.rank = number; /* also one that the settings would refuse */
    rank->log = (struct sc_log){.fd = -1, .level = SPARK_COMM_LOG_INFO};
    if (getenv("WORLD_TEST_LOG") != NULL) rank->log.fn = world_log_line;
    rank->log.user = rank;
}

static inline void world_open(struct world_rank *rank) {
    int64_t start = sc_deadline_now();
    sc_error_clear(&rank->error);
    rank->status = sc_world_open(&rank->settings, &rank->log, &rank->world, &rank->error);
    rank->open_ns = sc_deadline_now() - start;
}

static inline void *world_thread(void *arg) {
    struct world_rank *rank = arg;
    world_open(rank);
    rank->body(rank);
    return NULL;
}

/* Runs `body` on every rank as a thread, after its open (whatever became of it). */
static inline void world_run_threads(struct world_rank *ranks, const struct world_plan *plan,
                                     void (*body)(struct world_rank *rank), void *arg) {
    for (int i = 0; i < plan->size; i++) {
        world_prepare(&ranks[i], plan, i);
        ranks[i].body = body;
        ranks[i].arg = arg;
    }
    for (int i = 0; i < plan->size; i++)
        CHECK(pthread_create(&ranks[i].thread, NULL, world_thread, &ranks[i]) == 0);
    for (int i = 0; i < plan->size; i++)
        CHECK(pthread_join(ranks[i].thread, NULL) == 0);
}

/* ---- Ranks as processes ---- */

static inline void world_start_process(struct world_rank *rank,
                                       void (*body)(struct world_rank *rank)) {
    fflush(NULL);
    rank->pid = fork();
    CHECK(rank->pid >= 0);
    if (rank->pid != 0) return;
    world_open(rank);
    body(rank);
    exit(0); /* not _exit: the leak sanitizer looks at the end */
}

/* Waits for a process: its exit code, or minus the signal that ended it. */
static inline int world_wait_process(struct world_rank *rank) {
    int status = 0;
    while (waitpid(rank->pid, &status, 0) < 0) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Memory that forked ranks share with the test, zero filled. */
static inline void *world_board(size_t bytes) {
    void *board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    return board;
}

/* ---- Steps ---- */

/* A control-plane barrier. */
static inline spark_comm_status world_barrier(struct world_rank *rank, uint64_t number) {
    unsigned char mine = 1;
    unsigned char all[WORLD_MAX_RANKS];
    return sc_world_all_gather(rank->world, number, 0, &mine, all, 1, sc_deadline_after(20000),
                               &rank->error);
}

/* What the api does around an operation: number and description in the status line. */
static inline void world_enter(struct world_rank *rank, int lane, int kind, int peer,
                               uint64_t number) {
    struct sc_world_line *line = sc_world_own_line(rank->world, lane);
    uint64_t descriptor = sc_world_describe(kind, 0, 0, peer);
    atomic_store_explicit(&line->descriptor, descriptor, memory_order_relaxed);
    atomic_store_explicit(&line->past[number % SC_WORLD_PAST].descriptor, descriptor,
                          memory_order_relaxed);
    atomic_store_explicit(&line->submit_ticks, sc_ticks_now(), memory_order_relaxed);
    atomic_store_explicit(&line->submitted, number, memory_order_release);
}

static inline void world_done(struct world_rank *rank, int lane, uint64_t number) {
    struct sc_world_line *line = sc_world_own_line(rank->world, lane);
    atomic_store_explicit(&line->complete_ticks, sc_ticks_now(), memory_order_relaxed);
    atomic_store_explicit(&line->completed, number, memory_order_release);
}

/* Sleeps until this rank is poisoned, at most 30 s. */
static inline void world_await_poison(struct world_rank *rank) {
    int64_t until = sc_deadline_after(30000);
    while (*sc_world_poison(rank->world) == 0) {
        CHECK(!sc_deadline_passed(until));
        sc_wait_futex_sleep(sc_world_poison(rank->world), 0, until);
    }
}

/* How long since `start`, in milliseconds. */
static inline double world_ms_since(int64_t start) {
    return (double)(sc_deadline_now() - start) / 1e6;
}

/* Open descriptors and threads of this process, to find leaks. */
static inline int world_count_entries(const char *folder) {
    int count = 0;
    DIR *directory = opendir(folder);
    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static inline int world_count_descriptors(void) {
    return world_count_entries("/proc/self/fd");
}

static inline void *world_nothing(void *arg) {
    return arg;
}

static inline int world_count_threads(void) {
    /* A sanitizer starts a thread of its own with the first one of ours. */
    pthread_t thread;
    int least = INT32_MAX;
    if (pthread_create(&thread, NULL, world_nothing, NULL) == 0) pthread_join(thread, NULL);
    for (int i = 0; i < 20; i++) {
        int count = world_count_entries("/proc/self/task");
        if (count < least) least = count;
        usleep(500);
    }
    return least;
}

/* A joined thread may be listed a moment longer: waits until there are no more than `most`. */
static inline int world_settle_threads(int most) {
    int64_t until = sc_deadline_after(2000);
    while (world_count_entries("/proc/self/task") > most && !sc_deadline_passed(until))
        usleep(1000);
    return world_count_entries("/proc/self/task");
}

#endif
