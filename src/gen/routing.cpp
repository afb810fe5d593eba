#include "gen/routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "store/routing_log.h"

namespace moeflux {
namespace {

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }  // 0 < u < 1

 private:
  uint64_t state_;
};

// K experts one after the other, each with a chance proportional to its weight among those that are left.
class ZipfRoutes : public RouteSource {
 public:
  ZipfRoutes(const RouteShape& shape, double exponent, uint64_t seed) : shape_(shape) {
    double sum = 0;
    for (uint64_t r = 1; r <= shape.n_experts; ++r) {
      log_weight_.push_back(-exponent * std::log(static_cast<double>(r)));
      cumulative_.push_back(sum += std::exp(log_weight_.back()));
    }
    for (int part = 0; part <= kParts; ++part) first_.push_back(rank_at(0, part * (1.0 / kParts) * sum));
    Random seeds(seed);
    for (uint64_t l = 0; l < shape.n_layers; ++l) {
      layers_.push_back({Random(seeds.next()), std::vector<uint32_t>(shape.n_experts)});
      std::vector<uint32_t>& experts = layers_.back().expert_of_rank;
      std::iota(experts.begin(), experts.end(), 0u);
      for (size_t i = experts.size(); i > 1; --i)
        std::swap(experts[i - 1], experts[layers_.back().random.next() % i]);
    }
  }

  void draw(uint64_t layer, size_t tokens, std::span<uint32_t> ids) override {
    check(layer < layers_.size() && ids.size() == tokens * shape_.top_k, "routes of the source's shape");
    Layer& l = layers_[layer];
    for (size_t t = 0; t < tokens; ++t) {
      const std::span<uint32_t> ranks = ids.subspan(t * shape_.top_k, shape_.top_k);
      draw_ranks(l.random, ranks);
      for (uint32_t& id : ranks) id = l.expert_of_rank[id];
    }
  }

 private:
  struct Layer {
    Random random;
    std::vector<uint32_t> expert_of_rank;
  };

  // The first rank whose share of the weights lies beyond `at`, which is none before `first`.
  uint32_t rank_at(uint32_t first, double at) const {
    uint32_t rank = first;
    while (rank + 1 < cumulative_.size() && cumulative_[rank] <= at) ++rank;
    return rank;
  }

  // Draws that were there before are drawn again, which leaves the right chances to the others. Where a few
  // experts have nearly all the weight that could go on for long; after some attempts the rest is drawn in
  // one pass.
  void draw_ranks(Random& random, std::span<uint32_t> ranks) {
    size_t n = 0;
    for (size_t attempts = 4 * ranks.size(); n < ranks.size() && attempts > 0; --attempts) {
      const double unit = random.unit();
      const uint32_t rank = rank_at(first_[static_cast<size_t>(unit * kParts)], unit * cumulative_.back());
      if (!contains(ranks.first(n), rank)) ranks[n++] = rank;
    }
    if (n < ranks.size()) draw_rest(random, ranks, n);
  }

  // The largest of log weight + Gumbel noise come in the order and with the chances of successive draws.
  void draw_rest(Random& random, std::span<uint32_t> ranks, size_t n) {
    keys_.clear();
    for (uint32_t r = 0; r < shape_.n_experts; ++r)
      if (!contains(ranks.first(n), r))
        keys_.emplace_back(log_weight_[r] - std::log(-std::log(random.unit())), r);
    const auto missing = static_cast<ptrdiff_t>(ranks.size() - n);
    std::partial_sort(keys_.begin(), keys_.begin() + missing, keys_.end(), std::greater<>());
    for (ptrdiff_t i = 0; i < missing; ++i)
      ranks[n + static_cast<size_t>(i)] = keys_[static_cast<size_t>(i)].second;
  }

  static bool contains(std::span<const uint32_t> ranks, uint32_t rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  }

  // A prompt draws tens of thousands of picks for each layer while the device waits: where to look is known
  // for every part of the unit interval. A power of two, so that the parts have exact ends.
  static constexpr int kParts = 1024;

  const RouteShape shape_;
  std::vector<double> log_weight_, cumulative_;    // by rank
  std::vector<uint32_t> first_;                    // by part: the first rank that a draw from it can have
  std::vector<std::pair<double, uint32_t>> keys_;  // scratch of draw_rest
  std::vector<Layer> layers_;
};

constexpr double kMostExponent = 100;

double parse_exponent(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !(value > 0) || value > kMostExponent)
    fail(Errc::InvalidArgument, "'{}' is not an exponent: zipf:S takes a number above 0, at most {}", text,
         kMostExponent);
  return value;
}

// The routes of a recording, token by token; after the last token it begins again.
class LogRoutes : public RouteSource {
 public:
  LogRoutes(const RouteShape& shape, const std::filesystem::path& path) : top_k_(shape.top_k) {
    RoutingLogReader log(path);
    const RoutingShape& s = log.shape();
    if (s.n_experts != shape.n_experts || s.top_k != shape.top_k || s.layers.back() >= shape.n_layers)
      fail(Errc::InvalidArgument,
           "{}: recorded with {} of {} experts and layers up to {}, but the model takes {} of {} and has {} "
           "layers",
           log.source(), s.top_k, s.n_experts, s.layers.back(), shape.top_k, shape.n_experts, shape.n_layers);
    layers_.resize(shape.n_layers);
    for (RoutingStep step; log.next(step);)
      for (size_t i = 0; i < s.layers.size(); ++i) {
        std::vector<uint32_t>& ids = layers_[s.layers[i]].ids;
        ids.insert(ids.end(), step.ids[i].begin(), step.ids[i].end());
      }
    if (layers_[s.layers[0]].ids.empty()) fail(Errc::InvalidArgument, "{}: holds no routes", log.source());
  }

  void draw(uint64_t layer, size_t tokens, std::span<uint32_t> ids) override {
    Layer& l = layers_.at(layer);
    if (l.ids.empty()) fail(Errc::InvalidArgument, "the recording has no routes of layer {}", layer);
    for (size_t t = 0; t < tokens; ++t) {
      std::copy_n(l.ids.begin() + static_cast<ptrdiff_t>(l.next), top_k_,
                  ids.begin() + static_cast<ptrdiff_t>(t * top_k_));
      l.next = (l.next + top_k_) % l.ids.size();
    }
  }

 private:
  struct Layer {
    std::vector<uint32_t> ids;  // [tokens, top_k]
    size_t next = 0;
  };
  const size_t top_k_;
  std::vector<Layer> layers_;
};

}  // namespace

RoutingSpec parse_routing(std::string_view text) {
  using Kind = RoutingSpec::Kind;
  if (text == "model") return {};
  if (text == "uniform") return {.kind = Kind::Uniform};
  if (text.starts_with("zipf:")) return {.kind = Kind::Zipf, .exponent = parse_exponent(text.substr(5))};
  if (text.starts_with("log:") && text.size() > 4) return {.kind = Kind::Log, .log = text.substr(4)};
  fail(Errc::InvalidArgument, "'{}' is no routing: there is model, uniform, zipf:S and log:FILE", text);
}

std::string to_string(const RoutingSpec& spec) {
  switch (spec.kind) {
    case RoutingSpec::Kind::Model:
      return "model";
    case RoutingSpec::Kind::Uniform:
      return "uniform";
    case RoutingSpec::Kind::Zipf:
      return fmt::format("zipf:{}", spec.exponent);
    case RoutingSpec::Kind::Log:
      return "log:" + spec.log.string();
  }
  panic("a kind of routing", __FILE__, __LINE__);
}

std::unique_ptr<RouteSource> make_route_source(const RoutingSpec& spec, const RouteShape& shape,
                                               uint64_t seed) {
  check(shape.top_k <= shape.n_experts, "no more picks than experts");
  switch (spec.kind) {
    case RoutingSpec::Kind::Model:
      return nullptr;
    case RoutingSpec::Kind::Uniform:
      return std::make_unique<ZipfRoutes>(shape, 0.0, seed);
    case RoutingSpec::Kind::Zipf:
      return std::make_unique<ZipfRoutes>(shape, spec.exponent, seed);
    case RoutingSpec::Kind::Log:
      return std::make_unique<LogRoutes>(shape, spec.log);
  }
  panic("a kind of routing", __FILE__, __LINE__);
}

Tap route_tap(RouteSource& source) {
  const auto replace = [&source, ids = std::vector<uint32_t>()](const TapTensor& t) mutable {
    ids.resize(t.values.size());
    source.draw(t.layer, t.rows, ids);
    std::ranges::transform(ids, t.values.begin(), [](uint32_t id) { return static_cast<float>(id); });
    return true;
  };
  return {.call = replace, .only_routes = true};
}

}  // namespace moeflux
