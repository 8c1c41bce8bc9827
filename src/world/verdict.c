/*
 * The first cause of a failure. A rank that finds a fault poisons itself at once with its own words,
 * its suspicion, and judge.c makes one sentence of it that all ranks take over (final). Callers
 * whose wait was ended get the final words.
 *
 * The cause is written before the poison word (release); whoever acquires a poison that is not 0
 * finds a cause. The states of a cause only go up: none, own, final.
 */
#include <stdio.h>
#include <string.h>

#include "base/deadline.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)
#define LOOK_NS (20 * NS_PER_MS)
/* How long a caller waits for the final words: while the world opens and after an abort, on one host (then it decides
 * by itself, see judge.c), between hosts. A wait in which this process was stopped counts as one look: what the others
 * have said meanwhile is still to be read. */
#define SHORT_WAIT_NS (200 * NS_PER_MS)
#define LOCAL_WAIT_NS (500 * NS_PER_MS)
#define REMOTE_WAIT_NS (3000 * NS_PER_MS)

void sc_verdict_init(struct sc_verdict *verdict) {
    memset(verdict, 0, sizeof *verdict);
    sc_error_clear(&verdict->cause);
}

static void count_lost(struct sc_world *world, const struct sc_error *cause) {
    if (cause->status != SPARK_COMM_PEER_LOST || cause->peer < 0 || world->epoch == NULL) return;
    atomic_store_explicit(&world->epoch->lost_rank, cause->peer, memory_order_relaxed);
    atomic_store_explicit(&world->epoch->lost_count, 1, memory_order_relaxed);
}

/* What became of a cause that was offered. */
enum adoption { IGNORED, REPLACED, FIRST };

/* Under the lock. The first one poisons; a later one only replaces words that are not final. */
static enum adoption store_cause(struct sc_world *world, const struct sc_error *cause,
                                 enum sc_cause_state state) {
    struct sc_verdict *verdict = &world->verdict;
    uint32_t old = atomic_load_explicit(&verdict->state, memory_order_relaxed);

    if (old == SC_CAUSE_FINAL || (old == SC_CAUSE_OWN && state == SC_CAUSE_OWN)) return IGNORED;
    verdict->cause = *cause;
    verdict->cause.epoch = world->epoch != NULL ? sc_world_epoch(world) : 1;
    atomic_store_explicit(&verdict->state, state, memory_order_release);
    /* Release: partner of every acquire of the poison word. */
    atomic_store_explicit(&world->poison, (uint32_t)cause->status, memory_order_release);
    atomic_store_explicit(&world->gate, (uint32_t)cause->status, memory_order_release);
    if (world->epoch != NULL &&
        atomic_load_explicit(&world->epoch->lost_count, memory_order_relaxed) == 0)
        count_lost(world, cause);
    return old == SC_CAUSE_NONE ? FIRST : REPLACED;
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

static enum adoption adopt(struct sc_world *world, const struct sc_error *cause,
                           enum sc_cause_state state) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    enum adoption adoption = store_cause(world, cause, state);
    sc_lock_give(&verdict->lock);
    if (adoption == IGNORED) return adoption;
    sc_log_write(world->log, state == SC_CAUSE_FINAL ? SPARK_COMM_LOG_ERROR : SPARK_COMM_LOG_INFO,
                 "rank %d: %s", world->rank, cause->message);
    if (adoption == FIRST) {
        sc_lock_take(&verdict->interrupt_lock, SC_DEADLINE_NEVER, NULL);
        interrupt(verdict);
        sc_lock_give(&verdict->interrupt_lock);
    }
    sc_verdict_wake(world);
    return adoption;
}

enum sc_cause_state sc_verdict_state(const struct sc_world *world) {
    /* Acquire: partner is store_cause. */
    return (enum sc_cause_state)atomic_load_explicit(&world->verdict.state, memory_order_acquire);
}

void sc_verdict_send(struct sc_world *world, int rank, enum sc_wire_kind kind,
                     const struct sc_error *cause) {
    /* R8: before the outcome the hub alone decides, and what it decides is FAIL. */
    if (world->monitor.phase != SC_PHASE_RUNNING)
        kind = sc_is_hub(world) ? SC_WIRE_FAIL : SC_WIRE_FAULT;
    struct sc_wire_header header = sc_header(world, kind, SC_WIRE_FAULT_BYTES);
    uint8_t payload[SC_WIRE_FAULT_BYTES];

    sc_wire_put_fault(payload, cause);
    sc_link_send(world, &world->epoch->peers[rank].link, &header, payload, SC_LINK_NOW);
}

void sc_verdict_say(struct sc_world *world, int fd, enum sc_wire_kind kind,
                    const struct sc_error *cause) {
    struct sc_wire_header header = sc_header(world, kind, SC_WIRE_FAULT_BYTES);
    uint8_t record[SC_WIRE_HEADER_BYTES + SC_WIRE_FAULT_BYTES];

    sc_wire_put_header(record, &header);
    sc_wire_put_fault(record + SC_WIRE_HEADER_BYTES, cause);
    sc_socket_send(fd, record, sizeof record, 0, -1, NULL); /* all at once: its buffer is empty */
    shutdown(fd, SHUT_WR);
}

void sc_verdict_tell(struct sc_world *world, int rank, const struct sc_error *cause) {
    sc_verdict_send(world, rank, sc_is_hub(world) ? SC_WIRE_VERDICT : SC_WIRE_FAULT, cause);
}

void sc_verdict_spread(struct sc_world *world, enum sc_wire_kind kind, const struct sc_error *cause,
                       int except) {
    for (int rank = 0; rank < world->size; rank++) {
        uint32_t state = sc_peer_state(world->epoch, rank);
        if (rank == world->rank || rank == except) continue;
        /* One that was lost for its silence may wake. */
        if (state == SC_PEER_PRESENT || state == SC_PEER_LOST)
            sc_verdict_send(world, rank, kind, cause);
    }
}

static bool hub_hears(const struct sc_world *world) {
    return world->epoch != NULL && world->size > 1 && world->monitor.phase != SC_PHASE_GATHERING &&
           sc_peer_state(world->epoch, SC_HUB) == SC_PEER_PRESENT;
}

/* Before the outcome of an attempt: the hub's words count, as they are. */
static void fault_early(struct sc_world *world, const struct sc_error *suspect) {
    bool asks_hub = !sc_is_hub(world) && hub_hears(world);

    if (adopt(world, suspect, asks_hub ? SC_CAUSE_OWN : SC_CAUSE_FINAL) != FIRST) return;
    if (asks_hub)
        sc_verdict_tell(world, SC_HUB, suspect);
    else if (sc_is_hub(world) && world->epoch != NULL)
        sc_verdict_spread(world, SC_WIRE_VERDICT, suspect, -1);
}

void sc_world_fault(struct sc_world *world, const struct sc_error *suspect) {
    sc_world_pin(world, SC_PIN_FAULT);
    if (!sc_is_settled(world))
        fault_early(world, suspect);
    else if (adopt(world, suspect, SC_CAUSE_OWN) == FIRST)
        sc_judge_begin(world, suspect);
    sc_world_unpin(world, SC_PIN_FAULT);
}

void sc_verdict_repeat(struct sc_world *world, int rank) {
    struct sc_verdict *verdict = &world->verdict;
    struct sc_error cause;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    cause = verdict->cause;
    sc_lock_give(&verdict->lock);
    bool is_own_affair = atomic_load_explicit(&world->leaving, memory_order_relaxed);
    if (cause.status == SPARK_COMM_OK || is_own_affair) return;
    if (sc_verdict_state(world) == SC_CAUSE_FINAL)
        sc_verdict_send(world, rank, SC_WIRE_VERDICT, &cause);
    else if (sc_is_settled(world) && !world->epoch->one_host)
        sc_verdict_send(world, rank, sc_is_head(world) ? SC_WIRE_SUSPECT : SC_WIRE_FAULT, &cause);
}

void sc_verdict_adopt(struct sc_world *world, const struct sc_error *cause, int from) {
    if (adopt(world, cause, SC_CAUSE_FINAL) == IGNORED) return;
    if (sc_is_settled(world)) sc_verdict_spread(world, SC_WIRE_VERDICT, cause, from);
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
    sc_heir_follow(world);
    /* Whoever waits for an answer of that rank waits no longer: the hub may have been it. */
    sc_verdict_wake(world);
}

spark_comm_status sc_verdict_closed(struct sc_world *world, int rank, struct sc_error *error) {
    /* It may have closed because of a fault, which was told before its goodbye. */
    if (atomic_load_explicit(&world->poison, memory_order_acquire) != 0)
        return sc_verdict_end(world, error);
    return sc_error_set(error, SPARK_COMM_PEER_LOST, rank, 0, "rank %d closed", rank);
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

/* How long a caller waits for the final words. Under the lock. */
static int64_t patience(const struct sc_world *world) {
    if (!sc_is_settled(world)) {
        if (atomic_load_explicit(&world->given_up, memory_order_relaxed) != 0) return LOOK_NS;
        return hub_hears(world) ? SHORT_WAIT_NS : 0;
    }
    /* An abort shall end calls at once, also where the head does not answer. */
    if (world->verdict.cause.status == SPARK_COMM_ABORTED) return SHORT_WAIT_NS;
    return world->epoch->one_host ? LOCAL_WAIT_NS : REMOTE_WAIT_NS;
}

/* True: the state is OWN, and what it stands for is waited for no longer. */
static bool is_awaited(struct sc_world *world, const _Atomic uint32_t *give_up, int64_t *waited) {
    struct sc_verdict *verdict = &world->verdict;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    bool is_over = *waited >= patience(world);
    sc_lock_give(&verdict->lock);
    if (give_up != NULL && atomic_load_explicit(give_up, memory_order_acquire) != 0) return false;
    if (is_over && !(sc_is_settled(world) && world->epoch->one_host)) return false;
    if (is_over) {
        sc_judge_decide(world);
        return true;
    }
    int64_t before = sc_deadline_now();
    sc_wait_futex_sleep(&verdict->state, SC_CAUSE_OWN, before + LOOK_NS);
    *waited += sc_deadline_min(sc_deadline_now() - before, LOOK_NS);
    return true;
}

/* In the end the own words are final, so that every caller is given the same. */
static spark_comm_status find_cause(struct sc_world *world, struct sc_error *cause,
                                    const _Atomic uint32_t *give_up) {
    struct sc_verdict *verdict = &world->verdict;
    int64_t waited = 0;

    /* Not by the poison word: who waits for the final state (await_outcome) may see that first. */
    if (sc_verdict_state(world) == SC_CAUSE_NONE) return SPARK_COMM_WRONG_STATE;
    while (sc_verdict_state(world) == SC_CAUSE_OWN && is_awaited(world, give_up, &waited)) {
    }
    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    if (atomic_load_explicit(&verdict->state, memory_order_relaxed) == SC_CAUSE_OWN)
        atomic_store_explicit(&verdict->state, SC_CAUSE_FINAL, memory_order_release);
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

spark_comm_status sc_world_setup_cause(struct sc_world *world, struct sc_error *cause) {
    sc_world_pin(world, SC_PIN_CAUSE);
    spark_comm_status st = find_cause(world, cause, NULL);
    sc_world_unpin(world, SC_PIN_CAUSE);
    return st;
}

/* It may be put aside, and brought back, in between: there is none only once the gate is open. */
spark_comm_status sc_world_cause(struct sc_world *world, struct sc_error *cause) {
    spark_comm_status st = SPARK_COMM_OK;

    do {
        if (look_aside(world, cause)) return SPARK_COMM_OK;
        st = sc_world_setup_cause(world, cause);
        if (look_aside(world, cause)) return SPARK_COMM_OK;
    } while (st != SPARK_COMM_OK && atomic_load_explicit(&world->gate, memory_order_acquire) != 0);
    return st;
}

void sc_verdict_await_final(struct sc_world *world) {
    struct sc_error cause;

    find_cause(world, &cause, &world->given_up);
}

spark_comm_status sc_verdict_end(struct sc_world *world, struct sc_error *error) {
    struct sc_error cause;

    if (find_cause(world, &cause, NULL) != SPARK_COMM_OK)
        return sc_error_set(error, SPARK_COMM_ABORTED, -1, 0, "ended by a new epoch");
    if (error != NULL) *error = cause;
    return (spark_comm_status)cause.status;
}

bool sc_verdict_peek(struct sc_world *world, struct sc_error *cause) {
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    *cause = world->verdict.cause;
    sc_lock_give(&world->verdict.lock);
    return cause->status != SPARK_COMM_OK;
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

void sc_verdict_put_aside(struct sc_world *world) {
    struct sc_verdict *verdict = &world->verdict;
    struct sc_error own;

    sc_lock_take(&verdict->lock, SC_DEADLINE_NEVER, NULL);
    verdict->kept = verdict->cause;
    clear_cause(world);
    /* Until now the old cause has hidden it. */
    if (sc_world_gives_up(world, &own)) store_cause(world, &own, SC_CAUSE_FINAL);
    sc_lock_give(&verdict->lock);
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

/* ---- Giving up ---- */

static void say_given_up(const struct sc_world *world, bool leaves, struct sc_error *error) {
    sc_error_clear(error);
    sc_error_set(error, SPARK_COMM_ABORTED, world->rank, 0, "rank %d %s", world->rank,
                 leaves ? "closed its communicator while this call ran" : "aborted");
}

/* Under the lock: an attempt that puts the old cause aside finds either the word or, after it, the fault. */
static void give_up(struct sc_world *world, bool leaves, struct sc_error *error) {
    sc_lock_take(&world->verdict.lock, SC_DEADLINE_NEVER, NULL);
    if (leaves) atomic_store_explicit(&world->leaving, true, memory_order_relaxed);
    atomic_store_explicit(&world->given_up, 1, memory_order_release);
    sc_lock_give(&world->verdict.lock);
    say_given_up(world, leaves, error);
}

const _Atomic uint32_t *sc_world_given_up(const struct sc_world *world) {
    return &world->given_up;
}

bool sc_world_gives_up(const struct sc_world *world, struct sc_error *error) {
    if (atomic_load_explicit(&world->given_up, memory_order_acquire) == 0) return false;
    say_given_up(world, atomic_load_explicit(&world->leaving, memory_order_relaxed), error);
    return true;
}

void sc_world_abort(struct sc_world *world) {
    struct sc_error error;

    give_up(world, false, &error);
    sc_world_fault(world, &error);
    sc_world_pin(world, SC_PIN_FAULT);
    sc_verdict_wake(world); /* an attempt, where an older cause hides this one */
    sc_world_unpin(world, SC_PIN_FAULT);
}

/* Only this rank's calls end; the cause is final, and nobody is told. */
void sc_world_leave(struct sc_world *world) {
    struct sc_error error;

    give_up(world, true, &error);
    sc_world_pin(world, SC_PIN_FAULT);
    adopt(world, &error, SC_CAUSE_FINAL);
    sc_verdict_wake(world);
    sc_world_unpin(world, SC_PIN_FAULT);
}
