/* Devices, contexts, memory and kernels of the fake driver, and the way to its functions. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST_DEVICES 64

_Thread_local struct fake_context *fake_current;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards contexts, ranges, script */
static struct fake_context contexts[MOST_DEVICES];

/* ---- The script ---- */

static struct {
    bool pageable;
    char block[64];
    int block_ms;
    long block_call;
    _Atomic long calls;
} script;

static int number_of(const char *name, int usual) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : usual;
}

void fake_read_script(void) {
    const char *block = getenv("SC_FAKE_BLOCK");
    script.pageable = number_of("SC_FAKE_PAGEABLE", 0) != 0;
    script.block[0] = '\0';
    if (block != NULL)
        sscanf(block, "%63[^:]:%d:%ld", script.block, &script.block_ms, &script.block_call);
    atomic_store(&script.calls, 0);
}

bool fake_is_pageable(void) {
    return script.pageable;
}

void fake_block(const char *function) {
    if (script.block[0] == '\0' || strcmp(script.block, function) != 0) return;
    if (atomic_fetch_add(&script.calls, 1) + 1 != script.block_call) return;
    struct timespec pause = {script.block_ms / 1000, script.block_ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

/* ---- Devices and contexts ---- */

static int init(unsigned flags) {
    (void)flags;
    return getenv("SC_FAKE_NO_GPU") != NULL ? 100 : FAKE_OK;
}

static int driver_version(int *version) {
    *version = 13000;
    return FAKE_OK;
}

static int error_name(int error, const char **name) {
    static const struct {
        int error;
        const char *name;
    } names[] = {
        {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {FAKE_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {FAKE_NOT_READY, "CUDA_ERROR_NOT_READY"},
        {FAKE_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return FAKE_OK;
        }
    return FAKE_INVALID_VALUE;
}

static int device_count(int *count) {
    *count = number_of("SC_FAKE_DEVICES", 8);
    return FAKE_OK;
}

static int device_get(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < MOST_DEVICES ? FAKE_OK : FAKE_INVALID_DEVICE;
}

static int device_name(char *name, int size, int device) {
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return FAKE_OK;
}

static int device_uuid(char *uuid, int device) {
    memset(uuid, 0x5c, 16);
    uuid[0] = (char)device;
    return FAKE_OK;
}

static int device_pci(char *id, int size, int device) {
    snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    return FAKE_OK;
}

static int device_attribute(int *value, int attribute, int device) {
    const char *text = getenv("SC_FAKE_CC");
    int major = 9, minor = 0;
    (void)device;
    if (text != NULL) sscanf(text, "%d.%d", &major, &minor);
    *value = attribute == 75 ? major : attribute == 76 ? minor : 0;
    if (attribute == 88) *value = number_of("SC_FAKE_PAGEABLE", 0);
    return FAKE_OK;
}

static int primary_retain(void **context, int device) {
    pthread_mutex_lock(&lock);
    struct fake_context *own = &contexts[device];
    if (own->references++ == 0) {
        own->ordinal = device; /* once: others read it without the lock */
        fake_read_script();
        own->legacy = fake_stream_make(own);
    }
    *context = own;
    pthread_mutex_unlock(&lock);
    return FAKE_OK;
}

static int primary_release(int device) {
    pthread_mutex_lock(&lock);
    struct fake_context *own = &contexts[device];
    if (--own->references == 0) {
        fake_stream_leave(own->legacy);
        own->legacy = NULL;
    }
    pthread_mutex_unlock(&lock);
    return FAKE_OK;
}

static int current_get(void **context) {
    *context = fake_current;
    return FAKE_OK;
}

static int current_set(void *context) {
    fake_current = context;
    return FAKE_OK;
}

int sc_fake_current_device(void) {
    return fake_current != NULL ? fake_current->ordinal : -1;
}

void sc_fake_spoil_current(void) {
    fake_current = &contexts[MOST_DEVICES - 1];
}

int sc_fake_live_objects(void) {
    return atomic_load(&fake_live);
}

/* ---- Memory ---- */

struct range {
    struct range *next;
    unsigned char *start;
    size_t bytes;
    int ordinal;
    bool device, managed;
};
static struct range *ranges;
static size_t in_use;

static void *allocate(size_t bytes, bool device, bool managed) {
    struct range *range = calloc(1, sizeof *range);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(range);
        return NULL;
    }
    *range = (struct range){NULL, memory, bytes, sc_fake_current_device(), device, managed};
    pthread_mutex_lock(&lock);
    range->next = ranges;
    ranges = range;
    in_use += bytes;
    pthread_mutex_unlock(&lock);
    return memory;
}

static int release(void *memory) {
    pthread_mutex_lock(&lock);
    struct range **at = &ranges;
    while (*at != NULL && (*at)->start != memory)
        at = &(*at)->next;
    struct range *range = *at;
    if (range != NULL) {
        *at = range->next;
        in_use -= range->bytes;
    }
    pthread_mutex_unlock(&lock);
    if (range == NULL) return FAKE_INVALID_VALUE;
    munmap(range->start, range->bytes);
    free(range);
    return FAKE_OK;
}

void *sc_fake_memory_alloc(size_t bytes) {
    return allocate(bytes, true, false);
}

int sc_fake_memory_free(void *memory) {
    return release(memory);
}

static int memory_alloc(void **memory, size_t bytes) {
    if (fake_current == NULL) return FAKE_INVALID_CONTEXT;
    if (fake_forbidden()) return FAKE_CAPTURE_UNSUPPORTED;
    fake_block("cuMemAlloc");
    *memory = allocate(bytes, true, false);
    return *memory != NULL ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

static int memory_managed(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    *memory = allocate(bytes, true, true);
    return *memory != NULL ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

static int memory_free(void *memory) {
    return fake_forbidden() ? FAKE_CAPTURE_UNSUPPORTED : release(memory);
}

static int memory_info(size_t *unused, size_t *total) {
    *total = (size_t)64 << 30;
    pthread_mutex_lock(&lock);
    *unused = *total - in_use;
    pthread_mutex_unlock(&lock);
    return FAKE_OK;
}

static int host_alloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    if (fake_forbidden()) return FAKE_CAPTURE_UNSUPPORTED;
    *memory = allocate(bytes, false, false);
    return *memory != NULL ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

static int host_pointer(void **pointer, void *memory, unsigned flags) {
    (void)flags;
    *pointer = memory;
    return FAKE_OK;
}

/* MEMORY_TYPE 2, IS_MANAGED 8, DEVICE_ORDINAL 9, RANGE_START 11, RANGE_SIZE 12. */
static int attributes(unsigned count, const int *names, void **values, uintptr_t pointer) {
    struct range none = {.ordinal = -1}, *range = ranges;
    pthread_mutex_lock(&lock);
    for (range = ranges; range != NULL; range = range->next)
        if (pointer - (uintptr_t)range->start < range->bytes) break;
    if (range != NULL) none = *range;
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count; i++) {
        if (names[i] == 2)
            *(unsigned *)values[i] = none.start == NULL ? 0 : none.device ? 2 : 1;
        else if (names[i] == 8)
            *(int *)values[i] = none.managed;
        else if (names[i] == 9)
            *(int *)values[i] = none.ordinal;
        else if (names[i] == 11)
            *(void **)values[i] = none.start;
        else if (names[i] == 12)
            *(size_t *)values[i] = none.bytes;
    }
    return FAKE_OK;
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static void run_copy(void *blob) {
    struct copy *copy = blob;
    memmove(copy->to, copy->from, copy->bytes);
}

static int copy_async(void *to, const void *from, size_t bytes, void *stream) {
    struct fake_work work = {.run = run_copy};
    *(struct copy *)(void *)work.blob = (struct copy){to, from, bytes};
    return sc_fake_enqueue(stream, &work);
}

/* ---- Kernels ---- */

struct kernel {
    const char *name;
    void (*run)(void *arguments); /* as laid out by `sizes` */
    unsigned char sizes[8]; /* of the arguments, each at a multiple of 8; ends with 0 */
};

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* as a GPU does: one NaN for all */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void run_add(void *arguments) {
    struct {
        unsigned char *to;
        const unsigned char *from;
        int64_t count;
    } *given = arguments;
    int count = (int)given->count;
    for (int i = 0; i < count; i++) {
        uint16_t a, b;
        memcpy(&a, given->to + 2 * i, 2);
        memcpy(&b, given->from + 2 * i, 2);
        a = to_bf16(from_bf16(a) + from_bf16(b));
        memcpy(given->to + 2 * i, &a, 2);
    }
}

static void run_tick(void *arguments) {
    uint32_t *counter = *(uint32_t **)arguments;
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static const struct kernel kernels[] = {
    {"sc_add_bf16", run_add, {8, 8, 4}},
    {"test_add_bf16", run_add, {8, 8, 4}},
    {"sc_tick", run_tick, {8}},
};

static int module_load(void **module, const void *image) {
    *module = (void *)(uintptr_t)image;
    return image != NULL ? FAKE_OK : FAKE_INVALID_VALUE;
}

static int module_unload(void *module) {
    (void)module;
    return FAKE_OK;
}

static int module_function(const void **function, void *module, const char *name) {
    (void)module;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strcmp(kernels[i].name, name) == 0) {
            *function = &kernels[i];
            return FAKE_OK;
        }
    return FAKE_NOT_FOUND;
}

struct launch {
    const struct kernel *kernel;
    _Alignas(8) unsigned char arguments[8 * 8];
};

static void run_kernel(void *blob) {
    struct launch *launch = blob;
    launch->kernel->run(launch->arguments);
}

static int launch(const void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                  unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
                  void **extra) {
    struct fake_work work = {.run = run_kernel};
    struct launch *own = (struct launch *)(void *)work.blob;
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)extra;
    if (gx == 0 || bx == 0) return FAKE_INVALID_VALUE;
    own->kernel = function;
    for (int i = 0; own->kernel->sizes[i] != 0; i++)
        memcpy(own->arguments + 8 * i, arguments[i], own->kernel->sizes[i]);
    if (own->kernel->run == run_add && ((own->arguments[0] | own->arguments[8]) & 1) != 0)
        return FAKE_MISALIGNED;
    return sc_fake_enqueue(stream, &work);
}

/* ---- By name ---- */

static const struct fake_entry entries[] = {
    {"cuInit", init},
    {"cuDriverGetVersion", driver_version},
    {"cuGetErrorName", error_name},
    {"cuDeviceGetCount", device_count},
    {"cuDeviceGet", device_get},
    {"cuDeviceGetName", device_name},
    {"cuDeviceGetUuid", device_uuid},
    {"cuDeviceGetPCIBusId", device_pci},
    {"cuDeviceGetAttribute", device_attribute},
    {"cuDevicePrimaryCtxRetain", primary_retain},
    {"cuDevicePrimaryCtxRelease", primary_release},
    {"cuCtxGetCurrent", current_get},
    {"cuCtxSetCurrent", current_set},
    {"cuMemAlloc", memory_alloc},
    {"cuMemAllocManaged", memory_managed},
    {"cuMemFree", memory_free},
    {"cuMemGetInfo", memory_info},
    {"cuMemHostAlloc", host_alloc},
    {"cuMemFreeHost", memory_free},
    {"cuMemHostGetDevicePointer", host_pointer},
    {"cuPointerGetAttributes", attributes},
    {"cuMemcpyHtoDAsync", copy_async},
    {"cuMemcpyDtoHAsync", copy_async},
    {"cuMemcpyDtoDAsync", copy_async},
    {"cuModuleLoadData", module_load},
    {"cuModuleUnload", module_unload},
    {"cuModuleGetFunction", module_function},
    {"cuLaunchKernel", launch},
    {NULL, NULL},
};

/* A version below what a form came with would be a mistake of the library's. */
FAKE_API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                 int *status);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    const struct fake_entry *tables[] = {entries, fake_stream_entries};
    const char *missing = getenv("SC_FAKE_CUDA_MISSING");
    (void)flags;
    *function = NULL;
    if (status != NULL) *status = 1;
    if (version < 2000 || version > 13000 || (missing != NULL && strcmp(missing, name) == 0))
        return FAKE_NOT_FOUND;
    for (size_t t = 0; t < 2; t++)
        for (const struct fake_entry *entry = tables[t]; entry->name != NULL; entry++)
            if (strcmp(entry->name, name) == 0) {
                *function = entry->function;
                if (status != NULL) *status = 0;
                return FAKE_OK;
            }
    return FAKE_NOT_FOUND;
}
