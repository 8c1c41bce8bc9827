/* Opening with everything from the environment: the library's own variables, each launcher's
 * family, and their order. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "ops.h"

static void put(const char *name, const char *format, ...) {
    char value[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    setenv(name, value, 1);
}

/* What every family leaves to the library's own variables. */
static void put_common(const struct harness_rank *rank) {
    put("SPARK_COMM_BACKEND", "shm");
    put("SPARK_COMM_RENDEZVOUS_TIMEOUT_MS", "%d", 20000 * harness_slowness());
    put("SPARK_COMM_OP_TIMEOUT_MS", "%d", 20000 * harness_slowness());
    put("SPARK_COMM_MASTER_PORT", "%d", rank->port);
}

static void open_and_sum(struct harness_rank *rank) {
    if (!CHECK_OK(rank, spark_comm_open(NULL, &rank->comm))) return;
    CHECK_INT(rank, rank->rank, spark_comm_rank(rank->comm));
    CHECK_INT(rank, rank->size, spark_comm_world_size(rank->comm));
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 60};
    ops_run(rank, &call);
}

static void own_variables(struct harness_rank *rank) {
    put_common(rank);
    put("SPARK_COMM_RANK", "%d", rank->rank);
    put("SPARK_COMM_WORLD_SIZE", "%d", rank->size);
    put("SPARK_COMM_MASTER_ADDR", "127.0.0.1");
    put("SPARK_COMM_JOB_TOKEN", "from the environment");
    put("SPARK_COMM_DTYPE", "i32");
    /* A family beside them is not asked. */
    put("RANK", "%d", rank->size - 1 - rank->rank);
    put("WORLD_SIZE", "17");
    open_and_sum(rank);
    int32_t value = rank->rank;
    if (harness_failed(rank)) return;
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(&value), sizeof value));
    CHECK_INT(rank, rank->size * (rank->size - 1) / 2, value);
}

static void torchrun(struct harness_rank *rank) {
    put_common(rank);
    unsetenv("SPARK_COMM_MASTER_PORT");
    put("RANK", "%d", rank->rank);
    put("WORLD_SIZE", "%d", rank->size);
    put("LOCAL_RANK", "%d", rank->rank); /* numbers a device only when device memory is wanted */
    put("MASTER_ADDR", "127.0.0.1");
    put("MASTER_PORT", "%d", rank->port);
    open_and_sum(rank);
}

static void open_mpi(struct harness_rank *rank) {
    put_common(rank);
    put("OMPI_COMM_WORLD_RANK", "%d", rank->rank);
    put("OMPI_COMM_WORLD_SIZE", "%d", rank->size);
    put("OMPI_COMM_WORLD_LOCAL_RANK", "%d", rank->rank);
    open_and_sum(rank);
}

static void mpich(struct harness_rank *rank) {
    put_common(rank);
    put("PMI_RANK", "%d", rank->rank);
    put("PMI_SIZE", "%d", rank->size);
    open_and_sum(rank);
}

static void slurm(struct harness_rank *rank) {
    put_common(rank);
    put("SLURM_PROCID", "%d", rank->rank);
    put("SLURM_STEP_NUM_TASKS", "%d", rank->size);
    put("SLURM_JOB_NUM_NODES", "1");
    open_and_sum(rank);
}

/* A family counts as a whole: half of one is passed over for the next that is complete. */
static void half_a_family(struct harness_rank *rank) {
    put_common(rank);
    put("RANK", "0"); /* no WORLD_SIZE */
    put("SLURM_PROCID", "%d", rank->rank);
    put("SLURM_STEP_NUM_TASKS", "%d", rank->size);
    open_and_sum(rank);
}

/* Options win over the environment, each by itself. */
static void options_win(struct harness_rank *rank) {
    spark_comm_options options;
    put("SPARK_COMM_BACKEND", "no_such_backend");
    put("SPARK_COMM_RANK", "77");
    put("SPARK_COMM_WORLD_SIZE", "78");
    put("SPARK_COMM_MASTER_PORT", "1");
    put("SPARK_COMM_DTYPE", "f64");
    harness_options(rank, &options);
    options.backend = "shm";
    if (!CHECK_OK(rank, spark_comm_open(&options, &rank->comm))) return;
    double value = rank->rank;
    CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(&value), sizeof value));
    CHECK_TRUE(rank, value == rank->size * (rank->size - 1) / 2.0, "the sum is %g", value);
}

struct wrong_variable {
    const char *name, *value, *range;
};
static const struct wrong_variable wrong_variables[] = {
    {"SPARK_COMM_RANK", "-5", "0"},
    {"SPARK_COMM_RANK", "seven", "0"},
    {"SPARK_COMM_RANK", "1x", "0"},
    {"SPARK_COMM_RANK", "99999999999999999999", "0"},
    {"SPARK_COMM_WORLD_SIZE", "0", "4096"},
    {"SPARK_COMM_MASTER_PORT", "70000", "65535"},
    {"SPARK_COMM_MASTER_PORT", " ", "65535"},
    {"SPARK_COMM_OP_TIMEOUT_MS", "-7", "-1"},
    {"SPARK_COMM_DTYPE", "float", "bf16"},
    {"SPARK_COMM_DTYPE", "BF16 ", "bf16"},
    {"SPARK_COMM_MEMORY", "gpu", "device"},
    {"SPARK_COMM_LOG_LEVEL", "loud", "debug"},
    {"SPARK_COMM_TRACE_RECORDS", "100", "power of two"},
    {"SPARK_COMM_TRACE_RECORDS", "32", "64"},
};

/* A wrong value is refused with the variable, the value and the range, and never clamped. */
static void out_of_range(struct harness_rank *rank) {
    for (size_t i = 0; i < sizeof wrong_variables / sizeof wrong_variables[0]; i++) {
        const struct wrong_variable *wrong = &wrong_variables[i];
        spark_comm *comm = NULL;
        put("SPARK_COMM_RANK", "0");
        put("SPARK_COMM_WORLD_SIZE", "1");
        put("SPARK_COMM_BACKEND", "single");
        put(wrong->name, "%s", wrong->value);
        harness_step(rank, "%s=%s", wrong->name, wrong->value);
        if (CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_open(NULL, &comm)))
            CHECK_MESSAGE(rank, SPARK_COMM_INVALID_ARGUMENT, wrong->name, wrong->value,
                          wrong->range);
        spark_comm_close(comm);
        unsetenv(wrong->name);
    }
    /* Empty is not set. */
    spark_comm *comm = NULL;
    put("SPARK_COMM_RANK", "0");
    put("SPARK_COMM_WORLD_SIZE", "1");
    put("SPARK_COMM_DTYPE", "");
    CHECK_OK(rank, spark_comm_open(NULL, &comm));
    spark_comm_close(comm);
}

#define WHERE (CONTRACT_ONLY_PROCESSES | CONTRACT_BY_NAME | CONTRACT_NO_SINGLE | CONTRACT_PAIR)

static const struct contract_test tests[] = {
    {"own_variables", {.run = own_variables, .opens_itself = true}, WHERE},
    {"torchrun", {.run = torchrun, .opens_itself = true}, WHERE},
    {"open_mpi", {.run = open_mpi, .opens_itself = true}, WHERE},
    {"mpich", {.run = mpich, .opens_itself = true}, WHERE},
    {"slurm", {.run = slurm, .opens_itself = true}, WHERE},
    {"half_a_family", {.run = half_a_family, .opens_itself = true}, WHERE},
    {"options_win", {.run = options_win, .opens_itself = true}, WHERE | CONTRACT_ONLY_HOST},
    {"out_of_range",
     {.run = out_of_range, .opens_itself = true},
     CONTRACT_ONLY_PROCESSES | CONTRACT_ALONE | CONTRACT_ONE_BACKEND},
};

CONTRACT_MAIN("environment", tests)
