/*
 * Writes a model of random weights as a GGUF file: for the demonstration where the real one cannot be
 * had, and for the tests. The same seed gives the same file.
 *
 *     llm_random_model --shape smollm2-135m --type q4_1 --seed 1 FILE
 */
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 32,
    BLOCK = 32,
    BYTE_TOKENS = 256,
    CONTROL_TOKENS = 3,
    LETTERS = 26,
    MAX_TENSORS = 512
};
enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_STRING = 8, TYPE_ARRAY = 9 };

struct shape {
    const char *name;
    uint32_t layers, width, ffn, heads, kv_heads, vocabulary, context;
    bool tied; /* the embedding serves as the output too */
};
static const struct shape shapes[] = {
    {"tiny", 3, 96, 160, 6, 3, 512, 256, false},
    /* config.json of SmolLM2-135M-Instruct */
    {"smollm2-135m", 30, 576, 1536, 9, 3, 49152, 8192, true},
};

/* q6_k is a kind that the engine refuses; its weights are no use. */
static const struct kind {
    const char *name;
    uint32_t number;
    size_t block_bytes; /* of 32 weights */
} kinds[] = {{"f32", 0, 128}, {"f16", 1, 64},  {"q4_0", 2, 18},
             {"q4_1", 3, 20}, {"q8_0", 8, 34}, {"q6_k", 14, 26}};

struct tensor {
    char name[64];
    uint64_t columns, rows;
    const struct kind *kind;
    double range; /* weights lie between -range and range; 0: all are 1 */
};

struct writer {
    FILE *file;
    uint64_t random;
    struct tensor tensors[MAX_TENSORS];
    size_t count;
};

static uint32_t draw(struct writer *w) {
    uint64_t z = w->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static void put(struct writer *w, const void *data, size_t bytes) {
    fwrite(data, 1, bytes, w->file);
}

static void put_u32(struct writer *w, uint32_t value) {
    put(w, &value, sizeof value);
}

static void put_u64(struct writer *w, uint64_t value) {
    put(w, &value, sizeof value);
}

static void put_text(struct writer *w, const char *text) {
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

static void put_text_value(struct writer *w, const char *key, const char *value) {
    put_text(w, key);
    put_u32(w, TYPE_STRING);
    put_text(w, value);
}

static void put_number(struct writer *w, const char *key, uint32_t value) {
    put_text(w, key);
    put_u32(w, TYPE_U32);
    put_u32(w, value);
}

static void put_real(struct writer *w, const char *key, float value) {
    put_text(w, key);
    put_u32(w, TYPE_F32);
    put(w, &value, sizeof value);
}

static void begin_array(struct writer *w, const char *key, uint32_t type, uint64_t count) {
    put_text(w, key);
    put_u32(w, TYPE_ARRAY);
    put_u32(w, type);
    put_u64(w, count);
}

/* Positive numbers only: what weights' scales are. */
static uint16_t half(double value) {
    int exponent;
    const double fraction = frexp(value, &exponent); /* 0.5 to 1 */
    return (uint16_t)((exponent + 14) << 10 | (int)((fraction * 2 - 1) * 1024));
}

/* --- the tokenizer: control tokens, bytes, pairs of letters, fillers ------------------------------ */

static uint32_t merge_count(const struct shape *s) {
    const uint32_t left = s->vocabulary - CONTROL_TOKENS - BYTE_TOKENS;
    return left < LETTERS * LETTERS ? left : LETTERS * LETTERS;
}

static void put_byte_token(struct writer *w, unsigned byte, unsigned *next) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    const unsigned code = printable ? byte : (*next)++;
    const char text[3] = {(char)(code < 0x80 ? code : 0xc0 | code >> 6),
                          (char)(code < 0x80 ? 0 : 0x80 | (code & 0x3f)), 0};
    put_text(w, text);
}

static void put_tokens(struct writer *w, const struct shape *s) {
    static const char *const control[CONTROL_TOKENS] = {"<|endoftext|>", "<|im_start|>",
                                                        "<|im_end|>"};
    const uint32_t merges = merge_count(s);
    unsigned next = 256;
    char text[32];

    begin_array(w, "tokenizer.ggml.tokens", TYPE_STRING, s->vocabulary);
    for (size_t i = 0; i < CONTROL_TOKENS; i++)
        put_text(w, control[i]);
    for (unsigned byte = 0; byte < BYTE_TOKENS; byte++)
        put_byte_token(w, byte, &next);
    for (uint32_t i = 0; i < merges; i++) {
        snprintf(text, sizeof text, "%c%c", 'a' + i / LETTERS, 'a' + i % LETTERS);
        put_text(w, text);
    }
    for (uint32_t i = CONTROL_TOKENS + BYTE_TOKENS + merges; i < s->vocabulary; i++) {
        snprintf(text, sizeof text, "\xc4\xa0w%u", i);
        put_text(w, text);
    }
    /* Bytes that a terminal might obey steer nothing here and are not printed either. */
    begin_array(w, "tokenizer.ggml.token_type", TYPE_I32, s->vocabulary);
    for (uint32_t i = 0; i < s->vocabulary; i++) {
        const uint32_t byte = i - CONTROL_TOKENS;
        put_u32(w, i < CONTROL_TOKENS || byte < ' ' || (byte > '~' && byte < BYTE_TOKENS) ? 3 : 1);
    }
    begin_array(w, "tokenizer.ggml.merges", TYPE_STRING, merges);
    for (uint32_t i = 0; i < merges; i++) {
        snprintf(text, sizeof text, "%c %c", 'a' + i / LETTERS, 'a' + i % LETTERS);
        put_text(w, text);
    }
}

static void put_metadata(struct writer *w, const struct shape *s) {
    put_text_value(w, "general.architecture", "llama");
    put_text_value(w, "general.name", "random weights");
    put_number(w, "llama.block_count", s->layers);
    put_number(w, "llama.context_length", s->context);
    put_number(w, "llama.embedding_length", s->width);
    put_number(w, "llama.feed_forward_length", s->ffn);
    put_number(w, "llama.attention.head_count", s->heads);
    put_number(w, "llama.attention.head_count_kv", s->kv_heads);
    put_number(w, "llama.rope.dimension_count", s->width / s->heads);
    put_real(w, "llama.rope.freq_base", 100000);
    put_real(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    put_text_value(w, "tokenizer.ggml.model", "gpt2");
    put_text_value(w, "tokenizer.ggml.pre", "smollm");
    put_number(w, "tokenizer.ggml.eos_token_id", 2);
    put_number(w, "tokenizer.ggml.unknown_token_id", 0);
    put_text_value(w, "tokenizer.chat_template", "<|im_start|>");
    put_tokens(w, s);
}
enum { METADATA_COUNT = 19 };

/* --- the weights ---------------------------------------------------------------------------------- */

static void add(struct writer *w, uint64_t columns, uint64_t rows, const struct kind *kind,
                double range, const char *format, uint32_t layer) {
    struct tensor *tensor = &w->tensors[w->count++];
    *tensor = (struct tensor){"", columns, rows, rows == 1 ? &kinds[0] : kind, range};
    snprintf(tensor->name, sizeof tensor->name, "blk.%u.%s.weight", layer, format);
    if (layer == UINT32_MAX) snprintf(tensor->name, sizeof tensor->name, "%s.weight", format);
}

/* The range of a uniform draw that keeps the size of what goes through the matrix. */
static double range_of(uint64_t columns) {
    return sqrt(3.0 / (double)columns);
}

static void add_tensors(struct writer *w, const struct shape *s, const struct kind *kind) {
    const uint64_t kv = s->width / s->heads * s->kv_heads;
    const double wide = range_of(s->width);
    /* A small embedding: the layers, not the last token alone, choose the next one. */
    add(w, s->width, s->vocabulary, kind, 0.05, "token_embd", UINT32_MAX);
    if (!s->tied) add(w, s->width, s->vocabulary, kind, wide * 4, "output", UINT32_MAX);
    for (uint32_t i = 0; i < s->layers; i++) {
        add(w, s->width, 1, kind, 0, "attn_norm", i);
        add(w, s->width, s->width, kind, wide * 2, "attn_q", i);
        add(w, s->width, kv, kind, wide * 2, "attn_k", i);
        add(w, s->width, kv, kind, wide, "attn_v", i);
        add(w, s->width, s->width, kind, wide, "attn_output", i);
        add(w, s->width, 1, kind, 0, "ffn_norm", i);
        add(w, s->width, s->ffn, kind, wide, "ffn_gate", i);
        add(w, s->width, s->ffn, kind, wide, "ffn_up", i);
        add(w, s->ffn, s->width, kind, range_of(s->ffn) * 2, "ffn_down", i);
    }
    add(w, s->width, 1, kind, 0, "output_norm", UINT32_MAX);
}

static uint64_t bytes_of(const struct tensor *t) {
    return t->columns * t->rows / BLOCK * t->kind->block_bytes;
}

static uint64_t align(uint64_t offset) {
    return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_block(struct writer *w, const struct tensor *t) {
    unsigned char block[128];
    const double range = t->range;
    const size_t bytes = t->kind->block_bytes;
    const uint16_t scale = half(t->kind->number == 3   ? range / 7.5
                                : t->kind->number == 2 ? range / 8
                                                       : range / 127);

    for (size_t i = 0; i < bytes; i += 4) {
        const uint32_t random = draw(w);
        memcpy(block + i, &random, bytes - i < 4 ? bytes - i : 4);
    }
    if (t->kind->number <= 1) {
        for (size_t i = 0; i < BLOCK; i++) {
            const double uniform = (double)draw(w) * 0x1p-32;
            const float single = range > 0 ? (float)(range * (2 * uniform - 1)) : 1;
            const uint16_t small = (uint16_t)(half(range * uniform + 1e-4) | (draw(w) & 0x8000));
            if (t->kind->number == 0)
                memcpy(block + 4 * i, &single, 4);
            else
                memcpy(block + 2 * i, &small, 2);
        }
    } else {
        memcpy(block, &scale, sizeof scale);
        const uint16_t least = (uint16_t)(half(range) | 0x8000);
        if (t->kind->number == 3) memcpy(block + 2, &least, sizeof least);
    }
    put(w, block, bytes);
}

static void put_weights(struct writer *w) {
    static const char zeros[ALIGNMENT];
    uint64_t offset = 0;
    for (size_t i = 0; i < w->count; i++) {
        const struct tensor *t = &w->tensors[i];
        put_text(w, t->name);
        put_u32(w, 2);
        put_u64(w, t->columns);
        put_u64(w, t->rows);
        put_u32(w, t->kind->number);
        put_u64(w, offset);
        offset += align(bytes_of(t));
    }
    const long at = ftell(w->file);
    put(w, zeros, (size_t)(align((uint64_t)at) - (uint64_t)at));
    for (size_t i = 0; i < w->count; i++) {
        const struct tensor *t = &w->tensors[i];
        for (uint64_t block = 0; block < t->columns * t->rows / BLOCK; block++)
            put_block(w, t);
        put(w, zeros, (size_t)(align(bytes_of(t)) - bytes_of(t)));
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"shape", required_argument, NULL, 's'},
                                            {"type", required_argument, NULL, 't'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {0}};
    static struct writer w;
    const struct shape *shape = NULL;
    const struct kind *kind = NULL;
    int key;

    while ((key = getopt_long(argc, argv, "", options, NULL)) != -1) {
        for (size_t i = 0; key == 's' && i < sizeof shapes / sizeof *shapes; i++)
            if (strcmp(shapes[i].name, optarg) == 0) shape = &shapes[i];
        for (size_t i = 0; key == 't' && i < sizeof kinds / sizeof *kinds; i++)
            if (strcmp(kinds[i].name, optarg) == 0) kind = &kinds[i];
        if (key == 'r') w.random = strtoull(optarg, NULL, 10);
    }
    if (shape == NULL || kind == NULL || optind + 1 != argc) {
        fputs(
            "Usage: llm_random_model --shape tiny|smollm2-135m --type f32|f16|q8_0|q4_0|q4_1 [--seed N] FILE\n",
            stderr);
        return 2;
    }
    w.file = fopen(argv[optind], "wbe");
    if (w.file == NULL) {
        perror(argv[optind]);
        return 1;
    }
    add_tensors(&w, shape, kind);
    put(&w, "GGUF", 4);
    put_u32(&w, 3);
    put_u64(&w, w.count);
    put_u64(&w, METADATA_COUNT);
    put_metadata(&w, shape);
    put_weights(&w);
    const bool bad = ferror(w.file) != 0;
    if (fclose(w.file) == 0 && !bad) return 0;
    perror(argv[optind]);
    return 1;
}
