/*
 * The model's shape and weights, and how they are split over the ranks: attention
 * heads, the inner dimension of the feed-forward net, and the vocabulary.
 *
 * A matrix whose output is split (query, key, value, gate, up, vocabulary) gives a rank some of its
 * rows; one whose input is split (attention output, down) gives it some columns. Each rank then has
 * a partial sum over its own heads or its own inner part, and one all-reduce makes the whole.
 */
#include "llm.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 4096, MAX_WIDTH = 1 << 20 };

/* The first of `count` things that is rank's, when the first ranks get what does not divide. */
static size_t share_begin(size_t count, int world, int rank) {
    return (count * (size_t)rank + (size_t)world - 1) / (size_t)world;
}

/* Each part is split as evenly as it goes by itself. The ranks meet after attention and again after the
 * feed-forward net, so each part lasts as long as its slowest rank: what one rank has too much of in the
 * first cannot be made up for in the second. So query heads are dealt out one by one (a block's worth
 * of them where they are small), and a key-value head that two ranks need is computed by both. */
void llm_split(const struct llm_config *config, int world, int rank, struct llm_share *share) {
    const size_t group = config->heads / config->kv_heads;
    const size_t unit = config->head_size % LLM_BLOCK ? LLM_BLOCK / config->head_size : 1;
    const size_t units = config->heads / unit, blocks = config->ffn / LLM_BLOCK;

    share->world = (size_t)world;
    share->head_begin = share_begin(units, world, rank) * unit;
    share->head_count = share_begin(units, world, rank + 1) * unit - share->head_begin;
    share->kv_begin = share->head_begin / group;
    share->kv_count = share->head_count == 0 ? 0
                                             : (share->head_begin + share->head_count - 1) / group -
                                                   share->kv_begin + 1;
    share->ffn_begin = share_begin(blocks, world, rank) * LLM_BLOCK;
    share->ffn_count = share_begin(blocks, world, rank + 1) * LLM_BLOCK - share->ffn_begin;

    /* all_gather takes as much from every rank, so the last rank's slot may have an unused end. */
    const size_t slot = share_begin(config->vocabulary, world, 1), first = slot * (size_t)rank;
    share->vocabulary_slot = slot;
    share->vocabulary_begin = first < config->vocabulary ? first : config->vocabulary;
    const size_t left = config->vocabulary - share->vocabulary_begin;
    share->vocabulary_count = left < slot ? left : slot;
}

static bool read_count(const struct llm_gguf *file, const char *key, size_t most, size_t *value,
                       struct llm_error *error) {
    uint64_t number = 0;
    if (!llm_gguf_number(file, key, &number)) return llm_fail(error, "it does not say %s", key);
    if (number == 0 || number > most) return llm_fail(error, "%s is impossible", key);
    *value = (size_t)number;
    return true;
}

static bool read_config(struct llm_model *model, struct llm_error *error) {
    const struct llm_gguf *file = &model->file;
    struct llm_config *c = &model->config;
    struct llm_text kind = {"", 0}, scaling;
    uint64_t number;

    llm_gguf_text(file, "general.architecture", &kind);
    if (!llm_text_is(kind, "llama"))
        return llm_fail(error, "its architecture is '%.*s'; this engine runs llama",
                        kind.length < 64 ? (int)kind.length : 64, kind.data);
    if (!read_count(file, "llama.block_count", MAX_LAYERS, &c->layers, error) ||
        !read_count(file, "llama.embedding_length", MAX_WIDTH, &c->width, error) ||
        !read_count(file, "llama.feed_forward_length", MAX_WIDTH, &c->ffn, error) ||
        !read_count(file, "llama.attention.head_count", MAX_WIDTH, &c->heads, error) ||
        !read_count(file, "llama.context_length", INT32_MAX, &c->context, error))
        return false;
    c->kv_heads = c->heads;
    if (llm_gguf_number(file, "llama.attention.head_count_kv", &number))
        c->kv_heads = number <= c->heads ? (size_t)number : 0;
    c->rope_base = 10000;
    c->epsilon = 1e-5;
    llm_gguf_real(file, "llama.rope.freq_base", &c->rope_base);
    llm_gguf_real(file, "llama.attention.layer_norm_rms_epsilon", &c->epsilon);

    c->head_size = c->width / c->heads;
    if (c->head_size * c->heads != c->width || c->kv_heads == 0 || c->heads % c->kv_heads)
        return llm_fail(error, "%zu heads and %zu key-value heads do not fit a width of %zu",
                        c->heads, c->kv_heads, c->width);
    if ((c->head_size % LLM_BLOCK && c->head_size != 8 && c->head_size != 16) ||
        c->width % LLM_BLOCK || c->ffn % LLM_BLOCK)
        return llm_fail(error, "its width, its heads or its feed-forward net are no multiple of %d",
                        LLM_BLOCK);
    if (llm_gguf_number(file, "llama.rope.dimension_count", &number) && number != c->head_size)
        return llm_fail(error, "it rotates a part of a head, which this engine does not");
    if (llm_gguf_text(file, "llama.rope.scaling.type", &scaling) && !llm_text_is(scaling, "none"))
        return llm_fail(error, "it scales its rotations, which this engine does not");
    return true;
}

static bool find(const struct llm_model *model, const char *name, size_t columns, size_t rows,
                 struct llm_matrix *matrix, struct llm_error *error) {
    if (!llm_gguf_matrix(&model->file, name, matrix))
        return llm_fail(error, "it has no tensor %s", name);
    if (matrix->columns != columns || matrix->rows != rows)
        return llm_fail(error, "tensor %s is %zu x %zu, expected %zu x %zu", name, matrix->columns,
                        matrix->rows, columns, rows);
    if (rows == 1 && matrix->type != LLM_F32)
        return llm_fail(error, "tensor %s is a vector, and not of F32", name);
    return true;
}

static bool find_layer(struct llm_model *model, size_t index, struct llm_error *error) {
    const struct llm_config *c = &model->config;
    const size_t kv_width = c->kv_heads * c->head_size;
    struct llm_layer *layer = &model->layers[index];
    const struct {
        const char *name;
        size_t columns, rows;
        struct llm_matrix *matrix;
    } wanted[] = {
        {"attn_norm", c->width, 1, &layer->attention_norm},
        {"attn_q", c->width, c->width, &layer->query},
        {"attn_k", c->width, kv_width, &layer->key},
        {"attn_v", c->width, kv_width, &layer->value},
        {"attn_output", c->width, c->width, &layer->output},
        {"ffn_norm", c->width, 1, &layer->ffn_norm},
        {"ffn_gate", c->width, c->ffn, &layer->gate},
        {"ffn_up", c->width, c->ffn, &layer->up},
        {"ffn_down", c->ffn, c->width, &layer->down},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%zu.%s.weight", index, wanted[i].name);
        if (!find(model, name, wanted[i].columns, wanted[i].rows, wanted[i].matrix, error))
            return false;
    }
    return true;
}

static bool find_weights(struct llm_model *model, struct llm_error *error) {
    struct llm_config *c = &model->config;
    struct llm_matrix unused;

    if (!llm_gguf_matrix(&model->file, "token_embd.weight", &model->embedding))
        return llm_fail(error, "it has no tensor token_embd.weight");
    c->vocabulary = model->embedding.rows;
    if (!find(model, "token_embd.weight", c->width, c->vocabulary, &model->embedding, error) ||
        !find(model, "output_norm.weight", c->width, 1, &model->final_norm, error))
        return false;
    /* Small models use the embedding both ways. */
    model->vocabulary = model->embedding;
    if (llm_gguf_matrix(&model->file, "output.weight", &unused) &&
        !find(model, "output.weight", c->width, c->vocabulary, &model->vocabulary, error))
        return false;
    if (llm_gguf_matrix(&model->file, "rope_freqs.weight", &unused))
        return llm_fail(error, "it scales its rotations, which this engine does not");
    model->layers = calloc(c->layers, sizeof *model->layers);
    if (model->layers == NULL) return llm_fail(error, "memory ran out");
    for (size_t i = 0; i < c->layers; i++)
        if (!find_layer(model, i, error)) return false;
    return true;
}

bool llm_model_open(struct llm_model *model, const char *path, struct llm_error *error) {
    struct llm_error why;
    *model = (struct llm_model){0};
    if (llm_gguf_open(&model->file, path, &why) && read_config(model, &why) &&
        find_weights(model, &why) && llm_tokenizer_open(&model->tokenizer, &model->file, &why))
        return true;
    return llm_fail(error, "%.80s: %.160s", path, why.text);
}

static void keep_rows(struct llm_matrix *matrix, size_t begin, size_t count) {
    matrix->data += begin * matrix->row_bytes;
    matrix->rows = count;
}

static void keep_columns(struct llm_matrix *matrix, size_t begin, size_t count) {
    matrix->data += begin / LLM_BLOCK * llm_block_bytes(matrix->type);
    matrix->columns = count;
}

/* On views that nothing was taken from yet. */
bool llm_model_take_share(struct llm_model *model, int world, int rank, struct llm_error *error) {
    const struct llm_config *c = &model->config;
    struct llm_share *share = &model->share;

    if ((size_t)world > c->ffn / LLM_BLOCK || (size_t)world > c->vocabulary)
        return llm_fail(error, "%d ranks are too many for this model", world);
    llm_split(c, world, rank, share);
    const size_t head_begin = share->head_begin * c->head_size;
    const size_t head_rows = share->head_count * c->head_size;
    const size_t kv_begin = share->kv_begin * c->head_size,
                 kv_rows = share->kv_count * c->head_size;
    for (size_t i = 0; i < c->layers; i++) {
        struct llm_layer *layer = &model->layers[i];
        keep_rows(&layer->query, head_begin, head_rows);
        keep_rows(&layer->key, kv_begin, kv_rows);
        keep_rows(&layer->value, kv_begin, kv_rows);
        keep_columns(&layer->output, head_begin, head_rows);
        keep_rows(&layer->gate, share->ffn_begin, share->ffn_count);
        keep_rows(&layer->up, share->ffn_begin, share->ffn_count);
        keep_columns(&layer->down, share->ffn_begin, share->ffn_count);
    }
    keep_rows(&model->vocabulary, share->vocabulary_begin, share->vocabulary_count);
    return true;
}

void llm_model_close(struct llm_model *model) {
    free(model->layers);
    llm_tokenizer_close(model->tokenizer);
    llm_gguf_close(&model->file);
    *model = (struct llm_model){0};
}

const struct llm_kernels *llm_kernels(void) {
    extern const struct llm_kernels llm_kernels_portable;
#ifdef SC_HAVE_AVX2
    extern const struct llm_kernels llm_kernels_avx2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &llm_kernels_avx2;
#endif
    return &llm_kernels_portable;
}
