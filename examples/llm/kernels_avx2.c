/* kernels.c once more, compiled for AVX2 and FMA; the file's name tells the build so. */
#define LLM_KERNELS llm_kernels_avx2
#include "kernels.c" // NOLINT(bugprone-suspicious-include)
