/* A recursive reader of JSON (RFC 8259). Each function takes the text's position and moves it past
 * what it reads. */
#include "json_check.h"

#include <ctype.h>
#include <string.h>

#define MAX_DEPTH 16

static bool value(const char **at, int depth);

static void spaces(const char **at) {
    *at += strspn(*at, " \t");
}

static bool word(const char **at, const char *expected) {
    const size_t length = strlen(expected);
    if (strncmp(*at, expected, length) != 0) return false;
    *at += length;
    return true;
}

static bool string(const char **at) {
    if (!word(at, "\"")) return false;
    for (; **at != '"'; (*at)++) {
        if ((unsigned char)**at < 0x20) return false; /* also the end of the text */
        if (**at != '\\') continue;
        (*at)++;
        if (**at == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!isxdigit((unsigned char)(*at)[i])) return false;
            *at += 4;
        } else if (**at == '\0' || strchr("\"\\/bfnrt", **at) == NULL) {
            return false;
        }
    }
    (*at)++;
    return true;
}

static bool digits(const char **at) {
    const size_t length = strspn(*at, "0123456789");
    *at += length;
    return length > 0;
}

static bool number(const char **at) {
    word(at, "-");
    if (!word(at, "0") && !digits(at)) return false;
    if (word(at, ".") && !digits(at)) return false;
    if (**at != 'e' && **at != 'E') return true;
    (*at)++;
    if (**at == '+' || **at == '-') (*at)++;
    return digits(at);
}

/* An array, or an object where each value has a name. */
static bool members(const char **at, const char *close, bool named, int depth) {
    spaces(at);
    if (word(at, close)) return true;
    do {
        spaces(at);
        if (named) {
            if (!string(at)) return false;
            spaces(at);
            if (!word(at, ":")) return false;
        }
        if (!value(at, depth + 1)) return false;
        spaces(at);
    } while (word(at, ","));
    return word(at, close);
}

static bool value(const char **at, int depth) {
    if (depth > MAX_DEPTH) return false;
    spaces(at);
    if (**at == '"') return string(at);
    if (word(at, "{")) return members(at, "}", true, depth);
    if (word(at, "[")) return members(at, "]", false, depth);
    return word(at, "true") || word(at, "false") || word(at, "null") || number(at);
}

bool json_is_object(const char *text) {
    spaces(&text);
    if (*text != '{' || !value(&text, 0)) return false;
    spaces(&text);
    return *text == '\0';
}
