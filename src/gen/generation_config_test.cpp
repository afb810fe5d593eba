#include "gen/generation_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

GenerationConfig parse(const char* text) {
  return parse_generation_config(parse_json(text, "g.json"), "g.json");
}

std::string refusal(const char* text) {
  try {
    parse(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(GenerationConfig, WhatTheFileSaysBecomesTheDefault) {
  const GenerationConfig file = parse(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.05, "eos_token_id": [151645, 151643, 151645], "bos_token_id": 1})");
  const SamplerOptions o = default_sampling(file);
  EXPECT_EQ(o.temperature, 0.6);
  EXPECT_EQ(o.top_p, 0.95);
  EXPECT_EQ(o.top_k, 20u);
  EXPECT_EQ(o.min_p, 0.05);
  EXPECT_EQ(o.penalties.repetition, 1.05);
  EXPECT_EQ(file.eos, (std::vector<Token>{151645, 151643}));
  EXPECT_NO_THROW(check_options(o, 151936));
}

TEST(GenerationConfig, AnEmptyOneLeavesTheSamplersDefaults) {
  const SamplerOptions o = default_sampling(parse(R"({"top_k": null, "eos_token_id": null})"));
  EXPECT_EQ(o.temperature, 1);
  EXPECT_EQ(o.top_k, 0u);
  EXPECT_EQ(o.top_p, 1);
  EXPECT_EQ(default_sampling(parse(R"({"top_k": -1})")).top_k, 0u);
}

TEST(GenerationConfig, WithoutSamplingTheLikeliestIsTaken) {
  EXPECT_EQ(default_sampling(parse(R"({"do_sample": false, "temperature": 0.6})")).temperature, 0);
  EXPECT_EQ(default_sampling(parse(R"({"do_sample": true})")).temperature, 1);
}

TEST(GenerationConfig, WrongValuesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": -1})", "'temperature' is -1"},
      {R"({"temperature": "warm"})", "'temperature' is \"warm\""},
      {R"({"top_p": 1.01})", "'top_p' is 1.01"},
      {R"({"min_p": 2})", "'min_p' is 2"},
      {R"({"top_k": -2})", "'top_k' is -2"},
      {R"({"top_k": 2.5})", "'top_k' is 2.5"},
      {R"({"repetition_penalty": 0})", "'repetition_penalty' is 0"},
      {R"({"do_sample": 1})", "'do_sample' is 1"},
      {R"({"eos_token_id": "</s>"})", "'eos_token_id' is"},
      {R"({"eos_token_id": [1, -3]})", "'eos_token_id' is [1,-3]"},
      {R"({"eos_token_id": [[1]]})", "'eos_token_id' is [[1]]"},
      {R"({"eos_token_id": 4294967296})", "'eos_token_id' is 4294967296"},
      {R"({"eos_token_id": true})", "'eos_token_id' is true"},
      {R"([1])", "want a JSON object"}};
  for (const auto& [text, words] : cases) {
    const std::string what = refusal(text);
    EXPECT_NE(what.find(words), std::string::npos) << text << ": " << what;
    EXPECT_NE(what.find("g.json"), std::string::npos) << text << ": " << what;
  }
}

TEST(GenerationConfig, IsReadFromAFolderIfItIsThere) {
  const test::TempFolder temp;
  EXPECT_FALSE(read_generation_config(temp.path()).temperature);
  write_text(temp / "generation_config.json", R"({"temperature": 0.25})");
  EXPECT_EQ(read_generation_config(temp.path()).temperature, 0.25);
  write_text(temp / "generation_config.json", R"({"temperature": )");
  EXPECT_THROW(read_generation_config(temp.path()), Error);
}

TEST(GenerationConfig, StopTokensComeFromTheFirstFileThatNamesThem) {
  const auto stops = [](const char* generation, const char* config) {
    return stop_tokens(parse(generation), parse_json(config, "config.json"), "config.json");
  };
  EXPECT_EQ(stops(R"({"eos_token_id": 5})", R"({"eos_token_id": 7})"), std::vector<Token>{5});
  EXPECT_EQ(stops("{}", R"({"eos_token_id": [7, 8]})"), (std::vector<Token>{7, 8}));
  EXPECT_EQ(stops("{}", R"({"text_config": {"eos_token_id": 9}})"), std::vector<Token>{9});
  EXPECT_TRUE(stops("{}", "{}").empty());
}

}  // namespace
}  // namespace moeflux
