// What the expert store did, as a table for people and as JSON for programs.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "gen/engine.h"

namespace moeflux {

struct StoreWork {  // of a part of a run
  std::string name;
  uint64_t tokens = 0;
  double seconds = 0;
  StoreStats stats;
};

Json to_json(const StoreStats& stats);
void print_store_table(std::FILE* out, const Engine& engine, const std::vector<StoreWork>& parts);
// One line: how experts are read, and how fast the drive was found to be.
std::string describe_reads(const Engine& engine);

}  // namespace moeflux
