/* Names, texts and class of a status; names of operations. All come from one list each; unknown
 * values give a constant. */
#ifndef SC_BASE_STATUS_H
#define SC_BASE_STATUS_H

#include <spark_comm.h>

const char *sc_status_name(int status);
const char *sc_status_text(int status);
bool sc_status_is_fatal(int status);
/* "all_reduce", "broadcast", ...; "unknown" for others. */
const char *sc_status_operation_name(int operation);

#endif
