// The web page, as part of the program: nothing is read from the file system when it is asked for.
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

}  // namespace moeflux
