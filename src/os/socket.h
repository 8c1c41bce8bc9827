/*
 * Stream sockets with deadlines. Every descriptor is CLOEXEC and non-blocking. Interrupted calls
 * are restarted with the time that is left. `wake_fd` (-1: none) is a descriptor that becomes
 * readable when the wait must end: the call then returns ABORTED. Functions set `error` with a
 * sentence that names the address.
 */
#ifndef SC_OS_SOCKET_H
#define SC_OS_SOCKET_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/error.h"

/* A numeric IPv4 or IPv6 address with port; fits in a wire record. */
struct sc_socket_address {
    struct sockaddr_storage storage;
    socklen_t length;
};

/* Every address that `host` resolves to (both families, order of the resolver), with `port`. At
 * most `capacity`; *count says how many. UNAVAILABLE with the resolver's text when there is
 * none. Brackets around an IPv6 literal are accepted. A name takes as long as the name service
 * does. */
spark_comm_status sc_socket_resolve(const char *host, int port, struct sc_socket_address *out,
                                    size_t capacity, size_t *count, struct sc_error *error);
/* The same, by a deadline: OPEN_TIMEOUT, also (within 50 ms) once *give_up is not 0. */
spark_comm_status sc_socket_look_up(const char *host, int port, int64_t deadline,
                                    const _Atomic uint32_t *give_up, struct sc_socket_address *out,
                                    size_t capacity, size_t *count, struct sc_error *error);
/* "127.0.0.1:29500", "[::1]:29500". Returns text. */
#define SC_SOCKET_TEXT_BYTES 80
const char *sc_socket_address_text(const struct sc_socket_address *address, char *text,
                                   size_t size);
bool sc_socket_is_loopback(const struct sc_socket_address *address);
/* The same host part (ports are ignored; IPv4-mapped IPv6 equals IPv4). */
bool sc_socket_same_host(const struct sc_socket_address *a, const struct sc_socket_address *b);
int sc_socket_port(const struct sc_socket_address *address);

/* Bound and listening, SO_REUSEADDR, IPV6_V6ONLY. A port in use: SYSTEM with EADDRINUSE, naming
 * address and port. */
spark_comm_status sc_socket_listen(const struct sc_socket_address *address, int backlog, int *fd,
                                   struct sc_error *error);
/* The next pending connection; *fd -1 when there is none. Never blocks. */
spark_comm_status sc_socket_accept(int listener, int *fd, struct sc_socket_address *peer,
                                   struct sc_error *error);
/* One attempt. SYSTEM with errno in native_code (ECONNREFUSED, ...) when it fails before the
 * deadline, OP_TIMEOUT at it. */
spark_comm_status sc_socket_connect(const struct sc_socket_address *address, int64_t deadline,
                                    int wake_fd, int *fd, struct sc_error *error);
/* The same without waiting: what becomes of it shows at the first use, as EAGAIN or an error. */
spark_comm_status sc_socket_connect_start(const struct sc_socket_address *address, int *fd,
                                          struct sc_error *error);
/* TCP_NODELAY, SO_KEEPALIVE (60 s), TCP_USER_TIMEOUT where given (0: leave). */
void sc_socket_tune(int fd, int user_timeout_ms);
/* All `bytes`, or an error: PEER_LOST at end of file or reset, OP_TIMEOUT, ABORTED, SYSTEM. */
spark_comm_status sc_socket_send(int fd, const void *data, size_t bytes, int64_t deadline,
                                 int wake_fd, struct sc_error *error);
spark_comm_status sc_socket_recv(int fd, void *data, size_t bytes, int64_t deadline, int wake_fd,
                                 struct sc_error *error);
/* Local and remote address of a connected socket. */
spark_comm_status sc_socket_local(int fd, struct sc_socket_address *out, struct sc_error *error);
spark_comm_status sc_socket_remote(int fd, struct sc_socket_address *out, struct sc_error *error);

/*
 * Unix sockets that pass descriptors between processes of one user. Names are in the abstract
 * namespace: nothing to unlink, and only processes of the same network namespace see them.
 */
/* Listens under a fresh random name, written to `name` (printable, NUL-terminated, at least 64
 * bytes). */
spark_comm_status sc_socket_unix_listen(char *name, size_t size, int backlog, int *fd,
                                        struct sc_error *error);
spark_comm_status sc_socket_unix_connect(const char *name, int64_t deadline, int wake_fd, int *fd,
                                         struct sc_error *error);
/* User and process of the other end (SO_PEERCRED). */
spark_comm_status sc_socket_unix_peer(int fd, uid_t *uid, pid_t *pid, struct sc_error *error);
/* One message of `bytes` (at most 256) with `passed` as SCM_RIGHTS (-1: none). */
spark_comm_status sc_socket_send_fd(int fd, const void *data, size_t bytes, int passed,
                                    int64_t deadline, int wake_fd, struct sc_error *error);
/* *passed is -1 when none came; CLOEXEC otherwise. */
spark_comm_status sc_socket_recv_fd(int fd, void *data, size_t bytes, int *passed, int64_t deadline,
                                    int wake_fd, struct sc_error *error);

#endif
