/* Opening libraries: the first that opens, the file that was mapped, and every reason when none does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "os/library.h"

static void test_open(void **state) {
    (void)state;
    const char *const names[] = {"libno_such_thing.so.9", "libm.so.6", "libc.so.6"};
    struct sc_library library;
    struct sc_error error;
    assert_int_equal(sc_library_open(&library, names, 3, &error), SPARK_COMM_OK);
    assert_non_null(library.handle);
    assert_non_null(strstr(library.file, "libm.so"));
    assert_int_equal(library.file[0], '/');
    assert_non_null(strstr(library.tried, "libno_such_thing.so.9: "));
    double (*cosine)(double) = NULL;
    void *symbol = sc_library_symbol(&library, "cos");
    assert_non_null(symbol);
    memcpy(&cosine, &symbol, sizeof cosine);
    assert_true(cosine(0) == 1);
    assert_null(sc_library_symbol(&library, "no_such_function"));
}

static void test_none(void **state) {
    (void)state;
    const char *const names[] = {"libno_such_thing.so.9", "/no/such/folder/lib.so", "/dev/null"};
    struct sc_library library;
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(sc_library_open(&library, names, 3, &error), SPARK_COMM_UNAVAILABLE);
    assert_null(library.handle);
    for (size_t i = 0; i < 3; i++) {
        assert_non_null(strstr(library.tried, names[i]));
        assert_non_null(strstr(error.message, names[i]));
    }
    assert_null(sc_library_symbol(&library, "cos"));
    assert_int_equal(sc_library_open(&library, names, 0, &error), SPARK_COMM_UNAVAILABLE);
    assert_int_equal(sc_library_open(&library, names, 1, NULL), SPARK_COMM_UNAVAILABLE);
}

/* More reasons than there is room for are cut off, and nothing else happens. */
static void test_many_reasons(void **state) {
    (void)state;
    static char texts[40][100];
    const char *names[40];
    struct sc_library library;
    struct sc_error error;
    for (int i = 0; i < 40; i++) {
        snprintf(texts[i], sizeof texts[i],
                 "/no/such/folder/of/a/rather/long/name/library_number_%d.so", i);
        names[i] = texts[i];
    }
    assert_int_equal(sc_library_open(&library, names, 40, &error), SPARK_COMM_UNAVAILABLE);
    assert_int_equal(strlen(library.tried), sizeof library.tried - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_many_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
