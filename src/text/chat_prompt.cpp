#include "text/chat_prompt.h"

#include <algorithm>
#include <array>

namespace moeflux {
namespace {

// Templates cut, trim and join what they are given, so that a message cannot simply be looked for in the
// result. A character that no text holds is put into each written marker instead, and taken out after
// rendering: where it stood, there was a written marker. Unicode keeps these characters free for such uses.
constexpr uint32_t kFirstFree = 0xFDD0, kLastFree = 0xFDEF;

void collect_strings(const OrderedJson& json, std::string& into) {
  if (json.is_string()) into += json.get_ref<const std::string&>();
  if (json.is_structured())
    for (const OrderedJson& item : json) collect_strings(item, into);
}

std::string unused_character(const OrderedJson& messages) {
  std::string all;
  collect_strings(messages, all);
  for (uint32_t point = kFirstFree; point <= kLastFree; ++point) {
    std::string character;
    append_utf8(character, point);
    if (all.find(character) == all.npos) return character;
  }
  fail(Errc::InvalidArgument,
       "the messages hold all of the characters U+FDD0 to U+FDEF, which no text should");
}

class Guard {
 public:
  Guard(const Tokenizer& tokenizer, std::string character)
      : tokens_(tokenizer.added_tokens()), character_(std::move(character)) {
    for (const AddedToken& token : tokens_)
      if (!token.content.empty()) begins_one_[static_cast<unsigned char>(token.content[0])] = true;
  }

  // A model's own turns keep tags such as </think>, which templates look for.
  void apply(OrderedJson& json, bool only_special) const {
    if (json.is_string()) json = guarded(json.get_ref<const std::string&>(), only_special);
    if (json.is_structured())
      for (OrderedJson& item : json) apply(item, only_special);
  }

  ChatPrompt take_out(std::string_view text) const {
    ChatPrompt out;
    for (size_t at = 0; at < text.size();) {
      const size_t next = std::min(text.find(character_, at), text.size());
      out.text += text.substr(at, next - at);
      at = next;
      if (next == text.size()) break;
      at += character_.size();
      const size_t place = out.text.size();
      if (place > 0) out.written.push_back({place - 1, place + 1});
    }
    return out;
  }

 private:
  bool begins_marker(std::string_view text, bool only_special) const {
    if (!begins_one_[static_cast<unsigned char>(text[0])]) return false;
    return std::ranges::any_of(tokens_, [&](const AddedToken& token) {
      return !token.content.empty() && text.starts_with(token.content) && !token.is_white_space() &&
             (token.special || !only_special);
    });
  }

  std::string guarded(std::string_view text, bool only_special) const {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      out += text[at];
      const bool inside = at + 1 < text.size() && (static_cast<unsigned char>(text[at + 1]) & 0xC0) == 0x80;
      if (inside) continue;  // a character is not cut
      const size_t begin = static_cast<size_t>(previous_character(text.data() + at + 1) - text.data());
      if (begins_marker(text.substr(begin), only_special)) out += character_;
    }
    return out;
  }

  const std::vector<AddedToken>& tokens_;
  const std::string character_;
  std::array<bool, 256> begins_one_{};
};

}  // namespace

ChatPrompt render_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const Conversation& conversation,
                       const jinja::LocalTime& now) {
  const Guard guard(tokenizer, unused_character(conversation.messages));
  Conversation guarded = conversation;
  for (OrderedJson& message : guarded.messages) {
    if (!message.is_object()) continue;
    const bool by_model = message.value("role", "") == "assistant";
    for (auto& [key, value] : message.items())
      if (key != "role") guard.apply(value, by_model);
  }
  return guard.take_out(chat.render(guarded, now));
}

std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, size_t from) {
  std::vector<TextRange> written;
  for (const TextRange& range : prompt.written)
    if (range.begin >= from) written.push_back({range.begin - from, range.end - from});
  return tokenizer.encode_chat(std::string_view(prompt.text).substr(from), written);
}

}  // namespace moeflux
