/*
 * The backend of one rank alone. A sum over one rank is the buffer itself, so an engine that runs
 * on one device pays a call and nothing else: no memory is touched, and any non-null pointer value
 * will do. No thread, no socket, no state.
 */
#include "backends/single.h"

#include <stdio.h>

static spark_comm_status single_probe(void *user, const spark_comm_options *options, char *why,
                                      size_t why_size) {
    (void)user;
    if (options->world_size <= 1) return SPARK_COMM_OK;
    snprintf(why, why_size, "it serves one rank alone, and the world has %d", options->world_size);
    return SPARK_COMM_UNAVAILABLE;
}

/* There is nothing to hold; any non-null value says "open". */
static spark_comm_status single_open(void *user, const spark_comm_host *host, void **state) {
    static char token;
    (void)user;
    (void)host;
    *state = &token;
    return SPARK_COMM_OK;
}

static void single_close(void *state) {
    (void)state;
}

static spark_comm_status single_operation(void *state, const spark_comm_call *call) {
    (void)state;
    (void)call;
    return SPARK_COMM_OK;
}

static spark_comm_status single_register(void *state, uint64_t ptr, size_t bytes,
                                         uint64_t *handle) {
    (void)state;
    (void)ptr;
    (void)bytes;
    *handle = 0;
    return SPARK_COMM_OK;
}

static spark_comm_status single_deregister(void *state, uint64_t handle) {
    (void)state;
    (void)handle;
    return SPARK_COMM_OK;
}

static spark_comm_status single_set_add_kernel(void *state, uint64_t kernel) {
    (void)state;
    (void)kernel;
    return SPARK_COMM_OK;
}

static spark_comm_status single_reopen(void *state) {
    (void)state;
    return SPARK_COMM_OK;
}

static size_t single_describe(void *state, spark_comm_info_row *rows, size_t capacity) {
    static const int32_t operations[] = {SPARK_COMM_OP_ALL_REDUCE,     SPARK_COMM_OP_ALL_GATHER,
                                         SPARK_COMM_OP_REDUCE_SCATTER, SPARK_COMM_OP_BROADCAST,
                                         SPARK_COMM_OP_BARRIER,        SPARK_COMM_OP_SEND_TO,
                                         SPARK_COMM_OP_RECV_FROM};
    size_t count = sizeof operations / sizeof operations[0];
    (void)state;
    for (size_t i = 0; i < count && i < capacity; i++) {
        bool reduces = operations[i] == SPARK_COMM_OP_ALL_REDUCE ||
                       operations[i] == SPARK_COMM_OP_REDUCE_SCATTER;
        rows[i] = (spark_comm_info_row){
            .operation = operations[i], .canonical = reduces ? 1 : -1, .up_to_bytes = UINT64_MAX};
        snprintf(rows[i].path, sizeof rows[i].path, "none");
    }
    return count;
}

const spark_comm_backend sc_single_backend = {
    .struct_size = sizeof(spark_comm_backend),
    .abi_version = SPARK_COMM_BACKEND_ABI_VERSION,
    .traits =
        SPARK_COMM_TRAIT_STREAM_ORDERED | SPARK_COMM_TRAIT_CAPTURABLE | SPARK_COMM_TRAIT_CANONICAL,
    .name = "single",
    .memory = SPARK_COMM_MEMORY_HOST,
    .probe = single_probe,
    .open = single_open,
    .close = single_close,
    .all_reduce = single_operation,
    .all_gather = single_operation,
    .reduce_scatter = single_operation,
    .broadcast = single_operation,
    .barrier = single_operation,
    .point_to_point = single_operation,
    .register_buffer = single_register,
    .deregister_buffer = single_deregister,
    .set_add_kernel = single_set_add_kernel,
    .reopen = single_reopen,
    .describe = single_describe,
};
