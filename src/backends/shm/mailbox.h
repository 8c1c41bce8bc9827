/*
 * The memory that the ranks of one epoch share: a mailbox per rank, at most 4 MiB, written by its
 * owner alone and read by all, so that no line has two writers. What a reader has to say (how far
 * it has read) stands in the reader's own mailbox.
 *
 * A flag is one 64-bit word, stored once, with release order, after the data that it announces: the
 * sequence number in the low half, a mark in the high half (a digest of the call; for pairs the
 * number of the message). Who acquires it has the data, and knows whether the writer made the same
 * call.
 *
 * Five kinds of channels live here, each with numbers of its own that grow by one and wrap at 2^32.
 * Number s has the place s modulo the number of places, a power of two, so that the order of places
 * goes on over the wrap.
 *
 *   slots    exchanges in which every rank writes once and reads all others (slots.c). 2 places.
 *            A rank stores e + 2 only after it has seen e + 1 of all, and each of them stored that
 *            only after it had read e of all. So no acknowledgement is needed.
 *   chunks   the same in pipelined steps (chunks.c). 4 places. A rank stores s only after it has
 *            finished step s - 2. For that it has seen s - 2 of all, and each of them stored that
 *            only after it had finished step s - 4: nobody reads the old content of the place.
 *            Zero-copy calls (direct.c) are steps of this channel without chunks, after an exchange
 *            in slots. They keep the rule: they store both flags of every step, in order, and wait
 *            for all others' `reduced` where the others wait for `ready`.
 *   streams  broadcasts, one channel per root (streams.c). 8 places. The root stores s only after
 *            `stream_taken` of every reader says that s - 8 was read.
 *   pairs    messages, one channel per ordered pair (pairs.c). 4 places. The sender stores s only
 *            after `pair_taken` of the reader says that s - 4 was read.
 *   swap     all-reduce between two ranks (swap.c), the exception to the rule of one writer: a slot in
 *            each mailbox, and both ranks write both in turn. swap.c says why that is safe.
 *
 * Why no flag of an old lap can match: every word of a place is stored in every lap, in order (also
 * where nobody needs it). So a reader that waits for number s finds s there, or the number of one
 * lap before, which is less by the number of places. Nothing later can be there, since the writer
 * waits for this reader as said above, and nothing earlier. Numbers are compared for equality, or
 * by their difference modulo 2^32, which is at most the number of places. The first number is 1,
 * and a mailbox starts as zeros.
 *
 * Every epoch has new mailboxes and starts its numbers anew: sc_mailbox_open makes all of it,
 * sc_mailbox_close forgets all of it. What a rank of an older epoch still stores reaches memory
 * that nobody reads, and `left` in its own mailbox tells it so: whoever stores into a peer's own
 * buffers must look at that word after the flags and before each piece.
 */
#ifndef SC_SHM_MAILBOX_H
#define SC_SHM_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <spark_comm_backend.h>

#include "os/mapping.h"
#include "os/wait.h"

#define SC_MAILBOX_MAX_RANKS 64
#define SC_MAILBOX_MAX_BYTES (4u << 20)

#define SC_MAILBOX_TINY_BYTES 56 /* what fits into one line beside the flag */
#define SC_MAILBOX_SLOTS 2
#define SC_MAILBOX_SLOT_BYTES (16u << 10)
#define SC_MAILBOX_SWAP_BYTES (64u << 10)
#define SC_MAILBOX_CHUNKS 4
#define SC_MAILBOX_CHUNK_BYTES (128u << 10)
#define SC_MAILBOX_STREAM_PLACES 8
#define SC_MAILBOX_STREAM_BYTES (64u << 10)
#define SC_MAILBOX_PAIR_PLACES 4
#define SC_MAILBOX_PAIR_SMALL 48 /* what fits into one line beside flag and size */
#define SC_MAILBOX_PAIR_AREA (2u << 20) /* divided among the peers: 8 KiB a place with 64 ranks, */
#define SC_MAILBOX_PAIR_MOST (128u << 10) /* and never more than this */

struct sc_mailbox_slot {
    _Alignas(64) _Atomic uint64_t flag;
    unsigned char tiny[SC_MAILBOX_TINY_BYTES]; /* data of up to 56 bytes, in the line of its flag */
    unsigned char data[SC_MAILBOX_SLOT_BYTES]; /* larger data */
};

struct sc_mailbox_swap {
    _Alignas(4096) _Atomic uint64_t flag;
    _Alignas(64) unsigned char data[SC_MAILBOX_SWAP_BYTES];
};

struct sc_mailbox_chunk {
    _Alignas(64) _Atomic uint64_t ready; /* the rank's own data is in the chunk */
    _Alignas(64) _Atomic uint64_t reduced; /* its share of the result is in the chunk */
};

struct sc_mailbox_line {
    _Alignas(64) _Atomic uint32_t value;
};

struct sc_mailbox_flag {
    _Alignas(64) _Atomic uint64_t flag;
};

/* Header of one place of a pair's channel. */
struct sc_mailbox_fragment {
    _Alignas(64) _Atomic uint64_t flag;
    uint64_t message_bytes; /* of the whole message, the same in each of its fragments */
    unsigned char small[SC_MAILBOX_PAIR_SMALL]; /* a message of up to 48 bytes */
};

struct sc_mailbox {
    struct sc_mailbox_line stream_taken[SC_MAILBOX_MAX_RANKS]; /* by root: last number read */
    struct sc_mailbox_line pair_taken[SC_MAILBOX_MAX_RANKS]; /* by sender: last number read */
    struct sc_mailbox_chunk chunk[SC_MAILBOX_CHUNKS];
    struct sc_mailbox_flag stream[SC_MAILBOX_STREAM_PLACES];
    struct sc_mailbox_fragment pair[SC_MAILBOX_MAX_RANKS][SC_MAILBOX_PAIR_PLACES]; /* by reader */
    struct sc_mailbox_slot slot[SC_MAILBOX_SLOTS];
    struct sc_mailbox_line left; /* 1: peers have gone on to another epoch; stored by them */
    _Alignas(4096) unsigned char chunk_data[SC_MAILBOX_CHUNKS][SC_MAILBOX_CHUNK_BYTES];
    unsigned char stream_data[SC_MAILBOX_STREAM_PLACES][SC_MAILBOX_STREAM_BYTES];
    struct sc_mailbox_swap swap;
    unsigned char pair_data[]; /* [peer][place][pair_bytes]; a rank is no peer of its own */
};

_Static_assert(sizeof(struct sc_mailbox_slot) == 64 + SC_MAILBOX_SLOT_BYTES,
               "tiny data ends a line");
_Static_assert(sizeof(struct sc_mailbox_fragment) == 64, "a fragment's header is one line");
_Static_assert(sizeof(struct sc_mailbox_chunk) == 128 && sizeof(struct sc_mailbox_line) == 64 &&
                   sizeof(struct sc_mailbox_flag) == 64,
               "no two words that are waited for share a line");
_Static_assert(offsetof(struct sc_mailbox, stream_taken) == 0 &&
                   offsetof(struct sc_mailbox, pair_taken) == 4096 &&
                   offsetof(struct sc_mailbox, chunk) == 8192 &&
                   offsetof(struct sc_mailbox, stream) == 8192 + 512 &&
                   offsetof(struct sc_mailbox, pair) == 8192 + 1024 &&
                   offsetof(struct sc_mailbox, slot) == 8192 + 1024 + 16384 &&
                   offsetof(struct sc_mailbox, left) == 58496 &&
                   offsetof(struct sc_mailbox, chunk_data) == 61440 &&
                   offsetof(struct sc_mailbox, swap) == 61440 + (512u << 10) + (512u << 10),
               "the layout is the same in every build");
_Static_assert(sizeof(struct sc_mailbox) + SC_MAILBOX_PAIR_AREA <= SC_MAILBOX_MAX_BYTES,
               "a mailbox has at most 4 MiB");
_Static_assert((SC_MAILBOX_SLOTS & (SC_MAILBOX_SLOTS - 1)) == 0 &&
                   (SC_MAILBOX_CHUNKS & (SC_MAILBOX_CHUNKS - 1)) == 0 &&
                   (SC_MAILBOX_STREAM_PLACES & (SC_MAILBOX_STREAM_PLACES - 1)) == 0 &&
                   (SC_MAILBOX_PAIR_PLACES & (SC_MAILBOX_PAIR_PLACES - 1)) == 0,
               "numbers of places divide 2^32");
_Static_assert(SC_MAILBOX_SLOTS >= 2 && SC_MAILBOX_CHUNKS >= 4, "see the top of this file");

/* One direction of a pair, as its sender or its reader remembers it. */
struct sc_mailbox_pair {
    uint32_t next; /* number of the next fragment */
    uint32_t taken; /* sender: how far the reader was at the last look */
    uint64_t messages; /* messages begun */
};

/* All mailboxes of one epoch, with the numbers that this rank has come to. Private memory. */
struct sc_mailbox_set {
    struct sc_mapping mapping;
    struct sc_mailbox *of[SC_MAILBOX_MAX_RANKS];
    struct sc_wait_doorbell *doorbells[SC_MAILBOX_MAX_RANKS];
    size_t pair_bytes; /* of one place of a pair */
    uint32_t regions; /* symmetric ones ever allocated in this epoch, alike on all ranks */
    uint32_t next_slot; /* number of the next exchange */
    uint32_t next_swap; /* number of the next swap step */
    int swap_held; /* the swap slot that this rank writes next: whose mailbox it is in */
    uint32_t next_chunk; /* number of the next step */
    uint32_t next_stream[SC_MAILBOX_MAX_RANKS]; /* by root: number of its next chunk */
    uint32_t taken[SC_MAILBOX_MAX_RANKS]; /* by reader: how far it was in this rank's stream at the
                                             last look */
    struct sc_mailbox_pair to[SC_MAILBOX_MAX_RANKS];
    struct sc_mailbox_pair from[SC_MAILBOX_MAX_RANKS];
};

struct sc_shm;

/* Collective, before shared memory is made: each rank says whether it has what it needs itself, and
 * how much it asks for, so that all go on or none does. */
spark_comm_status sc_mailbox_agree(const spark_comm_host *host, const char *operation,
                                   bool prepared, size_t bytes, int64_t deadline_ns);
/* Collective: makes the mailboxes of the host's epoch. On failure nothing is left, and it was
 * explained. */
spark_comm_status sc_mailbox_open(struct sc_shm *shm, int64_t deadline_ns);
/* Local: tells every peer, in its own mailbox of this epoch, that this rank has left it. A peer that
 * was stopped finds it there when it wakes. */
void sc_mailbox_leave(struct sc_shm *shm);
static inline bool sc_mailbox_was_left(const struct sc_mailbox *own) {
    /* Acquire: partner of sc_mailbox_leave. */
    return atomic_load_explicit(&own->left.value, memory_order_acquire) != 0;
}
/* Local. Fine on a set that is not open. */
void sc_mailbox_close(struct sc_shm *shm);
/* For tests: every channel goes on with number `first`. Called by all ranks before the first
 * operation, with a barrier of the caller's behind it. */
void sc_mailbox_preset(struct sc_shm *shm, uint32_t first);

static inline uint64_t sc_mailbox_word(uint32_t number, uint32_t mark) {
    return (uint64_t)mark << 32 | number;
}

/* Has a counter that only grows reached `target`? Modulo 2^32. */
static inline bool sc_mailbox_reached(uint32_t value, uint32_t target) {
    return (int32_t)(value - target) >= 0;
}

#endif
