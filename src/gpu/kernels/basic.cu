// Small kernels that every path may use: the BF16 add of the two-rank exchange, and the tick that
// counts replays of captured graphs.
#include <cuda_bf16.h>
#include <stdint.h>

// Both ranks add the same two numbers, and addition commutes, so both get the same bits. One thread
// per element, 256 per block, as engines' own add kernels are launched.
extern "C" __global__ void sc_add_bf16(__nv_bfloat16 *dst, const __nv_bfloat16 *src, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[i] = __float2bfloat16_rn(__bfloat162float(dst[i]) + __bfloat162float(src[i]));
}

// `counter` is mapped host memory; one thread of one stream at a time writes it.
extern "C" __global__ void sc_tick(volatile uint32_t *counter) {
    *counter = *counter + 1;
    __threadfence_system();
}
