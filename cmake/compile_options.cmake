# sc_build_options: how our own code is compiled and linked. Never passed on to users.
include_guard()
include(CheckCCompilerFlag)

add_library(sc_build_options INTERFACE)

target_compile_definitions(sc_build_options INTERFACE _GNU_SOURCE)
target_compile_options(sc_build_options INTERFACE
    -fvisibility=hidden
    -fno-common
    -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
    $<$<BOOL:${SPARK_COMM_WERROR}>:-Werror>)

if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    # For clang an enum without negative values is unsigned, and each status that becomes an int a
    # change of sign. gcc knows better and checks the other changes of sign (-Wconversion).
    target_compile_options(sc_build_options INTERFACE -Wno-sign-conversion)
endif()

# The release is -O3 for any machine of its architecture: vector code is chosen at run time (see
# vector_sources.cmake), so there is no -march=native.
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")

target_link_options(sc_build_options INTERFACE LINKER:-z,now LINKER:-z,relro)

if(SPARK_COMM_FUZZ)
    target_compile_options(sc_build_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(SPARK_COMM_SANITIZE)
    target_compile_options(sc_build_options INTERFACE
        -fsanitize=${SPARK_COMM_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(sc_build_options INTERFACE -fsanitize=${SPARK_COMM_SANITIZE})
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        # The sanitizers' checks between the lines make gcc see these where there are none; the
        # plain builds keep them.
        target_compile_options(sc_build_options INTERFACE
            -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-truncation
            -Wno-format-truncation -Wno-format-overflow -Wno-array-bounds -Wno-null-dereference)
    endif()
    if(SPARK_COMM_SANITIZE MATCHES "undefined")
        # A finding ends the program, so that a test can't pass over it.
        target_compile_options(sc_build_options INTERFACE -fno-sanitize-recover=undefined)
    endif()
    if(SPARK_COMM_SANITIZE MATCHES "thread" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        # gcc warns that its thread sanitizer knows no atomic_thread_fence; the code states its
        # orders on the atomics themselves, and where it does use a fence the tests say so.
        check_c_compiler_flag(-Wno-tsan sc_have_wno_tsan)
        if(sc_have_wno_tsan)
            target_compile_options(sc_build_options INTERFACE -Wno-tsan)
        endif()
    endif()
else()
    # _FORTIFY_SOURCE needs optimisation, and hides errors from the sanitizers.
    target_compile_options(sc_build_options INTERFACE
        -fstack-protector-strong
        $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
        $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
