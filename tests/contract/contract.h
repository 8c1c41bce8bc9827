/*
 * From a list of tests to a program: each test becomes one cmocka test per backend, way (threads,
 * processes) and world size. The program takes words; only tests whose names hold all of them run:
 * `test_all_reduce shm/processes/2`.
 */
#ifndef CONTRACT_CONTRACT_H
#define CONTRACT_CONTRACT_H

#include "harness.h"

/* Which worlds a test makes sense in. */
enum {
    CONTRACT_NO_SINGLE = 1u, /* not on the backend that touches no memory */
    CONTRACT_SEVERAL = 2u, /* only with more than one rank */
    CONTRACT_PAIR = 4u, /* two ranks only */
    CONTRACT_TRIO = 8u, /* three ranks only */
    CONTRACT_ONE_BACKEND =
        16u, /* on the first backend that fits alone: the backend has no part in it */
    CONTRACT_ONLY_THREADS = 32u,
    CONTRACT_ONLY_PROCESSES = 64u,
    CONTRACT_BY_NAME = 128u, /* not on backends that are opened through their table */
    CONTRACT_ALONE = 256u, /* one rank only */
    CONTRACT_ONLY_HOST = 512u /* not on devices, where a call returns when it is enqueued */
};

struct contract_test {
    const char *name;
    struct harness_setup setup;
    unsigned where; /* CONTRACT_* */
};

extern const struct harness_backend contract_backends[];
extern const size_t contract_backend_count;

/* main of every contract test: prints what failed, returns the exit code. */
int contract_main(const char *name, const struct contract_test *tests, size_t count, int argc,
                  char **argv);

#define CONTRACT_MAIN(name, tests)                                                     \
    int main(int argc, char **argv) {                                                  \
        return contract_main(name, tests, sizeof tests / sizeof tests[0], argc, argv); \
    }

#endif
