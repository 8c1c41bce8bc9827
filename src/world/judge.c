/*
 * From a suspicion to one sentence, the same on all ranks.
 *
 * On one host every rank reads all status lines itself, dead ranks' too, so whoever has a suspicion
 * writes the sentence: into its own slot of the shared segment, which then wins or loses by one
 * compare-and-swap of `winner`. A rank that dies half-way has not won, one that is stopped and wakes
 * finds another winner, and nobody needs the hub. The word that a rank won is passed on over the
 * links, and every monitor looks at it at each tick besides. A loss is given a moment for a second
 * one to come with it.
 *
 * Between hosts the head judges: the hub, or its successor (heir.c). It tells all ranks of the
 * suspicion (SUSPECT), which poisons them and asks for their lines, waits a moment for the answers
 * (a rank that gives none is said to give none), and sends the sentence (VERDICT). A rank that has a
 * final sentence already answers with that, and it counts: so what a hub told a single rank before
 * it died is what all are told in the end. So does a head that was slow: see LATE_NS.
 */
#include <string.h>

#include "base/deadline.h"
#include "world/world_state.h"

#define NS_PER_MS INT64_C(1000000)
#define GRACE_NS (2 * NS_PER_MS) /* for a second loss */
#define LOSS_ANSWER_NS (30 * NS_PER_MS) /* for the lines of the others, after a loss */
#define ANSWER_NS (100 * NS_PER_MS) /* and otherwise */
#define HEAD_PATIENCE_NS (700 * NS_PER_MS) /* for the head's sentence, from its last word on */
/* A head that has let the others wait so long asks again, and listens for a sentence that one of them has made
 * meanwhile, before it makes its own. Together with what a record takes it is less than their patience. */
#define LATE_NS (350 * NS_PER_MS)
#define LATE_ANSWER_NS (250 * NS_PER_MS)
#define UNREAD_NS (50 * NS_PER_MS) /* since poll: what has come meanwhile is read first */

/* ---- The slots ---- */

/* Under judge.lock. Leaves in `cause` what won. */
static void publish(struct sc_world *world, struct sc_error *cause) {
    struct sc_segment *segment = &world->epoch->segment;
    uint32_t winner = atomic_load_explicit(segment->winner, memory_order_acquire);
    struct sc_error won;

    /* A slot that has won is never written again, by a second thread of this rank either. */
    if (winner == 0) {
        sc_wire_put_fault(segment->slots[world->rank].fault, cause);
        /* Release: whoever reads the winner reads its slot. Acquire: the same, when another won. */
        if (atomic_compare_exchange_strong_explicit(segment->winner, &winner,
                                                    (uint32_t)world->rank + 1, memory_order_acq_rel,
                                                    memory_order_acquire))
            return;
    }
    sc_error_clear(&won);
    if (winner <= (uint32_t)world->size &&
        sc_wire_get_fault(segment->slots[winner - 1].fault, SC_WIRE_FAULT_BYTES, world->size,
                          &won) &&
        won.status != SPARK_COMM_OK)
        *cause = won;
}

/* ---- The sentence ---- */

/* Between hosts: has nobody been heard for long? Then it is this rank that is cut off. */
static bool is_cut_off(const struct sc_world *world) {
    const struct sc_epoch *epoch = world->epoch;
    int64_t now = sc_deadline_now(), limit = world->monitor.liveness_ns / 2;
    int silent = 0;

    for (int rank = 0; rank < world->size; rank++) {
        const struct sc_peer *peer = &epoch->peers[rank];
        uint32_t state = sc_peer_state(epoch, rank);
        if (rank == world->rank || state == SC_PEER_LEFT) continue;
        bool is_quiet = atomic_load_explicit(&peer->heard, memory_order_relaxed) < now - limit;
        if (!(state == SC_PEER_LOST && peer->is_silent) && !is_quiet) return false;
        silent++;
    }
    return silent > 0;
}

static void tell_cut_off(const struct sc_world *world, struct sc_error *cause) {
    struct sc_error old = *cause;

    sc_error_set(cause, SPARK_COMM_PEER_LOST, old.peer, old.native_code,
                 "rank %d is cut off from all others and judges alone: %.400s", world->rank,
                 old.message);
}

/* Between hosts old words do not count, but for those of a rank that can say no more. */
static void view_for_verdict(const struct sc_world *world, int rank, struct sc_view *view) {
    sc_lines_view(world, rank, view);
    if (!world->epoch->one_host && rank != world->rank && view->state == SC_PEER_PRESENT)
        view->has_word = world->epoch->peers[rank].has_answered;
}

void sc_judge_decide(struct sc_world *world) {
    struct sc_judge *judge = &world->epoch->judge;
    struct sc_error cause;

    sc_lock_take(&judge->lock, SC_DEADLINE_NEVER, NULL);
    bool is_open = sc_verdict_state(world) == SC_CAUSE_OWN && sc_verdict_peek(world, &cause);
    if (is_open) {
        for (int rank = 0; rank < world->size; rank++)
            view_for_verdict(world, rank, &judge->views[rank]);
        if (cause.status == SPARK_COMM_MISMATCH)
            sc_mismatch_describe(world, judge->views, &cause);
        else
            sc_sentence_write(world, judge->views, &cause);
        if (world->epoch->one_host)
            publish(world, &cause);
        else if (cause.status == SPARK_COMM_PEER_LOST && is_cut_off(world))
            tell_cut_off(world, &cause);
    }
    sc_lock_give(&judge->lock);
    if (is_open) sc_verdict_adopt(world, &cause, -1);
}

/* ---- Its way there ---- */

void sc_judge_begin(struct sc_world *world, const struct sc_error *cause) {
    struct sc_epoch *epoch = world->epoch;
    bool is_loss = cause->status == SPARK_COMM_PEER_LOST && cause->peer >= 0 &&
                   cause->peer < world->size && sc_peer_state(epoch, cause->peer) == SC_PEER_LOST;

    /* The other side of a mismatch may be about to write its line. */
    if (epoch->one_host && !is_loss && cause->status != SPARK_COMM_MISMATCH) {
        sc_judge_decide(world);
        return;
    }
    atomic_store_explicit(&epoch->judge.is_loss, is_loss, memory_order_relaxed);
    /* Release: partner is sc_judge_step. */
    atomic_store_explicit(&epoch->judge.since, sc_deadline_now(), memory_order_release);
    if (!epoch->one_host && !sc_is_head(world))
        sc_verdict_send(world, atomic_load_explicit(&epoch->hub, memory_order_relaxed),
                        SC_WIRE_FAULT, cause);
    sc_monitor_poke(world);
}

static bool have_all_answered(const struct sc_world *world) {
    for (int rank = 0; rank < world->size; rank++)
        if (rank != world->rank && sc_peer_state(world->epoch, rank) == SC_PEER_PRESENT &&
            !world->epoch->peers[rank].has_answered)
            return false;
    return true;
}

static void ask_all(struct sc_world *world, int64_t since, int64_t now) {
    struct sc_judge *judge = &world->epoch->judge;
    bool is_late = now - (judge->asked_at != 0 ? judge->asked_at : since) > LATE_NS;
    struct sc_error cause;

    if (judge->asked_at != 0 && !is_late) return;
    judge->asked_at = now;
    judge->is_late |= is_late;
    if (sc_verdict_peek(world, &cause)) sc_verdict_spread(world, SC_WIRE_SUSPECT, &cause, -1);
}

void sc_judge_hear(struct sc_world *world, int rank) {
    struct sc_judge *judge = &world->epoch->judge;

    if (rank == atomic_load_explicit(&world->epoch->hub, memory_order_relaxed) &&
        atomic_load_explicit(&judge->since, memory_order_relaxed) != 0)
        atomic_store_explicit(&judge->since, sc_deadline_now(), memory_order_release);
}

/* Do the ranks' lines say more than the cause does? */
static bool needs_lines(struct sc_world *world) {
    struct sc_error cause;

    return sc_verdict_peek(world, &cause) &&
           (cause.status == SPARK_COMM_OP_TIMEOUT || cause.status == SPARK_COMM_PEER_LOST ||
            cause.status == SPARK_COMM_MISMATCH);
}

int64_t sc_judge_step(struct sc_world *world) {
    struct sc_judge *judge = &world->epoch->judge;
    int64_t since = atomic_load_explicit(&judge->since, memory_order_acquire);
    bool is_loss = atomic_load_explicit(&judge->is_loss, memory_order_relaxed);

    /* Before there is a suspicion the epoch may still be in its making: nothing of it is read. */
    if (since == 0 || sc_verdict_state(world) != SC_CAUSE_OWN) return SC_DEADLINE_NEVER;
    int64_t now = sc_deadline_now();
    judge->reads_first =
        !world->epoch->one_host && !judge->reads_first && now - world->monitor.round_at > UNREAD_NS;
    if (judge->reads_first) return now;
    int64_t due = since + (is_loss || world->epoch->one_host ? GRACE_NS : 0);
    if (!world->epoch->one_host && !sc_is_head(world)) {
        if (now < since + HEAD_PATIENCE_NS) return since + HEAD_PATIENCE_NS;
        sc_heir_doubt(world); /* starts anew with another head */
        return now;
    }
    if (!world->epoch->one_host) {
        ask_all(world, since, now);
        if (judge->is_late)
            due = judge->asked_at + LATE_ANSWER_NS;
        else if (needs_lines(world) && !have_all_answered(world))
            due = since + (is_loss ? LOSS_ANSWER_NS : ANSWER_NS);
    }
    if (now < due) return due;
    if (world->epoch->one_host) sc_watch_find_dead(world);
    sc_judge_decide(world);
    return SC_DEADLINE_NEVER;
}
