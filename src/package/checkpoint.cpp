#include "package/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/json.h"

namespace moeflux {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

// Shard names of the index; each must be a plain file name of the same folder.
std::set<std::string> shards_of_index(const fs::path& path, std::map<std::string, std::string>& weight_map) {
  const Json index = parse_json(read_text(path, 512u << 20), path.string());
  const JsonObject map = JsonObject(index, path.string()).object("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.json().items()) {
    if (!file.is_string()) map.wrong(tensor.c_str(), "a file name");
    const auto name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
      map.wrong(tensor.c_str(), "the name of a file in the same folder");
    weight_map[tensor] = name;
    names.insert(name);
  }
  if (names.empty()) fail(Errc::Corrupt, "{}: weight_map is empty", path.string());
  return names;
}

}  // namespace

bool is_package(const fs::path& folder) { return fs::exists(folder / "moeflux.json"); }

bool is_checkpoint(const fs::path& folder) {
  return fs::exists(folder / "config.json") &&
         (fs::exists(folder / kIndex) || fs::exists(folder / "model.safetensors"));
}

Checkpoint::Checkpoint(const fs::path& folder, const fs::path& consumed) : folder_(folder) {
  if (!fs::is_directory(folder)) fail(Errc::NotFound, "{}: no such folder", folder.string());
  std::map<std::string, std::string> weight_map;
  std::set<std::string> names = {"model.safetensors"};
  if (fs::exists(folder / kIndex))
    names = shards_of_index(folder / kIndex, weight_map);
  else if (!fs::exists(folder / "model.safetensors") && (consumed.empty() || !fs::exists(consumed)))
    fail(Errc::NotFound, "{}: neither model.safetensors nor {} is there: not a safetensors checkpoint",
         folder.string(), kIndex);
  for (const std::string& name : names) add_shard(name, consumed);
  for (const auto& [tensor, shard] : weight_map) {
    const CheckpointTensor* found = find(tensor);
    if (!found || shards_[found->shard].name != shard)
      fail(Errc::Corrupt, "{}: {} says that tensor {} is in {}, which does not have it", folder.string(),
           kIndex, tensor, shard);
  }
}

void Checkpoint::add_shard(const std::string& name, const fs::path& consumed) {
  const fs::path path = folder_ / name;
  Shard shard;
  shard.name = name;
  if (fs::exists(path)) {
    shard.file = File::open_read(path);
    shard.bytes = shard.file->size();
    shard.header = read_safetensors_header(*shard.file);
  } else if (!consumed.empty() && fs::exists(consumed / name)) {
    shard.header = read_text(consumed / name, 512u << 20);
    if (shard.header.size() < 8) fail(Errc::Corrupt, "{}: too short", (consumed / name).string());
  } else {
    fail(Errc::NotFound, "{}: shard {} of the checkpoint is missing", folder_.string(), name);
  }
  const uint64_t bytes = shard.file ? shard.bytes : UINT64_MAX;
  for (TensorInfo& info : parse_safetensors_table(shard.header, bytes, path.string())) {
    if (!shard.file) shard.bytes = std::max(shard.bytes, info.end);
    const std::string tensor = info.name;
    const auto [it, fresh] = tensors_.emplace(tensor, CheckpointTensor{std::move(info), shards_.size()});
    if (!fresh)
      fail(Errc::Corrupt, "{}: tensor {} stands in both {} and {}", folder_.string(), tensor,
           shards_[it->second.shard].name, name);
  }
  shards_.push_back(std::move(shard));
}

const CheckpointTensor* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t Checkpoint::bytes() const {
  uint64_t sum = 0;
  for (const Shard& s : shards_) sum += s.bytes;
  return sum;
}

void Checkpoint::read(const CheckpointTensor& tensor, uint64_t offset, std::span<std::byte> into) const {
  const Shard& shard = shards_[tensor.shard];
  if (!shard.file)
    fail(Errc::NotFound, "{}: shard {} was deleted after conversion", folder_.string(), shard.name);
  check(offset + into.size() <= tensor.info.bytes(), "read inside the tensor");
  shard.file->read_at(tensor.info.begin + offset, into);
}

}  // namespace moeflux
