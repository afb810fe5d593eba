// The text of one generation as its tokens come: decoding, stop strings and the grammar's masks. Who
// evaluates and chooses the tokens is the caller's business.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gen/generate.h"
#include "gen/stop_strings.h"
#include "gen/text_model.h"

namespace moeflux {

struct TextRequest {
  GenerateOptions generate = {};  // the mask is the grammar's
  std::vector<std::string> stop = {};
  std::shared_ptr<const Grammar> grammar = {};
  bool grammar_after_thought = false;  // the prompt ends inside a thought, which may hold anything
  // After so many tokens of a thought (<think>), its end is written in the model's place.
  std::optional<size_t> most_thought_tokens = {};
};

struct TextPiece {
  std::string_view text;  // whole characters; often empty
  const Sample* sample;   // null for text that was held back to the end
};
using OnText = std::function<Next(const TextPiece&)>;

class TextRun {
 public:
  // `continued`: tokens of a text inside which the new one goes on; empty: it is one of its own.
  TextRun(const TextModel& model, std::span<const Token> continued, const TextRequest& request,
          OnText on_text);
  ~TextRun();

  // The request's options with the grammar's mask, which belongs to this run.
  GenerateOptions options();
  Next token(const Sample& sample);  // to be called for each new token
  void finish();                     // there are no more

  const std::string& all_text() const { return all_text_; }  // of all tokens
  const std::string& text() const { return text_; }          // up to a stop string
  const std::optional<std::string>& stop_string() const { return stop_string_; }

 private:
  class GrammarWalk;
  class ThoughtLimit;
  Next release(const StopStrings::Released& released, const Sample* sample);

  const TextRequest& request_;
  const OnText on_text_;
  TextStream stream_;
  StopStrings stops_;
  std::unique_ptr<GrammarWalk> grammar_;
  std::unique_ptr<ThoughtLimit> limit_;
  std::string all_text_, text_;
  std::optional<std::string> stop_string_;
};

}  // namespace moeflux
