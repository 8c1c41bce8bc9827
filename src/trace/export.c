/*
 * The records as JSON lines: a header object, then one object per record, the command lane first,
 * each lane oldest first. Plain numbers and names from fixed lists, so nothing needs escaping.
 * Times are CLOCK_REALTIME nanoseconds, so that files of several hosts can be laid over each other
 * as well as their clocks agree. docs/trace-format.md describes every key.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/status.h"
#include "trace/recorder.h"

struct writer {
    FILE *file;
    int64_t realtime_offset; /* CLOCK_REALTIME minus CLOCK_MONOTONIC, nanoseconds */
    const char *(*path_of)(void *arg, int operation, uint64_t bytes);
    void *arg;
};

static int64_t realtime_offset(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec - sc_deadline_now();
}

static int64_t to_realtime(const struct writer *writer, uint64_t ticks) {
    return sc_ticks_to_ns(ticks) + writer->realtime_offset;
}

static void write_record(const struct writer *writer, int lane,
                         const struct sc_recorder_entry *entry) {
    int operation = (int)(entry->descriptor & 0xff), dtype = (int)(entry->descriptor >> 8 & 0xff);
    int redop = (int)(entry->descriptor >> 16 & 0xff),
        peer = (int)(int32_t)(uint32_t)(entry->descriptor >> 32);
    const char *path =
        writer->path_of != NULL ? writer->path_of(writer->arg, operation, entry->bytes) : NULL;
    fprintf(writer->file, "{\"lane\":\"%s\",\"number\":%" PRIu64 ",\"epoch\":%u,\"op\":\"%s\"",
            lane == SPARK_COMM_LANE_COMMAND ? "command" : "data", entry->number,
            (unsigned)(entry->result >> 32), sc_status_operation_name(operation));
    fprintf(writer->file, ",\"dtype\":%s%s%s,\"redop\":%s%s%s", dtype ? "\"" : "",
            dtype ? sc_dtype_name(dtype) : "null", dtype ? "\"" : "", redop ? "\"" : "",
            redop ? sc_dtype_redop_name(redop) : "null", redop ? "\"" : "");
    fprintf(writer->file,
            ",\"bytes\":%" PRIu64 ",\"peer\":%d,\"stream\":%" PRIu64
            ",\"path\":\"%s\",\"captured\":%s",
            entry->bytes, peer, entry->stream, path != NULL ? path : "",
            entry->result >> 16 & 1 ? "true" : "false");
    fprintf(writer->file, ",\"submit_ns\":%" PRId64, to_realtime(writer, entry->submit_ticks));
    if (entry->complete_ticks != 0)
        fprintf(writer->file, ",\"complete_ns\":%" PRId64 ",\"status\":\"%s\"}\n",
                to_realtime(writer, entry->complete_ticks),
                sc_status_name((int)(entry->result & 0xffff)));
    else
        fprintf(writer->file, ",\"complete_ns\":null,\"status\":null}\n");
}

static void write_lane(const struct writer *writer, const struct sc_recorder *recorder, int lane) {
    uint64_t head = atomic_load_explicit(&recorder->header->heads[lane], memory_order_relaxed);
    uint64_t capacity = (uint64_t)recorder->mask + 1;
    struct sc_recorder_entry entry;
    for (uint64_t position = head > capacity ? head - capacity : 0; position < head; position++)
        if (sc_recorder_read(recorder, lane, position, &entry)) write_record(writer, lane, &entry);
}

spark_comm_status sc_recorder_write(const struct sc_recorder *recorder, const char *path,
                                    uint32_t epoch,
                                    const char *(*path_of)(void *arg, int operation,
                                                           uint64_t bytes),
                                    void *arg, struct sc_error *error) {
    const struct sc_recorder_header *header = recorder->header;
    struct writer writer = {NULL, realtime_offset(), path_of, arg};
    spark_comm_status st = SPARK_COMM_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) writer.file = fdopen(fd, "w");
    if (writer.file == NULL) {
        st = sc_error_system(error, errno, "trace_write: %s cannot be opened for writing", path);
        if (fd >= 0) close(fd);
        return st;
    }
    fprintf(
        writer.file,
        "{\"spark_comm_trace\":1,\"version\":\"%s\",\"backend\":\"%s\",\"rank\":%d,\"world_size\":%d,\"pid\":%d,"
        "\"epoch\":%u}\n",
        header->library_version, header->backend, header->rank, header->world_size, header->pid,
        (unsigned)epoch);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        write_lane(&writer, recorder, lane);
    bool failed = ferror(writer.file) != 0;
    if (fclose(writer.file) != 0 || failed)
        st = sc_error_system(error, errno, "trace_write: writing to %s failed", path);
    return st;
}
