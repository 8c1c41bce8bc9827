/*
 * Memory and descriptors that run out at every point of open: the failing rank says NO_MEMORY or
 * SYSTEM, nothing is left behind, and when it tries again all ranks come together.
 *
 * One rank fails its n-th allocation (or finds n descriptors free), for every n until none fails
 * any more. The others only open until they succeed, as ranks of a job that is restarted do; open
 * succeeds on all ranks or on none, so they end together.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "contract/contract.h"
#include "contract/ops.h"

#define MAX_POINTS 400
#define MAX_ATTEMPTS 40
#define VICTIM_FAILED 0 /* word of the board */

/* One of what a rank can run out of. */
struct shortage {
    spark_comm_status status; /* what it must say */
    const char *word; /* that the message must have; NULL: none */
    void (*begin)(int n);
    bool (*end)(void); /* whether something was refused since begin */
};

/* ---- Memory ---- */

static void begin_memory(int n) {
    sc_alloc_fail_after(n);
}

static bool end_memory(void) {
    const long refused = sc_alloc_refused();
    sc_alloc_fail_after(-1);
    return refused > 0;
}

/* ---- Descriptors: all but n of those below a limit are taken ---- */

#define DESCRIPTOR_LIMIT 64
static int taken[DESCRIPTOR_LIMIT];
static int taken_count, free_count;

static void begin_descriptors(int n) {
    const struct rlimit limit = {DESCRIPTOR_LIMIT, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
    taken_count = 0;
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
        taken[taken_count++] = fd;
    while (n-- > 0 && taken_count > 0)
        close(taken[--taken_count]);
    free_count = taken_count;
}

/* What was refused is not counted by anybody; that as many are free as the library ever holds is
 * enough. */
static bool end_descriptors(void) {
    const struct rlimit limit = {4096, 4096};
    while (taken_count > 0)
        close(taken[--taken_count]);
    setrlimit(RLIMIT_NOFILE, &limit);
    return free_count > 0;
}

/* ---- The attempts ---- */

/* Opens until it works, or the victim has given up. */
static bool open_at_last(struct harness_rank *rank, const spark_comm_options *options) {
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        if (atomic_load(harness_word(rank, VICTIM_FAILED)) != 0) return false;
        const spark_comm_status st = harness_open(rank, options, &rank->comm);
        if (st == SPARK_COMM_OK) return true;
        if (!CHECK_TRUE(rank, rank->comm == NULL && (st >= 100 && st < 300),
                        "the others' open failed with %s", spark_comm_status_name(st)))
            return false;
    }
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(NULL, &error);
    return CHECK_TRUE(rank, false, "it did not open in %d attempts; the last: %s", MAX_ATTEMPTS,
                      error.message);
}

/* Fails once at point n, and again succeeds. *more: whether there are points beyond. */
static bool fail_and_open(struct harness_rank *rank, const spark_comm_options *options,
                          const struct shortage *shortage, int n, bool *more) {
    spark_comm_error error = {.struct_size = sizeof error};
    const int descriptors = harness_count_descriptors();
    const int threads = harness_count_threads();
    shortage->begin(n);
    const spark_comm_status st = harness_open(rank, options, &rank->comm);
    *more = shortage->end();
    if (st == SPARK_COMM_OK) {
        /* An allocation that may fail without harm has failed, or none has. */
        if (!*more || shortage->status == SPARK_COMM_SYSTEM) *more = false;
        return true;
    }
    spark_comm_last_error(NULL, &error);
    if (!CHECK_STATUS(rank, shortage->status, st) ||
        !CHECK_TRUE(rank, rank->comm == NULL, "*comm is not NULL"))
        return false;
    CHECK_TRUE(rank, error.message[0] != '\0', "no message");
    if (shortage->word != NULL)
        CHECK_TRUE(rank, strstr(error.message, shortage->word) != NULL, "\"%s\"", error.message);
    for (int i = 0; i < 200 && harness_count_threads() != threads; i++)
        harness_sleep_ms(5);
    CHECK_INT(rank, descriptors, harness_count_descriptors());
    CHECK_INT(rank, threads, harness_count_threads());
    *more = true;
    return open_at_last(rank, options);
}

static void every_point(struct harness_rank *rank, const struct shortage *shortage, int victim) {
    spark_comm_options options;
    harness_options(rank, &options);
    options.rendezvous_timeout_ms = 4000 * harness_slowness();
    int n = 0;
    for (bool more = true; more && n < MAX_POINTS; n++) {
        harness_step(rank, "point %d of rank %d", n, victim);
        const bool good = rank->rank == victim ? fail_and_open(rank, &options, shortage, n, &more)
                                               : open_at_last(rank, &options);
        if (!good && rank->rank == victim) atomic_store(harness_word(rank, VICTIM_FAILED), 1);
        if (!good) return;
        /* Everybody learns whether there is more, over the communicator that has come about. */
        uint8_t go_on = more, all[HARNESS_MAX_RANKS];
        if (!CHECK_OK(rank, spark_comm_exchange_host(rank->comm, &go_on, all, 1))) return;
        more = all[victim];
        spark_comm_close(rank->comm);
        rank->comm = NULL;
        if (harness_failed(rank)) return;
    }
    CHECK_TRUE(rank, n > 1 && n < MAX_POINTS, "there were %d points", n);
}

static const struct shortage memory = {SPARK_COMM_NO_MEMORY, NULL, begin_memory, end_memory};
static const struct shortage descriptors = {SPARK_COMM_SYSTEM, "64", begin_descriptors,
                                            end_descriptors};

static void memory_head(struct harness_rank *rank) {
    every_point(rank, &memory, 0);
}
static void memory_worker(struct harness_rank *rank) {
    every_point(rank, &memory, rank->size - 1);
}
static void descriptors_head(struct harness_rank *rank) {
    every_point(rank, &descriptors, 0);
}
static void descriptors_worker(struct harness_rank *rank) {
    every_point(rank, &descriptors, rank->size - 1);
}

/* Far too few descriptors for the world: told at once, with the limit and the need. */
static void limit_of_24(struct harness_rank *rank) {
    const struct rlimit limit = {24, 24};
    spark_comm_options options;
    spark_comm_error error = {.struct_size = sizeof error};
    bool need_is_named = false;
    harness_options(rank, &options);
    options.world_size = 64;
    options.rendezvous_timeout_ms = 3000;
    setrlimit(RLIMIT_NOFILE, &limit);
    const int64_t start = harness_now_ms();
    const spark_comm_status st = harness_open(rank, &options, &rank->comm);
    const int64_t took = harness_now_ms() - start;
    if (!CHECK_STATUS(rank, SPARK_COMM_SYSTEM, st)) return;
    CHECK_TRUE(rank, took < 1000 * harness_slowness(), "it took %lld ms", (long long)took);
    CHECK_MESSAGE(rank, SPARK_COMM_SYSTEM, "24");
    spark_comm_last_error(NULL, &error);
    for (const char *at = error.message; *at != '\0'; at++) {
        char *end;
        const long number = strtol(at, &end, 10);
        if (end == at) continue;
        need_is_named |= number >= 64 && number < 1000;
        at = end - 1;
    }
    CHECK_TRUE(rank, need_is_named, "the need is not named: \"%s\"", error.message);
}

#define ITSELF .opens_itself = true, .limit_s = 110

static const struct contract_test tests[] = {
    {"memory_head", {.run = memory_head, ITSELF}, CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME},
    {"memory_worker",
     {.run = memory_worker, ITSELF},
     CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME | CONTRACT_PAIR},
    {"memory_last_of_three",
     {.run = memory_worker, ITSELF},
     CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME | CONTRACT_TRIO},
    {"descriptors_head",
     {.run = descriptors_head, ITSELF},
     CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME | CONTRACT_PAIR},
    {"descriptors_worker",
     {.run = descriptors_worker, ITSELF},
     CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME | CONTRACT_PAIR},
    {"limit_of_24",
     {.run = limit_of_24, ITSELF},
     CONTRACT_ONLY_PROCESSES | CONTRACT_ALONE | CONTRACT_BY_NAME | CONTRACT_NO_SINGLE},
};

CONTRACT_MAIN("open_exhausted", tests)
