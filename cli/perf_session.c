/*
 * One rank's run of perf: open, see whether it can be done here, agree with the other ranks, then
 * verify and time each operation at each size, and report from rank 0.
 */
#include "cli.h"
#include "perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_BEFORE = 2, ROUNDS_AFTER = 1, PAGE = 4096 };

struct session {
    const struct sc_perf_options *options;
    spark_comm *comm;
    int rank;
    int world;
    char backend[32];
    spark_comm_info_row *rows;
    size_t row_count;
    size_t budget; /* bytes that one rank may allocate */
    struct sc_perf_device *device; /* of a backend that works on device memory */
    bool one_machine; /* all ranks share memory and clock */
    uint64_t wrong;
    size_t measured; /* rows */
    uint64_t seed;
    struct sc_perf_report *report; /* rank 0 */
    bool unable; /* rank 0 cannot report; the message is out */
};

/* What the ranks tell each other before anything else. */
struct introduction {
    uint64_t settings; /* digest of the options that must be alike */
    uint64_t machine;
    uint64_t available; /* bytes */
    uint64_t unable; /* rank 0 has nowhere to report to */
};

static int fail(const struct session *s, spark_comm_status st, const char *what) {
    spark_comm_error error = {.struct_size = sizeof error};
    char who[32] = "";
    spark_comm_last_error(s->comm, &error);
    if (s->comm) snprintf(who, sizeof who, "rank %d: ", s->rank);
    bool told = error.status == (int)st && error.message[0];
    sc_cli_error(s->options->command, "%s%s: %s: %s", who, what, spark_comm_status_name(st),
                 told ? error.message : spark_comm_status_text(st));
    return SC_EXIT_FAILED;
}

/* --- beginning ---------------------------------------------------------------------------------- */

static int open_session(struct session *s) {
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    options.backend = s->options->backend;
    options.dtype = s->options->dtype;
    spark_comm_status st = spark_comm_open(&options, &s->comm);
    if (st) return fail(s, st, "cannot open the communicator");
    s->rank = spark_comm_rank(s->comm);
    s->world = spark_comm_world_size(s->comm);
    return SC_EXIT_GOOD;
}

static int read_info(struct session *s) {
    spark_comm_info_report info = {.struct_size = sizeof info};
    spark_comm_status st = spark_comm_info(s->comm, &info);
    if (st) return fail(s, st, "cannot ask for the backend");
    s->rows = calloc(info.row_count + 1, sizeof *s->rows);
    if (!s->rows) {
        sc_cli_error(s->options->command, "memory ran out");
        return SC_EXIT_FAILED;
    }
    info.rows = s->rows;
    info.row_size = sizeof *s->rows;
    info.row_capacity = info.row_count;
    st = spark_comm_info(s->comm, &info);
    if (st) return fail(s, st, "cannot ask for the backend");
    s->row_count = info.row_count < info.row_capacity ? info.row_count : info.row_capacity;
    snprintf(s->backend, sizeof s->backend, "%s", info.backend);

    if (info.memory != SPARK_COMM_MEMORY_DEVICE) return SC_EXIT_GOOD;
    s->device = sc_perf_device_open(s->options->command);
    return s->device ? SC_EXIT_GOOD : SC_EXIT_FAILED;
}

static uint64_t digest(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x100000001b3u;
}

static uint64_t settings_digest(const struct sc_perf_options *o) {
    uint64_t hash = 0xcbf29ce484222325u;
    hash = digest(hash, o->ops);
    hash = digest(hash, o->all_ops);
    hash = digest(hash, o->min_bytes);
    hash = digest(hash, o->max_bytes);
    hash = digest(hash, (uint64_t)o->factor);
    hash = digest(hash, (uint64_t)o->dtype);
    hash = digest(hash, (uint64_t)o->redop);
    hash = digest(hash, (uint64_t)o->iterations);
    hash = digest(hash, (uint64_t)o->warmup);
    hash = digest(hash, (uint64_t)o->workload);
    hash = digest(hash, (uint64_t)o->batch);
    hash = digest(hash, (uint64_t)o->chunk);
    return digest(hash, o->symmetric);
}

/* The kernel's boot id: equal for all containers of one machine, new after each boot. */
static uint64_t machine_id(void) {
    char text[64] = "";
    uint64_t hash = 0xcbf29ce484222325u;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return 0;
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    for (const char *c = text; *c; c++) {
        hash = digest(hash, (unsigned char)*c);
    }
    return hash;
}

/* Bytes that can be used without swapping; SIZE_MAX / 2 when the kernel does not say. */
static uint64_t available_memory(void) {
    static const char name[] = "MemAvailable:";
    char line[128];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && !kib && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, sizeof name - 1) == 0)
            kib = strtoull(line + sizeof name - 1, NULL, 10);
    }
    if (file) fclose(file);
    return kib ? kib * 1024 : SIZE_MAX / 2;
}

/* Half of what is available on each machine is shared among its ranks; the smallest share is
 * everybody's. A test that takes all memory can stop a machine where CPU and GPU share it. */
static int agree(struct session *s) {
    struct sc_perf_call call = {.options = s->options, .comm = s->comm, .world = s->world};
    struct introduction own = {settings_digest(s->options), machine_id(), available_memory(),
                               s->unable};
    struct introduction *all = calloc((size_t)s->world, sizeof *all);
    int code = SC_EXIT_FAILED;
    if (!all) {
        sc_cli_error(s->options->command, "memory ran out");
        return code;
    }
    spark_comm_status st = sc_perf_measure_gather(&call, &own, all, sizeof own);
    if (st) {
        fail(s, st, "cannot agree with the other ranks");
        goto out;
    }
    if (all[0].unable) goto out;
    s->budget = SIZE_MAX;
    s->one_machine = true;
    for (int i = 0; i < s->world; i++) {
        if (all[i].settings != all[0].settings) {
            sc_cli_error(s->options->command,
                         "rank %d was started with other options than rank 0; give all ranks the "
                         "same",
                         i);
            goto out;
        }
        uint64_t neighbours = 1; /* itself */
        for (int j = 0; j < s->world; j++) {
            neighbours += j != i && all[j].machine == all[i].machine;
        }
        if (neighbours != (uint64_t)s->world) s->one_machine = false;
        uint64_t share = all[i].available / 2 / neighbours;
        if (share < s->budget) s->budget = share;
    }
    code = SC_EXIT_GOOD;
out:
    free(all);
    return code;
}

/* --- sizes and buffers -------------------------------------------------------------------------- */

struct sizes {
    size_t unit;
    size_t first;
    size_t last;
};

static size_t align_down(size_t bytes, size_t unit) {
    size_t aligned = bytes / unit * unit;
    return aligned ? aligned : unit;
}

/* False: nothing of this operation fits into the asked range. */
static bool choose_sizes(struct session *s, const struct sc_perf_op *op, struct sizes *sizes) {
    const struct sc_perf_options *o = s->options;
    size_t last = o->max_bytes;
    if (!op->sized) {
        *sizes = (struct sizes){1, 0, 0};
        return true;
    }
    sizes->unit = op->unit ? op->unit : sc_perf_values_size(o->dtype);
    sizes->first = align_down(o->min_bytes, sizes->unit);
    if (op->max_bytes && last > op->max_bytes) last = op->max_bytes;

    size_t per_byte =
        sc_perf_ops_send_bytes(op, s->world, 1) + sc_perf_ops_recv_bytes(op, s->world, 1);
    if (last > s->budget / per_byte) {
        last = s->budget / per_byte;
        sc_perf_report_note(s->report,
                            "%s: sizes end at %zu bytes: each rank may use %zu MiB, its share of "
                            "half the available memory",
                            op->name, align_down(last, sizes->unit), s->budget >> 20);
    }
    if (last < sizes->first) {
        sc_perf_report_note(s->report, "%s: nothing to do: it takes at most %zu bytes here",
                            op->name, last);
        return false;
    }
    sizes->last = align_down(last, sizes->unit);
    return true;
}

/* The last size is always the end of the range, whatever the factor. */
static size_t next_size(const struct session *s, const struct sizes *sizes, size_t bytes) {
    size_t factor = (size_t)s->options->factor;
    if (bytes > sizes->last / factor) return sizes->last;
    return align_down(bytes * factor, sizes->unit);
}

/* Commands are host memory on every backend. */
static bool is_command(const struct sc_perf_op *op) {
    return op->operation == SPARK_COMM_OP_SEND_COMMAND;
}

/* Memory of the session's kind, and what the operation is given as its address. */
static int allocate(struct session *s, const struct sc_perf_op *op, size_t bytes,
                    unsigned char **buffer, uint64_t *address) {
    bool symmetric = s->options->symmetric && !is_command(op);
    bool on_device = s->device && !is_command(op);
    if (bytes == 0) return SC_EXIT_GOOD;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (symmetric) {
        spark_comm_status st = spark_comm_symmetric_alloc(s->comm, bytes, address);
        if (st) return fail(s, st, "--symmetric: no memory that the peers can reach");
    } else if (on_device) {
        *address = sc_perf_device_alloc(s->device, bytes);
    }
    if (symmetric && !on_device) {
        *buffer = (unsigned char *)(uintptr_t)*address;
        return SC_EXIT_GOOD;
    }
    *buffer = aligned_alloc(PAGE, bytes);
    if (!on_device) *address = (uint64_t)(uintptr_t)*buffer;
    if (*buffer && *address) return SC_EXIT_GOOD;
    sc_cli_error(s->options->command, "rank %d: no memory for %zu bytes; lower -e", s->rank, bytes);
    return SC_EXIT_FAILED;
}

static void release(struct session *s, const struct sc_perf_op *op, unsigned char *buffer,
                    uint64_t address) {
    bool symmetric = s->options->symmetric && !is_command(op);
    bool on_device = s->device && !is_command(op);
    if (symmetric && address)
        spark_comm_symmetric_free(s->comm, address);
    else if (on_device)
        sc_perf_device_free(s->device, address);
    if (!symmetric || on_device) free(buffer);
}

/* --- one row ------------------------------------------------------------------------------------ */

static void find_path(const struct session *s, const struct sc_perf_call *call, char path[32]) {
    const spark_comm_info_row *best = NULL;
    for (size_t i = 0; i < s->row_count; i++) {
        const spark_comm_info_row *row = &s->rows[i];
        if (row->operation != call->op->operation || call->bytes > row->up_to_bytes) continue;
        if (!best || row->up_to_bytes < best->up_to_bytes) best = row;
    }
    snprintf(path, 32, "%.31s", best && best->path[0] ? best->path : "-");
}

/* Fresh data each round; adds what any rank found wrong. */
static spark_comm_status verify(struct session *s, struct sc_perf_call *call, int rounds,
                                uint64_t *wrong) {
    for (int i = 0; i < rounds; i++) {
        bool clock_differs = !call->op->sized && !s->one_machine;
        call->seed = clock_differs ? 0 : ++s->seed * 0x9e3779b97f4a7c15u;
        call->op->fill(call);
        spark_comm_status st = sc_perf_device_upload(call);
        if (!st) st = call->op->call(call);
        if (!st) st = sc_perf_device_download(call);
        if (st) return st;
        *wrong += call->op->wrong(call);
    }
    return SPARK_COMM_OK;
}

static spark_comm_status sum_over_ranks(struct sc_perf_call *call, uint64_t *number) {
    uint64_t *all = calloc((size_t)call->world, sizeof *all);
    if (!all) return SPARK_COMM_NO_MEMORY;
    spark_comm_status st = sc_perf_measure_gather(call, number, all, sizeof *number);
    *number = 0;
    for (int i = 0; i < call->world; i++) {
        *number += all[i];
    }
    free(all);
    return st;
}

static spark_comm_status measure_row(struct session *s, struct sc_perf_call *call) {
    struct sc_perf_result result = {.op = call->op, .bytes = call->bytes};
    spark_comm_status st = verify(s, call, ROUNDS_BEFORE, &result.wrong);
    if (!st) st = sc_perf_measure(call, &result.times);
    if (!st) st = verify(s, call, ROUNDS_AFTER, &result.wrong);
    if (!st) st = sum_over_ranks(call, &result.wrong);
    if (st) return st;

    double seconds = result.times.median_us / 1e6;
    double total = sc_perf_ops_total_bytes(call->op, call->world, call->bytes);
    if (seconds > 0) result.algbw_gbps = total / seconds / 1e9;
    result.busbw_gbps = result.algbw_gbps * sc_perf_ops_bus_factor(call->op, call->world);
    find_path(s, call, result.path);
    s->wrong += result.wrong;
    s->measured++;
    sc_perf_report_add(s->report, &result);
    return SPARK_COMM_OK;
}

/* --- the whole ---------------------------------------------------------------------------------- */

static int failed_row(struct session *s, const struct sc_perf_call *call, spark_comm_status st) {
    char what[96];
    if (st == SPARK_COMM_NOT_SUPPORTED && s->options->all_ops) {
        sc_perf_report_note(s->report, "%s: backend %s does not have it", call->op->name,
                            s->backend);
        return SC_EXIT_GOOD;
    }
    snprintf(what, sizeof what, "%s of %zu bytes", call->op->name, call->bytes);
    return fail(s, st, what);
}

static int run_op(struct session *s, const struct sc_perf_op *op) {
    struct sc_perf_call call = {
        .options = s->options, .op = op, .comm = s->comm, .rank = s->rank, .world = s->world};
    struct sizes sizes;
    unsigned char *send = NULL, *recv = NULL;
    uint64_t send_address = 0, recv_address = 0;
    spark_comm_status st = SPARK_COMM_OK;
    if (!choose_sizes(s, op, &sizes)) return SC_EXIT_GOOD;

    size_t send_bytes = sc_perf_ops_send_bytes(op, s->world, sizes.last);
    size_t recv_bytes = sc_perf_ops_recv_bytes(op, s->world, sizes.last);
    int code = allocate(s, op, send_bytes, &send, &send_address);
    if (!code) code = allocate(s, op, recv_bytes, &recv, &recv_address);
    call.send = send;
    call.recv = recv ? recv : send;
    call.send_address = send_address;
    call.recv_address = recv ? recv_address : send_address;
    if (!is_command(op)) call.device = s->device;
    for (size_t bytes = sizes.first; !code; bytes = next_size(s, &sizes, bytes)) {
        call.bytes = bytes;
        sc_perf_report_progress(s->report, op, bytes);
        st = measure_row(s, &call);
        if (st || bytes == sizes.last) break;
    }
    if (!code && st) code = failed_row(s, &call, st);
    release(s, op, recv, recv_address);
    release(s, op, send, send_address);
    return code;
}

static int run_workload(struct session *s) {
    struct sc_perf_call call = {
        .options = s->options, .comm = s->comm, .rank = s->rank, .world = s->world};
    int code = SC_EXIT_GOOD;
    if (s->device) {
        if (s->rank == 0)
            sc_cli_error(s->options->command,
                         "--workload measures host memory alone so far: leave --backend out");
        return SC_EXIT_FAILED;
    }
    spark_comm_status st = sc_perf_workload(&call, s->backend, s->budget, &s->wrong, &code);
    if (st) return fail(s, st, "--workload");
    st = sum_over_ranks(&call, &s->wrong);
    if (st) return fail(s, st, "cannot agree on the outcome");
    if (s->wrong && s->rank == 0)
        sc_cli_error(s->options->command, "%llu wrong elements", (unsigned long long)s->wrong);
    return code;
}

/* Rank 0 writes files while the others wait for it here: whoever starts them takes the first rank
 * that fails as a reason to end the others. */
static int conclude(struct session *s, int code) {
    struct sc_perf_call call = {.options = s->options, .comm = s->comm, .world = s->world};
    uint64_t bad = sc_perf_report_finish(s->report) != SC_EXIT_GOOD;
    if (code) return code;
    if (s->measured == 0 && !s->options->workload) {
        if (s->rank == 0)
            sc_cli_error(s->options->command,
                         "nothing was verified: no size from -b %zu to -e %zu fits; an element of "
                         "%s has %zu bytes",
                         s->options->min_bytes, s->options->max_bytes,
                         sc_perf_values_dtype_name(s->options->dtype),
                         sc_perf_values_size(s->options->dtype));
        bad = 1;
    }
    spark_comm_status st = sum_over_ranks(&call, &bad);
    if (st) return fail(s, st, "cannot agree on the outcome");
    return bad || s->wrong ? SC_EXIT_FAILED : SC_EXIT_GOOD;
}

int sc_perf_session(const struct sc_perf_options *options) {
    struct session s = {.options = options};
    int code = open_session(&s);
    if (!code) code = read_info(&s);
    if (code) goto out;

    const char *memory = s.device ? "device" : "host";
    s.unable = !options->workload && s.rank == 0 &&
               !sc_perf_report_open(options, s.backend, memory, s.world, &s.report);
    code = agree(&s);
    if (!code && options->workload) code = run_workload(&s);
    for (size_t i = 0; i < SC_PERF_OP_COUNT && !code; i++) {
        if (options->ops & (1u << i)) code = run_op(&s, &sc_perf_ops[i]);
    }
    code = conclude(&s, code);
out:
    sc_perf_report_close(s.report);
    spark_comm_close(s.comm);
    sc_perf_device_close(s.device);
    free(s.rows);
    return code;
}
