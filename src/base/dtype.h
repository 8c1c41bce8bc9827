/* Element types and their arithmetic. The one place that knows how bf16, f16, ... are reduced. */
#ifndef SC_BASE_DTYPE_H
#define SC_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of one element; 0 for an unknown type. */
size_t sc_dtype_size(int dtype);
/* Its logarithm to base 2, of a known type; for hot paths. A digit per type, in the enum's order. */
static inline unsigned sc_dtype_shift(int dtype) {
    return (unsigned)(UINT64_C(0x320032110) >> (4 * dtype)) & 3u;
}
/* "bf16", "f32", ...; "unknown". */
const char *sc_dtype_name(int dtype);
/* "sum", "max", "min", "avg"; "unknown". */
const char *sc_dtype_redop_name(int redop);

/*
 * Reduces over sources in the order given, which is rank order: dst[i] = s[0][i] op s[1][i] op ... op s[n-1][i].
 *   bf16, f16, f32: accumulated in FP32, rounded once to nearest even; avg divides the FP32 sum by n before rounding.
 *   f64: in f64. Integers wrap (two's complement); avg is C division of the wrapped sum, towards zero.
 *   max, min: a NaN in any source gives NaN; of -0 and +0 either may win, but the same for every order-preserving path.
 * The result of an element depends on its n source elements alone, never on its position, on count or on alignment, and
 * every vector version gives the bits of the scalar one. dst may be equal to any source; otherwise nothing overlaps.
 * Pointers need no alignment. n is 1 to 256.
 */
typedef void (*sc_dtype_reduce_fn)(void *dst, const void *const *sources, size_t n, size_t count);

/* The best version for this CPU (chosen once). NULL for an unknown pair. dtype and redop must not be 0. */
sc_dtype_reduce_fn sc_dtype_reducer(int dtype, int redop);
/* The same for hot paths, of a known pair: it looks at the calling thread's floating-point mode now instead of in each
 * call, so it is for this thread alone, until that changes the mode. */
sc_dtype_reduce_fn sc_dtype_reducer_now(int dtype, int redop);

#endif
