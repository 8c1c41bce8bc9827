/* The functions of the fake NCCL: communicators, groups, registration. */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../cuda/fake.h"

#define MAGIC UINT64_C(0x4c43434e454b4146)
#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

typedef struct {
    char internal[128];
} fake_unique_id;

struct fake_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, least, most;
    const char *net;
    int split_share;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* mappings, registrations */
static char last_text[256];

static void say(const char *text) {
    snprintf(last_text, sizeof last_text, "%s", text);
}

/* ---- The script ---- */

/* The count of a fault that is meant for this rank: 1 without one, 0 when it is not asked for. */
static long fault(const char *name, int rank) {
    const char *script = getenv("SC_FAKE_NCCL_FAULT");
    size_t length = strlen(name);
    while (script != NULL && *script != '\0') {
        if (strncmp(script, name, length) == 0 && strchr(":@,", script[length]) != NULL) {
            const char *end = script + strcspn(script, ",");
            const char *at = memchr(script, '@', (size_t)(end - script));
            const char *count = memchr(script, ':', (size_t)(end - script));
            if (at == NULL || atoi(at + 1) == rank) return count != NULL ? atol(count + 1) : 1;
        }
        script = strchr(script, ',');
        if (script != NULL) script++;
    }
    return 0;
}

static void read_script(struct fake_comm *comm) {
    comm->hang_at = fault("kernel_hang", comm->rank);
    comm->deaf_at = fault("kernel_deaf", comm->rank);
    comm->slow_ms = fault("kernel_slow", comm->rank);
    comm->async_at = fault("async_error", comm->rank);
    comm->post_error_at = fault("group_error", comm->rank);
    comm->call_error_at = fault("call_error", comm->rank);
    comm->init_hang = fault("init_hang", comm->rank) != 0;
    comm->abort_hang = fault("abort_hang", comm->rank) != 0;
    comm->destroy_hang = fault("destroy_hang", comm->rank) != 0;
    comm->wrong_device = fault("wrong_device", comm->rank) != 0;
    comm->register_null = fault("register_null", comm->rank) != 0;
}

/* ---- What needs no communicator ---- */

EXPORT int ncclGetVersion(int *version) {
    const char *text = getenv("SC_FAKE_NCCL_VERSION");
    *version = text != NULL ? atoi(text) : 22809;
    return FAKE_SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(void *comm) {
    (void)comm;
    return last_text;
}

EXPORT int ncclGetUniqueId(fake_unique_id *id) {
    struct fake_id *own = (struct fake_id *)(void *)id;
    memset(id, 0, sizeof *id);
    own->magic = MAGIC;
    own->pid = getpid();
    own->fd = memfd_create("fake-nccl", MFD_CLOEXEC);
    own->nonce = (uint64_t)fake_now_ns();
    if (own->fd < 0 || ftruncate(own->fd, sizeof(struct fake_region)) != 0)
        return FAKE_SYSTEM_ERROR;
    return FAKE_SUCCESS;
}

static struct fake_mapping *map(const struct fake_id *id) {
    struct fake_mapping *mapping = calloc(1, sizeof *mapping);
    char path[64];
    int fd = id->fd;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    if (id->pid != getpid()) fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory =
        mmap(NULL, sizeof(struct fake_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mapping->region = memory;
    mapping->users = 1;
    mapping->fd = -1;
    if (id->pid != getpid()) close(fd);
    if (memory != MAP_FAILED) return mapping;
    free(mapping);
    return NULL;
}

static void unmap(struct fake_mapping *mapping) {
    pthread_mutex_lock(&lock);
    int left = --mapping->users;
    pthread_mutex_unlock(&lock);
    if (left > 0) return;
    munmap(mapping->region, sizeof *mapping->region);
    if (mapping->fd >= 0) close(mapping->fd);
    free(mapping);
}

/* ---- Communicators ---- */

EXPORT int ncclCommInitRankConfig(struct fake_comm **result, int ranks, fake_unique_id id, int rank,
                                  const struct fake_config *config) {
    const struct fake_id *own = (const struct fake_id *)(const void *)&id;
    if (ranks < 1 || ranks > FAKE_MAX_RANKS || rank < 0 || rank >= ranks || own->magic != MAGIC ||
        (config != NULL && config->magic != 0xcafebeefu))
        return FAKE_BAD_ARGUMENT;
    if (sc_fake_current_device() < 0 || fault("init_error", rank)) {
        say("fake: init is told to fail");
        return FAKE_SYSTEM_ERROR;
    }
    struct fake_comm *comm = calloc(1, sizeof *comm);
    comm->mapping = map(own);
    if (comm->mapping == NULL) {
        free(comm);
        return FAKE_SYSTEM_ERROR;
    }
    if (own->pid == getpid() && rank == 0) comm->mapping->fd = own->fd;
    comm->slot = &comm->mapping->region->slots[0];
    comm->rank = rank;
    comm->size = ranks;
    comm->blocking = config == NULL || config->blocking != 0;
    comm->shares = config != NULL && config->size >= 44 && config->split_share == 1;
    comm->flag = calloc(1, sizeof *comm->flag);
    comm->flag->references = 1;
    read_script(comm);
    atomic_fetch_add(&comm->slot->attached, 1);
    if (comm->wrong_device) sc_fake_spoil_current();
    *result = comm;
    return FAKE_IN_PROGRESS;
}

/* In progress until all ranks have come. */
static int state_of(struct fake_comm *comm) {
    int error = atomic_load(&comm->error);
    if (error != FAKE_SUCCESS) return error;
    if (comm->init_hang) return FAKE_IN_PROGRESS;
    return atomic_load(&comm->slot->attached) < (uint32_t)comm->size ? FAKE_IN_PROGRESS
                                                                     : FAKE_SUCCESS;
}

EXPORT int ncclCommGetAsyncError(struct fake_comm *comm, int *state) {
    *state = state_of(comm);
    if (*state != FAKE_SUCCESS || comm->late_child == NULL) return FAKE_SUCCESS;
    /* The real one reports success before the child's pointer is there. */
    if (state_of(comm->child) == FAKE_SUCCESS && fake_now_ns() >= comm->late_until_ns) {
        __atomic_store_n(comm->late_child, comm->child, __ATOMIC_RELEASE);
        comm->late_child = NULL;
    }
    return FAKE_SUCCESS;
}

EXPORT int ncclCommSplit(struct fake_comm *parent, int color, int key, struct fake_comm **result,
                         const struct fake_config *config) {
    (void)color;
    (void)key;
    if (state_of(parent) != FAKE_SUCCESS || parent->splits + 1 >= FAKE_SLOTS)
        return FAKE_BAD_ARGUMENT;
    struct fake_comm *comm = calloc(1, sizeof *comm);
    comm->mapping = parent->mapping;
    pthread_mutex_lock(&lock);
    comm->mapping->users++;
    pthread_mutex_unlock(&lock);
    comm->index = ++parent->splits;
    comm->slot = &comm->mapping->region->slots[comm->index];
    comm->rank = parent->rank;
    comm->size = parent->size;
    comm->blocking = config == NULL || config->blocking != 0;
    read_script(comm);
    comm->init_hang = false;
    comm->flag = parent->shares ? parent->flag : calloc(1, sizeof *comm->flag);
    atomic_fetch_add(&comm->flag->references, 1);
    atomic_fetch_add(&comm->slot->attached, 1);
    parent->child = comm;
    parent->late_child = result;
    parent->late_until_ns = fake_now_ns() + (fault("split_late", comm->rank) ? 30000000 : 0);
    return parent->blocking ? FAKE_SUCCESS : FAKE_IN_PROGRESS;
}

void fake_comm_let_go(struct fake_comm *comm) {
    atomic_fetch_sub(&comm->users, 1);
}

/* With one rank the real one puts nothing into a graph, and so does not wait for one. Here the graph's
 * nodes still point to the communicator, so it is kept. */
static bool leave_to_graphs(struct fake_comm *comm) {
    static _Atomic(struct fake_comm *) kept;

    for (int naps = 0; naps < 50 && atomic_load(&comm->users) > 0; naps++)
        fake_nap();
    if (atomic_load(&comm->users) == 0) return false;
    unmap(comm->mapping);
    comm->mapping = NULL;
    comm->next_kept = atomic_exchange(&kept, comm);
    return true;
}

/* Waits for queued work and for graphs, as the real one does. */
static void take_down(struct fake_comm *comm) {
    if (comm->size == 1 && leave_to_graphs(comm)) return;
    for (int naps = 0; atomic_load(&comm->users) > 0; naps++) {
        fake_nap();
        if (!atomic_load(&comm->revoked) || naps < 100000) continue;
        fprintf(stderr, "fake: aborted after revoke, while graphs live\n");
        abort();
    }
    while (comm->registered != NULL) {
        struct fake_registered *next = comm->registered->next;
        free(comm->registered);
        comm->registered = next;
    }
    unmap(comm->mapping);
    if (atomic_fetch_sub(&comm->flag->references, 1) == 1) free(comm->flag);
    free(comm);
}

static void hang(void) {
    for (;;)
        fake_nap();
}

EXPORT int ncclCommAbort(struct fake_comm *comm) {
    atomic_store(&comm->flag->raised, true);
    if (comm->child != NULL && comm->late_child != NULL) ncclCommAbort(comm->child);
    if (comm->abort_hang) hang();
    if (comm->wrong_device) sc_fake_spoil_current();
    take_down(comm);
    return FAKE_SUCCESS;
}

EXPORT int ncclCommFinalize(struct fake_comm *comm) {
    (void)comm;
    return FAKE_SUCCESS;
}

EXPORT int ncclCommDestroy(struct fake_comm *comm) {
    if (comm->destroy_hang) hang();
    take_down(comm);
    return FAKE_SUCCESS;
}

#ifndef FAKE_OLD
EXPORT int ncclCommRevoke(struct fake_comm *comm, int flags) {
    (void)flags;
    int64_t until = fake_now_ns() + 300000000;
    atomic_store(&comm->revoked, true);
    atomic_store(&comm->flag->raised, true);
    /* For so long, and until eager work has left; the real one does not wait for replays. */
    while (atomic_load(&comm->users) > 0 && fake_now_ns() < until)
        fake_nap();
    atomic_store(&comm->flag->raised, false);
    return FAKE_SUCCESS;
}
#endif

/* ---- Operations ---- */

static _Thread_local struct {
    int depth, error;
    struct fake_post *posts;
    size_t count;
} group;

EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op,
                         struct fake_comm *comm, void *stream) {
    struct fake_call call = {FAKE_ALL_REDUCE, type, op, 0, count};
    return fake_collective(comm, &call, send, recv, stream);
}

EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                             struct fake_comm *comm, void *stream) {
    struct fake_call call = {FAKE_REDUCE_SCATTER, type, op, 0, count};
    return fake_collective(comm, &call, send, recv, stream);
}

#ifndef FAKE_HALF
EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type,
                         struct fake_comm *comm, void *stream) {
    struct fake_call call = {FAKE_ALL_GATHER, type, 0, 0, count};
    return fake_collective(comm, &call, send, recv, stream);
}
#endif

EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                         struct fake_comm *comm, void *stream) {
    struct fake_call call = {FAKE_BROADCAST, type, 0, root, count};
    return fake_collective(comm, &call, send, recv, stream);
}

EXPORT int ncclGroupStart(void) {
    group.depth++;
    return FAKE_SUCCESS;
}

EXPORT int ncclGroupEnd(void) {
    int result = group.error;
    if (group.depth == 0) return FAKE_BAD_USAGE;
    if (--group.depth > 0) return FAKE_SUCCESS;
    if (result == FAKE_SUCCESS && group.count > 0)
        result =
            fake_messages(group.posts[0].comm, group.posts, group.count, group.posts[0].stream);
    free(group.posts);
    group.posts = NULL;
    group.count = 0;
    group.error = FAKE_SUCCESS;
    return result;
}

static int post(struct fake_post *one) {
    long number = atomic_fetch_add(&one->comm->posts, 1) + 1;
    if (atomic_load(&one->comm->revoked)) return FAKE_BAD_USAGE;
    if (number == one->comm->post_error_at) {
        say("fake: a post is told to fail");
        return group.error = FAKE_SYSTEM_ERROR;
    }
    ncclGroupStart();
    group.posts = realloc(group.posts, (group.count + 1) * sizeof *group.posts);
    group.posts[group.count++] = *one;
    return ncclGroupEnd();
}

EXPORT int ncclSend(const void *data, size_t count, int type, int peer, struct fake_comm *comm,
                    void *stream) {
    struct fake_post one = {.sends = true,
                            .peer = peer,
                            .data = (void *)(uintptr_t)data,
                            .bytes = count,
                            .comm = comm,
                            .stream = stream};
    (void)type; /* bytes alone are sent */
    return post(&one);
}

EXPORT int ncclRecv(void *data, size_t count, int type, int peer, struct fake_comm *comm,
                    void *stream) {
    struct fake_post one = {
        .peer = peer, .data = data, .bytes = count, .comm = comm, .stream = stream};
    (void)type;
    return post(&one);
}

/* ---- Memory ---- */

EXPORT int ncclMemAlloc(void **memory, size_t bytes) {
    const char *limit = getenv("SC_FAKE_NCCL_MEMORY");
    *memory = NULL;
    if (limit == NULL || bytes <= strtoull(limit, NULL, 10)) *memory = sc_fake_memory_alloc(bytes);
    return *memory != NULL ? FAKE_SUCCESS : FAKE_CUDA_ERROR;
}

EXPORT int ncclMemFree(void *memory) {
    return sc_fake_memory_free(memory) == 0 ? FAKE_SUCCESS : FAKE_BAD_ARGUMENT;
}

/* A range inside an older one gets that one's handle, and counts. */
EXPORT int ncclCommRegister(struct fake_comm *comm, void *buffer, size_t bytes, void **handle) {
    struct fake_registered *at = comm->registered;
    *handle = NULL;
    if (comm->register_null) return FAKE_SUCCESS;
    while (at != NULL &&
           !((uintptr_t)buffer >= at->start && (uintptr_t)buffer + bytes <= at->start + at->bytes))
        at = at->next;
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        *at = (struct fake_registered){comm->registered, (uintptr_t)buffer, bytes, 0};
        comm->registered = at;
    }
    at->uses++;
    *handle = at;
    return FAKE_SUCCESS;
}

EXPORT int ncclCommDeregister(struct fake_comm *comm, void *handle) {
    struct fake_registered **at = &comm->registered;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    if (*at == NULL) return FAKE_BAD_ARGUMENT;
    struct fake_registered *found = *at;
    if (--found->uses > 0) return FAKE_SUCCESS;
    *at = found->next;
    free(found);
    return FAKE_SUCCESS;
}

EXPORT int ncclCommWindowRegister(struct fake_comm *comm, void *buffer, size_t bytes, void **window,
                                  int flags) {
    (void)comm;
    (void)bytes;
    (void)flags;
    *window = buffer;
    return (uintptr_t)buffer % 4096 == 0 ? FAKE_SUCCESS : FAKE_BAD_ARGUMENT;
}

EXPORT int ncclCommWindowDeregister(struct fake_comm *comm, void *window) {
    (void)comm;
    return window != NULL ? FAKE_SUCCESS : FAKE_BAD_ARGUMENT;
}
