/* Threads of the library's own (all signals blocked, named), forks noticed, CPUs counted, this
 * host and process named. */
#ifndef SC_OS_THREAD_H
#define SC_OS_THREAD_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/error.h"

spark_comm_status sc_thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                                  void *arg, struct sc_error *error);
/* Counts up in a child after fork (pthread_atfork): a communicator that remembers another value
 * belongs to the parent. */
uint32_t sc_thread_fork_count(void);
/* The same for hot paths, once sc_thread_fork_count has been called in this process. */
extern _Atomic uint32_t sc_thread_forks;
static inline uint32_t sc_thread_fork_count_again(void) {
    /* Relaxed: written only in a child right after fork, when it has one thread. */
    return atomic_load_explicit(&sc_thread_forks, memory_order_relaxed);
}
/* CPUs this thread may run on. */
void sc_thread_affinity(cpu_set_t *set);

/* Identity of "this host" as far as ids can tell: boot id, network namespace inode, user. */
struct sc_thread_host_id {
    char boot_id[40];
    uint64_t network_namespace;
    uint32_t uid;
};
void sc_thread_host_id(struct sc_thread_host_id *id);
/* Which numbering of processes this one is in (inode of the pid namespace); 0: not known. */
uint64_t sc_thread_pid_namespace(void);
/* A descriptor that becomes readable when process `pid` ends; -1 where the kernel has none. */
int sc_thread_pidfd(pid_t pid);

#endif
