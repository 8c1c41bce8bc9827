/*
 * Labels and forwards the ranks' output; launch_output.h says what it promises.
 *
 * A line is passed on in the moment its newline has been read, never before: holding back the
 * beginning of a line is what keeps the lines of several ranks apart. Memory is bounded by
 * LINE_LIMIT per stream (a longer line is broken there) and by BACKLOG plus one line per sink.
 */
#include "launch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_SIZE = 64 << 10, LINE_LIMIT = 16 << 20, BACKLOG = 1 << 20, FILE_CHUNK = 256 << 10 };

void sc_launch_output_open(struct sc_launch_sink *sink, int fd) {
    struct stat status;
    *sink = (struct sc_launch_sink){.fd = fd, .chunk = PIPE_BUF};
    /* Writable means room for PIPE_BUF in a pipe; a file never keeps its writer waiting. */
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) sink->chunk = FILE_CHUNK;
}

void sc_launch_output_attach(struct sc_launch_stream *stream, int fd, int rank,
                             struct sc_launch_sink *sink) {
    *stream = (struct sc_launch_stream){.fd = fd, .sink = sink};
    snprintf(stream->label, sizeof stream->label, "[%d] ", rank);
    /* Only this end: the rank's own end must block as a pipe usually does. */
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

void sc_launch_output_close(struct sc_launch_sink *sink) {
    free(sink->data);
    sink->data = NULL;
    sink->start = sink->end = sink->capacity = 0;
}

bool sc_launch_output_pending(const struct sc_launch_sink *sink) {
    return sink->end > sink->start;
}

bool sc_launch_output_has_room(const struct sc_launch_sink *sink) {
    return sink->end - sink->start < BACKLOG;
}

static void take_written(struct sc_launch_sink *sink, ssize_t written) {
    if (written > 0) {
        sink->start += (size_t)written;
    } else if (errno != EINTR && errno != EAGAIN) {
        sink->broken = true;
    }
    if (sink->broken || sink->start == sink->end) sink->start = sink->end = 0;
}

/* Asked again before each write: another descriptor of the same pipe may have filled it. */
static bool is_writable(int fd) {
    struct pollfd ask = {.fd = fd, .events = POLLOUT};
    return poll(&ask, 1, 0) > 0;
}

void sc_launch_output_flush(struct sc_launch_sink *sink) {
    while (sc_launch_output_pending(sink) && is_writable(sink->fd)) {
        size_t size = sink->end - sink->start;
        if (size > sink->chunk) size = sink->chunk;
        take_written(sink, write(sink->fd, sink->data + sink->start, size));
    }
}

/* Room for size more bytes at the end. False: memory ran out. */
static bool reserve(struct sc_launch_sink *sink, size_t size) {
    if (sink->capacity - sink->end >= size) return true;
    if (sink->start) {
        memmove(sink->data, sink->data + sink->start, sink->end - sink->start);
        sink->end -= sink->start;
        sink->start = 0;
    }
    if (sink->capacity - sink->end >= size + sink->end) return true;

    size_t capacity = sink->capacity * 2 + size;
    char *data = realloc(sink->data, capacity);
    if (!data) return false;
    sink->data = data;
    sink->capacity = capacity;
    return true;
}

static void write_all(struct sc_launch_sink *sink, const char *data, size_t size) {
    while (size && !sink->broken) {
        ssize_t written = write(sink->fd, data, size);
        if (written < 0 && errno != EINTR) {
            sink->broken = true;
        } else if (written > 0) {
            data += written;
            size -= (size_t)written;
        }
    }
}

/* Label, text and newline as one line. When memory has run out it is written at once: blocking is
 * better than losing it. */
static void append_line(struct sc_launch_sink *sink, const char *label, const char *text,
                        size_t size) {
    size_t label_size = strlen(label);
    if (sink->broken) return;
    if (!reserve(sink, label_size + size + 1)) {
        write_all(sink, sink->data + sink->start, sink->end - sink->start);
        sink->start = sink->end = 0;
        write_all(sink, label, label_size);
        write_all(sink, text, size);
        write_all(sink, "\n", 1);
        return;
    }
    char *place = sink->data + sink->end;
    memcpy(place, label, label_size);
    memcpy(place + label_size, text, size);
    place[label_size + size] = '\n';
    sink->end += label_size + size + 1;
}

void sc_launch_output_note(struct sc_launch_sink *sink, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    append_line(sink, "", line, strlen(line));
    sc_launch_output_flush(sink);
}

static void pass_line(const struct sc_launch_stream *stream, const char *text, size_t size) {
    append_line(stream->sink, stream->label, text, size);
}

/* The first `known` bytes hold no newline. Keeps what follows the last one. */
static void pass_complete_lines(struct sc_launch_stream *stream, size_t known) {
    char *begin = stream->line, *end = stream->line + stream->used, *search = begin + known;
    for (char *newline; (newline = memchr(search, '\n', (size_t)(end - search)));) {
        pass_line(stream, begin, (size_t)(newline - begin));
        begin = search = newline + 1;
    }
    stream->used = (size_t)(end - begin);
    memmove(stream->line, begin, stream->used);
    if (stream->used >= LINE_LIMIT) {
        pass_line(stream, stream->line, stream->used);
        stream->used = 0;
    }
}

/* Room for one read. When memory has run out the line is broken here. */
static bool make_room(struct sc_launch_stream *stream) {
    if (stream->capacity - stream->used >= READ_SIZE) return true;
    size_t capacity = stream->capacity * 2 + READ_SIZE;
    char *line = realloc(stream->line, capacity);
    if (line) {
        stream->line = line;
        stream->capacity = capacity;
        return true;
    }
    if (stream->used) pass_line(stream, stream->line, stream->used);
    stream->used = 0;
    return stream->capacity >= READ_SIZE;
}

void sc_launch_output_end(struct sc_launch_stream *stream) {
    if (stream->used) pass_line(stream, stream->line, stream->used);
    if (stream->sink) sc_launch_output_flush(stream->sink);
    if (stream->fd >= 0) close(stream->fd);
    free(stream->line);
    stream->fd = -1;
    stream->line = NULL;
    stream->used = stream->capacity = 0;
}

void sc_launch_output_read(struct sc_launch_stream *stream, int rounds) {
    if (stream->fd < 0) return;
    for (int i = 0; i < rounds; i++) {
        /* A reader who is gone is gone for the rank too: its next write fails as if it had no
         * launcher in between. */
        if (stream->sink->broken || !make_room(stream)) {
            sc_launch_output_end(stream);
            return;
        }
        ssize_t got = read(stream->fd, stream->line + stream->used, READ_SIZE);
        if (got < 0 && errno == EAGAIN) break;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            sc_launch_output_end(stream);
            return;
        }
        size_t known = stream->used;
        stream->used += (size_t)got;
        pass_complete_lines(stream, known);
    }
    sc_launch_output_flush(stream->sink);
}
