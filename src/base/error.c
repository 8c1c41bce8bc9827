/*
 * Filling a struct sc_error. The sentence is formatted into a buffer on the stack first, so that an
 * argument may be the error's own old message. errno is preserved. Any thread; nothing is
 * allocated.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

void sc_error_clear(struct sc_error *error) {
    if (error == NULL) return;
    memset(error, 0, sizeof *error);
    error->peer = -1;
}

/* Leaves `reserved` bytes at the end of the message for a suffix, which is appended; NULL: none. */
static void fill(struct sc_error *error, spark_comm_status status, int peer, int64_t native_code,
                 const char *suffix, const char *format, va_list arguments) {
    char message[sizeof error->message];
    size_t reserved = suffix != NULL ? strlen(suffix) : 0;
    int written = vsnprintf(message, sizeof message - reserved, format, arguments);
    size_t length = written < 0 ? 0 : strnlen(message, sizeof message - reserved);

    if (suffix != NULL) memcpy(message + length, suffix, reserved);
    message[length + reserved] = '\0';

    error->status = (int32_t)status;
    error->peer = peer;
    error->native_code = native_code;
    memcpy(error->message, message, length + reserved);
    memset(error->message + length + reserved, 0, sizeof error->message - length - reserved);
}

spark_comm_status sc_error_set(struct sc_error *error, spark_comm_status status, int peer,
                               int64_t native_code, const char *format, ...) {
    int saved = errno;
    va_list arguments;

    if (error == NULL) return status;
    va_start(arguments, format);
    fill(error, status, peer, native_code, NULL, format, arguments);
    va_end(arguments);
    errno = saved;
    return status;
}

spark_comm_status sc_error_system(struct sc_error *error, int errno_value, const char *format,
                                  ...) {
    spark_comm_status status = errno_value == ENOMEM ? SPARK_COMM_NO_MEMORY : SPARK_COMM_SYSTEM;
    int saved = errno;
    char text[96];
    char suffix[192];
    va_list arguments;

    if (error == NULL) return status;
    /* GNU strerror_r: returns the text, which need not be in the buffer. */
    const char *reason = strerror_r(errno_value, text, sizeof text);
    struct rlimit limit;
    if (errno_value == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(suffix, sizeof suffix,
                 ": %s (the limit is %llu descriptors; raise it with ulimit -n)", reason,
                 (unsigned long long)limit.rlim_cur);
    else
        snprintf(suffix, sizeof suffix, ": %s", reason);
    va_start(arguments, format);
    fill(error, status, -1, errno_value, suffix, format, arguments);
    va_end(arguments);
    errno = saved;
    return status;
}
