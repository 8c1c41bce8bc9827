/*
 * What doctor prints, for programs that use the public header only: every setting with its value
 * and source, every backend with its verdict on this machine. No communicator is needed and no peer
 * is asked. Also names, texts and the version.
 */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "backends/registry.h"
#include "base/settings.h"
#include "base/status.h"

spark_comm_status spark_comm_describe_settings(const spark_comm_options *options,
                                               spark_comm_setting_row *rows, size_t row_size,
                                               size_t capacity, size_t *count) {
    if (count == NULL || (rows == NULL && capacity > 0) || (capacity > 0 && row_size == 0))
        return SPARK_COMM_INVALID_ARGUMENT;
    *count = sc_settings_describe(options, rows, row_size, capacity);
    return SPARK_COMM_OK;
}

/* One table's verdict. */
static void fill_row(const spark_comm_backend *table, const struct sc_settings *settings,
                     const char *wanted, spark_comm_backend_row *row) {
    struct sc_settings asked = *settings;
    struct sc_error error;
    sc_error_clear(&error);
    snprintf(row->name, sizeof row->name, "%s", table->name);
    row->memory = table->memory;
    row->traits = table->traits;
    row->wanted = strcmp(table->name, wanted) == 0;
    /* Whether it could, whatever memory is wanted now. */
    asked.memory = table->memory;
    row->status = (int32_t)sc_registry_probe(table, table->user, &asked, &error);
    bool plain = row->status == SPARK_COMM_OK && error.message[0] == '\0';
    snprintf(row->reason, sizeof row->reason, "%.255s", plain ? "can serve here" : error.message);
}

/* A wanted name that is not built in: a module, or nothing. */
static void fill_module_row(const struct sc_settings *settings, const char *wanted,
                            spark_comm_backend_row *row) {
    spark_comm_backend table;
    struct sc_error error;
    sc_error_clear(&error);
    if (sc_registry_find(settings, wanted, &table, &error) == SPARK_COMM_OK) {
        fill_row(&table, settings, wanted, row);
        return;
    }
    snprintf(row->name, sizeof row->name, "%.31s", wanted);
    row->wanted = 1;
    row->status = SPARK_COMM_UNAVAILABLE;
    snprintf(row->reason, sizeof row->reason, "%.255s", error.message);
}

static void put_row(spark_comm_backend_row *rows, size_t row_size, size_t capacity, size_t index,
                    const spark_comm_backend_row *row) {
    if (index >= capacity) return;
    char *to = (char *)rows + index * row_size;
    memset(to, 0, row_size);
    memcpy(to, row, row_size < sizeof *row ? row_size : sizeof *row);
}

spark_comm_status spark_comm_describe_backends(const spark_comm_options *options,
                                               spark_comm_backend_row *rows, size_t row_size,
                                               size_t capacity, size_t *count) {
    struct sc_settings settings;
    struct sc_error *error = sc_handle_open_error();
    const spark_comm_backend *table;
    bool found = false;
    if (count == NULL || (rows == NULL && capacity > 0) || (capacity > 0 && row_size == 0))
        return SPARK_COMM_INVALID_ARGUMENT;
    *count = 0;
    sc_error_clear(error);
    spark_comm_status st = sc_settings_resolve(options, &settings, error);
    if (st != SPARK_COMM_OK) return st;
    const char *wanted = sc_registry_resolve_name(&settings);
    for (size_t i = 0; (table = sc_registry_builtin(i)) != NULL; i++) {
        spark_comm_backend_row row = {0};
        fill_row(table, &settings, wanted, &row);
        found |= row.wanted != 0;
        put_row(rows, row_size, capacity, (*count)++, &row);
    }
    if (!found) {
        spark_comm_backend_row row = {0};
        fill_module_row(&settings, wanted, &row);
        put_row(rows, row_size, capacity, (*count)++, &row);
    }
    return SPARK_COMM_OK;
}

const char *spark_comm_status_name(spark_comm_status status) {
    return sc_status_name((int)status);
}

const char *spark_comm_status_text(spark_comm_status status) {
    return sc_status_text((int)status);
}

bool spark_comm_is_fatal(spark_comm_status status) {
    return sc_status_is_fatal((int)status);
}

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

const char *spark_comm_version(void) {
    return NUMBER(SPARK_COMM_VERSION_MAJOR) "." NUMBER(SPARK_COMM_VERSION_MINOR) "." NUMBER(
        SPARK_COMM_VERSION_PATCH);
}
