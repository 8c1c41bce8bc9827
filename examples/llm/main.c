/*
 * The command line, and the life of a rank: load, open, agree, serve; when another rank is lost,
 * reconnect, agree, serve on.
 *
 *     spark-comm run -n 2 -- llm --model FILE --prompt "..."
 */
#include "llm.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, DEFAULT_TOKENS = 128, MAX_CONTEXT = 1 << 20 };
enum {
    KEY_TEMPERATURE = 256,
    KEY_SEED,
    KEY_CONTEXT,
    KEY_RAW,
    KEY_IGNORE_END,
    KEY_PACE,
    KEY_LOGITS
};

static const char usage[] =
    "Usage: llm --model FILE --prompt TEXT [OPTION...]\n"
    "Generates text with a Llama model in a GGUF file; started by spark-comm run -n N, on N ranks.\n\n"
    "  -m, --model FILE     weights in F32, F16, Q8_0, Q4_0 or Q4_1\n"
    "  -p, --prompt TEXT    what to answer\n"
    "  -n, --tokens N       generate at most N tokens (128)\n"
    "  --temperature T      0: always the likeliest token (the default); 1: as the model has it\n"
    "  --seed S             of the choice at a temperature above 0 (1)\n"
    "  --context N          positions in the cache (2048, or what the model has)\n"
    "  --raw                go on from the prompt as it stands, instead of answering it\n"
    "  --ignore-end         go on after the model says that it is done\n"
    "  --pace MS            take at least MS milliseconds per token\n"
    "  --logits FILE        write each step's logits to FILE.RANK, as doubles\n";

static bool number(const char *text, long low, long high, long *value) {
    char *end;
    *value = strtol(text, &end, 10);
    return *text && !*end && *value >= low && *value <= high;
}

static bool take_option(struct llm_options *o, int key, char *text) {
    char *end;
    long value = 0;
    switch (key) {
    case 'm': o->model = text; return true;
    case 'p': o->prompt = text; return true;
    case 'n':
        if (!number(text, 1, MAX_CONTEXT, &value)) return false;
        o->tokens = (size_t)value;
        return true;
    case KEY_TEMPERATURE:
        o->temperature = strtod(text, &end);
        return *text && !*end && o->temperature >= 0;
    case KEY_SEED: o->seed = strtoull(text, &end, 10); return *text && !*end;
    case KEY_CONTEXT:
        if (!number(text, 2, MAX_CONTEXT, &value)) return false;
        o->context = (size_t)value;
        return true;
    case KEY_PACE:
        if (!number(text, 0, 60000, &value)) return false;
        o->pace_ms = (int)value;
        return true;
    case KEY_RAW: o->raw = true; return true;
    case KEY_IGNORE_END: o->ignore_end = true; return true;
    case KEY_LOGITS: o->logits = text; return true;
    default: return false;
    }
}

/* 0, or the exit code. */
static int parse(int argc, char **argv, struct llm_options *o) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"prompt", required_argument, NULL, 'p'},
        {"tokens", required_argument, NULL, 'n'},
        {"temperature", required_argument, NULL, KEY_TEMPERATURE},
        {"seed", required_argument, NULL, KEY_SEED},
        {"context", required_argument, NULL, KEY_CONTEXT},
        {"raw", no_argument, NULL, KEY_RAW},
        {"ignore-end", no_argument, NULL, KEY_IGNORE_END},
        {"pace", required_argument, NULL, KEY_PACE},
        {"logits", required_argument, NULL, KEY_LOGITS},
        {"help", no_argument, NULL, 'h'},
        {0}};
    int key, which = 0;
    while ((key = getopt_long(argc, argv, "m:p:n:h", options, &which)) != -1) {
        if (key == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        if (key == '?') return EXIT_USAGE;
        if (!take_option(o, key, optarg)) {
            fprintf(stderr, "llm: '%s' is no value for its option; --help lists them\n", optarg);
            return EXIT_USAGE;
        }
    }
    if (o->model != NULL && o->prompt != NULL && optind == argc) return 0;
    fputs("llm: give --model FILE and --prompt TEXT; --help lists the rest\n", stderr);
    return EXIT_USAGE;
}

static void complain(const struct llm_engine *engine, const char *what, spark_comm_status st) {
    spark_comm_error error = {.struct_size = sizeof error};
    spark_comm_last_error(engine->link.comm, &error);
    fprintf(stderr, "llm: rank %d: %s: %s: %s\n", engine->rank, what, spark_comm_status_name(st),
            error.status == (int)st ? error.message : spark_comm_status_text(st));
}

/* One epoch. *why is empty unless the ranks found that they can't work together. */
static spark_comm_status live(struct llm_engine *engine, bool loaded, struct llm_error *why) {
    spark_comm_health_report health = {.struct_size = sizeof health};
    spark_comm_status st = llm_engine_agree(engine, loaded, why);
    if (st != SPARK_COMM_OK) return st;
    spark_comm_health(engine->link.comm, &health);
    fprintf(
        stderr,
        "llm: rank %d of %d, process %d, epoch %u: heads %zu, inner columns %zu, vocabulary %zu\n",
        engine->rank, engine->world, (int)getpid(), (unsigned)health.epoch,
        engine->model.share.head_count, engine->model.share.ffn_count,
        engine->model.share.vocabulary_count);
    return llm_engine_serve(engine);
}

int main(int argc, char **argv) {
    struct llm_options options = {.tokens = DEFAULT_TOKENS, .seed = 1};
    struct llm_engine engine = {.options = &options, .rank = -1, .started_ns = llm_now_ns()};
    struct llm_error why = {""};
    spark_comm_options open;
    const int code = parse(argc, argv, &options);
    if (code != 0) return code;

    /* Weights come first and the communicator second: others wait for a rank that loads, and wait in
     * vain for one that gave up, so that one opens too, and says so. */
    const bool loaded = llm_engine_load(&engine, &options, &why);
    if (!loaded) fprintf(stderr, "llm: %s\n", why.text);
    spark_comm_options_init(&open, sizeof open);
    open.dtype = sizeof(real) == sizeof(float) ? SPARK_COMM_F32 : SPARK_COMM_F64;
    spark_comm_status st = spark_comm_open(&open, &engine.link.comm);
    if (st != SPARK_COMM_OK) {
        complain(&engine, "open", st);
        goto out;
    }
    st = live(&engine, loaded, &why);
    while (spark_comm_is_fatal(st)) {
        complain(&engine, "lost", st);
        const int64_t begin = llm_now_ns();
        st = spark_comm_attempt_reconnect(engine.link.comm);
        if (st != SPARK_COMM_OK) break;
        fprintf(stderr, "llm: rank %d: together again after %.2f s\n", engine.rank,
                (double)(llm_now_ns() - begin) / 1e9);
        st = live(&engine, loaded, &why);
    }
    if (st != SPARK_COMM_OK && why.text[0] == 0) complain(&engine, "cannot go on", st);
out:
    if (why.text[0] != 0) fprintf(stderr, "llm: %s\n", why.text);
    spark_comm_close(engine.link.comm);
    llm_engine_close(&engine);
    return st == SPARK_COMM_OK ? 0 : 1;
}
