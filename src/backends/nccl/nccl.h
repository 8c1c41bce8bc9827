/* The backend of GPUs: NCCL, the library's own kernels, and the control plane for what is small. */
#ifndef SC_NCCL_NCCL_H
#define SC_NCCL_NCCL_H

#include <spark_comm_backend.h>

extern const spark_comm_backend sc_nccl_backend;

#endif
