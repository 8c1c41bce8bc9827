/*
 * A broadcast ring in shared memory: one writer, a read position per reader, no relay. Ranks of one
 * host send command words and small broadcasts through it; each rank owns the ring it writes.
 *
 * A record begins on a cache line and is published by a release store of its position into the
 * first word of that line, which the readers poll (acquire): there is no head to fetch besides, so
 * that a record of up to 32 bytes costs each reader one line transfer. The writer reuses space only
 * after every reader has moved past it (each reader's position: release by the reader, acquire by
 * the writer). Headers never wrap; payloads may. ring.c explains why no stale word is ever taken
 * for a record.
 *
 * One thread at a time uses a set: its callers hold the command lane's lock.
 */
#ifndef SC_WORLD_RING_H
#define SC_WORLD_RING_H

#include "os/wait.h"

#define SC_RING_BYTES (256u * 1024u) /* data area of one ring; a power of two */
#define SC_RING_MAX_RECORD 65536u /* largest payload */

struct sc_ring; /* in shared memory */

/* What a record says of itself. */
struct sc_ring_header {
    uint32_t bytes; /* payload */
    uint32_t kind;
    uint32_t epoch;
    uint32_t digest;
    uint64_t number;
};

/* One rank's handle on all rings of its world; private memory. */
struct sc_ring_set {
    struct sc_ring **rings; /* by writer's rank */
    int rank;
    int size;
    uint64_t *positions; /* by writer's rank: where this rank's next record is, read or written */
    uint64_t floor; /* every reader of the own ring was seen at this position or later */
    int64_t gaps[2]; /* ns: how long this reader had to wait the last two times */
    const struct sc_wait_policy *policy; /* of the command lane */
    struct sc_wait_doorbell *const *doorbells; /* of the command lane, by rank */
};

/* Bytes of one ring with `readers` read positions; a multiple of 4096. */
size_t sc_ring_size(int readers);
/* Makes `set` over `memory`, which is page aligned and holds `size` rings of sc_ring_size(size)
 * bytes each, zero filled by whoever made it. Once per rank and memory: a new epoch takes new
 * memory. Peers may have begun to write. NO_MEMORY is the only failure. */
spark_comm_status sc_ring_set_open(struct sc_ring_set *set, void *memory, int rank, int size,
                                   const struct sc_wait_policy *policy,
                                   struct sc_wait_doorbell *const *doorbells,
                                   struct sc_error *error);
/* Frees what open made, never `memory`. Fine on a zeroed set, and twice. */
void sc_ring_set_close(struct sc_ring_set *set);
/* For tests: lets all rings of fresh `memory` begin at `position` instead of 0, before anyone opens
 * them. Positions count lines of 64 bytes. */
void sc_ring_preset(void *memory, int size, uint64_t position);
/* Publishes to all other ranks and rings their doorbells. Waits for space until the deadline:
 * OP_TIMEOUT with *slowest set to the reader that is furthest behind, ABORTED on poison. BACKEND:
 * the reader *slowest has left a position in shared memory that cannot be. INVALID_ARGUMENT: more
 * than SC_RING_MAX_RECORD bytes. On any failure nothing is published. `data` may be NULL with 0
 * bytes, `slowest` may be NULL. */
spark_comm_status sc_ring_write(struct sc_ring_set *set, const struct sc_ring_header *header,
                                const void *data, int64_t deadline, int *slowest);
/* Waits for the next record of `writer` (another rank) and shows its header without taking it:
 * OP_TIMEOUT at the deadline, ABORTED on poison. BACKEND: the record is damaged (it says that it
 * has more than SC_RING_MAX_RECORD bytes), so that nothing behind it can be found either. A peer
 * wrote over the ring: callers poison the world and name `writer`. */
spark_comm_status sc_ring_peek(struct sc_ring_set *set, int writer, int64_t deadline,
                               struct sc_ring_header *header);
/* Takes the record that peek showed, with the header that peek gave: copies header->bytes and moves
 * on (wakes a writer that waits for space). */
void sc_ring_take(struct sc_ring_set *set, int writer, const struct sc_ring_header *header,
                  void *data);

#endif
