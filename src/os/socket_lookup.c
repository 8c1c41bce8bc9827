/*
 * Addresses of a name, by a deadline. getaddrinfo has none: it may wait for a name service for a minute. So a
 * name is looked up in a thread of its own, which a caller whose time is over leaves behind with all
 * that it works on; whoever comes second frees it. An address in figures needs no name service
 * and no thread. Any thread.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/deadline.h"
#include "os/socket.h"
#include "os/thread.h"
#include "os/wait.h"

#define MOST_ADDRESSES 16
#define LOOK_NS INT64_C(50000000) /* between looks at give_up */

enum { LOOKING, FOUND, LEFT };

struct lookup {
    char host[256];
    int port;
    struct sc_socket_address found[MOST_ADDRESSES];
    size_t count;
    spark_comm_status status;
    struct sc_error error;
    _Atomic uint32_t state; /* futex; LOOKING until one of the two is done with it */
};

static void *look(void *arg) {
    struct lookup *lookup = arg;

    lookup->status = sc_socket_resolve(lookup->host, lookup->port, lookup->found, MOST_ADDRESSES,
                                       &lookup->count, &lookup->error);
    /* Acquire and release, as in wait_for: the second one sees all that the first has done. */
    if (atomic_exchange_explicit(&lookup->state, FOUND, memory_order_acq_rel) == LEFT)
        sc_free(lookup);
    else
        sc_wait_futex_wake(&lookup->state, INT_MAX); /* it is joined before it is freed */
    return NULL;
}

/* False: the lookup is no longer the caller's. */
static bool wait_for(struct lookup *lookup, int64_t deadline, const _Atomic uint32_t *give_up) {
    while (atomic_load_explicit(&lookup->state, memory_order_acquire) == LOOKING &&
           !sc_deadline_passed(deadline) &&
           atomic_load_explicit(give_up, memory_order_acquire) == 0)
        sc_wait_futex_sleep(&lookup->state, LOOKING,
                            sc_deadline_min(deadline, sc_deadline_now() + LOOK_NS));
    return atomic_exchange_explicit(&lookup->state, LEFT, memory_order_acq_rel) == FOUND;
}

spark_comm_status sc_socket_look_up(const char *host, int port, int64_t deadline,
                                    const _Atomic uint32_t *give_up, struct sc_socket_address *out,
                                    size_t capacity, size_t *count, struct sc_error *error) {
    struct in_addr v4;
    pthread_t thread;

    /* Only an IPv6 address has colons. */
    if (inet_pton(AF_INET, host, &v4) == 1 || strchr(host, ':') != NULL ||
        strlen(host) >= sizeof((struct lookup *)0)->host)
        return sc_socket_resolve(host, port, out, capacity, count, error);
    *count = 0;
    struct lookup *lookup = sc_alloc_zero(sizeof *lookup);
    if (lookup == NULL)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, 0, "no memory to resolve %.64s", host);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    lookup->port = port;
    sc_error_clear(&lookup->error);
    spark_comm_status st = sc_thread_start(&thread, "sc-lookup", look, lookup, error);
    if (st != SPARK_COMM_OK) goto out;
    if (!wait_for(lookup, deadline, give_up)) {
        pthread_detach(thread);
        return sc_error_set(error, SPARK_COMM_OPEN_TIMEOUT, -1, 0,
                            "the name service gave no answer for '%.64s' in time", host);
    }
    pthread_join(thread, NULL);
    st = lookup->status;
    if (st != SPARK_COMM_OK && error != NULL) *error = lookup->error;
    *count = lookup->count < capacity ? lookup->count : capacity;
    memcpy(out, lookup->found, *count * sizeof *out);
out:
    sc_free(lookup);
    return st;
}
