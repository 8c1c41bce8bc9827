/* Streams, captures, events, the exchange and registration: the order of things on the fakes, where a
 * capture that is harmed or a wait that is missing shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

#define COUNT 1000

static uint64_t address(const volatile void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

static spark_comm_op sum_of(const volatile float *values, size_t count, void *stream) {
    return (spark_comm_op){.struct_size = sizeof(spark_comm_op),
                           .kind = SPARK_COMM_OP_ALL_REDUCE,
                           .dtype = SPARK_COMM_F32,
                           .send = address(values),
                           .recv = address(values),
                           .bytes = count * sizeof *values,
                           .stream = (uint64_t)(uintptr_t)stream};
}

static void *new_stream(void) {
    void *stream = NULL;
    device_driver()->stream_create(&stream, 1, 0);
    return stream;
}

static uint64_t submitted(struct harness_rank *rank) {
    spark_comm_health_report report = {.struct_size = sizeof report};
    spark_comm_health(rank->comm, &report);
    return report.lanes[SPARK_COMM_LANE_DATA].submitted;
}

/* ---- Capture ---- */

/* Everything that can be captured, in one graph; replayed, it does its work again. */
static void captured(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    const int n = rank->size, other = (rank->rank + 1) % n, before = (rank->rank + n - 1) % n;
    volatile float *memory = script_memory(rank, 64 * sizeof(float));
    volatile float *sum = memory, *scattered = memory + 1, *out = memory + 2, *in = memory + 3;
    volatile float *scatter = memory + 16, *gathered = memory + 32;
    void *stream = new_stream(), *graph = NULL, *exec = NULL;
    spark_comm_health_report report = {.struct_size = sizeof report};
    *sum = 1;
    *out = 10.0f + (float)rank->rank;
    for (int i = 0; i < n; i++)
        scatter[i] = (float)(i + 1);
    const uint64_t number = submitted(rank);
    const uint64_t handle = (uint64_t)(uintptr_t)stream;
    spark_comm_op op = sum_of(sum, 1, stream);
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return; /* global: the strictest mode */
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "all_reduce");
    op.flags = SPARK_COMM_FLAG_EVENT_ORDERED;
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "event ordered");
    op = sum_of(out, 1, stream);
    op.kind = SPARK_COMM_OP_ALL_GATHER;
    op.recv = address(gathered);
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "all_gather");
    op.kind = SPARK_COMM_OP_REDUCE_SCATTER;
    op.send = address(scatter);
    op.recv = address(scattered);
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "reduce_scatter");
    spark_comm_group_start(rank->comm);
    spark_comm_send_to(rank->comm, address(out), 4, other, handle);
    spark_comm_recv_from(rank->comm, address(in), 4, before, handle);
    CHECK_TRUE(rank, spark_comm_group_end(rank->comm) == SPARK_COMM_OK, "group");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_INT(rank, number, submitted(rank)); /* captured calls take no number */
    CHECK_TRUE(rank, *sum == 1 && *scattered == 0 && *in == 0, "work was done inside the capture");
    CHECK_INT(rank, 0, cuda->instantiate(&exec, graph, 0));
    spark_comm_health(rank->comm, &report);
    const uint64_t progress = report.device_progress;
    float want = 1;
    for (int replay = 0; replay < 3; replay++) {
        CHECK_INT(rank, 0, cuda->launch(exec, stream));
        if (!CHECK_TRUE(rank, device_settle(stream, 10000), "the graph does not end")) return;
        want *= (float)(n * n);
        CHECK_TRUE(rank, *sum == want, "sum is %g, not %g", (double)*sum, (double)want);
        CHECK_TRUE(rank, *scattered == (float)(n * (rank->rank + 1)), "scattered %g",
                   (double)*scattered);
        CHECK_TRUE(rank, *in == 10.0f + (float)before, "received %g", (double)*in);
        for (int i = 0; i < n; i++)
            CHECK_TRUE(rank, gathered[i] == 10.0f + (float)i, "gathered %g", (double)gathered[i]);
        *in = *scattered = 0;
    }
    spark_comm_health(rank->comm, &report);
#ifdef SC_HAVE_KERNELS
    CHECK_TRUE(rank, report.device_progress >= progress + 3, "replays are not counted");
#else
    (void)progress;
#endif
    /* Eager calls go on between replays. */
    op = sum_of(sum, 1, stream);
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    cuda->exec_destroy(exec);
    cuda->graph_destroy(graph);
    device_settle(stream, 10000);
    cuda->stream_destroy(stream);
}

/* Buffers that begin between two elements, in a graph: the aligned copies are its own work too. */
static void captured_unaligned(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    const size_t n = (size_t)rank->size, bytes = COUNT * sizeof(float);
    unsigned char *memory = script_memory(rank, (n + 2) * bytes + 64);
    unsigned char *sum = memory + 1, *scatter = memory + bytes + 6,
                  *out = memory + (n + 1) * bytes + 15;
    void *stream = new_stream(), *graph = NULL, *exec = NULL;
    float value = 1;
    for (size_t i = 0; i < COUNT; i++)
        memcpy(sum + 4 * i, &value, 4);
    for (size_t i = 0; i < n * COUNT; i++) {
        value = (float)(i + (size_t)rank->rank);
        memcpy(scatter + 4 * i, &value, 4);
    }
    spark_comm_op op = sum_of((float *)(void *)memory, COUNT, stream);
    op.send = op.recv = address(sum);
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return;
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "all_reduce");
    op.kind = SPARK_COMM_OP_REDUCE_SCATTER;
    op.send = address(scatter);
    op.recv = address(out);
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "reduce_scatter");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_INT(rank, 0, cuda->instantiate(&exec, graph, 0));
    double want = 1;
    for (int replay = 0; replay < 3; replay++) {
        memset(out, 0, bytes);
        CHECK_INT(rank, 0, cuda->launch(exec, stream));
        if (!CHECK_TRUE(rank, device_settle(stream, 10000), "the graph does not end")) return;
        want *= (double)n;
        for (size_t i = 0; i < COUNT; i++) {
            const double scattered =
                (double)(n * ((size_t)rank->rank * COUNT + i) + n * (n - 1) / 2);
            memcpy(&value, sum + 4 * i, 4);
            if (!CHECK_TRUE(rank, value == want, "sum %zu is %g", i, (double)value)) return;
            memcpy(&value, out + 4 * i, 4);
            if (!CHECK_TRUE(rank, value == scattered, "part %zu is %g", i, (double)value)) return;
        }
    }
    cuda->exec_destroy(exec);
    cuda->graph_destroy(graph);
    cuda->stream_destroy(stream);
}

/* Calls that wait on the host are refused while options.stream captures, and harm nothing. */
static void refused_in_capture(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    spark_comm_options options;
    void *stream = new_stream(), *graph = NULL, *exec = NULL;
    uint64_t memory = 0;
    volatile float *value = script_memory(rank, 16384);
    *value = 1;
    harness_options(rank, &options);
    options.stream = (uint64_t)(uintptr_t)stream;
    options.dtype = SPARK_COMM_F32;
    if (!CHECK_OK(rank, harness_open(rank, &options, &rank->comm))) return;
    spark_comm *comm = rank->comm;
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return;
    CHECK_TRUE(rank, spark_comm_all_reduce(comm, address(value), 4) == SPARK_COMM_OK, "captured");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_broadcast(comm, address(value), 4, 0),
                  "broadcast", "capture");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_broadcast(comm, address(value), 8192, 0),
                  "broadcast");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_barrier(comm), "barrier", "capture");
    CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE, spark_comm_symmetric_alloc(comm, 64, &memory),
                  "symmetric_alloc");
    if (rank->rank > 0)
        CHECK_REFUSED(rank, SPARK_COMM_WRONG_STATE,
                      spark_comm_recv_command_u32(comm, address(value), 0), "recv_command_u32");
    CHECK_TRUE(rank, spark_comm_is_healthy(comm), "poisoned");
    CHECK_TRUE(rank, spark_comm_all_reduce(comm, address(value), 4) == SPARK_COMM_OK, "captured");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_INT(rank, 0, cuda->instantiate(&exec, graph, 0));
    CHECK_INT(rank, 0, cuda->launch(exec, stream));
    CHECK_TRUE(rank, device_settle(stream, 10000), "the graph does not end");
    CHECK_INT(rank, rank->size * rank->size, *value);
    cuda->exec_destroy(exec);
    cuda->graph_destroy(graph);
    CHECK_OK(rank, spark_comm_barrier(comm));
    spark_comm_close(comm);
    rank->comm = NULL;
    cuda->stream_destroy(stream);
}

/* While another thread's stream captures in global mode, eager calls of this communicator go on and
 * leave that capture alone. */
static void beside_a_capture(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    void *stream = new_stream(), *mine = new_stream(), *graph = NULL;
    volatile float *value = script_memory(rank, 4);
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return;
    spark_comm_op op = sum_of(value, 1, mine);
    for (int i = 0; i < 700; i++) /* beyond the run-ahead, where the GPU is asked */
        if (!CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "call %d", i))
            break;
    CHECK_INT(rank, 0, cuda->end(stream, &graph));
    cuda->graph_destroy(graph);
    CHECK_TRUE(rank, device_settle(mine, 20000), "the stream does not end");
    cuda->stream_destroy(stream);
    cuda->stream_destroy(mine);
}

/* ---- Order ---- */

/* Calls on changing streams depend on each other only through the communicator: each sum takes the
 * result of the one before. */
static void changing_streams(struct harness_rank *rank) {
    void *streams[3] = {NULL, new_stream(), new_stream()};
    float *values = script_memory(rank, COUNT * sizeof *values);
    const int rounds = harness_rounds(rank, 200);
    double want = 1;
    for (int i = 0; i < COUNT; i++)
        values[i] = 1;
    for (int round = 0; round < rounds; round++) {
        spark_comm_op op = sum_of(values, COUNT, streams[round % 3]);
        if (round % 2) op.flags = SPARK_COMM_FLAG_EVENT_ORDERED;
        op.redop = SPARK_COMM_MAX;
        if (round % 10 == 0 && want < 1e6) {
            op.redop = SPARK_COMM_SUM;
            want *= rank->size;
        }
        if (!CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "round %d",
                        round))
            break;
    }
    for (int i = 0; i < 3; i++)
        CHECK_TRUE(rank, device_settle(streams[i], 20000), "stream %d does not end", i);
    for (int i = 0; i < COUNT; i++)
        if (!CHECK_TRUE(rank, values[i] == (float)want, "element %d is %g, not %g", i,
                        (double)values[i], want))
            break;
    device_driver()->stream_destroy(streams[1]);
    device_driver()->stream_destroy(streams[2]);
}

/* Thousands of calls ahead of the GPU: held back, never refused, and all of them done. */
static void runs_ahead(struct harness_rank *rank) {
    const int rounds = 3000;
    int32_t counted = 0;
    spark_comm_op op = sum_of(script_memory(rank, 4), 1, NULL);
    op.dtype = SPARK_COMM_I32;
    spark_comm_health_report report = {.struct_size = sizeof report};
    op.redop = SPARK_COMM_MAX;
    for (int i = 0; i < rounds; i++) {
        if (rank->rank == 0 && i == 100) harness_sleep_ms(50); /* the others run ahead */
        if (spark_comm_submit(rank->comm, &op) != SPARK_COMM_OK) break;
        counted++;
    }
    CHECK_INT(rank, rounds, counted);
    CHECK_TRUE(rank, device_settle(NULL, 20000), "the stream does not end");
    /* What is unmarked at the end is marked by the watcher. */
    const int64_t limit = harness_now_ms() + 2000 * harness_slowness();
    do
        spark_comm_health(rank->comm, &report);
    while (report.device_progress < (uint64_t)rounds && harness_now_ms() < limit);
    CHECK_TRUE(rank, report.device_progress >= (uint64_t)rounds, "progress is %llu",
               (unsigned long long)report.device_progress);
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
}

/* A broadcast above 4 KiB is complete on the host: root may write its buffer again at once. */
static void broadcast_is_complete(struct harness_rank *rank) {
    unsigned char *data = script_memory(rank, 100000);
    for (int i = 0; i < 20; i++) {
        memset(data, rank->rank == 0 ? i : 0xff, 100000);
        const spark_comm_status st = spark_comm_broadcast(rank->comm, address(data), 100000, 0);
        if (!CHECK_TRUE(rank, st == SPARK_COMM_OK, "broadcast %d failed", i)) break;
        if (!CHECK_TRUE(rank, data[0] == i && data[99999] == i, "broadcast %d is not there", i))
            break;
    }
}

/* ---- The exchange ---- */

static void set_exchange(struct harness_rank *rank, spark_comm_options *options) {
    (void)options;
    script_set(rank, "SPARK_COMM_NCCL_EXCHANGE_BYTES", "2500000");
}

#ifndef SC_HAVE_KERNELS
/* Built without nvcc: there is no kernel to add with until the engine gives one. */
static void exchange(struct harness_rank *rank) {
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
}
#else
static void exchange(struct harness_rank *rank) {
    static const size_t counts[] = {1,      2,      255,    256,     257,     4096,
                                    524287, 524288, 524289, 1048577, 1250000, 1250001};
    spark_comm_info_row rows[64];
    spark_comm_info_report info = {
        .struct_size = sizeof info, .rows = rows, .row_size = sizeof rows[0], .row_capacity = 64};
    bool found = false;
    CHECK_OK(rank, spark_comm_info(rank->comm, &info));
    for (size_t i = 0; i < info.row_count && i < 64; i++)
        found |= rows[i].operation == SPARK_COMM_OP_ALL_REDUCE &&
                 strncmp(rows[i].path, "exchange", 8) == 0 && rows[i].up_to_bytes == 2500000 &&
                 rows[i].canonical == 1;
    CHECK_TRUE(rank, found, "info shows no exchange");
    for (int kernel = 0; kernel < 2; kernel++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct ops_call call = {.kind = SPARK_COMM_OP_ALL_REDUCE,
                                    .dtype = SPARK_COMM_BF16,
                                    .redop = SPARK_COMM_SUM,
                                    .count = counts[i],
                                    .in_place = i % 2,
                                    .send_misalign = i % 4 == 2,
                                    .recv_misalign = i % 4 == 3 ? 5 : 0,
                                    .named = i % 3 == 0};
            if (!ops_run(rank, &call)) return;
            call.in_place = !call.in_place;
            if (!ops_run(rank, &call)) return;
        }
        void *module = NULL, *function = NULL;
        device_driver()->module_load(&module, "an image");
        device_driver()->module_function(&function, module, "test_add_bf16");
        CHECK_OK(rank, spark_comm_set_add_kernel(rank->comm, (uint64_t)(uintptr_t)function));
    }
    CHECK_OK(rank, spark_comm_set_add_kernel(rank->comm, 0));
    /* One with a kernel, one without: refused on both, nothing changes. */
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_set_add_kernel(rank->comm, rank->rank == 0 ? 0 : 0x1000), "rank 1");
}

#endif

/* ---- Pointers and streams ---- */

static void pointers(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    float local = 1;
    script_set(rank, "SC_FAKE_PAGEABLE", "0");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    spark_comm *comm = rank->comm;
    const uint64_t mine = device_make(&local, 4);
    device_use(7);
    const uint64_t foreign = device_make(&local, 4);
    void *stream = new_stream();
    device_use(rank->rank);
    spark_comm_op op = sum_of(&local, 1, NULL);
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "host memory");
    op.send = op.recv = foreign;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "GPU 7");
    op.send = op.recv = mine;
    op.stream = (uint64_t)(uintptr_t)stream;
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_submit(comm, &op), "stream");
    CHECK_REFUSED(rank, SPARK_COMM_INVALID_ARGUMENT,
                  spark_comm_send_to(comm, mine, 4, (rank->rank + 1) % rank->size, op.stream),
                  "stream");
    op.stream = 0;
    CHECK_OK(rank, spark_comm_submit(comm, &op));
    uint64_t managed = 0;
    CHECK_INT(rank, 0, cuda->managed(&managed, 4096, 1));
    *(float *)(uintptr_t)managed = 1;
    op.send = op.recv = managed;
    CHECK_OK(rank, spark_comm_submit(comm, &op));
    CHECK_INT(rank, rank->size, *(float *)(uintptr_t)managed);
    spark_comm_close(comm);
    rank->comm = NULL;
    cuda->free(mine);
    cuda->free(foreign);
    cuda->free(managed);
    cuda->stream_destroy(stream);
    device_leave(7);
    device_use(rank->rank);
    cuda->release(rank->rank); /* used three times, left once by the harness */
    cuda->release(rank->rank);
}

static void unchecked(struct harness_rank *rank) {
    float local = 1;
    script_set(rank, "SC_FAKE_PAGEABLE", "0");
    script_set(rank, "SPARK_COMM_CHECK_POINTERS", "0");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    spark_comm_op op = sum_of(&local, 1, NULL);
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op)); /* the fake's GPU reaches it anyway */
    CHECK_INT(rank, rank->size, local);
}

/* ---- Registration, reconnect, graphs that live ---- */

static void registration(struct harness_rank *rank) {
    char *memory = script_memory(rank, 65536);
    uint64_t first = 0, second = 0, part = 0;
    spark_comm *comm = rank->comm;
    CHECK_OK(rank, spark_comm_register_buffer(comm, address(memory), 65536, &first));
    CHECK_OK(rank, spark_comm_register_buffer(comm, address(memory), 65536, &second));
    CHECK_OK(rank, spark_comm_register_buffer(comm, address(memory) + 4096, 4096, &part));
    CHECK_TRUE(rank, first != 0 && first == second && part != 0 && part != first, "handles");
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, part));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, first));
    CHECK_OK(rank, spark_comm_deregister_buffer(comm, second));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_deregister_buffer(comm, first));
    CHECK_OK(rank, spark_comm_register_buffer(comm, address(memory), 65536, &first));
    /* NCCL reads nothing of it after close. */
    spark_comm_close(comm);
    rank->comm = NULL;
}

static void registration_does_nothing(struct harness_rank *rank) {
    char *memory = calloc(1, 4096);
    uint64_t handle = 77;
    script_set(rank, "SC_FAKE_NCCL_FAULT", "register_null");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    CHECK_OK(rank, spark_comm_register_buffer(rank->comm, address(memory), 4096, &handle));
    CHECK_INT(rank, 0, handle);
    CHECK_OK(rank, spark_comm_deregister_buffer(rank->comm, handle));
    free(memory);
}

/* One rank without memory: the same status on all, and the next one works. */
static void symmetric_fails(struct harness_rank *rank) {
    uint64_t memory = 0;
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    if (rank->rank == 1) setenv("SC_FAKE_NCCL_MEMORY", "1000", 1);
    CHECK_REFUSED(rank, SPARK_COMM_NO_MEMORY,
                  spark_comm_symmetric_alloc(rank->comm, 10000, &memory), "rank 1", "10000");
    unsetenv("SC_FAKE_NCCL_MEMORY");
    CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, 10000, &memory));
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, memory));
}

/* Ranks that ask for different sizes differ for good. */
static void symmetric_differs(struct harness_rank *rank) {
    uint64_t memory = 0;
    CHECK_STATUS(rank, SPARK_COMM_MISMATCH,
                 spark_comm_symmetric_alloc(rank->comm, rank->rank == 1 ? 64 : 128, &memory));
    harness_meet(rank);
}

/* With windows: allocated, used, freed, and left to close. */
static void windows(struct harness_rank *rank) {
    uint64_t first = 0, second = 0;
    script_set(rank, "SPARK_COMM_NCCL_WINDOWS", rank->size % 2 == 0 ? "always" : "safe");
    script_set(rank, "SC_FAKE_NCCL_VERSION", "22907");
    if (!CHECK_OK(rank, script_open(rank, 0, 0, 0))) return;
    CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, 10000, &first));
    CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, 1, &second));
    *(volatile float *)(uintptr_t)first = 1;
    spark_comm_op op = sum_of((const volatile float *)(uintptr_t)first, 1, NULL);
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    CHECK_INT(rank, rank->size, *(volatile float *)(uintptr_t)first);
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, first));
    CHECK_STATUS(rank, SPARK_COMM_INVALID_ARGUMENT, spark_comm_symmetric_free(rank->comm, first));
}

/* One rank renews itself: not while a graph of the old epoch lives, and with its registrations. */
static void reconnect_alone(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    void *stream = new_stream(), *graph = NULL;
    char *memory = script_memory(rank, 4096);
    uint64_t handle = 0, symmetric = 0;
    volatile float *value = script_memory(rank, 4);
    spark_comm_error why = {.struct_size = sizeof why};
    *value = 3;
    CHECK_OK(rank, spark_comm_register_buffer(rank->comm, address(memory), 4096, &handle));
    CHECK_OK(rank, spark_comm_symmetric_alloc(rank->comm, 10000, &symmetric));
    if (!CHECK_INT(rank, 0, cuda->begin(stream, 0))) return;
    spark_comm_op op = sum_of(value, 1, stream);
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "captured");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_STATUS(rank, SPARK_COMM_WRONG_STATE, spark_comm_attempt_reconnect(rank->comm));
    /* The communicator's own is the first cause: that a new epoch was asked for. */
    CHECK_OK(rank, spark_comm_last_error(NULL, &why));
    CHECK_TRUE(rank, strstr(why.message, "1 captured graph") != NULL, "\"%s\"", why.message);
    cuda->graph_destroy(graph);
    CHECK_OK(rank, spark_comm_attempt_reconnect(rank->comm));
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    CHECK_OK(rank, spark_comm_deregister_buffer(rank->comm, handle));
    CHECK_OK(rank, spark_comm_symmetric_free(rank->comm, symmetric));
    CHECK_OK(rank, spark_comm_abort(rank->comm));
    CHECK_OK(rank, spark_comm_attempt_reconnect(rank->comm));
    CHECK_OK(rank, spark_comm_submit(rank->comm, &op));
    CHECK_INT(rank, 3, *value);
    device_settle(stream, 10000);
    cuda->stream_destroy(stream);
}

/* A graph keeps NCCL from ending the communicator after a fault; destroying it lets go. */
static void graph_outlives_a_fault(struct harness_rank *rank) {
    const struct device_driver *cuda = device_driver();
    void *stream = new_stream(), *graph = NULL;

    if (!CHECK_INT(rank, 0, cuda->begin(stream, 2))) return;
    spark_comm_op op = sum_of(script_memory(rank, 4), 1, stream);
    CHECK_TRUE(rank, spark_comm_submit(rank->comm, &op) == SPARK_COMM_OK, "captured");
    if (!CHECK_INT(rank, 0, cuda->end(stream, &graph))) return;
    CHECK_OK(rank, spark_comm_barrier(rank->comm));
    if (rank->rank == 0) spark_comm_abort(rank->comm);
    if (!script_await_poison(rank, 2000)) return;
    harness_meet(rank);
    CHECK_INT(rank, 0, cuda->graph_destroy(graph));
    const int64_t start = harness_now_ms();
    spark_comm_close(rank->comm);
    rank->comm = NULL;
    CHECK_TRUE(rank, harness_now_ms() - start < 3000 * harness_slowness(), "close took %lld ms",
               (long long)(harness_now_ms() - start));
    cuda->stream_destroy(stream);
}

#define ALONE CONTRACT_ONLY_PROCESSES
static const struct contract_test tests[] = {
    {"captured", {.run = captured}, 0},
    {"captured_unaligned", {.run = captured_unaligned}, 0},
    {"refused_in_capture", {.run = refused_in_capture, .opens_itself = true}, 0},
    {"beside_a_capture", {.run = beside_a_capture}, ALONE},
    {"changing_streams", {.run = changing_streams}, 0},
    {"runs_ahead", {.run = runs_ahead}, ALONE},
    {"broadcast_is_complete", {.run = broadcast_is_complete}, 0},
    {"exchange", {.run = exchange, .tune = set_exchange}, ALONE | CONTRACT_PAIR},
    {"pointers", {.run = pointers, .opens_itself = true}, ALONE | CONTRACT_PAIR},
    {"unchecked", {.run = unchecked, .opens_itself = true}, ALONE},
    {"registration", {.run = registration}, 0},
    {"registration_does_nothing", {.run = registration_does_nothing, .opens_itself = true}, ALONE},
    {"symmetric_fails", {.run = symmetric_fails, .opens_itself = true}, ALONE | CONTRACT_SEVERAL},
    {"symmetric_differs", {.run = symmetric_differs}, ALONE | CONTRACT_SEVERAL},
    {"windows", {.run = windows, .opens_itself = true}, ALONE},
    {"reconnect_alone", {.run = reconnect_alone}, ALONE | CONTRACT_ALONE},
    {"graph_outlives_a_fault", {.run = graph_outlives_a_fault}, ALONE | CONTRACT_SEVERAL},
};

CONTRACT_MAIN("nccl_streams", tests)
