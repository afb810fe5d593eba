#include "text/answer_parser.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

using Kind = AnswerEvent::Kind;

// The events of an answer that comes in pieces of so many bytes, with neighbouring text put together.
std::vector<AnswerEvent> events_of(const AnswerOptions& options, std::string_view answer, size_t piece) {
  AnswerParser parser(options);
  std::vector<AnswerEvent> all;
  const auto add = [&all](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& e : events) {
      const bool is_piece = e.kind <= Kind::Reasoning || e.kind == Kind::CallArguments;
      if (is_piece && !all.empty() && all.back().kind == e.kind)
        all.back().text += e.text;
      else
        all.push_back(e);
    }
  };
  for (size_t at = 0; at < answer.size(); at += piece) add(parser.feed(answer.substr(at, piece)));
  add(parser.finish());
  return all;
}

std::string shown(const std::vector<AnswerEvent>& events) {
  std::string text;
  for (const AnswerEvent& e : events) {
    if (e.kind == Kind::Text) text += "T[" + e.text + "]";
    if (e.kind == Kind::Reasoning) text += "R[" + e.text + "]";
    if (e.kind == Kind::CallBegin) text += "C[" + e.text + (e.id.empty() ? "" : " " + e.id);
    if (e.kind == Kind::CallArguments) text += ": " + e.text;
    if (e.kind == Kind::CallEnd) text += "]";
  }
  return text;
}

// The same however the answer is cut.
std::string parsed(const AnswerOptions& options, std::string_view answer) {
  const std::string whole = shown(events_of(options, answer, answer.size() + 1));
  for (const size_t piece : {1, 2, 3, 7})
    EXPECT_EQ(shown(events_of(options, answer, piece)), whole) << answer;
  return whole;
}

AnswerOptions options(AnswerFormat format, bool starts_in_thought = false) {
  AnswerOptions o;
  o.format = format;
  o.starts_in_thought = starts_in_thought;
  o.tools =
      OrderedJson::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["integer", "null"]}}}}}])");
  return o;
}

TEST(AnswerParser, Thoughts) {
  const AnswerOptions plain = options(AnswerFormat::Plain), inside = options(AnswerFormat::Plain, true);
  EXPECT_EQ(parsed(plain, "just text\n"), "T[just text\n]");
  EXPECT_EQ(parsed(plain, ""), "");
  EXPECT_EQ(parsed(plain, " \n"), "T[ \n]");
  EXPECT_EQ(parsed(plain, "<think>\nwhy\n\nnot\n</think>\n\nyes"), "R[why\n\nnot]T[yes]");
  EXPECT_EQ(parsed(plain, "\n<think>a</think>b"), "R[a]T[b]");
  EXPECT_EQ(parsed(plain, "<think>\n\n</think>\n\n\nyes"), "T[\nyes]");
  EXPECT_EQ(parsed(plain, "text <think>no</think>"), "T[text <think>no</think>]");
  EXPECT_EQ(parsed(plain, "<thin"), "T[<thin]");
  EXPECT_EQ(parsed(inside, "why\n</think>\n\nyes"), "R[why]T[yes]");
  EXPECT_EQ(parsed(inside, "cut off\n</th"), "R[cut off\n</th]");
  EXPECT_EQ(parsed(inside, "cut off\n"), "R[cut off\n]");
}

TEST(AnswerParser, CallsInJson) {
  const AnswerOptions o = options(AnswerFormat::Tagged);
  EXPECT_EQ(
      parsed(o, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"é\"}}\n</tool_call>"),
      "C[f: {\"z\":1,\"a\":\"é\"}]");
  EXPECT_EQ(
      parsed(o,
             "Let me.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": "
             "\"g\"}</tool_call>\n"),
      "T[Let me.]C[f: {}]C[g: {}]");
  EXPECT_EQ(parsed(o, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
            "C[f: {\"a\": 1}]");
  EXPECT_EQ(
      parsed(o, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call> done"),
      "C[f: {\"s\":\"</tool_call>\"}]T[ done]");
  EXPECT_EQ(parsed(o, "<think>x</think>\n\n<tool_call>{\"name\": \"f\"}"),
            "R[x]C[f: {}]");  // the end is missing
}

TEST(AnswerParser, MalformedCallsAreText) {
  const AnswerOptions o = options(AnswerFormat::Tagged);
  for (const char* text :
       {"a <tool_call>{\"name\": }</tool_call> b", "<tool_call>", "x <tool_call>{\"name\": \"f\", \"arg",
        "<tool_call></tool_call>", "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>", "<tool_call>two words</tool_call>",
        "<tool_call>{\"name\": \"f\", \"s\": \"</tool_call>", "</tool_call> <tool_cal", "<function=f",
        "<function=f><parameter=s>no end</function>"})
    EXPECT_EQ(parsed(o, text), "T[" + std::string(text) + "]");
  EXPECT_EQ(parsed(o, "<tool_call>{</tool_call> <tool_call>{\"name\": \"f\"}</tool_call>"),
            "T[<tool_call>{</tool_call>]C[f: {}]");
}

// Told while they come: the same calls, with their arguments as the model wrote them.
TEST(AnswerParser, ArgumentsAreToldAsTheyCome) {
  const auto streamed = [](AnswerFormat format) {
    AnswerOptions o = options(format);
    o.stream_arguments = true;
    return o;
  };
  const AnswerOptions tagged = streamed(AnswerFormat::Tagged), kimi = streamed(AnswerFormat::Kimi),
                      deep_seek = streamed(AnswerFormat::DeepSeek), harmony = streamed(AnswerFormat::Harmony);
  const std::string call = R"(<tool_call>
{"name": "f", "arguments": {"z": [1, {}], "a": "}\\\"</tool_call>"}}
</tool_call>)",
                    told = R"(C[f: {"z": [1, {}], "a": "}\\\"</tool_call>"}])";
  EXPECT_EQ(parsed(tagged, "Let me.\n" + call + "\n" + call + "\n"), "T[Let me.]" + told + told);
  EXPECT_EQ(parsed(tagged, call + " and so on"), told + "T[ and so on]");
  EXPECT_EQ(parsed(kimi,
                   "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|> "
                   "{\"i\": 1} <|tool_call_end|><|tool_calls_section_end|>"),
            "C[f functions.f:0: {\"i\": 1}]");
  EXPECT_EQ(parsed(deep_seek,
                   "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"i\": 1}<｜tool▁call▁end｜>"
                   "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            "C[f: {\"i\": 1}]C[g: {}]");
  EXPECT_EQ(parsed(harmony,
                   "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary "
                   "to=functions.f <|constrain|>json<|message|>{\"i\": 1}<|call|>"),
            "R[why]C[f: {\"i\": 1}]");

  // What breaks off stays a call; what cannot be told in pieces is told as a whole.
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"name": "f", "arguments": {"s": "on)"), "C[f: {\"s\": \"on]");
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"name": "f", "arguments": {"s": 1})"), "C[f: {\"s\": 1}]");
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"name": "f", "arguments": {}} or not)"), "C[f: {}]T[} or not]");
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"arguments": {"i": 1}, "name": "f"}</tool_call>)"),
            "C[f: {\"i\":1}]");
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"name": "f", "arguments": "{}"}</tool_call>)"), "C[f: {}]");
  EXPECT_EQ(parsed(tagged, "<tool_call><function=f><parameter=i>1</parameter></function></tool_call>"),
            "C[f: {\"i\":1}]");
  EXPECT_EQ(parsed(tagged, R"(<tool_call>{"name": "f")"), R"(T[<tool_call>{"name": "f"])");

  // A separator behind the end of a block is none of that block.
  const std::string unsaid = "<|tool_call_begin|>f:0 {}<|tool_call_end|>";
  EXPECT_EQ(parsed(kimi, unsaid + "<|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            "T[" + unsaid + "]C[g g:1: {}]");
  EXPECT_EQ(parsed(deep_seek, "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜> <｜tool▁sep｜>{}"),
            "T[<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜> <｜tool▁sep｜>{}]");

  // In pieces indeed.
  AnswerParser parser(tagged);
  parser.feed(R"(<tool_call>{"name": "f", "arguments": {"s": "a )");
  EXPECT_EQ(parser.feed("long "), (std::vector<AnswerEvent>{{Kind::CallArguments, "long ", ""}}));
}

TEST(AnswerParser, CallsWithParameters) {
  const AnswerOptions o = options(AnswerFormat::Tagged, true);
  EXPECT_EQ(parsed(o,
                   "hm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\n1\n\n2\n</"
                   "parameter>\n<parameter=i>\n42\n"
                   "</parameter>\n</function>\n</tool_call>"),
            "R[hm]C[f: {\"s\":\"1\\n\\n2\",\"i\":42}]");
  const AnswerOptions plain = options(AnswerFormat::Tagged);
  const auto arguments = [&](const std::string& key, const std::string& value) {
    return parsed(plain, "<tool_call><function=f><parameter=" + key + ">\n" + value +
                             "\n</parameter></function></tool_call>");
  };
  EXPECT_EQ(arguments("n", "1.5"), "C[f: {\"n\":1.5}]");
  EXPECT_EQ(arguments("b", "True"), "C[f: {\"b\":true}]");
  EXPECT_EQ(arguments("o", "{\"k\": [1]}"), "C[f: {\"o\":{\"k\":[1]}}]");
  EXPECT_EQ(arguments("a", "[1, 2]"), "C[f: {\"a\":[1,2]}]");
  EXPECT_EQ(arguments("u", "Null"), "C[f: {\"u\":null}]");
  EXPECT_EQ(arguments("s", "null"), "C[f: {\"s\":\"null\"}]");
  EXPECT_EQ(arguments("i", "many"), "C[f: {\"i\":\"many\"}]");
  EXPECT_EQ(arguments("unknown", "5"), "C[f: {\"unknown\":\"5\"}]");
  EXPECT_EQ(parsed(plain, "<function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>"),
            "C[f: {\"i\":1}]");
}

TEST(AnswerParser, CallsWithKeysAndValues) {
  const AnswerOptions o = options(AnswerFormat::Tagged);
  EXPECT_EQ(
      parsed(o,
             "\n<think>a</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>i"
             "</arg_key>\n<arg_value>12</arg_value>\n<arg_key>x</arg_key>\n<arg_value>[1]</arg_value>\n"
             "<arg_key>y</arg_key>\n<arg_value>a b</arg_value>\n</tool_call>"),
      "R[a]C[f: {\"s\":\"12\",\"i\":12,\"x\":[1],\"y\":\"a b\"}]");
  EXPECT_EQ(parsed(o, "<tool_call>f</tool_call>"), "C[f: {}]");
}

TEST(AnswerParser, DeepSeekCalls) {
  const AnswerOptions o = options(AnswerFormat::DeepSeek);
  EXPECT_EQ(
      parsed(o,
             "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
             "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "T[Sure.]C[f: {\"a\": 1}]C[g: {}]");
  EXPECT_EQ(
      parsed(o,
             "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
             "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "C[f: {\"a\": 1}]");
  const std::string broken =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  EXPECT_EQ(parsed(o, broken), "T[" + broken + "]");
  EXPECT_EQ(parsed(o, "<｜tool▁calls▁begin｜>"), "T[<｜tool▁calls▁begin｜>]");
}

TEST(AnswerParser, TagsInStringsOfArgumentsAreText) {
  EXPECT_EQ(
      parsed(options(AnswerFormat::DeepSeek),
             "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"<｜tool▁call▁end｜>\"}"
             "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n"
             "{\"s\": \"\\\"<｜tool▁call▁end｜>\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "C[f: {\"s\": \"<｜tool▁call▁end｜>\"}]C[g: {\"s\": \"\\\"<｜tool▁call▁end｜>\"}]");
  EXPECT_EQ(parsed(options(AnswerFormat::Kimi),
                   "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"s\": \"<|tool_call_end|>\"}"
                   "<|tool_call_end|> <|tool_call_begin|>\"<|tool_call_end|>"),
            "C[f f:0: {\"s\": \"<|tool_call_end|>\"}]T[ <|tool_call_begin|>\"<|tool_call_end|>]");
}

TEST(AnswerParser, KimiCallsKeepTheirId) {
  EXPECT_EQ(
      parsed(
          options(AnswerFormat::Kimi),
          "Ok "
          "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}"
          "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
          "<|tool_calls_section_end|>"),
      "T[Ok]C[f functions.f:0: {\"a\": 1}]C[g functions.g:1: {}]");
}

TEST(AnswerParser, MiniMaxCalls) {
  EXPECT_EQ(parsed(options(AnswerFormat::MiniMax, true),
                   "t\n</think>\n\nOk\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
                   "name=\"s\">a\nb</parameter>\n"
                   "<parameter name=\"i\">3</parameter>\n</invoke>\n<invoke "
                   "name=\"g\">\n</invoke>\n</minimax:tool_call>\n"),
            "R[t]T[Ok]C[f: {\"s\":\"a\\nb\",\"i\":3}]C[g: {}]");
}

TEST(AnswerParser, Channels) {
  const AnswerOptions o = options(AnswerFormat::Harmony);
  EXPECT_EQ(
      parsed(o,
             "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>answer"
             "<|return|>"),
      "R[think]T[answer]");
  EXPECT_EQ(parsed(o, "<|channel|>final<|message|>answer"), "T[answer]");
  EXPECT_EQ(
      parsed(o,
             "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.f "
             "<|constrain|>json<|message|>{\"a\": 1}<|call|>"),
      "R[x]C[f: {\"a\": 1}]");
  EXPECT_EQ(
      parsed(o,
             "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant to=functions.f<|channel|>"
             "commentary json<|message|>{}"),
      "T[One moment.]C[f: {}]");
  EXPECT_EQ(parsed(o, " to=functions.f<|channel|>commentary<|message|>{}<|call|>"), "C[f: {}]");
  EXPECT_EQ(parsed(o, "<|channel|>analysis<|message|>cut"), "R[cut]");
  EXPECT_EQ(parsed(o, "no channels at all"), "T[no channels at all]");
  EXPECT_EQ(parsed(o, "<|channel|>fin"), "T[<|channel|>fin]");
  EXPECT_EQ(parsed(o, "<|channel|>commentary to=functions.f<|message|>not json<|call|>"),
            "T[<|channel|>commentary to=functions.f<|message|>not json<|call|>]");
}

TEST(AnswerParser, FormatsAreRecognisedByTheirTemplates) {
  EXPECT_EQ(answer_format_of("{{ '<tool_call>' }}"), AnswerFormat::Tagged);
  EXPECT_EQ(answer_format_of("<|start|>assistant<|channel|>"), AnswerFormat::Harmony);
  EXPECT_EQ(answer_format_of("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"), AnswerFormat::DeepSeek);
  EXPECT_EQ(answer_format_of("<|tool_calls_section_begin|>"), AnswerFormat::Kimi);
  EXPECT_EQ(answer_format_of("<minimax:tool_call>"), AnswerFormat::MiniMax);
  EXPECT_EQ(answer_format_of("{{ messages }}"), AnswerFormat::Plain);
  EXPECT_TRUE(ends_in_thought("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(ends_in_thought("<think>\n\n</think>\n\n"));
}

}  // namespace
}  // namespace moeflux
