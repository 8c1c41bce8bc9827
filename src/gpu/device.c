/* Opening a GPU, and what the driver knows of pointers. */
#include "gpu/device.h"

#include <string.h>

static spark_comm_status describe(struct sc_device *device, struct sc_error *error) {
    const struct sc_driver *cuda = device->cuda;
    sc_cu_uuid uuid;
    int pageable = 0;
    int result = cuda->device_get(&device->device, device->ordinal);
    if (result == SC_CU_OK)
        result = cuda->device_name(device->name, (int)sizeof device->name, device->device);
    if (result == SC_CU_OK) result = cuda->device_uuid(&uuid, device->device);
    if (result == SC_CU_OK)
        result = cuda->device_pci(device->pci, (int)sizeof device->pci, device->device);
    if (result == SC_CU_OK)
        result = cuda->device_attribute(&device->major, SC_CU_DEVICE_MAJOR, device->device);
    if (result == SC_CU_OK)
        result = cuda->device_attribute(&device->minor, SC_CU_DEVICE_MINOR, device->device);
    if (result == SC_CU_OK)
        result = cuda->device_attribute(&pageable, SC_CU_DEVICE_PAGEABLE_ACCESS, device->device);
    if (result != SC_CU_OK) return sc_driver_fail(cuda, result, "describing the GPU", error);
    memcpy(device->uuid, &uuid, sizeof device->uuid);
    device->pageable = pageable != 0;
    return SPARK_COMM_OK;
}

spark_comm_status sc_device_open(struct sc_device *device, const char *file, int ordinal,
                                 struct sc_error *error) {
    memset(device, 0, sizeof *device);
    spark_comm_status st = sc_driver_load(file, &device->cuda, error);
    if (st != SPARK_COMM_OK) return st;
    if (ordinal < 0 || ordinal >= device->cuda->devices)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "device is %d, and this process sees GPUs 0 to %d (SPARK_COMM_DEVICE, "
                            "CUDA_VISIBLE_DEVICES)",
                            ordinal, device->cuda->devices - 1);
    device->ordinal = ordinal;
    st = describe(device, error);
    if (st != SPARK_COMM_OK) return st;
    int result = device->cuda->primary_retain(&device->context, device->device);
    if (result == SC_CU_OK) return SPARK_COMM_OK;
    device->context = NULL;
    return sc_driver_fail(device->cuda, result, "cuDevicePrimaryCtxRetain", error);
}

void sc_device_close(struct sc_device *device) {
    if (device->context != NULL) device->cuda->primary_release(device->device);
    device->context = NULL;
}

void sc_device_adopt(const struct sc_device *device) {
    sc_cu_capture_mode mode = (sc_cu_capture_mode)SC_CU_CAPTURE_RELAXED;
    device->cuda->current_set(device->context);
    device->cuda->capture_mode(&mode);
}

/* What the driver says of one address. */
struct found {
    unsigned int type; /* 0: not the driver's */
    int ordinal;
    int managed;
    uint64_t start;
    size_t bytes;
};

static int find(const struct sc_device *device, uint64_t pointer, struct found *found) {
    sc_cu_pointer_attribute names[] = {
        (sc_cu_pointer_attribute)SC_CU_POINTER_MEMORY_TYPE,
        (sc_cu_pointer_attribute)SC_CU_POINTER_DEVICE_ORDINAL,
        (sc_cu_pointer_attribute)SC_CU_POINTER_IS_MANAGED,
        (sc_cu_pointer_attribute)SC_CU_POINTER_RANGE_START,
        (sc_cu_pointer_attribute)SC_CU_POINTER_RANGE_SIZE,
    };
    void *values[] = {&found->type, &found->ordinal, &found->managed, &found->start, &found->bytes};
    memset(found, 0, sizeof *found);
    return (int)device->cuda->pointer_attributes(sizeof names / sizeof names[0], names, values,
                                                 pointer);
}

/* The first byte decides; the last is looked at where the range that holds the first ends before it,
 * since neighbouring mappings may make one buffer. */
spark_comm_status sc_device_check_pointer(const struct sc_device *device, uint64_t pointer,
                                          size_t bytes, struct sc_error *error) {
    struct found found;
    for (int end = 0; end < 2; end++) {
        uint64_t at = end == 0 ? pointer : pointer + bytes - 1;
        bool known = find(device, at, &found) == SC_CU_OK && found.type != 0;
        if (!known && !device->pageable)
            return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                                "%s is host memory that GPU %d cannot reach (pinned, managed and "
                                "device memory are fine)",
                                end == 0 ? "the pointer" : "the buffer's end", device->ordinal);
        if (known && found.type == SC_CU_MEMORY_DEVICE && !found.managed &&
            found.ordinal != device->ordinal)
            return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                                "the pointer belongs to GPU %d, this rank uses GPU %d",
                                found.ordinal, device->ordinal);
        if (known && found.start != 0 && pointer + bytes <= found.start + found.bytes) break;
    }
    return SPARK_COMM_OK;
}
