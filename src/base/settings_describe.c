/*
 * Settings as rows for people and as options for backends, and their digest. No state; any thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/settings_table.h"

static void show_value(const struct sc_settings_entry *entry, const struct sc_settings *settings,
                       char *text, size_t size) {
    const char *field = (const char *)settings + entry->offset;
    uint64_t wide;
    int32_t number;

    switch (entry->kind) {
    case SC_SETTINGS_SECRET:
        snprintf(text, size, "%s", field[0] != '\0' ? "set" : "not set");
        return;
    case SC_SETTINGS_TEXT:
    case SC_SETTINGS_WORD: snprintf(text, size, "%s", field[0] != '\0' ? field : "not set"); return;
    case SC_SETTINGS_UNSIGNED:
        memcpy(&wide, field, sizeof wide);
        snprintf(text, size, "0x%llx", (unsigned long long)wide);
        return;
    default: break;
    }
    memcpy(&number, field, sizeof number);
    if (entry->kind == SC_SETTINGS_CHOICE)
        snprintf(text, size, "%s", entry->choices[number - entry->minimum]);
    else if (entry->kind == SC_SETTINGS_TIMEOUT && number == SPARK_COMM_FOREVER)
        snprintf(text, size, "-1 (no limit)");
    else if (entry->kind == SC_SETTINGS_INTEGER && number < entry->minimum)
        snprintf(text, size, "not set");
    else
        snprintf(text, size, "%d", (int)number);
}

static void fill_row(const struct sc_settings_entry *entry, const struct sc_settings *settings,
                     const struct sc_settings_found *found, spark_comm_setting_row *row) {
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", entry->name);
    snprintf(row->variable, sizeof row->variable, "%s",
             entry->variable != NULL ? entry->variable : "");
    show_value(entry, settings, row->value, sizeof row->value);
    snprintf(row->source, sizeof row->source, "%.*s", (int)sizeof row->source - 1, found->source);
    snprintf(row->range, sizeof row->range, "%s", entry->range);
    snprintf(row->help, sizeof row->help, "%s", entry->help);
    snprintf(row->problem, sizeof row->problem, "%.*s", (int)sizeof row->problem - 1,
             found->problem);
}

size_t sc_settings_describe(const spark_comm_options *options, spark_comm_setting_row *rows,
                            size_t row_size, size_t capacity) {
    struct sc_settings settings;
    struct sc_settings_found found[SC_SETTINGS_MAX_ENTRIES];
    spark_comm_setting_row row;
    size_t known = row_size < sizeof row ? row_size : sizeof row;

    sc_settings_examine(options, &settings, found);
    for (size_t i = 0; rows != NULL && i < sc_settings_table_count && i < capacity; i++) {
        char *target = (char *)rows + i * row_size;
        fill_row(&sc_settings_table[i], &settings, &found[i], &row);
        /* The caller's row may be shorter or longer than ours. */
        memset(target, 0, row_size);
        memcpy(target, &row, known);
    }
    return sc_settings_table_count;
}

void sc_settings_to_options(const struct sc_settings *settings, spark_comm_options *options) {
    sc_settings_options_init(options, sizeof *options);
    options->backend = settings->backend;
    options->master_addr = settings->master_addr;
    options->job_token = settings->job_token[0] != '\0' ? settings->job_token : NULL;
    options->log = settings->log;
    options->log_user = settings->log_user;
    options->stream = settings->stream;
    options->memory = settings->memory;
    options->rank = settings->rank;
    options->world_size = settings->world_size;
    options->master_port = settings->master_port;
    options->device = settings->device;
    options->dtype = settings->dtype;
    options->rendezvous_timeout_ms = settings->rendezvous_timeout_ms;
    options->op_timeout_ms = settings->op_timeout_ms;
    options->liveness_timeout_ms = settings->liveness_timeout_ms;
    options->close_timeout_ms = settings->close_timeout_ms;
}

/* FNV-1a over the value's bytes, lowest first, so that hosts of either byte order agree. */
static uint64_t digest_add(uint64_t digest, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        digest ^= (value >> (8 * i)) & 0xff;
        digest *= UINT64_C(0x100000001b3);
    }
    return digest;
}

uint64_t sc_settings_digest(const struct sc_settings *settings) {
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    digest = digest_add(digest, (uint32_t)settings->op_timeout_ms);
    digest = digest_add(digest, (uint32_t)settings->dtype);
    return digest;
}
