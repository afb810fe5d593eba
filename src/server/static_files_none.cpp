// A program without the web page.
#include "server/static_files.h"

namespace moeflux {

std::span<const StaticFile> static_files() { return {}; }

}  // namespace moeflux
