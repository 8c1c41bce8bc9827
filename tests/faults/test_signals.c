/* A signal every millisecond, with a handler that does not restart system calls: it has no effect
 * on any call. */
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "contract/contract.h"
#include "contract/ops.h"

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

static void start_signals(void) {
    struct sigaction action;
    const struct itimerval every_ms = {{0, 1000}, {0, 1000}};
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal; /* no SA_RESTART */
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every_ms, NULL);
}

static void stop_signals(void) {
    const struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
}

static void some_of_everything(struct harness_rank *rank) {
    static const int kinds[] = {SPARK_COMM_OP_ALL_REDUCE,     SPARK_COMM_OP_BROADCAST,
                                SPARK_COMM_OP_SEND_COMMAND,   SPARK_COMM_OP_BARRIER,
                                SPARK_COMM_OP_EXCHANGE_HOST,  SPARK_COMM_OP_ALL_GATHER,
                                SPARK_COMM_OP_REDUCE_SCATTER, SPARK_COMM_OP_SEND_TO};
    const int rounds = harness_rounds(rank, 800);
    for (int i = 0; i < rounds; i++) {
        const uint64_t random = reference_mix(rank->seed, (uint64_t)i, 6);
        struct ops_call call = {.kind = kinds[i % 8],
                                .dtype = SPARK_COMM_F32,
                                .redop = SPARK_COMM_SUM,
                                .count = (size_t)(random >> 40) % 12000,
                                .root = i % rank->size};
        ops_shuffle(&call, random);
        /* A rank that comes late leaves the others waiting, asleep, under fire. */
        if (i % 25 == 0 && i / 25 % rank->size == rank->rank) harness_sleep_ms(30);
        if (!ops_run(rank, &call)) return;
    }
}

static void under_fire(struct harness_rank *rank) {
    spark_comm_options options;
    uint32_t words[2] = {1, 2};
    size_t count;
    harness_options(rank, &options);
    start_signals();
    for (int round = 0; round < 3 && !harness_failed(rank); round++) {
        harness_step(rank, "open %d", round);
        if (rank->rank == 0) harness_sleep_ms(50); /* the others dial meanwhile */
        if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) break;
        rank->dtype = SPARK_COMM_BF16;
        if (round == 0) some_of_everything(rank);
        /* An idle receive. */
        if (rank->rank == 0) {
            harness_sleep_ms(300);
            CHECK_OK(rank, spark_comm_send_command(rank->comm, words, 2));
        } else if (CHECK_OK(rank, spark_comm_recv_command(rank->comm, words, 2, &count))) {
            CHECK_INT(rank, 2, count);
        }
        spark_comm_close(rank->comm);
        rank->comm = NULL;
    }
    stop_signals();
    CHECK_TRUE(rank, signals > 100, "only %d signals came", (int)signals);
}

static const struct contract_test tests[] = {
    {"under_fire", {.run = under_fire, .opens_itself = true}, CONTRACT_ONLY_PROCESSES},
};

CONTRACT_MAIN("signals", tests)
