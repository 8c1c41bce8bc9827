/* Data for the tests: a seeded generator, elements with every special value, and a hash. */
#include "reference.h"

#include <math.h>
#include <string.h>

uint64_t reference_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t reference_mix(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t state = a;
    state = reference_next(&state) ^ b;
    state = reference_next(&state) ^ c;
    return reference_next(&state);
}

void reference_fill_bytes(uint64_t seed, void *out, size_t bytes) {
    unsigned char *to = out;
    for (; bytes >= 8; bytes -= 8, to += 8) {
        uint64_t word = reference_next(&seed);
        memcpy(to, &word, 8);
    }
    uint64_t word = reference_next(&seed);
    memcpy(to, &word, bytes);
}

/* Bit patterns worth a place of their own: zeros, ones, infinities, NaNs (quiet, signalling,
 * negative), the smallest and largest subnormal, the smallest and largest normal number, and
 * near-ties. */
static const uint64_t special_16[2][16] = {
    {0x0000, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffc1, 0x0001, 0x8001, 0x007f,
     0x0080, 0x7f7f, 0xff7f, 0x3f81},
    {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfe01, 0x0001, 0x8001, 0x03ff,
     0x0400, 0x7bff, 0xfbff, 0x3c01}};
static const uint64_t special_32[16] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
    0xffc00001, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800001};
static const uint64_t special_64[16] = {
    0x0000000000000000, 0x8000000000000000, 0x3ff0000000000000, 0xbff0000000000000,
    0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001,
    0xfff8000000000001, 0x0000000000000001, 0x8000000000000001, 0x000fffffffffffff,
    0x0010000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 0x3ff0000000000001};
static const uint64_t special_integers[16] = {0,          1,
                                              UINT64_MAX, 2,
                                              0x7f,       0x80,
                                              0xff,       0x7fffffff,
                                              0x80000000, 0xffffffff,
                                              3,          UINT64_MAX - 1,
                                              INT64_MAX,  (uint64_t)INT64_MIN,
                                              100,        UINT64_MAX - 99};

static const uint64_t *special_values(int dtype) {
    switch (dtype) {
    case SPARK_COMM_BF16: return special_16[0];
    case SPARK_COMM_F16: return special_16[1];
    case SPARK_COMM_F32: return special_32;
    case SPARK_COMM_F64: return special_64;
    default: return special_integers;
    }
}

/* A number of moderate size whose bits are all in use: sums of three depend on their order. */
static void store_ordinary(int dtype, uint64_t random, unsigned char *element) {
    if (dtype >= SPARK_COMM_I8) {
        memcpy(element, &random, reference_size(dtype));
        return;
    }
    const double fraction = (double)(random >> 11) * 0x1p-53 * 2.0 - 1.0;
    const int span = dtype == SPARK_COMM_F16 ? 8 : 16;
    reference_encode(dtype, ldexp(fraction, (int)(random % (unsigned)span) - span / 2), element);
}

/* Of 32 elements one is special, one is raw bits, the others are ordinary numbers. */
void reference_fill(int dtype, uint64_t seed, void *out, size_t count) {
    const size_t size = reference_size(dtype);
    const uint64_t *special = special_values(dtype);
    unsigned char *to = out;
    for (size_t i = 0; i < count; i++, to += size) {
        const uint64_t random = reference_next(&seed);
        const unsigned choice =
            (unsigned)(random >> 5) % 32; /* bits that the number itself uses little */
        if (choice == 0)
            memcpy(to, &special[random >> 60], size);
        else if (choice == 1)
            memcpy(to, &random, size);
        else
            store_ordinary(dtype, random, to);
    }
}

uint64_t reference_hash(const void *data, size_t bytes) {
    const unsigned char *from = data;
    uint64_t hash = 0xcbf29ce484222325u ^ bytes;
    for (; bytes >= 8; bytes -= 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        hash = (hash ^ word) * 0x9fb21c651e98df25u;
        hash ^= hash >> 32;
    }
    for (; bytes > 0; bytes--, from++)
        hash = (hash ^ *from) * 0x100000001b3u;
    return hash ^ hash >> 29;
}
