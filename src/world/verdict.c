/*
 * The first cause of a failure, and who hears of it. A rank that finds a fault poisons itself at
 * once with its own words and tells the hub; the hub's first cause goes to all, and each rank takes
 * over the hub's words unless a caller of its own has already been given others: after CAUSE_WAIT
 * the own words are final. So one fault gives one sentence on all ranks.
 *
 * The cause is written before the poison word (release); whoever acquires a poison that is not 0
 * finds a cause. The states of a cause only go up: none, own, final.
 */
#include <stdio.h>
#include <string.h>

#include "base/deadline.h"
#include "world/world_state.h"

#define CAUSE_WAIT_NS INT64_C(200000000)

void sc_verdict_init(struct sc_verdict *verdict) {
    memset(verdict, 0, sizeof *verdict);
    sc_error_clear(&verdict->cause);
}

static void count_lost(struct sc_world *world, const struct sc_error *cause) {
    if (cause->status != SPARK_COMM_PEER_LOST || cause->peer < 0 || world->epoch == NULL) return;
    atomic_store_explicit(&world->epoch->lost_rank, cause->peer, memory_order_relaxed);
    atomic_store_explicit(&world->epoch->lost_count, 1, memory_order_relaxed);
}

/* Under the lock. The first one poisons; a later one only replaces words that are not final. */
static bool store_cause(struct sc_world *world, const struct sc_error *cause,
                        enum sc_cause_state state) {
    struct sc_verdict *verdict = &world->verdict;
    uint32_t old = atomic_load_explicit(&verdict->state, memory_order_relaxed);

    if (old == SC_CAUSE_FINAL || (old == SC_CAUSE_OWN && state == SC_CAUSE_OWN)) return false;
    verdict->cause = *cause;
    verdict->cause.epoch = world->epoch != NULL ? sc_world_epoch(world) : 1;
    if (old == SC_CAUSE_NONE) verdict->since = sc_deadline_now();
    atomic_store_explicit(&verdict->state, state, memory_order_release);
    /* Release: partner of every acquire of the poison word. */
    atomic_store_explicit(&world->poison, (uint32_t)cause->status, memory_order_release);
    atomic_store_explicit(&world->gate, (uint32_t)cause->status, memory_order_release);
    count_lost(world, cause);
    return old == SC_CAUSE_NONE;
}

/* Under interrupt_lock. Once, whoever comes first: the fault or the one who asks to be called. */
static void interrupt(struct sc_verdict *verdict) {
    if (verdict->interrupt == NULL || verdict->was_interrupted) return;
    verdict->was_interrupted = true;
    verdict->interrupt(verdict->interrupt_arg);
}

void sc_verdict_wake(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;

    sc_wait_futex_wake(&world->poison, INT32_MAX);
    sc_wait_futex_wake(&world->verdict.state, INT32_MAX);
    sc_monitor_poke(world); /* or whoever runs an attempt in its place */
    if (epoch == NULL) return;
    bool is_ready = atomic_load_explicit(&epoch->ready, memory_order_acquire);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        if (epoch->inner_bells != NULL) sc_wait_wake_all(&epoch->inner_bells[lane]);
        if (is_ready) sc_wait_wake_all(epoch->policy[lane].doorbell);
    }
    for (int rank = 0; rank < world->size; rank++)
        sc_link_shake(&epoch->peers[rank].link);
}

/* Says whether this was the first cause. */
static bool adopt(struct sc_world *world, const struct sc_error *cause, enum sc_cause_state state) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    bool is_first = store_cause(world, cause, state);
    sc_lock_give(&verdict->lock);
    if (is_first) {
        sc_log_write(world->log, SPARK_COMM_LOG_ERROR, "rank %d: %s", world->rank, cause->message);
        sc_lock_take(&verdict->interrupt_lock, SC_DEADLINE_NEVER, NULL);
        interrupt(verdict);
        sc_lock_give(&verdict->interrupt_lock);
        sc_verdict_wake(world);
    } else {
        sc_verdict_wake(world);
    }
    return is_first;
}

void sc_verdict_tell(struct sc_world *world, int rank, const struct sc_error *cause) {
    bool is_running = world->monitor.phase == SC_PHASE_RUNNING;
    enum sc_wire_kind kind = !sc_is_hub(world) ? SC_WIRE_FAULT
                             : is_running      ? SC_WIRE_VERDICT
                                               : SC_WIRE_FAIL; /* R8 */
    struct sc_wire_header header = sc_header(world, kind, SC_WIRE_FAULT_BYTES);
    uint8_t payload[SC_WIRE_FAULT_BYTES];

    sc_wire_put_fault(payload, cause);
    sc_link_send(world, &world->epoch->peers[rank].link, &header, payload, SC_LINK_NOW);
}

static bool hub_hears(const struct sc_world *world) {
    return world->epoch != NULL && world->size > 1 && world->monitor.phase != SC_PHASE_GATHERING &&
           sc_peer_state(world->epoch, SC_HUB) == SC_PEER_PRESENT;
}

void sc_world_fault(struct sc_world *world, const struct sc_error *suspect) {
    sc_world_pin(world);
    struct sc_epoch *epoch = world->epoch;
    bool asks_hub = !sc_is_hub(world) && hub_hears(world);

    if (!adopt(world, suspect, asks_hub ? SC_CAUSE_OWN : SC_CAUSE_FINAL)) goto out;
    if (asks_hub) sc_verdict_tell(world, SC_HUB, suspect);
    for (int rank = SC_HUB + 1; sc_is_hub(world) && rank < world->size; rank++)
        if (sc_peer_state(epoch, rank) == SC_PEER_PRESENT) sc_verdict_tell(world, rank, suspect);
out:
    sc_world_unpin(world);
}

void sc_verdict_repeat(struct sc_world *world, int rank) {
    struct sc_verdict *verdict = &world->verdict;
    struct sc_error cause;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    cause = verdict->cause;
    sc_lock_give(&verdict->lock);
    bool is_own_affair = atomic_load_explicit(&world->leaving, memory_order_relaxed);
    if (cause.status != SPARK_COMM_OK && !is_own_affair) sc_verdict_tell(world, rank, &cause);
}

void sc_verdict_adopt(struct sc_world *world, const struct sc_error *cause) {
    adopt(world, cause, SC_CAUSE_FINAL);
}

void sc_verdict_lose(struct sc_world *world, int rank, const char *how) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_error error;

    atomic_store_explicit(&epoch->peers[rank].state, SC_PEER_LOST, memory_order_release);
    if (atomic_load_explicit(&world->poison, memory_order_relaxed) != 0) {
        int32_t lowest = atomic_load_explicit(&epoch->lost_rank, memory_order_relaxed);
        if (lowest < 0 || rank < lowest)
            atomic_store_explicit(&epoch->lost_rank, rank, memory_order_relaxed);
        if (lowest != rank) atomic_fetch_add_explicit(&epoch->lost_count, 1, memory_order_relaxed);
    }
    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_PEER_LOST, rank, 0, "rank %d (process %d) is lost: it %s", rank,
                 epoch->members[rank].pid, how);
    sc_world_fault(world, &error);
    /* Whoever waits for an answer of that rank waits no longer: the hub may have been it. */
    sc_verdict_wake(world);
}

/* ---- For the layers above ---- */

const _Atomic uint32_t *sc_world_poison(const struct sc_world *world) {
    return &world->poison;
}

const _Atomic uint32_t *sc_world_gate(const struct sc_world *world) {
    return &world->gate;
}

void sc_world_on_poison(struct sc_world *world, void (*interrupt_fn)(void *arg), void *arg) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->interrupt_lock, SC_DEADLINE_NEVER, NULL);
    verdict->interrupt = interrupt_fn;
    verdict->interrupt_arg = arg;
    /* Poisoned before anybody could be called: call now, so that it is never missed. */
    if (atomic_load_explicit(&world->poison, memory_order_acquire) != 0) interrupt(verdict);
    sc_lock_give(&verdict->interrupt_lock);
}

/* Waits a moment for the hub's words, then makes the own ones final, so that every caller is given
 * the same. */
static spark_comm_status find_cause(struct sc_world *world, struct sc_error *cause) {
    struct sc_verdict *verdict = &world->verdict;

    if (atomic_load_explicit(&world->poison, memory_order_acquire) == 0)
        return SPARK_COMM_WRONG_STATE;
    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    int64_t until = verdict->since + CAUSE_WAIT_NS;
    while (atomic_load_explicit(&verdict->state, memory_order_relaxed) == SC_CAUSE_OWN) {
        if (sc_deadline_passed(until) || !hub_hears(world)) {
            atomic_store_explicit(&verdict->state, SC_CAUSE_FINAL, memory_order_release);
            break;
        }
        sc_lock_give(&verdict->lock);
        sc_wait_futex_sleep(&verdict->state, SC_CAUSE_OWN, until);
        sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    }
    *cause = verdict->cause;
    sc_lock_give(&verdict->lock);
    return cause->status != SPARK_COMM_OK ? SPARK_COMM_OK : SPARK_COMM_WRONG_STATE;
}

static bool look_aside(struct sc_world *world, struct sc_error *cause) {
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    bool is_aside = world->verdict.kept.status != SPARK_COMM_OK;
    if (is_aside) *cause = world->verdict.kept;
    sc_lock_give(&world->verdict.lock);
    return is_aside;
}

spark_comm_status sc_world_cause(struct sc_world *world, struct sc_error *cause) {
    if (look_aside(world, cause)) return SPARK_COMM_OK;
    sc_world_pin(world);
    spark_comm_status st = find_cause(world, cause);
    sc_world_unpin(world);
    /* It may have been put aside in between. */
    return st != SPARK_COMM_OK && look_aside(world, cause) ? SPARK_COMM_OK : st;
}

spark_comm_status sc_verdict_end(struct sc_world *world, struct sc_error *error) {
    struct sc_error cause;

    if (find_cause(world, &cause) != SPARK_COMM_OK)
        return sc_error_set(error, SPARK_COMM_ABORTED, -1, 0, "ended by a new epoch");
    if (error != NULL) *error = cause;
    return (spark_comm_status)cause.status;
}

bool sc_world_peek_cause(struct sc_world *world, struct sc_error *cause) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    *cause = verdict->kept.status != SPARK_COMM_OK ? verdict->kept : verdict->cause;
    sc_lock_give(&verdict->lock);
    return cause->status != SPARK_COMM_OK;
}

/* ---- Reconnect ---- */

/* Under the lock. */
static void clear_cause(struct sc_world *world) {
    sc_error_clear(&world->verdict.cause);
    world->verdict.was_interrupted = false;
    atomic_store_explicit(&world->verdict.state, SC_CAUSE_NONE, memory_order_relaxed);
    atomic_store_explicit(&world->poison, 0, memory_order_release);
}

bool sc_verdict_put_aside(struct sc_world *world) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    /* Close sets it before it takes this lock. */
    bool stays = !atomic_load_explicit(&world->leaving, memory_order_relaxed);
    if (stays) {
        verdict->kept = verdict->cause;
        clear_cause(world);
    }
    sc_lock_give(&verdict->lock);
    return stays;
}

void sc_verdict_bring_back(struct sc_world *world) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    verdict->cause = verdict->kept;
    count_lost(world, &verdict->cause);
    sc_error_clear(&verdict->kept);
    atomic_store_explicit(&verdict->state, SC_CAUSE_FINAL, memory_order_release);
    atomic_store_explicit(&world->poison, (uint32_t)verdict->cause.status, memory_order_release);
    sc_lock_give(&verdict->lock);
}

void sc_verdict_forget(struct sc_world *world) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    sc_error_clear(&verdict->kept);
    /* Release: who finds the gate open sees the new epoch. A fault stores both words under this
     * lock. */
    atomic_store_explicit(&world->gate, atomic_load_explicit(&world->poison, memory_order_relaxed),
                          memory_order_release);
    sc_lock_give(&verdict->lock);
}

spark_comm_status sc_world_renew(struct sc_world *world) {
    if (world->size > 1) return SPARK_COMM_WRONG_STATE;
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    world->epoch->number++;
    clear_cause(world);
    atomic_store_explicit(&world->gate, 0, memory_order_release);
    sc_lock_give(&world->verdict.lock);
    return SPARK_COMM_OK;
}

/* ---- Giving up ---- */

void sc_world_abort(struct sc_world *world) {
    struct sc_error error;

    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_ABORTED, world->rank, 0, "rank %d aborted", world->rank);
    sc_world_fault(world, &error);
}

/* Only this rank's calls end; the cause is final, and nobody is told. */
void sc_world_leave(struct sc_world *world) {
    struct sc_error error;

    atomic_store_explicit(&world->leaving, true, memory_order_relaxed);
    sc_error_clear(&error);
    sc_error_set(&error, SPARK_COMM_ABORTED, world->rank, 0,
                 "rank %d closed its communicator while this call ran", world->rank);
    sc_world_pin(world);
    adopt(world, &error, SC_CAUSE_FINAL);
    sc_world_unpin(world);
}
