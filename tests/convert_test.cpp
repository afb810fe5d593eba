// Conversion: formats, what is kept, resuming after a kill, consuming sources, refusing bad targets.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/numbers.h"
#include "convert/convert.h"
#include "convert/synth.h"
#include "gen/verify.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

using test::RawTensor;
using test::TempFolder;

ConvertResult convert(const fs::path& source, const fs::path& package, const WidthOptions& width,
                      bool mtp = false) {
  ConvertOptions options;
  options.width = width;
  options.mtp = mtp;
  return convert_package(open_source(source, package, mtp, width.resident == Width::Keep), package, options);
}

std::vector<float> package_row(const fs::path& folder, const std::string& name, size_t row) {
  const Package package(folder);
  for (const ResidentTensor& r : package.manifest().resident) {
    if (r.tensor.name != name) continue;
    std::vector<std::byte> bytes(r.tensor.bytes);
    package.read_resident(r, bytes);
    std::vector<float> out(r.tensor.cols);
    dequantise_row({bytes.data(), r.tensor.format, r.tensor.rows, r.tensor.cols}, row, out.data());
    return out;
  }
  throw std::runtime_error("no tensor " + name);
}

// -- MLX

struct MlxMatrix {
  RawTensor weight, scales, biases;
  std::vector<float> values;  // row-major
};

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint16_t exact_f16(float x) {  // for the few values used here
  const uint32_t b = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((b >> 16 & 0x8000) | (((b & 0x7fffffff) >> 13) - (112u << 10)));
}

MlxMatrix mlx_matrix(uint64_t rows, uint64_t cols, int bits, uint64_t group, DType scale_type) {
  MlxMatrix m;
  m.values.resize(rows * cols);
  std::string codes, scales, biases;
  uint32_t seed = 99;
  for (uint64_t r = 0; r < rows; ++r) {
    std::vector<float> s, b;
    for (uint64_t g = 0; g < cols / group; ++g) {
      s.push_back(std::ldexp((g % 2 ? -1.0f : 1.0f) * static_cast<float>((r + g) % 7 + 8), -9));
      b.push_back(std::ldexp(static_cast<float>((r * 3 + g) % 15) - 7, -4));
      for (const auto& [list, value] : {std::pair{&scales, s.back()}, std::pair{&biases, b.back()}}) {
        if (scale_type == DType::F32) put(*list, value);
        if (scale_type == DType::BF16) put(*list, float_to_bf16(value));
        if (scale_type == DType::F16) put(*list, value == 0 ? uint16_t{0} : exact_f16(value));
      }
    }
    std::vector<uint8_t> stream(cols * static_cast<uint64_t>(bits) / 8);
    for (uint64_t c = 0; c < cols; ++c) {
      seed = seed * 1664525u + 1013904223u;
      const uint32_t code = seed >> 16 & ((1u << bits) - 1);
      for (int i = 0; i < bits; ++i) {
        const uint64_t bit = c * static_cast<uint64_t>(bits) + static_cast<uint64_t>(i);
        if (code >> i & 1) stream[bit / 8] = static_cast<uint8_t>(stream[bit / 8] | 1u << bit % 8);
      }
      m.values[r * cols + c] = s[c / group] * static_cast<float>(code) + b[c / group];
    }
    codes.append(stream.begin(), stream.end());
  }
  m.weight = {DType::U32, {rows, cols * static_cast<uint64_t>(bits) / 32}, codes};
  m.scales = {scale_type, {rows, cols / group}, scales};
  m.biases = {scale_type, {rows, cols / group}, biases};
  return m;
}

TEST(Convert, KeepsEveryMlxWidthGroupAndScaleType) {
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const uint64_t group : {32, 64, 128})
      for (const DType type : {DType::BF16, DType::F16, DType::F32}) {
        const TempFolder temp;
        fs::create_directories(temp / "ck");
        fs::copy(test::data_folder() / "goldens/qwen3_moe/config.json", temp / "ck");
        Json config = test::read_json(temp / "ck/config.json");
        const std::string module = "model.layers.1.self_attn.o_proj";
        config["quantization"] = {
            {"bits", 4}, {"group_size", 64}, {module, {{"bits", bits}, {"group_size", group}}}};
        test::write_file(temp / "ck/config.json", config.dump());
        auto tensors = test::read_safetensors(test::golden_checkpoint("qwen3_moe") / "model.safetensors");
        const MlxMatrix m = mlx_matrix(128, 256, bits, group, type);
        tensors[module + ".weight"] = m.weight;
        tensors[module + ".scales"] = m.scales;
        tensors[module + ".biases"] = m.biases;
        test::write_safetensors(temp / "ck/model.safetensors", tensors);
        convert(temp / "ck", temp / "pk", {Width::Keep, Width::Keep, 64});
        for (const size_t row : {0, 5, 127}) {
          const auto got = package_row(temp / "pk", "layers.1.self_attn.o_proj", row);
          for (size_t c = 0; c < got.size(); ++c)
            ASSERT_EQ(got[c], m.values[row * 256 + c])
                << bits << " bits, group " << group << ", row " << row << " " << c;
        }
      }
}

TEST(Convert, MlxTableThatContradictsTheShapesIsRefused) {
  const TempFolder temp;
  fs::copy(test::data_folder() / "quant/qwen3_moe_mlx4", temp / "ck");
  Json config = test::read_json(temp / "ck/config.json");
  config["quantization"]["group_size"] = 32;
  test::write_file(temp / "ck/config.json", config.dump());
  EXPECT_THROW(convert(temp / "ck", temp / "pk", {}), Error);
}

// -- other formats

TEST(Convert, PlainTypesAreKeptExactly) {
  for (const DType type : {DType::F32, DType::F16}) {
    const TempFolder temp;
    fs::create_directories(temp / "ck");
    fs::copy(test::data_folder() / "goldens/mixtral/config.json", temp / "ck");
    auto tensors = test::read_safetensors(test::golden_checkpoint("mixtral") / "model.safetensors");
    RawTensor& t = tensors["model.layers.0.self_attn.q_proj.weight"];
    std::string bytes;
    std::vector<float> values;
    for (size_t i = 0; i < 128 * 128; ++i) {
      const auto h =
          static_cast<uint16_t>(i * 40503u % 0x7800 | (i % 3 ? 0x8000u : 0u));  // subnormals included
      values.push_back(f16_to_float(h));
      if (type == DType::F16) put(bytes, h);
      if (type == DType::F32) values.back() += 1e-7f, put(bytes, values.back());
    }
    t = {type, {128, 128}, bytes};
    test::write_safetensors(temp / "ck/model.safetensors", tensors);
    convert(temp / "ck", temp / "pk", {Width::Keep, Width::Keep, 64});
    for (size_t r = 0; r < 128; ++r) {
      const auto got = package_row(temp / "pk", "layers.0.self_attn.q_proj", r);
      for (size_t c = 0; c < 128; ++c) ASSERT_EQ(got[c], values[r * 128 + c]);
    }
  }
}

// A scale per block of 128 x 128, per row or for the whole tensor, also where the shapes look alike.
TEST(Convert, Fp8ScalesOfEveryKind) {
  struct Case {
    uint64_t rows, cols;
    std::vector<uint64_t> scale_shape;
    std::function<uint64_t(uint64_t, uint64_t)> scale_of;  // index of the scale of (row, column)
  };
  const Case cases[] = {
      {1, 256, {1, 2}, [](uint64_t, uint64_t c) { return c / 128; }},
      {128, 256, {1, 2}, [](uint64_t, uint64_t c) { return c / 128; }},
      {128, 256, {1}, [](uint64_t, uint64_t) { return 0; }},
      {128, 256, {}, [](uint64_t, uint64_t) { return 0; }},
      {128, 256, {128, 1}, [](uint64_t r, uint64_t) { return r; }},
      {130, 256, {2, 2}, [](uint64_t r, uint64_t c) { return r / 128 * 2 + c / 128; }},
  };
  for (const Case& k : cases) {
    const TempFolder temp;
    fs::create_directories(temp / "ck");
    Json config = test::read_json(test::data_folder() / "goldens/qwen2_moe/config.json");
    config["hidden_size"] = 256;
    config["head_dim"] = nullptr;
    config["num_hidden_layers"] = 1;
    config.erase("layer_types");
    const bool gate = k.rows == 1;
    if (!gate) config["shared_expert_intermediate_size"] = k.rows;
    test::write_file(temp / "ck/config.json", config.dump());
    write_synthetic_checkpoint(temp / "ck", temp / "whole", {});
    auto tensors = test::read_safetensors(temp / "whole/model.safetensors");
    const std::string leaf = gate ? "shared_expert_gate" : "shared_expert.gate_proj";
    const std::string module = "model.layers.0.mlp." + leaf;
    std::string codes, scales;
    uint64_t n = 1;
    for (const uint64_t d : k.scale_shape) n *= d;
    for (uint64_t i = 0; i < n; ++i) put(scales, 0.5f + static_cast<float>(i));
    for (uint64_t i = 0; i < k.rows * k.cols; ++i) codes += static_cast<char>(i * 37 % 120);
    const bool block = k.scale_shape.size() == 2 && k.scale_shape[1] == 2;
    tensors[module + ".weight"] = {DType::F8E4M3, {k.rows, k.cols}, codes};
    tensors[module + (block ? ".weight_scale_inv" : ".weight_scale")] = {DType::F32, k.scale_shape, scales};
    test::write_safetensors(temp / "ck/model.safetensors", tensors);
    convert(temp / "ck", temp / "pk", {Width::Keep, Width::Keep, 64});
    for (uint64_t r = 0; r < k.rows; r += 43) {
      const auto row = package_row(temp / "pk", "layers.0.mlp." + leaf, r);
      for (uint64_t c = 0; c < k.cols; ++c)
        ASSERT_EQ(row[c], e4m3_to_float(static_cast<uint8_t>(codes[r * k.cols + c])) *
                              (0.5f + static_cast<float>(k.scale_of(r, c))))
            << k.rows << " rows, scales " << shape_text(k.scale_shape) << ": " << r << "," << c;
    }
  }
}

TEST(Convert, PackedInt4IsKept) {
  const TempFolder temp;
  fs::create_directories(temp / "ck");
  fs::copy(test::data_folder() / "goldens/kimi_k2/config.json", temp / "ck");
  auto tensors = test::read_safetensors(test::golden_checkpoint("kimi_k2") / "model.safetensors");
  std::map<std::string, std::vector<float>> want;
  for (const auto& [name, t] : std::map(tensors)) {
    if (name.find(".experts.") == std::string::npos) continue;
    const uint64_t rows = t.shape[0], cols = t.shape[1];
    std::string codes, scales, shape;
    std::vector<float> values;
    uint32_t seed = 7;
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t g = 0; g < cols / 32; ++g)
        put(scales, float_to_bf16(0.01f * static_cast<float>(r % 5 + g + 1)));
      for (uint64_t w = 0; w < cols / 8; ++w) {
        seed = seed * 1664525u + 1013904223u;
        put(codes, seed);
        const float s = bf16_to_float(float_to_bf16(0.01f * static_cast<float>(r % 5 + w / 4 + 1)));
        for (int i = 0; i < 8; ++i) values.push_back((static_cast<float>(seed >> 4 * i & 15) - 8) * s);
      }
    }
    put(shape, rows), put(shape, cols);
    const std::string module = name.substr(0, name.size() - 7);
    tensors.erase(name);
    tensors[module + ".weight_packed"] = {DType::I32, {rows, cols / 8}, codes};
    tensors[module + ".weight_scale"] = {DType::BF16, {rows, cols / 32}, scales};
    tensors[module + ".weight_shape"] = {DType::I64, {2}, shape};
    want[module] = values;
  }
  test::write_safetensors(temp / "ck/model.safetensors", tensors);
  convert(temp / "ck", temp / "pk", {Width::Keep, Width::Keep, 64});
  const Package package(temp / "pk");
  const ExpertLayer& l = package.manifest().layers[1];
  std::vector<std::byte> record(l.record_bytes);
  package.read_record(l, 9, record);
  const MlpWeights w = bind_expert(l, record);
  const auto& values = want.at("model.layers.2.mlp.experts.9.up_proj");
  std::vector<float> row(w.up.w.cols);
  for (size_t r = 0; r < w.up.w.rows; ++r) {
    dequantise_row(w.up.w, r, row.data());
    for (size_t c = 0; c < row.size(); ++c) ASSERT_EQ(row[c], values[r * row.size() + c]);
  }
}

TEST(Convert, NarrowFormatsStayCloseAndTheErrorIsReported) {
  for (const auto& [width, bound] :
       {std::pair{Width::Q4, 0.09}, std::pair{Width::Q8, 0.006}, std::pair{Width::Mxfp4, 0.13}}) {
    const TempFolder temp;
    const ConvertResult r = convert(test::golden_checkpoint("qwen3_moe"), temp / "pk",
                                    {width, width == Width::Mxfp4 ? Width::Q8 : width, 64});
    EXPECT_LT(r.manifest.error.at("experts"), bound);
    EXPECT_GT(r.manifest.error.at("experts"), bound / 3);
    EXPECT_FALSE(r.manifest.error.contains("router"));
    EXPECT_FALSE(r.manifest.error.contains("norms"));
    Engine engine(temp / "pk", {.ram = {}, .max_memory = {}, .ctx = 16});
    const auto sequence = engine.make_sequence();
    EXPECT_EQ(engine.generate_greedy(*sequence, std::vector<Token>{1, 2, 3}, 5).size(), 5u);
  }
}

TEST(Convert, WidthsThatNoGroupDividesStayBf16AndAreReported) {
  const TempFolder temp;
  const OpenSource open = open_source(test::golden_checkpoint("deepseek_v3"), temp / "pk", false, false);
  const PackageLayout layout = lay_out_package(*open.source, {Width::Q4, Width::Q8, 64}, "");
  ASSERT_FALSE(layout.stays_bf16.empty());  // q_b_proj is 96 wide, k_up_t 32
  EXPECT_EQ(layout.stays_bf16.at("layers.*.self_attn.q_b_proj [192, 96]"), 4u);
}

TEST(Convert, MtpIsLeftOutOrKept) {
  const TempFolder temp;
  const fs::path source = test::data_folder() / "quant/qwen3_5_moe_fused";
  const OpenSource open = open_source(source, temp / "x", false, false);
  EXPECT_TRUE(open.source->has_mtp());
  EXPECT_TRUE(open.source->ignored().contains("multi-token prediction (--mtp keeps it)"));
  EXPECT_TRUE(open.source->ignored().contains("vision"));
  const ConvertResult r = convert(source, temp / "pk", {Width::Keep, Width::Keep, 64}, true);
  EXPECT_TRUE(r.manifest.find_layer(4));
  EngineOptions exact;
  exact.precision = Precision::Exact;
  for (const VerifyItem& i : verify_golden(temp / "pk", exact, source / "golden.safetensors", 0))
    EXPECT_TRUE(i.pass()) << i.name;
  const ConvertResult fp8 = convert(test::data_folder() / "quant/deepseek_v3_fp8", temp / "pk2", {}, true);
  EXPECT_TRUE(fp8.manifest.find_layer(3));
  EXPECT_THROW(convert(test::golden_checkpoint("qwen3_moe"), temp / "pk3", {}, true), Error);
}

TEST(Convert, WhatTextAndSamplingNeedIsCopied) {
  const TempFolder temp;
  fs::copy(test::golden_checkpoint("mixtral"), temp / "from");
  const std::vector<std::string> names = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                          "chat_template.jinja"};
  for (const std::string& name : names) test::write_file(temp / "from" / name, "{\"in\": \"" + name + "\"}");
  convert(temp / "from", temp / "pk", {});
  for (const std::string& name : names)
    EXPECT_EQ(test::read_file(temp / "pk" / name), test::read_file(temp / "from" / name)) << name;
}

TEST(Convert, TensorsThatBelongToNothingAreRefused) {
  const TempFolder temp;
  fs::create_directories(temp / "ck");
  fs::copy(test::data_folder() / "goldens/qwen3_moe/config.json", temp / "ck");
  auto tensors = test::read_safetensors(test::golden_checkpoint("qwen3_moe") / "model.safetensors");
  tensors["model.layers.0.self_attn.q_proj.bias"] = {DType::BF16, {1}, std::string(2, '\0')};
  test::write_safetensors(temp / "ck/model.safetensors", tensors);
  EXPECT_THROW(convert(temp / "ck", temp / "pk", {}), Error);
}

TEST(Convert, ValuesThatAreNotFiniteAreRefused) {
  const TempFolder temp;
  fs::create_directories(temp / "ck");
  fs::copy(test::data_folder() / "goldens/qwen3_moe/config.json", temp / "ck");
  auto tensors = test::read_safetensors(test::golden_checkpoint("qwen3_moe") / "model.safetensors");
  std::memcpy(tensors["model.layers.2.mlp.experts.3.up_proj.weight"].bytes.data() + 64, "\xc0\x7f", 2);
  test::write_safetensors(temp / "ck/model.safetensors", tensors);
  try {
    convert(temp / "ck", temp / "pk", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("layer 2 expert 3 up"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(fs::exists(temp / "pk"));
}

// -- interruption

pid_t start_convert(const fs::path& source, const fs::path& package, const std::vector<std::string>& more) {
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string src = source.string(), out = package.string();
    std::vector<const char*> argv = {"moeflux", "convert", src.c_str(), out.c_str()};
    for (const std::string& m : more) argv.push_back(m.c_str());
    argv.push_back(nullptr);
    if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(126);
    execv(MOEFLUX_PROGRAM, const_cast<char**>(argv.data()));
    _exit(127);
  }
  return pid;
}

// A checkpoint of about 60 MB, in several shards, so that a kill lands in the middle.
const fs::path& larger_checkpoint() {
  static const TempFolder folder;
  static const fs::path path = [] {
    fs::create_directories(folder / "src");
    Json config = test::read_json(test::data_folder() / "goldens/qwen3_moe/config.json");
    config["hidden_size"] = 256;
    config["moe_intermediate_size"] = 256;
    config["num_local_experts"] = 32;
    test::write_file(folder / "src/config.json", config.dump());
    write_synthetic_checkpoint(folder / "src", folder / "whole", {});
    fs::create_directories(folder / "ck");
    fs::copy(folder / "whole/config.json", folder / "ck");
    std::map<std::string, std::map<std::string, RawTensor>> shards;
    Json weight_map = Json::object();
    size_t i = 0;
    for (const auto& [name, t] : test::read_safetensors(folder / "whole/model.safetensors")) {
      const std::string shard = "model-" + std::to_string(i++ / 60) + ".safetensors";
      shards[shard][name] = t;
      weight_map[name] = shard;
    }
    for (const auto& [name, tensors] : shards) test::write_safetensors(folder / "ck" / name, tensors);
    test::write_file(folder / "ck/model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
    return folder / "ck";
  }();
  return path;
}

TEST(Resume, KilledConversionsEndInTheSameBytes) {
  const TempFolder temp;
  ASSERT_EQ(test::run_program({"convert", larger_checkpoint(), temp / "whole"}).exit_code, 0);
  const auto want = test::folder_content(temp / "whole");
  int kills = 0;
  for (const int delay_ms : {1, 3, 6, 10, 15, 22, 32, 50, 80, 120, 180, 300}) {
    const fs::path target = temp / ("pk" + std::to_string(delay_ms));
    const pid_t pid = start_convert(larger_checkpoint(), target, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(pid, SIGKILL);
    int status;
    waitpid(pid, &status, 0);
    const bool killed = WIFSIGNALED(status);
    kills += killed;
    EXPECT_EQ(fs::exists(target), !killed || fs::exists(target / "moeflux.json"));
    if (fs::exists(target)) continue;
    EXPECT_EQ(test::run_program({"run", target, "--tokens", "1"}).exit_code, 1);
    const auto r = test::run_program({"convert", larger_checkpoint(), target});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(test::folder_content(target), want);
    EXPECT_FALSE(fs::exists(partial_folder(target)));
  }
  EXPECT_GT(kills, 2);
}

// The journal names what is durable; a rerun trusts exactly that, with a torn last line as after a power cut.
TEST(Resume, GoesOnFromTheJournal) {
  const TempFolder temp;
  ASSERT_EQ(test::run_program({"convert", larger_checkpoint(), temp / "whole"}).exit_code, 0);
  // A conversion that fails late: one source tensor of the last shard cannot be read.
  fs::copy(larger_checkpoint(), temp / "ck");
  std::string last;
  for (const auto& e : fs::directory_iterator(temp / "ck"))
    if (e.path().extension() == ".safetensors") last = std::max(last, e.path().filename().string());
  const std::string bytes = test::read_file(temp / "ck" / last);
  std::string damaged = bytes;
  uint64_t header;
  std::memcpy(&header, bytes.data(), 8);
  for (size_t i = 8 + header; i < 8 + header + 4096; ++i) damaged[i] = '\xff';  // NaNs
  test::write_file(temp / "ck" / last, damaged);
  const auto failed = test::run_program({"convert", temp / "ck", temp / "pk"});
  ASSERT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_NE(failed.err.find("not finite"), std::string::npos) << failed.err;
  ASSERT_TRUE(fs::exists(temp / "pk.partial/journal"));
  const size_t done = test::read_file(temp / "pk.partial/journal").size();
  EXPECT_GT(done, 100u);  // what was finished before the failure is kept
  test::write_file(temp / "ck" / last, bytes);
  test::write_file(temp / "pk.partial/journal", test::read_file(temp / "pk.partial/journal") + "17 0123");
  const auto r = test::run_program({"convert", temp / "ck", temp / "pk"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("went on from"), std::string::npos) << r.err;
  auto a = test::folder_content(temp / "pk"), b = test::folder_content(temp / "whole");
  EXPECT_EQ(a, b);
}

// Killed after the rename and before tidying up: the package is whole, and the rerun says so.
TEST(Resume, AFinishedConversionIsRecognised) {
  const TempFolder temp;
  ASSERT_EQ(test::run_program({"convert", test::golden_checkpoint("mixtral"), temp / "pk"}).exit_code, 0);
  const auto want = test::folder_content(temp / "pk");
  fs::create_directories(temp / "pk.partial");
  test::write_file(temp / "pk.partial/journal", "moeflux-convert 1 0000000000000000\n");
  const auto r = test::run_program({"convert", temp / "consumed", temp / "pk", "--consume"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_FALSE(fs::exists(temp / "pk.partial"));
  EXPECT_EQ(test::folder_content(temp / "pk"), want);
  EXPECT_EQ(test::run_program({"convert", test::golden_checkpoint("mixtral"), temp / "pk"}).exit_code, 1);
}

TEST(Resume, OtherOptionsAreNotMixedIn) {
  const TempFolder temp;
  fs::create_directories(temp / "pk.partial/package");
  test::write_file(temp / "pk.partial/journal", "moeflux-convert 1 0000000000000000\n");
  const auto r = test::run_program({"convert", larger_checkpoint(), temp / "pk"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("unfinished conversion"), std::string::npos) << r.err;
}

TEST(Resume, ConsumeDeletesShardsAndSurvivesAKill) {
  const TempFolder temp;
  ASSERT_EQ(test::run_program({"convert", larger_checkpoint(), temp / "whole"}).exit_code, 0);
  for (const int delay_ms : {60, 120, 100000}) {
    fs::remove_all(temp / "ck");
    fs::remove_all(temp / "pk");
    fs::copy(larger_checkpoint(), temp / "ck");
    const pid_t pid = start_convert(temp / "ck", temp / "pk", {"--consume"});
    int status = 0;
    for (int waited = 0; waited < delay_ms && waitpid(pid, &status, WNOHANG) == 0; waited += 5)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!fs::exists(temp / "pk/moeflux.json")) {
      const auto r = test::run_program({"convert", temp / "ck", temp / "pk", "--consume"});
      ASSERT_EQ(r.exit_code, 0) << r.err;
    }
    EXPECT_EQ(test::folder_content(temp / "pk"), test::folder_content(temp / "whole"));
    for (const auto& e : fs::directory_iterator(temp / "ck")) EXPECT_NE(e.path().extension(), ".safetensors");
  }
}

// -- targets

TEST(Convert, BadTargetsAreRefused) {
  const TempFolder temp;
  const fs::path source = test::golden_checkpoint("mixtral");
  fs::create_directories(temp / "there");
  test::write_file(temp / "there/file", "x");
  auto r = test::run_program({"convert", source, temp / "there"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("already exists"), std::string::npos) << r.err;
  r = test::run_program({"convert", source, temp / "no/such/folder"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("is not there"), std::string::npos) << r.err;
  r = test::run_program({"convert", source, "/proc/moeflux-test"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("/proc/moeflux-test"), std::string::npos) << r.err;
}

TEST(Convert, AFullDiskIsAnErrorThatLeavesNothingThatLoads) {
  const TempFolder temp;
  if (mkdir((temp / "small").c_str(), 0700) != 0 ||
      std::system(
          ("mount -t tmpfs -o size=2m none '" + (temp / "small").string() + "' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "mounting a small disk needs root";
  const auto r = test::run_program({"convert", test::golden_checkpoint("qwen3_next"), temp / "small/pk"});
  const bool there = fs::exists(temp / "small/pk");
  std::system(("umount '" + (temp / "small").string() + "'").c_str());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("bytes) free"), std::string::npos) << r.err;
  EXPECT_FALSE(there);
}

TEST(Convert, TwoAtOnceDoNotMeet) {
  const TempFolder temp;
  fs::create_directories(temp / "pk.partial");
  const PartialLock held(temp / "pk");
  EXPECT_THROW(convert(test::golden_checkpoint("mixtral"), temp / "pk", {}), Error);
}

TEST(Convert, ThreadsAndRerunsGiveTheSameBytes) {
  const TempFolder temp;
  for (const size_t threads : {1, 2, 5}) {
    ConvertOptions options;
    options.threads = threads;
    const fs::path target = temp / std::to_string(threads);
    convert_package(open_source(test::golden_checkpoint("qwen3_next"), target, false, false), target,
                    options);
    EXPECT_EQ(test::folder_content(target), test::folder_content(temp / "1"));
  }
}

// -- synthetic packages

TEST(Synth, PackagesOfEveryFamilyAndFormatLoadCheckAndRun) {
  for (const std::string& family : test::golden_families())
    for (const auto& [experts, resident] :
         {std::pair{Width::Q4, Width::Q8}, std::pair{Width::Mxfp4, Width::Q4},
          std::pair{Width::Q8, Width::Bf16}, std::pair{Width::Bf16, Width::Keep}}) {
      const TempFolder temp;
      SynthOptions options;
      options.width = {experts, resident, 32};
      options.layers = 2;
      write_synthetic_package(test::data_folder() / "goldens" / family, temp / "pk", options);
      EXPECT_EQ(test::run_program({"inspect", temp / "pk", "--check"}).exit_code, 0);
      Engine engine(temp / "pk", {.ram = {}, .max_memory = {}, .ctx = 8});
      const auto sequence = engine.make_sequence();
      for (const float x : engine.eval(*sequence, std::vector<Token>{1, 2, 3, 4}))
        ASSERT_TRUE(std::isfinite(x)) << family;
    }
}

TEST(Synth, PackageBytesAreDistinctPerExpertAndDense) {
  const TempFolder temp;
  write_synthetic_package(test::data_folder() / "goldens/qwen3_moe", temp / "pk", {});
  const Package package(temp / "pk");
  std::set<uint64_t> sums;
  size_t n = 0;
  for (const ExpertLayer& l : package.manifest().layers)
    for (const uint64_t sum : l.xxh3) sums.insert(sum), ++n;
  EXPECT_EQ(sums.size(), n);
  const std::string bytes = test::read_file(temp / "pk/experts/layer_000.bin");
  size_t zeros = 0;
  for (const char c : bytes) zeros += c == 0;
  EXPECT_LT(zeros, bytes.size() / 4);  // padding to 4096 only
}

TEST(Synth, PublishedNamesConvertForEveryFamily) {
  for (const std::string& family : test::golden_families()) {
    const TempFolder temp;
    fs::create_directories(temp / "src");
    fs::copy(test::data_folder() / "goldens" / family / "config.json", temp / "src");  // without tensors.json
    write_synthetic_checkpoint(temp / "src", temp / "ck", {});
    EXPECT_NO_THROW(convert(temp / "ck", temp / "pk", {})) << family;
  }
}

}  // namespace
}  // namespace moeflux
