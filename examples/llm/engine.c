/*
 * Head and workers. Rank 0 has the prompt and decides; the others wait for its next command word in
 * spark_comm_recv_command_u32, as long as it takes, and obey. What follows the first word comes by
 * broadcast, which is bounded: a head that has begun a command goes on with it.
 *
 *   a word below LLM_WORD_FIRST   decode: this token, at the next position
 *   LLM_WORD_PREFILL              two words follow (first position, count), then the tokens
 *   LLM_WORD_REPORT               all add up what communication has cost
 *   LLM_WORD_SHUTDOWN             leave
 *
 * A worker knows nothing that the head could not tell it again. After a reconnect the head has all
 * the tokens, sends them as one more prompt, and every rank fills its cache anew, the replacement's
 * as well as the survivors'. Sums do not depend on how tokens are cut into steps, so the text goes
 * on as if nothing had happened.
 */
#include "llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_CONTEXT = 2048 };

enum llm_words {
    LLM_WORD_FIRST = 0xffffffe0u,
    LLM_WORD_PREFILL = 0xfffffff0u,
    LLM_WORD_REPORT = 0xfffffff1u,
    LLM_WORD_SHUTDOWN = 0xffffffffu
};

/* --- loading, and agreeing on it ---------------------------------------------------------------- */

static bool take_prompt(struct llm_engine *e, struct llm_error *error) {
    const struct llm_options *o = e->options;
    const struct llm_text words = {o->prompt, strlen(o->prompt)};
    const bool good =
        o->raw ? llm_tokenizer_encode(e->model.tokenizer, words, &e->tokens, &e->count)
               : llm_tokenizer_chat(e->model.tokenizer, o->prompt, &e->tokens, &e->count);
    if (!good) return llm_fail(error, "memory ran out");
    e->prompt_count = e->count;
    if (e->count == 0) return llm_fail(error, "the prompt is empty");
    if (e->count >= o->context)
        return llm_fail(error,
                        "the prompt has %zu tokens, and the context has room for %zu with one more "
                        "to generate; shorten it or give --context (the model has %zu)",
                        e->count, o->context, e->model.config.context);
    uint32_t *room = realloc(e->tokens, o->context * sizeof *room); /* no more than fit the cache */
    if (room == NULL) return llm_fail(error, "memory ran out");
    e->tokens = room;
    return true;
}

/* Every rank could be rank 0, so all of them look at the prompt. */
bool llm_engine_load(struct llm_engine *e, struct llm_options *options, struct llm_error *error) {
    e->options = options;
    if (!llm_model_open(&e->model, options->model, error)) return false;
    if (options->context == 0)
        options->context =
            e->model.config.context < DEFAULT_CONTEXT ? e->model.config.context : DEFAULT_CONTEXT;
    if (e->options->context > e->model.config.context)
        return llm_fail(error, "--context %zu is more than the model's %zu", e->options->context,
                        e->model.config.context);
    e->random = e->options->seed;
    return take_prompt(e, error);
}

/* What the ranks tell each other first. Nobody may go on alone: the others would wait for it. */
struct introduction {
    uint64_t loaded;
    uint64_t digest; /* of the file's tables */
    uint64_t size, context;
};

static bool compare(const struct llm_engine *e, const struct introduction *all,
                    struct llm_error *error) {
    for (int rank = 0; rank < e->world; rank++)
        if (!all[rank].loaded) return llm_fail(error, "rank %d could not load; it says why", rank);
    for (int rank = 1; rank < e->world; rank++)
        if (memcmp(&all[rank], &all[0], sizeof *all) != 0)
            return llm_fail(error, "ranks 0 and %d have different models or another --context",
                            rank);
    return true;
}

/* INVALID_ARGUMENT: the ranks can't work together, and the sentence says why. */
spark_comm_status llm_engine_agree(struct llm_engine *e, bool loaded, struct llm_error *error) {
    e->rank = spark_comm_rank(e->link.comm);
    e->world = spark_comm_world_size(e->link.comm);
    struct introduction own = {loaded, e->model.file.digest, e->model.file.size,
                               e->options->context};
    struct introduction *all = calloc((size_t)e->world, sizeof *all);

    if (loaded && e->run == NULL) {
        own.loaded = llm_model_take_share(&e->model, e->world, e->rank, error);
        if (own.loaded) e->run = llm_run_open(&e->model, e->options->context);
        if (own.loaded && e->run == NULL) own.loaded = llm_fail(error, "no memory for the cache");
        /* Now, not at the end: whoever started the ranks may end this one when another one leaves. */
        if (!own.loaded) fprintf(stderr, "llm: %s\n", error->text);
    }
    if (all == NULL) return SPARK_COMM_NO_MEMORY;
    spark_comm_status st = spark_comm_exchange_host(e->link.comm, &own, all, sizeof own);
    if (st == SPARK_COMM_OK && !compare(e, all, error)) st = SPARK_COMM_INVALID_ARGUMENT;
    free(all);
    return st;
}

void llm_engine_close(struct llm_engine *e) {
    llm_run_close(e->run);
    llm_model_close(&e->model);
    free(e->tokens);
    free(e->link.us);
    if (e->logits) fclose(e->logits);
}

/* --- what all ranks do -------------------------------------------------------------------------- */

/* For the tests: the logits of each step, as this rank has them. */
static void write_logits(struct llm_engine *e) {
    const real *logits = llm_run_logits(e->run);
    if (e->options->logits == NULL) return;
    if (e->logits == NULL) {
        char path[512];
        snprintf(path, sizeof path, "%s.%d", e->options->logits, e->rank);
        e->logits = fopen(path, "we");
    }
    for (size_t i = 0; e->logits != NULL && i < e->model.config.vocabulary; i++) {
        const double value = (double)logits[i];
        fwrite(&value, sizeof value, 1, e->logits);
    }
}

/* The tokens lie in chunks, each one step. What came before is no part of the times of decoding. */
static spark_comm_status prefill(struct llm_engine *e, uint32_t *tokens, size_t start,
                                 size_t count) {
    spark_comm_status st = llm_link_tell(&e->link, tokens, count * sizeof *tokens);
    if (st == SPARK_COMM_OK) st = llm_run_step(e->run, &e->link, tokens, start, count);
    e->link.calls = 0;
    return st;
}

static spark_comm_status decode(struct llm_engine *e, uint32_t token, size_t position) {
    const spark_comm_status st = llm_run_step(e->run, &e->link, &token, position, 1);
    if (st == SPARK_COMM_OK) write_logits(e);
    return st;
}

/* --- workers ------------------------------------------------------------------------------------ */

static spark_comm_status take_prefill(struct llm_engine *e, size_t *position) {
    uint32_t place[3], tokens[LLM_CHUNK];
    spark_comm_status st = llm_link_tell(&e->link, place, sizeof place);
    if (st != SPARK_COMM_OK) return st;
    if (place[1] > LLM_CHUNK)
        return SPARK_COMM_INVALID_ARGUMENT; /* the head runs another program */
    st = prefill(e, tokens, place[0], place[1]);
    *position = place[0] + place[1];
    if (st == SPARK_COMM_OK && place[2]) write_logits(e);
    return st;
}

static spark_comm_status obey(struct llm_engine *e) {
    spark_comm_status st = SPARK_COMM_OK;
    size_t position = 0, calls;
    double us;

    while (st == SPARK_COMM_OK) {
        uint32_t word = 0;
        st = llm_link_await_word(&e->link, &word);
        if (st != SPARK_COMM_OK) break;
        if (word < LLM_WORD_FIRST) {
            st = decode(e, word, position++);
        } else if (word == LLM_WORD_PREFILL) {
            st = take_prefill(e, &position);
        } else if (word == LLM_WORD_REPORT) {
            e->link.calls--; /* the wait for this word */
            st = llm_link_total(&e->link, &us, &calls);
        } else {
            return word == LLM_WORD_SHUTDOWN ? SPARK_COMM_OK : SPARK_COMM_INVALID_ARGUMENT;
        }
    }
    return st;
}

/* --- the head ----------------------------------------------------------------------------------- */

static spark_comm_status say(struct llm_engine *e, uint32_t word) {
    return llm_link_tell(&e->link, &word, sizeof word);
}

/* All tokens there are, at the positions from 0 on. */
static spark_comm_status send_prompt(struct llm_engine *e) {
    spark_comm_status st = SPARK_COMM_OK;
    for (size_t start = 0; start < e->count && st == SPARK_COMM_OK; start += LLM_CHUNK) {
        const size_t left = e->count - start, count = left < LLM_CHUNK ? left : LLM_CHUNK;
        uint32_t place[3] = {(uint32_t)start, (uint32_t)count, left == count};
        st = say(e, LLM_WORD_PREFILL);
        if (st == SPARK_COMM_OK) st = llm_link_tell(&e->link, place, sizeof place);
        if (st == SPARK_COMM_OK) st = prefill(e, e->tokens + start, start, count);
    }
    if (st == SPARK_COMM_OK) write_logits(e);
    return st;
}

/* The next of a sequence that depends on the seed alone (splitmix64), from 0 to 1. */
static double draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static uint32_t pick(struct llm_engine *e) {
    const real *logits = llm_run_logits(e->run);
    const size_t count = e->model.config.vocabulary;
    const double temperature = e->options->temperature;
    size_t best = 0;
    double sum = 0;

    for (size_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature <= 0) return (uint32_t)best;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)(logits[i] - logits[best]) / temperature);
    double left = draw(&e->random) * sum;
    for (size_t i = 0; i < count; i++) {
        left -= exp((double)(logits[i] - logits[best]) / temperature);
        if (left < 0) return (uint32_t)i;
    }
    return (uint32_t)best;
}

/* Streams the token, and says whether another one may follow. */
static bool accept(struct llm_engine *e, uint32_t token) {
    const struct llm_options *o = e->options;
    char bytes[256];
    if (e->first_token_ns == 0) e->first_token_ns = llm_now_ns();
    if (llm_tokenizer_is_end(e->model.tokenizer, token) && !o->ignore_end) return false;
    e->tokens[e->count++] = token;
    fwrite(bytes, 1, llm_tokenizer_decode(e->model.tokenizer, token, bytes, sizeof bytes), stdout);
    fflush(stdout);
    return e->count - e->prompt_count < o->tokens && e->count < o->context;
}

static void keep_pace(const struct llm_engine *e, int64_t since_ns) {
    const int64_t left = e->options->pace_ms * INT64_C(1000000) - (llm_now_ns() - since_ns);
    if (left <= 0) return;
    nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
}

static spark_comm_status generate(struct llm_engine *e) {
    spark_comm_status st = send_prompt(e);
    e->decode_ns = 0;
    e->decoded = 0;
    while (st == SPARK_COMM_OK && !e->finished) {
        e->finished = !accept(e, pick(e));
        if (e->finished) break;
        const int64_t begin = llm_now_ns();
        st = say(e, e->tokens[e->count - 1]);
        if (st == SPARK_COMM_OK) st = decode(e, e->tokens[e->count - 1], e->count - 1);
        e->decode_ns += llm_now_ns() - begin;
        e->decoded++;
        if (st == SPARK_COMM_OK) keep_pace(e, begin);
    }
    return st;
}

/* On standard error: standard output has the text alone. Decoding counts from the last reconnect on,
 * and from the second token: the first one belongs to the prompt. */
static spark_comm_status report(struct llm_engine *e) {
    double us;
    size_t calls;
    uint32_t word = LLM_WORD_REPORT;
    /* Not through the link: this word is no part of decoding, and the workers drop theirs. */
    spark_comm_status st =
        spark_comm_broadcast(e->link.comm, (uint64_t)(uintptr_t)&word, sizeof word, 0);
    if (st == SPARK_COMM_OK) st = llm_link_total(&e->link, &us, &calls);
    if (st != SPARK_COMM_OK) return st;
    fputc('\n', stdout);
    fflush(stdout);
    fprintf(stderr,
            "llm: %d rank%s, prompt of %zu tokens, %zu generated, first token after %.2f s\n",
            e->world, e->world == 1 ? "" : "s", e->prompt_count, e->count - e->prompt_count,
            (double)(e->first_token_ns - e->started_ns) / 1e9);
    if (e->decoded == 0) return st;
    const double tokens = (double)e->decoded, seconds = (double)e->decode_ns / 1e9;
    fprintf(
        stderr,
        "llm: %.1f tokens/s; communication %.1f us per token (%.1f %% of it); %.0f operations per token "
        "(%zu all_reduce, 1 all_gather, 1 command word)\n",
        tokens / seconds, us / tokens, us / 1e4 / seconds, (double)calls / tokens,
        2 * e->model.config.layers);
    return st;
}

static spark_comm_status lead(struct llm_engine *e) {
    uint32_t word = LLM_WORD_SHUTDOWN;
    spark_comm_status st = e->finished ? SPARK_COMM_OK : generate(e);
    if (st == SPARK_COMM_OK) st = report(e);
    if (st == SPARK_COMM_OK)
        st = spark_comm_broadcast(e->link.comm, (uint64_t)(uintptr_t)&word, sizeof word, 0);
    return st;
}

spark_comm_status llm_engine_serve(struct llm_engine *e) {
    e->link.calls = 0;
    spark_comm_status st = e->rank == 0 ? lead(e) : obey(e);
    /* Nobody leaves before all have come this far: a rank that is lost now is replaced once more. */
    return st == SPARK_COMM_OK ? spark_comm_barrier(e->link.comm) : st;
}
