/*
 * spark-comm: the program that starts ranks, measures their links, says what serves here and reads traces.
 *
 * main finds the subcommand by name and hands it its own arguments; a new subcommand is one line
 * in the table below and one file.
 */
#include "cli.h"
#include "spark_comm.h"

#include <argp.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct subcommand {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *title; /* "spark-comm NAME", argv[0] of the subcommand */
    const char *summary;
};

static const struct subcommand subcommands[] = {
    {"run", sc_run_main, "spark-comm run", "start the ranks of a job and look after them"},
    {"perf", sc_perf_main, "spark-comm perf", "verify and time the operations between ranks"},
    {"doctor", sc_doctor_main, "spark-comm doctor", "show the settings and what can serve here"},
    {"trace", sc_trace_main, "spark-comm trace",
     "merge the traces of all ranks, first divergence on top"},
};

enum { SUBCOMMAND_COUNT = sizeof subcommands / sizeof subcommands[0] };

static void print_help(void) {
    puts("Usage: spark-comm COMMAND [OPTION...]\n"
         "The communication layer of an inference engine, from the command line.\n");
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        printf("  %-10s %s\n", subcommands[i].name, subcommands[i].summary);
    }
    puts("\n  -h, --help      show this and end\n"
         "  -V, --version   show the version and end\n\n"
         "'spark-comm COMMAND --help' shows a command's options, 'man spark-comm' explains them.\n"
         "Exit codes: 0 good, 1 the work failed, 2 wrong usage.");
}

static void print_version(FILE *stream, struct argp_state *state) {
    (void)state;
    fprintf(stream, "spark-comm %s\n", spark_comm_version());
}

/* A descriptor of ours must never become standard input or output by accident. */
static void fill_standard_descriptors(void) {
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) {
        fd = open("/dev/null", O_RDWR);
    }
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    fill_standard_descriptors();
    argp_program_version_hook = print_version;
    argp_err_exit_status = SC_EXIT_USAGE;

    if (argc < 2) {
        sc_cli_error("spark-comm", "no command given; 'spark-comm --help' lists them");
        return SC_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help();
        return sc_cli_flush_stdout("spark-comm");
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        print_version(stdout, NULL);
        return sc_cli_flush_stdout("spark-comm");
    }
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        if (strcmp(name, subcommands[i].name)) continue;
        argv[1] = (char *)subcommands[i].title;
        return subcommands[i].main(argc - 1, argv + 1);
    }
    sc_cli_error("spark-comm", "no command '%s'; 'spark-comm --help' lists them", name);
    return SC_EXIT_USAGE;
}
