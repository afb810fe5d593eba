
#include <cerrno>

#include "base/checked.h"
#include "base/hash.h"
#include "base/text.h"
#include "convert/convert.h"

namespace moeflux {

fs::path target_folder(const fs::path& package) {
  const fs::path p = fs::absolute(package).lexically_normal();
  return p.has_filename() ? p : p.parent_path();  // "out/" means "out"
}

fs::path partial_folder(const fs::path& package) {
  fs::path p = target_folder(package);
  p += ".partial";
  return p;
}

fs::path consumed_headers(const fs::path& package) { return partial_folder(package) / "headers"; }

void check_target(const fs::path& package, uint64_t bytes, bool check_space) {
  std::error_code ec;
  if (fs::exists(package, ec) && !(fs::is_directory(package) && fs::is_empty(package)))
    fail(Errc::Exists, "{}: already exists; choose another name or remove it", package.string());
  const fs::path parent = target_folder(package).parent_path();
  if (!fs::is_directory(parent))
    fail(Errc::NotFound, "{}: the folder {} is not there", package.string(), parent.string());
  const fs::path partial = partial_folder(package);
  if (check_space && !fs::exists(partial / "package")) {
    const auto space = fs::space(parent);
    if (space.available < bytes)
      fail(Errc::NoSpace, "{}: the package needs {} ({} bytes), its disk has {} ({} bytes) free",
           package.string(), format_bytes(bytes), bytes, format_bytes(space.available), space.available);
  }
  if (!fs::create_directories(partial, ec) && ec)
    fail(ec.value() == ENOSPC ? Errc::NoSpace : Errc::Io, "{}: cannot create: {}", partial.string(),
         ec.message());
}

bool finish_tidying(const fs::path& package) {
  const fs::path partial = partial_folder(package);
  if (!is_package(package) || !fs::exists(partial) || fs::exists(partial / "package")) return false;
  fs::remove_all(partial);
  return true;
}

PartialLock::PartialLock(const fs::path& package)
    : file_(File::open_write(partial_folder(package) / "lock")) {
  if (!file_.try_lock())
    fail(Errc::Exists, "{}: another process is writing there", partial_folder(package).string());
}

namespace {

File create_sized(const fs::path& path, uint64_t bytes, bool reserve) {
  fs::create_directories(path.parent_path());
  File file = File::open_write(path);
  if (file.size() != bytes) reserve ? file.resize(bytes) : fs::resize_file(path, bytes);
  return file;
}

}  // namespace

PackageWriter::PackageWriter(const fs::path& package, PackageLayout layout, bool reserve)
    : target_(target_folder(package)),
      folder_(partial_folder(package) / "package"),
      layout_(std::move(layout)),
      resident_(create_sized(folder_ / "resident.safetensors", layout_.resident_file_bytes, reserve)) {
  resident_.write_at(0, std::as_bytes(std::span(layout_.resident_header)));
  for (const ExpertLayer& l : layout_.manifest.layers)
    experts_.push_back(create_sized(folder_ / l.file, l.record_bytes * l.n_experts(), reserve));
}

void PackageWriter::sync() const {
  resident_.sync();
  for (const File& f : experts_) f.sync();
}

void PackageWriter::copy_published_files(const fs::path& from) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = name == "config.json" || name == "generation_config.json" || name == "vocab.json" ||
                        name == "merges.txt" || name == "special_tokens_map.json" ||
                        name == "added_tokens.json" || name.starts_with("tokenizer") ||
                        name.starts_with("chat_template") || name.starts_with("LICENSE") ||
                        name.starts_with("NOTICE");
    if (!wanted || !entry.is_regular_file()) continue;
    fs::copy_file(entry.path(), folder_ / name, fs::copy_options::overwrite_existing);
    fs::permissions(folder_ / name, fs::perms::owner_write | fs::perms::owner_read, fs::perm_options::add);
    File::open_read(folder_ / name).sync();
  }
}

void PackageWriter::publish() {
  sync();
  layout_.manifest.config_xxh3 = xxh3(read_text(folder_ / "config.json", 64u << 20));
  write_text(folder_ / "moeflux.json", write_manifest(layout_.manifest));
  if (!layout_.manifest.layers.empty()) sync_folder(folder_ / "experts");
  sync_folder(folder_);
  rename_durably(folder_, target_);
  fs::remove_all(partial_folder(target_));
}

}  // namespace moeflux
