// `moeflux bench` as a user meets it, on a package that is streamed.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;

TEST(BenchCommand, ValuesThatMakeNoSenseExitWithTwo) {
  const std::vector<std::vector<std::string>> cases = {{"--ram", "0%"},
                                                       {"--ram", "101%"},
                                                       {"--ram", "-5%"},
                                                       {"--ram", "%"},
                                                       {"--ram", "nan%"},
                                                       {"--ram", "25%,"},
                                                       {"--ram", "lots"},
                                                       {"--state", "tepid"},
                                                       {"--routing", "zipf:0"},
                                                       {"--routing", "even"},
                                                       {"--seed", "x"},
                                                       {"--svg", "x.svg", "-n", "0"},
                                                       {"--depth", "5", "--state", "rotating"},
                                                       {"--machine"}};
  for (const auto& more : cases) {
    std::vector<std::string> args = {"bench", "x"};
    args.insert(args.end(), more.begin(), more.end());
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 2) << more[0] << " " << more.back() << ": " << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(more[0]), std::string::npos) << r.err;
  }
  EXPECT_EQ(run_program({"bench", "--machine", "--ram", "25%"}).exit_code, 2);
}

TEST(BenchCommand, FailuresExitWithOneBeforeTheWork) {
  const std::string package = test::golden_package("qwen3_moe");
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--ram", "1KiB"}, {"--svg", "/no/such/plot.svg"}, {"--routing", "log:/no/such"}}) {
    std::vector<std::string> args = {"bench", package, "-n", "1", "--prompt", "0"};
    args.insert(args.end(), more.begin(), more.end());
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 1) << r.out << r.err;
    EXPECT_NE(r.err, "");
  }
}

TEST(BenchCommand, AnswersForEachBudget) {
  const test::TempFolder temp;
  const std::string package = test::golden_package("qwen3_moe");
  const auto r =
      run_program({"bench", package, "--ram", "25%,64KiB,100%", "--prompt", "16", "-n", "8", "--repeat", "2",
                   "--routing", "uniform", "--seed", "3", "--json", "--svg", temp / "plot.svg"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json out = parse_json(r.out, "json");
  EXPECT_EQ(out["state"], "warm");
  EXPECT_EQ(out["routing"], "uniform");
  EXPECT_EQ(out["seed"], 3);
  ASSERT_EQ(out["budgets"].size(), 3u);
  for (const Json& b : out["budgets"]) {
    EXPECT_GT(b["memory_limit_bytes_per_second"].get<double>(), 0);
    EXPECT_EQ(b["drive_bytes_per_second"].is_null(), b["slot_bytes"] == b["expert_bytes"]);
    const Json& d = b["decode"][0];
    EXPECT_GT(d["tokens_per_second"]["median"].get<double>(), 0) << b;
    EXPECT_GT(d["limit_tokens_per_second"].get<double>(), 0) << b;
    EXPECT_EQ(d["touched_expert_bytes"], out["budgets"][0]["decode"][0]["touched_expert_bytes"]);
    EXPECT_GT(b["prefill"]["touched_expert_bytes"].get<uint64_t>(), 0u);
#ifndef MOEFLUX_SANITIZED  // they need memory of their own
    if (b["peak_rss_is_of_this_budget"].get<bool>()) {
      EXPECT_LE(b["peak_rss_bytes"].get<uint64_t>(), b["planned_bytes"].get<uint64_t>());
    }
#endif
  }
  const Json &quarter = out["budgets"][0], &all = out["budgets"][2];
  EXPECT_EQ(quarter["budget"], "25%");
  EXPECT_EQ(quarter["slot_bytes"].get<uint64_t>(), quarter["expert_bytes"].get<uint64_t>() / 4);
  EXPECT_EQ(out["budgets"][1]["slot_bytes"], 64 * 1024);
  EXPECT_GT(quarter["decode"][0]["bytes_read"].get<uint64_t>(), 0u);
  EXPECT_EQ(all["decode"][0]["bytes_read"], 0);
  EXPECT_EQ(all["decode"][0]["hit_rate"], 1.0);
  EXPECT_TRUE(test::read_file(temp / "plot.svg").starts_with("<svg "));
}

TEST(BenchCommand, PrintsBlocksAndATable) {
  const std::string package = test::golden_package("qwen3_moe");
  const auto r = run_program({"bench", package, "--ram", "25%,50%", "--prompt", "8", "-n", "0", "--repeat",
                              "1", "--state", "rotating"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* words : {"(25%)", "(50%)", "prefill", "hit rate", "waiting for experts", "prefetched",
                            "peak memory", "% of the plan", "drive", "budget"})
    EXPECT_NE(r.out.find(words), std::string::npos) << words << "\n" << r.out;
}

}  // namespace
}  // namespace moeflux
