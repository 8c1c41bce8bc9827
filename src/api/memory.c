/*
 * Registered buffers and symmetric memory. The list of registrations is kept here for every
 * backend: the same range counts up, and addresses and sizes are there to be registered again in a
 * new epoch. All of it under the data lane, so that no operation meets a half-made registration.
 */
#include <string.h>

#include "api/lane.h"
#include "api/submit.h"
#include "base/alloc.h"

static struct sc_registration *find_range(struct spark_comm *comm, uint64_t ptr, size_t bytes) {
    for (size_t i = 0; i < comm->registration_count; i++)
        if (comm->registrations[i].ptr == ptr && comm->registrations[i].bytes == bytes)
            return &comm->registrations[i];
    return NULL;
}

static struct sc_registration *find_handle(struct spark_comm *comm, uint64_t handle) {
    for (size_t i = 0; i < comm->registration_count; i++)
        if (comm->registrations[i].handle == handle) return &comm->registrations[i];
    return NULL;
}

static bool make_room(struct spark_comm *comm) {
    if (comm->registration_count < comm->registration_capacity) return true;
    size_t capacity = comm->registration_capacity == 0 ? 16 : 2 * comm->registration_capacity;
    struct sc_registration *list = sc_alloc_array(capacity, sizeof *list);
    if (list == NULL) return false;
    if (comm->registration_count > 0)
        memcpy(list, comm->registrations, comm->registration_count * sizeof *list);
    sc_free(comm->registrations);
    comm->registrations = list;
    comm->registration_capacity = capacity;
    return true;
}

/* What the backend said, as a failure of `operation`. */
static spark_comm_status backend_refused(struct spark_comm *comm, int operation,
                                         spark_comm_status status) {
    struct sc_error error;
    sc_error_clear(&error);
    sc_host_take_explanation(&comm->host, status, &error);
    error.operation = operation;
    error.epoch = sc_world_epoch(comm->world);
    return sc_handle_failed(comm, &error);
}

/* Data lane held. */
static spark_comm_status register_range(struct spark_comm *comm, uint64_t ptr, size_t bytes,
                                        uint64_t *handle) {
    struct sc_registration *known = find_range(comm, ptr, bytes);
    if (known != NULL) {
        known->uses++;
        *handle = known->handle;
        return SPARK_COMM_OK;
    }
    if (!make_room(comm))
        return sc_handle_refuse(comm, SPARK_COMM_NO_MEMORY, SPARK_COMM_OP_REGISTER_BUFFER, -1,
                                "no memory for its record");
    spark_comm_status st = comm->backend.register_buffer(comm->backend_state, ptr, bytes, handle);
    if (st != SPARK_COMM_OK) return backend_refused(comm, SPARK_COMM_OP_REGISTER_BUFFER, st);
    if (*handle == 0) return SPARK_COMM_OK;
    comm->registrations[comm->registration_count++] =
        (struct sc_registration){ptr, bytes, ++comm->last_handle, *handle, 1};
    *handle = comm->last_handle;
    return SPARK_COMM_OK;
}

/* Both lanes held. One that cannot be made again keeps its handle and loses only the speed-up. */
void sc_memory_restore(struct spark_comm *comm) {
    for (size_t i = 0; i < comm->registration_count; i++) {
        struct sc_registration *known = &comm->registrations[i];
        known->inner = 0;
        if (comm->backend.register_buffer(comm->backend_state, known->ptr, known->bytes,
                                          &known->inner) == SPARK_COMM_OK)
            continue;
        known->inner = 0;
        comm->host.explained = false;
    }
}

spark_comm_status spark_comm_register_buffer(spark_comm *comm, uint64_t ptr, size_t bytes,
                                             uint64_t *handle) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_REGISTER_BUFFER;
    if (handle == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "handle is null");
    *handle = 0;
    if (ptr == 0 || bytes == 0 || ptr + bytes < ptr)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "%s",
                                ptr == 0     ? "ptr is null"
                                : bytes == 0 ? "bytes is 0"
                                             : "bytes: the range wraps around");
    st = sc_submit_check_start(comm, kind);
    /* A speed-up that the backend does not have is no failure: the handle stays 0. */
    if (st == SPARK_COMM_OK && comm->backend.register_buffer == NULL) return st;
    if (st == SPARK_COMM_OK)
        st = sc_lane_enter(comm, SPARK_COMM_LANE_DATA, kind, sc_lane_deadline(comm, 0), false);
    if (st != SPARK_COMM_OK) return st;
    st = register_range(comm, ptr, bytes, handle);
    sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    return st;
}

/* Data lane held. */
static spark_comm_status deregister_handle(struct spark_comm *comm, uint64_t handle) {
    int kind = SPARK_COMM_OP_DEREGISTER_BUFFER;
    struct sc_registration *known = find_handle(comm, handle);
    if (known == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1,
                                "handle is %llu, which is not registered",
                                (unsigned long long)handle);
    if (--known->uses > 0) return SPARK_COMM_OK;
    uint64_t inner = known->inner;
    *known = comm->registrations[--comm->registration_count];
    if (comm->backend.deregister_buffer == NULL || inner == 0) return SPARK_COMM_OK;
    spark_comm_status st = comm->backend.deregister_buffer(comm->backend_state, inner);
    return st == SPARK_COMM_OK ? st : backend_refused(comm, kind, st);
}

spark_comm_status spark_comm_deregister_buffer(spark_comm *comm, uint64_t handle) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK || handle == 0) return st;
    int kind = SPARK_COMM_OP_DEREGISTER_BUFFER;
    st = sc_lane_enter(comm, SPARK_COMM_LANE_DATA, kind, sc_lane_deadline(comm, 0), true);
    if (st != SPARK_COMM_OK) return st;
    st = deregister_handle(comm, handle);
    sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    return st;
}

spark_comm_status spark_comm_symmetric_alloc(spark_comm *comm, size_t bytes, uint64_t *ptr) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_SYMMETRIC_ALLOC;
    struct sc_error error;
    if (ptr == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "ptr is null");
    *ptr = 0;
    if (bytes == 0)
        return sc_handle_refuse(comm, SPARK_COMM_INVALID_ARGUMENT, kind, -1, "bytes is 0");
    st = sc_submit_check_start(comm, kind);
    if (st == SPARK_COMM_OK && comm->backend.symmetric_alloc == NULL)
        st = sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
                              "backend %s has no symmetric memory", comm->backend.name);
    bool captured;
    if (st == SPARK_COMM_OK)
        st = sc_submit_check_stream(comm, kind, comm->settings.stream, &captured);
    if (st != SPARK_COMM_OK) return st;
    struct sc_lane_call lane = {
        .comm = comm, .lane = SPARK_COMM_LANE_DATA, .operation = kind, .peer = -1, .bytes = bytes};
    st = sc_lane_begin(&lane);
    if (st != SPARK_COMM_OK) return st;
    st = comm->backend.symmetric_alloc(comm->backend_state, bytes, lane.deadline, ptr);
    if (st != SPARK_COMM_OK) {
        sc_error_clear(&error);
        sc_host_take_explanation(&comm->host, st, &error);
        *ptr = 0;
    }
    return sc_lane_end(&lane, st, &error);
}

spark_comm_status spark_comm_symmetric_free(spark_comm *comm, uint64_t ptr) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_SYMMETRIC_FREE;
    if (ptr == 0) return SPARK_COMM_OK;
    if (comm->backend.symmetric_free == NULL)
        return sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
                                "backend %s has no symmetric memory", comm->backend.name);
    st = sc_lane_enter(comm, SPARK_COMM_LANE_DATA, kind, sc_lane_deadline(comm, 0), true);
    if (st != SPARK_COMM_OK) return st;
    st = comm->backend.symmetric_free(comm->backend_state, ptr);
    if (st != SPARK_COMM_OK) backend_refused(comm, kind, st);
    sc_lane_leave(comm, SPARK_COMM_LANE_DATA);
    return st;
}

/* All ranks vote first: a kernel on one rank and none on another would pair an exchange with a
 * reduction. */
static spark_comm_status vote_kernel(struct spark_comm *comm, bool present, int64_t deadline,
                                     struct sc_error *error) {
    uint8_t mine = present, votes[4096];
    spark_comm_status st = sc_host_vote(&comm->host, &mine, votes, 1, deadline, error);
    for (int rank = 0; st == SPARK_COMM_OK && rank < comm->world_size; rank++)
        if (votes[rank] != votes[0])
            st = sc_error_set(
                error, SPARK_COMM_INVALID_ARGUMENT, rank, 0,
                "set_add_kernel: rank %d passes %s, rank 0 %s; all ranks must do alike", rank,
                votes[rank] ? "a kernel" : "0", votes[0] ? "a kernel" : "0");
    return st;
}

spark_comm_status spark_comm_set_add_kernel(spark_comm *comm, uint64_t handle) {
    spark_comm_status st = sc_handle_check(comm);
    if (st != SPARK_COMM_OK) return st;
    int kind = SPARK_COMM_OP_SET_ADD_KERNEL;
    struct sc_error error;
    st = sc_submit_check_start(comm, kind);
    if (st == SPARK_COMM_OK && comm->backend.set_add_kernel == NULL)
        st = sc_handle_refuse(comm, SPARK_COMM_NOT_SUPPORTED, kind, -1,
                              "backend %s runs no kernels", comm->backend.name);
    if (st != SPARK_COMM_OK) return st;
    struct sc_lane_call lane = {
        .comm = comm, .lane = SPARK_COMM_LANE_DATA, .operation = kind, .peer = -1};
    st = sc_lane_begin(&lane);
    if (st != SPARK_COMM_OK) return st;
    sc_error_clear(&error);
    if (comm->world_size > 1) st = vote_kernel(comm, handle != 0, lane.deadline, &error);
    if (st == SPARK_COMM_OK) {
        st = comm->backend.set_add_kernel(comm->backend_state, handle);
        if (st != SPARK_COMM_OK) sc_host_take_explanation(&comm->host, st, &error);
    }
    return sc_lane_end(&lane, st, &error);
}
