/*
 * JSON lines, as spark_comm_trace_write makes them. Unknown keys are skipped; a line that cannot be
 * parsed is left out and counted, the first one is named.
 */
#include "perf.h"
#include "trace.h"

#include <jansson.h>
#include <string.h>

static const char *text_of(json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int64_t number_of(json_t *object, const char *key, int64_t otherwise) {
    json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static int small_number_of(json_t *object, const char *key, int otherwise) {
    int64_t value = number_of(object, key, otherwise);
    return value >= INT32_MIN && value <= INT32_MAX ? (int)value : otherwise;
}

/* The statuses end below 300. */
static int status_of(const char *name) {
    for (int status = 0; status < 300; status++) {
        if (strcmp(spark_comm_status_name((spark_comm_status)status), name) == 0) return status;
    }
    return SPARK_COMM_BACKEND;
}

static bool read_header(struct sc_trace_file *file, json_t *header) {
    int version = small_number_of(header, "spark_comm_trace", 0);
    if (version == 0) {
        sc_trace_damage(file, "no trace file: its first line has no \"spark_comm_trace\"");
        return false;
    }
    if (version != SC_TRACE_VERSION) {
        sc_trace_damage(file, "written in version %d of the format, this program reads version %d",
                        version, SC_TRACE_VERSION);
        return false;
    }
    file->rank = small_number_of(header, "rank", -1);
    file->world_size = small_number_of(header, "world_size", 0);
    file->pid = small_number_of(header, "pid", 0);
    int epoch = small_number_of(header, "epoch", 0);
    file->epoch = epoch > 0 ? (uint32_t)epoch : 0;
    snprintf(file->library, sizeof file->library, "%s", text_of(header, "version"));
    snprintf(file->backend, sizeof file->backend, "%s", text_of(header, "backend"));
    file->has_speed = true;
    return sc_trace_check_place(file);
}

static bool is_time(int64_t ns) {
    return ns >= 0 && ns < SC_TRACE_TIME_LIMIT;
}

/* False: it lacks what a record must have. */
static bool fill_record(struct sc_trace_record *record, json_t *line) {
    const char *lane = text_of(line, "lane");
    int epoch = small_number_of(line, "epoch", 0);
    record->lane = strcmp(lane, "data") == 0 ? SPARK_COMM_LANE_DATA : SPARK_COMM_LANE_COMMAND;
    record->number = (uint64_t)number_of(line, "number", 0);
    record->operation = (uint8_t)sc_trace_operation(text_of(line, "op"));
    record->dtype = (uint8_t)sc_perf_values_dtype(text_of(line, "dtype"));
    record->redop = (uint8_t)sc_perf_values_redop(text_of(line, "redop"));
    record->peer = small_number_of(line, "peer", -1);
    record->bytes = (uint64_t)number_of(line, "bytes", 0);
    record->stream = (uint64_t)number_of(line, "stream", 0);
    record->is_captured = json_is_true(json_object_get(line, "captured"));
    record->submit_ns = number_of(line, "submit_ns", -1);
    record->complete_ns = number_of(line, "complete_ns", -1);
    record->epoch = epoch > 0 ? (uint32_t)epoch : 0;
    snprintf(record->path, sizeof record->path, "%s", text_of(line, "path"));
    record->is_complete = is_time(record->complete_ns);
    record->status = record->is_complete ? status_of(text_of(line, "status")) : 0;
    return record->operation && record->number && is_time(record->submit_ns) &&
           (strcmp(lane, "data") == 0 || strcmp(lane, "command") == 0);
}

/* A ring that is full has exactly its capacity, a power of two from 64 on. */
static void find_wrapped(struct sc_trace_file *file) {
    size_t count[SPARK_COMM_LANE_COUNT] = {0};
    for (size_t i = 0; i < file->count; i++) {
        const struct sc_trace_record *record = &file->records[i];
        if (count[record->lane]++ == 0) file->is_wrapped[record->lane] = record->number > 1;
    }
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        if (count[lane] >= 64 && !(count[lane] & (count[lane] - 1))) file->is_wrapped[lane] = true;
    }
}

bool sc_trace_json(struct sc_trace_file *file, const char *text, size_t size) {
    size_t bad = 0, first_bad = 0, number = 0;
    for (const char *next = text; next < text + size;) {
        const char *line = next;
        const char *end = memchr(line, '\n', (size_t)(text + size - line));
        size_t length = (size_t)((end ? end : text + size) - line);
        next = end ? end + 1 : text + size;
        number++;
        if (length == 0) continue;
        json_t *object = json_loadb(line, length, 0, NULL);
        bool good = json_is_object(object);
        if (good && number == 1) {
            good = read_header(file, object);
        } else if (good) {
            struct sc_trace_record *record = sc_trace_add(file);
            if (!record) {
                json_decref(object);
                return false;
            }
            good = fill_record(record, object);
            if (!good) file->count--;
        }
        json_decref(object);
        if (!good && number == 1) {
            sc_trace_damage(file, "no trace file: its first line is no header");
            return true;
        }
        if (!good && bad++ == 0) first_bad = number;
    }
    if (bad) {
        sc_trace_damage(file, "line %zu cannot be read%s; %zu line(s) are left out", first_bad,
                        first_bad == number ? ", it may be cut off" : "", bad);
    }
    find_wrapped(file);
    return true;
}
