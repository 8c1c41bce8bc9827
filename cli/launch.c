/*
 * The launcher: forks the supervisor, forwards signals to it, passes on its exit code, and cleans
 * up if it dies. launch.h describes how the processes stand to each other.
 */
#include "launch.h"
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SWEEP_LIMIT_MS = 2000 };

/* SIGHUP stays ignored under nohup. SIGINT is forwarded even if it was ignored: a shell script
 * does that to its background jobs to keep the terminal's Ctrl-C from them, and a SIGINT sent to
 * the launcher on purpose is not that. */
static void watched_signals(sigset_t *set) {
    struct sigaction hangup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGCHLD);
    if (sigaction(SIGHUP, NULL, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
        sigaddset(set, SIGHUP);
    }
}

/* The supervisor's end is left unreaped, so that its pid stays its own for the caller. */
static siginfo_t wait_for_supervisor(pid_t supervisor, const sigset_t *watched) {
    siginfo_t end;
    for (;;) {
        memset(&end, 0, sizeof end);
        int rc = waitid(P_PID, (id_t)supervisor, &end, WEXITED | WNOHANG | WNOWAIT);
        if (rc != 0 || end.si_pid == supervisor) return end;

        int signal_number = sigwaitinfo(watched, NULL);
        if (signal_number > 0 && signal_number != SIGCHLD) kill(supervisor, signal_number);
    }
}

static int finish(const struct sc_launch_plan *plan, pid_t supervisor, const siginfo_t *end) {
    if (end->si_code == CLD_EXITED) {
        waitpid(supervisor, NULL, 0);
        return end->si_status;
    }
    /* The ranks died with it; what they left behind is now ours. Children that this process had
     * before (of a shell that became spark-comm by exec) are older and stay. */
    uint64_t since = sc_launch_sweep_start_of(supervisor);
    waitpid(supervisor, NULL, 0);
    sc_launch_sweep(since ? since : UINT64_MAX, SWEEP_LIMIT_MS);
    sc_cli_error(plan->command,
                 "the process that looks after the ranks was killed by signal %d (%s); the ranks "
                 "were ended with it: start the job again",
                 end->si_status, strsignal(end->si_status));
    return 128 + end->si_status;
}

static void run_supervisor(const struct sc_launch_job *job, int lifeline[2]) {
    close(lifeline[1]);
    setsid();
    _exit(sc_launch_supervise(job, lifeline[0]));
}

int sc_launch(const struct sc_launch_plan *plan) {
    struct sc_launch_job job;
    int lifeline[2] = {-1, -1};
    int code = SC_EXIT_FAILED;
    sigset_t watched, before;
    siginfo_t end;

    /* A caller that ignores SIGCHLD would have the kernel throw the exit codes away. */
    signal(SIGCHLD, SIG_DFL);
    watched_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, &before);
    if (!sc_launch_job_prepare(&job, plan)) goto out;
    if (pipe2(lifeline, O_CLOEXEC) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        sc_cli_error(plan->command, "cannot prepare the job: %s", strerror(errno));
        goto out;
    }

    fflush(NULL);
    pid_t supervisor = fork();
    if (supervisor < 0) {
        sc_cli_error(plan->command, "cannot start a process: %s; see 'ulimit -u'", strerror(errno));
        goto out;
    }
    if (supervisor == 0) run_supervisor(&job, lifeline);
    close(lifeline[0]);
    lifeline[0] = -1;

    end = wait_for_supervisor(supervisor, &watched);
    code = finish(plan, supervisor, &end);
out:
    if (lifeline[0] >= 0) close(lifeline[0]);
    if (lifeline[1] >= 0) close(lifeline[1]);
    sc_launch_job_destroy(&job);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}
