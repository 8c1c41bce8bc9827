/*
 * Settings: each source and its precedence, each launcher, ranges and what is said about a refused value, struct sizes of
 * older and newer callers, the secret that never shows, the rows for people.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/settings_table.h"

static const char *const launcher_variables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "TORCHELASTIC_USE_AGENT_STORE",
};

static int clear_environment(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof launcher_variables / sizeof launcher_variables[0]; i++)
        unsetenv(launcher_variables[i]);
    for (size_t i = 0; i < sc_settings_table_count; i++) {
        if (sc_settings_table[i].variable != NULL) unsetenv(sc_settings_table[i].variable);
    }
    return 0;
}

static void set(const char *variable, const char *value) {
    assert_int_equal(setenv(variable, value, 1), 0);
}

static struct sc_settings resolved(const spark_comm_options *options) {
    struct sc_settings settings;
    struct sc_error error;
    sc_error_clear(&error);
    if (sc_settings_resolve(options, &settings, &error) != SPARK_COMM_OK)
        fail_msg("refused: %s", error.message);
    return settings;
}

/* Resolving must fail, and its sentence must hold all of the words. */
static void refused(const spark_comm_options *options, const char *first, const char *second,
                    const char *third) {
    struct sc_settings settings;
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(sc_settings_resolve(options, &settings, &error), SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(error.status, SPARK_COMM_INVALID_ARGUMENT);
    if (!strstr(error.message, first) || !strstr(error.message, second) ||
        !strstr(error.message, third))
        fail_msg("'%s' lacks '%s', '%s' or '%s'", error.message, first, second, third);
}

static spark_comm_options unset_options(void) {
    spark_comm_options options;
    sc_settings_options_init(&options, sizeof options);
    return options;
}

/* The source of one setting, as describe tells it. */
static const char *source_of(const spark_comm_options *options, const char *name) {
    static spark_comm_setting_row rows[SC_SETTINGS_MAX_ENTRIES];
    size_t count = sc_settings_describe(options, rows, sizeof rows[0], SC_SETTINGS_MAX_ENTRIES);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) == 0) return rows[i].source;
    }
    return "no such setting";
}

/* ---- Defaults and options ---- */

static void test_defaults(void **state) {
    (void)state;
    struct sc_settings s = resolved(NULL);
    assert_string_equal(s.backend, "auto");
    assert_string_equal(s.master_addr, "127.0.0.1");
    assert_string_equal(s.job_token, "");
    assert_int_equal(s.stream, 0);
    assert_int_equal(s.memory, SPARK_COMM_MEMORY_HOST);
    assert_int_equal(s.rank, 0);
    assert_int_equal(s.world_size, 1);
    assert_int_equal(s.master_port, 29500);
    assert_int_equal(s.device, -1);
    assert_int_equal(s.dtype, SPARK_COMM_BF16);
    assert_int_equal(s.rendezvous_timeout_ms, 600000);
    assert_int_equal(s.op_timeout_ms, 30000);
    assert_int_equal(s.liveness_timeout_ms, 10000);
    assert_int_equal(s.close_timeout_ms, 5000);
    assert_string_equal(s.trace_dir, "");
    assert_int_equal(s.trace_records, 4096);
    assert_string_equal(s.log_file, "");
    assert_int_equal(s.log_level, SPARK_COMM_LOG_INFO);
    assert_int_equal(s.allow_no_token, 0);
    assert_int_equal(s.listen_any, 0);
    assert_string_equal(s.backend_path, "");
    assert_true(s.log == NULL);
    const spark_comm_options options = unset_options();
    struct sc_settings same = resolved(&options);
    assert_memory_equal(&s, &same, sizeof s);
}

static void some_log(void *user, int level, const char *message) {
    (void)user;
    (void)level;
    (void)message;
}

static void test_options_win(void **state) {
    (void)state;
    spark_comm_options options = unset_options();
    char token[] = "secret";
    set("SPARK_COMM_BACKEND", "single");
    set("SPARK_COMM_OP_TIMEOUT_MS", "77");
    set("RANK", "1");
    set("WORLD_SIZE", "4");
    options.backend = "shm";
    options.job_token = token;
    options.rank = 2;
    options.world_size = 3;
    options.op_timeout_ms = -1;
    options.dtype = SPARK_COMM_I64;
    options.stream = UINT64_C(0xfedcba9876543210);
    options.log = some_log;
    options.log_user = token;
    struct sc_settings s = resolved(&options);
    token[0] = 'x';
    assert_string_equal(s.backend, "shm");
    assert_string_equal(s.job_token, "secret");
    assert_int_equal(s.rank, 2);
    assert_int_equal(s.world_size, 3);
    assert_int_equal(s.op_timeout_ms, SPARK_COMM_FOREVER);
    assert_int_equal(s.dtype, SPARK_COMM_I64);
    assert_true(s.stream == UINT64_C(0xfedcba9876543210));
    assert_true(s.log == some_log && s.log_user == token);
    assert_string_equal(source_of(&options, "backend"), "option");
    assert_string_equal(source_of(&options, "close_timeout_ms"), "default");
}

static void test_own_variables(void **state) {
    (void)state;
    set("SPARK_COMM_BACKEND", "my_module-2");
    set("SPARK_COMM_MEMORY", "device");
    set("SPARK_COMM_RANK", "4095");
    set("SPARK_COMM_WORLD_SIZE", "4096");
    set("SPARK_COMM_MASTER_ADDR", "fe80::1%eth0");
    set("SPARK_COMM_MASTER_PORT", "65535");
    set("SPARK_COMM_JOB_TOKEN", "a b\xff");
    set("SPARK_COMM_DEVICE", "7");
    set("SPARK_COMM_DTYPE", "u8");
    set("SPARK_COMM_RENDEZVOUS_TIMEOUT_MS", "2147483647");
    set("SPARK_COMM_OP_TIMEOUT_MS", "-1");
    set("SPARK_COMM_LIVENESS_TIMEOUT_MS", "0");
    set("SPARK_COMM_CLOSE_TIMEOUT_MS", "1");
    set("SPARK_COMM_TRACE_DIR", "/some/where");
    set("SPARK_COMM_TRACE_RECORDS", "1048576");
    set("SPARK_COMM_LOG_FILE", "log.%r.%r%");
    set("SPARK_COMM_LOG_LEVEL", "none");
    set("SPARK_COMM_ALLOW_NO_TOKEN", "1");
    set("SPARK_COMM_LISTEN_ANY", "1");
    set("SPARK_COMM_BACKEND_PATH", "/opt");
    struct sc_settings s = resolved(NULL);
    assert_string_equal(s.backend, "my_module-2");
    assert_int_equal(s.memory, SPARK_COMM_MEMORY_DEVICE);
    assert_int_equal(s.rank, 4095);
    assert_int_equal(s.world_size, 4096);
    assert_string_equal(s.master_addr, "fe80::1%eth0");
    assert_int_equal(s.master_port, 65535);
    assert_string_equal(s.job_token, "a b\xff");
    assert_int_equal(s.device, 7);
    assert_int_equal(s.dtype, SPARK_COMM_U8);
    assert_int_equal(s.rendezvous_timeout_ms, 2147483647);
    assert_int_equal(s.op_timeout_ms, SPARK_COMM_FOREVER);
    assert_int_equal(s.liveness_timeout_ms, 10000);
    assert_int_equal(s.close_timeout_ms, 1);
    assert_string_equal(s.trace_dir, "/some/where");
    assert_int_equal(s.trace_records, 1048576);
    assert_string_equal(s.log_file, "log.4095.4095%");
    assert_int_equal(s.log_level, 0);
    assert_int_equal(s.allow_no_token, 1);
    assert_int_equal(s.listen_any, 1);
    assert_string_equal(s.backend_path, "/opt");
    assert_string_equal(source_of(NULL, "dtype"), "SPARK_COMM_DTYPE");
    assert_string_equal(source_of(NULL, "liveness_timeout_ms"), "default");
}

static void test_empty_is_unset(void **state) {
    (void)state;
    set("SPARK_COMM_BACKEND", "");
    set("SPARK_COMM_JOB_TOKEN", "");
    set("RANK", "");
    set("WORLD_SIZE", "2");
    struct sc_settings s = resolved(NULL);
    assert_string_equal(s.backend, "auto");
    assert_string_equal(s.job_token, "");
    assert_int_equal(s.world_size, 1);
}

/* ---- Launchers ---- */

static void test_torchrun(void **state) {
    (void)state;
    set("RANK", "3");
    set("WORLD_SIZE", "8");
    set("LOCAL_RANK", "1");
    set("MASTER_ADDR", "node0");
    set("MASTER_PORT", "1234");
    struct sc_settings s = resolved(NULL);
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.world_size, 8);
    assert_string_equal(s.master_addr, "node0");
    assert_int_equal(s.master_port, 1234);
    assert_int_equal(s.memory, SPARK_COMM_MEMORY_HOST);
    assert_int_equal(s.device, -1);
    assert_string_equal(source_of(NULL, "rank"), "RANK");
    assert_string_equal(source_of(NULL, "master_port"), "MASTER_PORT");

    set("TORCHELASTIC_USE_AGENT_STORE", "True");
    assert_int_equal(resolved(NULL).master_port, 1235);
    assert_non_null(strstr(source_of(NULL, "master_port"), "TORCHELASTIC_USE_AGENT_STORE"));
    set("TORCHELASTIC_USE_AGENT_STORE", "False");
    assert_int_equal(resolved(NULL).master_port, 1234);
    set("TORCHELASTIC_USE_AGENT_STORE", "True");
    set("MASTER_PORT", "65535");
    refused(NULL, "master_port", "65536", "1 to 65535");
    /* What is ours is meant as it is. */
    set("SPARK_COMM_MASTER_PORT", "65535");
    assert_int_equal(resolved(NULL).master_port, 65535);
}

static void test_other_launchers(void **state) {
    (void)state;
    set("SLURM_PROCID", "5");
    set("SLURM_NTASKS", "6");
    assert_int_equal(resolved(NULL).world_size, 1); /* a batch script, not a step */
    set("SLURM_STEP_NUM_TASKS", "7");
    set("SLURM_LOCALID", "2");
    assert_int_equal(resolved(NULL).rank, 5);
    assert_int_equal(resolved(NULL).world_size, 7);
    set("PMI_RANK", "1");
    assert_int_equal(resolved(NULL).world_size, 7); /* MPICH's family is not whole */
    set("PMI_SIZE", "2");
    assert_int_equal(resolved(NULL).rank, 1);
    assert_int_equal(resolved(NULL).world_size, 2);
    set("OMPI_COMM_WORLD_RANK", "2");
    set("OMPI_COMM_WORLD_SIZE", "3");
    assert_int_equal(resolved(NULL).rank, 2);
    assert_string_equal(source_of(NULL, "world_size"), "OMPI_COMM_WORLD_SIZE");
    /* One family as a whole: torchrun's address does not count while its rank is missing. */
    set("MASTER_ADDR", "elsewhere");
    set("WORLD_SIZE", "9");
    assert_string_equal(resolved(NULL).master_addr, "127.0.0.1");
    set("RANK", "0");
    assert_string_equal(resolved(NULL).master_addr, "elsewhere");
    assert_int_equal(resolved(NULL).world_size, 9);
}

static void test_device(void **state) {
    (void)state;
    set("OMPI_COMM_WORLD_RANK", "1");
    set("OMPI_COMM_WORLD_SIZE", "2");
    set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
    assert_int_equal(resolved(NULL).device, -1);
    assert_int_equal(resolved(NULL).memory, SPARK_COMM_MEMORY_HOST);
    set("SPARK_COMM_MEMORY", "device");
    assert_int_equal(resolved(NULL).device, 1);
    assert_string_equal(source_of(NULL, "device"), "OMPI_COMM_WORLD_LOCAL_RANK");
    unsetenv("SPARK_COMM_MEMORY");
    set("SPARK_COMM_DEVICE", "0");
    assert_int_equal(resolved(NULL).device, 0);
    assert_int_equal(resolved(NULL).memory, SPARK_COMM_MEMORY_DEVICE);
    assert_string_equal(source_of(NULL, "memory"), "SPARK_COMM_DEVICE");
    set("SPARK_COMM_MEMORY", "host");
    assert_int_equal(resolved(NULL).memory, SPARK_COMM_MEMORY_HOST);
    unsetenv("SPARK_COMM_MEMORY");
    unsetenv("SPARK_COMM_DEVICE");
    spark_comm_options options = unset_options();
    options.device = 3;
    assert_int_equal(resolved(&options).memory, SPARK_COMM_MEMORY_DEVICE);
    assert_int_equal(resolved(&options).device, 3);
}

/* ---- What is refused ---- */

static void test_rank_and_size(void **state) {
    (void)state;
    spark_comm_options options = unset_options();
    options.rank = 1;
    refused(&options, "rank", "world_size", "together");
    options.rank = -1;
    options.world_size = 2;
    refused(&options, "rank", "world_size", "option");
    options.rank = 2;
    refused(&options, "rank", "'2'", "world_size is 2");
    options.rank = -2;
    refused(&options, "rank", "'-2'", "option");
    options.rank = 0;
    options.world_size = 0;
    refused(&options, "world_size", "'0'", "1 to 4096");
    options.world_size = 4097;
    refused(&options, "world_size", "'4097'", "1 to 4096");
    set("SPARK_COMM_RANK", "0");
    refused(NULL, "SPARK_COMM_RANK", "world_size", "together");
    set("RANK", "0");
    set("WORLD_SIZE", "0");
    unsetenv("SPARK_COMM_RANK");
    refused(NULL, "WORLD_SIZE", "'0'", "1 to 4096");
}

static void test_bad_numbers(void **state) {
    (void)state;
    const char *const bad[] = {"",
                               " 5",
                               "5 ",
                               "+5",
                               "5x",
                               "0x10",
                               "1e3",
                               "--5",
                               "-",
                               "-2",
                               "5.0",
                               "abc",
                               "\t5",
                               "0 ",
                               "99999999999999999999",
                               "2147483648",
                               "-1000000000000000000000"};
    for (size_t i = 1; i < sizeof bad / sizeof bad[0]; i++) {
        set("SPARK_COMM_OP_TIMEOUT_MS", bad[i]);
        refused(NULL, "op_timeout_ms", "SPARK_COMM_OP_TIMEOUT_MS", "2147483647");
    }
    unsetenv("SPARK_COMM_OP_TIMEOUT_MS");
    const char *const ports[] = {"0", "-1", "65536", "http"};
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++) {
        set("SPARK_COMM_MASTER_PORT", ports[i]);
        refused(NULL, "master_port", ports[i], "1 to 65535");
    }
    unsetenv("SPARK_COMM_MASTER_PORT");
    const char *const records[] = {"63", "32", "100", "2097152", "-4096", "0"};
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        set("SPARK_COMM_TRACE_RECORDS", records[i]);
        refused(NULL, "trace_records", records[i], "power of two");
    }
    unsetenv("SPARK_COMM_TRACE_RECORDS");
    spark_comm_options options = unset_options();
    options.liveness_timeout_ms = -7;
    refused(&options, "liveness_timeout_ms", "'-7'", "option");
}

static void test_bad_words(void **state) {
    (void)state;
    const char *const pairs[][2] = {{"SPARK_COMM_BACKEND", "../evil"},
                                    {"SPARK_COMM_BACKEND", "NCCL"},
                                    {"SPARK_COMM_MEMORY", "gpu"},
                                    {"SPARK_COMM_DTYPE", "float"},
                                    {"SPARK_COMM_LOG_LEVEL", "verbose"},
                                    {"SPARK_COMM_ALLOW_NO_TOKEN", "yes"},
                                    {"SPARK_COMM_LISTEN_ANY", "2"},
                                    {"SPARK_COMM_BACKEND", "a_name_of_more_than_31_characters"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        set(pairs[i][0], pairs[i][1]);
        refused(NULL, pairs[i][0], pairs[i][1], "must be");
        unsetenv(pairs[i][0]);
    }
    spark_comm_options options = unset_options();
    options.dtype = 9;
    refused(&options, "dtype", "'9'", "bf16");
    options.dtype = -1;
    refused(&options, "dtype", "'-1'", "bf16");
    options.dtype = 0;
    options.memory = 3;
    refused(&options, "memory", "'3'", "host or device");
}

static void test_long_texts(void **state) {
    (void)state;
    char text[600];
    memset(text, 'a', sizeof text);
    text[511] = '\0';
    set("SPARK_COMM_LOG_FILE", text);
    assert_int_equal(strlen(resolved(NULL).log_file), 511);
    text[0] = '%';
    text[1] = 'r';
    set("SPARK_COMM_LOG_FILE", text); /* "%r" becomes "0": shorter */
    assert_int_equal(strlen(resolved(NULL).log_file), 510);
    set("SPARK_COMM_RANK", "1000");
    set("SPARK_COMM_WORLD_SIZE", "1001");
    refused(NULL, "log_file", "SPARK_COMM_LOG_FILE", "511");
    text[511] = 'a';
    text[512] = '\0';
    set("SPARK_COMM_LOG_FILE", text);
    refused(NULL, "log_file", "SPARK_COMM_LOG_FILE", "511");
    unsetenv("SPARK_COMM_LOG_FILE");
    text[256] = '\0';
    set("SPARK_COMM_MASTER_ADDR", text);
    refused(NULL, "master_addr", "SPARK_COMM_MASTER_ADDR", "255");
}

static void test_secret(void **state) {
    (void)state;
    spark_comm_setting_row rows[SC_SETTINGS_MAX_ENTRIES];
    struct sc_settings settings;
    struct sc_error error;
    char token[300];
    memset(token, 'q', sizeof token - 1);
    token[sizeof token - 1] = '\0';
    set("SPARK_COMM_JOB_TOKEN", token);
    refused(NULL, "job_token", "SPARK_COMM_JOB_TOKEN", "255 bytes");
    assert_int_equal(sc_settings_resolve(NULL, &settings, &error), SPARK_COMM_INVALID_ARGUMENT);
    assert_null(strstr(error.message, "qq"));
    for (int round = 0; round < 2; round++) {
        size_t count = sc_settings_describe(NULL, rows, sizeof rows[0], SC_SETTINGS_MAX_ENTRIES);
        for (size_t i = 0; i < count; i++) {
            assert_null(strstr(rows[i].value, "qq"));
            assert_null(strstr(rows[i].problem, "qq"));
            if (strcmp(rows[i].name, "job_token") == 0)
                assert_string_equal(rows[i].value, round == 0 ? "not set" : "set");
        }
        set("SPARK_COMM_JOB_TOKEN", "qqq");
    }
}

/* ---- Struct sizes ---- */

static void test_older_and_newer_callers(void **state) {
    (void)state;
    spark_comm_options options = unset_options();
    options.backend = "shm";
    options.op_timeout_ms = 5;
    options.struct_size = offsetof(spark_comm_options, op_timeout_ms);
    struct sc_settings s = resolved(&options);
    assert_string_equal(s.backend, "shm");
    assert_int_equal(s.op_timeout_ms, 30000);
    options.struct_size =
        offsetof(spark_comm_options, op_timeout_ms) + 2; /* half a field is no field */
    assert_int_equal(resolved(&options).op_timeout_ms, 30000);
    options.struct_size = sizeof(size_t);
    assert_string_equal(resolved(&options).backend, "auto");

    unsigned char larger[sizeof options + 40];
    sc_settings_options_init((spark_comm_options *)(void *)larger, sizeof larger);
    spark_comm_options *newer = (spark_comm_options *)(void *)larger;
    assert_int_equal(newer->struct_size, sizeof larger);
    newer->op_timeout_ms = 6;
    assert_int_equal(resolved(newer).op_timeout_ms, 6);
    larger[sizeof larger - 1] = 1;
    refused(newer, "struct_size", "not zero", "knows");
    options.struct_size = 0;
    refused(&options, "struct_size", "0", "spark_comm_options_init");
    struct sc_error error;
    assert_int_equal(sc_settings_resolve(&options, &s, &error), SPARK_COMM_INVALID_ARGUMENT);
    assert_null(strstr(error.message, "backend")); /* the first row of the table is not at fault */
}

/* In an option empty is a value, and no setting has it. */
static void test_empty_options(void **state) {
    (void)state;
    spark_comm_options options = unset_options();
    options.job_token = "";
    refused(&options, "job_token", "option", "1 to 255 bytes");
    options = unset_options();
    options.backend = "";
    refused(&options, "backend", "option", "auto, single");
    options = unset_options();
    options.master_addr = "";
    refused(&options, "master_addr", "option", "1 to 255");
}

static void test_init(void **state) {
    (void)state;
    unsigned char bytes[sizeof(spark_comm_options) + 16];
    memset(bytes, 0x5a, sizeof bytes);
    spark_comm_options *options = (spark_comm_options *)(void *)bytes;
    sc_settings_options_init(options, offsetof(spark_comm_options, world_size));
    assert_int_equal(options->struct_size, offsetof(spark_comm_options, world_size));
    assert_int_equal(options->rank, -1);
    assert_int_equal(bytes[offsetof(spark_comm_options, world_size)],
                     0x5a); /* nothing beyond is touched */
    sc_settings_options_init(options, sizeof *options);
    assert_int_equal(options->world_size, -1);
    assert_int_equal(options->device, -1);
    assert_true(options->backend == NULL);
    assert_int_equal(options->memory, 0);
    assert_int_equal(bytes[sizeof *options], 0x5a);
    sc_settings_options_init(NULL, 8);
    sc_settings_options_init(options, 0);
}

/* ---- Rows, options for backends, digest ---- */

static void test_describe(void **state) {
    (void)state;
    spark_comm_setting_row rows[SC_SETTINGS_MAX_ENTRIES];
    set("SPARK_COMM_DTYPE", "wrong");
    set("SPARK_COMM_CLOSE_TIMEOUT_MS", "-1");
    size_t count = sc_settings_describe(NULL, rows, sizeof rows[0], SC_SETTINGS_MAX_ENTRIES);
    assert_int_equal(count, sc_settings_table_count);
    for (size_t i = 0; i < count; i++) {
        assert_true(rows[i].name[0] != '\0' && rows[i].value[0] != '\0' &&
                    rows[i].source[0] != '\0');
        assert_string_equal(rows[i].range, sc_settings_table[i].range); /* nothing is cut off */
        assert_string_equal(rows[i].help, sc_settings_table[i].help);
        bool is_bad = strcmp(rows[i].name, "dtype") == 0;
        assert_int_equal(rows[i].problem[0] != '\0', is_bad);
        if (is_bad) {
            assert_string_equal(rows[i].source, "SPARK_COMM_DTYPE");
            assert_non_null(strstr(rows[i].problem, "wrong"));
        }
        if (strcmp(rows[i].name, "close_timeout_ms") == 0)
            assert_string_equal(rows[i].value, "-1 (no limit)");
        if (strcmp(rows[i].name, "device") == 0) assert_string_equal(rows[i].value, "not set");
    }
    assert_int_equal(sc_settings_describe(NULL, NULL, 0, 0), count);
}

/* A caller whose rows are shorter, or longer, than ours. */
static void test_row_sizes(void **state) {
    (void)state;
    unsigned char bytes[3 * (sizeof(spark_comm_setting_row) + 32)];
    memset(bytes, 0x5a, sizeof bytes);
    size_t longer = sizeof(spark_comm_setting_row) + 32;
    sc_settings_describe(NULL, (spark_comm_setting_row *)(void *)bytes, longer, 2);
    assert_string_equal((char *)bytes, "backend");
    assert_string_equal((char *)bytes + longer, "memory");
    assert_int_equal(bytes[longer - 1], 0);
    assert_int_equal(bytes[2 * longer], 0x5a);
    memset(bytes, 0x5a, sizeof bytes);
    sc_settings_describe(NULL, (spark_comm_setting_row *)(void *)bytes, 96, 2);
    assert_string_equal((char *)bytes, "backend");
    assert_string_equal((char *)bytes + 96, "memory");
    assert_int_equal(bytes[192], 0x5a);
}

static void test_to_options(void **state) {
    (void)state;
    set("SPARK_COMM_RANK", "1");
    set("SPARK_COMM_WORLD_SIZE", "2");
    set("SPARK_COMM_JOB_TOKEN", "t");
    set("SPARK_COMM_CLOSE_TIMEOUT_MS", "9");
    struct sc_settings settings = resolved(NULL);
    spark_comm_options options;
    sc_settings_to_options(&settings, &options);
    assert_int_equal(options.struct_size, sizeof options);
    assert_ptr_equal(options.backend, settings.backend);
    clear_environment(NULL);
    struct sc_settings again = resolved(&options);
    assert_memory_equal(&settings, &again, sizeof settings);
}

static void test_digest(void **state) {
    (void)state;
    struct sc_settings a = resolved(NULL);
    struct sc_settings b = a;
    b.rank = 5;
    b.close_timeout_ms = 1;
    assert_true(sc_settings_digest(&a) == sc_settings_digest(&b));
    b.op_timeout_ms = 1;
    assert_true(sc_settings_digest(&a) != sc_settings_digest(&b));
    b = a;
    b.dtype = SPARK_COMM_F32;
    assert_true(sc_settings_digest(&a) != sc_settings_digest(&b));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, clear_environment, clear_environment)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_options_win),
        TEST(test_own_variables),
        TEST(test_empty_is_unset),
        TEST(test_torchrun),
        TEST(test_other_launchers),
        TEST(test_device),
        TEST(test_rank_and_size),
        TEST(test_bad_numbers),
        TEST(test_bad_words),
        TEST(test_long_texts),
        TEST(test_secret),
        TEST(test_older_and_newer_callers),
        TEST(test_empty_options),
        TEST(test_init),
        TEST(test_describe),
        TEST(test_row_sizes),
        TEST(test_to_options),
        TEST(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
