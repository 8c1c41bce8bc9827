/*
 * --plot: gnuplot as a child draws time and bandwidth over size, one curve per operation. It reads
 * a script with the data in it from an unnamed file, so that nothing is left on the disk and a
 * gnuplot that dies early cannot hurt us through a broken pipe.
 */
#include "cli.h"
#include "perf.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* gnuplot knows one escape inside single quotes: two of them for one. */
static void write_quoted(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', script);
        fputc(*text, script);
    }
    fputc('\'', script);
}

static bool has_curve(const struct sc_perf_op *op, const struct sc_perf_result *results,
                      size_t count) {
    for (size_t i = 0; op->sized && i < count; i++) {
        if (results[i].op == op) return true;
    }
    return false;
}

static void write_data(FILE *script, const struct sc_perf_result *results, size_t count) {
    for (size_t o = 0; o < SC_PERF_OP_COUNT; o++) {
        const struct sc_perf_op *op = &sc_perf_ops[o];
        if (!has_curve(op, results, count)) continue;
        fprintf(script, "$%s << EOD\n", op->name);
        for (size_t i = 0; i < count; i++) {
            if (results[i].op != op) continue;
            fprintf(script, "%zu %.6g %.6g %.6g\n", results[i].bytes, results[i].times.median_us,
                    results[i].times.p99_us, results[i].busbw_gbps);
        }
        fputs("EOD\n", script);
    }
}

static void write_curves(FILE *script, const char *y_label, int column,
                         const struct sc_perf_result *results, size_t count) {
    const char *separator = "plot ";
    fprintf(script, "set ylabel '%s'\n", y_label);
    for (size_t o = 0; o < SC_PERF_OP_COUNT; o++) {
        if (!has_curve(&sc_perf_ops[o], results, count)) continue;
        fprintf(script, "%s$%s using 1:%d with linespoints linewidth 2 title '%s'", separator,
                sc_perf_ops[o].name, column, sc_perf_ops[o].name);
        separator = ", ";
    }
    fputc('\n', script);
}

static void write_script(FILE *script, const char *file, const char *title,
                         const struct sc_perf_result *results, size_t count) {
    fputs("set encoding utf8\n"
          "set terminal svg size 900,1000 noenhanced background rgb 'white'\n"
          "set output ",
          script);
    write_quoted(script, file);
    fputc('\n', script);
    write_data(script, results, count);
    /* One rank alone loads no link: every bandwidth is 0, which a logarithmic axis cannot show. */
    bool has_bandwidth = false;
    for (size_t i = 0; i < count; i++) {
        has_bandwidth = has_bandwidth || results[i].busbw_gbps > 0;
    }
    fprintf(script, "set multiplot layout %d,1 title ", has_bandwidth ? 2 : 1);
    write_quoted(script, title);
    fputs("\nset logscale x 2\nset logscale y 10\nset xtics 4\nset format x '%.0b%BB'\n"
          "set key left top\nset grid\nset xlabel 'size (as passed to the call)'\n",
          script);
    write_curves(script, "time per call (us, median)", 2, results, count);
    if (has_bandwidth) write_curves(script, "bus bandwidth (GB/s)", 4, results, count);
    fputs("unset multiplot\nunset output\n", script);
}

static bool run_gnuplot(const char *gnuplot, int script) {
    char *const argv[] = {(char *)"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    int status = 0;
    if (posix_spawn_file_actions_init(&actions) != 0) return false;
    posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawn(&pid, gnuplot, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) {
        errno = rc;
        return false;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    errno = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int sc_perf_plot(const struct sc_perf_options *options, const char *title,
                 const struct sc_perf_result *results, size_t count) {
    int fd = memfd_create("spark-comm-plot", MFD_CLOEXEC);
    FILE *script = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool good = false, any = false;
    for (size_t i = 0; i < SC_PERF_OP_COUNT; i++) {
        any = any || has_curve(&sc_perf_ops[i], results, count);
    }
    if (!any) {
        sc_cli_error(options->command, "--plot %s: nothing was measured that has a size",
                     options->plot_file);
        goto out;
    }
    if (script) {
        write_script(script, options->plot_file, title, results, count);
        good =
            fflush(script) == 0 && lseek(fd, 0, SEEK_SET) == 0 && run_gnuplot(options->gnuplot, fd);
    }
    if (!good) {
        sc_cli_error(options->command, "--plot %s: gnuplot could not draw it%s%s",
                     options->plot_file, errno ? ": " : "", errno ? strerror(errno) : "");
    }
out:
    if (script) {
        fclose(script);
    } else if (fd >= 0) {
        close(fd);
    }
    return good ? SC_EXIT_GOOD : SC_EXIT_FAILED;
}
