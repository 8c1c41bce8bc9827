/* Statuses and operations: every member of the lists has a name and a text, every other value a constant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void test_every_status(void **state) {
    (void)state;
#define CHECK(status, value, text)                        \
    assert_int_equal(status, value);                      \
    assert_string_equal(sc_status_name(status), #status); \
    assert_string_equal(sc_status_text(status), text);    \
    assert_int_equal(sc_status_is_fatal(status), (value) >= 200);
    SPARK_COMM_STATUS_LIST(CHECK)
#undef CHECK
}

static void test_unknown_status(void **state) {
    (void)state;
    const int unknown[] = {-1, 5, 99, 199, 300, 1 << 30};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_string_equal(sc_status_name(unknown[i]), "SPARK_COMM_UNKNOWN");
        assert_string_equal(sc_status_text(unknown[i]), "unknown status");
        assert_false(sc_status_is_fatal(unknown[i]));
    }
}

static void test_operation_names(void **state) {
    (void)state;
    for (int i = 0; i < SPARK_COMM_OP_COUNT; i++) {
        assert_non_null(sc_status_operation_name(i));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(sc_status_operation_name(i), sc_status_operation_name(k));
    }
    assert_string_equal(sc_status_operation_name(SPARK_COMM_OP_ALL_REDUCE), "all_reduce");
    assert_string_equal(sc_status_operation_name(SPARK_COMM_OP_CLOSE), "close");
    assert_string_equal(sc_status_operation_name(-1), "unknown");
    assert_string_equal(sc_status_operation_name(SPARK_COMM_OP_COUNT), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status),
        cmocka_unit_test(test_unknown_status),
        cmocka_unit_test(test_operation_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
