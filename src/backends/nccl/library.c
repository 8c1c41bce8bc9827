/*
 * Finding and opening NCCL. The library is loaded once per process and never closed, since it has
 * threads and plugins of its own.
 */
#include "backends/nccl/library.h"

#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"

#define MOST_NAMES 12
#define MOST_FILES 4
#define PIP_FILE "/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2"

/* By the name that was asked for: communicators of one process may use different files. */
static struct {
    pthread_mutex_t lock;
    struct {
        struct sc_nccl_library library;
        char asked[512];
    } entries[MOST_FILES];
    size_t count;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Names to try when none is given: the loader's path, then where pip puts its package. */
struct names {
    const char *list[MOST_NAMES];
    size_t count;
    glob_t found;
};

static void collect(struct names *names, const char *file) {
    const char *folders[8] = {"/usr/local", "/usr"};
    char home[512], pattern[600];
    memset(names, 0, sizeof *names);
    names->list[names->count++] = file[0] != '\0' ? file : "libnccl.so.2";
    if (file[0] != '\0') return;
    size_t count = 2 + sc_settings_python_folders(&folders[2], 6, home, sizeof home);
    for (size_t i = 0; i < count; i++) {
        snprintf(pattern, sizeof pattern, "%s" PIP_FILE, folders[count - 1 - i]);
        glob(pattern, i == 0 ? 0 : GLOB_APPEND, NULL, &names->found);
    }
    for (size_t i = 0; i < names->found.gl_pathc && names->count < MOST_NAMES; i++)
        names->list[names->count++] = names->found.gl_pathv[i];
}

/* Gates every function by presence and version; the name of a missing one that is needed, or NULL. */
static const char *find_functions(const struct sc_library *opened,
                                  struct sc_nccl_library *library) {
    const char *missing = NULL;
    void *symbol;
#define FIND(result, member, function, since, arguments)                                \
    symbol = library->version >= (since) ? sc_library_symbol(opened, #function) : NULL; \
    if (symbol == NULL && (since) <= SC_NCCL_OLDEST) missing = #function;               \
    memcpy(&library->member, &symbol, sizeof symbol);
    SC_NCCL_FUNCTIONS(FIND)
#undef FIND
    return missing;
}

/* One that opened: is it new enough, and whole? */
static spark_comm_status examine(const struct sc_library *opened, struct sc_nccl_library *library,
                                 struct sc_error *error) {
    char text[32];
    void *symbol = sc_library_symbol(opened, "ncclGetVersion");
    sc_nccl_result (*get_version)(int *version);
    memset(library, 0, sizeof *library);
    snprintf(library->file, sizeof library->file, "%s", opened->file);
    memcpy(&get_version, &symbol, sizeof symbol);
    if (symbol == NULL || get_version(&library->version) != SC_NCCL_OK)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "%s: no ncclGetVersion",
                            library->file);
    sc_nccl_library_version_text(library->version, text, sizeof text);
    if (library->version < SC_NCCL_OLDEST)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "%s: NCCL %s is too old, 2.19 or newer is needed", library->file, text);
    const char *missing = find_functions(opened, library);
    if (missing == NULL) return SPARK_COMM_OK;
    return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "%s: NCCL %s has no %s",
                        library->file, text, missing);
}

/* Lock held. Each name by itself, so that one that opens but will not do leads on to the next. */
static spark_comm_status load(const char *file, struct sc_nccl_library *library,
                              struct sc_error *error) {
    struct names names;
    char tried[sizeof error->message] = "";
    spark_comm_status st = SPARK_COMM_UNAVAILABLE;
    collect(&names, file);
    for (size_t i = 0; i < names.count && st != SPARK_COMM_OK; i++) {
        struct sc_library opened;
        struct sc_error reason;
        size_t used = strlen(tried);
        sc_error_clear(&reason);
        st = sc_library_open(&opened, &names.list[i], 1, &reason);
        if (st == SPARK_COMM_OK)
            st = examine(&opened, library, &reason);
        else
            snprintf(reason.message, sizeof reason.message, "%.250s", opened.tried);
        if (st != SPARK_COMM_OK)
            snprintf(tried + used, sizeof tried - used, "%s%.250s", used > 0 ? "; " : "",
                     reason.message);
    }
    globfree(&names.found);
    if (st != SPARK_COMM_OK)
        return sc_error_set(error, st, -1, 0,
                            "no NCCL to use: %.400s (SPARK_COMM_NCCL_LIBRARY "
                            "names another)",
                            tried);
    return st;
}

spark_comm_status sc_nccl_library_load(const char *file, const struct sc_nccl_library **library,
                                       struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    size_t i = 0;
    pthread_mutex_lock(&cache.lock);
    while (i < cache.count && strcmp(cache.entries[i].asked, file) != 0)
        i++;
    if (i == MOST_FILES) {
        st = sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                          "this process has loaded %d files of NCCL already", MOST_FILES);
    } else if (i == cache.count) {
        st = load(file, &cache.entries[i].library, error);
        snprintf(cache.entries[i].asked, sizeof cache.entries[i].asked, "%s", file);
        if (st == SPARK_COMM_OK) cache.count++;
    }
    pthread_mutex_unlock(&cache.lock);
    if (st == SPARK_COMM_OK) *library = &cache.entries[i].library;
    return st;
}

/* docs/nccl.md has the table that this follows. */
const char *sc_nccl_library_warning(const struct sc_nccl_library *library, bool is_aarch64) {
    int version = library->version;
    if (is_aarch64 && version < 22903)
        return "below 2.29.3 on aarch64 the builds of pip packages lose slots of the network proxy "
               "and hang after 20 to 30 minutes: use 2.29.3 or newer, or the system's own build";
    if (version < 22602)
        return "below 2.26.2 non-blocking communicators race and abort may hang: use a newer one";
    if (version == 23102) return "2.31.2 hangs with registered receive buffers over GPUDirect RDMA";
    return NULL;
}

void sc_nccl_library_version_text(int version, char *text, size_t size) {
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}
