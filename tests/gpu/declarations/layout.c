/* The structs and values that the library passes to NCCL, compared with nccl.h. */
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>

#include "backends/nccl/library.h"

#define EQUAL(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #theirs)
#define PLACE(ours, theirs)                                                \
    EQUAL(offsetof(sc_nccl_config, ours), offsetof(ncclConfig_t, theirs)); \
    EQUAL(sizeof((sc_nccl_config){0}.ours), sizeof((ncclConfig_t){0}.theirs))
PLACE(size, size);
PLACE(magic, magic);
PLACE(version, version);
PLACE(blocking, blocking);
PLACE(cga_cluster_size, cgaClusterSize);
PLACE(min_ctas, minCTAs);
PLACE(max_ctas, maxCTAs);
PLACE(net_name, netName);
PLACE(split_share, splitShare);
EQUAL(SC_NCCL_CONFIG_BYTES, offsetof(ncclConfig_t, splitShare) + sizeof(int));
EQUAL(sizeof(sc_nccl_id), sizeof(ncclUniqueId));
EQUAL(SC_NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
EQUAL(SC_NCCL_OK, ncclSuccess);
EQUAL(SC_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
EQUAL(SC_NCCL_IN_PROGRESS, ncclInProgress);
EQUAL(SC_NCCL_I8, ncclInt8);
EQUAL(SC_NCCL_U8, ncclUint8);
EQUAL(SC_NCCL_I32, ncclInt32);
EQUAL(SC_NCCL_I64, ncclInt64);
EQUAL(SC_NCCL_F16, ncclFloat16);
EQUAL(SC_NCCL_F32, ncclFloat32);
EQUAL(SC_NCCL_F64, ncclFloat64);
EQUAL(SC_NCCL_BF16, ncclBfloat16);
EQUAL(SC_NCCL_SUM, ncclSum);
EQUAL(SC_NCCL_MAX, ncclMax);
EQUAL(SC_NCCL_MIN, ncclMin);
EQUAL(SC_NCCL_AVG, ncclAvg);
EQUAL(SC_NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);

int main(void) {
    const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    if (theirs.magic != SC_NCCL_CONFIG_MAGIC) {
        fprintf(stderr, "the magic number is 0x%x\n", theirs.magic);
        return 1;
    }
    printf("the declarations agree with nccl.h %d and cuda.h\n", NCCL_VERSION_CODE);
    return 0;
}
