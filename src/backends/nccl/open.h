/* Opening and leaving the NCCL backend; for its table. */
#ifndef SC_NCCL_OPEN_H
#define SC_NCCL_OPEN_H

#include "backends/nccl/state.h"

spark_comm_status sc_nccl_open_probe(void *user, const spark_comm_options *options, char *why,
                                size_t why_size);
spark_comm_status sc_nccl_open_backend(void *user, const spark_comm_host *host, void **state);
void sc_nccl_open_close(void *state);
spark_comm_status sc_nccl_open_reopen(void *state);
void sc_nccl_open_interrupt(void *state);

#endif
