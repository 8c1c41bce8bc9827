/* The backend of one rank alone: every operation succeeds at once and touches no memory. */
#ifndef SC_BACKENDS_SINGLE_H
#define SC_BACKENDS_SINGLE_H

#include <spark_comm_backend.h>

extern const spark_comm_backend sc_single_backend;

#endif
