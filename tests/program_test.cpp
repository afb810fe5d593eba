// The program as a user meets it: exit codes, streams, help, machine-readable answers.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "support/checkpoint_builder.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::run_program;
using test::TempFolder;
namespace fs = std::filesystem;

TEST(Program, WrongUsageExitsWithTwo) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"frobnicate"},
      {"run"},
      {"run", "x"},
      {"run", "x", "--tokens", "1,x"},
      {"run", "x", "--tokens", ""},
      {"run", "x", "--tokens", "1", "--ram", "lots"},
      {"run", "x", "--tokens", "1", "--backend", "abacus"},
      {"run", "x", "--tokens", "1", "-n", "0"},
      {"run", "x", "--tokens", "1", "--temp", "warm"},
      {"run", "x", "--tokens", "1", "--chat"},
      {"run", "x", "--tokens", "1", "--stop", "a"},
      {"run", "x", "y", "--tokens", "1"},
      {"run", "x", "y", "--file", "z"},
      {"run", "x", "y", "--system", "z"},
      {"run", "x", "y", "--logprobs", "2"},
      {"run", "x", "y", "--image", "z"},
      {"run", "x", "y", "--logit-bias", "5"},
      {"run", "x", "y", "--grammar", "z", "--json-schema", "z"},
      {"run", "x", "y", "--chat", "--template-arg", "z"},
      {"run", "x", ""},
      {"convert", "x"},
      {"convert", "x", "y", "--experts", "q3"},
      {"convert", "x", "y", "--group", "48"},
      {"convert", "x", "y", "--resident", "mxfp4"},
      {"synth", "x", "y", "--experts", "q4"},
      {"perplexity", "x"},
      {"perplexity", "x", "y", "--tokens", "1"},
      {"perplexity", "x", "y", "--precision", "best"},
      {"perplexity", "x", "y", "--reference-backend", "abacus"},
      {"verify", "x"},
      {"run", "x", "--tokens", "1", "--read-piece", "0"},
      {"run", "x", "--tokens", "1", "--read-piece", "1GiB"},
      {"run", "x", "--tokens", "1", "--read-depth", "0"},
      {"cache-sim"},
      {"cache-sim", "x", "--slots", "0"},
      {"cache-sim", "x", "--slots", "12.5"},
      {"cache-sim", "x", "--slots", "101%"},
      {"cache-sim", "x", "--slots", "nan"},
      {"cache-sim", "x", "--slots", "64,%"},
      {"cache-sim", "x", "--policy", "fifo"},
      {"tokenize"},
      {"inspect", "x", "--nonsense"}};
  for (const auto& args : cases) {
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 2) << (args.empty() ? "" : args[0]) << ": " << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err, "");
  }
}

TEST(Program, FailuresExitWithOneAndNameTheThing) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"inspect", "/no/such"},
                                             {"plan", "/no/such"},
                                             {"convert", "/no/such", "/tmp/x"},
                                             {"run", "/no/such", "--tokens", "1"},
                                             {"run", "/no/such", "a"},
                                             {"run", "/tmp", "--file", "/no/such"},
                                             {"run", "/tmp", "a", "--grammar", "/no/such"},
                                             {"perplexity", "/tmp", "/no/such"},
                                             {"cache-sim", "/no/such"},
                                             {"tokenize", "/no/such"},
                                             {"synth", "/no/such", "/tmp/x"}}) {
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 1) << args[0];
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("/no/such"), std::string::npos) << r.err;
  }
}

TEST(Program, HelpAndVersionGoToStdout) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{"--help"},
                                                                                    {"convert", "--help"},
                                                                                    {"synth", "--help"},
                                                                                    {"inspect", "--help"},
                                                                                    {"plan", "--help"},
                                                                                    {"run", "--help"},
                                                                                    {"perplexity", "--help"},
                                                                                    {"cache-sim", "--help"},
                                                                                    {"tokenize", "--help"},
                                                                                    {"verify", "--help"},
                                                                                    {"--version"}}) {
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 0);
    EXPECT_NE(r.out, "");
    EXPECT_EQ(r.err, "");
  }
}

TEST(Program, TokenizeTurnsTextIntoIdsAndBack) {
  const std::string package = test::storyteller().string();
  const auto encoded = run_program({"tokenize", package}, "Once upon a time<|im_end|>\n");
  EXPECT_EQ(encoded.exit_code, 0) << encoded.err;
  EXPECT_EQ(run_program({"tokenize", package, "--decode"}, encoded.out).out, "Once upon a time<|im_end|>\n");
  const auto special =
      run_program({"tokenize", package + "/tokenizer.json", "--special"}, "a time<|im_end|>");
  EXPECT_EQ(special.out, "[64,513,4095]\n");
  const auto lines = run_program({"tokenize", package, "--jsonl"}, "\"Once upon\"\n\n\"\\u00e9\"\n\"\"");
  EXPECT_EQ(run_program({"tokenize", package, "--jsonl", "--decode"}, lines.out).out,
            "\"Once upon\"\n\"é\"\n\"\"\n");
}

TEST(Program, TokenizeNamesWhatItCannotRead) {
  const std::string package = test::storyteller().string();
  const std::vector<std::tuple<std::vector<std::string>, std::string, std::string>> cases = {
      {{"--decode"}, "[1,-2]", "-2"},
      {{"--decode"}, "{}", "array"},
      {{"--decode", "--jsonl"}, "[1]\n[2", "line 2"},
      {{"--jsonl"}, "\"a\"\n5\n", "line 2"}};
  for (const auto& [options, input, part] : cases) {
    std::vector<std::string> args = {"tokenize", package};
    args.insert(args.end(), options.begin(), options.end());
    const auto r = run_program(args, input);
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
  const auto bytes = run_program({"tokenize", package}, "a\xFF");
  EXPECT_EQ(bytes.exit_code, 0);
  EXPECT_NE(bytes.err.find("byte 1"), std::string::npos);
}

TEST(Program, RunPrintsOneLineOfIdsWhateverTheBudget) {
  const fs::path package = test::golden_package("qwen3_next");
  const auto all =
      run_program({"run", package, "--tokens", "5,6,7", "-n", "9", "--temp", "0", "--precision", "exact"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), ','), 8);
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 1);
  const auto least = run_program({"run", package, "--tokens", "5,6,7", "-n", "9", "--ram", "64KiB",
                                  "--precision", "exact", "--chunk", "2", "--no-check-reads"});
  EXPECT_EQ(least.out, all.out) << least.err;
  const auto json =
      run_program({"run", package, "--tokens", "5,6,7", "-n", "9", "--precision", "exact", "--json"});
  EXPECT_EQ(parse_json(json.out, "json")["tokens"].size(), 9u);
}

TEST(Program, PromptsAndTokensThatDoNotFitAreRefusedWithTheNumbers) {
  const fs::path package = test::golden_package("mixtral");
  auto r = run_program({"run", package, "--tokens", "1,2,3,4,5", "-n", "4", "--ctx", "4"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("5 prompt tokens and 4 new ones do not fit in the context of 4"), std::string::npos)
      << r.err;
  r = run_program({"run", package, "--tokens", "512", "-n", "1"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("token 512 is not in the vocabulary of 512"), std::string::npos) << r.err;
  r = run_program({"run", package, "--tokens", "1", "--ram", "1KiB"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("too few"), std::string::npos) << r.err;
  r = run_program({"plan", package, "--ctx", "1000000"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("1000000"), std::string::npos) << r.err;
}

TEST(Program, VerifyFailsWhereOutputsDiffer) {
  const fs::path golden = test::data_folder() / "goldens/mixtral/golden.safetensors";
  auto r = run_program({"verify", test::golden_package("mixtral"), "--golden", golden});
  EXPECT_EQ(r.exit_code, 0) << r.out;
  r = run_program({"verify", test::golden_package("mixtral"), "--golden", golden, "--tolerance", "1e-9"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.out.find("FAIL"), std::string::npos);
  r = run_program({"verify", test::golden_package("mixtral"), "--golden",
                   test::data_folder() / "goldens/qwen3_moe/golden.safetensors"});
  EXPECT_EQ(r.exit_code, 1);
  r = run_program({"verify", test::golden_package("mixtral"), "--golden",
                   test::data_folder() / "goldens/mixtral/config.json"});
  EXPECT_EQ(r.exit_code, 1);
}

TEST(Program, VerifyLeavesNoItemOfAGoldenFileOut) {
  const TempFolder temp;
  auto tensors = test::read_safetensors(test::data_folder() / "goldens/mixtral/golden.safetensors");
  const auto good = tensors;
  const auto verdict = [&] {
    test::write_safetensors(temp / "golden.safetensors", tensors);
    return run_program({"verify", test::golden_package("mixtral"), "--golden", temp / "golden.safetensors"})
        .exit_code;
  };
  EXPECT_EQ(verdict(), 0);
  tensors["p1.hidden.9"] = tensors["p1.hidden.1"];
  EXPECT_EQ(verdict(), 1);
  tensors = good;
  tensors.erase("p1.input_ids");
  EXPECT_EQ(verdict(), 1);
  tensors = good;
  tensors["greedy.input_ids"] = {DType::I32, {0}, ""};
  EXPECT_EQ(verdict(), 1);
}

TEST(Program, BackendsAreComparedStageByStage) {
  const fs::path golden = test::data_folder() / "goldens/deepseek_v3/golden.safetensors";
  auto r = run_program({"verify", test::golden_package("deepseek_v3"), "--backend", "cpu-ref", "--against",
                        "cpu-ref", "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.out;
  const Json json = parse_json(r.out, "json");
  for (const Json& item : json["items"]) EXPECT_EQ(item["error"], 0.0) << item;
  r = run_program({"verify", test::golden_package("deepseek_v3"), "--golden", golden, "--precision", "fast"});
  EXPECT_EQ(r.exit_code, 0) << r.out;
}

TEST(Program, BenchStaysWithinItsPlan) {
  const auto r = test::run_program(
      {"bench", test::golden_package("qwen3_moe"), "--prompt", "200", "-n", "0", "--repeat", "1", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json out = parse_json(r.out, "json")["budgets"][0];
  EXPECT_GT(out["prefill"]["tokens_per_second"]["median"].get<double>(), 0);
#ifndef MOEFLUX_SANITIZED  // they need memory of their own
  EXPECT_LE(out["peak_rss_bytes"].get<uint64_t>(), out["planned_bytes"].get<uint64_t>());
#endif
  EXPECT_EQ(test::run_program({"bench"}).exit_code, 2);
}

TEST(Program, InstructionSetsAndKvCachesAreChecked) {
  const std::string package = test::golden_package("mixtral");
  EXPECT_EQ(test::run_program({"run", package, "--tokens", "1", "-n", "1", "--isa", "mmx"}).exit_code, 2);
  EXPECT_EQ(test::run_program({"run", package, "--tokens", "1", "-n", "1", "--kv", "q8"}).exit_code, 0);
  const auto exact =
      test::run_program({"run", package, "--tokens", "1", "-n", "1", "--kv", "q8", "--precision", "exact"});
  EXPECT_EQ(exact.exit_code, 1);
  EXPECT_NE(exact.err.find("f32"), std::string::npos) << exact.err;
}

TEST(Program, InspectDescribesBothKinds) {
  const auto checkpoint =
      run_program({"inspect", test::golden_checkpoint("qwen3_next"), "--json", "--tensors"});
  ASSERT_EQ(checkpoint.exit_code, 0) << checkpoint.err;
  const Json c = parse_json(checkpoint.out, "json");
  EXPECT_EQ(c["kind"], "checkpoint");
  EXPECT_EQ(c["family"], "qwen3_next");
  EXPECT_EQ(c["tensors"].size(), 497u);
  const auto package = run_program({"inspect", test::golden_package("qwen3_next"), "--json", "--check"});
  ASSERT_EQ(package.exit_code, 0) << package.err;
  const Json p = parse_json(package.out, "json");
  EXPECT_EQ(p["kind"], "package");
  EXPECT_EQ(p["parameters"], c["parameters"]);
  EXPECT_EQ(run_program({"inspect", test::golden_checkpoint("qwen3_next"), "--check"}).exit_code, 1);
}

TEST(Program, SynthFollowsSeedAndLayers) {
  const TempFolder temp;
  const fs::path source = test::data_folder() / "goldens/olmoe";
  EXPECT_EQ(run_program({"synth", source, temp / "a"}).exit_code, 0);
  EXPECT_EQ(run_program({"synth", source, temp / "b", "--seed", "17"}).exit_code, 0);
  EXPECT_EQ(run_program({"synth", source, temp / "c", "--seed", "18"}).exit_code, 0);
  EXPECT_EQ(test::folder_content(temp / "a"), test::folder_content(temp / "b"));
  EXPECT_NE(test::read_file(temp / "a/model.safetensors"), test::read_file(temp / "c/model.safetensors"));
  EXPECT_EQ(run_program({"synth", source, temp / "d", "--layers", "1"}).exit_code, 0);
  EXPECT_EQ(run_program({"convert", temp / "d", temp / "e"}).exit_code, 0);
  EXPECT_EQ(run_program({"synth", source, temp / "f", "--layers", "4"}).exit_code, 1);
  EXPECT_EQ(run_program({"synth", source, temp / "a"}).exit_code, 1);  // already there
}

}  // namespace
}  // namespace moeflux
