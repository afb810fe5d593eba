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
};

void print_limits(const BenchLimits& limits, size_t threads);
void print_budget(const BudgetResult& budget, const BenchLimits& limits);
void print_summary(const std::vector<BudgetResult>& budgets, const BenchLimits& limits);  // one line each

Json to_json(const BudgetResult& budget, const BenchLimits& limits);
Json limit_json(double limit);  // null where it was not measured

// Decoding and hit rate over the budget, as SVG. At least one budget has decoded something.
std::string plot_budgets(std::vector<BudgetResult> budgets, const BenchLimits& limits,
                         const std::string& family);

}  // namespace moeflux
