/*
 * Shared regions and the registry of those that this process has mapped. The registry is a list
 * under one mutex, which also guards the counts; the lists are short and used at open, close and
 * symmetric_alloc only. An entry owns its descriptor and its address range; every sc_mapping of it
 * borrows both and counts as one user.
 */
#include "os/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

/* Pages are allocated in pieces: an interrupted fallocate undoes its work, so under a steady signal
 * a large one would never end. Each interruption halves the piece. */
#define LARGEST_PIECE ((size_t)8 << 20)
#define SMALLEST_PIECE ((size_t)64 << 10)

struct region {
    struct region *next;
    dev_t device;
    ino_t inode;
    void *address;
    size_t bytes;
    int fd;
    unsigned users;
};

static pthread_mutex_t registry_lock =
    PTHREAD_MUTEX_INITIALIZER; /* a leaf: nothing else is taken under it */
static struct region *registry; /* guarded by registry_lock */

void sc_mapping_init(struct sc_mapping *mapping) {
    *mapping = (struct sc_mapping){.fd = -1};
}

/* ---- Memory that is left ---- */

/* Bytes that can still be had without swapping; UINT64_MAX when the kernel does not say. */
static uint64_t available_bytes(void) {
    char text[1024];
    uint64_t kib;
    size_t length = 0;
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && length < sizeof text - 1) {
        ssize_t got = read(fd, text + length, sizeof text - 1 - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    if (fd >= 0) close(fd);
    text[length] = '\0';
    const char *line = strstr(text, "MemAvailable:");
    if (line == NULL) return UINT64_MAX;
    kib = strtoull(line + strlen("MemAvailable:"), NULL, 10);
    return kib * 1024;
}

static spark_comm_status no_memory(struct sc_error *error, size_t bytes, int errno_value) {
    uint64_t left = available_bytes();

    if (left == UINT64_MAX)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, errno_value,
                            "cannot allocate %zu bytes of shared memory", bytes);
    return sc_error_set(
        error, SPARK_COMM_NO_MEMORY, -1, errno_value,
        "cannot allocate %zu bytes of shared memory: %" PRIu64 " bytes are available", bytes, left);
}

static spark_comm_status allocate_pages(int fd, size_t offset, size_t bytes,
                                        struct sc_error *error) {
    size_t piece = LARGEST_PIECE;
    size_t done = 0;

    /* Where memory is overcommitted the kernel would rather kill some process than refuse, so ask
     * first. */
    if (bytes > available_bytes()) return no_memory(error, bytes, ENOMEM);
    while (done < bytes) {
        size_t wanted = bytes - done < piece ? bytes - done : piece;
        if (fallocate(fd, 0, (off_t)(offset + done), (off_t)wanted) == 0)
            done += wanted;
        else if (errno == EINTR)
            piece = piece / 2 > SMALLEST_PIECE ? piece / 2 : SMALLEST_PIECE;
        else if (errno == ENOSPC || errno == ENOMEM)
            return no_memory(error, bytes, errno);
        else
            return sc_error_system(error, errno, "cannot allocate %zu bytes of shared memory",
                                   bytes);
    }
    return SPARK_COMM_OK;
}

/* ---- Regions ---- */

static spark_comm_status map_region(struct region *region, struct sc_error *error) {
    void *address = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);

    if (address == MAP_FAILED)
        return sc_error_system(error, errno, "cannot map %zu bytes of shared memory",
                               region->bytes);
    region->address = address;
    return SPARK_COMM_OK;
}

/* Called with registry_lock held. */
static struct region *find_region(const struct stat *info) {
    struct region *region = registry;
    while (region != NULL && (region->device != info->st_dev || region->inode != info->st_ino))
        region = region->next;
    return region;
}

static void lend(struct region *region, struct sc_mapping *mapping) {
    mapping->address = region->address;
    mapping->bytes = region->bytes;
    mapping->fd = region->fd;
}

/* Maps the region behind `fd`, or finds it mapped. The descriptor is the region's from now on, or
 * closed. */
static spark_comm_status enter_region(int fd, const struct stat *info, struct sc_mapping *mapping,
                                      struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    struct region *added = sc_alloc_zero(sizeof *added);

    if (added == NULL) {
        close(fd);
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, ENOMEM,
                            "no memory for the record of a shared region");
    }
    pthread_mutex_lock(&registry_lock);
    struct region *region = find_region(info);
    if (region == NULL) {
        *added = (struct region){.next = registry,
                                 .device = info->st_dev,
                                 .inode = info->st_ino,
                                 .bytes = (size_t)info->st_size,
                                 .fd = fd};
        st = map_region(added, error);
        if (st != SPARK_COMM_OK) goto out;
        registry = region = added;
        added = NULL;
        fd = -1;
    }
    region->users++;
    lend(region, mapping);
out:
    pthread_mutex_unlock(&registry_lock);
    sc_free(added);
    if (fd >= 0) close(fd);
    return st;
}

/* ---- The interface ---- */

spark_comm_status sc_mapping_create(size_t bytes, bool allocate_now, struct sc_mapping *mapping,
                                    struct sc_error *error) {
    spark_comm_status st = SPARK_COMM_OK;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct stat info;
    int fd = -1;

    sc_mapping_init(mapping);
    if (bytes == 0 || bytes > (size_t)PTRDIFF_MAX - page)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "a shared region cannot have %zu bytes", bytes);
    bytes = (bytes + page - 1) / page * page;

    fd = memfd_create("spark_comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return sc_error_system(error, errno, "cannot make a shared region (memfd_create)");
    while (ftruncate(fd, (off_t)bytes) != 0) {
        if (errno == EINTR) continue;
        st = sc_error_system(error, errno, "cannot size a shared region to %zu bytes", bytes);
        goto out;
    }
    if (allocate_now) st = allocate_pages(fd, 0, bytes, error);
    if (st != SPARK_COMM_OK) goto out;
    if (fstat(fd, &info) != 0) {
        st = sc_error_system(error, errno, "cannot look at a shared region");
        goto out;
    }
    st = enter_region(fd, &info, mapping, error);
    fd = -1;
    if (st == SPARK_COMM_OK && allocate_now) st = sc_mapping_seal(mapping, error);
    if (st != SPARK_COMM_OK) sc_mapping_release(mapping);
out:
    if (fd >= 0) close(fd);
    return st;
}

/* A memfd that cannot be cut short under our feet, or that its maker still can seal. */
static spark_comm_status check_region(int fd, size_t bytes, struct stat *info,
                                      struct sc_error *error) {
    off_t page = sysconf(_SC_PAGESIZE);

    if (fstat(fd, info) != 0)
        return sc_error_system(error, errno, "cannot look at a shared region that a peer sent");
    int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(info->st_mode) || seals < 0)
        return sc_error_set(error, SPARK_COMM_SYSTEM, -1, EINVAL,
                            "what a peer sent as a shared region is no memfd");
    if ((seals & F_SEAL_SHRINK) == 0 && (seals & F_SEAL_SEAL) != 0)
        return sc_error_set(error, SPARK_COMM_SYSTEM, -1, EINVAL,
                            "a shared region that a peer sent cannot be sealed");
    if (info->st_size <= 0 || (uint64_t)info->st_size < bytes || info->st_size % page != 0)
        return sc_error_set(error, SPARK_COMM_SYSTEM, -1, EINVAL,
                            "a shared region that a peer sent has %lld bytes instead of %zu",
                            (long long)info->st_size, bytes);
    return SPARK_COMM_OK;
}

spark_comm_status sc_mapping_attach(int fd, size_t bytes, struct sc_mapping *mapping,
                                    struct sc_error *error) {
    struct stat info;

    sc_mapping_init(mapping);
    spark_comm_status st = check_region(fd, bytes, &info, error);
    if (st != SPARK_COMM_OK) {
        if (fd >= 0) close(fd);
        return st;
    }
    return enter_region(fd, &info, mapping, error);
}

spark_comm_status sc_mapping_allocate(const struct sc_mapping *mapping, size_t offset, size_t bytes,
                                      struct sc_error *error) {
    if (offset > mapping->bytes || bytes > mapping->bytes - offset)
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0,
                            "a shared region of %zu bytes has no %zu bytes at %zu", mapping->bytes,
                            bytes, offset);
    return allocate_pages(mapping->fd, offset, bytes, error);
}

spark_comm_status sc_mapping_seal(const struct sc_mapping *mapping, struct sc_error *error) {
    if (fcntl(mapping->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return sc_error_system(error, errno, "cannot seal a shared region");
    return SPARK_COMM_OK;
}

/* Keeps the addresses, for the munmap of sc_mapping_release, and nothing else. Where that fails the old
 * pages only stay longer than they need to. */
static void reserve(unsigned char *at, size_t bytes) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

    if (bytes > 0 && mmap(at, bytes, PROT_NONE, how, -1, 0) == MAP_FAILED) return;
}

/* Others may still have the region, so it is only forgotten here. */
static void forget_region(const struct sc_mapping *mapping, size_t offset, size_t bytes) {
    unsigned char *start = mapping->address;
    struct region *region;

    pthread_mutex_lock(&registry_lock);
    for (region = registry; region != NULL && region->address != mapping->address;)
        region = region->next;
    if (region != NULL && region->users == 1) {
        reserve(start, offset);
        reserve(start + offset + bytes, region->bytes - offset - bytes);
        close(region->fd);
        region->fd = -1;
        region->inode = 0; /* may be given to another one now */
    }
    pthread_mutex_unlock(&registry_lock);
}

spark_comm_status sc_mapping_detach(const struct sc_mapping *mapping, size_t offset, size_t bytes,
                                    struct sc_error *error) {
    unsigned char *at = (unsigned char *)mapping->address + offset;
    void *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (fresh == MAP_FAILED)
        return sc_error_system(error, errno, "cannot make %zu bytes of private memory", bytes);
    memcpy(fresh, at, bytes);
    /* In one step: no other thread's mapping can come in between. */
    if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) {
        spark_comm_status st =
            sc_error_system(error, errno, "cannot replace %zu bytes of shared memory", bytes);
        munmap(fresh, bytes);
        return st;
    }
    forget_region(mapping, offset, bytes);
    return SPARK_COMM_OK;
}

void sc_mapping_release(struct sc_mapping *mapping) {
    struct region *unused = NULL;

    if (mapping->address == NULL) return;
    pthread_mutex_lock(&registry_lock);
    for (struct region **link = &registry; *link != NULL; link = &(*link)->next) {
        struct region *region = *link;
        if (region->address != mapping->address) continue;
        if (--region->users == 0) {
            *link = region->next;
            unused = region;
        }
        break;
    }
    /* Unmapped under the lock: whoever maps the same region next must not meet a half-removed one.
     */
    if (unused != NULL) {
        munmap(unused->address, unused->bytes);
        if (unused->fd >= 0) close(unused->fd);
    }
    pthread_mutex_unlock(&registry_lock);
    sc_free(unused);
    sc_mapping_init(mapping);
}
