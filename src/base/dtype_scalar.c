/*
 * The plain C reducers: what every vector version must give to the bit. Each element is reduced
 * alone, in rank order, in its accumulator type. A NaN result is always the same quiet NaN: which
 * operand's payload an addition keeps differs between processors and compilers, and with it ranks
 * or positions would differ.
 */
#include "base/dtype_convert.h"
#include "base/dtype_kernels.h"

/* Elements as they lie in memory: at any address, in memory of any declared type. */
#define ELEMENT(name, type) typedef type name __attribute__((aligned(1), may_alias))
ELEMENT(half_element, uint16_t);
ELEMENT(f32_element, float);
ELEMENT(f64_element, double);
ELEMENT(i8_element, int8_t);
ELEMENT(u8_element, uint8_t);
ELEMENT(i32_element, int32_t);
ELEMENT(i64_element, int64_t);
#undef ELEMENT

/* ---- Combining two accumulators ---- */

/* Sums of integers wrap: they are formed in the unsigned type of the same width. */
#define DEFINE_ADD(name, type, wide)          \
    static inline type name(type a, type b) { \
        return (type)((wide)a + (wide)b);     \
    }
DEFINE_ADD(add_f32, float, float)
DEFINE_ADD(add_f64, double, double)
DEFINE_ADD(add_i8, int8_t, uint32_t)
DEFINE_ADD(add_u8, uint8_t, uint32_t)
DEFINE_ADD(add_i32, int32_t, uint32_t)
DEFINE_ADD(add_i64, int64_t, uint64_t)

/* Keeps a NaN on the left, takes one from the right (no comparison with it is true), and of equal
 * values the right one. */
#define DEFINE_EXTREME(type, suffix)                  \
    static inline type max_##suffix(type a, type b) { \
        return a > b || a != a ? a : b;               \
    }                                                 \
    static inline type min_##suffix(type a, type b) { \
        return a < b || a != a ? a : b;               \
    }
DEFINE_EXTREME(float, f32)
DEFINE_EXTREME(double, f64)
#define DEFINE_INTEGER_EXTREME(type, suffix)          \
    static inline type max_##suffix(type a, type b) { \
        return a > b ? a : b;                         \
    }                                                 \
    static inline type min_##suffix(type a, type b) { \
        return a < b ? a : b;                         \
    }
DEFINE_INTEGER_EXTREME(int8_t, i8)
DEFINE_INTEGER_EXTREME(uint8_t, u8)
DEFINE_INTEGER_EXTREME(int32_t, i32)
DEFINE_INTEGER_EXTREME(int64_t, i64)

/* ---- From the accumulator to the result ---- */

static inline float quiet_f32(float value) {
    return value != value ? sc_dtype_float_of(0x7fc00000u) : value;
}
static inline double quiet_f64(double value) {
    return value != value ? __builtin_nan("") : value;
}

static inline float keep_f32(float sum, size_t n) {
    (void)n;
    return quiet_f32(sum);
}
static inline float avg_f32(float sum, size_t n) {
    return quiet_f32(sum / (float)n);
}
static inline uint16_t keep_bf16(float sum, size_t n) {
    return sc_dtype_to_bf16(keep_f32(sum, n));
}
static inline uint16_t avg_bf16(float sum, size_t n) {
    return sc_dtype_to_bf16(avg_f32(sum, n));
}
static inline uint16_t keep_f16(float sum, size_t n) {
    return sc_dtype_to_f16(keep_f32(sum, n));
}
static inline uint16_t avg_f16(float sum, size_t n) {
    return sc_dtype_to_f16(avg_f32(sum, n));
}
static inline double keep_f64(double sum, size_t n) {
    (void)n;
    return quiet_f64(sum);
}
static inline double avg_f64(double sum, size_t n) {
    return quiet_f64(sum / (double)n);
}
/* n is at most 256, so no quotient overflows. */
#define DEFINE_INTEGER_END(type, suffix)                   \
    static inline type keep_##suffix(type sum, size_t n) { \
        (void)n;                                           \
        return sum;                                        \
    }                                                      \
    static inline type avg_##suffix(type sum, size_t n) {  \
        return (type)(sum / (type)n);                      \
    }
DEFINE_INTEGER_END(int32_t, i32)
DEFINE_INTEGER_END(int64_t, i64)
static inline int8_t keep_i8(int8_t sum, size_t n) {
    (void)n;
    return sum;
}
static inline uint8_t keep_u8(uint8_t sum, size_t n) {
    (void)n;
    return sum;
}
static inline int8_t avg_i8(int8_t sum, size_t n) {
    return (int8_t)(sum / (int)n);
}
static inline uint8_t avg_u8(uint8_t sum, size_t n) {
    return (uint8_t)(sum / (int)n);
}

/* ---- The reducers ---- */

/* name: sum_bf16 and the like. from: element to accumulator; combine: two accumulators; finish:
 * accumulator to element. */
#define DEFINE_LOOP(name, element, accumulator, from, combine, finish)                          \
    __attribute__((noinline)) static void name(void *dst, const void *const *sources, size_t n, \
                                               size_t count) {                                  \
        element *out = dst;                                                                     \
        for (size_t i = 0; i < count; i++) {                                                    \
            accumulator result = (accumulator)from(((const element *)sources[0])[i]);           \
            for (size_t k = 1; k < n; k++)                                                      \
                result = combine(result, (accumulator)from(((const element *)sources[k])[i]));  \
            out[i] = finish(result, n);                                                         \
        }                                                                                       \
    }

#define DEFINE_INTEGER(suffix, type)                                                     \
    DEFINE_LOOP(sum_all_##suffix, suffix##_element, type, , add_##suffix, keep_##suffix) \
    DEFINE_LOOP(max_all_##suffix, suffix##_element, type, , max_##suffix, keep_##suffix) \
    DEFINE_LOOP(min_all_##suffix, suffix##_element, type, , min_##suffix, keep_##suffix) \
    DEFINE_LOOP(avg_all_##suffix, suffix##_element, type, , add_##suffix, avg_##suffix)

#define DEFINE_FLOAT_LOOP(name, element, accumulator, from, combine, finish)          \
    DEFINE_LOOP(name##_in_mode, element, accumulator, from, combine, finish)          \
    static void name(void *dst, const void *const *sources, size_t n, size_t count) { \
        sc_dtype_in_standard_mode(name##_in_mode, dst, sources, n, count);            \
    }

#define DEFINE_FLOAT(suffix, element, type, base, from)                                 \
    DEFINE_FLOAT_LOOP(sum_all_##suffix, element, type, from, add_##base, keep_##suffix) \
    DEFINE_FLOAT_LOOP(max_all_##suffix, element, type, from, max_##base, keep_##suffix) \
    DEFINE_FLOAT_LOOP(min_all_##suffix, element, type, from, min_##base, keep_##suffix) \
    DEFINE_FLOAT_LOOP(avg_all_##suffix, element, type, from, add_##base, avg_##suffix)

DEFINE_FLOAT(bf16, half_element, float, f32, sc_dtype_from_bf16)
DEFINE_FLOAT(f16, half_element, float, f32, sc_dtype_from_f16)
DEFINE_FLOAT(f32, f32_element, float, f32, )
DEFINE_FLOAT(f64, f64_element, double, f64, )
DEFINE_INTEGER(i8, int8_t)
DEFINE_INTEGER(u8, uint8_t)
DEFINE_INTEGER(i32, int32_t)
DEFINE_INTEGER(i64, int64_t)

#define ROW(suffix, end)                                                                    \
    {                                                                                       \
        [SPARK_COMM_SUM] = sum_all_##suffix##end, [SPARK_COMM_MAX] = max_all_##suffix##end, \
        [SPARK_COMM_MIN] = min_all_##suffix##end, [SPARK_COMM_AVG] = avg_all_##suffix##end  \
    }
#define ROWS(end)                                                                                \
    {                                                                                            \
        [SPARK_COMM_BF16] = ROW(bf16, end), [SPARK_COMM_F16] = ROW(f16, end),                    \
        [SPARK_COMM_F32] = ROW(f32, end), [SPARK_COMM_F64] = ROW(f64, end),                      \
        [SPARK_COMM_I8] = ROW(i8, ), [SPARK_COMM_U8] = ROW(u8, ), [SPARK_COMM_I32] = ROW(i32, ), \
        [SPARK_COMM_I64] = ROW(i64, ),                                                           \
    }
const struct sc_dtype_table sc_dtype_scalar_table = {.reducers = ROWS(), .in_mode = ROWS(_in_mode)};
