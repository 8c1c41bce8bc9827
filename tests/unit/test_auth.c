/* Proofs and tags: the same token agrees, any difference in token, role, nonces or content does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "world/auth.h"

static struct sc_auth with_token(const char *token) {
    struct sc_auth auth;
    struct sc_error error;
    assert_int_equal(sc_auth_init(&auth, token, &error), SPARK_COMM_OK);
    assert_int_equal(auth.has_token, token[0] != '\0');
    return auth;
}

struct handshake {
    uint8_t caller[SC_WIRE_NONCE_BYTES], listener[SC_WIRE_NONCE_BYTES];
    uint8_t challenge[SC_WIRE_CHALLENGE_BYTES], hello[SC_WIRE_HELLO_BYTES];
};

static struct handshake some_handshake(void) {
    struct handshake shake;
    sc_auth_random((uint8_t *)&shake, sizeof shake);
    return shake;
}

static bool proofs_agree(const struct sc_auth *a, const struct handshake *x,
                         const struct sc_auth *b, const struct handshake *y) {
    uint8_t one[SC_WIRE_TAG_BYTES], other[SC_WIRE_TAG_BYTES];
    sc_auth_prove(a, x->caller, x->listener, x->challenge, one);
    sc_auth_prove(b, y->caller, y->listener, y->challenge, other);
    return sc_auth_equal(one, other);
}

static bool tags_agree(const struct sc_auth *a, const struct handshake *x, const struct sc_auth *b,
                       const struct handshake *y) {
    uint8_t one[SC_WIRE_TAG_BYTES], other[SC_WIRE_TAG_BYTES];
    sc_auth_tag(a, x->caller, x->listener, x->hello, one);
    sc_auth_tag(b, y->caller, y->listener, y->hello, other);
    return sc_auth_equal(one, other);
}

static void test_tokens(void **state) {
    static const char *const tokens[] = {"",
                                         "a",
                                         "b",
                                         "aa",
                                         "a longer one, of more than 64 bytes, "
                                         "which no key could hold as it is....",
                                         "a longer one, of more than 64 bytes, which no key could "
                                         "hold as it is...!"};
    struct handshake shake = some_handshake();
    (void)state;

    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        for (size_t j = 0; j < sizeof tokens / sizeof tokens[0]; j++) {
            struct sc_auth a = with_token(tokens[i]), b = with_token(tokens[j]);
            assert_int_equal(proofs_agree(&a, &shake, &b, &shake), i == j);
            assert_int_equal(tags_agree(&a, &shake, &b, &shake), i == j);
            assert_int_equal(sc_auth_job(&a) == sc_auth_job(&b), i == j);
        }
    }
}

/* Every byte that is covered counts. */
static void test_content(void **state) {
    struct sc_auth auth = with_token("token");
    struct handshake shake = some_handshake();
    (void)state;

    for (size_t i = 0; i < sizeof shake; i += 5) {
        struct handshake other = shake;
        uint8_t *byte = (uint8_t *)&other + i;
        *byte ^= 0x10;
        bool in_nonces = byte < other.challenge;
        bool in_proof =
            byte >= other.challenge && byte < other.challenge + SC_WIRE_CHALLENGE_COVERED;
        bool in_tag = byte >= other.hello && byte < other.hello + SC_WIRE_HELLO_COVERED;
        assert_int_equal(proofs_agree(&auth, &shake, &auth, &other), !in_nonces && !in_proof);
        assert_int_equal(tags_agree(&auth, &shake, &auth, &other), !in_nonces && !in_tag);
    }
}

/* A proof that the listener made is no tag, and nonces cannot change sides. */
static void test_roles(void **state) {
    struct sc_auth auth = with_token("token");
    struct handshake shake = some_handshake(), turned = shake;
    uint8_t proof[SC_WIRE_TAG_BYTES], tag[SC_WIRE_TAG_BYTES];
    (void)state;

    memcpy(shake.hello, shake.challenge, sizeof shake.challenge);
    sc_auth_prove(&auth, shake.caller, shake.listener, shake.challenge, proof);
    sc_auth_tag(&auth, shake.caller, shake.listener, shake.hello, tag);
    assert_false(sc_auth_equal(proof, tag));
    memcpy(turned.caller, shake.listener, sizeof turned.caller);
    memcpy(turned.listener, shake.caller, sizeof turned.listener);
    assert_false(proofs_agree(&auth, &shake, &auth, &turned));
}

static void test_wipe(void **state) {
    struct sc_auth auth = with_token("token");
    static const uint8_t zeros[sizeof auth.key];
    uint8_t a[SC_WIRE_NONCE_BYTES], b[SC_WIRE_NONCE_BYTES];
    (void)state;

    assert_memory_not_equal(auth.key, zeros, sizeof zeros);
    sc_auth_wipe(&auth);
    assert_memory_equal(auth.key, zeros, sizeof zeros);
    sc_auth_random(a, sizeof a);
    sc_auth_random(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_wipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
