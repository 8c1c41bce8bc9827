/*
 * Feeds files to a fuzz target without a fuzzing engine, so that each input once found stays a
 * test under every compiler. Arguments are files and folders (not descended into further);
 * those that begin with '-' are libFuzzer's and are ignored.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    int st = -1;
    uint8_t *data = NULL;
    long size = -1;
    FILE *file = fopen(path, "rb");

    if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) goto out;
    rewind(file);
    /* A block of exactly this size, so that a sanitizer sees a read past the input's end. */
    data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) goto out;
    LLVMFuzzerTestOneInput(data, (size_t)size);
    st = 0;
out:
    if (st != 0) fprintf(stderr, "cannot read %s\n", path);
    free(data);
    if (file) fclose(file);
    return st;
}

/* The number of inputs replayed, or -1. */
static int replay_folder(const char *path) {
    int count = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);

    if (!folder) return -1;
    while (count >= 0 && (entry = readdir(folder)) != NULL) {
        char name[4096];
        struct stat info;
        int length = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof name)
            count = -1;
        else if (stat(name, &info) == 0 && S_ISREG(info.st_mode))
            count = replay_file(name) == 0 ? count + 1 : -1;
    }
    closedir(folder);
    return count;
}

int main(int argc, char **argv) {
    int total = 0;

    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (argv[i][0] == '-') continue;
        if (stat(argv[i], &info) != 0) {
            fprintf(stderr, "no such file or folder: %s\n", argv[i]);
            return 1;
        }
        int count =
            S_ISDIR(info.st_mode) ? replay_folder(argv[i]) : (replay_file(argv[i]) == 0 ? 1 : -1);
        if (count < 0) return 1;
        total += count;
    }
    /* The empty input belongs to every corpus. */
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("replayed %d inputs\n", total + 1);
    return 0;
}
