/*
 * Exact sums and moves on device memory of four kinds: cuMemAlloc's, the same registered, cuMemCreate's
 * granted to this rank's GPU alone, which NCCL must not take for memory that peers reach, and
 * symmetric_alloc's. Sizes 0 to 4,100 elements and
 * large odd ones, half of them 2 bytes off, inside one allocation, between guard zones. Run as a job of
 * `spark-comm run`; prints a row in Markdown per kind. Exit code 1 on anything wrong.
 */
#include <dlfcn.h>
#include <spark_comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define GUARD 64
#define MOST 8388607 /* elements */
#define BYTES ((size_t)1 << 25)

static int rank, size;
static spark_comm *comm;

static void fail(const char *what, long long at) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "granted: rank %d: %s (%lld) %s\n", rank, what, at, error.message);
    exit(1);
}

/* ---- cuMemCreate, as cuda.h declares it ---- */

struct place {
    int type, id; /* 1: a device */
};
struct wish {
    int type, handles; /* 1: pinned to its device; 0: no other process can get it */
    struct place place;
    void *unused;
    unsigned char flags[8];
};
struct grant {
    struct place place;
    int access; /* 3: reads and writes */
};

static void *function(const char *name) {
    return dlsym(device_driver()->library, name);
}

static uint64_t granted_memory(size_t bytes) {
    int (*create)(uint64_t * handle, size_t bytes, const struct wish *wish, uint64_t flags);
    int (*reserve)(uint64_t * address, size_t bytes, size_t align, uint64_t at, uint64_t flags);
    int (*map)(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
    int (*set_access)(uint64_t address, size_t bytes, const struct grant *grants, size_t count);
    const struct wish wish = {.type = 1, .place = {1, rank}};
    const struct grant grant = {{1, rank}, 3};
    uint64_t handle = 0, address = 0;
    void *symbols[] = {function("cuMemCreate"), function("cuMemAddressReserve"),
                       function("cuMemMap"), function("cuMemSetAccess")};
    for (size_t i = 0; i < 4; i++)
        if (symbols[i] == NULL) return 0;
    memcpy(&create, &symbols[0], sizeof create);
    memcpy(&reserve, &symbols[1], sizeof reserve);
    memcpy(&map, &symbols[2], sizeof map);
    memcpy(&set_access, &symbols[3], sizeof set_access);
    int result = create(&handle, bytes, &wish, 0);
    if (result == 0) result = reserve(&address, bytes, 0, 0, 0);
    if (result == 0) result = map(address, bytes, 0, handle, 0);
    if (result == 0) result = set_access(address, bytes, &grant, 1);
    if (result != 0) fail("cuMemCreate", result);
    return address;
}

/* ---- Sums ---- */

/* Whole numbers up to 100 are exact in BF16, and so are their sums over two ranks. */
static uint16_t bf16_of(unsigned value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static unsigned value_of(int of_rank, size_t i, size_t count) {
    return (unsigned)((i * 7 + count + (size_t)of_rank * 13) % 100);
}

static void check_sum(uint64_t memory, unsigned char *mirror, size_t count) {
    const size_t off = GUARD + count % 2 * 2, whole = count * 2 + 2 * GUARD + 2;
    memset(mirror, 0xa5, whole);
    for (size_t i = 0; i < count; i++) {
        const uint16_t bits = bf16_of(value_of(rank, i, count));
        memcpy(mirror + off + 2 * i, &bits, 2);
    }
    if (device_driver()->to_device(memory, mirror, whole, NULL) != 0) fail("copy", 0);
    if (spark_comm_all_reduce(comm, memory + off, count * 2) != SPARK_COMM_OK)
        fail("all_reduce", (long long)count);
    if (!device_settle(NULL, 20000)) fail("the sum does not end", (long long)count);
    memset(mirror, 0, whole);
    if (!device_read(mirror, memory, whole)) fail("copy", 1);
    for (size_t i = 0; i < whole; i++)
        if ((i < off || i >= off + count * 2) && mirror[i] != 0xa5) fail("a guard", (long long)i);
    for (size_t i = 0; i < count; i++) {
        unsigned sum = 0;
        uint16_t got;
        for (int of_rank = 0; of_rank < size; of_rank++)
            sum += value_of(of_rank, i, count);
        memcpy(&got, mirror + off + 2 * i, 2);
        if (got != bf16_of(sum)) fail("a wrong sum", (long long)i);
    }
}

/* ---- Moves: each rank's bytes are known to all ---- */

static unsigned char byte_of(int of_rank, size_t i) {
    return (unsigned char)(i * 31 + (size_t)of_rank * 101 + 7);
}

static void check_bytes(const unsigned char *got, int of_rank, size_t bytes, const char *what) {
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != byte_of(of_rank, i)) fail(what, (long long)i);
}

static void check_moves(uint64_t memory, unsigned char *mirror, size_t bytes) {
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    const uint64_t out = memory + 4096 + (bytes & 1), in = memory + (BYTES >> 1);
    for (size_t i = 0; i < bytes; i++)
        mirror[i] = byte_of(rank, i);
    if (device_driver()->to_device(out, mirror, bytes, NULL) != 0) fail("copy", 2);
    if (spark_comm_all_gather(comm, out, in, bytes) != SPARK_COMM_OK) fail("all_gather", 0);
    if (!device_settle(NULL, 20000) || !device_read(mirror, in, bytes * (size_t)size))
        fail("copy", 3);
    for (int of_rank = 0; of_rank < size; of_rank++)
        check_bytes(mirror + bytes * (size_t)of_rank, of_rank, bytes, "all_gather");
    if (spark_comm_group_start(comm) != SPARK_COMM_OK ||
        spark_comm_send_to(comm, out, bytes, next, 0) != SPARK_COMM_OK ||
        spark_comm_recv_from(comm, in, bytes, before, 0) != SPARK_COMM_OK ||
        spark_comm_group_end(comm) != SPARK_COMM_OK)
        fail("send_to, recv_from", 0);
    if (!device_settle(NULL, 20000) || !device_read(mirror, in, bytes)) fail("copy", 4);
    check_bytes(mirror, before, bytes, "recv_from");
    if (spark_comm_broadcast(comm, out, bytes, 1 % size) != SPARK_COMM_OK) fail("broadcast", 0);
    if (!device_read(mirror, out, bytes)) fail("copy", 5);
    check_bytes(mirror, 1 % size, bytes, "broadcast");
}

static void check_memory(const char *kind, uint64_t memory) {
    static const size_t large[] = {65537, 1048577, MOST};
    static const size_t moves[] = {1, 4095, 4096, 4097, 1234567};
    unsigned char *mirror = malloc(BYTES);
    if (memory == 0 || mirror == NULL) {
        if (rank == 0) printf("| %s | not there |\n", kind);
        free(mirror);
        return;
    }
    for (size_t count = 0; count <= 4100; count++)
        check_sum(memory, mirror, count);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        check_sum(memory, mirror, large[i]);
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++)
        check_moves(memory, mirror, moves[i]);
    if (rank == 0) printf("| %s | exact, guards whole |\n", kind);
    free(mirror);
}

/* The same range has one handle, and counts. */
static void check_registered(void) {
    uint64_t memory = device_make(NULL, BYTES), first = 1, second = 2;
    if (spark_comm_register_buffer(comm, memory, BYTES, &first) != SPARK_COMM_OK ||
        spark_comm_register_buffer(comm, memory, BYTES, &second) != SPARK_COMM_OK ||
        first != second)
        fail("register_buffer", (long long)first);
    check_memory(first != 0 ? "registered" : "registered, handle 0", memory);
    if (spark_comm_deregister_buffer(comm, first) != SPARK_COMM_OK ||
        spark_comm_deregister_buffer(comm, second) != SPARK_COMM_OK)
        fail("deregister_buffer", 0);
    check_memory("no longer registered", memory);
}

static void check_symmetric(void) {
    uint64_t memory = 0;
    if (spark_comm_symmetric_alloc(comm, BYTES, &memory) != SPARK_COMM_OK)
        fail("symmetric_alloc", 0);
    check_memory("symmetric_alloc", memory);
    if (spark_comm_symmetric_free(comm, memory) != SPARK_COMM_OK) fail("symmetric_free", 0);
}

int main(void) {
    spark_comm_options options;
    if (getenv("RANK") == NULL) return 2;
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    if (!device_use(rank)) fail("no GPU", rank);
    spark_comm_options_init(&options, sizeof options);
    options.backend = "nccl";
    options.device = rank;
    if (spark_comm_open(&options, &comm) != SPARK_COMM_OK) fail("open", 0);
    if (rank == 0) printf("| memory | result |\n|---|---|\n");
    check_memory("cuMemAlloc", device_make(NULL, BYTES));
    check_memory("cuMemCreate, granted to its own GPU", granted_memory(BYTES));
    check_registered();
    check_symmetric();
    spark_comm_close(comm);
    return 0;
}
