/*
 * The reducers for x86-64 with AVX-512 (F, BW, VL and DQ). Compiled with its flags; called only on
 * a CPU that has them. The conversion instruction for bf16 is not used: it flushes subnormals.
 */
#include <immintrin.h>
#include <stdint.h>

typedef uint32_t vec __attribute__((vector_size(64)));

static inline vec load_f16(const unsigned char *at) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)at));
}

static inline void store_f16(unsigned char *at, vec value) {
    _mm256_storeu_si256((__m256i_u *)at, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
}

static inline vec select_by(vec mask, vec yes, vec no) {
    return (yes & mask) | (no & ~mask);
}

static inline vec join_halves(vec lower, vec upper) {
    return (vec)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)lower, (__m512i)upper);
}

static inline vec add_saturated(vec a, vec b) {
    return (vec)_mm512_adds_epi16((__m512i)a, (__m512i)b);
}

static inline int is_any(vec mask) {
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

#define VECTOR_TABLE sc_dtype_avx512_table
#define SHORT_TABLE sc_dtype_avx2_table
#include "base/dtype_vector.h"
