# The example engine, on small models of random weights, and on the real one where it was fetched.
if(CMAKE_CROSSCOMPILING OR NOT TARGET spark-comm OR NOT TARGET llm)
    set(tests "")
    set(scripts "")
    return()
endif()

sc_add_llm(llm_double double)
add_executable(llm_compare_logits "${sc_folder_path}/compare_logits.c")
target_link_libraries(llm_compare_logits PRIVATE sc_build_options m)
set_target_properties(llm_compare_logits PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
set(sc_folder_helpers "")

# The parts, by themselves: everything of the engine but its main.
set(llm_parts ${sc_llm_sources})
list(FILTER llm_parts EXCLUDE REGEX "/main\\.c$")
foreach(source IN LISTS tests)
    get_filename_component(name "${source}" NAME_WE)
    sc_add_test(${name} SOURCES "${source}" ${llm_parts} 
        ARGS $<TARGET_FILE:llm_random_model> "${sc_folder_path}/reference.txt")
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/examples/llm")
endforeach()
foreach(script IN LISTS scripts)
    get_filename_component(name "${script}" NAME_WE)
    add_test(NAME ${name} COMMAND bash "${script}" $<TARGET_FILE:spark-comm>)
    sc_finish_test(${name} llm 120 FALSE)
endforeach()

# Where scripts/fetch_model.sh puts the real model; the tests that use it say so when it is not there.
set(llm_model "${PROJECT_SOURCE_DIR}/.cache/llm/SmolLM2-135M-Instruct.Q4_1.gguf")
set_property(TEST test_llm_reference test_llm_model APPEND PROPERTY
    ENVIRONMENT "SC_LLM_MODEL=${llm_model}")
