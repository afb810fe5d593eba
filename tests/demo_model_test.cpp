// The small trained model (models/storyteller), end to end, where random weights would say little: that its
// package computes what independent programs compute, and what 4 bits, fast precision and smaller KV caches
// cost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/json.h"
#include "convert/convert.h"
#include "gen/generate.h"
#include "gen/generation_config.h"
#include "gen/perplexity.h"
#include "support/checkpoint_builder.h"
#include "support/support.h"

namespace moeflux {
namespace {

constexpr uint64_t kTrainedContext = 512;

EngineOptions exact(const std::string& backend = "cpu") {
  EngineOptions o;
  o.precision = Precision::Exact;
  o.backend = backend;
  o.ctx = kTrainedContext;
  return o;
}

// goldens

template <class T>
std::vector<T> values(const std::map<std::string, test::RawTensor>& file, const std::string& name) {
  const std::string& bytes = file.at(name).bytes;
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

struct GoldenText {
  std::vector<Token> prompt, output;  // greedy; with the stop token, where it ended with one
  std::vector<float> logprob;         // of each token of both but the first
  std::vector<float> logits;          // after the prompt; may be absent
};

std::vector<GoldenText> read_golden(const fs::path& path) {
  const auto file = test::read_safetensors(path);
  std::vector<GoldenText> texts;
  for (int i = 0; i < 4; ++i) {
    const std::string g = fmt::format("g{}.", i);
    texts.push_back({values<Token>(file, g + "prompt_ids"),
                     values<Token>(file, g + "output_ids"),
                     values<float>(file, g + "logprob"),
                     {}});
    if (file.contains(g + "logits")) texts.back().logits = values<float>(file, g + "logits");
  }
  return texts;
}

std::vector<Token> greedy(Engine& engine, const GoldenText& text) {
  GenerateOptions o;
  o.sampler.temperature = 0;
  o.max_tokens = text.output.size();
  o.stop_tokens = read_generation_config(test::storyteller()).eos;
  const Generated got = generate(engine, *engine.make_sequence(), text.prompt, o);
  std::vector<Token> tokens = got.tokens;
  if (got.stop_token) tokens.push_back(*got.stop_token);
  return tokens;
}

void expect_golden(const fs::path& package, const EngineOptions& options, const fs::path& golden) {
  constexpr double kBound = 1e-3;  // as for all models with delta nets
  Engine engine(package, options);
  const size_t n_vocab = engine.config().n_vocab;
  for (const GoldenText& text : read_golden(golden)) {
    EXPECT_EQ(greedy(engine, text), text.output);

    std::vector<Token> all = text.prompt;
    all.insert(all.end(), text.output.begin(), text.output.end());
    const size_t n = all.size() - 1;
    const std::vector<float> rows = engine.eval(*engine.make_sequence(), std::span(all).first(n), n);
    ASSERT_EQ(text.logprob.size(), n);
    double worst = 0;
    for (size_t i = 0; i < n; ++i) {
      const std::span<const float> row = std::span(rows).subspan(i * n_vocab, n_vocab);
      double sum = 0;
      for (const float x : row) sum += std::exp(double{x});
      worst = std::max(worst, std::abs(row[all[i + 1]] - std::log(sum) - text.logprob[i]));
    }
    EXPECT_LT(worst, kBound);
    for (size_t v = 0; v < text.logits.size(); ++v)
      ASSERT_NEAR(rows[(text.prompt.size() - 1) * n_vocab + v], text.logits[v], kBound);
  }
}

TEST(DemoModel, ThePackageComputesWhatAnIndependentProgramComputes) {
  for (const std::string& backend : runnable_backends())
    expect_golden(test::storyteller(), exact(backend), test::data_folder() / "demo/golden_4bit.safetensors");
}

TEST(DemoModel, ItsCheckpointComputesWhatTransformersComputes) {
  const char* checkpoint = std::getenv("MOEFLUX_DEMO_CHECKPOINT");
  if (!checkpoint)
    GTEST_SKIP() << "the checkpoint of models/storyteller (35 MB) is not in the repository: "
                    "MOEFLUX_DEMO_CHECKPOINT names its folder";
  const test::TempFolder temp;
  const auto convert = [&](const char* name, Width width) {
    ConvertOptions options;
    options.width = {width, width, 64};
    convert_package(open_source(checkpoint, temp / name, false, width == Width::Keep), temp / name, options);
    return temp / name;
  };
  const fs::path kept = convert("kept", Width::Keep);
  for (const std::string& backend : runnable_backends())
    expect_golden(kept, exact(backend), test::data_folder() / "demo/golden_bf16.safetensors");

  const fs::path narrow =
      convert("narrow", Width::Q4);  // models/storyteller is what the converter makes of it
  for (const char* file : {"resident.safetensors", "experts/layer_000.bin", "experts/layer_007.bin"})
    EXPECT_EQ(test::read_file(narrow / file), test::read_file(test::storyteller() / file)) << file;
}

// cost

DocumentOptions heldout_options(uint64_t most_tokens = UINT64_MAX) {
  return {.most_tokens = most_tokens, .most_per_document = kTrainedContext, .package = test::storyteller()};
}

TEST(DemoModel, FourBitsCostLessThanAPercentOfPerplexity) {
  double sum = 0, count = 0;  // of the bf16 model, from transformers
  std::istringstream lines(test::read_file(test::heldout()));
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json(line, "heldout");
    const double n = json["tokens"].get<double>() - 1;
    sum += n * json["mean_nll"].get<double>(), count += n;
  }
  EngineOptions fast;
  fast.ctx = kTrainedContext;
  PerplexityMeter meter({test::storyteller(), fast});
  const PerplexityResult r = meter.measure(read_documents(test::heldout(), heldout_options()));
  EXPECT_EQ(static_cast<double>(r.nll.count()), count);
  EXPECT_LT(r.perplexity(), 1.01 * std::exp(sum / count));  // measured 0.8 % above
  EXPECT_GT(r.perplexity(), std::exp(sum / count));
}

PerplexityResult against_exact(EngineOptions options, uint64_t n_tokens,
                               const std::string& reference_backend = "cpu") {
  options.ctx = kTrainedContext;
  PerplexityMeter meter({test::storyteller(), options}, {{test::storyteller(), exact(reference_backend)}});
  return meter.measure(read_documents(test::heldout(), heldout_options(n_tokens)));
}

double routes_that_differ(const PerplexityResult& r) {
  const LayerRoutes routes = r.reference->all_routes();
  return static_cast<double>(routes.n_different) / static_cast<double>(routes.n_picks);
}

TEST(DemoModel, FastPrecisionAndSmallKvCachesStayCloseToExact) {
  for (const KvType kv : {KvType::Bf16, KvType::Q8}) {
    EngineOptions fast;
    fast.kv = kv;
    const PerplexityResult r = against_exact(fast, 3000);
    EXPECT_LT(r.reference->kl.mean(), 8e-3);        // measured 3.7e-3
    EXPECT_GT(r.reference->top_agreement(), 0.94);  // 97.2 %
    EXPECT_LT(routes_that_differ(r), 0.02);         // 0.9 %
  }
}

TEST(DemoModel, TheVectorBackendEqualsTheOracle) {
  const PerplexityResult r = against_exact(exact(), 1500, "cpu-ref");
  EXPECT_LT(r.reference->kl.mean(), 1e-9);
  EXPECT_EQ(r.reference->top_agreement(), 1);
  EXPECT_LT(routes_that_differ(r), 1e-4);
}

}  // namespace
}  // namespace moeflux
