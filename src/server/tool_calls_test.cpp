#include "server/tool_calls.h"

#include <gtest/gtest.h>

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

TEST(ToolCalls, RequiredMeansNothingButCalls) {
  ChatRequest request = with_tool(false, ToolChoice::Mode::Required);
  const auto grammar = answer_grammar(request, AnswerFormat::Tagged);
  EXPECT_TRUE(grammar->matches(kCall));
  EXPECT_TRUE(grammar->matches("\n" + kCall + "\n" + kCall));
  EXPECT_FALSE(grammar->matches(kWrong));
  EXPECT_FALSE(grammar->matches("text"));
  EXPECT_FALSE(grammar->matches(""));
  request.tool_choice.parallel = false;
  EXPECT_FALSE(answer_grammar(request, AnswerFormat::Tagged)->matches(kCall + "\n" + kCall));
}

TEST(ToolCalls, StrictToolsLeaveTextFree) {
  EXPECT_EQ(answer_grammar(with_tool(false, ToolChoice::Mode::Auto), AnswerFormat::Tagged), nullptr);
  const auto grammar = answer_grammar(with_tool(true, ToolChoice::Mode::Auto), AnswerFormat::Tagged);
  for (const std::string text : {"", "some text", "a < b, <tool and <<tool_call", "ünïcode <tool_cal>"}) {
    EXPECT_TRUE(grammar->matches(text)) << text;
    EXPECT_TRUE(grammar->matches(text + kCall)) << text;
    EXPECT_FALSE(grammar->matches(text + kWrong)) << text;
  }
}

TEST(ToolCalls, AFormOrCalls) {
  ChatRequest request = with_tool(false, ToolChoice::Mode::Auto);
  request.form = {.kind = AnswerForm::Kind::OfGrammar, .grammar = "root ::= \"yes\"", .param = "grammar"};
  const auto grammar = answer_grammar(request, AnswerFormat::Tagged);
  EXPECT_TRUE(grammar->matches("yes"));
  EXPECT_TRUE(grammar->matches(kCall));
  EXPECT_FALSE(grammar->matches("no"));
}

TEST(ToolCalls, FormsThatCannotBeEnforcedAreRefused) {
  EXPECT_THROW(answer_grammar(with_tool(false, ToolChoice::Mode::Required), AnswerFormat::Kimi), ApiError);
  EXPECT_THROW(answer_grammar(with_tool(true, ToolChoice::Mode::Auto), AnswerFormat::Harmony), ApiError);
  EXPECT_EQ(answer_grammar(with_tool(false, ToolChoice::Mode::Auto), AnswerFormat::Kimi), nullptr);
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
