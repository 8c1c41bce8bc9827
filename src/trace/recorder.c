/*
 * Opening, reading and closing of the record rings. With a trace folder the rings are a mapped
 * file, named after rank and process, allocated in full so that a full disk shows at open and not
 * as a SIGBUS; without one they are private memory.
 */
#include "trace/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct sc_recorder_record) == 64, "a record is one cache line");
_Static_assert(sizeof(struct sc_recorder_header) <= SC_RECORDER_HEADER_BYTES,
               "the header fits its page");

enum { FIRST_MARK_TICKS = 1 << 20, MARK_PERIOD_NS = 1000000000 };

struct clocks {
    uint64_t ticks, realtime, monotonic;
};

static uint64_t clock_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* All clocks as close together as can be: the tightest of a few tries, since the thread may be
 * moved away in between. */
static struct clocks read_clocks(void) {
    struct clocks best = {0, 0, 0};
    uint64_t best_gap = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t before = sc_ticks_now();
        struct clocks now = {0, clock_ns(CLOCK_REALTIME), clock_ns(CLOCK_MONOTONIC)};
        uint64_t gap = sc_ticks_now() - before;
        if (gap >= best_gap) continue;
        best_gap = gap;
        best = now;
        best.ticks = before + gap / 2;
    }
    return best;
}

void sc_recorder_mark(struct sc_recorder *recorder) {
    struct sc_recorder_header *header = recorder->header;
    /* Acquire and release: a point is written by one thread at a time. */
    if (atomic_flag_test_and_set_explicit(&recorder->is_marking, memory_order_acquire)) return;
    struct clocks now = read_clocks();
    uint64_t first = atomic_load_explicit(&header->ticks_first, memory_order_relaxed);
    uint64_t span_ns =
        now.monotonic - atomic_load_explicit(&header->monotonic_first, memory_order_relaxed);
    uint64_t span = now.ticks - first;
    /* A killed rank's reader sees a whole point, or 0 in its first word. */
    atomic_store_explicit(&header->ticks_last, 0, memory_order_relaxed);
    atomic_store_explicit(&header->realtime_last, now.realtime, memory_order_release);
    atomic_store_explicit(&header->monotonic_last, now.monotonic, memory_order_release);
    atomic_store_explicit(&header->ticks_last, now.ticks, memory_order_release);
    /* The next one when the span has doubled, and at least once a second. */
    if (span_ns > MARK_PERIOD_NS)
        span = (uint64_t)((__int128)span * MARK_PERIOD_NS / (int64_t)span_ns);
    atomic_store_explicit(&recorder->mark_at, now.ticks + span, memory_order_relaxed);
    atomic_flag_clear_explicit(&recorder->is_marking, memory_order_release);
}

enum { MAX_FILES = 10000 }; /* of one rank and process in a folder */

/* An empty file of `bytes`, allocated; *fd is -1 where no folder is named. */
static spark_comm_status open_file(const struct sc_settings *settings, size_t bytes, int *fd,
                                   struct sc_error *error) {
    char path[640];
    spark_comm_status st = SPARK_COMM_OK;
    if (settings->trace_dir[0] == '\0') return SPARK_COMM_OK;
    /* A process may have several communicators with this rank, and a folder files of a process that
     * had this number before: never an existing file. */
    for (int nth = 0; *fd < 0 && nth < MAX_FILES; nth++) {
        snprintf(path, sizeof path, "%s/spark_comm.%d.%ld.%d.trace", settings->trace_dir,
                 settings->rank, (long)getpid(), nth);
        *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (*fd < 0 && errno != EEXIST) break;
    }
    if (*fd < 0)
        return sc_error_system(error, errno, "open: the trace file %s cannot be made", path);
    int code;
    do
        code = posix_fallocate(*fd, 0, (off_t)bytes);
    while (code == EINTR);
    if (code != 0) {
        st =
            sc_error_system(error, code, "open: no room for %zu bytes of trace in %s", bytes, path);
        close(*fd);
        *fd = -1;
        unlink(path);
    }
    return st;
}

static void fill_header(struct sc_recorder *recorder, const struct sc_settings *settings,
                        const char *backend) {
    struct sc_recorder_header *header = recorder->header;
    header->magic = SC_RECORDER_MAGIC;
    header->version = 1;
    header->capacity = recorder->mask + 1;
    header->rank = settings->rank;
    header->world_size = settings->world_size;
    header->pid = (int32_t)getpid();
    snprintf(header->library_version, sizeof header->library_version, "%d.%d.%d",
             SPARK_COMM_VERSION_MAJOR, SPARK_COMM_VERSION_MINOR, SPARK_COMM_VERSION_PATCH);
    snprintf(header->backend, sizeof header->backend, "%s", backend);
    struct clocks now = read_clocks();
    atomic_store_explicit(&header->ticks_first, now.ticks, memory_order_relaxed);
    atomic_store_explicit(&header->realtime_first, now.realtime, memory_order_relaxed);
    atomic_store_explicit(&header->monotonic_first, now.monotonic, memory_order_relaxed);
    atomic_store_explicit(&recorder->mark_at, now.ticks + FIRST_MARK_TICKS, memory_order_relaxed);
}

spark_comm_status sc_recorder_open(struct sc_recorder *recorder, const struct sc_settings *settings,
                                   const char *backend, struct sc_error *error) {
    size_t ring = (size_t)settings->trace_records * sizeof(struct sc_recorder_record);
    size_t bytes = SC_RECORDER_HEADER_BYTES + SPARK_COMM_LANE_COUNT * ring;
    int fd = -1;
    memset(recorder, 0, sizeof *recorder);
    spark_comm_status st = open_file(settings, bytes, &fd, error);
    if (st != SPARK_COMM_OK) return st;
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0) close(fd);
    if (memory == MAP_FAILED)
        return sc_error_system(error, errno, "open: no memory for %zu bytes of records", bytes);
    recorder->header = (struct sc_recorder_header *)(void *)memory;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        recorder->rings[lane] = (void *)(memory + SC_RECORDER_HEADER_BYTES + (size_t)lane * ring);
    recorder->mapped_bytes = bytes;
    recorder->mask = (uint32_t)settings->trace_records - 1;
    atomic_flag_clear(&recorder->is_marking);
    fill_header(recorder, settings, backend);
    if (fd < 0) atomic_store_explicit(&recorder->mark_at, UINT64_MAX, memory_order_relaxed);
    return SPARK_COMM_OK;
}

void sc_recorder_close(struct sc_recorder *recorder) {
    if (recorder->header != NULL) {
        sc_recorder_mark(recorder);
        munmap(recorder->header, recorder->mapped_bytes);
    }
    memset(recorder, 0, sizeof *recorder);
}

bool sc_recorder_read(const struct sc_recorder *recorder, int lane, uint64_t position,
                      struct sc_recorder_entry *entry) {
    const struct sc_recorder_record *record = &recorder->rings[lane][position & recorder->mask];
    /* Acquire loads all the way: partner of the release stores in sc_recorder_begin and
     * sc_recorder_end. */
    if (atomic_load_explicit(&record->sequence, memory_order_acquire) != 2 * position + 2)
        return false;
    entry->number = atomic_load_explicit(&record->number, memory_order_acquire);
    entry->descriptor = atomic_load_explicit(&record->descriptor, memory_order_acquire);
    entry->bytes = atomic_load_explicit(&record->bytes, memory_order_acquire);
    entry->stream = atomic_load_explicit(&record->stream, memory_order_acquire);
    entry->submit_ticks = atomic_load_explicit(&record->submit_ticks, memory_order_acquire);
    entry->complete_ticks = atomic_load_explicit(&record->complete_ticks, memory_order_acquire);
    entry->result = atomic_load_explicit(&record->result, memory_order_acquire);
    return atomic_load_explicit(&record->sequence, memory_order_relaxed) == 2 * position + 2;
}
