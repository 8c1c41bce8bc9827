/*
 * What one communicator on shm holds. One thread at a time is in its operations (the library's data
 * lane sees to that), so nothing here is locked; only interrupt comes from elsewhere, and touches
 * this rank's doorbell alone.
 */
#ifndef SC_SHM_STATE_H
#define SC_SHM_STATE_H

#include "backends/shm/mailbox.h"
#include "backends/shm/paths.h"
#include "base/dtype.h"
#include "world/host.h"

struct sc_symmetric_region;
struct sc_symmetric_range;

struct sc_shm {
    const spark_comm_host *host;
    const struct sc_wait_policy *policy;
    int rank; /* among the members, as all ranks here; messages name ranks of the world */
    int size;
    uint32_t brisk_looks; /* at flags, with a pause between, before the general way to wait */
    struct sc_paths paths;
    struct sc_mailbox_set mail; /* of the present epoch */
    struct sc_symmetric_region *regions;
    struct sc_symmetric_range *ranges; /* registered */
    uint64_t last_handle;
};

/* Looks into every other rank's doorbell. After a flag was stored that all of them may wait for. */
static inline void sc_state_ring_all(const struct sc_shm *shm) {
    for (int peer = 0; peer < shm->size; peer++)
        if (peer != shm->rank) sc_wait_ring(shm->policy, shm->mail.doorbells[peer]);
}

/* This rank's part is visible to the peers; more than once does no harm. Before their doorbells are
 * rung: whom that wakes may take this rank's CPU, and would find a call that no status line shows. */
static inline void sc_state_entered(const spark_comm_call *call) {
    if (call->entered != NULL) call->entered(call);
}

/* Asks for a line that is to be written soon, so that the store finds it here instead of at the peer
 * that has read it. A hint; one line only. */
static inline void sc_state_claim(const void *line) {
#if defined(__x86_64__)
    /* In words: the builtin becomes this only where the whole build is for such a CPU. Others take it
     * for a long no-operation. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1, 3);
#endif
}

static inline void *sc_state_pointer(uint64_t address) {
    return (void *)(uintptr_t)address;
}

#endif
