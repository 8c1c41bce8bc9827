/*
 * Two ranks that make different calls: every pair, each followed by a barrier. Where both wait on
 * one lane it is MISMATCH, and the sentence has both sides; where one of them may still come, it is
 * OP_TIMEOUT with the verdict. What is expected follows from a small model of who waits for what,
 * not from the library.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "fault_ranks.h"

#define OP_MS 1000
#define NEVER_MS 20000 /* a mismatch must not need it */
#define SMALL 4096
#define LARGE (1u << 20) /* more than a pair's ring holds: the sender waits */

enum lane { COMMAND, DATA, NONE }; /* NONE: shm refuses the call, and it takes no number */

/* What a call is, for the model. */
struct call {
    const char *name;
    enum lane lane;
    int root; /* who does not wait; -1: all wait */
    int only; /* the rank that can make it; -1: both */
    int operation, dtype, redop;
    size_t bytes;
};

enum { F32 = SPARK_COMM_F32, BF16 = SPARK_COMM_BF16, SUM = SPARK_COMM_SUM, MAX = SPARK_COMM_MAX };

static const struct call calls[] = {
    {"all_reduce", DATA, -1, -1, SPARK_COMM_OP_ALL_REDUCE, F32, SUM, SMALL},
    {"all_reduce", DATA, -1, -1, SPARK_COMM_OP_ALL_REDUCE, F32, SUM, 8},
    {"all_reduce", DATA, -1, -1, SPARK_COMM_OP_ALL_REDUCE, F32, SUM, LARGE},
    {"all_reduce", DATA, -1, -1, SPARK_COMM_OP_ALL_REDUCE, BF16, SUM, SMALL},
    {"all_reduce", DATA, -1, -1, SPARK_COMM_OP_ALL_REDUCE, F32, MAX, SMALL},
    {"all_gather", DATA, -1, -1, SPARK_COMM_OP_ALL_GATHER, 0, 0, SMALL},
    {"all_gather", DATA, -1, -1, SPARK_COMM_OP_ALL_GATHER, 0, 0, LARGE},
    {"reduce_scatter", DATA, -1, -1, SPARK_COMM_OP_REDUCE_SCATTER, F32, SUM, SMALL},
    {"broadcast", DATA, 0, -1, SPARK_COMM_OP_BROADCAST, 0, 0, 2 * SMALL},
    {"broadcast", DATA, 1, -1, SPARK_COMM_OP_BROADCAST, 0, 0, 2 * SMALL},
    {"exchange_host", DATA, -1, -1, SPARK_COMM_OP_EXCHANGE_HOST, 0, 0, 64},
    {"send_to", DATA, -1, -1, SPARK_COMM_OP_SEND_TO, 0, 0, LARGE},
    {"recv_from", DATA, -1, -1, SPARK_COMM_OP_RECV_FROM, 0, 0, LARGE},
    {"broadcast", COMMAND, 0, -1, SPARK_COMM_OP_BROADCAST, 0, 0, 8},
    {"broadcast", COMMAND, 1, -1, SPARK_COMM_OP_BROADCAST, 0, 0, 8},
    {"send_command", COMMAND, 0, 0, SPARK_COMM_OP_SEND_COMMAND, 0, 0, 40},
    {"recv_command", COMMAND, 0, 1, SPARK_COMM_OP_RECV_COMMAND, 0, 0, 0},
    {"recv_command_u32", COMMAND, 0, 1, SPARK_COMM_OP_RECV_COMMAND_U32, 0, 0, 4},
    {"symmetric_alloc", DATA, -1, -1, SPARK_COMM_OP_SYMMETRIC_ALLOC, 0, 0, LARGE},
    {"set_add_kernel", NONE, -1, -1, SPARK_COMM_OP_SET_ADD_KERNEL, 0, 0, 0},
    {"group", DATA, -1, -1, SPARK_COMM_OP_GROUP, 0, 0, LARGE},
    {"barrier", DATA, -1, -1, SPARK_COMM_OP_BARRIER, 0, 0, 0},
};
#define CALLS ((int)(sizeof calls / sizeof calls[0]))

struct pair {
    int of[2]; /* by rank, into calls */
    int op_ms;
};

/* To the other rank and from it. */
static spark_comm_status make_group(struct fault_rank *rank, const struct call *call,
                                    char *memory) {
    int peer = 1 - rank->rank;

    CHECK(spark_comm_group_start(rank->comm) == SPARK_COMM_OK);
    CHECK(spark_comm_send_to(rank->comm, fault_address(memory), call->bytes, peer, 0) ==
          SPARK_COMM_OK);
    CHECK(spark_comm_recv_from(rank->comm, fault_address(memory + LARGE), call->bytes, peer, 0) ==
          SPARK_COMM_OK);
    return spark_comm_group_end(rank->comm);
}

static spark_comm_status make(struct fault_rank *rank, const struct call *call, char *memory) {
    spark_comm *comm = rank->comm;
    uint64_t at = fault_address(memory);
    size_t count;

    switch (call->operation) {
    case SPARK_COMM_OP_EXCHANGE_HOST:
        return spark_comm_exchange_host(comm, memory, memory + LARGE, call->bytes);
    case SPARK_COMM_OP_SEND_COMMAND:
        return spark_comm_send_command(comm, (uint32_t *)(void *)memory, call->bytes / 4);
    case SPARK_COMM_OP_RECV_COMMAND:
        return spark_comm_recv_command(comm, (uint32_t *)(void *)memory, 16, &count);
    case SPARK_COMM_OP_RECV_COMMAND_U32: return spark_comm_recv_command_u32(comm, at, call->root);
    case SPARK_COMM_OP_SYMMETRIC_ALLOC: return spark_comm_symmetric_alloc(comm, call->bytes, &at);
    case SPARK_COMM_OP_SET_ADD_KERNEL:
        CHECK(spark_comm_set_add_kernel(comm, 0) == SPARK_COMM_NOT_SUPPORTED);
        return SPARK_COMM_OK;
    case SPARK_COMM_OP_GROUP: return make_group(rank, call, memory);
    default: break;
    }
    spark_comm_op op = {.struct_size = sizeof op,
                        .kind = call->operation,
                        .dtype = call->dtype,
                        .redop = call->redop,
                        .send = at,
                        .recv = at,
                        .bytes = call->bytes,
                        .peer = call->root};
    if (call->operation == SPARK_COMM_OP_SEND_TO || call->operation == SPARK_COMM_OP_RECV_FROM)
        op.peer = 1 - rank->rank;
    return spark_comm_submit(comm, &op);
}

static void call_and_barrier(struct fault_rank *rank) {
    const struct pair *pair = rank->round->arg;
    char *memory = calloc(4, LARGE);

    CHECK(memory != NULL && spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    spark_comm_status st = make(rank, &calls[pair->of[rank->rank]], memory);
    if (st == SPARK_COMM_OK) st = spark_comm_barrier(rank->comm);
    if (st == SPARK_COMM_OK)
        atomic_store(&rank->board->seen[rank->rank].at, sc_deadline_now());
    else
        fault_note(rank, st);
    /* Nobody closes before both know. */
    fault_is_ready(rank);
    fault_await(&rank->board->ready, 2);
    free(memory);
}

/* ---- The model ---- */

static bool is_message(const struct call *call) {
    return call->operation == SPARK_COMM_OP_SEND_TO || call->operation == SPARK_COMM_OP_RECV_FROM;
}

/* Where a rank stays for ever when the other's call is not its counterpart: in its call, or in the
 * barrier after it. */
static enum lane stays_in(const struct call *call, int rank) {
    return call->root == rank || call->lane == NONE ? DATA : call->lane;
}

/* A record on the command lane that meets a receive of another kind or size is found at once. */
static bool record_is_wrong(const struct call *sender, int root, const struct call *receiver) {
    return sender->lane == COMMAND && receiver->lane == COMMAND && sender->root == root &&
           receiver->root == root &&
           (sender->operation != receiver->operation || sender->bytes != receiver->bytes);
}

static bool waits_for_nobody(const struct call *call, int rank) {
    return call->root == rank || call->lane == NONE;
}

/* Roots that wait for nobody, and refused calls: the barriers meet. */
static bool nobody_stays(const struct call *a, const struct call *b) {
    bool same_count = (a->lane == DATA) == (b->lane == DATA);
    return waits_for_nobody(a, 0) && waits_for_nobody(b, 1) && same_count;
}

static bool make_a_pair(const struct call *a, const struct call *b) {
    return (a->operation == SPARK_COMM_OP_SEND_TO && b->operation == SPARK_COMM_OP_RECV_FROM) ||
           (b->operation == SPARK_COMM_OP_SEND_TO && a->operation == SPARK_COMM_OP_RECV_FROM) ||
           (a->operation == SPARK_COMM_OP_SEND_COMMAND &&
            b->operation == SPARK_COMM_OP_RECV_COMMAND);
}

/* A rank that does not wait comes to its barrier, which meets the other's call; then it is done, and
 * the other's own barrier finds nobody. -1: there is no such rank. */
static int rank_that_is_done(const struct call *a, const struct call *b) {
    if (waits_for_nobody(a, 0) && a->lane != DATA && b->operation == SPARK_COMM_OP_BARRIER)
        return 0;
    if (waits_for_nobody(b, 1) && b->lane != DATA && a->operation == SPARK_COMM_OP_BARRIER)
        return 1;
    return -1;
}

static spark_comm_status expected(const struct call *a, const struct call *b) {
    if (make_a_pair(a, b) || nobody_stays(a, b)) return SPARK_COMM_OK;
    if (rank_that_is_done(a, b) >= 0) return SPARK_COMM_OP_TIMEOUT;
    if (record_is_wrong(a, 0, b) || record_is_wrong(b, 1, a)) return SPARK_COMM_MISMATCH;
    return stays_in(a, 0) == stays_in(b, 1) ? SPARK_COMM_MISMATCH : SPARK_COMM_OP_TIMEOUT;
}

/* ---- The matrix ---- */

/* They mostly sleep: many at a time. */
#define AT_ONCE 20
static struct fault_round rounds[AT_ONCE];
static struct pair running[AT_ONCE];
static int started;

static void start_pair(int one, int other) {
    struct fault_round *round = &rounds[started];
    struct pair *pair = &running[started++];

    *pair = (struct pair){.of = {one, other}};
    round->size = 2;
    round->body = call_and_barrier;
    round->arg = pair;
    round->op_ms = expected(&calls[one], &calls[other]) == SPARK_COMM_OP_TIMEOUT ? OP_MS : NEVER_MS;
    fault_start(round);
}

/* Both were told the same, and it names both; one that was done before was told nothing. */
static bool words_are_right(const struct fault_seen *seen, spark_comm_status want, int done) {
    const char *words = seen[done == 0 ? 1 : 0].error.message;

    if (want == SPARK_COMM_OK) return seen[0].status == want && seen[1].status == want;
    for (int rank = 0; rank < 2; rank++) {
        if (seen[rank].status != (rank == done ? SPARK_COMM_OK : want)) return false;
        if (rank != done && strcmp(seen[rank].error.message, words) != 0) return false;
    }
    return strstr(words, "rank 0") != NULL && strstr(words, "rank 1") != NULL &&
           strstr(words, "made another call") == NULL &&
           (want == SPARK_COMM_MISMATCH || strstr(words, "since 1.") != NULL);
}

static bool pair_was_right(struct fault_round *round, const struct pair *pair) {
    const struct call *a = &calls[pair->of[0]], *b = &calls[pair->of[1]];
    const struct fault_seen *seen = round->board->seen;
    spark_comm_status want = expected(a, b);
    bool is_right = fault_wait(round, 0) == 0;

    is_right &= fault_wait(round, 1) == 0;
    is_right &= words_are_right(seen, want, rank_that_is_done(a, b));
    if (!is_right) {
        printf("%s (%zu bytes, root %d) against %s (%zu bytes, root %d), wanted %s:\n", a->name,
               a->bytes, a->root, b->name, b->bytes, b->root, spark_comm_status_name(want));
        for (int rank = 0; rank < 2; rank++)
            printf("  rank %d: %s: %s\n", rank, spark_comm_status_name(seen[rank].status),
                   seen[rank].error.message);
    } else if (getenv("SC_TEST_SHOW") != NULL) {
        printf("%s: %s\n", spark_comm_status_name(want), seen[0].error.message);
    }
    return is_right;
}

static int finish_pairs(void) {
    int wrong = 0;
    for (int i = 0; i < started; i++)
        wrong += !pair_was_right(&rounds[i], &running[i]);
    started = 0;
    return wrong;
}

/* Those that end alike run together: a batch takes as long as its slowest pair. */
static int run_pairs(bool times_out, int *wrong) {
    int pairs = 0;

    for (int one = 0; one < CALLS; one++) {
        for (int other = 0; other < CALLS; other++) {
            const struct call *a = &calls[one], *b = &calls[other];
            if (one == other && !is_message(a)) continue;
            if (a->only == 1 || b->only == 0) continue;
            if ((expected(a, b) == SPARK_COMM_OP_TIMEOUT) != times_out) continue;
            start_pair(one, other);
            pairs++;
            if (started == AT_ONCE) *wrong += finish_pairs();
        }
    }
    *wrong += finish_pairs();
    return pairs;
}

static void test_matrix(void **state) {
    int wrong = 0;
    (void)state;

    int mismatches = run_pairs(false, &wrong);
    int timeouts = run_pairs(true, &wrong);
    printf("%d pairs of different calls\n", mismatches + timeouts);
    assert_int_equal(wrong, 0);
}

/* ---- The words ---- */

static void test_words(void **state) {
    struct fault_round round = {.size = 2, .op_ms = NEVER_MS, .body = call_and_barrier};
    struct pair pair = {.of = {0, 8}};
    (void)state;

    round.arg = &pair;
    fault_start(&round);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(fault_wait(&round, rank), 0);
    fault_same(&round, 3, SPARK_COMM_MISMATCH);
    assert_string_equal(round.board->seen[0].error.message,
                        "rank 0 is in all_reduce #2 (4096 bytes, f32, sum), rank 1 in broadcast #2 "
                        "(8192 bytes from rank 0)");
}

/* Three ranks; rank 1 leaves out the second of three different calls. */
static void skip_one(struct fault_rank *rank) {
    float memory[64] = {0};
    spark_comm_status st = spark_comm_all_reduce(rank->comm, fault_address(memory), 64);

    if (st == SPARK_COMM_OK && rank->rank != 1)
        st = spark_comm_all_gather(rank->comm, fault_address(memory), fault_address(memory), 64);
    if (st == SPARK_COMM_OK) st = spark_comm_barrier(rank->comm);
    fault_note(rank, st);
    fault_is_ready(rank);
    fault_await(&rank->board->ready, 3);
}

static void test_skipped(void **state) {
    struct fault_round round = {.size = 3, .op_ms = NEVER_MS, .body = skip_one};
    (void)state;

    fault_start(&round);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(fault_wait(&round, rank), 0);
    fault_same(&round, 7, SPARK_COMM_MISMATCH);
    const char *message = round.board->seen[0].error.message;
    assert_non_null(strstr(message, "rank 1"));
    assert_non_null(strstr(message, "barrier #2"));
    assert_non_null(strstr(message, "all_gather #2 (64 bytes)"));
}

/* A circle of three: each waits for a message of the next. */
static void wait_in_a_circle(struct fault_rank *rank) {
    char memory[64];
    int next = (rank->rank + 1) % 3;
    spark_comm_status st =
        spark_comm_recv_from(rank->comm, fault_address(memory), sizeof memory, next, 0);

    fault_note(rank, st);
    fault_is_ready(rank);
    fault_await(&rank->board->ready, 3);
}

static void test_circle(void **state) {
    struct fault_round round = {.size = 3, .op_ms = NEVER_MS, .body = wait_in_a_circle};
    (void)state;

    fault_start(&round);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(fault_wait(&round, rank), 0);
    fault_same(&round, 7, SPARK_COMM_MISMATCH);
    assert_non_null(strstr(round.board->seen[0].error.message, "wait in a circle"));
}

/* Waits that end well although they are long: rank 0 waits in a barrier for rank 1, which waits for
 * a message that rank 2 sends late. And the same while rank 1 is stopped with its message there. */
static void wait_in_a_row(struct fault_rank *rank) {
    char memory[64] = {0};
    bool stops = *(const int *)rank->round->arg != 0;

    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    fault_is_ready(rank);
    if (rank->rank == 2) {
        fault_await(&rank->board->go, 1);
        CHECK(spark_comm_send_to(rank->comm, fault_address(memory), 64, 1, 0) == SPARK_COMM_OK);
    }
    if (rank->rank == 1)
        CHECK(spark_comm_recv_from(rank->comm, fault_address(memory), 64, 2, 0) == SPARK_COMM_OK);
    CHECK(spark_comm_barrier(rank->comm) == SPARK_COMM_OK);
    CHECK(!stops || rank->board->go == 1);
}

static void test_no_circle(void **state) {
    struct fault_round round = {.size = 3, .op_ms = NEVER_MS, .body = wait_in_a_row};
    (void)state;

    for (int stops = 0; stops < 2; stops++) {
        round.arg = &stops;
        fault_start(&round);
        fault_await(&round.board->ready, 3);
        usleep(700 * 1000);
        if (stops) fault_strike(&round, 1, SIGSTOP);
        atomic_store(&round.board->go, 1);
        if (stops) {
            /* Rank 2 has sent, and waits in the barrier; rank 1 still seems to wait for it. */
            usleep(1200 * 1000);
            fault_strike(&round, 1, SIGCONT);
        }
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(fault_wait(&round, rank), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),  cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_circle), cmocka_unit_test(test_no_circle),
        cmocka_unit_test(test_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
