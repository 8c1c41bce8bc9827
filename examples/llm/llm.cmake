# The engine, and the program that writes models of random weights for the demonstration and the tests.
file(GLOB sc_llm_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.c")
list(FILTER sc_llm_sources EXCLUDE REGEX "/random_model\\.c$")
sc_select_vector_sources(sc_llm_sources)

# sc_add_llm(target real): the engine with activations of that type.
function(sc_add_llm target real)
    add_executable(${target} ${sc_llm_sources})
    target_compile_definitions(${target} PRIVATE LLM_REAL=${real})
    target_link_libraries(${target} PRIVATE sc_build_options spark_comm m)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
endfunction()

sc_add_llm(llm float)
add_executable(llm_random_model "${CMAKE_CURRENT_LIST_DIR}/random_model.c")
target_link_libraries(llm_random_model PRIVATE sc_build_options m)
set_target_properties(llm_random_model PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
