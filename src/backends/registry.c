/*
 * Backends by name. Built-in tables first; any other name is a module: libspark_comm_<name>.so in
 * the folder of SPARK_COMM_BACKEND_PATH, then on the loader's path. A table from outside is copied,
 * so that a shorter (older) one has NULL for what it does not know, and is never read beyond its
 * own struct_size.
 */
#include "backends/registry.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backends/nccl/nccl.h"
#include "backends/shm/shm.h"
#include "backends/single.h"
#include "os/library.h"

static const spark_comm_backend *const builtin[] = {&sc_single_backend, &sc_shm_backend,
                                                    &sc_nccl_backend};

const spark_comm_backend *sc_registry_builtin(size_t index) {
    return index < sizeof builtin / sizeof builtin[0] ? builtin[index] : NULL;
}

const char *sc_registry_resolve_name(const struct sc_settings *settings) {
    if (strcmp(settings->backend, "auto") != 0) return settings->backend;
    if (settings->world_size == 1) return "single";
    return settings->memory == SPARK_COMM_MEMORY_DEVICE ? "nccl" : "shm";
}

bool sc_registry_is_single(const spark_comm_backend *table) {
    return table->open == sc_single_backend.open;
}

spark_comm_status sc_registry_check(const spark_comm_backend *foreign, spark_comm_backend *table,
                                    struct sc_error *error) {
    size_t known =
        offsetof(spark_comm_backend, all_reduce); /* up to close: without these it is no backend */
    memset(table, 0, sizeof *table);
    if (foreign == NULL)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "open_backend: backend is NULL");
    if (foreign->struct_size < known)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "the backend's table has struct_size %zu, at least %zu is needed",
                            foreign->struct_size, known);
    if (foreign->abi_version >> 16 != SPARK_COMM_BACKEND_ABI_MAJOR)
        return sc_error_set(
            error, SPARK_COMM_UNAVAILABLE, -1, 0,
            "the backend was built for major version %u of the backend interface, this library has %u: "
            "rebuild it",
            foreign->abi_version >> 16, SPARK_COMM_BACKEND_ABI_MAJOR);
    memcpy(table, foreign,
           foreign->struct_size < sizeof *table ? foreign->struct_size : sizeof *table);
    table->struct_size = sizeof *table;
    if (table->name == NULL || table->name[0] == '\0' || strlen(table->name) > 31)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "the backend's name must have 1 to 31 characters");
    if (table->open == NULL || table->close == NULL)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "backend %s has no open or no close", table->name);
    if (table->memory != SPARK_COMM_MEMORY_HOST && table->memory != SPARK_COMM_MEMORY_DEVICE)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "backend %s names no kind of memory (%d)", table->name, table->memory);
    return SPARK_COMM_OK;
}

static spark_comm_status find_module(const struct sc_settings *settings, const char *name,
                                     spark_comm_backend *table, struct sc_error *error) {
    struct sc_library library;
    char in_folder[640], plain[128];
    const char *names[2];
    size_t count = 0;
    if (strchr(name, '/') != NULL || strlen(name) > 31)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "backend \"%s\" is not a name (no slash, at most 31 characters)", name);
    if (settings->backend_path[0] != '\0') {
        snprintf(in_folder, sizeof in_folder, "%s/libspark_comm_%s.so", settings->backend_path,
                 name);
        names[count++] = in_folder;
    }
    snprintf(plain, sizeof plain, "libspark_comm_%s.so", name);
    names[count++] = plain;
    struct sc_error reason;
    sc_error_clear(&reason);
    if (sc_library_open(&library, names, count, &reason) != SPARK_COMM_OK)
        return sc_error_set(
            error, SPARK_COMM_UNAVAILABLE, -1, 0,
            "backend \"%s\" is neither built in (single, shm, nccl) nor a module; tried %.300s", name,
            library.tried);
    const spark_comm_backend *foreign =
        sc_library_symbol(&library, SPARK_COMM_BACKEND_MODULE_SYMBOL);
    if (foreign == NULL)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "%.200s does not export " SPARK_COMM_BACKEND_MODULE_SYMBOL,
                            library.file);
    return sc_registry_check(foreign, table, error);
}

spark_comm_status sc_registry_find(const struct sc_settings *settings, const char *name,
                                   spark_comm_backend *table, struct sc_error *error) {
    for (size_t i = 0; i < sizeof builtin / sizeof builtin[0]; i++) {
        if (strcmp(builtin[i]->name, name) != 0) continue;
        *table = *builtin[i];
        return SPARK_COMM_OK;
    }
    return find_module(settings, name, table, error);
}

spark_comm_status sc_registry_probe(const spark_comm_backend *table, void *user,
                                    const struct sc_settings *settings, struct sc_error *error) {
    char why[400] = "";
    spark_comm_options options;
    if (!sc_registry_is_single(table) && table->memory != settings->memory)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "backend %s works on %s memory, but %s memory is wanted", table->name,
                            table->memory == SPARK_COMM_MEMORY_DEVICE ? "device" : "host",
                            settings->memory == SPARK_COMM_MEMORY_DEVICE ? "device" : "host");
    if (table->probe == NULL) return SPARK_COMM_OK;
    sc_settings_to_options(settings, &options);
    spark_comm_status st = table->probe(user, &options, why, sizeof why);
    /* A backend that can serve may say what it would use. */
    if (st == SPARK_COMM_OK) return sc_error_set(error, st, -1, 0, "%s", why);
    return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "backend %s cannot serve here: %s",
                        table->name, why[0] != '\0' ? why : "it gave no reason");
}
