// Published chat templates against what transformers' environment makes of them
// (tests/data/templates/expected.json).
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "support/support.h"

namespace moeflux {
namespace {

const fs::path kFolder = fs::path(MOEFLUX_TEST_DATA) / "templates";

TEST(ChatTemplate, PublishedTemplatesGiveTheExpectedTexts) {
  const OrderedJson recorded =
      parse_ordered_json(read_text(kFolder / "expected.json", 1 << 24), "expected.json");
  const jinja::LocalTime now = jinja::parse_local_time(recorded["now"].get<std::string>());
  size_t n = 0;
  for (const auto& [name, cases] : recorded["expected"].items()) {
    const ChatTemplate chat = ChatTemplate::from_file(kFolder / (name + ".jinja"));
    for (const auto& [key, want] : cases.items()) {
      OrderedJson variables = recorded["defaults"];
      variables.update(recorded["cases"][key]);
      ++n;
      if (want.contains("error"))
        EXPECT_THROW(chat.render_variables(variables, now), jinja::TemplateError) << name << ": " << key;
      else
        EXPECT_EQ(chat.render_variables(variables, now), want["text"].get<std::string>())
            << name << ": " << key;
    }
  }
  EXPECT_EQ(n, 99u);
}

struct Folder {  // a model's folder that goes away
  void write(const std::string& name, std::string_view text) const { write_text(path / name, text); }
  test::TempFolder temp;
  const fs::path path = temp.path();
};

Conversation one_message() {
  Conversation c;
  c.messages = OrderedJson::parse(R"([{"role": "user", "content": "hi"}])");
  return c;
}

TEST(ChatTemplate, AFileOfItsOwnComesFirst) {
  const Folder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "config", "eos_token": {"content": "<end>"}})");
  EXPECT_EQ(ChatTemplate::from_folder(folder.path).render(one_message(), {}), "config");
  folder.write("chat_template.jinja", "{{ messages[0].content }}{{ eos_token }}{{ bos_token is defined }}");
  const ChatTemplate chat = ChatTemplate::from_folder(folder.path);
  EXPECT_EQ(chat.render(one_message(), {}), "hi<end>False");
  EXPECT_EQ(chat.special_token("eos_token"), "<end>");
  EXPECT_EQ(chat.special_token("bos_token"), std::nullopt);
}

TEST(ChatTemplate, TheVariantForToolsIsUsedWithTools) {
  const Folder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                            {"name": "tool_use", "template": "{{ tools|length }} tools"}]})");
  const ChatTemplate chat = ChatTemplate::from_folder(folder.path);
  Conversation c = one_message();
  EXPECT_EQ(chat.render(c, {}), "plain");
  c.tools = OrderedJson::parse(R"([{"type": "function"}])");
  EXPECT_EQ(chat.render(c, {}), "1 tools");
}

TEST(ChatTemplate, ExtraVariablesReachTheTemplate) {
  const ChatTemplate chat(
      "{{ enable_thinking }} {{ tools is none }} {{ add_generation_prompt }} {{ nope is defined }}", "test");
  Conversation c = one_message();
  c.extra["enable_thinking"] = false;
  EXPECT_EQ(chat.render(c, {}), "False True True False");
}

TEST(ChatTemplate, FoldersWithoutATemplateAndBrokenConfigsAreRefused) {
  const Folder folder;
  const auto code = [&] {
    try {
      ChatTemplate::from_folder(folder.path);
    } catch (const Error& e) {
      return e.code;
    }
    return Errc::Exists;  // nothing was refused
  };
  EXPECT_EQ(code(), Errc::NotFound);
  folder.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(code(), Errc::NotFound);
  for (const char* wrong : {"[]", "{", R"({"chat_template": 1})", R"({"chat_template": [{"name": "x"}]})",
                            R"({"chat_template": ["x"]})"}) {
    folder.write("tokenizer_config.json", wrong);
    EXPECT_EQ(code(), Errc::Corrupt) << wrong;
  }
  folder.write("tokenizer_config.json", R"({"chat_template": "{% if %}"})");
  EXPECT_EQ(code(), Errc::InvalidArgument);
}

}  // namespace
}  // namespace moeflux
