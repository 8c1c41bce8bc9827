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

# The example engine's reader of files, which is no part of the library either.
list(FILTER targets EXCLUDE REGEX "/fuzz_gguf[.]c$")
if(TARGET llm)
    add_executable(fuzz_gguf "${sc_folder_path}/fuzz_gguf.c" ${helpers}
        "${PROJECT_SOURCE_DIR}/examples/llm/gguf.c" "${PROJECT_SOURCE_DIR}/examples/llm/tokenizer.c")
    list(APPEND targets "${sc_folder_path}/fuzz_gguf.c")
endif()
