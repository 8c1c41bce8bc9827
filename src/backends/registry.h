/*
 * Which backends there are: the built-in ones, and modules (shared objects that export
 * spark_comm_backend_module) found by name. The only place through which the api reaches a backend.
 */
#ifndef SC_BACKENDS_REGISTRY_H
#define SC_BACKENDS_REGISTRY_H

#include <spark_comm_backend.h>

#include "base/error.h"
#include "base/settings.h"

/* Built-in backends, in the order in which doctor lists them. NULL past the last. */
const spark_comm_backend *sc_registry_builtin(size_t index);
/* The name that settings->backend stands for: "auto" becomes the one candidate of its memory and
 * world size. */
const char *sc_registry_resolve_name(const struct sc_settings *settings);
/* Finds a backend by name, built-in or module, and copies its table (older, shorter tables: NULL
 * for the rest). UNAVAILABLE with every file tried. Modules stay loaded. */
spark_comm_status sc_registry_find(const struct sc_settings *settings, const char *name,
                                   spark_comm_backend *table, struct sc_error *error);
/* Copies and checks a table from outside: major version, name, open and close present. */
spark_comm_status sc_registry_check(const spark_comm_backend *foreign, spark_comm_backend *table,
                                    struct sc_error *error);
/* Does the table serve here? The memory wish and its own probe; UNAVAILABLE with the reason in
 * `error`. */
spark_comm_status sc_registry_probe(const spark_comm_backend *table, void *user,
                                    const struct sc_settings *settings, struct sc_error *error);
/* True for the table of `single`, which never touches memory. */
bool sc_registry_is_single(const spark_comm_backend *table);

#endif
