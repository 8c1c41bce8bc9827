/*
 * Finding and killing what ranks left behind. A subreaper's adopted children can be listed only
 * through /proc; without /proc the process groups, which the supervisor kills first, are all that
 * can be reached. A child of ours cannot be reaped by anyone else, so its pid is safe to kill.
 */
#include "cli.h"
#include "launch.h"

#include <ctype.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SWEEP_PAUSE_MS = 5, PF_EXITING = 0x4 /* include/linux/sched.h */ };

struct stat_line {
    pid_t parent;
    unsigned long flags; /* the kernel's PF_* */
    uint64_t start; /* clock ticks after boot */
};

/* Reads /proc/PID/stat. The name in it may hold spaces and brackets: the fields are counted from
 * the last closing one. */
static bool read_stat(pid_t pid, struct stat_line *line) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;

    char *field = strrchr(text, ')');
    if (!field) return false;
    *line = (struct stat_line){0};
    int number = 2; /* the name is field 2, parent 4, flags 9, start time 22 */
    for (field = strchr(field, ' '); field && number < 22; field = strchr(field + 1, ' ')) {
        number++;
        if (number == 4) line->parent = (pid_t)strtol(field, NULL, 10);
        if (number == 9) line->flags = strtoul(field, NULL, 10);
        if (number == 22) line->start = strtoull(field, NULL, 10);
    }
    return number == 22;
}

uint64_t sc_launch_sweep_start_of(pid_t pid) {
    struct stat_line line;
    return read_stat(pid, &line) ? line.start : 0;
}

bool sc_launch_sweep_is_exiting(pid_t pid) {
    struct stat_line line;
    return read_stat(pid, &line) && (line.flags & PF_EXITING) != 0;
}

/* One pass; returns how many children there were. */
static int kill_children(uint64_t since) {
    DIR *processes = opendir("/proc");
    if (!processes) return 0;

    int found = 0;
    pid_t self = getpid();
    struct stat_line line;
    for (struct dirent *entry; (entry = readdir(processes));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (!read_stat(pid, &line) || line.parent != self || line.start < since) continue;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, WNOHANG);
        found++;
    }
    closedir(processes);
    return found;
}

void sc_launch_sweep(uint64_t since, int limit_ms) {
    int64_t end = sc_cli_now_ms() + limit_ms;
    while (kill_children(since) > 0 && sc_cli_now_ms() < end) {
        poll(NULL, 0, SWEEP_PAUSE_MS);
    }
}
