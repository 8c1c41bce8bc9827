/*
 * A backend in one file, written against spark_comm_backend.h alone: the example of
 * docs/backends.md, and what the contract tests run beside the library's own backends to see that
 * nothing in the library leans on those.
 *
 * Its ranks are threads or processes of one host. Rank 0 makes an anonymous file in memory; the
 * others open it through /proc/PID/fd and map it. Every collective is one primitive, an exchange of
 * chunks through that memory.
 *
 * What it does not prove: speed, weak memory orders beyond plain acquire and release, more than one
 * host, symmetric memory and kernels (their members are NULL, so the library answers
 * NOT_SUPPORTED), and survival of a rank that dies in the middle (its waits end by the library's
 * poison).
 */
#ifndef MOCK_BACKEND_H
#define MOCK_BACKEND_H

#include <spark_comm_backend.h>

/* As a module the same table has the name that the library looks for. */
#ifdef MOCK_BACKEND_IS_MODULE
#define mock_backend spark_comm_backend_module
__attribute__((visibility("default")))
#endif
extern const spark_comm_backend mock_backend;

#endif
