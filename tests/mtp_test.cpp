// The multi-token-prediction layer: its mathematics against recorded values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "gen/engine.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

constexpr double kMtpBound = 1e-3;  // as for other outputs of models with delta nets

EngineOptions mtp_options(const std::string& backend, Precision precision) {
  EngineOptions o;
  o.backend = backend;
  o.precision = precision;
  o.ctx = 256;
  return o;
}

template <class T>
std::vector<T> values_of(const test::RawTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
  return most;
}

struct MtpRows {
  std::vector<float> logits, hidden;
};

// Steps of at most `chunk` tokens; the logits of all of them.
MtpRows evaluate_mtp(Engine& engine, Sequence& sequence, std::span<const Token> tokens,
                     std::span<const float> hidden, size_t chunk) {
  const size_t d = engine.config().d_model, vocab = engine.config().n_vocab;
  MtpRows out{std::vector<float>(tokens.size() * vocab), std::vector<float>(tokens.size() * d)};
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const Slice slice{&sequence, 0, n};
    std::vector<uint32_t> rows(n);
    for (uint32_t i = 0; i < n; ++i) rows[i] = i;
    engine.step({tokens.subspan(at, n),
                 {&slice, 1},
                 rows,
                 hidden.subspan(at * d, n * d),
                 std::span(out.hidden).subspan(at * d, n * d)},
                std::span(out.logits).subspan(at * vocab, n * vocab));
  }
  return out;
}

class Mtp : public testing::TestWithParam<std::string> {
 protected:
  Mtp() {
    auto golden = test::read_safetensors(test::data_folder() / "mtp" / GetParam() / "golden.safetensors");
    for (const int32_t id : values_of<int32_t>(golden.at("input_ids")))
      ids_.push_back(static_cast<Token>(id));
    for (const int32_t id : values_of<int32_t>(golden.at("chain_ids")))
      chain_.push_back(static_cast<Token>(id));
    logits_ = values_of<float>(golden.at("logits"));
    hidden_ = values_of<float>(golden.at("hidden"));
    chain_logits_ = values_of<float>(golden.at("chain_logits"));
  }
  std::span<const Token> evaluated() const { return std::span(ids_).first(ids_.size() - 1); }
  std::span<const Token> following() const { return std::span(ids_).subspan(1); }

  std::vector<Token> ids_, chain_;
  std::vector<float> logits_, hidden_, chain_logits_;
};

TEST_P(Mtp, EqualsTheReference) {
  for (const std::string backend : {"cpu", "cpu-ref"}) {
    Engine engine(test::mtp_package(GetParam()), mtp_options(backend, Precision::Exact));
    const size_t d = engine.config().d_model, vocab = engine.config().n_vocab;
    const auto sequence = engine.make_sequence(), own = engine.make_mtp_sequence();
    std::vector<float> hidden;
    const std::vector<float> plain = engine.eval(*sequence, evaluated());
    const auto again = engine.make_sequence();
    EXPECT_EQ(engine.eval(*again, evaluated(), 1, {}, &hidden), plain) << backend;  // looking changes nothing
    EXPECT_LT(largest_difference(std::span(hidden).last(d), hidden_), kMtpBound) << backend;

    MtpRows rows = evaluate_mtp(engine, *own, following(), hidden, engine.options().chunk);
    EXPECT_LT(largest_difference(std::span(rows.logits).last(logits_.size()), logits_), kMtpBound) << backend;
    for (size_t i = 0; i + 1 < chain_.size(); ++i) {
      rows = evaluate_mtp(engine, *own, {&chain_[i], 1},
                          std::vector(rows.hidden.end() - d, rows.hidden.end()), 1);
      EXPECT_LT(largest_difference(rows.logits, std::span(chain_logits_).subspan(i * vocab, vocab)),
                kMtpBound)
          << backend << ", guess " << i + 1;
    }
  }
}

TEST_P(Mtp, HasTheSameBitsForEveryChunkAndCache) {
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    MtpRows whole;
    for (const uint64_t chunk : {512, 1, 7}) {
      EngineOptions o = mtp_options("cpu", precision);
      o.chunk = chunk;
      if (chunk == 7) o.ram = ExpertStore::least_budget(Package(test::mtp_package(GetParam())).manifest());
      Engine engine(test::mtp_package(GetParam()), o);
      const auto sequence = engine.make_sequence(), own = engine.make_mtp_sequence();
      std::vector<float> hidden;
      engine.eval(*sequence, evaluated(), 1, {}, &hidden);
      const MtpRows rows = evaluate_mtp(engine, *own, following(), hidden, chunk);
      if (chunk == 512) whole = rows;
      EXPECT_EQ(rows.logits, whole.logits) << chunk;
      EXPECT_EQ(rows.hidden, whole.hidden) << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Mtp, testing::ValuesIn(test::folders_of("mtp")),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace moeflux
