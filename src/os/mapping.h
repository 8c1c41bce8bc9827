/*
 * Shared memory without names: memfd, allocated in full when made (no SIGBUS later), sealed against
 * shrinking and growing, passed as a descriptor. A process maps a region once, however many of its
 * ranks attach it: a registry keyed by (device, inode) counts users, so that ranks that are threads
 * share one mapping (and the thread sanitizer sees their races).
 */
#ifndef SC_OS_MAPPING_H
#define SC_OS_MAPPING_H

#include "base/error.h"

struct sc_mapping {
    void *address; /* page aligned; NULL: not mapped */
    size_t bytes; /* page multiple */
    int fd; /* kept open while mapped; -1: none */
};

void sc_mapping_init(struct sc_mapping *mapping);
/* Makes a region of at least `bytes`, zero filled, and maps it. NO_MEMORY names the bytes wanted
 * and those free. With `allocate_now` false only the address range exists; each rank then calls
 * sc_mapping_allocate for its part and the maker seals afterwards with sc_mapping_seal. */
spark_comm_status sc_mapping_create(size_t bytes, bool allocate_now, struct sc_mapping *mapping,
                                    struct sc_error *error);
/* Maps the region behind `fd` (taken over on success and failure alike), which must have at
 * least `bytes` and be a sealed or sealable memfd; checked by fstat and F_GET_SEALS before it is
 * mapped. */
spark_comm_status sc_mapping_attach(int fd, size_t bytes, struct sc_mapping *mapping,
                                    struct sc_error *error);
spark_comm_status sc_mapping_allocate(const struct sc_mapping *mapping, size_t offset, size_t bytes,
                                      struct sc_error *error);
spark_comm_status sc_mapping_seal(const struct sc_mapping *mapping, struct sc_error *error);
/* Puts private pages with the same content in the place of [offset, offset + bytes), whole pages: the
 * addresses stay, and whoever else has mapped the region no longer reaches them. The process's only
 * user also lets go of all the rest, which must not be touched any more. NO_MEMORY, SYSTEM: nothing
 * has changed. */
spark_comm_status sc_mapping_detach(const struct sc_mapping *mapping, size_t offset, size_t bytes,
                                    struct sc_error *error);
/* Unmaps when the process's last user lets go. Fine on one that is not mapped. */
void sc_mapping_release(struct sc_mapping *mapping);

#endif
