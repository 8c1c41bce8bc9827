/* The memory that all ranks of a world and the test program share. Private to the harness. */
#ifndef CONTRACT_HARNESS_BOARD_H
#define CONTRACT_HARNESS_BOARD_H

#include "harness.h"

#define BOARD_FAILURES 6 /* kept per rank; later ones are only counted */
#define BOARD_SAME 8192 /* results kept per rank for comparison; later ones are mixed into these */

struct board_failure {
    int line;
    char file[80];
    char step[160];
    char text[900];
};

/* Written by its rank alone, read by the program when the rank has ended. */
struct board_slot {
    _Alignas(64) _Atomic int failures;
    _Atomic int ended;
    _Atomic int may_die;
    _Atomic int port_taken; /* open found the port in use: the world is tried again with another */
    struct board_failure kept[BOARD_FAILURES];
    char step[160];
    uint64_t same[BOARD_SAME];
    uint64_t same_count;
};

struct harness_board {
    _Alignas(64) _Atomic uint64_t met;
    _Alignas(64) _Atomic uint64_t words[HARNESS_WORDS];
    struct board_slot slots[HARNESS_MAX_RANKS];
};

/* What every rank does, from open to close. */
void harness_rank_main(struct harness_rank *rank);

#endif
