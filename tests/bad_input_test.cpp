// Damaged, hostile and wrong files: each is refused with an Error that names the file, never a crash, and
// nothing that is damaged is ever taken for whole. These tests earn their keep under the sanitizers.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "convert/convert.h"
#include "gen/engine.h"
#include "support/checkpoint_builder.h"

namespace moeflux {
namespace {

using test::TempFolder;

// Loads and reads everything of a package, as a run and inspect --check would.
Manifest read_whole(const fs::path& folder) {
  const Package package(folder);
  const ModelConfig model = parse_model_config(package.config(), package.config_path());
  match_schema(package.manifest(), model, folder.string());
  const ResidentWeights resident(package, 1);
  for (const ExpertLayer& l : package.manifest().layers)
    for (uint64_t e = 0; e < l.n_experts(); ++e) {
      std::vector<std::byte> record(l.record_bytes);
      package.read_record(l, e, record);
    }
  return package.manifest();
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

// Copies the package with one file replaced.
void with_file(const fs::path& package, const std::string& name, const std::string& bytes,
               const std::function<void(const fs::path&)>& work) {
  static const TempFolder temp;
  const fs::path copy = temp / "copy";
  fs::remove_all(copy);
  fs::create_directories(copy);
  for (const auto& e : fs::recursive_directory_iterator(package)) {
    const fs::path to = copy / fs::relative(e.path(), package);
    if (e.is_directory())
      fs::create_directories(to);
    else if (fs::relative(e.path(), package) != name)
      fs::create_hard_link(e.path(), to);
  }
  test::write_file(copy / name, bytes);
  work(copy);
}

const fs::path& small_package() {
  static const TempFolder temp;
  static const fs::path path = [] {
    ConvertOptions options;
    convert_package(open_source(test::golden_checkpoint("qwen3_moe"), temp / "pk", false, false), temp / "pk",
                    options);
    return temp / "pk";
  }();
  return path;
}

TEST(BadPackage, EveryTruncationIsRefused) {
  for (const auto& [name, bytes] : test::folder_content(small_package())) {
    if (name == "generation_config.json") continue;  // not needed to run tokens
    for (const double share : {0.0, 0.01, 0.3, 0.7, 0.999}) {
      const auto n = static_cast<size_t>(share * static_cast<double>(bytes.size()));
      with_file(small_package(), name, bytes.substr(0, n), [&, file = name](const fs::path& copy) {
        const std::string what = refusal([&] { read_whole(copy); });
        EXPECT_NE(what.find(copy.string()), std::string::npos)
            << file << " cut to " << n << ": '" << what << "'";
      });
    }
  }
}

TEST(BadPackage, EveryFlippedBitIsFoundOrHarmless) {
  const Manifest whole = read_whole(small_package());
  for (const auto& [name, bytes] : test::folder_content(small_package())) {
    if (name == "generation_config.json") continue;
    const size_t tries = name == "moeflux.json" || name == "resident.safetensors" ? 150 : 25;
    uint32_t seed = 12345;
    for (size_t i = 0; i < tries; ++i) {
      seed = seed * 1664525u + 1013904223u;
      // Half of the flips of the large files go into their first bytes, where the headers are.
      const size_t range = i % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 6000);
      const size_t at = seed % range;
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << (seed >> 20 & 7));
      with_file(small_package(), name, flipped, [&, file = name](const fs::path& copy) {
        try {
          const Manifest m = read_whole(copy);
          // What still loads must mean the same: only words and padding may differ.
          Manifest same = m;
          same.source = whole.source;
          same.error = whole.error;
          EXPECT_EQ(write_manifest(same), write_manifest(whole)) << file << " byte " << at;
        } catch (const Error&) {
        }
      });
    }
  }
}

TEST(BadPackage, FieldsOfTheManifestAreValidated) {
  const Json good = test::read_json(small_package() / "moeflux.json");
  const std::pair<const char*, std::function<void(Json&)>> cases[] = {
      {"version 2", [](Json& j) { j["version"] = 2; }},
      {"format", [](Json& j) { j["format"] = "zip"; }},
      {"no family", [](Json& j) { j.erase("family"); }},
      {"other family", [](Json& j) { j["family"] = "mixtral"; }},
      {"record_bytes", [](Json& j) { j["experts"][0]["record_bytes"] = 4096; }},
      {"huge record", [](Json& j) { j["experts"][0]["record_bytes"] = UINT64_MAX; }},
      {"file elsewhere", [](Json& j) { j["experts"][0]["file"] = "../../etc/passwd"; }},
      {"layer order", [](Json& j) { std::swap(j["experts"][0], j["experts"][1]); }},
      {"layer missing", [](Json& j) { j["experts"].erase(2); }},
      {"layer twice", [](Json& j) { j["experts"].push_back(j["experts"][3]); }},
      {"one checksum too few", [](Json& j) { j["experts"][1]["xxh3"].erase(0); }},
      {"checksum text", [](Json& j) { j["experts"][1]["xxh3"][0] = "xyz"; }},
      {"part format", [](Json& j) { j["experts"][0]["parts"][0]["format"] = "affine3/g64/bf16"; }},
      {"part shape",
       [](Json& j) {
         j["experts"][0]["parts"][0]["shape"] = {64, 64};
       }},
      {"part shape huge",
       [](Json& j) {
         j["experts"][0]["parts"][0]["shape"] = {1ull << 40, 1ull << 40};
       }},
      {"part name", [](Json& j) { j["experts"][0]["parts"][0]["name"] = "up"; }},
      {"part missing", [](Json& j) { j["experts"][0]["parts"].erase(2); }},
      {"tensor missing", [](Json& j) { j["resident"].erase(0); }},
      {"tensor twice", [](Json& j) { j["resident"].push_back(j["resident"][0]); }},
      {"tensor surplus", [](Json& j) { j["resident"][0]["name"] = "embed_token"; }},
      {"tensor format", [](Json& j) { j["resident"][0]["format"] = "plain-f32"; }},
      {"tensor shape",
       [](Json& j) {
         j["resident"][0]["shape"] = {128, 512};
       }},
      {"tensor shape negative",
       [](Json& j) {
         j["resident"][0]["shape"] = {-512, 128};
       }},
      {"resident no list", [](Json& j) { j["resident"] = 7; }},
      {"experts no list", [](Json& j) { j["experts"] = Json::object(); }},
  };
  for (const auto& [name, damage] : cases) {
    Json json = good;
    damage(json);
    with_file(small_package(), "moeflux.json", json.dump(), [&, what = name](const fs::path& copy) {
      EXPECT_NE(refusal([&] { read_whole(copy); }), "") << what << " was accepted";
    });
  }
}

TEST(BadPackage, AnEditedConfigIsNoticed) {
  Json config = test::read_json(small_package() / "config.json");
  config["rms_norm_eps"] = 1e-5;
  with_file(small_package(), "config.json", config.dump(), [](const fs::path& copy) {
    EXPECT_NE(refusal([&] { read_whole(copy); }).find("changed since"), std::string::npos);
  });
}

TEST(BadPackage, ADamagedRecordFailsItsRequestAndNothingElse) {
  std::string bytes = test::read_file(small_package() / "experts/layer_002.bin");
  const uint64_t record = bytes.size() / 16;
  for (uint64_t e = 0; e < 16; e += 8)
    bytes[e * record + 100] = static_cast<char>(bytes[e * record + 100] ^ 4);
  with_file(small_package(), "experts/layer_002.bin", bytes, [](const fs::path& copy) {
    Engine engine(copy, {.ram = {}, .max_memory = {}, .ctx = 64});
    int failed = 0, fine = 0;
    for (Token t = 0; t < 40; ++t) {
      const auto sequence = engine.make_sequence();
      const Token prompt[] = {t};
      const std::string what = refusal([&] { engine.eval(*sequence, prompt); });
      if (what.empty()) {
        ++fine;
        continue;
      }
      ++failed;
      EXPECT_NE(what.find("layer_002.bin: expert"), std::string::npos) << what;
      EXPECT_NE(refusal([&] { engine.eval(*sequence, prompt); }), "");  // the broken sequence stays refused
    }
    EXPECT_GT(failed, 0);
    EXPECT_GT(fine, 0);
  });
}

// -- checkpoints

fs::path checkpoint_with(const TempFolder& temp, const std::string& safetensors) {
  fs::remove_all(temp / "ck");
  fs::create_directories(temp / "ck");
  fs::copy(test::data_folder() / "goldens/mixtral/config.json", temp / "ck");
  test::write_file(temp / "ck/model.safetensors", safetensors);
  return temp / "ck";
}

void convert(const fs::path& source, const fs::path& package) {
  convert_package(open_source(source, package, false, false), package, {});
}

TEST(BadCheckpoint, HostileHeadersAreRefused) {
  const TempFolder temp;
  const auto tensor = [](const std::string& entry) { return "{\"a\":" + entry + "}"; };
  const std::string cases[] = {
      "",
      "1234567",
      std::string(8, '\xff'),                // claims 2^64 - 1 bytes
      std::string("\0\0\0\0\0\0\0\x80", 8),  // claims 2^63 bytes
      test::raw_safetensors("", ""),
      test::raw_safetensors("[]", ""),
      test::raw_safetensors("{", ""),
      test::raw_safetensors(std::string(100000, '['), ""),
      test::raw_safetensors("{\"a\":1}", ""),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[4]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"X","shape":[4],"data_offsets":[0,8]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[-4],"data_offsets":[0,8]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[4.5],"data_offsets":[0,8]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[4],"data_offsets":[8,0]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[4],"data_offsets":[0,16]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[8],"data_offsets":[0,16]})"), "12345678"),
      test::raw_safetensors(
          tensor(R"({"dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,8]})"), "12345678"),
      test::raw_safetensors(tensor(R"({"dtype":"BF16","shape":[9223372036854775807],"data_offsets":[0,8]})"),
                            "12345678"),
      test::raw_safetensors(
          tensor(
              R"({"dtype":"BF16","shape":[4],"data_offsets":[18446744073709551608,18446744073709551615]})"),
          "12345678"),
      test::raw_safetensors(
          R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          "12345678"),
      test::raw_safetensors(
          R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
          "12345678"),
      test::raw_safetensors("{\"\xff\xfe\":1}", ""),
  };
  for (const std::string& file : cases) {
    const std::string what = refusal([&] { convert(checkpoint_with(temp, file), temp / "pk"); });
    EXPECT_NE(what.find("model.safetensors"), std::string::npos)
        << file.substr(0, 120) << " -> '" << what << "'";
    EXPECT_FALSE(fs::exists(temp / "pk"));
  }
}

TEST(BadCheckpoint, TruncatedAndFlippedFilesNeverCrash) {
  const TempFolder temp;
  const std::string bytes = test::read_file(test::golden_checkpoint("mixtral") / "model.safetensors");
  for (const double share : {0.001, 0.1, 0.5, 0.99999}) {
    const auto n = static_cast<size_t>(share * static_cast<double>(bytes.size()));
    EXPECT_NE(refusal([&] { convert(checkpoint_with(temp, bytes.substr(0, n)), temp / "pk"); }), "") << n;
  }
  uint64_t header;
  std::memcpy(&header, bytes.data(), 8);
  uint32_t seed = 77;
  for (int i = 0; i < 300; ++i) {
    seed = seed * 1664525u + 1013904223u;
    std::string flipped = bytes;
    const size_t at = seed % (8 + header);
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << (seed >> 24 & 7));
    // A flip may hit padding or swap two tensors of one shape, which nobody can see; otherwise it is an
    // Error.
    refusal([&] { open_source(checkpoint_with(temp, flipped), temp / "pk", false, false); });
  }
}

TEST(BadCheckpoint, ShapesTypesAndNamesMustMatchTheConfig) {
  const TempFolder temp;
  const auto good = test::read_safetensors(test::golden_checkpoint("mixtral") / "model.safetensors");
  const std::string q = "model.layers.0.self_attn.q_proj.weight",
                    w1 = "model.layers.1.block_sparse_moe.experts.3.w1.weight";
  const std::pair<std::string, std::function<void(std::map<std::string, test::RawTensor>&)>> cases[] = {
      {q, [&](auto& t) { t.erase(q); }},
      {w1, [&](auto& t) { t.erase(w1); }},
      {q,
       [&](auto& t) {
         t[q].shape = {64, 256};
       }},
      {w1, [&](auto& t) { t[w1].shape = {128 * 128}; }},
      {q,
       [&](auto& t) {
         t[q] = {DType::I8, {128, 128}, std::string(128 * 128, 'x')};
       }},
      {q,
       [&](auto& t) {
         t[q] = {DType::F8E4M3, {128, 128}, std::string(128 * 128, 'x')};
       }},
      {q,
       [&](auto& t) {
         t[q] = {DType::U32, {128, 16}, std::string(128 * 64, 'x')};
       }},
      {"model.norm.weight",
       [&](auto& t) {
         t["model.norm.weight"] = {DType::I32, {128}, std::string(512, 'x')};
       }},
      {"model.extra.weight",
       [&](auto& t) {
         t["model.extra.weight"] = {DType::BF16, {1}, "xy"};
       }},
      {"mixed formats",
       [&](auto& t) {
         t[w1] = {DType::F32, {128, 128}, std::string(128 * 128 * 4, '\0')};
       }},
  };
  for (const auto& [name, damage] : cases) {
    auto tensors = good;
    damage(tensors);
    fs::remove_all(temp / "ck");
    fs::create_directories(temp / "ck");
    fs::copy(test::data_folder() / "goldens/mixtral/config.json", temp / "ck");
    test::write_safetensors(temp / "ck/model.safetensors", tensors);
    const std::string what = refusal([&] { convert(temp / "ck", temp / "pk"); });
    EXPECT_NE(what.find(name), std::string::npos) << name << " -> '" << what << "'";
    EXPECT_FALSE(fs::exists(temp / "pk"));
  }
}

TEST(BadCheckpoint, MissingShardsAndWrongIndexesAreNamed) {
  const TempFolder temp;
  const fs::path source = test::data_folder() / "quant/qwen3_moe_mlx4";
  fs::copy(source, temp / "ck");
  fs::remove(temp / "ck/model-00002-of-00002.safetensors");
  EXPECT_NE(refusal([&] { convert(temp / "ck", temp / "pk"); }).find("model-00002-of-00002"),
            std::string::npos);
  fs::remove_all(temp / "ck");
  fs::copy(source, temp / "ck");
  const fs::path index = temp / "ck/model.safetensors.index.json";
  const Json good = test::read_json(index);
  const std::function<void(Json&)> cases[] = {
      [](Json& j) { j["weight_map"]["model.norm.weight"] = "../x"; },
      [](Json& j) { j["weight_map"]["model.norm.weight"] = 7; },
      [](Json& j) { j["weight_map"]["no.such.tensor"] = "model-00001-of-00002.safetensors"; },
      [](Json& j) { j["weight_map"] = Json::object(); },
      [](Json& j) { j.erase("weight_map"); },
  };
  for (const auto& damage : cases) {
    Json json = good;
    damage(json);
    test::write_file(index, json.dump());
    EXPECT_NE(refusal([&] { convert(temp / "ck", temp / "pk"); }), "") << json.dump().substr(0, 80);
  }
  test::write_file(index, "{not json");
  EXPECT_NE(refusal([&] { convert(temp / "ck", temp / "pk"); }).find("index.json"), std::string::npos);
}

TEST(BadCheckpoint, UnsupportedKindsAreNamed) {
  const TempFolder temp;
  auto tensors = test::read_safetensors(test::golden_checkpoint("mixtral") / "model.safetensors");
  fs::create_directories(temp / "ck");
  Json config = test::read_json(test::data_folder() / "goldens/mixtral/config.json");
  config["model_type"] = "llama4";
  test::write_file(temp / "ck/config.json", config.dump());
  test::write_safetensors(temp / "ck/model.safetensors", tensors);
  const std::string what = refusal([&] { convert(temp / "ck", temp / "pk"); });
  EXPECT_NE(what.find("llama4"), std::string::npos) << what;
  EXPECT_NE(what.find("qwen3_moe"), std::string::npos) << what;
}

}  // namespace
}  // namespace moeflux
