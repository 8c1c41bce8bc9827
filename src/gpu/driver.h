/*
 * The CUDA driver, opened at run time. Declarations are our own; a test compares them with cuda.h
 * where that is installed. Every function is asked from the driver by name and by the version in
 * which its present form came (cuGetProcAddress), so that a newer driver hands out the form that is
 * declared here. The driver is loaded once per file name and never closed.
 */
#ifndef SC_GPU_DRIVER_H
#define SC_GPU_DRIVER_H

#include "base/error.h"

/* The test that compares with cuda.h names the real types. */
#ifndef SC_GPU_REAL_TYPES
typedef int sc_cu_result;
typedef int sc_cu_device;
typedef int sc_cu_capture_mode; /* SC_CU_CAPTURE_* */
typedef int sc_cu_capture_status; /* 0: not capturing */
typedef int sc_cu_device_attribute;
typedef int sc_cu_pointer_attribute;
typedef unsigned long long sc_cu_pointer;
typedef struct CUctx_st *sc_cu_context;
typedef struct CUstream_st *sc_cu_stream;
typedef struct CUevent_st *sc_cu_event;
typedef struct CUmod_st *sc_cu_module;
typedef struct CUfunc_st *sc_cu_function;
typedef struct CUgraph_st *sc_cu_graph;
typedef struct CUgraphNode_st *sc_cu_graph_node;
typedef struct CUuserObject_st *sc_cu_user_object;
typedef void (*sc_cu_host_fn)(void *arg);
typedef struct sc_cu_uuid {
    char bytes[16];
} sc_cu_uuid;
#endif

enum {
    SC_CU_OK = 0,
    SC_CU_INVALID_VALUE = 1,
    SC_CU_OUT_OF_MEMORY = 2,
    SC_CU_NOT_READY = 600,
    SC_CU_CAPTURED_EVENT = 907,
};
enum { SC_CU_CAPTURE_GLOBAL = 0, SC_CU_CAPTURE_THREAD_LOCAL = 1, SC_CU_CAPTURE_RELAXED = 2 };
enum { SC_CU_STREAM_NON_BLOCKING = 1, SC_CU_EVENT_DISABLE_TIMING = 2 };
enum { SC_CU_HOST_PORTABLE = 1, SC_CU_HOST_MAPPED = 2 };
enum { SC_CU_MEMORY_HOST = 1, SC_CU_MEMORY_DEVICE = 2 };
enum { SC_CU_GRAPH_MOVE = 1, SC_CU_USER_OBJECT_NO_SYNC = 1 };
/* Attributes of a device and of a pointer. */
enum {
    SC_CU_DEVICE_MAJOR = 75,
    SC_CU_DEVICE_MINOR = 76,
    SC_CU_DEVICE_PAGEABLE_ACCESS = 88,
};
enum {
    SC_CU_POINTER_MEMORY_TYPE = 2,
    SC_CU_POINTER_IS_MANAGED = 8,
    SC_CU_POINTER_DEVICE_ORDINAL = 9,
    SC_CU_POINTER_RANGE_START = 11,
    SC_CU_POINTER_RANGE_SIZE = 12,
};

/* X(member, function, version of its form, arguments) */
#define SC_DRIVER_FUNCTIONS(X)                                                                 \
    X(init, cuInit, 2000, (unsigned int flags))                                                \
    X(driver_version, cuDriverGetVersion, 2020, (int *version))                                \
    X(error_name, cuGetErrorName, 6000, (sc_cu_result error, const char **name))               \
    X(device_count, cuDeviceGetCount, 2000, (int *count))                                      \
    X(device_get, cuDeviceGet, 2000, (sc_cu_device * device, int ordinal))                     \
    X(device_name, cuDeviceGetName, 2000, (char *name, int size, sc_cu_device device))         \
    X(device_uuid, cuDeviceGetUuid, 11040, (sc_cu_uuid * uuid, sc_cu_device device))           \
    X(device_attribute, cuDeviceGetAttribute, 2000,                                            \
      (int *value, sc_cu_device_attribute attribute, sc_cu_device device))                     \
    X(device_pci, cuDeviceGetPCIBusId, 4010, (char *id, int size, sc_cu_device device))        \
    X(primary_retain, cuDevicePrimaryCtxRetain, 7000,                                          \
      (sc_cu_context * context, sc_cu_device device))                                          \
    X(primary_release, cuDevicePrimaryCtxRelease, 11000, (sc_cu_device device))                \
    X(current_get, cuCtxGetCurrent, 4000, (sc_cu_context * context))                           \
    X(current_set, cuCtxSetCurrent, 4000, (sc_cu_context context))                             \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (sc_cu_capture_mode * mode))     \
    X(stream_create, cuStreamCreateWithPriority, 5050,                                         \
      (sc_cu_stream * stream, unsigned int flags, int priority))                               \
    X(stream_destroy, cuStreamDestroy, 4000, (sc_cu_stream stream))                            \
    X(stream_wait, cuStreamWaitEvent, 3020,                                                    \
      (sc_cu_stream stream, sc_cu_event event, unsigned int flags))                            \
    X(stream_capturing, cuStreamIsCapturing, 10000,                                            \
      (sc_cu_stream stream, sc_cu_capture_status * status))                                    \
    X(stream_capture_info, cuStreamGetCaptureInfo, 11030,                                      \
      (sc_cu_stream stream, sc_cu_capture_status * status, uint64_t * id, sc_cu_graph * graph, \
       const sc_cu_graph_node **dependencies, size_t *count))                                  \
    X(stream_context, cuStreamGetCtx, 9020, (sc_cu_stream stream, sc_cu_context * context))    \
    X(event_create, cuEventCreate, 2000, (sc_cu_event * event, unsigned int flags))            \
    X(event_destroy, cuEventDestroy, 4000, (sc_cu_event event))                                \
    X(event_record, cuEventRecord, 2000, (sc_cu_event event, sc_cu_stream stream))             \
    X(event_query, cuEventQuery, 2000, (sc_cu_event event))                                    \
    X(user_object, cuUserObjectCreate, 11030,                                                  \
      (sc_cu_user_object * object, void *arg, sc_cu_host_fn destroy, unsigned int references,  \
       unsigned int flags))                                                                    \
    X(graph_retain, cuGraphRetainUserObject, 11030,                                            \
      (sc_cu_graph graph, sc_cu_user_object object, unsigned int count, unsigned int flags))   \
    X(memory_alloc, cuMemAlloc, 3020, (sc_cu_pointer * pointer, size_t bytes))                 \
    X(memory_free, cuMemFree, 3020, (sc_cu_pointer pointer))                                   \
    X(memory_info, cuMemGetInfo, 3020, (size_t * unused, size_t * total))                      \
    X(host_alloc, cuMemHostAlloc, 2020, (void **memory, size_t bytes, unsigned int flags))     \
    X(host_free, cuMemFreeHost, 2000, (void *memory))                                          \
    X(host_device_pointer, cuMemHostGetDevicePointer, 3020,                                    \
      (sc_cu_pointer * pointer, void *memory, unsigned int flags))                             \
    X(copy_to_device, cuMemcpyHtoDAsync, 3020,                                                 \
      (sc_cu_pointer to, const void *from, size_t bytes, sc_cu_stream stream))                 \
    X(copy_to_host, cuMemcpyDtoHAsync, 3020,                                                   \
      (void *to, sc_cu_pointer from, size_t bytes, sc_cu_stream stream))                       \
    X(copy, cuMemcpyDtoDAsync, 3020,                                                           \
      (sc_cu_pointer to, sc_cu_pointer from, size_t bytes, sc_cu_stream stream))               \
    X(pointer_attributes, cuPointerGetAttributes, 7000,                                        \
      (unsigned int count, sc_cu_pointer_attribute *attributes, void **values,                 \
       sc_cu_pointer pointer))                                                                 \
    X(module_load, cuModuleLoadData, 2000, (sc_cu_module * module, const void *image))         \
    X(module_unload, cuModuleUnload, 2000, (sc_cu_module module))                              \
    X(module_function, cuModuleGetFunction, 2000,                                              \
      (sc_cu_function * function, sc_cu_module module, const char *name))                      \
    X(launch, cuLaunchKernel, 4000,                                                            \
      (sc_cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                       \
       unsigned int shared_bytes, sc_cu_stream stream, void **arguments, void **extra))

struct sc_driver {
    char file[256]; /* the file mapped */
    int version; /* 1000 * major + 10 * minor of CUDA that it serves */
    int devices;
#define SC_DRIVER_MEMBER(member, function, since, arguments) sc_cu_result(*member) arguments;
    SC_DRIVER_FUNCTIONS(SC_DRIVER_MEMBER)
#undef SC_DRIVER_MEMBER
};

/* The loaded driver; `file` names it, or is empty for libcuda.so.1. UNAVAILABLE with the reason:
 * no library, one older than CUDA 12.0, a function missing, no device. Any thread; the result
 * lives as long as the process, and a failure is not remembered. */
spark_comm_status sc_driver_load(const char *file, const struct sc_driver **driver,
                                 struct sc_error *error);
/* "CUDA_ERROR_OUT_OF_MEMORY", or "error 2" where the driver has no name. */
const char *sc_driver_error_name(const struct sc_driver *driver, int result);
/* A failed call as an error: NO_MEMORY for want of device memory, else BACKEND; native_code is
 * CUDA's. `what` names the call. */
spark_comm_status sc_driver_fail(const struct sc_driver *driver, int result, const char *what,
                                 struct sc_error *error);

#endif
