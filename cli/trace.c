/*
 * spark-comm trace: reads files and folders, merges, prints; exit code 1 when a file is damaged.
 */
#include "trace.h"
#include "cli.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KEY_CHROME = 256, KEY_ALL, DEFAULT_ROWS = 10, MAX_FILES = 100000 };

static const struct argp_option command_options[] = {
    {"rows", 'r', "N", 0, "Show N rows before and after each divergence (default 10)", 0},
    {"all", KEY_ALL, NULL, 0, "Show every row", 0},
    {"chrome", KEY_CHROME, "FILE", 0,
     "Write the calls of all ranks to FILE for Perfetto or chrome://tracing, instead of the table",
     0},
    {"help", 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

static const char doc[] =
    "Merges the traces of all ranks and shows where they went apart first.\v"
    "A PATH is a file that a rank left in SPARK_COMM_TRACE_DIR (also when it was killed) or that "
    "spark_comm_trace_write made, or a folder with files named *.trace.\n\n"
    "  spark-comm run -n 4 --trace /tmp/traces -- ./engine\n"
    "  spark-comm trace /tmp/traces";

struct options {
    int rows; /* -1: all */
    const char *chrome;
    char **paths;
    int path_count;
};

static error_t parse(int key, char *text, struct argp_state *state) {
    struct options *options = state->input;
    switch (key) {
    case 'r':
        if (!sc_cli_parse_int(text, 0, INT_MAX - 1, &options->rows))
            argp_error(state, "--rows takes a number from 0 on, not '%s'", text);
        break;
    case KEY_ALL: options->rows = -1; break;
    case KEY_CHROME: options->chrome = text; break;
    case 'h': argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); break;
    case ARGP_KEY_ARGS:
        options->paths = state->argv + state->next;
        options->path_count = state->argc - state->next;
        break;
    case ARGP_KEY_NO_ARGS: argp_error(state, "say which files or folders to read"); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

struct collection {
    struct sc_trace_file *files;
    size_t count;
    size_t capacity;
};

static bool add_file(struct collection *all, const char *path) {
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 64;
        struct sc_trace_file *files =
            capacity <= MAX_FILES * 2 ? realloc(all->files, capacity * sizeof *files) : NULL;
        if (!files) return false;
        all->files = files;
        all->capacity = capacity;
    }
    return sc_trace_read(&all->files[all->count++], path);
}

static int is_trace(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".trace") == 0;
}

/* False with a message. */
static bool add_folder(struct collection *all, const char *command, const char *path) {
    struct dirent **entries = NULL;
    char name[PATH_MAX];
    int count = scandir(path, &entries, is_trace, versionsort);
    bool good = count > 0;
    if (count < 0) sc_cli_error(command, "%s: %s", path, strerror(errno));
    if (count == 0) {
        sc_cli_error(command,
                     "%s: no files named *.trace; ranks leave them where SPARK_COMM_TRACE_DIR "
                     "or 'spark-comm run --trace' says",
                     path);
    }
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (good && !add_file(all, name)) {
            sc_cli_error(command, "%s: no memory left", name);
            good = false;
        }
        free(entries[i]);
    }
    free(entries);
    return good;
}

static bool collect(struct collection *all, const char *command, const struct options *options) {
    struct stat status;
    for (int i = 0; i < options->path_count; i++) {
        const char *path = options->paths[i];
        if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
            if (!add_folder(all, command, path)) return false;
        } else if (!add_file(all, path)) {
            sc_cli_error(command, "%s: no memory left", path);
            return false;
        }
    }
    return true;
}

static bool write_chrome(const struct sc_trace *trace, const char *command, const char *path) {
    FILE *out = fopen(path, "we");
    bool good = out && sc_trace_chrome(trace, out);
    if (out && fclose(out) != 0) good = false;
    if (!good) sc_cli_error(command, "cannot write %s: %s", path, strerror(errno));
    return good;
}

int sc_trace_main(int argc, char **argv) {
    static const struct argp argp = {
        .options = command_options, .parser = parse, .args_doc = "PATH...", .doc = doc};
    struct options options = {.rows = DEFAULT_ROWS};
    struct collection all = {0};
    struct sc_trace trace = {0};
    int code = SC_EXIT_FAILED;

    if (argp_parse(&argp, argc, argv, 0, NULL, &options) != 0) return SC_EXIT_USAGE;
    if (!collect(&all, argv[0], &options)) goto out;
    if (!sc_trace_merge(&trace, all.files, all.count)) {
        sc_cli_error(argv[0], "no memory left to merge %zu files", all.count);
        goto out;
    }
    code = SC_EXIT_GOOD;
    if (!options.chrome) {
        sc_trace_print(&trace, options.rows, stdout);
        code = sc_cli_flush_stdout(argv[0]);
    } else if (!write_chrome(&trace, argv[0], options.chrome)) {
        code = SC_EXIT_FAILED;
    }
    for (size_t i = 0; i < all.count; i++) {
        if (!all.files[i].damage[0]) continue;
        sc_cli_error(argv[0], "%s: %s; the rest is shown", all.files[i].name, all.files[i].damage);
        code = SC_EXIT_FAILED;
    }
out:
    sc_trace_destroy(&trace);
    for (size_t i = 0; i < all.count; i++) {
        sc_trace_free(&all.files[i]);
    }
    free(all.files);
    return code;
}
