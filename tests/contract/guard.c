/* Guarded buffers: see guard.h. */
#include "guard.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_BYTES 192u /* on the side that does not lean; a line more than the widest vector */

void *(*guard_allocate)(size_t bytes);
void (*guard_release)(void *memory);

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static unsigned char guard_byte(const unsigned char *at) {
    return (unsigned char)(0xa5u ^ ((uintptr_t)at * 31u & 0xffu));
}

bool guard_arena_reserve(struct guard_arena *arena, size_t capacity) {
    const size_t page = page_size();
    if (arena->map != NULL && arena->capacity >= capacity) return true;
    guard_arena_close(arena);
    const size_t inside = (capacity + 64 + GUARD_BYTES + page - 1) / page * page;
    if (guard_allocate != NULL) {
        unsigned char *given = guard_allocate(inside + 2 * page);
        if (given == NULL) return false;
        *arena = (struct guard_arena){given, inside + 2 * page, capacity};
        return true;
    }
    unsigned char *map =
        mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return false;
    if (mprotect(map + page, inside, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, inside + 2 * page);
        return false;
    }
    *arena = (struct guard_arena){map, inside + 2 * page, capacity};
    return true;
}

void guard_arena_close(struct guard_arena *arena) {
    if (arena->map != NULL && guard_release != NULL)
        guard_release(arena->map);
    else if (arena->map != NULL)
        munmap(arena->map, arena->map_bytes);
    *arena = (struct guard_arena){NULL, 0, 0};
}

void guard_place(const struct guard_arena *arena, size_t bytes, unsigned misalign, bool at_end,
                 struct guard_buffer *buffer) {
    const size_t page = page_size();
    unsigned char *first = arena->map + page;
    unsigned char *end = arena->map + arena->map_bytes - page;
    buffer->bytes = bytes;
    if (at_end) {
        const size_t gap = ((uintptr_t)end - bytes - misalign) % 64;
        buffer->data = end - bytes - gap;
        buffer->back_bytes = gap;
        buffer->front_bytes = (size_t)(buffer->data - first) < GUARD_BYTES
                                  ? (size_t)(buffer->data - first)
                                  : GUARD_BYTES;
    } else {
        buffer->data = first + misalign;
        buffer->front_bytes = misalign;
        buffer->back_bytes = GUARD_BYTES;
    }
    buffer->front = buffer->data - buffer->front_bytes;
    buffer->back = buffer->data + bytes;
    for (size_t i = 0; i < buffer->front_bytes; i++)
        buffer->front[i] = guard_byte(&buffer->front[i]);
    for (size_t i = 0; i < buffer->back_bytes; i++)
        buffer->back[i] = guard_byte(&buffer->back[i]);
}

const char *guard_broken(const struct guard_buffer *buffer, char *text, size_t size) {
    for (size_t i = 0; i < buffer->front_bytes; i++) {
        if (buffer->front[i] == guard_byte(&buffer->front[i])) continue;
        snprintf(text, size, "%zu bytes before the buffer", buffer->front_bytes - i);
        return text;
    }
    for (size_t i = 0; i < buffer->back_bytes; i++) {
        if (buffer->back[i] == guard_byte(&buffer->back[i])) continue;
        snprintf(text, size, "%zu bytes behind the buffer", i + 1);
        return text;
    }
    return NULL;
}
