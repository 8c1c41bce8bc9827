/* Multiplies tests with backends, ways and world sizes, and hands them to cmocka. */
#include "contract.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_CASES 512
#define MAX_WORLD 4

struct contract_case {
    char name[128];
    const struct contract_test *test;
    struct harness_case world;
};

static struct contract_case cases[MAX_CASES];

/* cmocka jumps out of a test at a fault, which rank threads and forked ranks must not do: they get
 * back what was installed before (the default, or a sanitizer's report). */
static const int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
#define FAULT_SIGNALS (sizeof fault_signals / sizeof fault_signals[0])
static struct sigaction fault_actions[FAULT_SIGNALS];

static void ask_library(const struct harness_backend *backend, const spark_comm_options *options,
                        char *why, size_t why_size) {
    spark_comm_backend_row rows[16];
    size_t count = 0;
    if (spark_comm_describe_backends(options, rows, sizeof rows[0], 16, &count) != SPARK_COMM_OK)
        return;
    for (size_t i = 0; i < count && i < 16; i++)
        if (strcmp(rows[i].name, backend->name) == 0 && rows[i].status == SPARK_COMM_UNAVAILABLE)
            snprintf(why, why_size, "%s", rows[i].reason);
}

/* A process that has touched the CUDA driver must not fork ranks. */
static void ask_in_child(const struct harness_backend *backend, const spark_comm_options *options,
                         char *why, size_t why_size) {
    char *shared = mmap(NULL, why_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        ask_library(backend, options, shared, why_size);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    memcpy(why, shared, why_size);
    munmap(shared, why_size);
}

/* Why a backend cannot serve here; empty when it can. Asked of the library, which asks the
 * backend's probe. */
static void ask_backend(const struct harness_backend *backend, int size, char *why,
                        size_t why_size) {
    spark_comm_options options;
    why[0] = '\0';
    if (backend->table != NULL) return;
    spark_comm_options_init(&options, sizeof options);
    options.backend = backend->name;
    options.rank = 0;
    options.world_size = size;
    if (backend->on_device) {
        ask_in_child(backend, &options, why, why_size);
        return;
    }
    ask_library(backend, &options, why, why_size);
}

static void run_case(void **state) {
    const struct contract_case *one = *state;
    char why[256];
    ask_backend(one->world.backend, one->world.size, why, sizeof why);
    if (why[0] != '\0') {
        print_message("skipped: backend %s is UNAVAILABLE here: %s\n", one->world.backend->name,
                      why);
        skip();
    }
    for (size_t i = 0; i < FAULT_SIGNALS; i++)
        sigaction(fault_signals[i], &fault_actions[i], NULL);
    const int failures = harness_run(one->name, &one->world, &one->test->setup);
    if (failures != 0) fail_msg("%s: %d failures, told above", one->name, failures);
}

static int number_of(const char *variable, int usual) {
    const char *text = getenv(variable);
    return text != NULL ? atoi(text) : usual;
}

/* SPARK_COMM_TEST_BACKEND names the one to test; without it all that need no device. */
static bool is_chosen(const struct harness_backend *backend) {
    const char *name = getenv("SPARK_COMM_TEST_BACKEND");
    return name != NULL ? strcmp(name, backend->name) == 0 : !backend->on_device;
}

static bool fits(unsigned where, const struct harness_backend *backend, enum harness_way way,
                 int size) {
    if (size > backend->max_world || !is_chosen(backend)) return false;
    if (backend->on_device && size > number_of("SPARK_COMM_TEST_MAX_WORLD", MAX_WORLD))
        return false;
    if ((where & CONTRACT_NO_SINGLE) && !backend->moves_data) return false;
    if ((where & CONTRACT_BY_NAME) && backend->table != NULL) return false;
    if ((where & CONTRACT_SEVERAL) && size < 2) return false;
    if ((where & CONTRACT_ONLY_HOST) && backend->on_device) return false;
    if ((where & CONTRACT_PAIR) && size != 2) return false;
    if ((where & CONTRACT_TRIO) && size != 3) return false;
    if ((where & CONTRACT_ALONE) && size != 1) return false;
    if ((where & CONTRACT_ONLY_THREADS) && way != HARNESS_THREADS) return false;
    if ((where & CONTRACT_ONLY_PROCESSES) && way != HARNESS_PROCESSES) return false;
    return true;
}

static bool wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]) == NULL) return false;
    return true;
}

/* All worlds of one test, appended to cases. */
static size_t expand(const char *program, const struct contract_test *test, size_t used, int argc,
                     char **argv) {
    static const char *const ways[] = {"threads", "processes"};
    for (size_t b = 0; b < contract_backend_count; b++) {
        const struct harness_backend *backend = &contract_backends[b];
        const size_t before = used;
        for (int size = 1; size <= MAX_WORLD; size++) {
            for (int way = HARNESS_THREADS; way <= HARNESS_PROCESSES; way++) {
                struct contract_case *one = &cases[used];
                if (!fits(test->where, backend, (enum harness_way)way, size)) continue;
                if (used == MAX_CASES) abort();
                snprintf(one->name, sizeof one->name, "%s.%s %s/%s/%d", program, test->name,
                         backend->name, ways[way], size);
                one->test = test;
                one->world = (struct harness_case){backend, (enum harness_way)way, size};
                used += wanted(one->name, argc, argv);
            }
        }
        if ((test->where & CONTRACT_ONE_BACKEND) && used > before) break;
    }
    return used;
}

static void pass_on(const char *from, const char *to) {
    const char *value = getenv(from);
    if (value != NULL) setenv(to, value, 1);
}

/* What the machine's user has set must not reach a test. */
static void clean_environment(void) {
    extern char **environ;
    static const char *const others[] = {"RANK",        "WORLD_SIZE",
                                         "LOCAL_RANK",  "MASTER_ADDR",
                                         "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"};
    for (char **entry = environ; *entry != NULL;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        const bool ours =
            strncmp(name, "SPARK_COMM_", 11) == 0 && strncmp(name, "SPARK_COMM_TEST_", 16) != 0;
        const bool launcher = strncmp(name, "OMPI_", 5) == 0 || strncmp(name, "PMI_", 4) == 0 ||
                              strncmp(name, "SLURM_", 6) == 0;
        if (!ours && !launcher) {
            entry++;
            continue;
        }
        unsetenv(name);
        entry = environ;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        unsetenv(others[i]);
    pass_on("SPARK_COMM_TEST_CUDA_LIBRARY", "SPARK_COMM_CUDA_LIBRARY");
    pass_on("SPARK_COMM_TEST_NCCL_LIBRARY", "SPARK_COMM_NCCL_LIBRARY");
    pass_on("SPARK_COMM_TEST_EXCHANGE_BYTES", "SPARK_COMM_NCCL_EXCHANGE_BYTES");
}

static void *do_nothing(void *argument) {
    return argument;
}

/* A sanitizer starts a thread of its own with the program's first: before anybody counts
 * threads. */
static void wake_sanitizer(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_nothing, NULL) == 0) pthread_join(thread, NULL);
}

int contract_main(const char *name, const struct contract_test *tests, size_t count, int argc,
                  char **argv) {
    static struct CMUnitTest units[MAX_CASES];
    size_t used = 0;
    clean_environment();
    wake_sanitizer();
    if (getenv("SPARK_COMM_TEST_MANAGED") != NULL) harness_use_managed();
    harness_level(); /* looks at the environment once, before there are threads */
    for (size_t i = 0; i < FAULT_SIGNALS; i++)
        sigaction(fault_signals[i], NULL, &fault_actions[i]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < count; i++)
        used = expand(name, &tests[i], used, argc, argv);
    for (size_t i = 0; i < used; i++)
        units[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = run_case, .initial_state = &cases[i]};
    return _cmocka_run_group_tests(name, units, used, NULL, NULL);
}
