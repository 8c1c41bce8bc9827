/* How ranks come in: door.c, hub.c and dial.c. A part of world_state.h, which includes it last. */
#ifndef SC_WORLD_RENDEZVOUS_H
#define SC_WORLD_RENDEZVOUS_H

#include "world/world_state.h"

/* ---- door.c ---- */

void sc_door_init(struct sc_door *door);
spark_comm_status sc_door_prepare(struct sc_world *world, struct sc_error *error);
void sc_door_close(struct sc_door *door);
/* A new caller; `fd` is taken over. */
void sc_door_add(struct sc_world *world, int fd, bool is_unix,
                 const struct sc_socket_address *from);
/* Adds what the door waits for to `fds` and says how many; and serves them after poll. An error
 * only while the hub gathers: no descriptors left. */
size_t sc_door_watch(struct sc_world *world, struct pollfd *fds);
spark_comm_status sc_door_serve(struct sc_world *world, const struct pollfd *fds,
                                struct sc_error *error);
/* When the next caller's time is over. */
int64_t sc_door_deadline(const struct sc_world *world);
/* Reconnect: the Unix socket of the epoch before. And all but that, for good: this hub was replaced. */
void sc_door_shut_unix(struct sc_door *door);
void sc_door_shut(struct sc_door *door);
/* Addresses to listen on: another port; the wildcard of the same family. */
void sc_door_set_port(struct sc_socket_address *address, int port);
void sc_door_set_any(struct sc_socket_address *address);

/* ---- hub.c ---- */

/* Rendezvous, rank 0's half: listens (or looks whether it still leads, R2), lets all others in,
 * proposes the epoch. */
spark_comm_status sc_hub_gather(struct sc_world *world, int64_t deadline, struct sc_error *error);
enum { SC_HUB_PARK = SC_WIRE_REFUSED + 1 }; /* no answer yet: judge again in another phase */
/* What to do with a caller that has proved to know the token (R3, R4): enum sc_wire_verdict, or
 * SC_HUB_PARK. */
int sc_hub_judge(struct sc_world *world, const struct sc_wire_hello *hello, char *text,
                 size_t size);
/* Takes over `fd` of an accepted caller. */
void sc_hub_admit(struct sc_world *world, const struct sc_wire_hello *hello, int fd);
/* A rank that had come went away, or was silent, before the epoch began (R5). */
void sc_hub_vacate(struct sc_world *world, int rank);
/* A rank's time is over, after `ms`: so is the hub's, and all are told who is missing (R11). */
void sc_hub_excuse(struct sc_world *world, int rank, int ms);

/* ---- dial.c ---- */

/* Rendezvous, the others' half. */
spark_comm_status sc_dial_join(struct sc_world *world, int64_t deadline, struct sc_error *error);
void sc_dial_members(struct sc_world *world, const struct sc_wire_header *header,
                     const uint8_t *payload);
void sc_dial_welcome(struct sc_world *world, const struct sc_wire_header *header,
                     const uint8_t *payload);
/* The hub takes the place back (R4c, R4e): another claim was better. */
void sc_dial_dismissed(struct sc_world *world, const struct sc_wire_header *header,
                       const uint8_t *payload);

#endif
