// A session keeps what it has computed: the text is the same as without, and only what is new is evaluated.
#include "gen/text_session.h"

#include <gtest/gtest.h>

#include "support/support.h"

namespace moeflux {
namespace {

class TextSessions : public testing::TestWithParam<std::string> {
 protected:
  const fs::path& package = test::text_package(GetParam());
  const TextModel model{package};
  Engine engine{package, [] {
                  EngineOptions o;
                  o.ctx = 512;
                  return o;
                }()};
  OrderedJson messages = OrderedJson::array();

  void say(const std::string& role, const std::string& text) {
    messages.push_back({{"role", role}, {"content", text}});
  }
  ChatPrompt rendered() const {
    Conversation conversation;
    conversation.messages = messages;
    return render_chat(model.chat_template(), model.tokenizer(), conversation, {});
  }
  // Letters only: the template takes white space off, and a turn would not go on from where it was.
  TextRequest request(size_t n) const {
    TextRequest r;
    r.generate.max_tokens = n;
    r.generate.sampler.temperature = 0;
    for (const char* letter : {"a", "b", "c", "d"})
      r.generate.sampler.logit_bias.push_back({model.token_named(letter), 1000});
    return r;
  }
};

TEST_P(TextSessions, ATurnThatGoesOnEvaluatesOnlyWhatIsNew) {
  TextSession kept(engine, model);
  say("user", "Tell me something");
  for (int turn = 0; turn < 3; ++turn) {
    const TextPrompt prompt = kept.chat_prompt(rendered());
    TextSession fresh(engine, model);
    const TextResult want = fresh.generate(prompt, request(12));  // the same tokens, evaluated anew
    EXPECT_EQ(want.n_reused, 0u);
    const size_t before = kept.n_tokens();
    const TextResult result = kept.generate(prompt, request(12));
    EXPECT_EQ(result.generated.tokens, want.generated.tokens);
    EXPECT_EQ(result.text, want.text);
    EXPECT_EQ(result.n_reused, turn > 0 ? before - 1 : 0);  // the last token was never evaluated
    EXPECT_EQ(result.n_reused + result.times.n_prompt, prompt.tokens.size());
    say("assistant", result.text);
    say("user", "And then?");
  }
}

TEST_P(TextSessions, WhatDoesNotGoOnIsComputedAnew) {
  TextSession session(engine, model);
  say("user", "Tell me something");
  const TextPrompt first = session.chat_prompt(rendered());
  const TextResult once = session.generate(first, request(8));
  const size_t reusable = session.reusable(first);  // all but the last, or back to where the state can go
  EXPECT_LT(reusable, first.tokens.size());
  if (can_always_go_back(engine.config())) {
    EXPECT_EQ(reusable, first.tokens.size() - 1);
  }
  const TextResult again = session.generate(first, request(8));
  EXPECT_EQ(again.n_reused, reusable);
  EXPECT_EQ(again.generated.tokens, once.generated.tokens);
  messages.clear();
  say("user", "Another thing");
  EXPECT_LT(session.reusable(session.chat_prompt(rendered())), first.tokens.size() / 2);
}

TEST_P(TextSessions, ACancelledPromptGoesOnWhereItStopped) {
  EngineOptions options;
  options.ctx = 512;
  options.chunk = 8;
  Engine small(package, options);
  TextSession session(small, model);
  say("user", std::string(100, 'a'));
  const TextPrompt prompt = session.chat_prompt(rendered());
  const TextResult want = TextSession(engine, model).generate(prompt, request(6));
  TextRequest cancelled = request(6);
  cancelled.generate.on_prompt = [](size_t done) { return done < 30; };
  const TextResult nothing = session.generate(prompt, cancelled);
  EXPECT_EQ(nothing.generated.finish, FinishReason::Cancelled);
  EXPECT_EQ(nothing.text, "");
  EXPECT_EQ(session.reusable(prompt), 32u);
  EXPECT_EQ(session.generate(prompt, request(6)).text, want.text);
}

TEST_P(TextSessions, APromptThatDoesNotFitIsRefusedAndTheSessionGoesOn) {
  TextSession session(engine, model);
  say("user", std::string(3000, 'z'));
  EXPECT_THROW(session.generate(session.chat_prompt(rendered()), request(6)), Error);
  messages.clear();
  say("user", "short");
  EXPECT_EQ(session.generate(session.chat_prompt(rendered()), request(6)).generated.tokens.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Families, TextSessions, testing::Values("qwen3_moe", "qwen3_5_moe"),
                         [](const auto& test) { return test.param; });

TEST(TextModels, TokensAreFoundByWhatTheyStandFor) {
  const TextModel model(test::text_package("qwen3_moe"));
  const std::vector<std::string> breakers = {"a", "<|end|>"};
  const std::vector<Token> tokens = model.tokens_with(breakers);
  for (Token id = 0; id < model.n_vocab(); ++id) {
    const std::string bytes = model.tokenizer().token_bytes(id);
    const bool holds = bytes.find('a') != bytes.npos || bytes.find("<|end|>") != bytes.npos;
    EXPECT_EQ(std::ranges::count(tokens, id), holds ? 1 : 0) << id << " " << bytes;
  }
  EXPECT_EQ(model.token_named("<|end|>"), 288u);
  EXPECT_EQ(model.token_named("17"), 17u);
  EXPECT_THROW(model.token_named("512"), Error);
  EXPECT_THROW(model.token_named("quite a few tokens"), Error);
}

TEST(TextModels, LlamaTokenizersBeginTextsAsTheirConfigSays) {
  const test::TempFolder temp;
  fs::copy(test::text_package("qwen3_moe", "characters"), temp / "package", fs::copy_options::recursive);
  const auto first = [&](const std::string& config) {
    test::write_file(temp / "package/tokenizer_config.json", config);
    return TextModel(temp / "package").encode_text("a", Markers::AsText).front();
  };
  const Token plain = first("{}");
  EXPECT_NE(plain, 1u);
  EXPECT_EQ(first(R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true, "bos_token": "<s>"})"),
            1u);
  EXPECT_EQ(
      first(
          R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": {"content": "<s>"}})"),
      1u);
  EXPECT_EQ(first(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "bos_token": "<s>"})"),
            plain);
  EXPECT_THROW(first(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})"), Error);
}

}  // namespace
}  // namespace moeflux
