/* The sizes that the matrices go through. */
#include <stdlib.h>

#include "ops.h"

static const size_t primes[] = {71,   73,    79,    97,    101,   127,   131,  251,
                                257,  509,   521,   1021,  1031,  2039,  4093, 4099,
                                8191, 12289, 16381, 32771, 65537, 131071};
/* In bytes. */
static const size_t limits[] = {56, 64, 4096, 65536, 131072, 262144, 1048576};
#define LARGE_BYTES ((size_t)8 << 20)

static int ascending(const void *a, const void *b) {
    const size_t x = *(const size_t *)a;
    const size_t y = *(const size_t *)b;
    return (x > y) - (x < y);
}

struct list {
    size_t *counts;
    size_t used;
    size_t max_count;
};

static void put(struct list *list, size_t count) {
    if (count <= list->max_count && list->used < OPS_MAX_COUNTS) list->counts[list->used++] = count;
}

static void put_around(struct list *list, size_t count) {
    put(list, count - 1);
    put(list, count);
    put(list, count + 1);
}

size_t ops_counts(size_t element, size_t max_bytes, size_t counts[OPS_MAX_COUNTS]) {
    struct list list = {counts, 0, max_bytes / element};
    size_t kept = 0;
    for (size_t count = 0; count <= 70; count++)
        put(&list, count);
    for (size_t i = 0; i < sizeof primes / sizeof primes[0]; i++)
        put(&list, primes[i]);
    for (size_t power = 128; power <= 32768; power *= 2)
        put_around(&list, power);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        put_around(&list, limits[i] / element);
    put(&list, LARGE_BYTES / element + 13);
    qsort(counts, list.used, sizeof counts[0], ascending);
    for (size_t i = 0; i < list.used; i++)
        if (i == 0 || counts[i] != counts[kept - 1]) counts[kept++] = counts[i];
    return kept;
}

size_t ops_max_bytes(const struct harness_rank *rank) {
    static const size_t by_level[3] = {(size_t)300 << 10, (size_t)9 << 20, (size_t)9 << 20};
    const size_t most = by_level[harness_level()];
    if (rank->size <= 2 || harness_level() >= 2) return most;
    return most < ((size_t)11 << 17) ? most : (size_t)11 << 17; /* 1.4 MiB */
}
