/*
 * Authentication with libsodium. The key is a hash of the token, so that tokens of any length do;
 * "no token" hashes to a key of its own, so that a token on one side only is a wrong token like any
 * other. Pure functions over the key; any thread.
 */
#include "world/auth.h"

#include <sodium.h>
#include <string.h>

_Static_assert(SC_WIRE_TAG_BYTES == crypto_generichash_BYTES, "tags are whole hashes");
_Static_assert(SC_WIRE_COOKIE_BYTES == SC_WIRE_TAG_BYTES, "sc_auth_equal serves both");

spark_comm_status sc_auth_init(struct sc_auth *auth, const char *token, struct sc_error *error) {
    crypto_generichash_state state;
    size_t length = strlen(token);
    const unsigned char prefix = length > 0;

    if (sodium_init() < 0)
        return sc_error_set(error, SPARK_COMM_SYSTEM, -1, 0, "libsodium cannot be initialised");
    auth->has_token = length > 0;
    crypto_generichash_init(&state, NULL, 0, sizeof auth->key);
    crypto_generichash_update(&state, &prefix, sizeof prefix);
    crypto_generichash_update(&state, (const unsigned char *)token, length);
    crypto_generichash_final(&state, auth->key, sizeof auth->key);
    sodium_memzero(&state, sizeof state);
    return SPARK_COMM_OK;
}

void sc_auth_wipe(struct sc_auth *auth) {
    sodium_memzero(auth->key, sizeof auth->key);
}

void sc_auth_random(uint8_t *bytes, size_t count) {
    randombytes_buf(bytes, count);
}

static void hash(const struct sc_auth *auth, const char *role, const uint8_t *caller_nonce,
                 const uint8_t *listener_nonce, const uint8_t *said, size_t bytes, uint8_t *out) {
    crypto_generichash_state state;

    crypto_generichash_init(&state, auth->key, sizeof auth->key, SC_WIRE_TAG_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)role, 8);
    crypto_generichash_update(&state, caller_nonce, SC_WIRE_NONCE_BYTES);
    crypto_generichash_update(&state, listener_nonce, SC_WIRE_NONCE_BYTES);
    crypto_generichash_update(&state, said, bytes);
    crypto_generichash_final(&state, out, SC_WIRE_TAG_BYTES);
    sodium_memzero(&state, sizeof state);
}

void sc_auth_prove(const struct sc_auth *auth, const uint8_t *caller_nonce,
                   const uint8_t *listener_nonce, const uint8_t *challenge, uint8_t *proof) {
    hash(auth, "listener", caller_nonce, listener_nonce, challenge, SC_WIRE_CHALLENGE_COVERED,
         proof);
}

void sc_auth_tag(const struct sc_auth *auth, const uint8_t *caller_nonce,
                 const uint8_t *listener_nonce, const uint8_t *hello, uint8_t *tag) {
    hash(auth, "caller  ", caller_nonce, listener_nonce, hello, SC_WIRE_HELLO_COVERED, tag);
}

bool sc_auth_equal(const uint8_t *a, const uint8_t *b) {
    return sodium_memcmp(a, b, SC_WIRE_TAG_BYTES) == 0;
}

uint64_t sc_auth_job(const struct sc_auth *auth) {
    uint8_t digest[crypto_generichash_BYTES];
    uint64_t job = 0;

    crypto_generichash(digest, sizeof digest, (const unsigned char *)"job", 3, auth->key,
                       sizeof auth->key);
    for (size_t i = 0; i < sizeof job; i++)
        job |= (uint64_t)digest[i] << (8 * i);
    return job;
}
