/*
 * MPI as a peer of spark_comm: f32 collectives and send/recv over MPI_COMM_WORLD, with the blocking
 * calls that an engine would use. The same source is built with Open MPI and with MPICH.
 *
 *   mpicc -O3 mpi_perf.c harness.c -lm, then mpirun -np 2 ./mpi_perf [--op all] [--sizes 8,1K]
 */
#include "harness.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* MPI's default error handler ends the job, so return codes need no look. */

static void barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}

static void largest(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void all_reduce(float *data, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(const float *send, float *recv, size_t count) {
    MPI_Allgather(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(const float *send, float *recv, size_t count) {
    MPI_Reduce_scatter_block(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(float *data, size_t count) {
    MPI_Bcast(data, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void send_to(const float *data, size_t count, int peer) {
    MPI_Send(data, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void recv_from(float *data, size_t count, int peer) {
    MPI_Recv(data, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    struct harness_peer peer = {.barrier = barrier,
                                .largest = largest,
                                .all_reduce = all_reduce,
                                .all_gather = all_gather,
                                .reduce_scatter = reduce_scatter,
                                .broadcast = broadcast,
                                .send = send_to,
                                .recv = recv_from};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\"")] = 0; /* "Open MPI v4.1.4", "MPICH Version:\t4.0.2" */
    for (char *c = version; *c; c++)
        if (*c == '\t') *c = ' ';
    peer.version = version;
    peer.name = strncmp(version, "Open MPI", 8) == 0 ? "openmpi" : "mpich";
    int code = harness_main(argc, argv, &peer);
    MPI_Finalize();
    return code;
}
