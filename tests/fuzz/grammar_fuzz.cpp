// Grammars, schemas and patterns as an attacker would write them, and walks through their masks. Each input
// either is refused with an Error or gives masks that agree with single tokens and never lead to a dead end.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/json_schema.h"
#include "text/token_mask.h"

namespace moeflux {
namespace {

std::shared_ptr<const MaskVocabulary> make_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* word :
       {"\"",  "\":", "\",\"", "{\"",  "}}",           "]]",  "[[", "aaa",      "ab",   "abc", "((", "))",
        "123", "  ",  "null",  "true", "\u00e9\u00e9", "a\"", "1,", "[{\"a\":", "xyxy", "((x", "x))"})
    tokens.emplace_back(word);
  tokens.emplace_back("<end>");
  const auto end = static_cast<uint32_t>(tokens.size() - 1);
  return std::make_shared<MaskVocabulary>(std::move(tokens), std::vector<uint32_t>{},
                                          std::vector<uint32_t>{end});
}

// Which of the allowed tokens to take, from the input itself.
class Random {
 public:
  explicit Random(std::string_view seed) {
    for (const char c : seed) state_ = state_ * 31 + static_cast<uint8_t>(c);
  }
  uint32_t below(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_ = 1;
};

void walk(const std::shared_ptr<const Grammar>& grammar, std::string_view seed) {
  static const auto kVocabulary = make_vocabulary();
  TokenMasker masker(grammar, kVocabulary, size_t{1} << 20);
  Random random(seed);
  std::vector<uint64_t> mask(kVocabulary->n_words());
  GrammarState state = masker.start();
  for (int step = 0; step < 24; ++step) {
    const bool any = masker.fill(state, mask);
    check(any || (state.final() && !state.accepting()), "a state that is not finished has a way on");
    if (!any) return;
    std::vector<uint32_t> allowed;
    for (uint32_t token = 0; token < kVocabulary->size(); ++token) {
      const bool bit = (mask[token / 64] >> (token % 64)) & 1;
      if (bit) allowed.push_back(token);
      GrammarState next = state;
      if (token % 8 == static_cast<uint32_t>(step) % 8)
        check(masker.advance(next, token) == bit, "the mask says what single tokens say");
    }
    check(masker.advance(state, allowed[random.below(allowed.size())]), "an allowed token is taken");
  }
  std::vector<uint64_t> ending(mask.size());
  for (int step = 0; step < 8 && masker.fill(state, mask); ++step) {
    check(masker.fill_to_end(state, ending), "there is a way to the end");
    uint32_t token = 0;
    while (((ending[token / 64] >> (token % 64)) & 1) == 0) ++token;
    for (size_t i = 0; i < mask.size(); ++i)
      check((ending[i] & ~mask[i]) == 0, "the way to the end is among those that are allowed");
    check(masker.advance(state, token), "its tokens are taken");
  }
}

void try_one(std::string_view input) {
  const char kind = input[0];
  const std::string_view text = input.substr(1);
  try {
    Grammar grammar = kind % 2 ? Grammar::parse(text) : compile_json_schema(text);
    walk(std::make_shared<Grammar>(std::move(grammar)), text);
  } catch (const Error&) {
    return;  // refused, or too complex
  }
}

}  // namespace
}  // namespace moeflux

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) moeflux::try_one({reinterpret_cast<const char*>(data), size});
  return 0;
}
