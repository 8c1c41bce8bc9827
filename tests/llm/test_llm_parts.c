/*
 * The engine's parts by themselves: kernels against plain loops over the file format's own words, the
 * split, the tokenizer on a small vocabulary, and that a step's bits do not depend on its length.
 * Called with the program that writes models.
 */
#include "llm.h"

#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *maker; /* path of llm_random_model */

static void make_model(const char *type, char path[64]) {
    char command[512];
    strcpy(path, "/tmp/llm_parts.XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command, "'%s' --shape tiny --type %s --seed 3 '%s'", maker, type,
             path);
    assert_int_equal(system(command), 0);
}

static double half_of(const unsigned char *at) {
    const unsigned bits = at[0] | (unsigned)at[1] << 8, exponent = bits >> 10 & 31,
                   fraction = bits & 1023;
    const double size =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, (int)exponent - 25);
    return bits & 0x8000 ? -size : size;
}

/* One weight, as the format describes it: no vectors, no float. */
static double weight_of(const struct llm_matrix *m, size_t row, size_t column) {
    const unsigned char *block =
        m->data + row * m->row_bytes + column / LLM_BLOCK * llm_block_bytes(m->type);
    const size_t i = column % LLM_BLOCK;
    float single;
    switch (m->type) {
    case LLM_F32: memcpy(&single, block + 4 * i, 4); return single;
    case LLM_F16: return half_of(block + 2 * i);
    case LLM_Q8_0: return (signed char)block[2 + i] * half_of(block);
    case LLM_Q4_0:
        return ((i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8) * half_of(block);
    default:
        return (i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4) * half_of(block) +
               half_of(block + 2);
    }
}

static void check_kernels(const struct llm_kernels *kernels, const struct llm_matrix *m) {
    enum { COUNT = 7 };
    real *x = calloc(COUNT * m->columns, sizeof *x), *y = calloc(COUNT * m->rows, sizeof *y);
    real *alone = calloc(m->rows, sizeof *alone),
         *ready = calloc(COUNT * m->columns, sizeof *ready);
    assert_true(x && y && alone && ready);
    for (size_t i = 0; i < COUNT * m->columns; i++)
        x[i] = (real)sin((double)i);
    memcpy(ready, x, COUNT * m->columns * sizeof *x);
    kernels->prepare(ready, COUNT * m->columns);
    kernels->multiply(m, ready, m->columns, y, m->rows, COUNT);
    for (size_t t = 0; t < COUNT; t++) {
        kernels->multiply(m, ready + t * m->columns, m->columns, alone, m->rows, 1);
        assert_memory_equal(alone, y + t * m->rows, m->rows * sizeof *alone);
        for (size_t row = 0; row < m->rows; row++) {
            double sum = 0, size = 0;
            for (size_t i = 0; i < m->columns; i++) {
                sum += weight_of(m, row, i) * (double)x[t * m->columns + i];
                size += fabs(weight_of(m, row, i) * (double)x[t * m->columns + i]);
            }
            assert_true(fabs((double)y[t * m->rows + row] - sum) <= 1e-6 * size);
        }
    }
    kernels->read_row(m, m->rows - 1, x);
    for (size_t i = 0; i < m->columns; i++)
        assert_true(fabs((double)x[i] - weight_of(m, m->rows - 1, i)) <= 1e-6 * fabs((double)x[i]));
    free(x);
    free(y);
    free(alone);
    free(ready);
}

static void test_kernels(void **state) {
    static const char *const types[] = {"f32", "f16", "q8_0", "q4_0", "q4_1"};
    extern const struct llm_kernels llm_kernels_portable;
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char path[64];
        struct llm_gguf file;
        struct llm_error error = {""};
        struct llm_matrix matrix;
        make_model(types[i], path);
        assert_true(llm_gguf_open(&file, path, &error));
        assert_true(llm_gguf_matrix(&file, "blk.1.ffn_down.weight", &matrix));
        assert_int_equal(matrix.columns, 160);
        assert_int_equal(matrix.rows, 96);
        check_kernels(llm_kernels(), &matrix);
        check_kernels(&llm_kernels_portable, &matrix);
        llm_gguf_close(&file);
        unlink(path);
    }
}

/* SmolLM2-135M over 1 to 40 ranks: nothing is left out or held twice. */
static void test_split(void **state) {
    const struct llm_config config = {.layers = 30,
                                      .width = 576,
                                      .ffn = 1536,
                                      .heads = 9,
                                      .kv_heads = 3,
                                      .head_size = 64,
                                      .vocabulary = 49152};
    (void)state;
    for (int world = 1; world <= 40; world++) {
        size_t heads = 0, ffn = 0, vocabulary = 0;
        for (int rank = 0; rank < world; rank++) {
            struct llm_share share;
            llm_split(&config, world, rank, &share);
            assert_int_equal(share.head_begin, heads);
            assert_int_equal(share.ffn_begin, ffn);
            assert_int_equal(share.vocabulary_begin, vocabulary);
            assert_int_equal(share.ffn_count % LLM_BLOCK, 0);
            /* Three heads look at one key-value head. */
            for (size_t head = heads; head < heads + share.head_count; head++)
                assert_true(head / 3 >= share.kv_begin &&
                            head / 3 < share.kv_begin + share.kv_count);
            assert_true(share.kv_count <= (share.head_count + 4) / 3);
            heads += share.head_count;
            ffn += share.ffn_count;
            vocabulary += share.vocabulary_count;
        }
        assert_int_equal(heads, 9);
        assert_int_equal(ffn, 1536);
        assert_int_equal(vocabulary, 49152);
    }
    struct llm_share first, second;
    llm_split(&config, 2, 0, &first);
    llm_split(&config, 2, 1, &second);
    assert_int_equal(first.head_count, 5);
    assert_int_equal(first.kv_count, 2);
    assert_int_equal(second.head_count, 4);
    assert_int_equal(second.kv_begin, 1); /* the one in the middle is on both */
    assert_int_equal(second.kv_count, 2);
    assert_int_equal(first.ffn_count, second.ffn_count);
}

static void expect_tokens(const struct llm_tokenizer *tokenizer, const char *text, size_t count,
                          const uint32_t *expected) {
    uint32_t *tokens = NULL;
    size_t got = 0;
    char bytes[64];
    assert_true(
        llm_tokenizer_encode(tokenizer, (struct llm_text){text, strlen(text)}, &tokens, &got));
    assert_int_equal(got, count);
    assert_memory_equal(tokens, expected, count * sizeof *expected);
    for (size_t i = 0; i < got; i++)
        llm_tokenizer_decode(tokenizer, tokens[i], bytes, sizeof bytes);
    free(tokens);
}

/* The vocabulary: 3 control tokens, byte b is token 3 + b, then aa, ab, ... from 259 on, each a merge. */
static void test_tokenizer(void **state) {
    char path[64], bytes[8];
    struct llm_gguf file;
    struct llm_error error = {""};
    struct llm_tokenizer *tokenizer = NULL;
    (void)state;
    make_model("q4_0", path);
    assert_true(llm_gguf_open(&file, path, &error));
    assert_true(llm_tokenizer_open(&tokenizer, &file, &error));
    /* "ac" and "bd" are merges; "ac" stands before "cb" and "bd" in the list. */
    expect_tokens(tokenizer, "acbd", 2, (uint32_t[]){259 + 2, 259 + 26 + 3});
    expect_tokens(tokenizer, "bab", 2, (uint32_t[]){3 + 'b', 259 + 1}); /* "ab" before "ba" */
    expect_tokens(tokenizer, "a b", 3, (uint32_t[]){3 + 'a', 3 + ' ', 3 + 'b'});
    expect_tokens(tokenizer, "a'db", 4, (uint32_t[]){3 + 'a', 3 + '\'', 3 + 'd', 3 + 'b'});
    expect_tokens(tokenizer, "\xc3\xa9", 2, (uint32_t[]){3 + 0xc3, 3 + 0xa9});
    expect_tokens(tokenizer, "\xff", 1, (uint32_t[]){3 + 0xff});
    assert_int_equal(llm_tokenizer_decode(tokenizer, 259 + 27, bytes, sizeof bytes), 2);
    assert_memory_equal(bytes, "bb", 2);
    assert_int_equal(llm_tokenizer_decode(tokenizer, 0, bytes, sizeof bytes), 0);
    assert_int_equal(llm_tokenizer_decode(tokenizer, UINT32_MAX, bytes, sizeof bytes), 0);
    assert_true(llm_tokenizer_is_end(tokenizer, 2));
    /* Words that look like a control token are only words. */
    expect_tokens(tokenizer, "<|", 2, (uint32_t[]){3 + '<', 3 + '|'});
    llm_tokenizer_close(tokenizer);
    llm_gguf_close(&file);
    unlink(path);
}

/* The cache and the logits after 70 tokens: in chunks of 32, of 5, and one by one. */
static void test_steps(void **state) {
    enum { TOKENS = 70, VOCABULARY = 512 };
    static const size_t chunks[] = {LLM_CHUNK, 5, 1};
    uint32_t tokens[TOKENS];
    real first[VOCABULARY];
    char path[64];
    struct llm_model model;
    struct llm_error error = {""};
    struct llm_link link = {0};
    spark_comm_options options;
    (void)state;
    make_model("q4_1", path);
    assert_true(llm_model_open(&model, path, &error));
    assert_true(llm_model_take_share(&model, 1, 0, &error));
    spark_comm_options_init(&options, sizeof options);
    options.backend = "single";
    options.rank = 0;
    options.world_size = 1;
    options.dtype = SPARK_COMM_F32;
    assert_int_equal(spark_comm_open(&options, &link.comm), SPARK_COMM_OK);
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (i * 37 + 5) % VOCABULARY;
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        struct llm_run *run = llm_run_open(&model, TOKENS);
        assert_non_null(run);
        for (size_t at = 0; at < TOKENS; at += chunks[c]) {
            const size_t count = TOKENS - at < chunks[c] ? TOKENS - at : chunks[c];
            assert_int_equal(llm_run_step(run, &link, tokens + at, at, count), SPARK_COMM_OK);
        }
        if (c == 0) memcpy(first, llm_run_logits(run), sizeof first);
        assert_memory_equal(first, llm_run_logits(run), sizeof first);
        assert_true(first[0] != first[1]);
        /* Beyond the cache, and beyond the vocabulary. */
        assert_int_equal(llm_run_step(run, &link, tokens, TOKENS, 1), SPARK_COMM_INVALID_ARGUMENT);
        assert_int_equal(llm_run_step(run, &link, (uint32_t[]){VOCABULARY}, 0, 1),
                         SPARK_COMM_INVALID_ARGUMENT);
        llm_run_close(run);
    }
    spark_comm_close(link.comm);
    free(link.us);
    llm_model_close(&model);
    unlink(path);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_split),
                                       cmocka_unit_test(test_tokenizer),
                                       cmocka_unit_test(test_steps)};
    if (argc < 2) return 2;
    maker = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
