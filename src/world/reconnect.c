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

#define NS_PER_MS INT64_C(1000000)
#define STEP_NS INT64_C(50000) /* between looks at what nobody rings for */
#define GIVEN_UP_NS (50 * NS_PER_MS) /* for the old epoch's readers, once this rank has given up */
#define FOLLOW_NS \
    (1000 * NS_PER_MS) /* for those that are about to dial this rank, the hub's successor */

/* ---- R1 ---- */

void sc_world_ask(struct sc_world *world) {
    struct sc_error error;

    /* An abort from here on ends the attempt. */
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    atomic_store_explicit(&world->given_up,
                          atomic_load_explicit(&world->leaving, memory_order_relaxed),
                          memory_order_release);
    sc_lock_give(&world->verdict.lock);
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

/* What somebody is still inside the epoch for that was left; NULL: nobody is. */
static const char *who_is_inside(struct sc_world *world) {
    static const char *const names[SC_PIN_KINDS] = {
        "the report of a fault (the backend's interrupt, or the log function)",
        "a call that was ended and waits for the cause", "a question for the health",
        "the backend's look at a stream or a pointer"};

    /* A read-modify-write: who comes after it finds the gate shut, and the new epoch. */
    for (int kind = 0; kind < SC_PIN_KINDS; kind++)
        if (atomic_fetch_add_explicit(&world->pins[kind], 0, memory_order_seq_cst) != 0)
            return names[kind];
    return NULL;
}

static bool has_given_up(const struct sc_world *world) {
    return atomic_load_explicit(&world->given_up, memory_order_acquire) != 0;
}

/* The epoch that was left becomes the spare one. Those inside wait for nothing that is the library's: its
 * cause is final. */
static spark_comm_status await_readers(struct sc_world *world, int64_t deadline,
                                       struct sc_error *error) {
    int64_t short_until = SC_DEADLINE_NEVER;
    const char *who;

    while ((who = who_is_inside(world)) != NULL) {
        int64_t now = sc_deadline_now();
        if (has_given_up(world)) short_until = sc_deadline_min(short_until, now + GIVEN_UP_NS);
        if (now >= short_until && sc_world_gives_up(world, error)) return SPARK_COMM_ABORTED;
        if (sc_deadline_passed(deadline))
            return sc_error_set(error, SPARK_COMM_BUSY, world->rank, 0,
                                "rank %d cannot leave the old epoch: %s does not return",
                                world->rank, who);
        sc_wait_futex_sleep(&world->given_up, has_given_up(world), now + STEP_NS);
    }
    if (world->spare != NULL) sc_world_clear_epoch(world, world->spare);
    world->is_spare_used = false;
    return SPARK_COMM_OK;
}

/* Between hosts the successor of the hub takes the sentence with it: whoever is about to dial it for it
 * (heir.c) is still told. */
static void await_followers(struct sc_world *world, int64_t deadline) {
    struct sc_epoch *epoch = world->epoch;
    int rank = 0;

    if (!sc_is_settled(world) || epoch->one_host || sc_is_hub(world) || !sc_is_head(world)) return;
    deadline = sc_deadline_min(deadline, sc_deadline_now() + FOLLOW_NS);
    while (rank < world->size && !sc_deadline_passed(deadline) && !has_given_up(world)) {
        bool is_missing = rank != world->rank && sc_peer_state(epoch, rank) == SC_PEER_PRESENT &&
                          !sc_link_is_open(&epoch->peers[rank].link);
        if (is_missing)
            sc_wait_futex_sleep(&world->given_up, 0, sc_deadline_now() + STEP_NS);
        else
            rank++;
    }
}

static spark_comm_status leave_epoch(struct sc_world *world, int64_t deadline,
                                     struct sc_error *error) {
    struct sc_epoch *old = world->epoch;
    spark_comm_status st = SPARK_COMM_OK;

    if (world->is_spare_used) st = await_readers(world, deadline, error);
    if (st != SPARK_COMM_OK) return st;
    sc_verdict_await_final(world); /* and told to all, before the goodbye */
    await_followers(world, deadline);
    sc_monitor_stop(world);
    hang_up(world);
    world->monitor.phase = SC_PHASE_GATHERING;
    /* Who is missing, until the next epoch is agreed. */
    world->spare->lost_count = atomic_load_explicit(&old->lost_count, memory_order_relaxed);
    world->spare->lost_rank = atomic_load_explicit(&old->lost_rank, memory_order_relaxed);
    world->epoch = world->spare;
    world->spare = old;
    world->is_spare_used = true;
    st = await_readers(world, deadline, error);
    if (st == SPARK_COMM_OK) sc_verdict_put_aside(world);
    return st;
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
    st = leave_epoch(world, deadline, error);
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

spark_comm_status sc_world_renew(struct sc_world *world, struct sc_error *error) {
    if (world->size > 1) return SPARK_COMM_WRONG_STATE;
    spark_comm_status st =
        await_readers(world, sc_deadline_after(world->settings->rendezvous_timeout_ms), error);
    if (st != SPARK_COMM_OK) return st;
    sc_verdict_put_aside(world);
    world->entered = ++world->epoch->number;
    return st;
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
    st = sc_verdict_end(world, error);
    /* Once more: the thread that aborts may be slower in it than this one in hanging up. */
    sc_verdict_spread(world, SC_WIRE_VERDICT, error, -1);
    return st;
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

    return has_entered(world) || has_lost_hub(world) || has_given_up(world) ||
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
    if (!is_told && sc_world_gives_up(world, error)) {
        sc_verdict_tell(world, SC_HUB,
                        error); /* now: the thread that aborts may be slower than hanging up */
        return SPARK_COMM_ABORTED;
    }
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

    if (world->size == 1) {
        if (st == SPARK_COMM_OK)
            sc_verdict_forget(world);
        else if (!is_first)
            sc_verdict_bring_back(world);
        return st;
    }
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
