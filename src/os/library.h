/* Opening optional libraries at run time: a list of names is tried in order, each failure's
 * reason is kept, and the file that was really mapped is found. Never closed again (a library
 * that started threads cannot be unloaded safely). */
#ifndef SC_OS_LIBRARY_H
#define SC_OS_LIBRARY_H

#include "base/error.h"

struct sc_library {
    void *handle; /* NULL: not open */
    char file[256]; /* the file mapped */
    char tried[1024]; /* "name: reason; name: reason" */
};

spark_comm_status sc_library_open(struct sc_library *library, const char *const *names,
                                  size_t count, struct sc_error *error);
void *sc_library_symbol(const struct sc_library *library, const char *name);

#endif
