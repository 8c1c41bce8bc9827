/*
 * Formats of everything that travels between ranks over sockets, and the one parser of bytes from
 * outside. All numbers are little-endian, all sizes fixed, every field is checked here before
 * anybody uses it. A record is described once; the same description writes and reads it.
 *
 * On a fresh connection the caller speaks first:
 *   caller -> listener  preamble   magic, protocol version, fresh nonce
 *   listener -> caller  challenge  its verdict so far, its nonce, a proof that it knows the token
 *   caller -> listener  hello      who it is, under a tag that proves that it knows the token
 *   listener -> caller  record ANSWER, and from then on records in both directions
 * Preamble and challenge never change, so that different versions can tell each other apart.
 *
 * A record is a header of SC_WIRE_HEADER_BYTES and up to SC_WIRE_MAX_PAYLOAD bytes. Every record
 * carries its epoch; one of another epoch is dropped by the reader.
 */
#ifndef SC_WORLD_WIRE_H
#define SC_WORLD_WIRE_H

#include "base/error.h"
#include "world/world.h"

#define SC_WIRE_PROTOCOL 2u

#define SC_WIRE_NONCE_BYTES 32u
#define SC_WIRE_TAG_BYTES 32u
#define SC_WIRE_MAGIC_BYTES 8u
#define SC_WIRE_PREAMBLE_BYTES 64u
#define SC_WIRE_CHALLENGE_BYTES 384u
#define SC_WIRE_HELLO_BYTES 1024u
#define SC_WIRE_HEADER_BYTES 48u
#define SC_WIRE_MAX_PAYLOAD 65536u
#define SC_WIRE_FAULT_BYTES 544u
#define SC_WIRE_MEMBER_BYTES 112u
#define SC_WIRE_WELCOME_BYTES 128u
#define SC_WIRE_LINES_BYTES 152u
#define SC_WIRE_COOKIE_BYTES 32u
#define SC_WIRE_TICKET_BYTES 64u
#define SC_WIRE_KIN_BYTES (SC_WIRE_HEADER_BYTES + SC_WIRE_COOKIE_BYTES) /* with its header */

/* What a listener makes of a caller. */
enum sc_wire_verdict {
    SC_WIRE_ACCEPTED = 0, /* go on */
    SC_WIRE_RETRY = 1, /* not now: keep dialling */
    SC_WIRE_REFUSED = 2 /* for good */
};

struct sc_wire_preamble {
    uint32_t version;
    uint32_t flags; /* zero */
    uint8_t nonce[SC_WIRE_NONCE_BYTES];
};

struct sc_wire_challenge {
    uint32_t version;
    uint32_t verdict; /* enum sc_wire_verdict */
    uint8_t nonce[SC_WIRE_NONCE_BYTES];
    uint8_t proof[SC_WIRE_TAG_BYTES]; /* over both nonces and all of the challenge before it */
    char text[256]; /* why, unless accepted */
};

/* An epoch: the number is for people and record headers; the stamp, 64 random bits from the hub, new
 * with every proposal, tells two apart that came to the same number. */
struct sc_wire_epoch {
    uint32_t number; /* 0: none */
    uint64_t stamp;
};

struct sc_wire_hello {
    uint32_t version;
    struct sc_wire_epoch lived; /* the last one entered; 0: fresh, it opens */
    struct sc_wire_epoch seen; /* the last one welcomed to, entered or not */
    uint64_t instance; /* 64 random bits: which opening of which process */
    int32_t rank;
    int32_t world_size;
    int32_t pid;
    int32_t memory; /* wish */
    uint32_t uid;
    uint32_t nccl_version; /* 0: none loaded */
    uint64_t job; /* digest of the token */
    uint64_t settings; /* sc_settings_digest */
    uint64_t network_namespace;
    char boot_id[40];
    char library[32]; /* spark_comm version */
    char backend[64]; /* wish */
    char listener[64];
    char gpu[64];
    char nccl_file[256];
    uint8_t tag[SC_WIRE_TAG_BYTES]; /* over both nonces and all of the hello before it */
};

/* Kinds of records, and who sends them. */
enum sc_wire_kind {
    SC_WIRE_ANSWER = 1, /* listener: fault payload; number is the verdict */
    SC_WIRE_MEMBERS = 2, /* hub: members from rank `offset` on */
    SC_WIRE_WELCOME = 3, /* hub: all are in, this epoch is proposed */
    SC_WIRE_GIVE_UP = 4, /* worker, before WELCOME: its time (number, in ms) is over */
    SC_WIRE_FAULT = 5, /* worker: its suspicion */
    SC_WIRE_VERDICT = 6, /* hub: the cause for all */
    SC_WIRE_HEARTBEAT = 7, /* both: status lines of the sender */
    SC_WIRE_GATHER = 8, /* worker: its part */
    SC_WIRE_GATHERED = 9, /* hub: a piece of the result, from byte `offset` on */
    SC_WIRE_COMMAND = 10, /* root: relayed by the hub with `source` kept */
    SC_WIRE_CREDIT = 11, /* reader: it has taken `number` bytes of the commands of rank `offset` */
    SC_WIRE_GOODBYE = 12, /* leaver: lines payload; relayed by the hub with `source` kept */
    SC_WIRE_FAREWELL = 13, /* answer to a goodbye: all that came before it has been read */
    SC_WIRE_READY = 14, /* worker: set up, or why not; number is the stamp */
    SC_WIRE_COMMIT = 15, /* hub: all are ready, the epoch begins; number is the stamp */
    SC_WIRE_FAIL = 16, /* hub: the attempt has failed for this reason */
    SC_WIRE_SUSPECT = 17, /* head: a fault that it looks into; asks for lines */
    SC_WIRE_KIN = 18, /* first record to a successor of the hub: cookie of the epoch */
    SC_WIRE_KIND_END = 19
};

struct sc_wire_header {
    uint16_t kind; /* enum sc_wire_kind */
    uint16_t flavour; /* commands: SC_WORLD_RECORD_*; gathers: whose; heartbeats: SC_LINES_*;
                         otherwise 0 */
    uint32_t epoch;
    int32_t source; /* rank that made the record */
    uint32_t bytes; /* of the payload */
    uint32_t digest;
    uint64_t number;
    uint64_t offset;
    uint64_t descriptor; /* of the operation the source is in, sc_world_describe */
};

struct sc_wire_welcome {
    uint64_t stamp; /* of the epoch whose number is in the header */
    int32_t limit_ms; /* for the set-up, kept by the hub; SPARK_COMM_FOREVER: none */
    uint64_t segment_bytes; /* of the world's shared segment; 0: there is none */
    uint8_t cookie[SC_WIRE_COOKIE_BYTES]; /* to be shown at the Unix socket */
    char unix_name[64]; /* empty: no member shares this host by its id */
};

/* What a rank shows at the Unix socket, and what comes back with a descriptor. */
struct sc_wire_ticket {
    int32_t rank;
    uint32_t number; /* of the region, counted up by each one shared */
    uint64_t bytes;
    uint8_t cookie[SC_WIRE_COOKIE_BYTES];
};

#define SC_WIRE_NO_AGE UINT64_MAX
/* Both lanes of one rank, in heartbeats and goodbyes. Ages are nanoseconds before the record was
 * made. */
struct sc_wire_lines {
    uint64_t submitted[SPARK_COMM_LANE_COUNT];
    uint64_t completed[SPARK_COMM_LANE_COUNT];
    uint64_t descriptor[SPARK_COMM_LANE_COUNT];
    uint64_t bytes[SPARK_COMM_LANE_COUNT];
    uint64_t last_descriptor[SPARK_COMM_LANE_COUNT]; /* of collective `completed` */
    uint64_t last_bytes[SPARK_COMM_LANE_COUNT];
    uint64_t peers[SPARK_COMM_LANE_COUNT]; /* whose messages it waits for */
    uint64_t age[SPARK_COMM_LANE_COUNT]; /* of the call that runs; SC_WIRE_NO_AGE: none does */
    uint64_t looked[SPARK_COMM_LANE_COUNT]; /* of its last vain look; SC_WIRE_NO_AGE: none yet */
    uint64_t gathers; /* control-plane all-gathers completed */
};

/* Encoders fill exactly the record's bytes. Decoders return false when anything is out of range,
 * and leave nothing half-read in use: a caller drops the record. */
void sc_wire_put_preamble(uint8_t *out, const struct sc_wire_preamble *preamble);
bool sc_wire_get_preamble(const uint8_t *in, struct sc_wire_preamble *preamble);
void sc_wire_put_challenge(uint8_t *out, const struct sc_wire_challenge *challenge);
bool sc_wire_get_challenge(const uint8_t *in, struct sc_wire_challenge *challenge);
void sc_wire_put_hello(uint8_t *out, const struct sc_wire_hello *hello);
bool sc_wire_get_hello(const uint8_t *in, struct sc_wire_hello *hello);
void sc_wire_put_header(uint8_t *out, const struct sc_wire_header *header);
/* Also checks that a payload of this kind may have this size, and that ranks are below `size`. */
bool sc_wire_get_header(const uint8_t *in, int size, struct sc_wire_header *header);
void sc_wire_put_fault(uint8_t *out, const struct sc_error *error);
bool sc_wire_get_fault(const uint8_t *in, size_t bytes, int size, struct sc_error *error);
void sc_wire_put_member(uint8_t *out, const struct sc_world_member *member);
/* `rank` is where the member must belong. */
bool sc_wire_get_member(const uint8_t *in, int rank, struct sc_world_member *member);
void sc_wire_put_welcome(uint8_t *out, const struct sc_wire_welcome *welcome);
bool sc_wire_get_welcome(const uint8_t *in, size_t bytes, struct sc_wire_welcome *welcome);
void sc_wire_put_lines(uint8_t *out, const struct sc_wire_lines *lines);
bool sc_wire_get_lines(const uint8_t *in, size_t bytes, struct sc_wire_lines *lines);
void sc_wire_put_ticket(uint8_t *out, const struct sc_wire_ticket *ticket);
bool sc_wire_get_ticket(const uint8_t *in, int size, struct sc_wire_ticket *ticket);

/* Do the first bytes, four at least, look like a record? */
bool sc_wire_is_record(const uint8_t *in, size_t bytes);
/* Do the first bytes (at most SC_WIRE_MAGIC_BYTES are looked at) look like a preamble? */
bool sc_wire_is_preamble(const uint8_t *in, size_t bytes);

/* Where in a challenge and in a hello the proof and the tag stand; what precedes them is covered. */
#define SC_WIRE_CHALLENGE_COVERED (SC_WIRE_CHALLENGE_BYTES - SC_WIRE_TAG_BYTES)
#define SC_WIRE_HELLO_COVERED (SC_WIRE_HELLO_BYTES - SC_WIRE_TAG_BYTES)

#endif
