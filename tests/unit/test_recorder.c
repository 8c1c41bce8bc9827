/*
 * The recorder: what was written is read back, an overwritten or changing record is never shown as
 * whole, a record file survives its owner, and the JSON lines say what happened.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trace/recorder.h"

static struct sc_settings settings_for(const char *folder, int records) {
    struct sc_settings settings;
    memset(&settings, 0, sizeof settings);
    settings.rank = 3;
    settings.world_size = 8;
    settings.trace_records = records;
    snprintf(settings.trace_dir, sizeof settings.trace_dir, "%s", folder);
    return settings;
}

/* Every field follows from the number, so that a torn record shows. */
static void write_one(struct sc_recorder *recorder, int lane, uint64_t number) {
    struct sc_recorder_record *record =
        sc_recorder_begin(recorder, lane, number,
                          sc_recorder_describe(SPARK_COMM_OP_ALL_REDUCE, SPARK_COMM_F32, 1, -1),
                          number * 4, number + 1, number + 2);
    sc_recorder_end(record, 0, false, 7, number + 3);
}

static void last_records_are_read(void **state) {
    (void)state;
    struct sc_settings settings = settings_for("", 64);
    struct sc_recorder recorder;
    struct sc_recorder_entry entry;
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", NULL), SPARK_COMM_OK);
    for (uint64_t number = 1; number <= 100; number++)
        write_one(&recorder, SPARK_COMM_LANE_DATA, number);
    for (uint64_t position = 0; position < 100; position++) {
        bool kept = sc_recorder_read(&recorder, SPARK_COMM_LANE_DATA, position, &entry);
        assert_int_equal(kept, position >= 36);
        if (!kept) continue;
        assert_int_equal(entry.number, position + 1);
        assert_int_equal(entry.bytes, 4 * (position + 1));
        assert_int_equal(entry.complete_ticks, position + 4);
        assert_int_equal(entry.result >> 32, 7);
    }
    assert_false(sc_recorder_read(&recorder, SPARK_COMM_LANE_COMMAND, 0, &entry));
    sc_recorder_close(&recorder);
    sc_recorder_close(&recorder);
}

enum { RACE_RECORDS = 300000 };

static void *write_many(void *arg) {
    for (uint64_t number = 1; number <= RACE_RECORDS; number++)
        write_one(arg, SPARK_COMM_LANE_DATA, number);
    return NULL;
}

static void no_torn_record_is_shown(void **state) {
    (void)state;
    struct sc_settings settings = settings_for("", 64);
    struct sc_recorder recorder;
    struct sc_recorder_entry entry;
    pthread_t writer;
    uint64_t head = 0, seen = 0;
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", NULL), SPARK_COMM_OK);
    assert_int_equal(pthread_create(&writer, NULL, write_many, &recorder), 0);
    while (head < RACE_RECORDS) {
        head = atomic_load_explicit(&recorder.header->heads[SPARK_COMM_LANE_DATA],
                                    memory_order_relaxed);
        uint64_t position = head > 40 ? head - 40 : 0;
        if (!sc_recorder_read(&recorder, SPARK_COMM_LANE_DATA, position, &entry)) continue;
        seen++;
        assert_int_equal(entry.number, position + 1);
        assert_int_equal(entry.bytes, 4 * entry.number);
        assert_int_equal(entry.stream, entry.number + 1);
        assert_int_equal(entry.submit_ticks, entry.number + 2);
    }
    pthread_join(writer, NULL);
    assert_true(seen > 0);
    sc_recorder_close(&recorder);
}

static void the_file_outlives_its_owner(void **state) {
    (void)state;
    char folder[] = "/tmp/spark_comm-recorder-XXXXXX", path[600];
    assert_non_null(mkdtemp(folder));
    struct sc_settings settings = settings_for(folder, 64);
    pid_t child = fork();
    if (child == 0) {
        struct sc_recorder recorder;
        if (sc_recorder_open(&recorder, &settings, "shm", NULL) != SPARK_COMM_OK) _exit(1);
        for (uint64_t number = 1; number <= 5; number++)
            write_one(&recorder, SPARK_COMM_LANE_COMMAND, number);
        raise(9);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    snprintf(path, sizeof path, "%s/spark_comm.3.%ld.0.trace", folder, (long)child);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    static _Alignas(64) unsigned char bytes[SC_RECORDER_HEADER_BYTES + 2 * 64 * 64];
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), sizeof bytes);
    fclose(file);
    const struct sc_recorder_header *header = (const void *)bytes;
    const struct sc_recorder_record *records = (const void *)(bytes + SC_RECORDER_HEADER_BYTES);
    assert_int_equal(header->magic, SC_RECORDER_MAGIC);
    assert_int_equal(memcmp(bytes, "SCTRACE1", 8), 0);
    assert_int_equal(header->rank, 3);
    assert_int_equal(header->capacity, 64);
    assert_int_equal(header->heads[SPARK_COMM_LANE_COMMAND], 5);
    assert_int_equal(records[4].number, 5);
    assert_int_equal(records[4].sequence, 2 * 4 + 2);
    unlink(path);
    rmdir(folder);
}

static void *mark_often(void *arg) {
    for (int i = 0; i < 20000; i++)
        sc_recorder_mark(arg);
    return NULL;
}

/* Both points lie on the line of this process's clocks, however many threads take the second. */
static void clock_points_fit_together(void **state) {
    (void)state;
    char folder[] = "/tmp/spark_comm-recorder-XXXXXX", path[600];
    assert_non_null(mkdtemp(folder));
    struct sc_settings settings = settings_for(folder, 64);
    struct sc_recorder recorder;
    pthread_t threads[2];
    sc_ticks_start();
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", NULL), SPARK_COMM_OK);
    struct sc_recorder_header *header = recorder.header;
    assert_int_equal(header->ticks_last, 0);
    for (uint64_t number = 1; header->ticks_last == 0; number++) {
        struct sc_recorder_record *record =
            sc_recorder_begin(&recorder, SPARK_COMM_LANE_DATA, number, 0, 0, 0, sc_ticks_now());
        sc_recorder_end(record, 0, false, 1, sc_ticks_now());
    }
    assert_true(header->ticks_last - header->ticks_first >= 1 << 20);
    assert_true(recorder.mark_at > header->ticks_last);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mark_often, &recorder), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* Each point against the base layer's own conversion; 1 ms for a thread that was moved away
     * between two clocks. */
    int64_t first = sc_ticks_to_ns(header->ticks_first) - (int64_t)header->monotonic_first;
    int64_t last = sc_ticks_to_ns(header->ticks_last) - (int64_t)header->monotonic_last;
    assert_true(first > -1000000 && first < 1000000);
    assert_true(last > -1000000 && last < 1000000);
    int64_t step = (int64_t)(header->realtime_last - header->realtime_first) -
                   (int64_t)(header->monotonic_last - header->monotonic_first);
    assert_true(step > -1000000 && step < 1000000);
    sc_recorder_close(&recorder);
    snprintf(path, sizeof path, "%s/spark_comm.3.%ld.0.trace", folder, (long)getpid());
    unlink(path);
    rmdir(folder);
}

/* Two communicators of one process and rank number: each has a file, none is cut off. */
static void two_of_one_process_do_not_meet(void **state) {
    (void)state;
    char folder[] = "/tmp/spark_comm-recorder-XXXXXX", path[600];
    assert_non_null(mkdtemp(folder));
    struct sc_settings settings = settings_for(folder, 64);
    struct sc_recorder first, second;
    struct sc_recorder_entry entry;
    assert_int_equal(sc_recorder_open(&first, &settings, "shm", NULL), SPARK_COMM_OK);
    write_one(&first, SPARK_COMM_LANE_DATA, 1);
    assert_int_equal(sc_recorder_open(&second, &settings, "shm", NULL), SPARK_COMM_OK);
    write_one(&second, SPARK_COMM_LANE_DATA, 50);
    write_one(&first, SPARK_COMM_LANE_DATA, 2);
    assert_true(sc_recorder_read(&first, SPARK_COMM_LANE_DATA, 0, &entry));
    assert_int_equal(entry.number, 1);
    assert_true(sc_recorder_read(&second, SPARK_COMM_LANE_DATA, 0, &entry));
    assert_int_equal(entry.number, 50);
    sc_recorder_close(&first);
    sc_recorder_close(&second);
    for (int nth = 0; nth < 2; nth++) {
        snprintf(path, sizeof path, "%s/spark_comm.3.%ld.%d.trace", folder, (long)getpid(), nth);
        assert_int_equal(unlink(path), 0);
    }
    rmdir(folder);
}

static void a_missing_folder_is_named(void **state) {
    (void)state;
    struct sc_settings settings = settings_for("/nonexistent/folder", 64);
    struct sc_recorder recorder;
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", &error), SPARK_COMM_SYSTEM);
    assert_non_null(strstr(error.message, "/nonexistent/folder"));
    sc_recorder_close(&recorder);
}

static const char *fixed_path(void *arg, int operation, uint64_t bytes) {
    (void)arg;
    return operation == SPARK_COMM_OP_ALL_REDUCE && bytes == 4 ? "tiny" : NULL;
}

static void json_lines_say_what_happened(void **state) {
    (void)state;
    char path[] = "/tmp/spark_comm-json-XXXXXX", line[1024];
    struct sc_settings settings = settings_for("", 64);
    struct sc_recorder recorder;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(sc_recorder_open(&recorder, &settings, "shm", NULL), SPARK_COMM_OK);
    write_one(&recorder, SPARK_COMM_LANE_DATA, 1);
    sc_recorder_begin(&recorder, SPARK_COMM_LANE_DATA, 2,
                      sc_recorder_describe(SPARK_COMM_OP_BARRIER, 0, 0, -1), 0, 0, 9);
    assert_int_equal(sc_recorder_write(&recorder, path, 5, fixed_path, NULL, NULL), SPARK_COMM_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "\"spark_comm_trace\":1"));
    assert_non_null(strstr(line, "\"rank\":3,\"world_size\":8"));
    assert_non_null(strstr(line, "\"epoch\":5"));
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "\"lane\":\"data\",\"number\":1,"));
    assert_non_null(strstr(line, "\"op\":\"all_reduce\",\"dtype\":\"f32\",\"redop\":\"sum\""));
    assert_non_null(strstr(line, "\"path\":\"tiny\""));
    assert_non_null(strstr(line, "\"status\":\"SPARK_COMM_OK\""));
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "\"op\":\"barrier\",\"dtype\":null"));
    assert_non_null(strstr(line, "\"complete_ns\":null,\"status\":null"));
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    unlink(path);
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(sc_recorder_write(&recorder, "/nonexistent/x", 5, NULL, NULL, &error),
                     SPARK_COMM_SYSTEM);
    assert_non_null(strstr(error.message, "/nonexistent/x"));
    sc_recorder_close(&recorder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_records_are_read),
        cmocka_unit_test(no_torn_record_is_shown),
        cmocka_unit_test(the_file_outlives_its_owner),
        cmocka_unit_test(two_of_one_process_do_not_meet),
        cmocka_unit_test(clock_points_fit_together),
        cmocka_unit_test(a_missing_folder_is_named),
        cmocka_unit_test(json_lines_say_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
