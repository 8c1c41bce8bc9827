/* Inside of socket*.c: waiting for a socket, and the sentences for its failures. */
#ifndef SC_OS_SOCKET_WAIT_H
#define SC_OS_SOCKET_WAIT_H

#include <poll.h>

#include "os/socket.h"

/* Until `fd` has one of `events` (or an error to fetch): OK, OP_TIMEOUT or ABORTED. `what` ends "no
 * answer while ...". */
spark_comm_status sc_socket_wait(int fd, short events, int64_t deadline, int wake_fd,
                                 const char *what, struct sc_error *error);
/* PEER_LOST for an errno that says so, SYSTEM for others. `verb`: "sending to", "receiving from".
 */
spark_comm_status sc_socket_failed(int fd, int errno_value, const char *verb,
                                   struct sc_error *error);
/* PEER_LOST at the end of file. */
spark_comm_status sc_socket_ended(int fd, struct sc_error *error);

#endif
