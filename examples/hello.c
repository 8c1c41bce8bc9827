/* The smallest program: the buffers of all ranks are added up. The same text is in README.md. */
#include <spark_comm.h>
#include <stdio.h>

int main(void) {
    spark_comm *comm = NULL;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_options options;
    float x[2] = {1.0f, 0.5f};

    spark_comm_options_init(&options, sizeof options); /* the rest comes from the environment */
    options.dtype = SPARK_COMM_F32;
    spark_comm_status st = spark_comm_open(&options, &comm);
    if (st == SPARK_COMM_OK) st = spark_comm_all_reduce(comm, (uint64_t)(uintptr_t)x, sizeof x);
    if (st == SPARK_COMM_OK)
        printf("rank %d of %d: %g %g\n", spark_comm_rank(comm), spark_comm_world_size(comm),
               (double)x[0], (double)x[1]);
    else if (spark_comm_last_error(comm, &error) == SPARK_COMM_OK)
        fprintf(stderr, "%s: %s\n", spark_comm_status_name(st), error.message);
    spark_comm_close(comm);
    return st == SPARK_COMM_OK ? 0 : 1;
}
