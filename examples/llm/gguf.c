/*
 * Reads a GGUF file of version 2 or 3: a header, metadata (key, type, value), a table of tensors, and
 * the tensors' bytes. The file is mapped, and nothing of it is copied. It may come from anywhere: each
 * length is held against what is left of the file before it is used.
 */
#include "llm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x46554747, MAX_DIMENSIONS = 4, DEFAULT_ALIGNMENT = 32 };
enum {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_TYPES = 13
};
static const size_t scalar_bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct llm_gguf_value {
    struct llm_text key;
    uint32_t type;
    const unsigned char *at;
};

struct llm_gguf_tensor {
    struct llm_text name;
    struct llm_matrix matrix;
};

/* What is left to read. `cut` stays true once something was asked for that is not there. */
struct reader {
    const unsigned char *at, *end;
    bool cut;
};

bool llm_fail(struct llm_error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

bool llm_text_is(struct llm_text text, const char *string) {
    return text.length == strlen(string) && memcmp(text.data, string, text.length) == 0;
}

static const unsigned char *take(struct reader *r, uint64_t bytes) {
    const unsigned char *at = r->at;
    if (r->cut || bytes > (uint64_t)(r->end - r->at)) {
        r->cut = true;
        return NULL;
    }
    r->at += bytes;
    return at;
}

static uint32_t take_u32(struct reader *r) {
    uint32_t value = 0;
    const unsigned char *at = take(r, sizeof value);
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t take_u64(struct reader *r) {
    uint64_t value = 0;
    const unsigned char *at = take(r, sizeof value);
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

static struct llm_text take_text(struct reader *r) {
    uint64_t length = take_u64(r);
    const unsigned char *at = take(r, length);
    if (at == NULL) return (struct llm_text){"", 0};
    return (struct llm_text){(const char *)at, (size_t)length};
}

/* False: a type that the format does not have, or arrays of arrays, which no model uses. */
static bool skip_value(struct reader *r, uint32_t type) {
    if (type == GGUF_STRING) {
        take_text(r);
        return true;
    }
    if (type != GGUF_ARRAY) {
        if (type >= GGUF_TYPES) return false;
        take(r, scalar_bytes[type]);
        return true;
    }
    uint32_t element = take_u32(r);
    uint64_t count = take_u64(r);
    if (element >= GGUF_TYPES || element == GGUF_ARRAY) return r->cut;
    if (element != GGUF_STRING) {
        if (count > (uint64_t)(r->end - r->at))
            r->cut = true;
        else
            take(r, count * scalar_bytes[element]);
    }
    for (uint64_t i = 0; element == GGUF_STRING && i < count && !r->cut; i++)
        take_text(r);
    return true;
}

size_t llm_block_bytes(int type) {
    switch (type) {
    case LLM_F32: return LLM_BLOCK * 4;
    case LLM_F16: return LLM_BLOCK * 2;
    case LLM_Q4_0: return 2 + LLM_BLOCK / 2;
    case LLM_Q4_1: return 4 + LLM_BLOCK / 2;
    case LLM_Q8_0: return 2 + LLM_BLOCK;
    default: return 0;
    }
}

static const char *type_name(uint32_t type) {
    static const char *const names[] = {"F32",  "F16",  "Q4_0", "Q4_1", "",     "",
                                        "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
                                        "Q4_K", "Q5_K", "Q6_K", "Q8_K"};
    if (type == 30) return "BF16";
    return type < sizeof names / sizeof *names && names[type][0] ? names[type]
                                                                 : "of an unknown kind";
}

/* One row of the table of tensors; its data pointer is still the offset. */
static bool read_tensor(struct reader *r, struct llm_gguf_tensor *tensor, uint64_t *offset,
                        struct llm_error *error) {
    uint64_t sizes[MAX_DIMENSIONS] = {1, 1, 1, 1}, rows = 1;
    tensor->name = take_text(r);
    int name_length = tensor->name.length < 64 ? (int)tensor->name.length : 64;
    uint32_t dimensions = take_u32(r);
    if (dimensions > MAX_DIMENSIONS)
        return llm_fail(error, "a tensor has %u dimensions", dimensions);
    for (uint32_t i = 0; i < dimensions; i++)
        sizes[i] = take_u64(r);
    uint32_t type = take_u32(r);
    *offset = take_u64(r);
    if (r->cut) return true; /* the caller says so */

    if (type > 64 || llm_block_bytes((int)type) == 0)
        return llm_fail(
            error, "tensor %.*s is %s (type %u); this engine reads F32, F16, Q8_0, Q4_0 and Q4_1",
            name_length, tensor->name.data, type_name(type), type);
    for (int i = 1; i < MAX_DIMENSIONS; i++)
        if (__builtin_mul_overflow(rows, sizes[i], &rows)) rows = UINT64_MAX;
    bool plain = type == LLM_F32 || type == LLM_F16;
    if (sizes[0] == 0 || sizes[0] > UINT32_MAX || rows == 0 || rows > UINT32_MAX ||
        (!plain && sizes[0] % LLM_BLOCK))
        return llm_fail(error, "tensor %.*s has an impossible size", name_length,
                        tensor->name.data);
    tensor->matrix.type = (int)type;
    tensor->matrix.columns = (size_t)sizes[0];
    tensor->matrix.rows = (size_t)rows;
    tensor->matrix.row_bytes = plain ? (size_t)sizes[0] * (type == LLM_F32 ? 4 : 2)
                                     : (size_t)sizes[0] / LLM_BLOCK * llm_block_bytes((int)type);
    return true;
}

static bool place_tensor(const struct llm_gguf *file, size_t data_begin, uint64_t offset,
                         struct llm_gguf_tensor *tensor, struct llm_error *error) {
    size_t bytes = tensor->matrix.row_bytes * tensor->matrix.rows; /* below 2^32 * 2^34 */
    if (data_begin > file->size || offset > file->size - data_begin ||
        bytes > file->size - data_begin - offset)
        return llm_fail(error, "the file is cut off: it has %zu bytes, and tensor %.*s lies beyond",
                        file->size, tensor->name.length < 64 ? (int)tensor->name.length : 64,
                        tensor->name.data);
    if (offset % 4) return llm_fail(error, "a tensor lies at an impossible place");
    tensor->matrix.data = file->bytes + data_begin + offset; /* good for floats */
    return true;
}

static bool parse_tables(struct llm_gguf *file, struct reader *r, uint64_t *offsets,
                         struct llm_error *error) {
    for (size_t i = 0; i < file->value_count && !r->cut; i++) {
        struct llm_gguf_value *value = &file->values[i];
        value->key = take_text(r);
        value->type = take_u32(r);
        value->at = r->at;
        if (!skip_value(r, value->type)) return llm_fail(error, "its metadata has an unknown type");
    }
    for (size_t i = 0; i < file->tensor_count && !r->cut; i++)
        if (!read_tensor(r, &file->tensors[i], &offsets[i], error)) return false;
    if (r->cut) return llm_fail(error, "the file is cut off within its tables");

    uint64_t alignment = DEFAULT_ALIGNMENT;
    llm_gguf_number(file, "general.alignment", &alignment);
    if (alignment == 0 || alignment % 4 || alignment > 65536)
        return llm_fail(error, "its alignment is impossible");
    size_t tables = (size_t)(r->at - file->bytes);
    size_t data_begin = (tables + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < file->tensor_count; i++)
        if (!place_tensor(file, data_begin, offsets[i], &file->tensors[i], error)) return false;
    file->digest = 0xcbf29ce484222325u;
    for (size_t i = 0; i < tables; i++)
        file->digest = (file->digest ^ file->bytes[i]) * 0x100000001b3u;
    return true;
}

bool llm_gguf_parse(struct llm_gguf *file, const void *bytes, size_t size,
                    struct llm_error *error) {
    struct reader r = {bytes, (const unsigned char *)bytes + size, false};
    bool good = false;

    *file = (struct llm_gguf){.bytes = bytes, .size = size};
    uint32_t magic = take_u32(&r), version = take_u32(&r);
    uint64_t tensors = take_u64(&r), values = take_u64(&r);
    if (magic != MAGIC) return llm_fail(error, "this is no GGUF file");
    if (r.cut) return llm_fail(error, "the file is cut off within its header");
    if (version != 2 && version != 3)
        return llm_fail(error, "GGUF version %u is not supported", version);
    /* The smallest row of each table takes this many bytes, so the counts are bounded by the size. */
    if (tensors > size / 24 || values > size / 13)
        return llm_fail(error, "the file is cut off: its header tells of more than it can hold");

    uint64_t *offsets = calloc((size_t)tensors + 1, sizeof *offsets);
    file->value_count = (size_t)values;
    file->tensor_count = (size_t)tensors;
    file->values = calloc((size_t)values + 1, sizeof *file->values);
    file->tensors = calloc((size_t)tensors + 1, sizeof *file->tensors);
    if (offsets == NULL || file->values == NULL || file->tensors == NULL)
        llm_fail(error, "memory ran out");
    else
        good = parse_tables(file, &r, offsets, error);
    free(offsets);
    if (!good) llm_gguf_free(file);
    return good;
}

bool llm_gguf_open(struct llm_gguf *file, const char *path, struct llm_error *error) {
    struct stat status;
    void *bytes = MAP_FAILED;

    *file = (struct llm_gguf){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return llm_fail(error, "%s", strerror(errno));
    if (fstat(fd, &status) == 0 && status.st_size > 0)
        bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED) return llm_fail(error, "it cannot be mapped, or is empty");
    if (llm_gguf_parse(file, bytes, (size_t)status.st_size, error)) return true;
    munmap(bytes, (size_t)status.st_size);
    return false;
}

void llm_gguf_free(struct llm_gguf *file) {
    free(file->values);
    free(file->tensors);
    *file = (struct llm_gguf){0};
}

void llm_gguf_close(struct llm_gguf *file) {
    if (file->bytes) munmap((void *)(uintptr_t)file->bytes, file->size);
    llm_gguf_free(file);
}

static const struct llm_gguf_value *find(const struct llm_gguf *file, const char *key) {
    for (size_t i = 0; i < file->value_count; i++)
        if (llm_text_is(file->values[i].key, key)) return &file->values[i];
    return NULL;
}

bool llm_gguf_number(const struct llm_gguf *file, const char *key, uint64_t *value) {
    const struct llm_gguf_value *found = find(file, key);
    uint32_t small;
    if (found == NULL) return false;
    if (found->type == GGUF_U64) {
        memcpy(value, found->at, sizeof *value);
        return true;
    }
    if (found->type != GGUF_U32) return false;
    memcpy(&small, found->at, sizeof small);
    *value = small;
    return true;
}

bool llm_gguf_real(const struct llm_gguf *file, const char *key, double *value) {
    const struct llm_gguf_value *found = find(file, key);
    float single;
    if (found == NULL || found->type != GGUF_F32) return false;
    memcpy(&single, found->at, sizeof single);
    *value = (double)single;
    return true;
}

/* The reader is placed on the first element; parse has seen that all of them are there. */
static bool find_array(const struct llm_gguf *file, const char *key, uint32_t type,
                       struct reader *r, size_t *count) {
    const struct llm_gguf_value *found = find(file, key);
    if (found == NULL || found->type != GGUF_ARRAY) return false;
    *r = (struct reader){found->at, file->bytes + file->size, false};
    uint32_t element = take_u32(r);
    *count = (size_t)take_u64(r);
    return element == type;
}

bool llm_gguf_text(const struct llm_gguf *file, const char *key, struct llm_text *value) {
    const struct llm_gguf_value *found = find(file, key);
    if (found == NULL || found->type != GGUF_STRING) return false;
    struct reader r = {found->at, file->bytes + file->size, false};
    *value = take_text(&r);
    return true;
}

struct llm_text *llm_gguf_texts(const struct llm_gguf *file, const char *key, size_t *count) {
    struct reader r;
    if (!find_array(file, key, GGUF_STRING, &r, count)) return NULL;
    struct llm_text *texts = calloc(*count + 1, sizeof *texts);
    for (size_t i = 0; texts != NULL && i < *count; i++)
        texts[i] = take_text(&r);
    return texts;
}

int32_t *llm_gguf_integers(const struct llm_gguf *file, const char *key, size_t *count) {
    struct reader r;
    if (!find_array(file, key, GGUF_I32, &r, count)) return NULL;
    int32_t *integers = calloc(*count + 1, sizeof *integers);
    if (integers != NULL) memcpy(integers, r.at, *count * sizeof *integers);
    return integers;
}

bool llm_gguf_matrix(const struct llm_gguf *file, const char *name, struct llm_matrix *matrix) {
    for (size_t i = 0; i < file->tensor_count; i++) {
        if (!llm_text_is(file->tensors[i].name, name)) continue;
        *matrix = file->tensors[i].matrix;
        return true;
    }
    return false;
}
