/* Every function of NCCL that the library uses, compared with nccl.h. It is enough that this compiles. A
 * function that the installed header is too old for is left out by its version. */
#include <nccl.h>

#define SC_NCCL_REAL_TYPES
typedef ncclResult_t sc_nccl_result;
typedef ncclDataType_t sc_nccl_dtype;
typedef ncclRedOp_t sc_nccl_redop;
typedef ncclComm_t sc_nccl_comm;
typedef ncclWindow_t sc_nccl_window;
typedef cudaStream_t sc_nccl_stream;
typedef ncclUniqueId sc_nccl_id;
typedef ncclConfig_t sc_nccl_config;

#include "backends/nccl/library.h"

#if NCCL_VERSION_CODE < 22807
#error "the header is older than what is declared: 2.28.7 or newer is needed for this comparison"
#endif

#define SAME(result, member, function, since, arguments)                                          \
    _Static_assert(__builtin_types_compatible_p(                                                  \
                       __typeof__(&function), __typeof__(((struct sc_nccl_library *)0)->member)), \
                   #function);
SC_NCCL_FUNCTIONS(SAME)
