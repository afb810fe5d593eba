#include "package/manifest.h"

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/hash.h"
#include "base/json.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxDim = 1ull << 40;

Json tensor_to_json(const StoredTensor& t) {
  return {
      {"name", t.name}, {"format", t.tiled ? to_string(t.format) : "plain-f32"}, {"shape", {t.rows, t.cols}}};
}

StoredTensor tensor_from_json(const Json& json, const std::string& list) {
  const JsonObject o(json, list);
  StoredTensor t;
  t.name = o.string("name");
  const std::string where = fmt::format("{}: {}", list, t.name), format = o.string("format");
  t.tiled = format != "plain-f32";
  if (t.tiled) t.format = matrix_format_from_string(format, where);
  const Json& shape = o.at("shape");
  if (!shape.is_array() || shape.size() != 2) o.wrong("shape", "a pair [rows, cols]");
  for (const Json& d : shape)
    if (!d.is_number_unsigned() || d.get<uint64_t>() < 1 || d.get<uint64_t>() > kMaxDim)
      o.wrong("shape", "a pair of positive whole numbers");
  t.rows = shape[0].get<uint64_t>();
  t.cols = shape[1].get<uint64_t>();
  t.bytes = stored_bytes(t);
  return t;
}

// The members of the array `key`, each of which must be an object.
const Json& array_of(const JsonObject& o, const char* key) {
  const Json& list = o.at(key);
  if (!list.is_array()) o.wrong(key, "a list");
  return list;
}

ExpertLayer layer_from_json(const Json& json, const std::string& list) {
  const JsonObject o(json, list);
  ExpertLayer layer;
  layer.layer = o.count("layer", 0, 1u << 20);
  const std::string where = fmt::format("{}: layer {}", list, layer.layer);
  layer.file = o.string("file");
  if (layer.file != fmt::format("experts/layer_{:03}.bin", layer.layer))
    o.wrong("file", fmt::format("experts/layer_{:03}.bin", layer.layer).c_str());
  for (const Json& part : array_of(o, "parts")) layer.parts.push_back(tensor_from_json(part, where));
  const uint64_t bytes = lay_out_record(layer.parts);
  layer.record_bytes = o.count("record_bytes", 1, UINT64_MAX);
  if (layer.record_bytes != bytes)
    fail(Errc::Corrupt, "{}: record_bytes is {}, but its parts need {}", where, layer.record_bytes, bytes);
  for (const Json& sum : array_of(o, "xxh3")) {
    if (!sum.is_string()) o.wrong("xxh3", "a list of strings");
    layer.xxh3.push_back(from_hex(sum.get<std::string>(), where + ": xxh3"));
  }
  if (layer.xxh3.empty()) o.wrong("xxh3", "one checksum per expert");
  checked_mul(layer.record_bytes, layer.n_experts(), where);
  return layer;
}

}  // namespace

uint64_t stored_bytes(const StoredTensor& t) {
  return t.tiled ? matrix_bytes(t.format, t.rows, t.cols)
                 : checked_mul(checked_mul(t.rows, t.cols, t.name), sizeof(float), t.name);
}

uint64_t lay_out_record(std::vector<StoredTensor>& parts) {
  uint64_t at = 0;
  for (StoredTensor& p : parts) {
    p.offset = at;
    p.bytes = stored_bytes(p);
    at = align_up(checked_add(at, p.bytes, "expert record"), kTensorAlignment);
  }
  return align_up(at, kRecordAlignment);
}

uint64_t Manifest::resident_bytes() const {
  uint64_t sum = 0;
  for (const ResidentTensor& r : resident) sum += align_up(r.tensor.bytes, kTensorAlignment);
  return sum;
}

uint64_t Manifest::expert_bytes() const {
  uint64_t sum = 0;
  for (const ExpertLayer& l : layers) sum += l.record_bytes * l.n_experts();
  return sum;
}

const ExpertLayer* Manifest::find_layer(uint64_t layer) const {
  const auto it = std::ranges::find(layers, layer, &ExpertLayer::layer);
  return it == layers.end() ? nullptr : &*it;
}

uint64_t Manifest::identity() const {
  Manifest weights = *this;
  weights.source.clear();  // is for people, as are the errors
  weights.error.clear();
  return xxh3(write_manifest(weights));
}

std::string write_manifest(const Manifest& m) {
  Json json = {
      {"format", "moeflux-package"}, {"version", kPackageVersion},           {"family", m.family},
      {"source", m.source},          {"config_xxh3", to_hex(m.config_xxh3)}, {"quantisation_error", m.error}};
  Json resident = Json::array(), experts = Json::array();
  for (const ResidentTensor& r : m.resident) {
    Json entry = tensor_to_json(r.tensor);
    entry["xxh3"] = to_hex(r.xxh3);
    resident.push_back(std::move(entry));
  }
  for (const ExpertLayer& l : m.layers) {
    Json parts = Json::array(), sums = Json::array();
    for (const StoredTensor& p : l.parts) parts.push_back(tensor_to_json(p));
    for (const uint64_t sum : l.xxh3) sums.push_back(to_hex(sum));
    experts.push_back({{"layer", l.layer},
                       {"file", l.file},
                       {"record_bytes", l.record_bytes},
                       {"parts", parts},
                       {"xxh3", sums}});
  }
  json["resident"] = std::move(resident);
  json["experts"] = std::move(experts);
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonObject o(json, where);
  if (o.string("format") != "moeflux-package") o.wrong("format", "'moeflux-package'");
  const uint64_t version = o.count("version", 1, UINT64_MAX);
  if (version != kPackageVersion)
    fail(Errc::Unsupported, "{}: package version {}, this program reads version {}", where, version,
         kPackageVersion);
  Manifest m;
  m.family = o.string("family");
  m.source = o.string("source");
  m.config_xxh3 = from_hex(o.string("config_xxh3"), where + ": config_xxh3");
  if (const Json* errors = o.find("quantisation_error")) {
    if (!errors->is_object()) o.wrong("quantisation_error", "an object");
    for (const auto& [cls, value] : errors->items()) {
      if (!value.is_number()) o.wrong("quantisation_error", "numbers");
      m.error[cls] = value.get<double>();
    }
  }
  std::set<std::string> names;
  for (const Json& entry : array_of(o, "resident")) {
    ResidentTensor r;
    r.tensor = tensor_from_json(entry, where + ": resident");
    const std::string name = fmt::format("{}: resident: {}", where, r.tensor.name);
    r.xxh3 = from_hex(JsonObject(entry, name).string("xxh3"), name);
    if (!names.insert(r.tensor.name).second) fail(Errc::Corrupt, "{} stands twice", name);
    m.resident.push_back(std::move(r));
  }
  for (const Json& entry : array_of(o, "experts")) {
    m.layers.push_back(layer_from_json(entry, where + ": experts"));
    if (m.layers.size() > 1 && m.layers.back().layer <= m.layers[m.layers.size() - 2].layer)
      fail(Errc::Corrupt, "{}: experts: layer {} is out of order", where, m.layers.back().layer);
  }
  return m;
}

}  // namespace moeflux
