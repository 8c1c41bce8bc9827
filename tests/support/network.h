/*
 * A network for each rank, which a test can take away: namespaces joined by veth pairs and a bridge
 * in a namespace of its own. They have no names, so nothing stays when a test is killed. Needs root
 * and ip(8).
 */
#ifndef TESTS_SUPPORT_NETWORK_H
#define TESTS_SUPPORT_NETWORK_H

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NETWORK_RANKS 3
#define NETWORK_BRIDGE NETWORK_RANKS
#define NETWORK_HEAD "10.77.0.1" /* of rank 0; the others follow */
#define NETWORK_NEEDS "network namespaces with veth need root, CAP_SYS_ADMIN and ip(8)"

static int network_home = -1;
static int network_of[NETWORK_RANKS + 1]; /* descriptors; the last one has the bridge */

static inline bool network_enter(int descriptor) {
    return setns(descriptor, CLONE_NEWNET) == 0;
}

/* ip(8) in one of the namespaces. */
__attribute__((format(printf, 2, 3))) static inline bool network_ip(int number, const char *format,
                                                                    ...) {
    char command[256] = "ip ";
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(command + 3, sizeof command - 20, format, arguments);
    va_end(arguments);
    strcat(command, " 2>/dev/null");
    if (!network_enter(network_of[number])) return false;
    bool done = system(command) == 0;
    return network_enter(network_home) && done;
}

static inline bool network_make(int number) {
    if (unshare(CLONE_NEWNET) != 0) return false;
    network_of[number] = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    return network_enter(network_home) && network_of[number] >= 0 &&
           network_ip(number, "link set lo up");
}

static inline bool network_set_up(void) {
    network_home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    bool done = network_home >= 0;

    for (int i = 0; i <= NETWORK_RANKS && done; i++)
        done = network_make(i);
    done = done && network_ip(NETWORK_BRIDGE, "link add name bridge0 type bridge") &&
           network_ip(NETWORK_BRIDGE, "link set bridge0 up");
    for (int i = 0; i < NETWORK_RANKS && done; i++)
        done =
            network_ip(NETWORK_BRIDGE, "link add e%d type veth peer name eth netns /proc/%d/fd/%d",
                       i, (int)getpid(), network_of[i]) &&
            network_ip(NETWORK_BRIDGE, "link set e%d master bridge0 up", i) &&
            network_ip(i, "addr add 10.77.0.%d/24 dev eth", i + 1) &&
            network_ip(i, "link set eth up");
    return done;
}

/* Takes a rank's network away, or gives it back. */
static inline bool network_switch(int rank, bool on) {
    return network_ip(NETWORK_BRIDGE, "link set e%d %s", rank, on ? "up" : "down");
}

#endif
