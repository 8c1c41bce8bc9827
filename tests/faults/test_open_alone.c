/* Opening when something is missing: a port that is taken, ranks that never come. Each is told
 * soon, by name, on every rank. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "contract/contract.h"

/* Somebody else listens on the port: SYSTEM with EADDRINUSE, address and port, in under a
 * second. */
static void port_taken(struct harness_rank *rank) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    spark_comm_options options;
    spark_comm_error error = {.struct_size = sizeof error};
    char port[16];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!CHECK_TRUE(rank,
                    fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
                        listen(fd, 1) == 0 &&
                        getsockname(fd, (struct sockaddr *)&address, &length) == 0,
                    "no socket"))
        return;
    harness_options(rank, &options);
    options.world_size = 2;
    options.rank = 0;
    options.master_port = ntohs(address.sin_port);
    snprintf(port, sizeof port, "%d", options.master_port);
    const int64_t start = harness_now_ms();
    if (CHECK_STATUS(rank, SPARK_COMM_SYSTEM, harness_open(rank, &options, &rank->comm))) {
        CHECK_TRUE(rank, harness_now_ms() - start < 1000, "it took %lld ms",
                   (long long)(harness_now_ms() - start));
        CHECK_MESSAGE(rank, SPARK_COMM_SYSTEM, "127.0.0.1", port);
        spark_comm_last_error(NULL, &error);
        CHECK_INT(rank, EADDRINUSE, error.native_code);
    }
    close(fd);
}

/* A world of `more` ranks beyond those that run: every rank that came names every one that did
 * not. */
static void wait_in_vain(struct harness_rank *rank, int world_size, int first) {
    const int limit = 800;
    spark_comm_options options;
    harness_options(rank, &options);
    options.world_size = world_size;
    options.rank = first + rank->rank;
    options.rendezvous_timeout_ms = limit;
    harness_meet(rank);
    const int64_t start = harness_now_ms();
    if (!CHECK_STATUS(rank, SPARK_COMM_OPEN_TIMEOUT, harness_open(rank, &options, &rank->comm)))
        return;
    const int64_t took = harness_now_ms() - start;
    CHECK_TRUE(rank, took >= limit - 20 && took < limit + 1500 * harness_slowness(),
               "%d ms became %lld ms", limit, (long long)took);
    for (int missing = 0; missing < world_size; missing++) {
        char name[16];
        snprintf(name, sizeof name, "%d", missing);
        if (missing < first || missing >= first + rank->size)
            CHECK_MESSAGE(rank, SPARK_COMM_OPEN_TIMEOUT, name);
    }
    CHECK_MESSAGE(rank, SPARK_COMM_OPEN_TIMEOUT, "rank");
}

static void last_is_missing(struct harness_rank *rank) {
    wait_in_vain(rank, rank->size + 1, 0);
}
static void two_are_missing(struct harness_rank *rank) {
    wait_in_vain(rank, rank->size + 2, 0);
}
static void head_is_missing(struct harness_rank *rank) {
    wait_in_vain(rank, rank->size + 1, 1);
}

#define ITSELF .opens_itself = true
#define WHERE (CONTRACT_BY_NAME | CONTRACT_NO_SINGLE)

static const struct contract_test tests[] = {
    {"port_taken", {.run = port_taken, ITSELF}, WHERE | CONTRACT_ALONE},
    {"last_is_missing", {.run = last_is_missing, ITSELF}, WHERE},
    {"two_are_missing", {.run = two_are_missing, ITSELF}, WHERE | CONTRACT_PAIR},
    {"head_is_missing", {.run = head_is_missing, ITSELF}, WHERE},
};

CONTRACT_MAIN("open_alone", tests)
