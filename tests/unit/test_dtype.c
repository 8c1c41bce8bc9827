/*
 * Element types: names, rounding, and every reducer of every instruction set that this CPU has against a reference written
 * here in another way (by value in double, not by bits), to the bit: all types and reductions, many numbers of sources,
 * counts around every register width, any alignment, in place, special values, and unusual floating-point modes.
 */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype_convert.h"
#include "base/dtype_kernels.h"

#define MAX_SOURCES 256
#define GUARD 64
#define GUARD_BYTE 0xa5

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * UINT64_C(2685821657736338717);
}

/* ---- The reference ---- */

/* The nearest multiple of 2^(exponent - digits), ties to even, where the exponent is at least `smallest`. */
static double round_to(double value, int digits, int smallest) {
    if (value == 0 || isinf(value)) return value;
    int exponent = ilogb(value);
    if (exponent < smallest) exponent = smallest;
    return ldexp(nearbyint(ldexp(value, digits - exponent)), exponent - digits);
}

static uint16_t reference_to_bf16(float value) {
    if (isnan(value)) return 0x7fc0;
    float rounded = (float)round_to((double)value, 7, -126);
    return (uint16_t)(sc_dtype_bits_of(rounded) >> 16);
}

static uint16_t reference_to_f16(float value) {
    if (isnan(value)) return 0x7e00;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(round_to((double)value, 10, -14));
    if (size >= 65536) return (uint16_t)(sign | 0x7c00);
    if (size < ldexp(1, -14)) return (uint16_t)(sign | (int)ldexp(size, 24));
    int exponent = ilogb(size);
    int mantissa = (int)(ldexp(size, 10 - exponent)) - 1024;
    return (uint16_t)(sign | (exponent + 15) << 10 | mantissa);
}

static float reference_from_f16(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    int mantissa = bits & 1023;
    double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) size = mantissa != 0 ? (double)NAN : (double)INFINITY;
    return (float)((bits & 0x8000) != 0 ? -size : size);
}

static float load_as_float(int dtype, const unsigned char *at) {
    uint16_t half;
    uint32_t bits;
    memcpy(&half, at, sizeof half);
    if (dtype == SPARK_COMM_F16) return reference_from_f16(half);
    bits = (uint32_t)half << 16;
    if (dtype == SPARK_COMM_F32) memcpy(&bits, at, sizeof bits);
    return sc_dtype_float_of(bits);
}

static void store_float(int dtype, unsigned char *at, float value) {
    uint32_t bits = isnan(value) ? 0x7fc00000u : sc_dtype_bits_of(value);
    uint16_t half = dtype == SPARK_COMM_F16 ? reference_to_f16(value) : reference_to_bf16(value);
    if (dtype == SPARK_COMM_F32)
        memcpy(at, &bits, sizeof bits);
    else
        memcpy(at, &half, sizeof half);
}

static void reference_float(int dtype, int redop, unsigned char *dst,
                            const unsigned char *const *sources, size_t n) {
    float result = load_as_float(dtype, sources[0]);
    for (size_t k = 1; k < n; k++) {
        float next = load_as_float(dtype, sources[k]);
        if (redop == SPARK_COMM_SUM || redop == SPARK_COMM_AVG)
            result += next;
        else if (!isnan(result) &&
                 (isnan(next) || !(redop == SPARK_COMM_MAX ? result > next : result < next)))
            result = next;
    }
    if (redop == SPARK_COMM_AVG) result /= (float)n;
    store_float(dtype, dst, result);
}

static void reference_f64(int redop, unsigned char *dst, const unsigned char *const *sources,
                          size_t n) {
    double result;
    memcpy(&result, sources[0], sizeof result);
    for (size_t k = 1; k < n; k++) {
        double next;
        memcpy(&next, sources[k], sizeof next);
        if (redop == SPARK_COMM_SUM || redop == SPARK_COMM_AVG)
            result += next;
        else if (!isnan(result) &&
                 (isnan(next) || !(redop == SPARK_COMM_MAX ? result > next : result < next)))
            result = next;
    }
    if (redop == SPARK_COMM_AVG) result /= (double)n;
    uint64_t bits;
    memcpy(&bits, &result, sizeof bits);
    if (isnan(result)) bits = UINT64_C(0x7ff8000000000000);
    memcpy(dst, &bits, sizeof bits);
}

/* Integers in 128 bits, cut to their width. */
static __int128 cut(int dtype, __int128 value) {
    switch (dtype) {
    case SPARK_COMM_I8: return (int8_t)(uint8_t)value;
    case SPARK_COMM_U8: return (uint8_t)value;
    case SPARK_COMM_I32: return (int32_t)(uint32_t)value;
    default: return (int64_t)(uint64_t)value;
    }
}

static void reference_integer(int dtype, int redop, unsigned char *dst,
                              const unsigned char *const *sources, size_t n) {
    size_t size = sc_dtype_size(dtype);
    __int128 result = 0;
    for (size_t k = 0; k < n; k++) {
        uint64_t bits = 0;
        memcpy(&bits, sources[k], size); /* little endian */
        __int128 next = cut(dtype, (__int128)bits);
        if (k == 0)
            result = next;
        else if (redop == SPARK_COMM_SUM || redop == SPARK_COMM_AVG)
            result += next;
        else if (redop == SPARK_COMM_MAX ? next > result : next < result)
            result = next;
    }
    result = cut(dtype, result);
    if (redop == SPARK_COMM_AVG) result /= (__int128)n;
    uint64_t bits = (uint64_t)result;
    memcpy(dst, &bits, size);
}

static void reference(int dtype, int redop, unsigned char *dst, const unsigned char *const *sources,
                      size_t n, size_t count) {
    size_t size = sc_dtype_size(dtype);
    const unsigned char *at[MAX_SOURCES];
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < n; k++)
            at[k] = sources[k] + i * size;
        if (dtype == SPARK_COMM_F64)
            reference_f64(redop, dst + i * size, at, n);
        else if (dtype <= SPARK_COMM_F32)
            reference_float(dtype, redop, dst + i * size, at, n);
        else
            reference_integer(dtype, redop, dst + i * size, at, n);
    }
}

/* ---- Inputs ---- */

static const uint64_t special_halves[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x03ff,
                                          0x0400, 0x3c00, 0xbc00, 0x3f80, 0xbf80, 0x7bff, 0xfbff,
                                          0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe55, 0x7f7f, 0xff7f,
                                          0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffff};
static const uint64_t special_f32[] = {
    0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xbf800000,
    0x3f800001, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffffffff};
static const uint64_t special_wide[] = {0,
                                        1,
                                        UINT64_C(0x8000000000000000),
                                        UINT64_C(0x7fffffffffffffff),
                                        UINT64_C(0xffffffffffffffff),
                                        UINT64_C(0x000fffffffffffff),
                                        UINT64_C(0x0010000000000000),
                                        UINT64_C(0x3ff0000000000000),
                                        UINT64_C(0x7fefffffffffffff),
                                        UINT64_C(0x7ff0000000000000),
                                        UINT64_C(0xfff0000000000000),
                                        UINT64_C(0x7ff0000000000001),
                                        UINT64_C(0x7ff8000000000000),
                                        UINT64_C(0x80000000),
                                        UINT64_C(0x7fffffff),
                                        UINT64_C(0x80),
                                        UINT64_C(0x7f)};

static uint64_t special_of(int dtype) {
    size_t pick = random_bits() >> 8;
    if (sc_dtype_size(dtype) == 2)
        return special_halves[pick % (sizeof special_halves / sizeof special_halves[0])];
    if (dtype == SPARK_COMM_F32)
        return special_f32[pick % (sizeof special_f32 / sizeof special_f32[0])];
    return special_wide[pick % (sizeof special_wide / sizeof special_wide[0])];
}

/* A third each: any bits, special values, and floats of like size (so that low bits matter and nothing overflows). */
static uint64_t value_of(int dtype) {
    uint64_t bits = random_bits();
    switch (bits % 3) {
    case 0: return bits >> 7;
    case 1: return special_of(dtype);
    default: break;
    }
    bits = random_bits();
    switch (dtype) {
    case SPARK_COMM_BF16: return 0x3f00 + (bits & 0x83ff);
    case SPARK_COMM_F16: return 0x3000 + (bits & 0x8fff);
    case SPARK_COMM_F32: return 0x3f000000 + (bits & 0x80ffffff);
    case SPARK_COMM_F64:
        return UINT64_C(0x3fe0000000000000) + (bits & UINT64_C(0x801fffffffffffff));
    default: return bits & 0x3f;
    }
}

/* ---- The tables of this CPU ---- */

static const struct sc_dtype_table *tables[4];
static const char *table_names[4];
static size_t table_count;

static void add_table(const struct sc_dtype_table *table, const char *name) {
    tables[table_count] = table;
    table_names[table_count++] = name;
}

static int find_tables(void **state) {
    (void)state;
    add_table(&sc_dtype_scalar_table, "scalar");
#if defined(__x86_64__) && defined(SC_HAVE_AVX2)
    if (sc_dtype_cpu_has_avx2()) add_table(&sc_dtype_avx2_table, "avx2");
#endif
#if defined(__x86_64__) && defined(SC_HAVE_AVX512)
    if (sc_dtype_cpu_has_avx512()) add_table(&sc_dtype_avx512_table, "avx512");
#endif
#if defined(__aarch64__) && defined(SC_HAVE_NEON)
    add_table(&sc_dtype_neon_table, "neon");
#endif
    for (size_t t = 0; t < table_count; t++)
        print_message("instruction set: %s\n", table_names[t]);
    return 0;
}

/* ---- Comparisons ---- */

struct arena {
    unsigned char
        *memory; /* n sources, a destination and what is expected, each with room around it */
    unsigned char *sources[MAX_SOURCES];
    unsigned char *dst;
    unsigned char *expected;
    size_t room;
};

static void arena_make(struct arena *arena, int dtype, size_t n, size_t count) {
    size_t size = sc_dtype_size(dtype);
    arena->room = count * size + 2 * GUARD;
    arena->memory = malloc((n + 2) * arena->room);
    assert_non_null(arena->memory);
    memset(arena->memory, GUARD_BYTE, (n + 2) * arena->room);
    for (size_t k = 0; k < n; k++) {
        arena->sources[k] = arena->memory + k * arena->room + GUARD / 2 + (random_bits() >> 9) % 32;
        for (size_t i = 0; i < count; i++) {
            uint64_t value = value_of(dtype);
            memcpy(arena->sources[k] + i * size, &value, size);
        }
    }
    arena->dst = arena->memory + n * arena->room + GUARD / 2 + (random_bits() >> 9) % 32;
    arena->expected = arena->memory + (n + 1) * arena->room;
}

static void fail_with(const char *set, int dtype, int redop, size_t n, size_t count,
                      size_t element) {
    fail_msg("%s %s %s, %zu sources, %zu elements: element %zu differs", set, sc_dtype_name(dtype),
             sc_dtype_redop_name(redop), n, count, element);
}

/* Into a buffer of its own with guards, then in place over one of the sources. */
static void compare(size_t table, int dtype, int redop, size_t n, size_t count) {
    struct arena arena;
    size_t size = sc_dtype_size(dtype);
    size_t bytes = count * size;
    sc_dtype_reduce_fn reducer = tables[table]->reducers[dtype][redop];
    if (reducer == NULL) return;
    arena_make(&arena, dtype, n, count);
    const unsigned char *const *sources = (const unsigned char *const *)arena.sources;
    reference(dtype, redop, arena.expected, sources, n, count);

    reducer(arena.dst, (const void *const *)sources, n, count);
    for (size_t i = 0; i < count; i++) {
        if (memcmp(arena.dst + i * size, arena.expected + i * size, size) != 0)
            fail_with(table_names[table], dtype, redop, n, count, i);
    }
    const unsigned char *room = arena.memory + n * arena.room;
    for (size_t i = 0; i < arena.room; i++) {
        bool inside = room + i >= arena.dst && room + i < arena.dst + bytes;
        if (!inside && room[i] != GUARD_BYTE)
            fail_with(table_names[table], dtype, redop, n, count, count);
    }
    unsigned char *in_place = arena.sources[(random_bits() >> 9) % n];
    reducer(in_place, (const void *const *)sources, n, count);
    if (bytes > 0 && memcmp(in_place, arena.expected, bytes) != 0)
        fail_with(table_names[table], dtype, redop, n, count, count);
    free(arena.memory);
}

static void compare_everything(size_t n, const size_t *counts, size_t count_count) {
    for (size_t table = 0; table < table_count; table++) {
        for (int dtype = 1; dtype < SC_DTYPE_COUNT; dtype++) {
            for (int redop = 1; redop < SC_DTYPE_REDOP_COUNT; redop++) {
                for (size_t i = 0; i < count_count; i++)
                    compare(table, dtype, redop, n, counts[i]);
            }
        }
    }
}

/* ---- The tests ---- */

static void test_names_and_sizes(void **state) {
    (void)state;
    const size_t sizes[] = {0, 2, 2, 4, 8, 1, 1, 4, 8};
    for (int dtype = 1; dtype < SC_DTYPE_COUNT; dtype++) {
        assert_int_equal(sc_dtype_size(dtype), sizes[dtype]);
        assert_int_equal((size_t)1 << sc_dtype_shift(dtype), sizes[dtype]);
    }
    assert_int_equal(sc_dtype_size(0), 0);
    assert_int_equal(sc_dtype_size(9), 0);
    assert_int_equal(sc_dtype_size(-1), 0);
    assert_string_equal(sc_dtype_name(0), "unknown");
    assert_string_equal(sc_dtype_name(99), "unknown");
    assert_string_equal(sc_dtype_redop_name(SPARK_COMM_AVG), "avg");
    assert_string_equal(sc_dtype_redop_name(0), "unknown");
    assert_string_equal(sc_dtype_redop_name(5), "unknown");
}

static void test_choice(void **state) {
    (void)state;
    for (int dtype = 1; dtype < SC_DTYPE_COUNT; dtype++) {
        for (int redop = 1; redop < SC_DTYPE_REDOP_COUNT; redop++) {
            sc_dtype_reduce_fn best = tables[table_count - 1]->reducers[dtype][redop];
            assert_true(tables[0]->reducers[dtype][redop] != NULL); /* the scalar one has all */
            assert_true(sc_dtype_reducer(dtype, redop) ==
                        (best != NULL ? best : tables[0]->reducers[dtype][redop]));
        }
    }
    assert_true(sc_dtype_reducer(0, SPARK_COMM_SUM) == NULL);
    assert_true(sc_dtype_reducer(SPARK_COMM_F32, 0) == NULL);
    assert_true(sc_dtype_reducer(9, 1) == NULL && sc_dtype_reducer(1, 5) == NULL &&
                sc_dtype_reducer(-1, -1) == NULL);
}

/* From every half pattern to f32, and back through a reducer of one source. */
static void test_every_half(void **state) {
    (void)state;
    static uint16_t in[65536];
    static uint16_t out[65536];
    const void *source = in;
    for (uint32_t i = 0; i < 65536; i++) {
        in[i] = (uint16_t)i;
        float f16 = sc_dtype_from_f16(in[i]);
        float expected = reference_from_f16(in[i]);
        assert_true(isnan(expected) ? isnan(f16)
                                    : sc_dtype_bits_of(f16) == sc_dtype_bits_of(expected));
        assert_int_equal(sc_dtype_bits_of(sc_dtype_from_bf16(in[i])), i << 16);
        assert_int_equal(sc_dtype_to_bf16(sc_dtype_from_bf16(in[i])) & ~0x40, in[i] & ~0x40);
    }
    for (size_t table = 0; table < table_count; table++) {
        tables[table]->reducers[SPARK_COMM_F16][SPARK_COMM_SUM](out, &source, 1, 65536);
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(out[i], (i & 0x7fff) > 0x7c00 ? 0x7e00 : i);
        tables[table]->reducers[SPARK_COMM_BF16][SPARK_COMM_SUM](out, &source, 1, 65536);
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(out[i], (i & 0x7fff) > 0x7f80 ? 0x7fc0 : i);
    }
}

/* Rounding: f32 patterns around every boundary of both half types, and many in between. */
static void test_rounding(void **state) {
    (void)state;
    for (uint64_t i = 0; i < UINT64_C(1) << 32; i += 4099) {
        for (int nudge = -2; nudge <= 2; nudge++) {
            /* Near a multiple of 4096: f16 and bf16 cut 13 and 16 bits off, ties are half of that. */
            uint32_t bits = (uint32_t)((i & ~UINT64_C(0xfff)) + (uint64_t)(int64_t)nudge);
            float value = sc_dtype_float_of(bits);
            if (isnan(value)) {
                assert_true(isnan(sc_dtype_from_f16(sc_dtype_to_f16(value))));
                assert_true(isnan(sc_dtype_from_bf16(sc_dtype_to_bf16(value))));
                continue;
            }
            if (sc_dtype_to_f16(value) != reference_to_f16(value)) fail_msg("f16 of %08x", bits);
            if (sc_dtype_to_bf16(value) != reference_to_bf16(value)) fail_msg("bf16 of %08x", bits);
        }
    }
}

/* Sums of two halves whose exponents differ fill all the bits that rounding looks at. */
static void test_rounding_of_sums(void **state) {
    (void)state;
    enum { COUNT = 4096 };
    for (int dtype = SPARK_COMM_BF16; dtype <= SPARK_COMM_F16; dtype++) {
        for (size_t table = 0; table < table_count; table++) {
            for (int round = 0; round < 25; round++)
                compare(table, dtype, SPARK_COMM_SUM, 2, COUNT);
        }
    }
}

static void test_small_counts(void **state) {
    (void)state;
    size_t counts[150];
    for (size_t i = 0; i < 150; i++)
        counts[i] = i;
    compare_everything(2, counts, 150);
    compare_everything(1, counts, 70);
    compare_everything(3, counts, 70);
}

static void test_many_sources(void **state) {
    (void)state;
    const size_t counts[] = {1, 2, 3, 7, 8, 13, 16, 31, 64, 65, 129, 257};
    const size_t numbers[] = {4, 5, 7, 8, 16, 64, 255, 256};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        compare_everything(numbers[i], counts, sizeof counts / sizeof counts[0]);
}

static void test_large_counts(void **state) {
    (void)state;
    const size_t counts[] = {255, 256, 1000, 1021, 4099};
    compare_everything(2, counts, sizeof counts / sizeof counts[0]);
    compare_everything(4, counts, sizeof counts / sizeof counts[0]);
}

/* One element's result depends on its own sources alone: a long run of one element is that element, everywhere. */
static void test_position_does_not_matter(void **state) {
    (void)state;
    enum { COUNT = 203 };
    unsigned char sources[3][COUNT * 8];
    unsigned char out[COUNT * 8];
    const void *at[3] = {sources[0], sources[1], sources[2]};
    for (int dtype = 1; dtype < SC_DTYPE_COUNT; dtype++) {
        size_t size = sc_dtype_size(dtype);
        for (int redop = 1; redop < SC_DTYPE_REDOP_COUNT; redop++) {
            for (int round = 0; round < 50; round++) {
                for (int k = 0; k < 3; k++) {
                    uint64_t value = value_of(dtype);
                    for (size_t i = 0; i < COUNT; i++)
                        memcpy(sources[k] + i * size, &value, size);
                }
                sc_dtype_reducer(dtype, redop)(out, at, 3, COUNT);
                for (size_t i = 1; i < COUNT; i++)
                    assert_memory_equal(out + i * size, out, size);
            }
        }
    }
}

/* The caller's mode changes nothing, and it has it back. */
static void test_floating_point_mode(void **state) {
    (void)state;
    const size_t counts[] = {1, 5, 40, 100};
    fenv_t saved;
    fegetenv(&saved);
    for (size_t table = 0; table < table_count; table++) {
        for (int dtype = SPARK_COMM_BF16; dtype <= SPARK_COMM_F64; dtype++) {
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                struct arena arena;
                arena_make(&arena, dtype, 2, counts[i]);
                const unsigned char *const *sources = (const unsigned char *const *)arena.sources;
                reference(dtype, SPARK_COMM_SUM, arena.expected, sources, 2, counts[i]);
#if defined(__x86_64__)
                sc_dtype_mode mode = 0x1f80 | 0x8040; /* flush subnormals, in and out */
                sc_dtype_mode_write(mode);
#elif defined(__aarch64__)
                sc_dtype_mode mode = UINT64_C(1) << 24;
                sc_dtype_mode_write(mode);
#else
                sc_dtype_mode mode = sc_dtype_mode_read();
#endif
                tables[table]->reducers[dtype][SPARK_COMM_SUM](
                    arena.dst, (const void *const *)sources, 2, counts[i]);
                sc_dtype_mode after = sc_dtype_mode_read();
                fesetenv(&saved);
                assert_true(after == mode);
                assert_memory_equal(arena.dst, arena.expected, counts[i] * sc_dtype_size(dtype));

                fesetround(FE_UPWARD);
                tables[table]->reducers[dtype][SPARK_COMM_SUM](
                    arena.dst, (const void *const *)sources, 2, counts[i]);
                int rounding = fegetround();
                fesetenv(&saved);
                assert_int_equal(rounding, FE_UPWARD);
                assert_memory_equal(arena.dst, arena.expected, counts[i] * sc_dtype_size(dtype));
                free(arena.memory);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_rounding_of_sums),
        cmocka_unit_test(test_small_counts),
        cmocka_unit_test(test_many_sources),
        cmocka_unit_test(test_large_counts),
        cmocka_unit_test(test_position_does_not_matter),
        cmocka_unit_test(test_floating_point_mode),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
