/*
 * Inside of the settings: the table and what was found for each of its entries. Only settings*.c
 * and their test include this.
 */
#ifndef SC_BASE_SETTINGS_TABLE_H
#define SC_BASE_SETTINGS_TABLE_H

#include <stddef.h>

#include "base/settings.h"

enum sc_settings_kind {
    SC_SETTINGS_TEXT, /* a string; `maximum` is its longest length */
    SC_SETTINGS_SECRET, /* the same, never shown */
    SC_SETTINGS_WORD, /* a string of lower-case letters, digits, '_' and '-' */
    SC_SETTINGS_INTEGER, /* minimum to maximum */
    SC_SETTINGS_TIMEOUT, /* milliseconds: positive, -1 (no limit), 0 (the default) */
    SC_SETTINGS_POWER, /* an integer that is a power of two */
    SC_SETTINGS_CHOICE, /* one of `choices`, whose first has the value `minimum` */
    SC_SETTINGS_UNSIGNED, /* uint64_t, given by an option alone */
};

/* What a launcher says, if the entry is one of these. */
enum sc_settings_role {
    SC_SETTINGS_OWN, /* no launcher knows it */
    SC_SETTINGS_RANK,
    SC_SETTINGS_WORLD_SIZE,
    SC_SETTINGS_LOCAL_RANK,
    SC_SETTINGS_ADDR,
    SC_SETTINGS_PORT,
    SC_SETTINGS_ROLE_COUNT
};

#define SC_SETTINGS_NO_OPTION ((size_t)-1)

struct sc_settings_entry {
    const char *name;
    const char *variable; /* NULL: not read from the environment */
    enum sc_settings_kind kind;
    enum sc_settings_role role;
    const char *preset; /* the default as text, parsed like any other value; "" is an empty string,
                           or 0 or -1 */
    int32_t minimum;
    int32_t maximum;
    int32_t unset; /* integer kinds: the value of the option that means "not set" */
    const char *const *choices; /* ends with NULL */
    const char *range; /* for people */
    const char *help;
    size_t offset; /* in struct sc_settings */
    size_t option_offset; /* in spark_comm_options, or SC_SETTINGS_NO_OPTION */
};

/* What resolving found for one entry. */
struct sc_settings_found {
    char source[64]; /* "option", "default", or a variable's name */
    char problem[256]; /* empty: good */
};

extern const struct sc_settings_entry sc_settings_table[];
extern const size_t sc_settings_table_count;
#define SC_SETTINGS_MAX_ENTRIES 32

/* Does the work of resolve and describe: every entry gets a value, a source, and a problem where
 * its value is refused (it then has its default). `found` has sc_settings_table_count elements. */
void sc_settings_examine(const spark_comm_options *options, struct sc_settings *settings,
                         struct sc_settings_found *found);

#endif
