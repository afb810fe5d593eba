# libmoeflux, static and shared, of the same objects; and what an installation needs to be found.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(STRINGS ${PROJECT_SOURCE_DIR}/include/moeflux/moeflux.h abi REGEX "^#define MOEFLUX_ABI_VERSION ")
string(REGEX MATCH "[0-9]+$" MOEFLUX_ABI_VERSION "${abi}")

set(parts base io text package ops store model cpu cuda gen api)
list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_OBJECTS:moeflux_\\1>" OUTPUT_VARIABLE objects)
add_library(moeflux_static STATIC ${objects})
# What somebody who links it has to link, too.
set(static_needs)
if(FMT_LIBRARY STREQUAL fmt::fmt AND NOT MOEFLUX_FROM_SOURCE)
  list(APPEND static_needs fmt)
endif()
if(NOT MOEFLUX_FROM_SOURCE)
  list(APPEND static_needs xxhash uring)
endif()
target_link_libraries(moeflux_static PUBLIC Threads::Threads INTERFACE ${static_needs})
if(MOEFLUX_CUDA)
  target_link_libraries(moeflux_static INTERFACE CUDA::cudart_static)
endif()
set_target_properties(moeflux_static PROPERTIES EXPORT_NAME static)
set(libraries moeflux_static)

if(MOEFLUX_STATIC)
  message(STATUS "No shared library: MOEFLUX_STATIC is for programs to carry to other machines")
else()
  add_library(moeflux_shared SHARED $<TARGET_OBJECTS:moeflux_api>)
  target_link_libraries(moeflux_shared PRIVATE moeflux_api
    "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")  # of libraries, too, nothing but the C API is seen
  set_target_properties(moeflux_shared PROPERTIES EXPORT_NAME moeflux SOVERSION ${MOEFLUX_ABI_VERSION}
    VERSION ${MOEFLUX_ABI_VERSION}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  add_library(moeflux::moeflux ALIAS moeflux_shared)
  list(APPEND libraries moeflux_shared)
endif()
foreach(library ${libraries})
  set_target_properties(${library} PROPERTIES OUTPUT_NAME moeflux LINKER_LANGUAGE CXX
    ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

# -- installation

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/moeflux)
install(TARGETS moeflux)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/moeflux DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS moeflux_static EXPORT moeflux-static)
install(EXPORT moeflux-static NAMESPACE moeflux:: DESTINATION ${package_folder})
if(TARGET moeflux_shared)
  install(TARGETS moeflux_shared EXPORT moeflux-shared)
  install(EXPORT moeflux-shared NAMESPACE moeflux:: DESTINATION ${package_folder})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/moeflux-config.cmake.in
  ${CMAKE_BINARY_DIR}/package/moeflux-config.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/moeflux-config-version.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH up_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # so that an installation can be moved
set(libs_private)
foreach(library ${static_needs})
  string(APPEND libs_private " -l${library}")
endforeach()
string(APPEND libs_private " -lstdc++ -lm -pthread")
configure_file(${PROJECT_SOURCE_DIR}/cmake/moeflux.pc.in ${CMAKE_BINARY_DIR}/package/moeflux.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/moeflux-config.cmake ${CMAKE_BINARY_DIR}/package/moeflux-config-version.cmake
  DESTINATION ${package_folder})
install(FILES ${CMAKE_BINARY_DIR}/package/moeflux.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
