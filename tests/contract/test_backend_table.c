/* The backend interface from the other side: what the library makes of a table from outside, of its
 * growth and its faults. The tables here are the mock's with one thing changed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "mock_backend.h"
#include "mock_state.h"
#include "ops.h"
#include "reference.h"

static spark_comm_status open_table(struct harness_rank *rank, const spark_comm_backend *table,
                                    void *user) {
    spark_comm_options options;
    harness_options(rank, &options);
    options.backend = NULL;
    return spark_comm_open_backend(table, user, &options, &rank->comm);
}

static void check_refused(struct harness_rank *rank, const spark_comm_backend *table,
                          spark_comm_status want, const char *word, const char *other) {
    /* Together, so that no rank meets another's earlier or later attempt. */
    if (!harness_meet(rank)) return;
    if (CHECK_STATUS(rank, want, open_table(rank, table, NULL))) {
        CHECK_TRUE(rank, rank->comm == NULL, "*comm is not NULL after a failed open");
        CHECK_MESSAGE(rank, want, word, other);
    }
}

static spark_comm_status unwilling(void *user, const spark_comm_options *options, char *why,
                                   size_t why_size) {
    (void)user;
    snprintf(why, why_size, "no luck for rank %d today", options->rank);
    return SPARK_COMM_UNAVAILABLE;
}

/* Tables that cannot be used: UNAVAILABLE with the reason, before any peer is spoken to. */
static void refused_tables(struct harness_rank *rank) {
    spark_comm_backend table = mock_backend;
    const int64_t start = harness_now_ms();
    table.abi_version = (SPARK_COMM_BACKEND_ABI_MAJOR + 1) << 16;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "version", "2");
    table.abi_version = 0;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "version", "0");
    table = mock_backend;
    table.struct_size = offsetof(spark_comm_backend, open);
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "struct_size", "");
    table.struct_size = 0;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "struct_size", "");
    table = mock_backend;
    table.open = NULL;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "open", "");
    table = mock_backend;
    table.close = NULL;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "close", "");
    table = mock_backend;
    table.name = NULL;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "name", "");
    table.name = "a_name_of_more_than_thirty_one_characters";
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "name", "31");
    table = mock_backend;
    table.memory = 0;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "memory", "mock");
    table = mock_backend;
    table.probe = unwilling;
    check_refused(rank, &table, SPARK_COMM_UNAVAILABLE, "no luck for rank", "mock");
    check_refused(rank, NULL, SPARK_COMM_INVALID_ARGUMENT, "backend", "");
    CHECK_TRUE(rank, harness_now_ms() - start < 5000, "the refusals took %lld ms",
               (long long)(harness_now_ms() - start));
}

/* A newer minor version is served. */
static void newer_minor(struct harness_rank *rank) {
    struct {
        spark_comm_backend table;
        void *more[4];
    } longer = {.table = mock_backend};
    longer.table.abi_version += 7;
    longer.table.struct_size = sizeof longer;
    longer.more[1] = &longer;
    if (!CHECK_OK(rank, open_table(rank, &longer.table, NULL))) return;
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 100};
    ops_run(rank, &call);
}

/* An older table ends early: what it lacks is NOT_SUPPORTED, although its memory goes on with
 * rubbish. */
static void shorter_table(struct harness_rank *rank) {
    spark_comm_backend table = mock_backend;
    uint32_t word = 0;
    uint64_t handle;
    const uint64_t ptr = harness_address(&word);
    table.struct_size = offsetof(spark_comm_backend, point_to_point);
    memset((unsigned char *)&table + table.struct_size, 0x5a, sizeof table - table.struct_size);
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = 1000};
    ops_run(rank, &call);
    const int peer = (rank->rank + 1) % rank->size;
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_send_to(rank->comm, ptr, 4, peer, 0),
                  "send_to", "mock");
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED,
                  spark_comm_symmetric_alloc(rank->comm, 4096, &handle), "symmetric_alloc");
    ops_run(rank, &call);
}

/* A NULL operation is NOT_SUPPORTED; what the control plane does needs no backend. */
static void null_operations(struct harness_rank *rank) {
    spark_comm_backend table = mock_backend;
    uint32_t memory[2000] = {0};
    const uint64_t ptr = harness_address(memory);
    table.all_reduce = table.all_gather = table.reduce_scatter = table.broadcast =
        table.point_to_point = NULL;
    table.describe = NULL;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    spark_comm *comm = rank->comm;
    const int peer = (rank->rank + 1) % rank->size;
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_all_reduce(comm, ptr, 4), "all_reduce",
                  "mock");
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_all_gather(comm, ptr, ptr + 64, 4),
                  "all_gather", "mock");
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_reduce_scatter(comm, ptr, ptr + 64, 4),
                  "reduce_scatter");
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_broadcast(comm, ptr, 8000, 0),
                  "broadcast");
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_recv_from(comm, ptr, 4, peer, 0),
                  "recv_from");
    struct ops_call call = {.kind = SPARK_COMM_OP_BROADCAST, .count = 4096};
    ops_run(rank, &call);
    call = (struct ops_call){.kind = SPARK_COMM_OP_SEND_COMMAND, .count = 100};
    ops_run(rank, &call);
    call = (struct ops_call){.kind = SPARK_COMM_OP_EXCHANGE_HOST, .count = 100};
    ops_run(rank, &call);
    call = (struct ops_call){.kind = SPARK_COMM_OP_BARRIER, .named = true};
    ops_run(rank, &call);
}

/* ---- A backend whose all_reduce does as it is told ---- */

static _Thread_local struct harness_rank *current; /* operations run on the thread that calls */
static _Thread_local spark_comm_status told;
static _Thread_local spark_comm_call last_call;
static _Thread_local spark_comm_op last_op;

struct wrapped {
    void *state; /* first, so that the mock's own functions could not be given this by mistake */
    const spark_comm_host *host;
    void *user;
};

static spark_comm_status wrapped_open(void *user, const spark_comm_host *host, void **state) {
    struct wrapped *wrapped = calloc(1, sizeof *wrapped);
    if (wrapped == NULL) return SPARK_COMM_NO_MEMORY;
    wrapped->host = host;
    wrapped->user = user;
    *state = wrapped;
    return SPARK_COMM_OK;
}

static void wrapped_close(void *state) {
    free(state);
}

static spark_comm_status wrapped_all_reduce(void *state, const spark_comm_call *call) {
    struct wrapped *wrapped = state;
    last_call = *call;
    last_op = call->ops[0];
    CHECK_INT(current, 1, call->op_count);
    CHECK_TRUE(current, call->struct_size >= sizeof *call, "struct_size %zu", call->struct_size);
    if (told != SPARK_COMM_OK)
        wrapped->host->explain(wrapped->host->context, wrapped->host->members[0], 4711,
                               "told to fail");
    return told;
}

static spark_comm_backend wrapped_table(void) {
    return (spark_comm_backend){.struct_size = sizeof(spark_comm_backend),
                                .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
                                .name = "wrapped",
                                .memory = SPARK_COMM_MEMORY_HOST,
                                .open = wrapped_open,
                                .close = wrapped_close,
                                .all_reduce = wrapped_all_reduce};
}

static void check_host(struct harness_rank *rank, const spark_comm_host *host) {
    CHECK_INT(rank, rank->rank, host->rank);
    CHECK_INT(rank, rank->size, host->member_count);
    CHECK_INT(rank, 1, host->epoch);
    for (int r = 0; r < rank->size; r++)
        CHECK_INT(rank, r, host->members[r]);
    CHECK_INT(rank, SPARK_COMM_BACKEND_ABI_MAJOR, host->abi_version >> 16);
    CHECK_INT(rank, rank->rank, host->options->rank);
    CHECK_INT(rank, SPARK_COMM_BF16, host->options->dtype);
    CHECK_TRUE(rank, host->options->op_timeout_ms > 0 && host->options->close_timeout_ms > 0,
               "a limit is not set");
    CHECK_INT(rank, 0, __atomic_load_n(host->poison, __ATOMIC_ACQUIRE));
}

static struct wrapped *opened_state;

static spark_comm_status checking_open(void *user, const spark_comm_host *host, void **state) {
    const spark_comm_status st = wrapped_open(user, host, state);
    check_host(current, host);
    CHECK_INT(current, 99, *(int *)user);
    return st;
}

/* What a call looks like to a backend: numbered, every default filled in, the same digest on all
 * ranks. */
static void calls(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    int user = 99, other = 5;
    uint32_t digest = 0;
    current = rank;
    told = SPARK_COMM_OK;
    table.open = checking_open;
    table.user = &other; /* open_backend's argument replaces it */
    if (!CHECK_OK(rank, open_table(rank, &table, &user))) return;
    uint64_t word = 0, first = 0;
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(&word), i < 3 ? 4 : 8));
        if (i == 0) first = last_call.number;
        CHECK_INT(rank, first + i, last_call.number);
        CHECK_INT(rank, 1, last_call.epoch);
        CHECK_INT(rank, SPARK_COMM_BF16, last_op.dtype);
        CHECK_INT(rank, SPARK_COMM_SUM, last_op.redop);
        CHECK_INT(rank, harness_address(&word), last_op.send);
        CHECK_INT(rank, harness_address(&word), last_op.recv);
        const int64_t left = last_call.deadline_ns / 1000000 - harness_now_ms();
        CHECK_TRUE(rank, left > 0 && left <= 20001 * harness_slowness(), "%lld ms are left",
                   (long long)left);
        if (i > 0)
            CHECK_TRUE(rank, digest != last_call.digest, "another number or size, one digest");
        digest = last_call.digest;
        harness_same(rank, digest);
    }
}

/* A failure of 1 to 199 changes nothing; a fatal one poisons, and the explanation reaches
 * last_error. */
static void told_failures(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    spark_comm_error error = {.struct_size = sizeof error};
    uint32_t word = 0;
    current = rank;
    told = SPARK_COMM_OK;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    const uint64_t ptr = harness_address(&word);
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, ptr, 4));
    const spark_comm_status mild[] = {SPARK_COMM_NOT_SUPPORTED, SPARK_COMM_NO_MEMORY,
                                      SPARK_COMM_SYSTEM};
    for (size_t i = 0; i < 3; i++) {
        told = mild[i];
        CHECK_REFUSED(rank, mild[i], spark_comm_all_reduce(rank->comm, ptr, 4), "all_reduce",
                      "told to fail");
        CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "poisoned by %s",
                   spark_comm_status_name(mild[i]));
    }
    if (rank->size > 1) harness_meet(rank); /* the fault of one reaches the others at once */
    told = SPARK_COMM_BACKEND;
    const spark_comm_status st = spark_comm_all_reduce(rank->comm, ptr, 4);
    CHECK_STATUS(rank, SPARK_COMM_BACKEND, st);
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "healthy after a fatal failure");
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, SPARK_COMM_BACKEND, error.status);
    CHECK_INT(rank, 4711, error.native_code);
    CHECK_TRUE(rank, strstr(error.message, "told to fail") != NULL, "message: %s", error.message);
    told = SPARK_COMM_OK;
    CHECK_STATUS(rank, SPARK_COMM_BACKEND,
                 spark_comm_all_reduce(rank->comm, ptr, 4)); /* the first cause stays */
    if (rank->size > 1) harness_meet(rank);
}

static spark_comm_status failing_open(void *user, const spark_comm_host *host, void **state) {
    if (host->rank == host->member_count - 1) {
        host->explain(host->context, -1, 12, "no memory for the last rank");
        return SPARK_COMM_NO_MEMORY;
    }
    return wrapped_open(user, host, state);
}

/* open fails on one rank: it fails on all, and nothing is left behind on those where it had
 * worked. */
static void open_fails_alike(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    table.open = failing_open;
    const spark_comm_status st = open_table(rank, &table, NULL);
    if (CHECK_STATUS(rank, SPARK_COMM_NO_MEMORY, st))
        CHECK_MESSAGE(rank, SPARK_COMM_NO_MEMORY, "no memory for the last rank");
    CHECK_TRUE(rank, rank->comm == NULL, "*comm is not NULL");
}

static spark_comm_status verbose_open(void *user, const spark_comm_host *host, void **state) {
    char words[600] = "";
    (void)user, (void)state;
    if (host->member_count == 4) snprintf(words, sizeof words, "%d ", host->rank);
    while (strlen(words) + sizeof "reasons " < sizeof words)
        strcat(words, "reasons ");
    const bool is_brief = host->rank > 0 && host->member_count < 4;
    host->explain(host->context, -1, 0, is_brief ? "none left" : words);
    return SPARK_COMM_UNAVAILABLE;
}

/* Equal reasons are told once, with all their ranks, and what has no room ends at a word. */
static void reasons_together(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    spark_comm_error error = {.struct_size = sizeof error};
    static const char *const starts[] = {"open: rank 0: reasons ", "open: rank 0: reasons ",
                                         "open: rank 0: 0 reasons "};
    static const char *const ends[] = {" reasons ...; rank 1: none left",
                                       " reasons ...; ranks 1, 2: none left", " reasons ..."};
    table.open = verbose_open;
    CHECK_STATUS(rank, SPARK_COMM_UNAVAILABLE, open_table(rank, &table, NULL));
    CHECK_OK(rank, spark_comm_last_error(NULL, &error));
    const char *start = starts[rank->size - 2], *end = ends[rank->size - 2];
    const size_t length = strlen(error.message);
    CHECK_TRUE(rank, strncmp(error.message, start, strlen(start)) == 0, "%s", error.message);
    CHECK_TRUE(rank, length > 60 && strcmp(error.message + length - strlen(end), end) == 0, "%s",
               error.message);
}

static spark_comm_status late_open(void *user, const spark_comm_host *host, void **state) {
    if (host->rank == host->member_count - 1) harness_sleep_ms(6500);
    return wrapped_open(user, host, state);
}

/* A rank that came and then does not vote: its time, at least 5 s, is that of the rendezvous. */
static void late_vote(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    spark_comm_options options;
    table.open = late_open;
    harness_options(rank, &options);
    options.backend = NULL;
    options.rendezvous_timeout_ms = 4000;
    const spark_comm_status st = spark_comm_open_backend(&table, NULL, &options, &rank->comm);
    CHECK_STATUS(rank, SPARK_COMM_OPEN_TIMEOUT, st);
}

static _Atomic int register_state; /* 1: called; 2: to return */

static spark_comm_status waiting_register(void *state, uint64_t ptr, size_t bytes,
                                          uint64_t *handle) {
    (void)state, (void)ptr, (void)bytes;
    atomic_store(&register_state, 1);
    while (atomic_load(&register_state) != 2)
        harness_sleep_ms(1);
    *handle = 0;
    return SPARK_COMM_OK;
}

static void register_main(struct harness_rank *rank) {
    uint64_t memory = 0, handle = 0;
    CHECK_OK(rank, spark_comm_register_buffer(rank->comm, harness_address(&memory), 8, &handle));
}

/* A local call that holds a lane after a long pause works, and is not stuck: the age of the last
 * operation says nothing of it. */
static void busy_after_idling(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    spark_comm_options options;
    spark_comm_health_report health = {.struct_size = sizeof health};
    struct harness_thread helper;
    uint64_t word = 0;
    current = rank;
    told = SPARK_COMM_OK;
    atomic_store(&register_state, 0);
    table.register_buffer = waiting_register;
    harness_options(rank, &options);
    options.backend = NULL;
    options.op_timeout_ms = 200;
    if (!CHECK_OK(rank, spark_comm_open_backend(&table, NULL, &options, &rank->comm))) return;
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(&word), 8));
    do {
        harness_sleep_ms(10);
        CHECK_OK(rank, spark_comm_health(rank->comm, &health));
    } while (health.lanes[SPARK_COMM_LANE_DATA].submitted_age_ms <= 110);
    if (!harness_help(rank, &helper, register_main)) return;
    while (atomic_load(&register_state) != 1)
        harness_sleep_ms(1);
    CHECK_OK(rank, spark_comm_health(rank->comm, &health));
    CHECK_INT(rank, SPARK_COMM_ACTIVITY_BUSY, health.activity);
    atomic_store(&register_state, 2);
    harness_join(&helper);
}

/* ---- host->wait and report_fault ---- */

static bool never(void *arg) {
    (void)arg;
    return false;
}

static spark_comm_status waiting_barrier(void *state, const spark_comm_call *call) {
    const struct wrapped *wrapped = state;
    return wrapped->host->wait(wrapped->host->context, never, NULL, call->deadline_ns);
}

static void fault_main(struct harness_rank *rank) {
    const struct wrapped *wrapped = opened_state;
    harness_await_number(rank, SPARK_COMM_LANE_DATA, 1);
    harness_sleep_ms(30);
    wrapped->host->report_fault(wrapped->host->context, SPARK_COMM_BACKEND, -1, 77,
                                "the device is on fire");
    wrapped->host->report_fault(wrapped->host->context, SPARK_COMM_OP_TIMEOUT, -1, 78, "too late");
}

static spark_comm_status remembering_open(void *user, const spark_comm_host *host, void **state) {
    const spark_comm_status st = wrapped_open(user, host, state);
    opened_state = *state;
    return st;
}

/* A backend's own thread may report a fault: waits end at once, the cause is told, a later one does
 * not replace it. */
static void reported_fault(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    spark_comm_error error = {.struct_size = sizeof error};
    struct harness_thread helper;
    table.barrier = waiting_barrier;
    table.open = remembering_open;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL)) || !harness_help(rank, &helper, fault_main))
        return;
    const int64_t start = harness_now_ms();
    CHECK_STATUS(rank, SPARK_COMM_BACKEND, spark_comm_barrier(rank->comm));
    CHECK_TRUE(rank, harness_now_ms() - start < 5000 * harness_slowness(),
               "the wait ended after %lld ms", (long long)(harness_now_ms() - start));
    harness_join(&helper);
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, 77, error.native_code);
    CHECK_TRUE(rank, strstr(error.message, "on fire") != NULL, "message: %s", error.message);
}

/* host->wait holds the deadline, and the timeout is fatal. */
static void wait_deadline(struct harness_rank *rank) {
    spark_comm_backend table = wrapped_table();
    const spark_comm_op op = {
        .struct_size = sizeof op, .kind = SPARK_COMM_OP_BARRIER, .timeout_ms = 200};
    table.barrier = waiting_barrier;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    const int64_t start = harness_now_ms();
    CHECK_STATUS(rank, SPARK_COMM_OP_TIMEOUT, spark_comm_submit(rank->comm, &op));
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took >= 190 && took < 200 + 1000 * harness_slowness(), "200 ms became %lld ms",
               (long long)took);
}

/* ---- Modules ---- */

/* The mock as a shared object, found by name in SPARK_COMM_BACKEND_PATH. The build says where it
 * is. */
static void module(struct harness_rank *rank) {
    spark_comm_options options;
    spark_comm_info_report info = {.struct_size = sizeof info};
    setenv("SPARK_COMM_BACKEND_PATH", CONTRACT_MODULE_DIR, 1);
    harness_options(rank, &options);
    options.backend = "mockmodule";
    if (!CHECK_OK(rank, spark_comm_open(&options, &rank->comm))) return;
    CHECK_OK(rank, spark_comm_info(rank->comm, &info));
    CHECK_TRUE(rank, strcmp(info.backend, "mock") == 0, "backend %s", info.backend);
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 100};
    ops_run(rank, &call);
}

/* A module of another major version, one without the symbol, a file that is no library. */
static void wrong_modules(struct harness_rank *rank) {
    static const char *const names[][2] = {{"oldmodule", "version"},
                                           {"emptymodule", SPARK_COMM_BACKEND_MODULE_SYMBOL},
                                           {"brokenmodule", "brokenmodule"}};
    setenv("SPARK_COMM_BACKEND_PATH", CONTRACT_MODULE_DIR, 1);
    for (size_t i = 0; i < 3; i++) {
        spark_comm_options options;
        harness_options(rank, &options);
        options.backend = names[i][0];
        harness_step(rank, "module %s", names[i][0]);
        if (CHECK_STATUS(rank, SPARK_COMM_UNAVAILABLE, spark_comm_open(&options, &rank->comm)))
            CHECK_MESSAGE(rank, SPARK_COMM_UNAVAILABLE, names[i][1]);
    }
}

#define WHERE (CONTRACT_ONE_BACKEND | CONTRACT_NO_SINGLE)
#define ITSELF .opens_itself = true

/* ---- Reconnect ---- */

/* A backend without `reopen` says so, alike on all ranks, and nothing has happened. */
static void no_reopen(struct harness_rank *rank) {
    spark_comm_backend table = mock_backend;
    table.reopen = NULL;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = 100};
    ops_run(rank, &call);
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_attempt_reconnect(rank->comm),
                  "reconnect", "mock");
    ops_run(rank, &call);
}

/* It fails on one rank after the collective part: the attempt fails on all, in the same words, and
 * the next one may succeed. */
static _Thread_local bool fails;

static spark_comm_status reopen_at_odds(void *state) {
    const spark_comm_status st = mock_backend.reopen(state);
    if (st != SPARK_COMM_OK || !fails) return st;
    fails = false;
    const spark_comm_host *host = ((struct mock *)state)->host;
    host->explain(host->context, -1, 0, "no luck this time");
    return SPARK_COMM_NO_MEMORY;
}

static void reopen_fails(struct harness_rank *rank) {
    spark_comm_backend table = mock_backend;
    spark_comm_error error = {.struct_size = sizeof error};
    const int odd = rank->size - 1;
    table.reopen = reopen_at_odds;
    if (!CHECK_OK(rank, open_table(rank, &table, NULL))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    fails = rank->rank == odd;
    CHECK_STATUS(rank, SPARK_COMM_NO_MEMORY, spark_comm_attempt_reconnect(rank->comm));
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "healthy after an attempt that failed");
    CHECK_OK(rank, spark_comm_last_error(NULL, &error));
    CHECK_INT(rank, odd, error.peer);
    CHECK_TRUE(rank, strstr(error.message, "no luck this time") != NULL, "%s", error.message);
    harness_same(rank, reference_hash(error.message, strlen(error.message)));
    CHECK_STATUS(rank, SPARK_COMM_ABORTED, spark_comm_barrier(rank->comm));
    CHECK_OK(rank, spark_comm_attempt_reconnect(rank->comm));
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = 100};
    ops_run(rank, &call);
}

static const struct contract_test tests[] = {
    {"refused_tables",
     {.run = refused_tables, ITSELF},
     WHERE | CONTRACT_PAIR | CONTRACT_ONLY_PROCESSES},
    {"newer_minor", {.run = newer_minor, ITSELF}, WHERE | CONTRACT_PAIR},
    {"shorter_table", {.run = shorter_table, ITSELF}, WHERE | CONTRACT_PAIR},
    {"null_operations", {.run = null_operations, ITSELF}, WHERE},
    {"calls", {.run = calls, ITSELF}, WHERE},
    {"told_failures", {.run = told_failures, ITSELF}, WHERE},
    {"open_fails_alike", {.run = open_fails_alike, ITSELF}, WHERE},
    {"reasons_together", {.run = reasons_together, ITSELF}, WHERE | CONTRACT_SEVERAL},
    {"late_vote", {.run = late_vote, ITSELF}, WHERE | CONTRACT_PAIR | CONTRACT_ONLY_PROCESSES},
    {"busy_after_idling",
     {.run = busy_after_idling, ITSELF},
     WHERE | CONTRACT_ALONE | CONTRACT_ONLY_PROCESSES},
    {"reported_fault",
     {.run = reported_fault, ITSELF},
     WHERE | CONTRACT_ALONE | CONTRACT_ONLY_PROCESSES},
    {"no_reopen", {.run = no_reopen, ITSELF}, WHERE | CONTRACT_SEVERAL},
    {"reopen_fails", {.run = reopen_fails, ITSELF}, WHERE | CONTRACT_SEVERAL},
    {"wait_deadline", {.run = wait_deadline, ITSELF}, WHERE | CONTRACT_ALONE},
    {"module", {.run = module, ITSELF, .keeps_things = true}, WHERE | CONTRACT_ONLY_PROCESSES},
    {"wrong_modules",
     {.run = wrong_modules, ITSELF},
     WHERE | CONTRACT_ALONE | CONTRACT_ONLY_PROCESSES},
};

CONTRACT_MAIN("backend_table", tests)
