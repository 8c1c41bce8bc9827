/*
 * The one table of thresholds, and the sizes of pieces. "Bytes" here is what one rank writes:
 * op.bytes, for reduce_scatter op.bytes times the number of ranks. Reasons:
 *
 *   tiny       56 bytes are what one line holds beside the flag: one line moves per rank, at 95 ns.
 *   slots      up to 16 KiB a flag of its own and one piece beat any pipeline.
 *   swap       two ranks: one line moves per line of data, and the next step is written where the
 *              lines already are. One-shot in steps of 32 KiB up to 256 KiB in all, two-shot in
 *              steps of 64 KiB above: one-shot / two-shot took 3.2 / 4.0 us at 64 KiB of f32,
 *              12.3 / 13.3 at 256 KiB, 63 / 49 at 1 MiB, 264 / 213 at 4 MiB. Types of 16 bits have
 *              twice the arithmetic for a line, and go two-shot from above 16 KiB: 0.95 / 0.95 us
 *              at 8 KiB of bf16, 2.69 / 2.27 at 32 KiB, 9.9 / 8.0 at 128 KiB, 43 / 32 at 512 KiB
 *              (bench/shm_call.c, AMD EPYC, two CPUs, least of four alternating rounds).
 *   one-shot   3 ranks: every rank reads all others (n - 1 times the data). Two-shot would
 *              copy the result once more and wait twice for less than half of the reading saved.
 *   two-shot   from 4 ranks: reading all others costs n - 1 times the data, two-shot about twice.
 *   chunks     of 128 KiB, pipelined: with smaller ones the lines of both ranks get in each other's
 *              way (16 KiB chunks cost 2.6 times as much at 1 MiB between two ranks).
 *   zero copy  from 512 KiB, in pieces of 512 KiB, where symmetric memory was ever allocated: a
 *              producer's next store to a line that a peer has read costs as much as the copy saved
 *              while all fits the second-level cache. With buffers rewritten before every call (its
 *              cost subtracted), the path above / pieces of 128 / 256 / 512 / 1024 KiB took, between
 *              two ranks, 13.5 / 14.6 / 14.5 / - / - us at 256 KiB, 33.3 / 37.1 / 32.2 / 33.3 / 35.3
 *              at 512 KiB, 62.1 / 53.9 / 40.0 / 33.2 / 43.5 at 1 MiB and 282 / 254 / 176 / 144 / 153
 *              at 4 MiB (bench/shm_symmetric.c, medians of five alternating rounds, same machine,
 *              512 KiB of second-level cache). reduce_scatter and all_gather: 11.5 / 11.1 and
 *              23.6 / 22.9 at 256 KiB, 47.0 / 28.0 and 107 / 74.6 at 1 MiB without and with it.
 */
#include "backends/shm/paths.h"

#include <stdint.h>
#include <stdio.h>

#include "backends/shm/mailbox.h"

#define DIRECT_FROM ((size_t)512 << 10)
#define DIRECT_BYTES ((size_t)512 << 10)
#define SWAP_STEP_BYTES ((size_t)32 << 10)
#define SWAP_ONE_SHOT ((size_t)256 << 10)
#define SWAP_NARROW_ONE_SHOT ((size_t)16 << 10)
#define ANY SIZE_MAX
#define MOST SC_MAILBOX_MAX_RANKS

static const struct {
    int operation;
    int ranks; /* the row is for at most so many; rows are in ascending order of it */
    size_t up_to;
    enum sc_path path;
} table[] = {
    {SPARK_COMM_OP_ALL_REDUCE, MOST, SC_MAILBOX_TINY_BYTES, SC_PATH_TINY},
    {SPARK_COMM_OP_ALL_REDUCE, 2, ANY, SC_PATH_SWAP},
    {SPARK_COMM_OP_ALL_REDUCE, MOST, SC_MAILBOX_SLOT_BYTES, SC_PATH_SLOTS},
    {SPARK_COMM_OP_ALL_REDUCE, 3, ANY, SC_PATH_ONE_SHOT},
    {SPARK_COMM_OP_ALL_REDUCE, MOST, ANY, SC_PATH_TWO_SHOT},
    {SPARK_COMM_OP_ALL_GATHER, MOST, SC_MAILBOX_TINY_BYTES, SC_PATH_TINY},
    {SPARK_COMM_OP_ALL_GATHER, MOST, SC_MAILBOX_SLOT_BYTES, SC_PATH_SLOTS},
    {SPARK_COMM_OP_ALL_GATHER, MOST, ANY, SC_PATH_CHUNKS},
    {SPARK_COMM_OP_REDUCE_SCATTER, MOST, SC_MAILBOX_TINY_BYTES, SC_PATH_TINY},
    {SPARK_COMM_OP_REDUCE_SCATTER, MOST, SC_MAILBOX_SLOT_BYTES, SC_PATH_SLOTS},
    {SPARK_COMM_OP_REDUCE_SCATTER, MOST, ANY, SC_PATH_CHUNKS},
    {SPARK_COMM_OP_BROADCAST, MOST, ANY, SC_PATH_STREAM},
    {SPARK_COMM_OP_BARRIER, MOST, ANY, SC_PATH_TINY},
    {SPARK_COMM_OP_SEND_TO, MOST, ANY, SC_PATH_PAIRS},
    {SPARK_COMM_OP_RECV_FROM, MOST, ANY, SC_PATH_PAIRS},
};

#define TABLE_ROWS (sizeof table / sizeof table[0])

void sc_paths_choose(struct sc_paths *paths, int ranks) {
    int count[SPARK_COMM_OP_RECV_FROM + 1] = {0};
    for (int kind = 0; kind <= SPARK_COMM_OP_RECV_FROM; kind++)
        paths->direct_from[kind] = ANY;
    paths->direct_bytes = DIRECT_BYTES;
    for (int kind = 0; kind <= SPARK_COMM_OP_RECV_FROM; kind++)
        for (int i = 0; i < SC_PATHS_ROWS; i++)
            paths->rows[kind][i] = (struct sc_paths_row){ANY, SC_PATH_COPY};
    if (ranks == 1) return;
    paths->direct_from[SPARK_COMM_OP_ALL_REDUCE] = DIRECT_FROM;
    paths->direct_from[SPARK_COMM_OP_ALL_GATHER] = DIRECT_FROM;
    paths->direct_from[SPARK_COMM_OP_REDUCE_SCATTER] = DIRECT_FROM / (size_t)ranks;
    for (size_t i = 0; i < TABLE_ROWS; i++) {
        int kind = table[i].operation;
        size_t up_to = table[i].up_to;
        if (ranks > table[i].ranks) continue;
        if (count[kind] > 0 && paths->rows[kind][count[kind] - 1].up_to == ANY) continue;
        if (kind == SPARK_COMM_OP_REDUCE_SCATTER && up_to != ANY) up_to /= (size_t)ranks;
        paths->rows[kind][count[kind]++] = (struct sc_paths_row){up_to, table[i].path};
    }
}

size_t sc_paths_describe(const struct sc_paths *paths, spark_comm_info_row *rows, size_t capacity) {
    static const char *const names[] = {
        [SC_PATH_COPY] = "copy",
        [SC_PATH_TINY] = "tiny",
        [SC_PATH_SLOTS] = "slots",
        [SC_PATH_SWAP] = "swap",
        [SC_PATH_ONE_SHOT] = "chunks, one-shot",
        [SC_PATH_TWO_SHOT] = "chunks, two-shot",
        [SC_PATH_CHUNKS] = "chunks",
        [SC_PATH_STREAM] = "stream",
        [SC_PATH_PAIRS] = "pairs",
    };
    size_t count = 0;
    for (int kind = SPARK_COMM_OP_ALL_REDUCE; kind <= SPARK_COMM_OP_RECV_FROM; kind++) {
        bool reduces = kind == SPARK_COMM_OP_ALL_REDUCE || kind == SPARK_COMM_OP_REDUCE_SCATTER;
        const struct sc_paths_row *row = paths->rows[kind];
        for (bool last = false; !last; row++, count++) {
            last = row->up_to == ANY;
            if (count >= capacity) continue;
            rows[count] = (spark_comm_info_row){.operation = kind, .canonical = reduces ? 1 : -1};
            rows[count].up_to_bytes = last ? UINT64_MAX : row->up_to;
            snprintf(rows[count].path, sizeof rows[count].path, "%s", names[row->path]);
        }
    }
    return count;
}

size_t sc_paths_swap_bytes(size_t bytes, unsigned shift, bool *two_shot) {
    *two_shot = bytes > (shift == 1 ? SWAP_NARROW_ONE_SHOT : SWAP_ONE_SHOT);
    return *two_shot ? SC_MAILBOX_SWAP_BYTES : SWAP_STEP_BYTES;
}

size_t sc_paths_step_bytes(int operation, int ranks) {
    size_t bytes = SC_MAILBOX_CHUNK_BYTES;
    /* A chunk of reduce_scatter holds a piece of every rank's block. */
    if (operation == SPARK_COMM_OP_REDUCE_SCATTER) bytes = bytes / (size_t)ranks & ~(size_t)63;
    return bytes;
}

size_t sc_paths_share(size_t length, int rank, int ranks, size_t *at) {
    size_t whole = (length / (size_t)ranks + 63) & ~(size_t)63;
    *at = (size_t)rank * whole < length ? (size_t)rank * whole : length;
    return rank == ranks - 1 || length - *at < whole ? length - *at : whole;
}

/* In quarters, so that reading overlaps writing, but no pieces under 16 KiB. */
static size_t quarter(size_t bytes, size_t most) {
    size_t piece = (bytes / 4 + 4095) & ~(size_t)4095;
    if (piece < (16u << 10)) piece = 16u << 10;
    return piece < most ? piece : most;
}

size_t sc_paths_stream_bytes(size_t bytes) {
    return quarter(bytes, SC_MAILBOX_STREAM_BYTES);
}

size_t sc_paths_fragment_bytes(size_t bytes, size_t most) {
    return quarter(bytes, most);
}
