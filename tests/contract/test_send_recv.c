/* send_to and recv_from, alone and in groups: sizes that differ by direction, empty messages,
 * order, messages to oneself. */
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "ops.h"

/* A ring in which each rank sends and receives at once, at every distance (0: to itself). */
static void ring_matrix(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t used = ops_counts(1, ops_max_bytes(rank), counts);
    for (size_t i = 0; i < used; i++) {
        struct ops_call call = {.kind = SPARK_COMM_OP_SEND_TO, .count = counts[i]};
        for (int distance = 0; distance < rank->size; distance++) {
            const uint64_t index = i * 8 + (unsigned)distance;
            if (distance != 1 && !harness_wants(rank, index)) continue;
            ops_shuffle(&call, reference_mix(index, 4, 5));
            call.root = distance;
            harness_jitter(rank, 200);
            if (!ops_run(rank, &call)) return;
        }
    }
}

/* One message from `from` to `to`, outside any group. Returns false when a call failed. */
static bool one_message(struct harness_rank *rank, int from, int to, size_t bytes, bool general) {
    struct guard_buffer buffer;
    unsigned char *want = malloc(bytes + 1);
    bool good = true;
    rank->calls++;
    harness_step(rank, "%zu bytes from %d to %d", bytes, from, to);
    if (!CHECK_TRUE(rank, want != NULL && guard_arena_reserve(&rank->recv, bytes), "no memory"))
        goto out;
    const uint64_t random = reference_mix(rank->seed, rank->calls, 9);
    guard_place(&rank->recv, bytes, (unsigned)random % 64, random >> 8 & 1, &buffer);
    reference_fill_bytes(random, want, bytes);
    if (rank->rank == from)
        memcpy(buffer.data, want, bytes);
    else
        reference_fill_bytes(~random, buffer.data, bytes);
    const spark_comm_op op = {.struct_size = sizeof op,
                              .kind = rank->rank == from ? SPARK_COMM_OP_SEND_TO
                                                         : SPARK_COMM_OP_RECV_FROM,
                              .peer = rank->rank == from ? to : from,
                              .send = guard_address(&buffer),
                              .recv = guard_address(&buffer),
                              .bytes = bytes};
    if (rank->rank != from && rank->rank != to) goto out;
    if (general)
        good = CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    else if (rank->rank == from)
        good = CHECK_OK(rank, spark_comm_send_to(rank->comm, op.send, bytes, to, 0));
    else
        good = CHECK_OK(rank, spark_comm_recv_from(rank->comm, op.recv, bytes, from, 0));
    if (good)
        CHECK_TRUE(rank, memcmp(buffer.data, want, bytes) == 0, "%zu bytes from %d to %d differ",
                   bytes, from, to);
    CHECK_TRUE(rank, guard_broken(&buffer, (char[80]){0}, 80) == NULL,
               "a byte beside the buffer was written");
    if (good) memset(buffer.data, 0xee, bytes);
out:
    free(want);
    return good;
}

/* One way only: between every two ranks, each size; the others take no part. */
static void one_way(struct harness_rank *rank) {
    size_t counts[OPS_MAX_COUNTS];
    const size_t used = ops_counts(1, ops_max_bytes(rank), counts);
    for (size_t i = 0; i < used; i++) {
        for (int from = 0; from < rank->size; from++) {
            const int to = (from + 1 + (int)(i % (unsigned)(rank->size - 1))) % rank->size;
            if (!harness_wants(rank, i * 8 + (unsigned)from) && i % 7 != 0) continue;
            if (!one_message(rank, from, to, counts[i], i % 2)) return;
        }
    }
}

/* Many messages of one direction in one group and after each other come in the order in which they
 * were posted. */
static void order(struct harness_rank *rank) {
    enum { PER_GROUP = 16 };
    uint32_t words[PER_GROUP] = {0};
    const int other = 1 - rank->rank;
    for (uint32_t round = 0; round < 40; round++) {
        const bool sends = (round / 2 % 2 == 0) == (rank->rank == 0);
        const bool grouped = round % 2;
        harness_step(rank, "order, round %u", round);
        for (uint32_t i = 0; i < PER_GROUP; i++)
            words[i] = sends ? round * 1000 + i : 0;
        if (grouped && !CHECK_OK(rank, spark_comm_group_start(rank->comm))) return;
        for (uint32_t i = 0; i < PER_GROUP; i++) {
            const uint64_t address = harness_address(&words[i]);
            if (sends && !CHECK_OK(rank, spark_comm_send_to(rank->comm, address, 4, other, 0)))
                return;
            if (!sends && !CHECK_OK(rank, spark_comm_recv_from(rank->comm, address, 4, other, 0)))
                return;
        }
        if (grouped && !CHECK_OK(rank, spark_comm_group_end(rank->comm))) return;
        for (uint32_t i = 0; i < PER_GROUP; i++)
            CHECK_INT(rank, round * 1000 + i, words[i]);
    }
}

/* What `from` sends to `to` in all_to_all: a size of its own for each pair, some of them
 * nothing. */
static size_t pair_bytes(const struct harness_rank *rank, int round, int from, int to) {
    const uint64_t random = reference_mix(rank->seed, (uint64_t)round, (uint64_t)(from * 16 + to));
    if (random % 5 == 0) return 0;
    return random % 3 == 0 ? (size_t)(random >> 8) % 150000 : (size_t)(random >> 8) % 3000;
}

static uint64_t pair_seed(const struct harness_rank *rank, int round, int from, int to) {
    return reference_mix(rank->seed ^ 0x5a5a, (uint64_t)round, (uint64_t)(from * 16 + to));
}

#define ALL_TO_ALL_BYTES 150000

static bool all_to_all_round(struct harness_rank *rank, int round, unsigned char *send,
                             unsigned char *recv, unsigned char *want) {
    const int own = rank->rank;
    harness_step(rank, "all to all, round %d", round);
    if (!CHECK_OK(rank, spark_comm_group_start(rank->comm))) return false;
    for (int i = 0; i < rank->size; i++) {
        const int peer = (own + i + round) % rank->size; /* every rank in another order */
        unsigned char *out = send + (size_t)peer * ALL_TO_ALL_BYTES;
        unsigned char *in = recv + (size_t)peer * ALL_TO_ALL_BYTES;
        const size_t bytes = pair_bytes(rank, round, own, peer);
        reference_fill_bytes(pair_seed(rank, round, own, peer), out, bytes);
        memset(in, 0x11, ALL_TO_ALL_BYTES);
        if (!CHECK_OK(rank, spark_comm_send_to(rank->comm, harness_address(out), bytes, peer, 0)))
            return false;
        if (!CHECK_OK(rank, spark_comm_recv_from(rank->comm, harness_address(in),
                                                 pair_bytes(rank, round, peer, own), peer, 0)))
            return false;
    }
    if (!CHECK_OK(rank, spark_comm_group_end(rank->comm))) return false;
    for (int peer = 0; peer < rank->size; peer++) {
        const size_t bytes = pair_bytes(rank, round, peer, own);
        const unsigned char *in = recv + (size_t)peer * ALL_TO_ALL_BYTES;
        reference_fill_bytes(pair_seed(rank, round, peer, own), want, bytes);
        CHECK_TRUE(rank, memcmp(in, want, bytes) == 0, "round %d: %zu bytes from %d differ", round,
                   bytes, peer);
        CHECK_TRUE(rank, bytes == ALL_TO_ALL_BYTES || in[bytes] == 0x11,
                   "round %d: more than %zu bytes came from %d", round, bytes, peer);
    }
    return true;
}

/* Every rank with every rank, itself included, in one group: nobody may wait for another's order of
 * posting. */
static void all_to_all(struct harness_rank *rank) {
    const size_t bytes = (size_t)rank->size * ALL_TO_ALL_BYTES;
    unsigned char *memory = malloc(2 * bytes + ALL_TO_ALL_BYTES);
    const int rounds = harness_rounds(rank, 40);
    if (!CHECK_TRUE(rank, memory != NULL, "no memory")) return;
    for (int round = 0; round < rounds; round++) {
        harness_jitter(rank, 500);
        if (!all_to_all_round(rank, round, memory, memory + bytes, memory + 2 * bytes)) break;
    }
    free(memory);
}

/* Both directions of a pair, a megabyte each, with both ranks posting the send first: buffering
 * must not be needed. */
static void big_swap(struct harness_rank *rank) {
    const size_t bytes = harness_level() == 0 ? (size_t)300 << 10 : ((size_t)4 << 20) + 1;
    const int other = 1 - rank->rank;
    unsigned char *memory = malloc(3 * bytes);
    if (!CHECK_TRUE(rank, memory != NULL, "no memory")) return;
    reference_fill_bytes(100u + (unsigned)rank->rank, memory, bytes);
    reference_fill_bytes(100u + (unsigned)other, memory + 2 * bytes, bytes);
    CHECK_OK(rank, spark_comm_group_start(rank->comm));
    CHECK_OK(rank, spark_comm_send_to(rank->comm, harness_address(memory), bytes, other, 0));
    CHECK_OK(rank,
             spark_comm_recv_from(rank->comm, harness_address(memory + bytes), bytes, other, 0));
    if (CHECK_OK(rank, spark_comm_group_end(rank->comm)))
        CHECK_TRUE(rank, memcmp(memory + bytes, memory + 2 * bytes, bytes) == 0,
                   "the swapped bytes differ");
    free(memory);
}

/* A zero-byte message is no message on either side: nobody need receive it, and the next one is not
 * taken for it. */
static void empty_is_nothing(struct harness_rank *rank) {
    uint32_t word = 7;
    const int other = 1 - rank->rank;
    CHECK_OK(rank, spark_comm_group_start(rank->comm));
    CHECK_OK(rank, spark_comm_group_end(rank->comm)); /* so is an empty group */
    if (rank->rank == 0) {
        CHECK_OK(rank, spark_comm_send_to(rank->comm, 0, 0, other, 0));
        CHECK_OK(rank, spark_comm_recv_from(rank->comm, 0, 0, other, 0));
        CHECK_OK(rank,
                 spark_comm_send_to(rank->comm, harness_address(&word), sizeof word, other, 0));
        return;
    }
    word = 0;
    CHECK_OK(rank, spark_comm_recv_from(rank->comm, harness_address(&word), sizeof word, other, 0));
    CHECK_INT(rank, 7, word);
}

/* To oneself without a group nothing could ever be received, so it is refused at once (single takes
 * everything). */
static void self_alone(struct harness_rank *rank) {
    uint32_t word = 7;
    const uint64_t address = harness_address(&word);
    spark_comm *comm = rank->comm;
    if (!rank->world->backend->moves_data) {
        CHECK_OK(rank, spark_comm_send_to(comm, address, 4, 0, 0));
        CHECK_OK(rank, spark_comm_recv_from(comm, address, 4, 0, 0));
        return;
    }
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_send_to(comm, address, 4, rank->rank, 0), "send_to", "group");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_recv_from(comm, address, 4, rank->rank, 0), "recv_from", "group");
    /* Half of a message to oneself is refused when the group ends, and so are halves of two
     * sizes. */
    for (size_t other = 0; other <= 3; other += 3) {
        CHECK_OK(rank, spark_comm_group_start(comm));
        CHECK_OK(rank, spark_comm_send_to(comm, address, 4, rank->rank, 0));
        if (other > 0) CHECK_OK(rank, spark_comm_recv_from(comm, address, other, rank->rank, 0));
        CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_group_end(comm), "rank");
    }
    CHECK_TRUE(rank, spark_comm_is_healthy(comm), "not healthy any more");
}

static const struct contract_test tests[] = {
    {"ring_matrix", {.run = ring_matrix}, 0},
    {"one_way", {.run = one_way}, CONTRACT_SEVERAL},
    {"order", {.run = order}, CONTRACT_PAIR},
    {"all_to_all", {.run = all_to_all}, CONTRACT_NO_SINGLE},
    {"big_swap", {.run = big_swap}, CONTRACT_PAIR},
    {"empty_is_nothing", {.run = empty_is_nothing}, CONTRACT_PAIR},
    {"self_alone", {.run = self_alone}, 0},
};

CONTRACT_MAIN("send_recv", tests)
