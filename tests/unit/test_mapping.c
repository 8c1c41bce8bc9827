/*
 * Shared regions: what a new one is, one mapping for a process however many attach it, what is refused from a peer, memory
 * that runs out, allocation and system calls that fail at any point, and a steady signal. Descriptors are counted, so that
 * nothing leaks.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The allocator with injected failures, in place of the archive's. */
#ifndef SPARK_COMM_TESTING
#define SPARK_COMM_TESTING
#endif
#include "base/alloc.c"
#include "base/deadline.h"
#include "os/mapping.h"
#include "os/thread.h"

/* ---- System calls that fail on demand: these definitions come before the C library's ---- */

static int calls_until_failure = -1; /* -1: none fails */
static int failure_errno;

static bool fails_now(void) {
    if (calls_until_failure < 0 || calls_until_failure-- > 0) return false;
    errno = failure_errno;
    return true;
}

int memfd_create(const char *name, unsigned int flags) {
    return fails_now() ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}

int ftruncate(int fd, off_t bytes) {
    return fails_now() ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return fails_now() ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

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

/* By msync and not mincore, which qemu answers itself: to it a page without access is no page. */
static bool is_mapped(void *address) {
    return msync(address, 1, MS_ASYNC) == 0 || errno != ENOMEM;
}

static struct sc_mapping made(size_t bytes, bool allocate_now) {
    struct sc_mapping mapping;
    struct sc_error error;
    sc_error_clear(&error);
    if (sc_mapping_create(bytes, allocate_now, &mapping, &error) != SPARK_COMM_OK)
        fail_msg("%s", error.message);
    return mapping;
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

/* ---- Tests ---- */

static void test_create(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int before = open_descriptors();
    struct sc_mapping mapping = made(page + 1, true);
    assert_int_equal(mapping.bytes, 2 * page);
    assert_int_equal((uintptr_t)mapping.address % page, 0);
    for (size_t i = 0; i < mapping.bytes; i++)
        assert_int_equal(((unsigned char *)mapping.address)[i], 0);
    memset(mapping.address, 1, mapping.bytes);
    assert_int_equal(fcntl(mapping.fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(mapping.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(ftruncate(mapping.fd, 0), -1);
    struct sc_mapping copy = mapping;
    sc_mapping_release(&mapping);
    assert_null(mapping.address);
    assert_int_equal(mapping.fd, -1);
    assert_false(is_mapped(copy.address));
    assert_int_equal(open_descriptors(), before);
    sc_mapping_release(&mapping);
    sc_mapping_init(&mapping);
    sc_mapping_release(&mapping);
}

static void test_one_mapping_for_many(void **state) {
    (void)state;
    int before = open_descriptors();
    struct sc_mapping maker = made(10000, true);
    struct sc_mapping users[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sc_mapping_attach(dup(maker.fd), 10000, &users[i], NULL), SPARK_COMM_OK);
        assert_ptr_equal(users[i].address, maker.address);
        assert_int_equal(users[i].bytes, maker.bytes);
    }
    assert_int_equal(open_descriptors(), before + 1);
    void *address = maker.address;
    sc_mapping_release(&maker);
    sc_mapping_release(&users[1]);
    sc_mapping_release(&users[0]);
    *(volatile char *)address = 1;
    sc_mapping_release(&users[2]);
    assert_false(is_mapped(address));
    assert_int_equal(open_descriptors(), before);
}

static void test_another_process(void **state) {
    (void)state;
    struct sc_mapping maker = made(4096, true);
    pid_t child = fork();
    if (child == 0) {
        /* A fresh process would have mapped nothing; here the maker's mapping is let go first. */
        struct sc_mapping mapping;
        int fd = dup(maker.fd);
        sc_mapping_release(&maker);
        if (sc_mapping_attach(fd, 4096, &mapping, NULL) != SPARK_COMM_OK) _exit(1);
        memcpy(mapping.address, "from the child", 15);
        sc_mapping_release(&mapping);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_string_equal(maker.address, "from the child");
    sc_mapping_release(&maker);
}

static void test_parts(void **state) {
    (void)state;
    struct sc_error error;
    struct stat info;
    struct sc_mapping mapping = made(1 << 20, false);
    struct sc_mapping user;
    assert_int_equal(fstat(mapping.fd, &info), 0);
    assert_int_equal(info.st_blocks, 0);
    assert_int_equal(fcntl(mapping.fd, F_GET_SEALS), 0);
    assert_int_equal(sc_mapping_attach(dup(mapping.fd), 1 << 20, &user, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_mapping_allocate(&user, 0, 1 << 19, &error), SPARK_COMM_OK);
    assert_int_equal(sc_mapping_allocate(&mapping, 1 << 19, 1 << 19, &error), SPARK_COMM_OK);
    assert_int_equal(sc_mapping_allocate(&mapping, 1 << 20, 0, &error), SPARK_COMM_OK);
    assert_int_equal(sc_mapping_allocate(&mapping, 1 << 20, 1, &error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_mapping_allocate(&mapping, 1, SIZE_MAX, &error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(fstat(mapping.fd, &info), 0);
    assert_int_equal(info.st_blocks * 512, 1 << 20);
    assert_int_equal(sc_mapping_seal(&mapping, &error), SPARK_COMM_OK);
    assert_int_equal(ftruncate(mapping.fd, 0), -1);
    assert_int_equal(sc_mapping_seal(&mapping, &error), SPARK_COMM_SYSTEM);
    sc_mapping_release(&mapping);
    sc_mapping_release(&user);
}

/* Each is refused, with its descriptor closed. */
static void refuse(int fd, size_t bytes, const char *word) {
    struct sc_mapping mapping;
    struct sc_error error;
    sc_error_clear(&error);
    assert_int_equal(sc_mapping_attach(fd, bytes, &mapping, &error), SPARK_COMM_SYSTEM);
    assert_null(mapping.address);
    assert_int_equal(mapping.fd, -1);
    if (strstr(error.message, word) == NULL) fail_msg("'%s' lacks '%s'", error.message, word);
    if (fd >= 0) assert_int_equal(fcntl(fd, F_GETFD), -1);
}

/* One's own part becomes private, at the same address; another process's stores no longer reach it. */
static void test_detach(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int before = open_descriptors();
    struct sc_mapping mapping = made(4 * page, true), fresh;
    unsigned char *bytes = mapping.address;
    int go[2], fd = dup(mapping.fd);
    char token = 0;
    assert_int_equal(pipe(go), 0);
    for (size_t i = 0; i < 4 * page; i++)
        bytes[i] = (unsigned char)(i % 251);
    pid_t child = fork();
    if (child == 0) { /* a mapping that outlives the detaching */
        (void)!read(go[0], &token, 1);
        memset(bytes, 0xee, 4 * page);
        _exit(0);
    }
    assert_int_equal(sc_mapping_detach(&mapping, page, 2 * page, NULL), SPARK_COMM_OK);
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (size_t i = page; i < 3 * page; i++)
        assert_int_equal(bytes[i], i % 251);
    bytes[page] = 1;
    /* The rest is given up, with the descriptor, but its addresses are still this mapping's. */
    assert_int_equal(open_descriptors(), before + 3);
    assert_true(is_mapped(bytes));
    /* The region itself is unhurt, and is another one now. */
    assert_int_equal(sc_mapping_attach(fd, 4 * page, &fresh, NULL), SPARK_COMM_OK);
    assert_ptr_not_equal(fresh.address, bytes);
    assert_int_equal(((unsigned char *)fresh.address)[page], 0xee);
    sc_mapping_release(&fresh);
    sc_mapping_release(&mapping);
    assert_false(is_mapped(bytes));
    assert_false(is_mapped(bytes + page));
    close(go[0]);
    close(go[1]);
    assert_int_equal(open_descriptors(), before);
}

/* With other users in this process, ranks that are threads, they keep what is theirs. */
static void test_detach_among_others(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct sc_mapping mapping = made(2 * page, true), other;
    unsigned char *bytes = mapping.address;
    assert_int_equal(sc_mapping_attach(dup(mapping.fd), 2 * page, &other, NULL), SPARK_COMM_OK);
    memset(bytes, 3, 2 * page);
    assert_int_equal(sc_mapping_detach(&mapping, 0, page, NULL), SPARK_COMM_OK);
    assert_int_equal(sc_mapping_detach(&other, page, page, NULL), SPARK_COMM_OK);
    for (size_t i = 0; i < 2 * page; i++)
        assert_int_equal(bytes[i], 3);
    sc_mapping_release(&mapping);
    bytes[page] = 4;
    sc_mapping_release(&other);
    assert_false(is_mapped(bytes));
}

static void test_attach_refuses(void **state) {
    (void)state;
    int ends[2];
    int before = open_descriptors();
    refuse(-1, 4096, "cannot look");
    refuse(open("/dev/zero", O_RDWR | O_CLOEXEC), 4096, "no memfd");
    refuse(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 4096, "no memfd");
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    refuse(ends[0], 4096, "no memfd");
    close(ends[1]);
    refuse(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING), 0, "bytes");
    int small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(small, 4096), 0);
    refuse(small, 4097, "4096 bytes instead of 4097");
    int odd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(odd, 5000), 0);
    refuse(odd, 4096, "5000 bytes");
    int never = memfd_create("cannot be sealed", MFD_CLOEXEC);
    assert_int_equal(ftruncate(never, 4096), 0);
    refuse(never, 4096, "sealed");
    assert_int_equal(open_descriptors(), before);
}

static void test_bad_sizes(void **state) {
    (void)state;
    struct sc_mapping mapping;
    struct sc_error error;
    assert_int_equal(sc_mapping_create(0, true, &mapping, &error), SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_mapping_create(SIZE_MAX, true, &mapping, &error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_int_equal(sc_mapping_create(PTRDIFF_MAX, false, &mapping, &error),
                     SPARK_COMM_INVALID_ARGUMENT);
    assert_null(mapping.address);
}

static void test_memory_runs_out(void **state) {
    (void)state;
    struct sc_mapping mapping;
    struct sc_error error;
    int before = open_descriptors();
    size_t bytes = (size_t)1 << 45;
    assert_int_equal(sc_mapping_create(bytes, true, &mapping, &error), SPARK_COMM_NO_MEMORY);
    assert_non_null(strstr(error.message, "35184372088832 bytes"));
    assert_non_null(strstr(error.message, "available"));
    /* No address range of this size either. */
    assert_int_equal(sc_mapping_create((size_t)1 << 60, false, &mapping, &error),
                     SPARK_COMM_NO_MEMORY);
    assert_null(mapping.address);
    assert_int_equal(open_descriptors(), before);
}

static void test_failing_calls(void **state) {
    (void)state;
    const struct {
        int errno_value;
        spark_comm_status status;
    } kinds[] = {
        {ENOMEM, SPARK_COMM_NO_MEMORY}, {ENOSPC, SPARK_COMM_NO_MEMORY}, {EPERM, SPARK_COMM_SYSTEM}};
    int before = open_descriptors();
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        for (int call = 0; call < 3; call++) {
            struct sc_mapping mapping;
            struct sc_error error;
            failure_errno = kinds[kind].errno_value;
            calls_until_failure = call;
            spark_comm_status st = sc_mapping_create(100000, true, &mapping, &error);
            calls_until_failure = -1;
            /* ENOSPC means memory to fallocate alone, the third call. */
            bool is_memory = kinds[kind].errno_value == ENOMEM ||
                             (call == 2 && kinds[kind].errno_value == ENOSPC);
            assert_int_equal(st, is_memory ? SPARK_COMM_NO_MEMORY : SPARK_COMM_SYSTEM);
            assert_int_equal(error.native_code, kinds[kind].errno_value);
            assert_null(mapping.address);
            assert_int_equal(open_descriptors(), before);
        }
    }
    failure_errno = EINTR;
    calls_until_failure = 2;
    struct sc_mapping mapping = made(100000, true);
    calls_until_failure = -1;
    sc_mapping_release(&mapping);
}

static void test_failing_allocations(void **state) {
    (void)state;
    struct sc_mapping mapping;
    struct sc_error error;
    int before = open_descriptors();
    sc_alloc_fail_after(0);
    spark_comm_status made_st = sc_mapping_create(4096, true, &mapping, &error);
    sc_alloc_fail_after(-1);
    assert_int_equal(made_st, SPARK_COMM_NO_MEMORY);
    struct sc_mapping maker = made(4096, true);
    sc_alloc_fail_after(0);
    spark_comm_status attached_st = sc_mapping_attach(dup(maker.fd), 4096, &mapping, &error);
    sc_alloc_fail_after(-1);
    assert_int_equal(attached_st, SPARK_COMM_NO_MEMORY);
    sc_mapping_release(&maker);
    assert_int_equal(open_descriptors(), before);
}

static void test_descriptor_limit(void **state) {
    (void)state;
    struct sc_mapping mapping;
    struct sc_error error;
    struct rlimit saved;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
    struct rlimit none = {.rlim_cur = 3, .rlim_max = saved.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    spark_comm_status st = sc_mapping_create(4096, true, &mapping, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
    assert_int_equal(st, SPARK_COMM_SYSTEM);
    assert_int_equal(error.native_code, EMFILE);
    assert_non_null(strstr(error.message, "3 descriptors"));
}

static void test_signals(void **state) {
    (void)state;
    start_storm();
    int64_t start = sc_deadline_now();
    for (int i = 0; i < 5; i++) {
        struct sc_mapping mapping;
        struct sc_error error;
        spark_comm_status st = sc_mapping_create((size_t)48 << 20, true, &mapping, &error);
        if (st != SPARK_COMM_OK) {
            stop_storm();
            fail_msg("%s", error.message);
        }
        sc_mapping_release(&mapping);
    }
    stop_storm();
    print_message("5 times 48 MiB under signals: %.0f ms\n",
                  (double)(sc_deadline_now() - start) / 1e6);
}

/* ---- Threads that attach and let go ---- */

static struct sc_mapping contested;
static _Atomic int thread_failures;

static void *attach_often(void *arg) {
    (void)arg;
    for (int i = 0; i < 500; i++) {
        struct sc_mapping mapping;
        struct sc_mapping own;
        if (sc_mapping_attach(dup(contested.fd), 4096, &mapping, NULL) != SPARK_COMM_OK ||
            mapping.address != contested.address ||
            sc_mapping_create(4096, true, &own, NULL) != SPARK_COMM_OK) {
            atomic_fetch_add(&thread_failures, 1);
            break;
        }
        sc_mapping_release(&mapping);
        sc_mapping_release(&own);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    pthread_t threads[4];
    int before = open_descriptors();
    contested = made(4096, true);
    for (int i = 0; i < 4; i++)
        assert_int_equal(sc_thread_start(&threads[i], "attach", attach_often, NULL, NULL),
                         SPARK_COMM_OK);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&thread_failures), 0);
    sc_mapping_release(&contested);
    assert_int_equal(open_descriptors(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_one_mapping_for_many),
        cmocka_unit_test(test_another_process),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_detach),
        cmocka_unit_test(test_detach_among_others),
        cmocka_unit_test(test_attach_refuses),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_descriptor_limit),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
