# The program's tests are scripts that get its path, and skip where it is not built. Under an
# emulator they would start it past the emulator.
if(CMAKE_CROSSCOMPILING OR NOT TARGET spark-comm)
    return()
endif()

# Put in front of the library to make it wrong. A sanitizer's runtime must come first itself.
set(wrong_answer "")
if(NOT SPARK_COMM_SANITIZE)
    add_library(cli_wrong_answer MODULE "${sc_folder_path}/wrong_answer.c")
    target_include_directories(cli_wrong_answer PRIVATE "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(cli_wrong_answer PRIVATE sc_build_options ${CMAKE_DL_LIBS})
    set(wrong_answer $<TARGET_FILE:cli_wrong_answer>)
endif()

foreach(script IN LISTS scripts)
    get_filename_component(name "${script}" NAME_WE)
    add_test(NAME ${name} COMMAND bash "${script}" $<TARGET_FILE:spark-comm> ${wrong_answer})
    sc_finish_test(${name} cli 120 FALSE)
endforeach()
