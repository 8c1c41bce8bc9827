/* Which way an operation goes, by its size and the number of ranks alone, so that all ranks choose
 * alike. One table in paths.c. */
#ifndef SC_SHM_PATHS_H
#define SC_SHM_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include <spark_comm_backend.h>

enum sc_path {
    SC_PATH_COPY, /* one rank: the result is the input */
    SC_PATH_TINY, /* slots.c, data and flag in one line */
    SC_PATH_SLOTS, /* slots.c */
    SC_PATH_SWAP, /* swap.c */
    SC_PATH_ONE_SHOT, /* chunks.c: every rank reduces everything */
    SC_PATH_TWO_SHOT, /* chunks.c: every rank reduces its share, then all gather the shares */
    SC_PATH_CHUNKS, /* chunks.c: data is only moved, or reduced where it belongs */
    SC_PATH_STREAM, /* streams.c */
    SC_PATH_PAIRS /* pairs.c */
};

struct sc_paths_row {
    size_t up_to; /* op.bytes */
    enum sc_path path;
};

#define SC_PATHS_ROWS 4 /* of one operation at most */

/* The table for one number of ranks. */
struct sc_paths {
    struct sc_paths_row rows[SPARK_COMM_OP_RECV_FROM + 1]
                            [SC_PATHS_ROWS]; /* the last one: SIZE_MAX */
    /* By operation: op.bytes from which symmetric memory is worth a question to all (direct.c). */
    size_t direct_from[SPARK_COMM_OP_RECV_FROM + 1];
    size_t direct_bytes; /* of one step of it; a multiple of 64 */
};

void sc_paths_choose(struct sc_paths *paths, int ranks);
/* As spark_comm_backend.describe. */
size_t sc_paths_describe(const struct sc_paths *paths, spark_comm_info_row *rows, size_t capacity);

static inline enum sc_path sc_paths_of(const struct sc_paths *paths, int operation, size_t bytes) {
    const struct sc_paths_row *row = paths->rows[operation];
    while (bytes > row->up_to)
        row++;
    return row->path;
}

/* Bytes of one block that a step of chunks.c carries; a multiple of 64. */
size_t sc_paths_step_bytes(int operation, int ranks);
/* Share of `rank` in a piece of `length` bytes, in multiples of 64; may be empty. */
size_t sc_paths_share(size_t length, int rank, int ranks, size_t *at);
/* Bytes of one step of swap.c, for `bytes` in all, of elements of 1 << shift bytes, and whether each
 * rank reduces its share alone. */
size_t sc_paths_swap_bytes(size_t bytes, unsigned shift, bool *two_shot);
/* Bytes of one chunk of a broadcast, and of one fragment of a message, of `bytes` in all. */
size_t sc_paths_stream_bytes(size_t bytes);
size_t sc_paths_fragment_bytes(size_t bytes, size_t most);

#endif
