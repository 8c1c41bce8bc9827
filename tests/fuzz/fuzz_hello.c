/*
 * Fuzz target: everything that reads bytes from the network. The first byte chooses who reads the
 * rest: the decoders alone; the hub's door, as the first words of a stranger; the hub's judge, as
 * the hello of a caller that knows the token; the hub's and a worker's links, as a stream of
 * records. Whatever comes: it returns, nothing is read past the input, nothing is lost.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline.h"
#include "world/world_state.h"

#define SIZE 4
#define ROUNDS 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int condition) {
    if (!condition) abort();
}

static void resolve(struct sc_settings *settings, int rank) {
    static struct sc_settings made[2];
    static int is_made[2];
    struct sc_error error;

    if (!is_made[rank]) {
        spark_comm_options options;
        sc_settings_options_init(&options, sizeof options);
        options.rank = rank;
        options.world_size = SIZE;
        options.backend = "shm";
        options.job_token = "fuzz";
        expect(sc_settings_resolve(&options, &made[rank], &error) == SPARK_COMM_OK);
        is_made[rank] = 1;
    }
    *settings = made[rank];
}

static struct sc_world *make_world(const struct sc_settings *settings) {
    static const struct sc_log log = {.fd = -1};
    struct sc_world *world = sc_world_create(settings, &log);
    struct sc_error error;

    expect(world != NULL);
    expect(sc_auth_init(&world->auth, settings->job_token, &error) == SPARK_COMM_OK);
    expect(sc_door_prepare(world, &error) == SPARK_COMM_OK);
    expect(sc_monitor_prepare(world, &error) == SPARK_COMM_OK);
    return world;
}

/* A non-blocking pair; bytes that do not fit are left out. */
static void make_pair(int *fds) {
    expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
}

static void say(int fd, const uint8_t *data, size_t size) {
    if (size > 0) (void)!send(fd, data, size, MSG_NOSIGNAL);
}

static void decode_all(const uint8_t *data, size_t size) {
    /* A block of just the record's size, so that a sanitizer sees a read past it. */
    static const size_t sizes[] = {
        SC_WIRE_PREAMBLE_BYTES, SC_WIRE_CHALLENGE_BYTES, SC_WIRE_HELLO_BYTES,
        SC_WIRE_HEADER_BYTES,   SC_WIRE_FAULT_BYTES,     SC_WIRE_MEMBER_BYTES,
        SC_WIRE_WELCOME_BYTES,  SC_WIRE_LINES_BYTES,     SC_WIRE_TICKET_BYTES};
    union {
        struct sc_wire_preamble preamble;
        struct sc_wire_challenge challenge;
        struct sc_wire_hello hello;
        struct sc_wire_header header;
        struct sc_error error;
        struct sc_world_member member;
        struct sc_wire_welcome welcome;
        struct sc_wire_lines lines;
        struct sc_wire_ticket ticket;
    } out;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *record = calloc(1, sizes[i]);
        expect(record != NULL);
        memcpy(record, data, size < sizes[i] ? size : sizes[i]);
        memset(&out, 0, sizeof out);
        switch (i) {
        case 0: sc_wire_get_preamble(record, &out.preamble); break;
        case 1:
            if (sc_wire_get_challenge(record, &out.challenge))
                expect(memchr(out.challenge.text, 0, sizeof out.challenge.text) != NULL);
            break;
        case 2:
            if (sc_wire_get_hello(record, &out.hello))
                expect(memchr(out.hello.listener, 0, sizeof out.hello.listener) != NULL);
            break;
        case 3:
            if (sc_wire_get_header(record, SIZE, &out.header))
                expect(out.header.bytes <= SC_WIRE_MAX_PAYLOAD && out.header.source < SIZE);
            break;
        case 4:
            if (sc_wire_get_fault(record, sizes[i], SIZE, &out.error))
                expect(out.error.peer >= -1 && out.error.peer < SIZE);
            break;
        case 5: sc_wire_get_member(record, 1, &out.member); break;
        case 6: sc_wire_get_welcome(record, sizes[i], &out.welcome); break;
        case 7: sc_wire_get_lines(record, sizes[i], &out.lines); break;
        default: sc_wire_get_ticket(record, SIZE, &out.ticket); break;
        }
        free(record);
    }
}

static void run_rounds(struct sc_world *world) {
    struct sc_error error;

    sc_error_clear(&error);
    for (int i = 0; i < ROUNDS; i++)
        if (sc_monitor_step(world, sc_deadline_now(), &error) != SPARK_COMM_OK) break;
}

/* A stranger at the door; with `knows_token` its hello is signed as it should be. */
static void knock(const uint8_t *data, size_t size, int knows_token) {
    struct sc_socket_address from = {.length = sizeof(struct sockaddr_in)};
    struct sc_settings settings;
    int fds[2];

    resolve(&settings, 0);
    struct sc_world *world = make_world(&settings);
    make_pair(fds);
    from.storage.ss_family = AF_INET;
    sc_door_add(world, fds[0], false, &from);
    if (knows_token) {
        struct sc_wire_preamble preamble = {.version = SC_WIRE_PROTOCOL};
        uint8_t out[SC_WIRE_PREAMBLE_BYTES], in[SC_WIRE_CHALLENGE_BYTES];
        uint8_t hello[SC_WIRE_HELLO_BYTES] = {0};
        struct sc_wire_challenge challenge;
        sc_wire_put_preamble(out, &preamble);
        say(fds[1], out, sizeof out);
        run_rounds(world);
        /* It comes from no address of this host, and the token makes up for that. */
        expect(recv(fds[1], in, sizeof in, 0) == sizeof in);
        expect(sc_wire_get_challenge(in, &challenge) && challenge.verdict == SC_WIRE_ACCEPTED);
        memcpy(hello, data, size < SC_WIRE_HELLO_COVERED ? size : SC_WIRE_HELLO_COVERED);
        sc_auth_tag(&world->auth, preamble.nonce, challenge.nonce, hello,
                    hello + SC_WIRE_HELLO_COVERED);
        say(fds[1], hello, sizeof hello);
    } else {
        say(fds[1], data, size);
    }
    run_rounds(world);
    /* Without the token nobody gets in. */
    for (int rank = 1; !knows_token && rank < SIZE; rank++)
        expect(sc_peer_state(world->epoch, rank) != SC_PEER_PRESENT);
    close(fds[1]);
    run_rounds(world);
    for (int i = 0; i < world->door.caller_count; i++)
        expect(world->door.callers[i] == NULL || world->door.callers[i]->is_leaving);
    sc_world_destroy(world);
}

/* Records on a link that was let in: at the hub (gathering or running), at a worker that waits for
 * WELCOME. */
static void stream(const uint8_t *data, size_t size, int rank, enum sc_phase phase) {
    int from = rank == 0 ? 1 : 0;
    struct sc_settings settings;
    struct sc_error error;
    int fds[2];

    resolve(&settings, rank);
    struct sc_world *world = make_world(&settings);
    struct sc_peer *peer = &world->epoch->peers[from];
    make_pair(fds);
    sc_error_clear(&error);
    expect(sc_link_open(&peer->link, fds[0], &error) == SPARK_COMM_OK);
    world->monitor.phase = phase;
    if (phase != SC_PHASE_GATHERING) {
        world->epoch->number = 1;
        world->seen = (struct sc_wire_epoch){1, 0x0101010101010101};
        for (int i = 0; i < SIZE; i++)
            atomic_store(&world->epoch->peers[i].state, SC_PEER_PRESENT);
    } else {
        atomic_store(&peer->state, SC_PEER_PRESENT);
    }
    say(fds[1], data, size);
    for (int i = 0; i < ROUNDS && peer->link.fd >= 0; i++)
        if (sc_link_read(world, from) != SPARK_COMM_OK) break;
    close(fds[1]);
    sc_world_destroy(world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    switch (data[0] % 6) {
    case 0: decode_all(data + 1, size - 1); break;
    case 1: knock(data + 1, size - 1, 0); break;
    case 2: knock(data + 1, size - 1, 1); break;
    case 3: stream(data + 1, size - 1, 0, SC_PHASE_GATHERING); break;
    case 4: stream(data + 1, size - 1, 0, SC_PHASE_RUNNING); break;
    default:
        stream(data + 1, size - 1, 1, SC_PHASE_GATHERING);
        stream(data + 1, size - 1, 1, SC_PHASE_RUNNING);
        stream(data + 1, size - 1, 0, SC_PHASE_SETTING_UP);
        stream(data + 1, size - 1, 1, SC_PHASE_SETTING_UP);
        break;
    }
    return 0;
}
