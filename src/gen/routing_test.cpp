#include "gen/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "gen/engine.h"
#include "support/support.h"

namespace moeflux {
namespace {

constexpr RouteShape kShape{.n_layers = 3, .n_experts = 512, .top_k = 10};

std::vector<uint32_t> draw(RouteSource& source, uint64_t layer, size_t tokens,
                           const RouteShape& shape = kShape) {
  std::vector<uint32_t> ids(tokens * shape.top_k);
  source.draw(layer, tokens, ids);
  return ids;
}

std::vector<uint32_t> draw(const std::string& routing, const RouteShape& shape, uint64_t layer,
                           size_t tokens) {
  return draw(*make_route_source(parse_routing(routing), shape, 1), layer, tokens, shape);
}

std::vector<double> shares(const std::vector<uint32_t>& ids, size_t n_experts) {
  std::vector<double> share(n_experts);
  for (const uint32_t id : ids) share.at(id) += 1.0 / static_cast<double>(ids.size());
  return share;
}

TEST(Routing, WordsAreReadAndWritten) {
  for (const char* text : {"model", "uniform", "zipf:1", "zipf:0.8", "log:some/file"})
    EXPECT_EQ(to_string(parse_routing(text)), text);
  for (const char* text : {"", "even", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:inf",
                           "zipf:1x", "zipf:1000", "log:", "model "})
    EXPECT_THROW(parse_routing(text), Error) << text;
  EXPECT_EQ(make_route_source(parse_routing("model"), kShape, 1), nullptr);
}

TEST(Routing, ATokensExpertsAreDistinctAndExist) {
  const RouteShape shapes[] = {kShape, {1, 8, 8}, {1, 1, 1}, {1, 128, 8}, {1, 512, 16}};
  for (const RouteShape& shape : shapes)
    for (const char* routing : {"uniform", "zipf:0.5", "zipf:1", "zipf:6", "zipf:100"}) {
      const std::vector<uint32_t> ids = draw(routing, shape, 0, 50);
      for (size_t t = 0; t < 50; ++t) {
        const std::set<uint32_t> token(ids.begin() + static_cast<ptrdiff_t>(t * shape.top_k),
                                       ids.begin() + static_cast<ptrdiff_t>((t + 1) * shape.top_k));
        EXPECT_EQ(token.size(), shape.top_k) << routing;
        EXPECT_LT(*token.rbegin(), shape.n_experts) << routing;
      }
    }
}

TEST(Routing, FollowsTheSeedAndNotTheSteps) {
  for (const char* routing : {"uniform", "zipf:1"}) {
    const auto source = make_route_source(parse_routing(routing), kShape, 1);
    std::vector<uint32_t> in_steps = draw(*source, 2, 7);
    draw(*source, 0, 5);  // another layer changes nothing
    const std::vector<uint32_t> more = draw(*source, 2, 13);
    in_steps.insert(in_steps.end(), more.begin(), more.end());
    EXPECT_EQ(in_steps, draw(routing, kShape, 2, 20));
    EXPECT_NE(in_steps, draw(*make_route_source(parse_routing(routing), kShape, 2), 2, 20));
    EXPECT_NE(in_steps, draw(routing, kShape, 1, 20));
  }
}

// Measurements are compared over time: what a seed has once drawn it draws for ever.
TEST(Routing, ASeedKeepsItsRoutes) {
  const std::pair<const char*, const char*> recorded[] = {{"uniform", "6fd364d22d6f2953"},
                                                          {"zipf:0.5", "bea724e6a533f9e1"},
                                                          {"zipf:1.2", "3a435ff76834b8cd"},
                                                          {"zipf:6", "6c8f20599b60dec3"}};
  for (const auto& [routing, want] : recorded) {
    const auto source = make_route_source(parse_routing(routing), kShape, 7);
    std::vector<uint32_t> all;
    for (uint64_t layer = 0; layer < kShape.n_layers; ++layer) {
      const std::vector<uint32_t> ids = draw(*source, layer, 2000);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(to_hex(xxh3(std::as_bytes(std::span(all)))), want) << routing;
  }
}

TEST(Routing, UniformChoosesAllAlike) {
  const RouteShape shape{1, 16, 4};
  for (const double share : shares(draw("uniform", shape, 0, 20000), 16)) EXPECT_NEAR(share, 1.0 / 16, 0.003);
}

TEST(Routing, ZipfFollowsItsWeights) {
  const RouteShape shape{2, 16, 1};
  double sum = 0;
  for (int r = 1; r <= 16; ++r) sum += std::pow(r, -1.2);
  for (uint64_t layer = 0; layer < 2; ++layer) {
    std::vector<double> share = shares(draw("zipf:1.2", shape, layer, 40000), 16);
    std::ranges::sort(share, std::greater<>());
    for (int r = 1; r <= 16; ++r)
      EXPECT_NEAR(share[static_cast<size_t>(r - 1)], std::pow(r, -1.2) / sum, 0.006);
  }
}

TEST(Routing, LayersHaveTheirOwnFavourites) {
  std::set<ptrdiff_t> favourites;
  const RouteShape shape{8, 128, 1};
  for (uint64_t layer = 0; layer < 8; ++layer) {
    const std::vector<double> share = shares(draw("zipf:2", shape, layer, 500), 128);
    favourites.insert(std::ranges::max_element(share) - share.begin());
  }
  EXPECT_GT(favourites.size(), 4u);
}

// P(a first, b second) = w_a / W * w_b / (W - w_a), whether the second pick came from another try or from the
// one pass over what is left. With weights as far apart as these, it mostly does the latter.
TEST(Routing, DrawsWithoutReplacementHaveTheirExactChances) {
  const double w[] = {1, std::pow(2, -8), std::pow(3, -8)}, all = w[0] + w[1] + w[2];
  const size_t tokens = 60000;
  const std::vector<uint32_t> ids = draw("zipf:8", {1, 3, 2}, 0, tokens);
  double second =
      0;  // among tokens whose first pick is the favourite, those whose other pick is the next one
  std::vector<double> share = shares(ids, 3);
  const auto favourite = static_cast<uint32_t>(std::ranges::max_element(share) - share.begin());
  share[favourite] = 0;
  const auto next = static_cast<uint32_t>(std::ranges::max_element(share) - share.begin());
  double first = 0;
  for (size_t t = 0; t < tokens; ++t) {
    first += ids[2 * t] == favourite;
    second += ids[2 * t] == favourite && ids[2 * t + 1] == next;
  }
  EXPECT_NEAR(first / tokens, w[0] / all, 0.002);
  EXPECT_NEAR(second / first, w[1] / (w[1] + w[2]), 0.003);
}

TEST(Routing, ATapReplacesTheChoiceAndLaterTapsSeeIt) {
  const auto source = make_route_source(parse_routing("uniform"), {2, 16, 4}, 5);
  const auto twin = make_route_source(parse_routing("uniform"), {2, 16, 4}, 5);
  std::vector<float> seen;
  std::vector<std::string> names;
  const Tap listener{.call = [&](const TapTensor& t) {
    names.emplace_back(t.name);
    if (t.name == "topk_ids") seen.assign(t.values.begin(), t.values.end());
    return false;
  }};
  const Tap both = chain_taps(route_tap(*source), listener);
  EXPECT_FALSE(both.only_routes);
  EXPECT_TRUE(chain_taps(route_tap(*source), route_tap(*source)).only_routes);
  std::vector<float> values(12, -1.0f);
  EXPECT_FALSE(both.call({"router_logits", 1, 3, 4, values}));
  EXPECT_EQ(values, std::vector<float>(12, -1.0f));
  EXPECT_TRUE(both.call({"topk_ids", 1, 3, 4, values}));
  const std::vector<uint32_t> want = draw(*twin, 1, 3, {2, 16, 4});
  EXPECT_EQ(seen, std::vector<float>(want.begin(), want.end()));
  EXPECT_EQ(names, (std::vector<std::string>{"router_logits", "topk_ids"}));
  EXPECT_FALSE(chain_taps({}, {}).call);
  EXPECT_TRUE(chain_taps({}, listener).call && chain_taps(listener, {}).call);
}

TEST(Routing, AnEngineFollowsTheDrawnRoutes) {
  EngineOptions options;
  options.ctx = 64;
  Engine engine(test::golden_package("qwen3_moe"), options);
  const MoeConfig& moe = engine.config().moe;
  const RouteShape shape{engine.config().n_layers(), moe.n_experts, moe.top_k};
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto logits = [&](const Tap& tap) {
    const auto sequence = engine.make_sequence();
    return engine.eval(*sequence, tokens, 1, tap);
  };
  const auto drawn = [&](uint64_t seed) {
    const auto source = make_route_source(parse_routing("zipf:1"), shape, seed);
    return logits(route_tap(*source));
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  EXPECT_NE(drawn(1), logits({}));
}

}  // namespace
}  // namespace moeflux
