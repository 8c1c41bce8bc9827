/*
 * One rank of the footprint measurement (bench/footprint.py starts it): opens a communicator from
 * the environment and says when it was ready; with `idle SECONDS` rank 0 then stays silent for that
 * long while the others wait in recv_command_u32, and each rank reports the processor time that its
 * process used meanwhile.
 *
 * Output, one line: rank, CLOCK_MONOTONIC nanoseconds when ready, processor time in microseconds.
 */
#include <inttypes.h>
#include <spark_comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t cpu_us(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return ((int64_t)usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000) +
           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static int fail(const spark_comm *comm, const char *what) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "footprint: %s: %s\n", what, error.message);
    return 1;
}

static spark_comm_status stay_idle(spark_comm *comm, int seconds) {
    uint32_t word = 7;
    if (spark_comm_rank(comm) != 0)
        return spark_comm_recv_command_u32(comm, (uint64_t)(uintptr_t)&word, 0);
    struct timespec pause = {.tv_sec = seconds};
    while (nanosleep(&pause, &pause) != 0) {
    }
    return spark_comm_broadcast(comm, (uint64_t)(uintptr_t)&word, sizeof word, 0);
}

int main(int argc, char **argv) {
    int seconds = argc == 3 && strcmp(argv[1], "idle") == 0 ? atoi(argv[2]) : 0;
    spark_comm *comm = NULL;
    if (spark_comm_open(NULL, &comm) != SPARK_COMM_OK) return fail(NULL, "open");
    int64_t ready = clock_ns(), before = cpu_us();
    if (seconds > 0 && stay_idle(comm, seconds) != SPARK_COMM_OK) return fail(comm, "idle");
    printf("%d %" PRId64 " %" PRId64 "\n", spark_comm_rank(comm), ready, cpu_us() - before);
    if (spark_comm_barrier(comm) != SPARK_COMM_OK) return fail(comm, "barrier");
    spark_comm_close(comm);
    return 0;
}
