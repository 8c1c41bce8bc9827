/*
 * What one file of NCCL offers: loads it as the library does and prints a row in Markdown. No GPU is
 * needed. scripts/nccl_versions.sh asks it about several versions.
 */
#include <stdio.h>
#include <string.h>

#include "backends/nccl/library.h"

int main(int argc, char **argv) {
    const struct sc_nccl_library *nccl;
    struct sc_error error;
    char version[32];
    sc_nccl_id id;
    if (argc != 3) {
        fprintf(stderr, "usage: gpu_nccl_offers PACKAGE FILE\n");
        return 2;
    }
    sc_error_clear(&error);
    if (sc_nccl_library_load(argv[2], &nccl, &error) != SPARK_COMM_OK) {
        printf("| %s | | UNAVAILABLE: %.300s | | |\n", argv[1], error.message);
        return 1;
    }
    sc_nccl_library_version_text(nccl->version, version, sizeof version);
    /* An id needs neither GPU nor driver; the rest would. */
    int made = nccl->unique_id(&id);
    const char *warning = sc_nccl_library_warning(nccl, false);
    printf("| %s | %s | %s, %s | %s | %s |\n", argv[1], version,
           nccl->window_register != NULL ? "windows" : "no windows",
           nccl->revoke != NULL ? "revoke" : "no revoke", made == SC_NCCL_OK ? "made" : "not made",
           warning != NULL ? warning : "none");
    return 0;
}
