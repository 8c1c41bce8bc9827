/*
 * Device memory for perf, through the CUDA driver opened at run time: an operation works on memory of
 * the GPU, and a mirror of it in host memory is filled and checked.
 */
#include "cli.h"
#include "perf.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* X(member, function, version of its form, arguments) */
#define FUNCTIONS(X)                                                                           \
    X(init, cuInit, 2000, (unsigned flags))                                                    \
    X(retain, cuDevicePrimaryCtxRetain, 7000, (void **context, int device))                    \
    X(release, cuDevicePrimaryCtxRelease, 11000, (int device))                                 \
    X(current, cuCtxSetCurrent, 4000, (void *context))                                         \
    X(alloc, cuMemAlloc, 3020, (uint64_t * address, size_t bytes))                             \
    X(free, cuMemFree, 3020, (uint64_t address))                                               \
    X(to_device, cuMemcpyHtoDAsync, 3020,                                                      \
      (uint64_t to, const void *from, size_t bytes, void *stream))                             \
    X(to_host, cuMemcpyDtoHAsync, 3020, (void *to, uint64_t from, size_t bytes, void *stream)) \
    X(sync, cuStreamSynchronize, 2000, (void *stream))

struct sc_perf_device {
    void *library;
    int ordinal;
#define MEMBER(member, name, version, arguments) int(*member) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

/* The same order as the library's: what is set, then the launcher's number. */
static int find_ordinal(void) {
    static const char *const names[] = {"SPARK_COMM_DEVICE", "LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && *text) return (int)strtol(text, NULL, 10);
    }
    return 0;
}

static bool find_functions(struct sc_perf_device *device) {
    int (*find)(const char *name, void **function, int version, uint64_t flags, int *status);
    void *symbol = dlsym(device->library, "cuGetProcAddress_v2");
    if (!symbol) return false;
    memcpy(&find, &symbol, sizeof symbol);
#define FIND(member, name, version, arguments)                     \
    if (find(#name, &symbol, version, 0, NULL) != 0) return false; \
    memcpy(&device->member, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
#undef FIND
    return true;
}

struct sc_perf_device *sc_perf_device_open(const char *command) {
    const char *file = getenv("SPARK_COMM_CUDA_LIBRARY");
    struct sc_perf_device *device = calloc(1, sizeof *device);
    void *context = NULL;
    int result = -1;
    if (device) device->library = dlopen(file && *file ? file : "libcuda.so.1", RTLD_NOW);
    if (!device || !device->library || !find_functions(device)) {
        sc_cli_error(command, "the CUDA driver cannot be used: %s",
                     device && !device->library ? dlerror() : "a function is missing");
        goto fail;
    }
    device->ordinal = find_ordinal();
    result = device->init(0);
    if (!result) result = device->retain(&context, device->ordinal);
    if (!result) result = device->current(context);
    if (!result) return device;
    sc_cli_error(command, "GPU %d cannot be used: CUDA error %d", device->ordinal, result);
fail:
    free(device);
    return NULL;
}

void sc_perf_device_close(struct sc_perf_device *device) {
    if (!device) return;
    device->current(NULL);
    device->release(device->ordinal);
    free(device);
}

uint64_t sc_perf_device_alloc(struct sc_perf_device *device, size_t bytes) {
    uint64_t address = 0;
    return device->alloc(&address, bytes) == 0 ? address : 0;
}

void sc_perf_device_free(struct sc_perf_device *device, uint64_t address) {
    if (address) device->free(address);
}

static spark_comm_status judge(int result) {
    return result == 0 ? SPARK_COMM_OK : SPARK_COMM_BACKEND;
}

spark_comm_status sc_perf_device_sync(struct sc_perf_device *device) {
    return device ? judge(device->sync(NULL)) : SPARK_COMM_OK;
}

spark_comm_status sc_perf_device_upload(const struct sc_perf_call *call) {
    struct sc_perf_device *device = call->device;
    size_t send = sc_perf_ops_send_bytes(call->op, call->world, call->bytes);
    size_t recv = sc_perf_ops_recv_bytes(call->op, call->world, call->bytes);
    int result = 0;
    if (!device) return SPARK_COMM_OK;
    if (send) result = device->to_device(call->send_address, call->send, send, NULL);
    if (!result && recv) result = device->to_device(call->recv_address, call->recv, recv, NULL);
    return result ? judge(result) : sc_perf_device_sync(device);
}

spark_comm_status sc_perf_device_download(const struct sc_perf_call *call) {
    struct sc_perf_device *device = call->device;
    size_t bytes = sc_perf_ops_recv_bytes(call->op, call->world, call->bytes);
    int result = 0;
    if (!device) return SPARK_COMM_OK;
    if (!bytes) bytes = sc_perf_ops_send_bytes(call->op, call->world, call->bytes);
    if (bytes) result = device->to_host(call->recv, call->recv_address, bytes, NULL);
    return result ? judge(result) : sc_perf_device_sync(device);
}
