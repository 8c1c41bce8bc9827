/*
 * What the ranks of a job share: its token, the port where rank 0 will listen, and which CPU each
 * rank gets. Made by the launcher before it forks.
 */
#include "cli.h"
#include "launch.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* 256 random bits in hex, from the kernel. A token that the user set is kept: that is how the
 * launchers of several nodes agree, and how a process started by hand can join. */
static bool make_token(struct sc_launch_job *job) {
    const char *given = getenv("SPARK_COMM_JOB_TOKEN");
    if (given && *given) return true; /* inherited by the ranks as it is */

    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        sc_cli_error(job->plan->command, "no random bytes for the job token: %s", strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(job->token + 2 * i, 3, "%02x", bytes[i]);
    }
    return true;
}

/*
 * Binds a free port and keeps the socket, bound but never listening, until the job ends. With
 * SO_REUSEADDR on both sides Linux lets rank 0 bind and listen there all the same (only a listening
 * socket excludes another), while the port stays taken for everybody else: for a bind without
 * SO_REUSEADDR, for a bind that asks for any free port, and for outgoing connections. So the port
 * cannot be lost between choosing it here and rank 0's bind, which may come minutes later.
 */
static int reserve_port(const struct addrinfo *address, int *port) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {0};
    socklen_t length = sizeof bound;
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
        getsockname(fd, &bound.any, &length) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    return fd;
}

static bool choose_port(struct sc_launch_job *job) {
    const struct sc_launch_plan *plan = job->plan;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *addresses = NULL;

    job->master_port = plan->master_port;
    if (plan->master_port) return true;
    if (plan->nodes > 1) {
        job->master_port = SC_LAUNCH_DEFAULT_PORT;
        return true;
    }

    int rc = getaddrinfo(plan->master_addr, "0", &hints, &addresses);
    if (rc != 0) {
        sc_cli_error(plan->command, "cannot resolve --master-addr %s: %s", plan->master_addr,
                     gai_strerror(rc));
        return false;
    }
    for (struct addrinfo *each = addresses; each && job->port_socket < 0; each = each->ai_next) {
        job->port_socket = reserve_port(each, &job->master_port);
    }
    if (job->port_socket < 0) {
        sc_cli_error(plan->command,
                     "no free port on %s: %s; name an address of this machine, or give "
                     "--master-port",
                     plan->master_addr, strerror(errno));
    }
    freeaddrinfo(addresses);
    return job->port_socket >= 0;
}

static bool choose_cpus(struct sc_launch_job *job) {
    int count = 0;
    if (!job->plan->bind_cores) return true;
    job->cpus = sc_cli_allowed_cpus(&count);
    if (job->cpus && count >= job->plan->ranks) return true;

    sc_cli_error(job->plan->command,
                 "--bind core: %d ranks, but only %d CPUs may be used here; not binding",
                 job->plan->ranks, count);
    free(job->cpus);
    job->cpus = NULL;
    return true;
}

bool sc_launch_job_prepare(struct sc_launch_job *job, const struct sc_launch_plan *plan) {
    *job = (struct sc_launch_job){.plan = plan, .port_socket = -1};
    return make_token(job) && choose_port(job) && choose_cpus(job);
}

void sc_launch_job_destroy(struct sc_launch_job *job) {
    if (job->port_socket >= 0) close(job->port_socket);
    job->port_socket = -1;
    free(job->cpus);
    job->cpus = NULL;
}
