/*
 * The supervisor: starts the ranks, forwards signals and output, ends all when one fails, and
 * leaves nothing behind. One thread, one poll loop, nothing in it blocks.
 *
 * Phases: RUNNING until a rank fails for good or the user insists; then ENDING, with SIGTERM sent
 * and a deadline after which everything is killed; KILLING once that has happened. A rank that has
 * ended stays unreaped until the job ends or the rank starts again: its pid, which is also the
 * number of its process group, cannot go to a stranger meanwhile.
 */
#include "cli.h"
#include "launch.h"
#include "launch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    GRACE_MS = 3000, /* from SIGTERM to SIGKILL */
    LINGER_MS = 1000, /* for what ranks left behind to finish its output (exec > >(tee log)) */
    REPEAT_MS = 1000, /* the same request twice, as timeout(1) sends it, is one request */
    GIVE_UP_MS = 1500, /* from SIGKILL until a rank that still lives is left to the kernel */
    SETTLE_MS = 500, /* for the cause of a failure to show itself */
    SETTLE_POLL_MS = 2,
    SWEEP_LIMIT_MS = 1000,
    DRAIN_ROUNDS = 16, /* reads per stream when a rank has ended: more than a pipe holds */
};

enum phase { RUNNING, ENDING, KILLING };

struct rank {
    pid_t pid; /* 0: never started */
    bool live;
    struct sc_launch_stream out;
    struct sc_launch_stream err;
};

struct supervisor {
    const struct sc_launch_job *job;
    int lifeline;
    int signals; /* signalfd */
    struct rank *ranks;
    struct pollfd *polls;
    int live;
    int restarts; /* so far, of all ranks together */
    enum phase phase;
    int64_t deadline_ms; /* of ENDING and KILLING, or of lingering once live is 0 */
    int64_t unsettled_ms; /* since when a failure waits for its cause; 0: none does */
    int64_t interrupted_ms; /* when the user first asked to end; 0: never */
    bool impatient; /* the user asked again when all that could be done was done */
    int exit_code;
    struct sc_launch_sink sinks[2];
    struct sc_launch_sink *out;
    struct sc_launch_sink *err;
};

static int global_rank(const struct supervisor *s, int local_rank) {
    return s->job->plan->node_rank * s->job->plan->ranks + local_rank;
}

/* Each rank leads a process group of its pid. A stopped one must go on to hear SIGTERM. */
static void signal_ranks(const struct supervisor *s, int number) {
    for (int i = 0; i < s->job->plan->ranks; i++) {
        if (!s->ranks[i].pid) continue;
        if (number != SIGKILL && !s->ranks[i].live) continue;
        kill(-s->ranks[i].pid, number);
        if (number == SIGTERM) kill(-s->ranks[i].pid, SIGCONT);
    }
}

static void kill_everything(struct supervisor *s) {
    s->phase = KILLING;
    s->deadline_ms = sc_cli_now_ms() + GIVE_UP_MS;
    signal_ranks(s, SIGKILL);
}

static void end_job(struct supervisor *s) {
    if (s->phase != RUNNING) return;
    s->phase = ENDING;
    s->deadline_ms = sc_cli_now_ms() + GRACE_MS;
    signal_ranks(s, SIGTERM);
}

static void keep_first_failure(struct supervisor *s, int code) {
    if (!s->exit_code) s->exit_code = code;
}

/* --- starting -------------------------------------------------------------------------------- */

static bool open_stream(struct sc_launch_stream *stream, int rank, struct sc_launch_sink *sink,
                        int *write_end) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    sc_launch_output_attach(stream, ends[0], rank, sink);
    *write_end = ends[1];
    return true;
}

static const char *advice(int error) {
    switch (error) {
    case ENOENT: return "give a path, or a program that PATH has";
    case EACCES: return "it must be an executable file";
    case EMFILE: return "raise 'ulimit -n'";
    case EAGAIN: return "raise 'ulimit -u'";
    default: return "no rank was started in its place";
    }
}

static bool start_rank(struct supervisor *s, int local_rank) {
    struct rank *rank = &s->ranks[local_rank];
    struct sc_launch_pipes pipes = {-1, -1};
    const struct sc_launch_plan *plan = s->job->plan;
    int number = global_rank(s, local_rank), error = 0;

    rank->pid = 0;
    if (plan->label_output && (!open_stream(&rank->out, number, s->out, &pipes.out) ||
                               !open_stream(&rank->err, number, s->err, &pipes.err))) {
        error = errno;
    } else {
        rank->pid = sc_launch_rank_start(s->job, local_rank, pipes, &error);
    }
    if (pipes.out >= 0) close(pipes.out);
    if (pipes.err >= 0) close(pipes.err);
    if (rank->pid) {
        rank->live = true;
        s->live++;
        return true;
    }
    sc_launch_output_note(s->err, "%s: cannot start '%s' as rank %d: %s; %s", plan->command,
                          plan->argv[0], number, strerror(error), advice(error));
    keep_first_failure(s, error == ENOENT ? 127 : 126);
    return false;
}

/* --- ranks that end -------------------------------------------------------------------------- */

static void describe_failure(struct supervisor *s, int local_rank, const siginfo_t *end,
                             const char *what_next) {
    const struct sc_launch_plan *plan = s->job->plan;
    int number = global_rank(s, local_rank), pid = (int)s->ranks[local_rank].pid;
    if (end->si_code != CLD_EXITED) {
        sc_launch_output_note(s->err, "%s: rank %d (pid %d) was killed by signal %d (%s); %s",
                              plan->command, number, pid, end->si_status, strsignal(end->si_status),
                              what_next);
    } else if (!plan->brief) {
        sc_launch_output_note(s->err, "%s: rank %d (pid %d) exited with code %d; %s", plan->command,
                              number, pid, end->si_status, what_next);
    }
}

static void restart_rank(struct supervisor *s, int local_rank) {
    struct rank *rank = &s->ranks[local_rank];
    kill(-rank->pid, SIGKILL);
    waitpid(rank->pid, NULL, 0);
    sc_launch_output_end(&rank->out);
    sc_launch_output_end(&rank->err);
    s->restarts++;
    if (!start_rank(s, local_rank)) end_job(s);
}

static void rank_ended(struct supervisor *s, int local_rank, const siginfo_t *end) {
    struct rank *rank = &s->ranks[local_rank];
    int code = end->si_code == CLD_EXITED ? end->si_status : 128 + end->si_status;
    int allowed = s->job->plan->restarts;

    rank->live = false;
    s->live--;
    sc_launch_output_read(&rank->out, DRAIN_ROUNDS);
    sc_launch_output_read(&rank->err, DRAIN_ROUNDS);
    if (code == 0) return;

    if (s->phase == RUNNING && !s->interrupted_ms && s->restarts < allowed) {
        char what_next[64];
        snprintf(what_next, sizeof what_next, "starting it again (%d of %d)", s->restarts + 1,
                 allowed);
        describe_failure(s, local_rank, end, what_next);
        restart_rank(s, local_rank);
        return;
    }
    keep_first_failure(s, code);
    if (s->phase == RUNNING && !s->interrupted_ms) {
        describe_failure(s, local_rank, end,
                         s->live ? "ending the other ranks" : "no rank is left");
    }
    end_job(s);
}

static bool has_ended(const struct rank *rank, siginfo_t *end) {
    memset(end, 0, sizeof *end);
    return rank->live && waitid(P_PID, (id_t)rank->pid, end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end->si_pid == rank->pid;
}

/*
 * A rank that is killed closes its sockets before its parent can see its end, and another rank may
 * notice, fail and be gone in between. So while a failure by exit code is all there is, and another
 * rank is already on its way out, the verdict waits for that one.
 */
static bool must_wait_for_cause(const struct supervisor *s) {
    siginfo_t end;
    bool failed = false, leaving = false;
    for (int i = 0; i < s->job->plan->ranks; i++) {
        if (!has_ended(&s->ranks[i], &end)) continue;
        if (end.si_code != CLD_EXITED) return false;
        if (end.si_status != 0) failed = true;
    }
    for (int i = 0; i < s->job->plan->ranks && failed && !leaving; i++) {
        const struct rank *rank = &s->ranks[i];
        leaving = rank->live && !has_ended(rank, &end) && sc_launch_sweep_is_exiting(rank->pid);
    }
    return failed && leaving;
}

/* Of several ends that are found at once, one by a signal is more likely the cause of the others
 * than the reverse, so those come first. */
static void find_ended_ranks(struct supervisor *s) {
    siginfo_t end;
    if (s->phase == RUNNING && must_wait_for_cause(s)) {
        if (!s->unsettled_ms) s->unsettled_ms = sc_cli_now_ms();
        if (sc_cli_now_ms() - s->unsettled_ms < SETTLE_MS) return;
    }
    s->unsettled_ms = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < s->job->plan->ranks; i++) {
            if (!has_ended(&s->ranks[i], &end)) continue;
            if (pass == 0 && end.si_code == CLD_EXITED) continue;
            rank_ended(s, i, &end);
        }
    }
}

/* A process that a rank left behind, adopted and now dead. One whose signal was merged with
 * another's waits for the sweep at the end. */
static void reap_adopted(const struct supervisor *s, pid_t pid) {
    for (int i = 0; i < s->job->plan->ranks; i++) {
        if (s->ranks[i].pid == pid) return;
    }
    waitpid(pid, NULL, WNOHANG);
}

/* --- signals and timers ----------------------------------------------------------------------- */

/* The first one is forwarded and the ranks decide; a second one, not a double of the first, ends
 * the job; a third one kills. */
static void interrupted(struct supervisor *s, int number) {
    int64_t now = sc_cli_now_ms();
    bool repeated = s->interrupted_ms && now - s->interrupted_ms >= REPEAT_MS;
    if (s->phase == RUNNING && (!repeated || number == SIGHUP)) {
        signal_ranks(s, number);
        if (!s->interrupted_ms) s->interrupted_ms = now;
    } else if (s->phase == RUNNING) {
        end_job(s);
    } else if (number != SIGHUP && (repeated || !s->interrupted_ms)) {
        s->impatient = s->phase == KILLING;
        kill_everything(s);
    }
}

static void read_signals(struct supervisor *s) {
    struct signalfd_siginfo info;
    bool child = false;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            child = true;
            reap_adopted(s, (pid_t)info.ssi_pid);
        } else {
            interrupted(s, (int)info.ssi_signo);
        }
    }
    if (child) find_ended_ranks(s);
}

/* The launcher died without a word. There is nobody left to report to. */
static void launcher_is_gone(struct supervisor *s) {
    close(s->lifeline);
    s->lifeline = -1;
    kill_everything(s);
    sc_launch_sweep(0, SWEEP_LIMIT_MS);
    _exit(128 + SIGKILL);
}

static bool streams_open(const struct supervisor *s) {
    for (int i = 0; i < s->job->plan->ranks; i++) {
        if (s->ranks[i].out.fd >= 0 || s->ranks[i].err.fd >= 0) return true;
    }
    return false;
}

/* Only a process stuck inside the kernel, in a driver for example, outlives SIGKILL. */
static void name_undying_ranks(struct supervisor *s) {
    for (int i = 0; i < s->job->plan->ranks; i++) {
        if (!s->ranks[i].live) continue;
        sc_launch_output_note(s->err,
                              "%s: rank %d (pid %d) is stuck inside the kernel and cannot be "
                              "killed; it ends when the kernel lets it go",
                              s->job->plan->command, global_rank(s, i), (int)s->ranks[i].pid);
    }
}

/* Whether the loop goes on; acts when a deadline has passed. */
static bool has_work(struct supervisor *s) {
    int64_t now = sc_cli_now_ms();
    if (s->live > 0 && s->phase == KILLING && now >= s->deadline_ms) {
        name_undying_ranks(s);
        return false;
    }
    if (s->live > 0) {
        if (s->phase == ENDING && now >= s->deadline_ms) kill_everything(s);
        return true;
    }
    if (!streams_open(s)) return false;
    if (s->phase != KILLING) {
        s->phase = KILLING;
        s->deadline_ms = now + LINGER_MS;
    }
    return now < s->deadline_ms;
}

static int poll_timeout(const struct supervisor *s) {
    if (s->unsettled_ms) return SETTLE_POLL_MS;
    if (s->phase == RUNNING) return -1;
    int64_t left = s->deadline_ms - sc_cli_now_ms();
    return left > 0 ? (int)left : 0;
}

/* --- the loop --------------------------------------------------------------------------------- */

static void watch(struct pollfd *entry, int fd, short events) {
    *entry = (struct pollfd){.fd = fd, .events = events};
}

static void watch_stream(struct pollfd *entry, const struct sc_launch_stream *stream) {
    bool readable = stream->fd >= 0 && sc_launch_output_has_room(stream->sink);
    watch(entry, readable ? stream->fd : -1, POLLIN);
}

static void poll_once(struct supervisor *s, int timeout_ms) {
    int ranks = s->job->plan->ranks;
    struct pollfd *polls = s->polls;
    watch(&polls[0], s->signals, POLLIN);
    watch(&polls[1], s->lifeline, POLLIN);
    for (int i = 0; i < 2; i++) {
        bool pending = sc_launch_output_pending(&s->sinks[i]);
        watch(&polls[2 + i], pending ? s->sinks[i].fd : -1, POLLOUT);
    }
    for (int i = 0; i < ranks; i++) {
        watch_stream(&polls[4 + 2 * i], &s->ranks[i].out);
        watch_stream(&polls[5 + 2 * i], &s->ranks[i].err);
    }
    if (poll(polls, (nfds_t)(4 + 2 * ranks), timeout_ms) < 0) return;

    if (polls[1].revents) launcher_is_gone(s);
    for (int i = 0; i < 2; i++) {
        if (polls[2 + i].revents) sc_launch_output_flush(&s->sinks[i]);
    }
    for (int i = 0; i < ranks; i++) {
        if (polls[4 + 2 * i].revents) sc_launch_output_read(&s->ranks[i].out, 1);
        if (polls[5 + 2 * i].revents) sc_launch_output_read(&s->ranks[i].err, 1);
    }
    if (polls[0].revents) read_signals(s);
    if (s->unsettled_ms) find_ended_ranks(s);
}

/* What is still unwritten goes out, as far as its reader takes it, for as long as the launcher
 * lives and the user does not ask again. */
static void drain(struct supervisor *s) {
    for (int i = 0; i < s->job->plan->ranks; i++) {
        sc_launch_output_read(&s->ranks[i].out, DRAIN_ROUNDS);
        sc_launch_output_read(&s->ranks[i].err, DRAIN_ROUNDS);
        sc_launch_output_end(&s->ranks[i].out);
        sc_launch_output_end(&s->ranks[i].err);
    }
    s->phase = KILLING;
    s->impatient = false;
    while (!s->impatient &&
           (sc_launch_output_pending(&s->sinks[0]) || sc_launch_output_pending(&s->sinks[1]))) {
        poll_once(s, -1);
    }
}

static bool same_file(int first, int second) {
    struct stat a, b;
    return fstat(first, &a) == 0 && fstat(second, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino && a.st_rdev == b.st_rdev;
}

static bool prepare(struct supervisor *s) {
    const struct sc_launch_plan *plan = s->job->plan;
    sigset_t set;
    sc_launch_output_open(&s->sinks[0], STDOUT_FILENO);
    sc_launch_output_open(&s->sinks[1], STDERR_FILENO);
    s->out = &s->sinks[0];
    s->err = same_file(STDOUT_FILENO, STDERR_FILENO) ? &s->sinks[0] : &s->sinks[1];

    /* The launcher has blocked what it watches; the supervisor watches the same signals. */
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, NULL, &set);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->ranks = calloc((size_t)plan->ranks, sizeof *s->ranks);
    s->polls = calloc((size_t)plan->ranks * 2 + 4, sizeof *s->polls);
    if (s->signals < 0 || !s->ranks || !s->polls || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        sc_launch_output_note(s->err, "%s: cannot look after the ranks: %s", plan->command,
                              strerror(errno));
        return false;
    }
    for (int i = 0; i < plan->ranks; i++) {
        s->ranks[i].out.fd = s->ranks[i].err.fd = -1;
    }
    return true;
}

int sc_launch_supervise(const struct sc_launch_job *job, int lifeline) {
    struct supervisor s = {.job = job, .lifeline = lifeline, .signals = -1};
    if (!prepare(&s)) {
        s.exit_code = SC_EXIT_FAILED;
        goto out;
    }

    for (int i = 0; i < job->plan->ranks && s.phase == RUNNING; i++) {
        if (!start_rank(&s, i)) end_job(&s);
    }
    while (has_work(&s)) {
        poll_once(&s, poll_timeout(&s));
    }

    signal_ranks(&s, SIGKILL);
    sc_launch_sweep(0, SWEEP_LIMIT_MS);
    for (int i = 0; i < job->plan->ranks; i++) {
        s.ranks[i].pid = 0; /* reaped: the number may be a stranger's from here on */
    }
    drain(&s);
out:
    sc_launch_output_close(&s.sinks[0]);
    sc_launch_output_close(&s.sinks[1]);
    if (s.signals >= 0) close(s.signals);
    free(s.polls);
    free(s.ranks);
    return s.exit_code;
}
