/*
 * One step of a Llama model on this rank's share of it. Every rank holds the whole residual stream x,
 * the same bits everywhere, and computes the norms for itself. In each layer two partial sums of the
 * width of x are all-reduced: what this rank's heads put out, and what its part of the feed-forward
 * net does. The logits of this rank's part of the vocabulary are gathered at the end.
 */
#include "llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct llm_run {
    const struct llm_model *model;
    const struct llm_kernels *kernels;
    size_t context;
    size_t query_width, kv_width; /* of this rank's heads */
    real *x, *normed, *partial; /* LLM_CHUNK tokens each */
    real *query, *attended;
    real *gate, *up;
    real *keys, *values; /* [layer][position][kv_width] */
    real *scores; /* one head over all positions */
    real *cosines, *sines; /* [token][half of a head] */
    real *logits; /* a slot per rank */
};

struct llm_run *llm_run_open(const struct llm_model *model, size_t context) {
    const struct llm_config *c = &model->config;
    struct llm_run *run = calloc(1, sizeof *run);
    if (run == NULL) return NULL;

    run->model = model;
    run->kernels = llm_kernels();
    run->context = context;
    run->kv_width = model->share.kv_count * c->head_size;
    run->query_width = model->share.head_count * c->head_size;
    /* A size of 0 is possible: more ranks than heads. Memory that is not touched costs nothing. */
    const struct {
        real **buffer;
        size_t count;
    } buffers[] = {
        {&run->x, LLM_CHUNK * c->width},
        {&run->normed, LLM_CHUNK * c->width},
        {&run->partial, LLM_CHUNK * c->width},
        {&run->query, LLM_CHUNK * run->query_width},
        {&run->attended, LLM_CHUNK * run->query_width},
        {&run->gate, LLM_CHUNK * model->share.ffn_count},
        {&run->up, LLM_CHUNK * model->share.ffn_count},
        {&run->keys, c->layers * context * run->kv_width},
        {&run->values, c->layers * context * run->kv_width},
        {&run->scores, context},
        {&run->cosines, LLM_CHUNK * c->head_size / 2},
        {&run->sines, LLM_CHUNK * c->head_size / 2},
        {&run->logits, model->share.world * model->share.vocabulary_slot},
    };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        *buffers[i].buffer = calloc(buffers[i].count + 1, sizeof(real));
        if (*buffers[i].buffer != NULL) continue;
        llm_run_close(run);
        return NULL;
    }
    return run;
}

void llm_run_close(struct llm_run *run) {
    if (run == NULL) return;
    real *buffers[] = {run->x,       run->normed, run->partial, run->query,  run->attended,
                       run->gate,    run->up,     run->keys,    run->values, run->scores,
                       run->cosines, run->sines,  run->logits};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(run);
}

const real *llm_run_logits(const struct llm_run *run) {
    return run->logits;
}

/* Of `count` tokens, from x into normed. */
static void normalise(struct llm_run *run, const struct llm_matrix *weights, size_t count) {
    const struct llm_config *c = &run->model->config;
    const float *weight = (const float *)(const void *)weights->data; /* the file aligns it */
    for (size_t t = 0; t < count; t++) {
        const real *x = run->x + t * c->width;
        const real mean = run->kernels->dot(x, x, c->width) / (real)c->width;
        const real scale = 1 / (real)sqrt((double)(mean + (real)c->epsilon));
        for (size_t i = 0; i < c->width; i++)
            run->normed[t * c->width + i] = x[i] * scale * (real)weight[i];
        run->kernels->prepare(run->normed + t * c->width, c->width);
    }
}

/* GGUF orders a head's numbers so that the pairs that are rotated stand side by side. */
static void rotate(const struct llm_run *run, real *heads, size_t width, size_t token) {
    const size_t half = run->model->config.head_size / 2;
    const real *cosines = run->cosines + token * half, *sines = run->sines + token * half;
    for (size_t head = 0; head < width; head += 2 * half) {
        for (size_t i = 0; i < half; i++) {
            const real a = heads[head + 2 * i], b = heads[head + 2 * i + 1];
            heads[head + 2 * i] = a * cosines[i] - b * sines[i];
            heads[head + 2 * i + 1] = a * sines[i] + b * cosines[i];
        }
    }
}

/* One query head against the positions up to its own. */
static void attend(struct llm_run *run, const real *query, const real *keys, const real *values,
                   size_t positions, real *out) {
    const size_t size = run->model->config.head_size;
    const real scale = 1 / (real)sqrt((double)size);
    real most = -INFINITY, sum = 0;
    for (size_t p = 0; p < positions; p++) {
        run->scores[p] = run->kernels->dot(query, keys + p * run->kv_width, size) * scale;
        if (run->scores[p] > most) most = run->scores[p];
    }
    for (size_t p = 0; p < positions; p++) {
        run->scores[p] = sizeof(real) == sizeof(float) ? (real)expf((float)(run->scores[p] - most))
                                                       : (real)exp((double)(run->scores[p] - most));
        sum += run->scores[p];
    }
    memset(out, 0, size * sizeof *out);
    for (size_t p = 0; p < positions; p++)
        run->kernels->add_scaled(out, run->scores[p] / sum, values + p * run->kv_width, size);
}

/* Leaves this rank's part of the sum in partial. */
static void attention(struct llm_run *run, size_t index, size_t start, size_t count) {
    const struct llm_config *c = &run->model->config;
    const struct llm_layer *layer = &run->model->layers[index];
    const struct llm_share *share = &run->model->share;
    const struct llm_kernels *k = run->kernels;
    const size_t group = c->heads / c->kv_heads;
    real *keys = run->keys + index * run->context * run->kv_width;
    real *values = run->values + index * run->context * run->kv_width;

    normalise(run, &layer->attention_norm, count);
    k->multiply(&layer->query, run->normed, c->width, run->query, run->query_width, count);
    k->multiply(&layer->key, run->normed, c->width, keys + start * run->kv_width, run->kv_width,
                count);
    k->multiply(&layer->value, run->normed, c->width, values + start * run->kv_width, run->kv_width,
                count);
    for (size_t t = 0; t < count; t++) {
        rotate(run, run->query + t * run->query_width, run->query_width, t);
        rotate(run, keys + (start + t) * run->kv_width, run->kv_width, t);
    }
    for (size_t t = 0; t < count; t++) {
        for (size_t head = 0; head < run->query_width / c->head_size; head++) {
            const size_t at = t * run->query_width + head * c->head_size;
            const size_t kv = ((share->head_begin + head) / group - share->kv_begin) * c->head_size;
            attend(run, run->query + at, keys + kv, values + kv, start + t + 1, run->attended + at);
        }
    }
    k->prepare(run->attended, count * run->query_width);
    k->multiply(&layer->output, run->attended, run->query_width, run->partial, c->width, count);
}

/* SwiGLU: down(silu(gate(x)) * up(x)), of this rank's inner columns. */
static void feed_forward(struct llm_run *run, size_t index, size_t count) {
    const struct llm_config *c = &run->model->config;
    const struct llm_layer *layer = &run->model->layers[index];
    const struct llm_kernels *k = run->kernels;
    const size_t inner = run->model->share.ffn_count;

    normalise(run, &layer->ffn_norm, count);
    k->multiply(&layer->gate, run->normed, c->width, run->gate, inner, count);
    k->multiply(&layer->up, run->normed, c->width, run->up, inner, count);
    for (size_t i = 0; i < count * inner; i++) {
        const real g = run->gate[i];
        const real e =
            sizeof(real) == sizeof(float) ? (real)expf((float)-g) : (real)exp((double)-g);
        run->gate[i] = g / (1 + e) * run->up[i];
    }
    k->prepare(run->gate, count * inner);
    k->multiply(&layer->down, run->gate, inner, run->partial, c->width, count);
}

/* The first place where ranks meet: partial becomes the sum over all of them, and joins x. */
static spark_comm_status join(struct llm_run *run, struct llm_link *link, size_t count) {
    const size_t values = count * run->model->config.width;
    const spark_comm_status st = llm_link_sum(link, run->partial, values);
    for (size_t i = 0; i < values; i++)
        run->x[i] += run->partial[i];
    return st;
}

static void begin_step(struct llm_run *run, const uint32_t *tokens, size_t start, size_t count) {
    const struct llm_config *c = &run->model->config;
    const size_t half = c->head_size / 2;
    for (size_t t = 0; t < count; t++) {
        run->kernels->read_row(&run->model->embedding, tokens[t], run->x + t * c->width);
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)(start + t) * pow(c->rope_base, -(double)i / (double)half);
            run->cosines[t * half + i] = (real)cos(angle);
            run->sines[t * half + i] = (real)sin(angle);
        }
    }
}

spark_comm_status llm_run_step(struct llm_run *run, struct llm_link *link, const uint32_t *tokens,
                               size_t start, size_t count) {
    const struct llm_model *model = run->model;
    const struct llm_share *share = &model->share;
    const size_t width = model->config.width;
    spark_comm_status st = SPARK_COMM_OK;

    if (count == 0 || count > LLM_CHUNK || start > run->context || count > run->context - start)
        return SPARK_COMM_INVALID_ARGUMENT;
    for (size_t t = 0; t < count; t++)
        if (tokens[t] >= model->config.vocabulary) return SPARK_COMM_INVALID_ARGUMENT;

    begin_step(run, tokens, start, count);
    for (size_t i = 0; i < model->config.layers && st == SPARK_COMM_OK; i++) {
        attention(run, i, start, count);
        st = join(run, link, count);
        if (st != SPARK_COMM_OK) break;
        feed_forward(run, i, count);
        st = join(run, link, count);
    }
    if (st != SPARK_COMM_OK) return st;

    /* The second place where they meet. Only the last token's logits are of use. */
    memmove(run->x, run->x + (count - 1) * width, width * sizeof *run->x);
    normalise(run, &model->final_norm, 1);
    run->kernels->multiply(&model->vocabulary, run->normed, width,
                           run->logits + share->vocabulary_begin, share->vocabulary_slot, 1);
    return llm_link_gather(link, run->logits, share->vocabulary_slot);
}
