/* Making and forgetting the mailboxes of an epoch. */
#include "backends/shm/mailbox.h"

#include <string.h>

#include "backends/shm/state.h"

/* What each rank says in a vote. */
struct ballot {
    uint64_t bytes;
    uint64_t prepared;
};

spark_comm_status sc_mailbox_agree(const spark_comm_host *host, const char *operation,
                                   bool prepared, size_t bytes, int64_t deadline_ns) {
    struct ballot own = {bytes, prepared ? 1 : 0}, all[SC_MAILBOX_MAX_RANKS] = {own};
    spark_comm_status st = SPARK_COMM_OK;
    if (host->member_count > 1)
        st = host->all_gather(host->context, &own, all, sizeof own, deadline_ns);
    for (int rank = 0; rank < host->member_count && st == SPARK_COMM_OK; rank++) {
        if (all[rank].prepared == 0)
            st = sc_host_fail(host, SPARK_COMM_NO_MEMORY, host->members[rank], 0,
                              "%s: rank %d is out of memory", operation, host->members[rank]);
        else if (all[rank].bytes != all[0].bytes)
            st = sc_host_fail(host, SPARK_COMM_MISMATCH, host->members[rank], 0,
                              "%s: rank %d asks for %llu bytes, rank %d for %llu", operation,
                              host->members[0], (unsigned long long)all[0].bytes,
                              host->members[rank], (unsigned long long)all[rank].bytes);
    }
    return st;
}

/* What one place of a pair holds: the area divided among the peers' places, in whole pages. */
static size_t pair_bytes(int ranks) {
    size_t places = (size_t)(ranks - 1) * SC_MAILBOX_PAIR_PLACES;
    size_t bytes = SC_MAILBOX_PAIR_AREA / places & ~(size_t)4095;
    return bytes < SC_MAILBOX_PAIR_MOST ? bytes : SC_MAILBOX_PAIR_MOST;
}

static void set_numbers(struct sc_mailbox_set *mail, int self, int ranks, uint32_t first) {
    mail->next_slot = mail->next_chunk = mail->next_swap = first;
    mail->swap_held = self;
    for (int rank = 0; rank < ranks; rank++) {
        mail->next_stream[rank] = first;
        mail->taken[rank] = first - 1;
        mail->to[rank] = mail->from[rank] = (struct sc_mailbox_pair){first, first - 1, 0};
    }
}

spark_comm_status sc_mailbox_open(struct sc_shm *shm, int64_t deadline_ns) {
    struct sc_mailbox_set *mail = &shm->mail;
    struct sc_world *world = sc_host_world(shm->host);
    struct sc_error error;
    size_t ranks = (size_t)shm->size;
    memset(mail, 0, sizeof *mail);
    sc_mapping_init(&mail->mapping);
    if (shm->size == 1) return SPARK_COMM_OK;
    mail->pair_bytes = pair_bytes(shm->size);
    size_t part =
        sizeof(struct sc_mailbox) + (ranks - 1) * SC_MAILBOX_PAIR_PLACES * mail->pair_bytes;
    sc_error_clear(&error);
    spark_comm_status st =
        sc_world_share(world, ranks * part, part, deadline_ns, &mail->mapping, &error);
    if (st != SPARK_COMM_OK) return sc_host_pass(shm->host, &error);
    for (int rank = 0; rank < shm->size; rank++) {
        mail->of[rank] = (void *)((unsigned char *)mail->mapping.address + (size_t)rank * part);
        mail->doorbells[rank] =
            sc_world_doorbell(world, shm->host->members[rank], SPARK_COMM_LANE_DATA);
    }
    set_numbers(mail, shm->rank, shm->size, 1);
    return SPARK_COMM_OK;
}

void sc_mailbox_leave(struct sc_shm *shm) {
    for (int rank = 0; rank < shm->size; rank++)
        if (rank != shm->rank && shm->mail.of[rank] != NULL)
            atomic_store_explicit(&shm->mail.of[rank]->left.value, 1, memory_order_release);
}

void sc_mailbox_close(struct sc_shm *shm) {
    sc_mapping_release(&shm->mail.mapping);
    memset(&shm->mail, 0, sizeof shm->mail);
    sc_mapping_init(&shm->mail.mapping);
}

/* The largest number below `first` that has `place`. */
static uint32_t before(uint32_t first, uint32_t place, uint32_t places) {
    return first - 1 - ((first - 1 - place) & (places - 1));
}

/* Relaxed stores: the caller's barrier orders them. */
void sc_mailbox_preset(struct sc_shm *shm, uint32_t first) {
    struct sc_mailbox *own = shm->mail.of[shm->rank];
    set_numbers(&shm->mail, shm->rank, shm->size, first);
    atomic_store_explicit(&own->swap.flag, first - 1, memory_order_relaxed);
    for (uint32_t i = 0; i < SC_MAILBOX_SLOTS; i++)
        atomic_store_explicit(&own->slot[i].flag, before(first, i, SC_MAILBOX_SLOTS),
                              memory_order_relaxed);
    for (uint32_t i = 0; i < SC_MAILBOX_CHUNKS; i++) {
        uint32_t number = before(first, i, SC_MAILBOX_CHUNKS);
        atomic_store_explicit(&own->chunk[i].ready, number, memory_order_relaxed);
        atomic_store_explicit(&own->chunk[i].reduced, number, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < SC_MAILBOX_STREAM_PLACES; i++)
        atomic_store_explicit(&own->stream[i].flag, before(first, i, SC_MAILBOX_STREAM_PLACES),
                              memory_order_relaxed);
    for (int rank = 0; rank < shm->size; rank++) {
        atomic_store_explicit(&own->stream_taken[rank].value, first - 1, memory_order_relaxed);
        atomic_store_explicit(&own->pair_taken[rank].value, first - 1, memory_order_relaxed);
        for (uint32_t i = 0; i < SC_MAILBOX_PAIR_PLACES; i++)
            atomic_store_explicit(&own->pair[rank][i].flag,
                                  before(first, i, SC_MAILBOX_PAIR_PLACES), memory_order_relaxed);
    }
}
