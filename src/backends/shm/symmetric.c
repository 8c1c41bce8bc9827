/*
 * Symmetric memory is one shared region per allocation, with a part per rank; a rank's pointer is
 * its own part, and the offset inside is the same on all ranks. Freeing is local: a peer's mapping
 * of the region stays. Regions and ranges are few, so they are lists.
 */
#include "backends/shm/symmetric.h"

#include <unistd.h>

#include "base/alloc.h"

struct sc_symmetric_region {
    struct sc_symmetric_region *next;
    struct sc_mapping mapping;
    unsigned char *own; /* this rank's part */
    size_t part_bytes; /* of each rank */
    uint32_t id; /* counted in the epoch, from 1; alike on all ranks */
    bool is_detached; /* of an older epoch: plain memory */
};

struct sc_symmetric_range {
    struct sc_symmetric_range *next;
    uint64_t ptr;
    size_t bytes;
    uint64_t handle;
};

static const struct sc_symmetric_region *find(const struct sc_shm *shm, uint64_t ptr,
                                              size_t bytes) {
    const struct sc_symmetric_region *region = shm->regions;
    for (; region != NULL; region = region->next) {
        uint64_t offset = ptr - (uint64_t)(uintptr_t)region->own; /* wraps for what lies before */
        if (!region->is_detached && offset <= region->part_bytes &&
            bytes <= region->part_bytes - offset)
            break;
    }
    return region;
}

struct sc_symmetric_place sc_symmetric_locate(const struct sc_shm *shm, uint64_t ptr,
                                              size_t bytes) {
    const struct sc_symmetric_region *region = find(shm, ptr, bytes);
    if (region == NULL) return (struct sc_symmetric_place){0};
    return (struct sc_symmetric_place){
        .region = region->id,
        .offset = ptr - (uint64_t)(uintptr_t)region->own,
        .parts = region->mapping.address,
        .part_bytes = region->part_bytes,
    };
}

/* One rank shares with nobody, but has memory of the same kind. */
static spark_comm_status share(struct sc_shm *shm, size_t part, int64_t deadline,
                               struct sc_mapping *mapping) {
    size_t ranks = (size_t)shm->size;
    struct sc_error error;
    spark_comm_status st;
    sc_error_clear(&error);
    if (part == 0 || part > SIZE_MAX / 2 / ranks)
        st = sc_error_set(&error, SPARK_COMM_NO_MEMORY, -1, 0,
                          "symmetric_alloc: %d ranks cannot have so much memory", shm->size);
    else if (shm->size == 1)
        st = sc_mapping_create(part, true, mapping, &error);
    else
        st =
            sc_world_share(sc_host_world(shm->host), ranks * part, part, deadline, mapping, &error);
    return st == SPARK_COMM_OK ? st : sc_host_pass(shm->host, &error);
}

spark_comm_status sc_symmetric_alloc(void *state, size_t bytes, int64_t deadline_ns,
                                     uint64_t *ptr) {
    struct sc_shm *shm = state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* Rounded up to whole pages; 0 where that would wrap. */
    size_t part = bytes <= SIZE_MAX - page ? (bytes + page - 1) / page * page : 0;
    struct sc_symmetric_region *region = sc_alloc_zero(sizeof *region);
    spark_comm_status st =
        sc_mailbox_agree(shm->host, "symmetric_alloc", region != NULL, bytes, deadline_ns);
    if (st != SPARK_COMM_OK || region == NULL) goto fail; /* without a region the vote failed */
    sc_mapping_init(&region->mapping);
    st = share(shm, part, deadline_ns, &region->mapping);
    if (st != SPARK_COMM_OK) goto fail;
    region->part_bytes = part;
    region->own = (unsigned char *)region->mapping.address + (size_t)shm->rank * part;
    region->id = ++shm->mail.regions;
    region->next = shm->regions;
    shm->regions = region;
    *ptr = (uint64_t)(uintptr_t)region->own;
    return st;
fail:
    sc_free(region);
    return st;
}

spark_comm_status sc_symmetric_free(void *state, uint64_t ptr) {
    struct sc_shm *shm = state;
    for (struct sc_symmetric_region **at = &shm->regions; *at != NULL; at = &(*at)->next) {
        struct sc_symmetric_region *region = *at;
        if ((uint64_t)(uintptr_t)region->own != ptr) continue;
        *at = region->next;
        sc_mapping_release(&region->mapping);
        sc_free(region);
        return SPARK_COMM_OK;
    }
    return sc_host_fail(shm->host, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                        "symmetric_free: ptr is no memory that symmetric_alloc gave");
}

/* A range that stays registered after its region was freed does no harm: only its address is kept,
 * and every use looks the region up. */
spark_comm_status sc_symmetric_register(void *state, uint64_t ptr, size_t bytes, uint64_t *handle) {
    struct sc_shm *shm = state;
    struct sc_symmetric_range *range = shm->ranges;
    *handle = 0;
    if (find(shm, ptr, bytes) == NULL) return SPARK_COMM_OK;
    while (range != NULL && (range->ptr != ptr || range->bytes != bytes))
        range = range->next;
    if (range == NULL) {
        range = sc_alloc_zero(sizeof *range);
        if (range == NULL)
            return sc_host_fail(shm->host, SPARK_COMM_NO_MEMORY, -1, 0,
                                "register_buffer: out of memory");
        *range = (struct sc_symmetric_range){shm->ranges, ptr, bytes, ++shm->last_handle};
        shm->ranges = range;
    }
    *handle = range->handle;
    return SPARK_COMM_OK;
}

spark_comm_status sc_symmetric_deregister(void *state, uint64_t handle) {
    struct sc_shm *shm = state;
    if (handle == 0) return SPARK_COMM_OK;
    for (struct sc_symmetric_range **at = &shm->ranges; *at != NULL; at = &(*at)->next) {
        struct sc_symmetric_range *range = *at;
        if (range->handle != handle) continue;
        *at = range->next;
        sc_free(range);
        return SPARK_COMM_OK;
    }
    return sc_host_fail(shm->host, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                        "deregister_buffer: handle %llu is not registered",
                        (unsigned long long)handle);
}

/* A peer that was only stopped may wake with its mapping of this rank's part, even in the middle of
 * a store: from here on it reaches orphaned pages. */
spark_comm_status sc_symmetric_detach(struct sc_shm *shm, struct sc_error *error) {
    for (struct sc_symmetric_region *region = shm->regions; region != NULL; region = region->next) {
        size_t offset = (size_t)shm->rank * region->part_bytes;
        if (region->is_detached) continue;
        spark_comm_status st =
            sc_mapping_detach(&region->mapping, offset, region->part_bytes, error);
        if (st != SPARK_COMM_OK) return st;
        region->is_detached = true;
    }
    /* The api registers anew what is still symmetric: nothing. */
    while (shm->ranges != NULL) {
        struct sc_symmetric_range *range = shm->ranges;
        shm->ranges = range->next;
        sc_free(range);
    }
    return SPARK_COMM_OK;
}

void sc_symmetric_close(struct sc_shm *shm) {
    while (shm->regions != NULL) {
        struct sc_symmetric_region *region = shm->regions;
        shm->regions = region->next;
        sc_mapping_release(&region->mapping);
        sc_free(region);
    }
    while (shm->ranges != NULL) {
        struct sc_symmetric_range *range = shm->ranges;
        shm->ranges = range->next;
        sc_free(range);
    }
}
