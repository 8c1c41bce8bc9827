# The contract tests follow the rule of the folder; here is what goes beyond it: the harness compiled
# once for all of them, the backend modules that test_backend_table opens by name, and a smaller
# matrix under an emulator.
add_library(contract_support STATIC EXCLUDE_FROM_ALL
    ${sc_folder_helpers} "${PROJECT_SOURCE_DIR}/tests/support/device/device.c")
target_include_directories(contract_support PUBLIC
    "${sc_folder_path}" "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/tests/support/device")
target_compile_options(contract_support PRIVATE -UNDEBUG)
target_link_libraries(contract_support PRIVATE sc_build_options PkgConfig::CMOCKA Threads::Threads)
set(sc_folder_helpers "")
set(sc_contract_library contract_support spark_comm)

set(contract_modules "${PROJECT_BINARY_DIR}/tests/contract/modules")

function(sc_add_contract_module name)
    add_library(contract_${name} MODULE ${ARGN})
    set_target_properties(contract_${name} PROPERTIES
        OUTPUT_NAME spark_comm_${name}
        LIBRARY_OUTPUT_DIRECTORY "${contract_modules}")
    target_include_directories(contract_${name} PRIVATE "${sc_folder_path}" "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(contract_${name} PRIVATE sc_build_options)
endfunction()

sc_add_contract_module(mockmodule
    "${sc_folder_path}/mock_backend.c" "${sc_folder_path}/mock_messages.c" "${sc_folder_path}/mock_reduce.c")
target_compile_definitions(contract_mockmodule PRIVATE MOCK_BACKEND_IS_MODULE)
sc_add_contract_module(oldmodule "${sc_folder_path}/modules/old_module.c")
sc_add_contract_module(emptymodule "${sc_folder_path}/modules/empty_module.c")
file(WRITE "${contract_modules}/libspark_comm_brokenmodule.so" "this is no library\n")

if(CMAKE_CROSSCOMPILING)
    # An emulated rank is 10 to 30 times slower.
    list(APPEND sc_test_environment "SPARK_COMM_TEST_LEVEL=0")
endif()

sc_add_test(test_backend_table SOURCES test_backend_table.c
    DEFINITIONS "CONTRACT_MODULE_DIR=\"${contract_modules}\"")
add_dependencies(test_backend_table contract_mockmodule contract_oldmodule contract_emptymodule)
