/*
 * The library's memory: every layer allocates through these, never through malloc. In builds with
 * SPARK_COMM_TESTING (the archive that the tests link) a test can make any allocation fail;
 * otherwise they are malloc and free and cost nothing more. Any thread. All that is returned is
 * freed with sc_free.
 */
#ifndef SC_BASE_ALLOC_H
#define SC_BASE_ALLOC_H

#include <stddef.h>

/* NULL means that memory ran out, also for 0 bytes. Aligned for every basic type. */
void *sc_alloc(size_t bytes);
/* The same, zero filled. */
void *sc_alloc_zero(size_t bytes);
/* `count` elements of `bytes` each, zero filled. NULL too when the product overflows. */
void *sc_alloc_array(size_t count, size_t bytes);
/* Zero filled; `alignment` is a power of two and at least the size of a pointer (64: a cache line).
 */
void *sc_alloc_aligned(size_t alignment, size_t bytes);
/* NULL is fine. */
void sc_free(void *memory);

#ifdef SPARK_COMM_TESTING
/* Lets `count` more allocations of the process succeed and refuses all later ones; negative:
 * refuses none (the initial state). Starts the count of refused ones anew. */
void sc_alloc_fail_after(long count);
/* Allocations refused since then. A test raises `count` until this stays 0: then every point has
 * failed once. */
long sc_alloc_refused(void);
#endif

#endif
