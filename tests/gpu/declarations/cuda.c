/* Every function of the driver that the library asks for, compared with NVIDIA's own header: the form
 * of that function in the version that is asked for (PFN_<name>_v<version>), and the constants. It is
 * enough that this compiles. */
#include <cuda.h>
#include <cudaTypedefs.h>

#define SC_GPU_REAL_TYPES
typedef CUresult sc_cu_result;
typedef CUdevice sc_cu_device;
typedef CUstreamCaptureMode sc_cu_capture_mode;
typedef CUstreamCaptureStatus sc_cu_capture_status;
typedef CUdevice_attribute sc_cu_device_attribute;
typedef CUpointer_attribute sc_cu_pointer_attribute;
typedef CUdeviceptr sc_cu_pointer;
typedef CUcontext sc_cu_context;
typedef CUstream sc_cu_stream;
typedef CUevent sc_cu_event;
typedef CUmodule sc_cu_module;
typedef CUfunction sc_cu_function;
typedef CUgraph sc_cu_graph;
typedef CUgraphNode sc_cu_graph_node;
typedef CUuserObject sc_cu_user_object;
typedef CUhostFn sc_cu_host_fn;
typedef CUuuid sc_cu_uuid;

#include "gpu/driver.h"

#define SAME(member, function, since, arguments)                                              \
    _Static_assert(__builtin_types_compatible_p(PFN_##function##_v##since,                    \
                                                __typeof__(((struct sc_driver *)0)->member)), \
                   #function);
SC_DRIVER_FUNCTIONS(SAME)

#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
EQUAL(SC_CU_OK, CUDA_SUCCESS);
EQUAL(SC_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
EQUAL(SC_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(SC_CU_NOT_READY, CUDA_ERROR_NOT_READY);
EQUAL(SC_CU_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
EQUAL(SC_CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
EQUAL(SC_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
EQUAL(SC_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
EQUAL(0, CU_STREAM_CAPTURE_STATUS_NONE);
EQUAL(SC_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
EQUAL(SC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
EQUAL(SC_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
EQUAL(SC_CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);
EQUAL(SC_CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
EQUAL(SC_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
EQUAL(SC_CU_GRAPH_MOVE, CU_GRAPH_USER_OBJECT_MOVE);
EQUAL(SC_CU_USER_OBJECT_NO_SYNC, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
EQUAL(SC_CU_DEVICE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
EQUAL(SC_CU_DEVICE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
EQUAL(SC_CU_DEVICE_PAGEABLE_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
EQUAL(SC_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
EQUAL(SC_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
EQUAL(SC_CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
EQUAL(SC_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
EQUAL(SC_CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
