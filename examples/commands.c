/*
 * Head and workers, as an inference engine runs them. Rank 0 decides what is done and says so in
 * 4-byte words; the other ranks wait for the first word of a command through any idle time, and
 * then do the same calls in the same order as rank 0.
 *
 * Two kinds of failure are told apart. A status of 200 or more has poisoned the communicator, so
 * the rank leaves its loop. A smaller one concerns this request alone.
 */
#include <spark_comm.h>
#include <stdio.h>
#include <time.h>

enum { COMMAND_STEP = 1, COMMAND_SHUTDOWN = 2 };
enum { MAX_TOKENS = 4096 };

/* A request: how many tokens, and which. */
struct request {
    uint32_t count;
    uint32_t tokens[MAX_TOKENS];
};

static uint64_t address(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

/* The work that all ranks do for COMMAND_STEP. Rank 0 comes with the request filled in, the others
 * receive it. Up to 4 KiB a broadcast travels on the command lane like the words, so its order
 * against them is kept; the sum travels on the data lane. */
static spark_comm_status step(spark_comm *comm, struct request *request, float *sum) {
    const int rank = spark_comm_rank(comm);
    spark_comm_status st = spark_comm_broadcast(comm, address(&request->count), 4, 0);

    if (st != SPARK_COMM_OK) return st;
    if (request->count > MAX_TOKENS) return SPARK_COMM_INVALID_ARGUMENT;
    st = spark_comm_broadcast(comm, address(request->tokens), request->count * sizeof(uint32_t), 0);
    if (st != SPARK_COMM_OK) return st;

    /* Each rank computes a part; the model's layers would be here. */
    *sum = 0.0f;
    for (uint32_t i = 0; i < request->count; i++)
        *sum += (float)request->tokens[i] * (float)(rank + 1);
    return spark_comm_all_reduce(comm, address(sum), sizeof *sum);
}

static spark_comm_status run_head(spark_comm *comm) {
    static struct request request;
    spark_comm_status st = SPARK_COMM_OK;
    uint32_t command = COMMAND_STEP;
    float sum;

    for (uint32_t round = 1; round <= 3; round++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* no request came for 100 ms */
        request.count = round;
        for (uint32_t i = 0; i < round; i++)
            request.tokens[i] = i + 1;
        st = spark_comm_broadcast(comm, address(&command), 4, 0);
        if (st == SPARK_COMM_OK) st = step(comm, &request, &sum);
        if (st != SPARK_COMM_OK) return st;
        printf("head: step %u gave %g\n", (unsigned)round, (double)sum);
    }
    command = COMMAND_SHUTDOWN;
    return spark_comm_broadcast(comm, address(&command), 4, 0);
}

static spark_comm_status run_worker(spark_comm *comm) {
    static struct request request;
    uint32_t command = 0;
    float sum;

    for (;;) {
        /* No deadline here: minutes may pass. A lost head ends it. */
        spark_comm_status st = spark_comm_recv_command_u32(comm, address(&command), 0);
        if (st != SPARK_COMM_OK) return st;
        if (command == COMMAND_SHUTDOWN) return SPARK_COMM_OK;
        st = step(comm, &request, &sum);
        if (spark_comm_is_fatal(st)) return st;
    }
}

int main(void) {
    spark_comm *comm = NULL;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_options options;

    spark_comm_options_init(&options, sizeof options);
    options.dtype = SPARK_COMM_F32;
    spark_comm_status st = spark_comm_open(&options, &comm);
    if (st == SPARK_COMM_OK) st = spark_comm_rank(comm) == 0 ? run_head(comm) : run_worker(comm);
    if (st != SPARK_COMM_OK && spark_comm_last_error(comm, &error) == SPARK_COMM_OK)
        fprintf(stderr, "%s: %s\n", spark_comm_status_name(st), error.message);
    spark_comm_close(comm);
    return st == SPARK_COMM_OK ? 0 : 1;
}
