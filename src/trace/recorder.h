/*
 * The recorder: one ring of records per lane, always on. A record is one cache line, written by the
 * thread that holds the lane with relaxed stores; anybody may read at any time and sees either a
 * whole record or one that is marked as changing (its sequence word is odd: a sequence lock per
 * record). With SPARK_COMM_TRACE_DIR the rings live in a mapped file, so that a killed rank leaves
 * its own.
 *
 * File layout: struct sc_recorder_header (4,096 bytes with padding), then the command lane's ring,
 * then the data lane's, each `capacity` records of 64 bytes, in the byte order of the machine.
 * docs/trace-format.md describes it for readers, who depend on it: change both together.
 */
#ifndef SC_TRACE_RECORDER_H
#define SC_TRACE_RECORDER_H

#include <stdatomic.h>

#include "base/error.h"
#include "base/settings.h"
#include "base/ticks.h"

#define SC_RECORDER_MAGIC UINT64_C(0x3145434152544353) /* "SCTRACE1" */
#define SC_RECORDER_HEADER_BYTES 4096

struct sc_recorder_record {
    _Alignas(64) _Atomic uint64_t
        sequence; /* 2 * position + 1 while it changes, 2 * position + 2 when whole; 0: empty */
    _Atomic uint64_t number;
    _Atomic uint64_t descriptor; /* kind, dtype, redop, peer as in sc_recorder_describe */
    _Atomic uint64_t bytes;
    _Atomic uint64_t stream;
    _Atomic uint64_t submit_ticks;
    _Atomic uint64_t complete_ticks; /* 0: not complete */
    _Atomic uint64_t result; /* status in bits 0-15, captured in bit 16, epoch in bits 32-63 */
};

struct sc_recorder_header {
    uint64_t magic;
    uint32_t version; /* 1 */
    uint32_t capacity;
    int32_t rank;
    int32_t world_size;
    int32_t pid;
    int32_t reserved;
    /* Two points at which the clocks were read together: the first at open, the second about once
     * a second (sc_recorder_mark); ticks_last is 0 while the second is written. The slope comes from
     * CLOCK_MONOTONIC, which nobody sets. */
    _Atomic uint64_t ticks_first, realtime_first, ticks_last, realtime_last;
    char library_version[32];
    char backend[32];
    _Atomic uint64_t heads[SPARK_COMM_LANE_COUNT]; /* records written so far */
    _Atomic uint64_t monotonic_first, monotonic_last;
};

struct sc_recorder {
    struct sc_recorder_header *header; /* mapped: private memory, or the file */
    struct sc_recorder_record *rings[SPARK_COMM_LANE_COUNT];
    size_t mapped_bytes;
    uint32_t mask;
    _Atomic uint64_t mark_at; /* ticks at which the second point is due; never without a file */
    atomic_flag is_marking;
};

static inline uint64_t sc_recorder_describe(int kind, int dtype, int redop, int peer) {
    return (uint64_t)(uint8_t)kind | (uint64_t)(uint8_t)dtype << 8 |
           (uint64_t)(uint8_t)redop << 16 | (uint64_t)(uint32_t)peer << 32;
}

spark_comm_status sc_recorder_open(struct sc_recorder *recorder, const struct sc_settings *settings,
                                   const char *backend, struct sc_error *error);
/* Fine on a zeroed one. The file stays. */
void sc_recorder_close(struct sc_recorder *recorder);

/* Takes the second point of the clocks. Any thread; one that finds another at it leaves. */
void sc_recorder_mark(struct sc_recorder *recorder);

/* Lane held. Opens the next record and returns it. */
static inline struct sc_recorder_record *sc_recorder_begin(struct sc_recorder *recorder, int lane,
                                                           uint64_t number, uint64_t descriptor,
                                                           uint64_t bytes, uint64_t stream,
                                                           uint64_t ticks) {
    /* Relaxed: a point that comes an operation later is as good. */
    if (__builtin_expect(ticks >= atomic_load_explicit(&recorder->mark_at, memory_order_relaxed),
                         0))
        sc_recorder_mark(recorder);
    /* The head has one writer, the lane's holder; readers take it as a hint, the record's
     * sequence decides. */
    uint64_t position = atomic_load_explicit(&recorder->header->heads[lane], memory_order_relaxed);
    struct sc_recorder_record *record = &recorder->rings[lane][position & recorder->mask];
    atomic_store_explicit(&record->sequence, 2 * position + 1, memory_order_relaxed);
    /* Each field is released, so that nobody sees a new field without the odd sequence before it
     * (partner: the acquire loads of sc_recorder_read, which looks at the sequence again
     * afterwards). Free on x86-64. */
    atomic_store_explicit(&record->number, number, memory_order_release);
    atomic_store_explicit(&record->descriptor, descriptor, memory_order_release);
    atomic_store_explicit(&record->bytes, bytes, memory_order_release);
    atomic_store_explicit(&record->stream, stream, memory_order_release);
    atomic_store_explicit(&record->submit_ticks, ticks, memory_order_release);
    atomic_store_explicit(&record->complete_ticks, 0, memory_order_release);
    atomic_store_explicit(&record->result, 0, memory_order_release);
    atomic_store_explicit(&record->sequence, 2 * position + 2, memory_order_release);
    atomic_store_explicit(&recorder->header->heads[lane], position + 1, memory_order_relaxed);
    return record;
}

static inline void sc_recorder_end(struct sc_recorder_record *record, int status, bool captured,
                                   uint32_t epoch, uint64_t ticks) {
    uint64_t result = (uint64_t)(uint16_t)status | (uint64_t)captured << 16 | (uint64_t)epoch << 32;
    atomic_store_explicit(&record->result, result, memory_order_relaxed);
    atomic_store_explicit(&record->complete_ticks, ticks, memory_order_release);
}

/* A copy of one record as plain numbers; false when it is empty, was overwritten or is changing. */
struct sc_recorder_entry {
    uint64_t number, descriptor, bytes, stream, submit_ticks, complete_ticks, result;
};
bool sc_recorder_read(const struct sc_recorder *recorder, int lane, uint64_t position,
                      struct sc_recorder_entry *entry);

/* Writes both lanes' records as JSON lines, oldest first (docs/trace-format.md). path_of names
 * the way an operation of that size was served (NULL: unknown). */
spark_comm_status sc_recorder_write(const struct sc_recorder *recorder, const char *path,
                                    uint32_t epoch,
                                    const char *(*path_of)(void *arg, int operation,
                                                           uint64_t bytes),
                                    void *arg, struct sc_error *error);

#endif
