/*
 * Fuzz target: the environment. The input is lines NAME=VALUE, which become the whole environment
 * of a resolve, as open does it. Whatever they are: it returns, an accepted value lies in its
 * range, a refused one is told, and the rows for people are whole strings.
 */
#include <spark_comm.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"

extern char **environ;

#define MAX_BYTES 8192
#define MAX_ENTRIES 64
#define MAX_ROWS 64
#define TOKEN_NAME "SPARK_COMM_JOB_TOKEN="

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int condition) {
    if (!condition) abort();
}

static int is_string(const char *text, size_t size) {
    return memchr(text, 0, size) != NULL;
}

/* A limit as it may come out of resolve: positive, or none. */
static int is_limit(int32_t ms) {
    return ms > 0 || ms == SPARK_COMM_FOREVER;
}

static void check_accepted(const struct sc_settings *settings) {
    expect(is_string(settings->backend, sizeof settings->backend) && settings->backend[0] != '\0');
    expect(strlen(settings->backend) <= 31);
    expect(is_string(settings->master_addr, sizeof settings->master_addr) &&
           settings->master_addr[0] != '\0');
    expect(is_string(settings->job_token, sizeof settings->job_token));
    expect(settings->world_size >= 1 && settings->world_size <= 4096);
    expect(settings->rank >= 0 && settings->rank < settings->world_size);
    expect(settings->master_port >= 1 && settings->master_port <= 65535);
    expect(settings->device >= -1 && settings->device <= 1023);
    expect(settings->memory == SPARK_COMM_MEMORY_HOST ||
           settings->memory == SPARK_COMM_MEMORY_DEVICE);
    expect(settings->dtype >= SPARK_COMM_BF16 && settings->dtype <= SPARK_COMM_I64);
    expect(is_limit(settings->rendezvous_timeout_ms) && is_limit(settings->op_timeout_ms));
    expect(is_limit(settings->liveness_timeout_ms) && is_limit(settings->close_timeout_ms));
    expect(settings->trace_records >= 64 && settings->trace_records <= 1048576);
    expect((settings->trace_records & (settings->trace_records - 1)) == 0);
    expect(settings->log_level >= 0 && settings->log_level <= SPARK_COMM_LOG_DEBUG);
    expect(settings->allow_no_token == 0 || settings->allow_no_token == 1);
    expect(settings->listen_any == 0 || settings->listen_any == 1);
    expect(is_string(settings->trace_dir, sizeof settings->trace_dir));
    expect(is_string(settings->log_file, sizeof settings->log_file));
    expect(is_string(settings->backend_path, sizeof settings->backend_path));
}

/* The text of the token, where the input sets one that could not be in a message by chance; else
 * NULL. */
static const char *token_text(void) {
    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, TOKEN_NAME, strlen(TOKEN_NAME)) != 0) continue;
        const char *value = *entry + strlen(TOKEN_NAME);
        return strlen(value) >= 16 && strlen(value) <= 255 ? value : NULL;
    }
    return NULL;
}

static void check_rows(int accepted) {
    static spark_comm_setting_row rows[MAX_ROWS];
    const char *token = token_text();
    size_t count = 0;
    int problems = 0;
    expect(spark_comm_describe_settings(NULL, rows, sizeof rows[0], MAX_ROWS, &count) ==
           SPARK_COMM_OK);
    expect(count > 0 && count <= MAX_ROWS);
    for (size_t i = 0; i < count; i++) {
        expect(is_string(rows[i].name, sizeof rows[i].name) &&
               is_string(rows[i].variable, sizeof rows[i].variable));
        expect(is_string(rows[i].value, sizeof rows[i].value) &&
               is_string(rows[i].source, sizeof rows[i].source));
        expect(is_string(rows[i].range, sizeof rows[i].range) &&
               is_string(rows[i].help, sizeof rows[i].help));
        expect(is_string(rows[i].problem, sizeof rows[i].problem));
        problems += rows[i].problem[0] != '\0';
        if (strcmp(rows[i].name, "job_token") == 0)
            expect(strcmp(rows[i].value, "set") == 0 || strcmp(rows[i].value, "not set") == 0);
        if (token != NULL && strcmp(rows[i].name, "job_token") == 0)
            expect(strstr(rows[i].problem, token) == NULL);
    }
    expect(accepted ? problems == 0 : problems > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[MAX_BYTES + 1];
    static struct sc_settings settings;
    char *entries[MAX_ENTRIES + 1];
    struct sc_error error;
    char **before = environ;
    char *rest = NULL;
    size_t count = 0;

    if (size > MAX_BYTES) return 0;
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && count < MAX_ENTRIES;
         line = strtok_r(NULL, "\n", &rest))
        if (strchr(line, '=') != NULL) entries[count++] = line;
    entries[count] = NULL;
    environ = entries;

    sc_error_clear(&error);
    memset(&settings, 0xee, sizeof settings);
    const spark_comm_status st = sc_settings_resolve(NULL, &settings, &error);
    expect(st == SPARK_COMM_OK || st == SPARK_COMM_INVALID_ARGUMENT);
    if (st == SPARK_COMM_OK)
        check_accepted(&settings);
    else
        expect(is_string(error.message, sizeof error.message) && error.message[0] != '\0');
    check_rows(st == SPARK_COMM_OK);

    environ = before;
    return 0;
}
