/*
 * The one table of thresholds, and the sizes of pieces. "Bytes" here is what one rank writes:
 * op.bytes, for reduce_scatter op.bytes times the number of ranks. Reasons:
 *
 *   tiny       56 bytes are what one line holds beside the flag: one line moves per rank, at 95 ns.
 *   slots      up to 16 KiB a flag of its own and one piece beat any pipeline.
 *   swap       two ranks: one line moves per line of data, and the next step is written where the
 *              lines already are. In steps of 32 KiB up to 256 KiB in all, then of 64 KiB: with
 *              16 / 32 / 64 / 128 KiB a prototype took 12.7 / 11.7 / 11.8 / 13.1 us at 256 KiB and
 *              50.8 / 48.0 / 43.1 / 45.8 at 1 MiB (AMD EPYC, two CPUs, least of nine); chunks in
 *              their best form took 16.3 and 59.1.
 *   one-shot   3 ranks: every rank reads all others (n - 1 times the data). Two-shot would
 *              copy the result once more and wait twice for less than half of the reading saved.
 *   two-shot   from 4 ranks: reading all others costs n - 1 times the data, two-shot about twice.
 *   chunks     of 128 KiB, pipelined: with smaller ones the lines of both ranks get in each other's
 *              way (16 KiB chunks cost 2.6 times as much at 1 MiB between two ranks).
 */
#include "backends/shm/paths.h"

#include <stdint.h>
#include <stdio.h>

#include "backends/shm/mailbox.h"

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
        for (int i = 0; i < SC_PATHS_ROWS; i++)
            paths->rows[kind][i] = (struct sc_paths_row){ANY, SC_PATH_COPY};
    if (ranks == 1) return;
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

size_t sc_paths_swap_bytes(size_t bytes) {
    return bytes <= (256u << 10) ? 32u << 10 : SC_MAILBOX_SWAP_BYTES;
}

size_t sc_paths_step_bytes(int operation, int ranks) {
    size_t bytes = SC_MAILBOX_CHUNK_BYTES;
    /* A chunk of reduce_scatter holds a piece of every rank's block. */
    if (operation == SPARK_COMM_OP_REDUCE_SCATTER) bytes = bytes / (size_t)ranks & ~(size_t)63;
    return bytes;
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
