/*
 * Inside of dtype*.c: the tables of reducers, one per instruction set, and the floating-point mode
 * that they run in.
 */
#ifndef SC_BASE_DTYPE_KERNELS_H
#define SC_BASE_DTYPE_KERNELS_H

#include <spark_comm.h>

#include "base/dtype.h"

enum { SC_DTYPE_COUNT = SPARK_COMM_I64 + 1, SC_DTYPE_REDOP_COUNT = SPARK_COMM_AVG + 1 };

/* [dtype][redop]; NULL where a vector version does nothing better than the scalar one. */
struct sc_dtype_table {
    sc_dtype_reduce_fn reducers[SC_DTYPE_COUNT][SC_DTYPE_REDOP_COUNT];
    /* The same for a thread that is in the standard mode (below). */
    sc_dtype_reduce_fn in_mode[SC_DTYPE_COUNT][SC_DTYPE_REDOP_COUNT];
};
extern const struct sc_dtype_table sc_dtype_scalar_table;
extern const struct sc_dtype_table sc_dtype_avx2_table;
extern const struct sc_dtype_table sc_dtype_avx512_table;
extern const struct sc_dtype_table sc_dtype_neon_table;

#if defined(__x86_64__)
/* All that dtype_avx2.c and dtype_avx512.c are compiled for. */
bool sc_dtype_cpu_has_avx2(void);
bool sc_dtype_cpu_has_avx512(void);
#endif

/* The caller's thread may flush subnormals, round otherwise or trap (-ffast-math sets the first for
 * a whole program), and then ranks would differ. The standard mode is the rule, so that a reducer
 * reads the register and goes on; else it runs in the standard mode and gives the caller's back. */
#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned int sc_dtype_mode;
#define SC_DTYPE_STANDARD_MODE 0x1f80u
static inline sc_dtype_mode sc_dtype_mode_read(void) {
    return _mm_getcsr();
}
static inline void sc_dtype_mode_write(sc_dtype_mode mode) {
    _mm_setcsr(mode);
}
static inline bool sc_dtype_mode_is_standard(sc_dtype_mode mode) {
    return (mode & ~0x3fu) == SC_DTYPE_STANDARD_MODE; /* the low six bits are sticky flags */
}
#elif defined(__aarch64__)
typedef uint64_t sc_dtype_mode;
#define SC_DTYPE_STANDARD_MODE UINT64_C(0)
static inline sc_dtype_mode sc_dtype_mode_read(void) {
    sc_dtype_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void sc_dtype_mode_write(sc_dtype_mode mode) {
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
static inline bool sc_dtype_mode_is_standard(sc_dtype_mode mode) {
    return mode == SC_DTYPE_STANDARD_MODE;
}
#else
typedef int sc_dtype_mode;
#define SC_DTYPE_STANDARD_MODE 0
static inline sc_dtype_mode sc_dtype_mode_read(void) {
    return 0;
}
static inline void sc_dtype_mode_write(sc_dtype_mode mode) {
    (void)mode;
}
static inline bool sc_dtype_mode_is_standard(sc_dtype_mode mode) {
    return mode == 0;
}
#endif

/* Calls `work` in the standard mode. `work` is a function of its own, so that none of its
 * arithmetic moves across. */
static inline void sc_dtype_in_standard_mode(sc_dtype_reduce_fn work, void *dst,
                                             const void *const *sources, size_t n, size_t count) {
    sc_dtype_mode mode = sc_dtype_mode_read();
    if (__builtin_expect(sc_dtype_mode_is_standard(mode), 1)) {
        work(dst, sources, n, count);
        return;
    }
    sc_dtype_mode_write(SC_DTYPE_STANDARD_MODE);
    work(dst, sources, n, count);
    sc_dtype_mode_write(mode);
}

#endif
