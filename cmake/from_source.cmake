# The libraries as this machine's headers and sources, for a target processor that has no packages of them: fmt and
# xxHash as headers only, GoogleTest from the source that its package brings. Same names as find_package would give.
find_path(FMT_INCLUDE fmt/format.h REQUIRED)
add_library(fmt::fmt INTERFACE IMPORTED)
target_include_directories(fmt::fmt INTERFACE ${FMT_INCLUDE})
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)

add_library(xxhash INTERFACE)
target_compile_definitions(xxhash INTERFACE XXH_INLINE_ALL)
set(XXHASH_LIBRARY xxhash)

if(MOEFLUX_TESTS)
  find_path(GTEST_SOURCE src/gtest-all.cc PATHS /usr/src/googletest/googletest REQUIRED)
  add_library(gtest_main STATIC ${GTEST_SOURCE}/src/gtest-all.cc ${GTEST_SOURCE}/src/gtest_main.cc)
  target_include_directories(gtest_main SYSTEM PUBLIC ${GTEST_SOURCE}/include PRIVATE ${GTEST_SOURCE})
  target_link_libraries(gtest_main PUBLIC Threads::Threads)
  add_library(GTest::gtest_main ALIAS gtest_main)
endif()
