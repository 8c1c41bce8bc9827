/*
 * The real model against what llama.cpp says about it (reference.txt, made by reference.py): tokens of
 * some texts, and log-probabilities along greedy generation. Arguments: the program that writes models
 * (unused), and the reference. Skipped, aloud, where the model was not fetched.
 *
 * The tolerance: in doubles this engine is right to 1e-13, so its own floats were measured to be off by at
 * most 4.6e-5 of a logit (docs/results/llm.md). llama.cpp computes in floats too, sums in another order,
 * and rounds the rotations' angles, of which it was found to be off by at most 2.4e-4; TOLERANCE
 * is four times that.
 */
#include "llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOLERANCE 1e-3
enum { MAX_LINE = 1 << 16, MAX_TOKENS = 1024 };

struct test {
    struct llm_model model;
    struct llm_link link;
    struct llm_run *run;
    size_t position, steps, texts;
    uint32_t *tokens; /* of the last text */
    size_t count;
    double largest;
    int failures;
};

/* Numbers separated by spaces. */
static size_t read_numbers(char *text, uint32_t *numbers) {
    size_t count = 0;
    for (char *word = strtok(text, " \n"); word != NULL && count < MAX_TOKENS;
         word = strtok(NULL, " \n"))
        numbers[count++] = (uint32_t)strtoul(word, NULL, 10);
    return count;
}

static void take_text(struct test *t, char *hex) {
    char text[MAX_TOKENS];
    size_t length = 0;
    for (unsigned byte; length < sizeof text && sscanf(hex + 2 * length, "%2x", &byte) == 1;
         length++)
        text[length] = (char)byte;
    free(t->tokens);
    t->tokens = NULL;
    t->count = 0;
    if (!llm_tokenizer_encode(t->model.tokenizer, (struct llm_text){text, length}, &t->tokens,
                              &t->count))
        t->failures++;
}

static void take_tokens(struct test *t, char *list) {
    uint32_t expected[MAX_TOKENS];
    const size_t count = read_numbers(list, expected);
    t->texts++;
    if (count == t->count && memcmp(expected, t->tokens, count * sizeof *expected) == 0) return;
    printf("text %zu: tokens", t->texts);
    for (size_t i = 0; i < t->count; i++)
        printf(" %u", t->tokens[i]);
    printf(", expected");
    for (size_t i = 0; i < count; i++)
        printf(" %u", expected[i]);
    printf("\n");
    t->failures++;
}

static void feed(struct test *t, const uint32_t *tokens, size_t count) {
    for (size_t at = 0; at < count; at += LLM_CHUNK) {
        const size_t part = count - at < LLM_CHUNK ? count - at : LLM_CHUNK;
        if (llm_run_step(t->run, &t->link, tokens + at, t->position, part) != SPARK_COMM_OK)
            t->failures++;
        t->position += part;
    }
}

static void take_prompt(struct test *t, char *list) {
    uint32_t tokens[MAX_TOKENS];
    const size_t count = read_numbers(list, tokens);
    t->position = 0;
    feed(t, tokens, count);
}

/* "CHOSEN TOKEN:LOG-PROBABILITY ..."; goes on with the token that was chosen. */
static void take_step(struct test *t, char *list) {
    const real *logits = llm_run_logits(t->run);
    char *end;
    uint32_t chosen = (uint32_t)strtoul(list, &end, 10);
    double most = (double)logits[0], sum = 0;

    for (size_t i = 1; i < t->model.config.vocabulary; i++)
        if ((double)logits[i] > most) most = (double)logits[i];
    for (size_t i = 0; i < t->model.config.vocabulary; i++)
        sum += exp((double)logits[i] - most);
    for (char *word = strtok(end, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        const uint32_t token = (uint32_t)strtoul(word, &end, 10);
        const double expected = strtod(end + 1, NULL);
        const double difference = fabs((double)logits[token] - most - log(sum) - expected);
        if (difference > t->largest) t->largest = difference;
        if (difference <= TOLERANCE) continue;
        printf("step %zu, token %u: off by %g\n", t->steps, token, difference);
        t->failures++;
    }
    /* Within the tolerance of the likeliest, or the same. */
    if ((double)logits[chosen] < most - 2 * TOLERANCE) {
        printf("step %zu: token %u is not the likeliest\n", t->steps, chosen);
        t->failures++;
    }
    t->steps++;
    feed(t, &chosen, 1);
}

int main(int argc, char **argv) {
    static char line[MAX_LINE];
    const char *path = getenv("SC_LLM_MODEL");
    struct test t = {0};
    struct llm_error error = {""};
    spark_comm_options options;
    if (argc != 3 || path == NULL || access(path, R_OK) != 0) {
        printf("skipped: no model at '%s'; 'make demo' or scripts/fetch_model.sh fetches it\n",
               path ? path : "");
        return 77;
    }
    spark_comm_options_init(&options, sizeof options);
    options.backend = "single";
    options.rank = 0;
    options.world_size = 1;
    options.dtype = sizeof(real) == sizeof(float) ? SPARK_COMM_F32 : SPARK_COMM_F64;
    if (!llm_model_open(&t.model, path, &error) || !llm_model_take_share(&t.model, 1, 0, &error) ||
        spark_comm_open(&options, &t.link.comm) != SPARK_COMM_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    t.run = llm_run_open(&t.model, MAX_TOKENS);
    FILE *file = fopen(argv[2], "re");
    if (t.run == NULL || file == NULL) return 1;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "text ", 5) == 0)
            take_text(&t, line + 5);
        else if (strncmp(line, "tokens ", 7) == 0)
            take_tokens(&t, line + 7);
        else if (strncmp(line, "prompt ", 7) == 0)
            take_prompt(&t, line + 7);
        else if (strncmp(line, "step ", 5) == 0)
            take_step(&t, line + 5);
    }
    fclose(file);
    printf("%zu texts, %zu steps, largest difference of a log-probability %.3g, %d failures\n",
           t.texts, t.steps, t.largest, t.failures);
    llm_run_close(t.run);
    free(t.tokens);
    free(t.link.us);
    spark_comm_close(t.link.comm);
    llm_model_close(&t.model);
    return t.failures != 0 || t.steps < 3 || t.texts < 3;
}
