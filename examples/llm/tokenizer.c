/*
 * Byte-level BPE as GPT-2 has it, from the file's metadata. Text is cut into words, each byte of a word
 * becomes a printable character, and neighbours are merged, the earliest merge of the list first,
 * until none is left that the list has; what remains are tokens.
 */
#include "llm.h"

#include <stdlib.h>
#include <string.h>

enum { CONTROL = 3, NO_MERGE = UINT32_MAX, BYTE_CHARACTERS = 512 };

/* Finds a string's place in a list: open addressing, at most half full. */
struct index {
    const struct llm_text *texts;
    uint32_t *places; /* plus one; 0: empty */
    size_t mask;
};

struct llm_tokenizer {
    struct llm_text *tokens, *merges;
    int32_t *types; /* NULL: all are normal */
    size_t token_count, merge_count;
    struct index token_index, merge_index;
    bool single_digits; /* each digit is a word */
    uint64_t end, unknown;
    bool chats;
    char characters[256][3]; /* of each byte, as UTF-8 */
    uint16_t bytes[BYTE_CHARACTERS]; /* of each such character; 256: none */
};

static uint64_t hash(uint64_t value, const char *data, size_t length) {
    for (size_t i = 0; i < length; i++)
        value = (value ^ (unsigned char)data[i]) * 0x100000001b3u;
    return value;
}

/* Texts are looked up as two halves with a character between them, as merges are written; a text that
 * is one piece has an empty second half and no such character. */
static bool is_same(struct llm_text text, struct llm_text left, struct llm_text right) {
    const size_t gap = right.length > 0;
    return text.length == left.length + gap + right.length &&
           memcmp(text.data, left.data, left.length) == 0 &&
           (!gap || (text.data[left.length] == ' ' &&
                     memcmp(text.data + left.length + 1, right.data, right.length) == 0));
}

static uint32_t *place_of(const struct index *index, struct llm_text left, struct llm_text right) {
    uint64_t value = hash(0xcbf29ce484222325u, left.data, left.length);
    if (right.length > 0) value = hash(hash(value, " ", 1), right.data, right.length);
    for (size_t i = (value ^ value >> 29) & index->mask;; i = (i + 1) & index->mask) {
        uint32_t *place = &index->places[i];
        if (*place == 0 || is_same(index->texts[*place - 1], left, right)) return place;
    }
}

static uint32_t look_up(const struct index *index, struct llm_text left, struct llm_text right) {
    const uint32_t place = *place_of(index, left, right);
    return place ? place - 1 : NO_MERGE;
}

static bool make_index(struct index *index, const struct llm_text *texts, size_t count) {
    size_t places = 16;
    while (places < 2 * count)
        places *= 2;
    *index = (struct index){texts, calloc(places, sizeof *index->places), places - 1};
    for (size_t i = 0; index->places != NULL && i < count; i++) {
        uint32_t *place = place_of(index, texts[i], (struct llm_text){"", 0});
        if (*place == 0) *place = (uint32_t)i + 1;
    }
    return index->places != NULL;
}

/* Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on. */
static void name_bytes(struct llm_tokenizer *t) {
    unsigned next = 256;
    for (size_t i = 0; i < BYTE_CHARACTERS; i++)
        t->bytes[i] = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        const unsigned code = printable ? byte : next++;
        t->bytes[code] = (uint16_t)byte;
        if (code < 0x80) {
            t->characters[byte][0] = (char)code;
        } else {
            t->characters[byte][0] = (char)(0xc0 | code >> 6);
            t->characters[byte][1] = (char)(0x80 | (code & 0x3f));
        }
    }
}

static bool read_lists(struct llm_tokenizer *t, const struct llm_gguf *file,
                       struct llm_error *error) {
    size_t types = 0;
    t->tokens = llm_gguf_texts(file, "tokenizer.ggml.tokens", &t->token_count);
    t->merges = llm_gguf_texts(file, "tokenizer.ggml.merges", &t->merge_count);
    t->types = llm_gguf_integers(file, "tokenizer.ggml.token_type", &types);
    if (t->tokens == NULL || t->merges == NULL || t->token_count > INT32_MAX ||
        t->merge_count > INT32_MAX)
        return llm_fail(error, "its tokenizer has no tokens or no merges");
    if (t->types != NULL && types != t->token_count)
        return llm_fail(error, "its tokenizer has %zu tokens and %zu types", t->token_count, types);
    if (!make_index(&t->token_index, t->tokens, t->token_count) ||
        !make_index(&t->merge_index, t->merges, t->merge_count))
        return llm_fail(error, "memory ran out");
    return true;
}

bool llm_tokenizer_open(struct llm_tokenizer **tokenizer, const struct llm_gguf *file,
                        struct llm_error *error) {
    struct llm_text kind = {"", 0}, words = {"default", 7}, template;
    struct llm_tokenizer *t = calloc(1, sizeof *t);

    *tokenizer = t;
    if (t == NULL) return llm_fail(error, "memory ran out");
    llm_gguf_text(file, "tokenizer.ggml.model", &kind);
    llm_gguf_text(file, "tokenizer.ggml.pre", &words);
    if (!llm_text_is(kind, "gpt2"))
        return llm_fail(error, "its tokenizer is '%.*s'; this engine reads gpt2",
                        kind.length < 64 ? (int)kind.length : 64, kind.data);
    t->single_digits = llm_text_is(words, "smollm");
    if (!t->single_digits && !llm_text_is(words, "gpt-2") && !llm_text_is(words, "default"))
        return llm_fail(error,
                        "it cuts words as '%.*s'; this engine knows smollm, gpt-2 and default",
                        words.length < 64 ? (int)words.length : 64, words.data);
    if (!read_lists(t, file, error)) return false;
    t->end = UINT64_MAX;
    llm_gguf_number(file, "tokenizer.ggml.eos_token_id", &t->end);
    llm_gguf_number(file, "tokenizer.ggml.unknown_token_id", &t->unknown);
    if (t->unknown >= t->token_count) return llm_fail(error, "its unknown token is none");
    name_bytes(t);
    t->chats = llm_gguf_text(file, "tokenizer.chat_template", &template);
    return true;
}

void llm_tokenizer_close(struct llm_tokenizer *t) {
    if (t == NULL) return;
    free(t->tokens);
    free(t->merges);
    free(t->types);
    free(t->token_index.places);
    free(t->merge_index.places);
    free(t);
}

bool llm_tokenizer_is_end(const struct llm_tokenizer *t, uint32_t token) {
    return token == t->end;
}

/* --- words -------------------------------------------------------------------------------------- */

enum class { SPACE, LETTER, DIGIT, OTHER };

/* The class of the character at `at`, and how many bytes it has. Beyond ASCII only the larger blocks
 * are told apart: a rare character may be cut from its word where the reference would keep it. */
static enum class classify(const char *at, const char *end, size_t *length) {
    const unsigned char first = (unsigned char)*at; *length = 1;
    if (first < 0x80){if (first == ' ' || (first >= '\t' && first <= '\r')) return SPACE;
                      if (first >= '0' && first <= '9') return DIGIT;
                      return (first | 0x20) >= 'a' && (first | 0x20) <= 'z' ? LETTER : OTHER;}
const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
uint32_t code = first & (0xffu >> (size + 1));
if (first < 0xc2 || first > 0xf4 || (size_t)(end - at) < size) return OTHER;
for (size_t i = 1; i < size; i++) {
    if (((unsigned char)at[i] & 0xc0) != 0x80) return OTHER;
    code = code << 6 | ((unsigned char)at[i] & 0x3f);
}
*length = size;
if (code == 0x85 || code == 0xa0 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
    code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000)
    return SPACE;
if ((code < 0xc0 && code != 0xaa && code != 0xb5 && code != 0xba) || code == 0xd7 || code == 0xf7 ||
    (code >= 0x2010 && code <= 0x206f) || (code >= 0x20a0 && code <= 0x20cf) ||
    (code >= 0x2190 && code <= 0x2bff) || (code >= 0x3001 && code <= 0x3020) ||
    (code >= 0xfe00 && code <= 0xfe6f) || (code >= 0xff01 && code <= 0xff0f) || code >= 0x1f000)
    return code >= 0x20000 && code < 0x40000 ? LETTER : OTHER;
return LETTER;
}

static const char *end_of_run(const char *at, const char *end, enum class wanted) {
    size_t length;
    while (at < end && classify(at, end, &length) == wanted)
        at += length;
    return at;
}

static size_t contraction(const char *at, const char *end) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t length = strlen(endings[i]);
        if ((size_t)(end - at) >= length && memcmp(at, endings[i], length) == 0) return length;
    }
    return 0;
}

/* The end of the word that begins at `at`: letters, digits or signs, with one space before them if
 * there is one; or spaces, of which the last is left to the word that follows. */
static const char *end_of_word(const char *at, const char *end) {
    size_t length, next;
    const size_t contracted = contraction(at, end);
    const enum class first = classify(at, end, &length);

    if (contracted > 0) return at + contracted;
    if (first != SPACE) return end_of_run(at, end, first);
    if (*at == ' ' && at + 1 < end) {
        const enum class second = classify(at + 1, end, &next);
        if (second != SPACE) return end_of_run(at + 1, end, second);
    }
    const char *spaces = end_of_run(at, end, SPACE), *last = at;
    if (spaces == end) return end;
    for (const char *walk = at; walk < spaces; walk += length) {
        last = walk;
        classify(walk, end, &length);
    }
    return last > at ? last : spaces;
}

/* --- merging ------------------------------------------------------------------------------------ */

static bool append(uint32_t **tokens, size_t *count, uint32_t token) {
    if ((*count & (*count - 1)) == 0) { /* full at each power of two */
        uint32_t *grown = realloc(*tokens, (*count ? *count * 2 : 1) * sizeof *grown);
        if (grown == NULL) return false;
        *tokens = grown;
    }
    (*tokens)[(*count)++] = token;
    return true;
}

/* `parts` and `ranks` have room for one entry per byte: ranks[i] is the merge of parts i and i + 1. */
static size_t merge(const struct llm_tokenizer *t, struct llm_text *parts, uint32_t *ranks,
                    size_t count) {
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = look_up(&t->merge_index, parts[i], parts[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_MERGE) break;
        parts[best].length += parts[best + 1].length;
        count--;
        memmove(&parts[best + 1], &parts[best + 2], (count - best - 1) * sizeof *parts);
        memmove(&ranks[best], &ranks[best + 1], (count - best) * sizeof *ranks);
        if (best > 0) ranks[best - 1] = look_up(&t->merge_index, parts[best - 1], parts[best]);
        if (best + 1 < count) ranks[best] = look_up(&t->merge_index, parts[best], parts[best + 1]);
    }
    return count;
}

static bool encode_word(const struct llm_tokenizer *t, const char *word, size_t length,
                        uint32_t **tokens, size_t *count) {
    char *characters = malloc(2 * length);
    struct llm_text *parts = calloc(length + 1, sizeof *parts);
    uint32_t *ranks = calloc(length + 1, sizeof *ranks);
    bool good = characters != NULL && parts != NULL && ranks != NULL;
    size_t used = 0;

    for (size_t i = 0; good && i < length; i++) {
        const char *character = t->characters[(unsigned char)word[i]];
        parts[i] = (struct llm_text){characters + used, strlen(character)};
        memcpy(characters + used, character, parts[i].length);
        used += parts[i].length;
    }
    const size_t left = good ? merge(t, parts, ranks, length) : 0;
    for (size_t i = 0; good && i < left; i++) {
        const uint32_t token = look_up(&t->token_index, parts[i], (struct llm_text){"", 0});
        good = append(tokens, count, token == NO_MERGE ? (uint32_t)t->unknown : token);
    }
    free(ranks);
    free(parts);
    free(characters);
    return good;
}

bool llm_tokenizer_encode(const struct llm_tokenizer *t, struct llm_text text, uint32_t **tokens,
                          size_t *count) {
    const char *at = text.data, *end = text.data + text.length;
    while (at < end) {
        /* Where each digit is a word, the text between two of them is cut as if it stood alone. */
        const char *stop = at;
        size_t length;
        while (t->single_digits && stop < end && classify(stop, end, &length) != DIGIT)
            stop += length;
        if (!t->single_digits) stop = end;
        if (stop == at) stop = at + 1;
        while (at < stop) {
            const char *next = end_of_word(at, stop);
            if (!encode_word(t, at, (size_t)(next - at), tokens, count)) return false;
            at = next;
        }
    }
    return true;
}

size_t llm_tokenizer_decode(const struct llm_tokenizer *t, uint32_t token, char *bytes,
                            size_t capacity) {
    size_t used = 0;
    if (token >= t->token_count || (t->types != NULL && t->types[token] == CONTROL)) return 0;
    const struct llm_text text = t->tokens[token];
    for (size_t i = 0; i < text.length && used < capacity; i++) {
        unsigned code = (unsigned char)text.data[i];
        if (code >= 0xc0 && i + 1 < text.length)
            code = (code & 0x1f) << 6 | ((unsigned char)text.data[++i] & 0x3f);
        if (code < BYTE_CHARACTERS && t->bytes[code] < 256) bytes[used++] = (char)t->bytes[code];
    }
    return used;
}

/* Control tokens are put in by number, so that a user's words can't pretend to be one. */
bool llm_tokenizer_chat(const struct llm_tokenizer *t, const char *words, uint32_t **tokens,
                        size_t *count) {
    const struct llm_text none = {"", 0};
    const uint32_t start = look_up(&t->token_index, (struct llm_text){"<|im_start|>", 12}, none);
    const uint32_t end = look_up(&t->token_index, (struct llm_text){"<|im_end|>", 10}, none);
    const size_t length = strlen(words);
    if (!t->chats || start == NO_MERGE || end == NO_MERGE)
        return llm_tokenizer_encode(t, (struct llm_text){words, length}, tokens, count);

    char *turn = malloc(length + 6);
    if (turn == NULL) return false;
    memcpy(turn, "user\n", 5);
    memcpy(turn + 5, words, length);
    bool good = append(tokens, count, start) &&
                llm_tokenizer_encode(t, (struct llm_text){turn, length + 5}, tokens, count) &&
                append(tokens, count, end) &&
                llm_tokenizer_encode(t, (struct llm_text){"\n", 1}, tokens, count) &&
                append(tokens, count, start) &&
                llm_tokenizer_encode(t, (struct llm_text){"assistant\n", 10}, tokens, count);
    free(turn);
    return good;
}
