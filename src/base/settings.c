/*
 * Resolving the settings: for each entry of the table the caller's option, its own variable, one
 * launcher's word, or the default, checked alike. The only file that reads the environment
 * (secure_getenv: a set-uid program ignores it). A value that is out of range is refused and never
 * clamped; the text of a secret appears nowhere. No state; any thread, as long as nobody changes
 * the environment meanwhile.
 */
#include "base/settings.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings_table.h"

/* ---- Options ---- */

void sc_settings_options_init(spark_comm_options *options, size_t struct_size) {
    spark_comm_options unset;

    if (options == NULL || struct_size == 0) return;
    memset(&unset, 0, sizeof unset);
    unset.struct_size = struct_size;
    unset.rank = -1;
    unset.world_size = -1;
    unset.device = -1;
    /* A newer program's struct is longer: what this library does not know must be zero. */
    memset(options, 0, struct_size);
    memcpy(options, &unset, struct_size < sizeof unset ? struct_size : sizeof unset);
}

/* The fields of spark_comm_options after struct_size. */
static const struct option_field {
    size_t offset;
    size_t size;
} option_fields[] = {
#define FIELD(name) \
    { offsetof(spark_comm_options, name), sizeof(((spark_comm_options *)0)->name) }
    FIELD(backend),
    FIELD(master_addr),
    FIELD(job_token),
    FIELD(log),
    FIELD(log_user),
    FIELD(stream),
    FIELD(memory),
    FIELD(rank),
    FIELD(world_size),
    FIELD(master_port),
    FIELD(device),
    FIELD(dtype),
    FIELD(rendezvous_timeout_ms),
    FIELD(op_timeout_ms),
    FIELD(liveness_timeout_ms),
    FIELD(close_timeout_ms),
#undef FIELD
};

/* Copies the fields that the caller's struct holds whole. False, with the reason, where struct_size
 * cannot be. */
static bool take_options(const spark_comm_options *given, spark_comm_options *options,
                         char *problem, size_t size) {
    sc_settings_options_init(options, sizeof *options);
    if (given == NULL) return true;
    size_t bytes = given->struct_size;
    if (bytes < sizeof bytes || bytes > 65536) {
        snprintf(problem, size, "options.struct_size is %zu; call spark_comm_options_init first",
                 bytes);
        return false;
    }
    const unsigned char *raw = (const unsigned char *)given;
    for (size_t i = sizeof *options; i < bytes; i++) {
        if (raw[i] != 0) {
            snprintf(
                problem, size,
                "options.struct_size is %zu and byte %zu is not zero; this library knows %zu bytes",
                bytes, i, sizeof *options);
            return false;
        }
    }
    for (size_t i = 0; i < sizeof option_fields / sizeof option_fields[0]; i++) {
        const struct option_field *field = &option_fields[i];
        if (field->offset + field->size <= bytes)
            memcpy((char *)options + field->offset, raw + field->offset, field->size);
    }
    return true;
}

/* ---- The environment ---- */

/* An empty variable counts as one that is not there. */
static const char *environment(const char *variable) {
    const char *text = variable != NULL ? secure_getenv(variable) : NULL;
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* The variables of one launcher, by role. */
struct family {
    const char *variables[SC_SETTINGS_ROLE_COUNT];
};

/* In the order in which they are asked. A family counts only as a whole: when both its rank and its
 * world size are there. */
static const struct family families[] = {
    {{[SC_SETTINGS_RANK] = "RANK",
      [SC_SETTINGS_WORLD_SIZE] = "WORLD_SIZE",
      [SC_SETTINGS_LOCAL_RANK] = "LOCAL_RANK",
      [SC_SETTINGS_ADDR] = "MASTER_ADDR",
      [SC_SETTINGS_PORT] = "MASTER_PORT"}},
    {{[SC_SETTINGS_RANK] = "OMPI_COMM_WORLD_RANK",
      [SC_SETTINGS_WORLD_SIZE] = "OMPI_COMM_WORLD_SIZE",
      [SC_SETTINGS_LOCAL_RANK] = "OMPI_COMM_WORLD_LOCAL_RANK"}},
    {{[SC_SETTINGS_RANK] = "PMI_RANK",
      [SC_SETTINGS_WORLD_SIZE] = "PMI_SIZE",
      [SC_SETTINGS_LOCAL_RANK] = "MPI_LOCALRANKID"}},
    /* SLURM_STEP_NUM_TASKS exists only inside a job step, not in the batch script or an
       allocation's shell. */
    {{[SC_SETTINGS_RANK] = "SLURM_PROCID",
      [SC_SETTINGS_WORLD_SIZE] = "SLURM_STEP_NUM_TASKS",
      [SC_SETTINGS_LOCAL_RANK] = "SLURM_LOCALID"}},
};

static const struct family *find_family(void) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (environment(families[i].variables[SC_SETTINGS_RANK]) &&
            environment(families[i].variables[SC_SETTINGS_WORLD_SIZE]))
            return &families[i];
    }
    return NULL;
}

/* ---- Values ---- */

/* Decimal digits with at most a minus sign before them; nothing around, nothing that overflows. */
static bool parse_integer(const char *text, int64_t *value) {
    const char *digits = text[0] == '-' ? text + 1 : text;
    char *end = NULL;

    if (digits[0] < '0' || digits[0] > '9') return false;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    *value = parsed;
    return errno == 0 && *end == '\0';
}

static bool word_is_good(const char *text) {
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == '\0';
}

static bool number_is_good(const struct sc_settings_entry *entry, int64_t value) {
    switch (entry->kind) {
    case SC_SETTINGS_TIMEOUT:
        return value == SPARK_COMM_FOREVER || (value > 0 && value <= INT32_MAX);
    case SC_SETTINGS_POWER:
        return value >= entry->minimum && value <= entry->maximum && (value & (value - 1)) == 0;
    default: return value >= entry->minimum && value <= entry->maximum;
    }
}

static bool store_number(const struct sc_settings_entry *entry, struct sc_settings *settings,
                         int64_t value) {
    if (!number_is_good(entry, value)) return false;
    *(int32_t *)((char *)settings + entry->offset) = (int32_t)value;
    return true;
}

static bool store_text(const struct sc_settings_entry *entry, struct sc_settings *settings,
                       const char *text) {
    size_t length = strnlen(text, (size_t)entry->maximum + 1);

    if (length > (size_t)entry->maximum || (entry->kind == SC_SETTINGS_WORD && !word_is_good(text)))
        return false;
    memcpy((char *)settings + entry->offset, text, length + 1);
    return true;
}

static bool store_choice(const struct sc_settings_entry *entry, struct sc_settings *settings,
                         const char *text) {
    for (int i = 0; entry->choices[i] != NULL; i++) {
        if (strcmp(entry->choices[i], text) == 0)
            return store_number(entry, settings, entry->minimum + i);
    }
    return false;
}

/* A value given as text, from the environment or the default of the table. */
static bool store_parsed(const struct sc_settings_entry *entry, struct sc_settings *settings,
                         const char *text) {
    int64_t value;

    switch (entry->kind) {
    case SC_SETTINGS_TEXT:
    case SC_SETTINGS_SECRET:
    case SC_SETTINGS_WORD: return store_text(entry, settings, text);
    case SC_SETTINGS_CHOICE: return store_choice(entry, settings, text);
    case SC_SETTINGS_UNSIGNED: return false;
    default: return parse_integer(text, &value) && store_number(entry, settings, value);
    }
}

static void store_default(const struct sc_settings_entry *entry, struct sc_settings *settings) {
    if (entry->kind == SC_SETTINGS_UNSIGNED)
        *(uint64_t *)((char *)settings + entry->offset) = 0;
    else if (entry->kind == SC_SETTINGS_INTEGER && entry->preset[0] == '\0')
        *(int32_t *)((char *)settings + entry->offset) = entry->unset;
    else
        store_parsed(entry, settings, entry->preset);
}

/* ---- One entry ---- */

static void refuse(const struct sc_settings_entry *entry, struct sc_settings_found *found,
                   const char *value) {
    if (entry->kind == SC_SETTINGS_SECRET)
        snprintf(found->problem, sizeof found->problem, "must be %s", entry->range);
    else
        snprintf(found->problem, sizeof found->problem, "'%.80s' is refused: must be %s", value,
                 entry->range);
}

/* True when the option is set; its value is then stored, or refused. */
static bool use_option(const struct sc_settings_entry *entry, const spark_comm_options *options,
                       struct sc_settings *settings, struct sc_settings_found *found) {
    char shown[24] = "";
    const char *text = shown;
    bool good;

    if (entry->option_offset == SC_SETTINGS_NO_OPTION) return false;
    const void *field = (const char *)options + entry->option_offset;
    if (entry->kind == SC_SETTINGS_UNSIGNED) {
        uint64_t value;
        memcpy(&value, field, sizeof value);
        if (value == 0) return false;
        memcpy((char *)settings + entry->offset, &value, sizeof value);
        good = true;
    } else if (entry->kind == SC_SETTINGS_TEXT || entry->kind == SC_SETTINGS_SECRET ||
               entry->kind == SC_SETTINGS_WORD) {
        memcpy(&text, field, sizeof text);
        if (text == NULL) return false;
        /* Unlike an empty variable: a secret that was not found must not become none. */
        good = text[0] != '\0' && store_text(entry, settings, text);
    } else {
        int32_t value;
        memcpy(&value, field, sizeof value);
        if (value == entry->unset) return false;
        snprintf(shown, sizeof shown, "%d", (int)value);
        good = store_number(entry, settings, value);
    }
    snprintf(found->source, sizeof found->source, "option");
    if (!good && entry->kind == SC_SETTINGS_CHOICE)
        snprintf(found->problem, sizeof found->problem, "'%s' is refused: must be %d to %d (%s)",
                 text, (int)entry->minimum, (int)entry->maximum, entry->range);
    else if (!good)
        refuse(entry, found, text);
    return true;
}

/* True when `variable` is set; its value is then stored, or refused. */
static bool use_variable(const struct sc_settings_entry *entry, const char *variable,
                         struct sc_settings *settings, struct sc_settings_found *found) {
    const char *text = environment(variable);

    /* 0 is the default for a time, as in the options. */
    if (text == NULL || (entry->kind == SC_SETTINGS_TIMEOUT && strcmp(text, "0") == 0))
        return false;
    snprintf(found->source, sizeof found->source, "%s", variable);
    if (!store_parsed(entry, settings, text)) refuse(entry, found, text);
    return true;
}

/* torchrun's agent itself listens on MASTER_PORT when it says so; the next port is ours then. */
static void step_past_agent(const struct sc_settings_entry *entry, struct sc_settings *settings,
                            struct sc_settings_found *found) {
    const char *agent = environment("TORCHELASTIC_USE_AGENT_STORE");

    if (agent == NULL || strcmp(agent, "True") != 0 || found->problem[0] != '\0') return;
    snprintf(found->source, sizeof found->source, "MASTER_PORT + 1 (TORCHELASTIC_USE_AGENT_STORE)");
    if (!store_number(entry, settings, (int64_t)settings->master_port + 1))
        refuse(entry, found, "65536");
}

static void use_family(const struct sc_settings_entry *entry, const struct family *family,
                       struct sc_settings *settings, struct sc_settings_found *found) {
    if (family == NULL || !use_variable(entry, family->variables[entry->role], settings, found))
        return;
    if (entry->role == SC_SETTINGS_PORT) step_past_agent(entry, settings, found);
}

static void examine_entry(const struct sc_settings_entry *entry, const spark_comm_options *options,
                          const struct family *family, struct sc_settings *settings,
                          struct sc_settings_found *found) {
    store_default(entry, settings);
    snprintf(found->source, sizeof found->source, "default");
    if (use_option(entry, options, settings, found) ||
        use_variable(entry, entry->variable, settings, found))
        return;
    /* LOCAL_RANK and its like number the device only once device memory is wanted; see
     * examine_device. */
    if (entry->role != SC_SETTINGS_OWN && entry->role != SC_SETTINGS_LOCAL_RANK)
        use_family(entry, family, settings, found);
}

/* ---- What concerns several entries ---- */

static size_t index_of(size_t offset) {
    for (size_t i = 0; i < sc_settings_table_count; i++) {
        if (sc_settings_table[i].offset == offset) return i;
    }
    return 0;
}
#define INDEX_OF(field) index_of(offsetof(struct sc_settings, field))

static bool is_default(const struct sc_settings_found *found) {
    return strcmp(found->source, "default") == 0;
}

/* A device that is named, or a backend that has no other, asks for device memory; device memory takes
 * its number from the launcher. */
static void examine_device(const struct family *family, struct sc_settings *settings,
                           struct sc_settings_found *found) {
    struct sc_settings_found *memory = &found[INDEX_OF(memory)];
    struct sc_settings_found *device = &found[INDEX_OF(device)];

    bool is_nccl = strcmp(settings->backend, "nccl") == 0;

    if (is_default(memory) && (is_nccl || !is_default(device))) {
        settings->memory = SPARK_COMM_MEMORY_DEVICE;
        *memory = is_nccl ? found[INDEX_OF(backend)] : *device;
        memory->problem[0] = '\0';
    }
    if (settings->memory == SPARK_COMM_MEMORY_DEVICE && is_default(device))
        use_family(&sc_settings_table[INDEX_OF(device)], family, settings, device);
}

static void examine_rank(const struct sc_settings *settings, struct sc_settings_found *found) {
    struct sc_settings_found *rank = &found[INDEX_OF(rank)];
    const struct sc_settings_found *size = &found[INDEX_OF(world_size)];

    if (rank->problem[0] != '\0' || size->problem[0] != '\0') return;
    if (is_default(rank) != is_default(size))
        snprintf(rank->problem, sizeof rank->problem,
                 "rank and world_size must be set together: %s is set (%s), %s is not",
                 is_default(rank) ? "world_size" : "rank",
                 is_default(rank) ? size->source : rank->source,
                 is_default(rank) ? "rank" : "world_size");
    else if (settings->rank >= settings->world_size)
        snprintf(rank->problem, sizeof rank->problem,
                 "'%d' is refused: must be 0 to world_size - 1, and world_size is %d (%s)",
                 (int)settings->rank, (int)settings->world_size, size->source);
}

/* "%r" in log_file becomes the rank. */
static void examine_log_file(struct sc_settings *settings, struct sc_settings_found *found) {
    char expanded[sizeof settings->log_file];
    char rank[16];
    size_t length = 0;
    size_t digits = (size_t)snprintf(rank, sizeof rank, "%d", (int)settings->rank);

    for (const char *c = settings->log_file; *c != '\0'; c++) {
        bool is_rank = c[0] == '%' && c[1] == 'r';
        size_t more = is_rank ? digits : 1;
        if (length + more >= sizeof expanded) {
            snprintf(found->problem, sizeof found->problem,
                     "is longer than 511 characters with the rank in it");
            return;
        }
        memcpy(expanded + length, is_rank ? rank : c, more);
        length += more;
        c += is_rank;
    }
    expanded[length] = '\0';
    memcpy(settings->log_file, expanded, length + 1);
}

void sc_settings_examine(const spark_comm_options *given, struct sc_settings *settings,
                         struct sc_settings_found *found) {
    const struct family *family = find_family();
    spark_comm_options options;
    char problem[sizeof found->problem] = "";

    memset(settings, 0, sizeof *settings);
    memset(found, 0, sc_settings_table_count * sizeof *found);
    bool taken = take_options(given, &options, problem, sizeof problem);
    settings->log = options.log;
    settings->log_user = options.log_user;
    for (size_t i = 0; i < sc_settings_table_count; i++)
        examine_entry(&sc_settings_table[i], &options, family, settings, &found[i]);
    examine_device(family, settings, found);
    examine_rank(settings, found);
    examine_log_file(settings, &found[INDEX_OF(log_file)]);
    if (!taken) memcpy(found[0].problem, problem, sizeof problem);
}

void sc_settings_of_environment(struct sc_settings *settings) {
    struct sc_settings_found found[SC_SETTINGS_MAX_ENTRIES];

    sc_settings_examine(NULL, settings, found);
}

size_t sc_settings_python_folders(const char *folders[], size_t capacity, char *home,
                                  size_t home_size) {
    const char *given[] = {environment("VIRTUAL_ENV"), environment("CONDA_PREFIX"), NULL};
    const char *user = environment("HOME");
    size_t count = 0;

    if (user != NULL && snprintf(home, home_size, "%s/.local", user) < (int)home_size)
        given[2] = home;
    for (size_t i = 0; i < sizeof given / sizeof given[0] && count < capacity; i++)
        if (given[i] != NULL) folders[count++] = given[i];
    return count;
}

spark_comm_status sc_settings_resolve(const spark_comm_options *options,
                                      struct sc_settings *settings, struct sc_error *error) {
    struct sc_settings_found found[SC_SETTINGS_MAX_ENTRIES];
    spark_comm_options taken;

    /* No setting's fault, although the rows for people show it at the first of them. */
    if (!take_options(options, &taken, found[0].problem, sizeof found[0].problem))
        return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0, "%s", found[0].problem);
    sc_settings_examine(options, settings, found);
    for (size_t i = 0; i < sc_settings_table_count; i++) {
        if (found[i].problem[0] != '\0')
            return sc_error_set(error, SPARK_COMM_INVALID_ARGUMENT, -1, 0, "%s (from %s): %s",
                                sc_settings_table[i].name, found[i].source, found[i].problem);
    }
    return SPARK_COMM_OK;
}
