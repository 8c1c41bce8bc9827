/* The formats of the wire: every record comes back as it was written, and nothing that cannot be true
 * is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "world/wire.h"

#define SIZE 7 /* ranks of the world */

static void fill_bytes(uint8_t *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + 13 * i);
}

/* The bytes of a fresh format never depend on what was in the buffer. */
static void expect_stable(const uint8_t *record, size_t bytes, const uint8_t *again) {
    assert_memory_equal(record, again, bytes);
}

static void test_preamble(void **state) {
    struct sc_wire_preamble in = {.version = 3, .flags = 9}, out;
    uint8_t record[SC_WIRE_PREAMBLE_BYTES], again[SC_WIRE_PREAMBLE_BYTES];
    (void)state;

    fill_bytes(in.nonce, sizeof in.nonce, 1);
    memset(record, 0xff, sizeof record);
    sc_wire_put_preamble(record, &in);
    sc_wire_put_preamble(again, &in);
    expect_stable(record, sizeof record, again);
    /* The first words are little-endian on every machine. */
    assert_memory_equal(record, "SPKCOMM1\3\0\0\0\11\0\0\0", 16);
    assert_true(sc_wire_get_preamble(record, &out));
    assert_memory_equal(&in, &out, sizeof in);
    for (size_t i = 0; i < SC_WIRE_MAGIC_BYTES; i++) {
        assert_true(sc_wire_is_preamble(record, i + 1));
        record[i] ^= 0x20;
        assert_false(sc_wire_get_preamble(record, &out));
        assert_false(sc_wire_is_preamble(record, i + 1));
        assert_true(sc_wire_is_preamble(record, i));
        record[i] ^= 0x20;
    }
    assert_true(sc_wire_is_preamble(record, sizeof record));
}

static void test_challenge(void **state) {
    struct sc_wire_challenge in = {.version = 1, .verdict = SC_WIRE_REFUSED}, out;
    uint8_t record[SC_WIRE_CHALLENGE_BYTES];
    (void)state;

    fill_bytes(in.nonce, sizeof in.nonce, 2);
    fill_bytes(in.proof, sizeof in.proof, 3);
    strcpy(in.text, "because");
    sc_wire_put_challenge(record, &in);
    assert_true(sc_wire_get_challenge(record, &out));
    assert_memory_equal(&in, &out, sizeof in);
    /* The proof is the end, behind what it covers. */
    assert_memory_equal(record + SC_WIRE_CHALLENGE_COVERED, in.proof, sizeof in.proof);
    in.verdict = 3;
    sc_wire_put_challenge(record, &in);
    assert_false(sc_wire_get_challenge(record, &out));
    record[0]++;
    assert_false(sc_wire_get_challenge(record, &out));
}

static struct sc_wire_hello some_hello(void) {
    struct sc_wire_hello hello = {.version = 1,
                                  .lived = {4, 44},
                                  .seen = {5, 55},
                                  .instance = 77,
                                  .rank = -3,
                                  .world_size = 1 << 30,
                                  .pid = 4711,
                                  .memory = 1,
                                  .uid = UINT32_MAX,
                                  .nccl_version = 22903,
                                  .job = UINT64_MAX - 1,
                                  .settings = 0x0123456789abcdef,
                                  .network_namespace = 4026531840};
    strcpy(hello.boot_id, "f0cd7349-5c82-49b3-ab65-4f05b8d30000");
    strcpy(hello.library, "0.1.0");
    strcpy(hello.backend, "shm");
    strcpy(hello.listener, "[fe80::1%eth0]:40000");
    strcpy(hello.gpu, "0000:01:00.0");
    strcpy(hello.nccl_file, "/usr/lib/libnccl.so.2");
    fill_bytes(hello.tag, sizeof hello.tag, 4);
    return hello;
}

static void test_hello(void **state) {
    struct sc_wire_hello in = some_hello(), out;
    uint8_t record[SC_WIRE_HELLO_BYTES];
    (void)state;

    sc_wire_put_hello(record, &in);
    memset(&out, 0, sizeof out);
    assert_true(sc_wire_get_hello(record, &out));
    assert_memory_equal(&in, &out, sizeof in);
    assert_memory_equal(record + SC_WIRE_HELLO_COVERED, in.tag, sizeof in.tag);
    in.seen.number = 3; /* less than what it lived in */
    sc_wire_put_hello(record, &in);
    assert_false(sc_wire_get_hello(record, &out));
    in.seen = (struct sc_wire_epoch){5, 0}; /* an epoch without a stamp */
    sc_wire_put_hello(record, &in);
    assert_false(sc_wire_get_hello(record, &out));
    in = some_hello();
    in.pid = -1;
    sc_wire_put_hello(record, &in);
    assert_false(sc_wire_get_hello(record, &out));
}

/* Text without an end is refused; control characters never reach a log. */
static void test_text(void **state) {
    struct sc_wire_hello in = some_hello(), out;
    uint8_t record[SC_WIRE_HELLO_BYTES];
    (void)state;

    strcpy(in.backend, "a\nb\x1b[31m\x7f");
    sc_wire_put_hello(record, &in);
    assert_true(sc_wire_get_hello(record, &out));
    assert_string_equal(out.backend, "a?b?[31m?");
    in = some_hello();
    sc_wire_put_hello(record, &in);
    uint8_t *library = memmem(record, sizeof record, "0.1.0", 5);
    assert_non_null(library);
    memset(library, 'x', sizeof in.library);
    assert_false(sc_wire_get_hello(record, &out));
    /* A text as long as its field is cut by the writer. */
    memset(in.library, 'y', sizeof in.library);
    sc_wire_put_hello(record, &in);
    assert_true(sc_wire_get_hello(record, &out));
    assert_int_equal(strlen(out.library), sizeof out.library - 1);
}

static struct sc_wire_header some_header(uint16_t kind, uint32_t bytes) {
    return (struct sc_wire_header){.kind = kind,
                                   .flavour = 2,
                                   .epoch = 0x01020304,
                                   .source = SIZE - 1,
                                   .bytes = bytes,
                                   .digest = 0xdeadbeef,
                                   .number = UINT64_MAX,
                                   .offset = SIZE - 1,
                                   .descriptor = 0x1122334455667788};
}

static bool is_taken(struct sc_wire_header header) {
    uint8_t record[SC_WIRE_HEADER_BYTES];
    struct sc_wire_header out;

    sc_wire_put_header(record, &header);
    if (!sc_wire_get_header(record, SIZE, &out)) return false;
    /* Compared as a record again: the struct has padding. */
    uint8_t again[SC_WIRE_HEADER_BYTES];
    sc_wire_put_header(again, &out);
    assert_memory_equal(record, again, sizeof record);
    return true;
}

static void test_header_sizes(void **state) {
    static const struct {
        uint16_t kind;
        uint32_t good[3];
        uint32_t bad[3];
    } cases[] = {
        {SC_WIRE_ANSWER, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_MEMBERS, {112, 224, 65520}, {0, 113, 65536 + 112}},
        {SC_WIRE_WELCOME, {128, 128, 128}, {0, 127, 129}},
        {SC_WIRE_GIVE_UP, {0, 0, 0}, {1, 8, UINT32_MAX}},
        {SC_WIRE_FAULT, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_VERDICT, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_HEARTBEAT, {152, 152, 152}, {0, 80, 153}},
        {SC_WIRE_GATHER, {0, 1, 65536}, {65537, 1u << 31, UINT32_MAX}},
        {SC_WIRE_GATHERED, {0, 1, 65536}, {65537, 1u << 31, UINT32_MAX}},
        {SC_WIRE_COMMAND, {0, 1, 65536}, {65537, 1u << 31, UINT32_MAX}},
        {SC_WIRE_CREDIT, {0, 0, 0}, {1, 8, UINT32_MAX}},
        {SC_WIRE_GOODBYE, {152, 152, 152}, {0, 80, 153}},
        {SC_WIRE_FAREWELL, {0, 0, 0}, {1, 8, UINT32_MAX}},
        {SC_WIRE_READY, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_COMMIT, {0, 0, 0}, {1, 8, UINT32_MAX}},
        {SC_WIRE_FAIL, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_SUSPECT, {544, 544, 544}, {0, 543, 545}},
        {SC_WIRE_KIN, {32, 32, 32}, {0, 31, 33}},
    };
    (void)state;

    assert_int_equal(sizeof cases / sizeof cases[0], SC_WIRE_KIND_END - 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int j = 0; j < 3; j++) {
            assert_true(is_taken(some_header(cases[i].kind, cases[i].good[j])));
            assert_false(is_taken(some_header(cases[i].kind, cases[i].bad[j])));
        }
    }
    assert_false(is_taken(some_header(0, 0)));
    assert_false(is_taken(some_header(SC_WIRE_KIND_END, 0)));
    assert_false(is_taken(some_header(UINT16_MAX, 0)));
}

static void test_header_ranks(void **state) {
    static const int32_t bad[] = {-1, SIZE, INT32_MAX, INT32_MIN};
    uint8_t record[SC_WIRE_HEADER_BYTES];
    struct sc_wire_header header = some_header(SC_WIRE_COMMAND, 4);
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        header.source = bad[i];
        assert_false(is_taken(header));
    }
    header = some_header(SC_WIRE_CREDIT, 0);
    header.offset = SIZE;
    assert_false(is_taken(header));
    header = some_header(SC_WIRE_MEMBERS, 112);
    header.offset = UINT64_MAX;
    assert_false(is_taken(header));
    header = some_header(SC_WIRE_GATHERED, 0);
    header.offset = UINT64_MAX; /* checked against the result that is waited for */
    assert_true(is_taken(header));
    sc_wire_put_header(record, &header);
    record[1] ^= 1;
    assert_false(sc_wire_get_header(record, SIZE, &header));
}

static void test_fault(void **state) {
    struct sc_error in, out;
    uint8_t record[SC_WIRE_FAULT_BYTES];
    (void)state;

    memset(&in, 0, sizeof in);
    sc_error_set(&in, SPARK_COMM_PEER_LOST, SIZE - 1, -5, "rank %d is lost", SIZE - 1);
    in.operation = SPARK_COMM_OP_BARRIER;
    in.sequence = 1841;
    in.epoch = 3;
    sc_wire_put_fault(record, &in);
    memset(&out, 0, sizeof out);
    assert_true(sc_wire_get_fault(record, sizeof record, SIZE, &out));
    assert_memory_equal(&in, &out, sizeof in);
    assert_false(sc_wire_get_fault(record, sizeof record - 1, SIZE, &out));
    assert_false(sc_wire_get_fault(record, sizeof record, SIZE - 1, &out));
    in.peer = -2;
    sc_wire_put_fault(record, &in);
    assert_false(sc_wire_get_fault(record, sizeof record, SIZE, &out));
    in.peer = -1;
    in.operation = SPARK_COMM_OP_COUNT;
    sc_wire_put_fault(record, &in);
    assert_false(sc_wire_get_fault(record, sizeof record, SIZE, &out));
    in.operation = 0;
    in.status = 199;
    sc_wire_put_fault(record, &in);
    assert_false(sc_wire_get_fault(record, sizeof record, SIZE, &out));
#define EACH_STATUS(name, value, text) \
    in.status = name;                  \
    sc_wire_put_fault(record, &in);    \
    assert_true(sc_wire_get_fault(record, sizeof record, SIZE, &out));
    SPARK_COMM_STATUS_LIST(EACH_STATUS)
#undef EACH_STATUS
}

static void test_member(void **state) {
    struct sc_world_member in = {.rank = 2, .pid = 99}, out;
    uint8_t record[SC_WIRE_MEMBER_BYTES];
    (void)state;

    strcpy(in.listener, "10.0.0.2:40001");
    strcpy(in.version, "0.1.0");
    sc_wire_put_member(record, &in);
    assert_true(sc_wire_get_member(record, 2, &out));
    assert_memory_equal(&in, &out, sizeof in);
    assert_false(sc_wire_get_member(record, 3, &out));
    in.pid = -1;
    sc_wire_put_member(record, &in);
    assert_false(sc_wire_get_member(record, 2, &out));
}

static void test_welcome_lines_ticket(void **state) {
    struct sc_wire_welcome welcome = {.segment_bytes = 1 << 20,
                                      .stamp = UINT64_MAX - 5,
                                      .limit_ms = SPARK_COMM_FOREVER},
                           welcome_out;
    struct sc_wire_lines lines_out;
    struct sc_wire_lines lines = {{1, 2},   {3, 4},   {5, 6},   {7, 8},   {9, 10},
                                  {11, 12}, {13, 14}, {15, 16}, {17, 18}, 19};
    struct sc_wire_ticket ticket = {.rank = 3, .number = 4, .bytes = 5}, ticket_out;
    uint8_t record[256];
    (void)state;

    memset(&welcome_out, 0, sizeof welcome_out); /* its padding too */
    fill_bytes(welcome.cookie, sizeof welcome.cookie, 7);
    strcpy(welcome.unix_name, "spark_comm-0123");
    sc_wire_put_welcome(record, &welcome);
    assert_true(sc_wire_get_welcome(record, SC_WIRE_WELCOME_BYTES, &welcome_out));
    assert_memory_equal(&welcome, &welcome_out, sizeof welcome);
    assert_false(sc_wire_get_welcome(record, SC_WIRE_WELCOME_BYTES + 1, &welcome_out));
    welcome.stamp = 0;
    sc_wire_put_welcome(record, &welcome);
    assert_false(sc_wire_get_welcome(record, SC_WIRE_WELCOME_BYTES, &welcome_out));
    welcome.stamp = 1;
    welcome.limit_ms = -2;
    sc_wire_put_welcome(record, &welcome);
    assert_false(sc_wire_get_welcome(record, SC_WIRE_WELCOME_BYTES, &welcome_out));
    sc_wire_put_lines(record, &lines);
    assert_true(sc_wire_get_lines(record, SC_WIRE_LINES_BYTES, &lines_out));
    assert_memory_equal(&lines, &lines_out, sizeof lines);
    assert_false(sc_wire_get_lines(record, 0, &lines_out));
    fill_bytes(ticket.cookie, sizeof ticket.cookie, 8);
    sc_wire_put_ticket(record, &ticket);
    assert_true(sc_wire_get_ticket(record, SIZE, &ticket_out));
    assert_memory_equal(&ticket, &ticket_out, sizeof ticket);
    assert_false(sc_wire_get_ticket(record, 3, &ticket_out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preamble),
        cmocka_unit_test(test_challenge),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_header_sizes),
        cmocka_unit_test(test_header_ranks),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_member),
        cmocka_unit_test(test_welcome_lines_ticket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
