/*
 * Going on after a rank is lost. Each step is one all_reduce. When a step fails for good, a survivor
 * asks for a new epoch, in which the lost rank's replacement is a member like any other:
 *
 *     spark-comm run -n 3 --restart 1 -- survive 5000      and kill one of the ranks
 *
 * `run` starts the lost rank again, with the same rank, address and token, and it comes in through
 * spark_comm_open as every rank does at first. A failed step may have ended well on some ranks, and
 * the replacement knows of no step at all, so the first call of every epoch is a vote: who knows
 * most tells the others where to go on.
 */
#include <inttypes.h>
#include <spark_comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* What must not be lost: an engine would say which weights are loaded and which requests run. */
struct progress {
    uint64_t steps; /* done */
    uint64_t total; /* of all steps' sums */
};

/* The same call on survivors and on replacements, first in every epoch. */
static spark_comm_status agree(spark_comm *comm, struct progress *progress) {
    const size_t ranks = (size_t)spark_comm_world_size(comm);
    struct progress *all = calloc(ranks, sizeof *all);
    spark_comm_health_report health = {.struct_size = sizeof health};

    if (all == NULL) return SPARK_COMM_NO_MEMORY;
    spark_comm_status st = spark_comm_exchange_host(comm, progress, all, sizeof *progress);
    for (size_t i = 0; st == SPARK_COMM_OK && i < ranks; i++)
        if (all[i].steps > progress->steps) *progress = all[i];
    free(all);
    if (st == SPARK_COMM_OK) st = spark_comm_health(comm, &health);
    if (st == SPARK_COMM_OK) {
        printf("rank %d, process %d: epoch %u from step %" PRIu64 "\n", spark_comm_rank(comm),
               (int)getpid(), (unsigned)health.epoch, progress->steps);
        fflush(stdout);
    }
    return st;
}

static spark_comm_status work(spark_comm *comm, struct progress *progress, uint64_t steps) {
    spark_comm_status st = agree(comm, progress);

    while (st == SPARK_COMM_OK && progress->steps < steps) {
        int32_t sum = 1; /* the model would be here */
        st = spark_comm_all_reduce(comm, (uint64_t)(uintptr_t)&sum, sizeof sum);
        if (st != SPARK_COMM_OK) break;
        progress->total += (uint64_t)sum;
        progress->steps++;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    /* The last step may have failed on others that need this rank to go on. */
    return st == SPARK_COMM_OK ? spark_comm_barrier(comm) : st;
}

static void complain(const spark_comm *comm, const char *what, spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};

    if (spark_comm_last_error(comm, &error) != SPARK_COMM_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, spark_comm_status_name(st), error.message);
}

int main(int argc, char **argv) {
    const uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    struct progress progress = {0, 0};
    spark_comm *comm = NULL;
    spark_comm_options options;

    spark_comm_options_init(&options, sizeof options);
    options.dtype = SPARK_COMM_I32;
    spark_comm_status st = spark_comm_open(&options, &comm);
    if (st != SPARK_COMM_OK) {
        complain(NULL, "open", st);
        return 1;
    }
    st = work(comm, &progress, steps);
    while (spark_comm_is_fatal(st)) {
        complain(comm, "lost", st);
        /* Waits for the replacement, at most rendezvous_timeout_ms. All survivors call it, and all of
         * them get the same answer. */
        st = spark_comm_attempt_reconnect(comm);
        if (st == SPARK_COMM_OK) st = work(comm, &progress, steps);
    }
    if (st == SPARK_COMM_OK)
        printf("rank %d: %" PRIu64 " steps, total %" PRIu64 "\n", spark_comm_rank(comm),
               progress.steps, progress.total);
    else
        complain(comm, "cannot go on", st);
    spark_comm_close(comm);
    return st == SPARK_COMM_OK ? 0 : 1;
}
