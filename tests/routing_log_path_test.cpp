// Routes recorded while a model runs, and what is made of them.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "gen/routing_log_tap.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;

std::vector<RoutingStep> read_log(const fs::path& path) {
  RoutingLogReader reader(path);
  std::vector<RoutingStep> steps;
  for (RoutingStep step; reader.next(step);) steps.push_back(step);
  return steps;
}

// All steps as one: [layers][tokens * top_k].
std::vector<std::vector<uint32_t>> routes(const std::vector<RoutingStep>& steps) {
  std::vector<std::vector<uint32_t>> all(steps.at(0).ids.size());
  for (const RoutingStep& step : steps)
    for (size_t l = 0; l < all.size(); ++l)
      all[l].insert(all[l].end(), step.ids[l].begin(), step.ids[l].end());
  return all;
}

TEST(RoutingLogPath, RunRecordsPromptAndNewTokens) {
  const TempFolder temp;
  // Layer 0 of this family is dense.
  const auto r = run_program({"run", test::golden_package("deepseek_v3"), "--tokens", "5,6,7,8,9", "-n", "3",
                              "--chunk", "4", "--routing-log", temp / "log"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  RoutingLogReader reader(temp / "log");
  EXPECT_GT(reader.shape().layers.at(0), 0u);
  EXPECT_GT(reader.shape().record_bytes, 0u);
  std::vector<uint32_t> tokens;
  for (const RoutingStep& step : read_log(temp / "log")) tokens.push_back(step.n_tokens);
  EXPECT_EQ(tokens, (std::vector<uint32_t>{4, 1, 1, 1}));
}

TEST(RoutingLogPath, RoutesDoNotDependOnTheChunk) {
  const TempFolder temp;
  for (const char* chunk : {"1", "512"}) {
    const auto r = run_program({"perplexity", test::storyteller(), test::heldout(), "--tokens", "300",
                                "--threads", "1", "--chunk", chunk, "--routing-log", temp / chunk});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  const auto one = read_log(temp / "1");
  EXPECT_EQ(one.size(), 299u);
  EXPECT_EQ(routes(one), routes(read_log(temp / "512")));
}

TEST(RoutingLogPath, AReferenceIsNotRecorded) {
  const TempFolder temp;
  const auto measure = [&](const std::string& log, std::vector<std::string> more) {
    std::vector<std::string> args = {"perplexity", test::storyteller(), test::heldout(), "--tokens",
                                     "50",         "--routing-log",     temp / log};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  };
  ASSERT_EQ(measure("alone", {}).exit_code, 0);
  const auto r = measure("beside", {"--reference-precision", "exact", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(test::read_file(temp / "alone"), test::read_file(temp / "beside"));
  EXPECT_GT(parse_json(r.out, "json")["reference"]["router_picks"].get<int>(), 0);
}

TEST(RoutingLogPath, ALogThatCannotBeWrittenIsAFailure) {
  for (const char* path : {"/no/such/log", "/dev/full"}) {
    const auto r =
        run_program({"run", test::golden_package("mixtral"), "--tokens", "1", "--routing-log", path});
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_NE(r.err.find(path), std::string::npos) << r.err;
  }
}

TEST(RoutingLogPath, TheSecondOfTwoTapsSeesWhatTheFirstHasChanged) {
  const TempFolder temp;
  RoutingLogWriter log(temp / "log", {{0}, 8, 2, 4096});
  const Tap draw{[](const TapTensor& t) { return t.values[0] = 5, true; }, true};
  const Tap both = chain_taps(draw, routing_log_tap(log));
  EXPECT_TRUE(both.only_routes);
  std::vector<float> ids = {1, 2};
  EXPECT_TRUE(both.call({"topk_ids", 0, 1, 2, ids}));
  log.close();
  EXPECT_EQ(read_log(temp / "log").at(0).ids[0], (std::vector<uint32_t>{5, 2}));

  int seen = 0;
  const Tap everything = chain_taps({[&](const TapTensor&) { return ++seen, false; }}, draw);
  EXPECT_FALSE(everything.only_routes);
  EXPECT_FALSE(everything.call({"mlp", 0, 1, 2, ids})) << "the one that draws routes must not see it";
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(chain_taps({}, {}).wants("topk_ids"));
}

TEST(RoutingLogPath, CacheSimComparesPoliciesWithTheOptimum) {
  const TempFolder temp;
  ASSERT_EQ(run_program({"perplexity", test::storyteller(), test::heldout(), "--tokens", "800", "--threads",
                         "1", "--chunk", "1", "--routing-log", temp / "log"})
                .exit_code,
            0);
  const auto r = run_program({"cache-sim", temp / "log", "--slots", "64,50%", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json json = parse_json(r.out, "json");
  EXPECT_EQ(json["layers"], 8);
  EXPECT_EQ(json["decode"]["experts_asked"].get<uint64_t>(), json["decode"]["tokens"].get<uint64_t>() * 32);
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][1]["slots"], 128);
  const Json& quarter = json["results"][0];
  const auto rate = [&](const char* name) { return quarter["policies"][name]["hit_rate"].get<double>(); };
  EXPECT_GT(rate("forecast"), rate("lru") + 0.1);
  EXPECT_LT(rate("forecast"), quarter["optimum"]["hit_rate"].get<double>());

  const auto table = run_program({"cache-sim", temp / "log", "--policy", "lru"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("optimum"), std::string::npos);
  EXPECT_EQ(table.out.find("forecast"), std::string::npos);
  const auto few = run_program({"cache-sim", temp / "log", "--slots", "3"});
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_NE(few.err.find("3 slots are too few: a step uses 4 experts"), std::string::npos) << few.err;
}

TEST(RoutingLogPath, CacheSimSaysWhereThereIsNoDecoding) {
  const TempFolder temp;
  ASSERT_EQ(run_program({"perplexity", test::storyteller(), test::heldout(), "--tokens", "300", "--chunk",
                         "100", "--routing-log", temp / "log"})
                .exit_code,
            0);
  const auto r = run_program({"cache-sim", temp / "log"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("no step of 32 tokens or fewer"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace moeflux
