/* A failure as it is made at the failing line and carried up: status, who, what, one sentence.
 * Plain data, no locks. */
#ifndef SC_BASE_ERROR_H
#define SC_BASE_ERROR_H

#include <spark_comm.h>

struct sc_error {
    int32_t status;
    int32_t operation;
    uint64_t sequence;
    int32_t peer; /* world rank; -1: none */
    uint32_t epoch;
    int64_t native_code;
    char message[512];
};

/* Fills `error` (which may be NULL) and returns `status`, so that a failing line reads `st =
 * sc_error_set(...)`. Leaves operation, sequence and epoch alone: the caller further up knows
 * them. */
spark_comm_status sc_error_set(struct sc_error *error, spark_comm_status status, int peer,
                               int64_t native_code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for a failed system call: SYSTEM (NO_MEMORY for ENOMEM), native_code errno_value, and
 * ": <text of errno>" at the end of the sentence. For EMFILE it appends the descriptor limit in
 * force. */
spark_comm_status sc_error_system(struct sc_error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Zeroes it, with peer -1. */
void sc_error_clear(struct sc_error *error);

#endif
