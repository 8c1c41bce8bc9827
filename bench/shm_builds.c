/*
 * all_reduce of 8 bytes in several builds of the library, for what a change costs: two processes on a
 * CPU each, the builds alternate from round to round in an order that moves on, and each is compared
 * with the first one within the round.
 *
 *   shm_builds ROUNDS LIBRARY...      each a path of libspark_comm.so
 */
#include <dlfcn.h>
#include <sched.h>
#include <spark_comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 100000, BATCHES = 15, MOST_BUILDS = 8, MOST_ROUNDS = 101 };

static double *took; /* shared with the ranks: ns per call */

/* The functions of one build. */
struct build {
    void (*options_init)(spark_comm_options *options, size_t struct_size);
    spark_comm_status (*open)(const spark_comm_options *options, spark_comm **comm);
    spark_comm_status (*barrier)(spark_comm *comm);
    spark_comm_status (*all_reduce)(spark_comm *comm, uint64_t ptr, size_t bytes);
    spark_comm_status (*close)(spark_comm *comm);
};

static void fail(const char *what) {
    fprintf(stderr, "shm_builds: %s\n", what);
    exit(1);
}

static void find(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    if (*(void **)function == NULL) fail(dlerror());
}

static void load(struct build *build, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail(dlerror());
    find(library, "spark_comm_options_init", &build->options_init);
    find(library, "spark_comm_open", &build->open);
    find(library, "spark_comm_barrier", &build->barrier);
    find(library, "spark_comm_all_reduce", &build->all_reduce);
    find(library, "spark_comm_close", &build->close);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* One rank: the least of its batches. */
static void run_rank(const char *path, int rank, int port, double *result) {
    static float data[2];
    struct build build;
    spark_comm_options options;
    spark_comm *comm;
    cpu_set_t cpus;
    double least = 1e300;

    CPU_ZERO(&cpus);
    CPU_SET((size_t)rank, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    load(&build, path);
    build.options_init(&options, sizeof options);
    options.backend = "shm";
    options.rank = rank;
    options.world_size = 2;
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    options.dtype = SPARK_COMM_F32;
    if (build.open(&options, &comm) != SPARK_COMM_OK) fail("open");
    for (int batch = 0; batch < BATCHES; batch++) {
        if (build.barrier(comm) != SPARK_COMM_OK) fail("barrier");
        double start = now_ns();
        for (int i = 0; i < CALLS; i++)
            if (build.all_reduce(comm, (uint64_t)(uintptr_t)data, sizeof data) != SPARK_COMM_OK)
                fail("all_reduce");
        double each = (now_ns() - start) / CALLS;
        if (each < least) least = each;
    }
    if (rank == 0) *result = least;
    build.close(comm);
    exit(0);
}

static void run_pair(const char *path, double *result) {
    static int port = 23000;
    int status = 0, failed = 0;
    port = port >= 29000 ? 23000 : port + 1;
    for (int rank = 0; rank < 2; rank++) {
        pid_t pid = fork();
        if (pid == 0) run_rank(path, rank, port, result);
        if (pid < 0) fail("fork");
    }
    for (int rank = 0; rank < 2; rank++)
        failed |= wait(&status) < 0 || status != 0;
    if (failed) fail("a rank failed");
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *figures, int rounds) {
    qsort(figures, (size_t)rounds, sizeof *figures, compare);
    printf("  %-16s %7.1f ns (%.1f .. %.1f)\n", what, figures[rounds / 2], figures[0],
           figures[rounds - 1]);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 0, builds = argc - 2;
    if (rounds < 1 || rounds > MOST_ROUNDS || builds < 1 || builds > MOST_BUILDS)
        fail("usage: shm_builds ROUNDS LIBRARY...");
    size_t bytes = sizeof *took * MOST_BUILDS * MOST_ROUNDS;
    took = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (took == MAP_FAILED) fail("memory");
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < builds; i++) {
            int which = (round + i) % builds;
            run_pair(argv[2 + which], &took[which * rounds + round]);
        }
    for (int which = builds - 1; which >= 0; which--) {
        double more[MOST_ROUNDS];
        for (int round = 0; round < rounds; round++)
            more[round] = took[which * rounds + round] - took[round];
        printf("%s\n", argv[2 + which]);
        if (which > 0) print("more than first", more, rounds);
        print("a call", &took[which * rounds], rounds);
    }
    return 0;
}
