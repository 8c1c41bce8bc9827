/*
 * Names and texts of statuses, from the list in spark_comm.h, and names of operations. Constants
 * only: any thread, no state.
 */
#include "base/status.h"

const char *sc_status_name(int status) {
    switch (status) {
#define NAME_CASE(name, value, text) \
    case value: return #name;
        SPARK_COMM_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    default: return "SPARK_COMM_UNKNOWN";
    }
}

const char *sc_status_text(int status) {
    switch (status) {
#define TEXT_CASE(name, value, text) \
    case value: return text;
        SPARK_COMM_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    default: return "unknown status";
    }
}

bool sc_status_is_fatal(int status) {
    return status >= 200 && status <= 299;
}

const char *sc_status_operation_name(int operation) {
    static const char *const names[] = {
        [SPARK_COMM_OP_NONE] = "none",
        [SPARK_COMM_OP_ALL_REDUCE] = "all_reduce",
        [SPARK_COMM_OP_ALL_GATHER] = "all_gather",
        [SPARK_COMM_OP_REDUCE_SCATTER] = "reduce_scatter",
        [SPARK_COMM_OP_BROADCAST] = "broadcast",
        [SPARK_COMM_OP_BARRIER] = "barrier",
        [SPARK_COMM_OP_SEND_TO] = "send_to",
        [SPARK_COMM_OP_RECV_FROM] = "recv_from",
        [SPARK_COMM_OP_GROUP] = "group",
        [SPARK_COMM_OP_SEND_COMMAND] = "send_command",
        [SPARK_COMM_OP_RECV_COMMAND] = "recv_command",
        [SPARK_COMM_OP_RECV_COMMAND_U32] = "recv_command_u32",
        [SPARK_COMM_OP_EXCHANGE_HOST] = "exchange_host",
        [SPARK_COMM_OP_SYMMETRIC_ALLOC] = "symmetric_alloc",
        [SPARK_COMM_OP_SYMMETRIC_FREE] = "symmetric_free",
        [SPARK_COMM_OP_REGISTER_BUFFER] = "register_buffer",
        [SPARK_COMM_OP_DEREGISTER_BUFFER] = "deregister_buffer",
        [SPARK_COMM_OP_SET_ADD_KERNEL] = "set_add_kernel",
        [SPARK_COMM_OP_OPEN] = "open",
        [SPARK_COMM_OP_RECONNECT] = "reconnect",
        [SPARK_COMM_OP_CLOSE] = "close",
    };
    _Static_assert(sizeof names / sizeof names[0] == SPARK_COMM_OP_COUNT,
                   "every operation has a name");

    if (operation < 0 || operation >= SPARK_COMM_OP_COUNT) return "unknown";
    return names[operation];
}
