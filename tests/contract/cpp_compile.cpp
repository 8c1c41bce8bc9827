// A small C++17 program against the public headers: opens alone, sums, closes. Both headers must be
// good C++, and every name must link with C linkage.
#include <spark_comm.h>
#include <spark_comm_backend.h>

#include <cstdint>
#include <cstdio>
#include <memory>

namespace {

struct Closer {
    void operator()(spark_comm *comm) const { spark_comm_close(comm); }
};

int fail(const char *what, spark_comm_status status) {
    std::fprintf(stderr, "%s: %s (%s)\n", what, spark_comm_status_name(status),
                 spark_comm_status_text(status));
    return 1;
}

}  // namespace

int main() {
    spark_comm_options options;
    spark_comm_options_init(&options, sizeof options);
    options.backend = "single";
    options.rank = 0;
    options.world_size = 1;
    options.dtype = SPARK_COMM_F32;

    spark_comm *raw = nullptr;
    spark_comm_status status = spark_comm_open(&options, &raw);
    if (status != SPARK_COMM_OK) return fail("open", status);
    std::unique_ptr<spark_comm, Closer> comm(raw);

    float values[4] = {1, 2, 3, 4};
    const auto pointer = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(values));
    status = spark_comm_all_reduce(comm.get(), pointer, sizeof values);
    if (status != SPARK_COMM_OK) return fail("all_reduce", status);

    spark_comm_backend table{};
    table.struct_size = sizeof table;
    table.abi_version = SPARK_COMM_BACKEND_ABI_VERSION + (1u << 16);
    spark_comm *none = nullptr;
    status = spark_comm_open_backend(&table, nullptr, &options, &none);
    if (status != SPARK_COMM_UNAVAILABLE || none != nullptr) return fail("open_backend", status);
    return spark_comm_rank(comm.get()) == 0 && values[3] == 4 ? 0 : 1;
}
