#include "gen/engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "cpu/reference_backend.h"

namespace moeflux {
namespace {

ModelConfig matched_config(const Package& package) {
  ModelConfig config = parse_model_config(package.config(), package.config_path());
  match_schema(package.manifest(), config, package.folder().string());
  return config;
}

std::unique_ptr<Backend> make_backend(const std::string& name, const ModelConfig& config,
                                      const ModelWeights& weights, Precision precision) {
  if (name == "cpu-ref") return make_reference_backend(config, weights, precision);
  std::string known;
  for (const std::string& b : backend_names()) known += (known.empty() ? "" : ", ") + b;
  fail(Errc::Unsupported, "there is no backend '{}' in this program; there is {}", name, known);
}

PlanRequest plan_request(const EngineOptions& o) {
  return {.ram = o.ram,
          .vram = {},
          .ctx = o.ctx,
          .max_memory = o.max_memory,
          .available = available_memory(),
          .chunk = o.chunk,
          .logit_rows = o.logit_rows,
          .kv_bytes = o.precision == Precision::Exact ? 4u : 2u};
}

}  // namespace

std::vector<std::string> backend_names() { return {"cpu-ref"}; }

Engine::Engine(const fs::path& package, const EngineOptions& options)
    : options_(options),
      package_(package),
      config_(matched_config(package_)),
      plan_(make_plan(config_, package_.manifest(), plan_request(options))),
      resident_(package_, options.threads ? options.threads : hardware_threads()),
      weights_(bind_weights(config_, package_.manifest(), resident_)),
      store_(package_, plan_.ram_slot_bytes, options.check_reads),
      backend_(make_backend(options.backend, config_, weights_, options.precision)),
      model_(config_, weights_, *backend_, store_) {}

std::vector<float> Engine::eval(Sequence& sequence, std::span<const Token> tokens, size_t rows,
                                const Tap& tap) {
  check(rows <= tokens.size(), "logits of tokens that were given");
  if (tokens.size() > sequence.capacity() - sequence.position())
    fail(Errc::InvalidArgument, "{} tokens after {} do not fit in the context of {} (--ctx)", tokens.size(),
         sequence.position(), sequence.capacity());
  std::vector<float> logits(rows * config_.n_vocab);
  const size_t first_row = tokens.size() - rows;
  for (size_t at = 0; at < tokens.size(); at += options_.chunk) {
    const size_t n = std::min<size_t>(options_.chunk, tokens.size() - at);
    std::vector<uint32_t> wanted;
    for (size_t i = std::max(at, first_row); i < at + n; ++i) wanted.push_back(static_cast<uint32_t>(i - at));
    const Slice slice{&sequence, 0, n};
    const size_t done = std::max(at, first_row) - first_row;
    model_.forward(
        {tokens.subspan(at, n), {&slice, 1}, wanted},
        std::span(logits).subspan(done * config_.n_vocab * !wanted.empty(), wanted.size() * config_.n_vocab),
        tap);
  }
  return logits;
}

std::vector<Token> Engine::generate_greedy(Sequence& sequence, std::span<const Token> prompt, size_t n,
                                           const std::function<void(Token)>& on_token) {
  std::vector<Token> out;
  std::vector<Token> fed(prompt.begin(), prompt.end());
  while (out.size() < n) {
    const std::vector<float> logits = eval(sequence, fed);
    const auto best = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
    out.push_back(best);
    fed = {best};
    if (on_token) on_token(best);
  }
  return out;
}

}  // namespace moeflux
