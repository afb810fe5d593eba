#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "support/support.h"

namespace moeflux {
namespace {

using Ids = std::vector<Token>;

fs::path folder(const std::string& name) { return test::data_folder() / "tokenizers" / name; }
Json tokenizer_json(const std::string& name) {
  return parse_json(test::read_file(folder(name) / "tokenizer.json"), name);
}

std::vector<Json> expected(const std::string& name) {
  std::vector<Json> result;
  const std::string lines = test::read_file(folder(name) / "expected.jsonl");
  for (size_t at = 0, end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1)
    result.push_back(parse_json(lines.substr(at, end - at), name));
  return result;
}

std::string load_error(const std::string& json) {
  try {
    const Tokenizer tokenizer(json, "test");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class Goldens : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tokenizer, Goldens, testing::Values("byte_level", "characters"));

TEST_P(Goldens, IdsAndTextsAreTheReferences) {
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
  for (const Json& line : expected(GetParam())) {
    const auto text = line.at("text").get<std::string>();
    const Ids ids = tokenizer.encode(text, Markers::Recognised);
    EXPECT_EQ(ids, line.at("ids").get<Ids>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), line.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), line.at("without_special").get<std::string>());
  }
}

TEST_P(Goldens, StreamsAreWholeCharactersAndLoseNothing) {
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    Ids ids(1 + random() % 40);
    for (Token& id : ids)
      id = static_cast<Token>(random() % (tokenizer.end_id() + 3));  // some stand for nothing
    TextStream stream(tokenizer);
    std::string text;
    for (const Token id : ids) {
      text += stream.push(id);
      EXPECT_EQ(well_formed_bytes(text), text.size());
    }
    text += stream.finish();
    EXPECT_EQ(text, tokenizer.decode(ids));
  }
}

TEST_P(Goldens, TextLooksLikeMarkersButIsText) {
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.is_white_space()) continue;
    const std::string text = "a " + token.content + " b";
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), token.id), 0) << token.content;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_P(Goldens, LongTextsAndManyThreadsGiveTheSameIds) {
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
  std::string text;
  while (text.size() < 100000)
    for (const Json& line : expected(GetParam())) text += line.at("text").get<std::string>() + "\n";
  const Ids once = tokenizer.encode(text, Markers::Recognised);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  const Tokenizer fresh = Tokenizer::load(folder(GetParam()));
  for (Ids& ids : results) threads.emplace_back([&] { ids = fresh.encode(text, Markers::Recognised); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : results) EXPECT_EQ(ids, once);
}

TEST(Tokenizer, WordsOfTheDemoModelGoThereAndBack) {
  const Tokenizer tokenizer = Tokenizer::load(test::storyteller());
  EXPECT_EQ(tokenizer.n_tokens(), 4096u);
  const Ids lily = {731, 678, 258, 513, 11,  415, 294, 258,  471,  617,
                    506, 960, 13,  440, 328, 11,  309, 2582, 1062, 4095};
  const std::string text =
      "Once upon a time, there was a little girl named Lily. She said, \"Hello!\"\n<|im_end|>";
  EXPECT_EQ(tokenizer.encode(text, Markers::Recognised), lily);
  std::istringstream lines(test::read_file(test::heldout()));
  size_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const Json json = parse_json(line, "heldout");
    const Ids ids = tokenizer.encode(json["text"].get<std::string>(), Markers::Recognised);
    EXPECT_EQ(tokenizer.decode(ids), json["text"]);
    EXPECT_EQ(std::min<size_t>(ids.size(), 512), json["tokens"]);  // as the reference counts, 512 at most
  }
  EXPECT_EQ(n, 80u);
}

TEST(Tokenizer, MarkersInUsersWordsAreText) {
  const Tokenizer tokenizer = Tokenizer::load(folder("byte_level"));
  const std::string text = "<|start|>the <|end|> thing<|end|>";
  const size_t user = std::string("<|start|>").size();
  const Ids ids = tokenizer.encode_chat(text, std::vector<TextRange>{{user, text.size() - 7}});
  EXPECT_EQ(ids.front(), *tokenizer.find("<|start|>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.find("<|end|>")), 1);
  EXPECT_EQ(ids.back(), *tokenizer.find("<|end|>"));
  EXPECT_EQ(tokenizer.decode(ids), text);
  // A marker that only begins or ends in them is none either.
  const std::string halves = "<|end|>";
  EXPECT_EQ(tokenizer.encode_chat(halves, std::vector<TextRange>{{0, 2}}), tokenizer.encode(halves));
  EXPECT_EQ(tokenizer.encode_chat(halves, std::vector<TextRange>{{6, 7}}), tokenizer.encode(halves));
  EXPECT_EQ(tokenizer.encode_chat(halves, {}), tokenizer.encode(halves, Markers::Recognised));
}

TEST(Tokenizer, TokensAreFoundByTheirSpelling) {
  const Tokenizer tokenizer = Tokenizer::load(folder("byte_level"));
  EXPECT_EQ(tokenizer.find("Ġthe"), Token{258});
  EXPECT_EQ(tokenizer.find("<|start|>"), Token{287});
  EXPECT_EQ(tokenizer.find("nothing like it"), std::nullopt);
  EXPECT_EQ(tokenizer.leading_ids(), Ids{287});
  EXPECT_EQ(tokenizer.trailing_ids(), Ids{288});
  ASSERT_NE(tokenizer.added_token(287), nullptr);
  EXPECT_TRUE(tokenizer.added_token(287)->special);
  EXPECT_EQ(tokenizer.added_token(5), nullptr);
}

TEST(Tokenizer, IllFormedTextIsReadAsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(folder("byte_level"));
  EXPECT_EQ(tokenizer.encode("a\xFF"
                             "b\xC3"),
            tokenizer.encode("a\uFFFD"
                             "b\uFFFD"));
  EXPECT_EQ(tokenizer.decode(Ids{0xC3}), "\uFFFD");
}

TEST(Tokenizer, VeryLongPiecesDoNotTakeForever) {
  for (const char* name : {"byte_level", "characters"}) {
    const Tokenizer tokenizer = Tokenizer::load(folder(name));
    for (const char* unit : {"a", " ", "\n", "the", "é"}) {
      std::string text = "x";
      while (text.size() < 100000) text += unit;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
  }
}

TEST(Tokenizer, MergesAsStringsAndAsPairsAreTheSame) {
  Json json = tokenizer_json("byte_level");
  for (Json& merge : json["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer strings(json.dump(), "test"), pairs = Tokenizer::load(folder("byte_level"));
  EXPECT_EQ(strings.encode("hello the world and"), pairs.encode("hello the world and"));
}

TEST(Tokenizer, IgnoredMergesLetATokenStandForItself) {
  Json json = tokenizer_json("byte_level");
  EXPECT_GT(Tokenizer(json.dump(), "test").encode("whole").size(), 1u);
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Tokenizer(json.dump(), "test").encode("whole"), Ids{286});
}

TEST(Tokenizer, WhatIsNotKnownIsRefusedByName) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = tokenizer_json("byte_level");
    json[Json::json_pointer(pointer)] = value;
    return load_error(json.dump());
  };
  const std::vector<std::tuple<const char*, Json, std::string>> cases = {
      {"/model/type", "Unigram", "Unigram"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/normalizer", {{"type", "Lowercase"}}, "Lowercase"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Odd", "Odd"},
      {"/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}, "Digits"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "\\w"},
      {"/decoder", {{"type", "WordPiece"}}, "WordPiece"},
      {"/decoder", nullptr, "decoder"},
      {"/post_processor", {{"type", "RobertaProcessing"}}, "RobertaProcessing"},
      {"/model/unk_token", "<none>", "<none>"},
      {"/model/vocab/a", 98, "98"},
      {"/model/vocab/a", 4000000000, "4000000000"},
      {"/model/vocab/a", -1, "number"},
      {"/model/merges/0", "a", "two tokens"},
      {"/model/merges/0", "a zzz", "zzz"},
      {"/model/merges/0", 5, "JSON"},
      {"/added_tokens/0/id", 5, "<|start|>"},
      {"/added_tokens/0/content", "", "empty"},
      {"/added_tokens/1/content", "<|start|>", "<|start|>"},
      {"/model", nullptr, "JSON"},
  };
  for (const auto& [pointer, value, part] : cases)
    EXPECT_NE(with(pointer, value).find(part), std::string::npos) << pointer << ": " << with(pointer, value);
}

TEST(Tokenizer, DamagedFilesAreRefusedOrWorkButNeverCrash) {
  const std::string good = test::read_file(folder("byte_level") / "tokenizer.json");
  for (size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_NE(load_error(good.substr(0, length)), "");
  EXPECT_NE(load_error(good + "x"), "");
  EXPECT_NE(load_error(std::string(100000, '[')), "");
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    for (int n = 0; n < 3; ++n) bad[random() % bad.size()] = static_cast<char>(random() % 128);
    try {
      Tokenizer(bad, "test").encode("the <|start|> hello 123");
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace moeflux
