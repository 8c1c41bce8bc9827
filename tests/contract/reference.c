/*
 * The independent reference: conversions, reductions, comparison. Each floating type is described
 * by three numbers (bits of the fraction, smallest exponent, largest exponent), and one rounding
 * routine serves them all.
 */
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const int reference_dtypes[REFERENCE_DTYPES] = {SPARK_COMM_BF16, SPARK_COMM_F16, SPARK_COMM_F32,
                                                SPARK_COMM_F64,  SPARK_COMM_I8,  SPARK_COMM_U8,
                                                SPARK_COMM_I32,  SPARK_COMM_I64};
const int reference_redops[REFERENCE_REDOPS] = {SPARK_COMM_SUM, SPARK_COMM_MAX, SPARK_COMM_MIN,
                                                SPARK_COMM_AVG};

size_t reference_size(int dtype) {
    static const size_t sizes[] = {0, 2, 2, 4, 8, 1, 1, 4, 8};
    return dtype >= 1 && dtype <= REFERENCE_DTYPES ? sizes[dtype] : 0;
}

const char *reference_dtype_name(int dtype) {
    static const char *const names[] = {"none", "bf16", "f16", "f32", "f64",
                                        "i8",   "u8",   "i32", "i64"};
    return dtype >= 0 && dtype <= REFERENCE_DTYPES ? names[dtype] : "unknown";
}

const char *reference_redop_name(int redop) {
    static const char *const names[] = {"none", "sum", "max", "min", "avg"};
    return redop >= 0 && redop <= REFERENCE_REDOPS ? names[redop] : "unknown";
}

/* ---- Conversions of the two 16-bit types ---- */

struct half_format {
    int fraction_bits; /* stored bits of the fraction */
    int bias; /* of the exponent; the largest finite exponent equals it */
};
static const struct half_format bf16_format = {7, 127};
static const struct half_format f16_format = {10, 15};

/* 2^exponent for exponents of normal doubles. */
static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double decode_half(const struct half_format *format, uint16_t bits) {
    const unsigned fraction_mask = (1u << format->fraction_bits) - 1;
    const unsigned exponent_mask = (1u << (15 - format->fraction_bits)) - 1;
    unsigned fraction = bits & fraction_mask;
    unsigned exponent = (unsigned)(bits >> format->fraction_bits) & exponent_mask;
    double sign = bits & 0x8000 ? -1.0 : 1.0;

    if (exponent == exponent_mask) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * (double)fraction * power_of_two(1 - format->bias - format->fraction_bits);
    return sign * (double)(fraction + fraction_mask + 1) *
           power_of_two((int)exponent - format->bias - format->fraction_bits);
}

/* Round to nearest, ties to even, in integers: the significand of the double is shifted right by as
 * many bits as the format has fewer, and what falls off decides. */
static uint16_t encode_half(const struct half_format *format, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    const uint16_t infinity =
        (uint16_t)(((1u << (15 - format->fraction_bits)) - 1) << format->fraction_bits);
    const int exponent = (int)(bits >> 52 & 0x7ff) - 1023;

    if (exponent == 1024 && (bits & 0xfffffffffffff) != 0)
        return (uint16_t)(sign | infinity | 1u << (format->fraction_bits - 1));
    if (exponent > format->bias) return (uint16_t)(sign | infinity);
    if (exponent < -format->bias - format->fraction_bits)
        return sign; /* below half of the smallest subnormal */

    const uint64_t significand = (bits & 0xfffffffffffff) | (uint64_t)1 << 52;
    const int smallest = 1 - format->bias;
    const int shift = 52 - format->fraction_bits + (exponent < smallest ? smallest - exponent : 0);
    uint64_t kept = significand >> shift;
    const uint64_t rest = significand & (((uint64_t)1 << shift) - 1);
    const uint64_t half = (uint64_t)1 << (shift - 1);
    if (rest > half || (rest == half && (kept & 1))) kept++;
    /* The hidden bit adds one to the exponent field, and so does a carry out of the fraction. */
    const int field = (exponent < smallest ? smallest : exponent) + format->bias - 1;
    return (uint16_t)(sign | (uint16_t)(((uint64_t)field << format->fraction_bits) + kept));
}

double reference_decode(int dtype, const void *element) {
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case SPARK_COMM_BF16: memcpy(&half, element, 2); return decode_half(&bf16_format, half);
    case SPARK_COMM_F16: memcpy(&half, element, 2); return decode_half(&f16_format, half);
    case SPARK_COMM_F32: memcpy(&single, element, 4); return (double)single;
    default: memcpy(&value, element, 8); return value;
    }
}

void reference_encode(int dtype, double value, void *element) {
    uint16_t half;
    float single = (float)value;
    switch (dtype) {
    case SPARK_COMM_BF16:
        half = encode_half(&bf16_format, value);
        memcpy(element, &half, 2);
        break;
    case SPARK_COMM_F16:
        half = encode_half(&f16_format, value);
        memcpy(element, &half, 2);
        break;
    case SPARK_COMM_F32: memcpy(element, &single, 4); break;
    default: memcpy(element, &value, 8); break;
    }
}

/* ---- Integers: everything wraps to the width of the type ---- */

static int64_t load_integer(int dtype, const void *element) {
    int8_t i8;
    uint8_t u8;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case SPARK_COMM_I8: memcpy(&i8, element, 1); return i8;
    case SPARK_COMM_U8: memcpy(&u8, element, 1); return u8;
    case SPARK_COMM_I32: memcpy(&i32, element, 4); return i32;
    default: memcpy(&i64, element, 8); return i64;
    }
}

/* Little-endian: the low bytes of a wider two's complement number are the number modulo 2^width. */
static void store_integer(int dtype, int64_t value, void *element) {
    memcpy(element, &value, reference_size(dtype));
}

static bool is_integer(int dtype) {
    return dtype >= SPARK_COMM_I8;
}

/* ---- Reductions ---- */

static void reduce_integers(int dtype, int redop, const unsigned char *const *sources, int n,
                            unsigned char *out, size_t count) {
    const size_t size = reference_size(dtype);
    for (size_t i = 0; i < count; i++) {
        int64_t result = load_integer(dtype, sources[0] + i * size);
        for (int r = 1; r < n; r++) {
            int64_t next = load_integer(dtype, sources[r] + i * size);
            if (redop == SPARK_COMM_MAX)
                result = next > result ? next : result;
            else if (redop == SPARK_COMM_MIN)
                result = next < result ? next : result;
            else
                result = (int64_t)((uint64_t)result + (uint64_t)next);
        }
        if (redop == SPARK_COMM_AVG) {
            store_integer(dtype, result, out + i * size); /* wraps before it is divided */
            result = load_integer(dtype, out + i * size) / n;
        }
        store_integer(dtype, result, out + i * size);
    }
}

/* The sum of two floats is exact in a double or rounds there harmlessly (53 >= 2 * 24 + 2), so the
 * cast is the FP32 sum. */
static double add(int dtype, double a, double b) {
    return dtype == SPARK_COMM_F64 ? a + b : (double)(float)(a + b);
}

static double divide(int dtype, double a, int n) {
    return dtype == SPARK_COMM_F64 ? a / n : (double)(float)(a / n);
}

static double extreme(int redop, double a, double b) {
    if (isnan(a) || isnan(b)) return (double)NAN;
    if (redop == SPARK_COMM_MAX) return b > a ? b : a;
    return b < a ? b : a;
}

static void reduce_floats(int dtype, int redop, const unsigned char *const *sources, int n,
                          unsigned char *out, size_t count) {
    const size_t size = reference_size(dtype);
    const bool sums = redop == SPARK_COMM_SUM || redop == SPARK_COMM_AVG;
    for (size_t i = 0; i < count; i++) {
        double result = reference_decode(dtype, sources[0] + i * size);
        for (int r = 1; r < n; r++) {
            double next = reference_decode(dtype, sources[r] + i * size);
            result = sums ? add(dtype, result, next) : extreme(redop, result, next);
        }
        if (redop == SPARK_COMM_AVG) result = divide(dtype, result, n);
        reference_encode(dtype, result, out + i * size);
    }
}

void reference_reduce(int dtype, int redop, const void *const *sources, int n, void *out,
                      size_t count) {
    const unsigned char *bytes[REFERENCE_MAX_RANKS];
    for (int r = 0; r < n && r < REFERENCE_MAX_RANKS; r++)
        bytes[r] = sources[r];
    if (is_integer(dtype))
        reduce_integers(dtype, redop, bytes, n, out, count);
    else
        reduce_floats(dtype, redop, bytes, n, out, count);
}

/* ---- Comparison and text ---- */

size_t reference_compare(int dtype, int redop, const void *got, const void *want, size_t count) {
    const size_t size = reference_size(dtype);
    const unsigned char *a = got;
    const unsigned char *b = want;
    if (memcmp(a, b, count * size) == 0) return count;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(a + i * size, b + i * size, size) == 0) continue;
        if (is_integer(dtype) || redop == 0) return i;
        double x = reference_decode(dtype, a + i * size);
        double y = reference_decode(dtype, b + i * size);
        if (isnan(x) && isnan(y)) continue;
        if ((redop == SPARK_COMM_MAX || redop == SPARK_COMM_MIN) && x == y)
            continue; /* the two zeros */
        return i;
    }
    return count;
}

const char *reference_text(int dtype, const void *element, char *text, size_t size) {
    uint64_t bits = 0;
    const int digits = (int)reference_size(dtype) * 2;
    memcpy(&bits, element, reference_size(dtype));
    if (is_integer(dtype))
        snprintf(text, size, "0x%0*llx (%lld)", digits, (unsigned long long)bits,
                 (long long)load_integer(dtype, element));
    else
        snprintf(text, size, "0x%0*llx (%.9g)", digits, (unsigned long long)bits,
                 reference_decode(dtype, element));
    return text;
}
