/* Waiting for other ranks' flags, and the sentences for waits that fail. */
#ifndef SC_SHM_FLAGS_H
#define SC_SHM_FLAGS_H

#include "backends/shm/state.h"

/* A wait for the flag at one offset of several ranks' mailboxes, in order of ranks. */
struct sc_flags_wait {
    const struct sc_shm *shm;
    size_t offset; /* of the flag in a mailbox */
    const _Atomic uint64_t *flag; /* not NULL: the one flag, wherever it is */
    uint32_t number; /* awaited */
    uint32_t digest; /* of this rank's call */
    int next; /* first rank whose flag has not been seen */
    int end; /* one past the last rank */
    bool mismatch; /* rank `next` made another call */
};

/* Why a wait of ours matters; the sentence is built from it. */
enum sc_flags_reason {
    SC_FLAGS_ENTER, /* the rank's part in the call has not begun */
    SC_FLAGS_GO_ON, /* it has begun, but does not go on */
    SC_FLAGS_TAKE /* the rank has not taken data of this rank's, which stand in the way */
};

/* Waits until all flags are there. MISMATCH names both ranks; OP_TIMEOUT those that are missing. */
spark_comm_status sc_flags_await_slow(struct sc_flags_wait *wait, const spark_comm_call *call,
                                      enum sc_flags_reason reason);

/* True when all flags are there, or one shows another call. */
static inline bool sc_flags_look(struct sc_flags_wait *wait) {
    const struct sc_shm *shm = wait->shm;
    for (; wait->next < wait->end; wait->next++) {
        if (wait->next == shm->rank) continue;
        const unsigned char *box = (const unsigned char *)shm->mail.of[wait->next];
        const _Atomic uint64_t *flag = (const _Atomic uint64_t *)(box + wait->offset);
        if (wait->flag != NULL) flag = wait->flag;
        /* Acquire: partner of the release store of the flag's owner; its data are valid then. */
        uint64_t word = atomic_load_explicit(flag, memory_order_acquire);
        if ((uint32_t)word != wait->number) return false;
        wait->mismatch = (uint32_t)(word >> 32) != wait->digest;
        if (__builtin_expect(wait->mismatch, 0)) return true;
    }
    return true;
}

/* The first looks at one flag, inline, since most come within a microsecond. False says only that it
 * is not there as awaited: the rest, and poison, is for sc_flags_await_slow. */
static inline bool sc_flags_brisk(const struct sc_shm *shm, const _Atomic uint64_t *flag,
                                  uint64_t word) {
    /* Acquire: as in sc_flags_look. */
    for (uint32_t look = 0; look <= shm->brisk_looks; look++) {
        if (atomic_load_explicit(flag, memory_order_acquire) == word) return true;
        sc_wait_pause();
    }
    return false;
}

static inline spark_comm_status sc_flags_await(struct sc_flags_wait *wait,
                                               const spark_comm_call *call,
                                               enum sc_flags_reason reason) {
    for (uint32_t look = 0; look <= wait->shm->brisk_looks; look++) {
        if (sc_flags_look(wait)) {
            if (__builtin_expect(wait->mismatch, 0)) break;
            return SPARK_COMM_OK;
        }
        sc_wait_pause();
    }
    return sc_flags_await_slow(wait, call, reason);
}

/* The sentence for a wait that ended with `st`, OP_TIMEOUT or ABORTED; `missing` is the set of
 * ranks that it waited for. Returns `st`. */
spark_comm_status sc_flags_fail(const struct sc_shm *shm, const spark_comm_call *call,
                                const spark_comm_op *op, spark_comm_status st, uint64_t missing,
                                enum sc_flags_reason reason);

#endif
