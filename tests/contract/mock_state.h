/* What the files of the mock backend share. */
#ifndef MOCK_STATE_H
#define MOCK_STATE_H

#include <spark_comm_backend.h>
#include <stdatomic.h>

#define CHUNK 49152u /* bytes; a multiple of every element's size */
#define MAX_RANKS 64

struct slot {
    _Alignas(64) _Atomic uint64_t written; /* how many chunks were put here */
    _Alignas(64) _Atomic uint64_t
        read; /* collectives: exchanges that its rank is done with, in all slots;
                                              messages: chunks that the receiver has taken */
    _Alignas(64) unsigned char chunk[CHUNK];
};

struct mock {
    const spark_comm_host *host;
    struct slot *seats; /* by rank */
    struct slot *boxes; /* [from * ranks + to] */
    size_t bytes;
    uint64_t exchanges; /* this rank's count */
    int rank, ranks;
};

static inline unsigned char *host_memory(uint64_t address) {
    return (unsigned char *)(uintptr_t)address;
}
static inline size_t chunk_at(size_t offset, size_t bytes) {
    return bytes - offset < CHUNK ? bytes - offset : CHUNK;
}

/* out = source 0 op source 1 op ..., elementwise over `bytes` bytes. */
void mock_reduce(int dtype, int redop, const unsigned char *const *sources, int ranks,
                 unsigned char *out, size_t bytes);
spark_comm_status mock_point_to_point(void *state, const spark_comm_call *call);

#endif
