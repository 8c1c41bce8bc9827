/*
 * The reader behind `spark-comm trace`, on files made by hand byte by byte and on the recorder's
 * own: what is read, what is damage, and where the ranks went apart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trace.h"
#include "trace/recorder.h"

/* ---- One layout, described twice ---- */

#define SAME(at, type, member) \
    _Static_assert((size_t)(at) == offsetof(type, member), "the reader's layout is the recorder's")
SAME(SC_TRACE_AT_VERSION, struct sc_recorder_header, version);
SAME(SC_TRACE_AT_CAPACITY, struct sc_recorder_header, capacity);
SAME(SC_TRACE_AT_RANK, struct sc_recorder_header, rank);
SAME(SC_TRACE_AT_WORLD_SIZE, struct sc_recorder_header, world_size);
SAME(SC_TRACE_AT_PID, struct sc_recorder_header, pid);
SAME(SC_TRACE_AT_TICKS_FIRST, struct sc_recorder_header, ticks_first);
SAME(SC_TRACE_AT_REALTIME_FIRST, struct sc_recorder_header, realtime_first);
SAME(SC_TRACE_AT_TICKS_LAST, struct sc_recorder_header, ticks_last);
SAME(SC_TRACE_AT_REALTIME_LAST, struct sc_recorder_header, realtime_last);
SAME(SC_TRACE_AT_LIBRARY, struct sc_recorder_header, library_version);
SAME(SC_TRACE_AT_BACKEND, struct sc_recorder_header, backend);
SAME(SC_TRACE_AT_MONOTONIC_FIRST, struct sc_recorder_header, monotonic_first);
SAME(SC_TRACE_AT_MONOTONIC_LAST, struct sc_recorder_header, monotonic_last);
SAME(SC_TRACE_AT_SEQUENCE, struct sc_recorder_record, sequence);
SAME(SC_TRACE_AT_NUMBER, struct sc_recorder_record, number);
SAME(SC_TRACE_AT_DESCRIPTOR, struct sc_recorder_record, descriptor);
SAME(SC_TRACE_AT_BYTES, struct sc_recorder_record, bytes);
SAME(SC_TRACE_AT_STREAM, struct sc_recorder_record, stream);
SAME(SC_TRACE_AT_SUBMIT, struct sc_recorder_record, submit_ticks);
SAME(SC_TRACE_AT_COMPLETE, struct sc_recorder_record, complete_ticks);
SAME(SC_TRACE_AT_RESULT, struct sc_recorder_record, result);
_Static_assert(SC_TRACE_HEADER_BYTES == SC_RECORDER_HEADER_BYTES, "header");
_Static_assert(SC_TRACE_RECORD_BYTES == sizeof(struct sc_recorder_record), "record");

/* ---- Files made by hand ---- */

#define T0 INT64_C(1796040000000000000) /* a time of day, nanoseconds */
#define TICKS0 UINT64_C(7000000) /* and the ticks then; two nanoseconds each */
enum { CAPACITY = 64, RING_BYTES = 4096 + 2 * CAPACITY * 64, COMMAND = 0, DATA = 1 };

struct ring {
    unsigned char bytes[RING_BYTES];
    uint64_t written[2];
};

static void put(unsigned char *bytes, int count, uint64_t value) {
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static void make_ring(struct ring *ring, int rank, int world_size, int pid) {
    memset(ring, 0, sizeof *ring);
    memcpy(ring->bytes, "SCTRACE1", 8);
    put(ring->bytes + 8, 4, 1);
    put(ring->bytes + 12, 4, CAPACITY);
    put(ring->bytes + 16, 4, (uint64_t)rank);
    put(ring->bytes + 20, 4, (uint64_t)world_size);
    put(ring->bytes + 24, 4, (uint64_t)pid);
    put(ring->bytes + 32, 8, TICKS0 - 500000);
    put(ring->bytes + 40, 8, 1); /* of the first point the time of day is not needed */
    put(ring->bytes + 48, 8, TICKS0);
    put(ring->bytes + 56, 8, (uint64_t)T0);
    strcpy((char *)ring->bytes + 64, "0.1.0");
    strcpy((char *)ring->bytes + 96, "shm");
    put(ring->bytes + 144, 8, 90000);
    put(ring->bytes + 152, 8, 90000 + 1000000);
}

struct call {
    int lane;
    uint64_t number;
    int op, dtype, redop, peer;
    uint64_t bytes;
    int64_t start_ns; /* after T0 */
    int64_t took_ns; /* -1: not complete */
    int status;
    uint32_t epoch;
};

static void record(struct ring *ring, struct call call) {
    uint64_t position = ring->written[call.lane]++;
    unsigned char *at =
        ring->bytes + 4096 + (size_t)call.lane * CAPACITY * 64 + position % CAPACITY * 64;
    put(at, 8, 2 * position + 2);
    put(at + 8, 8, call.number);
    put(at + 16, 8,
        (uint64_t)call.op | (uint64_t)call.dtype << 8 | (uint64_t)call.redop << 16 |
            (uint64_t)(uint32_t)call.peer << 32);
    put(at + 24, 8, call.bytes);
    put(at + 40, 8, TICKS0 + (uint64_t)(call.start_ns / 2));
    bool complete = call.took_ns >= 0;
    put(at + 48, 8, complete ? TICKS0 + (uint64_t)((call.start_ns + call.took_ns) / 2) : 0);
    put(at + 56, 8, complete ? (uint64_t)call.status | (uint64_t)call.epoch << 32 : 0);
}

/* One all_reduce of 8192 bytes a millisecond. */
static struct call reduce(uint64_t number) {
    return (struct call){.lane = DATA,
                         .number = number,
                         .op = SPARK_COMM_OP_ALL_REDUCE,
                         .dtype = SPARK_COMM_BF16,
                         .redop = SPARK_COMM_SUM,
                         .peer = -1,
                         .bytes = 8192,
                         .start_ns = (int64_t)number * 1000000,
                         .took_ns = 5000,
                         .epoch = 1};
}

static void reduce_many(struct ring *ring, uint64_t from, uint64_t to) {
    for (uint64_t number = from; number <= to; number++)
        record(ring, reduce(number));
}

/* ---- A merge of what was made ---- */

static struct ring rings[4];
static struct sc_trace_file files[8];
static struct sc_trace trace;
static size_t file_count;

static struct sc_trace_file *add(const void *bytes, size_t size) {
    struct sc_trace_file *file = &files[file_count];
    char name[16];
    snprintf(name, sizeof name, "file%zu", file_count++);
    *file = (struct sc_trace_file){.name = strdup(name)};
    /* A block of just that size, so that a sanitizer sees a read past it. */
    unsigned char *copy = malloc(size ? size : 1);
    memcpy(copy, bytes, size);
    assert_true(sc_trace_read_bytes(file, copy, size));
    free(copy);
    return file;
}

static void add_rings(int count) {
    for (int i = 0; i < count; i++)
        assert_string_equal(add(rings[i].bytes, RING_BYTES)->damage, "");
}

static char *printed; /* by the last merge */
static size_t printed_size;

static void merge(void) {
    assert_true(sc_trace_merge(&trace, files, file_count));
    free(printed);
    printed = NULL;
    FILE *out = open_memstream(&printed, &printed_size);
    sc_trace_print(&trace, 3, out);
    fclose(out);
}

static int teardown(void **state) {
    (void)state;
    sc_trace_destroy(&trace);
    for (size_t i = 0; i < file_count; i++)
        sc_trace_free(&files[i]);
    file_count = 0;
    free(printed);
    printed = NULL;
    return 0;
}

static void make_rings(int count) {
    for (int i = 0; i < count; i++)
        make_ring(&rings[i], i, count, 100 + i);
}

/* The divergence that is on top: its stream and number. */
static void expect_first(uint32_t epoch, int kind, uint64_t number) {
    const struct sc_trace_stream *stream = &trace.streams[0];
    assert_true(trace.stream_count > 0 && stream->divergence < stream->end);
    assert_int_equal(trace.items[stream->divergence].epoch, epoch);
    assert_int_equal(trace.items[stream->divergence].kind, kind);
    assert_int_equal(trace.items[stream->divergence].number, number);
}

static void expect_none(void) {
    for (size_t i = 0; i < trace.stream_count; i++)
        assert_true(trace.streams[i].divergence == trace.streams[i].end);
}

static void expect_text(const char *text) {
    if (strstr(printed, text) == NULL) print_error("%s\n", printed);
    assert_non_null(strstr(printed, text));
}

static bool has_text(const char *text) {
    return strstr(printed, text) != NULL;
}

/* ---- Reading ---- */

static void clean_files_agree(void **state) {
    (void)state;
    make_rings(3);
    for (int i = 0; i < 3; i++)
        reduce_many(&rings[i], 1, 40);
    add_rings(3);
    merge();
    expect_none();
    assert_int_equal(trace.item_count, 120);
    const struct sc_trace_record *record = trace.items[3 * 6].record; /* #7 of rank 0 */
    assert_int_equal(record->number, 7);
    assert_int_equal(record->bytes, 8192);
    assert_int_equal(record->dtype, SPARK_COMM_BF16);
    assert_int_equal(record->redop, SPARK_COMM_SUM);
    assert_int_equal(record->peer, -1);
    assert_int_equal(record->submit_ns, T0 + 7000000);
    assert_int_equal(record->complete_ns, T0 + 7005000);
    assert_int_equal(files[1].rank, 1);
    assert_int_equal(files[1].pid, 101);
    assert_string_equal(files[1].backend, "shm");
    expect_text("no divergence: epoch 1, data lane, #1 to #40");
    expect_text("+0.0us 5.0us");
    assert_false(has_text("NO FILE"));
}

static void a_cut_file_shows_the_rest(void **state) {
    (void)state;
    make_rings(2);
    for (int i = 0; i < 2; i++)
        reduce_many(&rings[i], 1, 40);
    /* In the middle of the 21st record of the data lane. */
    size_t size = 4096 + CAPACITY * 64 + 20 * 64 + 30;
    add(rings[0].bytes, RING_BYTES);
    struct sc_trace_file *cut = add(rings[1].bytes, size);
    assert_int_equal(cut->count, 20);
    assert_int_equal(cut->records[19].number, 20);
    assert_non_null(strstr(cut->damage, "cut off"));
    merge();
    expect_none(); /* what was cut off is not known to differ */
    expect_text("DAMAGED: cut off: 9502 of 12288 bytes");
    /* Wherever it is cut, the rest is read. */
    for (size = 0; size < RING_BYTES; size += 61) {
        struct sc_trace_file *file = add(rings[1].bytes, size);
        size_t whole = size > 4096 + CAPACITY * 64 ? (size - 4096 - CAPACITY * 64) / 64 : 0;
        assert_int_equal(file->count, whole < 40 ? whole : 40);
        assert_true(file->damage[0] != 0);
        sc_trace_free(file);
        file_count--;
    }
}

static void expect_damage(const char *text) {
    struct sc_trace_file *file = add(rings[0].bytes, RING_BYTES);
    if (strstr(file->damage, text) == NULL) print_error("damage: %s\n", file->damage);
    assert_non_null(strstr(file->damage, text));
}

static void other_files_are_named(void **state) {
    (void)state;
    make_rings(1);
    reduce_many(&rings[0], 1, 3);
    put(rings[0].bytes + 8, 4, 2);
    expect_damage("version 2 of the format, this program reads version 1");
    put(rings[0].bytes + 8, 4, 1);
    put(rings[0].bytes + 12, 4, 63);
    expect_damage("room for 63 records");
    put(rings[0].bytes + 12, 4, 0xffffffff);
    expect_damage("its header is damaged");
    put(rings[0].bytes + 12, 4, CAPACITY);
    put(rings[0].bytes + 16, 4, 1);
    expect_damage("rank 1 of 1");
    rings[0].bytes[0] = 'X';
    expect_damage("no trace file");
    assert_string_equal(add("", 0)->damage, "empty");
    merge();
    assert_int_equal(trace.item_count, 0);
    expect_text("DAMAGED: empty");
}

static void damaged_and_unfinished_records_are_left_out(void **state) {
    (void)state;
    make_rings(1);
    reduce_many(&rings[0], 1, 10);
    unsigned char *data = rings[0].bytes + 4096 + CAPACITY * 64;
    put(data + 9 * 64, 8, 2 * 9 + 1); /* killed while it wrote the last one */
    struct sc_trace_file *file = add(rings[0].bytes, RING_BYTES);
    assert_string_equal(file->damage, "");
    assert_int_equal(file->count, 9);
    put(data + 3 * 64, 8, UINT64_C(0x123456789abcdef0)); /* in no place of this one */
    file = add(rings[0].bytes, RING_BYTES);
    assert_int_equal(file->count, 8);
    assert_non_null(strstr(file->damage, "1 records of the data lane are damaged"));
}

static void the_recorders_own_file_is_read(void **state) {
    (void)state;
    char folder[] = "/tmp/spark_comm-trace-XXXXXX", path[600];
    struct sc_settings settings = {.rank = 2, .world_size = 4, .trace_records = 64};
    struct sc_recorder recorder;
    struct timespec before, after;
    assert_non_null(mkdtemp(folder));
    snprintf(settings.trace_dir, sizeof settings.trace_dir, "%s", folder);
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", NULL), SPARK_COMM_OK);
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_REALTIME, &before);
    uint64_t submit = sc_ticks_now();
    struct sc_recorder_record *open = sc_recorder_begin(
        &recorder, DATA, 5, sc_recorder_describe(SPARK_COMM_OP_ALL_GATHER, SPARK_COMM_F32, 0, -1),
        640, 9, submit);
    nanosleep(&pause, NULL);
    sc_recorder_end(open, SPARK_COMM_OP_TIMEOUT, false, 3, sc_ticks_now());
    clock_gettime(CLOCK_REALTIME, &after);
    snprintf(path, sizeof path, "%s/spark_comm.2.%ld.0.trace", folder, (long)getpid());
    /* As a killed process leaves it, and as one that closed. */
    for (int round = 0; round < 2; round++) {
        struct sc_trace_file *file = &files[file_count++];
        assert_true(sc_trace_read(file, path));
        assert_string_equal(file->damage, "");
        assert_int_equal(file->rank, 2);
        assert_int_equal(file->world_size, 4);
        assert_int_equal(file->pid, getpid());
        assert_string_equal(file->backend, "shm");
        assert_int_equal(file->count, 1);
        const struct sc_trace_record *record = &file->records[0];
        assert_int_equal(record->operation, SPARK_COMM_OP_ALL_GATHER);
        assert_int_equal(record->status, SPARK_COMM_OP_TIMEOUT);
        assert_int_equal(record->epoch, 3);
        assert_int_equal(record->stream, 9);
        /* The slope of the clock is known from 20 ms on; a millisecond for the machine's moods. */
        int64_t start = (int64_t)before.tv_sec * 1000000000 + before.tv_nsec;
        int64_t end = (int64_t)after.tv_sec * 1000000000 + after.tv_nsec;
        assert_true(record->submit_ns >= start - 1000000 && record->submit_ns <= end);
        assert_true(record->complete_ns - record->submit_ns >= 19000000);
        assert_true(record->complete_ns <= end + 1000000);
        if (round == 0) sc_recorder_close(&recorder);
    }
    unlink(path);
    rmdir(folder);
}

/* ---- Where the ranks went apart ---- */

static void overwritten_records_are_no_divergence(void **state) {
    (void)state;
    make_rings(2);
    for (int i = 0; i < 2; i++) {
        /* 37 to 100 are left, or 17 to 80. A root need not wait for the others. */
        for (uint64_t number = 1; number <= (i == 0 ? 100u : 80u); number++) {
            struct call call = reduce(number);
            call.op = SPARK_COMM_OP_BROADCAST;
            call.peer = 0;
            record(&rings[i], call);
        }
    }
    add_rings(2);
    assert_int_equal(files[0].count, CAPACITY);
    assert_int_equal(files[0].records[0].number, 37);
    assert_int_equal(files[0].records[CAPACITY - 1].number, 100);
    merge();
    expect_first(1, DATA, 81);
    expect_text("rank 1 has not entered it\n      last completed broadcast #80");
}

static void another_size_is_found(void **state) {
    (void)state;
    make_rings(3);
    for (int i = 0; i < 3; i++) {
        reduce_many(&rings[i], 1, 9);
        struct call call = reduce(10);
        if (i == 1) call.bytes = 4096;
        call.status = SPARK_COMM_MISMATCH;
        record(&rings[i], call);
    }
    add_rings(3);
    merge();
    expect_first(1, DATA, 10);
    assert_true(strncmp(printed, "FIRST DIVERGENCE: epoch 1, data lane, #10, ", 43) == 0);
    expect_text("all_reduce (8192 bytes, bf16, sum)\n    rank 0: MISMATCH");
    expect_text("all_reduce (4096 bytes, bf16, sum)\n    rank 1: MISMATCH");
}

/* Who has left a call that all must be in shows that all were: the other file is older. */
static void a_running_job_is_no_divergence(void **state) {
    (void)state;
    make_rings(2);
    reduce_many(&rings[0], 1, 9);
    reduce_many(&rings[1], 1, 7);
    add_rings(2);
    merge();
    expect_none();
    teardown(NULL);
    struct call call = reduce(10);
    call.took_ns = -1;
    record(&rings[0], call);
    add_rings(2);
    merge();
    expect_first(1, DATA, 10);
}

static void a_clock_without_a_speed_is_named(void **state) {
    (void)state;
    make_rings(1);
    reduce_many(&rings[0], 1, 2);
    put(rings[0].bytes + 48, 8, 0); /* killed while it wrote the second point */
    add_rings(1);
    merge();
    assert_int_equal(files[0].records[1].submit_ns - files[0].records[0].submit_ns, 500000);
    expect_text("clock of rank 0 (process 100): killed before its speed was known");
}

/* Each field of a call is compared. */
static void every_field_counts(void **state) {
    (void)state;
    for (int field = 0; field < 5; field++) {
        make_rings(2);
        for (int i = 0; i < 2; i++) {
            struct call call = reduce(1);
            if (i == 1 && field == 0) call.op = SPARK_COMM_OP_ALL_GATHER;
            if (i == 1 && field == 1) call.dtype = SPARK_COMM_F16;
            if (i == 1 && field == 2) call.redop = SPARK_COMM_MAX;
            if (i == 1 && field == 3) call.peer = 0;
            if (i == 1 && field == 4) call.bytes++;
            record(&rings[i], call);
        }
        add_rings(2);
        merge();
        expect_first(1, DATA, 1);
        teardown(NULL);
    }
}

static void a_skipped_call_shows_where_it_was_skipped(void **state) {
    (void)state;
    make_rings(2);
    for (int i = 0; i < 2; i++) {
        uint64_t number = 0;
        for (int step = 1; step <= 20; step++) {
            if (i == 1 && step == 12) continue;
            struct call call = reduce(++number);
            call.bytes = (uint64_t)step * 512; /* so that the steps can be told apart */
            record(&rings[i], call);
        }
    }
    add_rings(2);
    merge();
    expect_first(1, DATA, 12);
    expect_text("all_reduce (6144 bytes, bf16, sum)\n    rank 0: OK");
    expect_text("all_reduce (6656 bytes, bf16, sum)\n    rank 1: OK");
    /* Three rows before and after it. */
    expect_text("\n           9 all_reduce");
    expect_text("\n>         12 all_reduce");
    assert_false(has_text("\n           8 all_reduce"));
    assert_false(has_text("\n          16 all_reduce"));
}

static void who_waits_and_who_is_missing(void **state) {
    (void)state;
    make_rings(3);
    for (int i = 0; i < 3; i++)
        reduce_many(&rings[i], 1, 5);
    for (int i = 0; i < 2; i++) {
        struct call call = reduce(6);
        call.took_ns = -1;
        call.start_ns += i * 1000;
        record(&rings[i], call);
    }
    struct call command = {.lane = COMMAND,
                           .number = 1,
                           .op = SPARK_COMM_OP_BROADCAST,
                           .peer = 0,
                           .bytes = 4,
                           .start_ns = 30006000000,
                           .took_ns = 1000,
                           .epoch = 1};
    record(&rings[0], command);
    command.op = SPARK_COMM_OP_RECV_COMMAND_U32;
    record(&rings[1], command);
    record(&rings[2], command);
    add_rings(3);
    merge();
    expect_first(1, DATA, 6);
    expect_text("rank 0: not complete, in it since 2026-11-30 ");
    expect_text("(30.0s until the end of the traces)\n      last completed all_reduce #5");
    expect_text("rank 2 has not entered it\n      last completed all_reduce #5");
    expect_text("not entered");
    expect_text("no divergence: epoch 1, command lane, #1 to #1");
}

static void a_rank_without_a_file_is_named(void **state) {
    (void)state;
    make_ring(&rings[0], 1, 6, 101);
    make_ring(&rings[1], 5, 6, 105);
    for (int i = 0; i < 2; i++)
        reduce_many(&rings[i], 1, 5);
    add_rings(2);
    merge();
    expect_none();
    expect_text("NO FILE of rank 0\nNO FILE of ranks 2 to 4\n");
}

static void a_replaced_rank_lives_in_two_epochs(void **state) {
    (void)state;
    make_rings(2);
    make_ring(&rings[2], 1, 2, 999);
    reduce_many(&rings[0], 1, 10);
    reduce_many(&rings[1], 1, 10);
    struct call call = reduce(11);
    call.took_ns = -1;
    record(&rings[1], call); /* killed in it */
    call.took_ns = 1000;
    call.status = SPARK_COMM_PEER_LOST;
    record(&rings[0], call);
    for (int i = 0; i < 3; i += 2) {
        for (uint64_t number = 1; number <= 4; number++) {
            call = reduce(number);
            call.start_ns += 2000000000;
            call.epoch = 2;
            if (number == 4) call.took_ns = -1; /* in what epoch is for the reader to find out */
            if (number < 4 || i == 0) record(&rings[i], call);
        }
    }
    add_rings(3);
    merge();
    assert_int_equal(trace.communicators, 1);
    expect_first(2, DATA, 4);
    expect_text("FIRST DIVERGENCE: epoch 2, data lane, #4");
    expect_text("rank 1 has not entered it\n      last completed all_reduce #3");
    /* Of the first epoch both ranks were in the last call. */
    expect_text("no divergence: epoch 1, data lane, #1 to #11; the last one did not end well:");
    expect_text("rank 1: not complete");
    expect_text("rank 0: PEER_LOST");
    expect_text("process 999");
}

/* The replacement was killed in its first call: nothing of it says which epoch that was. */
static void an_epoch_is_inferred_from_the_others(void **state) {
    (void)state;
    make_rings(2);
    reduce_many(&rings[0], 1, 10);
    for (uint64_t number = 1; number <= 3; number++) {
        struct call call = reduce(number);
        call.start_ns += 2000000000;
        call.epoch = 7;
        record(&rings[0], call);
    }
    struct call call = reduce(1);
    call.start_ns += 2000000500;
    call.took_ns = -1;
    record(&rings[1], call);
    /* And one whose own numbers began anew after its last complete call. */
    make_ring(&rings[2], 0, 2, 300);
    add_rings(2);
    merge();
    assert_int_equal(files[1].records[0].epoch, 7);
    teardown(NULL);
    make_rings(1);
    reduce_many(&rings[0], 1, 10);
    call.start_ns = 50000000;
    record(&rings[0], call);
    add_rings(1);
    merge();
    assert_int_equal(files[0].records[10].epoch, 2);
}

static void two_runs_in_one_folder_are_told_apart(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        make_ring(&rings[i], i % 2, 2, 100 + i);
        for (uint64_t number = 1; number <= (i < 2 ? 20u : 15u); number++) {
            struct call call = reduce(number);
            call.start_ns += i < 2 ? 0 : 60000000000;
            record(&rings[i], call);
        }
    }
    add_rings(4);
    merge();
    expect_none();
    assert_int_equal(trace.communicators, 2);
    assert_int_equal(files[0].communicator, 0);
    assert_int_equal(files[1].communicator, 0);
    assert_int_equal(files[2].communicator, 1);
    assert_int_equal(files[3].communicator, 1);
    expect_text("no divergence: communicator 2, epoch 1, data lane, #1 to #15");
}

static void commands_meet_their_receivers(void **state) {
    (void)state;
    make_rings(2);
    for (int i = 0; i < 2; i++) {
        struct call call = {.lane = COMMAND, .number = 1, .peer = 0, .bytes = 4, .epoch = 1};
        call.op = i == 0 ? SPARK_COMM_OP_BROADCAST : SPARK_COMM_OP_RECV_COMMAND_U32;
        record(&rings[i], call);
        call.number = 2;
        call.op = i == 0 ? SPARK_COMM_OP_SEND_COMMAND : SPARK_COMM_OP_RECV_COMMAND;
        call.bytes = i == 0 ? 64 : 0;
        record(&rings[i], call);
        call.number = 3;
        call.op = i == 0 ? SPARK_COMM_OP_BROADCAST : SPARK_COMM_OP_RECV_COMMAND_U32;
        call.bytes = i == 0 ? 8 : 4;
        record(&rings[i], call);
    }
    add_rings(2);
    merge();
    expect_first(1, COMMAND, 3);
}

static void message(struct ring *ring, int op, int peer, uint64_t number, uint64_t bytes) {
    struct call call = {.lane = DATA, .number = number, .op = op, .peer = peer, .epoch = 1};
    call.bytes = bytes;
    call.start_ns = (int64_t)number * 1000;
    record(ring, call);
}

static void messages_are_compared_per_pair(void **state) {
    (void)state;
    make_rings(3);
    message(&rings[0], SPARK_COMM_OP_SEND_TO, 1, 1, 10);
    message(&rings[1], SPARK_COMM_OP_RECV_FROM, 0, 1, 10);
    message(&rings[1], SPARK_COMM_OP_SEND_TO, 0, 1, 20);
    message(&rings[0], SPARK_COMM_OP_RECV_FROM, 1, 1, 30);
    message(&rings[2], SPARK_COMM_OP_SEND_TO, 0, 9, 40);
    add_rings(3);
    merge();
    expect_first(1, SC_TRACE_MESSAGES, 1);
    expect_text("FIRST DIVERGENCE: epoch 1, messages from rank 1 to rank 0, #1");
    expect_text("LATER DIVERGENCE: epoch 1, messages from rank 2 to rank 0, #9");
    expect_text("rank 0 has not entered it");
    expect_text("no divergence: epoch 1, messages from rank 0 to rank 1, #1 to #1");
}

static void a_refused_call_takes_no_number(void **state) {
    (void)state;
    make_rings(2);
    struct call refused = reduce(1);
    refused.status = SPARK_COMM_NOT_SUPPORTED;
    refused.bytes = 12;
    record(&rings[0], refused);
    for (int i = 0; i < 2; i++)
        reduce_many(&rings[i], 1, 3);
    add_rings(2);
    merge();
    expect_none();
    assert_int_equal(trace.item_count, 6);
}

static void clocks_are_aligned_by_calls(void **state) {
    (void)state;
    make_rings(3);
    for (int i = 0; i < 3; i++) {
        for (uint64_t number = 1; number <= 10; number++) {
            struct call call = reduce(number);
            /* All leave 4 us after the last one came. */
            call.start_ns += i * 1000;
            call.took_ns = 6000 - i * 1000;
            record(&rings[i], call);
        }
    }
    put(rings[1].bytes + 56, 8, (uint64_t)T0 - 5000000000); /* its clock is 5 s behind */
    add_rings(3);
    merge();
    /* The middle of what is possible: from 1 us before rank 0 leaves to 1 us before it comes. */
    assert_int_equal(files[1].low_ns, 5000000000 - 6000);
    assert_int_equal(files[1].high_ns, 5000000000 + 5000);
    assert_int_equal(files[1].shift_ns, 5000000000 - 500);
    assert_int_equal(files[2].shift_ns, 0);
    expect_text("clock of rank 1 (process 101): 5.0s added, the calls allow 5.0s to 5.0s");
    expect_text("clock of rank 2 (process 102): as it is, right within");
}

/* ---- JSON lines, and the other form of output ---- */

static const char json_header[] =
    "{\"spark_comm_trace\":1,\"version\":\"0.1.0\",\"backend\":\"shm\",\"rank\":0,"
    "\"world_size\":2,\"pid\":4711,\"epoch\":1}\n";
static const char json_record[] =
    "{\"lane\":\"data\",\"number\":1,\"epoch\":1,\"op\":\"all_reduce\",\"dtype\":\"bf16\","
    "\"redop\":\"sum\",\"bytes\":8192,\"peer\":-1,\"stream\":0,\"path\":\"slots\","
    "\"captured\":false,\"submit_ns\":1796040000001000000,\"complete_ns\":1796040000001003100,"
    "\"status\":\"SPARK_COMM_OK\",\"new_key\":[1,2]}\n";
static const char json_open[] =
    "{\"lane\":\"data\",\"number\":2,\"epoch\":0,\"op\":\"barrier\",\"dtype\":null,\"redop\":null,"
    "\"bytes\":0,\"peer\":-1,\"stream\":0,\"path\":\"\",\"captured\":false,"
    "\"submit_ns\":1796040000002000000,\"complete_ns\":null,\"status\":null}\n";

static void json_lines_meet_a_ring(void **state) {
    (void)state;
    char text[2048];
    make_ring(&rings[0], 1, 2, 101);
    reduce_many(&rings[0], 1, 1);
    snprintf(text, sizeof text, "%s%s%s", json_header, json_record, json_open);
    struct sc_trace_file *file = add(text, strlen(text));
    assert_string_equal(file->damage, "");
    assert_int_equal(file->count, 2);
    assert_int_equal(file->records[0].submit_ns, T0 + 1000000);
    assert_string_equal(file->records[0].path, "slots");
    add_rings(1);
    merge();
    assert_int_equal(files[0].records[1].epoch, 1);
    expect_first(1, DATA, 2);
    expect_text("rank 1 has not entered it");
    expect_text(" slots ");
}

static void damaged_json_is_named(void **state) {
    (void)state;
    char text[2048];
    snprintf(text, sizeof text, "%snonsense\n%s%.40s", json_header, json_record, json_open);
    struct sc_trace_file *file = add(text, strlen(text));
    assert_int_equal(file->count, 1);
    assert_non_null(strstr(file->damage, "line 2 cannot be read; 2 line(s) are left out"));
    snprintf(text, sizeof text, "%s%s%.40s", json_header, json_record, json_open);
    file = add(text, strlen(text));
    assert_non_null(strstr(file->damage, "line 3 cannot be read, it may be cut off"));
    file = add("{\"spark_comm_trace\":9}\n", 23);
    assert_non_null(strstr(file->damage, "version 9 of the format"));
    file = add("{\"traceEvents\":[]}\n", 19);
    assert_non_null(strstr(file->damage, "no trace file"));
    file = add("{", 1);
    assert_non_null(strstr(file->damage, "no trace file"));
}

static void chrome_events_are_json(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0, calls = 0;
    make_rings(2);
    reduce_many(&rings[0], 1, 3);
    reduce_many(&rings[1], 1, 2);
    add_rings(2);
    merge();
    FILE *out = open_memstream(&text, &size);
    assert_true(sc_trace_chrome(&trace, out));
    fclose(out);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) continue;
        double start = json_real_value(json_object_get(event, "ts"));
        json_t *args = json_object_get(event, "args");
        json_int_t number = json_integer_value(json_object_get(args, "number"));
        assert_string_equal(json_string_value(json_object_get(event, "name")), "all_reduce");
        assert_true(start == (double)(number - 1) * 1000);
        assert_true(json_real_value(json_object_get(event, "dur")) == 5.0);
        assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 8192);
        calls++;
    }
    assert_int_equal(calls, 5);
    json_decref(root);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(clean_files_agree, teardown),
        cmocka_unit_test_teardown(a_cut_file_shows_the_rest, teardown),
        cmocka_unit_test_teardown(other_files_are_named, teardown),
        cmocka_unit_test_teardown(damaged_and_unfinished_records_are_left_out, teardown),
        cmocka_unit_test_teardown(the_recorders_own_file_is_read, teardown),
        cmocka_unit_test_teardown(overwritten_records_are_no_divergence, teardown),
        cmocka_unit_test_teardown(another_size_is_found, teardown),
        cmocka_unit_test_teardown(a_running_job_is_no_divergence, teardown),
        cmocka_unit_test_teardown(a_clock_without_a_speed_is_named, teardown),
        cmocka_unit_test_teardown(every_field_counts, teardown),
        cmocka_unit_test_teardown(a_skipped_call_shows_where_it_was_skipped, teardown),
        cmocka_unit_test_teardown(who_waits_and_who_is_missing, teardown),
        cmocka_unit_test_teardown(a_rank_without_a_file_is_named, teardown),
        cmocka_unit_test_teardown(a_replaced_rank_lives_in_two_epochs, teardown),
        cmocka_unit_test_teardown(an_epoch_is_inferred_from_the_others, teardown),
        cmocka_unit_test_teardown(two_runs_in_one_folder_are_told_apart, teardown),
        cmocka_unit_test_teardown(commands_meet_their_receivers, teardown),
        cmocka_unit_test_teardown(messages_are_compared_per_pair, teardown),
        cmocka_unit_test_teardown(a_refused_call_takes_no_number, teardown),
        cmocka_unit_test_teardown(clocks_are_aligned_by_calls, teardown),
        cmocka_unit_test_teardown(json_lines_meet_a_ring, teardown),
        cmocka_unit_test_teardown(damaged_json_is_named, teardown),
        cmocka_unit_test_teardown(chrome_events_are_json, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
