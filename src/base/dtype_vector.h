/*
 * The vector reducers, once for all instruction sets, in the compiler's vector types. dtype_avx2.c and
 * its like define
 *   vec                  a register of uint32_t lanes, standing for a register of anything
 *   select_by            lanes of `yes` where the mask is all ones, of `no` where it is zero
 *   load_f16, store_f16  as many elements to and from f32 as `vec` has lanes
 *   join_halves          the lower 16 bits of each lane from one, the upper from the other
 *   add_saturated        16-bit lanes as signed numbers
 *   is_any               is any lane of a mask not zero
 *   VECTOR_TABLE         the table that is filled
 *   SHORT_TABLE          whose reducers take counts that are too small here
 * before they include this file, and are compiled with the flags of their set.
 *
 * Each lane does what dtype_scalar.c does for one element, in the same order, so the bits are the
 * same. There is no product in it, hence nothing that a fused multiply-add could round differently. A
 * count that is no multiple of a block ends with a block that overlaps the last whole one: it is
 * computed first, before dst, which may be a source, is written.
 */
#include "base/dtype_kernels.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define VECTOR_BYTES sizeof(vec)
typedef float vec_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double vec_f64 __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t vec_i8 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t vec_u8 __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t vec_i16 __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vec_i32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vec_i64 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vec_u64 __attribute__((vector_size(VECTOR_BYTES)));

/* The accumulators of one block: one register, or two for bf16. */
struct block {
    vec a;
    vec b;
};

/* ---- Memory to accumulators and back ---- */

ALWAYS_INLINE struct block one(vec value) {
    return (struct block){.a = value};
}

ALWAYS_INLINE struct block load_full(const unsigned char *at) {
    vec value;
    memcpy(&value, at, sizeof value);
    return one(value);
}

ALWAYS_INLINE void store_full(unsigned char *at, struct block value) {
    memcpy(at, &value.a, sizeof value.a);
}

ALWAYS_INLINE struct block load_f16_block(const unsigned char *at) {
    return one(load_f16(at));
}

ALWAYS_INLINE void store_f16_block(unsigned char *at, struct block value) {
    store_f16(at, value.a);
}

/* A lane holds two elements: the lower becomes f32 by a shift, the upper by clearing the lower. */
ALWAYS_INLINE struct block load_bf16(const unsigned char *at) {
    vec both;
    memcpy(&both, at, sizeof both);
    return (struct block){.a = both << 16, .b = both & 0xffff0000u};
}

/* Rounds as sc_dtype_to_bf16 does, both elements of a lane at once: one more where what is cut off is
 * above the half, or the half itself and what is kept is odd. A NaN stays one: it came from elements
 * of 16 bits, so what is cut off is zero. */
ALWAYS_INLINE vec round_bf16(struct block value) {
    vec kept = join_halves(value.a >> 16, value.b);
    vec cut = join_halves(value.a, value.b << 16);
    vec odd = kept & 0x00010001u;
    vec_i16 above = (vec_i16)add_saturated(cut ^ 0x80008000u, odd) > 0;
    return (vec)((vec_i16)kept - above);
}

ALWAYS_INLINE void store_bf16(unsigned char *at, struct block value) {
    vec rounded = round_bf16(value);
    memcpy(at, &rounded, sizeof rounded);
}

/* The same where a NaN may be, whose payload is wiped out. */
ALWAYS_INLINE void store_any_bf16(unsigned char *at, struct block value) {
    vec_i16 rounded = (vec_i16)round_bf16(value);
    vec_i16 is_nan = (rounded & 0x7fff) > 0x7f80;
    vec result = select_by((vec)is_nan, (vec)((vec_i16){0} + 0x7fc0), (vec)rounded);
    memcpy(at, &result, sizeof result);
}

/* Says so whenever there is a NaN, and seldom otherwise (infinities of both signs). */
ALWAYS_INLINE int may_have_nan_bf16(const struct block *blocks, size_t count) {
    vec_f32 sum = {0};
    for (size_t i = 0; i < count; i++)
        sum += (vec_f32)blocks[i].a + (vec_f32)blocks[i].b;
    return is_any((vec)(sum != sum));
}

/* ---- Two accumulators to one ---- */

ALWAYS_INLINE vec add_lanes_f32(vec a, vec b) {
    return (vec)((vec_f32)a + (vec_f32)b);
}

ALWAYS_INLINE struct block add_f32(struct block x, struct block y) {
    return one(add_lanes_f32(x.a, y.a));
}

ALWAYS_INLINE struct block add_bf16(struct block x, struct block y) {
    return (struct block){add_lanes_f32(x.a, y.a), add_lanes_f32(x.b, y.b)};
}

ALWAYS_INLINE struct block add_f64(struct block x, struct block y) {
    return one((vec)((vec_f64)x.a + (vec_f64)y.a));
}

ALWAYS_INLINE struct block add_i8(struct block x, struct block y) {
    return one((vec)((vec_u8)x.a + (vec_u8)y.a));
}

ALWAYS_INLINE struct block add_i32(struct block x, struct block y) {
    return one(x.a + y.a);
}

ALWAYS_INLINE struct block add_i64(struct block x, struct block y) {
    return one((vec)((vec_u64)x.a + (vec_u64)y.a));
}

#define DEFINE_EXTREME(name, suffix, relation)                                                \
    ALWAYS_INLINE struct block name##_##suffix(struct block x, struct block y) {              \
        return one(select_by((vec)((vec_##suffix)x.a relation(vec_##suffix) y.a), x.a, y.a)); \
    }
DEFINE_EXTREME(max, i8, >)
DEFINE_EXTREME(max, u8, >)
DEFINE_EXTREME(max, i32, >)
DEFINE_EXTREME(max, i64, >)
DEFINE_EXTREME(min, i8, <)
DEFINE_EXTREME(min, u8, <)
DEFINE_EXTREME(min, i32, <)
DEFINE_EXTREME(min, i64, <)

/* Keeps a NaN on the left; no comparison with one on the right is true, so it is taken. */
#define DEFINE_FLOAT_EXTREME(name, suffix, relation)                               \
    ALWAYS_INLINE vec name##_lanes_##suffix(vec x, vec y) {                        \
        vec_##suffix a = (vec_##suffix)x;                                          \
        return select_by((vec)(a relation(vec_##suffix) y) | (vec)(a != a), x, y); \
    }                                                                              \
    ALWAYS_INLINE struct block name##_##suffix(struct block x, struct block y) {   \
        return one(name##_lanes_##suffix(x.a, y.a));                               \
    }
DEFINE_FLOAT_EXTREME(max, f32, >)
DEFINE_FLOAT_EXTREME(max, f64, >)
DEFINE_FLOAT_EXTREME(min, f32, <)
DEFINE_FLOAT_EXTREME(min, f64, <)

ALWAYS_INLINE struct block max_bf16(struct block x, struct block y) {
    return (struct block){max_lanes_f32(x.a, y.a), max_lanes_f32(x.b, y.b)};
}

ALWAYS_INLINE struct block min_bf16(struct block x, struct block y) {
    return (struct block){min_lanes_f32(x.a, y.a), min_lanes_f32(x.b, y.b)};
}

/* ---- The end of an accumulator ---- */

ALWAYS_INLINE struct block keep_any(struct block value, size_t n) {
    (void)n;
    return value;
}

ALWAYS_INLINE struct block keep_f32(struct block value, size_t n) {
    (void)n;
    vec_f32 a = (vec_f32)value.a;
    return one(select_by((vec)(a != a), (vec){0} + 0x7fc00000u, value.a));
}

ALWAYS_INLINE struct block avg_f32(struct block value, size_t n) {
    return keep_f32(one((vec)((vec_f32)value.a / (float)n)), n);
}

/* The payload is wiped out by store_any_bf16. */
ALWAYS_INLINE struct block avg_bf16(struct block value, size_t n) {
    float divisor = (float)n;
    return (struct block){(vec)((vec_f32)value.a / divisor), (vec)((vec_f32)value.b / divisor)};
}

ALWAYS_INLINE struct block keep_f64(struct block value, size_t n) {
    (void)n;
    vec_f64 a = (vec_f64)value.a;
    vec quiet = (vec)((vec_u64){0} + UINT64_C(0x7ff8000000000000));
    return one(select_by((vec)(a != a), quiet, value.a));
}

ALWAYS_INLINE struct block avg_f64(struct block value, size_t n) {
    return keep_f64(one((vec)((vec_f64)value.a / (double)n)), n);
}

/* ---- The loops ---- */

struct kernel {
    size_t block_bytes; /* of a source, in memory */
    struct block (*load)(const unsigned char *at);
    struct block (*combine)(struct block x, struct block y);
    struct block (*finish)(struct block value, size_t n);
    void (*store)(unsigned char *at, struct block value);
    /* Not NULL: `store` does not serve all values, and this says which blocks may have others. */
    int (*is_rare)(const struct block *blocks, size_t count);
    void (*store_any)(unsigned char *at, struct block value);
};

/* One block of the result, `offset` bytes into each source. */
ALWAYS_INLINE struct block reduce_one(const struct kernel k, const unsigned char *const *sources,
                                      size_t n, size_t offset) {
    struct block result = k.load(sources[0] + offset);
    for (size_t s = 1; s < n; s++)
        result = k.combine(result, k.load(sources[s] + offset));
    return k.finish(result, n);
}

/* Four blocks, so that every source is read in longer pieces. */
ALWAYS_INLINE void reduce_four(const struct kernel k, unsigned char *dst,
                               const unsigned char *const *sources, size_t n, size_t offset) {
    struct block result[4];

    for (size_t i = 0; i < 4; i++)
        result[i] = k.load(sources[0] + offset + i * k.block_bytes);
    for (size_t s = 1; s < n; s++) {
        for (size_t i = 0; i < 4; i++)
            result[i] = k.combine(result[i], k.load(sources[s] + offset + i * k.block_bytes));
    }
    for (size_t i = 0; i < 4; i++)
        result[i] = k.finish(result[i], n);
    if (k.is_rare != NULL && __builtin_expect(k.is_rare(result, 4), 0)) {
        for (size_t i = 0; i < 4; i++)
            k.store_any(dst + offset + i * k.block_bytes, result[i]);
        return;
    }
    for (size_t i = 0; i < 4; i++)
        k.store(dst + offset + i * k.block_bytes, result[i]);
}

/* `bytes` of each source are at least a block. */
ALWAYS_INLINE void reduce_all(const struct kernel k, unsigned char *dst,
                              const unsigned char *const *sources, size_t n, size_t bytes) {
    const size_t step = k.block_bytes;
    const size_t whole = bytes / step * step;
    size_t offset = 0;
    struct block last = reduce_one(k, sources, n, bytes - step);

    for (; offset + 4 * step <= whole; offset += 4 * step)
        reduce_four(k, dst, sources, n, offset);
    for (; offset < whole; offset += step)
        k.store_any(dst + offset, reduce_one(k, sources, n, offset));
    k.store_any(dst + bytes - step, last);
}

/* Two sources, the most frequent number, get loops of their own. */
ALWAYS_INLINE void reduce(const struct kernel k, void *dst, const void *const *sources, size_t n,
                          size_t bytes) {
    if (n == 2) {
        const unsigned char *const both[2] = {sources[0], sources[1]};
        reduce_all(k, dst, both, 2, bytes);
    } else {
        reduce_all(k, dst, (const unsigned char *const *)sources, n, bytes);
    }
}

/* ---- The reducers ---- */

/* bytes: of an element. block: of a source's block. */
#define DEFINE_REDUCER(name, dtype, redop, bytes, block, load_fn, combine_fn, finish_fn, ...)   \
    __attribute__((noinline)) static void name##_in_mode(void *dst, const void *const *sources, \
                                                         size_t n, size_t count) {              \
        const struct kernel k = {block, load_fn, combine_fn, finish_fn, __VA_ARGS__};           \
        if (count < (block) / (bytes))                                                          \
            SHORT_TABLE.in_mode[dtype][redop](dst, sources, n, count);                          \
        else                                                                                    \
            reduce(k, dst, sources, n, count *(bytes));                                         \
    }                                                                                           \
    static void name(void *dst, const void *const *sources, size_t n, size_t count) {           \
        sc_dtype_in_standard_mode(name##_in_mode, dst, sources, n, count);                      \
    }

#define DEFINE_FLOAT(suffix, dtype, bytes, block, load, base, keep, avg, ...)                     \
    DEFINE_REDUCER(sum_all_##suffix, dtype, SPARK_COMM_SUM, bytes, block, load, add_##base, keep, \
                   __VA_ARGS__)                                                                   \
    DEFINE_REDUCER(max_all_##suffix, dtype, SPARK_COMM_MAX, bytes, block, load, max_##base, keep, \
                   __VA_ARGS__)                                                                   \
    DEFINE_REDUCER(min_all_##suffix, dtype, SPARK_COMM_MIN, bytes, block, load, min_##base, keep, \
                   __VA_ARGS__)                                                                   \
    DEFINE_REDUCER(avg_all_##suffix, dtype, SPARK_COMM_AVG, bytes, block, load, add_##base, avg,  \
                   __VA_ARGS__)

#define ONE_STORE(store) store, NULL, store

#define DEFINE_INTEGER_REDUCER(name, dtype, redop, bytes, combine)                        \
    DEFINE_REDUCER(name, dtype, redop, bytes, VECTOR_BYTES, load_full, combine, keep_any, \
                   ONE_STORE(store_full))

#define DEFINE_INTEGER(suffix, dtype, bytes, add)                                        \
    DEFINE_INTEGER_REDUCER(sum_all_##suffix, dtype, SPARK_COMM_SUM, bytes, add)          \
    DEFINE_INTEGER_REDUCER(max_all_##suffix, dtype, SPARK_COMM_MAX, bytes, max_##suffix) \
    DEFINE_INTEGER_REDUCER(min_all_##suffix, dtype, SPARK_COMM_MIN, bytes, min_##suffix)

DEFINE_FLOAT(bf16, SPARK_COMM_BF16, 2, VECTOR_BYTES, load_bf16, bf16, keep_any, avg_bf16,
             store_bf16, may_have_nan_bf16, store_any_bf16)
DEFINE_FLOAT(f16, SPARK_COMM_F16, 2, VECTOR_BYTES / 2, load_f16_block, f32, keep_f32, avg_f32,
             ONE_STORE(store_f16_block))
DEFINE_FLOAT(f32, SPARK_COMM_F32, 4, VECTOR_BYTES, load_full, f32, keep_f32, avg_f32,
             ONE_STORE(store_full))
DEFINE_FLOAT(f64, SPARK_COMM_F64, 8, VECTOR_BYTES, load_full, f64, keep_f64, avg_f64,
             ONE_STORE(store_full))
DEFINE_INTEGER(i8, SPARK_COMM_I8, 1, add_i8)
DEFINE_INTEGER(u8, SPARK_COMM_U8, 1, add_i8)
DEFINE_INTEGER(i32, SPARK_COMM_I32, 4, add_i32)
DEFINE_INTEGER(i64, SPARK_COMM_I64, 8, add_i64)

/* No set divides integers, so their averages stay with the plain C version. */
#define INTEGER_ROW(suffix, end)                                                            \
    {                                                                                       \
        [SPARK_COMM_SUM] = sum_all_##suffix##end, [SPARK_COMM_MAX] = max_all_##suffix##end, \
        [SPARK_COMM_MIN] = min_all_##suffix##end                                            \
    }
#define FLOAT_ROW(suffix, end)                                                              \
    {                                                                                       \
        [SPARK_COMM_SUM] = sum_all_##suffix##end, [SPARK_COMM_MAX] = max_all_##suffix##end, \
        [SPARK_COMM_MIN] = min_all_##suffix##end, [SPARK_COMM_AVG] = avg_all_##suffix##end  \
    }
#define ROWS(end)                                                                           \
    {                                                                                       \
        [SPARK_COMM_BF16] = FLOAT_ROW(bf16, end), [SPARK_COMM_F16] = FLOAT_ROW(f16, end),   \
        [SPARK_COMM_F32] = FLOAT_ROW(f32, end), [SPARK_COMM_F64] = FLOAT_ROW(f64, end),     \
        [SPARK_COMM_I8] = INTEGER_ROW(i8, end), [SPARK_COMM_U8] = INTEGER_ROW(u8, end),     \
        [SPARK_COMM_I32] = INTEGER_ROW(i32, end), [SPARK_COMM_I64] = INTEGER_ROW(i64, end), \
    }
const struct sc_dtype_table VECTOR_TABLE = {.reducers = ROWS(), .in_mode = ROWS(_in_mode)};
