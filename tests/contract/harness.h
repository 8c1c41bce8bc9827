/*
 * Runs a function as every rank of a world, the ranks being threads of this process or processes of
 * their own, and collects what failed: rank, file, line, expected and found. Written for tests of
 * the public interface; it never uses the library to carry its own data, but a board of shared
 * memory.
 *
 * A world has a time limit. A rank process that passes it is killed and named with the step it was
 * in; rank threads cannot be killed, so then the whole program ends. After every world the harness
 * looks for descriptors and threads left behind.
 */
#ifndef CONTRACT_HARNESS_H
#define CONTRACT_HARNESS_H

#include <pthread.h>
#include <spark_comm.h>
#include <spark_comm_backend.h>
#include <stdatomic.h>

#include "guard.h"

#define HARNESS_MAX_RANKS 8
#define HARNESS_WORDS 256 /* shared words that a test may use as it likes; zero at its start */

enum harness_way { HARNESS_THREADS, HARNESS_PROCESSES };

/* A backend under test: a row of the table in backends.c. */
struct harness_backend {
    const char *name;
    const spark_comm_backend *table; /* NULL: opened by its name */
    int max_world;
    bool moves_data; /* false: it touches no memory (single) */
    bool has_symmetric; /* symmetric_alloc must work; otherwise it must say NOT_SUPPORTED */
    unsigned thinning; /* 1: the whole matrix; k: about one k-th of it */
    bool
        on_device; /* stream-ordered, on device memory: only when SPARK_COMM_TEST_BACKEND names it */
};

struct harness_case {
    const struct harness_backend *backend;
    enum harness_way way;
    int size;
};

struct harness_rank;
typedef void (*harness_rank_fn)(struct harness_rank *rank);

/* What a test wants of its world. Zero is the usual. */
struct harness_setup {
    harness_rank_fn run;
    void (*tune)(struct harness_rank *rank,
                 spark_comm_options *options); /* changes the options before open */
    const void *arg; /* for run */
    bool opens_itself; /* run opens and closes on its own, see harness_options */
    bool keeps_things; /* no look for what was left behind */
    int limit_s; /* 0: HARNESS_LIMIT_S, before the factor for slow builds */
};
#define HARNESS_LIMIT_S 120

struct harness_board;

/* One rank's view. `comm` is open while run is called, unless the test opens itself. */
struct harness_rank {
    struct harness_board *board;
    const struct harness_case *world;
    const struct harness_setup *setup;
    int rank;
    int size;
    int port, spare_port; /* both are kept from others */
    bool is_helper; /* see harness_help */
    spark_comm *comm;
    int dtype; /* options.dtype that comm was opened with */
    uint64_t seed; /* the same on all ranks, another for each test and world */
    uint64_t calls; /* operations run so far, see ops.h */
    unsigned meetings;
    spark_comm_health_report before; /* see CHECK_REFUSED */
    struct guard_arena send, recv; /* of ops.h */
    unsigned char *inputs; /* of ops.h: what every rank puts in, for the reference */
    size_t input_bytes;
};

/* ---- Running ---- */

/* The number of failures, each already printed. */
int harness_run(const char *name, const struct harness_case *world,
                const struct harness_setup *setup);
/* 0 to 2: how much is tried. SPARK_COMM_TEST_LEVEL, or 1 in plain builds and 0 in those with a
 * sanitizer. */
int harness_level(void);
/* A real device: its driver and NCCL keep descriptors and threads from their first use on. Whether
 * something is left behind is told by comparing with the state after a world that was opened and closed
 * before. */
bool harness_warms_up(const struct harness_case *world, const struct harness_setup *setup);
/* Arenas come from memory that a GPU reaches; before any rank runs. */
void harness_use_managed(void);
/* How many times longer everything may take in this build. */
int harness_slowness(void);
/* Whether this point of a matrix is to be tried in this world: all of them, or one of every few.
 * Equal on all ranks. */
bool harness_wants(const struct harness_rank *rank, uint64_t index);
/* How often to repeat something in this world: `usual` at level 1 for two ranks on a backend of the
 * library's. */
int harness_rounds(const struct harness_rank *rank, int usual);
/* Descriptors and threads of this process. */
int harness_count_descriptors(void);
int harness_count_threads(void);

/* ---- For ranks ---- */

/* Options of this rank in this world: backend, numbers, address, port and limits. */
void harness_options(struct harness_rank *rank, spark_comm_options *options);
/* Opens with them by whatever function the backend needs. */
spark_comm_status harness_open(struct harness_rank *rank, const spark_comm_options *options,
                               spark_comm **comm);
/* What this rank is doing, for reports. */
void harness_step(struct harness_rank *rank, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Waits until every rank is here, not through the library. It also orders memory between rank
 * threads, so it hides a missing order in the library: not for tests that look for that. False when
 * they did not come in time. */
bool harness_meet(struct harness_rank *rank);
/* Word `index` of the board. */
_Atomic uint64_t *harness_word(struct harness_rank *rank, int index);
/* Waits until it is at least `value`; false (and a failure) after `limit_ms`. */
bool harness_await(struct harness_rank *rank, int index, uint64_t value, int limit_ms);
/* A result that must be bit for bit the same on all ranks: compared when the world has ended. */
void harness_same(struct harness_rank *rank, uint64_t hash);
/* This rank process kills itself, which is no failure. */
void harness_die(struct harness_rank *rank) __attribute__((noreturn));
/* That rank `which` is killed is no failure. */
void harness_may_die(struct harness_rank *rank, int which);
/* Now and then, a pause of up to `max_us` microseconds, different on each rank. */
void harness_jitter(struct harness_rank *rank, unsigned max_us);
void harness_sleep_ms(int ms);
int64_t harness_now_ms(void);
bool harness_failed(const struct harness_rank *rank);

/* A second thread of this rank: `helper` becomes a view with buffers, calls and data of its own on
 * the same communicator, and run is called with it. harness_join ends it. */
struct harness_thread {
    struct harness_rank rank;
    harness_rank_fn run;
    pthread_t thread;
};
bool harness_help(struct harness_rank *rank, struct harness_thread *helper, harness_rank_fn run);
void harness_join(struct harness_thread *helper);
/* Waits until the lane has accepted operation `number`, so that a helper's call is known to run. */
bool harness_await_number(struct harness_rank *rank, int lane, uint64_t number);

/* ---- Checks: each returns whether it held, and records a failure otherwise ---- */

void harness_fail(struct harness_rank *rank, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool harness_check_status(struct harness_rank *rank, spark_comm_status want, spark_comm_status got,
                          const char *expression, const char *file, int line);
bool harness_check_int(struct harness_rank *rank, int64_t want, int64_t got, const char *expression,
                       const char *file, int line);
/* last_error has this status, and its message holds every word. */
bool harness_check_message(struct harness_rank *rank, spark_comm_status status,
                           const char *const *words, const char *file, int line);
void harness_snapshot(struct harness_rank *rank);
bool harness_check_unchanged(struct harness_rank *rank, const char *file, int line);

#define CHECK_STATUS(rank, want, call) \
    harness_check_status(rank, want, call, #call, __FILE__, __LINE__)
#define CHECK_OK(rank, call) CHECK_STATUS(rank, SPARK_COMM_OK, call)
#define CHECK_INT(rank, want, got) \
    harness_check_int(rank, (int64_t)(want), (int64_t)(got), #got, __FILE__, __LINE__)
#define CHECK_TRUE(rank, condition, ...) \
    ((condition) ? true : (harness_fail(rank, __FILE__, __LINE__, __VA_ARGS__), false))
/* The words that the message of the latest failure must hold. */
#define CHECK_MESSAGE(rank, status, ...)                                                    \
    harness_check_message(rank, status, (const char *const[]){__VA_ARGS__, NULL}, __FILE__, \
                          __LINE__)
/* The call is refused with `want`, last_error says why with these words, and nothing has changed:
 * healthy as before, and no number taken. */
#define CHECK_REFUSED(rank, want, call, ...)                   \
    do {                                                       \
        harness_snapshot(rank);                                \
        if (CHECK_STATUS(rank, want, call)) {                  \
            CHECK_MESSAGE(rank, want, __VA_ARGS__);            \
            harness_check_unchanged(rank, __FILE__, __LINE__); \
        }                                                      \
    } while (0)

static inline uint64_t harness_address(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

#endif
