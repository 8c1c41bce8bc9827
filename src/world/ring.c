/*
 * Broadcast rings. A ring is 4096 lines of 64 bytes; positions count lines, in 64 bits, and never
 * go back. A record at position p takes whole lines:
 *
 *     line p:   sequence (8) | struct sc_ring_header (24) | first 32 bytes of the payload
 *     line p+1, ...:           the rest of the payload, going on at line 0 after the last one
 *
 * The writer fills the lines and then stores p + 1 into `sequence` (release). A reader that is at p
 * polls that word (acquire) until it is p + 1. It looks at no other word to find a record, so that
 * a command word moves one line from core to core, and records don't share a line with a head that
 * the writer would take away under the readers' eyes.
 *
 * Why no stale word can be p + 1. A word that was a sequence in an earlier lap holds that lap's
 * position + 1, which is smaller by a multiple of 4096 (at a record a nanosecond 64 bits last for
 * 500 years). A word that was payload in an earlier lap can hold anything. So the writer, before it
 * publishes a record, looks at the first word of the line behind it, where the readers will poll
 * next: if it is just the value that they will wait for, it is stored over. The look is local: the
 * writer wrote that line last. The store comes before the release of the record, and a reader polls
 * that line only after it has acquired the record: it sees the new value or the next record. The
 * line behind the record must be free for that, hence "+ 1" in the space that a record asks for.
 *
 * Space. Each reader has a line of its own with its position, stored (release) after it has copied
 * a record out; the writer's acquire of it comes before the writer stores over that record. The
 * writer keeps the smallest position it has seen (`floor`) and looks again only when that no longer
 * suffices: once a lap when readers keep up. A writer that must wait stores the position that all
 * readers have to reach into `wanted`; a reader whose take crosses it rings the writer's doorbell.
 * `wanted` is never taken back: once crossed, no later take crosses it again.
 */
#include "world/ring.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"

#define LINE_BYTES 64u
#define LINES ((uint64_t)(SC_RING_BYTES / LINE_BYTES))
#define PAYLOAD_OFFSET 32u

struct record {
    _Alignas(LINE_BYTES) _Atomic uint64_t sequence;
    struct sc_ring_header header;
    unsigned char payload[LINE_BYTES - PAYLOAD_OFFSET];
};

/* Two lines each, since some processors fetch lines in pairs. */
struct reader {
    _Alignas(2 * LINE_BYTES) _Atomic uint64_t position;
};

struct sc_ring {
    struct record lines[LINES];
    _Alignas(2 * LINE_BYTES) _Atomic uint64_t wanted; /* stored by the writer when it has to wait */
    struct reader readers[]; /* by rank; the writer's own stays at the start */
};

_Static_assert(sizeof(struct record) == LINE_BYTES, "a record's head is one line");
_Static_assert(offsetof(struct record, payload) == PAYLOAD_OFFSET, "no padding before the payload");
_Static_assert((LINES & (LINES - 1)) == 0, "positions wrap by masking");
_Static_assert(SC_RING_MAX_RECORD + 2 * LINE_BYTES <= SC_RING_BYTES, "the largest record fits");

size_t sc_ring_size(int readers) {
    size_t bytes = sizeof(struct sc_ring) + (size_t)readers * sizeof(struct reader);
    return (bytes + 4095) & ~(size_t)4095;
}

static struct sc_ring *ring_of(void *memory, int size, int writer) {
    return (struct sc_ring *)((unsigned char *)memory + (size_t)writer * sc_ring_size(size));
}

spark_comm_status sc_ring_set_open(struct sc_ring_set *set, void *memory, int rank, int size,
                                   const struct sc_wait_policy *policy,
                                   struct sc_wait_doorbell *const *doorbells,
                                   struct sc_error *error) {
    memset(set, 0, sizeof *set);
    set->rank = rank;
    set->size = size;
    set->policy = policy;
    set->doorbells = doorbells;
    set->rings = sc_alloc_array((size_t)size, sizeof *set->rings);
    if (set->rings == NULL) goto fail;
    set->positions = sc_alloc_array((size_t)size, sizeof *set->positions);
    if (set->positions == NULL) goto fail;
    for (int writer = 0; writer < size; writer++) {
        struct sc_ring *ring = ring_of(memory, size, writer);
        set->rings[writer] = ring;
        /* Relaxed: nobody else stores there since the memory was shared. */
        set->positions[writer] =
            atomic_load_explicit(&ring->readers[rank].position, memory_order_relaxed);
    }
    set->floor = set->positions[rank];
    return SPARK_COMM_OK;
fail:
    sc_ring_set_close(set);
    spark_comm_status st = sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0,
                                        "no memory for the handles on %d command rings", size);
    return st;
}

void sc_ring_set_close(struct sc_ring_set *set) {
    sc_free(set->rings);
    sc_free(set->positions);
    set->rings = NULL;
    set->positions = NULL;
}

void sc_ring_preset(void *memory, int size, uint64_t position) {
    for (int writer = 0; writer < size; writer++)
        for (int reader = 0; reader < size; reader++)
            atomic_store_explicit(&ring_of(memory, size, writer)->readers[reader].position,
                                  position, memory_order_relaxed);
}

static inline struct record *record_at(struct sc_ring *ring, uint64_t position) {
    return &ring->lines[position & (LINES - 1)];
}

static inline uint64_t record_lines(uint32_t bytes) {
    return (PAYLOAD_OFFSET + (uint64_t)bytes + LINE_BYTES - 1) / LINE_BYTES;
}

/* The payload of the record at `position` is `first` bytes from the offset that is returned, and
 * the rest from the ring's beginning. */
static inline size_t payload_at(uint64_t position, size_t bytes, size_t *first) {
    size_t offset = (size_t)(position & (LINES - 1)) * LINE_BYTES + PAYLOAD_OFFSET;
    *first = bytes <= SC_RING_BYTES - offset ? bytes : SC_RING_BYTES - offset;
    return offset;
}

static void copy_in(struct sc_ring *ring, uint64_t position, const void *data, size_t bytes) {
    unsigned char *area = (unsigned char *)ring->lines;
    size_t first;
    size_t offset = payload_at(position, bytes, &first);
    memcpy(area + offset, data, first);
    if (first < bytes) memcpy(area, (const unsigned char *)data + first, bytes - first);
}

static void copy_out(struct sc_ring *ring, uint64_t position, void *data, size_t bytes) {
    const unsigned char *area = (const unsigned char *)ring->lines;
    size_t first;
    size_t offset = payload_at(position, bytes, &first);
    memcpy(data, area + offset, first);
    if (first < bytes) memcpy((unsigned char *)data + first, area, bytes - first);
}

/* ---- The writer ---- */

struct space {
    struct sc_ring_set *set;
    uint64_t need; /* the position that every reader has to reach */
    int slowest; /* the reader furthest behind, or the one whose position is impossible */
    bool damaged;
};

/* Looks at every reader's position (acquire; partner: the release in sc_ring_take). True when there
 * is room, or when there is no sense in waiting. */
static bool has_space(void *arg) {
    struct space *space = arg;
    struct sc_ring_set *set = space->set;
    struct sc_ring *ring = set->rings[set->rank];
    uint64_t head = set->positions[set->rank];
    uint64_t most = 0;
    for (int rank = 0; rank < set->size; rank++) {
        if (rank == set->rank) continue;
        uint64_t behind =
            head - atomic_load_explicit(&ring->readers[rank].position, memory_order_acquire);
        space->damaged = behind > head - set->floor;
        if (behind >= most) {
            most = behind;
            space->slowest = rank;
        }
        if (space->damaged) return true;
    }
    set->floor = head - most;
    return (int64_t)(set->floor - space->need) >= 0;
}

static spark_comm_status wait_for_space(struct sc_ring_set *set, uint64_t need, int64_t deadline,
                                        int *slowest) {
    struct space space = {.set = set, .need = need, .slowest = -1};
    spark_comm_status st = SPARK_COMM_OK;
    if (!has_space(&space)) {
        /* Relaxed: sc_wait_until has a full barrier (membarrier, or fences on both sides) between
         * this store and its last look at the positions before it sleeps; the partner is the load
         * in sc_ring_take after the store of the position. So either that look sees the position,
         * or that take sees `wanted`. */
        atomic_store_explicit(&set->rings[set->rank]->wanted, need, memory_order_relaxed);
        st = sc_wait_until(set->policy, has_space, &space, deadline);
    }
    if (st == SPARK_COMM_OK && space.damaged) st = SPARK_COMM_BACKEND;
    if (st != SPARK_COMM_OK && slowest != NULL) *slowest = space.slowest;
    return st;
}

spark_comm_status sc_ring_write(struct sc_ring_set *set, const struct sc_ring_header *header,
                                const void *data, int64_t deadline, int *slowest) {
    if (header->bytes > SC_RING_MAX_RECORD) return SPARK_COMM_INVALID_ARGUMENT;
    if (set->size == 1) return SPARK_COMM_OK;
    struct sc_ring *ring = set->rings[set->rank];
    uint64_t position = set->positions[set->rank];
    uint64_t next = position + record_lines(header->bytes);

    /* The line at `next` must be free too. */
    uint64_t need = next + 1 - LINES;
    if (__builtin_expect((int64_t)(set->floor - need) < 0, 0)) {
        spark_comm_status st = wait_for_space(set, need, deadline, slowest);
        if (st != SPARK_COMM_OK) return st;
    }

    struct record *record = record_at(ring, position);
    record->header = *header;
    if (header->bytes != 0) copy_in(ring, position, data, header->bytes);
    /* No old payload may pass for the next record: see the top. Relaxed: ordered by the release. */
    _Atomic uint64_t *behind = &record_at(ring, next)->sequence;
    if (__builtin_expect(atomic_load_explicit(behind, memory_order_relaxed) == next + 1, 0))
        atomic_store_explicit(behind, ~(next + 1), memory_order_relaxed);
    /* Release: partner is the acquire in sc_ring_peek and has_arrived. */
    atomic_store_explicit(&record->sequence, position + 1, memory_order_release);
    set->positions[set->rank] = next;

    for (int rank = 0; rank < set->size; rank++)
        if (rank != set->rank) sc_wait_ring(set->policy, set->doorbells[rank]);
    return SPARK_COMM_OK;
}

/* ---- The readers ---- */

struct arrival {
    const _Atomic uint64_t *sequence;
    uint64_t expected;
};

static bool has_arrived(void *arg) {
    const struct arrival *arrival = arg;
    return atomic_load_explicit(arrival->sequence, memory_order_acquire) == arrival->expected;
}

/*
 * How long a reader spins depends on how long it had to wait the last two times. The commands of one
 * step come a few to a few hundred microseconds apart, and a wake-up costs 20 to 70 us: with both
 * gaps short it spins for twice the longer one. After a long gap it sleeps as early as anybody, so
 * that what an idle reader spins is a millisecond at most, once.
 */
#define SHORT_GAP_NS INT64_C(250000)
#define LEAST_SPIN_NS INT64_C(20000)
#define PAUSES_PER_LOOK_AT_CLOCK 16

/* True when it came; *now is the time of the last look at the clock. */
static bool spin(const struct sc_ring_set *set, struct arrival *arrival, int64_t *now) {
    int64_t longer = set->gaps[0] > set->gaps[1] ? set->gaps[0] : set->gaps[1];
    int64_t end = *now + (longer < SHORT_GAP_NS ? 2 * longer + LEAST_SPIN_NS : 0);
    const _Atomic uint32_t *poison = set->policy->poison;

    do {
        for (int i = 0; i < PAUSES_PER_LOOK_AT_CLOCK; i++) {
            if (has_arrived(arrival)) return true;
            sc_wait_pause();
        }
        /* Relaxed: sc_wait_until looks again, and properly. */
        if (poison != NULL && atomic_load_explicit(poison, memory_order_relaxed) != 0) return false;
        *now = sc_deadline_now();
    } while (*now < end);
    return false;
}

static spark_comm_status await_arrival(struct sc_ring_set *set, struct arrival *arrival,
                                       int64_t deadline) {
    /* Whoever yields shares a CPU, and by spinning would keep the root away. */
    if (set->policy->yields != 0) return sc_wait_until(set->policy, has_arrived, arrival, deadline);
    int64_t begin = sc_deadline_now(), now = begin;
    spark_comm_status st = SPARK_COMM_OK;
    if (!spin(set, arrival, &now)) {
        st = sc_wait_until(set->policy, has_arrived, arrival, deadline);
        now = sc_deadline_now();
    }
    set->gaps[0] = set->gaps[1];
    set->gaps[1] = now - begin;
    return st;
}

spark_comm_status sc_ring_peek(struct sc_ring_set *set, int writer, int64_t deadline,
                               struct sc_ring_header *header) {
    uint64_t position = set->positions[writer];
    const struct record *record = record_at(set->rings[writer], position);
    struct arrival arrival = {&record->sequence, position + 1};
    if (!has_arrived(&arrival)) {
        spark_comm_status st = await_arrival(set, &arrival, deadline);
        if (st != SPARK_COMM_OK) return st;
    }
    /* Checked on the private copy: what a broken peer stores later changes nothing. */
    *header = record->header;
    return header->bytes <= SC_RING_MAX_RECORD ? SPARK_COMM_OK : SPARK_COMM_BACKEND;
}

void sc_ring_take(struct sc_ring_set *set, int writer, const struct sc_ring_header *header,
                  void *data) {
    struct sc_ring *ring = set->rings[writer];
    uint64_t before = set->positions[writer];
    uint64_t after = before + record_lines(header->bytes);
    if (header->bytes != 0) copy_out(ring, before, data, header->bytes);
    set->positions[writer] = after;
    /* Release: partner is the acquire in has_space. */
    atomic_store_explicit(&ring->readers[set->rank].position, after, memory_order_release);

    /* The load must not come before that store: see wait_for_space. */
    if (set->policy->fence)
        atomic_thread_fence(memory_order_seq_cst);
    else
        atomic_signal_fence(memory_order_seq_cst);
    uint64_t wanted = atomic_load_explicit(&ring->wanted, memory_order_relaxed);
    bool crossed = (int64_t)(before - wanted) < 0 && (int64_t)(after - wanted) >= 0;
    if (__builtin_expect(crossed, 0)) sc_wait_ring(set->policy, set->doorbells[writer]);
}
