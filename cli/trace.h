/*
 * spark-comm trace: reading the trace files of all ranks, laying them side by side, and showing
 * where the ranks went apart.
 *
 *   trace_file.c    what both formats share
 *   trace_read.c    ring files (SPARK_COMM_TRACE_DIR)
 *   trace_json.c    JSON lines (spark_comm_trace_write)
 *   trace_merge.c   which files belong together, epochs, clocks
 *   trace_compare.c rows, and the first one at which the ranks differ
 *   trace_print.c   the table
 *   trace_chrome.c  the Chrome trace event format
 *
 * The files are input from outside: whatever they hold, nothing is read past them, and what is
 * damaged is named while the rest is shown. docs/trace-format.md describes both formats.
 */
#ifndef SC_TRACE_H
#define SC_TRACE_H

#include "spark_comm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The layout of a ring file, little endian: the header below, then the command lane's records, then
 * the data lane's. A test holds this against the library's own structs. */
#define SC_TRACE_MAGIC "SCTRACE1"
enum {
    SC_TRACE_VERSION = 1,
    SC_TRACE_HEADER_BYTES = 4096,
    SC_TRACE_RECORD_BYTES = 64,
    SC_TRACE_MAX_CAPACITY = 1 << 20, /* records per lane */

    SC_TRACE_AT_VERSION = 8, /* u32, as the next four */
    SC_TRACE_AT_CAPACITY = 12,
    SC_TRACE_AT_RANK = 16,
    SC_TRACE_AT_WORLD_SIZE = 20,
    SC_TRACE_AT_PID = 24,
    SC_TRACE_AT_TICKS_FIRST = 32, /* u64, as the next three */
    SC_TRACE_AT_REALTIME_FIRST = 40,
    SC_TRACE_AT_TICKS_LAST = 48,
    SC_TRACE_AT_REALTIME_LAST = 56,
    SC_TRACE_AT_LIBRARY = 64, /* text, 32 bytes */
    SC_TRACE_AT_BACKEND = 96, /* text, 32 bytes */
    SC_TRACE_AT_MONOTONIC_FIRST = 144, /* u64 */
    SC_TRACE_AT_MONOTONIC_LAST = 152, /* u64 */

    SC_TRACE_AT_SEQUENCE = 0, /* in a record, all u64 */
    SC_TRACE_AT_NUMBER = 8,
    SC_TRACE_AT_DESCRIPTOR = 16,
    SC_TRACE_AT_BYTES = 24,
    SC_TRACE_AT_STREAM = 32,
    SC_TRACE_AT_SUBMIT = 40,
    SC_TRACE_AT_COMPLETE = 48,
    SC_TRACE_AT_RESULT = 56
};

/* Times are from 1970 to 2096, and shifted by 30 years at most, so that no sum of them overflows. */
#define SC_TRACE_TIME_LIMIT INT64_C(4000000000000000000)
#define SC_TRACE_SHIFT_LIMIT INT64_C(1000000000000000000)

struct sc_trace_record {
    uint64_t number;
    uint64_t bytes;
    uint64_t stream;
    int64_t submit_ns; /* CLOCK_REALTIME of its rank's host */
    int64_t complete_ns;
    uint32_t epoch; /* 0: not complete, and not yet inferred */
    int32_t peer; /* -1: none */
    int32_t status;
    uint8_t lane;
    uint8_t operation;
    uint8_t dtype; /* 0: none */
    uint8_t redop; /* 0: none */
    bool is_complete;
    bool is_captured;
    char path[14]; /* empty: not known */
};

struct sc_trace_file {
    char *name;
    int rank; /* -1: nothing could be read */
    int world_size;
    int pid;
    uint32_t epoch; /* when it was written; 0: not known */
    char library[32];
    char backend[32];
    char damage[256]; /* empty: none */
    bool is_partial; /* records may be missing because of the damage */
    bool has_speed; /* of its clock; else a tick counts as a nanosecond */
    bool is_wrapped[SPARK_COMM_LANE_COUNT]; /* older records were overwritten */
    struct sc_trace_record *records; /* by lane, oldest first */
    size_t count;
    size_t capacity;
    /* Set by the merge. */
    int communicator; /* files of one number belong together; from 0 */
    size_t owner; /* index into sc_trace.ranks */
    int64_t shift_ns; /* added to its times */
    int64_t low_ns, high_ns; /* the shift lies between; low > high: nothing bounds it */
    int64_t all_low_ns, all_high_ns; /* the same, the calls included that the clocks as they are do not allow */
    size_t met, against; /* calls that bound it; those of them that the clocks as they are do not allow */
};

/* trace_read.c, trace_json.c. False when memory ran out; all other trouble is file->damage. */
bool sc_trace_read(struct sc_trace_file *file, const char *path);
bool sc_trace_read_bytes(struct sc_trace_file *file, const unsigned char *bytes, size_t size);
bool sc_trace_json(struct sc_trace_file *file, const char *text, size_t size);
bool sc_trace_check_place(struct sc_trace_file *file);

/* trace_file.c. */
void sc_trace_free(struct sc_trace_file *file);
/* The first damage stays. */
__attribute__((format(printf, 2, 3))) void sc_trace_damage(struct sc_trace_file *file,
                                                           const char *format, ...);
/* A zeroed record at the end of the file's; NULL when memory ran out. */
struct sc_trace_record *sc_trace_add(struct sc_trace_file *file);
const char *sc_trace_operation_name(int operation);
int sc_trace_operation(const char *name); /* 0: unknown */

/* One record in its place. A row is all items that are equal up to `number`, a stream all that are
 * equal up to `to`: a lane of an epoch, or the messages of one rank to another. */
struct sc_trace_item {
    int communicator;
    uint32_t epoch;
    int kind; /* the lane, or SC_TRACE_MESSAGES */
    int from, to; /* of messages; else 0 */
    uint64_t number;
    int slot; /* the rank; of messages 0 the sender, 1 the receiver */
    const struct sc_trace_record *record;
    const struct sc_trace_file *file;
};
enum { SC_TRACE_MESSAGES = SPARK_COMM_LANE_COUNT };

/* A rank that has files in a communicator. */
struct sc_trace_rank {
    int communicator;
    int rank;
    /* Since when it has every record of a lane: INT64_MIN from the start on, INT64_MAX when that is
     * not known, because a file is damaged. */
    int64_t since_ns[SPARK_COMM_LANE_COUNT];
};

struct sc_trace_stream {
    size_t begin, end; /* items */
    size_t divergence; /* first item of the first row that differs; `end`: none */
    int64_t divergence_ns; /* when the first rank entered it */
};

struct sc_trace {
    struct sc_trace_file *files;
    size_t file_count;
    int communicators;
    struct sc_trace_rank *ranks; /* sorted */
    size_t rank_count;
    struct sc_trace_item *items; /* sorted */
    size_t item_count;
    struct sc_trace_stream *streams; /* those with a divergence first, the earliest on top */
    size_t stream_count;
    int64_t end_ns; /* the last time that any file names */
};

/* trace_merge.c. The files stay the caller's. False when memory ran out. */
bool sc_trace_merge(struct sc_trace *trace, struct sc_trace_file *files, size_t count);
void sc_trace_destroy(struct sc_trace *trace);

/* trace_compare.c. */
bool sc_trace_compare(struct sc_trace *trace);
bool sc_trace_is_message(const struct sc_trace_record *record);
/* By everything up to `to`: equal items are of one stream. */
int sc_trace_compare_places(const struct sc_trace_item *a, const struct sc_trace_item *b);
size_t sc_trace_row_end(const struct sc_trace *trace, size_t begin, size_t end);
/* Whether two records of one row describe the same call. */
bool sc_trace_same_call(const struct sc_trace_record *a, const struct sc_trace_record *b);
/* Whether no rank's call can end before every rank's has begun, and this one has ended well. On
 * stream-ordered backends that holds for the hosts' operations alone. */
bool sc_trace_is_meeting(const struct sc_trace_item *item);
/* The ranks that have files in a communicator: from *begin to the result. */
size_t sc_trace_ranks_of(const struct sc_trace *trace, int communicator, size_t *begin);
/* The slots of the row at `begin`, as ranks of one communicator: all that have files, or sender and
 * receiver. Whether this one has not entered it: false too when that is not known, because it has
 * no file, a damaged one, or newer records in the place of this one. */
bool sc_trace_is_missing(const struct sc_trace *trace, const struct sc_trace_stream *stream,
                         size_t begin, int slot);

/* trace_print.c, trace_chrome.c. `rows`: how many around each divergence, or of the end of each
 * stream; -1: all. */
void sc_trace_print(const struct sc_trace *trace, int rows, FILE *out);
bool sc_trace_chrome(const struct sc_trace *trace, FILE *out);

#endif
