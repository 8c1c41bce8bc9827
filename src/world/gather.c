/*
 * The host all-gather, over the star. Every worker sends its part to the hub (GATHER); the hub's
 * caller, once all parts are there, sends the table to everybody in pieces (GATHERED). The monitor
 * files parts at the hub and pieces at a worker; callers only wait.
 *
 * One round is open at a time: a worker sends its part of the next one only after it has the whole
 * result of this one, and the hub empties the table before it sends the first piece. So a part
 * always belongs to the round that is open, whoever is how late. `number` and `digest` say which
 * call it is; the first part that comes sets them, and one that differs is a MISMATCH, told by the
 * hub with both sides described.
 *
 * A round that a rank left without (goodbye) can never be complete; rounds are counted on every
 * rank alike, so that each can tell (sc_goodbye_missing_gather).
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"
#include "world/world_state.h"

/* From a fault that the monitor found to the poison that it sets. */
#define FAULT_PATIENCE_MS 1000
#define VOTE_BIT (UINT64_C(1) << 63) /* numbers of votes made between operations, see host.c */

static uint64_t own_descriptor(const struct sc_world *world) {
    const struct sc_epoch *epoch = world->epoch;

    if (!atomic_load_explicit(&epoch->ready, memory_order_acquire)) return SPARK_COMM_OP_OPEN;
    const struct sc_world_line *line =
        &epoch->lines[world->rank * SPARK_COMM_LANE_COUNT + SPARK_COMM_LANE_DATA];
    return atomic_load_explicit(&line->descriptor, memory_order_relaxed);
}

/* ---- The hub's table ---- */

static const char *describe(const struct sc_wire_header *part, char *text, size_t size) {
    if (part->flavour == SC_GATHER_WORLD || (part->number & VOTE_BIT) != 0)
        snprintf(text, size, "rank %d makes vote %llu of %u bytes for %s", part->source,
                 (unsigned long long)(part->number & ~VOTE_BIT), part->bytes,
                 sc_status_operation_name((int)(part->descriptor & 0xff)));
    else
        snprintf(text, size, "rank %d is in %s #%llu (%u bytes per rank, digest %08x)",
                 part->source, sc_status_operation_name((int)(part->descriptor & 0xff)),
                 (unsigned long long)part->number, part->bytes, part->digest);
    return text;
}

static bool same_call(const struct sc_wire_header *a, const struct sc_wire_header *b) {
    return a->flavour == b->flavour && a->number == b->number && a->digest == b->digest &&
           a->bytes == b->bytes;
}

/* Files one part under the lock. On failure the round is over: the error goes to all ranks. */
static spark_comm_status file_part(struct sc_world *world, const struct sc_wire_header *part,
                                   const void *payload, struct sc_error *error) {
    struct sc_gather *gather = &world->epoch->gather;
    size_t total = (size_t)world->size * part->bytes;
    uint32_t count = atomic_load_explicit(&gather->count, memory_order_relaxed);
    char one[128], other[128];

    if (count > 0 && (!same_call(&gather->first, part) || gather->arrived[part->source]))
        return sc_error_set(error, SPARK_COMM_MISMATCH, part->source, 0, "%s, but %s",
                            describe(&gather->first, one, sizeof one),
                            describe(part, other, sizeof other));
    if (total > gather->table_capacity) {
        uint8_t *grown = sc_alloc(total); /* the old one stays for the votes of the next epoch */
        if (grown == NULL)
            return sc_error_set(error, SPARK_COMM_ABORTED, SC_HUB, 0,
                                "rank 0 has no memory for the %zu bytes of %s", total,
                                describe(part, one, sizeof one));
        sc_free(gather->table);
        gather->table = grown;
        gather->table_capacity = total;
    }
    if (count == 0) gather->first = *part;
    if (part->bytes > 0)
        memcpy(gather->table + (size_t)part->source * part->bytes, payload, part->bytes);
    gather->arrived[part->source] = 1;
    /* Release: the caller that acquires the full count reads the table. */
    atomic_store_explicit(&gather->count, count + 1, memory_order_release);
    return SPARK_COMM_OK;
}

static spark_comm_status file(struct sc_world *world, const struct sc_wire_header *part,
                              const void *payload, struct sc_error *error) {
    struct sc_gather *gather = &world->epoch->gather;
    spark_comm_status st = SPARK_COMM_ABORTED;

    sc_lock_take(&gather->lock, SC_DEADLINE_NEVER, NULL);
    if (!gather->failed) st = file_part(world, part, payload, error);
    gather->failed |= st != SPARK_COMM_OK;
    sc_lock_give(&gather->lock);
    return st;
}

void sc_gather_take_part(struct sc_world *world, const struct sc_wire_header *header,
                         const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_error error;

    sc_error_clear(&error);
    error.operation = (int32_t)(header->descriptor & 0xff);
    error.sequence = header->number & ~VOTE_BIT;
    if (file(world, header, payload, &error) != SPARK_COMM_OK) {
        if (error.status != SPARK_COMM_OK) sc_world_fault(world, &error);
        return;
    }
    uint32_t count = atomic_load_explicit(&epoch->gather.count, memory_order_relaxed);
    if (count == (uint32_t)world->size)
        sc_wait_ring(&epoch->inner[SPARK_COMM_LANE_DATA],
                     &epoch->inner_bells[SPARK_COMM_LANE_DATA]);
}

/* ---- Waiting ---- */

struct round {
    struct sc_world *world;
    uint64_t number; /* counted from 1 */
};

static bool is_full(void *arg) {
    const struct round *round = arg;
    struct sc_epoch *epoch = round->world->epoch;

    return atomic_load_explicit(&epoch->gather.count, memory_order_acquire) ==
               (uint32_t)round->world->size ||
           sc_goodbye_missing_gather(epoch, round->number) >= 0;
}

static bool is_done(void *arg) {
    const struct round *round = arg;
    struct sc_epoch *epoch = round->world->epoch;

    return atomic_load_explicit(&epoch->gather.done, memory_order_acquire) != 0 ||
           sc_goodbye_missing_gather(epoch, round->number) >= 0;
}

static spark_comm_status rank_closed(struct sc_world *world, uint64_t round,
                                     struct sc_error *error) {
    return sc_verdict_closed(world, sc_goodbye_missing_gather(world->epoch, round), error);
}

/* Whose part has not come, for the hub's own timeout. */
static spark_comm_status timed_out(struct sc_world *world, struct sc_error *error) {
    struct sc_gather *gather = &world->epoch->gather;
    int first = -1, missing = 0;

    sc_lock_take(&gather->lock, SC_DEADLINE_NEVER, NULL);
    for (int rank = 0; rank < world->size; rank++) {
        if (gather->arrived[rank]) continue;
        if (first < 0) first = rank;
        missing++;
    }
    gather->failed = 1;
    sc_lock_give(&gather->lock);
    return sc_error_set(error, SPARK_COMM_OP_TIMEOUT, first, 0,
                        missing == 1 ? "rank %d has not entered it"
                                     : "rank %d and %d others have not entered it",
                        first, missing - 1);
}

/* ---- One round ---- */

static spark_comm_status distribute(struct sc_world *world, const struct sc_wire_header *first,
                                    const uint8_t *table, int64_t deadline,
                                    struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    size_t total = (size_t)world->size * first->bytes;
    size_t offset = 0;

    do {
        size_t piece = total - offset < SC_WIRE_MAX_PAYLOAD ? total - offset : SC_WIRE_MAX_PAYLOAD;
        struct sc_wire_header header = sc_header(world, SC_WIRE_GATHERED, piece);
        header.offset = offset;
        for (int rank = SC_HUB + 1; rank < world->size; rank++) {
            spark_comm_status st =
                sc_link_send(world, &epoch->peers[rank].link, &header, table + offset, deadline);
            /* A closed link is the monitor's to judge. */
            if (st == SPARK_COMM_ABORTED) return sc_verdict_end(world, error);
            if (st == SPARK_COMM_OK || st == SPARK_COMM_PEER_LOST) continue;
            /* Others may have the result already: this is no case of "nothing happened". */
            return sc_error_set(error, sc_status_is_fatal((int)st) ? st : SPARK_COMM_ABORTED, rank,
                                0, "the result cannot be sent to rank %d: %s", rank,
                                sc_status_text((int)st));
        }
        offset += piece;
    } while (offset < total);
    return SPARK_COMM_OK;
}

static bool never(void *arg) {
    (void)arg;
    return false;
}

/* The monitor has found a fault in this round and is about to raise it. */
static spark_comm_status found_at_fault(struct sc_world *world, struct sc_error *error) {
    sc_wait_until(&world->epoch->inner[SPARK_COMM_LANE_DATA], never, NULL,
                  sc_deadline_after(FAULT_PATIENCE_MS));
    return sc_verdict_end(world, error);
}

static spark_comm_status run_hub(struct sc_world *world, const struct sc_wire_header *own,
                                 const void *send, void *recv, int64_t deadline,
                                 struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_gather *gather = &epoch->gather;
    struct round round = {world, atomic_load_explicit(&gather->rounds, memory_order_relaxed) + 1};
    spark_comm_status st = file(world, own, send, error);

    if (st == SPARK_COMM_ABORTED && error->status == SPARK_COMM_OK)
        return found_at_fault(world, error);
    if (st != SPARK_COMM_OK) return st;
    st = sc_wait_until(&epoch->inner[SPARK_COMM_LANE_DATA], is_full, &round, deadline);
    if (st == SPARK_COMM_OP_TIMEOUT) return timed_out(world, error);
    if (st != SPARK_COMM_OK) return sc_verdict_end(world, error);
    if (atomic_load_explicit(&gather->count, memory_order_acquire) != (uint32_t)world->size)
        return rank_closed(world, round.number, error);
    sc_lock_take(&gather->lock, SC_DEADLINE_NEVER, NULL);
    memcpy(recv, gather->table, (size_t)world->size * own->bytes);
    memset(gather->arrived, 0, (size_t)world->size);
    atomic_store_explicit(&gather->count, 0, memory_order_relaxed);
    sc_lock_give(&gather->lock);
    return distribute(world, own, recv, deadline, error);
}

static void expect_result(struct sc_gather *gather, void *recv, size_t bytes) {
    sc_lock_take(&gather->lock, SC_DEADLINE_NEVER, NULL);
    gather->result = recv;
    gather->result_bytes = bytes;
    gather->result_got = 0;
    atomic_store_explicit(&gather->done, 0, memory_order_relaxed);
    sc_lock_give(&gather->lock);
}

static spark_comm_status run_worker(struct sc_world *world, const struct sc_wire_header *own,
                                    const void *send, void *recv, int64_t deadline,
                                    struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_gather *gather = &epoch->gather;
    struct round round = {world, atomic_load_explicit(&gather->rounds, memory_order_relaxed) + 1};

    expect_result(gather, recv, (size_t)world->size * own->bytes);
    spark_comm_status st = sc_link_send(world, &epoch->peers[SC_HUB].link, own, send, deadline);
    if (st == SPARK_COMM_OK || st == SPARK_COMM_PEER_LOST)
        st = sc_wait_until(&epoch->inner[SPARK_COMM_LANE_DATA], is_done, &round, deadline);
    bool is_complete = atomic_load_explicit(&gather->done, memory_order_acquire) != 0;
    expect_result(gather, NULL, 0);
    if (st == SPARK_COMM_OK && !is_complete) return rank_closed(world, round.number, error);
    if (st == SPARK_COMM_OP_TIMEOUT)
        return sc_error_set(error, st, -1, 0, "not all ranks have entered it");
    if (st == SPARK_COMM_ABORTED) return sc_verdict_end(world, error);
    /* The others wait for this part, and the round's number is used up. */
    if (st != SPARK_COMM_OK)
        return sc_error_set(error, sc_status_is_fatal((int)st) ? st : SPARK_COMM_ABORTED, -1, 0,
                            "its part cannot be sent: %s", sc_status_text((int)st));
    return SPARK_COMM_OK;
}

void sc_gather_take_result(struct sc_world *world, const struct sc_wire_header *header,
                           const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_gather *gather = &epoch->gather;
    bool is_done_now = false;

    sc_lock_take(&gather->lock, SC_DEADLINE_NEVER, NULL);
    /* Pieces come in order; one that does not fit here belongs to a call that was given up. */
    if (gather->result != NULL && header->offset == gather->result_got &&
        header->bytes <= gather->result_bytes - gather->result_got) {
        if (header->bytes > 0) memcpy(gather->result + header->offset, payload, header->bytes);
        gather->result_got += header->bytes;
        is_done_now = gather->result_got == gather->result_bytes;
        if (is_done_now) atomic_store_explicit(&gather->done, 1, memory_order_release);
    }
    sc_lock_give(&gather->lock);
    if (is_done_now)
        sc_wait_ring(&epoch->inner[SPARK_COMM_LANE_DATA],
                     &epoch->inner_bells[SPARK_COMM_LANE_DATA]);
}

spark_comm_status sc_gather_run(struct sc_world *world, uint16_t flavour, uint64_t number,
                                uint32_t digest, const void *send, void *recv, size_t bytes,
                                int64_t deadline, struct sc_error *error) {
    if (bytes > SPARK_COMM_MAX_EXCHANGE_BYTES)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "%zu bytes per rank are more than %d", bytes,
                            SPARK_COMM_MAX_EXCHANGE_BYTES);
    if (world->size == 1) {
        if (bytes > 0) memmove(recv, send, bytes);
        return SPARK_COMM_OK;
    }
    struct sc_wire_header own = sc_header(world, SC_WIRE_GATHER, bytes);
    own.flavour = flavour;
    own.number = number;
    own.digest = digest;
    own.descriptor = own_descriptor(world);
    spark_comm_status st = sc_is_hub(world) ? run_hub(world, &own, send, recv, deadline, error)
                                            : run_worker(world, &own, send, recv, deadline, error);
    if (st == SPARK_COMM_OK)
        atomic_fetch_add_explicit(&world->epoch->gather.rounds, 1, memory_order_relaxed);
    return st;
}

spark_comm_status sc_world_all_gather(struct sc_world *world, uint64_t number, uint32_t digest,
                                      const void *send, void *recv, size_t bytes, int64_t deadline,
                                      struct sc_error *error) {
    return sc_gather_run(world, SC_GATHER_LANE, number, digest, send, recv, bytes, deadline, error);
}
