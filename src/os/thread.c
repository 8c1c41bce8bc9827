/*
 * Threads of the library's own, and what identifies this process and host. A thread of ours handles
 * no signal of the program's; only those that a fault of its own would raise stay open, so that the
 * program's crash reports work.
 */
#include "os/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

spark_comm_status sc_thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                                  void *arg, struct sc_error *error) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t blocked;
    sigset_t saved;
    char short_name[16]; /* the kernel's limit */

    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    /* The new thread inherits the mask; the caller has its own back before it goes on. */
    pthread_sigmask(SIG_SETMASK, &blocked, &saved);
    int failure = pthread_create(thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (failure != 0) return sc_error_system(error, failure, "cannot start the thread %s", name);

    size_t length = strnlen(name, sizeof short_name - 1);
    memcpy(short_name, name, length);
    short_name[length] = '\0';
    pthread_setname_np(*thread, short_name);
    return SPARK_COMM_OK;
}

/* ---- Forks ---- */

static pthread_once_t watching = PTHREAD_ONCE_INIT;
/* Written only in a child right after fork, when it has one thread. Relaxed: orders nothing else.
 */
_Atomic uint32_t sc_thread_forks;

static void count_fork(void) {
    atomic_fetch_add_explicit(&sc_thread_forks, 1, memory_order_relaxed);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}

uint32_t sc_thread_fork_count(void) {
    pthread_once(&watching, watch_forks);
    return atomic_load_explicit(&sc_thread_forks, memory_order_relaxed);
}

/* ---- CPUs, host, processes ---- */

void sc_thread_affinity(cpu_set_t *set) {
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0) return;
    /* More CPUs than the set holds, or no answer: take those that are online. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(set);
    for (long i = 0; i < (online > 0 ? online : 1) && i < CPU_SETSIZE; i++)
        CPU_SET((size_t)i, set);
}

/* The first line of a small file, without its newline; empty when it cannot be read. */
static void read_line(const char *path, char *line, size_t size) {
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && length < size - 1) {
        ssize_t got = read(fd, line + length, size - 1 - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    if (fd >= 0) close(fd);
    line[length] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* The boot id cannot change, and later there may be no descriptor left to read it with: kept as soon
 * as it could be read. */
static char boot_id[sizeof((struct sc_thread_host_id *)0)->boot_id];
static pthread_mutex_t boot_id_lock = PTHREAD_MUTEX_INITIALIZER; /* guards boot_id; leaf */

void sc_thread_host_id(struct sc_thread_host_id *id) {
    struct stat info;

    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&boot_id_lock);
    if (boot_id[0] == '\0') read_line("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    memcpy(id->boot_id, boot_id, sizeof id->boot_id);
    pthread_mutex_unlock(&boot_id_lock);
    if (stat("/proc/self/ns/net", &info) == 0) id->network_namespace = info.st_ino;
    id->uid = geteuid();
}

uint64_t sc_thread_pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

int sc_thread_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}
