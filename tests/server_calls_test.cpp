// Forced calls in the formats whose tags are tokens of the vocabulary, on models with random weights: what
// they would say by themselves is noise, so that a call that comes was forced.
#include <gtest/gtest.h>

#include "support/served_model.h"
#include "support/support.h"
#include "text/answer_parser.h"

namespace moeflux {
namespace {

struct CallFormat {
  const char* name;
  const CallTags* tags;
  bool is_special;   // as the vocabulary has it: published ones differ
  const char* more;  // of the template: what tells two forms apart, and whether it says what tools there are
};

std::vector<std::string> all_tags(const CallTags& t) {
  return {std::string(t.section), std::string(t.section_end), std::string(t.call), std::string(t.separator),
          std::string(t.call_end)};
}

// A package whose vocabulary has the tags, and whose template shows them.
test::fs::path package_with(const CallFormat& format, const test::TempFolder& folder) {
  const test::fs::path package = folder / format.name;
  test::fs::copy(test::text_package("qwen3_moe"), package, test::fs::copy_options::recursive);
  OrderedJson tokenizer = parse_ordered_json(test::read_file(package / "tokenizer.json"), "tokenizer.json");
  std::string shown;
  for (const std::string& tag : all_tags(*format.tags)) {
    OrderedJson added = tokenizer["added_tokens"].back();
    added["id"] = added["id"].get<int>() + 1;
    added["content"] = tag;
    added["special"] = format.is_special;
    tokenizer["added_tokens"].push_back(added);
    shown += tag;
  }
  test::write_file(package / "tokenizer.json", tokenizer.dump());
  test::write_file(package / "chat_template.jinja",
                   "{# " + shown + format.more + " #}" + test::read_file(package / "chat_template.jinja"));
  return package;
}

class ServerCalls : public testing::TestWithParam<CallFormat> {};

TEST_P(ServerCalls, AreForcedWithTheTokensOfTheirTags) {
  const test::TempFolder folder;
  test::ServedModelOptions o;
  o.engine.ctx = 2048;
  const test::ServedModel served(package_with(GetParam(), folder), o);
  const CallTags& tags = *GetParam().tags;
  const auto id_of = [&](std::string_view tag) {
    return std::to_string(served.text().token_named(std::string(tag)));
  };
  const auto tool = [](const char* name, bool strict) {
    return Json{
        {"type", "function"},
        {"function",
         {{"name", name},
          {"strict", strict},
          {"parameters",
           {{"type", "object"},
            {"properties", {{"s", {{"type", "string"}, {"maxLength", 12}}}, {"x", {{"enum", {1, 2}}}}}},
            {"required", {"s", "x"}},
            {"additionalProperties", false}}}}}};
  };
  const auto ask = [&](Json more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                 {"tools", {tool("one", false), tool("other", false)}},
                 {"tool_choice", "required"},
                 {"max_tokens", 400}};
    body.update(more);
    return body;
  };
  const auto answer = [&](const Json& more) {
    const test::ClientResponse response = served.post("/v1/chat/completions", ask(more));
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json();
  };
  // The calls of an answer, all of them as the schema wants them.
  const auto calls_of = [&](const Json& more) {
    const Json choice = answer(more)["choices"][0];
    for (const Json& call : choice["message"]["tool_calls"]) {
      const Json arguments = parse_json(call["function"]["arguments"].get<std::string>(), "arguments");
      EXPECT_TRUE(arguments["x"] == 1 || arguments["x"] == 2) << arguments.dump();
      for (const std::string& tag : all_tags(tags))
        EXPECT_EQ(arguments["s"].get<std::string>().find(tag), std::string::npos) << arguments.dump();
    }
    return choice["message"]["tool_calls"];
  };

  const std::string section_end = id_of(tags.section_end), call_end = id_of(tags.call_end);
  for (int seed = 1; seed <= 3; ++seed) {
    const Json to_end = {{"seed", seed}, {"logit_bias", {{section_end, 100}}}};
    EXPECT_EQ(calls_of(to_end).size(), 1u);
    const Json ended = answer(to_end);
    EXPECT_EQ(ended["choices"][0]["finish_reason"], "tool_calls");
    EXPECT_TRUE(ended["choices"][0]["message"]["content"].is_null()) << ended.dump();
    // Spelled in this small vocabulary, the tags alone take more.
    EXPECT_LT(ended["usage"]["completion_tokens"].get<size_t>(), 85u);

    Json to_go_on = {{"seed", seed}, {"logit_bias", {{section_end, -100}, {call_end, 100}}}};
    EXPECT_GT(calls_of(to_go_on).size(), 1u);
    to_go_on["parallel_tool_calls"] = false;
    to_go_on["tool_choice"] = {{"type", "function"}, {"function", {{"name", "other"}}}};
    const Json calls = calls_of(to_go_on);
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0]["function"]["name"], "other");
  }

  // Tools of which the template says nothing are told all the same.
  const std::string prompt = served.post("/apply-template", ask(Json::object())).json()["prompt"];
  const bool is_told = prompt.find("\"other\"") != prompt.npos;
  EXPECT_EQ(is_told, !served.text().chat_template().mentions("tools")) << prompt;

  // Streamed, the same call comes in pieces.
  const Json fields = {{"seed", 1}, {"parallel_tool_calls", false}};
  const Json whole = answer(fields)["choices"][0]["message"]["tool_calls"][0]["function"];
  Json streamed = ask(fields);
  streamed["stream"] = true;
  std::string name, arguments;
  for (const auto& event : served.post("/v1/chat/completions", streamed).events()) {
    if (event.data == "[DONE]") continue;
    const Json delta = parse_json(event.data, "a chunk")["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    name += delta["tool_calls"][0]["function"].value("name", "");
    arguments += delta["tool_calls"][0]["function"].value("arguments", "");
  }
  EXPECT_EQ(name, whole["name"]);
  EXPECT_EQ(arguments, whole["arguments"]);

  // With strict tools text stays free, and ends as it does without.
  const Json free = answer({{"seed", 3}, {"tool_choice", "auto"}, {"tools", {tool("one", true)}}});
  EXPECT_FALSE(free["choices"][0]["message"]["content"].get<std::string>().empty());
}

INSTANTIATE_TEST_SUITE_P(, ServerCalls,
                         testing::Values(CallFormat{"DeepSeek", &kDeepSeekTags, false, ""},
                                         CallFormat{"DeepSeekFenced", &kDeepSeekTags, true, "```json tools"},
                                         CallFormat{"Kimi", &kKimiTags, true, "tools"},
                                         CallFormat{"KimiNotSpecial", &kKimiTags, false, "tools"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace moeflux
