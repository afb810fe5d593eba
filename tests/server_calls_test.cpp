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
  const char* more;  // of the template
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
  test::write_file(package / "chat_template.jinja", "{# " + shown + format.more + " {{ tools }} #}" +
                                                        test::read_file(package / "chat_template.jinja"));
  return package;
}

class ServerCalls : public testing::TestWithParam<CallFormat> {};

TEST_P(ServerCalls, AreForcedWithTheTokensOfTheirTags) {
  const test::TempFolder folder;
  test::ServedModelOptions o;
  o.engine.ctx = 512;
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
  const auto expect_calls = [&](const Json& message, const std::string& name) {
    EXPECT_TRUE(message["content"].is_null()) << message.dump();
    for (const Json& call : message["tool_calls"]) {
      const Json& function = call["function"];
      const Json arguments = parse_json(function["arguments"].get<std::string>(), "arguments");
      for (const std::string& tag : all_tags(tags))
        EXPECT_EQ(arguments["s"].get<std::string>().find(tag), std::string::npos) << arguments.dump();
      EXPECT_TRUE(arguments["x"] == 1 || arguments["x"] == 2) << arguments.dump();
      EXPECT_TRUE(name.empty() || function["name"] == name) << function.dump();
    }
  };

  size_t most_calls = 0;
  for (int seed = 1; seed <= 6; ++seed) {
    // Noise alone would seldom come to an end.
    const Json several = answer({{"seed", seed}, {"logit_bias", {{id_of(tags.section_end), 2}}}});
    expect_calls(several["choices"][0]["message"], "");
    const size_t n_calls = several["choices"][0]["message"]["tool_calls"].size();
    EXPECT_EQ(several["choices"][0]["finish_reason"], "tool_calls");
    // Spelled in this small vocabulary, the tags of a call alone take more.
    EXPECT_LT(several["usage"]["completion_tokens"].get<size_t>(), 10 + 75 * n_calls);
    most_calls = std::max(most_calls, n_calls);

    // Were the tag allowed inside the string, it would come there.
    const Json one = answer({{"seed", seed},
                             {"logit_bias", {{id_of(tags.call_end), 100}}},
                             {"parallel_tool_calls", false},
                             {"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}});
    expect_calls(one["choices"][0]["message"], "other");
    EXPECT_EQ(one["choices"][0]["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(one["choices"][0]["finish_reason"], "tool_calls");
  }
  EXPECT_GT(most_calls, 1u);  // otherwise nothing here could tell whether only one was allowed

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
                                         CallFormat{"DeepSeekFenced", &kDeepSeekTags, true, "```json"},
                                         CallFormat{"Kimi", &kKimiTags, true, ""},
                                         CallFormat{"KimiNotSpecial", &kKimiTags, false, ""}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace moeflux
