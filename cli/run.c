/*
 * spark-comm run: reads the command line into a plan and hands it to launch.c.
 */
#include "cli.h"
#include "launch.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NODES = 65536, MAX_WORLD = 1 << 20, MAX_RESTARTS = 1000000 };

enum {
    KEY_NNODES = 256,
    KEY_NODE_RANK,
    KEY_MASTER_ADDR,
    KEY_MASTER_PORT,
    KEY_BIND,
    KEY_TRACE,
    KEY_RESTART,
    KEY_NO_LABELS
};

static const struct argp_option command_options[] = {
    {"ranks", 'n', "N", 0, "Start N ranks on this node", 0},
    {"nnodes", KEY_NNODES, "M", 0, "The job has M nodes; start this command on each (default 1)",
     0},
    {"node-rank", KEY_NODE_RANK, "R", 0, "This node's place among them, 0 to M-1", 0},
    {"master-addr", KEY_MASTER_ADDR, "A", 0,
     "Address of node 0, where rank 0 listens (default 127.0.0.1 for one node)", 0},
    {"master-port", KEY_MASTER_PORT, "P", 0,
     "Port where rank 0 listens (default: a free one for one node, else 29500)", 0},
    {"bind", KEY_BIND, "core|none", 0,
     "core: rank i runs on the i-th CPU that this command may use (default none)", 0},
    {"restart", KEY_RESTART, "K", 0, "Start a rank that failed again, up to K times in all", 0},
    {"no-labels", KEY_NO_LABELS, NULL, 0,
     "The ranks write to this command's own output, as it comes and without labels", 0},
    {"trace", KEY_TRACE, "DIR", 0,
     "Record operations into DIR, for spark-comm trace; it is created if missing", 0},
    {"help", 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

static const char doc[] =
    "Starts the ranks of a job on this node, labels their output with the rank, ends all of them "
    "when one fails, and leaves none behind.\v"
    "Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
    "MASTER_PORT and SPARK_COMM_JOB_TOKEN. The exit code is that of the first rank that failed, "
    "128 + N if signal N killed it, or 0.\n\n"
    "  spark-comm run -n 2 -- ./engine --model tiny";

struct run_options {
    struct sc_launch_plan plan;
    bool has_node_rank;
    const char *trace_dir; /* as given */
};

static void number(struct argp_state *state, const char *option, const char *text, int low,
                   int high, int *value) {
    if (!sc_cli_parse_int(text, low, high, value)) {
        argp_error(state, "%s takes a number from %d to %d, not '%s'", option, low, high, text);
    }
}

static void bind_mode(struct argp_state *state, const char *text, bool *bind_cores) {
    if (strcmp(text, "core") && strcmp(text, "none")) {
        argp_error(state, "--bind takes 'core' or 'none', not '%s'", text);
    }
    *bind_cores = strcmp(text, "core") == 0;
}

static void check(struct argp_state *state, struct run_options *run) {
    struct sc_launch_plan *plan = &run->plan;
    const char *token = getenv("SPARK_COMM_JOB_TOKEN");
    if (!plan->ranks) argp_error(state, "say how many ranks to start: -n N");
    if (!plan->argv) argp_error(state, "say which program to start, after '--'");
    if (plan->node_rank >= plan->nodes) {
        argp_error(state, "--node-rank %d: the job has only %d node(s), give --nnodes",
                   plan->node_rank, plan->nodes);
    }
    if (plan->nodes == 1) {
        if (!plan->master_addr) plan->master_addr = "127.0.0.1";
        return;
    }
    if (plan->ranks > MAX_WORLD / plan->nodes) {
        argp_error(state, "%d ranks on %d nodes are more than %d", plan->ranks, plan->nodes,
                   MAX_WORLD);
    }
    if (!run->has_node_rank) argp_error(state, "--nnodes needs this node's place: --node-rank R");
    if (!plan->master_addr) argp_error(state, "--nnodes needs node 0's address: --master-addr A");
    if (!token || !*token) {
        argp_error(state, "with --nnodes all nodes need the same SPARK_COMM_JOB_TOKEN, and it is "
                          "not set here: make one on one node, for example with 'openssl rand "
                          "-hex 32', and export it on each");
    }
}

/* The program's own options are not ours: everything from its name on is taken as it is. */
static void take_program(struct argp_state *state, struct sc_launch_plan *plan) {
    plan->argv = state->argv + state->next - 1;
    state->next = state->argc;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct run_options *run = state->input;
    struct sc_launch_plan *plan = &run->plan;
    switch (key) {
    case 'n': number(state, "-n", text, 1, SC_LAUNCH_MAX_RANKS, &plan->ranks); break;
    case KEY_NNODES: number(state, "--nnodes", text, 1, MAX_NODES, &plan->nodes); break;
    case KEY_NODE_RANK:
        number(state, "--node-rank", text, 0, MAX_NODES - 1, &plan->node_rank);
        run->has_node_rank = true;
        break;
    case KEY_MASTER_ADDR: plan->master_addr = text; break;
    case KEY_MASTER_PORT: number(state, "--master-port", text, 1, 65535, &plan->master_port); break;
    case KEY_BIND: bind_mode(state, text, &plan->bind_cores); break;
    case KEY_TRACE: run->trace_dir = text; break;
    case KEY_NO_LABELS: plan->label_output = false; break;
    case KEY_RESTART: number(state, "--restart", text, 0, MAX_RESTARTS, &plan->restarts); break;
    case 'h': argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); break;
    case ARGP_KEY_ARG: take_program(state, plan); break;
    case ARGP_KEY_END: check(state, run); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Like mkdir -p. */
static bool make_folder(const char *path) {
    char part[PATH_MAX];
    size_t length = strlen(path);
    struct stat status;
    if (length == 0 || length >= sizeof part) {
        errno = length ? ENAMETOOLONG : ENOENT;
        return false;
    }
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
    }
    if (stat(path, &status) != 0) return false;
    errno = ENOTDIR;
    return S_ISDIR(status.st_mode);
}

/* Ranks may change their folder, so they get the absolute name. The caller frees. */
static char *prepare_trace_dir(const char *command, const char *path) {
    char *absolute = make_folder(path) ? realpath(path, NULL) : NULL;
    if (absolute && access(absolute, W_OK | X_OK) == 0) return absolute;
    sc_cli_error(command, "--trace %s: %s; name a folder that can be created and written to", path,
                 strerror(errno));
    free(absolute);
    return NULL;
}

/* The rank whose ring a file of the folder is, if it was made since the job began; else -1. */
static int rank_of_trace(const char *folder, const char *name, const struct timespec *begin) {
    static const char start[] = "spark_comm.", end[] = ".trace";
    char path[PATH_MAX], *rest = NULL;
    struct stat status;
    size_t length = strlen(name);
    if (strncmp(name, start, sizeof start - 1) != 0 || length < sizeof end ||
        strcmp(name + length - (sizeof end - 1), end) != 0)
        return -1;
    long rank = strtol(name + sizeof start - 1, &rest, 10);
    if (*rest != '.' || rank < 0 || rank > MAX_WORLD) return -1;
    int used = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (used < 0 || used >= (int)sizeof path || stat(path, &status) != 0) return -1;
    bool is_new = status.st_ctim.tv_sec != begin->tv_sec ? status.st_ctim.tv_sec > begin->tv_sec
                                                         : status.st_ctim.tv_nsec >= begin->tv_nsec;
    return is_new ? (int)rank : -1;
}

/* The ranks' rings are mapped files: they are there however the ranks ended. */
static void tell_traces(const struct sc_launch_plan *plan, const struct timespec *begin) {
    int files = 0, ranks = 0, first = plan->node_rank * plan->ranks;
    bool *has_one = calloc((size_t)plan->ranks, sizeof *has_one);
    DIR *folder = opendir(plan->trace_dir);
    for (struct dirent *entry; has_one && folder && (entry = readdir(folder));) {
        int rank = rank_of_trace(plan->trace_dir, entry->d_name, begin);
        if (rank < first || rank >= first + plan->ranks) continue;
        files++;
        if (!has_one[rank - first]) ranks++;
        has_one[rank - first] = true;
    }
    if (folder) closedir(folder);
    free(has_one);
    if (!files) {
        sc_cli_error(plan->command, "no rank left a trace in %s: none opened a communicator",
                     plan->trace_dir);
        return;
    }
    sc_cli_error(plan->command,
                 "%d of %d ranks left %d trace file(s) in %s; 'spark-comm trace %s' shows where "
                 "they went apart",
                 ranks, plan->ranks, files, plan->trace_dir, plan->trace_dir);
}

int sc_run_main(int argc, char **argv) {
    static const struct argp argp = {.options = command_options,
                                     .parser = parse,
                                     .args_doc = "-- PROGRAM [ARGUMENT...]",
                                     .doc = doc};
    struct run_options run = {
        .plan = {.command = argv[0], .nodes = 1, .label_output = true},
    };
    char *trace_dir = NULL;
    struct timespec begin;

    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &run) != 0) return SC_EXIT_USAGE;
    if (run.trace_dir) {
        trace_dir = prepare_trace_dir(argv[0], run.trace_dir);
        if (!trace_dir) return SC_EXIT_FAILED;
        run.plan.trace_dir = trace_dir;
    }
    /* The clock that file systems stamp with. */
    clock_gettime(CLOCK_REALTIME_COARSE, &begin);
    int code = sc_launch(&run.plan);
    if (trace_dir) tell_traces(&run.plan, &begin);
    free(trace_dir);
    return code;
}
