/*
 * Sockets: addresses of both families, listening and connecting with every way to fail, whole transfers against slow, closing
 * and resetting peers, deadlines and wake-ups, descriptors passed between processes, descriptor limits, and a steady signal.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/deadline.h"
#include "os/socket.h"
#include "os/thread.h"

#define MS INT64_C(1000000)
#define SOON sc_deadline_after(10000)

/* ---- Helpers ---- */

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void on_signal(int number) {
    (void)number;
}

static void start_storm(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval every = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void stop_storm(void) {
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
}

static struct sc_socket_address address_of(const char *host, int port) {
    struct sc_socket_address address;
    struct sc_error error;
    size_t count;
    sc_error_clear(&error);
    if (sc_socket_resolve(host, port, &address, 1, &count, &error) != SPARK_COMM_OK)
        fail_msg("%s", error.message);
    return address;
}

static const char *text_of(const struct sc_socket_address *address) {
    static char text[SC_SOCKET_TEXT_BYTES];
    return sc_socket_address_text(address, text, sizeof text);
}

/* A listener on a free port of 127.0.0.1; its address with the port. */
static int listener_at(struct sc_socket_address *address, int backlog) {
    int fd = -1;
    struct sc_socket_address any = address_of("127.0.0.1", 0);
    assert_int_equal(sc_socket_listen(&any, backlog, &fd, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_local(fd, address, NULL), SPARK_COMM_OK);
    return fd;
}

static int accept_one(int listener) {
    int fd = -1;
    int64_t deadline = SOON;
    while (fd < 0 && !sc_deadline_passed(deadline))
        assert_int_equal(sc_socket_accept(listener, &fd, NULL, NULL), SPARK_COMM_OK);
    assert_true(fd >= 0);
    return fd;
}

static void tcp_pair(int ends[2]) {
    struct sc_socket_address address;
    int listener = listener_at(&address, 4);
    assert_int_equal(sc_socket_connect(&address, SOON, -1, &ends[0], NULL), SPARK_COMM_OK);
    ends[1] = accept_one(listener);
    close(listener);
}

static void unix_pair(int ends[2]) {
    char name[64];
    int listener;
    assert_int_equal(sc_socket_unix_listen(name, sizeof name, 4, &listener, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_unix_connect(name, SOON, -1, &ends[0], NULL), SPARK_COMM_OK);
    ends[1] = accept_one(listener);
    close(listener);
}

static void close_both(const int ends[2]) {
    close(ends[0]);
    close(ends[1]);
}

static void expect_flags(int fd) {
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
}

/* ---- Addresses ---- */

static void test_resolve(void **state) {
    (void)state;
    struct sc_socket_address found[8];
    struct sc_error error;
    size_t count = 99;
    struct sc_socket_address v4 = address_of("127.0.0.1", 29500);
    struct sc_socket_address v6 = address_of("[::1]", 65535);
    assert_string_equal(text_of(&v4), "127.0.0.1:29500");
    assert_string_equal(text_of(&v6), "[::1]:65535");
    v6 = address_of("::1", 1);
    assert_string_equal(text_of(&v6), "[::1]:1");
    assert_int_equal(sc_socket_port(&v4), 29500);
    if (if_nametoindex("lo") != 0) {
        struct sc_socket_address scoped = address_of("[fe80::1%lo]", 7);
        assert_string_equal(text_of(&scoped), "[fe80::1%lo]:7");
    }
    assert_int_equal(sc_socket_resolve("localhost", 5, found, 8, &count, NULL), SPARK_COMM_OK);
    assert_true(count >= 1);
    for (size_t i = 0; i < count; i++) {
        assert_true(sc_socket_is_loopback(&found[i]));
        assert_int_equal(sc_socket_port(&found[i]), 5);
        for (size_t k = 0; k < i; k++)
            assert_false(sc_socket_same_host(&found[i], &found[k]));
    }
    char text_300[301];
    memset(text_300, 'a', 300);
    text_300[300] = '\0';
    const char *const bad[] = {"", "[]", text_300, "fe80::1%no_such_interface"};
    for (size_t i = 0; i < 4; i++) {
        sc_error_clear(&error);
        assert_int_equal(sc_socket_resolve(bad[i], 5, found, 8, &count, &error),
                         SPARK_COMM_UNAVAILABLE);
        assert_int_equal(count, 0);
        assert_true(error.message[0] != '\0');
    }
    assert_int_equal(sc_socket_resolve("127.0.0.1", 5, found, 0, &count, NULL),
                     SPARK_COMM_UNAVAILABLE);
}

static void test_compare(void **state) {
    (void)state;
    struct sc_socket_address a = address_of("127.0.0.1", 1);
    struct sc_socket_address mapped = address_of("::ffff:127.0.0.1", 2);
    struct sc_socket_address other = address_of("127.0.0.2", 1);
    struct sc_socket_address v6 = address_of("::1", 1);
    struct sc_socket_address public = address_of("192.0.2.7", 1);
    struct sc_socket_address public_v6 = address_of("2001:db8::1", 1);
    assert_true(sc_socket_same_host(&a, &mapped) && sc_socket_same_host(&mapped, &a));
    assert_false(sc_socket_same_host(&a, &other) || sc_socket_same_host(&a, &v6) ||
                 sc_socket_same_host(&mapped, &v6));
    assert_true(sc_socket_same_host(&v6, &v6) && !sc_socket_same_host(&v6, &public_v6));
    assert_true(sc_socket_is_loopback(&a) && sc_socket_is_loopback(&mapped) &&
                sc_socket_is_loopback(&other) && sc_socket_is_loopback(&v6));
    assert_false(sc_socket_is_loopback(&public) || sc_socket_is_loopback(&public_v6));
    if (if_nametoindex("lo") != 0) {
        struct sc_socket_address scoped = address_of("fe80::1%lo", 1);
        struct sc_socket_address unscoped = address_of("fe80::1", 1);
        assert_false(sc_socket_same_host(&scoped, &unscoped));
    }
    struct sc_socket_address nothing;
    memset(&nothing, 0, sizeof nothing);
    assert_false(sc_socket_same_host(&nothing, &nothing) || sc_socket_is_loopback(&nothing));
    assert_int_equal(sc_socket_port(&nothing), 0);
    assert_string_equal(text_of(&nothing), "unknown address");
}

/* ---- Listening, accepting, connecting ---- */

static void test_listen_and_connect(void **state) {
    (void)state;
    const char *const hosts[] = {"127.0.0.1", "::1"};
    for (size_t i = 0; i < 2; i++) {
        struct sc_socket_address address = address_of(hosts[i], 0);
        struct sc_socket_address peer;
        struct sc_socket_address local;
        struct sc_error error;
        int listener;
        int client;
        int server = -2;
        if (sc_socket_listen(&address, 8, &listener, &error) != SPARK_COMM_OK) {
            print_message("no %s here: %s\n", hosts[i], error.message);
            continue;
        }
        expect_flags(listener);
        assert_int_equal(sc_socket_local(listener, &address, NULL), SPARK_COMM_OK);
        assert_true(sc_socket_port(&address) > 0);
        assert_int_equal(sc_socket_accept(listener, &server, &peer, NULL), SPARK_COMM_OK);
        assert_int_equal(server, -1);
        assert_int_equal(sc_socket_connect(&address, SOON, -1, &client, NULL), SPARK_COMM_OK);
        while (server < 0)
            assert_int_equal(sc_socket_accept(listener, &server, &peer, NULL), SPARK_COMM_OK);
        expect_flags(client);
        expect_flags(server);
        assert_int_equal(sc_socket_local(client, &local, NULL), SPARK_COMM_OK);
        assert_true(sc_socket_same_host(&local, &peer));
        assert_int_equal(sc_socket_port(&local), sc_socket_port(&peer));
        assert_int_equal(sc_socket_remote(client, &peer, NULL), SPARK_COMM_OK);
        assert_int_equal(sc_socket_port(&peer), sc_socket_port(&address));
        sc_socket_tune(client, 5000);
        sc_socket_tune(server, 0);
        close(client);
        close(server);
        /* The port may be taken again at once, although connections of it linger. */
        close(listener);
        assert_int_equal(sc_socket_listen(&address, 8, &listener, NULL), SPARK_COMM_OK);
        close(listener);
    }
}

static void test_port_in_use(void **state) {
    (void)state;
    struct sc_socket_address address;
    struct sc_error error;
    int listener = listener_at(&address, 4);
    int second = -2;
    assert_int_equal(sc_socket_listen(&address, 4, &second, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(second, -1);
    assert_int_equal(error.native_code, EADDRINUSE);
    assert_non_null(strstr(error.message, text_of(&address)));
    close(listener);
    struct sc_socket_address foreign = address_of("192.0.2.7", 1);
    assert_int_equal(sc_socket_listen(&foreign, 4, &second, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, EADDRNOTAVAIL);
    assert_int_equal(sc_socket_accept(0, &second, NULL, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(second, -1);
    assert_int_equal(sc_socket_local(-1, &foreign, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(sc_socket_remote(-1, &foreign, &error), SPARK_COMM_SYSTEM);
}

static void test_connect_fails(void **state) {
    (void)state;
    struct sc_socket_address address;
    struct sc_error error;
    int client = -2;
    int before = open_descriptors();
    close(listener_at(&address, 1));
    assert_int_equal(sc_socket_connect(&address, SOON, -1, &client, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, ECONNREFUSED);
    assert_int_equal(client, -1);
    assert_non_null(strstr(error.message, text_of(&address)));
    assert_int_equal(open_descriptors(), before);
}

/* A full backlog never answers: the deadline and the wake-up end the wait. */
static void test_connect_waits(void **state) {
    (void)state;
    struct sc_socket_address address;
    struct sc_error error;
    int listener = listener_at(&address, 0);
    int clients[16];
    size_t count = 0;
    spark_comm_status st = SPARK_COMM_OK;
    int before = open_descriptors();
    while (count < 16 && st == SPARK_COMM_OK) {
        st = sc_socket_connect(&address, sc_deadline_after(100), -1, &clients[count], &error);
        count += st == SPARK_COMM_OK;
    }
    assert_int_equal(st, SPARK_COMM_OP_TIMEOUT);
    assert_non_null(strstr(error.message, text_of(&address)));
    int wake = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(sc_socket_connect(&address, SOON, wake, &clients[count], &error),
                     SPARK_COMM_ABORTED);
    assert_int_equal(clients[count], -1);
    close(wake);
    while (count > 0)
        close(clients[--count]);
    assert_int_equal(open_descriptors(), before);
    close(listener);
}

/* In a network of its own where every outgoing connection has the port that is dialled. 77: no such network to be had. */
static int connect_to_oneself(void) {
    struct ifreq interface = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct sc_error error;
    int client = -1;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return 77;
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int range = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC);
    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &interface) != 0 || range < 0 ||
        write(range, "40001 40001", 11) != 11)
        return 77;
    struct sc_socket_address address = address_of("127.0.0.1", 40001);
    spark_comm_status st = sc_socket_connect(&address, SOON, -1, &client, &error);
    return st == SPARK_COMM_SYSTEM && error.native_code == ECONNREFUSED && client == -1 ? 0 : 1;
}

static void test_never_connects_to_itself(void **state) {
    (void)state;
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(connect_to_oneself());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        print_message("no network namespace to be had\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_descriptor_limit(void **state) {
    (void)state;
    struct sc_socket_address address;
    struct sc_error errors[4];
    spark_comm_status st[4];
    struct rlimit saved;
    char name[64];
    int fd;
    int listener = listener_at(&address, 4);
    int waiting;
    assert_int_equal(sc_socket_connect(&address, SOON, -1, &waiting, NULL), SPARK_COMM_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
    struct rlimit none = {.rlim_cur = 3, .rlim_max = saved.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    st[0] = sc_socket_listen(&address, 4, &fd, &errors[0]);
    st[1] = sc_socket_connect(&address, SOON, -1, &fd, &errors[1]);
    st[2] = sc_socket_accept(listener, &fd, NULL, &errors[2]);
    st[3] = sc_socket_unix_listen(name, sizeof name, 4, &fd, &errors[3]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(st[i], SPARK_COMM_SYSTEM);
        assert_int_equal(errors[i].native_code, EMFILE);
        assert_non_null(strstr(errors[i].message, "3 descriptors"));
    }
    close(waiting);
    close(listener);
}

/* ---- Transfers ---- */

#define LARGE (4u << 20)

struct transfer {
    int fd;
    bool ends_slowly;
    spark_comm_status st;
    unsigned char *data;
};

static unsigned char byte_at(size_t i) {
    return (unsigned char)(i * 7 + (i >> 11));
}

static void *receive_large(void *arg) {
    struct transfer *transfer = arg;
    size_t done = 0;
    while (done < LARGE && transfer->st == SPARK_COMM_OK) {
        size_t part = LARGE - done < 100003 ? LARGE - done : 100003;
        transfer->st = sc_socket_recv(transfer->fd, transfer->data + done, part, SOON, -1, NULL);
        done += part;
    }
    return NULL;
}

static void transfer_large(const int ends[2]) {
    unsigned char *out = malloc(LARGE);
    struct transfer transfer = {.fd = ends[1], .data = malloc(LARGE)};
    pthread_t thread;
    assert_true(out != NULL && transfer.data != NULL);
    for (size_t i = 0; i < LARGE; i++)
        out[i] = byte_at(i);
    assert_int_equal(sc_thread_start(&thread, "receiver", receive_large, &transfer, NULL),
                     SPARK_COMM_OK);
    spark_comm_status st = sc_socket_send(ends[0], out, LARGE, SOON, -1, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(st, SPARK_COMM_OK);
    assert_int_equal(transfer.st, SPARK_COMM_OK);
    assert_memory_equal(out, transfer.data, LARGE);
    free(out);
    free(transfer.data);
}

static void test_large_transfers(void **state) {
    (void)state;
    int ends[2];
    tcp_pair(ends);
    transfer_large(ends);
    start_storm();
    transfer_large(ends);
    stop_storm();
    close_both(ends);
    unix_pair(ends);
    transfer_large(ends);
    close_both(ends);
}

static void test_nothing(void **state) {
    (void)state;
    int ends[2];
    tcp_pair(ends);
    assert_int_equal(sc_socket_send(ends[0], NULL, 0, 0, -1, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_recv(ends[0], NULL, 0, 0, -1, NULL), SPARK_COMM_OK);
    close_both(ends);
}

static void test_receive_deadline(void **state) {
    (void)state;
    int ends[2];
    char text[8];
    struct sc_error error;
    tcp_pair(ends);
    for (int storm = 0; storm < 2; storm++) {
        if (storm) start_storm();
        int64_t start = sc_deadline_now();
        spark_comm_status st = sc_socket_recv(ends[0], text, 8, sc_deadline_after(60), -1, &error);
        int64_t took = sc_deadline_now() - start;
        stop_storm();
        assert_int_equal(st, SPARK_COMM_OP_TIMEOUT);
        assert_true(took >= 60 * MS && took < 600 * MS);
    }
    assert_int_equal(sc_socket_recv(ends[0], text, 8, 0, -1, NULL), SPARK_COMM_OP_TIMEOUT);
    /* What is there is taken even past the deadline. */
    assert_int_equal(sc_socket_send(ends[1], "12345678", 8, 0, -1, NULL), SPARK_COMM_OK);
    int64_t until = SOON;
    spark_comm_status st = SPARK_COMM_OP_TIMEOUT;
    while (st == SPARK_COMM_OP_TIMEOUT && !sc_deadline_passed(until))
        st = sc_socket_recv(ends[0], text, 8, 0, -1, NULL);
    assert_int_equal(st, SPARK_COMM_OK);
    assert_memory_equal(text, "12345678", 8);
    close_both(ends);
}

static void test_send_deadline_and_wake(void **state) {
    (void)state;
    int ends[2];
    size_t bytes = (size_t)64 << 20;
    char *data = calloc(1, bytes);
    assert_non_null(data);
    int wake = eventfd(0, EFD_CLOEXEC);
    tcp_pair(ends);
    int64_t start = sc_deadline_now();
    assert_int_equal(sc_socket_send(ends[0], data, bytes, sc_deadline_after(60), wake, NULL),
                     SPARK_COMM_OP_TIMEOUT);
    assert_true(sc_deadline_now() - start >= 60 * MS);
    assert_int_equal(write(wake, &(uint64_t){1}, 8), 8);
    assert_int_equal(sc_socket_send(ends[0], data, bytes, SOON, wake, NULL), SPARK_COMM_ABORTED);
    close(wake);
    free(data);
    close_both(ends);
}

static void test_receive_wake(void **state) {
    (void)state;
    int ends[2];
    char text[8];
    struct sc_error error;
    int wake = eventfd(1, EFD_CLOEXEC);
    tcp_pair(ends);
    assert_int_equal(sc_socket_recv(ends[0], text, 8, SC_DEADLINE_NEVER, wake, &error),
                     SPARK_COMM_ABORTED);
    /* A wake-up takes nothing away from what has arrived. */
    assert_int_equal(sc_socket_send(ends[1], "abcdefgh", 8, SOON, -1, NULL), SPARK_COMM_OK);
    int64_t until = SOON;
    spark_comm_status st = SPARK_COMM_ABORTED;
    while (st == SPARK_COMM_ABORTED && !sc_deadline_passed(until))
        st = sc_socket_recv(ends[0], text, 8, SC_DEADLINE_NEVER, wake, NULL);
    assert_int_equal(st, SPARK_COMM_OK);
    assert_memory_equal(text, "abcdefgh", 8);
    close(wake);
    close_both(ends);
}

static void test_peer_closes(void **state) {
    (void)state;
    int ends[2];
    char text[8];
    struct sc_error error;
    tcp_pair(ends);
    assert_int_equal(sc_socket_send(ends[1], "1234", 4, SOON, -1, NULL), SPARK_COMM_OK);
    close(ends[1]);
    assert_int_equal(sc_socket_recv(ends[0], text, 8, SOON, -1, &error), SPARK_COMM_PEER_LOST);
    assert_int_equal(error.status, SPARK_COMM_PEER_LOST);
    assert_non_null(strstr(error.message, "closed"));
    assert_non_null(strstr(error.message, "127.0.0.1:"));
    /* The first send is answered by a reset, a later one fails. No signal ends us. */
    spark_comm_status st = SPARK_COMM_OK;
    int64_t until = SOON;
    while (st == SPARK_COMM_OK && !sc_deadline_passed(until))
        st = sc_socket_send(ends[0], text, 8, SOON, -1, &error);
    assert_int_equal(st, SPARK_COMM_PEER_LOST);
    assert_int_equal(error.status, SPARK_COMM_PEER_LOST);
    close(ends[0]);
    unix_pair(ends);
    close(ends[1]);
    assert_int_equal(sc_socket_send(ends[0], text, 8, SOON, -1, NULL), SPARK_COMM_PEER_LOST);
    assert_int_equal(sc_socket_recv(ends[0], text, 8, SOON, -1, NULL), SPARK_COMM_PEER_LOST);
    close(ends[0]);
}

static void test_peer_resets(void **state) {
    (void)state;
    int ends[2];
    char text[8];
    struct sc_error error;
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    tcp_pair(ends);
    assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(ends[1]);
    assert_int_equal(sc_socket_recv(ends[0], text, 8, SOON, -1, &error), SPARK_COMM_PEER_LOST);
    assert_int_equal(error.native_code, ECONNRESET);
    close(ends[0]);
    assert_int_equal(sc_socket_recv(-1, text, 8, SOON, -1, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(sc_socket_send(-1, text, 8, SOON, -1, &error), SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, EBADF);
}

/* ---- Unix sockets ---- */

static void test_unix(void **state) {
    (void)state;
    char name[64];
    char other[64];
    struct sc_error error;
    struct sc_socket_address address;
    uid_t uid = 12345;
    pid_t pid = -1;
    int listener;
    int second;
    int ends[2];
    int before = open_descriptors();
    assert_int_equal(sc_socket_unix_listen(name, 63, 4, &listener, &error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_socket_unix_listen(name, sizeof name, 4, &listener, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_unix_listen(other, sizeof other, 4, &second, NULL), SPARK_COMM_OK);
    assert_string_not_equal(name, other);
    expect_flags(listener);
    assert_int_equal(sc_socket_local(listener, &address, NULL), SPARK_COMM_OK);
    assert_int_equal(text_of(&address)[0], '@');
    assert_string_equal(text_of(&address) + 1, name);
    close(second);
    assert_int_equal(sc_socket_unix_connect(other, SOON, -1, &ends[0], &error), SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, ECONNREFUSED);
    assert_int_equal(sc_socket_unix_connect(name, SOON, -1, &ends[0], NULL), SPARK_COMM_OK);
    ends[1] = accept_one(listener);
    expect_flags(ends[0]);
    assert_int_equal(sc_socket_unix_peer(ends[1], &uid, &pid, NULL), SPARK_COMM_OK);
    assert_int_equal(uid, geteuid());
    assert_int_equal(pid, getpid());
    assert_int_equal(sc_socket_unix_peer(-1, &uid, &pid, &error), SPARK_COMM_SYSTEM);
    close_both(ends);
    close(listener);
    assert_int_equal(open_descriptors(), before);
}

static void test_unix_backlog(void **state) {
    (void)state;
    char name[64];
    struct sc_error error;
    int clients[64];
    size_t count = 0;
    int listener;
    spark_comm_status st = SPARK_COMM_OK;
    int before = open_descriptors();
    assert_int_equal(sc_socket_unix_listen(name, sizeof name, 1, &listener, NULL), SPARK_COMM_OK);
    while (count < 63 && st == SPARK_COMM_OK) {
        st = sc_socket_unix_connect(name, sc_deadline_after(50), -1, &clients[count], &error);
        count += st == SPARK_COMM_OK;
    }
    assert_int_equal(st, SPARK_COMM_OP_TIMEOUT);
    assert_non_null(strstr(error.message, name));
    int wake = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(sc_socket_unix_connect(name, SOON, wake, &clients[count], &error),
                     SPARK_COMM_ABORTED);
    close(wake);
    /* Room appears: the next attempt gets through. */
    close(accept_one(listener));
    assert_int_equal(sc_socket_unix_connect(name, SOON, -1, &clients[count], &error),
                     SPARK_COMM_OK);
    count++;
    while (count > 0)
        close(clients[--count]);
    close(listener);
    assert_int_equal(open_descriptors(), before);
}

static int file_with(const char *text) {
    int fd = memfd_create("text", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

static void expect_file(int fd, const char *text) {
    char got[64] = "";
    assert_true(fd >= 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(pread(fd, got, sizeof got - 1, 0), (ssize_t)strlen(text));
    assert_string_equal(got, text);
    close(fd);
}

static void test_pass_descriptors(void **state) {
    (void)state;
    int ends[2];
    char data[256];
    char got[256];
    int passed = -2;
    int before = open_descriptors();
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)i;
    unix_pair(ends);
    int first = file_with("first");
    int second = file_with("second");
    /* Several messages in a row stay apart, each with its own descriptor or none. */
    assert_int_equal(sc_socket_send_fd(ends[0], data, 100, first, SOON, -1, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_send_fd(ends[0], data, 1, -1, SOON, -1, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_socket_send_fd(ends[0], data, 256, second, SOON, -1, NULL), SPARK_COMM_OK);
    close(first);
    close(second);
    start_storm();
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 100, &passed, SOON, -1, NULL), SPARK_COMM_OK);
    stop_storm();
    assert_memory_equal(data, got, 100);
    expect_file(passed, "first");
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 1, &passed, SOON, -1, NULL), SPARK_COMM_OK);
    assert_int_equal(passed, -1);
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 256, &passed, SOON, -1, NULL), SPARK_COMM_OK);
    assert_memory_equal(data, got, 256);
    expect_file(passed, "second");

    assert_int_equal(sc_socket_recv_fd(ends[1], got, 1, &passed, sc_deadline_after(20), -1, NULL),
                     SPARK_COMM_OP_TIMEOUT);
    int wake = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 1, &passed, SOON, wake, NULL),
                     SPARK_COMM_ABORTED);
    close(wake);
    assert_int_equal(sc_socket_send_fd(ends[0], data, 0, -1, SOON, -1, NULL),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_socket_send_fd(ends[0], data, 257, -1, SOON, -1, NULL),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_socket_recv_fd(ends[0], got, 257, &passed, SOON, -1, NULL),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_socket_send_fd(ends[0], data, 1, 999, SOON, -1, NULL), SPARK_COMM_SYSTEM);
    close_both(ends);
    assert_int_equal(open_descriptors(), before);
}

/* A message with `count` descriptors, as a hostile or broken peer may send it. */
static void send_many(int fd, const char *data, size_t bytes, int descriptor, size_t count) {
    int list[8];
    char control[CMSG_SPACE(sizeof list)] __attribute__((aligned(16))) = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    for (size_t i = 0; i < count; i++)
        list[i] = descriptor;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), list, count * sizeof(int));
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), (ssize_t)bytes);
}

/* A kernel closes the descriptors that a receiver has no room for. Some emulators forget them. */
static bool kernel_closes_what_does_not_fit(void) {
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(16))) = {0};
    char got[4];
    struct iovec part = {.iov_base = got, .iov_len = sizeof got};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    int received;
    int ends[2];
    unix_pair(ends);
    int before = open_descriptors();
    send_many(ends[0], "1234", 4, ends[0], 8);
    assert_int_equal(recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC), 4);
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    close(received);
    bool closes = open_descriptors() == before;
    close_both(ends);
    if (!closes) print_message("this kernel keeps descriptors that do not fit\n");
    return closes;
}

static void test_unwanted_descriptors(void **state) {
    (void)state;
    size_t most = kernel_closes_what_does_not_fit() ? 8 : 2;
    int before = open_descriptors();
    char got[8];
    int passed;
    int file = file_with("x");
    for (size_t count = 2; count <= most; count++) {
        int ends[2];
        struct sc_error error;
        unix_pair(ends);
        send_many(ends[0], "12345678", 8, file, count);
        assert_int_equal(sc_socket_recv_fd(ends[1], got, 8, &passed, SOON, -1, &error),
                         SPARK_COMM_SYSTEM);
        assert_int_equal(passed, -1);
        close_both(ends);
        assert_int_equal(open_descriptors(), before + 1);
    }
    /* One in each half of a message. */
    int ends[2];
    unix_pair(ends);
    send_many(ends[0], "1234", 4, file, 1);
    send_many(ends[0], "5678", 4, file, 1);
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 8, &passed, SOON, -1, NULL),
                     SPARK_COMM_SYSTEM);
    assert_int_equal(passed, -1);
    close_both(ends);
    assert_int_equal(open_descriptors(), before + 1);
    /* The message breaks off after its descriptor. */
    unix_pair(ends);
    send_many(ends[0], "1234", 4, file, 1);
    close(ends[0]);
    assert_int_equal(sc_socket_recv_fd(ends[1], got, 8, &passed, SOON, -1, NULL),
                     SPARK_COMM_PEER_LOST);
    assert_int_equal(passed, -1);
    close(ends[1]);
    close(file);
    assert_int_equal(open_descriptors(), before);
}

static void test_no_room_for_a_descriptor(void **state) {
    (void)state;
    int ends[2];
    char got[4];
    int passed;
    struct sc_error error;
    struct rlimit saved;
    int before = open_descriptors();
    unix_pair(ends);
    int file = file_with("x");
    assert_int_equal(sc_socket_send_fd(ends[0], "1234", 4, file, SOON, -1, NULL), SPARK_COMM_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
    struct rlimit none = {.rlim_cur = 3, .rlim_max = saved.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    spark_comm_status st = sc_socket_recv_fd(ends[1], got, 4, &passed, SOON, -1, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
    assert_int_equal(st, SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, EMFILE);
    assert_non_null(strstr(error.message, "3 descriptors"));
    assert_int_equal(passed, -1);
    close(file);
    close_both(ends);
    assert_int_equal(open_descriptors(), before);
}

/* From another process, as ranks do it. */
static void test_between_processes(void **state) {
    (void)state;
    char name[64];
    char got[16];
    int listener;
    int passed = -1;
    uid_t uid;
    pid_t pid;
    assert_int_equal(sc_socket_unix_listen(name, sizeof name, 4, &listener, NULL), SPARK_COMM_OK);
    pid_t child = fork();
    if (child == 0) {
        int fd = -1;
        int file = memfd_create("child", MFD_CLOEXEC);
        bool good =
            file >= 0 && write(file, "hello", 5) == 5 &&
            sc_socket_unix_connect(name, SOON, -1, &fd, NULL) == SPARK_COMM_OK &&
            sc_socket_send_fd(fd, "0123456789abcdef", 16, file, SOON, -1, NULL) == SPARK_COMM_OK;
        _exit(good ? 0 : 1);
    }
    int fd = accept_one(listener);
    assert_int_equal(sc_socket_unix_peer(fd, &uid, &pid, NULL), SPARK_COMM_OK);
    assert_int_equal(pid, child);
    assert_int_equal(sc_socket_recv_fd(fd, got, 16, &passed, SOON, -1, NULL), SPARK_COMM_OK);
    expect_file(passed, "hello");
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fd);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_listen_and_connect),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_connect_fails),
        cmocka_unit_test(test_connect_waits),
        cmocka_unit_test(test_never_connects_to_itself),
        cmocka_unit_test(test_descriptor_limit),
        cmocka_unit_test(test_large_transfers),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_receive_deadline),
        cmocka_unit_test(test_send_deadline_and_wake),
        cmocka_unit_test(test_receive_wake),
        cmocka_unit_test(test_peer_closes),
        cmocka_unit_test(test_peer_resets),
        cmocka_unit_test(test_unix),
        cmocka_unit_test(test_unix_backlog),
        cmocka_unit_test(test_pass_descriptors),
        cmocka_unit_test(test_unwanted_descriptors),
        cmocka_unit_test(test_no_room_for_a_descriptor),
        cmocka_unit_test(test_between_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
