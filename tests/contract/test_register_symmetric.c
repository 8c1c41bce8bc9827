/* register_buffer and symmetric_alloc: handles and their counts, memory that peers can reach, what
 * is refused. */
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "ops.h"

/* Ordinary memory: the handle may be 0; the same range gives the same one, and as many
 * deregistrations end it. */
static void ordinary(struct harness_rank *rank) {
    unsigned char *memory = malloc(100000);
    uint64_t first = 77, second = 78;
    spark_comm *comm = rank->comm;
    if (!CHECK_TRUE(rank, memory != NULL, "no memory")) return;
    CHECK_OK(rank, spark_comm_register_buffer(comm, harness_address(memory), 100000, &first));
    CHECK_OK(rank, spark_comm_register_buffer(comm, harness_address(memory), 100000, &second));
    CHECK_INT(rank, first, second);
    if (!rank->world->backend->has_symmetric) CHECK_INT(rank, 0, first);
    struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                            .dtype = SPARK_COMM_F32,
                            .redop = SPARK_COMM_SUM,
                            .count = 3000};
    ops_run(rank, &call);
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, first));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, second));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, 0));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, 0));
    free(memory);
}

static void register_refusals(struct harness_rank *rank) {
    unsigned char memory[64];
    uint64_t handle = 5;
    spark_comm *comm = rank->comm;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_register_buffer(comm, 0, 64, &handle), "ptr");
    CHECK_INT(rank, 0, handle);
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_register_buffer(comm, harness_address(memory), 0, &handle), "bytes");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_register_buffer(comm, harness_address(memory), 64, NULL), "handle");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_deregister_buffer(comm, 987654321),
                  "handle", "987654321");
}

/* The whole life of symmetric memory where there is none: NOT_SUPPORTED, and nothing else
 * happens. */
static void not_supported(struct harness_rank *rank) {
    uint64_t ptr = 5;
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED,
                  spark_comm_symmetric_alloc(rank->comm, 4096, &ptr), "symmetric_alloc");
    CHECK_INT(rank, 0, ptr);
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_symmetric_free(rank->comm, 4096),
                  "symmetric_free");
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, 0));
}

static bool alloc(struct harness_rank *rank, size_t bytes, unsigned char **memory) {
    uint64_t ptr = 0;
    harness_step(rank, "symmetric_alloc of %zu", bytes);
    if (!CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, bytes, &ptr))) return false;
    *memory = (unsigned char *)(uintptr_t)ptr;
    if (!CHECK_TRUE(rank, ptr != 0 && ptr % 64 == 0, "symmetric memory at %p", (void *)*memory))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!CHECK_TRUE(rank, (*memory)[i] == 0, "byte %zu of fresh memory is 0x%02x", i,
                        (*memory)[i]))
            return false;
    return true;
}

/* One reduction inside symmetric memory at an offset, with what lies around it watched. */
static bool reduce_inside(struct harness_rank *rank, unsigned char *memory, size_t bytes,
                          size_t offset, size_t count) {
    const void *sources[HARNESS_MAX_RANKS];
    unsigned char *inputs = malloc((size_t)(rank->size + 1) * count * 4 + 1);
    unsigned char *want = inputs + (size_t)rank->size * count * 4;
    bool good = false;
    rank->calls++;
    harness_step(rank, "all_reduce of %zu floats at %zu", count, offset);
    if (!CHECK_TRUE(rank, inputs != NULL, "no memory")) return false;
    for (int r = 0; r < rank->size; r++) {
        unsigned char *input = inputs + (size_t)r * count * 4;
        reference_fill(SPARK_COMM_F32, reference_mix(rank->seed, rank->calls, (uint64_t)r), input,
                       count);
        sources[r] = input;
    }
    reference_reduce(SPARK_COMM_F32, SPARK_COMM_SUM, sources, rank->size, want, count);
    memset(memory, 0x3c, bytes);
    memcpy(memory + offset, sources[rank->rank], count * 4);
    const uint64_t ptr = harness_address(memory + offset);
    if (!CHECK_OK(rank, spark_comm_all_reduce(rank->comm, ptr, count * 4))) goto out;
    const size_t wrong =
        reference_compare(SPARK_COMM_F32, SPARK_COMM_SUM, memory + offset, want, count);
    good = CHECK_TRUE(rank, wrong == count, "element %zu of %zu at offset %zu is wrong", wrong,
                      count, offset);
    for (size_t i = 0; i < bytes; i++) {
        if (i == offset) i += count * 4;
        if (i < bytes &&
            !CHECK_TRUE(rank, memory[i] == 0x3c, "byte %zu beside [%zu, +%zu) was written", i,
                        offset, count * 4))
            goto out;
    }
    harness_same(rank, reference_hash(memory + offset, count * 4));
out:
    free(inputs);
    return good;
}

static void tune_f32(struct harness_rank *rank, spark_comm_options *options) {
    (void)rank;
    options->dtype = SPARK_COMM_F32;
}

/* Sums in symmetric memory: one buffer again and again, at every kind of offset, ranks at different
 * offsets. */
static void symmetric_reduce(struct harness_rank *rank) {
    static const size_t counts[] = {1,  2,  13,   14,   15,   16,    17,    63,
                                    64, 65, 1000, 1024, 4097, 16384, 32769, 100003};
    const size_t bytes = (size_t)1 << 19;
    const size_t used = sizeof counts / sizeof counts[0];
    unsigned char *memory = NULL;
    if (!rank->world->backend->has_symmetric) {
        not_supported(rank);
        return;
    }
    if (!alloc(rank, bytes, &memory)) return;
    for (size_t i = 0; i < used * 4; i++) {
        const size_t count = counts[i / 4];
        size_t offset = i % 4 == 0 ? 0 : reference_mix(rank->seed, i, 3) % (bytes - count * 4);
        if (i % 4 == 2) offset = offset / 64 * 64;
        if (i % 4 == 3)
            offset = (offset + (size_t)rank->rank * 5) %
                     (bytes - count * 4); /* not alike on all ranks */
        harness_jitter(rank, 100);
        if (!reduce_inside(rank, memory, bytes, offset, count)) return;
    }
    /* Back to back without a look in between: the next call must not overtake a peer that still
     * reads. */
    for (uint32_t i = 0; i < 200; i++) {
        float *values = (float *)(void *)memory;
        for (int k = 0; k < 512; k++)
            values[k] = (float)((uint32_t)k + i + (uint32_t)rank->rank);
        if (!CHECK_OK(rank, spark_comm_all_reduce(rank->comm, harness_address(values),
                                                  512 * sizeof(float))))
            return;
        const float want =
            (float)rank->size * (float)(7 + i) + (float)(rank->size * (rank->size - 1) / 2);
        CHECK_TRUE(rank, values[7] == want, "round %u: expected %g, got %g", i, (double)want,
                   (double)values[7]);
    }
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, harness_address(memory)));
}

/* A registration inside symmetric memory is a real one: not 0, counted, gone with the last. */
static void symmetric_register(struct harness_rank *rank) {
    unsigned char *memory = NULL;
    uint64_t first = 0, second = 0;
    if (!rank->world->backend->has_symmetric || !alloc(rank, 65536, &memory)) return;
    const uint64_t inside = harness_address(memory) + 4096;
    CHECK_OK(rank, spark_comm_register_buffer(rank->comm, inside, 8192, &first));
    CHECK_OK(rank, spark_comm_register_buffer(rank->comm, inside, 8192, &second));
    CHECK_TRUE(rank, first != 0, "a range in symmetric memory has handle 0");
    CHECK_INT(rank, first, second);
    reduce_inside(rank, memory, 65536, 4096, 2048);
    CHECK_OK(rank, spark_comm_deregister_buffer(rank->comm, first));
    CHECK_OK(rank, spark_comm_deregister_buffer(rank->comm, first));
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_deregister_buffer(rank->comm, first), "handle");
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, harness_address(memory)));
}

/* Many allocations that come and go; some are left for close, which must not leak them. */
static void symmetric_many(struct harness_rank *rank) {
    unsigned char *kept[4] = {NULL};
    if (!rank->world->backend->has_symmetric) return;
    for (size_t i = 0; i < 40; i++) {
        unsigned char **memory = &kept[i % 4];
        if (*memory != NULL)
            CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, harness_address(*memory)));
        *memory = NULL;
        if (!alloc(rank, 1 + i * 3001, memory)) return;
        (*memory)[0] = 1;
        (*memory)[i * 3001] = 2;
    }
}

static void symmetric_refusals(struct harness_rank *rank) {
    uint64_t ptr = 5;
    int local = 0;
    spark_comm *comm = rank->comm;
    if (!rank->world->backend->has_symmetric) return;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_symmetric_alloc(comm, 0, &ptr),
                  "bytes");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_symmetric_alloc(comm, 4096, NULL),
                  "ptr");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_symmetric_free(comm, harness_address(&local)), "ptr");
    CHECK_OK(rank, spark_comm_symmetric_free(comm, 0));
    /* Far more than there is: the same status on all ranks, nothing allocated, and all goes on. */
    ptr = 5;
    CHECK_STATUS(rank, SPARK_COMM_NO_MEMORY,
                 spark_comm_symmetric_alloc(comm, (size_t)1 << 46, &ptr));
    CHECK_INT(rank, 0, ptr);
    CHECK_TRUE(rank, spark_comm_is_healthy(comm), "not healthy any more");
    unsigned char *memory = NULL;
    if (!alloc(rank, 4096, &memory)) return;
    CHECK_OK(rank, spark_comm_symmetric_free(comm, harness_address(memory)));
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_symmetric_free(comm, harness_address(memory)), "ptr");
}

/* A kernel is for GPUs: single has no addition to do, the others do not have the call. */
static void add_kernel(struct harness_rank *rank) {
    if (!rank->world->backend->moves_data) {
        CHECK_OK(rank, spark_comm_set_add_kernel(rank->comm, 0));
        CHECK_OK(rank, spark_comm_set_add_kernel(rank->comm, 0x1000));
        return;
    }
    if (rank->world->backend->on_device) {
        CHECK_OK(rank, spark_comm_set_add_kernel(rank->comm, 0));
        return;
    }
    CHECK_REFUSED(rank, SPARK_COMM_NOT_SUPPORTED, spark_comm_set_add_kernel(rank->comm, 0),
                  "set_add_kernel");
    CHECK_TRUE(rank, spark_comm_is_healthy(rank->comm), "not healthy any more");
}

static const struct contract_test tests[] = {
    {"ordinary", {.run = ordinary}, 0},
    {"register_refusals", {.run = register_refusals}, 0},
    {"symmetric_reduce", {.run = symmetric_reduce, .tune = tune_f32}, 0},
    {"symmetric_register", {.run = symmetric_register, .tune = tune_f32}, CONTRACT_NO_SINGLE},
    {"symmetric_many", {.run = symmetric_many}, CONTRACT_NO_SINGLE},
    {"symmetric_refusals", {.run = symmetric_refusals}, CONTRACT_NO_SINGLE},
    {"add_kernel", {.run = add_kernel}, 0},
};

CONTRACT_MAIN("register_symmetric", tests)
