/*
 * Device memory, streams and graphs for tests: the CUDA driver that the library under test uses, real
 * or fake, by a table of its own. A thread calls device_use before anything else.
 */
#ifndef SUPPORT_DEVICE_H
#define SUPPORT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICE_FUNCTIONS(X)                                                                    \
    X(init, cuInit, 2000, (unsigned flags))                                                    \
    X(count, cuDeviceGetCount, 2000, (int *count))                                             \
    X(attribute, cuDeviceGetAttribute, 2000, (int *value, int attribute, int device))          \
    X(retain, cuDevicePrimaryCtxRetain, 7000, (void **context, int device))                    \
    X(release, cuDevicePrimaryCtxRelease, 11000, (int device))                                 \
    X(current_get, cuCtxGetCurrent, 4000, (void **context))                                    \
    X(current_set, cuCtxSetCurrent, 4000, (void *context))                                     \
    X(alloc, cuMemAlloc, 3020, (uint64_t * pointer, size_t bytes))                             \
    X(managed, cuMemAllocManaged, 6000, (uint64_t * pointer, size_t bytes, unsigned flags))    \
    X(free, cuMemFree, 3020, (uint64_t pointer))                                               \
    X(to_device, cuMemcpyHtoDAsync, 3020,                                                      \
      (uint64_t to, const void *from, size_t bytes, void *stream))                             \
    X(to_host, cuMemcpyDtoHAsync, 3020, (void *to, uint64_t from, size_t bytes, void *stream)) \
    X(copy, cuMemcpyDtoDAsync, 3020, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(memory_info, cuMemGetInfo, 3020, (size_t * unused, size_t * total))                      \
    X(stream_create, cuStreamCreateWithPriority, 5050,                                         \
      (void **stream, unsigned flags, int priority))                                           \
    X(stream_destroy, cuStreamDestroy, 4000, (void *stream))                                   \
    X(stream_query, cuStreamQuery, 2000, (void *stream))                                       \
    X(stream_sync, cuStreamSynchronize, 2000, (void *stream))                                  \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int *mode))                     \
    X(begin, cuStreamBeginCapture, 10010, (void *stream, int mode))                            \
    X(end, cuStreamEndCapture, 10000, (void *stream, void **graph))                            \
    X(instantiate, cuGraphInstantiateWithFlags, 11040,                                         \
      (void **exec, void *graph, unsigned long long flags))                                    \
        X(launch, cuGraphLaunch, 10000, (void *exec, void *stream))                            \
            X(exec_destroy, cuGraphExecDestroy, 10000, (void *exec))                           \
                X(graph_destroy, cuGraphDestroy, 10000, (void *graph))                         \
                    X(module_load, cuModuleLoadData, 2000, (void **module, const void *image)) \
                        X(module_function, cuModuleGetFunction, 2000,                          \
                          (void **function, void *module, const char *name))

struct device_driver {
    void *library;
    int devices;
#define DEVICE_MEMBER(member, name, version, arguments) int(*member) arguments;
    DEVICE_FUNCTIONS(DEVICE_MEMBER)
#undef DEVICE_MEMBER
};

/* The driver of SPARK_COMM_CUDA_LIBRARY, else libcuda.so.1; NULL where there is none. Loaded at the
 * first call; not before a fork, when the real one is meant. */
const struct device_driver *device_driver(void);
/* Makes the primary context of the device current to this thread, and keeps it until device_leave. */
bool device_use(int ordinal);
void device_leave(int ordinal);
/* Waits until the stream has passed all that is queued, and harms no capture; false after `limit_ms`, or on an error. */
bool device_settle(void *stream, int limit_ms);
/* Filled device memory, and reading it back; 0 and false on failure. */
uint64_t device_make(const void *data, size_t bytes);
bool device_read(void *data, uint64_t pointer, size_t bytes);

#endif
