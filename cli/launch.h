/*
 * Starting the ranks of one node and looking after them, for `run` and for `perf -n`. One function
 * for the subcommands, sc_launch; the rest is between the launch_*.c files.
 */
#ifndef SC_LAUNCH_H
#define SC_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SC_LAUNCH_MAX_RANKS = 4096, SC_LAUNCH_DEFAULT_PORT = 29500 };

/*
 * Three kinds of process:
 *   launcher    what the user started. It forwards signals to the supervisor, waits for it and
 *               passes on its exit code. It holds the only write end of the lifeline pipe.
 *   supervisor  its one child, in a session of its own. It starts the ranks, labels their output
 *               and ends them. End-of-file on the lifeline means that the launcher is gone,
 *               however it died: the supervisor kills everything and leaves.
 *   ranks       children of the supervisor, each the leader of its own session and process
 *               group. The kernel kills them when the supervisor dies (PR_SET_PDEATHSIG).
 * Launcher and supervisor are subreapers: what a rank leaves behind becomes the supervisor's
 * child, or the launcher's if the supervisor is gone, and is found and killed there even if it
 * moved to another session. So neither's death leaves an orphan.
 */

/* What to start. Strings are borrowed until sc_launch returns. */
struct sc_launch_plan {
    const char *command; /* begins each message, "spark-comm run" */
    char *const *argv; /* program and arguments, NULL at the end */
    int ranks; /* on this node */
    int nodes; /* 1: the job lives on this node alone */
    int node_rank; /* this node's place, from 0 */
    const char *master_addr; /* where rank 0 listens */
    int master_port; /* 0: reserve a free one; only with one node */
    const char *trace_dir; /* absolute; NULL: none */
    int restarts; /* how often a rank that failed may be started again, all ranks together */
    bool bind_cores; /* rank i on the i-th CPU of the affinity mask */
    bool label_output; /* "[rank] " before each line; false: the ranks write by themselves */
    bool brief; /* report only ranks that a signal killed */
};

/* Runs the plan to its end. Returns 0, or the first failing rank's exit code (128 + signal if a
 * signal killed it), or SC_EXIT_FAILED with a message. */
int sc_launch(const struct sc_launch_plan *plan);

/* What all ranks of the plan share, made once before the first starts (launch_job.c). */
struct sc_launch_job {
    const struct sc_launch_plan *plan;
    char token[65];
    int master_port;
    int port_socket; /* keeps the port ours until the job ends; -1: the user chose the port */
    int *cpus; /* one CPU per rank; NULL: no binding */
};

/* False with a message when it cannot be made; destroy runs on any half-made job. */
bool sc_launch_job_prepare(struct sc_launch_job *job, const struct sc_launch_plan *plan);
void sc_launch_job_destroy(struct sc_launch_job *job);

/* The supervisor's whole life. Returns what sc_launch returns. */
int sc_launch_supervise(const struct sc_launch_job *job, int lifeline);

/* The write ends that a rank's process gets; -1: it inherits the supervisor's. */
struct sc_launch_pipes {
    int out;
    int err;
};

/* Starts the rank of that local number. Returns when its program runs: its process group exists
 * by then. 0 when the program could not be started: *error is the errno (launch_rank.c). */
pid_t sc_launch_rank_start(const struct sc_launch_job *job, int local_rank,
                           struct sc_launch_pipes pipes, int *error);

/* Kills and reaps every process whose parent is the calling one and which started no earlier than
 * `since` (clock ticks after boot, 0: all), again and again until none is left or limit_ms is over:
 * each kill may hand the victim's own children to a subreaper (launch_sweep.c). */
void sc_launch_sweep(uint64_t since, int limit_ms);

/* When a process started, in clock ticks after boot; 0: not known. */
uint64_t sc_launch_sweep_start_of(pid_t pid);
/* Whether the kernel has begun to take a process apart. It may still be some time until its parent
 * can see that. */
bool sc_launch_sweep_is_exiting(pid_t pid);

#endif
