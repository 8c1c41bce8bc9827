/*
 * From one epoch to the next, and how all ranks agree on it. The steps are those of
 * docs/models/README.md, which says what is proven of them: R1 and R2 here, R3 to R6 in hub.c and
 * dial.c, R7 to R10 here again, for opening as well.
 *
 * lived is the last epoch that this rank entered, seen the last one that it was welcomed to, entered
 * or not. Both are written by the caller's thread: seen at WELCOME, before there is a monitor, and
 * lived at the outcome, before the phase says RUNNING (release); in no other phase does the monitor
 * read lived.
 *
 * Threads: the caller holds both lanes from R2 to the outcome, and joins the old monitor first, so
 * that of the old epoch's readers only those of sc_world_pin are left.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/status.h"
#include "world/world_state.h"

#define PIN_STEP_NS INT64_C(50000) /* between looks whether the old epoch's readers have gone */

/* ---- R1 ---- */

void sc_world_ask(struct sc_world *world) {
    struct sc_error error;

    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_ABORTED, world->rank, 0, "rank %d asks for a new epoch",
                 world->rank);
    error.operation = SPARK_COMM_OP_RECONNECT;
    sc_world_fault(world, &error); /* unless it is poisoned already, and the others know */
}

/* ---- R2 ---- */

/* All connections of an epoch. Whoever still is in it learns of the end from the goodbye, so that it
 * does not count this rank as lost. */
static void hang_up(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    bool was_in = world->monitor.phase == SC_PHASE_RUNNING;

    if (was_in) sc_goodbye_leave_card(world);
    for (int rank = 0; rank < world->size; rank++) {
        struct sc_peer *peer = &epoch->peers[rank];
        if (was_in && sc_peer_state(epoch, rank) == SC_PEER_PRESENT) sc_goodbye_tell(world, rank);
        sc_link_close(&peer->link);
        if (peer->unix_fd >= 0) close(peer->unix_fd);
        if (peer->pidfd >= 0) close(peer->pidfd);
        peer->unix_fd = peer->pidfd = -1;
        atomic_store_explicit(&peer->state, SC_PEER_ABSENT, memory_order_release);
    }
    atomic_store_explicit(&epoch->left_count, 0, memory_order_relaxed);
    sc_door_shut_unix(&world->door);
}

static void replace_epoch(struct sc_world *world, struct sc_epoch *fresh) {
    struct sc_epoch *old = world->epoch;

    /* Who is missing, until the next epoch is agreed. */
    fresh->lost_count = atomic_load_explicit(&old->lost_count, memory_order_relaxed);
    fresh->lost_rank = atomic_load_explicit(&old->lost_rank, memory_order_relaxed);
    world->epoch = fresh;
    /* Those inside wait for nothing any more: the old epoch's cause is final. */
    uint32_t inside;
    while ((inside = atomic_load_explicit(&world->pins, memory_order_seq_cst)) != 0)
        sc_wait_futex_sleep(&world->pins, inside, sc_deadline_now() + PIN_STEP_NS);
    sc_world_free_epoch(old);
}

static spark_comm_status leave_epoch(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *fresh = sc_world_make_epoch(world);
    struct sc_error cause;

    if (fresh == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0,
                            "no memory for an epoch of %d ranks", world->size);
    sc_world_cause(world, &cause); /* final, and told to all, before the goodbye */
    sc_monitor_stop(world);
    hang_up(world);
    world->monitor.phase = SC_PHASE_GATHERING;
    replace_epoch(world, fresh);
    if (!sc_verdict_put_aside(world))
        return sc_error_set(error, SPARK_COMM_ABORTED, world->rank, 0,
                            "rank %d closed its communicator", world->rank);
    return SPARK_COMM_OK;
}

/* R10, R11, R12: the attempt has failed, and the world is as poisoned as it was. The monitor goes on,
 * for what comes to the door. */
static void stay_behind(struct sc_world *world) {
    struct sc_error error;

    sc_monitor_stop(world);
    hang_up(world);
    if (world->is_replaced) sc_door_shut(&world->door); /* R4b */
    world->epoch->number = 0;
    atomic_store_explicit(&world->epoch->ready, false, memory_order_release);
    if (world->verdict.kept.status != SPARK_COMM_OK) sc_verdict_bring_back(world);
    world->monitor.phase = SC_PHASE_RUNNING;
    sc_error_clear(&error);
    if (sc_monitor_start(world, &error) != SPARK_COMM_OK)
        sc_log_write(world->log, SPARK_COMM_LOG_WARN, "rank %d: %s", world->rank, error.message);
}

spark_comm_status sc_world_reconnect(struct sc_world *world, struct sc_error *error) {
    int64_t deadline = sc_deadline_after(world->settings->rendezvous_timeout_ms);
    spark_comm_status st;

    if (world->is_replaced)
        return sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0, "rank 0 was replaced");
    st = leave_epoch(world, error);
    if (st == SPARK_COMM_NO_MEMORY) return st; /* nothing has happened */
    if (st == SPARK_COMM_OK)
        st = sc_is_hub(world) ? sc_hub_gather(world, deadline, error)
                              : sc_dial_join(world, deadline, error);
    if (st != SPARK_COMM_OK) {
        stay_behind(world);
        return st;
    }
    st = sc_world_settle(world, error);
    return st == SPARK_COMM_OK ? st : sc_world_agree(world, st, error);
}

/* ---- R7, R8: the hub ---- */

void sc_reconnect_take_ready(struct sc_world *world, const struct sc_wire_header *header,
                             const uint8_t *payload) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_peer *peer = &epoch->peers[header->source];
    struct sc_error reason;

    if (world->monitor.phase != SC_PHASE_SETTING_UP || header->number != world->seen.stamp) return;
    if (!sc_wire_get_fault(payload, header->bytes, world->size, &reason) || peer->is_ready) return;
    if (reason.status != SPARK_COMM_OK) {
        sc_world_fault(world, &reason); /* R8: FAIL for all */
        return;
    }
    peer->is_ready = true;
    /* Release: partner of all_are_ready. */
    atomic_fetch_add_explicit(&epoch->ready_ranks, 1, memory_order_release);
    sc_wait_ring(&epoch->inner[SPARK_COMM_LANE_DATA], &epoch->inner_bells[SPARK_COMM_LANE_DATA]);
}

static bool all_are_ready(void *arg) {
    struct sc_world *world = arg;

    return atomic_load_explicit(&world->epoch->ready_ranks, memory_order_acquire) ==
           (uint32_t)world->size - 1;
}

/* R8: once the first COMMIT is sent nothing turns it into FAIL. A fault takes the verdict's lock to
 * be stored and is told after that: either it is there before the decision, or all have COMMIT
 * before they hear of it. */
static bool commit(struct sc_world *world) {
    struct sc_wire_header header = sc_header(world, SC_WIRE_COMMIT, 0);

    header.number = world->seen.stamp;
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    bool decides = atomic_load_explicit(&world->poison, memory_order_relaxed) == 0;
    if (decides) {
        world->lived = world->seen;
        world->monitor.phase = SC_PHASE_RUNNING;
    }
    for (int rank = SC_HUB + 1; decides && rank < world->size; rank++)
        sc_link_send(world, &world->epoch->peers[rank].link, &header, NULL, SC_LINK_NOW);
    sc_lock_give(&world->verdict.lock);
    return decides;
}

static spark_comm_status decide(struct sc_world *world, spark_comm_status st,
                                struct sc_error *error) {
    if (st == SPARK_COMM_OK)
        st = sc_wait_until(&world->epoch->inner[SPARK_COMM_LANE_DATA], all_are_ready, world,
                           world->setup_until);
    if (st == SPARK_COMM_OK && commit(world)) return st;
    if (st == SPARK_COMM_OP_TIMEOUT) {
        int late = SC_HUB + 1;
        while (late < world->size - 1 && world->epoch->peers[late].is_ready)
            late++;
        st = sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, late, 0,
                          "rank %d was not set up in time for epoch %u", late, world->seen.number);
    }
    struct sc_error reason = *error;
    reason.status = st;
    /* What was told first counts, here as for all. */
    if (atomic_load_explicit(&world->poison, memory_order_acquire) == 0)
        sc_world_fault(world, &reason);
    return sc_verdict_end(world, error);
}

/* ---- R7, R9 to R12: a worker ---- */

void sc_reconnect_take_commit(struct sc_world *world, const struct sc_wire_header *header) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_error cause;

    if (world->monitor.phase != SC_PHASE_SETTING_UP || header->number != world->seen.stamp) return;
    world->monitor.phase = SC_PHASE_RUNNING;
    /* A suspicion that came too late to stop the attempt is one of the new epoch. */
    if (sc_verdict_state(world) == SC_CAUSE_OWN && sc_verdict_peek(world, &cause))
        sc_judge_begin(world, &cause);
    /* Release: partner of outcome_is_known. */
    atomic_store_explicit(&epoch->committed, true, memory_order_release);
    sc_wait_ring(&epoch->inner[SPARK_COMM_LANE_DATA], &epoch->inner_bells[SPARK_COMM_LANE_DATA]);
}

static bool has_entered(const struct sc_world *world) {
    return atomic_load_explicit(&world->epoch->committed, memory_order_acquire);
}

static bool has_lost_hub(const struct sc_world *world) {
    return sc_peer_state(world->epoch, SC_HUB) != SC_PEER_PRESENT;
}

static bool outcome_is_known(void *arg) {
    struct sc_world *world = arg;

    return has_entered(world) || has_lost_hub(world) ||
           atomic_load_explicit(&world->verdict.state, memory_order_acquire) == SC_CAUSE_FINAL;
}

static void say_ready(struct sc_world *world, spark_comm_status st, const struct sc_error *error) {
    struct sc_wire_header header = sc_header(world, SC_WIRE_READY, SC_WIRE_FAULT_BYTES);
    uint8_t payload[SC_WIRE_FAULT_BYTES];
    struct sc_error reason;

    sc_error_clear(&reason);
    if (st != SPARK_COMM_OK) reason = *error;
    reason.status = st;
    header.number = world->seen.stamp;
    sc_wire_put_fault(payload, &reason);
    sc_link_send(world, &world->epoch->peers[SC_HUB].link, &header, payload, SC_LINK_NOW);
}

/* READY is said, and only the hub knows the outcome. Never enters on a guess. */
static spark_comm_status await_outcome(struct sc_world *world, spark_comm_status st,
                                       struct sc_error *error) {
    struct sc_wait_policy policy = world->epoch->inner[SPARK_COMM_LANE_DATA];

    say_ready(world, st, error);
    if (!world->monitor.is_running)
        return st; /* nobody reads the hub's answer, which is the same */
    policy.poison = NULL; /* a suspicion of this rank's own does not decide */
    sc_wait_until(&policy, outcome_is_known, world, world->setup_until);
    if (has_entered(world)) return SPARK_COMM_OK;
    bool is_told =
        atomic_load_explicit(&world->verdict.state, memory_order_acquire) == SC_CAUSE_FINAL;
    struct sc_error cause;
    sc_error_clear(&cause);
    if (is_told) sc_verdict_end(world, &cause);
    bool is_hubs_loss = cause.status == SPARK_COMM_PEER_LOST && cause.peer == SC_HUB;
    if (!is_told || (is_hubs_loss && has_lost_hub(world))) /* R12 */
        return sc_error_set(error, SPARK_COMM_PEER_LOST, SC_HUB, 0,
                            "rank 0 was lost while epoch %u was agreed", world->seen.number);
    *error = cause;
    return (spark_comm_status)cause.status;
}

/* ---- R9 ---- */

spark_comm_status sc_world_agree(struct sc_world *world, spark_comm_status st,
                                 struct sc_error *error) {
    bool is_first = world->entered == 0;

    if (world->size == 1) return st;
    st = sc_is_hub(world) ? decide(world, st, error) : await_outcome(world, st, error);
    if (st == SPARK_COMM_OK) {
        if (!sc_is_hub(world)) world->lived = world->seen;
        atomic_store_explicit(&world->entered, world->lived.number, memory_order_relaxed);
        sc_verdict_forget(world);
        sc_monitor_poke(world); /* for those that are parked at the door */
        sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d is in epoch %u", world->rank,
                     world->lived.number);
    } else if (!is_first) {
        stay_behind(world);
    }
    return st;
}
