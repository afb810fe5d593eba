// Every family and every published weight format against the reference's outputs.
#include <gtest/gtest.h>

#include "convert/convert.h"
#include "convert/synth.h"
#include "gen/verify.h"
#include "support/support.h"

namespace moeflux {
namespace {

EngineOptions exact() {
  EngineOptions o;
  o.precision = Precision::Exact;
  return o;
}

void expect_all_pass(const std::vector<VerifyItem>& items) {
  EXPECT_GE(items.size(), 10u);
  for (const VerifyItem& i : items)
    EXPECT_TRUE(i.pass()) << i.name << ": " << i.error << " > " << i.bound << " " << i.note;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, SyntheticCheckpointEqualsTheReference) {
  const fs::path golden = test::data_folder() / "goldens" / GetParam() / "golden.safetensors";
  expect_all_pass(verify_golden(test::golden_package(GetParam()), exact(), golden, 0));
}

TEST_P(Golden, PrefillHasTheSameBitsForEveryChunk) {
  std::vector<Token> tokens;
  for (Token t = 0; t < 150; ++t) tokens.push_back(t * 37 % 500);
  std::vector<std::vector<float>> logits;
  for (const uint64_t chunk : {1, 7, 64, 150}) {
    EngineOptions o = exact();
    o.chunk = chunk;
    o.ctx = 160;
    Engine engine(test::golden_package(GetParam()), o);
    const auto sequence = engine.make_sequence();
    logits.push_back(engine.eval(*sequence, tokens, 3));
  }
  for (size_t i = 1; i < logits.size(); ++i) EXPECT_EQ(logits[i], logits[0]) << "chunk " << i;
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::ValuesIn(test::golden_families()),
                         [](const auto& test) { return test.param; });

// Shapes that no published model has: tied embeddings, odd head counts and K, dense layers in between, one
// group, two shared experts, widths that no tile divides, older and absent config keys.
class Variant : public testing::TestWithParam<std::string> {};

TEST_P(Variant, EqualsTheReference) {
  const fs::path source = test::data_folder() / "variants" / GetParam();
  const test::TempFolder temp;
  write_synthetic_checkpoint(source, temp / "checkpoint", {});
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  convert_package(open_source(temp / "checkpoint", temp / "package", false, true), temp / "package", options);
  expect_all_pass(verify_golden(temp / "package", exact(), source / "golden.safetensors", 0));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Variant, testing::ValuesIn(test::folders_of("variants")),
                         [](const auto& test) { return test.param; });

class QuantisedGolden : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedGolden, KeptWeightsEqualTheReference) {
  const fs::path source = test::data_folder() / "quant" / GetParam();
  const test::TempFolder temp;
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  const ConvertResult r =
      convert_package(open_source(source, temp / "package", false, true), temp / "package", options);
  EXPECT_TRUE(r.manifest.error.empty());  // nothing was rounded
  expect_all_pass(verify_golden(temp / "package", exact(), source / "golden.safetensors", 0));
}

TEST_P(QuantisedGolden, FastPrecisionKeepsItsBoundStageByStage) {
  const fs::path source = test::data_folder() / "quant" / GetParam();
  const test::TempFolder temp;
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  convert_package(open_source(source, temp / "package", false, true), temp / "package", options);
  const EngineOptions fast;
  const auto items = verify_golden(temp / "package", fast, source / "golden.safetensors", 0);
  expect_all_pass(items);
  for (const VerifyItem& i : items) EXPECT_LE(i.bound, kFastBound) << i.name;
}

TEST_P(QuantisedGolden,
       NarrowedWeightsRunAndCheck) {  // whatever a source is coded in, the default options work
  const test::TempFolder temp;
  convert_package(open_source(test::data_folder() / "quant" / GetParam(), temp / "package", false, false),
                  temp / "package", {});
  EXPECT_EQ(test::run_program({"inspect", temp / "package", "--check"}).exit_code, 0);
  EXPECT_EQ(test::run_program({"run", temp / "package", "--tokens", "1,2", "-n", "2"}).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, QuantisedGolden, testing::ValuesIn(test::folders_of("quant")),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace moeflux
