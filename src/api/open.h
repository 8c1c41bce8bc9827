/* What opening and reconnecting have in common. */
#ifndef SC_API_OPEN_H
#define SC_API_OPEN_H

#include "api/handle.h"

/* All ranks learn what any of them says against going on: one status and one sentence, the same
 * everywhere. */
spark_comm_status sc_open_vote(struct spark_comm *comm, spark_comm_status status,
                               struct sc_error *error);
/* Takes the status lines and the number of the world's present epoch. */
void sc_open_attach(struct spark_comm *comm);
/* For sc_world_on_poison: ends the backend's waits. */
void sc_open_interrupt(void *arg);

#endif
