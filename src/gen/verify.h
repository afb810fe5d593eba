// Comparing an engine with reference outputs, and two backends with each other stage by stage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gen/engine.h"

namespace moeflux {

struct VerifyItem {
  std::string name;
  double error = 0, bound = 0;
  std::string note;
  bool pass() const { return error <= bound; }  // a NaN fails
};

// Every item of a golden file: prompts as prefill and token by token, hidden states, router choices, greedy
// decoding. bound 0: 1e-4, or 1e-3 where there are delta-net layers (two correct float32 programs differ that
// much there).
std::vector<VerifyItem> verify_golden(const fs::path& package, const EngineOptions& options,
                                      const fs::path& golden, double bound);

// Runs `reference`, then `options` with every stage fed with the reference's own inputs. The error of a stage
// is relative: |difference| / |what the stage added|, over all tokens. Prompts come from the golden file, if
// there is one. bound 0: 1e-3 where both are exact, otherwise kFastBound.
inline constexpr double kFastBound = 0.02;
std::vector<VerifyItem> verify_against(const fs::path& package, const EngineOptions& options,
                                       const EngineOptions& reference, const fs::path& golden, double bound);

// Router picks in `a` that the same token's picks in `b` lack; both are [tokens, top_k]. The order of a
// token's picks says nothing.
uint64_t count_different_picks(std::span<const float> a, std::span<const float> b, size_t top_k);

}  // namespace moeflux
