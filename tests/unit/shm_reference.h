/*
 * A reference for reductions that shares nothing with the library: element by element, values by
 * scaling and rounding instead of bit tricks. Inputs follow from (seed, rank, position), so that
 * each rank knows those of all.
 */
#ifndef TESTS_SHM_REFERENCE_H
#define TESTS_SHM_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <spark_comm.h>

static inline size_t element_size(int dtype) {
    static const size_t sizes[] = {0, 2, 2, 4, 8, 1, 1, 4, 8};
    return sizes[dtype];
}

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* Eight bytes, the `word`th, of what `rank` puts in under `seed`. */
static inline uint64_t input_word(uint64_t seed, int rank, size_t word) {
    return mix(seed * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0x100000001b3u + word + 1);
}

/* Bytes [at, at + bytes) of it. */
static inline void input_fill(unsigned char *data, size_t bytes, uint64_t seed, int rank,
                              size_t at) {
    while (bytes > 0) {
        uint64_t word = input_word(seed, rank, at / 8);
        size_t skip = at % 8, length = 8 - skip < bytes ? 8 - skip : bytes;
        memcpy(data, (const unsigned char *)&word + skip, length);
        data += length;
        at += length;
        bytes -= length;
    }
}

/* Value of a float with `mantissa` stored bits and exponent bias `bias`. */
static inline double decode(uint32_t bits, int mantissa, int exponent_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa) & ((1 << exponent_bits) - 1);
    double fraction = (double)(bits & ((1u << mantissa) - 1));
    double sign = bits >> (mantissa + exponent_bits) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - mantissa);
    return sign * ldexp(fraction + ldexp(1, mantissa), exponent - bias - mantissa);
}

static inline uint32_t encode(double value, int mantissa, int exponent_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t sign = signbit(value) ? 1u << (mantissa + exponent_bits) : 0;
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa;
    int exponent;
    if (isnan(value)) return infinity | 1u << (mantissa - 1);
    value = fabs(value);
    if (isinf(value) || value == 0) return sign | (value == 0 ? 0 : infinity);
    frexp(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double units = nearbyint(ldexp(value, mantissa - exponent)); /* round to nearest even */
    uint32_t bits = (uint32_t)units + ((uint32_t)(exponent + bias - 1) << mantissa);
    return sign | (bits < infinity ? bits : infinity);
}

static inline float load_float(int dtype, const void *at) {
    uint16_t half;
    float value;
    if (dtype == SPARK_COMM_F32) return memcpy(&value, at, sizeof value), value;
    memcpy(&half, at, sizeof half);
    return (float)(dtype == SPARK_COMM_BF16 ? decode(half, 7, 8) : decode(half, 10, 5));
}

#define COMBINE(accumulated, value, redop)                                             \
    ((redop) == SPARK_COMM_MAX   ? ((accumulated) > (value) ? (accumulated) : (value)) \
     : (redop) == SPARK_COMM_MIN ? ((accumulated) < (value) ? (accumulated) : (value)) \
                                 : (accumulated) + (value))

static inline int64_t load_integer(int dtype, const void *at) {
    int64_t wide = 0;
    memcpy(&wide, at, element_size(dtype)); /* little endian */
    switch (dtype) {
    case SPARK_COMM_I8: return (int8_t)wide;
    case SPARK_COMM_U8: return (uint8_t)wide;
    case SPARK_COMM_I32: return (int32_t)wide;
    default: return wide;
    }
}

/* One element out of those of `n` ranks at elements[rank]. */
static inline void reduce_reference(void *out, const unsigned char (*elements)[8], int n, int dtype,
                                    int redop) {
    if (dtype == SPARK_COMM_F64) {
        double sum, value;
        memcpy(&sum, elements[0], 8);
        for (int i = 1; i < n; i++) {
            memcpy(&value, elements[i], 8);
            sum = isnan(sum) || isnan(value) ? NAN : COMBINE(sum, value, redop);
        }
        if (redop == SPARK_COMM_AVG) sum /= n;
        memcpy(out, &sum, 8);
    } else if (dtype <= SPARK_COMM_F32) {
        float sum = load_float(dtype, elements[0]);
        for (int i = 1; i < n; i++) {
            float value = load_float(dtype, elements[i]);
            sum = isnan(sum) || isnan(value) ? NAN : COMBINE(sum, value, redop);
        }
        if (redop == SPARK_COMM_AVG) sum /= (float)n;
        uint16_t half =
            (uint16_t)(dtype == SPARK_COMM_BF16 ? encode(sum, 7, 8) : encode(sum, 10, 5));
        if (dtype == SPARK_COMM_F32)
            memcpy(out, &sum, 4);
        else
            memcpy(out, &half, 2);
    } else {
        int64_t sum = load_integer(dtype, elements[0]);
        for (int i = 1; i < n; i++) {
            int64_t value = load_integer(dtype, elements[i]);
            if (redop == SPARK_COMM_MAX || redop == SPARK_COMM_MIN)
                sum = COMBINE(sum, value, redop);
            else
                sum = (int64_t)((uint64_t)sum + (uint64_t)value);
        }
        if (redop == SPARK_COMM_AVG) sum = load_integer(dtype, &sum) / n; /* of the wrapped sum */
        memcpy(out, &sum, element_size(dtype));
    }
}

/* NaN payloads are free, and either zero may win in max and min. */
static inline bool same_element(const void *a, const void *b, int dtype, int redop) {
    double x, y;
    if (memcmp(a, b, element_size(dtype)) == 0) return true;
    if (dtype > SPARK_COMM_F64) return false;
    if (dtype == SPARK_COMM_F64)
        memcpy(&x, a, 8), memcpy(&y, b, 8);
    else
        x = load_float(dtype, a), y = load_float(dtype, b);
    if (isnan(x) && isnan(y)) return true;
    return x == 0 && y == 0 && (redop == SPARK_COMM_MAX || redop == SPARK_COMM_MIN);
}

#endif
