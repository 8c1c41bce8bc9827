/* Operations with their answers: see ops.h. Each run_* places buffers, calls, verifies. */
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(int kind) {
    switch (kind) {
    case SPARK_COMM_OP_ALL_REDUCE: return "all_reduce";
    case SPARK_COMM_OP_ALL_GATHER: return "all_gather";
    case SPARK_COMM_OP_REDUCE_SCATTER: return "reduce_scatter";
    case SPARK_COMM_OP_BROADCAST: return "broadcast";
    case SPARK_COMM_OP_BARRIER: return "barrier";
    case SPARK_COMM_OP_SEND_TO: return "ring of messages";
    case SPARK_COMM_OP_SEND_COMMAND: return "command";
    case SPARK_COMM_OP_EXCHANGE_HOST: return "exchange_host";
    default: return "unknown";
    }
}

const char *ops_describe(const struct ops_call *call, char *text, size_t size) {
    const bool reduces =
        call->kind == SPARK_COMM_OP_ALL_REDUCE || call->kind == SPARK_COMM_OP_REDUCE_SCATTER;
    snprintf(text, size, "%s%s%s%s%s of %zu, root %d, %s, %s, send +%u%s, recv +%u%s",
             kind_name(call->kind), reduces ? " " : "",
             reduces ? reference_dtype_name(call->dtype) : "", reduces ? " " : "",
             reduces ? reference_redop_name(call->redop) : "", call->count, call->root,
             call->in_place ? "in place" : "not in place", call->named ? "named" : "submit",
             call->send_misalign, call->send_at_end ? " at end" : "", call->recv_misalign,
             call->recv_at_end ? " at end" : "");
    return text;
}

void ops_shuffle(struct ops_call *call, uint64_t random) {
    call->in_place = random & 1;
    call->named = random >> 1 & 1;
    call->send_at_end = random >> 2 & 1;
    call->recv_at_end = random >> 3 & 1;
    call->send_misalign = random >> 4 & 1 ? (unsigned)(random >> 8) % 63 + 1 : 0;
    call->recv_misalign = random >> 5 & 1 ? (unsigned)(random >> 20) % 63 + 1 : 0;
}

/* The seed of what `rank` contributes to the present call. */
static uint64_t input_seed(const struct harness_rank *rank, int from) {
    return reference_mix(rank->seed, rank->calls, (uint64_t)from);
}

/* Room for the inputs of all ranks and for the answer. */
static bool reserve(struct harness_rank *rank, size_t send_bytes, size_t recv_bytes,
                    size_t input_bytes) {
    bool good = guard_arena_reserve(&rank->send, send_bytes) &&
                guard_arena_reserve(&rank->recv, recv_bytes);
    if (good && (rank->inputs == NULL || rank->input_bytes < input_bytes)) {
        free(rank->inputs);
        rank->inputs = malloc(input_bytes + 1); /* never NULL, which memcpy does not take */
        rank->input_bytes = rank->inputs != NULL ? input_bytes : 0;
        good = rank->inputs != NULL;
    }
    return CHECK_TRUE(rank, good, "the test has no memory");
}

static bool check_guards(struct harness_rank *rank, const struct guard_buffer *buffer,
                         const char *which) {
    char text[80];
    const char *broken = guard_broken(buffer, text, sizeof text);
    return CHECK_TRUE(rank, broken == NULL, "%s buffer: a byte was written %s", which, broken);
}

static bool check_bytes(struct harness_rank *rank, const char *what, const unsigned char *got,
                        const unsigned char *want, size_t bytes) {
    size_t i = 0;
    if (memcmp(got, want, bytes) == 0) return true;
    while (got[i] == want[i])
        i++;
    harness_fail(rank, __FILE__, __LINE__, "%s, byte %zu of %zu: expected 0x%02x, got 0x%02x", what,
                 i, bytes, want[i], got[i]);
    return false;
}

/* NCCL's own sums on several real GPUs are in no promised order and precision, and what it makes of NaN,
 * infinity and averages of integers is its own; tests/gpu/check asks for this comparison there. */
static bool is_loose(const struct harness_rank *rank) {
    return rank->world->backend->on_device && rank->size > 1 &&
           getenv("SPARK_COMM_TEST_LOOSE") != NULL;
}

static double precision(int dtype) {
    if (dtype == SPARK_COMM_BF16) return 0x1p-8;
    if (dtype == SPARK_COMM_F16) return 0x1p-11;
    return dtype == SPARK_COMM_F32 ? 0x1p-24 : 0x1p-53;
}

static double smallest(int dtype) {
    if (dtype == SPARK_COMM_F16) return 0x1p-24;
    return dtype == SPARK_COMM_F64 ? 0x1p-1000 : 0x1p-126;
}

/* Is element i near enough? `sources` is what went into it. */
static bool is_near(const struct ops_call *call, const unsigned char *got,
                    const unsigned char *want, const void *const *sources, int n, size_t i) {
    const size_t size = reference_size(call->dtype);
    const bool is_float = call->dtype <= SPARK_COMM_F64;
    double total = 0;
    if (!is_float)
        return call->redop == SPARK_COMM_AVG || memcmp(got + i * size, want + i * size, size) == 0;
    for (int r = 0; r < n; r++)
        total += fabs(reference_decode(call->dtype, (const unsigned char *)sources[r] + i * size));
    const double w = reference_decode(call->dtype, want + i * size);
    const double g = reference_decode(call->dtype, got + i * size);
    if (!isfinite(total) || !isfinite(w) || !isfinite(g)) return true;
    if (call->redop == SPARK_COMM_MAX || call->redop == SPARK_COMM_MIN) return g == w;
    return fabs(g - w) <= (n + 1) * (total * precision(call->dtype) + smallest(call->dtype));
}

static bool check_elements(struct harness_rank *rank, const struct ops_call *call,
                           const unsigned char *got, const unsigned char *want,
                           const void *const *sources) {
    char expected[64], actual[64];
    const size_t size = reference_size(call->dtype);
    size_t i = 0;
    if (is_loose(rank))
        while (i < call->count && is_near(call, got, want, sources, rank->size, i))
            i++;
    else
        i = reference_compare(call->dtype, call->redop, got, want, call->count);
    if (i == call->count) return true;
    harness_fail(rank, __FILE__, __LINE__, "element %zu of %zu: expected %s, got %s", i,
                 call->count,
                 reference_text(call->dtype, want + i * size, expected, sizeof expected),
                 reference_text(call->dtype, got + i * size, actual, sizeof actual));
    return false;
}

static spark_comm_status submit(struct harness_rank *rank, const struct ops_call *call, int peer,
                                uint64_t send, uint64_t recv, size_t bytes) {
    const spark_comm_op op = {.struct_size = sizeof op,
                              .kind = call->kind,
                              .dtype = call->dtype,
                              .redop = call->redop,
                              .peer = peer,
                              .send = send,
                              .recv = recv,
                              .bytes = bytes};
    return spark_comm_submit(rank->comm, &op);
}

/* Whether the function of the same name does what the call says: it sums, in options.dtype. */
static bool can_be_named(const struct harness_rank *rank, const struct ops_call *call) {
    return call->named && call->redop == SPARK_COMM_SUM && call->dtype == rank->dtype;
}

static bool run_all_reduce(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count * reference_size(call->dtype);
    const void *sources[HARNESS_MAX_RANKS];
    struct guard_buffer send, recv;
    spark_comm_status st;
    if (!reserve(rank, bytes, bytes, bytes * ((size_t)rank->size + 1))) return false;
    unsigned char *want = rank->inputs + bytes * (size_t)rank->size;
    unsigned char *own = rank->inputs + bytes * (size_t)rank->rank;
    for (int r = 0; r < rank->size; r++) {
        sources[r] = rank->inputs + bytes * (size_t)r;
        reference_fill(call->dtype, input_seed(rank, r), rank->inputs + bytes * (size_t)r,
                       call->count);
    }
    guard_place(&rank->send, bytes, call->send_misalign, call->send_at_end, &send);
    guard_place(&rank->recv, bytes, call->recv_misalign, call->recv_at_end, &recv);
    memcpy(send.data, own, bytes);
    if (call->in_place)
        memcpy(recv.data, own, bytes);
    else
        reference_fill_bytes(rank->calls, recv.data, bytes);
    if (rank->world->backend->moves_data)
        reference_reduce(call->dtype, call->redop, sources, rank->size, want, call->count);
    else
        memcpy(want, recv.data, bytes);

    if (call->in_place && can_be_named(rank, call)) {
        if (rank->calls % 2)
            st = spark_comm_all_reduce(rank->comm, guard_address(&recv), bytes);
        else
            st = spark_comm_all_reduce_async(rank->comm, guard_address(&recv), bytes, 0);
    } else {
        st = submit(rank, call, 0, guard_address(call->in_place ? &recv : &send),
                    guard_address(&recv), bytes);
    }
    if (!CHECK_OK(rank, st)) return false;
    check_elements(rank, call, recv.data, want, sources);
    check_bytes(rank, "the input was changed", send.data, own, bytes);
    check_guards(rank, &recv, "result");
    check_guards(rank, &send, "input");
    harness_same(rank, reference_hash(recv.data, bytes));
    return true;
}

static bool run_reduce_scatter(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count * reference_size(call->dtype);
    const size_t all = bytes * (size_t)rank->size;
    const void *sources[HARNESS_MAX_RANKS];
    struct guard_buffer send, recv;
    if (!reserve(rank, all, bytes, all * (size_t)rank->size + bytes)) return false;
    unsigned char *want = rank->inputs + all * (size_t)rank->size;
    unsigned char *own = rank->inputs + all * (size_t)rank->rank;
    for (int r = 0; r < rank->size; r++) {
        unsigned char *input = rank->inputs + all * (size_t)r;
        reference_fill(call->dtype, input_seed(rank, r), input, call->count * (size_t)rank->size);
        sources[r] = input + bytes * (size_t)rank->rank;
    }
    guard_place(&rank->send, all, call->send_misalign, call->send_at_end, &send);
    guard_place(&rank->recv, bytes, call->recv_misalign, call->recv_at_end, &recv);
    memcpy(send.data, own, all);
    reference_fill_bytes(rank->calls, recv.data, bytes);
    unsigned char *result = call->in_place ? send.data + bytes * (size_t)rank->rank : recv.data;
    if (rank->world->backend->moves_data)
        reference_reduce(call->dtype, call->redop, sources, rank->size, want, call->count);
    else
        memcpy(want, result, bytes);

    const spark_comm_status st =
        can_be_named(rank, call)
            ? spark_comm_reduce_scatter(rank->comm, guard_address(&send), harness_address(result),
                                        bytes)
            : submit(rank, call, 0, guard_address(&send), harness_address(result), bytes);
    if (!CHECK_OK(rank, st)) return false;
    check_elements(rank, call, result, want, sources);
    if (!call->in_place) check_bytes(rank, "the input was changed", send.data, own, all);
    check_guards(rank, &recv, "result");
    check_guards(rank, &send, "input");
    return true;
}

static bool run_all_gather(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count;
    const size_t all = bytes * (size_t)rank->size;
    struct guard_buffer send, recv;
    if (!reserve(rank, bytes, all, all)) return false;
    unsigned char *want = rank->inputs;
    guard_place(&rank->send, bytes, call->send_misalign, call->send_at_end, &send);
    guard_place(&rank->recv, all, call->recv_misalign, call->recv_at_end, &recv);
    reference_fill_bytes(input_seed(rank, rank->rank), send.data, bytes);
    reference_fill_bytes(rank->calls, recv.data, all);
    unsigned char *from = call->in_place ? recv.data + bytes * (size_t)rank->rank : send.data;
    if (call->in_place) memcpy(from, send.data, bytes);
    if (rank->world->backend->moves_data) {
        for (int r = 0; r < rank->size; r++)
            reference_fill_bytes(input_seed(rank, r), want + bytes * (size_t)r, bytes);
    } else {
        memcpy(want, recv.data, all);
    }
    const spark_comm_status st =
        call->named
            ? spark_comm_all_gather(rank->comm, harness_address(from), guard_address(&recv), bytes)
            : submit(rank, call, 0, harness_address(from), guard_address(&recv), bytes);
    if (!CHECK_OK(rank, st)) return false;
    check_bytes(rank, "gathered", recv.data, want, all);
    reference_fill_bytes(input_seed(rank, rank->rank), want, bytes);
    check_bytes(rank, "the input was changed", send.data, want, bytes);
    check_guards(rank, &recv, "result");
    check_guards(rank, &send, "input");
    harness_same(rank, reference_hash(recv.data, all));
    return true;
}

/* The general form takes `send` on the root and `recv` elsewhere; the other pointer stays 0. */
static bool run_broadcast(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count;
    const bool is_root = rank->rank == call->root;
    const bool in_place = call->in_place || call->named;
    struct guard_buffer buffer;
    if (!reserve(rank, 0, bytes, bytes)) return false;
    guard_place(&rank->recv, bytes, call->recv_misalign, call->recv_at_end, &buffer);
    reference_fill_bytes(input_seed(rank, rank->rank), buffer.data, bytes);
    memcpy(rank->inputs, buffer.data, bytes);
    if (rank->world->backend->moves_data)
        reference_fill_bytes(input_seed(rank, call->root), rank->inputs, bytes);

    const uint64_t address = guard_address(&buffer);
    const spark_comm_status st =
        call->named ? spark_comm_broadcast(rank->comm, address, bytes, call->root)
                    : submit(rank, call, call->root, is_root || in_place ? address : 0,
                             is_root && !in_place ? 0 : address, bytes);
    if (!CHECK_OK(rank, st)) return false;
    check_bytes(rank, "broadcast", buffer.data, rank->inputs, bytes);
    check_guards(rank, &buffer, "broadcast");
    harness_same(rank, reference_hash(buffer.data, bytes));
    /* The buffer may be used again at once: whoever still reads it for a peer now reads this. */
    memset(buffer.data, 0xee, bytes);
    return true;
}

static bool run_barrier(struct harness_rank *rank, const struct ops_call *call) {
    if (call->named) return CHECK_OK(rank, spark_comm_barrier(rank->comm));
    return CHECK_OK(rank, submit(rank, call, 0, 0, 0, 0));
}

/* What `from` sends to the rank `call->root` further: the two directions differ, and some are no
 * message at all. */
static size_t message_bytes(const struct harness_rank *rank, const struct ops_call *call,
                            int from) {
    const uint64_t random = reference_mix(rank->seed, rank->calls, 1000u + (unsigned)from);
    if (random % 8 == 0) return 0;
    return random % 4 == 0 ? call->count / 2 : call->count;
}

static bool run_ring(struct harness_rank *rank, const struct ops_call *call) {
    const int distance = call->root % rank->size;
    const int to = (rank->rank + distance) % rank->size;
    const int from = (rank->rank - distance + rank->size) % rank->size;
    const size_t send_bytes = message_bytes(rank, call, rank->rank);
    const size_t recv_bytes = message_bytes(rank, call, from);
    struct guard_buffer send, recv;
    if (!reserve(rank, send_bytes, recv_bytes, call->count)) return false;
    guard_place(&rank->send, send_bytes, call->send_misalign, call->send_at_end, &send);
    guard_place(&rank->recv, recv_bytes, call->recv_misalign, call->recv_at_end, &recv);
    reference_fill_bytes(input_seed(rank, rank->rank), send.data, send_bytes);
    reference_fill_bytes(rank->calls + 1, recv.data, recv_bytes);
    memcpy(rank->inputs, recv.data, recv_bytes);
    if (rank->world->backend->moves_data)
        reference_fill_bytes(input_seed(rank, from), rank->inputs, recv_bytes);

    spark_comm *comm = rank->comm;
    if (!CHECK_OK(rank, spark_comm_group_start(comm))) return false;
    /* Either order of posting is right. */
    if (call->named)
        CHECK_OK(rank, spark_comm_recv_from(comm, guard_address(&recv), recv_bytes, from, 0));
    CHECK_OK(rank, spark_comm_send_to(comm, guard_address(&send), send_bytes, to, 0));
    if (!call->named)
        CHECK_OK(rank, spark_comm_recv_from(comm, guard_address(&recv), recv_bytes, from, 0));
    if (!CHECK_OK(rank, spark_comm_group_end(comm))) return false;
    check_bytes(rank, "received", recv.data, rank->inputs, recv_bytes);
    reference_fill_bytes(input_seed(rank, rank->rank), rank->inputs, send_bytes);
    check_bytes(rank, "the input was changed", send.data, rank->inputs, send_bytes);
    check_guards(rank, &recv, "result");
    check_guards(rank, &send, "input");
    memset(send.data, 0xee, send_bytes);
    return true;
}

static bool run_command(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count * sizeof(uint32_t);
    struct guard_buffer words;
    size_t count = SIZE_MAX;
    if (!reserve(rank, bytes, bytes, bytes)) return false;
    guard_place(&rank->recv, bytes, call->recv_misalign & ~3u, call->recv_at_end, &words);
    reference_fill_bytes(input_seed(rank, 0), rank->inputs, bytes);
    uint32_t *data = (uint32_t *)(void *)words.data;
    if (rank->rank == 0) {
        memcpy(data, rank->inputs, bytes);
        if (!CHECK_OK(rank, spark_comm_send_command(rank->comm, data, call->count))) return false;
        check_bytes(rank, "the input was changed", words.data, rank->inputs, bytes);
        memset(data, 0xee, bytes);
    } else {
        reference_fill_bytes(rank->calls, data, bytes);
        if (!CHECK_OK(rank, spark_comm_recv_command(rank->comm, data, call->count, &count)))
            return false;
        CHECK_INT(rank, call->count, count);
        check_bytes(rank, "command", words.data, rank->inputs, bytes);
    }
    check_guards(rank, &words, "command");
    return true;
}

/* The thread sanitizer does not know that an answer from a peer comes after what was sent to it, so
 * to it a result that replaces the sent bytes looks like a race. */
#if defined(__SANITIZE_THREAD__)
#define EXCHANGE_IN_PLACE false
#else
#define EXCHANGE_IN_PLACE true
#endif

static bool run_exchange(struct harness_rank *rank, const struct ops_call *call) {
    const size_t bytes = call->count;
    const size_t all = bytes * (size_t)rank->size;
    struct guard_buffer send, recv;
    if (!reserve(rank, bytes, all, all)) return false;
    guard_place(&rank->send, bytes, call->send_misalign, call->send_at_end, &send);
    guard_place(&rank->recv, all, call->recv_misalign, call->recv_at_end, &recv);
    reference_fill_bytes(rank->calls, recv.data, all);
    for (int r = 0; r < rank->size; r++)
        reference_fill_bytes(input_seed(rank, r), rank->inputs + bytes * (size_t)r, bytes);
    const unsigned char *own = rank->inputs + bytes * (size_t)rank->rank;
    const bool in_place = call->in_place && EXCHANGE_IN_PLACE;
    unsigned char *from = in_place ? recv.data + bytes * (size_t)rank->rank : send.data;
    memcpy(send.data, own, bytes);
    memcpy(from, own, bytes);
    if (!CHECK_OK(rank, spark_comm_exchange_host(rank->comm, from, recv.data, bytes))) return false;
    check_bytes(rank, "exchanged", recv.data, rank->inputs, all);
    check_bytes(rank, "the input was changed", send.data, own, bytes);
    check_guards(rank, &recv, "result");
    check_guards(rank, &send, "input");
    harness_same(rank, reference_hash(recv.data, all));
    return true;
}

bool ops_run(struct harness_rank *rank, const struct ops_call *call) {
    char text[160];
    rank->calls++;
    harness_step(rank, "call %llu: %s", (unsigned long long)rank->calls,
                 ops_describe(call, text, sizeof text));
    switch (call->kind) {
    case SPARK_COMM_OP_ALL_REDUCE: return run_all_reduce(rank, call);
    case SPARK_COMM_OP_ALL_GATHER: return run_all_gather(rank, call);
    case SPARK_COMM_OP_REDUCE_SCATTER: return run_reduce_scatter(rank, call);
    case SPARK_COMM_OP_BROADCAST: return run_broadcast(rank, call);
    case SPARK_COMM_OP_BARRIER: return run_barrier(rank, call);
    case SPARK_COMM_OP_SEND_TO: return run_ring(rank, call);
    case SPARK_COMM_OP_SEND_COMMAND: return run_command(rank, call);
    case SPARK_COMM_OP_EXCHANGE_HOST: return run_exchange(rank, call);
    default: return CHECK_TRUE(rank, false, "the test has no kind %d", call->kind);
    }
}
