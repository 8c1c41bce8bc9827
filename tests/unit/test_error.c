/* Errors: what is filled and what is left alone, long sentences, system errors with the limit that was met. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/error.h"

static void test_set(void **state) {
    (void)state;
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(error.peer, -1);
    assert_int_equal(error.status, SPARK_COMM_OK);
    assert_string_equal(error.message, "");

    error.operation = SPARK_COMM_OP_BARRIER;
    error.sequence = 7;
    error.epoch = 3;
    errno = EDOM;
    assert_int_equal(
        sc_error_set(&error, SPARK_COMM_PEER_LOST, 4, -77, "rank %d is lost in #%d", 4, 12),
        SPARK_COMM_PEER_LOST);
    assert_int_equal(errno, EDOM);
    assert_int_equal(error.status, SPARK_COMM_PEER_LOST);
    assert_int_equal(error.peer, 4);
    assert_int_equal(error.native_code, -77);
    assert_string_equal(error.message, "rank 4 is lost in #12");
    assert_int_equal(error.operation, SPARK_COMM_OP_BARRIER);
    assert_int_equal(error.sequence, 7);
    assert_int_equal(error.epoch, 3);

    /* The old message may be an argument. */
    sc_error_set(&error, SPARK_COMM_REFUSED, -1, 0, "again: %s", error.message);
    assert_string_equal(error.message, "again: rank 4 is lost in #12");
}

static void test_no_error_struct(void **state) {
    (void)state;
    assert_int_equal(sc_error_set(NULL, SPARK_COMM_BUSY, -1, 0, "text"), SPARK_COMM_BUSY);
    assert_int_equal(sc_error_system(NULL, EIO, "text"), SPARK_COMM_SYSTEM);
    assert_int_equal(sc_error_system(NULL, ENOMEM, "text"), SPARK_COMM_NO_MEMORY);
    sc_error_clear(NULL);
}

static void test_long_sentences(void **state) {
    (void)state;
    struct sc_error error;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sc_error_set(&error, SPARK_COMM_SYSTEM, -1, 0, "%s", text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    /* The reason of a failed system call is never what is cut off. */
    sc_error_system(&error, ECONNREFUSED, "%s", text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_non_null(strstr(error.message, "xx: Connection refused"));
}

static void test_system(void **state) {
    (void)state;
    struct sc_error error;
    sc_error_clear(&error);
    errno = EDOM;
    assert_int_equal(sc_error_system(&error, EACCES, "cannot open %s", "it"), SPARK_COMM_SYSTEM);
    assert_int_equal(errno, EDOM);
    assert_int_equal(error.native_code, EACCES);
    assert_int_equal(error.peer, -1);
    assert_string_equal(error.message, "cannot open it: Permission denied");
    assert_int_equal(sc_error_system(&error, ENOMEM, "no"), SPARK_COMM_NO_MEMORY);
    assert_int_equal(error.status, SPARK_COMM_NO_MEMORY);
    assert_int_equal(sc_error_system(&error, 123456, "odd"), SPARK_COMM_SYSTEM);
    assert_non_null(strstr(error.message, "odd: "));
}

static void test_descriptor_limit(void **state) {
    (void)state;
    struct sc_error error;
    struct rlimit limit;
    char number[32];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    snprintf(number, sizeof number, "%llu descriptors", (unsigned long long)limit.rlim_cur);
    assert_int_equal(sc_error_system(&error, EMFILE, "cannot open a socket"), SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, EMFILE);
    assert_non_null(strstr(error.message, number));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_no_error_struct),
        cmocka_unit_test(test_long_sentences),
        cmocka_unit_test(test_system),
        cmocka_unit_test(test_descriptor_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
