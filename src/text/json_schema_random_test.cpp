// Random walks through the masks of random schemas: whatever a walk produces must be a document that its
// schema allows.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/json.h"
#include "support/random_schemas.h"
#include "text/json_schema.h"
#include "text/token_mask.h"

namespace moeflux {
namespace {

std::shared_ptr<const MaskVocabulary> random_vocabulary(std::mt19937& random) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const std::vector<std::string> parts = {
      "\"",   "\":", "\",",    ", ",     "{",  "}", "[",   "]",   "],", "},", "\\n",   "\\",
      "name", "a",   "z",      "ab",     "cd", "x", "\"a", "1",   "23", "-",  ".5",    "true",
      "null", " ",   "\u00fc", "\u20ac", "e",  ":", ": ",  "{\"", "[{", "}]", "\\u00", "0"};
  for (int i = 0; i < 300; ++i) {
    std::string token;
    for (size_t n = 1 + random() % 3; n > 0; --n) token += parts[random() % parts.size()];
    tokens.push_back(token);
  }
  tokens.push_back("<end>");
  return std::make_shared<MaskVocabulary>(tokens, std::vector<uint32_t>{},
                                          std::vector<uint32_t>{static_cast<uint32_t>(tokens.size() - 1)});
}

class Walker {
 public:
  Walker(TokenMasker& masker, uint32_t seed) : masker_(masker), random_(seed) {}

  // The text of a walk; nothing where it did not come to an end.
  std::optional<std::string> walk() {
    std::vector<uint64_t> mask(masker_.vocabulary().n_words());
    GrammarState state = masker_.start();
    std::string text;
    uint64_t left = UINT64_MAX;  // bytes, once it goes to its end
    for (int step = 0;; ++step) {
      const bool to_end = step >= 60;
      if (to_end) {
        EXPECT_LT(masker_.bytes_to_end(state), left) << text;
        left = masker_.bytes_to_end(state);
      }
      if (!(to_end ? masker_.fill_to_end(state, mask) : masker_.fill(state, mask))) return {};
      const uint32_t token = choose(mask, state);
      EXPECT_TRUE(masker_.advance(state, token));
      if (masker_.vocabulary().is_end(token)) return text;
      if (to_end && left == 0) return {};
      text += masker_.vocabulary().bytes(token);
    }
  }

 private:
  uint32_t choose(const std::vector<uint64_t>& mask, const GrammarState& state) {
    if (state.accepting() && random_() % 4 == 0) return masker_.vocabulary().ends()[0];
    std::vector<uint32_t> tokens;
    for (uint32_t t = 0; t < masker_.vocabulary().size(); ++t)
      if ((mask[t / 64] >> (t % 64)) & 1) tokens.push_back(t);
    return tokens[random_() % tokens.size()];
  }

  TokenMasker& masker_;
  std::mt19937 random_;
};

TEST(JsonSchemaRandom, WalksGiveValidDocuments) {
  constexpr uint32_t kSchemas = 1000;
  std::mt19937 random(11);
  const auto vocabulary = random_vocabulary(random);
  size_t n_documents = 0, n_refused = 0, n_impossible = 0;
  for (uint32_t seed = 1; seed <= kSchemas; ++seed) {
    const OrderedJson schema = test::random_schema(seed);
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = std::make_shared<Grammar>(compile_json_schema(schema.dump()));
    } catch (const Error& e) {
      ++(e.code == Errc::Unsupported ? n_refused : n_impossible);
      continue;
    }
    const Json plain(schema);
    TokenMasker masker(grammar, vocabulary);
    for (uint32_t i = 0; i < 3; ++i) {
      const std::optional<std::string> text = Walker(masker, seed * 10 + i).walk();
      ASSERT_TRUE(text) << seed << " " << schema.dump();
      ++n_documents;
      ASSERT_TRUE(Json::accept(*text)) << seed << " " << schema.dump() << "\n" << *text;
      ASSERT_TRUE(test::satisfies(plain, Json::parse(*text))) << seed << " " << schema.dump() << "\n"
                                                              << *text;
    }
  }
  EXPECT_GT(n_documents, 2500u);
  EXPECT_LT(n_refused + n_impossible, 100u);
  RecordProperty("documents", static_cast<int>(n_documents));
  RecordProperty("refused", static_cast<int>(n_refused));
  RecordProperty("impossible", static_cast<int>(n_impossible));
}

}  // namespace
}  // namespace moeflux
