// The web page, as part of the program: nothing is read from the file system when it is asked for. The build
// makes the table from web/dist (cmake/embed_page.cmake).
#pragma once

#include <span>
#include <string_view>

namespace moeflux {

struct StaticFile {
  std::string_view path;  // "/", "/app.js"
  std::string_view content_type;
  std::string_view bytes;
  std::string_view etag;  // of the bytes, in quotes
};

std::span<const StaticFile> static_files();

// The Content-Security-Policy with which they are sent.
std::string_view page_policy();

}  // namespace moeflux
