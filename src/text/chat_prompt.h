// A conversation as the text that a model reads, with the places where somebody wrote what looks like a
// marker
// (<|im_end|> and the like): there it stays text. A template's own markers are recognised.
#pragma once

#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moeflux {

struct ChatPrompt {
  std::string text;
  std::vector<TextRange> written;  // in order; for Tokenizer::encode_chat
};

// Throws jinja::TemplateError.
ChatPrompt render_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const Conversation& conversation,
                       const jinja::LocalTime& now);

// The tokens of the text from byte `from` on.
std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, size_t from = 0);

}  // namespace moeflux
