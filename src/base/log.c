/*
 * Writing log lines. One line is one call of the user's function and one write() to the file, which
 * is opened with O_APPEND, so lines of several threads and processes do not mix. No lock is held
 * and errno is preserved. A line that cannot be written is dropped: the log must never fail an
 * operation.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 1024

static const char *level_name(int level) {
    switch (level) {
    case SPARK_COMM_LOG_ERROR: return "error";
    case SPARK_COMM_LOG_WARN: return "warn";
    case SPARK_COMM_LOG_INFO: return "info";
    default: return "debug";
    }
}

static void write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        data += written;
        bytes -= (size_t)written;
    }
}

/* "2030-01-31T23:59:59.123456Z info text", UTC. */
static void write_line(int fd, int level, const char *message) {
    char line[MESSAGE_BYTES + 64];
    struct timespec now;
    struct tm utc;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t length = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    int more = snprintf(line + length, sizeof line - length, ".%06ldZ %s %s\n", now.tv_nsec / 1000,
                        level_name(level), message);
    if (more > 0) write_all(fd, line, length + (size_t)more);
}

void sc_log_write(const struct sc_log *log, int level, const char *format, ...) {
    int saved = errno;
    char message[MESSAGE_BYTES];
    va_list arguments;

    if (!sc_log_wants(log, level)) return;
    va_start(arguments, format);
    if (vsnprintf(message, sizeof message, format, arguments) < 0) message[0] = '\0';
    va_end(arguments);
    /* One line stays one line, whatever a peer or a file name put into it. */
    for (char *c = message; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = ' ';
    }
    if (log->fn != NULL) log->fn(log->user, level, message);
    if (log->fd >= 0) write_line(log->fd, level, message);
    errno = saved;
}
