/*
 * Ring files: the mapped file that a rank's recorder leaves, whole or not. A killed rank may leave
 * one record that was being written (its sequence is odd); everything else that does not fit the
 * layout is damage.
 */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLD = 1 << 20 };
static const size_t max_bytes = (size_t)1 << 30;

bool sc_trace_check_place(struct sc_trace_file *file) {
    if (file->world_size >= 1 && file->world_size <= MAX_WORLD && file->rank >= 0 &&
        file->rank < file->world_size)
        return true;
    sc_trace_damage(file, "rank %d of %d: its header is damaged", file->rank, file->world_size);
    file->rank = -1;
    return false;
}

static uint64_t word(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static uint64_t u64(const unsigned char *bytes, int at) {
    return word(bytes + at, 8);
}

static uint32_t u32(const unsigned char *bytes, int at) {
    return (uint32_t)word(bytes + at, 4);
}

/* A straight line from ticks to CLOCK_REALTIME through the last point at which both were read. */
struct clock_line {
    uint64_t ticks;
    uint64_t realtime;
    double ns_per_tick; /* 0: not known */
};

static struct clock_line find_line(const unsigned char *header) {
    uint64_t ticks = u64(header, SC_TRACE_AT_TICKS_FIRST);
    uint64_t last = u64(header, SC_TRACE_AT_TICKS_LAST);
    uint64_t span_ns =
        u64(header, SC_TRACE_AT_MONOTONIC_LAST) - u64(header, SC_TRACE_AT_MONOTONIC_FIRST);
    if (last <= ticks || span_ns == 0 || span_ns >> 62) {
        return (struct clock_line){ticks, u64(header, SC_TRACE_AT_REALTIME_FIRST), 0};
    }
    return (struct clock_line){last, u64(header, SC_TRACE_AT_REALTIME_LAST),
                               (double)span_ns / (double)(last - ticks)};
}

/* Ticks and points of a damaged file may be anything. */
static int64_t to_ns(const struct clock_line *line, uint64_t ticks) {
    double behind =
        ticks >= line->ticks ? (double)(ticks - line->ticks) : -(double)(line->ticks - ticks);
    double shift = behind * (line->ns_per_tick > 0 ? line->ns_per_tick : 1);
    double limit = (double)SC_TRACE_TIME_LIMIT / 2;
    if (shift > limit) shift = limit;
    if (shift < -limit) shift = -limit;
    int64_t ns = (int64_t)(line->realtime % (uint64_t)SC_TRACE_TIME_LIMIT) + (int64_t)shift;
    if (ns < 0) return 0;
    return ns < SC_TRACE_TIME_LIMIT ? ns : SC_TRACE_TIME_LIMIT - 1;
}

static void fill_record(struct sc_trace_record *record, const unsigned char *bytes, int lane,
                        const struct clock_line *line) {
    uint64_t descriptor = u64(bytes, SC_TRACE_AT_DESCRIPTOR);
    uint64_t result = u64(bytes, SC_TRACE_AT_RESULT), complete = u64(bytes, SC_TRACE_AT_COMPLETE);
    record->lane = (uint8_t)lane;
    record->number = u64(bytes, SC_TRACE_AT_NUMBER);
    record->operation = (uint8_t)descriptor;
    record->dtype = (uint8_t)(descriptor >> 8);
    record->redop = (uint8_t)(descriptor >> 16);
    record->peer = (int32_t)(uint32_t)(descriptor >> 32);
    record->bytes = u64(bytes, SC_TRACE_AT_BYTES);
    record->stream = u64(bytes, SC_TRACE_AT_STREAM);
    record->submit_ns = to_ns(line, u64(bytes, SC_TRACE_AT_SUBMIT));
    record->is_complete = complete != 0;
    if (!record->is_complete) return;
    record->complete_ns = to_ns(line, complete);
    record->status = (int32_t)(result & 0xffff);
    record->is_captured = (result >> 16 & 1) != 0;
    record->epoch = (uint32_t)(result >> 32);
}

/* One lane, oldest first: the slot after the newest record's is the oldest's. */
static bool read_lane(struct sc_trace_file *file, const unsigned char *ring, size_t there,
                      uint64_t capacity, int lane, const struct clock_line *line) {
    uint64_t newest = 0; /* sequence of the newest record, even */
    size_t bad = 0;
    for (size_t slot = 0; slot < there; slot++) {
        uint64_t sequence = u64(ring + slot * SC_TRACE_RECORD_BYTES, SC_TRACE_AT_SEQUENCE);
        uint64_t position = (sequence - 1) / 2;
        bool fits = sequence != 0 && (position & (capacity - 1)) == slot;
        if (fits && (sequence + 1) / 2 * 2 > newest) newest = (sequence + 1) / 2 * 2;
    }
    uint64_t written = newest / 2, begin = written > capacity ? written - capacity : 0;
    file->is_wrapped[lane] = begin > 0;
    for (size_t slot = (size_t)(written < there ? written : there); slot < there; slot++) {
        if (u64(ring + slot * SC_TRACE_RECORD_BYTES, SC_TRACE_AT_SEQUENCE)) bad++;
    }
    for (uint64_t position = begin; position < written; position++) {
        size_t slot = (size_t)(position & (capacity - 1));
        if (slot >= there) continue;
        const unsigned char *bytes = ring + slot * SC_TRACE_RECORD_BYTES;
        /* Odd: the process ended while it wrote this one. Another lap's: overwritten or damaged. */
        uint64_t sequence = u64(bytes, SC_TRACE_AT_SEQUENCE);
        if (sequence != 2 * position + 2) {
            if (sequence != 2 * position + 1) bad++;
            continue;
        }
        struct sc_trace_record *record = sc_trace_add(file);
        if (!record) return false;
        fill_record(record, bytes, lane, line);
    }
    if (bad) {
        sc_trace_damage(file,
                        "%zu records of the %s lane are damaged, or were overwritten while the "
                        "file was read, and are left out",
                        bad, lane == SPARK_COMM_LANE_COMMAND ? "command" : "data");
    }
    return true;
}

static bool read_ring(struct sc_trace_file *file, const unsigned char *bytes, size_t size) {
    if (size < SC_TRACE_HEADER_BYTES) {
        sc_trace_damage(file, "cut off: %zu bytes, its header alone has %d", size,
                        SC_TRACE_HEADER_BYTES);
        return true;
    }
    uint32_t version = u32(bytes, SC_TRACE_AT_VERSION);
    if (version != SC_TRACE_VERSION) {
        sc_trace_damage(file, "written in version %u of the format, this program reads version %d",
                        version, SC_TRACE_VERSION);
        return true;
    }
    file->rank = (int)u32(bytes, SC_TRACE_AT_RANK);
    file->world_size = (int)u32(bytes, SC_TRACE_AT_WORLD_SIZE);
    file->pid = (int)u32(bytes, SC_TRACE_AT_PID);
    memcpy(file->library, bytes + SC_TRACE_AT_LIBRARY, sizeof file->library - 1);
    memcpy(file->backend, bytes + SC_TRACE_AT_BACKEND, sizeof file->backend - 1);
    uint32_t capacity = u32(bytes, SC_TRACE_AT_CAPACITY);
    if (!sc_trace_check_place(file)) return true;
    if (capacity == 0 || capacity > SC_TRACE_MAX_CAPACITY || (capacity & (capacity - 1))) {
        sc_trace_damage(file, "room for %u records per lane: its header is damaged", capacity);
        return true;
    }
    struct clock_line line = find_line(bytes);
    size_t lane_bytes = (size_t)capacity * SC_TRACE_RECORD_BYTES;
    size_t whole = SC_TRACE_HEADER_BYTES + SPARK_COMM_LANE_COUNT * lane_bytes;
    if (size < whole) sc_trace_damage(file, "cut off: %zu of %zu bytes", size, whole);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        size_t at = SC_TRACE_HEADER_BYTES + (size_t)lane * lane_bytes;
        size_t left = size > at ? size - at : 0;
        size_t there = (left < lane_bytes ? left : lane_bytes) / SC_TRACE_RECORD_BYTES;
        if (!read_lane(file, bytes + (there ? at : 0), there, capacity, lane, &line)) return false;
    }
    file->has_speed = line.ns_per_tick > 0;
    return true;
}

bool sc_trace_read_bytes(struct sc_trace_file *file, const unsigned char *bytes, size_t size) {
    file->rank = -1;
    if (size == 0) {
        sc_trace_damage(file, "empty");
        return true;
    }
    if (size >= 8 && memcmp(bytes, SC_TRACE_MAGIC, 8) == 0) return read_ring(file, bytes, size);
    if (bytes[0] == '{') return sc_trace_json(file, (const char *)bytes, size);
    sc_trace_damage(file, "no trace file: it begins with other bytes");
    return true;
}

/* The whole file; *bytes stays NULL when it cannot be opened, which is damage. */
static bool load(struct sc_trace_file *file, unsigned char **bytes, size_t *size) {
    size_t capacity = 0;
    FILE *in = fopen(file->name, "re");
    if (!in) {
        sc_trace_damage(file, "cannot be opened: %s", strerror(errno));
        return true;
    }
    do {
        if (*size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            unsigned char *more = realloc(*bytes, capacity);
            if (!more) break;
            *bytes = more;
        }
        *size += fread(*bytes + *size, 1, capacity - *size, in);
    } while (!feof(in) && !ferror(in) && *size < max_bytes);
    bool fits = feof(in) || ferror(in) || *size >= max_bytes;
    if (ferror(in)) sc_trace_damage(file, "cannot be read: %s", strerror(errno));
    fclose(in);
    return fits;
}

bool sc_trace_read(struct sc_trace_file *file, const char *path) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    *file = (struct sc_trace_file){.name = strdup(path), .rank = -1};
    bool good = file->name && load(file, &bytes, &size);
    if (good && bytes) good = sc_trace_read_bytes(file, bytes, size);
    free(bytes);
    return good;
}
