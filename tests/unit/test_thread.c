/* Threads of the library's own: name and signal mask; forks counted; CPUs; identity of the host; pidfds. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "os/thread.h"

struct seen {
    char name[32];
    sigset_t mask;
};

static void *look_around(void *arg) {
    struct seen *seen = arg;
    pthread_sigmask(SIG_BLOCK, NULL, &seen->mask);
    return arg;
}

static void test_start(void **state) {
    (void)state;
    struct seen seen;
    sigset_t before;
    sigset_t after;
    pthread_t thread;
    void *result = NULL;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(sc_thread_start(&thread, "a name longer than fits", look_around, &seen, NULL),
                     SPARK_COMM_OK);
    pthread_getname_np(thread, seen.name, sizeof seen.name);
    pthread_join(thread, &result);
    assert_ptr_equal(result, &seen);
    const int blocked[] = {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD, SIGPIPE};
    for (size_t i = 0; i < sizeof blocked / sizeof blocked[0]; i++)
        assert_true(sigismember(&seen.mask, blocked[i]));
    assert_false(sigismember(&seen.mask, SIGSEGV));
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_true(sigismember(&after, SIGUSR2));
    assert_false(sigismember(&after, SIGUSR1));
    sigemptyset(&after);
    pthread_sigmask(SIG_SETMASK, &after, NULL);
}

static void *rest(void *arg) {
    char byte;
    int fd = *(int *)arg;
    while (read(fd, &byte, 1) < 0 && errno == EINTR) {
    }
    return NULL;
}

static void test_name(void **state) {
    (void)state;
    char name[32] = "";
    int ends[2];
    pthread_t thread;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(sc_thread_start(&thread, "a name longer than fits", rest, &ends[0], NULL),
                     SPARK_COMM_OK);
    assert_int_equal(pthread_getname_np(thread, name, sizeof name), 0);
    assert_string_equal(name, "a name longer t");
    close(ends[1]);
    pthread_join(thread, NULL);
    close(ends[0]);
}

static void test_forks(void **state) {
    (void)state;
    uint32_t count = sc_thread_fork_count();
    pid_t child = fork();
    if (child == 0) {
        bool counted = sc_thread_fork_count() == count + 1;
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(sc_thread_fork_count() == count + 2 ? 0 : 1);
        int status = -1;
        waitpid(grandchild, &status, 0);
        _exit(counted && status == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(sc_thread_fork_count(), count);
}

static void test_affinity(void **state) {
    (void)state;
    cpu_set_t set;
    cpu_set_t saved;
    sc_thread_affinity(&saved);
    int cpus = CPU_COUNT(&saved);
    assert_true(cpus >= 1);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &saved)) CPU_SET(i, &one);
    }
    if (sched_setaffinity(0, sizeof one, &one) == 0) {
        sc_thread_affinity(&set);
        assert_true(CPU_EQUAL(&set, &one));
        sched_setaffinity(0, sizeof saved, &saved);
    }
}

static void test_host_id(void **state) {
    (void)state;
    struct sc_thread_host_id a;
    struct sc_thread_host_id b;
    memset(&b, 0x5a, sizeof b);
    sc_thread_host_id(&a);
    sc_thread_host_id(&b);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(strlen(a.boot_id), 36);
    assert_int_equal(a.uid, geteuid());
    assert_true(a.network_namespace != 0);
}

static void test_pidfd(void **state) {
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
        }
        _exit(0);
    }
    close(ends[0]);
    int fd = sc_thread_pidfd(child);
    if (fd >= 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        assert_int_equal(poll(&wait, 1, 0), 0);
        close(ends[1]);
        assert_int_equal(poll(&wait, 1, 10000), 1);
        close(fd);
    } else {
        print_message("no pidfds here\n");
        close(ends[1]);
    }
    waitpid(child, NULL, 0);
    assert_int_equal(sc_thread_pidfd(-5), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),   cmocka_unit_test(test_name),
        cmocka_unit_test(test_forks),   cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_host_id), cmocka_unit_test(test_pidfd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
