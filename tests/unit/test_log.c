/* The log: levels, callback and file, one line for one call whatever is in the message, several threads. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"

struct capture {
    int calls;
    int level;
    char text[2048];
};

static void capture_line(void *user, int level, const char *message) {
    struct capture *capture = user;
    capture->calls++;
    capture->level = level;
    snprintf(capture->text, sizeof capture->text, "%s", message);
}

static void test_levels(void **state) {
    (void)state;
    struct capture capture = {0};
    struct sc_log log = {
        .fn = capture_line, .user = &capture, .fd = -1, .level = SPARK_COMM_LOG_INFO};
    errno = EDOM;
    sc_log_write(&log, SPARK_COMM_LOG_DEBUG, "not %s", "this");
    assert_int_equal(capture.calls, 0);
    assert_false(sc_log_wants(&log, SPARK_COMM_LOG_DEBUG));
    assert_true(sc_log_wants(&log, SPARK_COMM_LOG_INFO));
    sc_log_write(&log, SPARK_COMM_LOG_WARN, "rank %d is %s", 3, "slow");
    assert_int_equal(errno, EDOM);
    assert_int_equal(capture.calls, 1);
    assert_int_equal(capture.level, SPARK_COMM_LOG_WARN);
    assert_string_equal(capture.text, "rank 3 is slow");
    log.level = 0;
    sc_log_write(&log, SPARK_COMM_LOG_ERROR, "nothing is logged");
    assert_int_equal(capture.calls, 1);
}

static void test_nobody_listens(void **state) {
    (void)state;
    const struct sc_log log = {.fn = NULL, .fd = -1, .level = SPARK_COMM_LOG_DEBUG};
    assert_false(sc_log_wants(&log, SPARK_COMM_LOG_ERROR));
    sc_log_write(&log, SPARK_COMM_LOG_ERROR, "lost");
}

static void test_one_line(void **state) {
    (void)state;
    struct capture capture = {0};
    const struct sc_log log = {
        .fn = capture_line, .user = &capture, .fd = -1, .level = SPARK_COMM_LOG_INFO};
    char text[4000];
    sc_log_write(&log, SPARK_COMM_LOG_INFO, "%s", "a\nb\rc\td\x1b[31me");
    assert_string_equal(capture.text, "a b c d [31me");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sc_log_write(&log, SPARK_COMM_LOG_INFO, "%s", text);
    assert_int_equal(strlen(capture.text), 1023);
}

/* A descriptor in memory, opened anew so that O_APPEND holds. */
static int open_file(void) {
    char path[64];
    int plain = memfd_create("log", MFD_CLOEXEC);
    assert_true(plain >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", plain);
    int fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    close(plain);
    return fd;
}

static char *read_file(int fd) {
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    return text;
}

static void test_file(void **state) {
    (void)state;
    const struct sc_log log = {.fd = open_file(), .level = SPARK_COMM_LOG_DEBUG};
    sc_log_write(&log, SPARK_COMM_LOG_ERROR, "first");
    sc_log_write(&log, SPARK_COMM_LOG_DEBUG, "second");
    char *text = read_file(log.fd);
    /* 2030-01-31T23:59:59.123456Z error first */
    assert_int_equal(text[10], 'T');
    assert_int_equal(text[26], 'Z');
    assert_non_null(strstr(text, "Z error first\n2"));
    assert_non_null(strstr(text, "Z debug second\n"));
    free(text);
    close(log.fd);
}

#define LINES 500

static void *write_many(void *arg) {
    for (int i = 0; i < LINES; i++)
        sc_log_write(arg, SPARK_COMM_LOG_INFO, "abcdefghijklmnopqrstuvwxyz %d", i);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct sc_log log = {.fd = open_file(), .level = SPARK_COMM_LOG_INFO};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &log), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    char *text = read_file(log.fd);
    int lines = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        assert_non_null(strstr(line, "Z info abcdefghijklmnopqrstuvwxyz "));
        assert_int_equal(line[26], 'Z');
        lines++;
    }
    assert_int_equal(lines, 3 * LINES);
    free(text);
    close(log.fd);
}

static void test_file_that_fails(void **state) {
    (void)state;
    const struct sc_log log = {.fd = open("/dev/full", O_WRONLY | O_CLOEXEC),
                               .level = SPARK_COMM_LOG_INFO};
    errno = 0;
    sc_log_write(&log, SPARK_COMM_LOG_INFO, "dropped");
    assert_int_equal(errno, 0);
    if (log.fd >= 0) close(log.fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),   cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_one_line), cmocka_unit_test(test_file),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_file_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
