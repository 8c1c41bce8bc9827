/* Bad input: the status of its class, the argument's name and value in last_error, and nothing
 * changed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"
#include "ops.h"

#define INVALID SPARK_COMM_INVALID_ARGUMENT

/* After a refusal on every rank the world is as it was: a sum still works. */
static void still_works(struct harness_rank *rank) {
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 33};
    ops_run(rank, &call);
}

/* Roots and peers out of range. */
static void ranks(struct harness_rank *rank) {
    static const int wrong[] = {-1, -2147483647 - 1, 2147483647};
    uint32_t word = 0;
    char size[16];
    const uint64_t ptr = harness_address(&word);
    spark_comm *comm = rank->comm;
    snprintf(size, sizeof size, "%d", rank->size);
    CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, ptr, 4, rank->size), "broadcast",
                  "root", size);
    CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, ptr, 100000, rank->size), "broadcast",
                  "root", size);
    CHECK_REFUSED(rank, INVALID, spark_comm_send_to(comm, ptr, 4, rank->size, 0), "send_to",
                  "dest_rank", size);
    CHECK_REFUSED(rank, INVALID, spark_comm_recv_from(comm, ptr, 4, rank->size, 0), "recv_from",
                  "src_rank", size);
    CHECK_REFUSED(rank, INVALID, spark_comm_recv_command_u32(comm, ptr, rank->size),
                  "recv_command_u32", "root", size);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char value[16];
        snprintf(value, sizeof value, "%d", wrong[i]);
        CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, ptr, 4, wrong[i]), "root", value);
        CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, 0, 0, wrong[i]), "root", value);
        CHECK_REFUSED(rank, INVALID, spark_comm_send_to(comm, ptr, 4, wrong[i], 0), "dest_rank",
                      value);
        CHECK_REFUSED(rank, INVALID, spark_comm_recv_from(comm, ptr, 4, wrong[i], 0), "src_rank",
                      value);
        CHECK_REFUSED(rank, INVALID, spark_comm_recv_command_u32(comm, ptr, wrong[i]), "root",
                      value);
    }
    still_works(rank);
}

/* Reductions take whole elements. */
static void whole_elements(struct harness_rank *rank) {
    uint64_t memory[16] = {0};
    const uint64_t ptr = harness_address(memory);
    spark_comm *comm = rank->comm;
    CHECK_REFUSED(rank, INVALID, spark_comm_all_reduce(comm, ptr, 7), "all_reduce", "bytes", "7",
                  "bf16");
    CHECK_REFUSED(rank, INVALID, spark_comm_all_reduce(comm, ptr, 1), "bytes", "1");
    CHECK_REFUSED(rank, INVALID, spark_comm_all_reduce_async(comm, ptr, 3, 0), "bytes", "3");
    CHECK_REFUSED(rank, INVALID, spark_comm_reduce_scatter(comm, ptr, ptr, 5), "reduce_scatter",
                  "bytes", "5");
    for (int d = 0; d < REFERENCE_DTYPES; d++) {
        const size_t size = reference_size(reference_dtypes[d]);
        spark_comm_op op = {.struct_size = sizeof op,
                            .kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = reference_dtypes[d],
                            .send = ptr,
                            .recv = ptr,
                            .bytes = size * 3 + 1};
        if (size > 1)
            CHECK_REFUSED(rank, INVALID, spark_comm_submit(comm, &op), "bytes",
                          reference_dtype_name(op.dtype));
        op.kind = SPARK_COMM_OP_REDUCE_SCATTER;
        op.bytes = size * 3 - 1;
        if (size > 1)
            CHECK_REFUSED(rank, INVALID, spark_comm_submit(comm, &op), "bytes",
                          reference_dtype_name(op.dtype));
    }
    still_works(rank);
}

/* The sentence of the last failure begins with these words. */
static void check_begins(struct harness_rank *rank, const char *words) {
    spark_comm_error error = {.struct_size = sizeof error};
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_TRUE(rank, strncmp(error.message, words, strlen(words)) == 0, "'%s' begins with: %s",
               words, error.message);
}

/* A null pointer with bytes, on every backend, also the one that touches no memory. */
static void null_pointers(struct harness_rank *rank) {
    uint64_t word = 0;
    const uint64_t ptr = harness_address(&word);
    spark_comm *comm = rank->comm;
    const int other = (rank->rank + 1) % rank->size;
    CHECK_REFUSED(rank, INVALID, spark_comm_all_reduce(comm, 0, 8), "all_reduce", "ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_all_reduce_async(comm, 0, 8, 0), "ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_all_gather(comm, 0, ptr, 8), "all_gather", "send_ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_all_gather(comm, ptr, 0, 8), "recv_ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_reduce_scatter(comm, 0, ptr, 8), "reduce_scatter",
                  "send_ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_reduce_scatter(comm, ptr, 0, 8), "recv_ptr");
    /* By the names of the function's arguments, also where both are null. */
    CHECK_REFUSED(rank, INVALID, spark_comm_all_gather(comm, 0, 0, 8), "send_ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_reduce_scatter(comm, 0, 0, 8), "send_ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, 0, 8, 0), "broadcast", "ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_broadcast(comm, 0, 8000, 0), "broadcast", "ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_send_to(comm, 0, 8, other, 0), "send_to", "ptr");
    CHECK_REFUSED(rank, INVALID, spark_comm_recv_from(comm, 0, 8, other, 0), "recv_from", "ptr");
    if (rank->rank != 0)
        CHECK_REFUSED(rank, INVALID, spark_comm_recv_command_u32(comm, 0, 0), "ptr");
    still_works(rank);
}

/* Sizes whose total cannot be: a multiplication that wraps must not make a small buffer of a huge
 * one. */
static void huge_sizes(struct harness_rank *rank) {
    uint64_t word = 0;
    const uint64_t ptr = harness_address(&word);
    if (rank->size < 2) return;
    const size_t wraps = SIZE_MAX / (unsigned)rank->size + 2;
    CHECK_REFUSED(rank, INVALID, spark_comm_all_gather(rank->comm, ptr, ptr, wraps), "all_gather",
                  "bytes");
    CHECK_REFUSED(rank, INVALID,
                  spark_comm_reduce_scatter(rank->comm, ptr, ptr, wraps & ~(size_t)1),
                  "reduce_scatter", "bytes");
    still_works(rank);
}

static void group_state(struct harness_rank *rank) {
    uint32_t word = 0;
    const uint64_t ptr = harness_address(&word);
    spark_comm *comm = rank->comm;
    spark_comm_op op = {.struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER};
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_group_end(comm), "group_end", "group");
    check_begins(rank, "group_end: ");
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_group_start(comm), "group_start");
    check_begins(rank, "group_start: ");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_all_reduce(comm, ptr, 4), "all_reduce",
                  "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_all_gather(comm, ptr, ptr, 4),
                  "all_gather", "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_reduce_scatter(comm, ptr, ptr, 4),
                  "reduce_scatter", "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_broadcast(comm, ptr, 4, 0), "broadcast",
                  "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_barrier(comm), "barrier", "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_submit(comm, &op), "barrier", "group");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_exchange_host(comm, &word, &word, 0),
                  "exchange_host", "group");
    CHECK_OK(rank, spark_comm_group_end(comm)); /* a refused collective is no post */
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_group_end(comm), "group_end");
    still_works(rank);
}

/* After a refused post the group launches nothing and its end returns that refusal; the next group
 * is a fresh one. */
static void refused_post(struct harness_rank *rank) {
    const int next = (rank->rank + 1) % rank->size;
    const int previous = (rank->rank + rank->size - 1) % rank->size;
    uint32_t sent = 5u + (unsigned)rank->rank, got = 77;
    spark_comm *comm = rank->comm;
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank, spark_comm_send_to(comm, harness_address(&sent), 4, next, 0));
    CHECK_REFUSED(rank, INVALID,
                  spark_comm_recv_from(comm, harness_address(&got), 4, rank->size + 9, 0),
                  "src_rank");
    CHECK_OK(rank, spark_comm_recv_from(comm, harness_address(&got), 4, previous, 0));
    CHECK_REFUSED(rank, INVALID, spark_comm_group_end(comm), "src_rank");
    CHECK_INT(rank, 77, got);
    CHECK_TRUE(rank, spark_comm_is_healthy(comm), "not healthy any more");
    CHECK_OK(rank, spark_comm_group_start(comm));
    sent += 100;
    CHECK_OK(rank, spark_comm_send_to(comm, harness_address(&sent), 4, next, 0));
    CHECK_OK(rank, spark_comm_recv_from(comm, harness_address(&got), 4, previous, 0));
    CHECK_OK(rank, spark_comm_group_end(comm));
    CHECK_INT(rank, rank->world->backend->moves_data ? 105u + (unsigned)previous : 77u, got);
}

/* A message to oneself without its other half in the group, or of another size. */
static void odd_self_posts(struct harness_rank *rank) {
    uint32_t words[2] = {1, 2}, got[2] = {77, 77};
    spark_comm *comm = rank->comm;
    const int self = rank->rank;
    if (rank->size < 2) return; /* alone every message is to oneself */
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank, spark_comm_send_to(comm, harness_address(words), 4, self, 0));
    CHECK_REFUSED(rank, INVALID, spark_comm_group_end(comm), "itself", "no recv_from");
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank, spark_comm_recv_from(comm, harness_address(got), 4, self, 0));
    CHECK_REFUSED(rank, INVALID, spark_comm_group_end(comm), "itself", "no send_to");
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank, spark_comm_send_to(comm, harness_address(words), 8, self, 0));
    CHECK_OK(rank, spark_comm_recv_from(comm, harness_address(got), 4, self, 0));
    CHECK_REFUSED(rank, INVALID, spark_comm_group_end(comm), "sent with 8 bytes", "with 4");
    CHECK_INT(rank, 77, got[0]);
    still_works(rank);
}

/* Every function on a handle that is no communicator: NULL, and one that was closed. */
static void no_communicator(struct harness_rank *rank, spark_comm *comm) {
    uint64_t memory = 0, handle = 0;
    uint32_t word = 0;
    size_t count = 0;
    spark_comm_op op = {.struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER};
    spark_comm_health_report health = {.struct_size = sizeof health};
    spark_comm_info_report info = {.struct_size = sizeof info};
    const uint64_t ptr = harness_address(&memory);
    const spark_comm_status wrong = SPARK_COMM_WRONG_STATE;
    CHECK_STATUS(rank, wrong, spark_comm_all_reduce(comm, ptr, 8));
    CHECK_STATUS(rank, wrong, spark_comm_all_reduce_async(comm, ptr, 8, 0));
    CHECK_STATUS(rank, wrong, spark_comm_all_gather(comm, ptr, ptr, 8));
    CHECK_STATUS(rank, wrong, spark_comm_reduce_scatter(comm, ptr, ptr, 8));
    CHECK_STATUS(rank, wrong, spark_comm_broadcast(comm, ptr, 8, 0));
    CHECK_STATUS(rank, wrong, spark_comm_recv_command_u32(comm, ptr, 1));
    CHECK_STATUS(rank, wrong, spark_comm_barrier(comm));
    CHECK_STATUS(rank, wrong, spark_comm_register_buffer(comm, ptr, 8, &handle));
    CHECK_STATUS(rank, wrong, spark_comm_deregister_buffer(comm, 0));
    CHECK_STATUS(rank, wrong, spark_comm_symmetric_alloc(comm, 4096, &handle));
    CHECK_STATUS(rank, wrong, spark_comm_symmetric_free(comm, 0));
    CHECK_STATUS(rank, wrong, spark_comm_set_add_kernel(comm, 0));
    CHECK_STATUS(rank, wrong, spark_comm_send_to(comm, ptr, 8, 0, 0));
    CHECK_STATUS(rank, wrong, spark_comm_recv_from(comm, ptr, 8, 0, 0));
    CHECK_STATUS(rank, wrong, spark_comm_group_start(comm));
    CHECK_STATUS(rank, wrong, spark_comm_group_end(comm));
    CHECK_STATUS(rank, wrong, spark_comm_attempt_reconnect(comm));
    CHECK_STATUS(rank, wrong, spark_comm_submit(comm, &op));
    CHECK_STATUS(rank, wrong, spark_comm_send_command(comm, &word, 1));
    CHECK_STATUS(rank, wrong, spark_comm_recv_command(comm, &word, 1, &count));
    CHECK_STATUS(rank, wrong, spark_comm_exchange_host(comm, &word, &word, 0));
    CHECK_STATUS(rank, wrong, spark_comm_health(comm, &health));
    CHECK_STATUS(rank, wrong, spark_comm_info(comm, &info));
    CHECK_STATUS(rank, wrong, spark_comm_trace_write(comm, "/nonexistent/file"));
    CHECK_STATUS(rank, wrong, spark_comm_abort(comm));
    CHECK_TRUE(rank, !spark_comm_is_healthy(comm), "healthy");
    CHECK_INT(rank, -1, spark_comm_rank(comm));
    CHECK_INT(rank, -1, spark_comm_world_size(comm));
}

static void null_and_closed(struct harness_rank *rank) {
    spark_comm_options options;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm *comm = NULL;
    no_communicator(rank, NULL);
    harness_options(rank, &options);
    if (!CHECK_OK(rank, harness_open(rank, &options, &comm))) return;
    spark_comm_close(comm);
    if (rank->world->way == HARNESS_THREADS)
        return; /* another rank's open may have been given the same handle */
    no_communicator(rank, comm);
    CHECK_STATUS(rank, SPARK_COMM_WRONG_STATE, spark_comm_last_error(comm, &error));
    spark_comm_close(comm);
}

/* In a child after fork every call is WRONG_STATE, and nothing that the child does reaches the
 * parent's communicator. */
static void after_fork(struct harness_rank *rank) {
    still_works(rank);
    fflush(NULL);
    const pid_t child = fork();
    if (!CHECK_TRUE(rank, child >= 0, "no fork")) return;
    if (child == 0) {
        no_communicator(rank, rank->comm);
        spark_comm_close(rank->comm);
        _exit(harness_failed(rank));
    }
    int how = 0;
    CHECK_TRUE(rank, waitpid(child, &how, 0) == child && WIFEXITED(how),
               "the child ended in another way: %d", how);
    still_works(rank);
    still_works(rank);
}

/* ---- Options ---- */

struct wrong_option {
    const char *name;
    size_t offset;
    int32_t value;
    const char *range; /* words of the range that the message must have */
};
#define OPTION(field, value, range) \
    { #field, offsetof(spark_comm_options, field), value, range }
static const struct wrong_option wrong_options[] = {
    OPTION(rank, -2, "0"),
    OPTION(rank, 1000, "world_size"),
    OPTION(world_size, 0, "1"),
    OPTION(world_size, -2, "1"),
    OPTION(world_size, 100000, "4096"),
    OPTION(master_port, -1, "65535"),
    OPTION(master_port, 65536, "65535"),
    OPTION(device, -2, "0"),
    OPTION(dtype, 9, "1 to 8 (bf16"),
    OPTION(dtype, -1, "bf16"),
    OPTION(memory, 3, "host"),
    OPTION(memory, -1, "device"),
    OPTION(rendezvous_timeout_ms, -2, "-1"),
    OPTION(op_timeout_ms, -2, "-1"),
    OPTION(liveness_timeout_ms, -100, "-1"),
    OPTION(close_timeout_ms, -2147483647 - 1, "-1"),
};

static void check_open_refused(struct harness_rank *rank, const spark_comm_options *options,
                               spark_comm_status want, const char *word, const char *value,
                               const char *range) {
    spark_comm *comm = (spark_comm *)(uintptr_t)1;
    spark_comm_error error = {.struct_size = sizeof error};
    const int64_t start = harness_now_ms();
    if (!CHECK_STATUS(rank, want, harness_open(rank, options, &comm))) {
        if (comm != NULL && comm != (spark_comm *)(uintptr_t)1) spark_comm_close(comm);
        return;
    }
    CHECK_TRUE(rank, comm == NULL, "*comm is not NULL after a failed open");
    CHECK_TRUE(rank, harness_now_ms() - start < 2000 * harness_slowness(),
               "%s was refused only after %lld ms", word, (long long)(harness_now_ms() - start));
    rank->comm = NULL;
    CHECK_MESSAGE(rank, want, word, value, range);
    CHECK_OK(rank, spark_comm_last_error(NULL, &error));
    CHECK_INT(rank, SPARK_COMM_OP_OPEN, error.operation);
}

/* A value out of range is refused with its name, the value and the range; nothing is clamped, no
 * peer is waited for. */
static void options_out_of_range(struct harness_rank *rank) {
    spark_comm_options options;
    for (size_t i = 0; i < sizeof wrong_options / sizeof wrong_options[0]; i++) {
        const struct wrong_option *wrong = &wrong_options[i];
        char value[16];
        harness_options(rank, &options);
        harness_step(rank, "%s %d", wrong->name, wrong->value);
        memcpy((unsigned char *)&options + wrong->offset, &wrong->value, sizeof wrong->value);
        snprintf(value, sizeof value, "%d", wrong->value);
        check_open_refused(rank, &options, INVALID, wrong->name, value, wrong->range);
    }
    char name[600];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    harness_options(rank, &options);
    options.master_addr = name;
    check_open_refused(rank, &options, INVALID, "master_addr", "nnnn", "255");
    harness_options(rank, &options);
    options.job_token = name;
    check_open_refused(rank, &options, INVALID, "job_token", "255", "");
    options.job_token = ""; /* a secret that was not found must not open without one */
    check_open_refused(rank, &options, INVALID, "job_token", "option", "1 to 255 bytes");
    harness_options(rank, &options);
    options.struct_size = 3;
    check_open_refused(rank, &options, INVALID, "options.struct_size is 3", "", "");
    check_begins(rank, "options.struct_size");
    harness_options(rank, &options);
    options.job_token = name;
    check_open_refused(rank, &options, INVALID, "job_token", "255", "");
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(NULL, &error);
    CHECK_TRUE(rank, strstr(error.message, "nnnn") == NULL, "the token is in the message: %s",
               error.message);
}

/* One attempt of all ranks: they must not meet each other's earlier or later ones. */
static void check_unavailable(struct harness_rank *rank, const spark_comm_options *options,
                              const char *word, const char *other) {
    if (harness_meet(rank))
        check_open_refused(rank, options, SPARK_COMM_UNAVAILABLE, word, other, "");
}

/* What cannot be served is UNAVAILABLE with every reason. */
static void unavailable(struct harness_rank *rank) {
    spark_comm_options options;
    harness_options(rank, &options);
    options.backend = "no_such_thing";
    check_unavailable(rank, &options, "no_such_thing", "libspark_comm_no_such_thing.so");
    options.backend = "shm";
    options.memory = SPARK_COMM_MEMORY_DEVICE;
    check_unavailable(rank, &options, "shm", "device");
    options.memory = 0;
    options.backend = "single";
    if (rank->size > 1) check_unavailable(rank, &options, "single", "one rank");
    harness_options(rank, &options);
    options.master_addr = "no-such-host.invalid";
    if (rank->size > 1) check_unavailable(rank, &options, "no-such-host.invalid", "");
    options.backend = "../shm";
    check_open_refused(rank, &options, INVALID, "backend", "../shm", "name");
}

static void *other_thread(void *argument) {
    spark_comm_error *error = argument;
    spark_comm_last_error(NULL, error);
    return NULL;
}

/* last_error(NULL) is this thread's alone. */
static void failure_of_this_thread(struct harness_rank *rank) {
    spark_comm_options options;
    spark_comm_error error = {.struct_size = sizeof error};
    pthread_t thread;
    harness_options(rank, &options);
    options.dtype = 55;
    check_open_refused(rank, &options, INVALID, "dtype", "55", "");
    CHECK_STATUS(rank, INVALID, spark_comm_open(&options, NULL));
    if (pthread_create(&thread, NULL, other_thread, &error) != 0) return;
    pthread_join(thread, NULL);
    CHECK_INT(rank, SPARK_COMM_OK, error.status);
    CHECK_INT(rank, 0, error.message[0]);
}

static const struct contract_test tests[] = {
    {"ranks", {.run = ranks}, 0},
    {"whole_elements", {.run = whole_elements}, 0},
    {"null_pointers", {.run = null_pointers}, 0},
    {"huge_sizes", {.run = huge_sizes}, 0},
    {"group_state", {.run = group_state}, 0},
    {"refused_post", {.run = refused_post}, 0},
    {"odd_self_posts", {.run = odd_self_posts}, 0},
    {"null_and_closed", {.run = null_and_closed, .opens_itself = true}, 0},
    {"after_fork", {.run = after_fork}, CONTRACT_ONLY_PROCESSES},
    {"options_out_of_range",
     {.run = options_out_of_range, .opens_itself = true},
     CONTRACT_ONLY_PROCESSES},
    {"unavailable",
     {.run = unavailable, .opens_itself = true},
     CONTRACT_BY_NAME | CONTRACT_ONLY_PROCESSES},
    {"failure_of_this_thread", {.run = failure_of_this_thread, .opens_itself = true}, 0},
};

CONTRACT_MAIN("errors", tests)
