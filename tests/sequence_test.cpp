// Sequences that share a beginning, go back, or are evaluated side by side: what each of them gives must not
// depend on that.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "gen/engine.h"
#include "io/faulty_queue.h"
#include "model/sequence_test.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::joined;
using test::some_tokens;

constexpr size_t kContext = 260;

EngineOptions with(const std::string& backend, Precision precision = Precision::Exact) {
  EngineOptions o;
  o.backend = backend;
  o.precision = precision;
  o.ctx = kContext;
  o.chunk = 100;
  return o;
}

std::vector<float> fresh_logits(Engine& engine, std::span<const Token> tokens, size_t rows = 1) {
  return engine.eval(*engine.make_sequence(), tokens, rows);
}

std::vector<std::string> hybrids_and_windows() {
  return {"next_dense_k5", "q35_flat_fused", "gptoss_i40_k3", "mixtral_old_tied", "mixtral_window7_k3"};
}

struct Case {
  std::string name;
  bool golden;
  const fs::path& package() const {
    return golden ? test::golden_package(name) : test::variant_package(name);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& name : test::golden_families()) all.push_back({name, true});
  for (const std::string& name : hybrids_and_windows()) all.push_back({name, false});
  return all;
}

class Sequences : public testing::TestWithParam<Case> {
 protected:
  const fs::path& package() const { return GetParam().package(); }
};

TEST_P(Sequences, CopiesGoTheirOwnWay) {
  for (const auto& [backend, precision] :
       {std::pair("cpu", Precision::Exact), std::pair("cpu", Precision::Fast),
        std::pair("cpu-ref", Precision::Exact)}) {
    Engine engine(package(), with(backend, precision));
    for (const size_t n : {70, 128, 150}) {
      const std::vector<Token> begin = some_tokens(n, 1), a = some_tokens(40, 2), b = some_tokens(40, 3);
      const auto first = engine.make_sequence();
      engine.eval(*first, begin);
      auto second = first->copy();
      EXPECT_EQ(second->position(), n);
      const std::span<const Token> a_tokens = a, b_tokens = b;
      engine.eval(*first, a_tokens.first(1));
      engine.eval(*second, b_tokens.first(30));
      const auto third = second->copy();
      engine.eval(*first, a_tokens.subspan(1, 38));
      engine.eval(*second, b_tokens.subspan(30, 9));
      EXPECT_EQ(engine.eval(*first, a_tokens.last(1)), fresh_logits(engine, joined(begin, a)))
          << backend << n;
      EXPECT_EQ(engine.eval(*second, b_tokens.last(1)), fresh_logits(engine, joined(begin, b)))
          << backend << n;
      second.reset();  // what it shared stays
      EXPECT_EQ(engine.eval(*third, b_tokens.last(10)), fresh_logits(engine, joined(begin, b)))
          << backend << n;
      if (engine.options().backend == "cpu-ref") break;  // slow, and plain enough
    }
  }
}

// Steps with a chunk of one text and single tokens of the others.
TEST_P(Sequences, InterleavedOnesEqualSeparateOnes) {
  for (const auto& [backend, precision] :
       {std::pair("cpu", Precision::Exact), std::pair("cpu", Precision::Fast),
        std::pair("cpu-ref", Precision::Exact)}) {
    Engine engine(package(), with(backend, precision));
    const size_t n_vocab = engine.config().n_vocab;
    constexpr size_t kTexts = 3, kLength = 110;
    std::vector<std::vector<Token>> texts;
    std::vector<std::vector<float>> got(kTexts);
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (Token i = 0; i < kTexts; ++i) {
      texts.push_back(some_tokens(kLength, i));
      sequences.push_back(engine.make_sequence());
    }
    for (size_t step = 0, left = kTexts * kLength; left > 0; ++step) {
      std::vector<Token> tokens;
      std::vector<Slice> slices;
      std::vector<uint32_t> rows;
      for (size_t i = 0; i < kTexts; ++i) {
        const size_t at = sequences[i]->position();
        const size_t n = std::min<size_t>(step % kTexts == i ? 23 : 1, kLength - at);
        if (n == 0) continue;
        slices.push_back({sequences[i].get(), tokens.size(), n});
        for (size_t t = 0; t < n; ++t) {
          rows.push_back(static_cast<uint32_t>(tokens.size()));
          tokens.push_back(texts[i][at + t]);
        }
        left -= n;
      }
      std::vector<float> logits(rows.size() * n_vocab);
      engine.step({tokens, slices, rows}, logits);
      for (size_t s = 0, row = 0; s < slices.size(); row += slices[s++].count)
        for (size_t i = 0; i < kTexts; ++i)
          if (sequences[i].get() == slices[s].sequence)
            got[i].insert(got[i].end(), &logits[row * n_vocab], &logits[(row + slices[s].count) * n_vocab]);
    }
    for (size_t i = 0; i < kTexts; ++i)
      EXPECT_EQ(got[i], fresh_logits(engine, texts[i], kLength)) << backend << ", text " << i;
  }
}

// What cut() promises of the cpu backend.
bool can_cut(const ModelConfig& model, size_t position, size_t to) {
  for (const LayerConfig& layer : model.layers) {
    if (layer.mixer == Mixer::DeltaNet && (to < position / kDeltaBlock * kDeltaBlock || position - to > 16))
      return false;
    if (layer.window && to > 0 && layer.window > 1 &&
        first_visible(layer, to) / kKvBlock < first_visible(layer, position) / kKvBlock)
      return false;
  }
  return true;
}

TEST_P(Sequences, CutAtEveryPosition) {
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    Engine engine(package(), with("cpu", precision));
    const size_t n = precision == Precision::Exact ? 150 : 100;
    const std::vector<Token> tokens = some_tokens(n, 1), other = some_tokens(3, 4);
    const auto whole = engine.make_sequence();
    engine.eval(*whole, tokens);
    size_t n_cut = 0;
    for (size_t p = 0; p <= n; ++p) {
      const auto copy = whole->copy();
      const uint64_t before = copy->bytes();
      const bool expected = p == n || can_cut(engine.config(), n, p);
      ASSERT_EQ(copy->cut(p), expected) << p;
      ASSERT_EQ(copy->position(), expected ? p : n);
      EXPECT_TRUE(expected || copy->bytes() == before);
      const auto begin = std::span(tokens).first(expected ? p : n);
      n_cut += expected;
      if (!expected && p % 50) continue;  // as a fresh one, or as if nothing had happened
      ASSERT_EQ(engine.eval(*copy, other), fresh_logits(engine, joined({begin.begin(), begin.end()}, other)))
          << "cut at " << p;
    }
    EXPECT_GE(n_cut, 7u);
    EXPECT_EQ(engine.eval(*whole, other),
              fresh_logits(engine, joined(tokens, other)));  // copies do not write to it
  }
}

// Without a copy, memory is not shared: the cut itself must leave nothing behind.
TEST_P(Sequences, CutAgainAndAgain) {
  for (const std::string backend : {"cpu", "cpu-ref"}) {
    const Token rounds = backend == "cpu" ? 60 : 14;
    Engine engine(package(), with(backend));
    const auto sequence = engine.make_sequence();
    std::vector<Token> tokens = some_tokens(150, 1);
    engine.eval(*sequence, tokens);
    size_t n_cut = 0;
    for (Token i = 0; i < rounds; ++i) {
      const std::vector<Token> more = some_tokens(1 + i % 7, i);
      const size_t back = i % 12;  // more is cut off in all than the inputs that are kept
      n_cut += sequence->cut(sequence->position() - back);
      tokens.resize(sequence->position());
      tokens = joined(tokens, more);
      ASSERT_EQ(engine.eval(*sequence, more), fresh_logits(engine, tokens)) << backend << i;
    }
    EXPECT_GE(n_cut, rounds / 12);
  }
}

TEST_P(Sequences, TheReferenceCutsWhereItCan) {
  Engine engine(package(), with("cpu-ref"));
  const std::vector<Token> tokens = some_tokens(80, 1), other = some_tokens(2, 4);
  const auto whole = engine.make_sequence();
  engine.eval(*whole, tokens);
  for (const size_t p : {0, 1, 40, 79}) {
    const auto copy = whole->copy();
    if (!copy->cut(p)) {
      EXPECT_TRUE(engine.config().has(Mixer::DeltaNet)) << p;
      continue;
    }
    const auto begin = std::span(tokens).first(p);
    EXPECT_EQ(engine.eval(*copy, other), fresh_logits(engine, joined({begin.begin(), begin.end()}, other)))
        << p;
  }
}

TEST_P(Sequences, MemoryGrowsWithTheTextAndIsShared) {
  for (const KvType kv : {KvType::F32, KvType::Bf16, KvType::Q8}) {
    EngineOptions o = with("cpu", kv == KvType::F32 ? Precision::Exact : Precision::Fast);
    o.kv = kv;
    Engine engine(package(), o);
    const auto a = engine.make_sequence();
    EXPECT_EQ(a->bytes(), 0u);
    engine.eval(*a, some_tokens(1, 1));
    const uint64_t one = a->bytes();
    engine.eval(*a, some_tokens(63, 1));
    EXPECT_EQ(a->bytes(), one);  // a page holds 64 positions
    engine.eval(*a, some_tokens(136, 1));
    const uint64_t all = a->bytes();
    const bool grows =
        std::ranges::any_of(engine.config().layers, [](const LayerConfig& l) { return l.window == 0; });
    EXPECT_EQ(all > one, grows || GetParam().name == "mixtral_old_tied");  // whose window takes three pages
    EXPECT_LE(all, engine.plan().kv_bytes);

    auto b = a->copy();
    EXPECT_EQ(b->bytes(), all);
    EXPECT_EQ(bytes_together({a.get(), b.get()}), all);
    engine.eval(*b, some_tokens(1, 2));
    const uint64_t written = bytes_together({a.get(), b.get()}) - all;
    if (!engine.config().has(Mixer::DeltaNet)) {
      EXPECT_EQ(written, one);  // one page of each layer
    } else {
      EXPECT_LT(written, all);  // the state is shared until the block ends
    }
    engine.eval(*a, some_tokens(1, 2));  // the last pages are its own now
    EXPECT_EQ(bytes_together({a.get(), b.get()}), all + written);
    b.reset();
    EXPECT_EQ(a->bytes(), all);

    engine.eval(*a, some_tokens(kContext - a->position(), 3));
    EXPECT_LE(a->bytes(), engine.plan().kv_bytes);
    if (grows) {
      EXPECT_GT(a->bytes(), all);
    } else {
      EXPECT_LE(a->bytes(), all + one);  // a window may lie across one page more
    }
  }
}

// Of the backend cuda, where there is a GPU. Steps of the same sizes give the same bits in every precision.
class GpuSequences : public Sequences {
 protected:
  void SetUp() override {
    try {
      cuda_device();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  static std::vector<float> eval_pieces(Engine& engine, Sequence& sequence, std::span<const Token> tokens,
                                        size_t piece) {
    std::vector<float> logits;
    for (size_t at = 0; at < tokens.size(); at += piece)
      logits = engine.eval(sequence, tokens.subspan(at, std::min(piece, tokens.size() - at)));
    return logits;
  }
};

TEST_P(GpuSequences, CopiesEqualSeparateOnes) {
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    Engine engine(package(), with("cuda", precision));
    for (const size_t n : {60, 128, 150}) {
      const std::vector<Token> begin = some_tokens(n, 1), a = some_tokens(30, 2), b = some_tokens(70, 3);
      const auto separate = [&](std::span<const Token> rest, size_t piece) {
        const auto sequence = engine.make_sequence();
        engine.eval(*sequence, begin);
        return eval_pieces(engine, *sequence, rest, piece);
      };
      const std::vector<float> want_a = separate(a, 1), want_b = separate(b, 35);
      const auto first = engine.make_sequence();
      engine.eval(*first, begin);
      auto second = first->copy();
      const auto third = first->copy();
      const auto b_tokens = std::span<const Token>(b);
      engine.eval(*second, b_tokens.first(35));
      EXPECT_EQ(eval_pieces(engine, *first, a, 1), want_a) << n;
      EXPECT_EQ(engine.eval(*second, b_tokens.last(35)), want_b) << n;
      second.reset();  // what it shared stays
      EXPECT_EQ(eval_pieces(engine, *third, a, 1), want_a) << n;
      const auto again = third->copy();
      if (engine.config().has(Mixer::DeltaNet) || !again->cut(n)) continue;
      EXPECT_EQ(eval_pieces(engine, *again, b, 35), want_b) << n;
      EXPECT_EQ(engine.eval(*third, a), engine.eval(*first, a)) << n;
    }
  }
}

TEST_P(GpuSequences, MemoryGrowsWithTheTextAndIsShared) {
  for (const KvType kv : {KvType::F32, KvType::Bf16, KvType::Q8}) {
    EngineOptions o = with("cuda", kv == KvType::F32 ? Precision::Exact : Precision::Fast);
    o.kv = kv;
    Engine engine(package(), o);
    const auto a = engine.make_sequence();
    EXPECT_EQ(a->bytes(), 0u);
    engine.eval(*a, some_tokens(1, 1));
    const uint64_t one = a->bytes();
    engine.eval(*a, some_tokens(63, 1));
    EXPECT_EQ(a->bytes(), one);
    engine.eval(*a, some_tokens(136, 1));
    const uint64_t all = a->bytes();
    EXPECT_LE(all, engine.plan().kv_bytes);
    const auto b = a->copy();
    EXPECT_EQ(bytes_together({a.get(), b.get()}), all);
    engine.eval(*b, some_tokens(1, 2));
    EXPECT_EQ(bytes_together({a.get(), b.get()}), all + one);  // a page of each kind
    engine.eval(*a, some_tokens(1, 2));                        // the last pages are its own now
    EXPECT_EQ(bytes_together({a.get(), b.get()}), all + one);
    engine.eval(*a, some_tokens(kContext - a->position(), 3));
    EXPECT_LE(a->bytes(), engine.plan().kv_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuSequences, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Families, Sequences, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(SequenceWindows, PagesThatNoQueryCanSeeAreGivenBack) {
  EngineOptions o = with("cpu");
  o.ctx = 2000;
  Engine engine(test::variant_package("mixtral_window7_k3"), o);
  const auto sequence = engine.make_sequence();
  engine.eval(*sequence, some_tokens(100, 1));
  const uint64_t early = sequence->bytes();
  engine.eval(*sequence, some_tokens(1500, 1));
  EXPECT_LE(sequence->bytes(), early);
}

TEST(SequenceFaults, ABrokenOneStaysSoAndOthersDoNotNotice) {
  const fs::path& package = test::golden_package("qwen3_next");
  EngineOptions o = with("cpu");
  o.ram = ExpertStore::least_budget(Package(package).manifest());
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  Engine engine(package, o);
  const std::vector<Token> tokens = some_tokens(70, 1), more = some_tokens(50, 2);
  const auto sequence = engine.make_sequence();
  engine.eval(*sequence, tokens);
  const auto kept = sequence->copy();
  queue->set({.error = [countdown = 9](const ReadRequest&) mutable { return countdown-- > 0 ? 0 : EIO; }});
  EXPECT_THROW(engine.eval(*sequence, more), Error);
  queue->set({});
  EXPECT_TRUE(sequence->broken());
  EXPECT_TRUE(sequence->copy()->broken());
  EXPECT_FALSE(sequence->cut(0));
  EXPECT_FALSE(sequence->cut(69));
  EXPECT_THROW(engine.eval(*sequence, more), Error);
  EXPECT_FALSE(kept->broken());
  EXPECT_EQ(engine.eval(*kept, more), fresh_logits(engine, joined(tokens, more)));
}

}  // namespace
}  // namespace moeflux
