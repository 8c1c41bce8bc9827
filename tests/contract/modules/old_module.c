/* A module of another major version of the interface: it must be refused before anything of it is
 * called. */
#include <spark_comm_backend.h>
#include <stdlib.h>

static spark_comm_status never_called(void *user, const spark_comm_host *host, void **state) {
    (void)user;
    (void)host;
    (void)state;
    abort();
}

static void never_closed(void *state) {
    (void)state;
    abort();
}

extern const spark_comm_backend spark_comm_backend_module;
__attribute__((visibility("default"))) const spark_comm_backend spark_comm_backend_module = {
    .struct_size = sizeof(spark_comm_backend),
    .abi_version = (SPARK_COMM_BACKEND_ABI_MAJOR + 1) << 16,
    .name = "old",
    .memory = SPARK_COMM_MEMORY_HOST,
    .open = never_called,
    .close = never_closed,
};
