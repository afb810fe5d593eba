#include "store/routing_log.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/test_routes.h"
#include "support/support.h"

namespace moeflux {
namespace {

using Ids = std::vector<uint32_t>;

const RoutingShape kShape{{1, 3}, 8, 2, 4096};
const std::string kHeader =
    R"({"format":"moeflux-routes","layers":[1,3],"n_experts":8,"record_bytes":4096,"top_k":2,"version":1})"
    "\n";

std::vector<RoutingStep> read_all(const fs::path& path) {
  RoutingLogReader reader(path);
  std::vector<RoutingStep> steps;
  for (RoutingStep step; reader.next(step);) steps.push_back(step);
  return steps;
}

std::string error_of(const std::string& content) {
  const test::TempFolder temp;
  test::write_file(temp / "log", content);
  try {
    read_all(temp / "log");
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Corrupt);
    EXPECT_NE(std::string(e.what()).find((temp / "log").string()), std::string::npos) << e.what();
    return e.what();
  }
  return "";
}

TEST(RoutingLog, WhatIsWrittenIsRead) {
  const test::TempFolder temp;
  {
    RoutingLogWriter log(temp / "log", kShape);
    log.add(1, Ids{7, 0});
    log.add(3, Ids{2, 1});
    log.add(1, Ids{0, 1, 1, 0, 5, 6});
    log.add(3, Ids{3, 4, 4, 5, 6, 7});
    log.close();
  }
  EXPECT_EQ(test::read_file(temp / "log"), kHeader +
                                               "step 1\n1 7 0\n3 2 1\n"
                                               "step 3\n1 0 1 1 0 5 6\n3 3 4 4 5 6 7\n");
  RoutingLogReader reader(temp / "log");
  EXPECT_EQ(reader.shape(), kShape);
  const auto steps = read_all(temp / "log");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].n_tokens, 1u);
  EXPECT_EQ(steps[0].ids, (std::vector<Ids>{{7, 0}, {2, 1}}));
  EXPECT_EQ(steps[1].n_tokens, 3u);
  EXPECT_EQ(steps[1].ids, (std::vector<Ids>{{0, 1, 1, 0, 5, 6}, {3, 4, 4, 5, 6, 7}}));
}

TEST(RoutingLog, LinesThatCrossReadsAreWhole) {
  const test::TempFolder temp;
  RecipeRoutes source({12, 64, 6, 1.0, 0, 0, 3});
  std::vector<RoutingStep> want;
  {
    RoutingLogWriter log(temp / "log", source.shape());
    for (int i = 0; i < 10000; ++i) {  // several megabytes
      want.push_back(source.next());
      for (uint32_t l = 0; l < 12; ++l) log.add(l, want.back().ids[l]);
    }
  }
  const auto got = read_all(temp / "log");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].ids, want[i].ids) << i;
}

TEST(RoutingLog, AStepThatFailedHalfWayLeavesNoTrace) {
  const test::TempFolder temp;
  {
    RoutingLogWriter log(temp / "log", kShape);
    log.add(1, Ids{7, 0});  // layer 3 is never reached
    log.add(1, Ids{1, 2});
    log.add(3, Ids{3, 4});
    log.add(1, Ids{5, 6});
  }
  EXPECT_EQ(test::read_file(temp / "log"), kHeader + "step 1\n1 1 2\n3 3 4\n");
}

TEST(RoutingLog, AFullDiskIsAnError) {
  RoutingLogWriter log("/dev/full", kShape);
  log.add(1, Ids{7, 0});
  log.add(3, Ids{2, 1});
  try {
    log.close();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::NoSpace);
    EXPECT_NE(std::string(e.what()).find("/dev/full"), std::string::npos);
  }
  EXPECT_THROW(RoutingLogWriter("/no/such/log", kShape), Error);
}

TEST(RoutingLog, WrongHeadersAreRefused) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string header = kHeader;
    return header.replace(header.find(from), from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "the file is empty"},
      {"step 1\n", "line 1: not valid JSON"},
      {kHeader.substr(0, kHeader.size() - 1), "line 1: the file ends at byte 98 in the middle of the line"},
      {"[]\n", "line 1: want a JSON object"},
      {"{}\n", "line 1: the field 'format' is missing"},
      {with("moeflux-routes", "x"), "'format' is \"x\", want \"moeflux-routes\""},
      {with("\"version\":1", "\"version\":2"), "'version' is 2, want 1"},
      {with("[1,3]", "[]"), "'layers' is []"},
      {with("[1,3]", "3"), "'layers' is 3"},
      {with("[1,3]", "[3,1]"), "want ascending"},
      {with("[1,3]", "[1,1]"), "want ascending"},
      {with("[1,3]", "[-1]"), "want whole numbers"},
      {with("[1,3]", "[1,4294967299]"), "want whole numbers"},
      {with("\"n_experts\":8", "\"n_experts\":0"), "'n_experts' is 0"},
      {with("\"n_experts\":8", "\"n_experts\":100000"), "'n_experts' is 100000"},
      {with("\"top_k\":2", "\"top_k\":9"), "'top_k' is 9"},
      {with("\"record_bytes\":4096", "\"record_bytes\":0"), "'record_bytes' is 0"},
      {std::string(2 << 20, ' '), "line 1: longer than"}};
  for (const auto& [content, message] : cases)
    EXPECT_NE(error_of(content).find(message), std::string::npos)
        << content.substr(0, 200) << ": " << error_of(content);
  std::string layers = "[0";
  for (int i = 1; i < 300; ++i) layers.append(",").append(std::to_string(i));
  std::string many = with("[1,3]", layers + "]");
  many.replace(many.find("\"n_experts\":8"), 13, "\"n_experts\":65536");
  EXPECT_NE(error_of(many).find("300 layers of 65536 experts are more than 16777216"), std::string::npos)
      << error_of(many);
}

TEST(RoutingLog, WrongStepsAreRefusedWithTheirLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"1 2\n", "line 2: found \"1 2\", want \"step N\""},
      {"step 0\n", "line 2: found \"step 0\""},
      {"step -1\n", "line 2: found \"step -1\""},
      {"step 1 2\n", "line 2: found \"step 1 2\""},
      {"step\n", "line 2: found \"step\""},
      {"\n", "line 2: found \"\""},
      {"step 1048577\n", "N from 1 to 1048576"},
      {"step 99999999999\n", "line 2: longer than"},
      {"step 1", "line 2: the file ends at byte 105 in the middle"},
      {"step 1\n", "the file ends after line 2, where layer 1 of a step is wanted"},
      {"step 1\n1 2 3\n", "the file ends after line 3, where layer 3 of a step is wanted"},
      {"step 1\n1 2 3\n3 2", "line 4: the file ends"},
      {"step 1\n1 2 3\n3 2 ", "line 4: the file ends"},
      {"step 1\n3 2 3\n", "line 3: begins with \"3\", want layer 1"},
      {"step 1\n\n", "line 3: begins with \"\", want layer 1"},
      {"step 1\n1\n", "line 3: layer 1 wants exactly 2 experts (2 for each of 1 tokens), found 0"},
      {"step 1\n1 2\n", "line 3: layer 1 wants exactly 2 experts (2 for each of 1 tokens), found 1"},
      {"step 1\n1 2 3 \n", "line 3: layer 1 wants exactly 2"},
      {"step 1\n1 2 3 4\n", "found 2 and more"},
      {"step 1\n1 2  3\n", "line 3: \"\" is not an expert"},
      {"step 1\n1 2 8\n", "line 3: \"8\" is not an expert, a number from 0 to 7"},
      {"step 1\n1 2 -1\n", "line 3: \"-1\" is not an expert"},
      {"step 1\n1 2 4294967298\n", "\"4294967298\" is not an expert"},
      {"step 1\n1 2 \x1b[3\n", "\"\\u001b[3\" is not an expert"},
      {"step 1\n1 2 2\n", "line 3: expert 2 stands twice among the 2 of one token"},
      {"step 1\n1 2 3\r\n", "line 3: \"3\\r\" is not an expert"},
      {"step 1\n" + std::string(100, '1') + "\n", "line 3: longer than the 33 bytes"}};
  for (const auto& [content, message] : cases)
    EXPECT_NE(error_of(kHeader + content).find(message), std::string::npos)
        << content << ": " << error_of(kHeader + content);
}

TEST(RoutingLog, EveryTruncationIsRefusedOrEndsAtAStep) {
  const std::string whole = kHeader + "step 1\n1 7 0\n3 2 1\nstep 2\n1 0 1 1 0\n3 3 4 4 5\n";
  const size_t ends[] = {kHeader.size(), kHeader.size() + 19, whole.size()};
  for (size_t n = 0; n <= whole.size(); ++n)
    EXPECT_EQ(error_of(whole.substr(0, n)).empty(), std::ranges::count(ends, n) == 1) << n;
}

}  // namespace
}  // namespace moeflux
