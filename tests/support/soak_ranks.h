/*
 * The ranks' side of the fault soak: a loop of random calls, the same on all ranks, whose results are
 * all checked; what a rank was told when that ended; and what its process holds in each epoch.
 */
#ifndef TESTS_SUPPORT_SOAK_RANKS_H
#define TESTS_SUPPORT_SOAK_RANKS_H

#include <errno.h>
#include <limits.h>

#include "fault_ranks.h"
#include "reconnect_ranks.h"

#define SOAK_SLOTS 32 /* processes of which something is still to be read */
#define SOAK_SYMMETRIC ((size_t)1 << 20)
#define SOAK_ELEMENTS (SOAK_SYMMETRIC / sizeof(float))
#define SOAK_CLOSE_MS 2000

/* A sanitizer keeps what was freed, and shadows of it. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SOAK_GROWTH_KIB LONG_MAX
#else
#define SOAK_GROWTH_KIB 1024 /* the recorder's rings fill up, some 320 KiB */
#endif

/* What one process tells the test: a replaced one and its replacement have the same rank. */
struct soak_slot {
    _Atomic uint32_t settled; /* the epoch in which all was verified, and nothing leaked */
    _Atomic uint32_t told; /* the epoch that a fault ended for it */
    int64_t told_ns, verified_ns;
    int status, peer;
    char message[512];
    char refusal[512]; /* of its attempt to come back */
    int epochs, descriptors, threads; /* in its third epoch */
    long resident_kib, grown_kib;
};

struct soak_board {
    unsigned seed;
    _Atomic uint32_t reopen[JOB_RANKS]; /* after this epoch it closes and opens instead */
    struct soak_slot slots[SOAK_SLOTS];
};

static struct soak_board *soak;
static int soak_slot; /* of the process that is started next; then of this process */
static uint64_t soak_symmetric; /* of an epoch */
static _Atomic(spark_comm *) soak_comm; /* of this process, for the thread that handles signals */
static float soak_data[JOB_RANKS * SOAK_ELEMENTS];

static inline unsigned char soak_byte(size_t i, int rank, unsigned salt) {
    return (unsigned char)(i * 31 + (size_t)rank * 101 + salt);
}

static inline void soak_fill(void *memory, size_t bytes, int rank, unsigned salt) {
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)memory)[i] = soak_byte(i, rank, salt);
}

static inline void soak_expect(const void *memory, size_t bytes, int rank, unsigned salt) {
    for (size_t i = 0; i < bytes; i++)
        CHECK(((const unsigned char *)memory)[i] == soak_byte(i, rank, salt));
}

/* ---- The calls; `salt` is random, and the same on all ranks ---- */

static inline spark_comm_status soak_sum(struct job_rank *rank, unsigned salt) {
    static const size_t counts[] = {1, 14, 300, 5000, 40000, 150000, SOAK_ELEMENTS};
    return job_sum(rank, soak_data, counts[salt % 7], (int)(salt % 1000));
}

static inline spark_comm_status soak_sum_symmetric(struct job_rank *rank, unsigned salt) {
    static const size_t counts[] = {9, 20000, 140000, SOAK_ELEMENTS}; /* zero copy: two of them */
    return job_sum(rank, (float *)(uintptr_t)soak_symmetric, counts[salt % 4], (int)(salt % 1000));
}

static inline spark_comm_status soak_all_gather(struct job_rank *rank, unsigned salt) {
    unsigned char *all = (unsigned char *)soak_data;
    size_t bytes = 1 + salt % 70000;

    soak_fill(all + (size_t)rank->rank * bytes, bytes, rank->rank, salt);
    TRY(spark_comm_all_gather(rank->comm, job_address(all + (size_t)rank->rank * bytes),
                              job_address(all), bytes));
    for (int i = 0; i < JOB_RANKS; i++)
        soak_expect(all + (size_t)i * bytes, bytes, i, salt);
    return SPARK_COMM_OK;
}

static inline spark_comm_status soak_reduce_scatter(struct job_rank *rank, unsigned salt) {
    static float result[20000];
    size_t count = 1 + salt % 20000, own = (size_t)rank->rank * count;
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_REDUCE_SCATTER,
                        .dtype = SPARK_COMM_F32,
                        .redop = SPARK_COMM_SUM,
                        .send = job_address(soak_data),
                        .recv = job_address(result),
                        .bytes = count * sizeof result[0]};

    for (size_t i = 0; i < JOB_RANKS * count; i++)
        soak_data[i] = (float)(rank->rank + 1) * (float)(i % 89);
    TRY(spark_comm_submit(rank->comm, &op));
    for (size_t i = 0; i < count; i++)
        CHECK(result[i] == (float)(JOB_SUM * ((own + i) % 89)));
    return SPARK_COMM_OK;
}

static inline spark_comm_status soak_broadcast(struct job_rank *rank, unsigned salt) {
    int root = (int)(salt % JOB_RANKS);
    size_t bytes = salt % 2 == 0 ? 1 + salt % 4096 : 4097 + salt % 200000; /* both lanes */

    soak_fill(soak_data, bytes, rank->rank, salt);
    TRY(spark_comm_broadcast(rank->comm, job_address(soak_data), bytes, root));
    soak_expect(soak_data, bytes, root, salt);
    return SPARK_COMM_OK;
}

static inline spark_comm_status soak_command(struct job_rank *rank, unsigned salt) {
    static uint32_t words[1024];
    size_t count = 1 + salt % 1024, got = 0;

    if (rank->rank == 0) {
        soak_fill(words, count * 4, 0, salt);
        TRY(spark_comm_send_command(rank->comm, words, count));
        return SPARK_COMM_OK;
    }
    TRY(spark_comm_recv_command(rank->comm, words, 1024, &got));
    CHECK(got == count);
    soak_expect(words, count * 4, 0, salt);
    return SPARK_COMM_OK;
}

static inline spark_comm_status soak_word(struct job_rank *rank, unsigned salt) {
    int root = (int)(salt % JOB_RANKS);
    uint32_t word = rank->rank == root ? salt : 0;

    if (rank->rank == root)
        TRY(spark_comm_broadcast(rank->comm, job_address(&word), 4, root));
    else
        TRY(spark_comm_recv_command_u32(rank->comm, job_address(&word), root));
    CHECK(word == salt);
    return SPARK_COMM_OK;
}

static inline spark_comm_status soak_exchange(struct job_rank *rank, unsigned salt) {
    static unsigned char mine[1000], all[JOB_RANKS * 1000];
    size_t bytes = 1 + salt % 1000;

    soak_fill(mine, bytes, rank->rank, salt);
    TRY(spark_comm_exchange_host(rank->comm, mine, all, bytes));
    for (int i = 0; i < JOB_RANKS; i++)
        soak_expect(all + (size_t)i * bytes, bytes, i, salt);
    return SPARK_COMM_OK;
}

/* Around the ring, in a group. */
static inline spark_comm_status soak_ring(struct job_rank *rank, unsigned salt) {
    unsigned char *bytes = (unsigned char *)soak_data;
    int before = (rank->rank + JOB_RANKS - 1) % JOB_RANKS;
    size_t count = 1 + salt % 200000;

    soak_fill(bytes, count, rank->rank, salt);
    TRY(spark_comm_group_start(rank->comm));
    spark_comm_send_to(rank->comm, job_address(bytes), count, (rank->rank + 1) % JOB_RANKS, 0);
    spark_comm_recv_from(rank->comm, job_address(bytes + count), count, before, 0);
    TRY(spark_comm_group_end(rank->comm));
    soak_expect(bytes + count, count, before, salt);
    return SPARK_COMM_OK;
}

/* One is late, and the others wait for it in whatever comes next. */
static inline spark_comm_status soak_pause(struct job_rank *rank, unsigned salt) {
    if (rank->rank == (int)(salt % JOB_RANKS)) usleep(salt % 3000);
    return spark_comm_barrier(rank->comm);
}

static inline spark_comm_status soak_calls(struct job_rank *rank) {
    static spark_comm_status (*const calls[])(struct job_rank * rank, unsigned salt) = {
        soak_sum,     soak_sum_symmetric, soak_all_gather, soak_reduce_scatter, soak_broadcast,
        soak_command, soak_word,          soak_exchange,   soak_ring,           soak_pause};
    unsigned random = soak->seed * 2654435761u + job_epoch(rank);

    TRY(spark_comm_symmetric_alloc(rank->comm, SOAK_SYMMETRIC, &soak_symmetric));
    for (;;) {
        int32_t stop = (int32_t)atomic_load(&board->words[JOB_STOP]);
        spark_comm_op op = {.struct_size = sizeof op,
                            .kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_I32,
                            .redop = SPARK_COMM_MAX,
                            .send = job_address(&stop),
                            .recv = job_address(&stop),
                            .bytes = 4};
        TRY(spark_comm_submit(rank->comm, &op));
        if (stop != 0) return SPARK_COMM_OK;
        for (int i = 0; i < 20; i++) {
            unsigned salt = fault_random(&random);
            TRY(calls[salt % 10](rank, salt / 10));
        }
    }
}

/* ---- What a process holds ---- */

/* In each of its epochs as in its third one; and it never has children. */
static inline void soak_count(struct soak_slot *slot) {
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    if (++slot->epochs < 3) return;
    if (slot->epochs == 3) {
        slot->descriptors = job_settled_descriptors(0);
        slot->threads = world_count_threads();
        slot->resident_kib = job_resident_kib();
        return;
    }
    int descriptors = job_settled_descriptors(slot->descriptors);
    int threads = world_settle_threads(slot->threads);
    slot->grown_kib = job_resident_kib() - slot->resident_kib;
    bool is_same = descriptors == slot->descriptors && threads == slot->threads &&
                   slot->grown_kib <= SOAK_GROWTH_KIB;
    if (is_same) return;
    fprintf(stderr, "after %d epochs: %d descriptors (%d), %d threads (%d), %ld KiB more\n",
            slot->epochs, descriptors, slot->descriptors, threads, slot->threads, slot->grown_kib);
    world_check_failed(__FILE__, __LINE__, "nothing leaks", NULL);
}

/* ---- A rank's life ---- */

/* SIGTERM aborts, from a thread that handles signals. */
static inline void *soak_handle_signals(void *arg) {
    sigset_t set;
    int signal;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    while (sigwait(&set, &signal) == 0)
        CHECK(spark_comm_abort(atomic_load(&soak_comm)) == SPARK_COMM_OK);
    return arg;
}

static inline void soak_prepare(void) {
    pthread_t thread;
    sigset_t set;

    memset(soak_data, 1, sizeof soak_data); /* resident from the first epoch on */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, soak_handle_signals, NULL) == 0);
    CHECK(pthread_detach(thread) == 0);
}

static inline void soak_note(struct job_rank *rank, struct soak_slot *slot, spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};

    CHECK(spark_comm_is_fatal(st) && !spark_comm_is_healthy(rank->comm));
    CHECK_OK(spark_comm_last_error(rank->comm, &error));
    CHECK(error.status == (int)st);
    slot->status = (int)st;
    slot->peer = error.peer;
    slot->told_ns = sc_deadline_now();
    memcpy(slot->message, error.message, sizeof slot->message);
    CHECK(spark_comm_barrier(rank->comm) == st); /* as every later call */
    atomic_store(&slot->told, error.epoch);
}

static inline void soak_close(struct job_rank *rank) {
    int64_t start = sc_deadline_now();
    spark_comm_close(rank->comm);
    CHECK(world_ms_since(start) < SOAK_CLOSE_MS);
}

static inline void soak_open(struct job_rank *rank) {
    int64_t until = sc_deadline_after(30000);
    while (job_open(rank) != SPARK_COMM_OK)
        CHECK(!sc_deadline_passed(until));
    atomic_store(&soak_comm, rank->comm);
}

/* Into the next epoch; false: this process has been replaced. */
static inline bool soak_come_back(struct job_rank *rank, struct soak_slot *slot) {
    int64_t until = sc_deadline_after(30000);
    spark_comm_error error = {.struct_size = sizeof error};

    if (atomic_load(&soak->reopen[rank->rank]) == atomic_load(&slot->told)) {
        soak_close(rank);
        soak_open(rank);
        return true;
    }
    for (;;) {
        spark_comm_status st = spark_comm_attempt_reconnect(rank->comm);
        if (st == SPARK_COMM_OK) return true;
        CHECK_OK(spark_comm_last_error(NULL, &error));
        if (st == SPARK_COMM_REFUSED) break;
        CHECK(!sc_deadline_passed(until));
    }
    memcpy(slot->refusal, error.message, sizeof slot->refusal);
    soak_close(rank);
    return false;
}

static inline void soak_body(struct job_rank *rank) {
    struct soak_slot *slot = &soak->slots[soak_slot];

    soak_prepare();
    soak_open(rank);
    for (;;) {
        spark_comm_status st = job_try(rank);
        if (st == SPARK_COMM_OK) {
            slot->verified_ns = sc_deadline_now();
            soak_count(slot);
            atomic_store(&slot->settled, job_epoch(rank));
            st = soak_calls(rank);
        }
        if (soak_symmetric != 0) CHECK_OK(spark_comm_symmetric_free(rank->comm, soak_symmetric));
        soak_symmetric = 0;
        if (st == SPARK_COMM_OK) break;
        soak_note(rank, slot, st);
        if (!soak_come_back(rank, slot)) return;
    }
    soak_close(rank);
}

#endif
