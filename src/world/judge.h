/* What an epoch keeps for its verdict: views of all ranks, and the way from a suspicion to a sentence.
 * See lines.c, sentence.c and judge.c. */
#ifndef SC_WORLD_JUDGE_H
#define SC_WORLD_JUDGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"
#include "world/wire.h"

enum { SC_LINES_ANSWER = 1 }; /* flavour of a heartbeat that answers to a fault */

enum sc_view_mark { SC_VIEW_PLAIN, SC_VIEW_LATE, SC_VIEW_WAITS, SC_VIEW_SILENT, SC_VIEW_LOST };

/* A copy of what is known of one rank. */
struct sc_view {
    struct sc_wire_lines lines;
    uint32_t state; /* enum sc_peer_state */
    bool has_word;
    uint8_t mark; /* enum sc_view_mark; while a sentence is written */
    int32_t before; /* mismatch.c: the rank that waits for this one */
};

struct sc_judge {
    struct sc_lock lock; /* guards views, and this rank's slot */
    struct sc_view *views; /* by rank */
    _Atomic int64_t since; /* when the suspicion came; 0: none. Release */
    _Atomic bool is_loss; /* a second loss may follow at once. Relaxed, before `since` */
    int64_t asked_at; /* monitor, between hosts: when the others were told of the suspicion; 0: not yet */
    bool reads_first; /* monitor: this round judges nothing; see UNREAD_NS */
    bool is_late; /* monitor: this head has let them wait, and one of them may have judged in its place */
    int64_t tick_at; /* monitor: when own waits are looked at next */
    /* monitor: a mismatch that was seen at the last tick; believed at the second */
    uint64_t seen_begun;
    int seen_rank;
    /* monitor: beats seen on the cards, by rank, and when they changed; NULL: not watched */
    struct sc_pulse {
        uint64_t beats;
        int64_t at;
    } * pulses;
};

#endif
