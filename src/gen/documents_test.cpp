#include "gen/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "gen/text_model.h"
#include "support/support.h"

namespace moeflux {
namespace {

using Ids = std::vector<Token>;

Documents read(const std::string& content, uint64_t most_tokens = UINT64_MAX) {
  const test::TempFolder temp;
  test::write_file(temp / "ids", content);
  return read_documents(temp / "ids", {.most_tokens = most_tokens});
}

std::string error_of(const std::string& content) {
  try {
    read(content);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Documents, EveryFormGivesTheSameIds) {
  for (const char* line :
       {"1,2,3", "1 2 3", " 1,\t2 ,3,\r", "[1,2,3]", " [1, 2, 3] \r", "{\"ids\": [1, 2, 3]}",
        "{\"input_ids\": [1,2,3], \"attention_mask\": [1,1,1]}", "{\"text\": \"a\", \"tokens\": [1,2,3]}",
        "{\"tokens\": 3, \"token_ids\": [1,2,3], \"ids\": null}"}) {
    const Documents d = read(std::string("\n  \n") + line + "\n7\n\n[]");
    ASSERT_EQ(d.list.size(), 3u) << line;
    EXPECT_EQ(d.list[0].line, 3u);
    EXPECT_EQ(d.list[0].tokens, (Ids{1, 2, 3})) << line;
    EXPECT_EQ(d.list[1].tokens, (Ids{7}));
    EXPECT_EQ(d.list[2].line, 6u);
    EXPECT_TRUE(d.list[2].tokens.empty());
    EXPECT_EQ(d.n_tokens(), 4u);
  }
  EXPECT_EQ(read("0 4294967295").list[0].tokens, (Ids{0, 4294967295}));
}

TEST(Documents, ALimitCutsADocumentButLeavesNoSingleToken) {
  const std::string content = "1,2,3\n4,5,6\n7,8,9\n";
  const auto sizes = [&](uint64_t most) {
    std::vector<size_t> n;
    for (const Document& d : read(content, most).list) n.push_back(d.tokens.size());
    return n;
  };
  EXPECT_EQ(sizes(2), (std::vector<size_t>{2}));
  EXPECT_EQ(sizes(3), (std::vector<size_t>{3}));
  EXPECT_EQ(sizes(4), (std::vector<size_t>{3}));
  EXPECT_EQ(sizes(5), (std::vector<size_t>{3, 2}));
  EXPECT_EQ(sizes(100), (std::vector<size_t>{3, 3, 3}));
}

TEST(Documents, WhatIsNoIdIsRefusedWithItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "no token ids"},
      {"\n \n", "no token ids"},
      {"1,2\n3,x4,5", "line 2: \"x4\" is not a token id"},
      {"1,2\n\n1.5", "line 3: \"1.5\" is not a token id"},
      {"-1", "line 1: \"-1\" is not a token id"},
      {"99999999999999999999", "line 1: \"99999999999999999999\" is not a token id"},
      {"4294967296", "from 0 to 4294967295"},
      {std::string("\0\x1b[31m\xff", 7), "line 1: \"\\u0000\\u001b[31m\\ufffd\" is not"},
      {"[1, 2", "line 1: not valid JSON"},
      {"[1, -2]", "line 1: \"-2\" is not a token id"},
      {"[1, 2.0]", "line 1: \"2.0\" is not a token id"},
      {"[4294967296]", "line 1: \"4294967296\" is not a token id"},
      {"[[1, 2], [3]]", "line 1: \"[1,2]\" is not a token id"},
      {"[1]\n[99999999999999999999]", "line 2: \"1e+20\" is not a token id"},
      {"{\"length\": 3}",
       "line 1: none of the fields ids, input_ids, token_ids, tokens holds an array of token ids, nor `text` "
       "a string"},
      {"{\"ids\": [1], \"tokens\": [1]}", "line 1: more than one"},
      {std::string(100, '[') + std::string(100, ']'), "line 1: nested deeper"}};
  for (const auto& [content, message] : cases)
    EXPECT_NE(error_of(content).find(message), std::string::npos) << content << ": " << error_of(content);
}

TEST(Documents, TextIsEncodedAsItsModelWantsIt) {
  const TextModel model(test::storyteller());
  const std::string text = "Once upon\n a time <|im_end|>\n";
  const Json line(text);
  const test::TempFolder temp;
  test::write_file(temp / "one.txt", text);
  test::write_file(temp / "lines.jsonl", line.dump() + "\n{\"tokens\": 3, \"text\": " + line.dump() +
                                             "}\n{\"text\": \"\", \"ids\": [5, 6]}\n1,2\n\"\"\n");
  for (const Markers markers : {Markers::Recognised, Markers::AsText}) {
    const DocumentOptions options{.package = test::storyteller(), .markers = markers};
    const Documents one = read_documents(temp / "one.txt", options);
    ASSERT_EQ(one.list.size(), 1u);
    EXPECT_EQ(one.list[0].tokens, model.encode_text(text, markers));
    EXPECT_EQ(one.n_texts, 1u);
    const Documents lines = read_documents(temp / "lines.jsonl", options);
    ASSERT_EQ(lines.list.size(), 5u);
    EXPECT_EQ(lines.list[0].tokens, model.encode_text(text, markers));
    EXPECT_EQ(lines.list[1].tokens, model.encode_text(text, markers));
    EXPECT_EQ(lines.list[2].tokens, (Ids{5, 6}));
    EXPECT_EQ(lines.list[3].tokens, (Ids{1, 2}));
    EXPECT_EQ(lines.list[4].tokens, model.encode_text("", markers));
    EXPECT_EQ(lines.n_texts, 3u);
  }
  EXPECT_NE(model.encode_text(text, Markers::Recognised), model.encode_text(text, Markers::AsText));
  const Documents cut = read_documents(
      temp / "lines.jsonl", {.most_tokens = 9, .most_per_document = 4, .package = test::storyteller()});
  ASSERT_EQ(cut.list.size(), 2u);  // the single token that is left would not be predicted
  EXPECT_EQ(cut.list[0].tokens.size(), 4u);
}

TEST(Documents, TextThatCannotBeReadIsRefused) {
  for (const char* content : {"\"Once upon\"", "{\"text\": \"Once upon a time\", \"tokens\": 4}"}) {
    EXPECT_NE(error_of(content).find("line 1: \"Once upon"), std::string::npos) << error_of(content);
    EXPECT_NE(error_of(content).find("is text, and there is no tokenizer for it"), std::string::npos);
  }
  for (const char* content : {"Once upon a time", "[\"Once\", \"upon\"]"})
    EXPECT_NE(error_of(content).find("line 1: \"Once\" is not a token id"), std::string::npos)
        << error_of(content);
  const test::TempFolder temp;
  test::write_file(temp / "bad.txt", "good \xff");
  test::write_file(temp / "empty.txt", "");
  const DocumentOptions options{.package = test::storyteller()};
  for (const auto& [name, message] :
       {std::pair("bad.txt", "not UTF-8 at byte 5"), std::pair("empty.txt", "no token ids and no text")}) {
    try {
      read_documents(temp / name, options);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace moeflux
