/*
 * The world: which ranks there are, that they live, and the control plane between them. Rank 0 is
 * the hub of a star of TCP connections that stays open; on one host a shared segment (status lines,
 * doorbells, command rings) goes besides.
 *
 * Threads: one monitor per world (none with one rank). It owns every socket's reading side and
 * never blocks on a send; it touches sockets and memory only. Callers come from the api layer,
 * which holds the lane's lock: at most one caller per lane.
 *
 * A world of one rank opens no socket, starts no thread and answers at once.
 *
 * Poison: one word per world, 0 while good, else the spark_comm_status of the first cause. Once
 * set, every wait of the backend ends with ABORTED and every wait of the world with the cause
 * itself, after one more look at its condition; the api asks sc_world_cause.
 */
#ifndef SC_WORLD_WORLD_H
#define SC_WORLD_WORLD_H

#include "base/log.h"
#include "base/settings.h"
#include "os/mapping.h"
#include "os/wait.h"

struct sc_world;

/* What every rank knows of every other since the hello. */
struct sc_world_member {
    int32_t rank;
    int32_t pid;
    int32_t same_host;  /* 1: proven by the exchange of memory with the hub; meaningful when the hub itself is on this host */
    int32_t reserved;
    char listener[64];  /* numeric address and port of its own listener */
    char version[32];   /* spark_comm version */
};

/* What a rank is doing on one lane, readable by others without its help. Written by the owner alone
 * with relaxed stores, read by anybody; a reader may see a mix of two operations and must take it as
 * a hint. submitted and completed count collectives; point to point leaves them, and shows in the
 * other fields (it runs while complete_ticks is before submit_ticks). A call that failed for good
 * stays in the line as one that runs: that is what the verdict is read from. */
#define SC_WORLD_PAST 16u /* collectives whose description is kept */
struct sc_world_line {
    _Alignas(64) _Atomic uint64_t submitted; /* number of the last accepted operation; stored after the other fields */
    _Atomic uint64_t completed;
    _Atomic uint64_t descriptor; /* sc_world_describe: kind, dtype, redop, peer */
    _Atomic uint64_t bytes;
    _Atomic uint64_t submit_ticks;   /* sc_ticks_now at submission; valid on this host only */
    _Atomic uint64_t complete_ticks;
    _Atomic uint64_t looked_ticks; /* when a wait last found that it must go on; see sc_wait_policy */
    _Atomic uint64_t peers;        /* bit per rank whose message the call waits for; 0: not known */
    /* By number modulo SC_WORLD_PAST: what the last collectives were. */
    _Alignas(64) struct {
        _Atomic uint64_t descriptor, bytes;
    } past[SC_WORLD_PAST];
};

static inline uint64_t sc_world_describe(int kind, int dtype, int redop, int peer) {
    return (uint64_t)(uint8_t)kind | (uint64_t)(uint8_t)dtype << 8 | (uint64_t)(uint8_t)redop << 16 |
           (uint64_t)(uint32_t)peer << 32;
}

/* Rendezvous: returns when all ranks are in, or fails alike on all of them: REFUSED with the
 * reason, OPEN_TIMEOUT naming the ranks that never came, SYSTEM (port taken, descriptors),
 * UNAVAILABLE (name not resolved), NO_MEMORY. Bounded by settings->rendezvous_timeout_ms.
 * `settings` and `log` must outlive the world. */
spark_comm_status sc_world_open(const struct sc_settings *settings, const struct sc_log *log, struct sc_world **world,
                                struct sc_error *error);
/* The same in two steps: everything up to the set-up of what stands on the world; then, with the
 * outcome of that, all ranks agree (docs/models/README.md, R7 to R10). On failure of the first step
 * there is no world; of the second, close it. */
spark_comm_status sc_world_begin(const struct sc_settings *settings, const struct sc_log *log, struct sc_world **world,
                                 struct sc_error *error);
spark_comm_status sc_world_agree(struct sc_world *world, spark_comm_status status, struct sc_error *error);
/* For everything between the two: when the set-up's time is over. */
int64_t sc_world_setup_deadline(const struct sc_world *world);
/* A new epoch of survivors and replacements. Poisons the present one everywhere: "rank 2 asks for a new epoch" (R1). */
void sc_world_ask(struct sc_world *world);
/* Then, with both lanes held: all up to the set-up, as sc_world_begin; sc_world_agree follows if it returns OK. After a
 * failure of either the world is as poisoned as before, and reconnect may be called again. Bounded by
 * rendezvous_timeout_ms, and the set-up by as much as is left of it, but at least 5 s. */
spark_comm_status sc_world_reconnect(struct sc_world *world, struct sc_error *error);
/* Goodbye to the peers (at most settings->close_timeout_ms), then everything freed. NULL is
 * fine. No other call runs. */
void sc_world_close(struct sc_world *world);

int sc_world_rank(const struct sc_world *world);
int sc_world_size(const struct sc_world *world);
uint32_t sc_world_epoch(const struct sc_world *world);
/* All ranks proved to share memory with the hub, and so with each other. */
bool sc_world_one_host(const struct sc_world *world);
const struct sc_world_member *sc_world_members(const struct sc_world *world);

/* ---- Faults ---- */
const _Atomic uint32_t *sc_world_poison(const struct sc_world *world);
/* The word that callers look at before they begin: as poison, but still set while a reconnect runs. */
const _Atomic uint32_t *sc_world_gate(const struct sc_world *world);
/* Called (from any thread, the monitor included) once when poison is set, so that the backend's
 * waits end. Set before the first operation; NULL takes it away and returns only when no call is
 * running. */
void sc_world_on_poison(struct sc_world *world, void (*interrupt)(void *arg), void *arg);
/* Poisons with this cause unless there is one already, wakes every wait of this rank, tells the
 * hub, which tells all. Any thread; never blocks for long (a send that would block is left to
 * the monitor). suspect->status is 200 to 299. */
void sc_world_fault(struct sc_world *world, const struct sc_error *suspect);
/* The first cause: the hub's sentence if it comes within 200 ms, else this rank's own. While a reconnect runs, that of
 * the epoch before. WRONG_STATE when there is none. */
spark_comm_status sc_world_cause(struct sc_world *world, struct sc_error *cause);
/* The same without waiting: the hub's sentence if it is here, else this rank's own. False: none. */
bool sc_world_peek_cause(struct sc_world *world, struct sc_error *cause);
/* This rank gives up: as sc_world_fault with ABORTED; peers hear "rank 1 aborted". Any thread,
 * returns at once. */
void sc_world_abort(struct sc_world *world);
/* This rank is about to close while calls of its own run: they end with ABORTED, nothing is told
 * to the peers (the goodbye of sc_world_close follows). */
void sc_world_leave(struct sc_world *world);
/* A world of one rank takes a new epoch, as sc_world_reconnect; WRONG_STATE with more ranks. */
spark_comm_status sc_world_renew(struct sc_world *world, struct sc_error *error);
/* Has this rank given up, by an abort or a close since the attempt began (sc_world_ask)? Then with these
 * words; and the word that waits of an attempt look at. */
bool sc_world_gives_up(const struct sc_world *world, struct sc_error *error);
const _Atomic uint32_t *sc_world_given_up(const struct sc_world *world);
/* As sc_world_cause, but while a reconnect runs that of the attempt. For the set-up. */
spark_comm_status sc_world_setup_cause(struct sc_world *world, struct sc_error *cause);
/* Threads that hold no lane and are not the monitor look into an epoch, or let the backend look at something,
 * between these two only: a reconnect waits until nobody is inside, and names who does not come back. */
enum sc_pin { SC_PIN_FAULT, SC_PIN_CAUSE, SC_PIN_HEALTH, SC_PIN_BACKEND, SC_PIN_KINDS };
void sc_world_pin(struct sc_world *world, enum sc_pin kind);
void sc_world_unpin(struct sc_world *world, enum sc_pin kind);
/* Fills state, epoch, lost_*, silent_*. Lock-free or nearly so. */
void sc_world_health(struct sc_world *world, spark_comm_health_report *report);
/* One of this rank's lines as it stands. Any thread. */
bool sc_world_read_line(struct sc_world *world, int lane, spark_comm_lane_report *report);

/* ---- Status lines and waiting ---- */
/* This rank's own line, to be written by the api. Never NULL; another one in every epoch. */
struct sc_world_line *sc_world_own_line(struct sc_world *world, int lane);
/* Whose messages the group that is about to run exchanges; the monitor asks when a rank has left.
 * Data lane held, before the line is written. */
void sc_world_show_group(struct sc_world *world, const spark_comm_op *posts, size_t count);
/* How this rank waits on a lane; the doorbells of all ranks on it (index by rank; NULL unless
 * one host). */
const struct sc_wait_policy *sc_world_policy(const struct sc_world *world, int lane);
struct sc_wait_doorbell *sc_world_doorbell(const struct sc_world *world, int rank, int lane);

/* ---- Collectives of the control plane: data lane held, called by all ranks alike ---- */
/* bytes per rank, at most SPARK_COMM_MAX_EXCHANGE_BYTES; recv holds world_size * bytes. `tag`
 * (number and digest of the operation) must be equal on all ranks, else MISMATCH. */
spark_comm_status sc_world_all_gather(struct sc_world *world, uint64_t number, uint32_t digest, const void *send, void *recv,
                                      size_t bytes, int64_t deadline, struct sc_error *error);
/* A fresh shared region of at least `bytes`, zero filled, the same on all ranks. With part_bytes
 * > 0 it holds world_size * part_bytes, and each rank allocates its own part (first touch on its
 * own memory node). One status on all ranks. UNAVAILABLE unless one host. Released with
 * sc_mapping_release by each rank on its own. */
spark_comm_status sc_world_share(struct sc_world *world, size_t bytes, size_t part_bytes, int64_t deadline,
                                 struct sc_mapping *mapping, struct sc_error *error);

/* ---- The command lane: command lane held ---- */
enum { SC_WORLD_RECORD_BROADCAST = 1, SC_WORLD_RECORD_COMMAND = 2 };
/* To all other ranks. Returns when the record is queued; waits only while the way is full (a
 * reader is more than 256 KiB behind), until the deadline. bytes up to 65,536. */
spark_comm_status sc_world_command_send(struct sc_world *world, int kind, uint64_t number, uint32_t digest, const void *data,
                                        size_t bytes, int64_t deadline, struct sc_error *error);
/* The next record of `root`. *bytes is its size; larger than capacity: INVALID_ARGUMENT, and it
 * stays for the next call. Another number, kind or (for broadcasts) digest: MISMATCH with both
 * sides described. Deadline SC_DEADLINE_NEVER is the idle receive. */
spark_comm_status sc_world_command_recv(struct sc_world *world, int root, int kind, uint64_t number, uint32_t digest, void *data,
                                        size_t capacity, size_t *bytes, int64_t deadline, struct sc_error *error);

#endif
