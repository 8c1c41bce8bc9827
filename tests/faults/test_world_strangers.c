/*
 * Fifty strangers at the port (random bytes, an HTTP line, a huge length, one byte a second, connect
 * and silence) while three true ranks join: all join within 5 s of the last, memory grows by less
 * than 10 MiB, every stranger is closed within 5 s and a bit. Then the same against the running
 * world, which does not notice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>

#include "world_ranks.h"

#define STRANGERS 50
#define CLOSED_WITHIN_MS 5500

enum { RANDOM_BYTES, HTTP_LINE, HUGE_LENGTH, BYTE_A_SECOND, SILENCE, KINDS };

struct stranger {
    int fd;
    int kind;
    int64_t came;
    int64_t closed; /* 0: not yet */
    int64_t next_byte;
};

static struct stranger strangers[STRANGERS];
static struct world_rank ranks[3];
static _Atomic int64_t joined[3]; /* when each rank's open was done; 0: not yet */

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int64_t until = sc_deadline_after(5000);

    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
        close(fd);
        CHECK(!sc_deadline_passed(until));
        usleep(2000);
    }
}

static void say_hello(struct stranger *stranger, unsigned seed) {
    static const unsigned char huge[] = {'S', 'P', 'K', 'C', 'O', 'M', 'M', '1', 1,   0,   0,
                                         0,   255, 255, 255, 255, 255, 255, 255, 127, 255, 255};
    unsigned char bytes[4096];

    switch (stranger->kind) {
    case RANDOM_BYTES:
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
        send(stranger->fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        break;
    case HTTP_LINE: send(stranger->fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL); break;
    case HUGE_LENGTH:
        /* A preamble by its magic, then lengths as other protocols have them. */
        memset(bytes, 255, sizeof bytes);
        memcpy(bytes, huge, sizeof huge);
        send(stranger->fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        break;
    default: break;
    }
}

static void come(struct stranger *stranger, int kind, int port) {
    *stranger = (struct stranger){.kind = kind, .fd = connect_to(port)};
    stranger->came = sc_deadline_now();
    say_hello(stranger, (unsigned)kind + 7u * (unsigned)(stranger - strangers));
}

/* Looks after all strangers until all are closed, or for `ms`. */
static int watch_strangers(int ms) {
    int64_t until = sc_deadline_after(ms);
    int open = STRANGERS;
    unsigned char junk[4096];

    while (open > 0 && !sc_deadline_passed(until)) {
        struct pollfd fds[STRANGERS];
        open = 0;
        for (int i = 0; i < STRANGERS; i++) {
            struct stranger *stranger = &strangers[i];
            fds[i] = (struct pollfd){.fd = stranger->closed ? -1 : stranger->fd, .events = POLLIN};
            if (stranger->closed) continue;
            open++;
            if (stranger->kind == BYTE_A_SECOND && sc_deadline_passed(stranger->next_byte)) {
                /* The right magic, slowly. */
                send(stranger->fd, "S", 1, MSG_NOSIGNAL);
                stranger->next_byte = sc_deadline_after(1000);
            }
        }
        poll(fds, STRANGERS, 50);
        for (int i = 0; i < STRANGERS; i++) {
            if (fds[i].revents == 0) continue;
            ssize_t got = recv(strangers[i].fd, junk, sizeof junk, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN)) strangers[i].closed = sc_deadline_now();
        }
    }
    return open;
}

static void expect_all_closed(void) {
    assert_int_equal(watch_strangers(8000), 0);
    for (int i = 0; i < STRANGERS; i++) {
        double lived = (double)(strangers[i].closed - strangers[i].came) / 1e6;
        if (lived >= CLOSED_WITHIN_MS)
            fprintf(stderr, "stranger %d of kind %d lived %.0f ms\n", i, strangers[i].kind, lived);
        assert_true(lived < CLOSED_WITHIN_MS);
        close(strangers[i].fd);
    }
}

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void stay(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    atomic_store(&joined[rank->rank], sc_deadline_now());
    for (uint64_t number = 1; number <= 40; number++) {
        CHECK_STATUS(rank, world_barrier(rank, number), SPARK_COMM_OK);
        usleep(200 * 1000);
    }
    CHECK(*sc_world_poison(rank->world) == 0);
    sc_world_close(rank->world);
}

static void test_strangers(void **state) {
    struct world_plan plan = world_plan_for(3);
    (void)state;

    world_prepare(&ranks[0], &plan, 0);
    ranks[0].body = stay;
    long before = resident_kib();
    CHECK(pthread_create(&ranks[0].thread, NULL, world_thread, &ranks[0]) == 0);
    for (int i = 0; i < STRANGERS; i++)
        come(&strangers[i], i % KINDS, plan.port);
    int64_t last = 0;
    for (int i = 1; i < 3; i++) {
        world_prepare(&ranks[i], &plan, i);
        ranks[i].body = stay;
        last = sc_deadline_now();
        CHECK(pthread_create(&ranks[i].thread, NULL, world_thread, &ranks[i]) == 0);
    }
    expect_all_closed();
    for (int i = 0; i < 3; i++) {
        assert_true(atomic_load(&joined[i]) != 0);
        assert_true(atomic_load(&joined[i]) - last < INT64_C(5000000000));
    }
    /* Under a sanitizer memory is another thing. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident_kib() - before < 10 * 1024);
#else
    (void)before;
#endif
    /* And again, while the world runs: also at a worker's own listener. */
    const char *own = strrchr(sc_world_members(ranks[0].world)[2].listener, ':');
    for (int i = 0; i < STRANGERS; i++)
        come(&strangers[i], i % KINDS, i % 2 == 0 ? plan.port : atoi(own + 1));
    expect_all_closed();
    for (int i = 0; i < 3; i++)
        pthread_join(ranks[i].thread, NULL);
}

/* More callers than the door keeps: the oldest go, the true ranks come in. */
static void close_at_once(struct world_rank *rank) {
    CHECK_STATUS(rank, rank->status, SPARK_COMM_OK);
    CHECK_STATUS(rank, world_barrier(rank, 1), SPARK_COMM_OK);
    sc_world_close(rank->world);
}

static void test_crowd(void **state) {
    struct world_plan plan = world_plan_for(2);
    enum { CROWD = 300 };
    int crowd[CROWD];
    (void)state;

    for (int i = 0; i < 2; i++)
        world_prepare(&ranks[i], &plan, i);
    ranks[0].body = ranks[1].body = close_at_once;
    CHECK(pthread_create(&ranks[0].thread, NULL, world_thread, &ranks[0]) == 0);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = connect_to(plan.port);
    CHECK(pthread_create(&ranks[1].thread, NULL, world_thread, &ranks[1]) == 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].status, SPARK_COMM_OK);
    }
    assert_true(ranks[1].open_ns < INT64_C(5000000000));
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
