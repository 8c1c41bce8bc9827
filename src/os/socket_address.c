/*
 * Addresses: from names, as text, compared. IPv4, IPv6 with scopes, and what little text a Unix
 * address has. Storage is zeroed beyond the address, so that it may be put on the wire. No state;
 * any thread.
 */
#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "os/socket.h"

static const struct sockaddr_in *as_v4(const struct sc_socket_address *address) {
    return (const struct sockaddr_in *)&address->storage;
}

static const struct sockaddr_in6 *as_v6(const struct sc_socket_address *address) {
    return (const struct sockaddr_in6 *)&address->storage;
}

/* `host` without the brackets around an IPv6 literal. False when it does not fit. */
static bool strip_brackets(const char *host, char *plain, size_t size) {
    size_t length = strlen(host);

    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    }
    if (length == 0 || length >= size) return false;
    memcpy(plain, host, length);
    plain[length] = '\0';
    return true;
}

static bool is_listed(const struct sc_socket_address *addresses, size_t count,
                      const struct addrinfo *info) {
    for (size_t i = 0; i < count; i++) {
        if (addresses[i].length == info->ai_addrlen &&
            memcmp(&addresses[i].storage, info->ai_addr, info->ai_addrlen) == 0)
            return true;
    }
    return false;
}

spark_comm_status sc_socket_resolve(const char *host, int port, struct sc_socket_address *out,
                                    size_t capacity, size_t *count, struct sc_error *error) {
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char plain[256];
    char service[16];
    int failure;

    *count = 0;
    if (!strip_brackets(host, plain, sizeof plain))
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0,
                            "'%.64s' is no host name or address", host);
    snprintf(service, sizeof service, "%d", port);
    do {
        failure = getaddrinfo(plain, service, &hints, &found);
    } while (failure == EAI_SYSTEM && errno == EINTR);
    if (failure == EAI_MEMORY)
        return sc_error_set(error, SPARK_COMM_NO_MEMORY, -1, ENOMEM, "no memory to resolve %s",
                            plain);
    if (failure == EAI_SYSTEM) return sc_error_system(error, errno, "cannot resolve %s", plain);
    if (failure != 0)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, failure, "cannot resolve %s: %s",
                            plain, gai_strerror(failure));

    for (const struct addrinfo *info = found; info != NULL && *count < capacity;
         info = info->ai_next) {
        bool usable = info->ai_family == AF_INET || info->ai_family == AF_INET6;
        if (!usable || info->ai_addrlen > sizeof out->storage || is_listed(out, *count, info))
            continue;
        memset(&out[*count], 0, sizeof out[*count]);
        memcpy(&out[*count].storage, info->ai_addr, info->ai_addrlen);
        out[*count].length = info->ai_addrlen;
        ++*count;
    }
    freeaddrinfo(found);
    if (*count == 0)
        return sc_error_set(error, SPARK_COMM_UNAVAILABLE, -1, 0, "%s has no IPv4 or IPv6 address",
                            plain);
    return SPARK_COMM_OK;
}

/* An abstract name is shown after '@'; the far end of a connection mostly has none. */
static void unix_text(const struct sc_socket_address *address, char *text, size_t size) {
    const struct sockaddr_un *name = (const struct sockaddr_un *)&address->storage;
    size_t start = offsetof(struct sockaddr_un, sun_path) + 1;
    size_t length = address->length > start ? address->length - start : 0;

    if (length == 0)
        snprintf(text, size, "a local peer");
    else
        snprintf(text, size, "@%.*s", (int)length, name->sun_path + 1);
}

const char *sc_socket_address_text(const struct sc_socket_address *address, char *text,
                                   size_t size) {
    char host[NI_MAXHOST];
    int family = address->storage.ss_family;

    if (family == AF_UNIX)
        unix_text(address, text, size);
    else if (getnameinfo((const struct sockaddr *)&address->storage, address->length, host,
                         sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text, size, "unknown address");
    else
        snprintf(text, size, family == AF_INET6 ? "[%s]:%d" : "%s:%d", host,
                 sc_socket_port(address));
    return text;
}

int sc_socket_port(const struct sc_socket_address *address) {
    switch (address->storage.ss_family) {
    case AF_INET: return ntohs(as_v4(address)->sin_port);
    case AF_INET6: return ntohs(as_v6(address)->sin6_port);
    default: return 0;
    }
}

/* The IPv4 address, in host order, that an address is or maps to IPv6. */
static bool find_v4(const struct sc_socket_address *address, uint32_t *host) {
    if (address->storage.ss_family == AF_INET) {
        *host = ntohl(as_v4(address)->sin_addr.s_addr);
        return true;
    }
    if (address->storage.ss_family == AF_INET6 &&
        IN6_IS_ADDR_V4MAPPED(&as_v6(address)->sin6_addr)) {
        uint32_t last;
        memcpy(&last, &as_v6(address)->sin6_addr.s6_addr[12], sizeof last);
        *host = ntohl(last);
        return true;
    }
    return false;
}

bool sc_socket_is_loopback(const struct sc_socket_address *address) {
    uint32_t v4 = 0;

    if (find_v4(address, &v4)) return v4 >> 24 == 127;
    return address->storage.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&as_v6(address)->sin6_addr);
}

bool sc_socket_same_host(const struct sc_socket_address *a, const struct sc_socket_address *b) {
    uint32_t a_v4 = 0;
    uint32_t b_v4 = 0;
    bool a_is_v4 = find_v4(a, &a_v4);
    bool b_is_v4 = find_v4(b, &b_v4);

    if (a_is_v4 || b_is_v4) return a_is_v4 && b_is_v4 && a_v4 == b_v4;
    if (a->storage.ss_family != AF_INET6 || b->storage.ss_family != AF_INET6) return false;
    /* The scope is compared too: link-local addresses repeat on every interface. */
    return memcmp(&as_v6(a)->sin6_addr, &as_v6(b)->sin6_addr, sizeof as_v6(a)->sin6_addr) == 0 &&
           as_v6(a)->sin6_scope_id == as_v6(b)->sin6_scope_id;
}

typedef int (*name_fn)(int, struct sockaddr *, socklen_t *);

static spark_comm_status ask_name(name_fn ask, int fd, struct sc_socket_address *out,
                                  struct sc_error *error) {
    memset(out, 0, sizeof *out);
    out->length = sizeof out->storage;
    if (ask(fd, (struct sockaddr *)&out->storage, &out->length) != 0)
        return sc_error_system(error, errno, "cannot find the address of a socket");
    return SPARK_COMM_OK;
}

spark_comm_status sc_socket_local(int fd, struct sc_socket_address *out, struct sc_error *error) {
    return ask_name(getsockname, fd, out, error);
}

spark_comm_status sc_socket_remote(int fd, struct sc_socket_address *out, struct sc_error *error) {
    return ask_name(getpeername, fd, out, error);
}
