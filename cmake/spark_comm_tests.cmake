# Tests. A file that follows the naming is a test with no further words:
#
#   tests/unit/test_*.c       internal functions, linked with the internal archive
#   tests/contract/test_*.c   the public interface, linked with the shared library alone
#   tests/faults/test_*.c     injected faults, linked with the internal archive (for ld --wrap)
#   tests/cli/test_*.c        the program
#   tests/llm/test_*.c        the example engine, linked with its parts
#   tests/<folder>/test_*.sh  a script, called with the source and the build folder
#   tests/checks/check_*.sh   rules of the source tree, called in the same way
#   tests/fuzz/fuzz_*.c       a parser, replayed over tests/fuzz/corpus/<name without fuzz_>/
#
# Other .c files in such a folder are helpers, linked into each of its tests; those in
# tests/support/ are linked into all tests. tests/<folder>/tests.cmake, if there, is included before
# the folder's files are looked through: what it adds with sc_add_test takes that name, so it can
# give one test other limits, libraries or arguments, and leave the rest to the rule.
# A test that cannot run here exits with 77 and prints why.
include_guard()

set(SC_TEST_FOLDERS unit contract faults cli fakes gpu llm)

# 15 seconds and more under a sanitizer. They start first, so that none is left to run alone.
set(SC_LONG_TESTS test_threads test_reports test_life test_wait test_shm test_shm_direct
    test_all_reduce test_reduce_scatter test_mismatch test_rank_killed test_reconnect
    test_world_limits test_world_verdict test_open_alone test_nccl_faults test_nccl_soak
    test_fake_threads test_fake_life)

# These measure milliseconds from a fault to the error, so nothing runs beside them, ever.
set(SC_TIGHT_TESTS test_verdict test_rank_killed test_world_kill test_cut_off test_reconnect_abort
    test_world_heir test_world_verdict)

set(sc_unit_timeout 60)
set(sc_unit_library spark_comm_internal)
set(sc_contract_timeout 300)
set(sc_contract_library spark_comm)
set(sc_faults_timeout 120)
set(sc_faults_library spark_comm_internal)
set(sc_cli_timeout 120)
set(sc_cli_library spark_comm)
set(sc_fakes_timeout 60)
set(sc_fakes_library spark_comm_internal)
set(sc_llm_timeout 120)
set(sc_llm_library spark_comm)
set(sc_gpu_timeout 300)
set(sc_gpu_library spark_comm)

# Under a sanitizer or an emulator everything takes longer; the limits above are for the release.
set(sc_timeout_factor 1)
if(SPARK_COMM_SANITIZE)
    set(sc_timeout_factor 3)
elseif(CMAKE_CROSSCOMPILING)
    set(sc_timeout_factor 4)
endif()

set(sc_test_environment
    "SC_TEST_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "SC_TEST_BUILD_DIR=${PROJECT_BINARY_DIR}"
    "SC_TEST_PROGRAM=${PROJECT_BINARY_DIR}/spark-comm")
if(SPARK_COMM_SANITIZE)
    list(APPEND sc_test_environment
        "ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=1"
        "UBSAN_OPTIONS=print_stacktrace=1")
    set(tsan_options "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0")
    if(EXISTS "${PROJECT_SOURCE_DIR}/tests/tsan.supp")
        string(APPEND tsan_options ":suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
    endif()
    list(APPEND sc_test_environment "TSAN_OPTIONS=${tsan_options}")
endif()

# sc_finish_test(name label timeout serial): the properties that all tests have.
function(sc_finish_test name label timeout serial)
    math(EXPR limit "${timeout} * ${sc_timeout_factor}")
    set_tests_properties(${name} PROPERTIES
        LABELS "${label}"
        TIMEOUT ${limit}
        SKIP_RETURN_CODE 77
        ENVIRONMENT "${sc_test_environment}")
    # Most limits are wide enough for a test beside when a sanitizer runs.
    if(serial AND (NOT SPARK_COMM_SANITIZE OR name IN_LIST SC_TIGHT_TESTS))
        set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    endif()
    if(name IN_LIST SC_LONG_TESTS)
        set_tests_properties(${name} PROPERTIES COST 1000)
    endif()
endfunction()

# sc_add_test(NAME SOURCES... [ARGS...] [LIBRARIES...] [LINK_OPTIONS...] [DEFINITIONS...]
#             [LABEL label] [TIMEOUT seconds] [SERIAL] [NO_CMOCKA])
# One executable and its entry. LIBRARIES replaces what the folder's tests link with. Several
# entries of one executable: call add_test and sc_finish_test for the others.
function(sc_add_test name)
    cmake_parse_arguments(PARSE_ARGV 1 test "SERIAL;NO_CMOCKA" "LABEL;TIMEOUT"
        "SOURCES;ARGS;LIBRARIES;LINK_OPTIONS;DEFINITIONS")
    if(NOT test_LABEL)
        set(test_LABEL "${sc_folder}")
    endif()
    if(NOT test_TIMEOUT)
        set(test_TIMEOUT "${sc_${sc_folder}_timeout}")
    endif()
    if(NOT test_LIBRARIES)
        set(test_LIBRARIES "${sc_${sc_folder}_library}")
    endif()
    if(sc_folder STREQUAL "faults")
        set(test_SERIAL TRUE)
    endif()
    list(TRANSFORM test_SOURCES PREPEND "${sc_folder_path}/" REGEX "^[^/]")

    add_executable(${name} ${test_SOURCES} ${sc_folder_helpers} ${sc_support_sources})
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/${sc_folder}")
    target_include_directories(${name} PRIVATE
        "${sc_folder_path}" "${PROJECT_SOURCE_DIR}/tests/support" "${PROJECT_SOURCE_DIR}/tests"
        "${PROJECT_SOURCE_DIR}/include")
    target_compile_definitions(${name} PRIVATE ${test_DEFINITIONS})
    # Tests check with assert too: it stays on whatever the build type.
    target_compile_options(${name} PRIVATE -UNDEBUG)
    target_link_options(${name} PRIVATE ${test_LINK_OPTIONS})
    target_link_libraries(${name} PRIVATE sc_build_options ${test_LIBRARIES} Threads::Threads m)
    if(NOT test_NO_CMOCKA)
        target_link_libraries(${name} PRIVATE PkgConfig::CMOCKA)
    endif()
    add_test(NAME ${name} COMMAND ${name} ${test_ARGS})
    sc_finish_test(${name} ${test_LABEL} ${test_TIMEOUT} "${test_SERIAL}")
endfunction()

# sc_add_script(name path label timeout): a shell script as a test.
function(sc_add_script name path label timeout)
    add_test(NAME ${name} COMMAND bash "${path}" "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
    sc_finish_test(${name} ${label} ${timeout} FALSE)
endfunction()

function(sc_add_folder sc_folder)
    set(sc_folder_path "${PROJECT_SOURCE_DIR}/tests/${sc_folder}")
    file(GLOB sc_folder_helpers CONFIGURE_DEPENDS "${sc_folder_path}/*.c")
    file(GLOB tests CONFIGURE_DEPENDS "${sc_folder_path}/test_*.c")
    file(GLOB scripts CONFIGURE_DEPENDS "${sc_folder_path}/test_*.sh")
    list(FILTER sc_folder_helpers EXCLUDE REGEX "/test_[^/]*$")
    include("${sc_folder_path}/tests.cmake" OPTIONAL)
    foreach(source IN LISTS tests)
        get_filename_component(name "${source}" NAME_WE)
        if(NOT TARGET ${name})
            sc_add_test(${name} SOURCES "${source}")
        endif()
    endforeach()
    if(CMAKE_CROSSCOMPILING)
        return() # scripts start the program by itself, past the emulator
    endif()
    foreach(script IN LISTS scripts)
        get_filename_component(name "${script}" NAME_WE)
        if(NOT TEST ${name})
            sc_add_script(${name} "${script}" ${sc_folder} ${sc_${sc_folder}_timeout})
        endif()
    endforeach()
endfunction()

# A target that tests/fuzz/tests.cmake has made itself gets the rest here.
# With SPARK_COMM_FUZZ the targets are libFuzzer programs; otherwise a small driver of ours feeds
# them the corpus. Both take the same arguments here, and an entry only replays the corpus:
# scripts/fuzz.sh is what looks for new inputs.
function(sc_add_fuzz_targets)
    set(sc_folder_path "${PROJECT_SOURCE_DIR}/tests/fuzz")
    file(GLOB targets CONFIGURE_DEPENDS "${sc_folder_path}/fuzz_*.c")
    file(GLOB helpers CONFIGURE_DEPENDS "${sc_folder_path}/*.c")
    list(FILTER helpers EXCLUDE REGEX "/fuzz_[^/]*$")
    include("${sc_folder_path}/tests.cmake" OPTIONAL)
    foreach(source IN LISTS targets)
        get_filename_component(name "${source}" NAME_WE)
        string(REGEX REPLACE "^fuzz_" "" stem "${name}")
        if(NOT TARGET ${name})
            add_executable(${name} "${source}" ${helpers})
        endif()
        set_target_properties(${name} PROPERTIES
            RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/fuzz")
        target_include_directories(${name} PRIVATE "${sc_folder_path}" "${PROJECT_SOURCE_DIR}/tests")
        target_link_libraries(${name} PRIVATE sc_build_options spark_comm_internal)
        if(SPARK_COMM_FUZZ)
            target_link_options(${name} PRIVATE -fsanitize=fuzzer)
        else()
            target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/replay_corpus.c")
        endif()
        add_test(NAME ${name} COMMAND ${name} -runs=0 "${sc_folder_path}/corpus/${stem}")
        sc_finish_test(${name} fuzz 60 FALSE)
    endforeach()
endfunction()

# The rules of the source tree do not depend on the build; one plain build checks them.
function(sc_add_checks)
    if(SPARK_COMM_SANITIZE OR CMAKE_CROSSCOMPILING OR SPARK_COMM_FUZZ)
        return()
    endif()
    file(GLOB scripts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/checks/check_*.sh")
    foreach(script IN LISTS scripts)
        get_filename_component(name "${script}" NAME_WE)
        sc_add_script(${name} "${script}" checks 120)
    endforeach()
endfunction()

function(sc_add_all_tests)
    file(GLOB sc_support_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/support/*.c")
    foreach(folder IN LISTS SC_TEST_FOLDERS)
        sc_add_folder(${folder})
    endforeach()
    sc_add_fuzz_targets()
    sc_add_checks()
endfunction()

# sc_add_programs(kind library sources...): one program per file, in <build>/<kind>s or <build>/bench.
function(sc_add_programs kind library)
    foreach(source IN LISTS ARGN)
        get_filename_component(name "${source}" NAME_WE)
        if(kind STREQUAL "example")
            add_executable(example_${name} "${source}")
            set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name}
                RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
            target_link_libraries(example_${name} PRIVATE sc_build_options ${library} Threads::Threads m)
        else()
            add_executable(bench_${name} EXCLUDE_FROM_ALL "${source}")
            set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name}
                RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
            target_link_libraries(bench_${name} PRIVATE sc_build_options ${library} Threads::Threads m)
            add_dependencies(benchmarks bench_${name})
        endif()
    endforeach()
endfunction()
