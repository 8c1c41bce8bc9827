/*
 * Libraries opened at run time. What dlopen says about each name that failed is kept, since the
 * last message alone seldom names the real cause. Any thread; the struct belongs to one.
 */
#include "os/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static void note_failure(struct sc_library *library, const char *name, const char *reason) {
    size_t length = strlen(library->tried);
    size_t left = sizeof library->tried - length;

    if (reason == NULL) reason = "unknown reason";
    /* The loader mostly begins with the name itself. */
    bool is_named = strncmp(reason, name, strlen(name)) == 0;
    snprintf(library->tried + length, left, "%s%s%s%s", length > 0 ? "; " : "",
             is_named ? "" : name, is_named ? "" : ": ", reason);
}

/* The file that was mapped, which a search path or a name without a folder leaves open. */
static void find_file(struct sc_library *library, const char *name) {
    struct link_map *map = NULL;

    if (dlinfo(library->handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL &&
        map->l_name[0] != '\0')
        name = map->l_name;
    snprintf(library->file, sizeof library->file, "%s", name);
}

spark_comm_status sc_library_open(struct sc_library *library, const char *const *names,
                                  size_t count, struct sc_error *error) {
    memset(library, 0, sizeof *library);
    for (size_t i = 0; i < count; i++) {
        library->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library->handle != NULL) {
            find_file(library, names[i]);
            return SPARK_COMM_OK;
        }
        note_failure(library, names[i], dlerror());
    }
    return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "no library could be opened (%s)",
                        count > 0 ? library->tried : "no name to try");
}

void *sc_library_symbol(const struct sc_library *library, const char *name) {
    return library->handle != NULL ? dlsym(library->handle, name) : NULL;
}
