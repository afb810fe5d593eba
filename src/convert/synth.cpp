#include "convert/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/hash.h"
#include "base/numbers.h"
#include "base/progress.h"
#include "base/threads.h"
#include "convert/published_names.h"

namespace moeflux {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15, kShardBytes = 4ull << 30, kPiece = 4u << 20;

uint64_t splitmix64(uint64_t x) {
  x += kGolden;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

struct Moments {
  double mean, std;
};

Moments moments(const SyntheticRule& rule, const std::string& name, const std::vector<uint64_t>& shape) {
  const auto ends = [&](const char* s) { return name.ends_with(s); };
  if (ends("dt_bias")) return {0, 0.5};
  if (ends("e_score_correction_bias")) return {0, 0.05};
  if (ends("sinks")) return {0, 1};
  if (ends("linear_attn.norm.weight")) return {1, 0.2};
  if (shape.size() == 1 && ends("norm.weight")) return {rule.zero_centred_norms ? 0.0 : 1.0, 0.2};
  if (ends("bias")) return {0, 0.1};
  const auto last = static_cast<double>(shape.empty() ? 1 : shape.back());
  if (name.find("embed") != std::string::npos) return {0, rule.tied_embeddings ? 1 / std::sqrt(last) : 0.5};
  if (shape.size() < 2) return {0, 0.1};
  double fan = last;
  if (shape.size() == 3 && name.find("experts") != std::string::npos)
    fan = static_cast<double>(std::min(shape[1], shape[2]));
  const double std = 1 / std::sqrt(fan);
  return {0, ends("gate.weight") || ends("router.weight") ? 2 * std : std};
}

struct SynthSource {
  Json config;
  ModelConfig model;
  SyntheticRule rule;
  std::map<std::string, std::vector<uint64_t>> tensors;
};

void cut_layers(Json& config, uint64_t layers) {
  Json& c = config.contains("text_config") ? config["text_config"] : config;
  if (c.contains("num_hidden_layers") && c["num_hidden_layers"].is_number_unsigned() &&
      c["num_hidden_layers"].get<uint64_t>() < layers)
    fail(Errc::InvalidArgument, "--layers {}: the model has {}", layers, c["num_hidden_layers"].dump());
  c["num_hidden_layers"] = layers;
  if (c.contains("layer_types") && c["layer_types"].is_array() && c["layer_types"].size() > layers)
    c["layer_types"].erase(c["layer_types"].begin() + static_cast<ptrdiff_t>(layers), c["layer_types"].end());
}

SynthSource read_synth_source(const fs::path& folder, const SynthOptions& options, bool want_tensors) {
  SynthSource s;
  const std::string path = (folder / "config.json").string();
  s.config = parse_json(read_text(path, 64u << 20), path);
  if (options.layers) cut_layers(s.config, *options.layers);
  s.model = parse_model_config(s.config, path);
  s.rule = {options.seed.value_or(17), s.model.zero_centred_norms, s.model.tied_embeddings};
  if (!want_tensors) return s;
  const fs::path list = folder / "tensors.json";
  if (!fs::exists(list) || options.layers) {
    s.tensors = published_tensors(s.model, s.config);
    return s;
  }
  const Json json = parse_json(read_text(list, 256u << 20), list.string());
  const JsonObject o(json, list.string());
  s.rule.seed = options.seed.value_or(o.count_or("seed", 17, 0, UINT64_MAX));
  s.rule.zero_centred_norms = o.flag_or("zero_centred_norms", s.model.zero_centred_norms);
  const JsonObject tensors = o.object("tensors");
  for (const auto& [name, shape] : tensors.json().items()) {
    uint64_t elements = 2;
    if (!shape.is_array()) tensors.wrong(name.c_str(), "a shape");
    for (const Json& d : shape) {
      if (!d.is_number_unsigned()) tensors.wrong(name.c_str(), "a shape of whole numbers");
      elements = checked_mul(elements, d.get<uint64_t>(), name);
    }
    s.tensors[name] = shape.get<std::vector<uint64_t>>();
  }
  return s;
}

// A folder that must not be there yet, under another name until it is whole.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& target) : target_(target_folder(target)), work_(partial_folder(target)) {
    if (fs::exists(target) && !(fs::is_directory(target) && fs::is_empty(target)))
      fail(Errc::Exists, "{}: already exists; choose another name or remove it", target.string());
    if (fs::exists(work_ / "journal"))
      fail(Errc::Exists, "{}: holds an unfinished conversion; choose another name or remove it",
           work_.string());
    std::error_code ec;
    fs::remove_all(work_, ec);
    if (!fs::create_directories(work_, ec) && ec) fail_errno(ec.value(), work_.string() + ": cannot create");
  }
  const fs::path& path() const { return work_; }
  void publish() { rename_durably(work_, target_); }

 private:
  fs::path target_, work_;
};

// -- packages of true size

class RandomBytes {
 public:
  RandomBytes(uint64_t seed, std::string_view name) : state_(splitmix64(seed) ^ fnv1a64(name)) {}
  uint64_t next() { return splitmix64(state_ += kGolden); }
  void fill(std::span<std::byte> out) {
    size_t i = 0;
    for (; i + 8 <= out.size(); i += 8) {
      const uint64_t word = next();
      std::memcpy(out.data() + i, &word, 8);
    }
    const uint64_t word = next();
    std::memcpy(out.data() + i, &word, out.size() - i);
  }

 private:
  uint64_t state_;
};

uint16_t bf16_near(double value,
                   uint64_t noise) {  // mantissa bits of noise: scales differ from group to group
  return static_cast<uint16_t>(float_to_bf16(static_cast<float>(value)) ^ (noise & 31));
}

// Fills tiles so that values have zero mean and the standard deviation `std`.
class TileFiller {
 public:
  TileFiller(const MatrixFormat& f, double std) : f_(f), std_(std) {}

  void fill(RandomBytes& random, uint64_t valid_rows, uint64_t valid_cols, std::byte* tile) const {
    random.fill({tile, f_.tile_code_bytes()});
    if (f_.group == 0) shape_floats(tile);
    std::byte* scales = tile + f_.tile_code_bytes();
    for (size_t i = 0; i < f_.tile_groups() * kTileRows; ++i) set_scale(random, scales, i);
    if (valid_rows < kTileRows || valid_cols < f_.tile_cols()) clear_edges(valid_rows, valid_cols, tile);
  }

 private:
  // Keeps sign and mantissa random and sets the exponent: magnitudes in [1, 2) * 2^e, rms 1.53 * 2^e.
  void shape_floats(std::byte* tile) const {
    const int e = std::ilogb(std_ / 1.53) + 127;
    const bool wide = f_.type == MatrixType::F32;
    for (size_t i = 0; i < f_.tile_code_bytes(); i += wide ? 4 : 2) {
      if (wide) {
        uint32_t bits;
        std::memcpy(&bits, tile + i, 4);
        bits = (bits & 0x807fffff) | static_cast<uint32_t>(e) << 23;
        std::memcpy(tile + i, &bits, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, tile + i, 2);
        bits = static_cast<uint16_t>((bits & 0x807f) | e << 7);
        std::memcpy(tile + i, &bits, 2);
      }
    }
  }

  void set_scale(RandomBytes& random, std::byte* scales, size_t i) const {
    if (f_.type == MatrixType::Mxfp4) {
      scales[i] = std::byte(std::ilogb(std_ / 2.93) + 127 + static_cast<int>(random.next() & 1));
      return;
    }
    const double levels = f_.code_bits() == 4 ? 15 : 255;  // uniform codes have std (levels + 1) / sqrt(12)
    const uint16_t scale = bf16_near(std_ * std::sqrt(12.0) / (levels + 1), random.next());
    const uint16_t bias = float_to_bf16(static_cast<float>(-levels / 2 * bf16_to_float(scale)));
    std::memcpy(scales + 2 * i, &scale, 2);
    std::memcpy(scales + f_.tile_scale_bytes() + 2 * i, &bias, 2);
  }

  // What lies beyond the matrix must be zero bytes: take the tile apart, clear, put it together.
  void clear_edges(uint64_t rows, uint64_t cols, std::byte* tile) const {
    const MatrixView view{tile, f_, kTileRows, f_.tile_cols()};
    const size_t size = f_.unpacked_bytes(), stride = f_.tile_cols() * size;
    std::vector<std::byte> codes(kTileRows * stride), scales(f_.tile_scale_bytes()),
        biases(f_.tile_scale_bytes());
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < cols; ++c) {
        const uint32_t code = code_at(view, r, c);
        std::memcpy(&codes[r * stride + c * size], &code, size);
      }
    if (!scales.empty()) std::memcpy(scales.data(), tile + f_.tile_code_bytes(), scales.size());
    if (f_.is_affine())
      std::memcpy(biases.data(), tile + f_.tile_code_bytes() + scales.size(), scales.size());
    for (size_t g = 0; g < f_.tile_groups(); ++g)
      for (size_t r = 0; r < kTileRows; ++r)
        if (r >= rows || g * f_.group >= cols) {
          std::memset(&scales[(g * kTileRows + r) * f_.scale_bytes()], 0, f_.scale_bytes());
          std::memset(&biases[(g * kTileRows + r) * f_.scale_bytes()], 0, f_.scale_bytes());
        }
    pack_tile(f_, codes.data(), stride, scales.data(), biases.data(), tile);
  }

  MatrixFormat f_;
  double std_;
};

// Row blocks [first, first + n) of a random matrix.
void fill_blocks(const StoredTensor& t, const SyntheticRule& rule, RandomBytes& random, uint64_t first,
                 uint64_t n, std::span<std::byte> out) {
  const double std = moments(rule, t.name + ".weight", {t.rows, t.cols}).std;
  const TileFiller filler(t.format, std);
  const uint64_t tiles = ceil_div(t.cols, t.format.tile_cols());
  std::byte* at = out.data();
  for (uint64_t block = first; block < first + n; ++block)
    for (uint64_t i = 0; i < tiles; ++i, at += t.format.tile_bytes())
      filler.fill(random, std::min<uint64_t>(kTileRows, t.rows - block * kTileRows),
                  std::min<uint64_t>(t.format.tile_cols(), t.cols - i * t.format.tile_cols()), at);
}

std::vector<float> plain_values(const StoredTensor& t, const SyntheticRule& rule) {
  std::vector<uint16_t> bits(t.rows * t.cols);
  std::string name = t.name;
  if (name.find("pre_fc_norm") != std::string::npos) name += ".norm";  // values like those of other norms
  if (name.ends_with("norm") || name.ends_with("conv1d")) name += ".weight";
  SyntheticRule plain = rule;
  plain.zero_centred_norms = false;  // a package holds what multiplies
  plain.fill(name, t.rows == 1 ? std::vector{t.cols} : std::vector{t.rows, t.cols}, 0, bits);
  std::vector<float> values(bits.size());
  std::ranges::transform(bits, values.begin(), bf16_to_float);
  return values;
}

uint64_t write_resident(const PackageWriter& writer, const ResidentTensor& r, const SyntheticRule& rule) {
  const StoredTensor& t = r.tensor;
  Hasher hash;
  if (!t.tiled) {
    const std::vector<float> values = plain_values(t, rule);
    writer.resident().write_at(t.offset, std::as_bytes(std::span(values)));
    hash.add(std::as_bytes(std::span(values)));
    return hash.digest();
  }
  RandomBytes random(rule.seed, t.name);
  const uint64_t block_bytes = ceil_div(t.cols, t.format.tile_cols()) * t.format.tile_bytes();
  const uint64_t n_blocks = ceil_div(t.rows, kTileRows), step = std::max<uint64_t>(1, kPiece / block_bytes);
  std::vector<std::byte> bytes;
  for (uint64_t b = 0; b < n_blocks; b += step) {
    const uint64_t n = std::min(step, n_blocks - b);
    bytes.resize(n * block_bytes);
    fill_blocks(t, rule, random, b, n, bytes);
    writer.resident().write_at(t.offset + b * block_bytes, bytes);
    hash.add(bytes);
  }
  return hash.digest();
}

uint64_t write_expert(const PackageWriter& writer, size_t layer_index, uint64_t expert,
                      const SyntheticRule& rule) {
  const ExpertLayer& l = writer.layout().manifest.layers[layer_index];
  RandomBytes random(rule.seed, fmt::format("layer {} expert {}", l.layer, expert));
  std::vector<std::byte> record(l.record_bytes);
  for (const StoredTensor& part : l.parts) {
    const auto into = std::span(record).subspan(part.offset, part.bytes);
    if (part.tiled) {
      StoredTensor named = part;
      named.name += "_proj";  // the router's rule is for names that end with "gate"
      fill_blocks(named, rule, random, 0, ceil_div(part.rows, kTileRows), into);
    } else {
      StoredTensor named = part;
      named.name = fmt::format("layers.{}.experts.{}.{}", l.layer, expert, part.name);
      const std::vector<float> values = plain_values(named, rule);
      std::ranges::copy(std::as_bytes(std::span(values)), into.begin());
    }
  }
  writer.experts(layer_index).write_at(expert * l.record_bytes, record);
  return xxh3(record);
}

PackageLayout synthetic_layout(const SynthSource& s, const WidthOptions& width, const SchemaOptions& schema,
                               const std::string& text) {
  PackageLayout layout;
  layout.manifest.family = s.model.family;
  layout.manifest.source = text;
  const auto bf16 = MatrixFormat::plain(MatrixType::Bf16);
  for (const TensorSpec& spec : resident_schema(s.model, schema))
    layout.add_resident(spec, choose_format(spec, bf16, width.resident, width.group));
  const std::vector<TensorSpec> parts = expert_schema(s.model);
  std::vector<MatrixFormat> formats;
  for (const TensorSpec& p : parts) formats.push_back(choose_format(p, bf16, width.experts, width.group));
  for (const uint64_t l : expert_layers(s.model, schema))
    layout.add_experts(l, parts, formats, s.model.moe.n_experts);
  layout.finish();
  return layout;
}

// Judges the size before a list of all tensors is made: absurd shapes have more tensors than memory can hold.
void check_room(const fs::path& source, const fs::path& out, const SynthOptions& options) {
  const ModelConfig m = read_synth_source(source, options, false).model;
  uint64_t values = 0, expert = 0;
  for (const TensorSpec& spec : resident_schema(m, {}))
    values = checked_add(values, spec.rows * spec.cols, spec.name);
  for (const TensorSpec& part : expert_schema(m)) expert += part.rows * part.cols;
  const uint64_t experts = checked_mul(expert_layers(m, {}).size(), m.moe.n_experts, "experts");
  values = checked_add(values, checked_mul(experts, expert, "experts"), "model size");
  const uint64_t bytes = checked_mul(values, 2, "model size");
  const fs::path parent = target_folder(out).parent_path();
  if (!fs::is_directory(parent))
    fail(Errc::NotFound, "{}: the folder {} is not there", out.string(), parent.string());
  if (const auto space = fs::space(parent); space.available < bytes)
    fail(Errc::NoSpace, "{}: about {} bytes are needed, its disk has {} free", out.string(), bytes,
         space.available);
}

}  // namespace

void SyntheticRule::fill(const std::string& name, const std::vector<uint64_t>& shape, uint64_t first,
                         std::span<uint16_t> bf16) const {
  const uint64_t base = fnv1a64(name) ^ (seed * 0xD1342543DE82EF95);
  const bool a_log = name.ends_with("A_log");
  const Moments m = moments(*this, name, shape);
  for (uint64_t i = 0; i < bf16.size(); ++i) {
    const uint64_t h = splitmix64(base + (first + i) * kGolden);
    double value;
    if (a_log) {
      value = std::log(1.0 + 15.0 * (static_cast<double>(h >> 40) / 0x1p24));
    } else {
      const uint64_t lanes = (h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48);
      value = m.mean + m.std * ((static_cast<double>(lanes) - 131070.0) / 37837.22746);
    }
    bf16[i] = float_to_bf16(static_cast<float>(value));
  }
}

void write_synthetic_checkpoint(const fs::path& source, const fs::path& out, const SynthOptions& options) {
  check_room(source, out, options);
  const SynthSource s = read_synth_source(source, options, true);
  struct Job {
    size_t shard, tensor;
    uint64_t first, count;
  };
  std::vector<std::vector<TensorInfo>> shards(1);
  uint64_t filled = 0, total = 0;
  for (const auto& [name, shape] : s.tensors) {
    TensorInfo info{name, DType::BF16, shape, 0, 0};
    const uint64_t bytes = info.elements() * 2;
    if (filled > 0 && filled + bytes > kShardBytes) shards.emplace_back(), filled = 0;
    shards.back().push_back(std::move(info));
    filled += bytes;
    total += bytes;
  }
  NewFolder folder(out);
  const auto name_of = [&](size_t i) {
    return shards.size() == 1 ? std::string("model.safetensors")
                              : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  };
  std::vector<File> files;
  std::vector<Job> jobs;
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string header = make_safetensors_header(shards[i], 8);
    files.push_back(File::create(folder.path() / name_of(i)));
    files.back().write_at(0, std::as_bytes(std::span(header)));
    for (size_t t = 0; t < shards[i].size(); ++t) {
      weight_map[shards[i][t].name] = name_of(i);
      const uint64_t n = shards[i][t].elements();
      for (uint64_t at = 0; at < n; at += kPiece) jobs.push_back({i, t, at, std::min(kPiece, n - at)});
    }
  }
  Progress progress("writing", total);
  parallel_for(jobs.size(), options.threads ? options.threads : hardware_threads(), [&](size_t i) {
    const Job& job = jobs[i];
    const TensorInfo& info = shards[job.shard][job.tensor];
    std::vector<uint16_t> values(job.count);
    s.rule.fill(info.name, info.shape, job.first, values);
    files[job.shard].write_at(info.begin + 2 * job.first, std::as_bytes(std::span(values)));
    progress.add(2 * job.count);
  });
  for (const File& f : files) f.sync();
  if (shards.size() > 1)
    write_text(folder.path() / "model.safetensors.index.json",
               Json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(1) + "\n");
  write_text(folder.path() / "config.json", s.config.dump(1) + "\n");
  for (const char* name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    if (fs::exists(source / name)) fs::copy_file(source / name, folder.path() / name);
  folder.publish();
}

Manifest write_synthetic_package(const fs::path& source, const fs::path& out, const SynthOptions& options) {
  const SynthSource s = read_synth_source(source, options, false);
  PackageLayout layout =
      synthetic_layout(s, options.width, {.mtp = options.mtp},
                       fmt::format("synthetic, seed {}: random bytes for benchmarks", s.rule.seed));
  check_target(out, layout.total_bytes(), true);
  const PartialLock lock(out);
  if (fs::exists(partial_folder(out) / "journal"))
    fail(Errc::Exists, "{}: holds an unfinished conversion; choose another name or remove it",
         partial_folder(out).string());
  fs::remove_all(partial_folder(out) / "package");
  PackageWriter writer(out, std::move(layout), true);
  write_text(partial_folder(out) / "package" / "config.json", s.config.dump(1) + "\n");
  Manifest& m = writer.manifest();
  struct Job {
    bool expert;
    size_t index;
    uint64_t number;
  };
  std::vector<Job> jobs;
  for (size_t i = 0; i < m.resident.size(); ++i) jobs.push_back({false, i, 0});
  for (size_t l = 0; l < m.layers.size(); ++l)
    for (uint64_t e = 0; e < m.layers[l].n_experts(); ++e) jobs.push_back({true, l, e});
  Progress progress("writing", writer.layout().total_bytes());
  parallel_for(jobs.size(), options.threads ? options.threads : hardware_threads(), [&](size_t i) {
    const Job& job = jobs[i];
    if (job.expert) {
      m.layers[job.index].xxh3[job.number] = write_expert(writer, job.index, job.number, s.rule);
      progress.add(m.layers[job.index].record_bytes);
    } else {
      m.resident[job.index].xxh3 = write_resident(writer, m.resident[job.index], s.rule);
      progress.add(m.resident[job.index].tensor.bytes);
    }
  });
  writer.publish();
  return m;
}

}  // namespace moeflux
