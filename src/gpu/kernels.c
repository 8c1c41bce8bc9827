/* Loading the embedded images. */
#include "gpu/kernels.h"

#include <string.h>

#ifdef SC_HAVE_KERNELS
extern const unsigned char sc_kernels_basic[];
#endif

bool sc_kernels_load(struct sc_kernels *kernels, const struct sc_device *device,
                     struct sc_error *error) {
    memset(kernels, 0, sizeof *kernels);
#ifdef SC_HAVE_KERNELS
    const struct sc_driver *cuda = device->cuda;
    int result = cuda->module_load(&kernels->module, sc_kernels_basic);
    if (result == SC_CU_OK)
        result = cuda->module_function(&kernels->add_bf16, kernels->module, "sc_add_bf16");
    if (result == SC_CU_OK)
        result = cuda->module_function(&kernels->tick, kernels->module, "sc_tick");
    if (result == SC_CU_OK) return true;
    sc_driver_fail(cuda, result, "loading the built-in kernels", error);
    sc_kernels_unload(kernels, device);
#else
    (void)device;
    (void)error;
#endif
    return false;
}

void sc_kernels_unload(struct sc_kernels *kernels, const struct sc_device *device) {
    if (kernels->module != NULL) device->cuda->module_unload(kernels->module);
    memset(kernels, 0, sizeof *kernels);
}
