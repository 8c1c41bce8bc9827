# GPU kernels: src/gpu/kernels/*.cu, compiled where nvcc is found into one fat binary per file
# (machine code for the listed architectures, and PTX of the newest one for those to come), then
# embedded as bytes that the library hands to the driver. Nothing of CUDA is linked. Without nvcc,
# or without a kernel, everything else builds and SC_HAVE_KERNELS stays undefined.
include_guard()

set(SPARK_COMM_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING
    "GPU architectures (sm_NN) that kernels are compiled for")

# sc_add_kernels(target): adds the embedded images to the target.
function(sc_add_kernels target)
    file(GLOB kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/gpu/kernels/*.cu")
    if(NOT SPARK_COMM_KERNELS OR NOT kernel_sources)
        return()
    endif()
    find_program(SPARK_COMM_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(NOT SPARK_COMM_NVCC)
        message(STATUS "nvcc not found: built without GPU kernels")
        return()
    endif()

    set(code_options "")
    foreach(architecture IN LISTS SPARK_COMM_CUDA_ARCHITECTURES)
        list(APPEND code_options "-gencode=arch=compute_${architecture},code=sm_${architecture}")
    endforeach()
    list(GET SPARK_COMM_CUDA_ARCHITECTURES -1 newest)
    list(APPEND code_options "-gencode=arch=compute_${newest},code=compute_${newest}")

    set(image_folder "${PROJECT_BINARY_DIR}/kernels")
    file(MAKE_DIRECTORY "${image_folder}")
    foreach(source IN LISTS kernel_sources)
        get_filename_component(name "${source}" NAME_WE)
        set(image "${image_folder}/${name}.fatbin")
        set(embedded "${image_folder}/${name}_image.c")
        file(GLOB kernel_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/gpu/kernels/*.cuh")
        add_custom_command(OUTPUT "${image}"
            COMMAND "${SPARK_COMM_NVCC}" -O3 --fatbin ${code_options}
                -I "${PROJECT_SOURCE_DIR}/src" -o "${image}" "${source}"
            DEPENDS "${source}" ${kernel_headers}
            COMMENT "Compiling kernels ${name}" VERBATIM)
        add_custom_command(OUTPUT "${embedded}"
            COMMAND "${CMAKE_COMMAND}" -D "IMAGE=${image}" -D "SYMBOL=sc_kernels_${name}"
                -D "OUTPUT=${embedded}" -P "${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake"
            DEPENDS "${image}" "${PROJECT_SOURCE_DIR}/cmake/embed_image.cmake"
            COMMENT "Embedding kernels ${name}" VERBATIM)
        target_sources(${target} PRIVATE "${embedded}")
    endforeach()
    target_compile_definitions(${target} PRIVATE SC_HAVE_KERNELS=1)
endfunction()
