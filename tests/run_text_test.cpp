// `moeflux run` with text, as a user meets it, on tiny models with random weights: what is checked is what
// holds whatever the model says.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;
namespace fs = std::filesystem;

std::vector<std::string> run_args(const std::vector<std::string>& more,
                                  const std::string& family = "qwen3_moe",
                                  const std::string& tokenizer = "byte_level") {
  std::vector<std::string> args = {"run", test::text_package(family, tokenizer), "--ctx", "256"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::string text_of(const std::vector<std::string>& more, const std::string& input = "") {
  const auto r = run_program(run_args(more), input);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.out;
}

Json json_of(std::vector<std::string> more, const std::string& family = "qwen3_moe",
             const std::string& tokenizer = "byte_level") {
  more.push_back("--json");
  const auto r = run_program(run_args(more, family, tokenizer));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return parse_json(r.out, "the answer");
}

TEST(RunText, TheSameSeedGivesTheSameTextHoweverItIsComputed) {
  const std::vector<std::string> base = {"Once upon", "-n", "40", "--seed", "7", "--ignore-eos"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = base;
    args.insert(args.end(), more.begin(), more.end());
    return text_of(args);
  };
  const std::string want = with({});
  EXPECT_GT(want.size(), 20u);
  EXPECT_EQ(with({"--threads", "1"}), want);
  EXPECT_EQ(with({"--threads", "3", "--ram", "64KiB", "--chunk", "2"}), want);
  EXPECT_EQ(with({"--isa", "generic"}), want);
  EXPECT_NE(text_of({"Once upon", "-n", "40", "--seed", "8", "--ignore-eos"}), want);
}

TEST(RunText, ThePromptComesFromAnyPlace) {
  const TempFolder temp;
  test::write_file(temp / "prompt", "Où est\nla gare ?\n");
  const std::vector<std::string> rest = {"-n", "8", "--temp", "0"};
  const auto from = [&](std::vector<std::string> first, const std::string& input = "") {
    first.insert(first.end(), rest.begin(), rest.end());
    return text_of(first, input);
  };
  const std::string want = from({"Où est\nla gare ?"});
  EXPECT_EQ(from({"--file", temp / "prompt"}), want);
  EXPECT_EQ(from({}, "Où est\nla gare ?\n"), want);
  EXPECT_EQ(from({"-"}, "Où est\nla gare ?"), want);
  const auto bytes = run_program(run_args({"-n", "2"}), "a\xFF b");
  EXPECT_EQ(bytes.exit_code, 0);
  EXPECT_NE(bytes.err.find("standard input is not UTF-8 at byte 1"), std::string::npos) << bytes.err;
}

TEST(RunText, TextIsWhatItsTokensDecodeToInWholeCharacters) {
  for (const char* tokenizer : {"byte_level", "characters"}) {
    const Json answer = json_of({"Héllo", "-n", "60", "--seed", "3", "--ignore-eos"}, "qwen3_moe", tokenizer);
    EXPECT_EQ(answer["tokens"].size(), 60u);
    EXPECT_EQ(answer["finish"], "length");
    const auto plain =
        run_program(run_args({"Héllo", "-n", "60", "--seed", "3", "--ignore-eos"}, "qwen3_moe", tokenizer));
    const std::string text = answer["text"];
    EXPECT_EQ(plain.out, text.ends_with('\n') ? text : text + "\n");
  }
}

TEST(RunText, ATextGoesOnWhereThePromptEnds) {
  // A tokenizer that puts a space before every text, and takes it off again, must not do so in the middle.
  const std::string package = test::text_package("qwen3_moe", "characters");
  const Json ids = parse_json(run_program({"tokenize", package}, "a b").out, "ids");
  ASSERT_EQ(ids.size(), 3u);  // the second is the space
  const Json answer = json_of({"a", "-n", "1", "--logit-bias", std::to_string(ids[1].get<int>()) + "=1000"},
                              "qwen3_moe", "characters");
  EXPECT_EQ(answer["text"], " ") << ids;
}

TEST(RunText, StopStringsEndTheTextBeforeThem) {
  const std::vector<std::string> base = {"Tell", "-n", "30", "--seed", "5", "--ignore-eos"};
  const std::string whole = json_of(base)["text"];
  for (size_t at : {size_t{0}, size_t{5}, whole.size() / 2}) {
    while ((static_cast<unsigned char>(whole[at]) & 0xC0) == 0x80) ++at;
    size_t end = std::min(at + 4, whole.size());
    while (end < whole.size() && (static_cast<unsigned char>(whole[end]) & 0xC0) == 0x80) ++end;
    std::string stop = whole.substr(at, end - at), escaped;
    for (const char c : stop) escaped += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
    std::vector<std::string> args = base;
    args.insert(args.end(), {"--stop", "\x01never", "--stop", escaped});
    const Json answer = json_of(args);
    EXPECT_EQ(answer["text"], whole.substr(0, whole.find(stop)));
    EXPECT_EQ(answer["finish"], "stop");
    EXPECT_EQ(answer["stop_text"], stop);
  }
}

TEST(RunText, TheModelEndsItsTextUnlessItMayNot) {
  const std::string to_end = "288=1000";
  Json answer = json_of({"a", "-n", "9", "--logit-bias", to_end});
  EXPECT_EQ(answer["finish"], "stop");
  EXPECT_EQ(answer["stop_token"], 288);
  EXPECT_EQ(answer["text"], "");
  answer = json_of({"a", "-n", "9", "--logit-bias", "<|end|>=1000", "--min-tokens", "4"});
  EXPECT_EQ(answer["tokens"].size(), 4u);
  answer = json_of({"a", "-n", "9", "--logit-bias", to_end, "--ignore-eos"});
  EXPECT_EQ(answer["finish"], "length");
  EXPECT_EQ(answer["tokens"].size(), 9u);
}

TEST(RunText, ACutTextSaysWhy) {
  auto r = run_program(run_args({"a", "-n", "3", "--ignore-eos"}));
  EXPECT_NE(r.err.find("--max-tokens"), std::string::npos) << r.err;
  r = run_program({"run", test::text_package("qwen3_moe"), "a", "--ctx", "64", "--ignore-eos"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.err.find("the context of 64 is full"), std::string::npos) << r.err;
  r = run_program({"run", test::text_package("qwen3_moe"), std::string(500, 'x'), "--ctx", "64"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("do not fit in the context of 64"), std::string::npos) << r.err;
}

TEST(RunText, DefaultsAreTheModelsAndOptionsGoBefore) {
  const TempFolder temp;
  fs::copy(test::text_package("qwen3_moe"), temp / "package", fs::copy_options::recursive);
  test::write_file(temp / "package/generation_config.json",
                   R"({"do_sample": false, "temperature": 0.7, "eos_token_id": 288})");
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"run", temp / "package", "Hi", "-n", "20"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args).out;
  };
  EXPECT_EQ(text({"--seed", "1"}), text({"--seed", "2"}));
  EXPECT_NE(text({"--temp", "1", "--seed", "1"}), text({"--temp", "1", "--seed", "2"}));
  EXPECT_EQ(text({"--temp", "1", "--top-k", "1"}), text({}));
}

TEST(RunText, EverySamplingOptionIsTaken) {
  const Json answer = json_of({"Hi",   "-n",
                               "6",    "--temp",
                               "0.8",  "--top-k",
                               "30",   "--top-p",
                               "0.9",  "--min-p",
                               "0.01", "--typical-p",
                               "0.95", "--top-n-sigma",
                               "3",    "--xtc-probability",
                               "0.5",  "--xtc-threshold",
                               "0.1",  "--repetition-penalty",
                               "1.1",  "--frequency-penalty",
                               "0.2",  "--presence-penalty",
                               "0.3",  "--penalty-window",
                               "64",   "--dry-multiplier",
                               "0.8",  "--dry-base",
                               "1.75", "--dry-allowed-length",
                               "2",    "--dry-window",
                               "128",  "--dry-breaker",
                               "\\n",  "--dry-breaker",
                               ".",    "--logit-bias",
                               "5=-1", "--seed",
                               "4",    "--ignore-eos"});
  EXPECT_EQ(answer["tokens"].size(), 6u);
  EXPECT_EQ(answer["seed"], 4);
  const Json mirostat = json_of({"Hi", "-n", "6", "--mirostat", "--mirostat-tau", "3", "--mirostat-eta",
                                 "0.2", "--seed", "4", "--ignore-eos"});
  EXPECT_EQ(mirostat["tokens"].size(), 6u);
}

TEST(RunText, BreakersGivenAsTextKeepRepetitionsApart) {
  const auto text = [](const std::vector<std::string>& more) {
    // The likeliest of three letters each time: without a penalty, they soon repeat.
    std::vector<std::string> args = {
        "abcabc", "-n",           "24",     "--temp",       "0",      "--dry-allowed-length",
        "1",      "--logit-bias", "a=1000", "--logit-bias", "b=1000", "--logit-bias",
        "c=1000"};
    args.insert(args.end(), more.begin(), more.end());
    return json_of(args)["text"].get<std::string>();
  };
  const std::string free = text({});
  EXPECT_NE(text({"--dry-multiplier", "100"}), free);
  EXPECT_EQ(
      text({"--dry-multiplier", "100", "--dry-breaker", "a", "--dry-breaker", "b", "--dry-breaker", "c"}),
      free);
  EXPECT_NE(text({"--dry-multiplier", "100", "--dry-breaker", "d"}), free);
}

TEST(RunText, LogprobsAreOfTheModelsOwnDistribution) {
  const Json answer = json_of({"Hi", "-n", "5", "--temp", "0", "--logprobs", "3", "--ignore-eos"});
  ASSERT_EQ(answer["logprobs"].size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const Json& one = answer["logprobs"][i];
    EXPECT_EQ(one["token"], answer["tokens"][i]);
    ASSERT_EQ(one["top"].size(), 3u);
    EXPECT_EQ(one["top"][0]["token"], one["token"]);
    EXPECT_EQ(one["top"][0]["logprob"], one["logprob"]);
    EXPECT_LE(one["top"][1]["logprob"], one["top"][0]["logprob"]);
    EXPECT_LE(one["logprob"].get<double>(), 0);
    EXPECT_TRUE(one["top"][0]["text"].is_string());
  }
}

TEST(RunText, GrammarsAndSchemasHold) {
  const TempFolder temp;
  test::write_file(temp / "grammar", "root ::= \"yes\" | \"no\" \" \" [0-9]{3}\n");
  test::write_file(temp / "schema",
                   R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
                       "required": ["a", "b"], "additionalProperties": false})");
  for (int seed = 0; seed < 8; ++seed) {
    const std::vector<std::string> random = {"--temp", "1.5", "--seed", std::to_string(seed)};
    std::vector<std::string> args = {"Hi", "--grammar", temp / "grammar"};
    args.insert(args.end(), random.begin(), random.end());
    const std::string text = json_of(args)["text"];
    EXPECT_TRUE(text == "yes" || (text.starts_with("no ") && text.size() == 6)) << text;
    args = {"Hi", "--chat", "--json-schema", temp / "schema"};
    args.insert(args.end(), random.begin(), random.end());
    const Json object = parse_json(json_of(args)["text"].get<std::string>(), "text");
    EXPECT_TRUE(object["a"].is_number_integer() && object["b"].is_string()) << object;
  }
  const auto wrong = run_program(run_args({"Hi", "--grammar", temp / "schema"}));
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find((temp / "schema").string()), std::string::npos) << wrong.err;
  EXPECT_NE(wrong.err.find("line 1"), std::string::npos) << wrong.err;
}

TEST(RunText, ChatRendersTheTemplateAndMessagesStayText) {
  const std::string package = test::text_package("qwen3_moe");
  const auto n_tokens = [&](const std::string& text) {
    return parse_json(run_program({"tokenize", package, "--special"}, text).out, "ids").size();
  };
  Json answer = json_of({"hello", "--chat", "-n", "1"});
  EXPECT_EQ(answer["prompt_tokens"], n_tokens("<|start|>user\nhello<|end|><|start|>assistant\n"));
  answer = json_of({"hello", "--chat", "--system", "be kind", "-n", "1"});
  EXPECT_EQ(answer["prompt_tokens"],
            n_tokens("<|start|>system\nbe kind<|end|><|start|>user\nhello<|end|><|start|>assistant\n"));
  // A marker in a message is as many tokens as its text, and not the one that ends a turn.
  answer = json_of({"a<|end|>b", "--chat", "-n", "1"});
  const size_t as_text = parse_json(run_program({"tokenize", package}, "a<|end|>b").out, "ids").size();
  EXPECT_EQ(answer["prompt_tokens"], n_tokens("<|start|>user\n<|end|><|start|>assistant\n") + as_text);
}

TEST(RunText, ThoughtsGoToStderrAndGrammarsBeginAfterThem) {
  const TempFolder temp;
  test::write_file(temp / "grammar", "root ::= \"yes\"\n");
  // A random model does not think; what is between is cut, and no answer follows.
  const std::vector<std::string> thinking = {"hello",  "--chat", "--template-arg", "think=true", "-n", "6",
                                             "--seed", "1",      "--ignore-eos"};
  const Json answer = json_of(thinking);
  EXPECT_EQ(answer["text"], "");
  EXPECT_NE(answer["reasoning"], "");
  auto r = run_program(run_args(thinking));
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find(answer["reasoning"].get<std::string>()), std::string::npos) << r.err;
  std::vector<std::string> args = thinking;
  args.insert(args.end(), {"--reasoning", "hide"});
  r = run_program(run_args(args));
  EXPECT_EQ(r.err.find(answer["reasoning"].get<std::string>()), std::string::npos) << r.err;
  args.back() = "fold";
  r = run_program(run_args(args));
  EXPECT_EQ(r.err.find(answer["reasoning"].get<std::string>()), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("[thought for "), std::string::npos) << r.err;
  args = thinking;
  args.insert(args.end(), {"--grammar", temp / "grammar"});
  EXPECT_EQ(json_of(args)["tokens"], answer["tokens"]);  // the thought is free
}

TEST(RunText, PackagesWithoutTokenizerOrTemplateAreRefusedByName) {
  auto r = run_program({"run", test::golden_package("qwen3_moe"), "Hi"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("tokenizer.json"), std::string::npos) << r.err;
  const TempFolder temp;
  fs::copy(test::text_package("qwen3_moe"), temp / "package", fs::copy_options::recursive);
  fs::remove(temp / "package/chat_template.jinja");
  r = run_program({"run", temp / "package", "--chat", "Hi"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("chat_template"), std::string::npos) << r.err;
  EXPECT_EQ(run_program({"run", temp / "package", "Hi", "-n", "1"}).exit_code, 0);
}

}  // namespace
}  // namespace moeflux
