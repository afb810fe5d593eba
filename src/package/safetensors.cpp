#include "package/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/json.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxHeaderBytes = 256u << 20;

constexpr struct {
  DType type;
  const char* name;
  size_t bits;
} kTypes[] = {
    {DType::F64, "F64", 64},       {DType::F32, "F32", 32},       {DType::F16, "F16", 16},
    {DType::BF16, "BF16", 16},     {DType::I64, "I64", 64},       {DType::I32, "I32", 32},
    {DType::I16, "I16", 16},       {DType::I8, "I8", 8},          {DType::U64, "U64", 64},
    {DType::U32, "U32", 32},       {DType::U16, "U16", 16},       {DType::U8, "U8", 8},
    {DType::Bool, "BOOL", 8},      {DType::F8E4M3, "F8_E4M3", 8}, {DType::F8E5M2, "F8_E5M2", 8},
    {DType::F8E8M0, "F8_E8M0", 8}, {DType::F4, "F4", 4},
};

const Json& member(const Json& entry, const char* key, const std::string& where) {
  const auto it = entry.find(key);
  if (it == entry.end()) fail(Errc::Corrupt, "{}: no '{}'", where, key);
  return *it;
}

uint64_t whole(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned()) fail(Errc::Corrupt, "{}: {} is not a whole number", where, value.dump());
  return value.get<uint64_t>();
}

TensorInfo parse_entry(const std::string& name, const Json& entry, uint64_t data_start, uint64_t file_bytes,
                       const std::string& file) {
  const std::string where = fmt::format("{}: tensor {}", file, name);
  if (!entry.is_object()) fail(Errc::Corrupt, "{}: its entry is not an object", where);
  TensorInfo info;
  info.name = name;
  const Json& type = member(entry, "dtype", where);
  const auto* known = std::ranges::find_if(kTypes, [&](const auto& t) { return type == t.name; });
  if (known == std::end(kTypes)) fail(Errc::Unsupported, "{}: unknown dtype {}", where, type.dump());
  info.type = known->type;

  const Json& shape = member(entry, "shape", where);
  if (!shape.is_array() || shape.size() > 8)
    fail(Errc::Corrupt, "{}: shape {} is not a list", where, shape.dump());
  for (const Json& d : shape) info.shape.push_back(whole(d, where + ": shape"));

  const Json& offsets = member(entry, "data_offsets", where);
  if (!offsets.is_array() || offsets.size() != 2)
    fail(Errc::Corrupt, "{}: data_offsets {} is not a pair", where, offsets.dump());
  const uint64_t begin = whole(offsets[0], where + ": data_offsets");
  const uint64_t end = whole(offsets[1], where + ": data_offsets");
  uint64_t bits = known->bits;
  for (const uint64_t d : info.shape)
    bits = checked_mul(bits, d, where + ": shape " + shape_text(info.shape));
  if (begin > end || end - begin != ceil_div(bits, 8))
    fail(Errc::Corrupt, "{}: shape {} of {} needs {} bytes, its range {}..{} has {}", where,
         shape_text(info.shape), known->name, ceil_div(bits, 8), begin, end, begin > end ? 0 : end - begin);
  if (end > file_bytes - data_start)
    fail(Errc::Corrupt, "{}: needs bytes {}..{} of the data, but the file has {} after its header", where,
         begin, end, file_bytes - data_start);
  info.begin = data_start + begin;
  info.end = data_start + end;
  return info;
}

void refuse_overlaps(const std::vector<TensorInfo>& tensors, const std::string& file) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : tensors)
    if (t.bytes() > 0) order.push_back(&t);
  std::ranges::sort(order, {}, &TensorInfo::begin);
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->begin < order[i - 1]->end)
      fail(Errc::Corrupt, "{}: tensors {} (to byte {}) and {} (from byte {}) overlap", file,
           order[i - 1]->name, order[i - 1]->end, order[i]->name, order[i]->begin);
}

}  // namespace

const char* to_string(DType type) { return kTypes[static_cast<size_t>(type)].name; }
size_t bits_of(DType type) { return kTypes[static_cast<size_t>(type)].bits; }

uint64_t TensorInfo::elements() const {
  uint64_t n = 1;
  for (const uint64_t d : shape) n *= d;  // cannot overflow: the bytes were checked
  return n;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t d : shape) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", d);
  return text + "]";
}

std::string read_safetensors_header(const File& file) {
  const uint64_t file_bytes = file.size();
  if (file_bytes < 8)
    fail(Errc::Corrupt, "{}: {} bytes, too short for a safetensors file", file.path().string(), file_bytes);
  uint64_t n = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&n, 1)));
  if (n > file_bytes - 8)
    fail(Errc::Corrupt, "{}: its header claims {} bytes, the file has {}", file.path().string(), n,
         file_bytes);
  if (n > kMaxHeaderBytes)
    fail(Errc::Corrupt, "{}: its header claims {} bytes, more than the limit of {}", file.path().string(), n,
         kMaxHeaderBytes);
  std::string header(8 + n, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  return header;
}

std::vector<TensorInfo> parse_safetensors_table(std::string_view header, uint64_t file_bytes,
                                                const std::string& where) {
  const Json table = parse_json(header.substr(8), where);
  if (!table.is_object()) fail(Errc::Corrupt, "{}: its header is not a JSON object", where);
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : table.items())
    if (name != "__metadata__") tensors.push_back(parse_entry(name, entry, header.size(), file_bytes, where));
  refuse_overlaps(tensors, where);
  return tensors;
}

std::vector<TensorInfo> read_safetensors_table(const File& file) {
  return parse_safetensors_table(read_safetensors_header(file), file.size(), file.path().string());
}

std::string make_safetensors_header(std::vector<TensorInfo>& tensors, uint64_t alignment) {
  Json table = Json::object();
  uint64_t at = 0;
  for (TensorInfo& t : tensors) {
    t.begin = at;
    t.end = at += ceil_div(t.elements() * bits_of(t.type), 8);
    table[t.name] = {{"dtype", to_string(t.type)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = table.dump();
  text.resize(align_up(8 + text.size(), alignment) - 8, ' ');
  const uint64_t n = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &n, 8);
  header += text;
  for (TensorInfo& t : tensors) t.begin += header.size(), t.end += header.size();
  return header;
}

}  // namespace moeflux
