/*
 * What both formats share: the list of records, the damage, the names of operations.
 */
#include "trace.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *const operation_names[SPARK_COMM_OP_COUNT] = {
    [SPARK_COMM_OP_ALL_REDUCE] = "all_reduce",
    [SPARK_COMM_OP_ALL_GATHER] = "all_gather",
    [SPARK_COMM_OP_REDUCE_SCATTER] = "reduce_scatter",
    [SPARK_COMM_OP_BROADCAST] = "broadcast",
    [SPARK_COMM_OP_BARRIER] = "barrier",
    [SPARK_COMM_OP_SEND_TO] = "send_to",
    [SPARK_COMM_OP_RECV_FROM] = "recv_from",
    [SPARK_COMM_OP_SEND_COMMAND] = "send_command",
    [SPARK_COMM_OP_RECV_COMMAND] = "recv_command",
    [SPARK_COMM_OP_RECV_COMMAND_U32] = "recv_command_u32",
    [SPARK_COMM_OP_EXCHANGE_HOST] = "exchange_host",
    [SPARK_COMM_OP_SYMMETRIC_ALLOC] = "symmetric_alloc",
    [SPARK_COMM_OP_SET_ADD_KERNEL] = "set_add_kernel",
};

const char *sc_trace_operation_name(int operation) {
    const char *name =
        operation > 0 && operation < SPARK_COMM_OP_COUNT ? operation_names[operation] : NULL;
    return name ? name : "unknown";
}

int sc_trace_operation(const char *name) {
    for (int i = 1; i < SPARK_COMM_OP_COUNT; i++) {
        if (operation_names[i] && strcmp(operation_names[i], name) == 0) return i;
    }
    return 0;
}

void sc_trace_damage(struct sc_trace_file *file, const char *format, ...) {
    char text[sizeof file->damage];
    va_list arguments;
    va_start(arguments, format);
    /* clang-tidy 14 takes the va_list of the line above for uninitialized. */
    vsnprintf(text, sizeof text, format, arguments); /* NOLINT(clang-analyzer-valist.Uninitialized) */
    va_end(arguments);
    if (file->damage[0] == '\0') memcpy(file->damage, text, sizeof text);
    file->is_partial = true;
}

struct sc_trace_record *sc_trace_add(struct sc_trace_file *file) {
    if (file->count == file->capacity) {
        size_t capacity = file->capacity ? 2 * file->capacity : 256;
        struct sc_trace_record *records = realloc(file->records, capacity * sizeof *records);
        if (!records) return NULL;
        file->records = records;
        file->capacity = capacity;
    }
    struct sc_trace_record *record = &file->records[file->count++];
    memset(record, 0, sizeof *record);
    return record;
}

void sc_trace_free(struct sc_trace_file *file) {
    free(file->records);
    free(file->name);
    *file = (struct sc_trace_file){0};
}
