/*
 * The ranks' output on its way to the supervisor's own: each line gets its rank's label, lines
 * stay whole however long they are, and nothing here ever blocks, so that a reader who has stopped
 * (a pager) cannot keep the supervisor from ending the ranks.
 */
#ifndef SC_LAUNCH_OUTPUT_H
#define SC_LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

/* Where whole lines go. Standard output and standard error share one sink when they are the same
 * file, so that a line of one cannot land inside a line of the other. */
struct sc_launch_sink {
    int fd;
    bool broken; /* the reader is gone; what comes is dropped */
    char *data; /* waiting: data[start] to data[end - 1] */
    size_t start;
    size_t end;
    size_t capacity;
    size_t chunk; /* the most that one write may take without blocking once poll says writable */
};

/* One rank's standard output or standard error. */
struct sc_launch_stream {
    int fd; /* read end of the rank's pipe, non-blocking; -1: closed */
    struct sc_launch_sink *sink;
    char label[16]; /* "[rank] " */
    char *line; /* the beginning of a line whose end has not come yet */
    size_t used;
    size_t capacity;
};

void sc_launch_output_open(struct sc_launch_sink *sink, int fd);
void sc_launch_output_close(struct sc_launch_sink *sink);

/* Takes over the read end of a rank's pipe and makes it non-blocking. */
void sc_launch_output_attach(struct sc_launch_stream *stream, int fd, int rank,
                             struct sc_launch_sink *sink);

/* True while the sink takes more; otherwise its streams are left unread until it drains. */
bool sc_launch_output_has_room(const struct sc_launch_sink *sink);
bool sc_launch_output_pending(const struct sc_launch_sink *sink);

/* Writes what the reader takes now. */
void sc_launch_output_flush(struct sc_launch_sink *sink);

/* A message of the supervisor's own, one line. */
__attribute__((format(printf, 2, 3))) void sc_launch_output_note(struct sc_launch_sink *sink,
                                                                 const char *format, ...);

/* Reads up to `rounds` times what has come and passes on the lines that are complete; closes the
 * stream at end-of-file, when the last line is passed on as it is. */
void sc_launch_output_read(struct sc_launch_stream *stream, int rounds);

/* Passes on an unfinished line and closes. Fine on a closed stream. */
void sc_launch_output_end(struct sc_launch_stream *stream);

#endif
