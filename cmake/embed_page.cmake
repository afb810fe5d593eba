# Writes a source file that holds the web page: cmake -DPAGE=FOLDER -DPOLICY=FILE -DOUT=FILE -P embed_page.cmake
# The bytes are as they are in PAGE, so that what is served can be compared with what is in the repository.
cmake_minimum_required(VERSION 3.22)

set(type_css "text/css; charset=utf-8")
set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_txt "text/plain; charset=utf-8")

file(GLOB files "${PAGE}/*")
set(bytes "")
set(table "")
set(index 0)
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  get_filename_component(extension "${file}" LAST_EXT)
  string(SUBSTRING "${extension}" 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "${file}: there is no content type for this file; embed_page.cmake lists those that are known")
  endif()
  if(name STREQUAL "index.html")
    set(name "")
  endif()
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "(..)" "\\\\x\\1" escaped "${hex}")
  file(SHA256 "${file}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  string(APPEND bytes "constexpr char kFile${index}[] = \"${escaped}\";\n")
  string(APPEND table
         "    {\"/${name}\", \"${type_${extension}}\", {kFile${index}, sizeof kFile${index} - 1}, \"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()
if(index EQUAL 0)
  message(FATAL_ERROR "${PAGE}: there are no files")
endif()

file(READ "${POLICY}" policy)
string(STRIP "${policy}" policy)
file(WRITE "${OUT}" "// Made by cmake/embed_page.cmake.
#include \"server/static_files.h\"

namespace moeflux {
namespace {

${bytes}
constexpr StaticFile kFiles[] = {
${table}};

}  // namespace

std::span<const StaticFile> static_files() { return kFiles; }

std::string_view page_policy() { return \"${policy}\"; }

}  // namespace moeflux
")
