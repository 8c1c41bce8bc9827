/* Symmetric memory: regions in which every rank has a part that its peers can reach, and the table
 * of registered ranges inside of them. */
#ifndef SC_SHM_SYMMETRIC_H
#define SC_SHM_SYMMETRIC_H

#include "backends/shm/state.h"

/* As in spark_comm_backend.h. */
spark_comm_status sc_symmetric_alloc(void *state, size_t bytes, int64_t deadline_ns, uint64_t *ptr);
spark_comm_status sc_symmetric_free(void *state, uint64_t ptr);
spark_comm_status sc_symmetric_register(void *state, uint64_t ptr, size_t bytes, uint64_t *handle);
spark_comm_status sc_symmetric_deregister(void *state, uint64_t handle);

/* Where a range of this rank's lies; region 0: not in symmetric memory that the peers share. */
struct sc_symmetric_place {
    uint32_t region;
    uint64_t offset; /* in this rank's part */
    unsigned char *parts; /* of all ranks, one behind the other, as mapped here */
    size_t part_bytes;
};

struct sc_symmetric_place sc_symmetric_locate(const struct sc_shm *shm, uint64_t ptr, size_t bytes);
/* In a new epoch: every region becomes plain memory of this rank's, at the same address, until it is
 * freed. Those that could not be are still to come when it is called again. */
spark_comm_status sc_symmetric_detach(struct sc_shm *shm, struct sc_error *error);
/* Frees all that is left. */
void sc_symmetric_close(struct sc_shm *shm);

#endif
