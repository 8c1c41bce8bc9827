/*
 * The binary interface: sizes and offsets of the public structs and the values of every released
 * constant are pinned here, so that a change which would break a compiled program does not compile.
 * And the rule by which structs grow: shorter means defaults, longer must be zero.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <spark_comm.h>
#include <spark_comm_backend.h>

/* ---- Layout: 64-bit machines, which are all that the library supports ---- */

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)

AT(spark_comm_options, struct_size, 0);
AT(spark_comm_options, backend, 8);
AT(spark_comm_options, master_addr, 16);
AT(spark_comm_options, job_token, 24);
AT(spark_comm_options, log, 32);
AT(spark_comm_options, log_user, 40);
AT(spark_comm_options, stream, 48);
AT(spark_comm_options, memory, 56);
AT(spark_comm_options, rank, 60);
AT(spark_comm_options, world_size, 64);
AT(spark_comm_options, master_port, 68);
AT(spark_comm_options, device, 72);
AT(spark_comm_options, dtype, 76);
AT(spark_comm_options, rendezvous_timeout_ms, 80);
AT(spark_comm_options, op_timeout_ms, 84);
AT(spark_comm_options, liveness_timeout_ms, 88);
AT(spark_comm_options, close_timeout_ms, 92);
SIZE(spark_comm_options, 96);

AT(spark_comm_op, struct_size, 0);
AT(spark_comm_op, kind, 8);
AT(spark_comm_op, dtype, 12);
AT(spark_comm_op, redop, 16);
AT(spark_comm_op, peer, 20);
AT(spark_comm_op, flags, 24);
AT(spark_comm_op, timeout_ms, 28);
AT(spark_comm_op, send, 32);
AT(spark_comm_op, recv, 40);
AT(spark_comm_op, bytes, 48);
AT(spark_comm_op, stream, 56);
SIZE(spark_comm_op, 64);

AT(spark_comm_error, status, 8);
AT(spark_comm_error, operation, 12);
AT(spark_comm_error, sequence, 16);
AT(spark_comm_error, peer, 24);
AT(spark_comm_error, epoch, 28);
AT(spark_comm_error, native_code, 32);
AT(spark_comm_error, message, 40);
SIZE(spark_comm_error, 552);

AT(spark_comm_lane_report, submitted, 0);
AT(spark_comm_lane_report, completed, 8);
AT(spark_comm_lane_report, submitted_age_ms, 16);
AT(spark_comm_lane_report, completed_age_ms, 24);
SIZE(spark_comm_lane_report, 32);

AT(spark_comm_health_report, state, 8);
AT(spark_comm_health_report, activity, 12);
AT(spark_comm_health_report, epoch, 16);
AT(spark_comm_health_report, lost_count, 20);
AT(spark_comm_health_report, lost_rank, 24);
AT(spark_comm_health_report, silent_rank, 28);
AT(spark_comm_health_report, silent_ms, 32);
AT(spark_comm_health_report, device_progress, 40);
AT(spark_comm_health_report, lanes, 48);
SIZE(spark_comm_health_report, 112);

AT(spark_comm_info_row, operation, 0);
AT(spark_comm_info_row, canonical, 4);
AT(spark_comm_info_row, up_to_bytes, 8);
AT(spark_comm_info_row, path, 16);
SIZE(spark_comm_info_row, 48);

AT(spark_comm_info_report, backend, 8);
AT(spark_comm_info_report, memory, 40);
AT(spark_comm_info_report, traits, 44);
AT(spark_comm_info_report, library_file, 48);
AT(spark_comm_info_report, library_version, 304);
AT(spark_comm_info_report, rows, 368);
AT(spark_comm_info_report, row_size, 376);
AT(spark_comm_info_report, row_capacity, 384);
AT(spark_comm_info_report, row_count, 392);
SIZE(spark_comm_info_report, 400);

SIZE(spark_comm_setting_row, 672);
AT(spark_comm_setting_row, problem, 512);
SIZE(spark_comm_backend_row, 304);
AT(spark_comm_backend_row, reason, 48);

AT(spark_comm_call, ops, 8);
AT(spark_comm_call, op_count, 16);
AT(spark_comm_call, number, 24);
AT(spark_comm_call, epoch, 32);
AT(spark_comm_call, digest, 36);
AT(spark_comm_call, deadline_ns, 40);
AT(spark_comm_call, entered, 48);
AT(spark_comm_call, captured, 56);
SIZE(spark_comm_call, 64);

AT(spark_comm_host, abi_version, 8);
AT(spark_comm_host, rank, 12);
AT(spark_comm_host, member_count, 16);
AT(spark_comm_host, epoch, 20);
AT(spark_comm_host, members, 24);
AT(spark_comm_host, options, 32);
AT(spark_comm_host, context, 40);
AT(spark_comm_host, poison, 48);
AT(spark_comm_host, all_gather, 56);
AT(spark_comm_host, wait, 64);
AT(spark_comm_host, explain, 72);
AT(spark_comm_host, report_fault, 80);
AT(spark_comm_host, log, 88);
SIZE(spark_comm_host, 96);

AT(spark_comm_backend, abi_version, 8);
AT(spark_comm_backend, traits, 12);
AT(spark_comm_backend, name, 16);
AT(spark_comm_backend, memory, 24);
AT(spark_comm_backend, user, 32);
AT(spark_comm_backend, probe, 40);
AT(spark_comm_backend, open, 48);
AT(spark_comm_backend, close, 56);
AT(spark_comm_backend, all_reduce, 64);
AT(spark_comm_backend, point_to_point, 104);
AT(spark_comm_backend, register_buffer, 112);
AT(spark_comm_backend, interrupt, 152);
AT(spark_comm_backend, copy_from_host, 200);
AT(spark_comm_backend, stream_state, 208);
AT(spark_comm_backend, library, 216);
SIZE(spark_comm_backend, 224);

/* ---- Constants: released values never change ---- */

#define VALUE(name, value) _Static_assert((name) == (value), #name)

VALUE(SPARK_COMM_FOREVER, -1);
VALUE(SPARK_COMM_MAX_COMMAND_WORDS, 16384);
VALUE(SPARK_COMM_MAX_EXCHANGE_BYTES, 65536);
VALUE(SPARK_COMM_MAX_COMMAND_BROADCAST_BYTES, 4096);
VALUE(SPARK_COMM_MEMORY_HOST, 1);
VALUE(SPARK_COMM_MEMORY_DEVICE, 2);
VALUE(SPARK_COMM_BF16, 1);
VALUE(SPARK_COMM_F16, 2);
VALUE(SPARK_COMM_F32, 3);
VALUE(SPARK_COMM_F64, 4);
VALUE(SPARK_COMM_I8, 5);
VALUE(SPARK_COMM_U8, 6);
VALUE(SPARK_COMM_I32, 7);
VALUE(SPARK_COMM_I64, 8);
VALUE(SPARK_COMM_SUM, 1);
VALUE(SPARK_COMM_MAX, 2);
VALUE(SPARK_COMM_MIN, 3);
VALUE(SPARK_COMM_AVG, 4);
VALUE(SPARK_COMM_OP_ALL_REDUCE, 1);
VALUE(SPARK_COMM_OP_RECV_FROM, 7);
VALUE(SPARK_COMM_OP_GROUP, 8);
VALUE(SPARK_COMM_OP_EXCHANGE_HOST, 12);
VALUE(SPARK_COMM_OP_SET_ADD_KERNEL, 17);
VALUE(SPARK_COMM_OP_CLOSE, 20);
VALUE(SPARK_COMM_FLAG_EVENT_ORDERED, 1u);
VALUE(SPARK_COMM_TRAIT_CANONICAL, 8u);
VALUE(SPARK_COMM_TRAIT_LATE_ENTRY, 16u);
VALUE(SPARK_COMM_STATE_CLOSED, 3);
VALUE(SPARK_COMM_ACTIVITY_STUCK, 3);
VALUE(SPARK_COMM_LOG_DEBUG, 4);
VALUE(SPARK_COMM_LANE_COMMAND, 0);
VALUE(SPARK_COMM_LANE_DATA, 1);
VALUE(SPARK_COMM_BACKEND_ABI_MAJOR, 1u);

/* Written out once more by hand: this list and the header's must be the same, in both
 * directions. */
static const struct {
    int value;
    const char *name;
} statuses[] = {
    {0, "SPARK_COMM_OK"},
    {1, "SPARK_COMM_INVALID_ARGUMENT"},
    {2, "SPARK_COMM_NOT_SUPPORTED"},
    {3, "SPARK_COMM_WRONG_STATE"},
    {4, "SPARK_COMM_BUSY"},
    {100, "SPARK_COMM_UNAVAILABLE"},
    {101, "SPARK_COMM_REFUSED"},
    {102, "SPARK_COMM_OPEN_TIMEOUT"},
    {103, "SPARK_COMM_NO_MEMORY"},
    {104, "SPARK_COMM_SYSTEM"},
    {200, "SPARK_COMM_PEER_LOST"},
    {201, "SPARK_COMM_OP_TIMEOUT"},
    {202, "SPARK_COMM_MISMATCH"},
    {203, "SPARK_COMM_BACKEND"},
    {204, "SPARK_COMM_ABORTED"},
};
#define STATUS_COUNT (sizeof statuses / sizeof statuses[0])

#define COUNT_ONE(name, value, text) +1
_Static_assert(0 SPARK_COMM_STATUS_LIST(COUNT_ONE) == STATUS_COUNT, "a status is not in this test");

static void test_statuses(void **state) {
    (void)state;
    for (size_t i = 0; i < STATUS_COUNT; i++) {
        const spark_comm_status status = (spark_comm_status)statuses[i].value;
        assert_string_equal(spark_comm_status_name(status), statuses[i].name);
        assert_true(strlen(spark_comm_status_text(status)) >= 5);
        assert_string_not_equal(spark_comm_status_text(status), "unknown status");
        assert_int_equal(spark_comm_is_fatal(status), status >= 200 && status <= 299);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(spark_comm_status_text(status),
                                    spark_comm_status_text((spark_comm_status)statuses[k].value));
    }
    int named = 0;
    for (int value = -5; value < 400; value++)
        named +=
            strcmp(spark_comm_status_name((spark_comm_status)value), "SPARK_COMM_UNKNOWN") != 0;
    assert_int_equal(named, STATUS_COUNT);
    assert_string_equal(spark_comm_status_text((spark_comm_status)77), "unknown status");
    assert_true(spark_comm_is_fatal((spark_comm_status)250));
    assert_false(spark_comm_is_fatal((spark_comm_status)300));
}

/* docs/errors.md has an entry for each, with its value. */
static void test_errors_page(void **state) {
    static char page[1 << 17];
    char path[512];
    const char *folder = getenv("SC_TEST_SOURCE_DIR");
    (void)state;
    if (folder == NULL) skip();
    snprintf(path, sizeof path, "%s/docs/errors.md", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    for (size_t i = 1; i < STATUS_COUNT; i++) {
        char row[80];
        snprintf(row, sizeof row, "| `%s` | %d |", statuses[i].name, statuses[i].value);
        if (strstr(page, row) == NULL)
            fail_msg("docs/errors.md has no row that begins \"%s\"", row);
    }
}

/* ---- Growth ---- */

#define MORE 40

/* A struct of a newer program: `size` known bytes, then MORE bytes that this library does not
 * know. */
static unsigned char *longer_than(size_t size) {
    unsigned char *memory = calloc(1, size + MORE);
    const size_t struct_size = size + MORE;
    assert_non_null(memory);
    memcpy(memory, &struct_size, sizeof struct_size);
    return memory;
}

static spark_comm *open_alone(void) {
    spark_comm_options options;
    spark_comm *comm = NULL;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "single";
    options.rank = 0;
    options.world_size = 1;
    assert_int_equal(spark_comm_open(&options, &comm), SPARK_COMM_OK);
    return comm;
}

static void test_options_init(void **state) {
    spark_comm_options options;
    const spark_comm_options zero = {
        .struct_size = sizeof options, .rank = -1, .world_size = -1, .device = -1};
    (void)state;
    memset(&options, 0xee, sizeof options);
    spark_comm_options_init(&options, sizeof options);
    assert_memory_equal(&options, &zero, sizeof options);
    /* An older program's struct: nothing beyond it is touched. */
    memset(&options, 0xee, sizeof options);
    spark_comm_options_init(&options, offsetof(spark_comm_options, world_size));
    assert_int_equal(options.struct_size, offsetof(spark_comm_options, world_size));
    assert_int_equal(options.rank, -1);
    assert_int_equal((uint32_t)options.world_size, 0xeeeeeeeeu);
    spark_comm_options_init(NULL, sizeof options);
}

static void test_options_growth(void **state) {
    spark_comm *comm = NULL;
    spark_comm_options *options = (spark_comm_options *)(void *)longer_than(sizeof *options);
    unsigned char *raw = (unsigned char *)options;
    spark_comm_error error = {.struct_size = sizeof error};
    (void)state;
    spark_comm_options_init(options, sizeof *options + MORE);
    options->backend = "single";
    options->rank = 0;
    options->world_size = 1;
    assert_int_equal(spark_comm_open(options, &comm), SPARK_COMM_OK);
    spark_comm_close(comm);
    for (size_t at = sizeof *options; at < sizeof *options + MORE; at += MORE - 1) {
        raw[at] = 1;
        assert_int_equal(spark_comm_open(options, &comm), SPARK_COMM_INVALID_ARGUMENT);
        assert_int_equal(spark_comm_last_error(NULL, &error), SPARK_COMM_OK);
        assert_non_null(strstr(error.message, "struct_size"));
        raw[at] = 0;
    }
    /* Shorter: the rest, rubbish here, has its defaults. */
    options->struct_size = offsetof(spark_comm_options, master_port);
    memset(raw + options->struct_size, 0x77, sizeof *options - options->struct_size);
    assert_int_equal(spark_comm_open(options, &comm), SPARK_COMM_OK);
    spark_comm_close(comm);
    options->struct_size = 0;
    assert_int_equal(spark_comm_open(options, &comm), SPARK_COMM_INVALID_ARGUMENT);
    options->struct_size = 7;
    assert_int_equal(spark_comm_open(options, &comm), SPARK_COMM_INVALID_ARGUMENT);
    free(options);
}

typedef spark_comm_status (*reader_fn)(const spark_comm *comm, void *report);

static spark_comm_status read_health(const spark_comm *comm, void *report) {
    return spark_comm_health(comm, report);
}
static spark_comm_status read_error(const spark_comm *comm, void *report) {
    return spark_comm_last_error(comm, report);
}
static spark_comm_status read_info(const spark_comm *comm, void *report) {
    return spark_comm_info(comm, report);
}

static const struct {
    const char *name;
    reader_fn read;
    size_t size;
    size_t cut; /* offset of a field in the middle */
} readers[] = {
    {"health", read_health, sizeof(spark_comm_health_report),
     offsetof(spark_comm_health_report, silent_ms)},
    {"error", read_error, sizeof(spark_comm_error), offsetof(spark_comm_error, peer)},
    {"info", read_info, sizeof(spark_comm_info_report),
     offsetof(spark_comm_info_report, library_version)},
};

/* Structs that the library fills: only what the caller knows is written; what it knows more must
 * come as zero. */
static void test_reader_growth(void **state) {
    spark_comm *comm = open_alone();
    (void)state;
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        unsigned char *raw = longer_than(readers[i].size);
        size_t *struct_size = (size_t *)(void *)raw;
        assert_int_equal(readers[i].read(comm, raw), SPARK_COMM_OK);
        assert_int_equal(*struct_size, readers[i].size + MORE);
        raw[readers[i].size + MORE - 1] = 1;
        assert_int_equal(readers[i].read(comm, raw), SPARK_COMM_INVALID_ARGUMENT);
        raw[readers[i].size + MORE - 1] = 0;
        raw[readers[i].size] = 1;
        assert_int_equal(readers[i].read(comm, raw), SPARK_COMM_INVALID_ARGUMENT);

        memset(raw, 0xee, readers[i].size + MORE);
        *struct_size = readers[i].cut;
        assert_int_equal(readers[i].read(comm, raw), SPARK_COMM_OK);
        for (size_t at = readers[i].cut; at < readers[i].size + MORE; at++)
            assert_int_equal(raw[at], 0xee);
        *struct_size = 0;
        assert_int_equal(readers[i].read(comm, raw), SPARK_COMM_INVALID_ARGUMENT);
        free(raw);
    }
    spark_comm_close(comm);
}

/* A filled struct has nothing left of what was in it. */
static void test_readers_fill(void **state) {
    spark_comm *comm = open_alone();
    spark_comm_health_report health;
    spark_comm_error error;
    (void)state;
    memset(&health, 0xee, sizeof health);
    health.struct_size = sizeof health;
    assert_int_equal(spark_comm_health(comm, &health), SPARK_COMM_OK);
    assert_int_equal(health.state, SPARK_COMM_STATE_HEALTHY);
    assert_int_equal(health.silent_rank, -1);
    assert_int_equal(health.silent_ms, 0);
    assert_int_equal(health.device_progress, 0);
    memset(&error, 0xee, sizeof error);
    error.struct_size = sizeof error;
    assert_int_equal(spark_comm_last_error(comm, &error), SPARK_COMM_OK);
    assert_int_equal(error.status, SPARK_COMM_OK);
    assert_string_equal(error.message, "");
    spark_comm_close(comm);
}

static void test_op_growth(void **state) {
    spark_comm *comm = open_alone();
    spark_comm_op *op = (spark_comm_op *)(void *)longer_than(sizeof *op);
    (void)state;
    op->kind = SPARK_COMM_OP_BARRIER;
    assert_int_equal(spark_comm_submit(comm, op), SPARK_COMM_OK);
    ((unsigned char *)op)[sizeof *op] = 1;
    assert_int_equal(spark_comm_submit(comm, op), SPARK_COMM_INVALID_ARGUMENT);
    op->struct_size = offsetof(spark_comm_op, dtype);
    memset((unsigned char *)op + op->struct_size, 0x77, sizeof *op - op->struct_size);
    assert_int_equal(spark_comm_submit(comm, op),
                     SPARK_COMM_OK); /* all that a barrier needs is its kind */
    op->struct_size = sizeof(size_t);
    assert_int_equal(spark_comm_submit(comm, op), SPARK_COMM_INVALID_ARGUMENT);
    free(op);
    spark_comm_close(comm);
}

static void test_version(void **state) {
    char version[32];
    (void)state;
    snprintf(version, sizeof version, "%d.%d.%d", SPARK_COMM_VERSION_MAJOR,
             SPARK_COMM_VERSION_MINOR, SPARK_COMM_VERSION_PATCH);
    assert_string_equal(spark_comm_version(), version);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),      cmocka_unit_test(test_errors_page),
        cmocka_unit_test(test_options_init),  cmocka_unit_test(test_options_growth),
        cmocka_unit_test(test_reader_growth), cmocka_unit_test(test_readers_fill),
        cmocka_unit_test(test_op_growth),     cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
