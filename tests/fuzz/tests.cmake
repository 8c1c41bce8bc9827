# The trace reader is the program's, not the library's.
list(FILTER targets EXCLUDE REGEX "/fuzz_trace[.]c$")
if(TARGET spark-comm)
    file(GLOB trace_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cli/trace_*.c")
    add_executable(fuzz_trace "${sc_folder_path}/fuzz_trace.c" ${helpers}
        ${trace_sources} "${PROJECT_SOURCE_DIR}/cli/perf_values.c")
    target_include_directories(fuzz_trace PRIVATE "${PROJECT_SOURCE_DIR}/cli")
    target_link_libraries(fuzz_trace PRIVATE PkgConfig::JANSSON)
    list(APPEND targets "${sc_folder_path}/fuzz_trace.c")
endif()
