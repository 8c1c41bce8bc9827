/*
 * The reducers for x86-64 with AVX2 and F16C. Compiled with the flags of both; called only on a CPU
 * that has them. The conversions between f16 and f32 keep subnormals whatever the mode says, and
 * round to nearest even as the operand asks.
 */
#include <immintrin.h>
#include <stdint.h>

typedef uint32_t vec __attribute__((vector_size(32)));

static inline vec load_f16(const unsigned char *at) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)at));
}

static inline void store_f16(unsigned char *at, vec value) {
    _mm_storeu_si128((__m128i_u *)at, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
}

static inline vec select_by(vec mask, vec yes, vec no) {
    return (vec)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}

static inline vec join_halves(vec lower, vec upper) {
    return (vec)_mm256_blend_epi16((__m256i)lower, (__m256i)upper, 0xaa);
}

static inline vec add_saturated(vec a, vec b) {
    return (vec)_mm256_adds_epi16((__m256i)a, (__m256i)b);
}

static inline int is_any(vec mask) {
    return _mm256_movemask_epi8((__m256i)mask) != 0;
}

#define VECTOR_TABLE sc_dtype_avx2_table
#define SHORT_TABLE sc_dtype_scalar_table
#include "base/dtype_vector.h"
