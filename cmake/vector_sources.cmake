# Vector code: a file says by its name which instructions it may use. It gets the flags for them,
# and only it; on another architecture it is left out. Which of the files runs is decided at run
# time by the code in src/base.
include_guard()
include(CheckCSourceCompiles)

set(sc_flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(sc_flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi2)
set(sc_flags_avx512bf16 ${sc_flags_avx512} -mavx512bf16)
set(sc_flags_neon "")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(sc_vector_kinds avx2 avx512 avx512bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(sc_vector_kinds neon)
else()
    set(sc_vector_kinds "")
endif()

# sc_select_vector_sources(list_variable): takes the files of other architectures out of the list,
# and gives the others their flags. Each kind that is built defines SC_HAVE_<KIND> for all sources.
function(sc_select_vector_sources list_variable)
    set(kept "")
    set(definitions "")
    foreach(source IN LISTS ${list_variable})
        if(NOT source MATCHES "_(avx2|avx512|avx512bf16|neon)\\.c$")
            list(APPEND kept "${source}")
            continue()
        endif()
        set(kind "${CMAKE_MATCH_1}")
        if(NOT kind IN_LIST sc_vector_kinds)
            continue()
        endif()
        # An old compiler may lack the newest set; then the code does without that file.
        string(REPLACE ";" " " flags "${sc_flags_${kind}}")
        set(CMAKE_REQUIRED_FLAGS "${flags}")
        check_c_source_compiles("int main(void) { return 0; }" sc_compiler_has_${kind})
        if(NOT sc_compiler_has_${kind})
            message(STATUS "Left out, the compiler has no ${kind}: ${source}")
            continue()
        endif()
        set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${sc_flags_${kind}}")
        string(TOUPPER "${kind}" upper)
        list(APPEND definitions "SC_HAVE_${upper}=1")
        list(APPEND kept "${source}")
    endforeach()
    list(REMOVE_DUPLICATES definitions)
    set_property(TARGET sc_build_options APPEND PROPERTY
        INTERFACE_COMPILE_DEFINITIONS ${definitions})
    set(${list_variable} "${kept}" PARENT_SCOPE)
endfunction()
