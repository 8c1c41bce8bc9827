/* send_to and recv_from, alone or in a group. */
#ifndef SC_API_GROUPS_H
#define SC_API_GROUPS_H

#include "api/handle.h"

/* Posts one message: kept when this thread has a group open, run at once otherwise. */
spark_comm_status sc_groups_post(struct spark_comm *comm, spark_comm_op *op, bool general);
/* Frees what an open group holds; at close. */
void sc_groups_release(struct spark_comm *comm);

#endif
