// Any bytes as an answer: how it is cut into pieces changes nothing, and without calls and thoughts it is all
// text.
#include <cstdlib>

#include "text/answer_parser.h"

namespace {

using namespace moeflux;

struct Parsed {
  std::string text, reasoning, calls;
  bool operator==(const Parsed&) const = default;
};

Parsed parse(AnswerOptions options, std::string_view answer, size_t piece) {
  AnswerParser parser(std::move(options));
  Parsed result;
  const auto add = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& e : events) {
      if (e.kind == AnswerEvent::Kind::Text)
        result.text += e.text;
      else if (e.kind == AnswerEvent::Kind::Reasoning)
        result.reasoning += e.text;
      else
        result.calls += e.kind == AnswerEvent::Kind::CallArguments ? e.text : e.text + '\0' + e.id + '\0';
    }
  };
  for (size_t at = 0; at < answer.size(); at += piece) add(parser.feed(answer.substr(at, piece)));
  add(parser.finish());
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  AnswerOptions options;
  options.format = static_cast<AnswerFormat>(data[0] % 6);
  options.starts_in_thought = (data[0] & 64) != 0;
  options.stream_arguments = (data[1] & 128) != 0;
  const std::string_view answer(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Parsed whole = parse(options, answer, size);
  if (!(parse(options, answer, 1 + data[1] % 16) == whole)) std::abort();
  const bool is_plain = answer.find("think>") == answer.npos && options.format != AnswerFormat::Harmony;
  if (is_plain && !options.starts_in_thought && whole.calls.empty() && whole.text != answer) std::abort();
  return 0;
}
