/* Copying a report into a caller's struct that may be older or newer than ours. */
#ifndef SC_API_REPORT_H
#define SC_API_REPORT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies `known` bytes of `ours` (which begins with struct_size) into `theirs`, at most
 * theirs->struct_size, which stays as it is. False, with nothing written, when that is too small to
 * be one, or when a newer caller's fields beyond ours are not zero. */
bool sc_report_copy(void *theirs, const void *ours, size_t known);

#endif
