# The world once more with host identities made different, so that everything goes over TCP; and
# 256 ranks of both kinds.
sc_add_test(test_world_tcp
    SOURCES test_world.c
    DEFINITIONS WORLD_OVER_TCP=1
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id)
sc_add_test(test_world_many
    SOURCES test_world_many.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id
    TIMEOUT 120
    SERIAL)
# A name service that gives no answer; a reconnect at the very moment that a refused call asks why.
sc_add_test(test_lookup SOURCES test_lookup.c LINK_OPTIONS LINKER:--wrap=getaddrinfo)
sc_add_test(test_gate SOURCES test_gate.c LINK_OPTIONS LINKER:--wrap=sc_world_cause)
# The reader of the program spark-comm trace, held against the recorder that writes its files.
if(TARGET spark-comm)
    file(GLOB trace_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cli/trace_*.c")
    sc_add_test(test_trace_files
        SOURCES test_trace_files.c ${trace_sources} "${PROJECT_SOURCE_DIR}/cli/perf_values.c"
        LIBRARIES spark_comm_internal PkgConfig::JANSSON)
    target_include_directories(test_trace_files PRIVATE "${PROJECT_SOURCE_DIR}/cli")
else()
    list(FILTER tests EXCLUDE REGEX "/test_trace_files[.]c$")
endif()
