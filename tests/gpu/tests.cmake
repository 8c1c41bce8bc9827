# Declarations of our own against NVIDIA's headers, where those are installed; and programs for machines
# with GPUs, which tests/gpu/check runs.
find_path(SC_CUDA_INCLUDE cudaTypedefs.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
find_path(SC_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
if(SC_CUDA_INCLUDE AND SC_NCCL_INCLUDE)
    sc_add_test(test_declarations NO_CMOCKA LIBRARIES spark_comm_internal
        SOURCES declarations/cuda.c declarations/nccl.c declarations/layout.c)
    target_include_directories(test_declarations SYSTEM PRIVATE ${SC_CUDA_INCLUDE} ${SC_NCCL_INCLUDE})
else()
    message(STATUS "nccl.h or cudaTypedefs.h not found: our declarations are not compared with them")
endif()

# Not tests: what a call costs, a rank that is replaced again and again, sums on memory of either kind. Run by
# tests/gpu/check.
foreach(program host_cost replaced granted)
    add_executable(gpu_${program} "${sc_folder_path}/programs/${program}.c"
        "${PROJECT_SOURCE_DIR}/tests/support/device/device.c")
    set_target_properties(gpu_${program} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/gpu")
    target_include_directories(gpu_${program} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/device")
    target_link_libraries(gpu_${program} PRIVATE sc_build_options spark_comm_internal)
endforeach()
add_executable(gpu_nccl_offers EXCLUDE_FROM_ALL "${sc_folder_path}/programs/nccl_offers.c")
set_target_properties(gpu_nccl_offers PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/gpu")
target_link_libraries(gpu_nccl_offers PRIVATE sc_build_options spark_comm_internal)
