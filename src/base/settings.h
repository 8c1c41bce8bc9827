/*
 * Every setting of the library: one table in settings.c holds name, environment variable, type,
 * default, range and help line. The only file that reads the environment. Options given by the
 * caller win over SPARK_COMM_<NAME>, that over one launcher's family as a whole (torchrun, Open
 * MPI, MPICH, Slurm; the first of them that is complete), that over the default.
 */
#ifndef SC_BASE_SETTINGS_H
#define SC_BASE_SETTINGS_H

#include "base/error.h"
#include "base/log.h"

struct sc_settings {
    /* fields of spark_comm_options, resolved: nothing is "not set", except device -1 and an
     * empty token */
    char backend[64]; /* "auto", or a name */
    char master_addr[256];
    char job_token[256]; /* empty: none */
    uint64_t stream;
    int32_t memory;
    int32_t rank;
    int32_t world_size;
    int32_t master_port;
    int32_t device;
    int32_t dtype;
    int32_t rendezvous_timeout_ms; /* positive, or SPARK_COMM_FOREVER; so the next three */
    int32_t op_timeout_ms;
    int32_t liveness_timeout_ms;
    int32_t close_timeout_ms;
    /* settings that have no option field */
    char trace_dir[512]; /* SPARK_COMM_TRACE_DIR; empty: records stay in memory */
    int32_t
        trace_records; /* SPARK_COMM_TRACE_RECORDS: ring size per lane, a power of two, default 4096, 64 to 1048576 */
    char log_file[512]; /* SPARK_COMM_LOG_FILE; empty: none; "%r" becomes the rank */
    int32_t log_level; /* SPARK_COMM_LOG_LEVEL: none, error, warn, info (default), debug */
    int32_t
        allow_no_token; /* SPARK_COMM_ALLOW_NO_TOKEN: accept peers of other hosts without a token */
    int32_t
        listen_any; /* SPARK_COMM_LISTEN_ANY: rank 0 and the others listen on the wildcard address */
    char backend_path
        [512]; /* SPARK_COMM_BACKEND_PATH: folder of backend modules; empty: the library's own folder */
    char cuda_library[512]; /* SPARK_COMM_CUDA_LIBRARY; empty: libcuda.so.1 */
    char nccl_library[512]; /* SPARK_COMM_NCCL_LIBRARY; empty: libnccl.so.2, then pip's */
    int32_t check_pointers; /* SPARK_COMM_CHECK_POINTERS: device pointers and streams are asked of the driver */
    int32_t allow_shared_gpu; /* SPARK_COMM_ALLOW_SHARED_GPU: ranks may share a GPU, without NCCL */
    int32_t nccl_exchange_bytes; /* SPARK_COMM_NCCL_EXCHANGE_BYTES: two-rank exchange up to; -1: by GPU */
    int32_t nccl_windows; /* SPARK_COMM_NCCL_WINDOWS: 0 never, 1 where they can be aborted, 2 always */
    int32_t nccl_split_share; /* SPARK_COMM_NCCL_SPLIT_SHARE: parent and child share resources */
    spark_comm_log_fn log;
    void *log_user;
};

/* Fills `settings`. INVALID_ARGUMENT with the setting's name, value, source and range; nothing
 * is ever clamped. `options` may be NULL. The caller's struct_size rules are applied here. */
spark_comm_status sc_settings_resolve(const spark_comm_options *options,
                                      struct sc_settings *settings, struct sc_error *error);
/* The same as rows for people (spark_comm_describe_settings); a refused value has `problem` set
 * and the others still show. Returns how many rows there are; writes at most `capacity`. */
size_t sc_settings_describe(const spark_comm_options *options, spark_comm_setting_row *rows,
                            size_t row_size, size_t capacity);
/* A spark_comm_options whose strings point into `settings` (for spark_comm_host.options). */
void sc_settings_to_options(const struct sc_settings *settings, spark_comm_options *options);
/* Digest of the settings that must be equal on all ranks: op_timeout_ms, dtype and what later
 * backends add. */
uint64_t sc_settings_digest(const struct sc_settings *settings);
/* Those that have no option field, as the environment has them; for backends, which see options. A
 * value that resolve would refuse is the default. */
void sc_settings_of_environment(struct sc_settings *settings);
/* Folders under which Python may have installed packages: VIRTUAL_ENV, CONDA_PREFIX, ~/.local. At
 * most `capacity` pointers into the environment or into `home`; returns how many. */
size_t sc_settings_python_folders(const char *folders[], size_t capacity, char *home,
                                  size_t home_size);
/* spark_comm_options_init. */
void sc_settings_options_init(spark_comm_options *options, size_t struct_size);

#endif
