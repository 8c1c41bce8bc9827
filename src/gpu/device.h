/*
 * One GPU as this library uses it: its primary context (NCCL knows no other), who it is, and the
 * manners of touching it. The caller's current context and capture mode stay as they were: code that
 * calls the driver stands between sc_device_enter and sc_device_leave; threads of our own call
 * sc_device_adopt once.
 */
#ifndef SC_GPU_DEVICE_H
#define SC_GPU_DEVICE_H

#include "gpu/driver.h"

struct sc_device {
    const struct sc_driver *cuda;
    sc_cu_context context; /* NULL: not open */
    sc_cu_device device;
    int ordinal;
    int major, minor; /* compute capability */
    bool pageable; /* the GPU reaches memory that nobody registered */
    char name[64];
    char pci[16];
    unsigned char uuid[16];
};

/* Retains the primary context of device `ordinal` of the driver `file` (empty: libcuda.so.1).
 * UNAVAILABLE for a number that there is not, BACKEND for what the driver says. */
spark_comm_status sc_device_open(struct sc_device *device, const char *file, int ordinal,
                                 struct sc_error *error);
/* Fine on a zeroed one. */
void sc_device_close(struct sc_device *device);

struct sc_device_scope {
    sc_cu_context before;
    sc_cu_capture_mode mode;
    bool relaxed;
};
/* Makes the context current. With `relaxed` the thread may also make calls that a capture in global
 * mode forbids, such as queries and allocations. */
static inline void sc_device_enter(const struct sc_device *device, struct sc_device_scope *scope,
                                   bool relaxed) {
    scope->before = NULL;
    device->cuda->current_get(&scope->before);
    if (scope->before != device->context) device->cuda->current_set(device->context);
    scope->relaxed = relaxed;
    scope->mode = (sc_cu_capture_mode)SC_CU_CAPTURE_RELAXED;
    if (relaxed) device->cuda->capture_mode(&scope->mode);
}
/* Looks at what is current, because NCCL before 2.27.6 leaves another device behind at times. */
static inline void sc_device_leave(const struct sc_device *device, struct sc_device_scope *scope) {
    sc_cu_context now = NULL;
    if (scope->relaxed) device->cuda->capture_mode(&scope->mode);
    device->cuda->current_get(&now);
    if (now != scope->before) device->cuda->current_set(scope->before);
}
/* For a thread of the library's: the context, and relaxed capture mode, for the thread's life. */
void sc_device_adopt(const struct sc_device *device);

/* Can this GPU reach [pointer, pointer + bytes)? INVALID_ARGUMENT with the reason where the driver
 * can tell. Pinned, managed and, where the GPU reaches it, pageable memory pass. */
spark_comm_status sc_device_check_pointer(const struct sc_device *device, uint64_t pointer,
                                          size_t bytes, struct sc_error *error);

#endif
