/*
 * Fuzz target: the reader of trace files. The input is one to four files: the first byte says how
 * many and how the rest is split. What is read is merged, printed and written as Chrome events.
 * Whatever comes: it returns, and nothing is read past a file.
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int condition) {
    if (!condition) abort();
}

/* A block of just the file's size, so that a sanitizer sees a read past it. */
static void read_copy(struct sc_trace_file *file, const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    expect(copy != NULL);
    if (size > 0) memcpy(copy, data, size);
    *file = (struct sc_trace_file){.name = strdup("input")};
    expect(sc_trace_read_bytes(file, copy, size));
    free(copy);
}

static void expect_sorted(const struct sc_trace *trace) {
    for (size_t i = 0; i < trace->stream_count; i++) {
        const struct sc_trace_stream *stream = &trace->streams[i];
        expect(stream->begin < stream->end && stream->end <= trace->item_count);
        expect(stream->begin <= stream->divergence && stream->divergence <= stream->end);
    }
    for (size_t i = 0; i < trace->item_count; i++)
        expect(trace->items[i].record->epoch > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sc_trace_file files[4];
    struct sc_trace trace;
    static FILE *nowhere;

    if (nowhere == NULL) nowhere = fopen("/dev/null", "w");
    if (size == 0) return 0;
    size_t count = 1 + data[0] % 4, each = (size - 1) / count;
    for (size_t i = 0; i < count; i++)
        read_copy(&files[i], data + 1 + i * each, each);
    expect(sc_trace_merge(&trace, files, count));
    expect_sorted(&trace);
    sc_trace_print(&trace, data[0] & 4 ? -1 : 3, nowhere);
    expect(sc_trace_chrome(&trace, nowhere));
    sc_trace_destroy(&trace);
    for (size_t i = 0; i < count; i++)
        sc_trace_free(&files[i]);
    return 0;
}
