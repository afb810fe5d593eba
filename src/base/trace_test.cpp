#include "base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

using std::chrono::microseconds;

Json events_of(const std::filesystem::path& path) {
  return parse_json(test::read_file(path), path.string())["traceEvents"];
}

TEST(Trace, KeepsSpansWithTheirTimesAndArguments) {
  const test::TempFolder temp;
  Trace trace(temp / "trace.json");
  EXPECT_TRUE(std::filesystem::exists(temp / "trace.json"));
  const auto start = Trace::Clock::now();
  trace.span("stage", "attention", start, start + microseconds(1500), 3);
  trace.async_span("read", "expert", start + microseconds(10), start + microseconds(25), 4, 7, 4096);
  trace.close();
  const Json events = events_of(temp / "trace.json");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["cat"], "stage");
  EXPECT_EQ(events[0]["name"], "attention");
  EXPECT_EQ(events[0]["dur"], 1500.0);
  EXPECT_EQ(events[0]["args"], (Json{{"layer", 3}}));
  EXPECT_EQ(events[1]["ph"], "b");
  EXPECT_EQ(events[1]["args"], (Json{{"layer", 4}, {"expert", 7}, {"bytes", 4096}}));
  EXPECT_EQ(events[2]["ph"], "e");
  EXPECT_EQ(events[2]["id"], events[1]["id"]);
  EXPECT_NEAR(events[2]["ts"].get<double>() - events[1]["ts"].get<double>(), 15.0, 0.01);
}

TEST(Trace, SpansWithoutATraceCostNothingAndScopesAreRecorded) {
  const test::TempFolder temp;
  { const TraceSpan none(nullptr, "stage", "experts"); }
  {
    Trace trace(temp / "trace.json");
    const TraceSpan span(&trace, "stage", "experts", 2);
  }  // the span ends before the trace, whose destructor writes
  const Json events = events_of(temp / "trace.json");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "experts");
  EXPECT_GE(events[0]["dur"].get<double>(), 0);
}

TEST(Trace, CountsWhatItDoesNotKeep) {
  const test::TempFolder temp;
  Trace trace(temp / "trace.json", 2);
  const auto now = Trace::Clock::now();
  for (int i = 0; i < 5; ++i) trace.span("stage", "embed", now, now);
  trace.close();
  trace.span("stage", "late", now, now);  // after the end: nothing happens
  trace.close();
  const Json all = parse_json(test::read_file(temp / "trace.json"), "trace");
  EXPECT_EQ(all["traceEvents"].size(), 2u);
  EXPECT_EQ(all["otherData"]["dropped_events"], 3);
}

TEST(Trace, AnEmptyOneIsValid) {
  const test::TempFolder temp;
  { const Trace trace(temp / "trace.json"); }
  EXPECT_EQ(events_of(temp / "trace.json").size(), 0u);
}

TEST(Trace, TargetsThatCannotBeWrittenAreErrors) {
  const test::TempFolder temp;
  EXPECT_THROW(Trace(temp / "no/such/trace.json"), Error);
  EXPECT_THROW(Trace(temp.path()), Error);  // a folder
  Trace full("/dev/full");
  const auto now = Trace::Clock::now();
  full.span("stage", "embed", now, now);
  try {
    full.close();
    FAIL() << "a full disk must be an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::NoSpace);
    EXPECT_NE(std::string(e.what()).find("/dev/full"), std::string::npos);
  }
  full.close();  // closed all the same
}

TEST(TraceThreads, SpansOfSeveralThreadsKeepTheirThread) {
  constexpr int kThreads = 4, kSpans = 500;
  const test::TempFolder temp;
  Trace trace(temp / "trace.json");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&trace, t] {
        trace.name_thread("worker \"" + std::to_string(t) + "\"");
        for (int i = 0; i < kSpans; ++i) {
          const TraceSpan span(&trace, "stage", "work", t);
          trace.async_span("read", "expert", Trace::Clock::now(), Trace::Clock::now(), t, i, 1);
        }
      });
  }
  trace.close();
  std::map<int64_t, std::string> names;
  std::map<int64_t, std::set<int64_t>> layers;
  size_t spans = 0;
  for (const Json& e : events_of(temp / "trace.json")) {
    const int64_t thread = e["tid"];
    if (e["ph"] == "M") names[thread] = e["args"]["name"];
    if (e["ph"] == "X") ++spans, layers[thread].insert(e["args"]["layer"].get<int64_t>());
  }
  EXPECT_EQ(spans, size_t{kThreads * kSpans});
  ASSERT_EQ(names.size(), layers.size());  // a thread's number may be used again once it has ended
  for (const auto& [thread, seen] : layers)
    EXPECT_EQ(names[thread], "worker \"" + std::to_string(*seen.rbegin()) + "\"");
}

}  // namespace
}  // namespace moeflux
