// `perplexity`, from a file of ids to the printed figures, against sums that are worked out here another way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "convert/convert.h"
#include "convert/synth.h"
#include "gen/perplexity.h"
#include "support/checkpoint_builder.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;

constexpr uint64_t kCtx = 64;

EngineOptions options(Precision precision, uint64_t ctx = kCtx, uint64_t chunk = 512) {
  EngineOptions o;
  o.precision = precision;
  o.ctx = ctx;
  o.chunk = chunk;
  return o;
}

EngineOptions exact(uint64_t ctx = kCtx, uint64_t chunk = 512) {
  return options(Precision::Exact, ctx, chunk);
}

std::vector<Token> ids(size_t n, Token seed) {
  std::vector<Token> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<Token>((seed + i * i * 37 + i * 11) % 380));
  return out;
}

Documents documents(std::vector<std::vector<Token>> list) {
  Documents d{"test", {}};
  for (auto& tokens : list) d.list.push_back({d.list.size() + 1, std::move(tokens)});
  return d;
}

// Log-probabilities after each of the tokens, one token at a time, in another precision and by another
// formula.
std::vector<std::vector<long double>> log_probabilities(const fs::path& package, const EngineOptions& o,
                                                        const std::vector<Token>& tokens) {
  Engine engine(package, o);
  const auto sequence = engine.make_sequence();
  std::vector<std::vector<long double>> rows;
  for (const Token t : tokens) {
    const std::vector<float> logits = engine.eval(*sequence, {&t, 1});
    long double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<long double>(x));
    rows.emplace_back();
    for (const float x : logits) rows.back().push_back(x - std::log(sum));
  }
  return rows;
}

fs::path convert(const fs::path& source, const fs::path& package, WidthOptions width) {
  ConvertOptions o;
  o.width = width;
  convert_package(open_source(source, package, false, width.resident == Width::Keep), package, o);
  return package;
}

TEST(Perplexity, AverageHasTheTextbookError) {
  Average a;
  for (const double x : {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0}) a.add(x);
  EXPECT_DOUBLE_EQ(a.mean(), 5.0);
  EXPECT_DOUBLE_EQ(a.standard_error(), std::sqrt(32.0 / 7.0 / 8.0));
  EXPECT_EQ(a.largest(), 9.0);
  Average one;
  one.add(3);
  EXPECT_EQ(one.mean(), 3.0);
  EXPECT_TRUE(std::isnan(one.standard_error()));
}

TEST(Perplexity, EqualsASumOverLogitsOfSingleTokens) {
  const fs::path& package = test::golden_package("qwen3_next");
  const std::vector<std::vector<Token>> list = {ids(50, 1), ids(2, 7), ids(33, 5)};
  std::vector<long double> nll;
  for (const auto& tokens : list) {
    const auto rows = log_probabilities(package, exact(), tokens);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) nll.push_back(-rows[i][tokens[i + 1]]);
  }
  long double mean = 0, squares = 0;
  for (const long double x : nll) mean += x / nll.size();
  for (const long double x : nll) squares += (x - mean) * (x - mean);
  const long double error = std::sqrt(squares / (nll.size() - 1) / nll.size());

  for (const uint64_t chunk : {1, 7, 512}) {  // the bits of a prediction do not depend on the chunk
    PerplexityMeter meter({package, exact(kCtx, chunk)});
    uint64_t evaluated = 0;
    const PerplexityResult r = meter.measure(documents(list), [&](uint64_t n) { evaluated += n; });
    EXPECT_EQ(r.n_documents, 3u);
    EXPECT_EQ(r.nll.count(), 49u + 1 + 32);
    EXPECT_EQ(evaluated, r.nll.count());
    EXPECT_NEAR(r.nll.mean(), static_cast<double>(mean), 1e-12);
    EXPECT_NEAR(r.nll.standard_error(), static_cast<double>(error), 1e-12);
    EXPECT_NEAR(r.perplexity(), std::exp(static_cast<double>(mean)), 1e-9);
    EXPECT_FALSE(r.reference);
  }
}

TEST(Perplexity, AHeadOfZerosPredictsUniformly) {
  const TempFolder temp;
  fs::copy(test::golden_checkpoint("mixtral"), temp / "checkpoint");
  auto tensors = test::read_safetensors(temp / "checkpoint/model.safetensors");
  std::string& head = tensors.at("lm_head.weight").bytes;
  head.assign(head.size(), '\0');
  test::write_safetensors(temp / "checkpoint/model.safetensors", tensors);
  PerplexityMeter meter(
      {convert(temp / "checkpoint", temp / "package", {Width::Keep, Width::Keep, 64}), exact()});
  const PerplexityResult r = meter.measure(documents({ids(20, 3)}));
  EXPECT_NEAR(r.nll.mean(), std::log(512.0), 1e-14);
  EXPECT_NEAR(r.nll.standard_error(), 0, 1e-14);
  EXPECT_NEAR(r.perplexity(), 512, 1e-10);
}

TEST(Perplexity, LongDocumentsAreCutIntoWindowsThatPredictEveryTokenOnce) {
  const fs::path& package = test::golden_package("mixtral");
  const std::vector<Token> all = ids(24, 9);
  const auto part = [&](size_t first, size_t n) {
    return std::vector<Token>(all.begin() + static_cast<ptrdiff_t>(first),
                              all.begin() + static_cast<ptrdiff_t>(first + n));
  };
  PerplexityMeter cut({package, exact(9)}), whole({package, exact()});
  const PerplexityResult a = cut.measure(documents({all}));
  const PerplexityResult b = whole.measure(documents({part(0, 9), part(8, 9), part(16, 8)}));
  EXPECT_EQ(a.n_documents, 1u);
  EXPECT_EQ(a.nll.count(), 23u);
  EXPECT_EQ(b.nll.count(), 23u);
  EXPECT_EQ(a.nll.mean(), b.nll.mean());
  EXPECT_NE(a.nll.mean(), whole.measure(documents({all})).nll.mean());
  EXPECT_EQ(cut.measure(documents({part(0, 9)})).nll.count(), 8u);   // fits exactly
  EXPECT_EQ(cut.measure(documents({part(0, 10)})).nll.count(), 9u);  // one too many
  PerplexityMeter pairs({package, exact(2)});
  EXPECT_EQ(pairs.measure(documents({all})).nll.count(), 23u);
}

TEST(Perplexity, ShortDocumentsAreSkippedAndCounted) {
  PerplexityMeter meter({test::golden_package("mixtral"), exact()});
  const PerplexityResult r = meter.measure(documents({{}, {5}, {5, 6, 7}, {1}}));
  EXPECT_EQ(r.n_skipped, 3u);
  EXPECT_EQ(r.n_documents, 1u);
  EXPECT_EQ(r.nll.count(), 2u);
  EXPECT_THROW(meter.measure(documents({{}, {5}})), Error);
}

TEST(Perplexity, AModelDoesNotDivergeFromItself) {
  for (const char* family : {"qwen3_next", "deepseek_v3"}) {
    const fs::path& package = test::golden_package(family);
    PerplexityMeter meter({package, exact()}, {{package, exact(0, 3)}});  // its chunk changes nothing
    const PerplexityResult r = meter.measure(documents({ids(40, 2), ids(9, 4)}));
    ASSERT_TRUE(r.reference);
    EXPECT_EQ(r.reference->kl.count(), r.nll.count());
    EXPECT_EQ(r.reference->kl.mean(), 0.0);
    EXPECT_EQ(r.reference->kl.largest(), 0.0);
    EXPECT_EQ(r.reference->top_agreement(), 1.0);
    EXPECT_EQ(r.reference->all_routes().n_different, 0u);
    const ModelConfig& m = meter.engine().config();
    size_t sparse = 0;
    for (const LayerConfig& l : m.layers) sparse += l.sparse;
    EXPECT_EQ(r.reference->routes.size(), sparse);
    EXPECT_EQ(r.reference->all_routes().n_picks, sparse * m.moe.top_k * r.nll.count());
  }
}

TEST(Perplexity, DivergenceEqualsASumOverBothDistributions) {
  const fs::path& kept = test::golden_package("qwen3_moe");
  const TempFolder temp;
  const fs::path narrow =
      convert(test::golden_checkpoint("qwen3_moe"), temp / "q4", {Width::Q4, Width::Q4, 64});
  const std::vector<Token> tokens = ids(60, 6);
  const auto q = log_probabilities(narrow, exact(), tokens), p = log_probabilities(kept, exact(), tokens);
  const size_t n = tokens.size() - 1;
  long double mean = 0, largest = 0;
  size_t same = 0;
  for (size_t i = 0; i < n; ++i) {
    long double kl = 0;
    for (size_t v = 0; v < p[i].size(); ++v) kl += std::exp(p[i][v]) * (p[i][v] - q[i][v]);
    mean += kl / n;
    largest = std::max(largest, kl);
    same += std::ranges::max_element(p[i]) - p[i].begin() == std::ranges::max_element(q[i]) - q[i].begin();
  }
  PerplexityMeter meter({narrow, exact()}, {{kept, exact()}});
  const PerplexityResult r = meter.measure(documents({tokens}));
  EXPECT_GT(mean, 1e-4);
  EXPECT_LT(same, n);
  EXPECT_NEAR(r.reference->kl.mean(), static_cast<double>(mean), 1e-12);
  EXPECT_NEAR(r.reference->kl.largest(), static_cast<double>(largest), 1e-12);
  EXPECT_EQ(r.reference->n_same_top, same);
  EXPECT_GT(r.reference->all_routes().n_different, 0u);
  EXPECT_LT(r.reference->all_routes().n_different, r.reference->all_routes().n_picks / 2);
}

// End to end, where one flipped route changes all that follows; the stages by themselves are judged by the
// golden tests. The documents are arbitrary ids, each continued greedily by the model. With random weights
// the likeliest token leads by little, so that it changes far more often than in a trained model. Bounds are
// about twice what was measured.
TEST(Perplexity, FastPrecisionStaysCloseToExact) {
  struct Case {
    const char* name;
    double kl, disagreement, routes;
  };
  const Case cases[] = {{"qwen3_moe_mlx4", 1e-3, 0.12, 0.02},      // measured 5.0e-4, 5.8 %, 1.0 %
                        {"qwen3_5_moe_mlx4", 1.7e-2, 0.3, 0.06},   // 8.3e-3, 14.3 %, 3.0 %
                        {"deepseek_v3_mlx4", 2.4e-2, 0.25, 0.05},  // 1.2e-2, 12.7 %, 2.3 %
                        {"gpt_oss_mxfp4", 1.1e-3, 0.065, 0.008}};  // 5.4e-4, 3.2 %, 0.36 %
  for (const Case& c : cases) {
    const TempFolder temp;
    const fs::path package =
        convert(test::data_folder() / "quant" / c.name, temp / "package", {Width::Keep, Width::Keep, 64});
    std::vector<std::vector<Token>> list;
    Engine engine(package, exact());
    for (const Token seed : {1, 2, 3}) {
      list.push_back(ids(kCtx / 2, seed));
      const auto sequence = engine.make_sequence();
      const auto more = engine.generate_greedy(*sequence, list.back(), kCtx / 2);
      list.back().insert(list.back().end(), more.begin(), more.end());
    }
    PerplexityMeter meter({package, options(Precision::Fast)}, {{package, exact()}});
    const PerplexityResult r = meter.measure(documents(list));
    const LayerRoutes routes = r.reference->all_routes();
    const double differ = static_cast<double>(routes.n_different) / static_cast<double>(routes.n_picks);
    EXPECT_GT(r.reference->kl.mean(), 0) << c.name;
    EXPECT_LT(r.reference->kl.mean(), c.kl) << c.name;
    EXPECT_LT(1 - r.reference->top_agreement(), c.disagreement) << c.name;
    EXPECT_LT(differ, c.routes) << c.name;
  }
}

TEST(Perplexity, ModelsThatCannotBeComparedAreRefusedOrPartlyCompared) {
  const TempFolder temp;
  const auto changed = [&](const char* name, const char* key, int value) {
    fs::copy(test::data_folder() / "goldens/mixtral", temp / name, fs::copy_options::recursive);
    Json config = test::read_json(temp / name / "config.json");
    config[key] = value;
    test::write_file(temp / name / "config.json", config.dump());
    fs::remove(temp / name / "tensors.json");
    write_synthetic_checkpoint(temp / name, temp / (std::string(name) + "-checkpoint"), {});
    return convert(temp / (std::string(name) + "-checkpoint"), temp / (std::string(name) + "-package"),
                   {Width::Keep, Width::Keep, 64});
  };
  const fs::path& package = test::golden_package("mixtral");
  try {
    PerplexityMeter meter({package, exact()}, {{changed("vocabulary", "vocab_size", 500), exact()}});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("vocabulary of 512"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("500"), std::string::npos) << e.what();
  }
  const fs::path other = changed("experts", "num_experts_per_tok", 1);
  PerplexityMeter meter({package, exact()}, {{other, exact()}});
  const PerplexityResult r = meter.measure(documents({ids(9, 1)}));
  EXPECT_GT(r.reference->kl.mean(), 0);
  EXPECT_TRUE(r.reference->routes.empty());
  test::write_file(temp / "ids", "1,2,3\n");
  const auto p = run_program({"perplexity", package, temp / "ids", "--reference", other, "--json"});
  ASSERT_EQ(p.exit_code, 0) << p.err;
  EXPECT_TRUE(parse_json(p.out, "json")["reference"]["router_picks"].is_null());
  EXPECT_NE(p.err.find("do not have the same experts"), std::string::npos) << p.err;
}

TEST(Perplexity, MemoryIsPlannedForALogitOfEveryTokenAndForBothModels) {
  const fs::path& package = test::golden_package("mixtral");
  const auto plan = [&](uint64_t chunk) {
    return PerplexityMeter({package, exact(kCtx, chunk)}).engine().plan();
  };
  Engine engine(package, exact(kCtx, 32));
  // A row of 512 logits, and the normed vector of 128 that it comes from: floats, int8 and scales.
  EXPECT_EQ(plan(32).overhead_bytes - engine.plan().overhead_bytes, 31 * (512 * 4 + 128 * 4 + 128 + 2 * 32));
  EXPECT_EQ(plan(4096).overhead_bytes, plan(kCtx).overhead_bytes);  // no step is longer than the context

  EngineOptions capped = exact();
  capped.max_memory = plan(512).host_bytes;  // enough for one with all its experts, too little for two
  EXPECT_NO_THROW(PerplexityMeter({package, capped}));
  EXPECT_THROW(PerplexityMeter({package, capped}, {{package, capped}}), Error);
  capped.max_memory = 2 * *capped.max_memory;
  EXPECT_NO_THROW(PerplexityMeter({package, capped}, {{package, capped}}));
  capped.ram = plan(512).ram_slot_bytes;
  EXPECT_NO_THROW(PerplexityMeter({package, capped}, {{package, capped}}));
  capped.max_memory = *capped.max_memory - 1;
  EXPECT_THROW(PerplexityMeter({package, capped}, {{package, capped}}), Error);
}

TEST(Perplexity, TheProgramPrintsItsFiguresToStdoutOnly) {
  const TempFolder temp;
  test::write_file(temp / "ids.jsonl", "{\"text\": \"\", \"ids\": [1, 2, 3, 4, 5]}\n[7]\n[9, 8, 7]\n");
  const fs::path& package = test::golden_package("qwen3_moe");
  PerplexityMeter meter({package, options(Precision::Fast)}, {{package, exact()}});
  const PerplexityResult want = meter.measure(documents({{1, 2, 3, 4, 5}, {7}, {9, 8, 7}}));

  auto r = run_program({"perplexity", package, temp / "ids.jsonl", "--ctx", "64", "--chunk", "3", "--ram",
                        "1MiB", "--threads", "2", "--reference-precision", "exact", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json json = parse_json(r.out, "json");
  EXPECT_EQ(json["tokens"], 6);
  EXPECT_EQ(json["documents"], 2);
  EXPECT_EQ(json["skipped_documents"], 1);
  EXPECT_EQ(json["nll"].get<double>(), want.nll.mean());
  EXPECT_EQ(json["nll_standard_error"].get<double>(), want.nll.standard_error());
  EXPECT_EQ(json["perplexity"].get<double>(), want.perplexity());
  EXPECT_EQ(json["reference"]["kl"].get<double>(), want.reference->kl.mean());
  EXPECT_EQ(json["reference"]["kl_max"].get<double>(), want.reference->kl.largest());
  EXPECT_EQ(json["reference"]["router_picks"], want.reference->all_routes().n_picks);
  EXPECT_EQ(json["reference"]["layers"].size(), want.reference->routes.size());

  r = run_program({"perplexity", package, temp / "ids.jsonl", "--reference", package});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* line :
       {"tokens               6 predicted in 2 documents, 1 of fewer than 2 tokens skipped", "\nmean NLL ",
        "\nperplexity ", "\nKL from reference    0.000e+00 +- 0.0e+00 nats",
        "\ntop-1 agreement      100.000 %", "\nrouter choices       0.000 % of "})
    EXPECT_NE(r.out.find(line), std::string::npos) << line << " in " << r.out;

  r = run_program(
      {"perplexity", package, temp / "ids.jsonl", "--kv", "q8", "--reference-precision", "exact"});
  EXPECT_EQ(r.exit_code, 0) << r.err;

  r = run_program({"perplexity", package, temp / "ids.jsonl", "--tokens", "4"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out.find("tokens               3 predicted in 1 documents\n"), 0u) << r.out;
  EXPECT_EQ(r.out.find("KL"), std::string::npos) << r.out;
}

TEST(Perplexity, TextAndItsTokenIdsGiveTheSame) {
  const TempFolder temp;
  const std::string text = "<|im_start|>user\nTell me a story.<|im_end|>\nOnce upon a time";
  test::write_file(temp / "text.txt", text);
  test::write_file(temp / "text.jsonl", Json{{"text", text}}.dump());
  test::write_file(temp / "ids", run_program({"tokenize", test::storyteller(), "--special"}, text).out);
  test::write_file(temp / "plain", run_program({"tokenize", test::storyteller()}, text).out);
  const auto measure = [&](const char* file, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"perplexity", test::storyteller(), temp / file, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };
  EXPECT_EQ(measure("text.txt"), measure("ids"));
  EXPECT_EQ(measure("text.jsonl"), measure("ids"));
  EXPECT_EQ(measure("text.txt", {"--no-special"}), measure("plain"));
  EXPECT_NE(measure("plain"), measure("ids"));
  EXPECT_EQ(parse_json(measure("text.txt", {"--per-document", "5"}), "json")["tokens"], 4);
}

TEST(Perplexity, BadInputIsRefusedWithFileLineAndNumbers) {
  const TempFolder temp;
  const fs::path& package = test::golden_package("mixtral");
  struct Case {
    std::string content;
    std::vector<std::string> options, messages;
  };
  const Case cases[] = {{"", {}, {"/ids: no token ids"}},
                        {"5\n", {}, {"/ids: none of its 1 documents has two tokens"}},
                        {"1,2,3\n4,512,6\n", {}, {"/ids: line 2", "token 512", "vocabulary of 512"}},
                        {"1,2,3\n4,4294967295\n", {}, {"line 2", "token 4294967295", "vocabulary of 512"}},
                        {"[1, 2, 3]\n[1, 99999999999999999999]\n", {}, {"/ids: line 2", "1e+20"}},
                        {"1,2,3\n\n%&/()=\n", {}, {"/ids: line 3", "%&/()="}},
                        {"{\"text\": \"Once upon\"}\n", {}, {package.string() + "/tokenizer.json"}},
                        {"Once upon a time\n", {}, {"/ids: line 1", "Once", "*.txt"}},
                        {"1,2,3\n", {"--ctx", "1"}, {"a context of 1 token leaves nothing to predict"}},
                        {"1,2,3\n", {"--ctx", "1000000"}, {"1000000"}},
                        {"1,2,3\n", {"--reference", "/no/such"}, {"/no/such"}}};
  for (const Case& c : cases) {
    test::write_file(temp / "ids", c.content);
    std::vector<std::string> args = {"perplexity", package, temp / "ids"};
    args.insert(args.end(), c.options.begin(), c.options.end());
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 1) << c.content;
    EXPECT_EQ(r.out, "") << c.content;
    for (const std::string& m : c.messages) EXPECT_NE(r.err.find(m), std::string::npos) << m << ": " << r.err;
  }
  EXPECT_EQ(run_program({"perplexity", package, temp / "absent"}).exit_code, 1);
  EXPECT_EQ(run_program({"perplexity", package, temp.path()}).exit_code, 1);
}

}  // namespace
}  // namespace moeflux
