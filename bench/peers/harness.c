/*
 * The timing of all peers; see harness.h. Every rank runs the same code, and whatever decides how
 * many calls are made is first replaced by the largest of all ranks. Times are taken with
 * CLOCK_MONOTONIC around a batch, and with the processor's tick counter for aligned starts: it is
 * common to the cores of one machine and read in a few nanoseconds.
 */
#include "harness.h"

#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum {
    BATCHES = 11,
    BATCH_NS = 8000000,
    CALIBRATION_NS = 1000000, /* a probe this long is believed */
    MAX_PROBE = 1 << 16,
    MIN_CALLS = 3,
    MAX_CALLS = 100000,
    WARMUP = 20,
    MAX_ALIGNED = 1000,
    MIN_ALIGNED = 50,
    ALIGNED_NS = 50000000
};

struct run {
    const struct harness_peer *peer;
    const struct operation *op;
    size_t bytes; /* as passed to the call */
    size_t count; /* elements */
    float *send;
    float *recv;
    bool aligned;
    bool rewrite; /* the input, before every call */
    double ticks_per_ns;
    FILE *json; /* rank 0; NULL elsewhere */
    int rows;
    double wrong;
};

struct operation {
    const char *name;
    bool sized;
    double share; /* of one call that counts: a ping-pong is a round trip */
    bool (*exists)(const struct harness_peer *peer);
    void (*call)(struct run *run);
    int send_parts; /* 0: one part; 1: one per rank */
    int recv_parts;
};

/* ---- Clocks ---- */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t ticks(void) {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(value) : : "memory");
    return value;
#else
    return (uint64_t)now_ns();
#endif
}

static double measure_ticks_per_ns(void) {
    int64_t begin = now_ns();
    uint64_t first = ticks();
    while (now_ns() - begin < 20000000) {
    }
    return (double)(ticks() - first) / (double)(now_ns() - begin);
}

/* ---- Operations ---- */

static bool has_all_reduce(const struct harness_peer *p) {
    return p->all_reduce != NULL;
}
static bool has_all_gather(const struct harness_peer *p) {
    return p->all_gather != NULL;
}
static bool has_reduce_scatter(const struct harness_peer *p) {
    return p->reduce_scatter != NULL;
}
static bool has_broadcast(const struct harness_peer *p) {
    return p->broadcast != NULL;
}
static bool has_barrier(const struct harness_peer *p) {
    return p->barrier != NULL;
}
static bool has_send_recv(const struct harness_peer *p) {
    return p->send != NULL && p->recv != NULL && p->size == 2;
}

static void all_reduce(struct run *r) {
    r->peer->all_reduce(r->send, r->count);
}
static void all_gather(struct run *r) {
    r->peer->all_gather(r->send, r->recv, r->count);
}
static void reduce_scatter(struct run *r) {
    r->peer->reduce_scatter(r->send, r->recv, r->count);
}
static void barrier(struct run *r) {
    r->peer->barrier();
}
static void broadcast_barrier(struct run *r) {
    r->peer->broadcast(r->send, r->count);
    r->peer->barrier();
}
static void ping_pong(struct run *r) {
    if (r->peer->rank == 0) {
        r->peer->send(r->send, r->count, 1);
        r->peer->recv(r->recv, r->count, 1);
    } else {
        r->peer->recv(r->recv, r->count, 0);
        r->peer->send(r->send, r->count, 0);
    }
}

static const struct operation operations[] = {
    {"all_reduce", true, 1, has_all_reduce, all_reduce, 0, 0},
    {"all_gather", true, 1, has_all_gather, all_gather, 0, 1},
    {"reduce_scatter", true, 1, has_reduce_scatter, reduce_scatter, 1, 0},
    {"broadcast_barrier", true, 1, has_broadcast, broadcast_barrier, 0, 0},
    {"barrier", false, 1, has_barrier, barrier, 0, 0},
    {"send_recv", true, 0.5, has_send_recv, ping_pong, 0, 0},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* ---- Verification ---- */

static size_t parts(const struct run *r, int per_rank) {
    return per_rank ? (size_t)r->peer->size : 1;
}

/* Element i of a rank's input: a small whole number, so that every sum is exact. */
static float value(int rank, size_t i) {
    return (float)((i * 7 + (size_t)rank * 131) % 1009);
}

static float summed(const struct run *r, size_t i) {
    float sum = 0;
    for (int rank = 0; rank < r->peer->size; rank++)
        sum += value(rank, i);
    return sum;
}

/* The right element i of the result on this rank. */
static float right(const struct run *r, size_t i) {
    if (r->op->call == all_reduce) return summed(r, i);
    if (r->op->call == all_gather) return value((int)(i / r->count), i % r->count);
    if (r->op->call == reduce_scatter) return summed(r, (size_t)r->peer->rank * r->count + i);
    if (r->op->call == broadcast_barrier) return value(0, i);
    return value(1 - r->peer->rank, i);
}

/* Makes one call on known values; returns how many elements are wrong on the worst rank. */
static double verify(struct run *r) {
    double wrong = 0;
    if (!r->op->sized) return 0;
    bool in_place = r->op->call == all_reduce || r->op->call == broadcast_barrier;
    size_t results = r->count * parts(r, r->op->recv_parts);
    for (size_t i = 0; i < r->count * parts(r, r->op->send_parts); i++)
        r->send[i] = value(r->peer->rank, i);
    if (!in_place) memset(r->recv, 0xa5, results * sizeof(float));
    r->op->call(r);
    for (size_t i = 0; i < results; i++)
        wrong += (in_place ? r->send : r->recv)[i] != right(r, i);
    r->peer->largest(&wrong, 1);
    return wrong;
}

/* ---- Timing ---- */

/* As a producer of data does it: every byte anew. Zeros, so that sums stay zero. */
static void rewrite(struct run *r) {
    memset(r->send, 0, r->bytes * parts(r, r->op->send_parts));
    __asm__ volatile("" : : "r"(r->send) : "memory");
}

static double time_batch(struct run *r, int calls) {
    r->peer->barrier();
    int64_t begin = now_ns();
    for (int i = 0; i < calls; i++) {
        if (r->rewrite) rewrite(r);
        r->op->call(r);
    }
    return (double)(now_ns() - begin) / calls;
}

/* The rewrite's own cost, to be subtracted. */
static double time_rewrites(struct run *r, int calls) {
    if (!r->rewrite) return 0;
    r->peer->barrier();
    int64_t begin = now_ns();
    for (int i = 0; i < calls; i++)
        rewrite(r);
    return (double)(now_ns() - begin) / calls;
}

static int clamp(double wanted, int low, int high) {
    if (wanted < low) return low;
    return wanted > high ? high : (int)wanted;
}

static int compare(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return (a > b) - (a < b);
}

/* Nanoseconds per call; calls per batch are chosen so that one lasts about BATCH_NS. */
static void measure_batches(struct run *r, double *median, double *least) {
    double ns[BATCHES], probe = 0;
    for (int i = 0; i < WARMUP; i++)
        r->op->call(r);
    for (int calls = 1; calls <= MAX_PROBE; calls *= 4) {
        probe = time_batch(r, calls);
        r->peer->largest(&probe, 1);
        if (probe * calls >= CALIBRATION_NS) break;
    }
    int calls = clamp(BATCH_NS / (probe + 1), MIN_CALLS, MAX_CALLS);
    for (int i = 0; i < BATCHES; i++)
        ns[i] = time_batch(r, calls) - time_rewrites(r, calls);
    r->peer->largest(ns, BATCHES);
    qsort(ns, BATCHES, sizeof ns[0], compare);
    *median = ns[BATCHES / 2];
    *least = ns[0];
}

/* All ranks enter call i at the same tick; the last one to finish counts. A call for which a rank
 * came too late (it was scheduled away, or the call before took long) is left out. */
static double measure_aligned(struct run *r, double expected_ns) {
    static double times[MAX_ALIGNED];
    uint64_t period = (uint64_t)((3 * expected_ns + 5000) * r->ticks_per_ns);
    uint64_t late = (uint64_t)(20 * r->ticks_per_ns);
    int calls = clamp(ALIGNED_NS / (3 * expected_ns + 5000), MIN_ALIGNED, MAX_ALIGNED);

    /* In units of 1024 ticks, which a double holds exactly. */
    r->peer->barrier();
    double start = (double)(ticks() >> 10);
    r->peer->largest(&start, 1);
    uint64_t target = ((uint64_t)start << 10) + (uint64_t)(1e6 * r->ticks_per_ns);
    for (int i = 0; i < calls; i++, target += period) {
        uint64_t entered = ticks();
        bool in_time = entered + late < target;
        while ((entered = ticks()) < target) {
        }
        in_time = in_time && entered - target < late;
        r->op->call(r);
        times[i] = in_time ? (double)(ticks() - target) : INFINITY;
    }
    r->peer->largest(times, calls);
    qsort(times, (size_t)calls, sizeof times[0], compare);
    int good = 0;
    while (good < calls && isfinite(times[good]))
        good++;
    return good < calls / 2 ? NAN : times[good / 2] / r->ticks_per_ns;
}

/* ---- One row, one run ---- */

static void measure_row(struct run *r) {
    double median, least, aligned = NAN;
    double wrong = verify(r);
    /* Sums of zeros stay zero, however often the same buffer is reduced in place. */
    memset(r->send, 0, r->bytes * parts(r, r->op->send_parts));
    measure_batches(r, &median, &least);
    if (r->aligned) aligned = measure_aligned(r, median);
    wrong += verify(r);
    r->wrong += wrong;
    if (r->json == NULL) return;
    fprintf(r->json,
            "%s\n  {\"op\": \"%s\", \"bytes\": %zu, \"dtype\": \"f32\", \"time_us_median\": %.4f, "
            "\"time_us_min\": %.4f, \"wrong\": %.0f",
            r->rows++ ? "," : "", r->op->name, r->bytes, median * r->op->share / 1000,
            least * r->op->share / 1000, wrong);
    if (isfinite(aligned))
        fprintf(r->json, ", \"time_us_aligned\": %.4f", aligned * r->op->share / 1000);
    fprintf(r->json, "}");
    fflush(r->json);
}

static size_t parse_size(const char *text) {
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end == 'K') value <<= 10;
    if (*end == 'M') value <<= 20;
    return (size_t)value;
}

/* Is `name` in the comma separated list? */
static bool listed(const char *list, const char *name) {
    size_t length = strlen(name);
    if (strcmp(list, "all") == 0) return true;
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length) {
        bool begins = at == list || at[-1] == ',';
        if (begins && (at[length] == ',' || at[length] == 0)) return true;
    }
    return false;
}

static int usage(void) {
    fprintf(stderr,
            "usage: [--op NAME,...|all] [--sizes BYTES,...] [--aligned] [--rewrite] [--json FILE]\n"
            "sizes are multiples of 4 and may end in K or M\n");
    return 2;
}

static void run_operation(struct run *r, const char *sizes) {
    if (!r->op->exists(r->peer)) return;
    for (const char *at = sizes; at != NULL; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        r->bytes = r->op->sized ? parse_size(at) : 0;
        r->count = r->bytes / sizeof(float);
        measure_row(r);
        if (!r->op->sized) break;
    }
}

static float *allocate(size_t bytes) {
    float *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

int harness_main(int argc, char **argv, const struct harness_peer *peer) {
    static const struct option known[] = {
        {"op", required_argument, NULL, 'o'},   {"sizes", required_argument, NULL, 's'},
        {"aligned", no_argument, NULL, 'a'},    {"rewrite", no_argument, NULL, 'r'},
        {"json", required_argument, NULL, 'j'}, {NULL, 0, NULL, 0}};
    const char *ops = "all", *sizes = "8,1K,4K,16K,64K,256K,1M,4M,16M", *json = NULL;
    struct run run = {.peer = peer};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'o': ops = optarg; break;
        case 's': sizes = optarg; break;
        case 'a': run.aligned = true; break;
        case 'r': run.rewrite = true; break;
        case 'j': json = optarg; break;
        default: return usage();
        }
    }
    size_t most = 0;
    for (const char *at = sizes; at != NULL; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        size_t bytes = parse_size(at);
        if (bytes == 0 || bytes % sizeof(float) != 0) return usage();
        if (bytes > most) most = bytes;
    }
    /* Memory for zero copy, where a peer has some, is for runs in which the data really change. */
    if (run.rewrite && peer->allocate != NULL)
        run.send = peer->allocate(most * (size_t)peer->size);
    else
        run.send = allocate(most * (size_t)peer->size);
    run.recv = allocate(most * (size_t)peer->size);
    run.ticks_per_ns = measure_ticks_per_ns();
    if (peer->rank == 0) run.json = json ? fopen(json, "w") : stdout;
    if (peer->rank == 0 && run.json == NULL) {
        perror(json);
        return 1;
    }
    if (run.json)
        fprintf(run.json,
                "{\"backend\": \"%s\", \"version\": \"%s\", \"world_size\": %d, "
                "\"results\": [",
                peer->name, peer->version, peer->size);
    for (int i = 0; i < OPERATIONS; i++) {
        run.op = &operations[i];
        if (listed(ops, run.op->name)) run_operation(&run, sizes);
    }
    if (run.json) {
        fprintf(run.json, "\n]}\n");
        if (json) fclose(run.json);
    }
    if (!run.rewrite || peer->allocate == NULL) free(run.send);
    free(run.recv);
    return run.wrong != 0;
}
