/* The one list of backends that every contract test runs on. A new backend is one row. */
#include "contract.h"
#include "mock_backend.h"

const struct harness_backend contract_backends[] = {
    {.name = "single", .max_world = 1, .thinning = 1},
    {.name = "shm", .max_world = 4, .moves_data = true, .has_symmetric = true, .thinning = 1},
    {.name = "nccl",
     .max_world = 4,
     .moves_data = true,
     .has_symmetric = true,
     .thinning = 8,
     .on_device = true},
    {.name = "mock", .table = &mock_backend, .max_world = 4, .moves_data = true, .thinning = 16},
};
const size_t contract_backend_count = sizeof contract_backends / sizeof contract_backends[0];
