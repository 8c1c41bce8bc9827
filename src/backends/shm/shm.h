/* The shm backend: ranks of one host, threads or processes, in host memory. mailbox.h shows what
 * they share and why it is safe, paths.c which way a call takes, channels.h what each way can do.
 * */
#ifndef SC_SHM_SHM_H
#define SC_SHM_SHM_H

#include <spark_comm_backend.h>

extern const spark_comm_backend sc_shm_backend;

#endif
