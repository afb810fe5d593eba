// `moeflux chat`: through a pipe, and in a real terminal, where keys are pressed and the screen is read. A
// tiny model with random weights is made to answer with one letter, so that its answers can be recognised.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/support.h"
#include "support/terminal.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;
using test::Terminal;

std::vector<std::string> chat_args(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {
      "chat", test::text_package("qwen3_moe"), "--ctx", "512", "--logit-bias", "a=1000", "-n", "5"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

OrderedJson saved_messages(const std::filesystem::path& file) {
  return parse_ordered_json(test::read_file(file), file.string())["messages"];
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(ChatPipe, EachLineIsAMessageAndOnlyAnswersGoToStdout) {
  const auto r = run_program(chat_args(), "hello\n\nand then?\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "aaaaa\naaaaa\n");
  EXPECT_EQ(count_of(r.err, "tok/s"), 2u) << r.err;
  EXPECT_NE(r.err.find(" kept"), std::string::npos) << r.err;  // the second turn goes on from the first
  EXPECT_EQ(r.err.find('\033'), std::string::npos);
  EXPECT_EQ(run_program(chat_args(), "").out, "");
  EXPECT_EQ(run_program(chat_args(), "no line end").out, "aaaaa\n");
}

TEST(ChatPipe, MessagesOfSeveralLines) {
  const TempFolder temp;
  const std::string file = temp / "saved";
  const auto r = run_program(chat_args(),
                             "\"\"\"first\n  second\n\"\"\"\n"
                             "one \\\ntwo\n"
                             "\"\"\"single\"\"\"\n"
                             "//not a command\n"
                             "/save " +
                                 file + "\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const OrderedJson messages = saved_messages(file);
  ASSERT_EQ(messages.size(), 8u);
  EXPECT_EQ(messages[0]["content"], "first\n  second\n");
  EXPECT_EQ(messages[1], OrderedJson({{"role", "assistant"}, {"content", "aaaaa"}}));
  EXPECT_EQ(messages[2]["content"], "one \ntwo");
  EXPECT_EQ(messages[4]["content"], "single");
  EXPECT_EQ(messages[6]["content"], "/not a command");
}

TEST(ChatPipe, CommandsChangeTheConversation) {
  const TempFolder temp;
  const std::string file = temp / "saved", other = temp / "other";
  auto r = run_program(chat_args({"--system", "be brief"}),
                       "one\ntwo\n/undo\n/system be long\nthree\n/retry\n/save " + file +
                           "\n/reset\nfour\n/save " + other + "\n/stats\n/help\n/quit\nnever\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count_of(r.out, "aaaaa"), 5u) << r.out;
  OrderedJson messages = saved_messages(file);
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0], OrderedJson({{"role", "system"}, {"content", "be long"}}));
  EXPECT_EQ(messages[1]["content"], "one");
  EXPECT_EQ(messages[3]["content"], "three");
  messages = saved_messages(other);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1]["content"], "four");
  for (const char* part : {" kept", "hit rate", "/retry", "5 turns"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;

  r = run_program(chat_args(), "/load " + file + "\nfive\n/save " + other + "\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  messages = saved_messages(other);
  ASSERT_EQ(messages.size(), 7u);
  EXPECT_EQ(messages[0]["content"], "be long");
  EXPECT_EQ(messages[5]["content"], "five");
}

TEST(ChatPipe, SettingsAreSetShownAndTakenBack) {
  const auto r = run_program(chat_args(),
                             "/set max-tokens 3\nhi\n/set max-tokens default\n/set max-tokens 2\nhi\n"
                             "/set logit-bias default\n/set logit-bias b=1000\nhi\n/set temp 0.25\n/set\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "aaa\naa\nbb\n");
  EXPECT_NE(r.err.find("temp                 0.25"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("top-k                40"), std::string::npos) << r.err;  // the model's own
}

TEST(ChatPipe, WhatFailsEndsATurnAndNotTheConversation) {
  const TempFolder temp;
  test::write_file(temp / "bad", R"({"messages": [{"role": "user"}]})");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/frobnicate", "/frobnicate"},
      {"/set temp hot", "'hot'"},
      {"/set temp 1000", "0 to 100"},
      {"/set frost 1", "'frost'"},
      {"/set logit-bias many_letters_here=3", "many_letters_here"},
      {"/load /no/such", "/no/such"},
      {"/load " + (temp / "bad").string(), "message 1"},
      {"/save /no/such/place", "/no/such/place"},
      {"/save", "file name"},
      {"/retry", "no message"},
      {"/undo", "nothing"},
      {"/reasoning loud", "'loud'"},
      {std::string(4000, 'x'), "do not fit in the context of 512"}};
  for (const auto& [line, part] : cases) {
    const auto r = run_program(chat_args(), line + "\nhello\n");
    EXPECT_EQ(r.exit_code, 1) << line;
    EXPECT_NE(r.err.find(part), std::string::npos) << line << "\n" << r.err;
    EXPECT_EQ(r.out, "aaaaa\n") << line;
  }
  EXPECT_EQ(run_program({"chat", test::golden_package("qwen3_moe")}).exit_code, 1);
  EXPECT_EQ(run_program({"chat"}).exit_code, 2);
  EXPECT_EQ(run_program({"chat", "x", "--image", "y"}).exit_code, 2);
}

class ChatTerminal : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_tmux()) GTEST_SKIP() << "tmux is not installed (scripts/setup installs it)";
  }
  const TempFolder temp;
  const std::string history = temp / "history", file = temp / "saved";

  std::vector<std::string> args(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = chat_args(more);
    all.insert(all.end(), {"--history", history});
    return all;
  }
  // What the user has said, once the program has written it down.
  std::vector<std::string> messages(Terminal& terminal) const {
    terminal.type("/save " + file);
    terminal.press({"Enter"});
    EXPECT_TRUE(terminal.shows("messages written")) << terminal.screen();
    std::vector<std::string> said;
    for (const OrderedJson& message : saved_messages(file))
      if (message["role"] == "user") said.push_back(message["content"]);
    return said;
  }
};

TEST_F(ChatTerminal, LinesAreEditedInUtf8) {
  Terminal terminal(args());
  ASSERT_TRUE(terminal.shows("\n>")) << terminal.screen();
  terminal.type("naïve 日本語 🎉");
  terminal.press({"Left", "Left", "BSpace", "BSpace", "Home", "Right", "Delete", "End"});
  terminal.type(" Ünd");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  EXPECT_TRUE(terminal.shows("aaaaa"));
  EXPECT_EQ(messages(terminal), (std::vector<std::string>{"nïve 日 🎉 Ünd"})) << terminal.screen();
}

TEST_F(ChatTerminal, HistoryIsThereNowAndTheNextTime) {
  {
    Terminal terminal(args());
    ASSERT_TRUE(terminal.shows("\n>"));
    for (const char* line : {"first é", "second"}) {
      terminal.type(line);
      terminal.press({"Enter"});
    }
    ASSERT_TRUE(terminal.shows("tok/s", 2)) << terminal.screen();
    terminal.press({"Up", "Up"});
    terminal.type("!");
    terminal.press({"Enter"});
    ASSERT_TRUE(terminal.shows("tok/s", 3)) << terminal.screen();
    EXPECT_EQ(messages(terminal), (std::vector<std::string>{"first é", "second", "first é!"}));
    terminal.press({"C-d"});
    EXPECT_TRUE(terminal.shows("exit code 0")) << terminal.screen();
  }
  Terminal terminal(args());
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.press({"Up", "Up", "Enter"});  // the last was /save
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  EXPECT_EQ(messages(terminal), (std::vector<std::string>{"first é!"}));
}

TEST_F(ChatTerminal, SeveralLinesByKeyByMarksAndByPasting) {
  Terminal terminal(args());
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("one");
  terminal.press({"M-Enter"});
  terminal.type("two");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  for (const char* line : {"\"\"\"", "three", "", "four", "\"\"\""}) {
    terminal.type(line);
    terminal.press({"Enter"});
  }
  ASSERT_TRUE(terminal.shows("tok/s", 2)) << terminal.screen();
  terminal.paste("five\n\tsix é\n");
  terminal.type("seven");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s", 3)) << terminal.screen();
  EXPECT_EQ(messages(terminal),
            (std::vector<std::string>{"one\ntwo", "three\n\nfour\n", "five\n\tsix é\nseven"}));
}

TEST_F(ChatTerminal, CtrlCStopsTheAnswerAndNotTheProgram) {
  // The scalar backend takes its time.
  Terminal terminal({"chat", test::text_package("qwen3_moe"), "--backend", "cpu-ref", "--ctx", "2048", "-n",
                     "1900", "--ignore-eos", "--logit-bias", "a=1000", "--history", history});
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("go");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("aaaaaaaaaa")) << terminal.screen();
  terminal.press({"C-c"});
  ASSERT_TRUE(terminal.shows("| stopped]")) << terminal.screen();
  terminal.type("/set max-tokens 2");
  terminal.press({"Enter"});
  terminal.type("half a li");
  ASSERT_TRUE(terminal.shows("half a li"));
  terminal.press({"C-c"});  // at the prompt, the line is given up
  ASSERT_TRUE(terminal.shows("^C")) << terminal.screen();
  terminal.type("again");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s", 2)) << terminal.screen();
  EXPECT_EQ(messages(terminal), (std::vector<std::string>{"go", "again"}));
  terminal.type("/quit");
  terminal.press({"Enter"});
  EXPECT_TRUE(terminal.shows("exit code 0")) << terminal.screen();
}

TEST_F(ChatTerminal, TheWindowMayChangeItsSize) {
  Terminal terminal(args());
  ASSERT_TRUE(terminal.shows("\n>"));
  const std::string words = "some words that go on for more than one line of a narrow window";
  terminal.type(words);
  ASSERT_TRUE(terminal.shows("narrow window"));
  terminal.resize(30, 20);
  terminal.type(" and then");
  terminal.press({"Home"});
  terminal.type("X ");
  terminal.resize(100, 30);
  terminal.press({"End"});
  terminal.type(" Y");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  EXPECT_EQ(messages(terminal), (std::vector<std::string>{"X " + words + " and then Y"}));
}

TEST_F(ChatTerminal, ADumbTerminalGetsPlainLines) {
  Terminal terminal(args(), "dumb");
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("hello é");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  terminal.press({"C-c"});
  EXPECT_TRUE(terminal.shows("leaves", 2)) << terminal.screen();
  EXPECT_EQ(messages(terminal), (std::vector<std::string>{"hello é"}));
  EXPECT_EQ(terminal.screen().find("[0m"), std::string::npos);
  terminal.press({"C-d"});
  EXPECT_TRUE(terminal.shows("exit code 0")) << terminal.screen();
}

TEST_F(ChatTerminal, AModelCannotSteerTheTerminal) {
  const Json ids =
      parse_json(run_program({"tokenize", test::text_package("qwen3_moe")}, std::string("\033")).out, "ids");
  ASSERT_EQ(ids.size(), 1u);
  Terminal terminal({"chat", test::text_package("qwen3_moe"), "--ctx", "256", "-n", "2", "--history", history,
                     "--logit-bias", std::to_string(ids[0].get<int>()) + "=1000"});
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("hello");
  terminal.press({"Enter"});
  EXPECT_TRUE(terminal.shows("^[^[")) << terminal.screen();
}

TEST_F(ChatTerminal, ThoughtsAreShownFoldedAndUnfolded) {
  Terminal terminal(args({"--template-arg", "think=true"}));
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("one");
  terminal.press({"Enter"});
  ASSERT_TRUE(terminal.shows("tok/s")) << terminal.screen();
  EXPECT_TRUE(terminal.shows("aaaaa"));
  for (const char* line : {"/reasoning fold", "two"}) {
    terminal.type(line);
    terminal.press({"Enter"});
  }
  ASSERT_TRUE(terminal.shows("[thought for 5 tokens")) << terminal.screen();
  EXPECT_TRUE(terminal.shows("tok/s", 2)) << terminal.screen();
  const size_t before = count_of(terminal.screen(), "aaaaa");
  terminal.type("/thought");
  terminal.press({"Enter"});
  EXPECT_TRUE(terminal.shows("aaaaa", before + 1)) << terminal.screen();
}

}  // namespace
}  // namespace moeflux
