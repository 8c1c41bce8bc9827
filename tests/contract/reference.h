/*
 * The right answers, written from the contract alone and without a line of the library: bf16 and
 * f16 are converted by integer arithmetic on the bits of a double, f16, bf16 and f32 are summed in
 * FP32 in rank order and rounded once.
 *
 * Pointers need no alignment. Nothing here is fast for its own sake; clear first.
 */
#ifndef CONTRACT_REFERENCE_H
#define CONTRACT_REFERENCE_H

#include <spark_comm.h>

#define REFERENCE_MAX_RANKS 64

/* Every element type and every reduction, for loops over all of them. */
#define REFERENCE_DTYPES 8
#define REFERENCE_REDOPS 4
extern const int reference_dtypes[REFERENCE_DTYPES];
extern const int reference_redops[REFERENCE_REDOPS];

/* Bytes of one element; 0 for an unknown type. */
size_t reference_size(int dtype);
const char *reference_dtype_name(int dtype);
const char *reference_redop_name(int redop);

/* One element as a double (floating types) and back, rounded to nearest even. */
double reference_decode(int dtype, const void *element);
void reference_encode(int dtype, double value, void *element);

/* out[i] = sources[0][i] op ... op sources[n-1][i], exactly as the contract says. */
void reference_reduce(int dtype, int redop, const void *const *sources, int n, void *out,
                      size_t count);

/* Index of the first element that differs, or count when none does. Bits must be equal, except that
 * any NaN stands for any other, and that max and min (redop) may choose either zero. redop 0: plain
 * bytes of this type. */
size_t reference_compare(int dtype, int redop, const void *got, const void *want, size_t count);

/* The element in words, for a failure's text: its bits, and its value where it is a number. Returns
 * text. */
const char *reference_text(int dtype, const void *element, char *text, size_t size);

/* A seeded generator (splitmix64). */
uint64_t reference_next(uint64_t *state);
uint64_t reference_mix(uint64_t a, uint64_t b, uint64_t c);
/* Elements from a seed: values of many magnitudes so that the order of a sum shows in its bits,
 * every special value of the type (NaN, inf, -0, subnormals, largest, smallest), and raw bit
 * patterns. */
void reference_fill(int dtype, uint64_t seed, void *out, size_t count);
/* Bytes from a seed. */
void reference_fill_bytes(uint64_t seed, void *out, size_t bytes);
/* A hash of bytes, to compare results between ranks. */
uint64_t reference_hash(const void *data, size_t bytes);

#endif
