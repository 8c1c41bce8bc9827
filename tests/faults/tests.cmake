# Faults of a whole communicator use the harness of the contract tests, beside the internal archive.
set(sc_faults_library contract_support spark_comm_internal)

# The allocator that a test can make fail comes first, so the archive's own is not taken.
sc_add_test(test_open_exhausted
    SOURCES test_open_exhausted.c "${PROJECT_SOURCE_DIR}/src/base/alloc.c"
    DEFINITIONS SPARK_COMM_TESTING)

# The world alone: host identities, versions and addresses are pretended through the linker.
sc_add_test(test_world_kill
    SOURCES test_world_kill.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id)
sc_add_test(test_world_refusals
    SOURCES test_world_refusals.c
    LINK_OPTIONS LINKER:--wrap=spark_comm_version LINKER:--wrap=sc_socket_is_loopback
        LINKER:--wrap=sc_socket_same_host)
sc_add_test(test_world_limits
    SOURCES test_world_limits.c "${PROJECT_SOURCE_DIR}/src/base/alloc.c"
    DEFINITIONS SPARK_COMM_TESTING)

# Reconnect: another build of the library is pretended.
sc_add_test(test_reconnect
    SOURCES test_reconnect.c
    LINK_OPTIONS LINKER:--wrap=spark_comm_version)
# And ranks that die at a chosen step of it.
sc_add_test(test_reconnect_lost
    SOURCES test_reconnect_lost.c
    LINK_OPTIONS LINKER:--wrap=sc_world_agree LINKER:--wrap=sc_link_send
        LINKER:--wrap=sc_socket_resolve
    TIMEOUT 300)
sc_add_test(test_world_reconnect
    SOURCES test_world_reconnect.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id)

sc_add_test(test_world_verdict
    SOURCES test_world_verdict.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id)

# Loops that a soak makes longer.
sc_add_test(test_verdict SOURCES test_verdict.c TIMEOUT 400)
sc_add_test(test_last_barrier SOURCES test_last_barrier.c TIMEOUT 300)
sc_add_test(test_mismatch SOURCES test_mismatch.c TIMEOUT 300)

# Abort at a chosen step of a reconnect.
sc_add_test(test_reconnect_abort
    SOURCES test_reconnect_abort.c
    LINK_OPTIONS LINKER:--wrap=sc_monitor_stop LINKER:--wrap=sc_world_settle
        LINKER:--wrap=sc_world_agree)
# The hub's successors, between hosts: who dials whom at which moment, and a head that stalls.
sc_add_test(test_world_heir
    SOURCES test_world_heir.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id LINKER:--wrap=sc_socket_connect_start
        LINKER:--wrap=sc_judge_step)
# Memory that runs out at every point of a reconnect.
sc_add_test(test_reconnect_memory
    SOURCES test_reconnect_memory.c "${PROJECT_SOURCE_DIR}/src/base/alloc.c"
    DEFINITIONS SPARK_COMM_TESTING)
# Random faults: each rank's connections go through a network that can be taken away.
sc_add_test(test_soak
    SOURCES test_soak.c
    LINK_OPTIONS LINKER:--wrap=socket
    TIMEOUT 900 NO_CMOCKA)

# A stopped head keeps its port, so its replacement is elsewhere.
sc_add_test(test_zombie
    SOURCES test_zombie.c
    LINK_OPTIONS LINKER:--wrap=sc_socket_resolve
    TIMEOUT 400)
