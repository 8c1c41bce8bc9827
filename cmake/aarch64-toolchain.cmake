# Builds for aarch64 on x86-64, with Debian's cross compiler; programs run under qemu-user.
# libsodium, jansson and cmocka come from a folder that scripts/setup.sh fills (no system-wide
# foreign architecture is needed).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

if(DEFINED ENV{SPARK_COMM_AARCH64_SYSROOT})
    set(sc_sysroot "$ENV{SPARK_COMM_AARCH64_SYSROOT}")
else()
    get_filename_component(sc_sysroot "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-sysroot" ABSOLUTE)
endif()

set(ENV{PKG_CONFIG_LIBDIR} "${sc_sysroot}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${sc_sysroot}")
set(sc_sysroot_libraries "${sc_sysroot}/usr/lib/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${sc_sysroot_libraries}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath-link,${sc_sysroot_libraries}")

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu "${sc_sysroot}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)

find_program(SC_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(SC_QEMU)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${SC_QEMU}" -L /usr/aarch64-linux-gnu
        -E "LD_LIBRARY_PATH=${sc_sysroot_libraries}")
endif()
