// Every family and every published weight format against the reference's outputs.
#include <gtest/gtest.h>

#include "convert/convert.h"
#include "gen/verify.h"
#include "support/support.h"

namespace moeflux {
namespace {

EngineOptions with(const std::string& backend, Precision precision) {
  EngineOptions o;
  o.backend = backend;
  o.precision = precision;
  return o;
}

void expect_all_pass(const std::vector<VerifyItem>& items) {
  EXPECT_GE(items.size(), 6u);
  for (const VerifyItem& i : items)
    EXPECT_TRUE(i.pass()) << i.name << ": " << i.error << " > " << i.bound << " " << i.note;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, SyntheticCheckpointEqualsTheReference) {
  const fs::path golden = test::data_folder() / "goldens" / GetParam() / "golden.safetensors";
  for (const std::string& backend : runnable_backends())
    expect_all_pass(
        verify_golden(test::golden_package(GetParam()), with(backend, Precision::Exact), golden, 0));
}

std::vector<float> logits_of(const fs::path& package, EngineOptions o) {
  std::vector<Token> tokens;
  for (Token t = 0; t < 150; ++t) tokens.push_back(t * 37 % 500);
  o.ctx = 160;
  Engine engine(package, o);
  const auto sequence = engine.make_sequence();
  return engine.eval(*sequence, tokens, 3);
}

TEST_P(Golden, PrefillHasTheSameBitsForEveryChunk) {
  for (const auto& [backend, precision] :
       {std::pair("cpu", Precision::Exact), std::pair("cpu", Precision::Fast),
        std::pair("cpu-ref", Precision::Exact)}) {
    EngineOptions o = with(backend, precision);
    o.chunk = 150;
    const std::vector<float> whole = logits_of(test::golden_package(GetParam()), o);
    for (const uint64_t chunk : {1, 7, 64}) {
      if (o.backend == "cpu-ref" && chunk != 7) continue;  // slow, and plain enough
      o.chunk = chunk;
      EXPECT_EQ(logits_of(test::golden_package(GetParam()), o), whole) << backend << ", chunk " << chunk;
    }
  }
}

TEST_P(Golden, SameBitsForEveryThreadCountAndInstructionSetThreads) {
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    EngineOptions o = with("cpu", precision);
    o.threads = 1;
    const std::vector<float> one = logits_of(test::golden_package(GetParam()), o);
    for (const size_t threads : {2, 5}) {
      o.threads = threads;
      o.chunk = threads == 2 ? 512 : 40;
      EXPECT_EQ(logits_of(test::golden_package(GetParam()), o), one) << threads << " threads";
    }
    for (const std::string& isa : isa_names()) {
      if (isa == "generic" && GetParam() != "qwen3_5_moe")
        continue;  // slow; single operations are compared anyway
      o.isa = isa;
      EXPECT_EQ(logits_of(test::golden_package(GetParam()), o), one) << isa;
    }
  }
}

// Beyond one partition of positions, parts are computed side by side or one after the other, as threads
// allow.
TEST(LongContext, PartsGiveTheSameBitsForEveryThreadCountThreads) {
  for (const char* family : {"qwen3_moe", "qwen3_5_moe", "gpt_oss"}) {
    std::vector<Token> tokens;
    for (Token t = 0; t < kPartition + 80; ++t) tokens.push_back(t * 37 % 500);
    const auto last_logits = [&](EngineOptions o) {
      o.ctx = tokens.size();
      Engine engine(test::golden_package(family), o);
      const auto sequence = engine.make_sequence();
      const auto all = std::span(tokens);
      engine.eval(*sequence, all.first(tokens.size() - 1));
      return engine.eval(*sequence, all.last(1));
    };
    EngineOptions o = with("cpu", Precision::Exact);
    o.threads = 1;
    const std::vector<float> one = last_logits(o);
    o.threads = 5;
    EXPECT_EQ(last_logits(o), one) << family;
    const std::vector<float> want = last_logits(with("cpu-ref", Precision::Exact));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(one[i], want[i], 1e-4) << family;
  }
}

TEST_P(Golden, FewExpertSlotsChangeNothing) {
  EngineOptions o = with("cpu", Precision::Fast);
  const std::vector<float> all = logits_of(test::golden_package(GetParam()), o);
  o.ram = ExpertStore::least_budget(Package(test::golden_package(GetParam())).manifest());
  EXPECT_EQ(logits_of(test::golden_package(GetParam()), o), all);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::ValuesIn(test::golden_families()),
                         [](const auto& test) { return test.param; });

// Shapes that no published model has: tied embeddings, odd head counts and K, dense layers in between, one
// group, two shared experts, widths that no tile divides, older and absent config keys.
class Variant : public testing::TestWithParam<std::string> {};

TEST_P(Variant, EqualsTheReference) {
  const fs::path source = test::data_folder() / "variants" / GetParam();
  for (const std::string& backend : runnable_backends())
    expect_all_pass(verify_golden(test::variant_package(GetParam()), with(backend, Precision::Exact),
                                  source / "golden.safetensors", 0));
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
  for (const std::string& backend : runnable_backends())
    expect_all_pass(
        verify_golden(temp / "package", with(backend, Precision::Exact), source / "golden.safetensors", 0));
}

TEST_P(QuantisedGolden, FastPrecisionKeepsItsBoundStageByStage) {
  const fs::path source = test::data_folder() / "quant" / GetParam();
  const test::TempFolder temp;
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  convert_package(open_source(source, temp / "package", false, true), temp / "package", options);
  for (const std::string& backend : runnable_backends()) {
    const auto items =
        verify_golden(temp / "package", with(backend, Precision::Fast), source / "golden.safetensors", 0);
    expect_all_pass(items);
    for (const VerifyItem& i : items) EXPECT_LE(i.bound, kFastBound) << i.name;
  }
}

// Routed and shared experts are one contract: given the same input, every backend gives the same bits.
TEST_P(QuantisedGolden, ExpertsHaveTheSameBitsOnEveryBackend) {
  const test::TempFolder temp;
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  convert_package(open_source(test::data_folder() / "quant" / GetParam(), temp / "package", false, true),
                  temp / "package", options);
  for (const VerifyItem& i : verify_against(temp / "package", with("cpu", Precision::Fast),
                                            with("cpu-ref", Precision::Fast), {}, 0))
    if (i.name.ends_with("stage mlp") || i.name.ends_with("stage embed")) {
      EXPECT_EQ(i.error, 0) << i.name;
    }
}

TEST_P(QuantisedGolden, SmallerKvCachesStayClose) {
  const test::TempFolder temp;
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  convert_package(open_source(test::data_folder() / "quant" / GetParam(), temp / "package", false, true),
                  temp / "package", options);
  EngineOptions fast = with("cpu", Precision::Fast), exact = with("cpu-ref", Precision::Exact);
  for (const KvType kv : {KvType::F32, KvType::Q8}) {
    fast.kv = kv;
    expect_all_pass(verify_against(temp / "package", fast, exact, {}, 0));
  }
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
