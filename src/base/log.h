// Where a part of the engine says what its user may want to know, beside its results: given by whoever made
// it, so that two models in one process do not speak through each other.
#pragma once

#include <functional>
#include <string_view>

namespace moeflux {

enum class LogLevel { Info, Warning };

// May be empty: then nothing is said. Called by any thread.
using LogSink = std::function<void(LogLevel, std::string_view)>;

}  // namespace moeflux
