/*
 * The reducers for aarch64, which always has NEON.
 */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef uint32_t vec __attribute__((vector_size(16)));

static inline vec load_f16(const unsigned char *at) {
    uint16x4_t half;
    memcpy(&half, at, sizeof half);
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(half));
}

static inline void store_f16(unsigned char *at, vec value) {
    uint16x4_t half = vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value));
    memcpy(at, &half, sizeof half);
}

static inline vec select_by(vec mask, vec yes, vec no) {
    return (vec)vbslq_u32((uint32x4_t)mask, (uint32x4_t)yes, (uint32x4_t)no);
}

static inline vec join_halves(vec lower, vec upper) {
    return (vec)vbslq_u32(vdupq_n_u32(0xffff0000u), (uint32x4_t)upper, (uint32x4_t)lower);
}

static inline vec add_saturated(vec a, vec b) {
    return (vec)vqaddq_s16((int16x8_t)a, (int16x8_t)b);
}

static inline int is_any(vec mask) {
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

#define VECTOR_TABLE sc_dtype_neon_table
#define SHORT_TABLE sc_dtype_scalar_table
#include "base/dtype_vector.h"
