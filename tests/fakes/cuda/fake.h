/*
 * A CUDA driver of our own for machines without a GPU: device memory is host memory, a stream is a
 * queue with a worker thread, kernels are functions of the host found by name. It proves control flow
 * (order, waits, captures, faults), and nothing about GPUs.
 *
 * Scripted by the environment, read when a device's primary context is made:
 *   SC_FAKE_DEVICES   how many GPUs there are (8)
 *   SC_FAKE_CC        their compute capability (9.0)
 *   SC_FAKE_PAGEABLE  1: the GPU reaches memory that nobody registered (0)
 *   SC_FAKE_BLOCK     "cuEventRecord:20000:5": the 5th call of that function takes 20,000 ms
 *   SC_FAKE_QUEUE     how much a stream takes before it keeps the caller inside (any; read when a stream
 *                     is made)
 */
#ifndef FAKES_CUDA_FAKE_H
#define FAKES_CUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))
#define FAKE_BLOB 256

enum {
    FAKE_OK = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_MISALIGNED = 716,
    FAKE_CAPTURE_UNSUPPORTED = 900,
    FAKE_CAPTURE_INVALIDATED = 901,
    FAKE_CAPTURED_EVENT = 907,
};

/* A piece of work: run on a stream, or kept in a graph. The blob is copied; retain and release tell
 * of copies. */
struct fake_work {
    void (*run)(void *blob);
    void (*retain)(void *blob);
    void (*release)(void *blob);
    _Alignas(16) unsigned char blob[FAKE_BLOB];
};

struct fake_node {
    struct fake_node *next;
    struct fake_work work;
};

struct fake_context;
struct fake_graph;

struct fake_stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_node *first, *last;
    bool busy, leaving, started;
    int queued, depth; /* work that has not ended; how much of it there may be, 0: any */
    struct fake_context *context;
    struct fake_graph *graph; /* captures into it; guarded by the capture lock */
};

struct fake_context {
    int ordinal;
    int references;
    struct fake_stream *legacy;
};

/* For the other fakes, and for tests. */
FAKE_API int sc_fake_enqueue(void *stream, const struct fake_work *work);
FAKE_API int sc_fake_current_device(void);
FAKE_API void sc_fake_spoil_current(void); /* leaves another context current */
FAKE_API void *sc_fake_memory_alloc(size_t bytes);
FAKE_API int sc_fake_memory_free(void *memory);
/* Contexts, streams and events that exist, work that is queued: what a test finds left behind. */
FAKE_API int sc_fake_live_objects(void);

/* Between the fake's own files. */
extern _Thread_local struct fake_context *fake_current;
struct fake_stream *fake_stream_of(void *handle); /* 0, 1, 2: the legacy stream of the context */
struct fake_stream *fake_stream_make(struct fake_context *context);
void fake_stream_leave(struct fake_stream *stream);
/* True when a capture forbids the call: it is then invalidated. */
bool fake_forbidden(void);
void fake_block(const char *function);
void fake_read_script(void);
bool fake_is_pageable(void);
extern _Atomic int fake_live;

/* Every function of the driver that exists, by name. */
struct fake_entry {
    const char *name;
    void *function;
};
extern const struct fake_entry fake_stream_entries[];

#endif
