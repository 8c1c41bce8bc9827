/*
 * Test values and right results, independent of the library's own arithmetic.
 *
 * A value is a function of seed, rank and index, so nothing needs to be kept to check a result.
 * Floating-point inputs are whole numbers small enough that every partial sum, in any order, is
 * exact in the element type (bf16: 256, f16: 2048, the others: 2^24), so the right result is one
 * bit pattern and equality is exact. Integers take any bits, and their sums wrap. For avg the
 * values of all ranks are a common base plus differences that cancel around the ring, so the
 * quotient is a whole number too.
 */
#include "perf.h"

#include <string.h>

static const char *const dtype_names[] = {NULL, "bf16", "f16", "f32", "f64",
                                          "i8", "u8",   "i32", "i64"};
static const size_t dtype_sizes[] = {0, 2, 2, 4, 8, 1, 1, 4, 8};
static const char *const redop_names[] = {NULL, "sum", "max", "min", "avg"};

enum {
    DTYPE_COUNT = sizeof dtype_names / sizeof dtype_names[0],
    REDOP_COUNT = sizeof redop_names / sizeof redop_names[0]
};

const char *sc_perf_values_dtype_name(int dtype) {
    return dtype > 0 && dtype < DTYPE_COUNT ? dtype_names[dtype] : NULL;
}

const char *sc_perf_values_redop_name(int redop) {
    return redop > 0 && redop < REDOP_COUNT ? redop_names[redop] : NULL;
}

int sc_perf_values_dtype(const char *name) {
    for (int i = 1; i < DTYPE_COUNT; i++) {
        if (strcmp(name, dtype_names[i]) == 0) return i;
    }
    return 0;
}

int sc_perf_values_redop(const char *name) {
    for (int i = 1; i < REDOP_COUNT; i++) {
        if (strcmp(name, redop_names[i]) == 0) return i;
    }
    return 0;
}

size_t sc_perf_values_size(int dtype) {
    return dtype > 0 && dtype < DTYPE_COUNT ? dtype_sizes[dtype] : 0;
}

static uint64_t mix(uint64_t seed, int rank, size_t index) {
    uint64_t x = seed + ((uint64_t)rank + 1) * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * 0xff51afd7ed558ccdu;
    return x ^ (x >> 32);
}

/* 0 to span, span below 2^31. */
static int64_t up_to(uint64_t bits, int64_t span) {
    return (int64_t)(((bits >> 32) * (uint64_t)(span + 1)) >> 32);
}

static bool is_float(int dtype) {
    return dtype >= SPARK_COMM_BF16 && dtype <= SPARK_COMM_F64;
}

/* Whole numbers up to here, and their sums up to here, are exact. */
static int64_t exact_limit(int dtype) {
    switch (dtype) {
    case SPARK_COMM_BF16: return 256;
    case SPARK_COMM_F16: return 2048;
    case SPARK_COMM_I8: return 127;
    case SPARK_COMM_U8: return 255;
    default: return 1 << 24;
    }
}

static int64_t any_integer(int dtype, uint64_t bits) {
    switch (dtype) {
    case SPARK_COMM_I8: return (int8_t)bits;
    case SPARK_COMM_U8: return (uint8_t)bits;
    case SPARK_COMM_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

/* base + own - previous rank's: the sum over the ring is world * base, every partial sum is at most
 * world * 2h + h, and h is a third of what a rank may add. */
static int64_t averaged_value(const struct sc_perf_values *v, int rank, size_t index) {
    int64_t h = exact_limit(v->dtype) / (3 * (int64_t)v->world);
    int64_t spread = h == 0 && is_float(v->dtype) ? 1 : h;
    int previous = (rank + v->world - 1) % v->world;
    int64_t base = h + up_to(mix(v->seed, -1, index), h);
    int64_t value = base + up_to(mix(v->seed, rank, index), spread) -
                    up_to(mix(v->seed, previous, index), spread);
    bool negative = v->dtype != SPARK_COMM_U8 && (index & 1);
    return negative ? -value : value;
}

static int64_t summed_float(const struct sc_perf_values *v, int rank, size_t index) {
    int64_t limit = exact_limit(v->dtype);
    int64_t span = limit / v->world;
    if (span == 0) {
        /* More ranks than the type can count: only every stride-th adds a one. */
        int64_t stride = (v->world + limit - 1) / limit;
        return (rank + (int64_t)(index % (size_t)stride)) % stride == 0;
    }
    return up_to(mix(v->seed, rank, index), 2 * span) - span;
}

static int64_t input_value(const struct sc_perf_values *v, int rank, size_t index) {
    if (v->redop == SPARK_COMM_AVG) return averaged_value(v, rank, index);
    if (!is_float(v->dtype)) return any_integer(v->dtype, mix(v->seed, rank, index));
    if (v->redop == SPARK_COMM_SUM) return summed_float(v, rank, index);
    int64_t span = exact_limit(v->dtype);
    return up_to(mix(v->seed, rank, index), 2 * span) - span;
}

static int64_t right_value(const struct sc_perf_values *v, size_t index) {
    int64_t result = input_value(v, 0, index);
    uint64_t sum = (uint64_t)result; /* unsigned: it may wrap */
    for (int rank = 1; rank < v->world; rank++) {
        int64_t value = input_value(v, rank, index);
        sum += (uint64_t)value;
        if (v->redop == SPARK_COMM_MAX ? value > result : value < result) result = value;
    }
    switch (v->redop) {
    case SPARK_COMM_SUM: return (int64_t)sum;
    case SPARK_COMM_AVG: return (int64_t)sum / v->world;
    default: return result;
    }
}

/* A whole number of at most 2048 as the bits of an f16. */
static uint16_t half_bits(int64_t value) {
    uint32_t sign = value < 0 ? 0x8000 : 0;
    uint32_t magnitude = (uint32_t)(value < 0 ? -value : value);
    if (magnitude == 0) return 0;
    int exponent = 31 - __builtin_clz(magnitude);
    uint32_t fraction =
        exponent <= 10 ? magnitude << (10 - exponent) : magnitude >> (exponent - 10);
    return (uint16_t)(sign | ((uint32_t)(exponent + 15) << 10) | (fraction & 0x3ff));
}

/* bf16 is the upper half of an f32; whole numbers up to 256 lose nothing. */
static uint16_t brain_bits(int64_t value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void encode(int dtype, int64_t value, unsigned char *out) {
    union {
        uint16_t u16;
        float f32;
        double f64;
        uint8_t u8;
        uint32_t u32;
        uint64_t u64;
    } element;
    switch (dtype) {
    case SPARK_COMM_BF16: element.u16 = brain_bits(value); break;
    case SPARK_COMM_F16: element.u16 = half_bits(value); break;
    case SPARK_COMM_F32: element.f32 = (float)value; break;
    case SPARK_COMM_F64: element.f64 = (double)value; break;
    case SPARK_COMM_I8:
    case SPARK_COMM_U8: element.u8 = (uint8_t)value; break;
    case SPARK_COMM_I32: element.u32 = (uint32_t)value; break;
    default: element.u64 = (uint64_t)value; break;
    }
    memcpy(out, &element, dtype_sizes[dtype]);
}

void sc_perf_values_fill(const struct sc_perf_values *values, int rank, size_t first, size_t count,
                         void *out) {
    size_t size = dtype_sizes[values->dtype];
    unsigned char *place = out;
    for (size_t i = 0; i < count; i++) {
        encode(values->dtype, input_value(values, rank, first + i), place + i * size);
    }
}

uint64_t sc_perf_values_wrong(const struct sc_perf_values *values, size_t first, size_t count,
                              const void *got) {
    size_t size = dtype_sizes[values->dtype];
    const unsigned char *place = got;
    unsigned char right[8];
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        encode(values->dtype, right_value(values, first + i), right);
        if (memcmp(place + i * size, right, size) != 0) wrong++;
    }
    return wrong;
}

void sc_perf_values_fill_bits(uint64_t seed, int owner, size_t bytes, void *out) {
    unsigned char *place = out;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(seed, owner, at);
        memcpy(place + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

static uint64_t wrong_in_word(const unsigned char *got, const unsigned char *right, size_t size,
                              size_t element) {
    uint64_t wrong = 0;
    for (size_t at = 0; at < size; at += element) {
        size_t part = size - at < element ? size - at : element;
        if (memcmp(got + at, right + at, part) != 0) wrong++;
    }
    return wrong;
}

uint64_t sc_perf_values_wrong_bits(uint64_t seed, int owner, size_t bytes, size_t element,
                                   const void *got) {
    const unsigned char *place = got;
    uint64_t wrong = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(seed, owner, at);
        size_t size = bytes - at < 8 ? bytes - at : 8;
        if (memcmp(place + at, &word, size) == 0) continue;
        wrong += wrong_in_word(place + at, (const unsigned char *)&word, size, element);
    }
    return wrong;
}
