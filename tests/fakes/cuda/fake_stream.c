/* Streams, events, captures and graphs of the fake driver. A graph is a list of work in the order of
 * its capture, which is one right order of it. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

_Atomic int fake_live;

struct fake_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int references; /* the handle's, and those of queued work */
    uint64_t recorded, done;
    struct fake_graph *captured; /* recorded last inside this capture */
};

struct user_object {
    struct user_object *next;
    void (*destroy)(void *arg);
    void *arg;
    int references;
};

struct object_reference {
    struct object_reference *next;
    struct user_object *object;
};

struct fake_graph {
    _Atomic int references; /* the handle's, and one per launch that has not ended */
    struct fake_node *first, *last;
    struct object_reference *objects;
    uint64_t id;
    bool captures, invalid;
    int mode;
    pthread_t owner;
};

static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER; /* guards stream->graph, modes */
static struct fake_graph *running[64]; /* captures that run */
static uint64_t last_id;
static _Thread_local int thread_mode; /* 0 global, 1 thread local, 2 relaxed */

/* ---- Streams ---- */

static void *worker(void *arg) {
    struct fake_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->first == NULL && !stream->leaving)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct fake_node *node = stream->first;
        if (node == NULL) break;
        stream->first = node->next;
        if (stream->first == NULL) stream->last = NULL;
        stream->busy = true;
        pthread_mutex_unlock(&stream->lock);
        node->work.run(node->work.blob);
        if (node->work.release != NULL) node->work.release(node->work.blob);
        free(node);
        pthread_mutex_lock(&stream->lock);
        stream->queued--;
        stream->busy = false;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    fake_live--;
    return NULL;
}

struct fake_stream *fake_stream_make(struct fake_context *context) {
    struct fake_stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->context = context;
    const char *depth = getenv("SC_FAKE_QUEUE");
    stream->depth = depth != NULL ? atoi(depth) : 0;
    fake_live++;
    return stream;
}

/* What is queued still runs; the worker frees the stream at last. */
void fake_stream_leave(struct fake_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    stream->leaving = true;
    bool started = stream->started;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    if (started) return;
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    fake_live--;
}

struct fake_stream *fake_stream_of(void *handle) {
    if ((uintptr_t)handle > 2) return handle;
    return fake_current != NULL ? fake_current->legacy : NULL;
}

static void append(struct fake_node **first, struct fake_node **last,
                   const struct fake_work *work) {
    struct fake_node *node = calloc(1, sizeof *node);
    node->work = *work;
    if (*last != NULL)
        (*last)->next = node;
    else
        *first = node;
    *last = node;
}

/* As a real driver does, a stream keeps the caller inside while its queue is full. */
static void run_on(struct fake_stream *stream, const struct fake_work *work) {
    pthread_mutex_lock(&stream->lock);
    while (stream->depth > 0 && stream->queued >= stream->depth)
        pthread_cond_wait(&stream->changed, &stream->lock);
    stream->queued++;
    append(&stream->first, &stream->last, work);
    if (!stream->started) {
        pthread_t thread;
        stream->started = true;
        pthread_create(&thread, NULL, worker, stream);
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

int sc_fake_enqueue(void *handle, const struct fake_work *work) {
    struct fake_stream *stream = fake_stream_of(handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&capture_lock);
    struct fake_graph *graph = stream->graph;
    if (graph != NULL && !graph->invalid) append(&graph->first, &graph->last, work);
    bool invalid = graph != NULL && graph->invalid;
    pthread_mutex_unlock(&capture_lock);
    if (invalid) return FAKE_CAPTURE_INVALIDATED;
    if (graph == NULL) run_on(stream, work);
    return FAKE_OK;
}

static int stream_create(void **stream, unsigned flags, int priority) {
    (void)flags;
    (void)priority;
    if (fake_current == NULL) return FAKE_INVALID_CONTEXT;
    *stream = fake_stream_make(fake_current);
    return FAKE_OK;
}

static int stream_destroy(void *handle) {
    fake_stream_leave(handle);
    return FAKE_OK;
}

static int stream_query(void *handle) {
    struct fake_stream *stream = fake_stream_of(handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    if (fake_forbidden()) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->first == NULL && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle ? FAKE_OK : FAKE_NOT_READY;
}

static int stream_synchronize(void *handle) {
    struct fake_stream *stream = fake_stream_of(handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    if (fake_forbidden()) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&stream->lock);
    while (stream->first != NULL || stream->busy)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return FAKE_OK;
}

static int stream_context(void *handle, void **context) {
    struct fake_stream *stream = fake_stream_of(handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    *context = stream->context;
    return FAKE_OK;
}

/* ---- Captures ---- */

bool fake_forbidden(void) {
    bool forbidden = false;
    pthread_mutex_lock(&capture_lock);
    for (size_t i = 0; i < sizeof running / sizeof running[0]; i++) {
        struct fake_graph *graph = running[i];
        if (graph == NULL || graph->mode == 2) continue;
        bool mine = pthread_equal(graph->owner, pthread_self()) != 0;
        if ((thread_mode == 0 && (graph->mode == 0 || mine)) || (thread_mode == 1 && mine))
            graph->invalid = forbidden = true;
    }
    pthread_mutex_unlock(&capture_lock);
    return forbidden;
}

static int exchange_mode(int *mode) {
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return FAKE_OK;
}

static int begin_capture(void *handle, int mode) {
    struct fake_stream *stream = fake_stream_of(handle);
    int result = FAKE_OUT_OF_MEMORY;
    if (stream == NULL || (uintptr_t)handle < 2) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&capture_lock);
    for (size_t i = 0; i < sizeof running / sizeof running[0] && result != FAKE_OK; i++) {
        if (running[i] != NULL) continue;
        struct fake_graph *graph = calloc(1, sizeof *graph);
        graph->references = 1;
        graph->id = ++last_id;
        graph->captures = true;
        graph->mode = mode;
        graph->owner = pthread_self();
        running[i] = stream->graph = graph;
        fake_live++;
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* A stream that an event brought into the capture and that was not brought back leaves it at its
 * next use; there is one fork at most in these tests. */
static _Thread_local struct fake_stream *forked;

static int end_capture(void *handle, void **result) {
    struct fake_stream *stream = fake_stream_of(handle);
    pthread_mutex_lock(&capture_lock);
    struct fake_graph *graph = stream->graph;
    stream->graph = NULL;
    if (forked != NULL && forked->graph == graph) forked->graph = NULL;
    forked = NULL;
    for (size_t i = 0; graph != NULL && i < sizeof running / sizeof running[0]; i++)
        if (running[i] == graph) running[i] = NULL;
    if (graph != NULL) graph->captures = false;
    pthread_mutex_unlock(&capture_lock);
    *result = graph != NULL && !graph->invalid ? graph : NULL;
    if (graph == NULL) return FAKE_INVALID_VALUE;
    return graph->invalid ? FAKE_CAPTURE_INVALIDATED : FAKE_OK;
}

static int capture_info(void *handle, int *status, uint64_t *id, void **graph, const void **nodes,
                        size_t *count) {
    struct fake_stream *stream = fake_stream_of(handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&capture_lock);
    *status = stream->graph == NULL ? 0 : stream->graph->invalid ? 2 : 1;
    if (id != NULL && stream->graph != NULL) *id = stream->graph->id;
    if (graph != NULL) *graph = stream->graph;
    pthread_mutex_unlock(&capture_lock);
    if (nodes != NULL) *nodes = NULL;
    if (count != NULL) *count = 0;
    return FAKE_OK;
}

static int is_capturing(void *handle, int *status) {
    fake_block("cuStreamIsCapturing");
    return capture_info(handle, status, NULL, NULL, NULL, NULL);
}

/* ---- Graphs ---- */

static void let_object_go(struct user_object *object) {
    pthread_mutex_lock(&capture_lock);
    int left = --object->references;
    pthread_mutex_unlock(&capture_lock);
    if (left > 0) return;
    object->destroy(object->arg);
    free(object);
}

static int object_create(void **result, void *arg, void (*destroy)(void *), unsigned references,
                         unsigned flags) {
    struct user_object *object = calloc(1, sizeof *object);
    (void)flags;
    *object = (struct user_object){NULL, destroy, arg, (int)references};
    *result = object;
    return FAKE_OK;
}

static void keep_object(struct fake_graph *graph, struct user_object *object) {
    struct object_reference *reference = calloc(1, sizeof *reference);
    reference->object = object;
    reference->next = graph->objects;
    graph->objects = reference;
}

/* Always moved here: the graph takes the caller's reference. */
static int graph_retain(void *handle, void *object, unsigned count, unsigned flags) {
    (void)count;
    (void)flags;
    keep_object(handle, object);
    return FAKE_OK;
}

static int graph_instantiate(void **exec, void *handle, unsigned long long flags) {
    const struct fake_graph *graph = handle;
    struct fake_graph *copy = calloc(1, sizeof *copy);
    copy->references = 1;
    (void)flags;
    fake_live++;
    for (struct fake_node *node = graph->first; node != NULL; node = node->next) {
        append(&copy->first, &copy->last, &node->work);
        if (node->work.retain != NULL) node->work.retain(copy->last->work.blob);
    }
    for (struct object_reference *at = graph->objects; at != NULL; at = at->next) {
        pthread_mutex_lock(&capture_lock);
        at->object->references++;
        pthread_mutex_unlock(&capture_lock);
        keep_object(copy, at->object);
    }
    *exec = copy;
    return FAKE_OK;
}

static void graph_free(struct fake_graph *graph) {
    while (graph->first != NULL) {
        struct fake_node *node = graph->first;
        graph->first = node->next;
        if (node->work.release != NULL) node->work.release(node->work.blob);
        free(node);
    }
    while (graph->objects != NULL) {
        struct object_reference *reference = graph->objects;
        graph->objects = reference->next;
        let_object_go(reference->object);
        free(reference);
    }
    free(graph);
    fake_live--;
}

/* What was destroyed while it runs stays until it has run, with its objects, as in the real one. */
static int graph_destroy(void *handle) {
    struct fake_graph *graph = handle;
    if (atomic_fetch_sub(&graph->references, 1) == 1) graph_free(graph);
    return FAKE_OK;
}

static void run_nothing(void *blob) {
    (void)blob;
}

static void release_launch(void *blob) {
    graph_destroy(*(void **)blob);
}

static int graph_launch(void *exec, void *handle) {
    struct fake_stream *stream = fake_stream_of(handle);
    struct fake_graph *graph = exec;
    struct fake_work end = {.run = run_nothing, .release = release_launch};
    *(void **)(void *)end.blob = graph;
    atomic_fetch_add(&graph->references, 1);
    for (struct fake_node *node = graph->first; node != NULL; node = node->next) {
        if (node->work.retain != NULL) node->work.retain(node->work.blob);
        run_on(stream, &node->work);
    }
    run_on(stream, &end);
    return FAKE_OK;
}

/* ---- Events ---- */

struct event_use {
    struct fake_event *event;
    uint64_t number;
};

static void let_event_go(struct fake_event *event) {
    pthread_mutex_lock(&event->lock);
    int left = --event->references;
    pthread_mutex_unlock(&event->lock);
    if (left > 0) return;
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
    fake_live--;
}

static void release_use(void *blob) {
    let_event_go(((struct event_use *)blob)->event);
}

static void run_record(void *blob) {
    struct event_use *use = blob;
    pthread_mutex_lock(&use->event->lock);
    if (use->event->done < use->number) use->event->done = use->number;
    pthread_cond_broadcast(&use->event->changed);
    pthread_mutex_unlock(&use->event->lock);
}

static void run_wait(void *blob) {
    struct event_use *use = blob;
    pthread_mutex_lock(&use->event->lock);
    while (use->event->done < use->number)
        pthread_cond_wait(&use->event->changed, &use->event->lock);
    pthread_mutex_unlock(&use->event->lock);
}

static int event_create(void **result, unsigned flags) {
    struct fake_event *event = calloc(1, sizeof *event);
    (void)flags;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    event->references = 1;
    *result = event;
    fake_live++;
    return FAKE_OK;
}

static int event_destroy(void *event) {
    let_event_go(event);
    return FAKE_OK;
}

static struct fake_work event_work(struct fake_event *event, void (*run)(void *), uint64_t number) {
    struct fake_work work = {.run = run, .release = release_use};
    *(struct event_use *)(void *)work.blob = (struct event_use){event, number};
    event->references++; /* event lock held */
    return work;
}

static int event_record(void *handle, void *stream_handle) {
    struct fake_event *event = handle;
    struct fake_stream *stream = fake_stream_of(stream_handle);
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    fake_block("cuEventRecord");
    pthread_mutex_lock(&capture_lock);
    struct fake_graph *graph = stream->graph;
    pthread_mutex_lock(&event->lock);
    event->captured = graph;
    struct fake_work work;
    if (graph == NULL) work = event_work(event, run_record, ++event->recorded);
    pthread_mutex_unlock(&event->lock);
    pthread_mutex_unlock(&capture_lock);
    if (graph == NULL) run_on(stream, &work);
    return FAKE_OK;
}

static int stream_wait(void *stream_handle, void *handle, unsigned flags) {
    struct fake_event *event = handle;
    struct fake_stream *stream = fake_stream_of(stream_handle);
    struct fake_work work;
    (void)flags;
    if (stream == NULL) return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&capture_lock);
    pthread_mutex_lock(&event->lock);
    struct fake_graph *graph = event->captured;
    bool captures = graph != NULL;
    if (captures && stream->graph == NULL) {
        stream->graph = graph;
        forked = stream;
    }
    bool isolated = !captures && stream->graph != NULL;
    if (isolated) stream->graph->invalid = true; /* a wait on work outside the capture */
    if (!captures && !isolated) work = event_work(event, run_wait, event->recorded);
    pthread_mutex_unlock(&event->lock);
    pthread_mutex_unlock(&capture_lock);
    if (!captures && !isolated) run_on(stream, &work);
    return isolated ? 905 : FAKE_OK;
}

static int event_query(void *handle) {
    struct fake_event *event = handle;
    if (fake_forbidden()) return FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&event->lock);
    bool captured = event->captured != NULL, done = event->done >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    if (captured) return FAKE_CAPTURED_EVENT;
    return done ? FAKE_OK : FAKE_NOT_READY;
}

const struct fake_entry fake_stream_entries[] = {
    {"cuStreamCreateWithPriority", stream_create},
    {"cuStreamDestroy", stream_destroy},
    {"cuStreamQuery", stream_query},
    {"cuStreamSynchronize", stream_synchronize},
    {"cuStreamWaitEvent", stream_wait},
    {"cuStreamIsCapturing", is_capturing},
    {"cuStreamGetCaptureInfo", capture_info},
    {"cuStreamGetCtx", stream_context},
    {"cuStreamBeginCapture", begin_capture},
    {"cuStreamEndCapture", end_capture},
    {"cuThreadExchangeStreamCaptureMode", exchange_mode},
    {"cuEventCreate", event_create},
    {"cuEventDestroy", event_destroy},
    {"cuEventRecord", event_record},
    {"cuEventQuery", event_query},
    {"cuUserObjectCreate", object_create},
    {"cuGraphRetainUserObject", graph_retain},
    {"cuGraphInstantiateWithFlags", graph_instantiate},
    {"cuGraphLaunch", graph_launch},
    {"cuGraphExecDestroy", graph_destroy},
    {"cuGraphDestroy", graph_destroy},
    {NULL, NULL},
};
