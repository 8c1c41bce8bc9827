/*
 * spark-comm perf: reads the command line; with -n it starts itself as the ranks of a job, through
 * the same code as `run`, otherwise it is one rank of the job that the environment describes.
 */
#include "perf.h"
#include "cli.h"
#include "launch.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ITERATIONS = 100000000, MAX_FACTOR = 1 << 20 };

enum {
    KEY_BACKEND = 256,
    KEY_OP,
    KEY_DTYPE,
    KEY_REDOP,
    KEY_ITERS,
    KEY_WARMUP,
    KEY_SYMMETRIC,
    KEY_JSON,
    KEY_PLOT,
    KEY_WORKLOAD,
    KEY_BATCH,
    KEY_CHUNK,
    KEY_AS_RANK
};

static const struct argp_option command_options[] = {
    {"ranks", 'n', "N", 0, "Start N ranks (default: be one rank of the job of the environment)", 0},
    {"backend", KEY_BACKEND, "B", 0, "auto, single, shm, ... (default: as set, else auto)", 0},
    {"op", KEY_OP, "LIST", 0,
     "Operations, separated by commas, or 'all' (default): all_reduce, all_gather, "
     "reduce_scatter, broadcast, barrier, send_recv, command; and broadcast_barrier, which 'all' "
     "leaves out",
     0},
    {"min-bytes", 'b', "SIZE", 0, "Smallest size, with K, M or G if you like (default 8)", 0},
    {"max-bytes", 'e', "SIZE", 0, "Largest size (default 16M)", 0},
    {"factor", 'f', "FACTOR", 0, "From one size to the next (default 4)", 0},
    {"dtype", KEY_DTYPE, "T", 0, "bf16, f16, f32 (default), f64, i8, u8, i32, i64", 0},
    {"redop", KEY_REDOP, "R", 0, "sum (default), max, min, avg", 0},
    {"iters", KEY_ITERS, "I", 0, "Calls per batch (default: chosen by size)", 0},
    {"warmup", KEY_WARMUP, "W", 0, "Untimed calls per size (default 5)", 0},
    {"symmetric", KEY_SYMMETRIC, NULL, 0,
     "Use symmetric memory, rewritten before each call; the rewriting is subtracted", 0},
    {"workload", KEY_WORKLOAD, "MODEL", 0,
     "Instead of single operations, replay a model's decode step and prefill chunk: smollm2-135m, "
     "llama-3.1-70b, qwen3-235b-a22b, deepseek-v3, gpt-oss-120b (bf16 unless --dtype says else)",
     0},
    {"batch", KEY_BATCH, "B", 0, "Tokens of a decode step (default 1)", 0},
    {"chunk", KEY_CHUNK, "T", 0, "Tokens of a prefill chunk (default 2048)", 0},
    {"json", KEY_JSON, "FILE", 0, "Write the results as JSON; '-': to standard output", 0},
    {"plot", KEY_PLOT, "FILE", 0, "Draw the results as SVG, with gnuplot", 0},
    {"as-rank", KEY_AS_RANK, NULL, OPTION_HIDDEN, NULL, 0},
    {"help", 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

static const char doc[] =
    "Verifies every operation against a reference, then times it.\v"
    "The exit code is 1 when any element was wrong or an operation failed.\n\n"
    "  spark-comm perf -n 2 --op all_reduce -b 4K -e 1M --dtype bf16";

static void number(struct argp_state *state, const char *option, const char *text, int low,
                   int high, int *value) {
    if (!sc_cli_parse_int(text, low, high, value)) {
        argp_error(state, "%s takes a number from %d to %d, not '%s'", option, low, high, text);
    }
}

static void size(struct argp_state *state, const char *option, const char *text, size_t *value) {
    if (!sc_cli_parse_size(text, value) || *value == 0 || *value > PTRDIFF_MAX / 2) {
        argp_error(state, "%s takes a size such as 8, 64K or 1G, not '%s'", option, text);
    }
}

static void choose_all_ops(struct sc_perf_options *o) {
    o->all_ops = true;
    for (size_t i = 0; i < SC_PERF_OP_COUNT; i++) {
        if (sc_perf_ops[i].in_all) o->ops |= 1u << i;
    }
}

static void choose_op(struct argp_state *state, struct sc_perf_options *o, const char *name,
                      size_t length) {
    if (length == 3 && strncmp(name, "all", 3) == 0) {
        choose_all_ops(o);
        return;
    }
    for (size_t i = 0; i < SC_PERF_OP_COUNT; i++) {
        if (strlen(sc_perf_ops[i].name) == length && !strncmp(sc_perf_ops[i].name, name, length)) {
            o->ops |= 1u << i;
            return;
        }
    }
    argp_error(state, "--op: no operation '%.*s'; --help lists them", (int)length, name);
}

static void choose_ops(struct argp_state *state, struct sc_perf_options *o, const char *list) {
    o->ops = 0;
    o->all_ops = false;
    for (;;) {
        size_t length = strcspn(list, ",");
        choose_op(state, o, list, length);
        if (!list[length]) break;
        list += length + 1;
    }
}

/* A workload has its own operations and sizes. */
static void check_workload(struct argp_state *state, struct sc_perf_options *o) {
    if (!o->dtype) o->dtype = o->workload ? SPARK_COMM_BF16 : SPARK_COMM_F32;
    if (!o->workload) {
        if (o->batch || o->chunk) argp_error(state, "--batch and --chunk belong to --workload");
        return;
    }
    if (o->ops || o->plot_file || o->symmetric || o->redop != SPARK_COMM_SUM) {
        argp_error(state, "--workload goes with neither --op, --redop, --symmetric nor --plot");
    }
    if (!o->batch) o->batch = 1;
    if (!o->chunk) o->chunk = 2048;
}

static void check(struct argp_state *state, struct sc_perf_options *o) {
    check_workload(state, o);
    if (o->min_bytes > o->max_bytes) {
        argp_error(state, "-b %zu is more than -e %zu", o->min_bytes, o->max_bytes);
    }
    size_t plot_name = o->plot_file ? strlen(o->plot_file) : 0;
    if (o->plot_file && (plot_name < 5 || strcmp(o->plot_file + plot_name - 4, ".svg") != 0)) {
        argp_error(state, "--plot draws SVG: name a file that ends in .svg, not '%s'",
                   o->plot_file);
    }
    if (o->plot_file && !sc_cli_find_program("gnuplot", o->gnuplot, sizeof o->gnuplot)) {
        argp_error(state, "--plot needs gnuplot, which PATH does not have: install it (package "
                          "gnuplot-nox), or leave --plot away");
    }
    if (!o->ops && !o->workload) choose_all_ops(o);
}

static error_t parse_names(int key, char *text, struct argp_state *state,
                           struct sc_perf_options *o) {
    switch (key) {
    case KEY_BACKEND: o->backend = text; break;
    case KEY_OP: choose_ops(state, o, text); break;
    case KEY_DTYPE:
        o->dtype = sc_perf_values_dtype(text);
        if (!o->dtype) argp_error(state, "--dtype: no element type '%s'; --help lists them", text);
        break;
    case KEY_REDOP:
        o->redop = sc_perf_values_redop(text);
        if (!o->redop) argp_error(state, "--redop takes sum, max, min or avg, not '%s'", text);
        break;
    case KEY_WORKLOAD:
        o->workload = sc_perf_workload_find(text);
        if (!o->workload) argp_error(state, "--workload: no model '%s'; --help lists them", text);
        break;
    case KEY_JSON: o->json_file = text; break;
    case KEY_PLOT: o->plot_file = text; break;
    case KEY_SYMMETRIC: o->symmetric = true; break;
    case KEY_AS_RANK: o->is_rank = true; break;
    case 'h': argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct sc_perf_options *o = state->input;
    switch (key) {
    case 'n': number(state, "-n", text, 1, SC_LAUNCH_MAX_RANKS, &o->ranks); break;
    case 'b': size(state, "-b", text, &o->min_bytes); break;
    case 'e': size(state, "-e", text, &o->max_bytes); break;
    case 'f': number(state, "-f", text, 2, MAX_FACTOR, &o->factor); break;
    case KEY_ITERS: number(state, "--iters", text, 1, MAX_ITERATIONS, &o->iterations); break;
    case KEY_WARMUP: number(state, "--warmup", text, 0, MAX_ITERATIONS, &o->warmup); break;
    case KEY_BATCH: number(state, "--batch", text, 1, 4096, &o->batch); break;
    case KEY_CHUNK: number(state, "--chunk", text, 1, 131072, &o->chunk); break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option; --help lists them", text); break;
    case ARGP_KEY_END: check(state, o); break;
    default: return parse_names(key, text, state, o);
    }
    return 0;
}

/* The ranks are this program with the same options and a word that says so. They write to our own
 * descriptors: only rank 0 prints a table, and it should know a terminal when it sees one. */
static int start_ranks(const struct sc_perf_options *o, int argc, char **argv) {
    struct sc_launch_plan plan = {.command = o->command,
                                  .ranks = o->ranks,
                                  .nodes = 1,
                                  .master_addr = "127.0.0.1",
                                  .brief = true};
    char self[PATH_MAX];
    int code = SC_EXIT_FAILED;
    char **rank_argv = calloc((size_t)argc + 3, sizeof *rank_argv);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!rank_argv || length < 0) {
        sc_cli_error(o->command, "cannot start the ranks: %s", strerror(errno));
        goto out;
    }
    self[length] = 0;
    rank_argv[0] = self;
    rank_argv[1] = (char *)"perf";
    rank_argv[2] = (char *)"--as-rank";
    for (int i = 1; i < argc; i++) {
        rank_argv[i + 2] = argv[i];
    }
    plan.argv = rank_argv;
    code = sc_launch(&plan);
out:
    free(rank_argv);
    return code > SC_EXIT_USAGE ? SC_EXIT_FAILED : code;
}

int sc_perf_main(int argc, char **argv) {
    static const struct argp argp = {.options = command_options, .parser = parse, .doc = doc};
    struct sc_perf_options o = {
        .command = argv[0],
        .min_bytes = 8,
        .max_bytes = (size_t)16 << 20,
        .factor = 4,
        .redop = SPARK_COMM_SUM,
        .warmup = 5,
    };
    /* argp reorders argv; the ranks get a copy in the user's order. */
    char **given = calloc((size_t)argc + 1, sizeof *given);
    int code = SC_EXIT_FAILED;
    if (!given) {
        sc_cli_error(argv[0], "memory ran out");
        return code;
    }
    memcpy(given, argv, (size_t)argc * sizeof *given);

    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) {
        code = SC_EXIT_USAGE;
    } else if (o.ranks && !o.is_rank) {
        code = start_ranks(&o, argc, given);
    } else {
        code = sc_perf_session(&o);
    }
    free(given);
    return code;
}
