/*
 * One bf16 or f16 value to and from f32, with integer instructions alone: nothing here depends on
 * the rounding mode or on flushing of subnormals. To f32 is exact; from f32 rounds to nearest even,
 * keeps subnormals and infinities, and keeps a NaN a quiet NaN with its sign and the upper bits of
 * its payload, as the conversion instructions of x86-64 and aarch64 do.
 */
#ifndef SC_BASE_DTYPE_CONVERT_H
#define SC_BASE_DTYPE_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float sc_dtype_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sc_dtype_bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sc_dtype_from_bf16(uint16_t bits) {
    return sc_dtype_float_of((uint32_t)bits << 16);
}

static inline uint16_t sc_dtype_to_bf16(float value) {
    uint32_t bits = sc_dtype_bits_of(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x0040u);
    /* Adds just under half of the last place, and one more when that place is odd: ties go to even.
     * A carry out of the mantissa counts the exponent up, as it should, at last to infinity. */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float sc_dtype_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;

    if (exponent == 0x1fu) {
        uint32_t quiet = mantissa != 0 ? 0x400000u : 0;
        return sc_dtype_float_of(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent != 0) return sc_dtype_float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
    if (mantissa == 0) return sc_dtype_float_of(sign);
    /* A subnormal is mantissa * 2^-24; its leading bit becomes the implicit one. */
    uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21u;
    return sc_dtype_float_of(sign | (113u - shift) << 23 | ((mantissa << shift) & 0x3ffu) << 13);
}

static inline uint16_t sc_dtype_to_f16(float value) {
    uint32_t bits = sc_dtype_bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;

    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    /* 65520 and above round to infinity. */
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (size >= 0x38800000u) {
        uint32_t rebiased = size - (112u << 23);
        return (uint16_t)(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13);
    }
    /* Half of the smallest subnormal, 2^-25, and below go to zero (the tie is even). */
    if (size <= 0x33000000u) return (uint16_t)sign;
    /* A subnormal result: the mantissa in units of 2^-24, cut off at `shift` bits and rounded. */
    uint32_t mantissa = (size & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - (size >> 23);
    uint32_t cut = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    if (rest > half || (rest == half && (cut & 1u) != 0)) cut++;
    return (uint16_t)(sign | cut);
}

#endif
