/*
 * Sizes and names of element types and reductions, and the choice of a reducer. The instruction set
 * is chosen once per process, from what the CPU has and what was built. Any thread.
 */
#include "base/dtype.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/dtype_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const struct {
    const char *name;
    size_t size;
} types[SC_DTYPE_COUNT] = {
    [SPARK_COMM_BF16] = {"bf16", 2}, [SPARK_COMM_F16] = {"f16", 2}, [SPARK_COMM_F32] = {"f32", 4},
    [SPARK_COMM_F64] = {"f64", 8},   [SPARK_COMM_I8] = {"i8", 1},   [SPARK_COMM_U8] = {"u8", 1},
    [SPARK_COMM_I32] = {"i32", 4},   [SPARK_COMM_I64] = {"i64", 8},
};

static const char *const redop_names[SC_DTYPE_REDOP_COUNT] = {
    [SPARK_COMM_SUM] = "sum",
    [SPARK_COMM_MAX] = "max",
    [SPARK_COMM_MIN] = "min",
    [SPARK_COMM_AVG] = "avg",
};

static bool dtype_is_known(int dtype) {
    return dtype > 0 && dtype < SC_DTYPE_COUNT;
}

static bool redop_is_known(int redop) {
    return redop > 0 && redop < SC_DTYPE_REDOP_COUNT;
}

size_t sc_dtype_size(int dtype) {
    return dtype_is_known(dtype) ? types[dtype].size : 0;
}

const char *sc_dtype_name(int dtype) {
    return dtype_is_known(dtype) ? types[dtype].name : "unknown";
}

const char *sc_dtype_redop_name(int redop) {
    return redop_is_known(redop) ? redop_names[redop] : "unknown";
}

/* ---- The choice ---- */

static pthread_once_t chosen = PTHREAD_ONCE_INIT;
/* Written once, under `chosen`; `best` last. */
static const struct sc_dtype_table *best_table = &sc_dtype_scalar_table;
static _Atomic(const struct sc_dtype_table *) best;

#if defined(__x86_64__)
bool sc_dtype_cpu_has_avx2(void) {
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;

    /* Not every compiler's builtin knows f16c. That the system saves the registers, avx2 says. */
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
}

bool sc_dtype_cpu_has_avx512(void) {
    return sc_dtype_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

static void choose(void) {
#if defined(SC_HAVE_NEON) && defined(__aarch64__)
    best_table = &sc_dtype_neon_table;
#endif
#if defined(SC_HAVE_AVX2) && defined(__x86_64__)
    if (sc_dtype_cpu_has_avx2()) {
        best_table = &sc_dtype_avx2_table;
    }
#endif
#if defined(SC_HAVE_AVX512) && defined(__x86_64__)
    if (sc_dtype_cpu_has_avx512()) {
        best_table = &sc_dtype_avx512_table;
    }
#endif
    /* Release: partner of the acquire load in sc_dtype_reducer, for threads that never went through
     * `chosen`. The tables are constant. */
    atomic_store_explicit(&best, best_table, memory_order_release);
}

static const struct sc_dtype_table *table_of_choice(void) {
    const struct sc_dtype_table *table = atomic_load_explicit(&best, memory_order_acquire);
    if (__builtin_expect(table != NULL, 1)) return table;
    pthread_once(&chosen, choose);
    return best_table;
}

sc_dtype_reduce_fn sc_dtype_reducer(int dtype, int redop) {
    if (!dtype_is_known(dtype) || !redop_is_known(redop)) return NULL;
    sc_dtype_reduce_fn reducer = table_of_choice()->reducers[dtype][redop];
    return reducer != NULL ? reducer : sc_dtype_scalar_table.reducers[dtype][redop];
}

sc_dtype_reduce_fn sc_dtype_reducer_now(int dtype, int redop) {
    sc_dtype_reduce_fn reducer = table_of_choice()->in_mode[dtype][redop];
    if (__builtin_expect(!sc_dtype_mode_is_standard(sc_dtype_mode_read()), 0))
        return sc_dtype_reducer(dtype, redop);
    return reducer != NULL ? reducer : sc_dtype_scalar_table.in_mode[dtype][redop];
}
