/*
 * All that moves data between ranks: four calls, each timed.
 */
#include "llm.h"

#include <stdlib.h>
#include <time.h>

int64_t llm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Notes how long a call took. Where memory for it runs out, the sum of the times is refused later as a
 * MISMATCH, and nothing else is lost. */
static spark_comm_status note(struct llm_link *link, int64_t begin, spark_comm_status st) {
    if (link->calls == link->capacity) {
        size_t capacity = link->capacity * 2 + 4096;
        float *us = realloc(link->us, capacity * sizeof *us);
        if (us == NULL) return st;
        link->us = us;
        link->capacity = capacity;
    }
    link->us[link->calls++] = (float)(llm_now_ns() - begin) / 1000;
    return st;
}

spark_comm_status llm_link_sum(struct llm_link *link, real *values, size_t count) {
    const int64_t begin = llm_now_ns();
    return note(
        link, begin,
        spark_comm_all_reduce(link->comm, (uint64_t)(uintptr_t)values, count * sizeof *values));
}

/* This rank's `count` values already stand in its own slot. */
spark_comm_status llm_link_gather(struct llm_link *link, real *slots, size_t count) {
    const int64_t begin = llm_now_ns();
    const real *own = slots + (size_t)spark_comm_rank(link->comm) * count;
    return note(link, begin,
                spark_comm_all_gather(link->comm, (uint64_t)(uintptr_t)own,
                                      (uint64_t)(uintptr_t)slots, count * sizeof *slots));
}

spark_comm_status llm_link_tell(struct llm_link *link, void *data, size_t bytes) {
    const int64_t begin = llm_now_ns();
    return note(link, begin, spark_comm_broadcast(link->comm, (uint64_t)(uintptr_t)data, bytes, 0));
}

spark_comm_status llm_link_await_word(struct llm_link *link, uint32_t *word) {
    const int64_t begin = llm_now_ns();
    return note(link, begin, spark_comm_recv_command_u32(link->comm, (uint64_t)(uintptr_t)word, 0));
}

/* A rank that comes early to a call waits there for the slowest one's arithmetic. The least over the
 * ranks is what the call took the one that came last, for which everybody was there. */
spark_comm_status llm_link_total(struct llm_link *link, double *us, size_t *calls) {
    const size_t world = (size_t)spark_comm_world_size(link->comm), count = link->calls;
    float *all = calloc(world * count + 1, sizeof *all);
    spark_comm_status st = SPARK_COMM_NO_MEMORY;

    *us = 0;
    *calls = count;
    if (all == NULL) return st;
    st = spark_comm_all_gather(link->comm, (uint64_t)(uintptr_t)link->us, (uint64_t)(uintptr_t)all,
                               count * sizeof *all);
    /* A world of one has nobody to wait for, and `single` moves nothing. */
    for (size_t i = 0; st == SPARK_COMM_OK && i < count; i++) {
        float least = link->us[i];
        for (size_t rank = 0; world > 1 && rank < world; rank++)
            if (all[rank * count + i] < least) least = all[rank * count + i];
        *us += (double)least;
    }
    link->calls = 0;
    free(all);
    return st;
}
