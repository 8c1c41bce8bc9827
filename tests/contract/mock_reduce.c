/*
 * bf16, f16 and f32 are added in float in rank order and rounded once; f64 in double; integers
 * wrap. A float is turned into bf16 and f16 by integer arithmetic on its bits, rounding to nearest
 * even.
 */
#include <string.h>

#include "mock_state.h"

static float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float load_float(int dtype, const unsigned char *at) {
    uint16_t half;
    if (dtype == SPARK_COMM_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == SPARK_COMM_BF16) return float_from_bits((uint32_t)half << 16);
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}

static uint16_t half_from_float(float value) {
    const uint32_t bits = bits_from_float(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and more */
    /* Below the normal numbers an addition leaves the rounding to the hardware: the unit of 0.5f is
     * 2^-24. */
    if (magnitude < 0x38800000)
        return (uint16_t)(sign | (bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static uint16_t bfloat_from_float(float value) {
    const uint32_t bits = bits_from_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void store_float(int dtype, float value, unsigned char *at) {
    const uint16_t half =
        dtype == SPARK_COMM_BF16 ? bfloat_from_float(value) : half_from_float(value);
    if (dtype == SPARK_COMM_F32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &half, sizeof half);
}

/* One function per kind of accumulator. A NaN is unequal to itself, and wins. */
#define DEFINE_COMBINE(name, type)                                   \
    static type name(int redop, type a, type b) {                    \
        if (redop == SPARK_COMM_MAX) return a != a || a > b ? a : b; \
        if (redop == SPARK_COMM_MIN) return a != a || a < b ? a : b; \
        return a + b;                                                \
    }
DEFINE_COMBINE(combine_float, float)
DEFINE_COMBINE(combine_double, double)

static int64_t combine_integer(int redop, int64_t a, int64_t b) {
    if (redop == SPARK_COMM_MAX) return a > b ? a : b;
    if (redop == SPARK_COMM_MIN) return a < b ? a : b;
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t load_integer(int dtype, const unsigned char *at) {
    int64_t value = 0;
    int32_t word;
    switch (dtype) {
    case SPARK_COMM_I8: return (int8_t)at[0];
    case SPARK_COMM_U8: return at[0];
    case SPARK_COMM_I32: memcpy(&word, at, sizeof word); return word;
    default: memcpy(&value, at, sizeof value); return value;
    }
}

static void reduce_element(int dtype, int redop, const unsigned char *const *sources, int ranks,
                           size_t at, size_t size, unsigned char *out) {
    const bool averages = redop == SPARK_COMM_AVG;
    if (dtype == SPARK_COMM_F64) {
        double sum, next;
        memcpy(&sum, sources[0] + at, sizeof sum);
        for (int r = 1; r < ranks; r++) {
            memcpy(&next, sources[r] + at, sizeof next);
            sum = combine_double(redop, sum, next);
        }
        if (averages) sum /= ranks;
        memcpy(out + at, &sum, sizeof sum);
    } else if (dtype <= SPARK_COMM_F32) {
        float sum = load_float(dtype, sources[0] + at);
        for (int r = 1; r < ranks; r++)
            sum = combine_float(redop, sum, load_float(dtype, sources[r] + at));
        store_float(dtype, averages ? sum / (float)ranks : sum, out + at);
    } else {
        int64_t sum = load_integer(dtype, sources[0] + at);
        for (int r = 1; r < ranks; r++)
            sum = combine_integer(redop, sum, load_integer(dtype, sources[r] + at));
        memcpy(out + at, &sum, size); /* little-endian: the low bytes, so it wraps */
        if (!averages) return;
        sum = load_integer(dtype, out + at) / ranks;
        memcpy(out + at, &sum, size);
    }
}

void mock_reduce(int dtype, int redop, const unsigned char *const *sources, int ranks,
                 unsigned char *out, size_t bytes) {
    static const size_t sizes[] = {0, 2, 2, 4, 8, 1, 1, 4, 8};
    const size_t size = sizes[dtype];
    for (size_t at = 0; at < bytes; at += size)
        reduce_element(dtype, redop, sources, ranks, at, size, out);
}
