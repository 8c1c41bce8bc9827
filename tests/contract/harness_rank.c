/* The ranks' side of the harness: options, opening, checks, meeting places. Each function is called
 * by its own rank. */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "harness_board.h"
#include "reference.h"

static struct board_slot *own_slot(const struct harness_rank *rank) {
    return &rank->board->slots[rank->rank];
}

int64_t harness_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void harness_sleep_ms(int ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* ---- Failures ---- */

bool harness_failed(const struct harness_rank *rank) {
    return atomic_load_explicit(&own_slot(rank)->failures, memory_order_relaxed) != 0;
}

void harness_fail(struct harness_rank *rank, const char *file, int line, const char *format, ...) {
    struct board_slot *slot = own_slot(rank);
    const int index = atomic_fetch_add_explicit(&slot->failures, 1, memory_order_relaxed);
    if (index >= BOARD_FAILURES) return;
    struct board_failure *failure = &slot->kept[index];
    const char *base = strrchr(file, '/');
    va_list arguments;

    failure->line = line;
    snprintf(failure->file, sizeof failure->file, "%s", base != NULL ? base + 1 : file);
    memcpy(failure->step, slot->step, sizeof failure->step);
    va_start(arguments, format);
    vsnprintf(failure->text, sizeof failure->text, format, arguments);
    va_end(arguments);
}

void harness_step(struct harness_rank *rank, const char *format, ...) {
    struct board_slot *slot = own_slot(rank);
    va_list arguments;
    if (rank->is_helper) return;
    va_start(arguments, format);
    vsnprintf(slot->step, sizeof slot->step, format, arguments);
    va_end(arguments);
}

static void *managed_allocate(size_t bytes) {
    uint64_t pointer = 0;
    return device_driver()->managed(&pointer, bytes, 1) == 0 ? (void *)(uintptr_t)pointer : NULL;
}

static void managed_release(void *memory) {
    device_driver()->free((uint64_t)(uintptr_t)memory);
}

void harness_use_managed(void) {
    guard_allocate = managed_allocate;
    guard_release = managed_release;
}

/* On a device a call that has succeeded may only be enqueued: it is waited for, so that the tests may
 * look at its result. All of them use the legacy stream. */
static bool settle(struct harness_rank *rank, const char *expression, const char *file, int line) {
    if (device_settle(NULL, 20000 * harness_slowness())) return true;
    harness_fail(rank, file, line, "%s\n    was enqueued and did not end", expression);
    return false;
}

bool harness_check_status(struct harness_rank *rank, spark_comm_status want, spark_comm_status got,
                          const char *expression, const char *file, int line) {
    if (want == got && got == SPARK_COMM_OK && rank->world->backend->on_device)
        return settle(rank, expression, file, line);
    if (want == got) return true;
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(rank->comm, &error);
    harness_fail(rank, file, line, "%s\n    expected %s, got %s\n    last_error: %s (%s)",
                 expression, spark_comm_status_name(want), spark_comm_status_name(got),
                 error.message, spark_comm_status_name((spark_comm_status)error.status));
    return false;
}

bool harness_check_int(struct harness_rank *rank, int64_t want, int64_t got, const char *expression,
                       const char *file, int line) {
    if (want == got) return true;
    harness_fail(rank, file, line, "%s: expected %" PRId64 ", got %" PRId64, expression, want, got);
    return false;
}

bool harness_check_message(struct harness_rank *rank, spark_comm_status status,
                           const char *const *words, const char *file, int line) {
    spark_comm_error error = {.struct_size = sizeof error};
    bool good = true;
    if (!harness_check_status(rank, SPARK_COMM_OK, spark_comm_last_error(rank->comm, &error),
                              "spark_comm_last_error", file, line))
        return false;
    if (error.status != (int32_t)status) {
        harness_fail(rank, file, line, "last_error.status: expected %s, got %s (\"%s\")",
                     spark_comm_status_name(status),
                     spark_comm_status_name((spark_comm_status)error.status), error.message);
        good = false;
    }
    for (; *words != NULL; words++) {
        if (strstr(error.message, *words) != NULL) continue;
        harness_fail(rank, file, line, "last_error does not say \"%s\": \"%s\"", *words,
                     error.message);
        good = false;
    }
    return good;
}

void harness_snapshot(struct harness_rank *rank) {
    rank->before = (spark_comm_health_report){.struct_size = sizeof rank->before};
    spark_comm_health(rank->comm, &rank->before);
}

bool harness_check_unchanged(struct harness_rank *rank, const char *file, int line) {
    spark_comm_health_report now = {.struct_size = sizeof now};
    bool good = harness_check_status(rank, SPARK_COMM_OK, spark_comm_health(rank->comm, &now),
                                     "spark_comm_health", file, line);
    good &= harness_check_int(rank, rank->before.state, now.state, "state after a refused call",
                              file, line);
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        good &= harness_check_int(rank, (int64_t)rank->before.lanes[lane].submitted,
                                  (int64_t)now.lanes[lane].submitted,
                                  "number taken by a refused call", file, line);
    }
    return good;
}

/* ---- Meeting ---- */

/* Sleeps longer and longer, so that ranks that share a core leave it to each other. */
static void back_off(unsigned *round) {
    struct timespec pause = {0, *round < 100 ? 20000 : 500000};
    if (*round < 50)
        sched_yield();
    else
        nanosleep(&pause, NULL);
    (*round)++;
}

_Atomic uint64_t *harness_word(struct harness_rank *rank, int index) {
    return &rank->board->words[index];
}

static bool await(_Atomic uint64_t *word, uint64_t value, int limit_ms) {
    const int64_t limit = harness_now_ms() + (int64_t)limit_ms * harness_slowness();
    unsigned round = 0;
    while (atomic_load_explicit(word, memory_order_acquire) < value) {
        if (round > 50 && harness_now_ms() > limit) return false;
        back_off(&round);
    }
    return true;
}

bool harness_await(struct harness_rank *rank, int index, uint64_t value, int limit_ms) {
    if (await(harness_word(rank, index), value, limit_ms)) return true;
    harness_fail(rank, __FILE__, __LINE__, "word %d did not reach %" PRIu64 " in %d ms", index,
                 value, limit_ms);
    return false;
}

bool harness_meet(struct harness_rank *rank) {
    rank->meetings++;
    atomic_fetch_add_explicit(&rank->board->met, 1, memory_order_acq_rel);
    if (await(&rank->board->met, (uint64_t)rank->meetings * (unsigned)rank->size, 30000))
        return true;
    harness_fail(rank, __FILE__, __LINE__, "the ranks did not all come to meeting %u",
                 rank->meetings);
    return false;
}

void harness_same(struct harness_rank *rank, uint64_t hash) {
    struct board_slot *slot = own_slot(rank);
    if (rank->is_helper) return;
    uint64_t *kept = &slot->same[slot->same_count++ % BOARD_SAME];
    *kept = reference_mix(*kept, hash, 0);
}

void harness_may_die(struct harness_rank *rank, int which) {
    atomic_store_explicit(&rank->board->slots[which].may_die, 1, memory_order_release);
}

void harness_die(struct harness_rank *rank) {
    harness_may_die(rank, rank->rank);
    kill(getpid(), SIGKILL);
    abort();
}

void harness_jitter(struct harness_rank *rank, unsigned max_us) {
    const uint64_t random = reference_mix(rank->seed, rank->calls, 77u + (unsigned)rank->rank);
    if (random % 8 != 0 || max_us == 0) return;
    struct timespec pause = {0, (long)(random >> 8) % (long)max_us * 1000};
    nanosleep(&pause, NULL);
}

bool harness_wants(const struct harness_rank *rank, uint64_t index) {
    unsigned thinning = rank->world->backend->thinning;
    const bool main_case = rank->size == 2 && rank->world->way == HARNESS_PROCESSES;
    if (rank->size == 1)
        thinning *= 5;
    else if (!main_case)
        thinning *= 8;
    if (harness_level() == 0) thinning *= 12;
    if (harness_level() >= 2) thinning = 1;
    return reference_mix(index, (uint64_t)rank->size, (uint64_t)rank->world->way) % thinning == 0;
}

int harness_rounds(const struct harness_rank *rank, int usual) {
    if (harness_level() >= 2) return usual * 10;
    if (harness_level() == 0) usual /= 8;
    if (rank->world->backend->thinning > 1) usual /= 4;
    if (rank->size > 2) usual /= 2;
    return usual > 4 ? usual : 4;
}

/* ---- Helpers ---- */

static void release_buffers(struct harness_rank *rank) {
    guard_arena_close(&rank->send);
    guard_arena_close(&rank->recv);
    free(rank->inputs);
    rank->inputs = NULL;
    rank->input_bytes = 0;
}

static void *helper_main(void *argument) {
    struct harness_thread *helper = argument;
    const bool on_device = helper->rank.world->backend->on_device;
    if (on_device) device_use(helper->rank.rank);
    helper->run(&helper->rank);
    if (on_device) device_leave(helper->rank.rank);
    release_buffers(&helper->rank);
    return NULL;
}

bool harness_help(struct harness_rank *rank, struct harness_thread *helper, harness_rank_fn run) {
    helper->rank = *rank;
    helper->rank.is_helper = true;
    helper->rank.seed = reference_mix(rank->seed, rank->calls, 4711);
    helper->rank.calls = 0;
    helper->rank.send = helper->rank.recv = (struct guard_arena){NULL, 0, 0};
    helper->rank.inputs = NULL;
    helper->rank.input_bytes = 0;
    helper->run = run;
    const int failed = pthread_create(&helper->thread, NULL, helper_main, helper);
    return CHECK_TRUE(rank, failed == 0, "no thread: %s", strerror(failed));
}

void harness_join(struct harness_thread *helper) {
    pthread_join(helper->thread, NULL);
}

bool harness_await_number(struct harness_rank *rank, int lane, uint64_t number) {
    const int64_t limit = harness_now_ms() + 10000 * harness_slowness();
    spark_comm_health_report report = {.struct_size = sizeof report};
    while (spark_comm_health(rank->comm, &report) == SPARK_COMM_OK &&
           report.lanes[lane].submitted < number) {
        if (!CHECK_TRUE(rank, harness_now_ms() < limit,
                        "operation %llu was not submitted on lane %d", (unsigned long long)number,
                        lane))
            return false;
        harness_sleep_ms(1);
    }
    return true;
}

/* ---- Opening ---- */

static void print_log(void *user, int level, const char *message) {
    const struct harness_rank *rank = user;
    fprintf(stderr, "    log, rank %d, level %d: %s\n", rank->rank, level, message);
}

void harness_options(struct harness_rank *rank, spark_comm_options *options) {
    const int slowness = harness_slowness();
    spark_comm_options_init(options, sizeof *options);
    options->backend = rank->world->backend->name;
    options->master_addr = "127.0.0.1";
    options->master_port = rank->port;
    if (rank->world->backend->on_device) options->device = rank->rank;
    options->rank = rank->rank;
    options->world_size = rank->size;
    options->rendezvous_timeout_ms = 20000 * slowness;
    options->op_timeout_ms = 20000 * slowness;
    options->liveness_timeout_ms = 10000 * slowness;
    options->close_timeout_ms = 5000 * slowness;
    if (getenv("SPARK_COMM_TEST_LOG") != NULL) {
        options->log = print_log;
        options->log_user = rank;
    }
}

spark_comm_status harness_open(struct harness_rank *rank, const spark_comm_options *options,
                               spark_comm **comm) {
    const spark_comm_backend *table = rank->world->backend->table;
    if (table == NULL) return spark_comm_open(options, comm);
    return spark_comm_open_backend(table, NULL, options, comm);
}

static bool open_world(struct harness_rank *rank) {
    spark_comm_options options;
    spark_comm_error error = {.struct_size = sizeof error};
    harness_options(rank, &options);
    if (rank->setup->tune != NULL) rank->setup->tune(rank, &options);
    rank->dtype = options.dtype != 0 ? options.dtype : SPARK_COMM_BF16;
    harness_step(rank, "open");
    const spark_comm_status st = harness_open(rank, &options, &rank->comm);
    if (st == SPARK_COMM_OK) return true;
    spark_comm_last_error(NULL, &error);
    if (st == SPARK_COMM_SYSTEM && error.native_code == EADDRINUSE)
        atomic_store_explicit(&own_slot(rank)->port_taken, 1, memory_order_relaxed);
    CHECK_OK(rank, st);
    rank->comm = NULL;
    return false;
}

static void look_for_leaks(struct harness_rank *rank, int descriptors, int threads) {
    /* A joined thread stays visible for a moment. */
    for (int i = 0; i < 200 && harness_count_threads() != threads; i++)
        harness_sleep_ms(5);
    if (rank->world->backend->on_device)
        for (int i = 0; i < 200 && harness_count_descriptors() > descriptors; i++)
            harness_sleep_ms(5);
    /* NCCL's first communicator may keep one that a second does without. */
    const int left = harness_count_descriptors();
    if (!harness_warms_up(rank->world, rank->setup) || left > descriptors)
        CHECK_INT(rank, descriptors, left);
    CHECK_INT(rank, threads, harness_count_threads());
}

static void open_and_close(struct harness_rank *rank) {
    spark_comm_options options;
    harness_step(rank, "open for the first time");
    harness_options(rank, &options);
    options.master_port = rank->spare_port;
    if (device_use(rank->rank) && CHECK_OK(rank, harness_open(rank, &options, &rank->comm)))
        CHECK_OK(rank, spark_comm_barrier(rank->comm));
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    device_leave(rank->rank);
    /* NCCL and the driver close some of theirs a moment later. */
    harness_sleep_ms(200);
}

void harness_rank_main(struct harness_rank *rank) {
    const bool on_device = rank->world->backend->on_device;
    const bool looks = rank->world->way == HARNESS_PROCESSES && !rank->setup->keeps_things;
    if (looks && harness_warms_up(rank->world, rank->setup)) open_and_close(rank);
    const int descriptors = looks ? harness_count_descriptors() : 0;
    const int threads = looks ? harness_count_threads() : 0;

    const bool ready = !on_device || CHECK_TRUE(rank, device_use(rank->rank),
                                                "device %d cannot be used", rank->rank);
    if (ready && (rank->setup->opens_itself || open_world(rank))) rank->setup->run(rank);
    spark_comm *comm = rank->comm;
    rank->comm = NULL;
    if (!harness_failed(rank)) harness_step(rank, "close");
    spark_comm_close(comm);
    release_buffers(rank);
    if (on_device) device_leave(rank->rank);
    if (looks) look_for_leaks(rank, descriptors, threads);
    atomic_store_explicit(&own_slot(rank)->ended, 1, memory_order_release);
}
