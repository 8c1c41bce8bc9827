/*
 * spark-comm doctor: what this machine and this environment give to the library. It shows every
 * setting with its value and source, every backend with its verdict, and the limits of the process
 * that matter (so it is worth running under `spark-comm run`, as the ranks will see them).
 *
 * The library fills the rows; what is added here is what the operating system says. A secret is
 * never printed, whatever a row holds.
 */
#include "cli.h"
#include "spark_comm.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

enum { KEY_BACKEND = 256, KEY_JSON };

static const struct argp_option command_options[] = {
    {"backend", KEY_BACKEND, "B", 0, "Ask whether this one can serve (default: as set, else auto)",
     0},
    {"json", KEY_JSON, NULL, 0, "Print JSON", 0},
    {"help", 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

static const char doc[] =
    "Shows every setting with its value and where it came from, and every backend with why it can "
    "or cannot serve here.\v"
    "The exit code is 1 when a setting is refused or the wanted backend cannot serve.\n\n"
    "  spark-comm run -n 2 -- spark-comm doctor --backend shm";

struct diagnosis {
    const char *command;
    const char *backend; /* as asked for; NULL: as set */
    bool json;
    spark_comm_setting_row *settings;
    size_t setting_count;
    spark_comm_backend_row *backends;
    size_t backend_count;
    char refusal[512]; /* why the backends could not be listed; empty: they could */
    struct utsname kernel;
    int *cpus;
    int cpu_count;
    char gnuplot[PATH_MAX]; /* empty: not there */
};

static error_t parse(int key, char *text, struct argp_state *state) {
    struct diagnosis *d = state->input;
    switch (key) {
    case KEY_BACKEND: d->backend = text; break;
    case KEY_JSON: d->json = true; break;
    case 'h': argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option; --help lists them", text); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* --- asking ------------------------------------------------------------------------------------- */

static bool ask_settings(struct diagnosis *d, const spark_comm_options *options) {
    size_t count = 0, row_size = sizeof *d->settings;
    if (spark_comm_describe_settings(options, NULL, row_size, 0, &count)) return false;
    d->settings = calloc(count + 1, row_size);
    if (!d->settings || spark_comm_describe_settings(options, d->settings, row_size, count, &count))
        return false;
    d->setting_count = count;
    for (size_t i = 0; i < count; i++) {
        spark_comm_setting_row *row = &d->settings[i];
        bool open_secret =
            strcmp(row->name, "job_token") == 0 && strcmp(row->value, "not set") != 0;
        if (open_secret) snprintf(row->value, sizeof row->value, "set");
    }
    return true;
}

/* A refused setting is a finding, not a failure to ask. */
static bool ask_backends(struct diagnosis *d, const spark_comm_options *options) {
    size_t count = 0, row_size = sizeof *d->backends;
    spark_comm_error error = {.struct_size = sizeof error};
    if (spark_comm_describe_backends(options, NULL, row_size, 0, &count)) {
        spark_comm_last_error(NULL, &error);
        snprintf(d->refusal, sizeof d->refusal, "%s", error.message);
        return true;
    }
    d->backends = calloc(count + 1, row_size);
    if (!d->backends || spark_comm_describe_backends(options, d->backends, row_size, count, &count))
        return false;
    d->backend_count = count;
    return true;
}

static bool ask(struct diagnosis *d) {
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    options.backend = d->backend;
    uname(&d->kernel);
    d->cpus = sc_cli_allowed_cpus(&d->cpu_count);
    if (!sc_cli_find_program("gnuplot", d->gnuplot, sizeof d->gnuplot)) d->gnuplot[0] = 0;
    return ask_settings(d, &options) && ask_backends(d, &options);
}

static bool is_good(const struct diagnosis *d) {
    bool good = !d->refusal[0];
    for (size_t i = 0; i < d->setting_count; i++) {
        if (d->settings[i].problem[0]) good = false;
    }
    for (size_t i = 0; i < d->backend_count; i++) {
        if (d->backends[i].wanted && d->backends[i].status != SPARK_COMM_OK) good = false;
    }
    return good;
}

/* --- telling, as text ---------------------------------------------------------------------------- */

/* "0-3,8": runs of neighbours. The answer is cut, with dots, where it gets too long. */
static void describe_cpus(const struct diagnosis *d, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < d->cpu_count;) {
        int first = d->cpus[i], last = first;
        while (++i < d->cpu_count && d->cpus[i] == last + 1) {
            last++;
        }
        char part[32];
        int length = first == last
                         ? snprintf(part, sizeof part, "%s%d", used ? "," : "", first)
                         : snprintf(part, sizeof part, "%s%d-%d", used ? "," : "", first, last);
        if (used + (size_t)length + 4 >= capacity) {
            snprintf(text + used, capacity - used, "...");
            return;
        }
        memcpy(text + used, part, (size_t)length + 1);
        used += (size_t)length;
    }
}

static void print_limit(const char *title, __rlimit_resource_t resource) {
    struct rlimit limit;
    const char *separator = "";
    if (getrlimit(resource, &limit) != 0) return;
    rlim_t values[] = {limit.rlim_cur, limit.rlim_max};
    printf("  %-16s ", title);
    for (size_t i = 0; i < 2; i++) {
        fputs(separator, stdout);
        if (values[i] == RLIM_INFINITY) {
            fputs("unlimited", stdout);
        } else {
            printf("%llu", (unsigned long long)values[i]);
        }
        separator = ", can be raised to ";
    }
    putchar('\n');
}

static void print_machine(const struct diagnosis *d) {
    char cpus[128];
    describe_cpus(d, cpus, sizeof cpus);
    printf("spark_comm %s\n\nmachine\n", spark_comm_version());
    printf("  %-16s %s %s %s\n", "kernel", d->kernel.sysname, d->kernel.release, d->kernel.machine);
    printf("  %-16s %d (%s)\n", "CPUs allowed", d->cpu_count, cpus);
    print_limit("open files", RLIMIT_NOFILE);
    print_limit("locked bytes", RLIMIT_MEMLOCK);
    printf("  %-16s %s\n", "gnuplot",
           d->gnuplot[0] ? d->gnuplot : "not found; perf --plot needs it (package gnuplot-nox)");
}

static void print_settings(const struct diagnosis *d) {
    printf("\nsettings\n");
    for (size_t i = 0; i < d->setting_count; i++) {
        const spark_comm_setting_row *row = &d->settings[i];
        printf("  %-24s %-24s %s\n", row->name, row->value, row->source);
        if (!row->problem[0]) continue;
        const char *word = strstr(row->problem, "is refused") ? "" : "refused: ";
        printf("    %s%s; set %s\n", word, row->problem, row->variable);
    }
}

static const char *memory_name(int memory) {
    if (memory == SPARK_COMM_MEMORY_HOST) return "host";
    return memory == SPARK_COMM_MEMORY_DEVICE ? "device" : "unknown";
}

static void print_backends(const struct diagnosis *d) {
    printf("\nbackends\n");
    if (d->refusal[0]) printf("  not asked: %s\n", d->refusal);
    for (size_t i = 0; i < d->backend_count; i++) {
        const spark_comm_backend_row *row = &d->backends[i];
        printf("%c %-16s %-8s %s%s%s\n", row->wanted ? '*' : ' ', row->name,
               memory_name(row->memory), row->status == SPARK_COMM_OK ? "yes" : "no",
               row->reason[0] ? ": " : "", row->reason);
    }
    printf("  (*: what the settings ask for)\n");
}

/* --- telling, as JSON ----------------------------------------------------------------------------- */

static json_t *limit_to_json(__rlimit_resource_t resource) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0) return json_null();
    return json_pack(
        "{s:o, s:o}", "soft",
        limit.rlim_cur == RLIM_INFINITY ? json_null() : json_integer((json_int_t)limit.rlim_cur),
        "hard",
        limit.rlim_max == RLIM_INFINITY ? json_null() : json_integer((json_int_t)limit.rlim_max));
}

static json_t *settings_to_json(const struct diagnosis *d) {
    json_t *list = json_array();
    for (size_t i = 0; i < d->setting_count; i++) {
        const spark_comm_setting_row *row = &d->settings[i];
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name", row->name, "variable",
                            row->variable, "value", row->value, "source", row->source, "range",
                            row->range, "help", row->help, "problem", row->problem));
    }
    return list;
}

static json_t *backends_to_json(const struct diagnosis *d) {
    json_t *list = json_array();
    for (size_t i = 0; i < d->backend_count; i++) {
        const spark_comm_backend_row *row = &d->backends[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:b, s:b, s:s}", "name", row->name,
                                        "memory", memory_name(row->memory), "status",
                                        spark_comm_status_name((spark_comm_status)row->status),
                                        "can_serve", row->status == SPARK_COMM_OK, "wanted",
                                        row->wanted != 0, "reason", row->reason));
    }
    return list;
}

static bool print_json(const struct diagnosis *d) {
    json_t *cpus = json_array();
    for (int i = 0; i < d->cpu_count; i++) {
        json_array_append_new(cpus, json_integer(d->cpus[i]));
    }
    json_t *root =
        json_pack("{s:s, s:b, s:s, s:s, s:o, s:o, s:o, s:s?, s:o, s:o, s:s?}", "version",
                  spark_comm_version(), "good", is_good(d), "kernel", d->kernel.release,
                  "architecture", d->kernel.machine, "cpus", cpus, "open_files",
                  limit_to_json(RLIMIT_NOFILE), "locked_bytes", limit_to_json(RLIMIT_MEMLOCK),
                  "gnuplot", d->gnuplot[0] ? d->gnuplot : NULL, "settings", settings_to_json(d),
                  "backends", backends_to_json(d), "refusal", d->refusal[0] ? d->refusal : NULL);
    bool good = root && json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF;
    json_decref(root);
    if (!good) sc_cli_error(d->command, "cannot write the answer as JSON");
    return good;
}

/* --- the whole ------------------------------------------------------------------------------------ */

int sc_doctor_main(int argc, char **argv) {
    static const struct argp argp = {.options = command_options, .parser = parse, .doc = doc};
    struct diagnosis d = {.command = argv[0]};
    int code = SC_EXIT_FAILED;
    if (argp_parse(&argp, argc, argv, 0, NULL, &d) != 0) return SC_EXIT_USAGE;

    if (!ask(&d)) {
        sc_cli_error(d.command, "the library could not be asked: %s", strerror(errno));
        goto out;
    }
    if (d.json) {
        if (!print_json(&d)) goto out;
    } else {
        print_machine(&d);
        print_settings(&d);
        print_backends(&d);
    }
    code = is_good(&d) ? SC_EXIT_GOOD : SC_EXIT_FAILED;
    if (code) {
        sc_cli_error(d.command, "the settings as they are cannot be served; see above for what is "
                                "refused or missing");
    }
    if (sc_cli_flush_stdout(d.command)) code = SC_EXIT_FAILED;
out:
    free(d.cpus);
    free(d.backends);
    free(d.settings);
    return code;
}
