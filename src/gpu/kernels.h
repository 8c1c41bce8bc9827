/*
 * The library's own kernels: images compiled at build time (kernels/, cmake/kernels.cmake), loaded
 * into a context through the driver. Without nvcc at build time there are none.
 */
#ifndef SC_GPU_KERNELS_H
#define SC_GPU_KERNELS_H

#include "gpu/device.h"

struct sc_kernels {
    sc_cu_module module; /* NULL: none built in, or it could not be loaded */
    sc_cu_function add_bf16; /* (bf16 *dst, const bf16 *src, int n): dst[i] += src[i] */
    sc_cu_function tick; /* (uint32 *counter): one more */
};

/* Context current. False, with everything NULL, where there are no kernels or the driver has no
 * use for them (then `error` says why, and its status is not OK). */
bool sc_kernels_load(struct sc_kernels *kernels, const struct sc_device *device,
                     struct sc_error *error);
void sc_kernels_unload(struct sc_kernels *kernels, const struct sc_device *device);

#endif
