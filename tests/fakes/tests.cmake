# The fake libraries, and the contract tests run on them: the backend under test loads the fakes by
# the settings that name a library, and everything else is as on a machine with GPUs.
set(sc_fakes_output "${PROJECT_BINARY_DIR}/tests/fakes")

function(sc_add_fake name)
    add_library(${name} SHARED ${ARGN})
    set_target_properties(${name} PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY "${sc_fakes_output}" INSTALL_RPATH "$ORIGIN")
    target_include_directories(${name} PRIVATE
        "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${name} PRIVATE sc_build_options Threads::Threads)
    # What a thread has of a library that was opened late is freed by whoever joins the thread, which
    # the thread sanitizer takes for a race; in this model it is part of the thread's own block.
    target_compile_options(${name} PRIVATE -ftls-model=initial-exec)
endfunction()

file(GLOB fake_cuda_sources CONFIGURE_DEPENDS "${sc_folder_path}/cuda/*.c")
file(GLOB fake_nccl_sources CONFIGURE_DEPENDS "${sc_folder_path}/nccl/*.c")
sc_add_fake(fake_cuda ${fake_cuda_sources})
# As it is, one that lacks what came after 2.27, and one that lacks what it must have.
foreach(kind nccl nccl_old nccl_half)
    sc_add_fake(fake_${kind} ${fake_nccl_sources})
    target_link_libraries(fake_${kind} PRIVATE fake_cuda spark_comm_internal)
endforeach()
target_compile_definitions(fake_nccl_old PRIVATE FAKE_OLD)
target_compile_definitions(fake_nccl_half PRIVATE FAKE_OLD FAKE_HALF)

# The contract on the fakes: each program of it once more.
file(GLOB contract_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/contract/test_*.c")
# Backends from outside have nothing to do with devices.
list(FILTER contract_tests EXCLUDE REGEX "/test_backend_table.c$")
foreach(source IN LISTS contract_tests)
    get_filename_component(name "${source}" NAME_WE)
    string(REGEX REPLACE "^test_" "test_fake_" entry "${name}")
    add_test(NAME ${entry} COMMAND ${name})
    sc_finish_test(${entry} fakes 300 FALSE)
    set_tests_properties(${entry} PROPERTIES ENVIRONMENT
        "${sc_test_environment};SPARK_COMM_TEST_BACKEND=nccl;SC_FAKE_PAGEABLE=1;SPARK_COMM_TEST_CUDA_LIBRARY=$<TARGET_FILE:fake_cuda>;SPARK_COMM_TEST_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl>")
endforeach()

# Faults and streams of this backend have tests of their own, written with the harness of the contract.
set(sc_fakes_library contract_support spark_comm)
set(fake_environment "SPARK_COMM_TEST_BACKEND=nccl;SC_FAKE_PAGEABLE=1;SPARK_COMM_TEST_CUDA_LIBRARY=$<TARGET_FILE:fake_cuda>;SPARK_COMM_TEST_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl>")
file(GLOB fake_tests CONFIGURE_DEPENDS "${sc_folder_path}/test_nccl_*.c")
get_target_property(library_definitions spark_comm_objects COMPILE_DEFINITIONS)
set(fake_definitions "SC_FAKE_DIR=\"${sc_fakes_output}\"")
if("SC_HAVE_KERNELS=1" IN_LIST library_definitions)
    list(APPEND fake_definitions SC_HAVE_KERNELS=1)
endif()
foreach(source IN LISTS fake_tests)
    get_filename_component(name "${source}" NAME_WE)
    sc_add_test(${name} SOURCES "${source}" TIMEOUT 240
        DEFINITIONS ${fake_definitions})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${sc_test_environment};${fake_environment}")
    add_dependencies(${name} fake_cuda fake_nccl fake_nccl_old fake_nccl_half)
endforeach()
add_test(NAME test_fake_rank_killed COMMAND test_rank_killed)
sc_finish_test(test_fake_rank_killed fakes 120 TRUE)
set_tests_properties(test_fake_rank_killed PROPERTIES ENVIRONMENT
    "${sc_test_environment};${fake_environment}")
