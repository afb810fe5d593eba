// Time of one choice among the tokens of a large vocabulary, on one thread, for the settings that people use.
// `model`: logits shaped like a language model's, a few likely tokens above a broad bulk. `flat`: the bulk
// alone, where cuts are found late. Each call gets another position's logits, which are not in the caches
// nearest to the processor, as after a forward pass.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gen/philox.h"
#include "gen/sampler.h"

namespace moeflux {
namespace {

constexpr size_t kVocab = 250'000, kPositions = 8;

// Nearly normal, from sums of uniform numbers; some hundred tokens are lifted, the fewer the higher.
std::vector<float> make_logits(size_t position, bool flat) {
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) {
    float sum = 0;
    for (uint32_t part = 0; part < 3; ++part)
      for (const uint32_t word :
           philox({static_cast<uint32_t>(i), static_cast<uint32_t>(position), part, 0}, {1, 2}))
        sum += static_cast<float>(word) * 0x1p-32f - 0.5f;
    logits[i] = 2.5f * sum;
  }
  for (uint32_t rank = 0; !flat && rank < 300; ++rank) {
    const uint32_t id = philox({rank, static_cast<uint32_t>(position), 7, 7}, {3, 4})[0] % kVocab;
    logits[id] = 20.0f - 1.8f * std::log2(static_cast<float>(rank + 1));
  }
  return logits;
}

void sample(benchmark::State& state, const SamplerOptions& options, bool flat) {
  std::vector<std::vector<float>> logits;
  for (size_t p = 0; p < kPositions; ++p) logits.push_back(make_logits(p, flat));
  Sampler sampler(options, kVocab);
  std::vector<Token> prompt(4096);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(i * i % 3001 * 53);
  sampler.read(prompt);
  size_t position = 0, kept = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampler.sample(logits[position % kPositions], position));
    ++position;
  }
  for (size_t p = 0; p < kPositions; ++p) kept += sampler.candidates(logits[p], p).size();
  state.counters["candidates"] = static_cast<double>(kept) / kPositions;
}

void add(const char* name, const SamplerOptions& options) {
  for (const bool flat : {false, true})
    benchmark::RegisterBenchmark((std::string(name) + (flat ? "/flat" : "/model")).c_str(), sample, options,
                                 flat)
        ->Unit(benchmark::kMicrosecond);
}

void add_all() {
  SamplerOptions nucleus{.temperature = 0.6, .top_k = 20, .top_p = 0.95};
  add("greedy", {.temperature = 0});
  add("temperature 1", {});
  add("0.6, top-k 20, top-p 0.95", nucleus);
  add("0.7, top-k 20, top-p 0.8, min-p 0.05", {.temperature = 0.7, .top_k = 20, .top_p = 0.8, .min_p = 0.05});
  add("1.0, top-p 0.95", {.top_p = 0.95});
  add("0.7, top-p 0.9, min-p 0.05", {.temperature = 0.7, .top_p = 0.9, .min_p = 0.05});
  add("1.0, min-p 0.05", {.min_p = 0.05});
  add("1.0, top-n-sigma 1", {.top_n_sigma = 1});
  add("1.0, typical-p 0.95", {.typical_p = 0.95});
  add("1.0, min-p 0.02, XTC", {.min_p = 0.02, .xtc_probability = 0.5});
  add("mirostat", {.mirostat = {.on = true}});
  SamplerOptions more = nucleus;
  more.penalties = {.repetition = 1.05, .presence = 1.5};
  add("nucleus, penalties", more);
  more.penalties = {.dry = {.multiplier = 0.8}};
  add("nucleus, DRY", more);
  more = nucleus;
  more.logprobs = 20;
  add("nucleus, 20 logprobs", more);
}

}  // namespace
}  // namespace moeflux

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  moeflux::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
