/* What a communicator tells of itself: health, last_error, info, the trace, the log, settings and
 * backends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract.h"
#include "json_check.h"
#include "ops.h"

#define TOKEN "do-not-tell-anybody"

static spark_comm_health_report health_of(struct harness_rank *rank) {
    spark_comm_health_report report = {.struct_size = sizeof report};
    CHECK_OK(rank, spark_comm_health(rank->comm, &report));
    return report;
}

/* ---- Health ---- */

static void fresh_health(struct harness_rank *rank) {
    const spark_comm_health_report report = health_of(rank);
    CHECK_INT(rank, SPARK_COMM_STATE_HEALTHY, report.state);
    CHECK_INT(rank, SPARK_COMM_ACTIVITY_IDLE, report.activity);
    CHECK_INT(rank, 1, report.epoch);
    CHECK_INT(rank, 0, report.lost_count);
    CHECK_INT(rank, -1, report.lost_rank);
    CHECK_INT(rank, 0, report.device_progress);
    if (rank->size == 1)
        CHECK_INT(rank, -1, report.silent_rank);
    else
        CHECK_TRUE(rank,
                   report.silent_rank >= 0 && report.silent_rank < rank->size &&
                       report.silent_rank != rank->rank,
                   "silent_rank %d", report.silent_rank);
    CHECK_INT(rank, 0, report.lanes[SPARK_COMM_LANE_COMMAND].submitted);
    CHECK_INT(rank, -1, report.lanes[SPARK_COMM_LANE_COMMAND].submitted_age_ms);
    CHECK_INT(rank, -1, report.lanes[SPARK_COMM_LANE_COMMAND].completed_age_ms);
    harness_meet(rank); /* a rank that has closed is no peer any more */
}

/* Each collective counts one on its lane; refused calls, messages and local calls count none. */
static void numbers(struct harness_rank *rank) {
    uint32_t words[4] = {0};
    uint64_t handle;
    const uint64_t ptr = harness_address(words);
    spark_comm *comm = rank->comm;
    const spark_comm_health_report before = health_of(rank);
    CHECK_OK(rank, spark_comm_all_reduce(comm, ptr, 4));
    CHECK_OK(rank, spark_comm_barrier(comm));
    CHECK_OK(rank, spark_comm_exchange_host(comm, words, words, 0));
    CHECK_OK(rank, spark_comm_broadcast(comm, ptr, 4, 0));
    CHECK_OK(rank, spark_comm_broadcast(comm, 0, 0, 0));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_all_reduce(comm, ptr, 3));
    CHECK_OK(rank, spark_comm_register_buffer(comm, ptr, sizeof words, &handle));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, handle));
    CHECK_OK(rank, spark_comm_group_start(comm));
    CHECK_OK(rank, spark_comm_send_to(comm, ptr, 4, (rank->rank + 1) % rank->size, 0));
    CHECK_OK(rank,
             spark_comm_recv_from(comm, ptr + 8, 4, (rank->rank + rank->size - 1) % rank->size, 0));
    CHECK_OK(rank, spark_comm_group_end(comm));
    const spark_comm_health_report after = health_of(rank);
    const int data = SPARK_COMM_LANE_DATA, command = SPARK_COMM_LANE_COMMAND;
    CHECK_INT(rank, before.lanes[data].submitted + 3, after.lanes[data].submitted);
    CHECK_INT(rank, before.lanes[command].submitted + 2, after.lanes[command].submitted);
    CHECK_INT(rank, after.lanes[data].submitted, after.lanes[data].completed);
    CHECK_INT(rank, after.lanes[command].submitted, after.lanes[command].completed);
    CHECK_TRUE(
        rank, after.lanes[data].completed_age_ms >= 0 && after.lanes[data].completed_age_ms < 60000,
        "age %lld ms", (long long)after.lanes[data].completed_age_ms);
    harness_sleep_ms(50);
    const spark_comm_health_report later = health_of(rank);
    CHECK_TRUE(rank, later.lanes[data].completed_age_ms >= after.lanes[data].completed_age_ms + 40,
               "the age stands still");
}

static void enter_barrier(struct harness_rank *rank) {
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
}

static void tune_four_seconds(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->op_timeout_ms = 4000; /* the waits below are measured against it, in every build */
}

/* Idle, then busy, then stuck when half of op_timeout has gone without progress, then idle
 * again. */
static void activity(struct harness_rank *rank) {
    struct harness_thread helper;
    const uint64_t before = health_of(rank).lanes[SPARK_COMM_LANE_DATA].submitted;
    CHECK_INT(rank, SPARK_COMM_ACTIVITY_IDLE, health_of(rank).activity);
    if (rank->rank != 0) {
        harness_await(rank, 0, 1, 20000);
        enter_barrier(rank);
        return;
    }
    if (!harness_help(rank, &helper, enter_barrier)) return;
    if (harness_await_number(rank, SPARK_COMM_LANE_DATA, before + 1)) {
        CHECK_INT(rank, SPARK_COMM_ACTIVITY_BUSY, health_of(rank).activity);
        harness_sleep_ms(2300);
        CHECK_INT(rank, SPARK_COMM_ACTIVITY_STUCK, health_of(rank).activity);
    }
    atomic_store(harness_word(rank, 0), 1);
    harness_join(&helper);
    CHECK_INT(rank, SPARK_COMM_ACTIVITY_IDLE, health_of(rank).activity);
}

static void wait_for_word(struct harness_rank *rank) {
    uint32_t word;
    CHECK_OK(rank, spark_comm_recv_command_u32(rank->comm, harness_address(&word), 0));
}

static void idle_receive_is_idle(struct harness_rank *rank) {
    struct harness_thread helper;
    uint32_t word = 1;
    if (rank->rank == 0) {
        harness_sleep_ms(2600);
        CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(&word), 4, 0));
        return;
    }
    if (!harness_help(rank, &helper, wait_for_word)) return;
    harness_sleep_ms(2300);
    CHECK_INT(rank, SPARK_COMM_ACTIVITY_IDLE, health_of(rank).activity);
    harness_join(&helper);
}

/* ---- last_error ---- */

static void last_error(struct harness_rank *rank) {
    spark_comm_error error = {.struct_size = sizeof error};
    uint32_t word = 0;
    memset(&error, 0xee, sizeof error);
    error.struct_size = sizeof error;
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, SPARK_COMM_OK, error.status);
    CHECK_INT(rank, 0, error.message[0]);
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                 spark_comm_all_reduce(rank->comm, harness_address(&word), 3));
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, SPARK_COMM_INVALID_ARGUMENT, error.status);
    CHECK_INT(rank, SPARK_COMM_OP_ALL_REDUCE, error.operation);
    CHECK_INT(rank, 0, error.sequence);
    CHECK_INT(rank, -1, error.peer);
    CHECK_INT(rank, 1, error.epoch);
    CHECK_INT(rank, 0, error.native_code);
    /* The latest failure, and a success in between does not wipe it out. */
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_broadcast(rank->comm, 0, 8, 0));
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    CHECK_OK(rank, spark_comm_last_error(rank->comm, &error));
    CHECK_INT(rank, SPARK_COMM_OP_BROADCAST, error.operation);
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_last_error(rank->comm, NULL));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_health(rank->comm, NULL));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_info(rank->comm, NULL));
}

/* ---- info ---- */

static void check_rows(struct harness_rank *rank, const spark_comm_info_row *rows, size_t count) {
    unsigned seen = 0;
    for (size_t i = 0; i < count; i++) {
        const spark_comm_info_row *row = &rows[i];
        const bool last = i + 1 == count || rows[i + 1].operation != row->operation;
        const bool reduces = row->operation == SPARK_COMM_OP_ALL_REDUCE ||
                             row->operation == SPARK_COMM_OP_REDUCE_SCATTER;
        CHECK_TRUE(rank, row->operation > 0 && row->operation < SPARK_COMM_OP_COUNT,
                   "row %zu: operation %d", i, row->operation);
        CHECK_TRUE(rank, last || row->up_to_bytes < rows[i + 1].up_to_bytes,
                   "row %zu: up_to_bytes out of order", i);
        CHECK_TRUE(rank,
                   !last || row->up_to_bytes == UINT64_MAX || row->operation >= SPARK_COMM_OP_GROUP,
                   "row %zu: the last of its operation ends at %llu", i,
                   (unsigned long long)row->up_to_bytes);
        CHECK_TRUE(rank, i == 0 || rows[i - 1].operation <= row->operation,
                   "row %zu: operations out of order", i);
        CHECK_TRUE(rank, memchr(row->path, 0, sizeof row->path) != NULL && row->path[0] != '\0',
                   "row %zu has no path", i);
        if (reduces && rank->world->backend->on_device)
            CHECK_TRUE(rank, row->canonical == 0 || row->canonical == 1, "row %zu: canonical %d", i,
                       row->canonical);
        else
            CHECK_INT(rank, reduces ? 1 : -1, row->canonical);
        seen |= 1u << row->operation;
    }
    for (int operation = SPARK_COMM_OP_ALL_REDUCE; operation <= SPARK_COMM_OP_RECV_FROM;
         operation++)
        CHECK_TRUE(rank, seen >> operation & 1, "operation %d has no row", operation);
}

/* A report that cannot be filled is refused like any argument. */
static void refused_reports(struct harness_rank *rank) {
    spark_comm_info_row row;
    spark_comm_health_report health = {.struct_size = 3};
    spark_comm_info_report info = {.struct_size = sizeof info,
                                   .rows = &row,
                                   .row_size = sizeof(int32_t) - 1,
                                   .row_capacity = 1};
    const spark_comm_status invalid = SPARK_COMM_INVALID_ARGUMENT;
    CHECK_REFUSED(rank, invalid, spark_comm_health(rank->comm, NULL), "health: report is null");
    CHECK_REFUSED(rank, invalid, spark_comm_health(rank->comm, &health), "health", "struct_size");
    CHECK_REFUSED(rank, invalid, spark_comm_info(rank->comm, NULL), "info: info is null");
    CHECK_REFUSED(rank, invalid, spark_comm_info(rank->comm, &info), "info", "row_size is 3");
    info.struct_size = 3;
    CHECK_REFUSED(rank, invalid, spark_comm_info(rank->comm, &info), "info", "struct_size");
    /* One reader must not change what it reads. */
    spark_comm_error error = {.struct_size = 3};
    CHECK_STATUS(rank, invalid, spark_comm_last_error(rank->comm, &error));
    CHECK_MESSAGE(rank, invalid, "info", "struct_size");
}

static void info(struct harness_rank *rank) {
    spark_comm_info_row rows[128], few[2], guard;
    spark_comm_info_report report = {.struct_size = sizeof report};
    if (!CHECK_OK(rank, spark_comm_info(rank->comm, &report))) return;
    const size_t count = report.row_count;
    if (!CHECK_TRUE(rank, count >= 7 && count <= 128, "%zu rows", count)) return;
    const bool on_device = rank->world->backend->on_device;
    const uint32_t trait = on_device ? SPARK_COMM_TRAIT_STREAM_ORDERED : SPARK_COMM_TRAIT_CANONICAL;
    CHECK_TRUE(rank, report.traits & trait, "traits 0x%x", report.traits);
    CHECK_TRUE(rank, (report.library_file[0] != '\0') == on_device, "library_file %s",
               report.library_file);
    report.rows = rows;
    report.row_size = sizeof rows[0];
    report.row_capacity = 128;
    if (!CHECK_OK(rank, spark_comm_info(rank->comm, &report))) return;
    CHECK_INT(rank, count, report.row_count);
    check_rows(rank, rows, count);
    /* Too little room: as many as fit, and the true count. */
    memset(&guard, 0xee, sizeof guard);
    few[1] = guard;
    report.rows = few;
    report.row_capacity = 1;
    CHECK_OK(rank, spark_comm_info(rank->comm, &report));
    CHECK_INT(rank, count, report.row_count);
    CHECK_TRUE(rank, memcmp(&few[0], &rows[0], sizeof few[0]) == 0, "the first row differs");
    CHECK_TRUE(rank, memcmp(&few[1], &guard, sizeof guard) == 0,
               "a row beyond the capacity was written");
    /* Rows of an older program are shorter. */
    int32_t operations[128][2];
    report.rows = (spark_comm_info_row *)(void *)operations;
    report.row_size = sizeof operations[0];
    report.row_capacity = count;
    if (!CHECK_OK(rank, spark_comm_info(rank->comm, &report))) return;
    for (size_t i = 0; i < count; i++)
        CHECK_INT(rank, rows[i].operation, operations[i][0]);
}

/* ---- Trace ---- */

static void tune_token(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->job_token = TOKEN;
}

/* Reads a whole file; NULL when it cannot. */
static char *slurp(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file != NULL && text != NULL) {
        const size_t got = fread(text, 1, (1 << 20) - 1, file);
        text[got] = '\0';
    }
    if (file != NULL) fclose(file);
    return text;
}

static int count_lines(const char *text, const char *word) {
    int count = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        count++;
    return count;
}

static void check_trace(struct harness_rank *rank, char *text, int sums) {
    char number[32], *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest), lines++) {
        if (!CHECK_TRUE(rank, json_is_object(line), "line %d is not JSON: %s", lines + 1, line))
            return;
        if (lines == 0) {
            snprintf(number, sizeof number, "\"rank\":%d,", rank->rank);
            CHECK_TRUE(rank, strstr(line, "\"spark_comm_trace\":1,") && strstr(line, number),
                       "header: %s", line);
        } else if (strstr(line, "all_reduce") != NULL) {
            CHECK_TRUE(rank,
                       strstr(line, "\"lane\":\"data\"") && strstr(line, "\"bytes\":24,") &&
                           strstr(line, "\"f32\"") && strstr(line, "\"sum\"") &&
                           strstr(line, "\"status\":\"SPARK_COMM_OK\""),
                       "record: %s", line);
            sums--;
        }
    }
    CHECK_INT(rank, 0, sums);
}

static void trace(struct harness_rank *rank) {
    char path[64];
    float values[6] = {0};
    struct stat info;
    const spark_comm_op op = {.struct_size = sizeof op,
                              .kind = SPARK_COMM_OP_ALL_REDUCE,
                              .dtype = SPARK_COMM_F32,
                              .send = harness_address(values),
                              .recv = harness_address(values),
                              .bytes = sizeof values};
    for (int i = 0; i < 5; i++)
        CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(values), 8, 0));
    snprintf(path, sizeof path, "/tmp/spark_comm_test_%d_%d.jsonl", (int)getpid(), rank->rank);
    if (!CHECK_OK(rank, spark_comm_trace_write(rank->comm, path))) return;
    CHECK_TRUE(rank, stat(path, &info) == 0 && (info.st_mode & 0777) == 0600,
               "mode of the file is not 0600");
    char *text = slurp(path);
    unlink(path);
    if (!CHECK_TRUE(rank, text != NULL, "cannot read %s", path)) return;
    CHECK_TRUE(rank, strstr(text, TOKEN) == NULL, "the token is in the trace");
    CHECK_INT(rank, 1, count_lines(text, "\"op\":\"barrier\""));
    CHECK_INT(rank, 1, count_lines(text, "\"op\":\"broadcast\""));
    check_trace(rank, text, 5);
    free(text);
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_trace_write(rank->comm, NULL),
                  "path");
    CHECK_REFUSED(rank, SPARK_COMM_SYSTEM, spark_comm_trace_write(rank->comm, "/no/such/folder/x"),
                  "/no/such/folder/x");
}

/* ---- Log ---- */

struct log_lines {
    _Atomic int lines, sums, bad;
};

static void take_line(void *user, int level, const char *message) {
    struct log_lines *log = user;
    atomic_fetch_add(&log->lines, 1);
    if (strstr(message, "all_reduce") != NULL && level == SPARK_COMM_LOG_DEBUG)
        atomic_fetch_add(&log->sums, 1);
    if (strchr(message, '\n') != NULL || strstr(message, TOKEN) != NULL || level < 1 || level > 4)
        atomic_fetch_add(&log->bad, 1);
}

/* Others of this machine may not read it, whatever the umask. */
static void log_file(struct harness_rank *rank) {
    spark_comm_options options;
    struct stat info;
    char pattern[64], path[80];
    const mode_t before = umask(0);
    snprintf(pattern, sizeof pattern, "/tmp/spark_comm_test_%d", (int)getpid());
    snprintf(path, sizeof path, "%s.%d.log", pattern, rank->rank);
    strcat(pattern, ".%r.log");
    setenv("SPARK_COMM_LOG_FILE", pattern, 1);
    harness_options(rank, &options);
    const spark_comm_status st = harness_open(rank, &options, &rank->comm);
    umask(before);
    if (!CHECK_OK(rank, st)) return;
    CHECK_TRUE(rank, stat(path, &info) == 0 && (info.st_mode & 0777) == 0600,
               "the mode of %s is not 0600", path);
    CHECK_TRUE(rank, info.st_size > 0, "%s is empty", path);
    unlink(path);
}

/* At level debug each submission is a line; no line has a newline or the token. */
static void log_callback(struct harness_rank *rank) {
    spark_comm_options options;
    struct log_lines log = {0};
    float value = 0;
    setenv("SPARK_COMM_LOG_LEVEL", "debug", 1);
    harness_options(rank, &options);
    options.log = take_line;
    options.log_user = &log;
    options.job_token = TOKEN;
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    for (int i = 0; i < 7; i++)
        CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(&value), 4));
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    CHECK_INT(rank, 7, atomic_load(&log.sums));
    CHECK_INT(rank, 0, atomic_load(&log.bad));
    CHECK_TRUE(rank, atomic_load(&log.lines) > 7 || rank->size == 1,
               "open and close logged nothing");
}

/* ---- Settings and backends, without a communicator ---- */

static const spark_comm_setting_row *setting(const spark_comm_setting_row *rows, size_t count,
                                             const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static void describe(struct harness_rank *rank) {
    static spark_comm_setting_row rows[64];
    spark_comm_backend_row backends[16];
    spark_comm_options options;
    size_t count = 0, again = 0;
    setenv("SPARK_COMM_LIVENESS_TIMEOUT_MS", "99999999999", 1);
    harness_options(rank, &options);
    options.job_token = TOKEN;
    options.liveness_timeout_ms = 0;
    CHECK_OK(rank, spark_comm_describe_settings(&options, NULL, sizeof rows[0], 0, &count));
    if (!CHECK_TRUE(rank, count >= 14 && count <= 64, "%zu settings", count)) return;
    CHECK_OK(rank, spark_comm_describe_settings(&options, rows, sizeof rows[0], 64, &again));
    CHECK_INT(rank, count, again);
    const spark_comm_setting_row *token = setting(rows, count, "job_token");
    const spark_comm_setting_row *liveness = setting(rows, count, "liveness_timeout_ms");
    const spark_comm_setting_row *dtype = setting(rows, count, "dtype");
    if (!CHECK_TRUE(rank, token && liveness && dtype, "a setting is missing")) return;
    CHECK_TRUE(rank, strcmp(token->value, "set") == 0 && strcmp(token->source, "option") == 0,
               "job_token: %s from %s", token->value, token->source);
    CHECK_TRUE(rank,
               liveness->problem[0] != '\0' &&
                   strcmp(liveness->source, "SPARK_COMM_LIVENESS_TIMEOUT_MS") == 0,
               "liveness_timeout_ms: \"%s\" from %s", liveness->problem, liveness->source);
    CHECK_TRUE(rank, strcmp(dtype->value, "bf16") == 0 && strcmp(dtype->source, "default") == 0,
               "dtype: %s from %s", dtype->value, dtype->source);
    for (size_t i = 0; i < count; i++) {
        CHECK_TRUE(rank, rows[i].help[0] != '\0' && rows[i].range[0] != '\0',
                   "%s has no help or range", rows[i].name);
        CHECK_TRUE(rank, strstr(rows[i].value, TOKEN) == NULL, "%s shows the token", rows[i].name);
    }
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                 spark_comm_describe_settings(&options, rows, 0, 64, &again));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                 spark_comm_describe_settings(&options, NULL, sizeof rows[0], 4, &again));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                 spark_comm_describe_settings(&options, NULL, sizeof rows[0], 0, NULL));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT,
                 spark_comm_describe_backends(&options, backends, sizeof backends[0], 16, &count));
    unsetenv("SPARK_COMM_LIVENESS_TIMEOUT_MS");
    if (!CHECK_OK(rank,
                  spark_comm_describe_backends(&options, backends, sizeof backends[0], 16, &count)))
        return;
    bool single = false, shm = false;
    for (size_t i = 0; i < count && i < 16; i++) {
        if (strcmp(backends[i].name, "single") == 0)
            single =
                backends[i].status == (rank->size == 1 ? SPARK_COMM_OK : SPARK_COMM_UNAVAILABLE);
        if (strcmp(backends[i].name, "shm") == 0) shm = true;
        CHECK_TRUE(rank, backends[i].status == SPARK_COMM_OK || backends[i].reason[0] != '\0',
                   "%s gives no reason", backends[i].name);
    }
    CHECK_TRUE(rank, single && shm, "single or shm is missing or wrong");
}

static const struct contract_test tests[] = {
    {"fresh_health", {.run = fresh_health}, 0},
    {"numbers", {.run = numbers}, 0},
    {"activity", {.run = activity, .tune = tune_four_seconds}, CONTRACT_PAIR},
    {"idle_receive_is_idle",
     {.run = idle_receive_is_idle, .tune = tune_four_seconds},
     CONTRACT_PAIR},
    {"last_error", {.run = last_error}, 0},
    {"info", {.run = info}, 0},
    {"refused_reports", {.run = refused_reports}, 0},
    {"trace", {.run = trace, .tune = tune_token}, 0},
    {"log_file", {.run = log_file, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
    {"log_callback", {.run = log_callback, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
    {"describe", {.run = describe, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
};

CONTRACT_MAIN("reports", tests)
