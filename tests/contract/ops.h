/*
 * One operation of the interface with data, run and verified against the reference: fresh seeded
 * data for each call, guarded and misaligned buffers, inputs that must stay as they were, results
 * that must be the same on all ranks. The tests choose the shapes; this is where the answers are
 * checked.
 */
#ifndef CONTRACT_OPS_H
#define CONTRACT_OPS_H

#include "harness.h"
#include "reference.h"

/* Equal on all ranks, except where said. */
struct ops_call {
    /* SPARK_COMM_OP_* of a collective, SEND_TO (a ring of messages in a group), SEND_COMMAND or
     * EXCHANGE_HOST. */
    int kind;
    int dtype;
    int redop;
    size_t count; /* elements of reductions; bytes of the others; words of commands */
    int root; /* of broadcast; the distance to the receiver of SEND_TO */
    bool in_place; /* where the operation can be */
    bool named; /* through the function of that name where it can say the same, else submit */
    unsigned send_misalign, recv_misalign;
    bool send_at_end, recv_at_end; /* which side of the buffer cannot be touched */
};

/* Runs and checks it on this rank. False when the call itself failed, so that no further one makes
 * sense. */
bool ops_run(struct harness_rank *rank, const struct ops_call *call);
/* Fills the alignments, sides, in_place and named from a random number, the same on all ranks. */
void ops_shuffle(struct ops_call *call, uint64_t random);
/* The call in words. Returns text. */
const char *ops_describe(const struct ops_call *call, char *text, size_t size);

/*
 * Numbers of elements to try for a type of `element` bytes, ascending and each once: 0 to 70,
 * primes, around every power of two, around the places where implementations change their way (56
 * B, 64 B, 4 KiB, 64 KiB, 128 KiB, 256 KiB, 1 MiB), and one large odd one, none above `max_bytes`.
 * Returns how many; at most OPS_MAX_COUNTS.
 */
#define OPS_MAX_COUNTS 320
size_t ops_counts(size_t element, size_t max_bytes, size_t counts[OPS_MAX_COUNTS]);
/* The largest size that a matrix goes to in this world, per rank: it falls with the size of the
 * world and the level. */
size_t ops_max_bytes(const struct harness_rank *rank);

#endif
