/*
 * Messages, numbers from the command line, the clock, and the few questions to the system that
 * several subcommands ask. Declared in cli.h.
 */
#include "cli.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void sc_cli_error(const char *command, const char *format, ...) {
    char line[1536];
    int used = snprintf(line, sizeof line, "%s: ", command);
    if (used < 0 || (size_t)used >= sizeof line) return;

    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    if (more < 0) return;

    size_t length = strlen(line);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    /* Nothing can be done about a stderr that takes no more. */
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}

bool sc_cli_parse_int(const char *text, int low, int high, int *value) {
    char *end = NULL;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < low || number > high) return false;
    *value = (int)number;
    return true;
}

static bool suffix_factor(const char *suffix, size_t *factor) {
    static const struct {
        const char *text;
        unsigned shift;
    } known[] = {{"", 0},   {"B", 0},    {"K", 10}, {"KiB", 10},
                 {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcasecmp(suffix, known[i].text) == 0) {
            *factor = (size_t)1 << known[i].shift;
            return true;
        }
    }
    return false;
}

bool sc_cli_parse_size(const char *text, size_t *bytes) {
    /* strtoull takes a sign and spaces; a size has neither. */
    if (*text < '0' || *text > '9') return false;

    char *end = NULL;
    size_t factor = 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || !suffix_factor(end, &factor) || number > SIZE_MAX / factor) return false;
    *bytes = (size_t)number * factor;
    return true;
}

bool sc_cli_find_program(const char *name, char *path, size_t capacity) {
    const char *folder = getenv("PATH");
    while (folder && *folder) {
        size_t length = strcspn(folder, ":");
        int used = snprintf(path, capacity, "%.*s/%s", (int)length, folder, name);
        if (length && used > 0 && (size_t)used < capacity && access(path, X_OK) == 0) return true;
        folder += length;
        if (*folder == ':') folder++;
    }
    return false;
}

int64_t sc_cli_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t sc_cli_now_ms(void) {
    return sc_cli_now_ns() / 1000000;
}

/* The kernel refuses a set that is smaller than its own, so the set grows until it fits. */
static cpu_set_t *affinity_set(int *capacity) {
    for (int cpus = 1024; cpus <= 1024 * 1024; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) return NULL;
        *capacity = cpus;
        CPU_ZERO_S(CPU_ALLOC_SIZE((size_t)cpus), set);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)cpus), set) == 0) return set;
        CPU_FREE(set);
    }
    return NULL;
}

int *sc_cli_allowed_cpus(int *count) {
    int capacity = 0;
    *count = 0;
    cpu_set_t *set = affinity_set(&capacity);
    if (!set) return NULL;

    size_t set_size = CPU_ALLOC_SIZE((size_t)capacity);
    int *cpus = calloc((size_t)CPU_COUNT_S(set_size, set) + 1, sizeof *cpus);
    for (int cpu = 0; cpus && cpu < capacity; cpu++) {
        if (CPU_ISSET_S((size_t)cpu, set_size, set)) cpus[(*count)++] = cpu;
    }
    CPU_FREE(set);
    return cpus;
}

int sc_cli_flush_stdout(const char *command) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return SC_EXIT_GOOD;
    sc_cli_error(command, "cannot write to standard output: %s", strerror(errno));
    return SC_EXIT_FAILED;
}
