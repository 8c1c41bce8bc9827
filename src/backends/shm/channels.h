/* The operations by channel, as spark_comm_backend.h says; two ranks at least, and never 0 bytes
 * but for a barrier. */
#ifndef SC_SHM_CHANNELS_H
#define SC_SHM_CHANNELS_H

#include "backends/shm/state.h"

/* slots.c: what one rank writes fits into a slot */
spark_comm_status sc_slots_all_reduce(struct sc_shm *shm, const spark_comm_call *call);
spark_comm_status sc_slots_reduce_scatter(struct sc_shm *shm, const spark_comm_call *call,
                                          sc_dtype_reduce_fn reduce);
spark_comm_status sc_slots_all_gather(struct sc_shm *shm, const spark_comm_call *call);
spark_comm_status sc_slots_barrier(struct sc_shm *shm, const spark_comm_call *call);

/* swap.c: two ranks, any size */
spark_comm_status sc_swap_all_reduce(struct sc_shm *shm, const spark_comm_call *call);

/* chunks.c: any size */
spark_comm_status sc_chunks_all_reduce(struct sc_shm *shm, const spark_comm_call *call,
                                       sc_dtype_reduce_fn reduce, enum sc_path path);
spark_comm_status sc_chunks_reduce_scatter(struct sc_shm *shm, const spark_comm_call *call,
                                           sc_dtype_reduce_fn reduce);
spark_comm_status sc_chunks_all_gather(struct sc_shm *shm, const spark_comm_call *call);

/* streams.c */
spark_comm_status sc_streams_broadcast(struct sc_shm *shm, const spark_comm_call *call);

/* pairs.c: one rank too */
spark_comm_status sc_pairs_point_to_point(struct sc_shm *shm, const spark_comm_call *call);

#endif
