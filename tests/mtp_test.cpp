// The multi-token-prediction layer: its mathematics against recorded values, and that guesses made with it
// change the speed of a text, never the text.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "convert/convert.h"
#include "gen/generate.h"
#include "gen/mtp_draft.h"
#include "support/checkpoint_builder.h"
#include "support/engines.h"

namespace moeflux {
namespace {

constexpr double kMtpBound = 1e-3;  // as for other outputs of models with delta nets

EngineOptions mtp_options(const std::string& backend, Precision precision) {
  EngineOptions o;
  o.backend = backend;
  o.precision = precision;
  o.ctx = 256;
  return o;
}

template <class T>
std::vector<T> values_of(const test::RawTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
  return most;
}

struct MtpRows {
  std::vector<float> logits, hidden;
};

// Steps of at most `chunk` tokens; the logits of all of them.
MtpRows evaluate_mtp(Engine& engine, Sequence& sequence, std::span<const Token> tokens,
                     std::span<const float> hidden, size_t chunk) {
  const size_t d = engine.config().d_model, vocab = engine.config().n_vocab;
  MtpRows out{std::vector<float>(tokens.size() * vocab), std::vector<float>(tokens.size() * d)};
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const Slice slice{&sequence, 0, n};
    std::vector<uint32_t> rows(n);
    for (uint32_t i = 0; i < n; ++i) rows[i] = i;
    engine.step({tokens.subspan(at, n),
                 {&slice, 1},
                 rows,
                 hidden.subspan(at * d, n * d),
                 std::span(out.hidden).subspan(at * d, n * d)},
                std::span(out.logits).subspan(at * vocab, n * vocab));
  }
  return out;
}

class Mtp : public testing::TestWithParam<std::string> {
 protected:
  Mtp() {
    auto golden = test::read_safetensors(test::data_folder() / "mtp" / GetParam() / "golden.safetensors");
    for (const int32_t id : values_of<int32_t>(golden.at("input_ids")))
      ids_.push_back(static_cast<Token>(id));
    for (const int32_t id : values_of<int32_t>(golden.at("chain_ids")))
      chain_.push_back(static_cast<Token>(id));
    logits_ = values_of<float>(golden.at("logits"));
    hidden_ = values_of<float>(golden.at("hidden"));
    chain_logits_ = values_of<float>(golden.at("chain_logits"));
  }
  std::span<const Token> evaluated() const { return std::span(ids_).first(ids_.size() - 1); }
  std::span<const Token> following() const { return std::span(ids_).subspan(1); }

  std::vector<Token> ids_, chain_;
  std::vector<float> logits_, hidden_, chain_logits_;
};

TEST_P(Mtp, EqualsTheReference) {
  for (const std::string& backend : test::with_gpu({"cpu", "cpu-ref"})) {
    Engine engine(test::mtp_package(GetParam()), mtp_options(backend, Precision::Exact));
    const size_t d = engine.config().d_model, vocab = engine.config().n_vocab;
    const auto sequence = engine.make_sequence(), own = engine.make_mtp_sequence();
    std::vector<float> hidden;
    const std::vector<float> plain = engine.eval(*sequence, evaluated());
    const auto again = engine.make_sequence();
    EXPECT_EQ(engine.eval(*again, evaluated(), 1, {}, &hidden), plain) << backend;  // looking changes nothing
    EXPECT_LT(largest_difference(std::span(hidden).last(d), hidden_), kMtpBound) << backend;

    MtpRows rows = evaluate_mtp(engine, *own, following(), hidden, engine.options().chunk);
    EXPECT_LT(largest_difference(std::span(rows.logits).last(logits_.size()), logits_), kMtpBound) << backend;
    for (size_t i = 0; i + 1 < chain_.size(); ++i) {
      rows = evaluate_mtp(engine, *own, {&chain_[i], 1},
                          std::vector(rows.hidden.end() - d, rows.hidden.end()), 1);
      EXPECT_LT(largest_difference(rows.logits, std::span(chain_logits_).subspan(i * vocab, vocab)),
                kMtpBound)
          << backend << ", guess " << i + 1;
    }
  }
}

TEST_P(Mtp, HasTheSameBitsForEveryChunkAndCache) {
  for (const auto& [backend, precision] :
       {std::pair("cpu", Precision::Exact), std::pair("cpu", Precision::Fast),
        std::pair("cuda", Precision::Exact)}) {
    if (backend == std::string("cuda") && test::with_gpu({}).empty()) continue;
    MtpRows whole;
    for (const uint64_t chunk : {512, 1, 7}) {
      EngineOptions o = mtp_options(backend, precision);
      o.chunk = chunk;
      if (chunk == 7) o.ram = ExpertStore::least_budget(Package(test::mtp_package(GetParam())).manifest());
      if (chunk == 7 && o.backend == "cuda") o.vram = o.ram;
      Engine engine(test::mtp_package(GetParam()), o);
      const auto sequence = engine.make_sequence(), own = engine.make_mtp_sequence();
      std::vector<float> hidden;
      engine.eval(*sequence, evaluated(), 1, {}, &hidden);
      const MtpRows rows = evaluate_mtp(engine, *own, following(), hidden, chunk);
      if (chunk == 512) whole = rows;
      EXPECT_EQ(rows.logits, whole.logits) << backend << chunk;
      EXPECT_EQ(rows.hidden, whole.hidden) << backend << chunk;
    }
  }
}

TEST_P(Mtp, GuessesGoOnFromGuessesAndAreForgotten) {
  for (const auto& [backend, chunk] : {std::pair("cpu", 512), std::pair("cpu", 5), std::pair("cuda", 5)}) {
    if (backend == std::string("cuda") && test::with_gpu({}).empty()) continue;
    EngineOptions o = mtp_options(backend, Precision::Exact);
    o.chunk = static_cast<uint64_t>(chunk);
    Engine engine(test::mtp_package(GetParam()), o);
    const size_t d = engine.config().d_model;
    const std::span<const Token> tokens = evaluated();
    std::vector<float> hidden;
    const auto sequence = engine.make_sequence();
    engine.eval(*sequence, tokens, 1, {}, &hidden);
    const auto part = [&](size_t first, size_t n) { return std::span(hidden).subspan(first * d, n * d); };

    MtpDraft whole(engine, engine.make_mtp_sequence());
    whole.read(tokens, hidden);
    EXPECT_EQ(whole.guess(ids_.back(), 4), chain_);
    // In pieces, with guesses in between that came to nothing, and with a long wait.
    MtpDraft pieces(engine, engine.make_mtp_sequence());
    pieces.read(tokens.first(3), part(0, 3));
    pieces.guess(tokens[3], 3);
    pieces.read(tokens.subspan(3, 1), part(3, 1));
    pieces.guess(tokens[4], 1);
    pieces.read(tokens.subspan(4, 2), part(4, 2));
    for (size_t i = 6; i < tokens.size(); ++i) pieces.read(tokens.subspan(i, 1), part(i, 1));
    EXPECT_EQ(pieces.guess(ids_.back(), 4), chain_);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Mtp, testing::ValuesIn(test::folders_of("mtp")),
                         [](const auto& test) { return test.param; });

// Random weights guess nothing right. Here the layers of the model add little to the embedding, and the
// multi-token-prediction layer looks at the embedding alone: mostly both then say the same, and the text
// still depends on the state.
fs::path guessing_package(const test::TempFolder& temp, const std::string& family) {
  auto tensors = test::read_safetensors(test::mtp_checkpoint(family) / "model.safetensors");
  for (auto& [name, tensor] : tensors) {
    auto* values = reinterpret_cast<uint16_t*>(tensor.bytes.data());
    const size_t n = tensor.bytes.size() / 2;
    const auto ends = [&name = name](const char* end) { return name.ends_with(end); };
    if (ends("o_proj.weight") || ends("out_proj.weight") || ends("down_proj.weight") || ends("down_proj"))
      for (size_t i = 0; i < n; ++i) values[i] = float_to_bf16(bf16_to_float(values[i]) / 16);
    if (name.starts_with("mtp.") && ends("norm.weight")) tensor.bytes.assign(tensor.bytes.size(), '\0');
    if (ends("pre_fc_norm_embedding.weight") || ends("model.norm.weight"))
      tensor.bytes.assign(tensor.bytes.size(), '\0');
    if (name == "mtp.fc.weight")
      for (size_t i = 0; i < n; ++i)
        values[i] = float_to_bf16(i / tensor.shape[1] == i % tensor.shape[1] ? 1.0f : 0.0f);
  }
  fs::create_directories(temp / "checkpoint");
  fs::copy(test::mtp_checkpoint(family) / "config.json", temp / "checkpoint");
  test::write_safetensors(temp / "checkpoint/model.safetensors", tensors);
  convert_package(open_source(temp / "checkpoint", temp / "package", true, false), temp / "package",
                  {.mtp = true});
  return temp / "package";
}

Generated continued(Engine& engine, Sequence& sequence, GenerateOptions options, size_t draft,
                    DraftSource from) {
  std::vector<Token> prompt, earlier;
  for (size_t i = 0; i < 90; ++i) prompt.push_back(static_cast<Token>((i * 37 + 5) % 400));
  options.draft = draft;
  options.draft_from = from;
  Generated all = generate(engine, sequence, prompt, options);
  // A second prompt after it: of what came before, the layer knows nothing.
  earlier = test::joined(prompt, all.tokens);
  earlier.resize(sequence.position());
  const Generated more = generate(engine, sequence, std::span(prompt).first(5), options, {}, earlier);
  all.tokens.insert(all.tokens.end(), more.tokens.begin(), more.tokens.end());
  all.drafts.guessed += more.drafts.guessed;
  all.drafts.right += more.drafts.right;
  return all;
}

TEST_P(Mtp, TheTextIsTheOneWithoutGuesses) {
  const test::TempFolder temp;
  const fs::path package = guessing_package(temp, GetParam());
  const uint64_t least = ExpertStore::least_budget(Package(package).manifest()),
                 all = Package(package).manifest().expert_bytes();
  for (const uint64_t ram : {all, all / 3, least})
    for (const Precision precision : {Precision::Exact, Precision::Fast}) {
      if (precision == Precision::Exact && ram != all) continue;
      EngineOptions o = mtp_options("cpu", precision);
      o.ram = ram;
      o.chunk = ram == all ? 512 : 24;
      Engine engine(package, o);
      uint64_t guessed = 0, right = 0;
      for (const float temperature : {0.0f, 0.6f}) {
        GenerateOptions options;
        options.sampler.temperature = temperature;
        options.sampler.seed = 11;
        options.max_tokens = 60;
        const auto plain = engine.make_sequence();
        const Generated want = continued(engine, *plain, options, 0, DraftSource::Auto);
        for (const size_t draft : {1, 4, 12}) {
          const auto guessing = engine.make_sequence();
          const Generated got = continued(engine, *guessing, options, draft, DraftSource::Auto);
          ASSERT_EQ(got.tokens, want.tokens) << "draft of " << draft << " at temperature " << temperature;
          EXPECT_EQ(guessing->position(), plain->position());
          EXPECT_EQ(got.drafts.source, DraftSource::Mtp);
          guessed += got.drafts.guessed;
          right += got.drafts.right;
        }
      }
      EXPECT_GT(right, 10u);
      EXPECT_GT(guessed, right);
    }
}

TEST_P(Mtp, AGpuMakesTheTextWithoutGuesses) {
  if (test::with_gpu({}).empty()) GTEST_SKIP() << "there is no GPU";
  const test::TempFolder temp;
  const fs::path package = guessing_package(temp, GetParam());
  const uint64_t all = Package(package).manifest().expert_bytes();
  for (const uint64_t vram : {all, all / 3}) {
    EngineOptions o = mtp_options("cuda", Precision::Exact);
    o.vram = vram;
    Engine engine(package, o);
    GenerateOptions options;
    options.sampler.temperature = 0;
    options.max_tokens = 60;
    const auto plain = engine.make_sequence();
    const Generated want = continued(engine, *plain, options, 0, DraftSource::Auto);
    uint64_t guessed = 0, right = 0;
    for (const size_t draft : {1, 2, 12}) {
      const auto guessing = engine.make_sequence();
      const Generated got = continued(engine, *guessing, options, draft, DraftSource::Mtp);
      ASSERT_EQ(got.tokens, want.tokens) << "draft of " << draft;
      EXPECT_EQ(guessing->position(), plain->position());
      guessed += got.drafts.guessed;
      right += got.drafts.right;
    }
    EXPECT_GT(right, 10u);
    EXPECT_GT(guessed, right);
  }
}

TEST_P(Mtp, AStateThatCannotGoBackIsGivenNoGuesses) {
  Engine engine(test::mtp_package(GetParam()), mtp_options("cpu-ref", Precision::Exact));
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = 20;
  const auto plain = engine.make_sequence(), other = engine.make_sequence();
  const std::vector<Token> prompt{1, 2, 3};
  const Generated want = generate(engine, *plain, prompt, options);
  options.draft = 4;
  options.draft_from = DraftSource::Mtp;
  const Generated got = generate(engine, *other, prompt, options);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.drafts.guessed, 0u);
  EXPECT_TRUE(got.drafts.barred);
}

// The layer of another family, with latent attention: here the reference's state can go back as well.
TEST(MtpOfDeepSeek, TheTextIsTheOneWithoutGuesses) {
  const test::TempFolder temp;
  convert_package(open_source(test::data_folder() / "quant/deepseek_v3_fp8", temp / "pk", true, false),
                  temp / "pk", {.mtp = true});
  for (const std::string& backend : test::with_gpu({"cpu", "cpu-ref"})) {
    Engine engine(temp / "pk", mtp_options(backend, Precision::Exact));
    GenerateOptions options;
    options.sampler.temperature = 0;
    options.max_tokens = 24;
    const auto plain = engine.make_sequence(), guessing = engine.make_sequence();
    const std::vector<Token> prompt{5, 6, 7, 8};
    const Generated want = generate(engine, *plain, prompt, options);
    options.draft = 3;
    options.draft_from = DraftSource::Mtp;
    const Generated got = generate(engine, *guessing, prompt, options);
    EXPECT_EQ(got.tokens, want.tokens) << backend;
    EXPECT_GT(got.drafts.guessed, 0u) << backend;
    EXPECT_EQ(got.drafts.source, DraftSource::Mtp);
  }
}

TEST(MtpOptions, WhatCannotBeIsRefused) {
  Engine engine(test::golden_package("qwen3_next"), mtp_options("cpu", Precision::Fast));
  EXPECT_FALSE(engine.has_mtp());
  EXPECT_EQ(engine.make_mtp_sequence(), nullptr);
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = 4;
  options.draft = 2;
  const std::vector<Token> prompt{1, 2, 3};
  const auto sequence = engine.make_sequence();
  EXPECT_EQ(generate(engine, *sequence, prompt, options).drafts.source, DraftSource::Ngram);
  options.draft_from = DraftSource::Mtp;
  const auto other = engine.make_sequence();
  try {
    generate(engine, *other, prompt, options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Unsupported);
    EXPECT_NE(std::string(e.what()).find("convert --mtp"), std::string::npos) << e.what();
  }
  EXPECT_EQ(other->position(), 0u);
}

TEST(MtpOptions, SyntheticPackagesMayHaveTheLayer) {
  const test::TempFolder temp;
  const fs::path source = test::data_folder() / "goldens/qwen3_next";
  ASSERT_EQ(test::run_program({"synth", source, temp / "pk", "--package", "--mtp"}).exit_code, 0);
  Engine engine(temp / "pk", mtp_options("cpu", Precision::Fast));
  EXPECT_TRUE(engine.has_mtp());
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = 12;
  options.draft = 2;
  const auto sequence = engine.make_sequence();
  EXPECT_GT(generate(engine, *sequence, std::vector<Token>{1, 2, 3}, options).drafts.guessed, 0u);
  EXPECT_EQ(test::run_program({"synth", source, temp / "checkpoint", "--mtp"}).exit_code,
            2);  // packages only
}

TEST(MtpOptions, AsTheProgramTakesThem) {
  const auto run = [](const fs::path& package, std::vector<std::string> more) {
    std::vector<std::string> args = {"run", package, "--tokens", "1,2,3", "-n", "40"};
    args.insert(args.end(), more.begin(), more.end());
    return test::run_program(args);
  };
  const fs::path &with_layer = test::mtp_package("qwen3_next"), &without = test::golden_package("qwen3_next");
  const test::ProgramResult plain = run(with_layer, {}),
                            guessing = run(with_layer, {"--draft", "3", "--draft-from", "mtp"});
  ASSERT_EQ(guessing.exit_code, 0) << guessing.err;
  EXPECT_EQ(guessing.out, plain.out);
  EXPECT_NE(guessing.err.find("guesses of the multi-token-prediction layer right"), std::string::npos)
      << guessing.err;
  const test::ProgramResult json = run(with_layer, {"--draft", "3", "--json"});
  EXPECT_EQ(Json::parse(json.out).at("drafts").at("from"), "mtp") << json.out;
  const test::ProgramResult barred = run(with_layer, {"--draft", "3", "--backend", "cpu-ref"});
  EXPECT_EQ(barred.exit_code, 0);
  EXPECT_NE(barred.err.find("nothing guessed"), std::string::npos) << barred.err;
  const test::ProgramResult none = run(without, {"--draft", "3", "--draft-from", "mtp"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("no multi-token-prediction layer"), std::string::npos) << none.err;
  EXPECT_EQ(run(without, {"--draft", "3"}).out, run(without, {}).out);
  EXPECT_EQ(run(without, {"--draft", "3", "--draft-from", "somewhere"}).exit_code, 2);
}

}  // namespace
}  // namespace moeflux
