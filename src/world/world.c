/*
 * A world from open to close. Opening: places are taken over TCP (hub.c, dial.c), the monitor is
 * started, memory is exchanged and a vote decides alike on all ranks whether this is one host
 * (share.c). Closing: goodbye, monitor joined, everything freed. A rank that fails after the
 * rendezvous tells the others, so that all opens fail alike. A world of one rank has status lines and a poison word, and nothing else.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/ticks.h"
#include "os/thread.h"
#include "world/world_state.h"

#define INNER_SPINS 50

/* ---- Parts ---- */

static void free_peer(struct sc_peer *peer) {
    sc_link_close(&peer->link);
    if (peer->unix_fd >= 0) close(peer->unix_fd);
    if (peer->pidfd >= 0) close(peer->pidfd);
    while (peer->inbox.first != NULL) {
        struct sc_letter *letter = peer->inbox.first;
        peer->inbox.first = letter->next;
        sc_free(letter);
    }
}

/* All but the arrays. */
static void let_go(struct sc_epoch *epoch) {
    for (int rank = 0; epoch->peers != NULL && rank < epoch->size; rank++)
        free_peer(&epoch->peers[rank]);
    sc_ring_set_close(&epoch->rings);
    sc_mapping_release(&epoch->segment.mapping);
    sc_free(epoch->command_bells);
    sc_free(epoch->private_lines);
}

static void free_epoch(struct sc_epoch *epoch) {
    if (epoch == NULL) return;
    let_go(epoch);
    sc_free(epoch->gather.table);
    sc_free(epoch->gather.arrived);
    sc_free(epoch->judge.pulses);
    sc_free(epoch->judge.views);
    sc_free(epoch->ballots);
    sc_free(epoch->inner_bells);
    sc_free(epoch->peers);
    sc_free(epoch->members);
    sc_free(epoch);
}

void sc_world_clear_epoch(const struct sc_world *world, struct sc_epoch *epoch) {
    size_t size = (size_t)world->size;
    struct sc_epoch fresh = {.size = world->size,
                             .members = epoch->members,
                             .peers = epoch->peers,
                             .ballots = epoch->ballots,
                             .inner_bells = epoch->inner_bells,
                             .link_end = world->rank == SC_HUB ? world->size : SC_HUB + 1,
                             .lost_rank = -1};

    let_go(epoch);
    fresh.judge.views = epoch->judge.views;
    fresh.judge.pulses = epoch->judge.pulses;
    fresh.judge.seen_rank = -1;
    fresh.gather.arrived = epoch->gather.arrived;
    fresh.gather.table = epoch->gather.table;
    fresh.gather.table_capacity = epoch->gather.table_capacity;
    memcpy((void *)epoch, &fresh, sizeof fresh);
    sc_mapping_init(&epoch->segment.mapping);
    memset(epoch->members, 0, size * sizeof *epoch->members);
    memset((void *)epoch->peers, 0, size * sizeof *epoch->peers);
    memset(epoch->judge.pulses, 0, size * sizeof *epoch->judge.pulses);
    memset(epoch->gather.arrived, 0, size);
    for (size_t rank = 0; rank < size; rank++)
        epoch->peers[rank].link.fd = epoch->peers[rank].unix_fd = epoch->peers[rank].pidfd = -1;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        epoch->inner[lane] = (struct sc_wait_policy){.poison = &world->poison,
                                                     .doorbell = &epoch->inner_bells[lane],
                                                     .spins = INNER_SPINS,
                                                     .fence = !sc_wait_membarrier_available()};
}

static struct sc_epoch *make_epoch(const struct sc_world *world) {
    size_t size = (size_t)world->size;
    struct sc_epoch *epoch = sc_alloc_aligned(64, sizeof *epoch);

    if (epoch == NULL) return NULL;
    sc_mapping_init(&epoch->segment.mapping);
    epoch->members = sc_alloc_array(size, sizeof *epoch->members);
    epoch->peers = sc_alloc_array(size, sizeof *epoch->peers);
    epoch->inner_bells = sc_alloc_aligned(64, SPARK_COMM_LANE_COUNT * sizeof *epoch->inner_bells);
    epoch->ballots = sc_alloc_array(size, SC_BALLOT_BYTES);
    epoch->judge.views = sc_alloc_array(size, sizeof *epoch->judge.views);
    epoch->judge.pulses = sc_alloc_array(size, sizeof *epoch->judge.pulses);
    epoch->gather.arrived = sc_alloc_zero(size);
    epoch->gather.table = sc_alloc_array(size, SC_BALLOT_BYTES);
    epoch->gather.table_capacity = size * SC_BALLOT_BYTES;
    if (epoch->members != NULL && epoch->peers != NULL && epoch->inner_bells != NULL &&
        epoch->ballots != NULL && epoch->judge.views != NULL && epoch->judge.pulses != NULL &&
        epoch->gather.arrived != NULL && epoch->gather.table != NULL) {
        sc_world_clear_epoch(world, epoch);
        return epoch;
    }
    free_epoch(epoch);
    return NULL;
}

struct sc_world *sc_world_create(const struct sc_settings *settings, const struct sc_log *log) {
    struct sc_world *world = sc_alloc_aligned(64, sizeof *world);

    if (world == NULL) return NULL;
    world->settings = settings;
    world->log = log;
    world->rank = settings->rank;
    world->size = settings->world_size;
    world->monitor.wake_fd = -1;
    sc_door_init(&world->door);
    sc_verdict_init(&world->verdict);
    do {
        sc_auth_random((uint8_t *)&world->instance, sizeof world->instance);
    } while (world->instance == 0);
    world->epoch = make_epoch(world);
    if (world->size > 1) world->spare = make_epoch(world);
    if (world->epoch != NULL && (world->size == 1 || world->spare != NULL)) return world;
    sc_world_destroy(world);
    return NULL;
}

void sc_world_destroy(struct sc_world *world) {
    sc_monitor_stop(world);
    sc_door_close(&world->door);
    free_epoch(world->epoch);
    free_epoch(world->spare);
    sc_monitor_release(world);
    sc_auth_wipe(&world->auth);
    sc_free(world);
}

/* ---- Opening ---- */

/* Descriptors of this rank's own: the connections, the sockets that pass memory, the pidfds; the
 * listeners, the wake-up, the segment, and some for callers at the door. */
static int descriptors_needed(const struct sc_world *world) {
    int peers = sc_is_hub(world) ? world->size - 1 : 1;
    return 3 * peers + 8;
}

/* A limit that cannot do is told at once, not when the last rank comes. */
static spark_comm_status check_descriptors(const struct sc_world *world, struct sc_error *error) {
    struct rlimit limit;
    int needed = descriptors_needed(world);

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)needed)
        return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_SYSTEM, -1, EMFILE,
                        "rank %d of %d needs %d file descriptors and the limit is %llu: raise it "
                        "(ulimit -n)",
                        world->rank, world->size, needed, (unsigned long long)limit.rlim_cur);
}

void sc_world_name_descriptors(const struct sc_world *world, struct sc_error *error) {
    struct sc_error old = *error;

    if (old.native_code != EMFILE || old.peer >= 0) return;
    if (strstr(old.message, " of its own") != NULL) return; /* by the monitor */
    sc_error_set(error, SPARK_COMM_SYSTEM, -1, EMFILE, "%.380s; rank %d of %d needs %d of its own",
                 old.message, world->rank, world->size, descriptors_needed(world));
}

static spark_comm_status open_alone(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;

    epoch->private_lines =
        sc_alloc_aligned(64, SPARK_COMM_LANE_COUNT * sizeof *epoch->private_lines);
    if (epoch->private_lines == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for status lines");
    epoch->lines = epoch->private_lines;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        epoch->policy[lane] = epoch->inner[lane];
    epoch->number = 1;
    world->entered = 1;
    epoch->members[0].pid = (int32_t)getpid();
    epoch->members[0].same_host = 1;
    memcpy(epoch->members[0].version, spark_comm_version(), strlen(spark_comm_version()) + 1);
    atomic_store_explicit(&epoch->ready, true, memory_order_release);
    return SPARK_COMM_OK;
}

spark_comm_status sc_world_settle(struct sc_world *world, struct sc_error *error) {
    int64_t deadline = world->setup_until;
    atomic_store_explicit(&world->epoch->lost_count, 0, memory_order_relaxed);
    atomic_store_explicit(&world->epoch->lost_rank, -1, memory_order_relaxed);
    spark_comm_status st =
        sc_is_hub(world) ? SPARK_COMM_OK : sc_share_fetch(world, deadline, error);

    if (st == SPARK_COMM_OK) st = sc_monitor_start(world, error);
    if (st == SPARK_COMM_OK) st = sc_share_vote(world, deadline, error);
    if (st == SPARK_COMM_OK) {
        atomic_store_explicit(&world->epoch->ready, true, memory_order_release);
        return st;
    }
    if (atomic_load_explicit(&world->poison, memory_order_acquire) == 0) {
        sc_world_name_descriptors(world, error);
        struct sc_error own = *error;
        sc_error_set(error, st, world->rank, own.native_code, "rank %d cannot %s: %.400s",
                     world->rank, world->entered == 0 ? "open" : "reconnect", own.message);
    }
    return st;
}

static spark_comm_status open_with_others(struct sc_world *world, int64_t deadline,
                                          struct sc_error *error) {
    spark_comm_status st = check_descriptors(world, error);
    struct sc_thread_host_id host;

    if (st != SPARK_COMM_OK) return st;
    /* Read, and kept, while there surely is a descriptor to read it with. */
    sc_thread_host_id(&host);
    st = sc_auth_init(&world->auth, world->settings->job_token, error);
    if (st == SPARK_COMM_OK) st = sc_door_prepare(world, error);
    if (st == SPARK_COMM_OK) st = sc_monitor_prepare(world, error);
    if (st == SPARK_COMM_OK)
        st = sc_is_hub(world) ? sc_hub_gather(world, deadline, error)
                              : sc_dial_join(world, deadline, error);
    if (st == SPARK_COMM_OK) {
        st = sc_world_settle(world, error);
        if (st != SPARK_COMM_OK) st = sc_world_agree(world, st, error);
    }
    if (st != SPARK_COMM_OK) sc_world_name_descriptors(world, error);
    return st;
}

spark_comm_status sc_world_begin(const struct sc_settings *settings, const struct sc_log *log,
                                 struct sc_world **out, struct sc_error *error) {
    int64_t deadline = sc_deadline_after(settings->rendezvous_timeout_ms);
    struct sc_world *world = sc_world_create(settings, log);
    spark_comm_status st;

    *out = NULL;
    if (world == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for a world of %d ranks",
                            settings->world_size);
    st = world->size == 1 ? open_alone(world, error) : open_with_others(world, deadline, error);
    if (st != SPARK_COMM_OK) goto fail;
    *out = world;
    return st;
fail:
    sc_world_destroy(world);
    return st;
}

spark_comm_status sc_world_open(const struct sc_settings *settings, const struct sc_log *log,
                                struct sc_world **out, struct sc_error *error) {
    spark_comm_status st = sc_world_begin(settings, log, out, error);

    if (st == SPARK_COMM_OK) st = sc_world_agree(*out, st, error);
    if (st == SPARK_COMM_OK || *out == NULL) return st;
    sc_world_destroy(*out);
    *out = NULL;
    return st;
}

void sc_world_close(struct sc_world *world) {
    if (world == NULL) return;
    if (world->size > 1) sc_goodbye_say(world);
    sc_world_destroy(world);
}

/* ---- Questions ---- */

int sc_world_rank(const struct sc_world *world) {
    return world->rank;
}

int sc_world_size(const struct sc_world *world) {
    return world->size;
}

uint32_t sc_world_epoch(const struct sc_world *world) {
    uint32_t number = world->epoch->number;
    /* Between two epochs: the last one. */
    return number != 0 ? number : atomic_load_explicit(&world->entered, memory_order_relaxed);
}

int64_t sc_world_setup_deadline(const struct sc_world *world) {
    return world->size == 1 ? SC_DEADLINE_NEVER : world->setup_until;
}

bool sc_world_one_host(const struct sc_world *world) {
    return world->size == 1 || world->epoch->one_host;
}

const struct sc_world_member *sc_world_members(const struct sc_world *world) {
    return world->epoch->members;
}

struct sc_world_line *sc_world_own_line(struct sc_world *world, int lane) {
    struct sc_epoch *epoch = world->epoch;
    /* Acquire: partner of the release of `ready`. */
    return atomic_load_explicit(&epoch->ready, memory_order_acquire)
               ? &epoch->lines[world->rank * SPARK_COMM_LANE_COUNT + lane]
               : &world->idle_lines[lane];
}

static int64_t age_ms(uint64_t ticks) {
    if (ticks == 0) return -1;
    int64_t age = sc_deadline_now() - sc_ticks_to_ns(ticks);
    return age < 0 ? 0 : age / 1000000;
}

/* Point to point takes no number of the lane, but its times count. */
bool sc_world_read_line(struct sc_world *world, int lane, spark_comm_lane_report *report) {
    sc_world_pin(world, SC_PIN_HEALTH);
    const struct sc_world_line *line = sc_world_own_line(world, lane);
    /* Acquire: partners are sc_lane_begin and sc_lane_end. */
    report->submitted = atomic_load_explicit(&line->submitted, memory_order_acquire);
    report->completed = atomic_load_explicit(&line->completed, memory_order_acquire);
    uint64_t begun = atomic_load_explicit(&line->submit_ticks, memory_order_acquire);
    uint64_t ended = atomic_load_explicit(&line->complete_ticks, memory_order_relaxed);
    int kind = sc_lines_kind(atomic_load_explicit(&line->descriptor, memory_order_relaxed));
    report->submitted_age_ms = age_ms(begun);
    report->completed_age_ms = age_ms(ended);
    sc_world_unpin(world, SC_PIN_HEALTH);
    /* Messages count per peer and leave the lane's numbers as they are. */
    bool is_message = sc_lines_is_message(kind) || kind == SPARK_COMM_OP_GROUP;
    return is_message ? begun > ended : report->submitted > report->completed;
}

/* Sequentially consistent all of it, as are the stores and loads of `epoch`: either the thread that
 * replaces the epoch sees this one inside, or this one sees the new epoch. */
void sc_world_pin(struct sc_world *world, enum sc_pin kind) {
    atomic_fetch_add_explicit(&world->pins[kind], 1, memory_order_seq_cst);
}

void sc_world_unpin(struct sc_world *world, enum sc_pin kind) {
    atomic_fetch_sub_explicit(&world->pins[kind], 1, memory_order_seq_cst);
}

const struct sc_wait_policy *sc_world_policy(const struct sc_world *world, int lane) {
    return &world->epoch->policy[lane];
}

struct sc_wait_doorbell *sc_world_doorbell(const struct sc_world *world, int rank, int lane) {
    const struct sc_epoch *epoch = world->epoch;
    return epoch->one_host ? &epoch->segment.bells[rank * SPARK_COMM_LANE_COUNT + lane] : NULL;
}

/* Whom this rank hears itself: the hub hears all, the others hear the hub. */
void sc_world_health(struct sc_world *world, spark_comm_health_report *report) {
    int end = sc_is_hub(world) ? world->size : SC_HUB + 1;
    int64_t now = sc_deadline_now(), oldest = now;
    bool is_poisoned = atomic_load_explicit(&world->gate, memory_order_relaxed) != 0;

    sc_world_pin(world, SC_PIN_HEALTH);
    const struct sc_epoch *epoch = world->epoch;
    report->state = is_poisoned ? SPARK_COMM_STATE_POISONED : SPARK_COMM_STATE_HEALTHY;
    report->epoch = sc_world_epoch(world);
    report->lost_count = atomic_load_explicit(&epoch->lost_count, memory_order_relaxed);
    report->lost_rank = atomic_load_explicit(&epoch->lost_rank, memory_order_relaxed);
    report->silent_rank = -1;
    report->silent_ms = 0;
    bool has_one = false; /* that has not left; those that have are silent by right */
    for (int rank = SC_HUB; rank < end; rank++) {
        uint32_t state = sc_peer_state(epoch, rank);
        bool has_left = state == SC_PEER_LEFT;
        int64_t heard = atomic_load_explicit(&epoch->peers[rank].heard, memory_order_relaxed);
        if (rank == world->rank || state == SC_PEER_ABSENT || (has_left && has_one)) continue;
        if (report->silent_rank >= 0 && has_left == !has_one && heard >= oldest) continue;
        has_one |= !has_left;
        oldest = heard;
        report->silent_rank = rank;
        report->silent_ms = now > heard ? (now - heard) / 1000000 : 0;
    }
    sc_world_unpin(world, SC_PIN_HEALTH);
}
