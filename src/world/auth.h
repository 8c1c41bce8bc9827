/*
 * Both ends of a connection prove to each other that they know the job's token, without showing it:
 * keyed BLAKE2b over a role word, both ends' fresh nonces and what is said. The role word keeps one
 * end's proof from being played back as the other's. What follows the handshake is not encrypted.
 */
#ifndef SC_WORLD_AUTH_H
#define SC_WORLD_AUTH_H

#include "world/wire.h"

struct sc_auth {
    uint8_t key[32]; /* made of the token; no token makes a key of its own */
    bool has_token;
};

spark_comm_status sc_auth_init(struct sc_auth *auth, const char *token, struct sc_error *error);
void sc_auth_wipe(struct sc_auth *auth);
void sc_auth_random(uint8_t *bytes, size_t count);
/* The listener's proof, over the first SC_WIRE_CHALLENGE_COVERED bytes of its challenge. */
void sc_auth_prove(const struct sc_auth *auth, const uint8_t *caller_nonce,
                   const uint8_t *listener_nonce, const uint8_t *challenge, uint8_t *proof);
/* The caller's tag, over the first SC_WIRE_HELLO_COVERED bytes of its hello. */
void sc_auth_tag(const struct sc_auth *auth, const uint8_t *caller_nonce,
                 const uint8_t *listener_nonce, const uint8_t *hello, uint8_t *tag);
/* In constant time. Proofs, tags and cookies alike: all have 32 bytes. */
bool sc_auth_equal(const uint8_t *a, const uint8_t *b);
/* Names the job without telling the token. */
uint64_t sc_auth_job(const struct sc_auth *auth);

#endif
