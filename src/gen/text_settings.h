// How text is generated, as people and programs set it, and as what a generation wants: with texts turned
// into tokens of the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gen/text_run.h"

namespace moeflux {

struct TextSettings {
  SamplerOptions sampler = {};  // breakers and biases are below, as text
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
  struct Bias {
    std::string token;  // id or text
    double bias;
  };
  std::vector<Bias> logit_bias = {};
  std::vector<std::string> stop = {};
  std::optional<size_t> max_tokens = {};
  size_t min_tokens = 0;
  bool ignore_eos = false;
  size_t draft = 0;  // tokens that are guessed ahead
  DraftSource draft_from = DraftSource::Auto;
  std::optional<uint64_t> seed = {};  // none: a new one each time
};

TextSettings default_settings(const TextModel& model);
uint64_t random_seed();
// All that needs no tokenizer: no stop tokens, breakers and biases. `seed`: of this one generation.
GenerateOptions generate_options(const TextSettings& settings, uint64_t seed);
// The same with texts turned into tokens of the model. Throws Error{InvalidArgument}.
TextRequest text_request(const TextSettings& settings, const TextModel& model, uint64_t seed);

// Throws where the model's answers have a form of their own that a grammar does not know.
void check_grammar(const TextModel& model, const Grammar* grammar);

}  // namespace moeflux
