/*
 * Inside of src/world: what a world is made of. Three threads of control meet here: the thread that
 * opens and closes, the callers of the two lanes (at most one each), and the monitor. What each
 * field is guarded by is said beside it; "monitor" means the monitor's thread, or the opening
 * thread while there is no monitor yet, or after it has been joined.
 *
 * Everything that belongs to one epoch is in struct sc_epoch, which a reconnect replaces as a whole.
 *
 * Locks: those of a link, an inbox, a gather and the verdict are leaves, held for a few instructions
 * and a non-blocking system call at most. judge.lock is held while a sentence is written, and takes
 * the verdict's. interrupt_lock is held while the backend's interrupt runs,
 * and taken with no other lock held.
 */
#ifndef SC_WORLD_WORLD_STATE_H
#define SC_WORLD_WORLD_STATE_H

#include <poll.h>
#include <pthread.h>

#include "os/lock.h"
#include "os/socket.h"
#include "world/auth.h"
#include "world/judge.h"
#include "world/ring.h"
#include "world/wire.h"
#include "world/world.h"

#define SC_WORLD_MAX_RANKS 4096 /* the range of world_size */
#define SC_HUB 0 /* rank of the hub */

/* How long a caller may take from connecting to a whole hello, and a listener to answer. */
#define SC_HANDSHAKE_MS 5000
/* Callers that may be half-way at once, besides one for each rank; the oldest has to go. */
#define SC_DOOR_CALLERS 64
#define SC_DOOR_LISTENERS 16
/* Up to here an all-gather finds its memory made at open, so that votes do not fail for want of it. */
#define SC_BALLOT_BYTES 256u

/* ---- link.c: one TCP connection that carries records ---- */

struct sc_link {
    struct sc_lock lock; /* guards fd's closing, all writing to it, and out* */
    int fd; /* -1: none. Opened and closed by the monitor, under the lock */
    uint8_t *out; /* what the socket did not take yet */
    size_t out_start, out_used, out_capacity;
    _Atomic uint32_t waits_out; /* 1: the monitor shall poll for POLLOUT. Relaxed; the wake-up
                                   descriptor carries the news */
    _Atomic uint32_t drained; /* futex: counts up as the queue shrinks, and on poison */
    uint8_t *in; /* monitor: the record that is arriving */
    size_t in_used, in_capacity;
};

/* ---- Peers ---- */

enum sc_peer_state { SC_PEER_ABSENT = 0, SC_PEER_PRESENT = 1, SC_PEER_LEFT = 2, SC_PEER_LOST = 3 };

/* A command that waits to be received. */
struct sc_letter {
    struct sc_letter *next;
    struct sc_wire_header header;
    uint8_t payload[];
};

struct sc_inbox {
    struct sc_lock lock; /* guards first and last */
    struct sc_letter *first, *last;
    _Atomic uint32_t count; /* release after a letter was added; acquire by the receiver */
    uint64_t taken; /* command lane: bytes received from this rank */
    uint64_t credited; /* command lane: and told to it */
};

/* All that this rank knows of another. The hub has a link to each; others have one to the hub, and
 * between hosts, once that is gone, one to its successor (heir.c). */
struct sc_peer {
    struct sc_link link;
    _Atomic uint32_t state; /* enum sc_peer_state; monitor; release after `goodbye` was written */
    _Atomic int64_t heard; /* CLOCK_MONOTONIC ns of the last bytes; relaxed */
    _Atomic bool farewell; /* it has read this rank's goodbye; release, acquire by close */
    struct sc_wire_lines goodbye; /* state LEFT: what it took part in; see goodbye.c */
    struct sc_wire_lines said; /* monitor, between hosts: its last status lines */
    int64_t said_at; /* when they came; 0: never */
    bool has_answered; /* monitor: it has told its lines since the fault */
    bool is_silent; /* monitor: lost, and nobody has seen it end */
    _Atomic uint64_t credit; /* bytes of this rank's commands that it has received; relaxed */
    struct sc_inbox inbox;
    int unix_fd; /* where memory is passed; the same star as the links. -1: none */
    int pidfd; /* -1: none */
    bool same_ids; /* hub: its host's ids are those of the hub */
    /* hub, of the claim that holds the place: what its hello said. `stated` is `seen`, or none of a
     * fresh one, whatever it has seen */
    struct sc_wire_epoch lived, stated;
    uint64_t instance;
    bool is_ready; /* hub: has said READY */
};

/* ---- gather.c ---- */

struct sc_gather {
    struct sc_lock lock; /* guards all but the atomics */
    /* hub: parts that have come */
    uint8_t *table;
    size_t table_capacity;
    uint8_t *arrived; /* by rank */
    struct sc_wire_header first; /* tag that the others must match; source is who came first */
    _Atomic uint32_t count; /* release after a part was stored; acquire by the hub's caller */
    uint32_t failed; /* a fault was found; parts are no longer taken */
    /* worker: where the result goes while its caller waits */
    uint8_t *result; /* NULL: nobody waits */
    size_t result_bytes, result_got;
    _Atomic uint32_t done; /* release after the last piece; acquire by the caller */
    _Atomic uint64_t rounds; /* gathers completed by this rank; data lane writes, relaxed */
};

/* ---- share.c: the world's segment ---- */

/* Where a rank of one host leaves its goodbye, for when the hub is no longer there to pass it on. */
struct sc_card {
    _Alignas(64) _Atomic uint32_t left; /* 1: closed; release after floor, acquire by readers */
    _Atomic uint64_t floor[SPARK_COMM_LANE_COUNT];
    _Atomic uint64_t gathers;
    /* Who it is, written once at open, and that its monitor lives, counted up at each tick. */
    _Atomic int32_t pid; /* release after the namespace; 0: not written yet */
    _Atomic uint64_t pid_namespace;
    _Atomic uint64_t beats;
};

/* Where a rank of one host writes its verdict; judge.c says which of them counts. */
struct sc_verdict_slot {
    _Alignas(64) uint8_t fault[SC_WIRE_FAULT_BYTES];
};

struct sc_segment {
    struct sc_mapping mapping;
    struct sc_world_line *lines; /* by rank * SPARK_COMM_LANE_COUNT + lane */
    struct sc_wait_doorbell *bells; /* the same */
    struct sc_card *cards; /* by rank */
    struct sc_verdict_slot *slots; /* by rank */
    _Atomic uint32_t *winner; /* whose slot counts: its rank plus 1; 0: there is no verdict yet */
    void *rings;
};

/* ---- One epoch ---- */

struct sc_epoch {
    int size;
    _Atomic uint32_t number; /* 0 until the rendezvous is complete */
    struct sc_world_member *members;
    struct sc_peer *peers; /* by rank; the own one is not used */
    struct sc_wire_welcome welcome;
    struct sc_segment segment;
    uint8_t
        *ballots; /* data lane: SC_BALLOT_BYTES for each rank; votes need no memory of their own */
    uint32_t regions; /* counts the regions shared; data lane, alike on all ranks */
    uint64_t votes; /* counts the votes on them; the same */
    struct sc_gather gather;

    _Atomic uint32_t ready_ranks; /* hub: that have said READY; release, acquire by its caller */
    _Atomic bool committed; /* worker: COMMIT has come; release, acquire by its caller */

    /* Set by the opening thread before `ready` (release), read by anybody after it (acquire). */
    _Atomic bool ready;
    bool one_host;
    struct sc_world_line *lines; /* in the segment, or private */
    struct sc_world_line *private_lines;
    struct sc_wait_policy policy[SPARK_COMM_LANE_COUNT];
    struct sc_wait_doorbell **command_bells; /* by rank; for the rings */
    struct sc_ring_set rings;

    /* Waits of this rank's callers for its own monitor: records that come over TCP. */
    struct sc_wait_doorbell *inner_bells; /* by lane */
    struct sc_wait_policy inner[SPARK_COMM_LANE_COUNT];

    uint64_t commands_sent; /* command lane: bytes, headers included, of this rank's commands */
    _Atomic int32_t hub; /* who judges: the lowest live rank. Monitor writes, relaxed */
    int link_end; /* monitor: no rank from here on has a link or a pidfd */
    int64_t
        heir_until; /* monitor: until then a head that cannot be reached may have said goodbye; see heir.c */
    _Atomic bool has_said_goodbye; /* close has begun. Release */
    struct sc_judge judge;
    _Atomic uint32_t left_count; /* peers in state LEFT; release */
    _Atomic int32_t lost_count; /* for health; relaxed */
    _Atomic int32_t lost_rank; /* lowest; relaxed */
};

/* ---- door.c: callers that have not proved who they are ---- */

struct sc_caller {
    bool is_used; /* in the pool */
    int fd;
    bool is_unix;
    bool is_local; /* loopback, or from an address of this host */
    bool is_leaving; /* was told why not; only its end of file is awaited */
    bool is_parked; /* hub: its hello, in `in`, waits for an answer */
    uint32_t judged_in; /* parked: the phase in which it was judged last */
    bool said_preamble;
    int64_t deadline;
    struct sc_socket_address from;
    uint8_t its_nonce[SC_WIRE_NONCE_BYTES];
    uint8_t our_nonce[SC_WIRE_NONCE_BYTES];
    size_t got;
    uint8_t in[SC_WIRE_HELLO_BYTES];
};

#define SC_DOOR_REFUSALS 4
struct sc_refusal {
    int rank; /* 0: none */
    char text[160]; /* what follows "rank 2 " */
};

struct sc_door { /* monitor */
    int listeners[SC_DOOR_LISTENERS];
    int listener_count;
    int unix_listener;
    struct sc_caller **callers; /* oldest first; NULL: gone, closed up in the next round */
    struct sc_caller *pool; /* made at open, so that a reconnect does not fail for want of it */
    int caller_count, caller_capacity;
    int64_t paused_until; /* no descriptors were left */
    uint64_t strangers; /* dropped so far */
    /* hub: why ranks are missing, since it began to gather. The last ranks that were turned away, and
     * the last caller that gave no rank. */
    struct sc_refusal refusals[SC_DOOR_REFUSALS];
    uint64_t refused; /* so many; the last is at (refused - 1) % SC_DOOR_REFUSALS */
    uint64_t dropped;
    char last_dropped[160];
    struct sc_error failure; /* of this side's own, with a caller that may be a true rank */
    struct sc_socket_address own; /* worker: address of its listener */
    /* hub: its own call to the master address (R2) */
    bool is_probing;
    bool met_itself; /* it came back to this door */
    uint8_t probe_nonce[SC_WIRE_NONCE_BYTES];
};

/* ---- monitor.c ---- */

enum sc_phase {
    SC_PHASE_GATHERING, /* hub: ranks are coming (R3 to R5). Worker: accepted, waits for WELCOME */
    SC_PHASE_SETTING_UP, /* from WELCOME (R6) to the outcome */
    SC_PHASE_RUNNING /* in an epoch, good or poisoned; or after an attempt that failed */
};

struct sc_monitor {
    pthread_t thread;
    bool is_running;
    int wake_fd;
    _Atomic bool stop; /* release; acquire by the thread */
    _Atomic uint32_t phase; /* enum sc_phase; at a commit written by the hub's caller (release) */
    struct pollfd *fds;
    int *ranks; /* beside fds: whose link or pidfd it is */
    size_t capacity;
    int64_t round_at; /* when poll returned last */
    int64_t heartbeat_at; /* when the next one is due */
    int64_t heartbeat_ns; /* from one to the next */
    int64_t liveness_ns; /* SC_DEADLINE_NEVER: off */
    uint64_t pair_begun; /* goodbye.c: point to point that may wait in vain, and how long yet */
    int64_t pair_until;
};

/* ---- verdict.c ---- */

enum sc_cause_state { SC_CAUSE_NONE = 0, SC_CAUSE_OWN = 1, SC_CAUSE_FINAL = 2 };

struct sc_verdict {
    struct sc_lock lock; /* guards cause */
    _Atomic uint32_t state; /* futex; enum sc_cause_state, written under the lock */
    struct sc_error cause;
    struct sc_lock interrupt_lock; /* held while interrupt runs, and while it is changed */
    void (*interrupt)(void *arg);
    void *interrupt_arg;
    bool was_interrupted; /* it has been called */
    struct sc_error kept; /* under lock; while a reconnect runs: the cause of the epoch before */
};

struct sc_world {
    struct sc_world_line idle_lines[SPARK_COMM_LANE_COUNT]; /* stand in while there are no others */
    _Alignas(64) _Atomic uint32_t poison; /* release after the cause; also a futex */
    /* What callers look at: as poison, but stays set while a reconnect runs, whose own waits need a
     * poison word that is clear. Release after poison. */
    _Atomic uint32_t gate;
    const struct sc_settings *settings;
    const struct sc_log *log;
    int rank, size;
    _Atomic bool leaving; /* sc_world_leave was called: calls of this rank were cut off. Relaxed */
    struct sc_auth auth;
    /* An abort, or a close, of this rank: the attempt that runs, or its next step, ends. Written under the
     * verdict's lock, release; looked at with acquire. */
    _Atomic uint32_t given_up;
    struct sc_epoch *_Atomic epoch; /* replaced by the caller of a reconnect; see sc_world_pin */
    /* Made at open, so that no attempt fails for want of it: the next epoch, or, while threads are inside it
     * still, the one before. NULL with one rank. */
    struct sc_epoch *spare;
    bool is_spare_used; /* it is the one before */
    _Atomic uint32_t pins[SC_PIN_KINDS]; /* threads that may look into an epoch and hold no lane */
    struct sc_wire_epoch lived, seen; /* reconnect.c: see there */
    _Atomic uint32_t entered; /* lived.number, for any thread; relaxed */
    uint64_t instance;
    int64_t setup_until; /* from WELCOME on: the limit of the set-up (R7) */
    bool is_replaced; /* hub: another process is rank 0 now (R2, R4b) */
    const struct sc_error
        *refusal; /* hub, as it ends an attempt: what whoever still comes is told */
    struct sc_door door;
    struct sc_monitor monitor;
    struct sc_verdict verdict;
    /* Bit per rank with which the running group exchanges messages. Data lane writes, relaxed: the
     * line's submit_ticks is released after it, and the monitor acquires that. */
    _Atomic uint64_t group_peers[SC_WORLD_MAX_RANKS / 64];
    char head[80]; /* text: address of the hub */
};

static inline bool sc_is_hub(const struct sc_world *world) {
    return world->rank == SC_HUB;
}

/* Does this rank judge, in the hub's place or as the hub? */
static inline bool sc_is_head(const struct sc_world *world) {
    return atomic_load_explicit(&world->epoch->hub, memory_order_relaxed) == world->rank;
}

static inline uint32_t sc_peer_state(const struct sc_epoch *epoch, int rank) {
    return atomic_load_explicit(&epoch->peers[rank].state, memory_order_acquire);
}

/* Do the ranks share the state that a verdict is made from? Not while an epoch is agreed, nor after
 * an attempt that failed. */
static inline bool sc_is_settled(const struct sc_world *world) {
    return world->size > 1 && world->epoch != NULL && world->monitor.phase == SC_PHASE_RUNNING &&
           atomic_load_explicit(&world->epoch->ready, memory_order_acquire);
}

/* A header of this rank's own, in the present epoch. */
static inline struct sc_wire_header sc_header(const struct sc_world *world, enum sc_wire_kind kind,
                                              size_t bytes) {
    return (struct sc_wire_header){.kind = (uint16_t)kind,
                                   .epoch = world->epoch->number,
                                   .source = world->rank,
                                   .bytes = (uint32_t)bytes};
}

/* ---- link.c ---- */

#define SC_LINK_NOW 0 /* as a deadline: never waits, and may exceed the queue's limit */

/* Its memory, before a connection depends on it. The link is not open. */
spark_comm_status sc_link_reserve(struct sc_link *link, struct sc_error *error);
/* Takes `fd` over, but not on failure. */
spark_comm_status sc_link_open(struct sc_link *link, int fd, struct sc_error *error);
void sc_link_close(struct sc_link *link);
bool sc_link_is_open(struct sc_link *link); /* any thread */
/* Written or queued: OK. PEER_LOST: the link is closed. Waits while more than 1 MiB is queued:
 * OP_TIMEOUT, ABORTED. NO_MEMORY: nothing was written. Any thread. */
spark_comm_status sc_link_send(struct sc_world *world, struct sc_link *link,
                               const struct sc_wire_header *header, const void *payload,
                               int64_t deadline);
/* Writes what is queued, as far as the socket takes it. Monitor. */
void sc_link_flush(struct sc_link *link);
/* Wakes whoever waits for the queue. */
void sc_link_shake(struct sc_link *link);
/* Reads what has come and hands every whole record to sc_monitor_take. PEER_LOST at the end,
 * BACKEND for bytes that are no record, NO_MEMORY. Monitor. */
spark_comm_status sc_link_read(struct sc_world *world, int rank);

/* ---- monitor.c ---- */

spark_comm_status sc_monitor_prepare(struct sc_world *world, struct sc_error *error);
spark_comm_status sc_monitor_start(struct sc_world *world, struct sc_error *error);
void sc_monitor_stop(struct sc_world *world);
void sc_monitor_release(struct sc_world *world);
/* One round: waits until `until` at most, then handles all that is ready. */
spark_comm_status sc_monitor_step(struct sc_world *world, int64_t until, struct sc_error *error);
/* One record from `rank`'s link. */
void sc_monitor_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                     const uint8_t *payload);
/* Sends this rank's status lines. Any thread. */
void sc_monitor_tell_lines(struct sc_world *world, int rank, int flavour);
/* Makes the monitor look around. Any thread. */
void sc_monitor_poke(struct sc_world *world);
/* Forgets that it was poked. Whoever runs the monitor's rounds. */
void sc_monitor_drain(struct sc_world *world);

/* ---- gather.c ---- */

/* Whose gather it is: the two are numbered apart. */
enum { SC_GATHER_LANE = 0, SC_GATHER_WORLD = 1 };

spark_comm_status sc_gather_run(struct sc_world *world, uint16_t flavour, uint64_t number,
                                uint32_t digest, const void *send, void *recv, size_t bytes,
                                int64_t deadline, struct sc_error *error);
void sc_gather_take_part(struct sc_world *world, const struct sc_wire_header *header,
                         const uint8_t *payload);
void sc_gather_take_result(struct sc_world *world, const struct sc_wire_header *header,
                           const uint8_t *payload);

/* ---- share.c ---- */

/* Hub: makes the segment and the Unix socket, if any member may be on this host. */
spark_comm_status sc_share_offer(struct sc_world *world, struct sc_error *error);
/* Worker: fetches the segment, if it can be had; only what this process lacks is an error. */
spark_comm_status sc_share_fetch(struct sc_world *world, int64_t deadline, struct sc_error *error);
/* Hub: answers a caller of the Unix socket that has shown `ticket`. True: its socket is kept. */
bool sc_share_admit(struct sc_world *world, int fd, const uint8_t *ticket);
/* All: decides alike whether this is one host and how to wait; opens rings, lines and doorbells. */
spark_comm_status sc_share_vote(struct sc_world *world, int64_t deadline, struct sc_error *error);

/* ---- command_lane.c ---- */

void sc_command_lane_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                          const uint8_t *payload);
void sc_command_lane_credit(struct sc_world *world, const struct sc_wire_header *header);

/* ---- lines.c ---- */

static inline int sc_lines_kind(uint64_t descriptor) {
    return (int)(descriptor & 0xff);
}
static inline int sc_lines_peer(uint64_t descriptor) {
    return (int)(int32_t)(uint32_t)(descriptor >> 32);
}
static inline struct sc_world_line *sc_lines_of(const struct sc_epoch *epoch, int rank, int lane) {
    return &epoch->lines[rank * SPARK_COMM_LANE_COUNT + lane];
}
/* Point to point, which takes no number of the lane. */
bool sc_lines_is_message(int kind);
/* What collective `number` was; false when that is not known any more, or not yet. */
bool sc_lines_past(const struct sc_world_line *line, uint64_t number, uint64_t *descriptor,
                   uint64_t *bytes);
/* Monitor, or with the judge's lock on one host. */
void sc_lines_view(const struct sc_world *world, int rank, struct sc_view *view);
/* A heartbeat. Monitor. */
void sc_lines_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                   const uint8_t *payload);

/* ---- sentence.c ---- */

/* Puts the verdict's words into `cause`, where the lines say more than it does, and the operation
 * concerned. */
void sc_sentence_write(struct sc_world *world, struct sc_view *views, struct sc_error *cause);
struct sc_sentence_side {
    int rank;
    uint64_t descriptor, number, bytes;
    bool is_past; /* it has left that call */
};
void sc_sentence_differ(struct sc_error *error, const struct sc_sentence_side *one,
                        const struct sc_sentence_side *other);

/* ---- judge.c ---- */

/* A suspicion became this rank's cause. Any thread. */
void sc_judge_begin(struct sc_world *world, const struct sc_error *cause);
/* What is due; returns when to come back. Monitor. */
int64_t sc_judge_step(struct sc_world *world);
/* Between hosts: SUSPECT has come from `rank`. If that is the head, it lives. Monitor. */
void sc_judge_hear(struct sc_world *world, int rank);
/* Makes the sentence final now, on this rank alone if it has to be. Any thread. */
void sc_judge_decide(struct sc_world *world);

/* ---- heir.c ---- */

/* Between hosts: the hub's place is taken by the lowest live rank. After a rank was lost or has left.
 * Monitor. */
void sc_heir_follow(struct sc_world *world);
/* Tries again to reach a head that may have said goodbye; returns when to come back. Monitor. */
int64_t sc_heir_step(struct sc_world *world, int64_t now);
/* Is this a head whose goodbye may still be on its way? Then its end is no loss yet. Monitor. */
bool sc_heir_may_have_left(const struct sc_world *world, int rank);
/* The head gives no answer. Monitor. */
void sc_heir_doubt(struct sc_world *world);
/* A caller whose first record is KIN (SC_WIRE_KIN_BYTES). True: it is a member, and its socket is now
 * that member's link. Monitor. */
bool sc_heir_admit(struct sc_world *world, int fd, const uint8_t *in);

/* ---- mismatch.c ---- */

/* Is an own wait one that can never end, since the ranks' calls differ? Then it is a fault. At each
 * tick. Says whether a call of the data lane runs. Monitor. */
bool sc_mismatch_check(struct sc_world *world);
/* Gives a MISMATCH that a backend found the words of both sides, as far as the lines have them. */
void sc_mismatch_describe(struct sc_world *world, struct sc_view *views, struct sc_error *cause);

/* ---- watch.c ---- */

/* One host, monitor: the ranks among themselves, without the hub. Opens pidfds once the hub has
 * gone, and at each tick looks at cards and pulses. */
void sc_watch_begin(struct sc_world *world);
void sc_watch_tick(struct sc_world *world, int64_t now);
/* Marks as lost whoever has ended without a goodbye. */
void sc_watch_find_dead(struct sc_world *world);

/* ---- verdict.c ---- */

void sc_verdict_init(struct sc_verdict *verdict);
/* The one sentence: becomes the cause, is told to all that have a link but `from`, unless there is
 * one already. */
void sc_verdict_adopt(struct sc_world *world, const struct sc_error *cause, int from);
/* The same over a connection that has become no link. Takes no memory. */
void sc_verdict_say(struct sc_world *world, int fd, enum sc_wire_kind kind,
                    const struct sc_error *cause);
/* Sends `cause` to `rank`: a VERDICT from the hub, a FAULT from others. */
void sc_verdict_tell(struct sc_world *world, int rank, const struct sc_error *cause);
/* The same as VERDICT, FAULT or SUSPECT. */
void sc_verdict_send(struct sc_world *world, int rank, enum sc_wire_kind kind,
                     const struct sc_error *cause);
/* Tells `rank` the cause, if there is one, so that no goodbye overtakes it. */
void sc_verdict_repeat(struct sc_world *world, int rank);
/* Tells every rank with an open link, but `except`. */
void sc_verdict_spread(struct sc_world *world, enum sc_wire_kind kind, const struct sc_error *cause,
                       int except);
enum sc_cause_state sc_verdict_state(const struct sc_world *world);
/* The cause as it stands in the present epoch or attempt; false: none. */
bool sc_verdict_peek(struct sc_world *world, struct sc_error *cause);
/* A rank is lost for this reason. Monitor. */
void sc_verdict_lose(struct sc_world *world, int rank, const char *how);
/* The failure of a call that needs `rank`, which has closed; or the cause, if there is one. */
spark_comm_status sc_verdict_closed(struct sc_world *world, int rank, struct sc_error *error);
/* For a wait that poison has ended: gives the cause, status and words. */
spark_comm_status sc_verdict_end(struct sc_world *world, struct sc_error *error);
/* For a wait of an attempt before R2: the same, with the words as they are once this rank gives up. */
void sc_verdict_await_final(struct sc_world *world);
/* Reconnect: puts the cause aside, so that the attempt can have one of its own: at once, if this rank has
 * given up. And brings it back: the attempt has failed. And forgets it: the new epoch, good or
 * poisoned already, is what callers see. */
void sc_verdict_put_aside(struct sc_world *world);
void sc_verdict_bring_back(struct sc_world *world);
void sc_verdict_forget(struct sc_world *world);
/* Wakes everything of this rank that waits, so that it looks again. */
void sc_verdict_wake(struct sc_world *world);

/* ---- goodbye.c ---- */

/* Says goodbye and waits for the farewells, at most close_timeout_ms. */
void sc_goodbye_say(struct sc_world *world);
/* One host: where ranks find it that cannot be told. */
void sc_goodbye_leave_card(struct sc_world *world);
/* To one rank. Any thread. */
void sc_goodbye_tell(struct sc_world *world, int rank);
void sc_goodbye_take(struct sc_world *world, int rank, const struct sc_wire_header *header,
                     const uint8_t *payload);
void sc_goodbye_take_farewell(struct sc_world *world, int rank);
/* Does an operation of this rank wait for one that has left? Then it is a fault. Monitor. */
void sc_goodbye_check(struct sc_world *world);
/* One host: goodbyes that nobody has passed on. Monitor. */
void sc_goodbye_read_cards(struct sc_world *world);
/* The rank that has left without number `number` of the lane; -1: none. */
int sc_goodbye_missing(const struct sc_epoch *epoch, int lane, uint64_t number);
/* The same for all-gathers. */
int sc_goodbye_missing_gather(const struct sc_epoch *epoch, uint64_t round);

/* ---- reconnect.c ---- */

/* Monitor: READY has come (R7), or COMMIT (R9). */
void sc_reconnect_take_ready(struct sc_world *world, const struct sc_wire_header *header,
                             const uint8_t *payload);
void sc_reconnect_take_commit(struct sc_world *world, const struct sc_wire_header *header);

/* ---- world.c ---- */

/* Lets go of what an epoch has and makes it one that has not begun. Takes no memory. */
void sc_world_clear_epoch(const struct sc_world *world, struct sc_epoch *epoch);
/* After the rendezvous: memory, monitor and the vote on them. */
spark_comm_status sc_world_settle(struct sc_world *world, struct sc_error *error);

/* A world that is not open yet; NULL when memory ran out. Destroy takes any half-built one. */
struct sc_world *sc_world_create(const struct sc_settings *settings, const struct sc_log *log);
/* Adds to an error of too few descriptors how many this rank needs. */
void sc_world_name_descriptors(const struct sc_world *world, struct sc_error *error);
void sc_world_destroy(struct sc_world *world);
void sc_world_fill_lines(const struct sc_world *world, struct sc_wire_lines *lines);

#include "world/rendezvous.h"

#endif
