/* Allocation: zeroes, alignment, overflow, and the injected failure that other tests rely on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The allocator with injected failures, in place of the archive's. */
#ifndef SPARK_COMM_TESTING
#define SPARK_COMM_TESTING
#endif
#include "base/alloc.c"

static void test_allocate(void **state) {
    (void)state;
    static const unsigned char zeroes[1000];
    unsigned char *plain = sc_alloc(1000);
    unsigned char *zero = sc_alloc_zero(1000);
    unsigned char *array = sc_alloc_array(10, 100);
    unsigned char *aligned = sc_alloc_aligned(4096, 1000);
    assert_non_null(plain);
    memset(plain, 1, 1000);
    assert_memory_equal(zero, zeroes, 1000);
    assert_memory_equal(array, zeroes, 1000);
    assert_memory_equal(aligned, zeroes, 1000);
    assert_int_equal((uintptr_t)aligned % 4096, 0);
    sc_free(plain);
    sc_free(zero);
    sc_free(array);
    sc_free(aligned);
    sc_free(NULL);
}

static void test_nothing_and_too_much(void **state) {
    (void)state;
    void *nothing[] = {sc_alloc(0), sc_alloc_zero(0), sc_alloc_array(0, 8),
                       sc_alloc_aligned(64, 0)};
    for (size_t i = 0; i < 4; i++) {
        assert_non_null(nothing[i]);
        sc_free(nothing[i]);
    }
    assert_null(sc_alloc_array(SIZE_MAX / 2, 3));
}

static void test_injected_failure(void **state) {
    (void)state;
    sc_alloc_fail_after(2);
    void *first = sc_alloc(1);
    void *second = sc_alloc_zero(1);
    void *third = sc_alloc(1);
    void *fourth = sc_alloc_aligned(64, 1);
    long refused = sc_alloc_refused();
    sc_alloc_fail_after(-1);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(third);
    assert_null(fourth);
    assert_int_equal(refused, 2);
    assert_int_equal(sc_alloc_refused(), 0);
    sc_free(first);
    sc_free(second);
    void *again = sc_alloc(1);
    assert_non_null(again);
    sc_free(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocate),
        cmocka_unit_test(test_nothing_and_too_much),
        cmocka_unit_test(test_injected_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
