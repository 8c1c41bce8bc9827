/*
 * Life of a communicator: settings, backend chosen, world, votes, backend opened; and the way back.
 * Every step that needs the other ranks ends in a vote, so that all of them open or none does, with
 * the same words.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/groups.h"
#include "api/lane.h"
#include "api/open.h"
#include "backends/registry.h"
#include "base/alloc.h"
#include "base/deadline.h"
#include "base/status.h"
#include "os/thread.h"

/* What each rank says of itself in a vote. */
struct ballot {
    int32_t status;
    char reason[252];
};

static spark_comm_status open_log(struct spark_comm *comm, struct sc_error *error) {
    const struct sc_settings *settings = &comm->settings;
    comm->log = (struct sc_log){settings->log, settings->log_user, -1, settings->log_level};
    if (settings->log_file[0] != '\0') {
        comm->log.fd = open(settings->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (comm->log.fd < 0)
            return sc_error_system(error, errno, "open: the log file %s (SPARK_COMM_LOG_FILE)",
                                   settings->log_file);
    }
    comm->logs_submissions = sc_log_wants(&comm->log, SPARK_COMM_LOG_DEBUG);
    return SPARK_COMM_OK;
}

/* For a text that did not fit into `size` bytes. */
static void end_at_word(char *text, size_t size) {
    size_t used = size - sizeof " ...";

    while (used > 0 && text[used] != ' ')
        used--;
    memcpy(text + used, " ...", sizeof " ...");
}

/* Appends to a sentence; what does not fit whole ends in "..." after a whole word. */
__attribute__((format(printf, 2, 3))) static void append(char message[512], const char *format,
                                                         ...) {
    const size_t size = sizeof(((struct sc_error *)NULL)->message), used = strlen(message);
    va_list arguments;

    if (used + 64 > size && strcmp(message + used - 4, " ...") == 0) return; /* it was full */
    va_start(arguments, format);
    int length = vsnprintf(message + used, size - used, format, arguments);
    va_end(arguments);
    if ((size_t)length >= size - used) end_at_word(message, size);
}

/* " rank 3", " ranks 0 to 64", " ranks 0, 2 to 5, 7": those with the same ballot as `first`, which
 * is the lowest of them. Each is crossed out. */
static void name_group(struct ballot *all, int size, int first, char *message) {
    struct ballot of = all[first];
    bool is_alone = true;

    for (int rank = first + 1; rank < size; rank++)
        is_alone &= memcmp(&all[rank], &of, sizeof of) != 0;
    append(message, is_alone ? " rank" : " ranks");
    for (int rank = first; rank < size; rank++) {
        int last = rank;
        if (memcmp(&all[rank], &of, sizeof of) != 0) continue;
        while (last + 1 < size && memcmp(&all[last + 1], &of, sizeof of) == 0)
            last++;
        append(message, rank == first ? " %d" : ", %d", rank);
        if (last > rank) append(message, last == rank + 1 ? ", %d" : " to %d", last);
        for (; rank <= last; rank++)
            all[rank].status = SPARK_COMM_OK;
    }
}

/* One status, the lowest rank's, and every reason, each once. */
static spark_comm_status count_votes(struct ballot *all, int size, struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;

    for (int rank = 0; rank < size; rank++) {
        struct ballot vote = all[rank];
        if (vote.status == SPARK_COMM_OK) continue;
        if (st == SPARK_COMM_OK)
            sc_error_set(error, (spark_comm_status)vote.status, rank, 0, "open:");
        else
            append(error->message, ";");
        if (st == SPARK_COMM_OK) st = (spark_comm_status)vote.status;
        vote.reason[sizeof vote.reason - 1] = '\0';
        name_group(all, size, rank, error->message);
        append(error->message, ": %s", vote.reason);
    }
    return st;
}

spark_comm_status sc_open_vote(struct spark_comm *comm, spark_comm_status status,
                               struct sc_error *error) {
    int64_t deadline = sc_world_setup_deadline(comm->world);
    struct ballot mine = {.status = (int32_t)status}, *all = NULL;
    if (comm->world_size == 1) return status;
    if (status != SPARK_COMM_OK &&
        snprintf(mine.reason, sizeof mine.reason, "%s", error->message) >= (int)sizeof mine.reason)
        end_at_word(mine.reason, sizeof mine.reason);
    sc_error_clear(error); /* what fails from here on has its own words */
    all = sc_alloc_array((size_t)comm->world_size, sizeof *all);
    if (all == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "open: no memory to count %d votes",
                            comm->world_size);
    spark_comm_status st = sc_host_vote(&comm->host, &mine, all, sizeof mine, deadline, error);
    /* A rank that never votes is one that did not come in time. */
    if (st == SPARK_COMM_OP_TIMEOUT) st = SPARK_COMM_OPEN_TIMEOUT;
    /* A fault that came in between is the cause of whatever this vote met. */
    if (st != SPARK_COMM_OK && sc_world_setup_cause(comm->world, error) == SPARK_COMM_OK)
        st = (spark_comm_status)error->status;
    if (st != SPARK_COMM_OK) goto out;
    st = count_votes(all, comm->world_size, error);
out:
    sc_free(all);
    return st;
}

/* The backend's table: given by open_backend, or found by name and probed. */
static spark_comm_status choose_backend(struct spark_comm *comm, const spark_comm_backend *given,
                                        void *user, struct sc_error *error) {
    spark_comm_status st;
    if (given != NULL) {
        st = sc_registry_check(given, &comm->backend, error);
        if (st == SPARK_COMM_OK) comm->settings.memory = comm->backend.memory;
        comm->backend.user = user;
    } else {
        st = sc_registry_find(&comm->settings, sc_registry_resolve_name(&comm->settings),
                              &comm->backend, error);
    }
    if (st == SPARK_COMM_OK)
        st = sc_registry_probe(&comm->backend, comm->backend.user, &comm->settings, error);
    comm->is_single = st == SPARK_COMM_OK && sc_registry_is_single(&comm->backend);
    return st;
}

static spark_comm_status open_backend(struct spark_comm *comm, struct sc_error *error) {
    spark_comm_status st =
        comm->backend.open(comm->backend.user, &comm->host.table, &comm->backend_state);
    if (st != SPARK_COMM_OK) {
        sc_host_take_explanation(&comm->host, st, error);
        comm->backend_state = NULL;
    } else if (comm->backend_state == NULL) {
        st = sc_error_set(error, SPARK_COMM_BACKEND, -1, 0, "backend %s opened without a state",
                          comm->backend.name);
    }
    return st;
}

void sc_open_interrupt(void *arg) {
    struct spark_comm *comm = arg;
    if (comm->backend.interrupt != NULL) comm->backend.interrupt(comm->backend_state);
}

void sc_open_attach(struct spark_comm *comm) {
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        comm->lanes[lane].line = sc_world_own_line(comm->world, lane);
    atomic_store_explicit(&comm->epoch, sc_world_epoch(comm->world), memory_order_relaxed);
    comm->host.table.epoch = sc_world_epoch(comm->world);
}

static spark_comm_status prepare(struct spark_comm *comm, struct sc_error *error) {
    struct sc_thread_host_id id;
    comm->rank = comm->settings.rank;
    comm->world_size = comm->settings.world_size;
    comm->sent = sc_alloc_array((size_t)comm->world_size, sizeof *comm->sent);
    comm->received = sc_alloc_array((size_t)comm->world_size, sizeof *comm->received);
    if (comm->sent == NULL || comm->received == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0,
                            "open: no memory for %d message counters", comm->world_size);
    sc_ticks_start();
    sc_thread_host_id(&id); /* read while there are descriptors to read it with */
    return SPARK_COMM_OK;
}

static spark_comm_status make_backend(struct spark_comm *comm, struct sc_error *error) {
    comm->poison = sc_world_gate(comm->world);
    sc_open_attach(comm);
    spark_comm_status st =
        sc_recorder_open(&comm->recorder, &comm->settings, comm->backend.name, error);
    if (st == SPARK_COMM_OK) st = open_backend(comm, error);
    return sc_open_vote(comm, st, error);
}

/* From settings to a communicator that is whole but not yet alive. On failure what was made is
 * left for release(). */
static spark_comm_status build(struct spark_comm *comm, const spark_comm_backend *given, void *user,
                               struct sc_error *error) {
    struct sc_error refusal;
    spark_comm_status st = prepare(comm, error);
    if (st != SPARK_COMM_OK) return st;
    sc_error_clear(&refusal);
    spark_comm_status chosen = choose_backend(comm, given, user, &refusal);
    /* A backend that cannot serve here still goes through the rendezvous, so that every rank
     * hears why. */
    if (chosen == SPARK_COMM_OK || comm->world_size > 1) {
        st = sc_world_begin(&comm->settings, &comm->log, &comm->world, error);
        if (st != SPARK_COMM_OK) return st;
        st = sc_host_init(&comm->host, comm->world, &comm->settings, &comm->log, error);
    }
    if (st == SPARK_COMM_OK) {
        *error = refusal;
        st = chosen;
        if (comm->world != NULL) st = sc_open_vote(comm, chosen, error);
    }
    if (st == SPARK_COMM_OK) st = make_backend(comm, error);
    return comm->world != NULL ? sc_world_agree(comm->world, st, error) : st;
}

static void release(struct spark_comm *comm) {
    /* The world first: its monitor may call sc_open_interrupt until it is told not to. */
    if (comm->world != NULL) sc_world_on_poison(comm->world, NULL, NULL);
    if (comm->backend_state != NULL) comm->backend.close(comm->backend_state);
    comm->backend_state = NULL;
    sc_world_close(comm->world);
    comm->world = NULL;
    if (comm->host.members != NULL) sc_host_release(&comm->host);
    sc_recorder_close(&comm->recorder);
    sc_groups_release(comm);
    sc_free(comm->sent);
    sc_free(comm->received);
    sc_free(comm->registrations);
    if (comm->log.fd >= 0) close(comm->log.fd);
    comm->log = (struct sc_log){.fd = -1};
    sc_handle_give(comm);
}

static spark_comm_status open_any(const spark_comm_backend *given, void *user,
                                  const spark_comm_options *options, spark_comm **out,
                                  struct sc_error *error) {
    struct spark_comm *comm = sc_handle_take();
    if (comm == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0,
                            "open: no memory for a communicator");
    comm->log.fd = -1;
    spark_comm_status st = sc_settings_resolve(options, &comm->settings, error);
    if (st == SPARK_COMM_OK) st = open_log(comm, error);
    if (st == SPARK_COMM_OK) {
        if (given != NULL && given->name != NULL && given->struct_size >= sizeof *given)
            snprintf(comm->settings.backend, sizeof comm->settings.backend, "%s", given->name);
        st = build(comm, given, user, error);
    }
    if (st != SPARK_COMM_OK) {
        sc_log_write(&comm->log, SPARK_COMM_LOG_ERROR, "%s", error->message);
        release(comm);
        return st;
    }
    sc_world_on_poison(comm->world, sc_open_interrupt, comm);
    sc_log_write(&comm->log, SPARK_COMM_LOG_INFO, "rank %d of %d is ready, backend %s", comm->rank,
                 comm->world_size, comm->backend.name);
    /* Release: partner of the acquire in sc_handle_check. */
    atomic_store_explicit(&comm->magic, SC_HANDLE_ALIVE, memory_order_release);
    *out = comm;
    return SPARK_COMM_OK;
}

/* The failure of this thread's last open, for last_error(NULL). */
static spark_comm_status open_and_remember(const spark_comm_backend *given, void *user,
                                           const spark_comm_options *options, spark_comm **out) {
    struct sc_error *error = sc_handle_open_error();
    spark_comm_status st;
    sc_error_clear(error);
    if (out == NULL) {
        st = sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0, "open: comm is null");
    } else {
        *out = NULL;
        st = open_any(given, user, options, out, error);
    }
    error->operation = SPARK_COMM_OP_OPEN;
    error->status = st;
    if (st == SPARK_COMM_OK) sc_error_clear(error);
    return st;
}

spark_comm_status spark_comm_open(const spark_comm_options *options, spark_comm **comm) {
    return open_and_remember(NULL, NULL, options, comm);
}

spark_comm_status spark_comm_open_backend(const struct spark_comm_backend *backend, void *user,
                                          const spark_comm_options *options, spark_comm **comm) {
    if (backend == NULL && comm != NULL) {
        *comm = NULL;
        struct sc_error *error = sc_handle_open_error();
        sc_error_clear(error);
        error->operation = SPARK_COMM_OP_OPEN;
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "open_backend: backend is null");
    }
    return open_and_remember(backend, user, options, comm);
}

void spark_comm_options_init(spark_comm_options *options, size_t struct_size) {
    sc_settings_options_init(options, struct_size);
}

spark_comm_status spark_comm_abort(spark_comm *comm) {
    if (!sc_handle_hold(comm)) return SPARK_COMM_WRONG_STATE;
    sc_world_abort(comm->world);
    sc_handle_let_go(comm);
    return SPARK_COMM_OK;
}

/* Calls that run are given up (ABORTED, locally: the peers hear the goodbye) and waited for. Whoever
 * takes a lane after this finds the handle closed. False: one of them does not end. */
static bool end_calls(struct spark_comm *comm, int64_t deadline) {
    bool idle = atomic_load_explicit(&comm->inside, memory_order_seq_cst) == 0;
    bool held[SPARK_COMM_LANE_COUNT], ended = true;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        held[lane] = sc_lock_try(&comm->lanes[lane].lock);
        idle &= held[lane];
    }
    if (!idle) sc_world_leave(comm->world);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        if (!held[lane]) held[lane] = sc_lock_take(&comm->lanes[lane].lock, deadline, NULL);
        ended &= held[lane];
        if (held[lane]) sc_lock_give(&comm->lanes[lane].lock); /* to those who wait for it */
    }
    return sc_handle_drain(comm, deadline) && ended;
}

/*
 * New calls are refused from the magic word on. All of it is bounded by close_timeout_ms: what is
 * left after the running calls have ended is the goodbye's. A backend's call that does not end keeps
 * its memory, and the peers are told that this rank is gone.
 */
void spark_comm_close(spark_comm *comm) {
    if (sc_handle_check(comm) != SPARK_COMM_OK) return;
    uint32_t alive = SC_HANDLE_ALIVE;
    /* Sequentially consistent: partner of sc_handle_hold. */
    if (!atomic_compare_exchange_strong_explicit(&comm->magic, &alive, SC_HANDLE_CLOSED,
                                                 memory_order_seq_cst, memory_order_relaxed))
        return;
    int limit = comm->settings.close_timeout_ms;
    int64_t deadline = limit == SPARK_COMM_FOREVER ? SC_DEADLINE_NEVER : sc_deadline_after(limit);
    if (!end_calls(comm, deadline)) {
        sc_world_abort(comm->world);
        sc_log_write(&comm->log, SPARK_COMM_LOG_ERROR,
                     "close: a call of backend %s does not end; its memory is left alone",
                     comm->backend.name);
        return;
    }
    int left = sc_deadline_poll_ms(deadline);
    if (limit != SPARK_COMM_FOREVER) comm->settings.close_timeout_ms = left > 0 ? left : 1;
    release(comm);
}
