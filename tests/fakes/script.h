/* For tests of the NCCL backend on the fakes: scripts for the fakes, and what faults must look like. */
#ifndef FAKES_SCRIPT_H
#define FAKES_SCRIPT_H

#include "contract/contract.h"
#include "contract/ops.h"
#include "device.h"

/* Sets a variable for this rank, in its own process; ranks that are threads share the environment, so
 * their scripts name the rank (fault@1). Before open. */
void script_set(struct harness_rank *rank, const char *variable, const char *value);
/* Opens with these limits; the status, with *comm set on success. 0: the harness's own. */
spark_comm_status script_open(struct harness_rank *rank, int rendezvous_ms, int op_ms,
                              int close_ms);
/* Memory that host and GPU reach (managed), zero filled, on a real GPU as on the fakes; it stays until
 * the process ends. */
void *script_memory(struct harness_rank *rank, size_t bytes);
/* Waits until the communicator is poisoned; false (a failure) after `limit_ms`. */
bool script_await_poison(struct harness_rank *rank, int limit_ms);
/* Open failed with `want`, and the words are in its message. */
void script_check_open_failed(struct harness_rank *rank, spark_comm_status want,
                              spark_comm_status got, const char *const *words);
#define SCRIPT_OPEN_FAILED(rank, want, got, ...) \
    script_check_open_failed(rank, want, got, (const char *const[]){__VA_ARGS__, NULL})

#endif
