/* The program's side of the harness: it starts a world's ranks, watches their time, and tells what
 * failed. */
#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness_board.h"
#include "reference.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HARNESS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HARNESS_SANITIZED 1
#endif
#endif
#ifndef HARNESS_SANITIZED
#define HARNESS_SANITIZED 0
#endif

#define PORT_ATTEMPTS 3

int harness_level(void) {
    static int level = -1;
    if (level < 0) {
        const char *text = getenv("SPARK_COMM_TEST_LEVEL");
        level =
            text != NULL && text[0] >= '0' && text[0] <= '2' ? text[0] - '0' : !HARNESS_SANITIZED;
    }
    return level;
}

int harness_slowness(void) {
    if (HARNESS_SANITIZED) return 3;
    return harness_level() == 0 ? 4 : 1; /* level 0 in a plain build: an emulator */
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    if (folder == NULL) return -1;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count - 2;
}

/* The folder's own descriptor is counted too, each time. */
int harness_count_descriptors(void) {
    return count_entries("/proc/self/fd");
}
int harness_count_threads(void) {
    return count_entries("/proc/self/task");
}

/* A free loopback port, kept from others: the socket stays bound, but does not listen, which leaves
 * rank 0 free to bind the same port (both set SO_REUSEADDR) while the kernel hands it to nobody
 * else. */
static int reserve_port(int *fd) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int on = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(*fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(*fd, (struct sockaddr *)&address, &length) != 0) {
        perror("harness: no free port");
        exit(1);
    }
    return ntohs(address.sin_port);
}

static struct harness_board *make_board(void) {
    void *memory = mmap(NULL, sizeof(struct harness_board), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("harness: no memory for the board");
        exit(1);
    }
    return memory;
}

static int limit_ms(const struct harness_setup *setup) {
    return (setup->limit_s > 0 ? setup->limit_s : HARNESS_LIMIT_S) * 1000 * harness_slowness();
}

static void note_failure(struct harness_board *board, int rank, const char *text) {
    struct board_slot *slot = &board->slots[rank];
    const int index = atomic_fetch_add(&slot->failures, 1);
    if (index >= BOARD_FAILURES) return;
    struct board_failure *failure = &slot->kept[index];
    failure->line = 0;
    snprintf(failure->file, sizeof failure->file, "harness");
    memcpy(failure->step, slot->step, sizeof failure->step);
    snprintf(failure->text, sizeof failure->text, "%s", text);
}

static void print_failures(const char *name, const struct harness_board *board, int size) {
    for (int r = 0; r < size; r++) {
        const struct board_slot *slot = &board->slots[r];
        const int count = atomic_load(&slot->failures);
        for (int i = 0; i < count && i < BOARD_FAILURES; i++) {
            const struct board_failure *failure = &slot->kept[i];
            fprintf(stderr, "%s: rank %d: %s:%d: %s\n    in: %s\n", name, r, failure->file,
                    failure->line, failure->text, failure->step);
        }
        if (count > BOARD_FAILURES)
            fprintf(stderr, "%s: rank %d: and %d more\n", name, r, count - BOARD_FAILURES);
    }
    fflush(stderr);
}

/* ---- Ranks as threads ---- */

static void *thread_main(void *argument) {
    harness_rank_main(argument);
    return NULL;
}

static bool all_ended(const struct harness_board *board, int size) {
    for (int r = 0; r < size; r++)
        if (!atomic_load_explicit(&board->slots[r].ended, memory_order_acquire)) return false;
    return true;
}

static void run_threads(const char *name, struct harness_rank *ranks, int size) {
    pthread_t threads[HARNESS_MAX_RANKS];
    struct harness_board *board = ranks[0].board;
    const int64_t limit = harness_now_ms() + limit_ms(ranks[0].setup);
    for (int r = 0; r < size; r++) {
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r]) == 0) continue;
        perror("harness: no thread");
        exit(1);
    }
    while (!all_ended(board, size) && harness_now_ms() < limit)
        harness_sleep_ms(1);
    if (!all_ended(board, size)) {
        for (int r = 0; r < size; r++)
            if (!atomic_load(&board->slots[r].ended))
                note_failure(board, r, "still running at the time limit");
        print_failures(name, board, size);
        fprintf(stderr, "%s: rank threads cannot be killed; the program ends here\n", name);
        _exit(1);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
}

/* ---- Ranks as processes ---- */

static void child_main(struct harness_rank *rank, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    harness_rank_main(rank);
    exit(0); /* not _exit: the leak sanitizer looks now */
}

static void note_end(struct harness_board *board, int rank, int how) {
    char text[160];
    struct board_slot *slot = &board->slots[rank];
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0 && atomic_load(&slot->ended)) return;
    if (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL && atomic_load(&slot->may_die)) return;
    if (WIFSIGNALED(how))
        snprintf(text, sizeof text, "ended by signal %d (%s)", WTERMSIG(how),
                 strsignal(WTERMSIG(how)));
    else
        snprintf(text, sizeof text, "ended with exit code %d", WEXITSTATUS(how));
    note_failure(board, rank, text);
}

/* Waits for all, at most until the limit; then kills and names those that are left. */
static void reap(struct harness_board *board, pid_t *children, int size, int64_t limit) {
    int left = size;
    while (left > 0) {
        const bool late = harness_now_ms() > limit;
        for (int r = 0; r < size; r++) {
            int how;
            if (children[r] == 0) continue;
            if (late) {
                note_failure(board, r, "still running at the time limit: killed");
                atomic_store(&board->slots[r].may_die, 1);
                kill(children[r], SIGKILL);
            }
            if (waitpid(children[r], &how, late ? 0 : WNOHANG) != children[r]) continue;
            note_end(board, r, how);
            children[r] = 0;
            left--;
        }
        if (left > 0) harness_sleep_ms(1);
    }
}

static void run_processes(struct harness_rank *ranks, int size) {
    pid_t children[HARNESS_MAX_RANKS] = {0};
    const pid_t parent = getpid();
    const int64_t limit = harness_now_ms() + limit_ms(ranks[0].setup);
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        children[r] = fork();
        if (children[r] == 0) child_main(&ranks[r], parent);
        if (children[r] < 0) {
            perror("harness: fork");
            exit(1);
        }
    }
    reap(ranks[0].board, children, size, limit);
}

/* ---- A whole world ---- */

/* Results that must be equal on all ranks. A rank that failed already or was to die may have
 * fewer. */
static void compare_ranks(struct harness_board *board, int size) {
    const struct board_slot *first = &board->slots[0];
    for (int r = 0; r < size; r++)
        if (atomic_load(&board->slots[r].failures) != 0 || atomic_load(&board->slots[r].may_die))
            return;
    for (int r = 1; r < size; r++) {
        char text[160];
        const struct board_slot *slot = &board->slots[r];
        uint64_t i = 0;
        const uint64_t kept = first->same_count < BOARD_SAME ? first->same_count : BOARD_SAME;
        while (slot->same_count == first->same_count && i < kept && slot->same[i] == first->same[i])
            i++;
        if (slot->same_count == first->same_count && i == kept) continue;
        snprintf(text, sizeof text,
                 "result %llu of %llu does not have the bits of rank 0's (rank 0 had %llu)",
                 (unsigned long long)i, (unsigned long long)slot->same_count,
                 (unsigned long long)first->same_count);
        note_failure(board, r, text);
    }
}

bool harness_warms_up(const struct harness_case *world, const struct harness_setup *setup) {
    return world->backend->on_device && !setup->keeps_things &&
           getenv("SPARK_COMM_TEST_MANAGED") != NULL;
}

static void do_nothing(struct harness_rank *rank) {
    (void)rank;
}

static int run_once(const char *name, const struct harness_case *world,
                    const struct harness_setup *setup, bool *port_taken) {
    static const struct harness_setup warm_up = {.run = do_nothing, .keeps_things = true};
    static bool is_warm; /* this process; rank processes see to themselves */
    if (world->way == HARNESS_THREADS && !is_warm && harness_warms_up(world, setup)) {
        is_warm = true;
        const int failures = run_once(name, world, &warm_up, port_taken);
        if (failures > 0) return failures;
    }
    struct harness_rank ranks[HARNESS_MAX_RANKS] = {0};
    struct harness_board *board = make_board();
    int failures = 0, reserved[2];
    const int port = reserve_port(&reserved[0]);
    const int spare_port = reserve_port(&reserved[1]);
    const uint64_t seed =
        reference_mix(reference_hash(name, strlen(name)), (uint64_t)world->size, 2026);
    const bool looks = world->way == HARNESS_THREADS && !setup->keeps_things;
    const int descriptors = harness_count_descriptors();
    const int threads = harness_count_threads();

    for (int r = 0; r < world->size; r++)
        ranks[r] = (struct harness_rank){.board = board,
                                         .world = world,
                                         .setup = setup,
                                         .rank = r,
                                         .size = world->size,
                                         .port = port,
                                         .spare_port = spare_port,
                                         .seed = seed};
    if (world->way == HARNESS_THREADS)
        run_threads(name, ranks, world->size);
    else
        run_processes(ranks, world->size);
    if (looks) {
        for (int i = 0; i < 200 && harness_count_threads() != threads; i++)
            harness_sleep_ms(5);
        if (harness_count_descriptors() != descriptors)
            note_failure(board, 0, "descriptors are left open");
        if (harness_count_threads() != threads) note_failure(board, 0, "threads are left running");
    }
    close(reserved[0]);
    close(reserved[1]);
    compare_ranks(board, world->size);
    *port_taken = atomic_load(&board->slots[0].port_taken) != 0;
    for (int r = 0; r < world->size; r++)
        failures += atomic_load(&board->slots[r].failures);
    if (failures > 0) print_failures(name, board, world->size);
    munmap(board, sizeof *board);
    return failures;
}

int harness_run(const char *name, const struct harness_case *world,
                const struct harness_setup *setup) {
    for (int attempt = 1;; attempt++) {
        bool port_taken = false;
        const int failures = run_once(name, world, setup, &port_taken);
        if (failures == 0 || !port_taken || attempt == PORT_ATTEMPTS) return failures;
        fprintf(stderr, "%s: the port was taken by another program; once more\n", name);
    }
}
