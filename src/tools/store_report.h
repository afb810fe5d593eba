// What the expert store did, as a table.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "gen/engine_report.h"

namespace moeflux {

struct StoreWork {  // of a part of a run
  std::string name;
  uint64_t tokens = 0;
  double seconds = 0;
  StoreStats stats;
};

void print_store_table(std::FILE* out, const Engine& engine, const std::vector<StoreWork>& parts);

}  // namespace moeflux
