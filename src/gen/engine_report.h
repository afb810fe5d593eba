// What an engine has planned and done, for people and programs.
#pragma once

#include <string>

#include "base/json_fwd.h"
#include "gen/engine.h"

namespace moeflux {

Json to_json(const MemoryPlan& plan);
Json to_json(const StoreStats& stats);
// One line: how experts are read, and how fast the drive was found to be.
std::string describe_reads(const Engine& engine);

}  // namespace moeflux
