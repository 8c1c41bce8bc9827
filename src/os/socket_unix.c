/*
 * Unix sockets in the abstract namespace, which pass descriptors between processes of one host. A
 * message is a few bytes on a stream; the descriptor travels with its first byte, and the kernel
 * never lets one read cross into the next message's descriptor. Whatever descriptors come that were
 * not asked for are closed. No state; any thread.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/deadline.h"
#include "os/socket_wait.h"

#define NAME_BYTES 64
#define LONGEST_MESSAGE 256
/* A full backlog cannot be polled for; it is tried again in steps. */
#define RETRY_NS INT64_C(2000000)

static socklen_t abstract_address(const char *name, struct sockaddr_un *address) {
    size_t length = strnlen(name, sizeof address->sun_path - 1);

    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* "spark_comm-" and 128 random bits. */
static spark_comm_status random_name(char *name, struct sc_error *error) {
    static const char digits[] = "0123456789abcdef";
    unsigned char random[16];
    size_t length = sizeof "spark_comm-" - 1;
    ssize_t got;

    do {
        got = getrandom(random, sizeof random, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof random)
        return sc_error_system(error, got < 0 ? errno : EIO,
                               "cannot get random bytes for a socket's name");
    memcpy(name, "spark_comm-", length);
    for (size_t i = 0; i < sizeof random; i++) {
        name[length++] = digits[random[i] >> 4];
        name[length++] = digits[random[i] & 15];
    }
    name[length] = '\0';
    return SPARK_COMM_OK;
}

spark_comm_status sc_socket_unix_listen(char *name, size_t size, int backlog, int *fd,
                                        struct sc_error *error) {
    struct sockaddr_un address;
    int listener = -1;

    *fd = -1;
    if (size < NAME_BYTES)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "a socket's name needs %d bytes", NAME_BYTES);
    spark_comm_status st = random_name(name, error);
    if (st != SPARK_COMM_OK) return st;
    socklen_t length = abstract_address(name, &address);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, length) != 0 ||
        listen(listener, backlog) != 0) {
        st = sc_error_system(error, errno, "cannot listen on the local socket @%s", name);
        goto out;
    }
    *fd = listener;
    listener = -1;
out:
    if (listener >= 0) close(listener);
    return st;
}

/* A step of waiting with nothing to wait for but wake_fd and time. */
static spark_comm_status pause_step(int64_t deadline, int wake_fd, const char *name,
                                    struct sc_error *error) {
    int64_t step = sc_deadline_min(deadline, sc_deadline_now() + RETRY_NS);
    spark_comm_status st =
        sc_socket_wait(-1, 0, step, wake_fd, "connecting to a local socket", error);

    if (st == SPARK_COMM_OP_TIMEOUT && !sc_deadline_passed(deadline)) return SPARK_COMM_OK;
    if (st == SPARK_COMM_OP_TIMEOUT)
        return sc_error_set(error, st, -1, ETIMEDOUT,
                            "no answer by the deadline while connecting to the local socket @%s",
                            name);
    return st;
}

spark_comm_status sc_socket_unix_connect(const char *name, int64_t deadline, int wake_fd, int *fd,
                                         struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    struct sockaddr_un address;
    socklen_t length = abstract_address(name, &address);
    int dialled = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *fd = -1;
    if (dialled < 0) return sc_error_system(error, errno, "cannot make a local socket");
    while (connect(dialled, (const struct sockaddr *)&address, length) != 0) {
        if (errno == EINTR) continue;
        if (errno == EISCONN) break;
        if (errno == EAGAIN)
            st = pause_step(deadline, wake_fd, name, error);
        else
            st = sc_error_system(error, errno, "cannot connect to the local socket @%s", name);
        if (st != SPARK_COMM_OK) goto out;
    }
    *fd = dialled;
    dialled = -1;
out:
    if (dialled >= 0) close(dialled);
    return st;
}

spark_comm_status sc_socket_unix_peer(int fd, uid_t *uid, pid_t *pid, struct sc_error *error) {
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return sc_error_system(error, errno,
                               "cannot learn who is at the other end of a local socket");
    *uid = peer.uid;
    *pid = peer.pid;
    return SPARK_COMM_OK;
}

/* ---- Messages with a descriptor ---- */

union control {
    struct cmsghdr header; /* for its alignment */
    char bytes[CMSG_SPACE(sizeof(int))];
};

static spark_comm_status check_length(size_t bytes, struct sc_error *error) {
    if (bytes >= 1 && bytes <= LONGEST_MESSAGE) return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                        "a message with a descriptor has 1 to %d bytes, not %zu", LONGEST_MESSAGE,
                        bytes);
}

spark_comm_status sc_socket_send_fd(int fd, const void *data, size_t bytes, int passed,
                                    int64_t deadline, int wake_fd, struct sc_error *error) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union control control;
    ssize_t sent;

    spark_comm_status st = check_length(bytes, error);
    if (st != SPARK_COMM_OK) return st;
    if (passed >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    while ((sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return sc_socket_failed(fd, errno, "sending a descriptor to", error);
        st = sc_socket_wait(fd, POLLOUT, deadline, wake_fd, "sending a descriptor", error);
        if (st != SPARK_COMM_OK) return st;
    }
    /* The descriptor has gone with the first byte; the rest are bytes like any others. */
    return sc_socket_send(fd, (const char *)data + sent, bytes - (size_t)sent, deadline, wake_fd,
                          error);
}

/* Keeps the first descriptor of the message in *kept when there is none yet, closes all others.
 * Returns how many came. */
static size_t collect_descriptors(struct msghdr *message, int *kept) {
    size_t total = 0;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int received;
            memcpy(&received, CMSG_DATA(header) + i * sizeof received, sizeof received);
            if (*kept < 0)
                *kept = received;
            else
                close(received);
        }
        total += count;
    }
    return total;
}

/* One read with room for a descriptor. *got is 0 when nothing was there yet. */
static spark_comm_status receive_part(int fd, void *data, size_t bytes, int *passed, size_t *got,
                                      struct sc_error *error) {
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    union control control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};

    memset(&control, 0, sizeof control);
    *got = 0;
    ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0 && (errno == EINTR || errno == EAGAIN)) return SPARK_COMM_OK;
    if (received < 0) return sc_socket_failed(fd, errno, "receiving a descriptor from", error);
    bool had_one = *passed >= 0;
    size_t count = collect_descriptors(&message, passed);
    if (received == 0) return sc_socket_ended(fd, error);
    if (count > 1 || (count == 1 && had_one))
        return sc_error_set(error, SPARK_COMM_SYSTEM, -1, EBADMSG,
                            "a local peer sent more descriptors than one");
    /* The kernel drops what does not fit: several at once, or the one that this process has no room
     * for. */
    if ((message.msg_flags & MSG_CTRUNC) != 0)
        return sc_error_system(error, EMFILE, "cannot take a descriptor from a local peer");
    *got = (size_t)received;
    return SPARK_COMM_OK;
}

spark_comm_status sc_socket_recv_fd(int fd, void *data, size_t bytes, int *passed, int64_t deadline,
                                    int wake_fd, struct sc_error *error) {
    char *next = data;
    int received = -1;

    *passed = -1;
    spark_comm_status st = check_length(bytes, error);
    while (st == SPARK_COMM_OK && bytes > 0) {
        size_t got;
        st = receive_part(fd, next, bytes, &received, &got, error);
        next += got;
        bytes -= got;
        if (st == SPARK_COMM_OK && got == 0)
            st = sc_socket_wait(fd, POLLIN, deadline, wake_fd, "receiving a descriptor", error);
    }
    if (st == SPARK_COMM_OK)
        *passed = received;
    else if (received >= 0)
        close(received);
    return st;
}
