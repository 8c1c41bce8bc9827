/*
 * What a backend receives: spark_comm_host over a world. The api makes one per communicator; the
 * library's own backends reach through it to the world (sc_host_world), outside ones see the public
 * table only.
 *
 * explain() is written by the one thread that holds the data lane, and read by the same thread when
 * the backend's function has returned; no lock is needed.
 */
#ifndef SC_WORLD_HOST_H
#define SC_WORLD_HOST_H

#include <spark_comm_backend.h>

#include "world/world.h"

struct sc_host {
    spark_comm_host table; /* context points to this struct */
    spark_comm_options options;
    struct sc_world *world;
    const struct sc_log *log;
    int32_t *members;
    uint64_t votes; /* host all-gathers made so far, alike on all ranks */
    struct sc_error pending; /* what explain() said last */
    bool explained;
};

/* Over a world and settings that outlive it. */
spark_comm_status sc_host_init(struct sc_host *host, struct sc_world *world,
                               const struct sc_settings *settings, const struct sc_log *log,
                               struct sc_error *error);
void sc_host_release(struct sc_host *host);
/* Moves what was explained into `error`; when nothing was, says that the backend gave no reason. */
void sc_host_take_explanation(struct sc_host *host, spark_comm_status status,
                              struct sc_error *error);
/* All-gather for votes of the library itself, numbered apart from the lane's operations; data
 * lane held or nobody else in. */
spark_comm_status sc_host_vote(struct sc_host *host, const void *send, void *recv, size_t bytes,
                               int64_t deadline, struct sc_error *error);

/* For our own backends. */
struct sc_world *sc_host_world(const spark_comm_host *table);
const struct sc_log *sc_host_log(const spark_comm_host *table);
/* explain() with a format, returning `status`: `return sc_host_fail(host, SPARK_COMM_OP_TIMEOUT,
 * 2, 0, "...")`. */
spark_comm_status sc_host_fail(const spark_comm_host *table, spark_comm_status status, int peer,
                               int64_t native_code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same from an error that a lower layer filled. */
spark_comm_status sc_host_pass(const spark_comm_host *table, const struct sc_error *error);

#endif
