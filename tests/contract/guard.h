/*
 * Buffers that notice what is written or read around them. An arena is memory between two pages
 * that cannot be touched; a buffer placed in it leans against one of them, so that a stray read
 * faults at once, and has guard bytes on the other side (and in the gap that its alignment leaves),
 * so that a stray write shows afterwards. One buffer at a time per arena.
 */
#ifndef CONTRACT_GUARD_H
#define CONTRACT_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Set before the first arena: where arenas come from instead, and go to (memory that a GPU reaches too;
 * it has no pages that cannot be touched). */
extern void *(*guard_allocate)(size_t bytes);
extern void (*guard_release)(void *memory);

struct guard_arena {
    unsigned char *map; /* NULL: not open */
    size_t map_bytes;
    size_t capacity; /* of one buffer */
};

struct guard_buffer {
    unsigned char *data;
    size_t bytes;
    unsigned char *front; /* guard bytes before data */
    size_t front_bytes;
    unsigned char *back; /* and behind it */
    size_t back_bytes;
};

/* Makes room for buffers of up to `capacity` bytes; grows an open arena (its buffer is gone then).
 * False: no memory. */
bool guard_arena_reserve(struct guard_arena *arena, size_t capacity);
void guard_arena_close(struct guard_arena *arena);
/* A buffer whose address is `misalign` (0 to 63) above a multiple of 64. at_end: it leans against
 * the page behind it. The payload is left as it is. */
void guard_place(const struct guard_arena *arena, size_t bytes, unsigned misalign, bool at_end,
                 struct guard_buffer *buffer);
/* NULL while all guard bytes are whole, else where one is broken, such as "3 bytes behind the
 * buffer" (in `text`). */
const char *guard_broken(const struct guard_buffer *buffer, char *text, size_t size);

static inline uint64_t guard_address(const struct guard_buffer *buffer) {
    return (uint64_t)(uintptr_t)buffer->data;
}

#endif
