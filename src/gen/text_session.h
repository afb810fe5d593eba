// A model's text as it grows: evaluates a prompt, generates text after it, and keeps what has been computed,
// so that a prompt that goes on from there costs only what is new.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gen/generation_times.h"
#include "gen/history.h"
#include "gen/text_run.h"
#include "text/chat_prompt.h"

namespace moeflux {

struct TextPrompt {
  std::vector<Token> tokens;
  std::string text = {};   // what they stand for, where a later prompt may begin with it
  bool continued = false;  // the new text goes on inside the prompt's, rather than being one of its own
};

struct TextResult {
  Generated generated;
  std::string text;  // up to a stop string
  std::optional<std::string> stop_string = {};
  size_t n_reused = 0;  // tokens of the prompt whose state was kept from before
  GenerationTimes times;
};

class TextSession {
 public:
  TextSession(Engine& engine, const TextModel& model) : engine_(engine), model_(model) {}

  // Where a rendered conversation goes on from what the session holds, the tokens that were generated stay as
  // they are, even if the tokenizer would cut their text otherwise.
  TextPrompt chat_prompt(const ChatPrompt& rendered) const;
  // How many tokens of the prompt need not be evaluated again.
  size_t reusable(const TextPrompt& prompt) const;

  // Throws what the engine throws; what was computed is then lost.
  TextResult generate(const TextPrompt& prompt, const TextRequest& request, const OnText& on_text = {});

  size_t n_tokens() const { return tokens_.size(); }
  size_t capacity() const { return engine_.plan().ctx; }
  void reset();

 private:
  Engine& engine_;
  const TextModel& model_;
  std::unique_ptr<History> history_;
  std::vector<Token> tokens_;  // a prompt and what followed; the history holds the first position() of them
  std::string text_;           // what they stand for
};

}  // namespace moeflux
