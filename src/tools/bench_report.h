// What `bench` has measured, for people (text on stdout, a plot) and for programs (JSON).
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "gen/bench.h"

namespace moeflux {

struct BenchLimits {  // bytes per second; 0: was not needed and not measured
  double memory = 0, drive = 0;
};

struct BudgetResult {
  std::string budget;  // as the user gave it
  BenchResult result;
  BenchLimits limits;  // measured right after it: a drive's speed changes from minute to minute
};

void print_budget(const BudgetResult& budget);
void print_summary(const std::vector<BudgetResult>& budgets);  // one line each

Json to_json(const BudgetResult& budget);

// Decoding and hit rate over the budget, as SVG. At least one budget has decoded something.
std::string plot_budgets(std::vector<BudgetResult> budgets, const std::string& family);

}  // namespace moeflux
