// Routes drawn from a seed, for tests and benchmarks of policies. Popularity follows Zipf's law, each layer
// has its own order of experts, popularity may drift, and a token may keep choices of the one before it, as
// texts do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "store/routing_log.h"

namespace moeflux {

struct RouteRecipe {
  uint32_t n_layers = 8, n_experts = 32, top_k = 4;
  double exponent = 1.0;  // popularity of rank r is 1 / r^exponent
  double drift = 0;       // per layer and token: pairs of experts that swap their ranks
  double repetition = 0;  // how probable a choice stays for the next token
  uint64_t seed = 1;
};

class RecipeRoutes {
 public:
  explicit RecipeRoutes(const RouteRecipe& recipe) : recipe_(recipe), random_(recipe.seed) {
    for (uint32_t rank = 0; rank < recipe.n_experts; ++rank)
      cumulative_.push_back((rank ? cumulative_.back() : 0.0) + std::pow(rank + 1.0, -recipe.exponent));
    by_rank_.assign(recipe.n_layers, std::vector<uint32_t>(recipe.n_experts));
    for (auto& order : by_rank_) {
      std::iota(order.begin(), order.end(), 0u);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    }
    previous_.resize(recipe.n_layers);
  }

  RoutingShape shape() const {
    RoutingShape shape{{}, recipe_.n_experts, recipe_.top_k, 4096};
    for (uint32_t l = 0; l < recipe_.n_layers; ++l) shape.layers.push_back(l);
    return shape;
  }

  RoutingStep next() {  // of one token
    RoutingStep step{1, {}};
    for (uint32_t l = 0; l < recipe_.n_layers; ++l) {
      std::vector<uint32_t> chosen;
      for (const uint32_t id : previous_[l])
        if (uniform() < recipe_.repetition) chosen.push_back(id);
      while (chosen.size() < recipe_.top_k) {
        const uint32_t id = draw(l);
        if (std::ranges::find(chosen, id) == chosen.end()) chosen.push_back(id);
      }
      if (uniform() < recipe_.drift)
        std::swap(by_rank_[l][below(recipe_.n_experts)], by_rank_[l][below(recipe_.n_experts)]);
      previous_[l] = chosen;
      step.ids.push_back(std::move(chosen));
    }
    return step;
  }

 private:
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  size_t below(size_t n) { return static_cast<size_t>(uniform() * static_cast<double>(n)); }
  uint32_t draw(uint32_t layer) {
    const auto it = std::ranges::upper_bound(cumulative_, uniform() * cumulative_.back());
    return by_rank_[layer][std::min<size_t>(it - cumulative_.begin(), recipe_.n_experts - 1)];
  }

  RouteRecipe recipe_;
  std::mt19937_64 random_;
  std::vector<double> cumulative_;               // by rank
  std::vector<std::vector<uint32_t>> by_rank_;   // [layers][n_experts]
  std::vector<std::vector<uint32_t>> previous_;  // [layers][top_k]
};

}  // namespace moeflux
