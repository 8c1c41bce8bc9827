/*
 * TCP sockets with deadlines: connecting, and whole transfers. A call that would block polls for
 * the time that is left, so that neither signals nor slow peers stretch a deadline. The socket is
 * asked first and the wake descriptor after it: what has arrived is not lost to a wake-up. SIGPIPE
 * is never raised. Addresses are in socket_address.c, Unix sockets in socket_unix.c. No state; a
 * descriptor belongs to the caller.
 */
#include "os/socket.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "os/socket_wait.h"

#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_COUNT 6

/* ---- Waiting ---- */

spark_comm_status sc_socket_wait(int fd, short events, int64_t deadline, int wake_fd,
                                 const char *what, struct sc_error *error) {
    for (;;) {
        struct pollfd waits[2] = {{.fd = fd, .events = events}, {.fd = wake_fd, .events = POLLIN}};
        /* Read before poll: a poll that ends a little early is then only repeated. */
        int left = sc_deadline_poll_ms(deadline);
        int ready = poll(waits, 2, left);
        if (ready < 0 && errno != EINTR && errno != EAGAIN)
            return sc_error_system(error, errno, "cannot wait while %s", what);
        if (ready > 0 && waits[0].revents != 0) return SPARK_COMM_OK;
        if (ready > 0 && waits[1].revents != 0)
            return sc_error_set(error, SPARK_COMM_ABORTED, -1, 0, "interrupted while %s", what);
        if (ready <= 0 && sc_deadline_passed(deadline))
            return sc_error_set(error, SPARK_COMM_OP_TIMEOUT, -1, ETIMEDOUT,
                                "no answer by the deadline while %s", what);
    }
}

static const char *peer_text(int fd, char *text, size_t size) {
    struct sc_socket_address peer;

    memset(&peer, 0, sizeof peer);
    peer.length = sizeof peer.storage;
    if (getpeername(fd, (struct sockaddr *)&peer.storage, &peer.length) != 0)
        return "a peer that is gone";
    return sc_socket_address_text(&peer, text, size);
}

spark_comm_status sc_socket_failed(int fd, int errno_value, const char *verb,
                                   struct sc_error *error) {
    char text[SC_SOCKET_TEXT_BYTES];

    switch (errno_value) {
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
        sc_error_system(error, errno_value, "lost the connection %s %s", verb,
                        peer_text(fd, text, sizeof text));
        if (error != NULL) error->status = SPARK_COMM_PEER_LOST;
        return SPARK_COMM_PEER_LOST;
    default:
        return sc_error_system(error, errno_value, "failed %s %s", verb,
                               peer_text(fd, text, sizeof text));
    }
}

spark_comm_status sc_socket_ended(int fd, struct sc_error *error) {
    char text[SC_SOCKET_TEXT_BYTES];
    return sc_error_set(error, SPARK_COMM_PEER_LOST, -1, 0, "%s closed the connection",
                        peer_text(fd, text, sizeof text));
}

/* ---- Whole transfers ---- */

spark_comm_status sc_socket_send(int fd, const void *data, size_t bytes, int64_t deadline,
                                 int wake_fd, struct sc_error *error) {
    const char *next = data;

    while (bytes > 0) {
        ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            next += sent;
            bytes -= (size_t)sent;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return sc_socket_failed(fd, errno, "sending to", error);
        spark_comm_status st = sc_socket_wait(fd, POLLOUT, deadline, wake_fd, "sending", error);
        if (st != SPARK_COMM_OK) return st;
    }
    return SPARK_COMM_OK;
}

spark_comm_status sc_socket_recv(int fd, void *data, size_t bytes, int64_t deadline, int wake_fd,
                                 struct sc_error *error) {
    char *next = data;

    while (bytes > 0) {
        ssize_t got = recv(fd, next, bytes, MSG_DONTWAIT);
        if (got > 0) {
            next += got;
            bytes -= (size_t)got;
            continue;
        }
        if (got == 0) return sc_socket_ended(fd, error);
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return sc_socket_failed(fd, errno, "receiving from", error);
        spark_comm_status st = sc_socket_wait(fd, POLLIN, deadline, wake_fd, "receiving", error);
        if (st != SPARK_COMM_OK) return st;
    }
    return SPARK_COMM_OK;
}

/* ---- Connections ---- */

static int stream_socket(int family) {
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static spark_comm_status listen_failed(const struct sc_socket_address *address, int errno_value,
                                       struct sc_error *error) {
    char text[SC_SOCKET_TEXT_BYTES];
    return sc_error_system(error, errno_value, "cannot listen on %s",
                           sc_socket_address_text(address, text, sizeof text));
}

spark_comm_status sc_socket_listen(const struct sc_socket_address *address, int backlog, int *fd,
                                   struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    const int on = 1;
    int family = address->storage.ss_family;
    int listener = stream_socket(family);

    *fd = -1;
    if (listener < 0) return listen_failed(address, errno, error);
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (family == AF_INET6 &&
         setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        bind(listener, (const struct sockaddr *)&address->storage, address->length) != 0 ||
        listen(listener, backlog) != 0) {
        st = listen_failed(address, errno, error);
        goto out;
    }
    *fd = listener;
    listener = -1;
out:
    if (listener >= 0) close(listener);
    return st;
}

spark_comm_status sc_socket_accept(int listener, int *fd, struct sc_socket_address *peer,
                                   struct sc_error *error) {
    struct sc_socket_address from;

    *fd = -1;
    for (;;) {
        memset(&from, 0, sizeof from);
        from.length = sizeof from.storage;
        int accepted = accept4(listener, (struct sockaddr *)&from.storage, &from.length,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (accepted >= 0) {
            *fd = accepted;
            if (peer != NULL) *peer = from;
            return SPARK_COMM_OK;
        }
        switch (errno) {
        case EAGAIN: return SPARK_COMM_OK;
        case EINTR:
        /* What a connection met before it was accepted is its own failure, not the listener's
         * (accept(2)). */
        case ECONNABORTED:
        case EPROTO:
        case EPERM:
        case ENETDOWN:
        case ENETUNREACH:
        case EHOSTDOWN:
        case EHOSTUNREACH:
        case ENOPROTOOPT:
        case ENONET: continue;
        default: return sc_error_system(error, errno, "cannot accept a connection");
        }
    }
}

static spark_comm_status connect_failed(const struct sc_socket_address *address, int errno_value,
                                        struct sc_error *error) {
    char text[SC_SOCKET_TEXT_BYTES];
    return sc_error_system(error, errno_value, "cannot connect to %s",
                           sc_socket_address_text(address, text, sizeof text));
}

/* Dialling a free local port in the range of outgoing ports can meet itself: TCP allows it. */
static bool is_connected_to_itself(int fd) {
    struct sc_socket_address local;
    struct sc_socket_address remote;

    return sc_socket_local(fd, &local, NULL) == SPARK_COMM_OK &&
           sc_socket_remote(fd, &remote, NULL) == SPARK_COMM_OK &&
           sc_socket_port(&local) == sc_socket_port(&remote) &&
           sc_socket_same_host(&local, &remote);
}

static spark_comm_status finish_connect(int fd, const struct sc_socket_address *address,
                                        int64_t deadline, int wake_fd, struct sc_error *error) {
    char text[SC_SOCKET_TEXT_BYTES];
    char what[SC_SOCKET_TEXT_BYTES + 32];
    int failure = 0;
    socklen_t size = sizeof failure;

    size_t prefix = sizeof "connecting to " - 1;
    memcpy(what, "connecting to ", prefix);
    sc_socket_address_text(address, text, sizeof text);
    memcpy(what + prefix, text, strlen(text) + 1);
    spark_comm_status st = sc_socket_wait(fd, POLLOUT, deadline, wake_fd, what, error);
    if (st != SPARK_COMM_OK) return st;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0) failure = errno;
    return failure == 0 ? SPARK_COMM_OK : connect_failed(address, failure, error);
}

spark_comm_status sc_socket_connect_start(const struct sc_socket_address *address, int *fd,
                                          struct sc_error *error) {
    *fd = stream_socket(address->storage.ss_family);
    if (*fd < 0) return connect_failed(address, errno, error);
    if (connect(*fd, (const struct sockaddr *)&address->storage, address->length) == 0 ||
        errno == EINPROGRESS || errno == EINTR)
        return SPARK_COMM_OK;
    spark_comm_status st = connect_failed(address, errno, error);
    close(*fd);
    *fd = -1;
    return st;
}

spark_comm_status sc_socket_connect(const struct sc_socket_address *address, int64_t deadline,
                                    int wake_fd, int *fd, struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    int dialled = stream_socket(address->storage.ss_family);

    *fd = -1;
    if (dialled < 0) return connect_failed(address, errno, error);
    if (connect(dialled, (const struct sockaddr *)&address->storage, address->length) != 0) {
        /* An interrupted connect goes on by itself, like one in progress. */
        if (errno != EINPROGRESS && errno != EINTR)
            st = connect_failed(address, errno, error);
        else
            st = finish_connect(dialled, address, deadline, wake_fd, error);
    }
    if (st == SPARK_COMM_OK && is_connected_to_itself(dialled))
        st = connect_failed(address, ECONNREFUSED, error);
    if (st != SPARK_COMM_OK) goto out;
    *fd = dialled;
    dialled = -1;
out:
    if (dialled >= 0) close(dialled);
    return st;
}

void sc_socket_tune(int fd, int user_timeout_ms) {
    const int on = 1;
    const int idle = KEEPALIVE_IDLE_S;
    const int interval = KEEPALIVE_INTERVAL_S;
    const int count = KEEPALIVE_COUNT;

    /* Each only makes things better; a socket without it still works. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    if (user_timeout_ms > 0)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}
