/* The command lane's calls and the host all-gather. */
#ifndef SC_API_COMMANDS_H
#define SC_API_COMMANDS_H

#include "api/handle.h"

/* A broadcast of at most 4 KiB, checked. */
spark_comm_status sc_commands_broadcast(struct spark_comm *comm, const spark_comm_op *op);

#endif
