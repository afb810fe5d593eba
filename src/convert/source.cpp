#include "convert/source.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/numbers.h"
#include "convert/published_names.h"

namespace moeflux {
namespace {

bool is_plain(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }

MatrixFormat plain_format(DType t) {
  return MatrixFormat::plain(t == DType::F32   ? MatrixType::F32
                             : t == DType::F16 ? MatrixType::F16
                                               : MatrixType::Bf16);
}

ScaleType scale_type(DType t) {
  return t == DType::F32 ? ScaleType::F32 : t == DType::F16 ? ScaleType::F16 : ScaleType::Bf16;
}

float plain_to_float(DType type, const std::byte* p) {
  if (type == DType::F32) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  if (type == DType::U8 || type == DType::F8E8M0) return e8m0_to_float(std::to_integer<uint8_t>(*p));
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return type == DType::F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

[[noreturn]] void wrong_shape(const TensorInfo& info, const std::string& want) {
  fail(Errc::Corrupt, "tensor {}: {} {}, but config.json makes it {}", info.name, to_string(info.type),
       shape_text(info.shape), want);
}

// A tensor's shape must be `want`; a stacked one has the number of slabs in front.
void check_shape(const TensorInfo& info, std::vector<uint64_t> want, uint64_t slabs) {
  if (slabs > 0) want.insert(want.begin(), slabs);
  if (info.shape != want) wrong_shape(info, shape_text(want));
}

bool starts_with_any(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::ranges::any_of(prefixes, [&](const char* p) { return name.starts_with(p); });
}
bool ends_with_any(const std::string& name, std::initializer_list<const char*> suffixes) {
  return std::ranges::any_of(suffixes, [&](const char* s) { return name.ends_with(s); });
}

// Code k of a little-endian bit stream of `bits`-wide codes.
void unpack_bits(const std::byte* stream, int bits, uint64_t n, uint8_t* out) {
  const auto* in = reinterpret_cast<const uint8_t*>(stream);
  if (bits == 8) {
    std::memcpy(out, in, n);
  } else if (bits == 4) {
    for (uint64_t k = 0; k < n; ++k) out[k] = k % 2 ? in[k / 2] >> 4 : in[k / 2] & 15;
  } else {
    const unsigned mask = (1u << bits) - 1;
    for (uint64_t k = 0; k < n; ++k) {
      const uint64_t bit = k * static_cast<uint64_t>(bits);
      unsigned word = in[bit / 8];
      if (bit % 8 + static_cast<uint64_t>(bits) > 8) word |= unsigned{in[bit / 8 + 1]} << 8;
      out[k] = static_cast<uint8_t>(word >> (bit % 8) & mask);
    }
  }
}

}  // namespace

Source::Source(const Checkpoint& checkpoint, const ModelConfig& model, const Json& config, bool mtp,
               bool keep_resident)
    : checkpoint_(checkpoint), model_(model) {
  const auto candidates = {"model.language_model.", "language_model.model.", "model.", ""};
  const auto* prefix = std::ranges::find_if(
      candidates, [&](const char* p) { return find(std::string(p) + "embed_tokens.weight") != nullptr; });
  if (prefix == candidates.end())
    fail(Errc::Corrupt, "{}: no embed_tokens.weight under any known prefix", checkpoint.folder().string());
  prefix_ = *prefix;
  for (const char* key : {"quantization", "quantization_config"})
    if (quantisation_.is_null() && config.contains(key) && config[key].is_object())
      quantisation_ = config[key];
  const CheckpointTensor* conv = nullptr;
  for (uint64_t l = 0; l < model_.n_layers() && !conv; ++l)
    conv = find(fmt::format("{}layers.{}.linear_attn.conv1d.weight", prefix_, l));
  // MLX conversions keep the convolution as [channels, width, 1]; only they have 1 added to their norms.
  mlx_ = conv && conv->info.shape.size() == 3 && conv->info.shape[2] == 1 && model_.delta.conv_width != 1;

  has_mtp_ = checkpoint_.find("mtp.fc.weight") ||
             checkpoint_.find(fmt::format("{}layers.{}.eh_proj.weight", prefix_, model_.n_layers()));
  if (mtp && !has_mtp_)
    fail(Errc::NotFound, "{}: --mtp was given, but there is no multi-token-prediction layer",
         checkpoint.folder().string());
  options_.mtp = mtp;
  if (model_.has(Mixer::Mla) && !mla_is_split()) {
    // Coded rows cannot be transposed without loss; otherwise the transposed key matrix is the faster one.
    options_.mla_key_transposed = !(keep_resident && mla_is_coded());
  }
  resident_ = resident_schema(model_, options_);
  parts_ = expert_schema(model_);
  for (const TensorSpec& spec : resident_) spec.matrix ? resolve_matrix(spec) : resolve_vector(spec);
  for (const uint64_t layer : expert_layers(model_, options_)) check_expert_formats(layer);
  sort_leftovers();
  resolving_ = false;
}

const CheckpointTensor* Source::find(const std::string& name) const {
  const CheckpointTensor* t = checkpoint_.find(name);
  if (t && resolving_) used_[t] = true;  // workers read concurrently later
  return t;
}

const CheckpointTensor& Source::need(const std::string& name, const std::string& what) const {
  const CheckpointTensor* t = find(name);
  if (!t) fail(Errc::Corrupt, "{}: tensor {} is missing{}", checkpoint_.folder().string(), name, what);
  return *t;
}

bool Source::mla_is_split() const { return checkpoint_.find(prefix_ + "layers.0.self_attn.embed_q.weight"); }

// Whether any layer's kv_b_proj is quantised.
bool Source::mla_is_coded() const {
  for (uint64_t l = 0; l < model_.n_layers() + options_.mtp; ++l) {
    const std::string path = source_name(layer_prefix(model_, l) + "self_attn.kv_b_proj");
    const CheckpointTensor* weight = checkpoint_.find(path + ".weight");
    if ((weight && !is_plain(weight->info.type)) || checkpoint_.find(path + ".weight_packed")) return true;
  }
  return false;
}

std::string Source::moe_prefix(uint64_t layer) const {
  return source_name(layer_prefix(model_, layer)) + published_moe_prefix(model_);
}

// The checkpoint's name for a name of the package (module path, without ".weight").
std::string Source::source_name(const std::string& name) const {
  if (name == "lm_head") {
    const bool wrapped = checkpoint_.find("language_model.lm_head.weight");
    return wrapped ? "language_model.lm_head" : "lm_head";
  }
  std::string n = name;
  if (n.starts_with("mtp.")) {
    if (checkpoint_.find("mtp.fc.weight")) return n;
    static const std::map<std::string, std::string> kHeads = {{"mtp.fc", "eh_proj"},
                                                              {"mtp.pre_fc_norm_embedding", "enorm"},
                                                              {"mtp.pre_fc_norm_hidden", "hnorm"},
                                                              {"mtp.norm", "shared_head.norm"}};
    const auto it = kHeads.find(n);
    n = fmt::format("layers.{}.{}", model_.n_layers(), it != kHeads.end() ? it->second : n.substr(13));
  }
  return prefix_ + published_name(model_, n);
}

// -- resident tensors

void Source::resolve_vector(const TensorSpec& spec) {
  const std::string name = source_name(spec.name);
  const bool weight = has_weight_suffix(name);
  const CheckpointTensor& t = need(weight ? name + ".weight" : name, "");
  if (!is_plain(t.info.type)) wrong_shape(t.info, "BF16, F16 or F32");
  const bool conv = spec.name.ends_with("conv1d");
  const std::vector<uint64_t> want = !conv  ? std::vector{spec.cols}
                                     : mlx_ ? std::vector{spec.rows, spec.cols, 1ul}
                                            : std::vector{spec.rows, 1ul, spec.cols};
  check_shape(t.info, want, 0);
  SourceVector v{&t, 0, spec.rows * spec.cols};
  const bool norm = weight && !conv && !spec.name.ends_with("linear_attn.norm");
  if (norm && model_.zero_centred_norms && !mlx_) v.add = 1;
  vectors_[spec.name] = v;
}

void Source::resolve_matrix(const TensorSpec& spec) {
  const std::string path = source_name(spec.name);
  SourceMatrix m = special_matrix(spec, path);
  if (!m.weight) {
    m = module(path, spec.rows, spec.cols, 0);
    m.runs = {{0, spec.rows}};
  }
  m.rows = spec.rows;
  m.cols = spec.cols;
  matrices_[spec.name] = std::move(m);
}

// Matrices that a checkpoint keeps inside others; an empty one where this is none of them.
SourceMatrix Source::special_matrix(const TensorSpec& spec, const std::string& path) const {
  const std::string parent = path.substr(0, path.rfind('.') + 1),
                    leaf = spec.name.substr(spec.name.rfind('.') + 1);
  const DeltaConfig& d = model_.delta;
  if (leaf.starts_with("in_proj_") && checkpoint_.find(parent + "in_proj_qkvz.weight")) {
    // Grouped by key head: q | k | its value heads' v | their z, and b | a.
    const uint64_t share = d.n_value_heads / d.n_key_heads, v = share * d.value_dim,
                   block = 2 * (d.key_dim + v);
    const bool ba = leaf == "in_proj_b" || leaf == "in_proj_a";
    SourceMatrix m = ba ? module(parent + "in_proj_ba", 2 * d.n_value_heads, spec.cols, 0)
                        : module(parent + "in_proj_qkvz", d.n_key_heads * block, spec.cols, 0);
    const auto gather = [&](uint64_t begin, uint64_t count, uint64_t stride) {
      for (uint64_t g = 0; g < d.n_key_heads; ++g) m.runs.push_back({g * stride + begin, count});
    };
    if (leaf == "in_proj_qkv") {
      gather(0, d.key_dim, block);
      gather(d.key_dim, d.key_dim, block);
      gather(2 * d.key_dim, v, block);
    }
    if (leaf == "in_proj_z") gather(2 * d.key_dim + v, v, block);
    if (leaf == "in_proj_b") gather(0, share, 2 * share);
    if (leaf == "in_proj_a") gather(share, share, 2 * share);
    return m;
  }
  const MlaConfig& a = model_.mla;
  const uint64_t heads = model_.attention.n_heads;
  if (leaf != "k_up" && leaf != "k_up_t" && leaf != "v_up") return {};
  if (mla_is_split()) {  // [heads, kv_rank, nope_dim] and [heads, value_dim, kv_rank]: stacked, all slabs in
                         // order
    const bool key = leaf == "k_up_t";
    SourceMatrix m =
        module(parent + (key ? "embed_q" : "unembed_out"), key ? a.kv_rank : a.value_dim, spec.cols, heads);
    m.stored_rows *= heads;
    m.runs = {{0, spec.rows}};
    return m;
  }
  const uint64_t block = a.nope_dim + a.value_dim;
  SourceMatrix m = module(parent + "kv_b_proj", heads * block, a.kv_rank, 0);
  for (uint64_t h = 0; h < heads; ++h) {
    if (leaf == "v_up") m.runs.push_back({h * block + a.nope_dim, a.value_dim});
    if (leaf == "k_up") m.runs.push_back({h * block, a.nope_dim});
    if (leaf == "k_up_t") m.transposed.push_back({h * block, {0, a.kv_rank}});
  }
  return m;
}

// -- modules: a linear under its path, whatever its coding. slabs: 0, or the leading dimension of a stacked
// one.

SourceMatrix Source::plain_matrix(const CheckpointTensor& weight, uint64_t rows, uint64_t cols,
                                  uint64_t slabs) const {
  check_shape(weight.info, {rows, cols}, slabs);
  if (!is_plain(weight.info.type)) wrong_shape(weight.info, "BF16, F16 or F32 (or F8_E4M3 with its scales)");
  SourceMatrix m;
  m.weight = &weight;
  m.stored_rows = rows;
  m.stored_cols = cols;
  m.format = plain_format(weight.info.type);
  return m;
}

SourceMatrix Source::module(const std::string& path, uint64_t rows, uint64_t cols, uint64_t slabs) const {
  if (find(path + ".weight_packed")) return packed_module(path, rows, cols);
  if (ends_with_any(path, {"_proj"}) && (find(path + ".qweight")))
    fail(Errc::Unsupported, "tensor {}.qweight: GPTQ and AWQ checkpoints are not supported", path);
  const CheckpointTensor& weight = need(path + ".weight", "");
  return coded_module(path, weight, rows, cols, slabs);
}

SourceMatrix Source::coded_module(const std::string& path, const CheckpointTensor& weight, uint64_t rows,
                                  uint64_t cols, uint64_t slabs) const {
  const TensorInfo& info = weight.info;
  SourceMatrix m;
  m.weight = &weight;
  m.stored_rows = rows;
  m.stored_cols = cols;
  if (info.type == DType::F8E4M3) {
    const bool bare = !info.name.ends_with(".weight");
    m.scales = find(info.name + "_scale_inv");
    if (!m.scales) m.scales = find(bare ? info.name + "_scale" : path + ".weight_scale");
    if (!m.scales) fail(Errc::Corrupt, "tensor {}: F8_E4M3 without {}_scale_inv", info.name, info.name);
    const DType t = m.scales->info.type;
    if (!is_plain(t) && t != DType::U8 && t != DType::F8E8M0) wrong_shape(m.scales->info, "a scale type");
    check_shape(info, {rows, cols}, slabs);
    std::vector<uint64_t> blocks = {ceil_div(rows, 128), ceil_div(cols, 128)};
    const auto& shape = m.scales->info.shape;
    if (slabs == 0 && shape != blocks && m.scales->info.elements() == 1)
      m.fp8_scales = SourceMatrix::Fp8Scales::Tensor;
    else if (slabs == 0 && shape != blocks && shape == std::vector<uint64_t>{rows, 1})
      m.fp8_scales = SourceMatrix::Fp8Scales::Rows;
    else
      check_shape(m.scales->info, std::move(blocks), slabs);
    m.coding = SourceMatrix::Coding::Fp8;
    m.format = MatrixFormat::fp8();
    return m;
  }
  m.scales = find(path + ".scales");
  if (info.type != DType::U32 || !m.scales) {
    if (m.scales || info.type == DType::U32 || info.type == DType::U8)
      fail(Errc::Unsupported, "tensor {}: {} {}: this kind of quantisation is not supported", info.name,
           to_string(info.type), m.scales ? "with scales" : "without scales");
    m.scales = nullptr;
    return plain_matrix(weight, rows, cols, slabs);
  }
  // MLX. Width and groups follow from the shapes; the table in config.json must agree where it speaks.
  const Json* setting = quantisation_.contains(path) ? &quantisation_[path] : &quantisation_;
  std::string mode = "affine";  // which is the one with biases, whatever else the table speaks of
  if (!checkpoint_.find(path + ".biases"))
    for (const Json* table : {&quantisation_, setting})
      if (table->is_object() && table->contains("mode") && (*table)["mode"].is_string())
        mode = (*table)["mode"].get<std::string>();
  const uint64_t words = info.shape.empty() ? 0 : info.shape.back();
  const uint64_t groups = m.scales->info.shape.empty() ? 0 : m.scales->info.shape.back();
  if (groups == 0 || cols % groups != 0 || words * 32 % cols != 0)
    wrong_shape(info, fmt::format("{} columns in {} groups", cols, groups));
  const uint64_t group = cols / groups, bits = words * 32 / cols;
  check_shape(info, {rows, words}, slabs);
  check_shape(m.scales->info, {rows, groups}, slabs);
  if (setting->is_object() && setting->contains("bits") && setting->contains("group_size") &&
      ((*setting)["bits"] != bits || (*setting)["group_size"] != group))
    fail(Errc::Corrupt, "tensor {}: its shapes make {} bits in groups of {}, config.json says {} and {}",
         info.name, bits, group, (*setting)["bits"].dump(), (*setting)["group_size"].dump());
  if (mode == "mxfp4" && bits == 4 && group == 32 && m.scales->info.type == DType::U8) {
    m.coding = SourceMatrix::Coding::Mxfp4;
    m.format = MatrixFormat::mxfp4();
    return m;
  }
  if (mode != "affine")
    fail(Errc::Unsupported, "tensor {}: MLX quantisation mode '{}' is not supported (affine and mxfp4 are)",
         info.name, mode);
  constexpr uint64_t kBits[] = {2, 3, 4, 5, 6, 8};
  if (std::ranges::find(kBits, bits) == std::end(kBits) || (group != 32 && group != 64 && group != 128))
    fail(Errc::Unsupported,
         "tensor {}: {} bits in groups of {} (2-6 and 8 bits, groups of 32, 64 and 128 are known)", info.name,
         bits, group);
  m.biases = &need(path + ".biases", "");
  check_shape(m.biases->info, {rows, groups}, slabs);
  for (const CheckpointTensor* t : {m.scales, m.biases})
    if (!is_plain(t->info.type)) wrong_shape(t->info, "BF16, F16 or F32");
  const bool same = m.scales->info.type == m.biases->info.type;
  m.coding = SourceMatrix::Coding::Bits;
  m.bits = static_cast<int>(bits);
  m.format = MatrixFormat::affine(m.bits, static_cast<uint16_t>(group),
                                  same ? scale_type(m.scales->info.type) : ScaleType::F32);
  return m;
}

// compressed-tensors "pack-quantized": symmetric integers with a scale per group.
SourceMatrix Source::packed_module(const std::string& path, uint64_t rows, uint64_t cols) const {
  SourceMatrix m;
  m.weight = &need(path + ".weight_packed", "");
  m.scales = &need(path + ".weight_scale", "");
  find(path + ".weight_shape");
  for (const char* suffix : {".weight_zero_point", ".weight_g_idx"})
    if (find(path + suffix))
      fail(Errc::Unsupported, "tensor {}{}: asymmetric or reordered packed weights are not supported", path,
           suffix);
  const TensorInfo& info = m.weight->info;
  if (info.type != DType::I32 || !is_plain(m.scales->info.type) || info.shape.size() != 2)
    wrong_shape(info, "I32 with BF16, F16 or F32 scales");
  const uint64_t groups = m.scales->info.shape.empty() ? 0 : m.scales->info.shape.back();
  const uint64_t bits = info.shape[1] * 32 / cols;
  if ((bits != 4 && bits != 8) || groups == 0 || cols % groups != 0)
    wrong_shape(info, fmt::format("4 or 8 bits of {} columns in {} groups", cols, groups));
  check_shape(info, {rows, cols * bits / 32}, 0);
  check_shape(m.scales->info, {rows, groups}, 0);
  const uint64_t group = cols / groups;
  if (group != 32 && group != 64 && group != 128)
    fail(Errc::Unsupported, "tensor {}: groups of {} (32, 64 and 128 are known)", info.name, group);
  m.coding = SourceMatrix::Coding::Bits;
  m.bits = static_cast<int>(bits);
  m.symmetric = true;
  m.stored_rows = rows;
  m.stored_cols = cols;
  m.format = MatrixFormat::affine(m.bits, static_cast<uint16_t>(group), scale_type(m.scales->info.type));
  return m;
}

// gpt-oss: X_blocks [slabs, rows, cols/32, 16] and X_scales [slabs, rows, cols/32].
SourceMatrix Source::blocks_module(const std::string& path, uint64_t rows, uint64_t cols,
                                   uint64_t slabs) const {
  SourceMatrix m;
  m.weight = &need(path + "_blocks", "");
  m.scales = &need(path + "_scales", "");
  check_shape(m.weight->info, {rows, cols / 32, 16}, slabs);
  check_shape(m.scales->info, {rows, cols / 32}, slabs);
  if (cols % 32 != 0 || m.weight->info.type != DType::U8 || m.scales->info.type != DType::U8)
    wrong_shape(m.weight->info, "U8 blocks of 32 columns with U8 scales");
  m.coding = SourceMatrix::Coding::Mxfp4;
  m.stored_rows = rows;
  m.stored_cols = cols;
  m.format = MatrixFormat::mxfp4();
  return m;
}

// -- experts

SourceMatrix Source::expert_matrix(uint64_t layer, uint64_t expert, size_t part) const {
  const std::string p = moe_prefix(layer);
  const TensorSpec& spec = parts_[part];
  const uint64_t n = model_.moe.n_experts;
  static constexpr const char* kNames[] = {"gate_proj", "up_proj", "down_proj"};
  static constexpr const char* kShort[] = {"w1", "w3", "w2"};
  SourceMatrix m;
  std::string one;
  for (const char* name : {kNames[part], kShort[part]}) {
    const std::string path = fmt::format("{}experts.{}.{}", p, expert, name);
    if (checkpoint_.find(path + ".weight") || checkpoint_.find(path + ".weight_packed")) one = path;
  }
  std::string stacked;
  for (const char* folder : {"switch_mlp.", "experts."})
    if (checkpoint_.find(p + folder + kNames[part] + ".weight")) stacked = p + folder + kNames[part];
  if (!one.empty()) {
    m = module(one, spec.rows, spec.cols, 0);
  } else if (!stacked.empty()) {
    m = module(stacked, spec.rows, spec.cols, n);
    m.slab = expert;
  } else if (checkpoint_.find(p + "experts.down_proj") || checkpoint_.find(p + "experts.down_proj_blocks")) {
    m = fused_expert(p + "experts.", expert, part);
  } else {
    fail(Errc::Corrupt, "{}: tensor {}experts.{}.{}.weight is missing (nor is there a stacked or fused one)",
         checkpoint_.folder().string(), p, expert, p.ends_with("mlp.") ? kNames[part] : kShort[part]);
  }
  if (m.runs.empty() && m.transposed.empty()) m.runs = {{0, spec.rows}};
  m.rows = spec.rows;
  m.cols = spec.cols;
  return m;
}

// experts.gate_up_proj and experts.down_proj, without ".weight".
SourceMatrix Source::fused_expert(const std::string& p, uint64_t expert, size_t part) const {
  const uint64_t n = model_.moe.n_experts, d = model_.d_model, width = model_.moe.width;
  const bool down = part == 2;
  const std::string path = p + (down ? "down_proj" : "gate_up_proj");
  const uint64_t rows = down ? d : 2 * width, cols = down ? width : d;
  SourceMatrix m;
  if (checkpoint_.find(path + "_blocks")) {
    m = blocks_module(path, rows, cols, n);
    m.runs = {down ? RowRun{0, d} : RowRun{part, width, 2}};  // gate and up rows alternate
  } else if (model_.family == "gpt_oss") {                    // stored [in, out]
    m = plain_matrix(need(path, ""), cols, rows, n);
    m.transposed = {{0, down ? RowRun{0, d} : RowRun{part, width, 2}}};
  } else {
    m = coded_module(path, need(path, ""), rows, cols, n);
    m.runs = {down ? RowRun{0, d} : RowRun{part * width, width}};
  }
  m.slab = expert;
  return m;
}

SourceVector Source::expert_vector(uint64_t layer, uint64_t expert, size_t part) const {
  const std::string p = moe_prefix(layer) + "experts.";
  const uint64_t n = model_.moe.n_experts, width = model_.moe.width, d = model_.d_model;
  static constexpr const char* kNames[] = {"gate_proj.bias", "up_proj.bias", "down_proj.bias"};
  SourceVector v;
  if (const CheckpointTensor* split = find(p + kNames[part - 3])) {
    check_shape(split->info, {parts_[part].cols}, n);
    v = {split, expert * parts_[part].cols, parts_[part].cols};
  } else if (part == 5) {
    const CheckpointTensor& t = need(p + "down_proj_bias", "");
    check_shape(t.info, {d}, n);
    v = {&t, expert * d, d};
  } else {
    const CheckpointTensor& t = need(p + "gate_up_proj_bias", "");
    check_shape(t.info, {2 * width}, n);
    v = {&t, expert * 2 * width + (part - 3), width, 2};
  }
  if (!is_plain(v.tensor->info.type)) wrong_shape(v.tensor->info, "BF16, F16 or F32");
  return v;
}

// All experts of a layer must be coded alike: they share one record layout. Visits (and so marks) every
// tensor.
void Source::check_expert_formats(uint64_t layer) {
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (!parts_[part].matrix) {
      for (uint64_t e = 0; e < model_.moe.n_experts; ++e) expert_vector(layer, e, part);
      continue;
    }
    const MatrixFormat first = expert_matrix(layer, 0, part).format;
    for (uint64_t e = 1; e < model_.moe.n_experts; ++e)
      if (const MatrixFormat f = expert_matrix(layer, e, part).format; f != first)
        fail(Errc::Unsupported,
             "layer {}: expert {} is stored as {}, expert 0 as {}: mixed formats within a layer", layer, e,
             to_string(f), to_string(first));
  }
}

// -- what is left

void Source::sort_leftovers() {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(&tensor)) continue;
    const bool own = name.starts_with(prefix_ + "layers.");
    uint64_t index = 0;
    if (own) index = std::strtoull(name.c_str() + prefix_.size() + 7, nullptr, 10);
    if (starts_with_any(name, {"model.visual.", "visual.", "vision_tower.", "vision_model.",
                               "model.vision_tower.", "mm_projector.", "multi_modal_projector.",
                               "model.multi_modal_projector.", "vision_embed_tokens.", "audio_tower."}))
      ++ignored_["vision"];
    else if (name.starts_with("mtp.") || name.starts_with("model.mtp") || (own && index >= model_.n_layers()))
      ++ignored_[options_.mtp ? "copies in the multi-token-prediction layer"
                              : "multi-token prediction (--mtp keeps it)"];
    else if (ends_with_any(name,
                           {"rotary_emb.inv_freq", ".input_scale", ".k_scale", ".v_scale", ".masked_bias"}))
      ++ignored_["buffers without weights"];
    else if (model_.tied_embeddings && name.find("lm_head") != std::string::npos)
      ++ignored_["head (tied to the embedding)"];
    else
      fail(Errc::Unsupported, "{}: tensor {} {} does not belong to a {} model of this config.json",
           checkpoint_.folder().string(), name, shape_text(tensor.info.shape), model_.family);
  }
}

// -- reading

namespace {

// Bits of one stored element in its row's bit stream.
uint64_t element_bits(const SourceMatrix& m) {
  switch (m.coding) {
    case SourceMatrix::Coding::Bits:
      return static_cast<uint64_t>(m.bits);
    case SourceMatrix::Coding::Fp8:
      return 8;
    case SourceMatrix::Coding::Mxfp4:
      return 4;
    case SourceMatrix::Coding::Plain:
      break;
  }
  return bits_of(m.weight->info.type);
}

}  // namespace

void rows_to_float(const SourceMatrix& m, const SourceRows& rows, uint64_t row, float* out) {
  if (rows.codes.empty()) {
    const size_t size = bits_of(rows.type) / 8;
    const std::byte* in = &rows.plain[row * rows.cols * size];
    if (rows.type == DType::BF16)  // most of all bytes that are ever converted
      for (uint64_t c = 0; c < rows.cols; ++c) out[c] = plain_to_float(DType::BF16, in + 2 * c);
    else
      for (uint64_t c = 0; c < rows.cols; ++c) out[c] = plain_to_float(rows.type, in + c * size);
    return;
  }
  const uint64_t groups = ceil_div(rows.cols, rows.group);
  const uint8_t* codes = &rows.codes[row * rows.cols];
  for (uint64_t c = 0; c < rows.cols; ++c) {
    const uint64_t g = row * groups + c / rows.group;
    switch (m.coding) {
      case SourceMatrix::Coding::Bits:
        out[c] = rows.scales[g] * static_cast<float>(codes[c]) + rows.biases[g];
        break;
      case SourceMatrix::Coding::Fp8:
        out[c] = e4m3_to_float(codes[c]) * rows.scales[g];
        break;
      default:
        out[c] = kE2m1[codes[c]] * rows.scales[g];
    }
  }
}

void Source::read_rows(const SourceMatrix& m, uint64_t first, uint64_t count, SourceRows& out) const {
  check(first + count <= m.rows, "rows of the matrix");
  out.n = count;
  out.cols = m.cols;
  out.group = m.format.group;
  out.type = m.weight->info.type;
  if (!m.transposed.empty()) return read_transposed(m, first, count, out);
  const uint64_t groups = m.is_coded() ? ceil_div(m.cols, m.format.group) : 0;
  out.codes.resize(m.is_coded() ? count * m.cols : 0);
  out.scales.resize(count * groups);
  out.biases.resize(m.coding == SourceMatrix::Coding::Bits ? count * groups : 0);
  out.plain.resize(m.is_coded() ? 0 : count * m.cols * element_bits(m) / 8);
  uint64_t row = 0;
  for (const RowRun& run : m.runs) {
    const uint64_t from = std::max(first, row), to = std::min(first + count, row + run.count);
    if (from < to) read_run(m, {run.first + (from - row) * run.step, to - from, run.step}, from - first, out);
    row += run.count;
  }
}

// Rows of `run` of one slab into the rows of `out` from `at` on.
void Source::read_run(const SourceMatrix& m, const RowRun& run, uint64_t at, SourceRows& out) const {
  const uint64_t bytes = m.stored_cols * element_bits(m) / 8,
                 begin = (m.slab * m.stored_rows + run.first) * bytes;
  if (!m.is_coded() && run.step == 1)
    return checkpoint_.read(*m.weight, begin, std::span(out.plain).subspan(at * bytes, run.count * bytes));
  std::vector<std::byte> raw(((run.count - 1) * run.step + 1) * bytes);
  checkpoint_.read(*m.weight, begin, raw);
  for (uint64_t i = 0; i < run.count; ++i) {
    const std::byte* in = raw.data() + i * run.step * bytes;
    if (m.is_coded())
      unpack_bits(in, static_cast<int>(element_bits(m)), m.cols, &out.codes[(at + i) * m.cols]);
    else
      std::memcpy(&out.plain[(at + i) * bytes], in, bytes);
  }
  if (m.is_coded()) read_scales(m, run, at, out);
}

void Source::read_scales(const SourceMatrix& m, const RowRun& run, uint64_t at, SourceRows& out) const {
  const uint64_t groups = ceil_div(m.cols, m.format.group);
  // How many rows share a scale row, and how many scales lie in one.
  uint64_t share = 1, width = groups;
  if (m.coding == SourceMatrix::Coding::Fp8) {
    using Scales = SourceMatrix::Fp8Scales;
    share = m.fp8_scales == Scales::Blocks ? 128 : m.fp8_scales == Scales::Rows ? 1 : m.stored_rows;
    width = m.fp8_scales == Scales::Blocks ? groups : 1;
  }
  const uint64_t slab_rows = ceil_div(m.stored_rows, share), low = run.first / share;
  const uint64_t high = (run.first + (run.count - 1) * run.step) / share;
  const auto read = [&](const CheckpointTensor& t, std::vector<float>& into) {
    const size_t size = bits_of(t.info.type) / 8;
    std::vector<std::byte> raw((high - low + 1) * width * size);
    checkpoint_.read(t, (m.slab * slab_rows + low) * width * size, raw);
    for (uint64_t i = 0; i < run.count; ++i) {
      const uint64_t scale_row = (run.first + i * run.step) / share - low;
      for (uint64_t g = 0; g < groups; ++g)
        into[(at + i) * groups + g] =
            plain_to_float(t.info.type, &raw[(scale_row * width + (width == 1 ? 0 : g)) * size]);
    }
  };
  read(*m.scales, out.scales);
  if (m.biases) read(*m.biases, out.biases);
  if (m.symmetric)  // (code - half) * scale = scale * code + bias; a power of two times a scale is exact
    for (uint64_t i = at * groups; i < (at + run.count) * groups; ++i)
      out.biases[i] = -out.scales[i] * static_cast<float>(1 << (m.bits - 1));
}

// Every stored row crosses every wanted one: each block is read whole, and the result is float.
void Source::read_transposed(const SourceMatrix& m, uint64_t first, uint64_t count, SourceRows& out) const {
  SourceMatrix straight = m;
  straight.transposed.clear();
  straight.rows = m.stored_rows;
  straight.cols = m.stored_cols;
  straight.runs = {{0, m.stored_rows}};
  out.codes.clear();
  out.type = DType::F32;
  out.plain.resize(count * m.cols * sizeof(float));
  auto* values = reinterpret_cast<float*>(out.plain.data());
  constexpr uint64_t kStrip =
      32;  // stored rows at a time: each wanted row then gets this many values in one piece
  std::vector<float> strip(kStrip * m.stored_cols);
  SourceRows block;
  uint64_t row = 0;
  for (const TransposedRun& run : m.transposed) {
    const uint64_t from = std::max(first, row), to = std::min(first + count, row + run.columns.count);
    if (from < to) read_rows(straight, run.row0, m.cols, block);
    for (uint64_t c = 0; from < to && c < m.cols; c += kStrip) {
      const uint64_t n = std::min(kStrip, m.cols - c);
      for (uint64_t i = 0; i < n; ++i) rows_to_float(straight, block, c + i, &strip[i * m.stored_cols]);
      for (uint64_t r = from; r < to; ++r) {
        const float* in = &strip[run.columns.first + (r - row) * run.columns.step];
        float* at = values + (r - first) * m.cols + c;
        for (uint64_t i = 0; i < n; ++i) at[i] = in[i * m.stored_cols];
      }
    }
    row += run.columns.count;
  }
}

std::vector<float> Source::read_vector(const SourceVector& v) const {
  const DType type = v.tensor->info.type;
  const size_t size = bits_of(type) / 8;
  std::vector<std::byte> raw(((v.count - 1) * v.step + 1) * size);
  checkpoint_.read(*v.tensor, v.first * size, raw);
  std::vector<float> out(v.count);
  for (uint64_t i = 0; i < v.count; ++i) out[i] = v.add + plain_to_float(type, &raw[i * v.step * size]);
  return out;
}

}  // namespace moeflux
