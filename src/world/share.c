/*
 * Memory that the ranks of one host share. The hub makes it and passes the descriptor over a Unix
 * socket, to members that show the cookie of the epoch (it came over the authenticated connection)
 * and run as the same user. "One host" is what this proves on all ranks, counted by a vote.
 *
 * At open the world's own segment goes that way:
 *
 *   status lines | doorbells | cards | slots of verdicts | whose slot counts | rings
 *
 * with lines and doorbells per rank and lane, cards, slots and rings per rank.
 *
 * The worker speaks first: ticket {rank, cookie}; the hub's monitor answers with the descriptor, and
 * both keep the socket. Later regions (sc_world_share) are sent over it by the hub's caller before
 * the vote on them, so that a worker finds its descriptor there when it looks.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "base/ticks.h"
#include "os/thread.h"
#include "world/world_state.h"

#define PASS_MS 2000 /* for one small message on a local socket */
#define LOOK_NS INT64_C(50000000)
#define SPIN_NS 12000
#define OVERSUBSCRIBED_SPINS 5
#define OVERSUBSCRIBED_YIELDS 100
#define CALIBRATION_PAUSES 2000

/* ---- The segment ---- */

static size_t page_up(size_t bytes) {
    return (bytes + 4095) & ~(size_t)4095;
}

static size_t segment_bytes(int size) {
    size_t ranks = (size_t)size;
    size_t lanes = ranks * SPARK_COMM_LANE_COUNT;
    size_t head = lanes * sizeof(struct sc_world_line) + lanes * sizeof(struct sc_wait_doorbell) +
                  ranks * (sizeof(struct sc_card) + sizeof(struct sc_verdict_slot)) + 64;

    return page_up(head) + ranks * sc_ring_size(size);
}

static void lay_out(struct sc_segment *segment, int size) {
    size_t ranks = (size_t)size;
    size_t lanes = ranks * SPARK_COMM_LANE_COUNT;
    uint8_t *at = segment->mapping.address;

    segment->lines = (struct sc_world_line *)(void *)at;
    segment->bells = (struct sc_wait_doorbell *)(void *)(segment->lines + lanes);
    segment->cards = (struct sc_card *)(void *)(segment->bells + lanes);
    segment->slots = (struct sc_verdict_slot *)(void *)(segment->cards + ranks);
    segment->winner = (_Atomic uint32_t *)(void *)(segment->slots + ranks);
    size_t head = (size_t)((uint8_t *)segment->winner - at) + 64;
    segment->rings = at + page_up(head);
}

spark_comm_status sc_share_offer(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_wire_welcome *welcome = &epoch->welcome;
    bool is_any = false, are_all = true;
    spark_comm_status st;

    for (int rank = SC_HUB + 1; rank < world->size; rank++) {
        is_any |= epoch->peers[rank].same_ids;
        are_all &= epoch->peers[rank].same_ids;
    }
    sc_auth_random(welcome->cookie, sizeof welcome->cookie);
    if (!is_any) return SPARK_COMM_OK;
    /* Where some rank is surely elsewhere a single page does: it proves who is here. */
    st = sc_mapping_create(are_all ? segment_bytes(world->size) : 4096, true,
                           &epoch->segment.mapping, error);
    if (st != SPARK_COMM_OK) return st;
    welcome->segment_bytes = epoch->segment.mapping.bytes;
    return sc_socket_unix_listen(welcome->unix_name, sizeof welcome->unix_name, world->size,
                                 &world->door.unix_listener, error);
}

/* ---- Passing descriptors ---- */

static bool same_user(int fd, pid_t *pid) {
    uid_t uid;

    return sc_socket_unix_peer(fd, &uid, pid, NULL) == SPARK_COMM_OK && uid == geteuid();
}

/* Threads of this process end with it; a process that this one can't name (pid 0) is not watched. */
static int watch_process(pid_t pid) {
    return pid > 0 && pid != getpid() ? sc_thread_pidfd(pid) : -1;
}

static spark_comm_status pass(const struct sc_world *world, int fd, int rank, uint32_t number,
                              const struct sc_mapping *mapping, struct sc_error *error) {
    struct sc_wire_ticket ticket = {.rank = rank, .number = number, .bytes = mapping->bytes};
    uint8_t out[SC_WIRE_TICKET_BYTES];

    memcpy(ticket.cookie, world->epoch->welcome.cookie, sizeof ticket.cookie);
    sc_wire_put_ticket(out, &ticket);
    return sc_socket_send_fd(fd, out, sizeof out, mapping->fd, sc_deadline_after(PASS_MS), -1,
                             error);
}

/* A message that should have brought a descriptor came without: was there no place for it? */
static spark_comm_status no_descriptor_came(int socket, struct sc_error *error) {
    int spare = dup(socket);

    if (spare < 0 && (errno == EMFILE || errno == ENFILE))
        return sc_error_system(error, errno, "shared memory of rank 0 cannot be taken");
    if (spare >= 0) close(spare);
    return sc_error_set(error, SPARK_COMM_SYSTEM, SC_HUB, 0,
                        "rank 0 sent something else than shared memory");
}

/* Takes the region of `number`; descriptors of earlier ones, left by a call that failed, are
 * closed. */
static spark_comm_status fetch(struct sc_world *world, uint32_t number, size_t bytes,
                               int64_t deadline, struct sc_mapping *mapping,
                               struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    uint8_t in[SC_WIRE_TICKET_BYTES];
    struct sc_wire_ticket ticket;
    int fd = -1;

    do {
        if (fd >= 0) close(fd);
        fd = -1;
        spark_comm_status st;
        do { /* nobody rings for an abort */
            st = sc_socket_recv_fd(epoch->peers[SC_HUB].unix_fd, in, sizeof in, &fd,
                                   sc_deadline_min(deadline, sc_deadline_now() + LOOK_NS), -1,
                                   error);
        } while (st == SPARK_COMM_OP_TIMEOUT && !sc_deadline_passed(deadline) &&
                 atomic_load_explicit(&world->poison, memory_order_acquire) == 0);
        if (st != SPARK_COMM_OK) return st;
        if (fd < 0) return no_descriptor_came(epoch->peers[SC_HUB].unix_fd, error);
        if (!sc_wire_get_ticket(in, world->size, &ticket) ||
            !sc_auth_equal(ticket.cookie, epoch->welcome.cookie) || ticket.rank != world->rank) {
            close(fd);
            return sc_error_set(error, SPARK_COMM_SYSTEM, SC_HUB, 0,
                                "rank 0 sent something else than shared memory");
        }
    } while (ticket.number != number);
    return sc_mapping_attach(fd, bytes, mapping, error);
}

bool sc_share_admit(struct sc_world *world, int fd, const uint8_t *in) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_wire_ticket ticket;
    pid_t pid;

    if (world->monitor.phase == SC_PHASE_GATHERING || !sc_is_hub(world)) return false;
    if (!same_user(fd, &pid) || !sc_wire_get_ticket(in, world->size, &ticket)) return false;
    if (!sc_auth_equal(ticket.cookie, epoch->welcome.cookie)) return false;
    struct sc_peer *peer = &epoch->peers[ticket.rank];
    if (ticket.rank == SC_HUB || peer->unix_fd >= 0) return false;
    if (pass(world, fd, ticket.rank, 0, &epoch->segment.mapping, NULL) != SPARK_COMM_OK)
        return false;
    peer->unix_fd = fd;
    peer->pidfd = watch_process(pid);
    return true;
}

static spark_comm_status try_fetch(struct sc_world *world, int64_t deadline,
                                   struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_peer *hub = &epoch->peers[SC_HUB];
    struct sc_wire_ticket ticket = {.rank = world->rank};
    uint8_t out[SC_WIRE_TICKET_BYTES];
    pid_t pid;

    spark_comm_status st =
        sc_socket_unix_connect(epoch->welcome.unix_name, deadline, -1, &hub->unix_fd, error);
    if (st != SPARK_COMM_OK) return st;
    if (!same_user(hub->unix_fd, &pid))
        return sc_error_set(error, SPARK_COMM_REFUSED, SC_HUB, 0,
                            "rank 0 runs as another user there");
    memcpy(ticket.cookie, epoch->welcome.cookie, sizeof ticket.cookie);
    sc_wire_put_ticket(out, &ticket);
    st = sc_socket_send(hub->unix_fd, out, sizeof out, deadline, -1, error);
    if (st == SPARK_COMM_OK)
        st = fetch(world, 0, (size_t)epoch->welcome.segment_bytes, deadline,
                   &epoch->segment.mapping, error);
    if (st == SPARK_COMM_OK) hub->pidfd = watch_process(pid);
    return st;
}

spark_comm_status sc_share_fetch(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct sc_error failure;

    if (epoch->welcome.unix_name[0] == '\0') return SPARK_COMM_OK;
    sc_error_clear(&failure);
    deadline = sc_deadline_min(deadline, sc_deadline_after(SC_HANDSHAKE_MS));
    spark_comm_status st = try_fetch(world, deadline, &failure);
    if (st == SPARK_COMM_OK) return st;
    if (st == SPARK_COMM_NO_MEMORY || failure.native_code == EMFILE) {
        /* It is on this host all the same: open fails on all, rather than go the long way. */
        *error = failure;
        return st;
    }
    sc_log_write(world->log, SPARK_COMM_LOG_INFO,
                 "rank %d shares no memory with rank 0 and uses TCP: %s", world->rank,
                 failure.message);
    return SPARK_COMM_OK;
}

/* ---- The vote at open ---- */

struct ballot {
    uint8_t has_segment;
    uint8_t has_membarrier;
    uint8_t is_here; /* its segment is a whole one */
    uint8_t reserved[5];
    uint8_t cpus[CPU_SETSIZE / 8]; /* bit per CPU that it may run on */
};

_Static_assert(sizeof(struct ballot) <= SC_BALLOT_BYTES, "a ballot has its place");

static void fill_ballot(const struct sc_world *world, struct ballot *ballot) {
    const struct sc_mapping *mapping = &world->epoch->segment.mapping;
    cpu_set_t cpus;

    memset(ballot, 0, sizeof *ballot);
    ballot->has_segment = mapping->address != NULL;
    ballot->is_here = mapping->address != NULL && mapping->bytes >= segment_bytes(world->size);
    ballot->has_membarrier = sc_wait_membarrier_available();
    sc_thread_affinity(&cpus);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus)) ballot->cpus[cpu / 8] |= (uint8_t)(1u << (cpu % 8));
}

/* Pauses that last about SPIN_NS. */
static uint32_t calibrate_spins(void) {
    int64_t best = INT64_MAX;

    for (int round = 0; round < 3; round++) {
        int64_t start = sc_deadline_now();
        for (int i = 0; i < CALIBRATION_PAUSES; i++)
            sc_wait_pause();
        best = sc_deadline_min(best, sc_deadline_now() - start);
    }
    int64_t pauses = (int64_t)SPIN_NS * CALIBRATION_PAUSES / (best > 0 ? best : 1);
    return pauses < 100 ? 100 : pauses > 20000 ? 20000 : (uint32_t)pauses;
}

/* Alike on all ranks, but for how many pauses make 12 us. */
static void decide_waiting(struct sc_world *world, const struct ballot *ballots) {
    struct sc_epoch *epoch = world->epoch;
    bool fence = false;
    int cpus = 0;

    for (size_t byte = 0; byte < sizeof ballots->cpus; byte++) {
        unsigned all = 0;
        for (int rank = 0; rank < world->size; rank++)
            all |= ballots[rank].cpus[byte];
        cpus += __builtin_popcount(all);
    }
    for (int rank = 0; rank < world->size; rank++)
        fence |= !ballots[rank].has_membarrier;
    bool crowded = world->size > cpus;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        struct sc_wait_policy *policy = &epoch->policy[lane];
        policy->fence = fence;
        policy->spins = crowded ? OVERSUBSCRIBED_SPINS : calibrate_spins();
        policy->yields = crowded ? OVERSUBSCRIBED_YIELDS : 0;
    }
    sc_log_write(world->log, SPARK_COMM_LOG_INFO, "rank %d: %d ranks on %d CPUs of one host",
                 world->rank, world->size, cpus);
}

/* Where a caller of the data lane says when it last looked in vain. */
static void show_looks(struct sc_world *world) {
    struct sc_epoch *epoch = world->epoch;
    int lane = SPARK_COMM_LANE_DATA;

    epoch->policy[lane].looked = epoch->inner[lane].looked =
        &sc_lines_of(epoch, world->rank, lane)->looked_ticks;
}

static spark_comm_status open_one_host(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    size_t lanes = SPARK_COMM_LANE_COUNT;

    lay_out(&epoch->segment, world->size);
    epoch->lines = epoch->segment.lines;
    struct sc_card *card = &epoch->segment.cards[world->rank];
    atomic_store_explicit(&card->pid_namespace, sc_thread_pid_namespace(), memory_order_relaxed);
    atomic_store_explicit(&card->pid, (int32_t)getpid(), memory_order_release);
    show_looks(world);
    epoch->command_bells = sc_alloc_array((size_t)world->size, sizeof *epoch->command_bells);
    if (epoch->command_bells == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for %d doorbells",
                            world->size);
    for (size_t rank = 0; rank < (size_t)world->size; rank++)
        epoch->command_bells[rank] = &epoch->segment.bells[rank * lanes + SPARK_COMM_LANE_COMMAND];
    for (size_t lane = 0; lane < lanes; lane++)
        epoch->policy[lane].doorbell = &epoch->segment.bells[(size_t)world->rank * lanes + lane];
    return sc_ring_set_open(&epoch->rings, epoch->segment.rings, world->rank, world->size,
                            &epoch->policy[SPARK_COMM_LANE_COMMAND], epoch->command_bells, error);
}

static spark_comm_status open_apart(struct sc_world *world, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    size_t lines = (size_t)world->size * SPARK_COMM_LANE_COUNT;

    sc_mapping_release(&epoch->segment.mapping);
    epoch->private_lines = sc_alloc_aligned(64, lines * sizeof *epoch->private_lines);
    if (epoch->private_lines == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory for %zu status lines",
                            lines);
    epoch->lines = epoch->private_lines;
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        epoch->policy[lane] = epoch->inner[lane];
    show_looks(world);
    return SPARK_COMM_OK;
}

spark_comm_status sc_share_vote(struct sc_world *world, int64_t deadline, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct ballot own, *ballots = (struct ballot *)(void *)epoch->ballots;
    bool one_host = true;

    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++)
        epoch->policy[lane] = epoch->inner[lane];
    fill_ballot(world, &own);
    spark_comm_status st =
        sc_gather_run(world, SC_GATHER_WORLD, 0, 0, &own, ballots, sizeof own, deadline, error);
    if (st != SPARK_COMM_OK) return st;
    for (int rank = 0; rank < world->size; rank++) {
        epoch->members[rank].same_host = ballots[rank].has_segment;
        one_host &= ballots[rank].is_here != 0;
    }
    epoch->one_host = one_host;
    if (one_host) decide_waiting(world, ballots);
    return one_host ? open_one_host(world, error) : open_apart(world, error);
}

/* ---- More regions ---- */

/* One status on all ranks: the lowest failing rank's. */
struct outcome {
    int32_t status;
    int32_t reserved;
    uint64_t bytes;
    char reason[240];
};

_Static_assert(sizeof(struct outcome) <= SC_BALLOT_BYTES, "an outcome has its place");

static spark_comm_status agree(struct sc_world *world, spark_comm_status status, size_t bytes,
                               int64_t deadline, uint64_t *hub_bytes, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    struct outcome own = {.status = (int32_t)status, .bytes = bytes};
    struct outcome *all = (struct outcome *)(void *)epoch->ballots;

    if (status != SPARK_COMM_OK)
        snprintf(own.reason, sizeof own.reason, "%.*s", (int)sizeof own.reason - 1, error->message);
    spark_comm_status st = sc_gather_run(world, SC_GATHER_WORLD, ++epoch->votes, 0, &own, all,
                                         sizeof own, deadline, error);
    if (st != SPARK_COMM_OK) return st;
    *hub_bytes = all[SC_HUB].bytes;
    for (int rank = 0; rank < world->size && st == SPARK_COMM_OK; rank++) {
        if (all[rank].status == SPARK_COMM_OK) continue;
        all[rank].reason[sizeof all[rank].reason - 1] = '\0';
        st = sc_error_set(error, (spark_comm_status)all[rank].status, rank, 0, "rank %d: %s", rank,
                          all[rank].reason);
    }
    return st;
}

/* The hub makes the region and passes it to all. */
static spark_comm_status make_region(struct sc_world *world, size_t bytes, bool whole,
                                     struct sc_mapping *mapping, struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    spark_comm_status st = sc_mapping_create(bytes, whole, mapping, error);

    for (int rank = SC_HUB + 1; rank < world->size && st == SPARK_COMM_OK; rank++)
        st = pass(world, epoch->peers[rank].unix_fd, rank, epoch->regions, mapping, error);
    return st;
}

spark_comm_status sc_world_share(struct sc_world *world, size_t bytes, size_t part_bytes,
                                 int64_t deadline, struct sc_mapping *mapping,
                                 struct sc_error *error) {
    struct sc_epoch *epoch = world->epoch;
    bool is_hub = sc_is_hub(world), in_parts = part_bytes > 0;
    uint64_t made = 0;
    spark_comm_status st = SPARK_COMM_OK;

    sc_mapping_init(mapping);
    if (!epoch->one_host)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "the ranks are not all on one host");
    if (in_parts && __builtin_mul_overflow(part_bytes, (size_t)world->size, &bytes))
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "%zu bytes for each of %d ranks are too many", part_bytes, world->size);
    epoch->regions++;
    if (is_hub) st = make_region(world, bytes, !in_parts, mapping, error);
    st = agree(world, st, mapping->bytes, deadline, &made, error);
    if (st != SPARK_COMM_OK) goto fail;
    if (!is_hub)
        st = fetch(world, epoch->regions, (size_t)made, sc_deadline_after(PASS_MS), mapping, error);
    if (st == SPARK_COMM_OK && in_parts)
        st = sc_mapping_allocate(mapping, (size_t)world->rank * part_bytes, part_bytes, error);
    st = agree(world, st, 0, deadline, &made, error);
    if (st == SPARK_COMM_OK && is_hub && in_parts) st = sc_mapping_seal(mapping, error);
    if (st == SPARK_COMM_OK) return st;
fail:
    sc_mapping_release(mapping);
    return st;
}
