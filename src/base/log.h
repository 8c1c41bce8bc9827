/* The log: a callback of the user's, and a file when the settings name one. Formatting is
 * skipped when nobody listens or the level is too fine. Safe from any thread; the callback is
 * called without any lock of ours held. */
#ifndef SC_BASE_LOG_H
#define SC_BASE_LOG_H

#include <spark_comm.h>

struct sc_log {
    spark_comm_log_fn fn; /* NULL: none */
    void *user;
    int fd; /* of SPARK_COMM_LOG_FILE, O_APPEND; -1: none */
    int level; /* finest level that is written; 0: nothing */
};

void sc_log_write(const struct sc_log *log, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool sc_log_wants(const struct sc_log *log, int level) {
    return level <= log->level && (log->fn != NULL || log->fd >= 0);
}

#endif
