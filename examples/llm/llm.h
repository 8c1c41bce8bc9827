/*
 * A small tensor-parallel inference engine on spark_comm: what its files share. README.md beside
 * this file is the guided tour; read the files in this order:
 *
 *   main.c       the command line; from open to close, and what happens when a rank is lost
 *   engine.c     head and workers: command words, token lists, the generation itself
 *   forward.c    one step of the model on this rank's share: where the all-reduces are
 *   model.c      the weights, and how they are split over the ranks
 *   link.c       the few calls of spark_comm that move data, each timed
 *   kernels.c    products of quantised matrices with vectors
 *   tokenizer.c  text to tokens and back
 *   gguf.c       the file format
 *
 * One thread per rank; nothing here is shared between threads.
 */
#ifndef LLM_H
#define LLM_H

#include <spark_comm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The type of activations, sums and logits. The tests build the engine a second time with double, to
 * know how far rounding moves a logit. */
#ifndef LLM_REAL
#define LLM_REAL float
#endif
typedef LLM_REAL real;

/* Why something can't be done, in a sentence. */
struct llm_error {
    char text[256];
};
/* Writes the sentence and returns false, so that a caller can return it. */
__attribute__((format(printf, 2, 3))) bool llm_fail(struct llm_error *error, const char *format,
                                                    ...);

/* --- the file (gguf.c) ------------------------------------------------------------------------ */

/* Some bytes of the file, without a 0 at the end. */
struct llm_text {
    const char *data;
    size_t length;
};
bool llm_text_is(struct llm_text text, const char *string);

/* A matrix in the file, or a part of one. It is used where it lies: the system reads the pages that
 * this rank's share touches, and ranks of one host share them. */
enum { LLM_F32 = 0, LLM_F16 = 1, LLM_Q4_0 = 2, LLM_Q4_1 = 3, LLM_Q8_0 = 8 };
enum { LLM_BLOCK = 32 }; /* weights per quantised block, and the unit that columns are counted in */
struct llm_matrix {
    const unsigned char *data;
    int type; /* LLM_F32 ... */
    size_t columns; /* of this part; a multiple of LLM_BLOCK, but in vectors */
    size_t rows;
    size_t row_bytes; /* from one row to the next, in the file */
};
/* Bytes of 32 weights; 0 for a type that is not supported. */
size_t llm_block_bytes(int type);

struct llm_gguf {
    const unsigned char *bytes;
    size_t size;
    struct llm_gguf_value *values; /* metadata */
    size_t value_count;
    struct llm_gguf_tensor *tensors;
    size_t tensor_count;
    uint64_t digest; /* of everything before the weights */
};

bool llm_gguf_open(struct llm_gguf *file, const char *path, struct llm_error *error);
/* The same on bytes in memory, which must stay. */
bool llm_gguf_parse(struct llm_gguf *file, const void *bytes, size_t size, struct llm_error *error);
void llm_gguf_close(struct llm_gguf *file); /* of llm_gguf_open */
void llm_gguf_free(struct llm_gguf *file); /* of llm_gguf_parse */

/* False when there is none of that name and type. */
bool llm_gguf_number(const struct llm_gguf *file, const char *key, uint64_t *value);
bool llm_gguf_real(const struct llm_gguf *file, const char *key, double *value);
bool llm_gguf_text(const struct llm_gguf *file, const char *key, struct llm_text *value);
/* An array of strings, or one of 32-bit integers, in memory that the caller frees. NULL: none. */
struct llm_text *llm_gguf_texts(const struct llm_gguf *file, const char *key, size_t *count);
int32_t *llm_gguf_integers(const struct llm_gguf *file, const char *key, size_t *count);
bool llm_gguf_matrix(const struct llm_gguf *file, const char *name, struct llm_matrix *matrix);

/* --- the tokenizer (tokenizer.c) -------------------------------------------------------------- */

struct llm_tokenizer;
bool llm_tokenizer_open(struct llm_tokenizer **tokenizer, const struct llm_gguf *file,
                        struct llm_error *error);
void llm_tokenizer_close(struct llm_tokenizer *tokenizer);
/* Appends the tokens of a text to a list that grows with realloc. False: memory ran out. */
bool llm_tokenizer_encode(const struct llm_tokenizer *tokenizer, struct llm_text text,
                          uint32_t **tokens, size_t *count);
/* The bytes of a token, at most `capacity`; 0 for tokens that only steer. */
size_t llm_tokenizer_decode(const struct llm_tokenizer *tokenizer, uint32_t token, char *bytes,
                            size_t capacity);
/* A user's words as a conversation that the model answers, or as they are if it knows none. */
bool llm_tokenizer_chat(const struct llm_tokenizer *tokenizer, const char *words, uint32_t **tokens,
                        size_t *count);
bool llm_tokenizer_is_end(const struct llm_tokenizer *tokenizer, uint32_t token);

/* --- arithmetic (kernels.c) ------------------------------------------------------------------- */

struct llm_kernels {
    /* Puts a vector into the order in which multiply takes it. */
    void (*prepare)(real *x, size_t count);
    /* y[t][row] = matrix[row] . x[t] for `count` vectors. The bits of a result do not depend on
     * count, so that a token read in a prompt and one read alone leave the same cache. */
    void (*multiply)(const struct llm_matrix *matrix, const real *x, size_t x_stride, real *y,
                     size_t y_stride, size_t count);
    void (*read_row)(const struct llm_matrix *matrix, size_t row, real *out);
    real (*dot)(const real *a, const real *b, size_t count); /* count: 8 divides it */
    void (*add_scaled)(real *sum, real factor, const real *b, size_t count); /* sum += factor * b */
};
const struct llm_kernels *llm_kernels(void); /* the best for this CPU */

/* --- the weights (model.c) -------------------------------------------------------------------- */

struct llm_config {
    size_t layers, width, ffn, heads, kv_heads, head_size, vocabulary, context;
    double rope_base, epsilon;
};

/* What one rank holds: query heads, and the key-value heads that they look at. */
struct llm_share {
    size_t world;
    size_t head_begin, head_count;
    size_t kv_begin, kv_count;
    size_t ffn_begin, ffn_count;
    size_t vocabulary_begin, vocabulary_count, vocabulary_slot; /* slot: as many on every rank */
};
void llm_split(const struct llm_config *config, int world, int rank, struct llm_share *share);

struct llm_layer {
    struct llm_matrix attention_norm, ffn_norm;
    struct llm_matrix query, key, value, gate, up; /* this rank's rows */
    struct llm_matrix output, down; /* this rank's columns */
};

struct llm_model {
    struct llm_config config;
    struct llm_share share;
    struct llm_gguf file;
    struct llm_tokenizer *tokenizer;
    struct llm_matrix embedding, final_norm;
    struct llm_matrix vocabulary; /* this rank's rows */
    struct llm_layer *layers;
};
/* Reads the file and checks everything in it, the same for every rank. */
bool llm_model_open(struct llm_model *model, const char *path, struct llm_error *error);
/* Takes this rank's share of it. */
bool llm_model_take_share(struct llm_model *model, int world, int rank, struct llm_error *error);
void llm_model_close(struct llm_model *model);

/* --- moving data (link.c) --------------------------------------------------------------------- */

/* The communicator, and how long each call on it took since the times were last dropped. All ranks make
 * the same calls, so the i-th time of one rank belongs to the i-th of every other. */
struct llm_link {
    spark_comm *comm;
    float *us; /* microseconds */
    size_t calls, capacity;
};
spark_comm_status llm_link_sum(struct llm_link *link, real *values, size_t count);
spark_comm_status llm_link_gather(struct llm_link *link, real *slots, size_t count);
spark_comm_status llm_link_tell(struct llm_link *link, void *data, size_t bytes); /* from rank 0 */
spark_comm_status llm_link_await_word(struct llm_link *link, uint32_t *word); /* on the others */
/* Collective. *us: over all calls, the sum of the least that any rank spent in each. Drops the times. */
spark_comm_status llm_link_total(struct llm_link *link, double *us, size_t *calls);

/* --- one step (forward.c) --------------------------------------------------------------------- */

enum { LLM_CHUNK = 32 }; /* tokens that one step takes at most */

struct llm_run; /* buffers and the key-value cache of one conversation */
struct llm_run *llm_run_open(const struct llm_model *model, size_t context);
void llm_run_close(struct llm_run *run);
/* Collective: takes `count` tokens at positions `start` and following, and leaves the logits of the
 * last one on every rank. What stood at these positions is forgotten. */
spark_comm_status llm_run_step(struct llm_run *run, struct llm_link *link, const uint32_t *tokens,
                               size_t start, size_t count);
const real *llm_run_logits(const struct llm_run *run);

/* --- head and workers (engine.c) -------------------------------------------------------------- */

struct llm_options {
    const char *model, *prompt, *logits;
    size_t tokens; /* to generate at most */
    size_t context; /* positions in the cache */
    double temperature; /* 0: greedy */
    uint64_t seed;
    int pace_ms; /* the least time between two tokens */
    bool raw, ignore_end;
};

struct llm_engine {
    const struct llm_options *options;
    struct llm_model model;
    struct llm_link link;
    struct llm_run *run;
    int rank, world;
    /* Rank 0's alone: what must survive the loss of a worker. */
    uint32_t *tokens; /* the prompt, then what was generated */
    size_t count, prompt_count;
    uint64_t random;
    bool finished;
    int64_t started_ns, first_token_ns, decode_ns;
    size_t decoded;
    FILE *logits;
};

/* Reads model and prompt; no communicator yet. A context of 0 becomes the default. */
bool llm_engine_load(struct llm_engine *engine, struct llm_options *options,
                     struct llm_error *error);
/* Collective, first in each epoch: did all ranks load, and the same? */
spark_comm_status llm_engine_agree(struct llm_engine *engine, bool loaded, struct llm_error *error);
/* Head: generates from the tokens that it has. Workers: obey until the head is done. */
spark_comm_status llm_engine_serve(struct llm_engine *engine);
void llm_engine_close(struct llm_engine *engine);
int64_t llm_now_ns(void);

#endif
