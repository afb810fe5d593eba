#include "support/checkpoint_builder.h"

#include <cstring>

namespace moeflux::test {

std::string raw_safetensors(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &n, 8);
  return file + header + data;
}

void write_safetensors(const fs::path& path, const std::map<std::string, RawTensor>& tensors) {
  std::vector<TensorInfo> table;
  for (const auto& [name, t] : tensors) table.push_back({name, t.type, t.shape, 0, 0});
  std::string file = make_safetensors_header(table, 8);
  for (const auto& [name, t] : tensors) file += t.bytes;
  write_file(path, file);
}

void write_sparse_safetensors(const fs::path& path,
                              const std::map<std::string, std::pair<DType, std::vector<uint64_t>>>& tensors) {
  std::vector<TensorInfo> table;
  for (const auto& [name, t] : tensors) table.push_back({name, t.first, t.second, 0, 0});
  write_file(path, make_safetensors_header(table, 8));
  fs::resize_file(path, table.empty() ? fs::file_size(path) : table.back().end);
}

std::map<std::string, RawTensor> read_safetensors(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::map<std::string, RawTensor> out;
  for (const TensorInfo& t : read_safetensors_table(File::open_read(path)))
    out[t.name] = {t.type, t.shape, bytes.substr(t.begin, t.bytes())};
  return out;
}

Json read_json(const fs::path& path) { return parse_json(read_file(path), path.string()); }

}  // namespace moeflux::test
