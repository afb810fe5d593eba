// Texts that go back: with checkpoints where the state cannot, and always with the bits of a fresh
// evaluation.
#include "gen/history.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/faulty_queue.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::some_tokens;

EngineOptions exact_engine(const std::string& backend = "cpu") {
  EngineOptions o;
  o.backend = backend;
  o.precision = Precision::Exact;
  o.ctx = 400;
  return o;
}

std::vector<float> fresh(Engine& engine, std::span<const Token> begin, std::span<const Token> end) {
  std::vector<Token> tokens(begin.begin(), begin.end());
  tokens.insert(tokens.end(), end.begin(), end.end());
  return engine.eval(*engine.make_sequence(), tokens);
}

// With few tokens at a time, so that the text's pieces end anywhere.
void eval_in_pieces(History& history, std::span<const Token> tokens) {
  for (size_t at = 0, n = 0; at < tokens.size(); at += n) {
    n = std::min<size_t>(1 + at % 41, tokens.size() - at);
    history.eval(tokens.subspan(at, n), 0);
  }
}

fs::path package_of(const std::string& name) {
  const std::vector<std::string> goldens = test::golden_families();
  const bool golden = std::ranges::find(goldens, name) != goldens.end();
  return golden ? test::golden_package(name) : test::variant_package(name);
}

class HistoryOf : public testing::TestWithParam<std::string> {};

TEST_P(HistoryOf, CutAtEveryPositionEqualsAFreshEvaluation) {
  for (const std::string backend : {"cpu", "cpu-ref"}) {
    Engine engine(package_of(GetParam()), exact_engine(backend));
    const bool slow = backend == "cpu-ref";
    for (const bool at_once : {false, true}) {
      if (slow && at_once) continue;
      History whole(engine, {.checkpoint_every = 64});
      const std::vector<Token> tokens = some_tokens(slow ? 130 : 220, 1), other = some_tokens(2, 4);
      if (at_once) {  // with checkpoints inside the step, and one that is not at a page's end
        whole.eval(tokens, 0);
      } else {
        eval_in_pieces(whole, std::span(tokens).first(90));
        whole.checkpoint();
        eval_in_pieces(whole, std::span(tokens).subspan(90));
      }
      for (size_t p = 0; p <= tokens.size(); p += slow ? 43 : 1) {
        const auto history = whole.copy();
        history->cut(p);
        ASSERT_EQ(history->position(), p);
        ASSERT_TRUE(std::ranges::equal(history->tokens(), std::span(tokens).first(p)));
        ASSERT_EQ(history->eval(other), fresh(engine, std::span(tokens).first(p), other)) << backend << p;
      }
      EXPECT_EQ(whole.eval(other), fresh(engine, tokens, other));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HistoryOf,
                         testing::Values("qwen3_next", "qwen3_5_moe", "gpt_oss", "next_dense_k5",
                                         "q35_flat_fused", "gptoss_i40_k3", "mixtral_old_tied",
                                         "mixtral_window7_k3", "deepseek_v3"),
                         [](const auto& test) { return test.param; });

TEST(History, MakesCheckpointsForModelsThatNeedThem) {
  const std::vector<Token> tokens = some_tokens(300, 1);
  Engine hybrid(test::golden_package("qwen3_next"), exact_engine());
  History h(hybrid, {.checkpoint_every = 64});
  eval_in_pieces(h, tokens);
  EXPECT_EQ(h.checkpoints(), (std::vector<size_t>{64, 128, 192, 256}));
  EXPECT_EQ(h.nearest(200), 192u);
  EXPECT_EQ(h.nearest(299), 299u);  // inside the block
  EXPECT_EQ(h.nearest(20), 0u);

  Engine plain(test::golden_package("qwen3_moe"), exact_engine());
  History p(plain, {.checkpoint_every = 64});
  eval_in_pieces(p, tokens);
  EXPECT_TRUE(p.checkpoints().empty());
  EXPECT_EQ(p.nearest(200), 200u);
}

TEST(History, MakesMoreCheckpointsBeforeAPromptsEnd) {
  EngineOptions o = exact_engine();
  o.ctx = 1200;
  o.chunk = 700;  // a prompt of several steps
  Engine engine(test::golden_package("qwen3_5_moe"), o);
  const std::vector<Token> tokens = some_tokens(900, 1), other = some_tokens(3, 2);
  History h(engine, {.checkpoint_every = 512});
  h.eval(tokens);
  EXPECT_EQ(h.checkpoints(), (std::vector<size_t>{384, 512, 640, 768, 832, 896}));
  for (const size_t p : {384, 640, 768, 832, 896}) {
    const auto copy = h.copy();
    copy->restore_to(p);
    EXPECT_EQ(copy->eval(other), fresh(engine, std::span(tokens).first(p), other)) << p;
  }
  for (Token t = 0; t < 130; ++t) h.eval(std::vector<Token>{t});
  EXPECT_EQ(h.checkpoints().back(), 1024u);
}

TEST(History, StepsThatOthersEvaluateCount) {
  Engine engine(test::golden_package("qwen3_next"), exact_engine());
  History a(engine, {.checkpoint_every = 64}), b(engine, {.checkpoint_every = 64});
  const std::vector<Token> tokens = some_tokens(150, 1);
  const auto all = std::span<const Token>(tokens);
  for (size_t at = 0; at < tokens.size(); at += 75) {
    std::vector<Token> both(tokens.begin() + at, tokens.begin() + at + 75);
    both.insert(both.end(), both.begin(), both.end());
    const Slice slices[] = {{&a.sequence(), 0, 75}, {&b.sequence(), 75, 75}};
    engine.step({both, slices, {}}, {});
    a.accept(all.subspan(at, 75));
    b.accept(all.subspan(at, 75));
  }
  EXPECT_EQ(a.checkpoints(), (std::vector<size_t>{64, 128}));
  a.cut(100);
  EXPECT_EQ(a.checkpoints(), (std::vector<size_t>{64}));
  EXPECT_EQ(a.eval(all.first(3)), fresh(engine, all.first(100), all.first(3)));
  EXPECT_EQ(b.eval(all.first(3)), fresh(engine, all, all.first(3)));
}

TEST(History, CheckpointsStayWithinTheirMemory) {
  EngineOptions o = exact_engine();
  o.ctx = 1200;
  Engine engine(test::golden_package("qwen3_5_moe"), o);
  const std::vector<Token> tokens = some_tokens(1170, 1);
  History all(engine, {.checkpoint_every = 64});
  all.eval(tokens);
  EXPECT_EQ(all.checkpoints().size(), 18u);
  const uint64_t budget = all.checkpoint_bytes() / 3;
  History few(engine, {.checkpoint_every = 64, .checkpoint_bytes = budget});
  for (size_t at = 0; at < tokens.size(); at += 30) {
    few.eval(std::span(tokens).subspan(at, 30));
    ASSERT_LE(few.checkpoint_bytes(), budget + all.checkpoint_bytes() / 18);  // and the newest
  }
  const std::vector<size_t> left = few.checkpoints();
  ASSERT_GE(left.size(), 4u);
  EXPECT_EQ(left.back(), 1152u);
  EXPECT_LE(left[left.size() - 1] - left[left.size() - 2], left[1] - left[0]);
  few.cut(200);
  EXPECT_EQ(few.eval(std::span(tokens).first(2)),
            fresh(engine, std::span(tokens).first(200), std::span(tokens).first(2)));
}

TEST(History, SharesItsCheckpointsWithCopies) {
  Engine engine(test::golden_package("qwen3_next"), exact_engine());
  History a(engine, {.checkpoint_every = 64});
  a.eval(some_tokens(150, 1));
  const auto b = a.copy();
  EXPECT_EQ(b->checkpoint_bytes(), a.checkpoint_bytes());
  b->restore_to(64);
  b->eval(some_tokens(64, 2));
  EXPECT_EQ(b->checkpoints(), (std::vector<size_t>{64, 128}));
  EXPECT_EQ(a.checkpoints(), (std::vector<size_t>{64, 128}));
  a.restore_to(128);
  const std::vector<Token> more = some_tokens(3, 5);
  EXPECT_EQ(a.eval(more), fresh(engine, some_tokens(128, 1), more));
}

template <class Fn>
Errc error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.code;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Errc::Io;
}

TEST(History, RefusesWhatItCannotDoAndIsAsBefore) {
  Engine engine(test::golden_package("qwen3_next"), exact_engine());
  History h(engine, {.checkpoint_every = 0, .most_recompute = 10});
  const std::vector<Token> tokens = some_tokens(100, 1);
  h.eval(tokens);
  EXPECT_EQ(error_of([&] { h.cut(101); }), Errc::InvalidArgument);
  EXPECT_EQ(error_of([&] { h.cut(50); }), Errc::Unsupported);
  EXPECT_EQ(error_of([&] { h.restore_to(50); }), Errc::NotFound);
  EXPECT_EQ(error_of([&] { h.eval(some_tokens(301, 1)); }), Errc::InvalidArgument);
  EXPECT_EQ(h.position(), 100u);
  h.checkpoint();
  const std::vector<Token> more = some_tokens(70, 3);
  EXPECT_EQ(h.eval(more), fresh(engine, tokens, more));
  EXPECT_EQ(error_of([&] { h.cut(111); }), Errc::Unsupported);
  h.cut(110);
  EXPECT_EQ(h.eval(std::span(more).last(3)), [&] {
    std::vector<Token> begin = tokens;
    begin.insert(begin.end(), more.begin(), more.begin() + 10);
    return fresh(engine, begin, std::span(more).last(3));
  }());
  h.cut(0);
  EXPECT_EQ(h.eval(more), fresh(engine, {}, more));
}

TEST(History, IsRepairedAfterAFailedStep) {
  const fs::path& package = test::golden_package("qwen3_next");
  EngineOptions o = exact_engine();
  o.ram = ExpertStore::least_budget(Package(package).manifest());
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  o.chunk = 32;
  Engine engine(package, o);
  const auto fail_after = [&](int reads) {
    queue->set({.error = [reads](const ReadRequest&) mutable { return reads-- > 0 ? 0 : EIO; }});
  };
  History h(engine, {.checkpoint_every = 64});
  const std::vector<Token> tokens = some_tokens(150, 1), more = some_tokens(100, 2);
  h.eval(tokens);
  fail_after(150);
  EXPECT_THROW(h.eval(more), Error);
  EXPECT_TRUE(h.broken());
  const std::vector<Token> now(h.tokens().begin(), h.tokens().end());
  EXPECT_GE(now.size(), 150u);
  EXPECT_LT(now.size(), 250u);
  EXPECT_THROW(h.checkpoint(), Error);
  fail_after(0);
  EXPECT_THROW(h.cut(h.position() - 1), Error);  // nothing can be evaluated again
  EXPECT_EQ(h.position(), now.size());
  queue->set({});
  h.cut(h.position());
  EXPECT_FALSE(h.broken());
  EXPECT_EQ(h.eval(more), fresh(engine, now, more));
}

}  // namespace
}  // namespace moeflux
