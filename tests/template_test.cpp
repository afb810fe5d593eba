// `moeflux template` as a user meets it.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;
using test::write_file;

TEST(TemplateCommand, WritesTheTextAndNothingElse) {
  const TempFolder folder;
  const auto path = test::data_folder() / "templates";
  const OrderedJson recorded = parse_ordered_json(test::read_file(path / "expected.json"), "expected.json");
  OrderedJson variables = recorded["defaults"];
  variables.update(recorded["cases"]["tool_round"]);
  variables["now"] = recorded["now"];
  write_file(folder / "case.json", variables.dump());
  for (const char* name : {"openai-gpt-oss-120b", "Qwen3.5-4B", "moonshotai-Kimi-K2"}) {
    const auto result = run_program(
        {"template", (path / name).string() + ".jinja", "--input", (folder / "case.json").string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, recorded["expected"][name]["tool_round"]["text"].get<std::string>());
    EXPECT_EQ(result.err, "");
  }
}

TEST(TemplateCommand, TakesAFolder) {
  const TempFolder folder;
  write_file(
      folder / "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ x }} {{ strftime_now('%d %b %Y') }}", "bos_token": "<s>"})");
  write_file(folder / "case.json", R"({"x": "é\n", "now": "2026-01-02T03:04:05"})");
  const auto result =
      run_program({"template", folder.path().string(), "--input", (folder / "case.json").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "<s>é\n 02 Jan 2026");
}

TEST(TemplateCommand, SaysWhatTheTemplateSays) {
  const TempFolder folder;
  write_file(folder / "t.jinja", "a\n{{ raise_exception('Roles must alternate') }}");
  write_file(folder / "case.json", "{}");
  const auto result =
      run_program({"template", (folder / "t.jinja").string(), "--input", (folder / "case.json").string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("t.jinja, line 2: Roles must alternate"), std::string::npos) << result.err;
}

TEST(TemplateCommand, RefusesWrongInput) {
  const TempFolder folder;
  write_file(folder / "t.jinja", "a");
  for (const char* input : {"[]", "{", R"({"now": 5})", R"({"now": "today"})", R"({"a": 1, "a": 2})"}) {
    write_file(folder / "case.json", input);
    const auto result =
        run_program({"template", (folder / "t.jinja").string(), "--input", (folder / "case.json").string()});
    EXPECT_EQ(result.exit_code, 1) << input;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(run_program({"template", (folder / "t.jinja").string()}).exit_code, 2);
}

}  // namespace
}  // namespace moeflux
