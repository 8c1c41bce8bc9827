/* What open refuses, and how soon: libraries that will not do, ranks that do not fit together, an
 * init that does not end. On the fakes. */
#include <stdlib.h>
#include <string.h>

#include "script.h"

#define FAKE_DIR SC_FAKE_DIR

/* Each case fails alike on all ranks, within two seconds. */
static void refused(struct harness_rank *rank, spark_comm_status want, const char *const *words) {
    const int64_t start = harness_now_ms();
    spark_comm_status st = script_open(rank, 0, 0, 0);
    const int64_t took = harness_now_ms() - start;
    script_check_open_failed(rank, want, st, words);
    CHECK_TRUE(rank, took < 2000 * harness_slowness(), "refused after %lld ms", (long long)took);
}
#define REFUSED(rank, want, ...) refused(rank, want, (const char *const[]){__VA_ARGS__, NULL})

static void no_library(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "/nowhere/libnccl.so.2", "cannot open",
            "SPARK_COMM_NCCL_LIBRARY");
}

static void half_library(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_NCCL_LIBRARY", FAKE_DIR "/libfake_nccl_half.so");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "libfake_nccl_half.so", "2.28.9", "ncclAllGather");
}

static void too_old(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NCCL_VERSION", "21805");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "2.18.5", "too old", "2.19");
}

static void no_driver(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "no CUDA driver", "/nowhere/libcuda.so.1");
}

static void no_gpu(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NO_GPU", "1");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "CUDA_ERROR_NO_DEVICE");
}

static void missing_function(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_CUDA_MISSING", "cuGraphRetainUserObject");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "cuGraphRetainUserObject");
}

static void no_such_device(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_DEVICES", "1");
    if (rank->size == 1) return;
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "rank 1", "device is 1", "GPUs 0 to 0");
}

/* Processes alone: threads share the version. */
static void versions_differ(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NCCL_VERSION", rank->rank == 1 ? "22903" : "22809");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "rank 0", "2.28.9", "rank 1", "2.29.3");
}

static void settings_differ(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_NCCL_EXCHANGE_BYTES", rank->rank == 1 ? "4096" : "0");
    REFUSED(rank, SPARK_COMM_UNAVAILABLE, "ranks 0 and 1", "nccl_exchange_bytes 0 and 4096");
}

static spark_comm_status open_on_one_gpu(struct harness_rank *rank) {
    spark_comm_options options;
    harness_options(rank, &options);
    options.device = 3;
    return harness_open(rank, &options, &rank->comm);
}

static void shared_gpu(struct harness_rank *rank) {
    SCRIPT_OPEN_FAILED(rank, SPARK_COMM_UNAVAILABLE, open_on_one_gpu(rank), "ranks 0 and 1",
                       "GPU 3", "SPARK_COMM_ALLOW_SHARED_GPU");
}

/* Without NCCL what the control plane carries still works. */
static void shared_gpu_allowed(struct harness_rank *rank) {
    uint32_t word = rank->rank == 0 ? 4711 : 0;
    float value = 1;
    script_set(rank, "SPARK_COMM_ALLOW_SHARED_GPU", "1");
    if (!CHECK_OK(rank, open_on_one_gpu(rank))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    CHECK_OK(rank, spark_comm_broadcast(rank->comm, harness_address(&word), 4, 0));
    CHECK_INT(rank, 4711, word);
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED,
                  spark_comm_all_reduce(rank->comm, harness_address(&value), 4), "share a GPU");
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
}

static void init_hangs(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NCCL_FAULT", "init_hang@1");
    const int64_t start = harness_now_ms();
    spark_comm_status st = script_open(rank, 1500, 0, 1000);
    const int64_t took = harness_now_ms() - start;
    SCRIPT_OPEN_FAILED(rank, SPARK_COMM_OPEN_TIMEOUT, st, "init", "rank 1",
                       "ncclCommInitRankConfig was still in progress");
    CHECK_TRUE(rank, took < 2500 * harness_slowness(), "open took %lld ms", (long long)took);
}

static void init_fails(struct harness_rank *rank) {
    script_set(rank, "SC_FAKE_NCCL_FAULT", "init_error@1");
    SCRIPT_OPEN_FAILED(rank, SPARK_COMM_BACKEND, script_open(rank, 20000, 0, 1000), "init",
                       "rank 1", "ncclCommInitRankConfig", "unhandled system error");
}

/* A child whose pointer comes late is waited for. */
static void split_is_late(struct harness_rank *rank) {
    float value = 1;
    script_set(rank, "SC_FAKE_NCCL_FAULT", "split_late");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = SPARK_COMM_OP_ALL_REDUCE,
                        .dtype = SPARK_COMM_F32,
                        .send = harness_address(&value),
                        .recv = harness_address(&value),
                        .bytes = 4};
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    CHECK_INT(rank, rank->size, value);
}

/* An NCCL without what came after 2.27 serves. */
static void old_library(struct harness_rank *rank) {
    script_set(rank, "SPARK_COMM_NCCL_LIBRARY", FAKE_DIR "/libfake_nccl_old.so");
    script_set(rank, "SC_FAKE_NCCL_VERSION", "22203");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_GATHER, .count = 100};
    ops_run(rank, &call);
}

/* 100 ms is the promise; a machine under load gets more before this is called a failure. */
static void opens_soon(struct harness_rank *rank) {
    int64_t best = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        harness_meet(rank);
        const int64_t start = harness_now_ms();
        if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
        const int64_t took = harness_now_ms() - start;
        if (took < best) best = took;
        spark_comm_close(rank->comm);
        rank->comm = NULL;
    }
    CHECK_TRUE(rank, best < 100 * harness_slowness(), "the fastest of five opens took %lld ms",
               (long long)best);
}

#define ALONE (CONTRACT_ONLY_PROCESSES)
static const struct contract_test tests[] = {
    {"no_library", {.run = no_library, .opens_itself = true}, ALONE},
    {"half_library", {.run = half_library, .opens_itself = true}, ALONE},
    {"too_old", {.run = too_old, .opens_itself = true}, ALONE},
    {"no_driver", {.run = no_driver, .opens_itself = true}, ALONE},
    {"no_gpu", {.run = no_gpu, .opens_itself = true, .keeps_things = true}, ALONE},
    {"missing_function", {.run = missing_function, .opens_itself = true}, ALONE},
    {"no_such_device", {.run = no_such_device, .opens_itself = true}, ALONE},
    {"versions_differ", {.run = versions_differ, .opens_itself = true}, ALONE | CONTRACT_SEVERAL},
    {"settings_differ", {.run = settings_differ, .opens_itself = true}, ALONE | CONTRACT_SEVERAL},
    {"shared_gpu", {.run = shared_gpu, .opens_itself = true}, CONTRACT_SEVERAL},
    {"shared_gpu_allowed",
     {.run = shared_gpu_allowed, .opens_itself = true},
     ALONE | CONTRACT_SEVERAL},
    {"init_hangs", {.run = init_hangs, .opens_itself = true}, ALONE | CONTRACT_PAIR},
    {"init_fails", {.run = init_fails, .opens_itself = true}, ALONE | CONTRACT_SEVERAL},
    {"split_is_late", {.run = split_is_late, .opens_itself = true}, ALONE},
    {"old_library", {.run = old_library, .opens_itself = true}, ALONE},
    {"opens_soon", {.run = opens_soon, .opens_itself = true}, ALONE | CONTRACT_PAIR},
};

CONTRACT_MAIN("nccl_open", tests)
