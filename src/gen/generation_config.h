// A package's own defaults for generation: generation_config.json as published, and the tokens that end a
// text. What the file does not say is left to the caller; what it says wrongly is refused by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "gen/sampler.h"
#include "io/file.h"

namespace moeflux {

struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<uint64_t> top_k;  // 0: off
  std::vector<Token> eos;         // empty where the file names none
};

GenerationConfig parse_generation_config(const Json& file, const std::string& where);
// Of a package's or checkpoint's folder; empty where there is no such file.
GenerationConfig read_generation_config(const fs::path& folder);

// The sampler's defaults with what the file says. `do_sample: false` is temperature 0, whatever temperature
// stands beside it; where do_sample is absent, tokens are drawn.
SamplerOptions default_sampling(const GenerationConfig& file);

// The tokens that end a text: those of generation_config.json, else `eos_token_id` of config.json (or of its
// text_config). Some may lie beyond the vocabulary; they never come up.
std::vector<Token> stop_tokens(const GenerationConfig& file, const Json& config, const std::string& where);

}  // namespace moeflux
