/*
 * The operations that perf knows: one row of a table each, with its call, its input and its right
 * result. Sizes are bytes as the call takes them.
 */
#include "cli.h"
#include "perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- calls ------------------------------------------------------------------------------------ */

static spark_comm_op describe(const struct sc_perf_call *call, int kind, int peer) {
    return (spark_comm_op){
        .struct_size = sizeof(spark_comm_op),
        .kind = kind,
        .dtype = call->options->dtype,
        .redop = call->options->redop,
        .peer = peer,
        .send = call->send_address,
        .recv = call->recv_address,
        .bytes = call->bytes,
    };
}

static spark_comm_status submit(const struct sc_perf_call *call, int kind, int peer) {
    spark_comm_op op = describe(call, kind, peer);
    return spark_comm_submit(call->comm, &op);
}

static spark_comm_status collective(const struct sc_perf_call *call) {
    return submit(call, call->op->operation, 0);
}

static spark_comm_status barrier(const struct sc_perf_call *call) {
    return spark_comm_barrier(call->comm);
}

static spark_comm_status broadcast_barrier(const struct sc_perf_call *call) {
    spark_comm_status st = submit(call, SPARK_COMM_OP_BROADCAST, 0);
    return st ? st : spark_comm_barrier(call->comm);
}

/* Two ranks play ping-pong: rank 0 serves. */
static spark_comm_status ping_pong(const struct sc_perf_call *call) {
    int peer = 1 - call->rank;
    int first = call->rank == 0 ? SPARK_COMM_OP_SEND_TO : SPARK_COMM_OP_RECV_FROM;
    int second = call->rank == 0 ? SPARK_COMM_OP_RECV_FROM : SPARK_COMM_OP_SEND_TO;
    spark_comm_status st = submit(call, first, peer);
    return st ? st : submit(call, second, peer);
}

static int next_rank(const struct sc_perf_call *call) {
    return (call->rank + 1) % call->world;
}

static int previous_rank(const struct sc_perf_call *call) {
    return (call->rank + call->world - 1) % call->world;
}

/* More ranks (or one) shift around the ring: each sends to the next and receives from the one
 * before. group_end closes the group even when a post was refused. */
static spark_comm_status send_recv(const struct sc_perf_call *call) {
    if (call->world == 2) return ping_pong(call);
    spark_comm_status st = spark_comm_group_start(call->comm);
    if (st) return st;
    st = submit(call, SPARK_COMM_OP_SEND_TO, next_rank(call));
    if (!st) st = submit(call, SPARK_COMM_OP_RECV_FROM, previous_rank(call));
    spark_comm_status end = spark_comm_group_end(call->comm);
    return st ? st : end;
}

static spark_comm_status command(const struct sc_perf_call *call) {
    size_t words = call->bytes / sizeof(uint32_t), got = 0;
    if (call->rank == 0) {
        return spark_comm_send_command(call->comm, (const uint32_t *)(void *)call->send, words);
    }
    return spark_comm_recv_command(call->comm, (uint32_t *)(void *)call->recv, words, &got);
}

/* --- inputs and right results ------------------------------------------------------------------ */

static struct sc_perf_values values_of(const struct sc_perf_call *call) {
    return (struct sc_perf_values){call->options->dtype, call->options->redop, call->world,
                                   call->seed};
}

static size_t element_size(const struct sc_perf_call *call) {
    return call->op->unit ? call->op->unit : sc_perf_values_size(call->options->dtype);
}

/* A result buffer starts with something that is not the result, so that an operation which does
 * nothing is noticed. */
static void spoil(const struct sc_perf_call *call) {
    if (call->recv == call->send) return;
    memset(call->recv, 0xa5, sc_perf_ops_recv_bytes(call->op, call->world, call->bytes));
}

static void fill_reduction(const struct sc_perf_call *call) {
    struct sc_perf_values values = values_of(call);
    size_t bytes = sc_perf_ops_send_bytes(call->op, call->world, call->bytes);
    spoil(call);
    sc_perf_values_fill(&values, call->rank, 0, bytes / element_size(call), call->send);
}

static uint64_t wrong_all_reduce(const struct sc_perf_call *call) {
    struct sc_perf_values values = values_of(call);
    return sc_perf_values_wrong(&values, 0, call->bytes / element_size(call), call->recv);
}

static uint64_t wrong_reduce_scatter(const struct sc_perf_call *call) {
    struct sc_perf_values values = values_of(call);
    size_t count = call->bytes / element_size(call);
    return sc_perf_values_wrong(&values, (size_t)call->rank * count, count, call->recv);
}

static void fill_own(const struct sc_perf_call *call) {
    spoil(call);
    sc_perf_values_fill_bits(call->seed, call->rank, call->bytes, call->send);
}

static uint64_t wrong_from(const struct sc_perf_call *call, int owner, const unsigned char *got) {
    return sc_perf_values_wrong_bits(call->seed, owner, call->bytes, element_size(call), got);
}

static uint64_t wrong_all_gather(const struct sc_perf_call *call) {
    uint64_t wrong = 0;
    for (int owner = 0; owner < call->world; owner++) {
        wrong += wrong_from(call, owner, call->recv + (size_t)owner * call->bytes);
    }
    return wrong;
}

static uint64_t wrong_broadcast(const struct sc_perf_call *call) {
    return wrong_from(call, 0, call->recv);
}

static uint64_t wrong_send_recv(const struct sc_perf_call *call) {
    return wrong_from(call, previous_rank(call), call->recv);
}

static uint64_t wrong_command(const struct sc_perf_call *call) {
    return call->rank == 0 ? 0 : wrong_from(call, 0, call->recv);
}

static void fill_nothing(const struct sc_perf_call *call) {
    (void)call;
}

/*
 * A barrier moves no data, so its verification is about time: no rank may leave before the last one
 * has entered. Ranks enter skewed, in an order that the seed chooses. Only ranks of one machine
 * share the clock; the session hands out a seed of 0 when there are several.
 */
static uint64_t wrong_barrier(const struct sc_perf_call *call) {
    struct timespec skew = {0, (long)((call->seed >> (call->rank % 8 * 8)) % 8) * 50000};
    int64_t own[2], latest = 0;
    int64_t(*all)[2] = calloc((size_t)call->world, sizeof *all);
    uint64_t wrong = 0;
    if (call->seed) nanosleep(&skew, NULL);
    own[0] = sc_cli_now_ns();
    spark_comm_status st = spark_comm_barrier(call->comm);
    own[1] = sc_cli_now_ns();
    if (st || !all || sc_perf_measure_gather(call, own, all, sizeof own)) {
        wrong = 1;
        goto out;
    }
    for (int rank = 0; rank < call->world; rank++) {
        if (all[rank][0] > latest) latest = all[rank][0];
    }
    wrong = call->seed && own[1] < latest;
out:
    free(all);
    return wrong;
}

/* --- the table --------------------------------------------------------------------------------- */

const struct sc_perf_op sc_perf_ops[SC_PERF_OP_COUNT] = {
    {.name = "all_reduce",
     .operation = SPARK_COMM_OP_ALL_REDUCE,
     .in_all = true,
     .reduces = true,
     .sized = true,
     .in_place = true,
     .call = collective,
     .fill = fill_reduction,
     .wrong = wrong_all_reduce},
    {.name = "all_gather",
     .operation = SPARK_COMM_OP_ALL_GATHER,
     .in_all = true,
     .sized = true,
     .recv_is_total = true,
     .call = collective,
     .fill = fill_own,
     .wrong = wrong_all_gather},
    {.name = "reduce_scatter",
     .operation = SPARK_COMM_OP_REDUCE_SCATTER,
     .in_all = true,
     .reduces = true,
     .sized = true,
     .send_is_total = true,
     .call = collective,
     .fill = fill_reduction,
     .wrong = wrong_reduce_scatter},
    {.name = "broadcast",
     .operation = SPARK_COMM_OP_BROADCAST,
     .in_all = true,
     .sized = true,
     .in_place = true,
     .call = collective,
     .fill = fill_own,
     .wrong = wrong_broadcast},
    {.name = "barrier",
     .operation = SPARK_COMM_OP_BARRIER,
     .in_all = true,
     .in_place = true,
     .call = barrier,
     .fill = fill_nothing,
     .wrong = wrong_barrier},
    {.name = "send_recv",
     .operation = SPARK_COMM_OP_SEND_TO,
     .in_all = true,
     .sized = true,
     .call = send_recv,
     .fill = fill_own,
     .wrong = wrong_send_recv},
    {.name = "command",
     .operation = SPARK_COMM_OP_SEND_COMMAND,
     .in_all = true,
     .sized = true,
     .max_bytes = SPARK_COMM_MAX_COMMAND_WORDS * sizeof(uint32_t),
     .unit = sizeof(uint32_t),
     .in_place = true,
     .call = command,
     .fill = fill_own,
     .wrong = wrong_command},
    {.name = "broadcast_barrier",
     .operation = SPARK_COMM_OP_BROADCAST,
     .sized = true,
     .in_place = true,
     .call = broadcast_barrier,
     .fill = fill_own,
     .wrong = wrong_broadcast},
};

size_t sc_perf_ops_send_bytes(const struct sc_perf_op *op, int world, size_t bytes) {
    return op->send_is_total ? (size_t)world * bytes : bytes;
}

size_t sc_perf_ops_recv_bytes(const struct sc_perf_op *op, int world, size_t bytes) {
    if (op->in_place || world == 1) return 0;
    return op->recv_is_total ? (size_t)world * bytes : bytes;
}

size_t sc_perf_ops_source_bytes(const struct sc_perf_call *call) {
    bool rooted = call->op->in_place && !call->op->reduces;
    if (!call->op->sized || (rooted && call->rank != 0)) return 0;
    return sc_perf_ops_send_bytes(call->op, call->world, call->bytes);
}

double sc_perf_ops_time_share(const struct sc_perf_op *op, int world) {
    return op->operation == SPARK_COMM_OP_SEND_TO && world == 2 ? 0.5 : 1.0;
}

double sc_perf_ops_total_bytes(const struct sc_perf_op *op, int world, size_t bytes) {
    return op->send_is_total || op->recv_is_total ? (double)world * (double)bytes : (double)bytes;
}

double sc_perf_ops_bus_factor(const struct sc_perf_op *op, int world) {
    double share = (double)(world - 1) / world;
    if (op->operation == SPARK_COMM_OP_ALL_REDUCE) return 2 * share;
    if (op->send_is_total || op->recv_is_total) return share;
    return 1.0;
}
