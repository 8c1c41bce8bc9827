# A built tree can be carried to another machine, and an installed one moved: what we link looks for
# libraries relative to its own place, first of all. The same paths are written in the build tree
# and when installing, so nothing is patched and no file holds a path of the building machine
# (unless a library lies in a folder of its own, such as /opt/libsodium/lib).
include_guard()

set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
if(NOT CMAKE_CROSSCOMPILING)
    set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()

# The program: beside the library in the build tree, in bin/ when installed.
file(RELATIVE_PATH sc_bin_to_lib
    "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set(sc_program_rpath "$ORIGIN;$ORIGIN/${sc_bin_to_lib}")

# The library: what is bundled lies beside it.
set(sc_library_rpath "$ORIGIN")

# Tests, examples and benchmarks, one or two folders below the library.
set(CMAKE_INSTALL_RPATH "$ORIGIN/..;$ORIGIN/../..")
