#include "package/package.h"

#include <set>

#include "base/checked.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/threads.h"
#include "package/safetensors.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxManifestBytes = 1u << 30, kMaxConfigBytes = 64u << 20;

std::string package_file(const fs::path& folder, const char* name, uint64_t most) {
  if (!fs::is_directory(folder)) fail(Errc::NotFound, "{}: no such folder", folder.string());
  if (!fs::exists(folder / name))
    fail(Errc::NotFound, "{}: no {} there: not a moeflux package (moeflux convert makes one)",
         folder.string(), name);
  return read_text(folder / name, most);
}

Json checked_config(const fs::path& folder, const Manifest& manifest) {
  const std::string text = package_file(folder, "config.json", kMaxConfigBytes),
                    path = (folder / "config.json").string();
  if (xxh3(text) != manifest.config_xxh3)
    fail(Errc::Corrupt,
         "{}: changed since the package was made: its checksum is {}, moeflux.json says {} (if the change is "
         "intended, set config_xxh3 there)",
         path, to_hex(xxh3(text)), to_hex(manifest.config_xxh3));
  return parse_json(text, path);
}

}  // namespace

Package::Package(const fs::path& folder, std::vector<fs::path> stripes)
    : folder_(folder),
      manifest_(parse_manifest(package_file(folder, "moeflux.json", kMaxManifestBytes),
                               (folder / "moeflux.json").string())),
      config_(std::make_unique<const Json>(checked_config(folder, manifest_))),
      resident_(File::open_read(folder / "resident.safetensors")) {
  match_resident_table();
  for (const ExpertLayer& layer : manifest_.layers) open_layer(layer, folder / layer.file);
  for (const fs::path& stripe : stripes) {
    bool any = false;
    for (const ExpertLayer& layer : manifest_.layers)
      if (fs::exists(stripe / layer.file)) open_layer(layer, stripe / layer.file), any = true;
    if (!any && !manifest_.layers.empty())
      fail(Errc::NotFound, "{}: no expert file of {} there ({} and so on)", stripe.string(), folder.string(),
           manifest_.layers[0].file);
  }
}

void Package::open_layer(const ExpertLayer& layer, const fs::path& path) {
  File file = File::open_read(path);
  const uint64_t want = layer.record_bytes * layer.n_experts(), have = file.size();
  if (have != want)
    fail(Errc::Corrupt, "{}: {} bytes, but {} experts of {} bytes make {}", path.string(), have,
         layer.n_experts(), layer.record_bytes, want);
  experts_[layer.layer].push_back({std::move(file), File::open_direct(path)});
}

Package::~Package() = default;

// Every tensor of the manifest must lie in the safetensors file, with the right size and type, and no other.
void Package::match_resident_table() {
  const std::string where = resident_.path().string();
  std::map<std::string, TensorInfo> table;
  for (TensorInfo& info : read_safetensors_table(resident_)) table.emplace(info.name, std::move(info));
  for (ResidentTensor& r : manifest_.resident) {
    StoredTensor& t = r.tensor;
    const auto it = table.find(t.name);
    if (it == table.end()) fail(Errc::Corrupt, "{}: tensor {} of the manifest is missing", where, t.name);
    const TensorInfo& info = it->second;
    const uint64_t want = t.tiled ? align_up(t.bytes, kTensorAlignment) : t.bytes;
    const DType type = t.tiled ? DType::U8 : DType::F32;
    if (info.type != type || info.bytes() != want)
      fail(Errc::Corrupt, "{}: tensor {} is {} of {} bytes, the manifest wants {} of {}", where, t.name,
           to_string(info.type), info.bytes(), to_string(type), want);
    t.offset = info.begin;
    table.erase(it);
  }
  if (!table.empty())
    fail(Errc::Corrupt, "{}: tensor {} is not in the manifest", where, table.begin()->first);
}

Package::RecordPlace Package::place(const ExpertLayer& layer, uint64_t expert) const {
  check(expert < layer.n_experts(), "an expert of the layer");
  const std::vector<LayerFile>& files = experts_.at(layer.layer);
  const LayerFile& file = files[expert % files.size()];
  return {&file.buffered, file.direct ? &*file.direct : nullptr, expert * layer.record_bytes};
}

std::vector<RecordFile> Package::record_files() const {
  std::vector<RecordFile> list;
  for (const ExpertLayer& layer : manifest_.layers)
    for (const LayerFile& f : experts_.at(layer.layer))
      list.push_back({&f.buffered, f.direct ? &*f.direct : nullptr, layer.record_bytes, layer.n_experts()});
  return list;
}

void Package::read_record(const ExpertLayer& layer, uint64_t expert, std::span<std::byte> into) const {
  check(into.size() == layer.record_bytes, "room for one record");
  const RecordPlace at = place(layer, expert);
  at.buffered->read_at(at.offset, into);
  if (const auto error = wrong_checksum(layer, expert, xxh3(into))) throw Error(*error);
}

std::optional<Error> Package::wrong_checksum(const ExpertLayer& layer, uint64_t expert, uint64_t sum) const {
  if (sum == layer.xxh3[expert]) return std::nullopt;
  const RecordPlace at = place(layer, expert);
  return Error(Errc::Corrupt,
               fmt::format("{}: expert {} (bytes {}..{}) has checksum {}, want {}",
                           at.buffered->path().string(), expert, at.offset, at.offset + layer.record_bytes,
                           to_hex(sum), to_hex(layer.xxh3[expert])));
}

void Package::read_resident(const ResidentTensor& r, std::span<std::byte> into) const {
  check(into.size() >= r.tensor.bytes, "room for the tensor");
  const auto exact = into.first(r.tensor.bytes);
  resident_.read_at(r.tensor.offset, exact);
  if (xxh3(exact) != r.xxh3)
    fail(Errc::Corrupt, "{}: tensor {} (bytes {}..{}) has checksum {}, want {}", resident_.path().string(),
         r.tensor.name, r.tensor.offset, r.tensor.offset + r.tensor.bytes, to_hex(xxh3(exact)),
         to_hex(r.xxh3));
}

ResidentWeights::ResidentWeights(const Package& package, size_t threads, const ProgressSink& sink)
    : buffer_(package.manifest().resident_bytes()) {
  const auto& tensors = package.manifest().resident;
  std::vector<size_t> offsets;
  size_t at = 0;
  uint64_t bytes = 0;
  for (const ResidentTensor& r : tensors) {
    offsets.push_back(at);
    offset_[r.tensor.name] = at;
    at += align_up(r.tensor.bytes, kTensorAlignment);
    bytes += r.tensor.bytes;
  }
  Progress progress("loading", bytes, sink);
  parallel_for(tensors.size(), threads, [&](size_t i) {
    package.read_resident(tensors[i], buffer_.bytes().subspan(offsets[i], tensors[i].tensor.bytes));
    progress.add(tensors[i].tensor.bytes);
  });
}

const std::byte* ResidentWeights::find(const std::string& name) const {
  const auto it = offset_.find(name);
  return it == offset_.end() ? nullptr : buffer_.data() + it->second;
}

}  // namespace moeflux
