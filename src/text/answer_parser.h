// Takes apart what a model generates: thoughts, tool calls, and text. Works while the answer streams in; how
// the answer is cut into pieces changes no event but where text, reasoning and arguments are cut. What looks
// like a call but cannot be read as one is text, as it stands: nothing of an answer gets lost but the tags of
// what was understood and the white space beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moeflux {

enum class AnswerFormat : uint8_t {
  Plain,     // text and <think> only
  Tagged,    // <tool_call> with JSON, with <function=NAME> and <parameter=KEY>, or with <arg_key> and
             // <arg_value>
  DeepSeek,  // <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜>, or the older form with a code
             // fence
  Kimi,      // <|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>JSON<|tool_call_end|>
  MiniMax,   // <minimax:tool_call> with <invoke name="NAME"> and <parameter name="KEY">
  Harmony    // channels: <|channel|>analysis<|message|>...<|end|>
};

// The tags around calls, in formats for which vocabularies have a token per tag.
struct CallTags {
  std::string_view section, section_end;  // of all calls together
  std::string_view call, separator, call_end;
};
inline constexpr CallTags kDeepSeekTags = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                           "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"};
inline constexpr CallTags kKimiTags = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>"};
// Whether this is one of those tags, which no text is meant to hold.
bool is_call_tag(std::string_view text);
// What makes the text of an answer a call, or several.
std::vector<std::string_view> call_openers(AnswerFormat format);

// What the template's own text shows. Templates write the calls of earlier turns, so that they have the tags
// in them.
AnswerFormat answer_format_of(std::string_view template_source);
// Whether an answer to this prompt begins inside a thought: the prompt ends with an open <think>.
bool ends_in_thought(std::string_view prompt);

struct AnswerEvent {
  enum class Kind : uint8_t { Text, Reasoning, CallBegin, CallArguments, CallEnd };
  Kind kind = Kind::Text;
  std::string text;  // of CallBegin the function's name, of CallArguments a JSON object or a piece of it
  std::string id;    // of CallBegin, where the model itself gives one

  bool operator==(const AnswerEvent&) const = default;
};

struct AnswerOptions {
  AnswerFormat format = AnswerFormat::Plain;
  bool starts_in_thought = false;
  OrderedJson tools = {};  // as given to the template: says which arguments are strings; may be null
  // Tells arguments that the model writes as JSON while they come, as it writes them. A call that breaks off,
  // or whose arguments turn out to be no JSON, has then been told all the same.
  bool stream_arguments = false;
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerOptions options);
  std::vector<AnswerEvent> feed(std::string_view piece);
  std::vector<AnswerEvent> finish();  // the answer has ended

 private:
  enum class State : uint8_t {
    Start,
    Reasoning,
    AfterReasoning,
    Content,
    Call,
    Arguments,  // that are told as they come
    AfterArguments,
    Header,
    Body
  };
  class PrefixReader;
  struct Call {
    std::string name, id, arguments;
  };

  void run(bool at_end);
  bool advance(bool at_end);  // false: nothing more can be said about what is there
  bool advance_start(bool at_end);
  bool advance_reasoning(bool at_end);
  bool advance_after_reasoning(bool at_end);
  bool advance_content(bool at_end);
  bool advance_call(bool at_end);
  std::optional<bool> skip_section_end(bool at_end);
  void begin_call(std::string_view opener, std::string_view closer, bool is_section);
  size_t find_block_end();
  bool begin_arguments();
  bool advance_arguments(bool at_end);
  bool advance_after_arguments(bool at_end);
  bool advance_header(bool at_end);
  bool advance_body(bool at_end);
  bool advance_without_header(bool at_end);
  void begin_body(std::string header);
  void end_body(std::string_view content, std::string_view end);

  void emit(AnswerEvent::Kind kind, std::string_view text);
  void emit_text(std::string_view text);  // after what is held
  void emit_reasoning(std::string_view text);
  bool emit_call(const std::optional<Call>& call);
  void take(size_t n) { buffer_.erase(0, n); }

  std::optional<Call> parse_call(std::string_view body) const;
  // What stands before an object of arguments; nothing: no such call, or not yet.
  std::optional<Call> read_call_head(PrefixReader& reader) const;
  static Call kimi_call(std::string_view written, std::string arguments);
  static std::optional<Call> parse_kimi(std::string_view body);
  static std::optional<Call> parse_deepseek(std::string_view body);
  std::optional<Call> parse_tagged(std::string_view body) const;
  std::optional<Call> parse_function(std::string_view body) const;
  std::optional<Call> parse_pairs(std::string_view body) const;
  std::optional<Call> parse_invoke(std::string_view body) const;
  OrderedJson argument(const std::string& function, const std::string& key, std::string value,
                       bool guess) const;

  const AnswerOptions options_;
  State state_;
  std::string buffer_;         // what has come and is not understood yet
  std::string held_;           // white space and opening tags: dropped if a call follows, else text
  std::string held_newlines_;  // of a thought: dropped if it ends
  bool has_reasoning_ = false, has_calls_ = false;
  std::string opener_, closer_;                       // of the call that has begun
  std::string held_section_closer_, section_closer_;  // before and after the first call of a section
  size_t scanned_ = 0;                                // of the buffer, in search of the closing tag
  bool is_json_ = false;                              // from there on
  bool in_string_ = false;
  bool may_tell_ = false;  // the call that has begun may turn out to be one that is told as it comes
  size_t depth_ = 0;       // of the arguments that are being told
  std::string header_, recipient_;
  bool is_thought_ = false, is_beginning_ = true;
  std::vector<AnswerEvent> events_;
};

}  // namespace moeflux
