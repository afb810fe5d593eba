#include "server/tool_calls.h"

#include <gtest/gtest.h>

#include "text/token_mask.h"

namespace moeflux {
namespace {

ChatRequest with_tool(bool strict, ToolChoice::Mode mode) {
  ChatRequest request;
  OrderedJson function = {{"name", "f"},
                          {"parameters",
                           {{"type", "object"},
                            {"properties", {{"x", {{"enum", {1, 2}}}}}},
                            {"required", {"x"}},
                            {"additionalProperties", false}}}};
  if (strict) function["strict"] = true;
  request.tools = OrderedJson::array({{{"type", "function"}, {"function", function}}});
  request.tool_choice.mode = mode;
  return request;
}

const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>";
const std::string kWrong = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":3}}\n</tool_call>";

const CallForm kTagged = {};

TEST(ToolCalls, RequiredMeansNothingButCalls) {
  ChatRequest request = with_tool(false, ToolChoice::Mode::Required);
  const auto grammar = answer_grammar(request, kTagged);
  EXPECT_TRUE(grammar->matches(kCall));
  EXPECT_TRUE(grammar->matches("\n" + kCall + "\n" + kCall));
  EXPECT_FALSE(grammar->matches(kWrong));
  EXPECT_FALSE(grammar->matches("text"));
  EXPECT_FALSE(grammar->matches(""));
  request.tool_choice.parallel = false;
  EXPECT_FALSE(answer_grammar(request, kTagged)->matches(kCall + "\n" + kCall));
}

TEST(ToolCalls, StrictToolsLeaveTextFree) {
  EXPECT_EQ(answer_grammar(with_tool(false, ToolChoice::Mode::Auto), kTagged), nullptr);
  const auto grammar = answer_grammar(with_tool(true, ToolChoice::Mode::Auto), kTagged);
  for (const std::string text : {"", "some text", "a < b, <tool and <<tool_call", "ünïcode <tool_cal>"}) {
    EXPECT_TRUE(grammar->matches(text)) << text;
    EXPECT_TRUE(grammar->matches(text + kCall)) << text;
    EXPECT_FALSE(grammar->matches(text + kWrong)) << text;
  }
  // The parser takes this for a call too.
  EXPECT_FALSE(grammar->matches("text <<function=f><parameter=x>3</parameter></function>"));
}

// Calls in the formats with tags of their own, where these are special tokens and where they are text.
class TaggedCalls : public testing::TestWithParam<bool> {
 protected:
  static CallForm form(AnswerFormat format, bool is_fenced = false) {
    return {.format = format, .is_fenced = is_fenced, .is_special = [special = GetParam()](std::string_view) {
              return special;
            }};
  }
  static std::string tag(std::string_view text) {
    return GetParam() ? special_token_bytes(text) : std::string(text);
  }
  static std::string section(const CallTags& tags, const std::string& calls) {
    return tag(tags.section) + calls + tag(tags.section_end);
  }
  static std::string call(const CallTags& tags, const std::string& head, const std::string& body) {
    return tag(tags.call) + head + tag(tags.separator) + body + tag(tags.call_end);
  }

  // `right` and `wrong` are calls, the latter against the schema.
  static void expect_enforced(const CallForm& form, const CallTags& tags, const std::string& right,
                              const std::string& wrong) {
    ChatRequest required = with_tool(false, ToolChoice::Mode::Required);
    const auto calls = answer_grammar(required, form);
    EXPECT_TRUE(calls->matches(section(tags, right)));
    EXPECT_TRUE(calls->matches("\n\n" + section(tags, right + "\n" + right + right)));
    for (const std::string& text :
         {section(tags, wrong), section(tags, right + wrong), section(tags, ""), right,
          section(tags, right) + "text", "text" + section(tags, right), std::string("text"), std::string()})
      EXPECT_FALSE(calls->matches(text)) << text;
    required.tool_choice.parallel = false;
    const auto one = answer_grammar(required, form);
    EXPECT_TRUE(one->matches(section(tags, right)));
    EXPECT_FALSE(one->matches(section(tags, right + right)));

    const auto strict = answer_grammar(with_tool(true, ToolChoice::Mode::Auto), form);
    for (const std::string text : {"", "a text", "<", "<<|tool"}) {
      EXPECT_TRUE(strict->matches(text));
      EXPECT_TRUE(strict->matches(text + section(tags, right))) << text;
      EXPECT_FALSE(strict->matches(text + section(tags, wrong))) << text;
    }
    // Text that the parser would take for calls.
    for (const std::string_view opener : {tags.section, tags.call})
      EXPECT_FALSE(strict->matches("a <" + std::string(opener) + "f")) << opener;
  }
};

TEST_P(TaggedCalls, OfDeepSeek) {
  const CallTags& tags = kDeepSeekTags;
  expect_enforced(form(AnswerFormat::DeepSeek), tags, call(tags, "f", R"({"x":1})"),
                  call(tags, "f", R"({"x":3})"));
  expect_enforced(form(AnswerFormat::DeepSeek), tags, call(tags, "f", R"({"x":1})"),
                  call(tags, "g", R"({"x":1})"));
  expect_enforced(form(AnswerFormat::DeepSeek, true), tags,
                  call(tags, "function", "f\n```json\n{\"x\": 2}\n```"),
                  call(tags, "function", "f\n```json\n{\"x\": 3}\n```"));
}

TEST_P(TaggedCalls, OfKimi) {
  const CallTags& tags = kKimiTags;
  expect_enforced(form(AnswerFormat::Kimi), tags, call(tags, "functions.f:10", R"({"x":1})"),
                  call(tags, "functions.f:10", R"({"x":3})"));
  expect_enforced(form(AnswerFormat::Kimi), tags, call(tags, "functions.f:0", R"({"x":1})"),
                  call(tags, "functions.f:00", R"({"x":1})"));
}

INSTANTIATE_TEST_SUITE_P(, TaggedCalls, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tokens" : "Text"; });

TEST(ToolCalls, AFormOrCalls) {
  ChatRequest request = with_tool(false, ToolChoice::Mode::Auto);
  request.form = {.kind = AnswerForm::Kind::OfGrammar, .grammar = "root ::= \"yes\"", .param = "grammar"};
  const auto grammar = answer_grammar(request, kTagged);
  EXPECT_TRUE(grammar->matches("yes"));
  EXPECT_TRUE(grammar->matches(kCall));
  EXPECT_FALSE(grammar->matches("no"));
}

TEST(ToolCalls, FormsThatCannotBeEnforcedAreRefused) {
  const CallForm harmony = {.format = AnswerFormat::Harmony};
  EXPECT_THROW(answer_grammar(with_tool(false, ToolChoice::Mode::Required), harmony), ApiError);
  EXPECT_THROW(answer_grammar(with_tool(true, ToolChoice::Mode::Auto), harmony), ApiError);
  EXPECT_EQ(answer_grammar(with_tool(false, ToolChoice::Mode::Auto), harmony), nullptr);
}

// What is shown as an example is what is forced.
TEST(ToolCalls, AreDescribedInDeepSeeksOwnForm) {
  for (const bool is_fenced : {false, true}) {
    ChatRequest request = with_tool(false, ToolChoice::Mode::Required);
    request.tools[0]["function"]["name"] = "NAME";
    request.tools[0]["function"].erase("parameters");
    request.messages = {{{"role", "system"}, {"content", "Be brief."}},
                        {{"role", "user"}, {"content", "Hi"}}};
    describe_deepseek_tools(request, is_fenced);
    ASSERT_EQ(request.messages.size(), 2u);
    const std::string text = request.messages[0]["content"];
    EXPECT_TRUE(text.starts_with("Be brief.\n\n")) << text;
    EXPECT_NE(text.find("\"name\":\"NAME\""), std::string::npos) << text;
    const size_t example = text.find(kDeepSeekTags.section);
    ASSERT_NE(example, std::string::npos) << text;
    const CallForm form = {.format = AnswerFormat::DeepSeek, .is_fenced = is_fenced};
    EXPECT_TRUE(answer_grammar(request, form)->matches(text.substr(example))) << text;
  }
}

TEST(ToolCalls, AreDescribedInTextWhereTheTemplateKnowsNone) {
  ChatRequest request = with_tool(false, ToolChoice::Mode::Auto);
  request.messages = {
      {{"role", "user"}, {"content", "Hi"}},
      {{"role", "assistant"},
       {"content", ""},
       {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", {{"x", 1}}}}}}}}},
      {{"role", "tool"}, {"content", "one"}, {"tool_call_id", "1"}},
      {{"role", "tool"}, {"content", "two"}, {"tool_call_id", "1"}}};
  describe_tools_in_text(request);
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0]["role"], "system");
  EXPECT_NE(request.messages[0]["content"].get<std::string>().find("\"name\":\"f\""), std::string::npos);
  EXPECT_EQ(request.messages[2]["content"], kCall);
  EXPECT_EQ(
      request.messages[3],
      (OrderedJson{
          {"role", "user"},
          {"content", "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"}}));
}

}  // namespace
}  // namespace moeflux
