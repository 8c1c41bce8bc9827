/*
 * NCCL, opened at run time with declarations of our own (a test compares them with nccl.h where that
 * is installed). Functions that came later than the oldest NCCL accepted are NULL when the file lacks
 * them or its version says that they are not to be used. RCCL has the same names and values; its file
 * can be named in the setting.
 */
#ifndef SC_NCCL_LIBRARY_H
#define SC_NCCL_LIBRARY_H

#include <limits.h>

#include "gpu/driver.h"
#include "os/library.h"

#ifndef SC_NCCL_REAL_TYPES
typedef int sc_nccl_result;
typedef int sc_nccl_dtype;
typedef int sc_nccl_redop;
typedef struct ncclComm *sc_nccl_comm;
typedef struct ncclWindow_vidmem *sc_nccl_window;
typedef sc_cu_stream sc_nccl_stream;
typedef struct sc_nccl_id {
    char internal[128];
} sc_nccl_id;
/* The part of ncclConfig_t that is used, through splitShare: NCCL copies as many bytes as `size` says
 * and resets what is newer than `version`. */
typedef struct sc_nccl_config {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
} sc_nccl_config;
#endif

#define SC_NCCL_CONFIG_MAGIC 0xcafebeefu
#define SC_NCCL_CONFIG_BYTES 44u /* to the end of splitShare, without padding */
#define SC_NCCL_CONFIG_VERSION 21800u
#define SC_NCCL_UNSET INT_MIN

enum {
    SC_NCCL_OK = 0,
    SC_NCCL_INVALID_ARGUMENT = 4,
    SC_NCCL_IN_PROGRESS = 7,
};
enum {
    SC_NCCL_I8 = 0,
    SC_NCCL_U8 = 1,
    SC_NCCL_I32 = 2,
    SC_NCCL_I64 = 4,
    SC_NCCL_F16 = 6,
    SC_NCCL_F32 = 7,
    SC_NCCL_F64 = 8,
    SC_NCCL_BF16 = 9,
};
enum { SC_NCCL_SUM = 0, SC_NCCL_MAX = 2, SC_NCCL_MIN = 3, SC_NCCL_AVG = 4 };
enum { SC_NCCL_WINDOW_SYMMETRIC = 1 };

#define SC_NCCL_OLDEST 21900 /* 2.19: ncclCommRegister, ncclMemAlloc */
#define SC_NCCL_OWN_ABORT 22907 /* symmetric kernels look at the abort flag from here on */

/* X(result, member, function, first version, arguments): all that 2.19 has first. */
#define SC_NCCL_FUNCTIONS(X)                                                                 \
    X(sc_nccl_result, get_version, ncclGetVersion, 20000, (int *version))                    \
    X(const char *, error_string, ncclGetErrorString, 20000, (sc_nccl_result result))        \
    X(const char *, last_error, ncclGetLastError, 21300, (sc_nccl_comm comm))                \
    X(sc_nccl_result, unique_id, ncclGetUniqueId, 20000, (sc_nccl_id * id))                  \
    X(sc_nccl_result, init, ncclCommInitRankConfig, 21400,                                   \
      (sc_nccl_comm * comm, int ranks, sc_nccl_id id, int rank, sc_nccl_config *config))     \
    X(sc_nccl_result, split, ncclCommSplit, 21800,                                           \
      (sc_nccl_comm comm, int color, int key, sc_nccl_comm *child, sc_nccl_config *config))  \
    X(sc_nccl_result, finalize, ncclCommFinalize, 21400, (sc_nccl_comm comm))                \
    X(sc_nccl_result, destroy, ncclCommDestroy, 20000, (sc_nccl_comm comm))                  \
    X(sc_nccl_result, abort, ncclCommAbort, 20000, (sc_nccl_comm comm))                      \
    X(sc_nccl_result, async_error, ncclCommGetAsyncError, 20000,                             \
      (sc_nccl_comm comm, sc_nccl_result * error))                                           \
    X(sc_nccl_result, all_reduce, ncclAllReduce, 20000,                                      \
      (const void *send, void *recv, size_t count, sc_nccl_dtype dtype, sc_nccl_redop redop, \
       sc_nccl_comm comm, sc_nccl_stream stream))                                            \
    X(sc_nccl_result, reduce_scatter, ncclReduceScatter, 20000,                              \
      (const void *send, void *recv, size_t count, sc_nccl_dtype dtype, sc_nccl_redop redop, \
       sc_nccl_comm comm, sc_nccl_stream stream))                                            \
    X(sc_nccl_result, all_gather, ncclAllGather, 20000,                                      \
      (const void *send, void *recv, size_t count, sc_nccl_dtype dtype, sc_nccl_comm comm,   \
       sc_nccl_stream stream))                                                               \
    X(sc_nccl_result, broadcast, ncclBroadcast, 20000,                                       \
      (const void *send, void *recv, size_t count, sc_nccl_dtype dtype, int root,            \
       sc_nccl_comm comm, sc_nccl_stream stream))                                            \
    X(sc_nccl_result, send, ncclSend, 20700,                                                 \
      (const void *send, size_t count, sc_nccl_dtype dtype, int peer, sc_nccl_comm comm,     \
       sc_nccl_stream stream))                                                               \
    X(sc_nccl_result, recv, ncclRecv, 20700,                                                 \
      (void *recv, size_t count, sc_nccl_dtype dtype, int peer, sc_nccl_comm comm,           \
       sc_nccl_stream stream))                                                               \
    X(sc_nccl_result, group_start, ncclGroupStart, 20000, (void))                            \
    X(sc_nccl_result, group_end, ncclGroupEnd, 20000, (void))                                \
    X(sc_nccl_result, comm_register, ncclCommRegister, 21900,                                \
      (sc_nccl_comm comm, void *buffer, size_t size, void **handle))                   \
    X(sc_nccl_result, comm_deregister, ncclCommDeregister, 21900,                            \
      (sc_nccl_comm comm, void *handle))                                               \
    X(sc_nccl_result, memory_alloc, ncclMemAlloc, 21900, (void **pointer, size_t size))      \
    X(sc_nccl_result, memory_free, ncclMemFree, 21900, (void *pointer))                      \
    X(sc_nccl_result, window_register, ncclCommWindowRegister, 22700,                        \
      (sc_nccl_comm comm, void *buffer, size_t size, sc_nccl_window *window, int flags))     \
    X(sc_nccl_result, window_deregister, ncclCommWindowDeregister, 22700,                    \
      (sc_nccl_comm comm, sc_nccl_window window))                                            \
    X(sc_nccl_result, revoke, ncclCommRevoke, 22807, (sc_nccl_comm comm, int flags))

struct sc_nccl_library {
    char file[256]; /* really mapped */
    int version; /* 10000 * major + 100 * minor + patch */
#define SC_NCCL_MEMBER(result, member, function, since, arguments) result(*member) arguments;
    SC_NCCL_FUNCTIONS(SC_NCCL_MEMBER)
#undef SC_NCCL_MEMBER
};

/* The loaded NCCL; `file` names it, or is empty: libnccl.so.2 on the loader's path, then a pip
 * package's. UNAVAILABLE with every name tried and its reason: none opens, too old, a function of the
 * oldest version missing. Any thread; the result lives as long as the process. */
spark_comm_status sc_nccl_library_load(const char *file, const struct sc_nccl_library **library,
                                       struct sc_error *error);
/* What is known against this version on this machine, as a sentence; NULL: nothing. */
const char *sc_nccl_library_warning(const struct sc_nccl_library *library, bool is_aarch64);
/* "2.28.9" of 22809. */
void sc_nccl_library_version_text(int version, char *text, size_t size);

#endif
