/*
 * Random faults, round after round, on three ranks that are processes: killed, stopped (and woken when
 * they have been replaced), cut off, aborted, at a random moment of a loop of random calls; rank 0
 * too, and two at once. After each fault all survivors have the same sentence, which names the right
 * rank; replacements open, survivors reconnect, everything is verified, and no process holds more
 * than in its first epochs.
 *
 *   test_soak [--rounds N] [--seed S]
 *
 * Round r of seed S is round 0 of seed S + r. A round that fails is printed with its seed, and the
 * next one begins with new processes.
 */
#include <getopt.h>
#include <sys/prctl.h>

#include "network.h"
#include "soak_ranks.h"

#define LIVENESS_MS 1000
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define USUAL_ROUNDS 5 /* everything takes so much longer */
#else
#define USUAL_ROUNDS 15
#endif
#define SOAK_ROUNDS 500
#define MOST_ROUNDS 2000 /* of which figures are kept */
#define STEADY_ROUNDS 25 /* for so long one rank's process is not replaced, so that leaks add up */
#define MOST_FAILED 3
#define SOON_MS 1000 /* a killed one; the contract's 50 ms are measured and printed */
#define SETTLE_MS 20000

enum kind { KILL, STOP, CUT, ABORT, KINDS };
static const char *const kind_names[] = {"killed", "stopped", "cut off", "aborts"};

struct strike {
    enum kind kind;
    int victim;
    pid_t pid;
    int slot;
    bool is_replaced, is_woken_first;
};

struct round {
    unsigned seed, random;
    int count;
    struct strike strikes[2];
    unsigned survivors; /* who must be told: a bit per rank */
    uint32_t epoch; /* that the fault ends */
    int64_t struck;
    char words[512]; /* that the survivors were told */
};

static bool has_network;
static int own_network = -1; /* where this process makes its sockets; -1: where it is */
static int slot_of[JOB_RANKS];
static int counts[KINDS], told_counts[KINDS], twice, heads;
static double told_ms[KINDS][MOST_ROUNDS], back_ms[KINDS][MOST_ROUNDS];
static int backs[KINDS];
static long most_grown;

/* Connections of a rank go through a network of its own, while memory and Unix sockets are those of
 * one host: a socket stays in the namespace in which it was made. */
int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol) {
    if (own_network < 0 || (domain != AF_INET && domain != AF_INET6))
        return __real_socket(domain, type, protocol);
    CHECK(network_enter(own_network));
    int made = __real_socket(domain, type, protocol);
    CHECK(network_enter(network_home));
    return made;
}

__attribute__((format(printf, 2, 3))) static bool fail(const struct round *round,
                                                       const char *format, ...) {
    va_list arguments;
    printf("soak: FAILED: --seed %u --rounds 1:", round->seed);
    for (int i = 0; i < round->count; i++)
        printf(" rank %d %s,", round->strikes[i].victim, kind_names[round->strikes[i].kind]);
    printf(" in epoch %u: ", round->epoch);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    return false;
}

/* ---- Processes ---- */

static void body(struct job_rank *rank) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the test may be ended from outside */
    if (has_network) own_network = network_of[rank->rank];
    soak_body(rank);
}

static void start(int rank) {
    static int next;
    soak_slot = next = (next + 1) % SOAK_SLOTS;
    memset(&soak->slots[soak_slot], 0, sizeof soak->slots[0]);
    slot_of[rank] = soak_slot;
    job_start(rank, body);
}

static void start_job(unsigned seed) {
    memset(board, 0, sizeof *board);
    memset(soak, 0, sizeof *soak);
    soak->seed = seed;
    board->port = world_free_port();
    board->rendezvous_ms = SETTLE_MS;
    board->liveness_ms = LIVENESS_MS;
    if (has_network) {
        snprintf(board->addr, sizeof board->addr, NETWORK_HEAD);
        snprintf(board->token, sizeof board->token, "not local to each other");
    }
    for (int rank = 0; rank < JOB_RANKS; rank++)
        start(rank);
}

static void end_process(pid_t pid) {
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

static const struct strike *strike_at(const struct round *round, int rank) {
    for (int i = 0; i < round->count; i++)
        if (round->strikes[i].victim == rank) return &round->strikes[i];
    return NULL;
}

/* A process of this job that ended although nobody killed it; -1: none. */
static int ended_rank(void) {
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        siginfo_t info = {0};
        if (job[rank].pid > 0 &&
            waitid(P_PID, (id_t)job[rank].pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0)
            return rank;
    }
    return -1;
}

/* ---- Waiting ---- */

static bool are_settled(uint32_t after) {
    uint32_t first = atomic_load(&soak->slots[slot_of[0]].settled);
    bool is_one = first > after;
    for (int rank = 1; rank < JOB_RANKS; rank++)
        is_one &= atomic_load(&soak->slots[slot_of[rank]].settled) == first;
    return is_one;
}

/* All ranks have verified one epoch after `after`. */
static bool await_settled(struct round *round, uint32_t after) {
    int64_t until = sc_deadline_after(2 * SETTLE_MS);
    while (!are_settled(after)) {
        int ended = ended_rank();
        if (ended >= 0) return fail(round, "the process of rank %d ended", ended);
        if (sc_deadline_passed(until)) return fail(round, "no epoch after %u on all", after);
        usleep(200);
    }
    round->epoch = atomic_load(&soak->slots[slot_of[0]].settled);
    return true;
}

static bool await_told(const struct round *round, int slot, int rank) {
    int64_t until = sc_deadline_after(LIVENESS_MS + 10000);
    while (atomic_load(&soak->slots[slot].told) != round->epoch) {
        int ended = ended_rank();
        if (ended >= 0 && strike_at(round, ended) == NULL)
            return fail(round, "the process of rank %d ended", ended);
        if (sc_deadline_passed(until)) return fail(round, "rank %d was not told", rank);
        usleep(100);
    }
    return true;
}

/* ---- One round ---- */

static void choose(struct round *round) {
    unsigned *random = &round->random;
    int steady = (int)(round->seed / STEADY_ROUNDS % JOB_RANKS);
    unsigned dice = fault_random(random) % 100;
    enum kind kind = dice < 45 ? KILL : dice < 70 ? STOP : dice < 85 ? CUT : ABORT;

    if (kind == CUT && !has_network) kind = KILL;
    round->count = kind <= STOP && fault_random(random) % 4 == 0 ? 2 : 1;
    round->survivors = (1u << JOB_RANKS) - 1;
    for (int i = 0; i < round->count; i++) {
        struct strike *strike = &round->strikes[i];
        int step = 1 + (round->count == 2 ? i : (int)(fault_random(random) % 2));
        *strike = (struct strike){.kind = i == 0 ? kind : (enum kind)(fault_random(random) % 2),
                                  .victim = (steady + step) % JOB_RANKS};
        /* What replaces nobody may hit any rank. */
        if (kind >= CUT) strike->victim = (int)(fault_random(random) % JOB_RANKS);
        strike->pid = job[strike->victim].pid;
        strike->slot = slot_of[strike->victim];
        strike->is_replaced = strike->kind <= STOP;
        if (strike->kind <= STOP) round->survivors &= ~(1u << strike->victim);
        /* A stopped head keeps its port: it is woken and comes back itself, or it is killed. */
        strike->is_woken_first =
            strike->kind == STOP && strike->victim == 0 && fault_random(random) % 2 == 0;
        if (strike->is_woken_first) strike->is_replaced = false;
        bool reopens = strike->kind == ABORT && fault_random(random) % 2 == 0;
        atomic_store(&soak->reopen[strike->victim], reopens ? round->epoch : 0);
        counts[strike->kind]++;
        heads += strike->victim == 0;
    }
    twice += round->count == 2;
}

static void strike_all(struct round *round) {
    usleep(fault_random(&round->random) % 20000);
    round->struck = sc_deadline_now();
    for (int i = 0; i < round->count; i++) {
        struct strike *strike = &round->strikes[i];
        switch (strike->kind) {
        case KILL: end_process(strike->pid); break;
        case STOP: CHECK(kill(strike->pid, SIGSTOP) == 0); break;
        case CUT: CHECK(network_switch(strike->victim, false)); break;
        default: CHECK(kill(strike->pid, SIGTERM) == 0); break;
        }
        if (strike->kind <= STOP) job[strike->victim].pid = 0; /* an end is no fault of it */
    }
}

static bool names(const struct strike *strike, const struct soak_slot *told) {
    char want[96];
    int victim = strike->victim, pid = (int)strike->pid;

    if (strike->kind == ABORT) {
        snprintf(want, sizeof want, "rank %d aborted", victim);
        return told->status == SPARK_COMM_ABORTED && strcmp(told->message, want) == 0;
    }
    snprintf(want, sizeof want, "rank %d (process %d) is lost: it %s", victim, pid,
             strike->kind == KILL ? "ended without a goodbye" : "gave no sign of life for");
    return told->status == SPARK_COMM_PEER_LOST && told->peer == victim &&
           strncmp(told->message, want, strlen(want)) == 0;
}

/* Of a dead link on one host each end sees the other fall silent, while both are seen to be alive in
 * the memory that they share: either of the two may be named. (Who is cut off between hosts is told
 * exactly: test_cut_off.) */
static bool names_an_end(const struct strike *strike, const struct soak_slot *told) {
    struct strike end = *strike;

    for (end.victim = 0; end.victim < JOB_RANKS; end.victim++) {
        bool is_end = end.victim == strike->victim || end.victim == 0 || strike->victim == 0;
        end.pid = job[end.victim].pid;
        if (is_end && names(&end, told)) return true;
    }
    return false;
}

/* All survivors were told the same, soon, and of the right rank. */
static bool check_verdict(struct round *round) {
    const struct soak_slot *first = &soak->slots[slot_of[__builtin_ctz(round->survivors)]];
    enum kind kind = round->strikes[0].kind;
    bool is_named = false, is_head_stopped = false;
    int64_t last = 0;

    for (int i = 0; i < round->count; i++) {
        const struct strike *strike = &round->strikes[i];
        is_named |= strike->kind == CUT ? names_an_end(strike, first) : names(strike, first);
        if (strike->kind == KILL) kind = KILL; /* found at once */
        is_head_stopped |= strike->kind == STOP && strike->victim == 0;
    }
    memcpy(round->words, first->message, sizeof round->words);
    /* A worker's end is told by the head; if that is stopped at the same time, by its silence. */
    if (is_head_stopped) kind = STOP;
    if (!is_named) return fail(round, "status %d: %s", first->status, first->message);
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        const struct soak_slot *told = &soak->slots[slot_of[rank]];
        if ((round->survivors >> rank & 1) == 0) continue;
        if (told->status != first->status || strcmp(told->message, first->message) != 0)
            return fail(round, "two sentences: \"%s\" and \"%s\"", first->message, told->message);
        if (told->told_ns > last) last = told->told_ns;
    }
    double took = (double)(last - round->struck) / 1e6;
    if (told_counts[kind] < MOST_ROUNDS) told_ms[kind][told_counts[kind]++] = took;
    if (took > SOON_MS + (kind == STOP || kind == CUT ? LIVENESS_MS : 0))
        return fail(round, "told after %.0f ms", took);
    return true;
}

/* Who comes back himself, and who comes instead. */
static bool repair(struct round *round) {
    for (int i = 0; i < round->count; i++) {
        struct strike *strike = &round->strikes[i];
        if (strike->kind == CUT) CHECK(network_switch(strike->victim, true));
        if (strike->is_woken_first) {
            CHECK(kill(strike->pid, SIGCONT) == 0);
            job[strike->victim].pid = strike->pid;
            if (!await_told(round, strike->slot, strike->victim)) return false;
        } else if (strike->kind == STOP && strike->victim == 0) {
            end_process(strike->pid);
            strike->kind = KILL; /* nobody is left to be woken */
        }
        if (strike->is_replaced) start(strike->victim);
    }
    return true;
}

/* Woken while the others are at work, it hears what they heard, and that it was replaced. */
static bool wake(struct round *round, const struct strike *strike) {
    const struct soak_slot *slot = &soak->slots[strike->slot];
    int64_t until = sc_deadline_after(SETTLE_MS);
    char want[64];
    int status = 0;

    usleep(fault_random(&round->random) % 5000);
    CHECK(kill(strike->pid, SIGCONT) == 0);
    while (waitpid(strike->pid, &status, WNOHANG) == 0) {
        if (sc_deadline_passed(until)) {
            end_process(strike->pid);
            return fail(round, "the woken rank %d does not end", strike->victim);
        }
        usleep(200);
    }
    snprintf(want, sizeof want, "rank %d was replaced", strike->victim);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || strcmp(slot->refusal, want) != 0)
        return fail(round, "the woken one ended with %#x: \"%s\"", status, slot->refusal);
    if (strcmp(slot->message, round->words) != 0)
        return fail(round, "the woken one heard \"%s\", the others \"%s\"", slot->message,
                    round->words);
    return true;
}

static bool run_round(struct round *round) {
    if (!await_settled(round, 0)) return false;
    choose(round);
    strike_all(round);
    for (int rank = 0; rank < JOB_RANKS; rank++)
        if ((round->survivors >> rank & 1) != 0 && !await_told(round, slot_of[rank], rank))
            return false;
    if (!check_verdict(round)) return false;
    uint32_t before = round->epoch;
    if (!repair(round)) return false;
    int64_t start_ns = sc_deadline_now();
    if (!await_settled(round, before)) return false;
    enum kind kind = round->strikes[0].kind;
    int64_t last = start_ns;
    for (int rank = 0; rank < JOB_RANKS; rank++)
        if (soak->slots[slot_of[rank]].verified_ns > last)
            last = soak->slots[slot_of[rank]].verified_ns;
    if (backs[kind] < MOST_ROUNDS) back_ms[kind][backs[kind]++] = (double)(last - start_ns) / 1e6;
    for (int i = 0; i < round->count; i++)
        if (round->strikes[i].kind == STOP && round->strikes[i].is_replaced &&
            !wake(round, &round->strikes[i]))
            return false;
    for (int rank = 0; rank < JOB_RANKS; rank++)
        if (soak->slots[slot_of[rank]].grown_kib > most_grown)
            most_grown = soak->slots[slot_of[rank]].grown_kib;
    const struct soak_slot *told = &soak->slots[slot_of[__builtin_ctz(round->survivors)]];
    return are_settled(before) || fail(round, "an epoch ended by itself: %s", told->message);
}

/* ---- All of them ---- */

static bool finish_job(void) {
    bool is_well = true;
    atomic_store(&board->words[JOB_STOP], 1);
    for (int rank = 0; rank < JOB_RANKS; rank++) {
        int status = 0;
        while (waitpid(job[rank].pid, &status, 0) < 0) {
        }
        is_well &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return is_well;
}

static void end_job(const struct round *round) {
    for (int i = 0; i < round->count; i++) {
        if (waitpid(round->strikes[i].pid, NULL, WNOHANG) == 0) end_process(round->strikes[i].pid);
        if (round->strikes[i].kind == CUT) network_switch(round->strikes[i].victim, true);
    }
    for (int rank = 0; rank < JOB_RANKS; rank++)
        if (job[rank].pid > 0) end_process(job[rank].pid);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void report(int rounds, int failed) {
    printf(
        "soak: %d rounds, %d failed: %d killed, %d stopped, %d cut off, %d aborts; rank 0 was hit "
        "%d times, two at once %d times\n",
        rounds, failed, counts[KILL], counts[STOP], counts[CUT], counts[ABORT], heads, twice);
    for (int kind = 0; kind < KINDS; kind++) {
        char what[64];
        if (told_counts[kind] > 0) fault_print(kind_names[kind], told_ms[kind], told_counts[kind]);
        snprintf(what, sizeof what, "  repaired to verified by all, %s", kind_names[kind]);
        if (backs[kind] > 0) fault_print(what, back_ms[kind], backs[kind]);
    }
    printf("soak: most memory that a process gained after its third epoch: %ld KiB\n", most_grown);
}

static int run_rounds(int rounds, unsigned seed) {
    int failed = 0, done = 0, descriptors = 0;

    start_job(seed);
    for (; done < rounds && failed < MOST_FAILED; done++) {
        struct round round = {.seed = seed + (unsigned)done,
                              .random = (seed + (unsigned)done) * 2654435761u};
        bool is_good = run_round(&round);
        if (done == 0) descriptors = world_count_descriptors();
        if (is_good && world_count_descriptors() != descriptors)
            is_good = fail(&round, "the test itself leaks descriptors");
        if (is_good) continue;
        failed++;
        end_job(&round);
        start_job(seed + (unsigned)done + 1);
    }
    if (!finish_job()) failed++;
    report(done, failed);
    return failed;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"seed", required_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    int rounds = fault_count("SC_FAULT_ROUNDS", USUAL_ROUNDS, SOAK_ROUNDS), option;
    unsigned seed = (unsigned)time(NULL) % 1000000u;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'r') rounds = atoi(optarg);
        if (option == 's') seed = (unsigned)strtoul(optarg, NULL, 10);
        if (option == '?') return 2;
    }
    board = world_board(sizeof *board);
    soak = world_board(sizeof *soak);
    has_network = network_set_up();
    if (!has_network) printf("soak: nobody is cut off: " NETWORK_NEEDS "\n");
    printf("soak: %d rounds, seed %u\n", rounds, seed);
    fflush(stdout);
    return run_rounds(rounds, seed) == 0 ? 0 : 1;
}
