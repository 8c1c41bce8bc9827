/*
 * Encoding and decoding by one description per record: a walker goes over the fields in wire order
 * and either writes or reads them. A field that cannot be true marks the walker as bad, and the
 * decoder refuses the record. Pure functions, no state, nothing allocated; any thread.
 */
#include "world/wire.h"

#include <string.h>

static const uint64_t PREAMBLE_MAGIC = UINT64_C(0x314d4d4f434b5053); /* "SPKCOMM1" */
static const uint64_t CHALLENGE_MAGIC = UINT64_C(0x324d4d4f434b5053); /* "SPKCOMM2" */
static const uint64_t HELLO_MAGIC = UINT64_C(0x334d4d4f434b5053); /* "SPKCOMM3" */
static const uint64_t TICKET_MAGIC = UINT64_C(0x344d4d4f434b5053); /* "SPKCOMM4" */
static const uint32_t RECORD_MAGIC = 0x52435053u; /* "SPCR" */

struct walker {
    uint8_t *out; /* writing; NULL: reading */
    const uint8_t *in; /* reading */
    size_t at;
    bool bad;
};

static struct walker writer(uint8_t *out, size_t bytes) {
    memset(out, 0, bytes);
    return (struct walker){.out = out};
}

static struct walker reader(const uint8_t *in) {
    return (struct walker){.in = in};
}

static uint64_t walk_number(struct walker *walker, uint64_t value, size_t bytes) {
    uint64_t result = 0;
    if (walker->out != NULL) {
        for (size_t i = 0; i < bytes; i++)
            walker->out[walker->at + i] = (uint8_t)(value >> (8 * i));
        result = value;
    } else {
        for (size_t i = 0; i < bytes; i++)
            result |= (uint64_t)walker->in[walker->at + i] << (8 * i);
    }
    walker->at += bytes;
    return result;
}

static void walk_u16(struct walker *walker, uint16_t *value) {
    *value = (uint16_t)walk_number(walker, *value, sizeof *value);
}

static void walk_u32(struct walker *walker, uint32_t *value) {
    *value = (uint32_t)walk_number(walker, *value, sizeof *value);
}

static void walk_i32(struct walker *walker, int32_t *value) {
    *value = (int32_t)(uint32_t)walk_number(walker, (uint32_t)*value, sizeof *value);
}

static void walk_u64(struct walker *walker, uint64_t *value) {
    *value = walk_number(walker, *value, sizeof *value);
}

static void walk_bytes(struct walker *walker, uint8_t *bytes, size_t count) {
    if (walker->out != NULL)
        memcpy(walker->out + walker->at, bytes, count);
    else
        memcpy(bytes, walker->in + walker->at, count);
    walker->at += count;
}

/* Text fills its field up with zeros; one without an end is refused. Control characters become '?':
 * the text goes into logs and errors. */
static void walk_text(struct walker *walker, char *text, size_t size) {
    if (walker->out != NULL) {
        memcpy(walker->out + walker->at, text, strnlen(text, size - 1));
    } else {
        memcpy(text, walker->in + walker->at, size);
        walker->bad |= memchr(text, '\0', size) == NULL;
        text[size - 1] = '\0';
        for (char *c = text; *c != '\0'; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    walker->at += size;
}

static void walk_magic(struct walker *walker, uint64_t magic, size_t bytes) {
    walker->bad |= walk_number(walker, magic, bytes) != magic;
}

/* ---- Before a connection is trusted ---- */

static void walk_preamble(struct walker *walker, struct sc_wire_preamble *preamble) {
    walk_magic(walker, PREAMBLE_MAGIC, 8);
    walk_u32(walker, &preamble->version);
    walk_u32(walker, &preamble->flags);
    walk_bytes(walker, preamble->nonce, sizeof preamble->nonce);
}

void sc_wire_put_preamble(uint8_t *out, const struct sc_wire_preamble *preamble) {
    struct sc_wire_preamble copy = *preamble;
    struct walker walker = writer(out, SC_WIRE_PREAMBLE_BYTES);
    walk_preamble(&walker, &copy);
}

bool sc_wire_get_preamble(const uint8_t *in, struct sc_wire_preamble *preamble) {
    struct walker walker = reader(in);
    walk_preamble(&walker, preamble);
    return !walker.bad;
}

bool sc_wire_is_preamble(const uint8_t *in, size_t bytes) {
    uint8_t magic[SC_WIRE_MAGIC_BYTES];
    struct walker walker = writer(magic, sizeof magic);
    walk_magic(&walker, PREAMBLE_MAGIC, sizeof magic);
    return memcmp(in, magic, bytes < sizeof magic ? bytes : sizeof magic) == 0;
}

bool sc_wire_is_record(const uint8_t *in, size_t bytes) {
    struct walker walker = reader(in);
    return bytes >= 4 && walk_number(&walker, 0, 4) == RECORD_MAGIC;
}

static void walk_challenge(struct walker *walker, struct sc_wire_challenge *challenge) {
    walk_magic(walker, CHALLENGE_MAGIC, 8);
    walk_u32(walker, &challenge->version);
    walk_u32(walker, &challenge->verdict);
    walk_bytes(walker, challenge->nonce, sizeof challenge->nonce);
    walk_text(walker, challenge->text, sizeof challenge->text);
    walker->at = SC_WIRE_CHALLENGE_COVERED;
    walk_bytes(walker, challenge->proof, sizeof challenge->proof);
    walker->bad |= challenge->verdict > SC_WIRE_REFUSED;
}

void sc_wire_put_challenge(uint8_t *out, const struct sc_wire_challenge *challenge) {
    struct sc_wire_challenge copy = *challenge;
    struct walker walker = writer(out, SC_WIRE_CHALLENGE_BYTES);
    walk_challenge(&walker, &copy);
}

bool sc_wire_get_challenge(const uint8_t *in, struct sc_wire_challenge *challenge) {
    struct walker walker = reader(in);
    walk_challenge(&walker, challenge);
    return !walker.bad;
}

static void walk_epoch(struct walker *walker, struct sc_wire_epoch *epoch) {
    walk_u32(walker, &epoch->number);
    walk_u64(walker, &epoch->stamp);
    walker->bad |= (epoch->number == 0) != (epoch->stamp == 0);
}

static void walk_hello(struct walker *walker, struct sc_wire_hello *hello) {
    walk_magic(walker, HELLO_MAGIC, 8);
    walk_u32(walker, &hello->version);
    walk_i32(walker, &hello->rank);
    walk_i32(walker, &hello->world_size);
    walk_i32(walker, &hello->pid);
    walk_i32(walker, &hello->memory);
    walk_u32(walker, &hello->uid);
    walk_u32(walker, &hello->nccl_version);
    walk_u64(walker, &hello->job);
    walk_u64(walker, &hello->settings);
    walk_u64(walker, &hello->network_namespace);
    walk_epoch(walker, &hello->lived);
    walk_epoch(walker, &hello->seen);
    walk_u64(walker, &hello->instance);
    walk_text(walker, hello->boot_id, sizeof hello->boot_id);
    walk_text(walker, hello->library, sizeof hello->library);
    walk_text(walker, hello->backend, sizeof hello->backend);
    walk_text(walker, hello->listener, sizeof hello->listener);
    walk_text(walker, hello->gpu, sizeof hello->gpu);
    walk_text(walker, hello->nccl_file, sizeof hello->nccl_file);
    walker->at = SC_WIRE_HELLO_COVERED; /* in between: room, zero for now */
    walk_bytes(walker, hello->tag, sizeof hello->tag);
    /* Whoever has lived was welcomed, to that epoch or a later one. */
    walker->bad |= hello->pid < 0 || hello->seen.number < hello->lived.number;
}

void sc_wire_put_hello(uint8_t *out, const struct sc_wire_hello *hello) {
    struct sc_wire_hello copy = *hello;
    struct walker walker = writer(out, SC_WIRE_HELLO_BYTES);
    walk_hello(&walker, &copy);
}

bool sc_wire_get_hello(const uint8_t *in, struct sc_wire_hello *hello) {
    struct walker walker = reader(in);
    walk_hello(&walker, hello);
    return !walker.bad;
}

static void walk_ticket(struct walker *walker, struct sc_wire_ticket *ticket) {
    walk_magic(walker, TICKET_MAGIC, 8);
    walk_i32(walker, &ticket->rank);
    walk_u32(walker, &ticket->number);
    walk_u64(walker, &ticket->bytes);
    walk_bytes(walker, ticket->cookie, sizeof ticket->cookie);
}

void sc_wire_put_ticket(uint8_t *out, const struct sc_wire_ticket *ticket) {
    struct sc_wire_ticket copy = *ticket;
    struct walker walker = writer(out, SC_WIRE_TICKET_BYTES);
    walk_ticket(&walker, &copy);
}

bool sc_wire_get_ticket(const uint8_t *in, int size, struct sc_wire_ticket *ticket) {
    struct walker walker = reader(in);
    walk_ticket(&walker, ticket);
    return !walker.bad && ticket->rank >= 0 && ticket->rank < size;
}

/* ---- Records ---- */

/* What a payload of each kind may measure: from least to most, in steps. */
static const struct {
    uint32_t least, most, step;
} payloads[SC_WIRE_KIND_END] = {
    [SC_WIRE_ANSWER] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_MEMBERS] = {SC_WIRE_MEMBER_BYTES, SC_WIRE_MAX_PAYLOAD, SC_WIRE_MEMBER_BYTES},
    [SC_WIRE_WELCOME] = {SC_WIRE_WELCOME_BYTES, SC_WIRE_WELCOME_BYTES, 1},
    [SC_WIRE_GIVE_UP] = {0, 0, 1},
    [SC_WIRE_FAULT] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_VERDICT] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_HEARTBEAT] = {SC_WIRE_LINES_BYTES, SC_WIRE_LINES_BYTES, 1},
    [SC_WIRE_GATHER] = {0, SC_WIRE_MAX_PAYLOAD, 1},
    [SC_WIRE_GATHERED] = {0, SC_WIRE_MAX_PAYLOAD, 1},
    [SC_WIRE_COMMAND] = {0, SC_WIRE_MAX_PAYLOAD, 1},
    [SC_WIRE_CREDIT] = {0, 0, 1},
    [SC_WIRE_GOODBYE] = {SC_WIRE_LINES_BYTES, SC_WIRE_LINES_BYTES, 1},
    [SC_WIRE_FAREWELL] = {0, 0, 1},
    [SC_WIRE_READY] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_COMMIT] = {0, 0, 1},
    [SC_WIRE_FAIL] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_SUSPECT] = {SC_WIRE_FAULT_BYTES, SC_WIRE_FAULT_BYTES, 1},
    [SC_WIRE_KIN] = {SC_WIRE_COOKIE_BYTES, SC_WIRE_COOKIE_BYTES, 1},
};

static void walk_header(struct walker *walker, struct sc_wire_header *header) {
    walk_magic(walker, RECORD_MAGIC, 4);
    walk_u16(walker, &header->kind);
    walk_u16(walker, &header->flavour);
    walk_u32(walker, &header->epoch);
    walk_i32(walker, &header->source);
    walk_u32(walker, &header->bytes);
    walk_u32(walker, &header->digest);
    walk_u64(walker, &header->number);
    walk_u64(walker, &header->offset);
    walk_u64(walker, &header->descriptor);
}

void sc_wire_put_header(uint8_t *out, const struct sc_wire_header *header) {
    struct sc_wire_header copy = *header;
    struct walker walker = writer(out, SC_WIRE_HEADER_BYTES);
    walk_header(&walker, &copy);
}

bool sc_wire_get_header(const uint8_t *in, int size, struct sc_wire_header *header) {
    struct walker walker = reader(in);
    walk_header(&walker, header);
    if (walker.bad || header->kind == 0 || header->kind >= SC_WIRE_KIND_END) return false;
    if (header->source < 0 || header->source >= size) return false;
    uint32_t least = payloads[header->kind].least;
    if (header->bytes < least || header->bytes > payloads[header->kind].most) return false;
    if ((header->bytes - least) % payloads[header->kind].step != 0) return false;
    if (header->kind == SC_WIRE_MEMBERS || header->kind == SC_WIRE_CREDIT)
        return header->offset < (uint64_t)size;
    return true;
}

static bool is_status(int32_t status) {
    switch (status) {
#define STATUS_CASE(name, value, text) case value:
        SPARK_COMM_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
        return true;
    default: return false;
    }
}

static void walk_fault(struct walker *walker, struct sc_error *error) {
    uint64_t native = (uint64_t)error->native_code;
    walk_i32(walker, &error->status);
    walk_i32(walker, &error->operation);
    walk_u64(walker, &error->sequence);
    walk_i32(walker, &error->peer);
    walk_u32(walker, &error->epoch);
    walk_u64(walker, &native);
    walk_text(walker, error->message, sizeof error->message);
    error->native_code = (int64_t)native;
}

void sc_wire_put_fault(uint8_t *out, const struct sc_error *error) {
    struct sc_error copy = *error;
    struct walker walker = writer(out, SC_WIRE_FAULT_BYTES);
    walk_fault(&walker, &copy);
}

bool sc_wire_get_fault(const uint8_t *in, size_t bytes, int size, struct sc_error *error) {
    struct walker walker = reader(in);
    if (bytes != SC_WIRE_FAULT_BYTES) return false;
    walk_fault(&walker, error);
    if (error->operation < 0 || error->operation >= SPARK_COMM_OP_COUNT) return false;
    if (error->peer < -1 || error->peer >= size) return false;
    return !walker.bad && is_status(error->status);
}

static void walk_member(struct walker *walker, struct sc_world_member *member) {
    walk_i32(walker, &member->rank);
    walk_i32(walker, &member->pid);
    walk_text(walker, member->listener, sizeof member->listener);
    walk_text(walker, member->version, sizeof member->version);
}

void sc_wire_put_member(uint8_t *out, const struct sc_world_member *member) {
    struct sc_world_member copy = *member;
    struct walker walker = writer(out, SC_WIRE_MEMBER_BYTES);
    walk_member(&walker, &copy);
}

bool sc_wire_get_member(const uint8_t *in, int rank, struct sc_world_member *member) {
    struct walker walker = reader(in);
    memset(member, 0, sizeof *member);
    walk_member(&walker, member);
    return !walker.bad && member->rank == rank && member->pid >= 0;
}

static void walk_welcome(struct walker *walker, struct sc_wire_welcome *welcome) {
    walk_u64(walker, &welcome->segment_bytes);
    walk_bytes(walker, welcome->cookie, sizeof welcome->cookie);
    walk_text(walker, welcome->unix_name, sizeof welcome->unix_name);
    walk_u64(walker, &welcome->stamp);
    walk_i32(walker, &welcome->limit_ms);
    walker->bad |= welcome->stamp == 0 || welcome->limit_ms < SPARK_COMM_FOREVER;
}

void sc_wire_put_welcome(uint8_t *out, const struct sc_wire_welcome *welcome) {
    struct sc_wire_welcome copy = *welcome;
    struct walker walker = writer(out, SC_WIRE_WELCOME_BYTES);
    walk_welcome(&walker, &copy);
}

bool sc_wire_get_welcome(const uint8_t *in, size_t bytes, struct sc_wire_welcome *welcome) {
    struct walker walker = reader(in);
    if (bytes != SC_WIRE_WELCOME_BYTES) return false;
    walk_welcome(&walker, welcome);
    return !walker.bad;
}

static void walk_lines(struct walker *walker, struct sc_wire_lines *lines) {
    for (int lane = 0; lane < SPARK_COMM_LANE_COUNT; lane++) {
        walk_u64(walker, &lines->submitted[lane]);
        walk_u64(walker, &lines->completed[lane]);
        walk_u64(walker, &lines->descriptor[lane]);
        walk_u64(walker, &lines->bytes[lane]);
        walk_u64(walker, &lines->last_descriptor[lane]);
        walk_u64(walker, &lines->last_bytes[lane]);
        walk_u64(walker, &lines->peers[lane]);
        walk_u64(walker, &lines->age[lane]);
        walk_u64(walker, &lines->looked[lane]);
    }
    walk_u64(walker, &lines->gathers);
}

void sc_wire_put_lines(uint8_t *out, const struct sc_wire_lines *lines) {
    struct sc_wire_lines copy = *lines;
    struct walker walker = writer(out, SC_WIRE_LINES_BYTES);
    walk_lines(&walker, &copy);
}

bool sc_wire_get_lines(const uint8_t *in, size_t bytes, struct sc_wire_lines *lines) {
    struct walker walker = reader(in);
    if (bytes != SC_WIRE_LINES_BYTES) return false;
    walk_lines(&walker, lines);
    return true;
}
