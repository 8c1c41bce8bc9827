/*
 * The one table of thresholds, per type of GPU. Measured rows say where; the others follow what
 * engines for that machine do. SPARK_COMM_NCCL_EXCHANGE_BYTES overrides it, alike on all ranks.
 */
#include <stdio.h>

#include "backends/nccl/state.h"

static const struct {
    int major, minor; /* compute capability; minor -1: any */
    size_t exchange_bytes;
} table[] = {
    /* Two H200 over NVLink (docs/nccl.md): the exchange is slower at every size. */
    {9, -1, 0},
    /* DGX Spark, RoCE without peer access: the engines' own rule for decode steps. Not measured. */
    {12, 1, (size_t)1 << 20},
};

size_t sc_thresholds_exchange_bytes(int major, int minor) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].major == major && (table[i].minor == minor || table[i].minor < 0))
            return table[i].exchange_bytes;
    return 0;
}

/* A sum of BF16 by the exchange is canonical; NCCL's own reductions are not, but for one rank. */
size_t sc_thresholds_describe(void *state, spark_comm_info_row *rows, size_t capacity) {
    const struct sc_nccl *nccl = state;
    size_t count = 0;
    if (nccl->shared_gpu) return 0;
    bool exchanges = nccl->exchange_bytes > 0 && nccl->add != NULL;
    for (int kind = SPARK_COMM_OP_ALL_REDUCE; kind <= SPARK_COMM_OP_RECV_FROM; kind++) {
        bool reduces = kind == SPARK_COMM_OP_ALL_REDUCE || kind == SPARK_COMM_OP_REDUCE_SCATTER;
        spark_comm_info_row row = {.operation = kind, .canonical = reduces ? nccl->size == 1 : -1};
        if (kind == SPARK_COMM_OP_ALL_REDUCE && exchanges && count < capacity) {
            row.up_to_bytes = nccl->exchange_bytes;
            snprintf(row.path, sizeof row.path, "exchange (sums of bf16)");
            row.canonical = 1;
            rows[count++] = row;
            row.canonical = 0;
        }
        if (count == capacity) break;
        row.up_to_bytes = UINT64_MAX;
        snprintf(row.path, sizeof row.path, "%s",
                 kind == SPARK_COMM_OP_BARRIER ? "control plane" : "nccl");
        rows[count++] = row;
    }
    return count;
}
