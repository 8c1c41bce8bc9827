/* Opening, closing, aborting: in every order, again and again, several at once, from the
 * environment. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contract.h"
#include "ops.h"

/* ---- What an open communicator says of itself ---- */

static void getters(struct harness_rank *rank) {
    spark_comm_info_report info = {.struct_size = sizeof info};
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", SPARK_COMM_VERSION_MAJOR,
             SPARK_COMM_VERSION_MINOR, SPARK_COMM_VERSION_PATCH);
    CHECK_INT(rank, rank->rank, spark_comm_rank(rank->comm));
    CHECK_INT(rank, rank->size, spark_comm_world_size(rank->comm));
    CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "a fresh communicator is not healthy");
    CHECK_TRUE(rank, strcmp(version, spark_comm_version()) == 0, "version %s",
               spark_comm_version());
    CHECK_OK(rank, spark_comm_info(rank->comm, &info));
    CHECK_TRUE(rank, strcmp(info.backend, rank->world->backend->name) == 0, "backend %s",
               info.backend);
    CHECK_INT(rank,
              rank->world->backend->on_device ? SPARK_COMM_MEMORY_DEVICE : SPARK_COMM_MEMORY_HOST,
              info.memory);
}

/* Every descriptor that the library opens is close-on-exec. */
static void descriptors(struct harness_rank *rank) {
    bool before[256] = {false};
    spark_comm_options options;
    for (int fd = 0; fd < 256; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    harness_options(rank, &options);
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    for (int fd = 0; fd < 256; fd++) {
        const int flags = fcntl(fd, F_GETFD);
        if (flags >= 0 && !before[fd])
            CHECK_TRUE(rank, flags & FD_CLOEXEC, "descriptor %d is not close-on-exec", fd);
    }
}

/* The same port again and again, with the ranks in another order each time. */
static void open_again(struct harness_rank *rank) {
    spark_comm_options options;
    const int rounds = harness_rounds(rank, 15);
    harness_options(rank, &options);
    for (int i = 0; i < rounds && !harness_failed(rank); i++) {
        struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                                .dtype = SPARK_COMM_BF16,
                                .redop = SPARK_COMM_SUM,
                                .count = 50};
        harness_step(rank, "round %d", i);
        if ((i + rank->rank) % 3 == 0) harness_sleep_ms(10);
        if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
        ops_run(rank, &call);
        if ((i + rank->rank) % 4 == 0) harness_sleep_ms(10);
        spark_comm_close(rank->comm);
        rank->comm = NULL;
    }
    spark_comm_close(NULL);
}

/* Two communicators at once, each on its own port, used in turns. */
static void two_at_once(struct harness_rank *rank) {
    spark_comm_options options;
    struct harness_rank second = *rank;
    harness_options(rank, &options);
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    options.master_port = rank->spare_port;
    if (!CHECK_OK(rank, harness_open(rank, &options, &second.comm))) return;
    rank->dtype = second.dtype = SPARK_COMM_BF16;
    for (int i = 0; i < 30; i++) {
        struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                                .dtype = SPARK_COMM_F32,
                                .redop = SPARK_COMM_SUM,
                                .count = 700};
        if (!ops_run(rank, &call) || !ops_run(&second, &call)) break;
    }
    spark_comm_close(second.comm);
    struct ops_call last = {.kind = SPARK_COMM_OP_BARRIER};
    ops_run(rank, &last); /* the first one does not notice */
    guard_arena_close(&second.send);
    guard_arena_close(&second.recv);
    free(second.inputs);
}

/* Strings of the options may go as soon as open has returned. */
static void strings_are_copied(struct harness_rank *rank) {
    spark_comm_options options;
    char backend[32], address[32], token[32];
    harness_options(rank, &options);
    snprintf(backend, sizeof backend, "%s", options.backend);
    snprintf(address, sizeof address, "%s", options.master_addr);
    snprintf(token, sizeof token, "a secret of the job");
    options.backend = backend;
    options.master_addr = address;
    options.job_token = token;
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    memset(backend, 'x', sizeof backend - 1);
    memset(address, 'x', sizeof address - 1);
    memset(token, 'x', sizeof token - 1);
    memset(&options, 0xee, sizeof options);
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = 50};
    ops_run(rank, &call);
}

/* "auto", and no wish at all: `single` for one rank; for several `shm`, or `nccl` on devices. */
static void automatic(struct harness_rank *rank) {
    const char *several = rank->world->backend->on_device ? "nccl" : "shm";
    const char *want = rank->size == 1 ? "single" : several;
    spark_comm_options options;
    for (int i = 0; i < 2; i++) {
        spark_comm_info_report info = {.struct_size = sizeof info};
        harness_options(rank, &options);
        options.backend = i == 0 ? NULL : "auto";
        if (!CHECK_OK(rank, spark_comm_open(&options, &rank->comm))) return;
        CHECK_OK(rank, spark_comm_info(rank->comm, &info));
        CHECK_TRUE(rank, strcmp(info.backend, want) == 0, "backend %s, not %s", info.backend, want);
        spark_comm_close(rank->comm);
        rank->comm = NULL;
    }
}

/* ---- Abort ---- */

enum { WAITERS = 0 }; /* word of the board: helpers that are about to wait */

static void wait_for_word(struct harness_rank *rank) {
    uint32_t word;
    atomic_fetch_add(harness_word(rank, WAITERS), 1);
    const spark_comm_status st = spark_comm_recv_command_u32(rank->comm, harness_address(&word), 0);
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, st);
}

/* Abort ends this rank's waits with ABORTED, and every peer hears which rank it was. */
static void abort_ends_waits(struct harness_rank *rank) {
    struct harness_thread helper;
    if (rank->rank == 1) {
        if (!harness_help(rank, &helper, wait_for_word)) return;
        harness_await(rank, WAITERS, 1, 20000);
        harness_sleep_ms(100);
        const int64_t start = harness_now_ms();
        CHECK_OK(rank, spark_comm_abort(rank->comm));
        CHECK_OK(rank, spark_comm_abort(rank->comm));
        harness_join(&helper);
        CHECK_TRUE(rank, harness_now_ms() - start < 1000 * harness_slowness(), "abort took %lld ms",
                   (long long)(harness_now_ms() - start));
    } else {
        /* A call that runs ends, and so does every later one. */
        const int64_t start = harness_now_ms();
        CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_barrier(rank->comm));
        CHECK_TRUE(rank, harness_now_ms() - start < 3000 * harness_slowness(),
                   "the barrier ended only after %lld ms", (long long)(harness_now_ms() - start));
        CHECK_MESSAGE(rank, SPARK_COMM_ABORTED, "rank 1", "abort");
    }
    uint32_t word = 0;
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "healthy after abort");
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_barrier(rank->comm));
    CHECK_STATUS(rank, SPARK_COMM_ABORTED,
                 spark_comm_broadcast(rank->comm, harness_address(&word), 4, 0));
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_exchange_host(rank->comm, &word, &word, 0));
    harness_meet(rank);
}

/* Poisoned, some calls still work. */
static void after_poison(struct harness_rank *rank) {
    spark_comm_health_report health = {.struct_size = sizeof health};
    spark_comm_info_report info = {.struct_size = sizeof info};
    spark_comm *comm = rank->comm;
    uint64_t ptr = 0;
    uint32_t word = 0;
    const bool symmetric = rank->world->backend->has_symmetric;
    if (symmetric && !CHECK_OK(rank, spark_comm_symmetric_alloc(comm, 8192, &ptr))) return;
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank,
             spark_comm_send_to(comm, harness_address(&word), 4, (rank->rank + 1) % rank->size, 0));
    if (rank->size > 1) harness_meet(rank);
    CHECK_OK(rank, spark_comm_abort(comm));
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_group_end(comm));
    CHECK_STATUS(rank, SPARK_COMM_WRONG_STATE, spark_comm_group_end(comm)); /* it was closed */
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_group_start(comm));
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_all_reduce(comm, 0, 0));
    if (symmetric) CHECK_OK(rank, spark_comm_symmetric_free(comm, ptr));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, 0));
    CHECK_OK(rank, spark_comm_info(comm, &info));
    CHECK_OK(rank, spark_comm_health(comm, &health));
    CHECK_INT(rank, SPARK_COMM_STATE_POISONED, health.state);
    CHECK_INT(rank, rank->rank, spark_comm_rank(comm));
    if (rank->size > 1) harness_meet(rank);
}

/* A new epoch, asked for while all is well or after a fault; numbers start anew in it. */
static void reconnect(struct harness_rank *rank) {
    spark_comm_health_report health = {.struct_size = sizeof health};
    for (int poisoned = 0; poisoned < 2; poisoned++) {
        if (poisoned) CHECK_OK(rank, spark_comm_abort(rank->comm));
        if (!CHECK_OK(rank, spark_comm_attempt_reconnect(rank->comm))) return;
        CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "not healthy");
        CHECK_OK(rank, spark_comm_barrier(rank->comm));
        CHECK_OK(rank, spark_comm_health(rank->comm, &health));
        CHECK_INT(rank, SPARK_COMM_STATE_HEALTHY, health.state);
        CHECK_INT(rank, 2 + poisoned, health.epoch);
        CHECK_INT(rank, 1, health.lanes[SPARK_COMM_LANE_DATA].completed);
        CHECK_INT(rank, 0, health.lost_count);
        if (rank->size > 1) harness_meet(rank);
    }
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 10};
    ops_run(rank, &call);
}

/* ---- Close ---- */

/* Calls that run in other threads end with ABORTED before close returns. */
static void close_ends_calls(struct harness_rank *rank) {
    struct harness_thread helper;
    if (rank->rank != 0 && harness_help(rank, &helper, wait_for_word)) {
        harness_await(rank, WAITERS, (uint64_t)rank->size - 1, 20000);
        harness_sleep_ms(100);
        spark_comm_close(rank->comm);
        rank->comm = NULL;
        harness_join(&helper);
    }
    harness_meet(rank);
}

/* What a rank has finished is not lost by its closing at once: late receivers still get it, of
 * every size. */
static void goodbye(struct harness_rank *rank) {
    static const size_t sizes[] = {4, 4096, 5000, 200000};
    unsigned char *memory = malloc(200000), *want = malloc(200000);
    if (!CHECK_TRUE(rank, memory != NULL && want != NULL, "no memory")) goto out;
    for (unsigned i = 0; i < 4; i++) {
        harness_step(rank, "broadcast of %zu", sizes[i]);
        reference_fill_bytes(i, want, sizes[i]);
        if (rank->rank == 0)
            memcpy(memory, want, sizes[i]);
        else if (i == 0 || i == 3)
            harness_sleep_ms(60); /* the root may be gone by now */
        if (!CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(memory), sizes[i], 0)))
            goto out;
        CHECK_TRUE(rank, memcmp(memory, want, sizes[i]) == 0, "broadcast of %zu differs", sizes[i]);
    }
    const uint32_t words[2] = {8, 9};
    uint32_t got[2] = {0};
    size_t count;
    if (rank->rank == 0) {
        CHECK_OK(rank, spark_comm_send_command(rank->comm, words, 2));
    } else {
        harness_sleep_ms(100);
        if (CHECK_OK(rank, spark_comm_recv_command(rank->comm, got, 2, &count)))
            CHECK_INT(rank, 9, got[1]);
    }
out:
    free(memory);
    free(want);
}

/* Only an operation that still needs a closed rank fails, and names it. */
static void closed_rank_is_named(struct harness_rank *rank) {
    if (rank->rank == 1) {
        CHECK_OK(rank, spark_comm_barrier(rank->comm));
        spark_comm_close(rank->comm);
        rank->comm = NULL;
        return;
    }
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    harness_sleep_ms(200);
    const int64_t start = harness_now_ms();
    CHECK_STATUS(rank, SPARK_COMM_PEER_LOST, spark_comm_barrier(rank->comm));
    CHECK_TRUE(rank, harness_now_ms() - start < 3000 * harness_slowness(), "it took %lld ms",
               (long long)(harness_now_ms() - start));
    CHECK_MESSAGE(rank, SPARK_COMM_PEER_LOST, "rank 1", "closed");
}

/* A head that closes ends the idle receives of its workers. */
static void closed_head(struct harness_rank *rank) {
    uint32_t word = 0;
    if (rank->rank == 0) return;
    const spark_comm_status st = spark_comm_recv_command_u32(rank->comm, harness_address(&word), 0);
    if (CHECK_STATUS(rank, SPARK_COMM_PEER_LOST, st))
        CHECK_MESSAGE(rank, SPARK_COMM_PEER_LOST, "rank 0", "closed");
}

static const struct contract_test tests[] = {
    {"getters", {.run = getters}, 0},
    {"descriptors", {.run = descriptors, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
    {"open_again", {.run = open_again, .opens_itself = true}, 0},
    {"two_at_once", {.run = two_at_once, .opens_itself = true}, 0},
    {"strings_are_copied", {.run = strings_are_copied, .opens_itself = true}, 0},
    {"automatic", {.run = automatic, .opens_itself = true}, CONTRACT_BY_NAME | CONTRACT_NO_SINGLE},
    {"abort_ends_waits", {.run = abort_ends_waits}, CONTRACT_SEVERAL},
    {"after_poison", {.run = after_poison}, 0},
    {"reconnect", {.run = reconnect}, 0},
    {"close_ends_calls", {.run = close_ends_calls}, CONTRACT_SEVERAL},
    {"goodbye", {.run = goodbye}, 0},
    {"closed_rank_is_named", {.run = closed_rank_is_named}, CONTRACT_SEVERAL},
    {"closed_head", {.run = closed_head}, CONTRACT_SEVERAL},
};

CONTRACT_MAIN("life", tests)
