/*
 * How long a reconnect takes with a replacement ready: three ranks, each a process. In each round one
 * worker is killed and replaced, and the time counts from the moment when the last rank called
 * (spark_comm_attempt_reconnect, or spark_comm_open of the replacement) until all three were ready.
 * In even rounds the replacement comes last, in odd ones rank 0, to which the others have said hello
 * before. At the end a worker is killed for good, and the time that close takes after it counts.
 *
 *   reconnect [ROUNDS]    100 rounds; prints median, p99 and maximum in milliseconds
 */
#include <signal.h>
#include <spark_comm.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define MOST_ROUNDS 2000

struct board {
    _Atomic int closing;
    struct {
        _Atomic int ready_rounds, closed;
        _Atomic int64_t called_ns, ready_ns, close_ns;
    } rank[RANKS];
};

static struct board *board;
static int port;

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pause_ms(int ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&pause, &pause) != 0) {
    }
}

static void fail(const spark_comm *comm, const char *what) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(comm, &error);
    fprintf(stderr, "reconnect: %s: %s\n", what, error.message);
    exit(1);
}

/* ---- A rank ---- */

static spark_comm *join(int rank) {
    spark_comm_options options;
    spark_comm *comm = NULL;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = RANKS;
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    board->rank[rank].called_ns = clock_ns();
    if (spark_comm_open(&options, &comm) != SPARK_COMM_OK) fail(NULL, "open");
    board->rank[rank].ready_ns = clock_ns();
    return comm;
}

static void run_rank(int rank, int round) {
    spark_comm *comm = join(rank);
    for (;; round++) {
        if (spark_comm_barrier(comm) != SPARK_COMM_OK) fail(comm, "barrier");
        board->rank[rank].ready_rounds = round + 1;
        while (spark_comm_barrier(comm) == SPARK_COMM_OK) {
        }
        if (board->closing) break;
        /* In odd rounds rank 0 comes when the others are waiting. */
        if (round % 2 == 1 && rank == 0) pause_ms(50);
        board->rank[rank].called_ns = clock_ns();
        if (spark_comm_attempt_reconnect(comm) != SPARK_COMM_OK) fail(NULL, "attempt_reconnect");
        board->rank[rank].ready_ns = clock_ns();
    }
    int64_t start = clock_ns();
    spark_comm_close(comm);
    board->rank[rank].close_ns = clock_ns() - start;
    board->rank[rank].closed = 1;
    exit(0);
}

/* ---- The rounds ---- */

static pid_t start(int rank, int round) {
    pid_t pid = fork();
    if (pid == 0) run_rank(rank, round);
    if (pid < 0) fail(NULL, "fork");
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void await_round(int round) {
    int64_t until = clock_ns() + INT64_C(60000000000);
    for (int rank = 0; rank < RANKS; rank++)
        while (board->rank[rank].ready_rounds < round) {
            if (clock_ns() > until) fail(NULL, "a round did not end within 60 s");
            pause_ms(1);
        }
}

static int64_t last_of(size_t offset) {
    int64_t last = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        int64_t at = *(_Atomic int64_t *)(void *)((char *)&board->rank[rank] + offset);
        if (at > last) last = at;
    }
    return last;
}

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    static double took[MOST_ROUNDS];
    pid_t ranks[RANKS];
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: reconnect [ROUNDS], 1 to %d\n", MOST_ROUNDS);
        return 2;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    port = 20000 + (int)(getpid() % 10000);
    for (int rank = 0; rank < RANKS; rank++)
        ranks[rank] = start(rank, 0);
    for (int round = 0; round < rounds; round++) {
        int victim = 1 + round % (RANKS - 1);
        await_round(round + 1);
        end(ranks[victim]);
        if (round % 2 == 0) pause_ms(10); /* the survivors are waiting when it comes */
        ranks[victim] = start(victim, round + 1);
        await_round(round + 2);
        took[round] = (double)(last_of(offsetof(__typeof__(board->rank[0]), ready_ns)) -
                               last_of(offsetof(__typeof__(board->rank[0]), called_ns))) /
                      1e6;
    }
    qsort(took, (size_t)rounds, sizeof took[0], by_size);
    printf("%d reconnects of %d ranks: median %.2f ms, p99 %.2f ms, maximum %.2f ms\n", rounds,
           RANKS, took[rounds / 2], took[rounds * 99 / 100], took[rounds - 1]);
    board->closing = 1;
    end(ranks[2]);
    for (int rank = 0; rank < 2; rank++)
        waitpid(ranks[rank], NULL, 0);
    double slowest = (double)last_of(offsetof(__typeof__(board->rank[0]), close_ns)) / 1e6;
    printf("close after a fault: %.2f ms\n", slowest);
    return board->rank[0].closed && board->rank[1].closed ? 0 : 1;
}
