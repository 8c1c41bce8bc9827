/*
 * Products of the file's matrices with vectors, weights dequantised on the way: 8 lanes at a time, in
 * the vector types that gcc and clang both have, so that one source serves every CPU. It is compiled
 * twice, the second time as kernels_avx2.c where the machine's architecture has that.
 */
#include "llm.h"

#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#ifndef LLM_KERNELS
#define LLM_KERNELS llm_kernels_portable
#endif

enum { LANES = 8, PARTS = LLM_BLOCK / LANES, TILE = 4 };
typedef real lanes __attribute__((vector_size(LANES * sizeof(real))));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef int32_t four_ints __attribute__((vector_size(16)));
#define INLINE static inline __attribute__((always_inline))

extern const struct llm_kernels LLM_KERNELS;

/* A binary16: its exponent is rebiased by a multiplication, which also sets subnormal numbers right. */
INLINE float half(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
#ifdef __F16C__
    return _cvtsh_ss(bits);
#else
    float value;
    uint32_t wide = (uint32_t)(bits & 0x7fff) << 13;
    memcpy(&value, &wide, sizeof value);
    value *= 0x1p112f;
    memcpy(&wide, &value, sizeof wide);
    if ((bits & 0x7c00) == 0x7c00) wide |= 0x7f800000;
    wide |= (uint32_t)(bits & 0x8000) << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
#endif
}

/* 32 weights, in the order of prepare: w[k][j] is number 4 * j + k, because that is how they come out
 * of four-byte words without moving a byte. In Q4_0 and Q4_1 the low halves of 16 bytes are the first
 * 16, the high halves the others: w = q * scale + least. `type` is a constant wherever this is
 * inlined. */
INLINE void load_block(int type, const unsigned char *block, lanes w[PARTS]) {
    if (type == LLM_Q4_0 || type == LLM_Q4_1) {
        const real scale = half(block);
        const real least = type == LLM_Q4_1 ? half(block + 2) : -8 * half(block);
        const ints halves = {0, 0, 0, 0, 4, 4, 4, 4};
        four_ints words;
        memcpy(&words, block + (type == LLM_Q4_1 ? 4 : 2), sizeof words);
        const ints twice = __builtin_shufflevector(words, words, 0, 1, 2, 3, 0, 1, 2, 3);
        for (int k = 0; k < PARTS; k++)
            w[k] = __builtin_convertvector((twice >> (halves + 8 * k)) & 15, lanes) * scale + least;
    } else if (type == LLM_Q8_0) {
        const real scale = half(block);
        ints words;
        memcpy(&words, block + 2, sizeof words);
        for (int k = 0; k < PARTS; k++)
            w[k] = __builtin_convertvector((words << (24 - 8 * k)) >> 24, lanes) * scale;
    } else {
        for (int i = 0; i < LLM_BLOCK; i++) {
            float value;
            if (type == LLM_F32)
                memcpy(&value, block + i * 4, sizeof value);
            else
                value = half(block + i * 2);
            w[i % PARTS][i / PARTS] = value;
        }
    }
}

static void prepare(real *x, size_t count) {
    for (size_t block = 0; block < count; block += LLM_BLOCK) {
        real old[LLM_BLOCK];
        memcpy(old, x + block, sizeof old);
        for (size_t i = 0; i < LLM_BLOCK; i++)
            x[block + i % PARTS * LANES + i / PARTS] = old[i];
    }
}

INLINE real add_up(const lanes *sum) {
    const lanes a = *sum;
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* One pass over the matrix for `count` vectors, a constant too. */
INLINE void pass(int type, const struct llm_matrix *m, size_t count, const real *x, size_t x_stride,
                 real *y, size_t y_stride) {
    for (size_t row = 0; row < m->rows; row++) {
        const unsigned char *block = m->data + row * m->row_bytes;
        lanes sum[TILE][PARTS] = {{{0}}};
        for (size_t column = 0; column < m->columns; column += LLM_BLOCK) {
            lanes w[PARTS], in;
            load_block(type, block, w);
            block += type == LLM_F32    ? LLM_BLOCK * 4
                     : type == LLM_F16  ? LLM_BLOCK * 2
                     : type == LLM_Q8_0 ? 2 + LLM_BLOCK
                     : type == LLM_Q4_0 ? 2 + LLM_BLOCK / 2
                                        : 4 + LLM_BLOCK / 2;
            for (size_t t = 0; t < count; t++) {
                for (size_t i = 0; i < PARTS; i++) {
                    memcpy(&in, x + t * x_stride + column + i * LANES, sizeof in);
                    sum[t][i] += w[i] * in;
                }
            }
        }
        for (size_t t = 0; t < count; t++) {
            const lanes all = (sum[t][0] + sum[t][1]) + (sum[t][2] + sum[t][3]);
            y[t * y_stride + row] = add_up(&all);
        }
    }
}

INLINE void passes(int type, const struct llm_matrix *m, const real *x, size_t x_stride, real *y,
                   size_t y_stride, size_t count) {
    size_t t = 0;
    for (; t + TILE <= count; t += TILE)
        pass(type, m, TILE, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
    for (; t < count; t++)
        pass(type, m, 1, x + t * x_stride, x_stride, y + t * y_stride, y_stride);
}

static void multiply(const struct llm_matrix *m, const real *x, size_t x_stride, real *y,
                     size_t y_stride, size_t count) {
    switch (m->type) {
    case LLM_F32: passes(LLM_F32, m, x, x_stride, y, y_stride, count); break;
    case LLM_F16: passes(LLM_F16, m, x, x_stride, y, y_stride, count); break;
    case LLM_Q8_0: passes(LLM_Q8_0, m, x, x_stride, y, y_stride, count); break;
    case LLM_Q4_0: passes(LLM_Q4_0, m, x, x_stride, y, y_stride, count); break;
    default: passes(LLM_Q4_1, m, x, x_stride, y, y_stride, count); break;
    }
}

static void read_row(const struct llm_matrix *m, size_t row, real *out) {
    const unsigned char *block = m->data + row * m->row_bytes;
    for (size_t column = 0; column < m->columns; column += LLM_BLOCK) {
        lanes w[PARTS];
        switch (m->type) {
        case LLM_F32: load_block(LLM_F32, block, w); break;
        case LLM_F16: load_block(LLM_F16, block, w); break;
        case LLM_Q8_0: load_block(LLM_Q8_0, block, w); break;
        case LLM_Q4_0: load_block(LLM_Q4_0, block, w); break;
        default: load_block(LLM_Q4_1, block, w); break;
        }
        for (size_t i = 0; i < LLM_BLOCK; i++)
            out[column + i] = w[i % PARTS][i / PARTS];
        block += llm_block_bytes(m->type);
    }
}

static real dot(const real *a, const real *b, size_t count) {
    lanes sum = {0}, left, right;
    for (size_t i = 0; i < count; i += LANES) {
        memcpy(&left, a + i, sizeof left);
        memcpy(&right, b + i, sizeof right);
        sum += left * right;
    }
    return add_up(&sum);
}

static void add_scaled(real *sum, real factor, const real *b, size_t count) {
    lanes left, right;
    for (size_t i = 0; i < count; i += LANES) {
        memcpy(&left, sum + i, sizeof left);
        memcpy(&right, b + i, sizeof right);
        left += factor * right;
        memcpy(sum + i, &left, sizeof left);
    }
}

const struct llm_kernels LLM_KERNELS = {prepare, multiply, read_row, dot, add_scaled};
