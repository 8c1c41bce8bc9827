/* See script.h. */
#include "script.h"

#include <stdlib.h>
#include <string.h>

void script_set(struct harness_rank *rank, const char *variable, const char *value) {
    const bool shared = rank->world->way == HARNESS_THREADS;
    if (!shared || rank->rank == 0) {
        if (value != NULL)
            setenv(variable, value, 1);
        else
            unsetenv(variable);
    }
    if (shared) harness_meet(rank);
}

spark_comm_status script_open(struct harness_rank *rank, int rendezvous_ms, int op_ms,
                              int close_ms) {
    spark_comm_options options;
    harness_options(rank, &options);
    const int slowness = harness_slowness();
    if (rendezvous_ms > 0) options.rendezvous_timeout_ms = rendezvous_ms * slowness;
    if (op_ms > 0) options.op_timeout_ms = op_ms * slowness;
    if (close_ms > 0) options.close_timeout_ms = close_ms * slowness;
    const spark_comm_status st = harness_open(rank, &options, &rank->comm);
    /* A fault right after open on one rank would end the open of another. */
    if (st == SPARK_COMM_OK) harness_meet(rank);
    return st;
}

void *script_memory(struct harness_rank *rank, size_t bytes) {
    uint64_t pointer = 0;
    const int result = device_driver()->managed(&pointer, bytes, 1);
    if (!CHECK_TRUE(rank, result == 0, "no managed memory: %d", result)) exit(1);
    memset((void *)(uintptr_t)pointer, 0, bytes);
    return (void *)(uintptr_t)pointer;
}

bool script_await_poison(struct harness_rank *rank, int limit_ms) {
    const int64_t limit = harness_now_ms() + (int64_t)limit_ms * harness_slowness();
    while (spark_comm_is_healthy(rank->comm))
        if (harness_now_ms() > limit)
            return CHECK_TRUE(rank, false, "still healthy after %d ms", limit_ms);
        else
            harness_sleep_ms(1);
    return true;
}

void script_check_open_failed(struct harness_rank *rank, spark_comm_status want,
                              spark_comm_status got, const char *const *words) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(NULL, &error);
    CHECK_TRUE(rank, got == want, "open: expected %s, got %s: %s", spark_comm_status_name(want),
               spark_comm_status_name(got), error.message);
    for (; *words != NULL; words++)
        CHECK_TRUE(rank, strstr(error.message, *words) != NULL, "open does not say \"%s\": \"%s\"",
                   *words, error.message);
}
