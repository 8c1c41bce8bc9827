/* See device.h. */
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct device_driver driver;
static bool is_loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool load(void) {
    const char *file = getenv("SPARK_COMM_CUDA_LIBRARY");
    int (*find)(const char *name, void **function, int version, uint64_t flags, int *status);
    void *symbol;
    driver.library = dlopen(file != NULL ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver.library == NULL) return false;
    symbol = dlsym(driver.library, "cuGetProcAddress_v2");
    if (symbol == NULL) return false;
    memcpy(&find, &symbol, sizeof symbol);
#define FIND(member, name, version, arguments)                     \
    if (find(#name, &symbol, version, 0, NULL) != 0) return false; \
    memcpy(&driver.member, &symbol, sizeof symbol);
    DEVICE_FUNCTIONS(FIND)
#undef FIND
    return driver.init(0) == 0 && driver.count(&driver.devices) == 0;
}

const struct device_driver *device_driver(void) {
    pthread_mutex_lock(&lock);
    if (!is_loaded) is_loaded = load();
    pthread_mutex_unlock(&lock);
    return is_loaded ? &driver : NULL;
}

bool device_use(int ordinal) {
    void *context = NULL;
    const struct device_driver *cuda = device_driver();
    return cuda != NULL && cuda->retain(&context, ordinal) == 0 && cuda->current_set(context) == 0;
}

void device_leave(int ordinal) {
    driver.current_set(NULL);
    driver.release(ordinal);
}

static int query(void *stream) {
    int mode = 2; /* relaxed */
    driver.capture_mode(&mode);
    int result = driver.stream_query(stream);
    driver.capture_mode(&mode);
    return result;
}

bool device_settle(void *stream, int limit_ms) {
    struct timespec start, now, pause = {0, 20000};
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (unsigned round = 0;; round++) {
        int result = query(stream);
        if (result != 600) return result == 0; /* CUDA_ERROR_NOT_READY */
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 > limit_ms)
            return false;
        if (round > 100) nanosleep(&pause, NULL);
    }
}

uint64_t device_make(const void *data, size_t bytes) {
    uint64_t pointer = 0;
    if (driver.alloc(&pointer, bytes) != 0) return 0;
    if (data == NULL ||
        (driver.to_device(pointer, data, bytes, NULL) == 0 && driver.stream_sync(NULL) == 0))
        return pointer;
    driver.free(pointer);
    return 0;
}

bool device_read(void *data, uint64_t pointer, size_t bytes) {
    return driver.to_host(data, pointer, bytes, NULL) == 0 && driver.stream_sync(NULL) == 0;
}
