#include "gen/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/support.h"

namespace moeflux {
namespace {

using Ids = std::vector<Token>;

Documents read(const std::string& content, uint64_t most_tokens = UINT64_MAX) {
  const test::TempFolder temp;
  test::write_file(temp / "ids", content);
  return read_documents(temp / "ids", most_tokens);
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
      {"{\"length\": 3}", "line 1: none of the fields ids, input_ids, token_ids, tokens"},
      {"{\"ids\": [1], \"tokens\": [1]}", "line 1: more than one"},
      {std::string(100, '[') + std::string(100, ']'), "line 1: nested deeper"}};
  for (const auto& [content, message] : cases)
    EXPECT_NE(error_of(content).find(message), std::string::npos) << content << ": " << error_of(content);
}

TEST(Documents, TextIsRefusedForWantOfATokenizer) {
  for (const char* content : {"Once upon a time", "\"Once upon\"", "[\"Once\", \"upon\"]",
                              "{\"text\": \"Once upon a time\", \"tokens\": 4, \"mean_nll\": 3.2}"}) {
    const std::string error = error_of(content);
    EXPECT_NE(error.find("line 1"), std::string::npos) << error;
    EXPECT_NE(error.find("Once"), std::string::npos) << error;
    EXPECT_NE(error.find("text needs a tokenizer"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace moeflux
