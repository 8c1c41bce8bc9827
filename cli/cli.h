/*
 * What the subcommands of spark-comm share: exit codes, messages, and reading numbers.
 *
 * The program is a user of the library like any other: it includes spark_comm.h and nothing from
 * src/. Each subcommand is one function in a file of its name; main.c finds it by name. All of it
 * runs on one thread per process.
 */
#ifndef SC_CLI_H
#define SC_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of the program. `run` passes on its first failing rank's code instead of the 1. */
enum { SC_EXIT_GOOD = 0, SC_EXIT_FAILED = 1, SC_EXIT_USAGE = 2 };

/* Subcommands. argv[0] is "spark-comm NAME", the beginning of every message. */
int sc_run_main(int argc, char **argv);
int sc_perf_main(int argc, char **argv);
int sc_doctor_main(int argc, char **argv);
int sc_trace_main(int argc, char **argv);

/* One line on stderr, "COMMAND: text", in one write, so that the lines of several ranks stay
 * whole. The text says what is wrong and what to do next. */
__attribute__((format(printf, 2, 3))) void sc_cli_error(const char *command, const char *format,
                                                        ...);

/* A whole number from low to high. False, and *value unchanged, for anything else. */
bool sc_cli_parse_int(const char *text, int low, int high, int *value);

/* Bytes, with an optional suffix K, M or G (powers of 1024). False for anything else. */
bool sc_cli_parse_size(const char *text, size_t *bytes);

/* Where PATH has an executable of that name. False when it has none. */
bool sc_cli_find_program(const char *name, char *path, size_t capacity);

/* A clock that never jumps, in milliseconds and in nanoseconds. */
int64_t sc_cli_now_ms(void);
int64_t sc_cli_now_ns(void);

/* The CPUs that this process may use, in ascending order; *count says how many. NULL: memory ran
 * out. The caller frees. */
int *sc_cli_allowed_cpus(int *count);

/* What has been printed reached its file: SC_EXIT_GOOD, or SC_EXIT_FAILED with a message. */
int sc_cli_flush_stdout(const char *command);

#endif
