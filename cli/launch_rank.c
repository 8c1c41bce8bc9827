/*
 * Starting one rank: the environment that says who it is, its CPU, its pipes, and its tie to the
 * supervisor. Called by the supervisor, which is single-threaded, so the child may use all of libc
 * between fork and exec.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static bool set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return setenv(name, text, 1) == 0;
}

/* Settings with the library's own prefix go before RANK and its family, so one that this process
 * inherited would give all ranks the same place; and torchrun's flag would move the port. */
static void forget_inherited_place(void) {
    static const char *const names[] = {"SPARK_COMM_RANK", "SPARK_COMM_WORLD_SIZE",
                                        "SPARK_COMM_MASTER_ADDR", "SPARK_COMM_MASTER_PORT",
                                        "TORCHELASTIC_USE_AGENT_STORE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unsetenv(names[i]);
    }
}

static bool set_environment(const struct sc_launch_job *job, int local_rank) {
    const struct sc_launch_plan *plan = job->plan;
    forget_inherited_place();
    return set_number("RANK", plan->node_rank * plan->ranks + local_rank) &&
           set_number("WORLD_SIZE", plan->nodes * plan->ranks) &&
           set_number("LOCAL_RANK", local_rank) && set_number("LOCAL_WORLD_SIZE", plan->ranks) &&
           set_number("MASTER_PORT", job->master_port) &&
           setenv("MASTER_ADDR", plan->master_addr, 1) == 0 &&
           (!job->token[0] || setenv("SPARK_COMM_JOB_TOKEN", job->token, 1) == 0) &&
           (!plan->trace_dir || setenv("SPARK_COMM_TRACE_DIR", plan->trace_dir, 1) == 0);
}

/* Best effort: a rank that is not bound is slower, not wrong. */
static void bind_to_cpu(int cpu) {
    cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
    if (!set) return;
    size_t size = CPU_ALLOC_SIZE((size_t)cpu + 1);
    CPU_ZERO_S(size, set);
    CPU_SET_S((size_t)cpu, size, set);
    sched_setaffinity(0, size, set);
    CPU_FREE(set);
}

/* Standard input is rank 0's; the others read end-of-file. */
static bool connect_descriptors(int rank, struct sc_launch_pipes pipes) {
    if (rank != 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, STDIN_FILENO) < 0) return false;
    }
    if (pipes.out >= 0 && dup2(pipes.out, STDOUT_FILENO) < 0) return false;
    return pipes.err < 0 || dup2(pipes.err, STDERR_FILENO) >= 0;
}

/* The supervisor blocks and ignores signals for its own purposes; the rank starts afresh. An
 * ignored SIGHUP was the user's wish (nohup) and stays. */
static void reset_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGCHLD, SIGPIPE};
    sigset_t none;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        signal(numbers[i], SIG_DFL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the child. Returns only when the program could not be started; errno says why. */
static void become_rank(const struct sc_launch_job *job, int local_rank,
                        struct sc_launch_pipes pipes, pid_t supervisor) {
    const struct sc_launch_plan *plan = job->plan;
    setsid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
    /* The supervisor may have died before the kernel knew that it matters. */
    if (getppid() != supervisor) _exit(128 + SIGKILL);

    if (job->cpus) bind_to_cpu(job->cpus[local_rank]);
    if (!connect_descriptors(plan->node_rank * plan->ranks + local_rank, pipes)) return;
    if (!set_environment(job, local_rank)) return;
    reset_signals();
    execvp(plan->argv[0], plan->argv);
}

pid_t sc_launch_rank_start(const struct sc_launch_job *job, int local_rank,
                           struct sc_launch_pipes pipes, int *error) {
    /* The child's end closes when its program starts, or carries the errno when it does not. */
    int report[2];
    pid_t supervisor = getpid();
    if (pipe2(report, O_CLOEXEC) != 0) {
        *error = errno;
        return 0;
    }
    pid_t pid = fork();
    if (pid == 0) {
        become_rank(job, local_rank, pipes, supervisor);
        int reason = errno;
        ssize_t ignored = write(report[1], &reason, sizeof reason);
        (void)ignored;
        _exit(127);
    }
    *error = pid < 0 ? errno : 0;
    close(report[1]);

    ssize_t got = 0;
    if (pid > 0) {
        do {
            got = read(report[0], error, sizeof *error);
        } while (got < 0 && errno == EINTR);
    }
    close(report[0]);
    if (got > 0) waitpid(pid, NULL, 0);
    return pid > 0 && got <= 0 ? pid : 0;
}
