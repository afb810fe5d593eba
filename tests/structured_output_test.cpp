// A trained model held to random JSON schemas: whatever it writes, at a temperature at which it writes
// anything, comes to an end and is a document that its schema allows.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "gen/generate.h"
#include "gen/text_model.h"
#include "support/random_schemas.h"
#include "support/support.h"
#include "text/json_schema.h"

namespace moeflux {
namespace {

#ifdef MOEFLUX_SANITIZED
constexpr size_t kSchemas = 20;  // of each part: the model is slow there
#else
constexpr size_t kSchemas = 250;
#endif
constexpr size_t kFreeTokens = 150;  // after which a document is brought to its end

class Writer {
 public:
  Writer()
      : engine_(test::storyteller(), options()),
        model_(test::storyteller()),
        vocabulary_(model_.mask_vocabulary()),
        prompt_(model_.encode_text("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n",
                                   Markers::Recognised)) {}

  // What it writes; nothing where it did not come to an end of its own.
  std::optional<std::string> write(std::shared_ptr<const Grammar> grammar, uint64_t seed) {
    TokenMasker masker(std::move(grammar), vocabulary_);
    GrammarState state = masker.start();
    std::vector<uint64_t> mask(vocabulary_->n_words());
    std::string text;
    size_t n_tokens = 0;
    GenerateOptions o;
    o.sampler.temperature = 1.5;
    o.sampler.seed = seed;
    o.stop_tokens = model_.stop_tokens();
    o.mask = [&] {
      n_tokens < kFreeTokens ? masker.fill(state, mask) : masker.fill_to_end(state, mask);
      return std::span<const uint64_t>(mask);
    };
    const Generated got = generate(engine_, *engine_.make_sequence(), prompt_, o, [&](const Sample& sample) {
      EXPECT_TRUE(masker.advance(state, sample.token));
      text += vocabulary_->bytes(sample.token);
      ++n_tokens;
      return Next::Continue;
    });
    if (got.finish != FinishReason::Stop || !got.stop_token) return {};
    if (n_tokens <= kFreeTokens) ++n_free;
    return text;
  }

  size_t n_free = 0;  // documents that the model ended itself

 private:
  static EngineOptions options() {
    EngineOptions o;
    o.ctx = 1024;
    o.threads = 1;
    return o;
  }

  Engine engine_;
  TextModel model_;
  std::shared_ptr<const MaskVocabulary> vocabulary_;
  std::vector<Token> prompt_;
};

class StructuredOutput : public testing::TestWithParam<uint32_t> {};  // parts of the work, for several cores

TEST_P(StructuredOutput, EveryDocumentOfATrainedModelSatisfiesItsSchema) {
  Writer writer;
  std::set<std::string> different;
  size_t n_refused = 0, n_schemas = 0;
  for (uint32_t seed = 100'000 * GetParam(); n_schemas < kSchemas; ++seed) {
    const OrderedJson schema = test::random_schema(seed);
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = std::make_shared<Grammar>(compile_json_schema(schema.dump()));
    } catch (const Error&) {
      ++n_refused;  // what it cannot express, or what nothing satisfies
      continue;
    }
    ++n_schemas;
    const std::optional<std::string> text = writer.write(grammar, seed);
    ASSERT_TRUE(text) << seed << " " << schema.dump();
    ASSERT_TRUE(Json::accept(*text)) << seed << " " << schema.dump() << "\n" << *text;
    ASSERT_TRUE(test::satisfies(Json(schema), Json::parse(*text))) << seed << " " << schema.dump() << "\n"
                                                                   << *text;
    different.insert(*text);
  }
  EXPECT_LT(n_refused, kSchemas / 5);
  EXPECT_GT(different.size(), kSchemas / 2);
  EXPECT_GT(writer.n_free, kSchemas / 2);
  EXPECT_LT(writer.n_free, kSchemas);
  RecordProperty("ended by the model", static_cast<int>(writer.n_free));
}

INSTANTIATE_TEST_SUITE_P(Parts, StructuredOutput, testing::Values(1, 2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace moeflux
