// Text to tokens and back, and conversations.
#include "api/handles.h"
#include "api/model_state.h"
#include "base/json.h"
#include "text/answer_parser.h"
#include "text/chat_prompt.h"

namespace {

using namespace moeflux;
using namespace moeflux::api;

constexpr uint32_t kTokenizeFlags = MOEFLUX_TEXT_START | MOEFLUX_TEXT_MARKERS;
constexpr uint32_t kDetokenizeFlags = MOEFLUX_TEXT_PLAIN;

void check_flags(uint32_t flags, uint32_t known) {
  if (flags & ~known) refuse("flags are {:#x}, of which {:#x} mean nothing here", flags, flags & ~known);
}

OrderedJson parse_argument(const char* text, const char* name) {
  return parse_ordered_json(text_argument(text, name), name);
}

Conversation conversation(const moeflux_chat& chat) {
  Conversation out;
  out.messages = parse_argument(chat.messages_json, "messages_json");
  if (!out.messages.is_array()) refuse("messages_json is no array of messages");
  if (chat.tools_json) out.tools = parse_argument(chat.tools_json, "tools_json");
  if (chat.variables_json) out.extra = parse_argument(chat.variables_json, "variables_json");
  if (!out.extra.is_object()) refuse("variables_json is no object");
  out.add_generation_prompt = chat.no_answer == 0;
  return out;
}

ChatPrompt rendered(ModelState& model, const moeflux_chat* chat) {
  const Conversation talk = conversation(read_struct(chat, "moeflux_chat"));
  const std::lock_guard lock(model.text_mutex);
  return render_chat(model.text().chat_template(), model.text().tokenizer(), talk, jinja::local_time_now());
}

OrderedJson parsed_answer(AnswerParser& parser, std::string_view answer) {
  std::string text, reasoning;
  OrderedJson calls = OrderedJson::array();
  const auto take = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) switch (event.kind) {
        case AnswerEvent::Kind::Text:
          text += event.text;
          break;
        case AnswerEvent::Kind::Reasoning:
          reasoning += event.text;
          break;
        case AnswerEvent::Kind::CallBegin:
          calls.push_back({{"name", event.text}, {"arguments", ""}});
          if (!event.id.empty()) calls.back()["id"] = event.id;
          break;
        case AnswerEvent::Kind::CallArguments:
          calls.back()["arguments"] = calls.back()["arguments"].get<std::string>() + event.text;
          break;
        case AnswerEvent::Kind::CallEnd:
          break;
      }
  };
  take(parser.feed(answer));
  take(parser.finish());
  return {{"text", text}, {"reasoning", reasoning}, {"tool_calls", calls}};
}

}  // namespace

moeflux_status moeflux_tokenize(moeflux_model* model, const char* text, size_t n_bytes, uint32_t flags,
                                moeflux_token** tokens, size_t* n_tokens) {
  return call([&] {
    const auto state = find_handle(model);
    required(tokens, "tokens"), required(n_tokens, "n_tokens");
    const std::string_view given = text_argument(text, n_bytes, "text");
    check_flags(flags, kTokenizeFlags);
    const Markers markers = flags & MOEFLUX_TEXT_MARKERS ? Markers::Recognised : Markers::AsText;
    give_list(flags & MOEFLUX_TEXT_START ? state->text().encode_text(given, markers)
                                         : state->text().tokenizer().encode(given, markers),
              tokens, n_tokens);
  });
}

moeflux_status moeflux_detokenize(moeflux_model* model, const moeflux_token* tokens, size_t n_tokens,
                                  uint32_t flags, char** text, size_t* n_bytes) {
  return call([&] {
    const auto state = find_handle(model);
    required(text, "text"), required(n_bytes, "n_bytes");
    check_flags(flags, kDetokenizeFlags);
    const std::span<const Token> given = token_argument(tokens, n_tokens, "tokens");
    give_text(state->text().tokenizer().decode(given, flags & MOEFLUX_TEXT_PLAIN), text, n_bytes);
  });
}

moeflux_status moeflux_token_bytes(moeflux_model* model, moeflux_token token, char** bytes, size_t* n_bytes) {
  return call([&] {
    const auto state = find_handle(model);
    required(bytes, "bytes"), required(n_bytes, "n_bytes");
    const uint64_t n_vocab = state->engine.config().n_vocab;
    if (token >= n_vocab) refuse("token {} is not in the vocabulary of {}", token, n_vocab);
    give_text(state->text().tokenizer().token_bytes(token), bytes, n_bytes);
  });
}

moeflux_status moeflux_find_token(moeflux_model* model, const char* name, moeflux_token* token) {
  return call([&] {
    const auto state = find_handle(model);
    required(token, "token") = state->text().token_named(std::string(text_argument(name, "name")));
  });
}

moeflux_status moeflux_stop_tokens(moeflux_model* model, moeflux_token** tokens, size_t* n_tokens) {
  return call([&] {
    const auto state = find_handle(model);
    required(tokens, "tokens"), required(n_tokens, "n_tokens");
    give_list(state->text().stop_tokens(), tokens, n_tokens);
  });
}

moeflux_status moeflux_apply_template(moeflux_model* model, const moeflux_chat* chat, char** text,
                                      size_t* n_bytes) {
  return call([&] {
    const auto state = find_handle(model);
    required(text, "text"), required(n_bytes, "n_bytes");
    give_text(rendered(*state, chat).text, text, n_bytes);
  });
}

moeflux_status moeflux_chat_tokens(moeflux_model* model, const moeflux_chat* chat, moeflux_token** tokens,
                                   size_t* n_tokens) {
  return call([&] {
    const auto state = find_handle(model);
    required(tokens, "tokens"), required(n_tokens, "n_tokens");
    give_list(encode_chat(state->text().tokenizer(), rendered(*state, chat)), tokens, n_tokens);
  });
}

moeflux_status moeflux_parse_answer(moeflux_model* model, const moeflux_chat* chat, const char* answer,
                                    size_t n_bytes, char** json) {
  return call([&] {
    const auto state = find_handle(model);
    required(json, "json");
    const std::string given = replace_ill_formed(text_argument(answer, n_bytes, "answer"));
    const ChatPrompt prompt = rendered(*state, chat);
    AnswerOptions options{.starts_in_thought = ends_in_thought(prompt.text)};
    if (chat->tools_json) options.tools = parse_argument(chat->tools_json, "tools_json");
    {
      const std::lock_guard lock(state->text_mutex);
      options.format = state->text().chat_template().answer_format();
    }
    AnswerParser parser(std::move(options));
    *json = give_text(parsed_answer(parser, given).dump());
  });
}
