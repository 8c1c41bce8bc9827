/* Long loops and real losses: many replays between eager calls, sums ordered with slow work on several
 * streams, a peer that dies or stops in the middle, an idle worker. Written for GPUs, where
 * tests/gpu/check runs it at level 2 and keeps the lines that begin with "figure:"; on the fakes the
 * same loops are short. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "script.h"

enum { WORD_LOST, WORD_PID, WORD_STOP };

static bool is_real(void) {
    return getenv("SPARK_COMM_TEST_MANAGED") != NULL;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void *new_stream(void) {
    void *stream = NULL;
    device_driver()->stream_create(&stream, 1, 0);
    return stream;
}

/* ---- Data whose every window is different ---- */

#define STEP 3
#define APART 1000003

/* What rank `rank` has at place i, and the sum of all ranks' there. */
static int32_t element(int rank, size_t i) {
    return (int32_t)(STEP * i) + rank * APART;
}
static int32_t sum_at(int size, size_t i) {
    return size * (int32_t)(STEP * i) + size * (size - 1) / 2 * APART;
}

static uint64_t pattern_of(int rank, size_t count) {
    int32_t *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = element(rank, i);
    const uint64_t memory = device_make(values, count * sizeof *values);
    free(values);
    return memory;
}

static spark_comm_op integers(int kind, uint64_t send, uint64_t recv, size_t count, void *stream) {
    return (spark_comm_op){.struct_size = sizeof(spark_comm_op),
                           .kind = kind,
                           .dtype = SPARK_COMM_I32,
                           .send = send,
                           .recv = recv,
                           .bytes = count * 4,
                           .stream = (uint64_t)(uintptr_t)stream};
}

/* ---- Replays ---- */

enum { BIG = 70001, SMALL = 1000, LOGGED = 5 };

struct replays {
    uint64_t in, big, small, gathered, scattered, twice, log;
    void *stream, *graph, *exec;
};

static bool capture(struct harness_rank *rank, struct replays *r) {
    const struct device_driver *cuda = device_driver();
    spark_comm_op ops[] = {
        integers(SPARK_COMM_OP_ALL_REDUCE, r->in, r->big, BIG, r->stream),
        integers(SPARK_COMM_OP_ALL_REDUCE, r->in, r->small, SMALL, r->stream),
        integers(SPARK_COMM_OP_ALL_GATHER, r->in, r->gathered, SMALL, r->stream),
        integers(SPARK_COMM_OP_REDUCE_SCATTER, r->in, r->scattered, SMALL, r->stream),
    };
    if (!CHECK_INT(rank, 0, cuda->begin(r->stream, 0))) return false;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        CHECK_TRUE(rank, spark_comm_submit(rank->comm, &ops[i]) == SPARK_COMM_OK, "capture %zu", i);
    return CHECK_INT(rank, 0, cuda->end(r->stream, &r->graph)) &&
           CHECK_INT(rank, 0, cuda->instantiate(&r->exec, r->graph, 0));
}

/* New input, a replay, sometimes an eager sum of its result; one element of each result is kept. */
static bool one_replay(struct harness_rank *rank, struct replays *r, uint64_t pattern, int round) {
    const struct device_driver *cuda = device_driver();
    const uint64_t log = r->log + (uint64_t)round * LOGGED * 4;
    const uint64_t j = (uint64_t)round * 7919 % SMALL * 4;
    cuda->copy(r->in, pattern + (uint64_t)round * 4, (size_t)BIG * 4, r->stream);
    if (cuda->launch(r->exec, r->stream) != 0) return false;
    cuda->copy(log, r->big + (BIG - SMALL) * 4ull + j, 4, r->stream);
    cuda->copy(log + 4, r->small + j, 4, r->stream);
    cuda->copy(log + 8, r->gathered + SMALL * 4ull * ((uint64_t)rank->size - 1) + j, 4, r->stream);
    cuda->copy(log + 12, r->scattered + j, 4, r->stream);
    if (round % 4 != 0) return true;
    spark_comm_op op = integers(SPARK_COMM_OP_ALL_REDUCE, r->small, r->twice, SMALL, r->stream);
    if (spark_comm_submit(rank->comm, &op) != SPARK_COMM_OK) return false;
    return cuda->copy(log + 16, r->twice + j, 4, r->stream) == 0;
}

static void check_replays(struct harness_rank *rank, const struct replays *r, int rounds) {
    const int n = rank->size;
    int32_t *log = malloc((size_t)rounds * LOGGED * 4);
    if (!CHECK_TRUE(rank, device_read(log, r->log, (size_t)rounds * LOGGED * 4), "no log")) return;
    for (int round = 0; round < rounds; round++) {
        const int32_t *got = log + round * LOGGED;
        const size_t at = (size_t)round + (size_t)round * 7919 % SMALL;
        const int32_t want[LOGGED] = {
            sum_at(n, at + BIG - SMALL), sum_at(n, at), element(n - 1, at),
            sum_at(n, at + (size_t)rank->rank * SMALL), n * sum_at(n, at)};
        for (int i = 0; i < LOGGED - (round % 4 != 0); i++)
            if (!CHECK_TRUE(rank, got[i] == want[i], "replay %d, result %d: %d, not %d", round, i,
                            got[i], want[i]))
                return;
    }
    free(log);
}

static void replays(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    const int rounds = harness_rounds(rank, 1000);
    const size_t n = (size_t)rank->size;
    const uint64_t pattern = pattern_of(rank->rank, (size_t)rounds + BIG);
    struct replays r = {.in = device_make(NULL, BIG * 4),
                        .big = device_make(NULL, BIG * 4),
                        .small = device_make(NULL, SMALL * 4),
                        .gathered = device_make(NULL, n * SMALL * 4),
                        .scattered = device_make(NULL, SMALL * 4),
                        .twice = device_make(NULL, SMALL * 4),
                        .log = device_make(NULL, (size_t)rounds * LOGGED * 4),
                        .stream = new_stream()};
    device_driver()->stream_sync(NULL);
    if (!capture(rank, &r)) return;
    const double start = now_us();
    for (int round = 0; round < rounds; round++)
        if (!CHECK_TRUE(rank, one_replay(rank, &r, pattern, round), "round %d", round)) break;
    if (!CHECK_TRUE(rank, device_settle(r.stream, 60000), "the replays do not end")) return;
    if (rank->rank == 0)
        fprintf(stderr, "figure: %d replays of 4 operations beside %d eager sums: %.0f ms\n",
                rounds, (rounds + 3) / 4, (now_us() - start) / 1e3);
    check_replays(rank, &r, rounds);
    cuda->exec_destroy(r.exec);
    cuda->graph_destroy(r.graph);
    const uint64_t all[] = {pattern, r.in, r.big, r.small, r.gathered, r.scattered, r.twice, r.log};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cuda->free(all[i]);
    cuda->stream_destroy(r.stream);
}

/* ---- Order ---- */

enum { COUNT = 4096, STREAMS = 3, SLOW = 16 << 20 };

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A producer that may be slow, a sum ordered by events, a consumer, and the buffer overwritten right
 * behind it, on two streams and the legacy one in turns. */
static void ordered(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    const int rounds = harness_rounds(rank, 500);
    const uint64_t pattern = pattern_of(rank->rank, (size_t)rounds + COUNT);
    const uint64_t slow = is_real() ? device_make(NULL, 2 * (size_t)SLOW) : 0;
    const uint64_t log = device_make(NULL, (size_t)rounds * 4);
    const uint64_t junk = device_make(NULL, COUNT * 4);
    uint64_t buffers[STREAMS];
    void *streams[STREAMS] = {new_stream(), new_stream(), NULL};
    double *took = calloc((size_t)rounds, sizeof *took);
    int32_t *got = calloc((size_t)rounds, sizeof *got);
    for (int i = 0; i < STREAMS; i++)
        buffers[i] = device_make(NULL, COUNT * 4);
    cuda->stream_sync(NULL);
    for (int round = 0; round < rounds; round++) {
        void *stream = streams[round % STREAMS];
        const uint64_t buffer = buffers[round % STREAMS], j = (uint64_t)round * 7919 % COUNT * 4;
        rank->calls++;
        harness_jitter(rank, 300);
        for (int i = 0; slow != 0 && i < 6 && (round + rank->rank) % 5 == 0; i++)
            cuda->copy(slow, slow + SLOW, SLOW, stream);
        cuda->copy(buffer, pattern + (uint64_t)round * 4, (size_t)COUNT * 4, stream);
        spark_comm_op op = integers(SPARK_COMM_OP_ALL_REDUCE, buffer, buffer, COUNT, stream);
        op.flags = SPARK_COMM_FLAG_EVENT_ORDERED;
        const double start = now_us();
        const spark_comm_status st = spark_comm_submit(rank->comm, &op);
        took[round] = now_us() - start;
        if (!CHECK_TRUE(rank, st == SPARK_COMM_OK, "round %d", round)) break;
        cuda->copy(log + (uint64_t)round * 4, buffer + j, 4, stream);
        cuda->copy(buffer, junk, (size_t)COUNT * 4, stream);
        for (int i = 0; round % 60 == 59 && i < STREAMS; i++) /* never held back */
            device_settle(streams[i], 20000);
    }
    for (int i = 0; i < STREAMS; i++)
        CHECK_TRUE(rank, device_settle(streams[i], 20000), "stream %d does not end", i);
    CHECK_TRUE(rank, device_read(got, log, (size_t)rounds * 4), "no log");
    for (int round = 0; round < rounds; round++) {
        const int32_t want = sum_at(rank->size, (size_t)round + (size_t)round * 7919 % COUNT);
        if (!CHECK_TRUE(rank, got[round] == want, "round %d: %d, not %d", round, got[round], want))
            break;
    }
    qsort(took, (size_t)rounds, sizeof *took, compare);
    if (is_real())
        CHECK_TRUE(rank, took[rounds / 2] < 20, "a call takes %.1f us", took[rounds / 2]);
    if (rank->rank == 0)
        fprintf(stderr,
                "figure: %d ordered sums: a call takes %.1f us (median), %.1f (p99), %.1f (max)\n",
                rounds, took[rounds / 2], took[rounds * 99 / 100], took[rounds - 1]);
    for (int i = 0; i < STREAMS; i++) {
        cuda->free(buffers[i]);
        if (streams[i] != NULL) cuda->stream_destroy(streams[i]);
    }
    if (slow != 0) cuda->free(slow);
    cuda->free(pattern);
    cuda->free(log);
    cuda->free(junk);
    free(took);
    free(got);
}

/* ---- A peer is lost in the middle ---- */

struct loss {
    const char *name;
    size_t bytes;
    bool exchange, graph, stopped, window;
    bool crowded; /* other work on the stream, until the driver's queue is full */
    bool kept; /* the graph lives until the stream is free */
    bool old; /* on the fakes: an NCCL without ncclCommRevoke */
    const char *fault; /* of the fakes */
};

struct loop {
    void *stream, *graph, *exec;
    uint64_t junk; /* copied to and fro, where it is crowded */
    spark_comm_op op;
};

static char kept_log[512]; /* what the library said last of ending NCCL; rank processes */

static void keep_end(void *user, int level, const char *message) {
    (void)user;
    (void)level;
    if (strstr(message, "ended in") != NULL || strstr(message, "stays occupied") != NULL)
        snprintf(kept_log, sizeof kept_log, "%s", message);
}

static bool begin_loop(struct harness_rank *rank, const struct loss *loss, struct loop *loop) {
    const struct device_driver *cuda = device_driver();
    size_t bytes = loss->bytes;
    uint64_t buffer = 0;
    /* The fake's adds run on, whatever became of NCCL. */
    const size_t most = loss->exchange ? 1 << 16 : 1 << 20;
    if (!is_real() && bytes > most) bytes = most;
    loop->stream = new_stream();
    loop->junk = loss->crowded ? device_make(NULL, 8192) : 0;
    if (loss->window)
        CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, bytes, &buffer));
    else
        buffer = device_make(NULL, bytes);
    loop->op = (spark_comm_op){.struct_size = sizeof loop->op,
                               .kind = SPARK_COMM_OP_ALL_REDUCE,
                               .dtype = SPARK_COMM_BF16,
                               .send = buffer,
                               .recv = buffer,
                               .bytes = bytes,
                               .stream = (uint64_t)(uintptr_t)loop->stream};
    if (!loss->graph) return buffer != 0;
    if (!CHECK_INT(rank, 0, cuda->begin(loop->stream, 0))) return false;
    for (int i = 0; i < 10; i++)
        CHECK_TRUE(rank, spark_comm_submit(rank->comm, &loop->op) == SPARK_COMM_OK, "captured");
    return CHECK_INT(rank, 0, cuda->end(loop->stream, &loop->graph)) &&
           CHECK_INT(rank, 0, cuda->instantiate(&loop->exec, loop->graph, 0));
}

/* One turn; false when the communicator is lost. Replays are few at a time: the driver's own queue is
 * not ours to be stuck in. */
static bool turn(struct harness_rank *rank, struct loop *loop) {
    if (loop->exec == NULL && spark_comm_submit(rank->comm, &loop->op) != SPARK_COMM_OK)
        return false;
    for (int i = 0; loop->junk != 0 && i < 8; i++)
        device_driver()->copy(loop->junk, loop->junk + 4096, 4096, loop->stream);
    if (loop->exec != NULL) device_driver()->launch(loop->exec, loop->stream);
    while (loop->exec != NULL && !device_settle(loop->stream, 20))
        if (!spark_comm_is_healthy(rank->comm)) return false;
    return spark_comm_is_healthy(rank->comm);
}

static void be_lost(struct harness_rank *rank, const struct loss *loss, struct loop *loop) {
    const int64_t start = harness_now_ms();
    harness_may_die(rank, rank->rank);
    atomic_store(harness_word(rank, WORD_PID), (uint64_t)getpid());
    while (harness_now_ms() - start < 300 || loss->stopped) {
        if (loop->exec == NULL && !turn(rank, loop)) break;
        if (loop->exec != NULL) turn(rank, loop);
    }
    atomic_store(harness_word(rank, WORD_LOST), (uint64_t)harness_now_ms());
    harness_die(rank);
}

/* Percent of GPU use that the driver's tool tells of this rank's GPU; -1 where there is none. */
static int gpu_use(int gpu) {
    char command[128], line[64] = "";
    snprintf(command, sizeof command,
             "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -i %d", gpu);
    FILE *pipe = is_real() ? popen(command, "r") : NULL;
    if (pipe == NULL) return -1;
    const bool read = fgets(line, sizeof line, pipe) != NULL;
    pclose(pipe);
    return read && line[0] >= '0' && line[0] <= '9' ? atoi(line) : -1;
}

static void destroy_graph(struct loop *loop) {
    if (loop->exec != NULL) device_driver()->exec_destroy(loop->exec);
    if (loop->graph != NULL) device_driver()->graph_destroy(loop->graph);
    loop->exec = loop->graph = NULL;
}

static void survive(struct harness_rank *rank, const struct loss *loss, struct loop *loop) {
    const int limit = loss->stopped ? 4000 : 1000; /* liveness_timeout, and one second */
    int64_t lost = harness_now_ms();
    if (loss->stopped) {
        for (int64_t end = lost + 300; harness_now_ms() < end && turn(rank, loop);) {
        }
        lost = harness_now_ms();
        kill((pid_t)atomic_load(harness_word(rank, WORD_PID)), SIGSTOP);
    }
    const int64_t give_up = harness_now_ms() + (limit + 3000) * harness_slowness();
    while (turn(rank, loop) && harness_now_ms() < give_up) {
    }
    const int64_t verdict = harness_now_ms();
    if (!loss->stopped) lost = (int64_t)atomic_load(harness_word(rank, WORD_LOST));
    CHECK_TRUE(rank, !spark_comm_is_healthy(rank->comm), "no verdict");
    CHECK_TRUE(rank, verdict - lost < limit * harness_slowness(), "the verdict took %lld ms",
               (long long)(verdict - lost));
    if (!loss->kept) destroy_graph(loop);
    const bool freed = device_settle(loop->stream, 3000 * harness_slowness());
    const int64_t settled = harness_now_ms();
    destroy_graph(loop);
    int use = -1;
    if (!loss->window) {
        CHECK_TRUE(rank, freed, "the stream is not free");
        const uint64_t probe = device_make("works", 6);
        char back[6] = "";
        CHECK_TRUE(rank, probe != 0 && device_read(back, probe, 6) && strcmp(back, "works") == 0,
                   "the context does no other work");
        /* The tool tells of the last second or so. */
        for (int i = 0; i < 10 && (use = gpu_use(rank->rank)) > 0; i++)
            harness_sleep_ms(500);
        CHECK_TRUE(rank, use <= 0, "the GPU is %d %% in use", use);
    }
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    const int64_t closed = harness_now_ms() - start;
    CHECK_TRUE(rank, closed < 5000 * harness_slowness(), "close took %lld ms", (long long)closed);
    if (!loss->window)
        CHECK_TRUE(rank, strstr(kept_log, "ended in") != NULL, "not ended: %s", kept_log);
    fprintf(
        stderr,
        "figure: %s: verdict %lld ms after the loss, stream %s after %lld ms more, GPU use %d %%, close %lld ms; %s\n",
        loss->name, (long long)(verdict - lost), freed ? "free" : "NOT free",
        (long long)(settled - verdict), use, (long long)closed, kept_log);
    if (loss->stopped) kill((pid_t)atomic_load(harness_word(rank, WORD_PID)), SIGKILL);
}

static void lose(struct harness_rank *rank) {
    const struct loss *loss = rank->setup->arg;
    struct loop loop = {0};
    spark_comm_options options;
    script_set(rank, "SPARK_COMM_NCCL_EXCHANGE_BYTES", loss->exchange ? "1000000000" : NULL);
    script_set(rank, "SPARK_COMM_NCCL_WINDOWS", loss->window ? "always" : NULL);
    script_set(rank, "SC_FAKE_NCCL_FAULT", loss->fault);
    script_set(rank, "SC_FAKE_QUEUE", loss->crowded ? "100" : NULL);
    if (loss->old && !is_real()) {
        script_set(rank, "SPARK_COMM_NCCL_LIBRARY", SC_FAKE_DIR "/libfake_nccl_old.so");
        script_set(rank, "SC_FAKE_NCCL_VERSION", "22803");
    }
    harness_options(rank, &options);
    options.liveness_timeout_ms = 3000 * harness_slowness();
    options.close_timeout_ms = 4000 * harness_slowness();
    options.log = keep_end;
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    if (!harness_meet(rank) || !begin_loop(rank, loss, &loop)) return;
    for (int i = 0; i < 20; i++)
        turn(rank, &loop);
    if (!harness_meet(rank)) return;
    if (rank->rank == rank->size - 1)
        be_lost(rank, loss, &loop);
    else
        survive(rank, loss, &loop);
    /* What is stuck on the GPU must not keep the process: it ends here, and by force. */
    if (loss->window) harness_may_die(rank, rank->rank);
    if (loss->window && !harness_failed(rank)) harness_die(rank);
}

#define MIB ((size_t)1 << 20)
static const struct loss losses[] = {
    {.name = "killed, 16 KiB", .bytes = 16384},
    {.name = "killed, 256 MiB", .bytes = 256 * MIB},
    {.name = "killed, 16 KiB by the exchange", .bytes = 16384, .exchange = true},
    {.name = "killed, 256 MiB by the exchange", .bytes = 256 * MIB, .exchange = true},
    {.name = "killed, 16 KiB in replays", .bytes = 16384, .graph = true},
    {.name = "killed, 256 MiB in replays", .bytes = 256 * MIB, .graph = true},
    {.name = "stopped, 16 KiB", .bytes = 16384, .stopped = true},
    {.name = "stopped, 256 MiB", .bytes = 256 * MIB, .stopped = true},
    {.name = "stopped, 16 KiB by the exchange", .bytes = 16384, .exchange = true, .stopped = true},
    {.name = "stopped, 16 KiB in replays", .bytes = 16384, .graph = true, .stopped = true},
    {.name = "killed, 16 KiB in a window", .bytes = 16384, .window = true},
    {.name = "killed, 16 KiB in a full queue", .bytes = 16384, .crowded = true},
    {.name = "killed, 16 KiB in replays, the graph kept",
     .bytes = 16384,
     .graph = true,
     .kept = true},
    /* These say something on the fakes alone. */
    {.name = "killed, a full queue, old", .bytes = 16384, .crowded = true, .old = true},
    {.name = "killed, exchange, old", .bytes = 16 * MIB, .exchange = true, .old = true},
    {.name = "killed, replays, old", .bytes = 16384, .graph = true, .old = true},
    /* Ten kernels that see the flag late: longer than a revoke keeps it up. */
    {.name = "killed, slow replays", .bytes = 16384, .graph = true, .fault = "kernel_slow:80"},
};

/* ---- A late rank ---- */

enum { WORD_ENTERED };

/* Nobody leaves a barrier before the last has entered, however late that is. */
static void late(struct harness_rank *rank) {
    const int pause = is_real() ? 2000 : 300;
    if (rank->rank == 1) {
        harness_sleep_ms(pause);
        atomic_store(harness_word(rank, WORD_ENTERED), 1);
    }
    const int64_t start = harness_now_ms();
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    CHECK_TRUE(rank, atomic_load(harness_word(rank, WORD_ENTERED)) == 1, "left before rank 1 came");
    if (rank->rank == 0)
        fprintf(stderr, "figure: a barrier with a rank %d ms late took the other %lld ms\n", pause,
                (long long)(harness_now_ms() - start));
}

/* ---- Ends ---- */

static void keep_log(void *user, int level, const char *message) {
    char *kept = user;
    if (level == SPARK_COMM_LOG_ERROR) snprintf(kept, 256, "%s", message);
}

/* Closed while a graph holds it: bounded, and told. */
static void close_with_graph(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    static char kept[256]; /* rank processes */
    spark_comm_options options;
    void *stream = new_stream(), *graph = NULL;
    harness_options(rank, &options);
    options.close_timeout_ms = 2000 * harness_slowness();
    options.log = keep_log;
    options.log_user = kept;
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    const uint64_t buffer = device_make(NULL, 4096);
    spark_comm_op op = integers(SPARK_COMM_OP_ALL_REDUCE, buffer, buffer, 1024, stream);
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return;
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "captured");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took < 3000 * harness_slowness(), "close took %lld ms", (long long)took);
    CHECK_TRUE(rank, strstr(kept, "1 captured graphs") != NULL, "the log says: %s", kept);
    if (rank->rank == 0)
        fprintf(stderr, "figure: close with a live graph: %lld ms; \"%s\"\n", (long long)took,
                kept);
    harness_die(rank);
}

static double power(int gpu) {
    char command[128], line[64] = "0";
    snprintf(command, sizeof command,
             "nvidia-smi --query-gpu=power.draw --format=csv,noheader,nounits -i %d", gpu);
    FILE *pipe = is_real() ? popen(command, "r") : NULL;
    if (pipe == NULL) return 0;
    if (fgets(line, sizeof line, pipe) == NULL) line[0] = '\0';
    pclose(pipe);
    return atof(line);
}

/* Workers that wait for a command run nothing on their GPU. */
static void idle(struct harness_rank *rank) {
    const int seconds = is_real() ? 60 : 1;
    uint64_t word = device_make(&(uint32_t){rank->rank == 0 ? 4711 : 0}, 4);
    if (rank->rank > 0) {
        uint32_t got = 0;
        CHECK_OK(rank, spark_comm_recv_command_u32(rank->comm, word, 0));
        CHECK_TRUE(rank, device_read(&got, word, 4) && got == 4711, "the command is %u", got);
    } else {
        int most = -1;
        double highest = 0;
        harness_sleep_ms(is_real() ? 3000 : 100);
        const double before = power(1);
        for (int i = 0; i < seconds; i++) {
            const int use = gpu_use(1);
            const double now = power(1);
            if (use > most) most = use;
            if (now > highest) highest = now;
            harness_sleep_ms(900);
        }
        CHECK_TRUE(rank, most <= 0, "a waiting worker's GPU is %d %% in use", most);
        fprintf(
            stderr,
            "figure: %d s in recv_command_u32: GPU use at most %d %%, power %.1f W at first, %.1f W at most\n",
            seconds, most, before, highest);
        CHECK_OK(rank, spark_comm_broadcast(rank->comm, word, 4, 0));
    }
    device_driver()->free(word);
}

#define PAIR (CONTRACT_ONLY_PROCESSES | CONTRACT_PAIR)
#define LOSS(name, index)           \
    {                               \
        name,                       \
            {.run = lose,           \
             .arg = &losses[index], \
             .opens_itself = true,  \
             .keeps_things = true,  \
             .limit_s = 40},        \
            PAIR                    \
    }
static const struct contract_test tests[] = {
    {"replays", {.run = replays}, CONTRACT_ONLY_PROCESSES},
    {"ordered", {.run = ordered}, CONTRACT_ONLY_PROCESSES},
    LOSS("killed_small", 0),
    LOSS("killed_large", 1),
    LOSS("killed_exchange", 2),
    LOSS("killed_exchange_large", 3),
    LOSS("killed_replay", 4),
    LOSS("killed_replay_large", 5),
    LOSS("stopped_small", 6),
    LOSS("stopped_large", 7),
    LOSS("stopped_exchange", 8),
    LOSS("stopped_replay", 9),
    LOSS("killed_window", 10),
    LOSS("killed_crowded", 11),
    LOSS("killed_replay_kept", 12),
    LOSS("killed_crowded_old", 13),
    LOSS("killed_exchange_old", 14),
    LOSS("killed_replay_old", 15),
    LOSS("killed_replay_slow", 16),
    {"close_with_graph",
     {.run = close_with_graph, .opens_itself = true, .keeps_things = true, .limit_s = 40},
     PAIR},
    {"late", {.run = late}, PAIR},
    {"idle", {.run = idle}, PAIR},
};

CONTRACT_MAIN("nccl_soak", tests)
