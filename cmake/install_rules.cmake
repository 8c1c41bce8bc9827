# make install: headers, library, program, man pages, and what pkg-config and CMake ask for.
include_guard()
include(CMakePackageConfigHelpers)

file(GLOB public_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/*.h")
install(FILES ${public_headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

install(TARGETS spark_comm EXPORT spark_comm_targets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET spark-comm)
    install(TARGETS spark-comm RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

foreach(section 1 3)
    file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/man/*.${section}")
    install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# --- for users' builds ---------------------------------------------------------------------------

# Paths relative to the .pc file itself, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix
    "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/spark_comm.pc.in" spark_comm.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/spark_comm.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/spark_comm")
install(EXPORT spark_comm_targets NAMESPACE spark_comm:: DESTINATION "${package_folder}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/spark_comm-config.cmake.in"
    spark_comm-config.cmake INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file(spark_comm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    "${PROJECT_BINARY_DIR}/spark_comm-config.cmake"
    "${PROJECT_BINARY_DIR}/spark_comm-config-version.cmake"
    DESTINATION "${package_folder}")

# --- a tree that brings its libraries along ------------------------------------------------------

# Each is copied under the name that the loader asks for (its soname).
function(sc_bundle_library path)
    file(REAL_PATH "${path}" real)
    execute_process(COMMAND "${CMAKE_OBJDUMP}" -p "${real}" OUTPUT_VARIABLE headers)
    if(NOT headers MATCHES "SONAME +([^ \n]+)")
        message(FATAL_ERROR "SPARK_COMM_BUNDLE_DEPS: ${path} is no shared library with a soname")
    endif()
    install(FILES "${real}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" RENAME "${CMAKE_MATCH_1}")
endfunction()

if(SPARK_COMM_BUNDLE_DEPS)
    foreach(library IN LISTS SODIUM_LINK_LIBRARIES JANSSON_LINK_LIBRARIES)
        if(IS_ABSOLUTE "${library}")
            sc_bundle_library("${library}")
        endif()
    endforeach()
endif()
