/*
 * Loading the CUDA driver. cuInit runs here, once per loaded file; it makes no context. Two ranks
 * that are threads of one process share the table.
 */
#include "gpu/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "os/library.h"

/* cuGetProcAddress itself, in the form of CUDA 12.0; `status` says why there is no function. */
typedef sc_cu_result (*get_address_fn)(const char *name, void **function, int version,
                                       uint64_t flags, int *status);

static struct {
    pthread_mutex_t lock;
    struct sc_driver driver;
    char asked[512]; /* the name that it was loaded by */
    bool loaded;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static spark_comm_status find_functions(const struct sc_library *library, struct sc_driver *driver,
                                        struct sc_error *error) {
    get_address_fn get_address;
    void *symbol = sc_library_symbol(library, "cuGetProcAddress_v2");
    const char *missing = NULL;
    if (symbol == NULL)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "%s has no cuGetProcAddress_v2: a driver for CUDA 12.0 or newer is "
                            "needed",
                            library->file);
    memcpy(&get_address, &symbol, sizeof symbol);
    /* ISO C has no conversion from an object pointer to a function pointer; POSIX gives them one
     * representation. */
#define FIND(member, name, since, arguments)                                       \
    symbol = NULL;                                                                 \
    if (get_address(#name, &symbol, since, 0, NULL) != SC_CU_OK || symbol == NULL) \
        missing = #name;                                                           \
    memcpy(&driver->member, &symbol, sizeof symbol);
    SC_DRIVER_FUNCTIONS(FIND)
#undef FIND
    if (missing == NULL) return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "%s has no %s", library->file,
                        missing);
}

static spark_comm_status start(struct sc_driver *driver, struct sc_error *error) {
    int result = driver->init(0);
    if (result == SC_CU_OK) result = driver->driver_version(&driver->version);
    if (result == SC_CU_OK) result = driver->device_count(&driver->devices);
    if (result != SC_CU_OK)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, result, "%s: cuInit says %s",
                            driver->file, sc_driver_error_name(driver, result));
    if (driver->devices > 0) return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "%s finds no GPU", driver->file);
}

/* Lock held. */
static spark_comm_status load(const char *file, struct sc_error *error) {
    struct sc_library library;
    struct sc_driver driver = {.version = 0};
    const char *names[] = {file[0] != '\0' ? file : "libcuda.so.1"};
    spark_comm_status st = sc_library_open(&library, names, 1, error);
    if (st != SPARK_COMM_OK)
        return sc_error_set(error, st, -1, 0, "no CUDA driver: %.400s", library.tried);
    snprintf(driver.file, sizeof driver.file, "%s", library.file);
    st = find_functions(&library, &driver, error);
    if (st == SPARK_COMM_OK) st = start(&driver, error);
    if (st != SPARK_COMM_OK) return st;
    cache.driver = driver;
    snprintf(cache.asked, sizeof cache.asked, "%s", file);
    cache.loaded = true;
    return st;
}

spark_comm_status sc_driver_load(const char *file, const struct sc_driver **driver,
                                 struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    pthread_mutex_lock(&cache.lock);
    if (!cache.loaded)
        st = load(file, error);
    else if (strcmp(cache.asked, file) != 0)
        st = sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                          "this process uses the CUDA driver %.200s already, not %.200s",
                          cache.driver.file, file);
    pthread_mutex_unlock(&cache.lock);
    if (st == SPARK_COMM_OK) *driver = &cache.driver;
    return st;
}

const char *sc_driver_error_name(const struct sc_driver *driver, int result) {
    static _Thread_local char number[24];
    const char *name = NULL;
    if (driver->error_name != NULL && driver->error_name((sc_cu_result)result, &name) == SC_CU_OK &&
        name != NULL)
        return name;
    snprintf(number, sizeof number, "error %d", result);
    return number;
}

spark_comm_status sc_driver_fail(const struct sc_driver *driver, int result, const char *what,
                                 struct sc_error *error) {
    spark_comm_status st =
        result == SC_CU_OUT_OF_MEMORY ? SPARK_COMM_NO_MEMORY : SPARK_COMM_BACKEND;
    return sc_error_set(error, st, -1, result, "%s: %s (%d)", what,
                        sc_driver_error_name(driver, result), result);
}
