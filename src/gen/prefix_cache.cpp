#include "gen/prefix_cache.h"

#include <algorithm>

#include "base/hash.h"

namespace moeflux {
namespace {

constexpr std::string_view kSuffix = ".state", kPartial = ".state.partial";
// A file is read if it spares at least so many tokens beyond what is in memory, and if at least this share of
// it is of use.
constexpr size_t kLeastGain = 32, kLeastShare = 4;
// A text is written when the disk does not hold most of it already.
constexpr size_t kMostOf = 8;  // all but one eighth

size_t common(std::span<const Token> a, std::span<const Token> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

std::string file_name(const SnapshotMaker& maker, std::span<const Token> tokens) {
  Hasher key;
  key.add(maker.backend);
  key.add(std::as_bytes(std::span(&maker.model, 1)));
  key.add(std::as_bytes(std::span(&maker.precision, 1)));
  key.add(std::as_bytes(std::span(&maker.kv, 1)));
  key.add(std::as_bytes(tokens));
  return to_hex(maker.model) + "-" + to_hex(key.digest()) + std::string(kSuffix);
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    files.push_back(it->path());
  if (ec) fail(Errc::Io, "{}: cannot list: {}", folder.string(), ec.message());
  return files;
}

}  // namespace

struct PrefixCache::Entry {
  std::unique_ptr<const History> history;
};

struct PrefixCache::DiskEntry {
  fs::path path;
  uint64_t bytes = 0;
  bool own = false;                // of this model, settings and backend: the rest is only counted and aged
  std::vector<Token> tokens = {};  // of own ones
  std::vector<size_t> checkpoints = {};
};

PrefixCache::PrefixCache(const PrefixCacheOptions& options, Engine& engine)
    : options_(options), engine_(engine), maker_(snapshot_maker(engine)) {
  if (!options_.folder.empty()) open_folder();
}

PrefixCache::~PrefixCache() = default;

void PrefixCache::warn(const std::string& text) const {
  if (options_.warn) return options_.warn(text);
  fmt::print(stderr, "prefix cache: {}\n", text);
}

// -- in memory

std::unique_ptr<History> PrefixCache::find(std::span<const Token> tokens) {
  if (tokens.empty()) return nullptr;
  const auto wanted = tokens.first(tokens.size() - 1);
  auto best = entries_.end();
  size_t most = 0;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const size_t n = it->history->nearest(common(it->history->tokens(), wanted));
    if (n > most) most = n, best = it;
  }
  auto on_disk = disk_.end();
  for (auto it = disk_.begin(); it != disk_.end(); ++it) {
    const size_t n = reach(*it, wanted);
    if (n >= most + kLeastGain && n * kLeastShare >= it->tokens.size()) most = n, on_disk = it;
  }
  ++stats_.n_asked;
  stats_.tokens_asked += tokens.size();
  std::unique_ptr<History> found = on_disk == disk_.end() ? nullptr : load(on_disk);
  if (found) {
    add(found->copy());
    ++stats_.n_from_disk;
  } else if (best != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, best);
    found = best->history->copy();
    ++stats_.n_from_ram;
  } else {
    return nullptr;
  }
  stats_.tokens_found += found->go_back(common(found->tokens(), wanted));
  return found;
}

void PrefixCache::keep(const History& history, Where where) {
  if (history.broken() || history.position() == 0) return;
  if (!options_.folder.empty() && where == Where::Everywhere) write(history);
  try {
    add(history.copy());
  } catch (const Error& e) {  // no memory for a copy, say: the text itself goes on
    warn(e.what());
  }
}

// An entry that another one can be gone back to is one too many.
void PrefixCache::add(std::unique_ptr<History> history) {
  const auto holds = [](const History& longer, const History& shorter) {
    const size_t n = shorter.position();
    return common(longer.tokens(), shorter.tokens()) == n && longer.nearest(n) == n;
  };
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (holds(*it->history, *history)) return entries_.splice(entries_.begin(), entries_, it);
    const auto next = std::next(it);
    if (holds(*history, *it->history)) drop(it);
    it = next;
  }
  ram_.add(*history);
  entries_.push_front({std::move(history)});
  while (!entries_.empty() && ram_.bytes() > options_.ram_bytes) drop(std::prev(entries_.end()));
}

void PrefixCache::drop(Entries::iterator entry) {
  ram_.remove(*entry->history);
  entries_.erase(entry);
}

// -- on disk

void PrefixCache::open_folder() {
  std::error_code ec;
  fs::create_directories(options_.folder, ec);
  if (ec) fail(Errc::Io, "{}: cannot create: {}", options_.folder.string(), ec.message());
  lock_ = File::open_write(options_.folder / "lock");
  if (!lock_->try_lock())
    fail(Errc::Exists, "{}: another process uses this prefix cache", options_.folder.string());
  std::vector<std::pair<fs::file_time_type, DiskEntry>> found;
  size_t foreign = 0;
  for (const fs::path& path : files_of(options_.folder)) {
    const std::string name = path.filename().string();
    if (name.ends_with(kPartial)) fs::remove(path, ec);  // of a process that was killed
    if (!name.ends_with(kSuffix)) continue;
    DiskEntry entry{.path = path, .bytes = fs::file_size(path, ec)};
    if (ec) continue;
    try {
      SnapshotHeader header = read_snapshot_header(path);
      entry.own = header.maker == maker_;
      foreign += !entry.own;
      if (entry.own) {
        entry.tokens = std::move(header.tokens);
        for (const auto& c : header.checkpoints) entry.checkpoints.push_back(c.position);
      }
    } catch (const Error& e) {
      warn(fmt::format("passed over: {}", e.what()));
    }
    disk_bytes_ += entry.bytes;
    found.emplace_back(fs::last_write_time(path, ec), std::move(entry));
  }
  if (foreign)
    warn(fmt::format("{}: {} entries of other models, settings or backends are passed over",
                     options_.folder.string(), foreign));
  std::ranges::sort(found, std::greater(), [](const auto& f) { return f.first; });
  for (auto& [time, entry] : found) disk_.push_back(std::move(entry));
  make_room(0);
}

// How much of these tokens an entry spares.
size_t PrefixCache::reach(const DiskEntry& entry, std::span<const Token> tokens) const {
  if (!entry.own || entry.tokens.size() > engine_.plan().ctx) return 0;
  const size_t n = common(entry.tokens, tokens);
  if (n == entry.tokens.size() || can_always_go_back(engine_.config())) return n;
  const auto after = std::ranges::upper_bound(entry.checkpoints, n);
  return after == entry.checkpoints.begin() ? 0 : *std::prev(after);
}

std::unique_ptr<History> PrefixCache::load(DiskEntries::iterator entry) {
  try {
    auto history = load_snapshot(engine_, options_.history, entry->path);
    std::error_code ec;  // without a new time it is only forgotten sooner
    fs::last_write_time(entry->path, fs::file_time_type::clock::now(), ec);
    disk_.splice(disk_.begin(), disk_, entry);
    return history;
  } catch (const Error& e) {
    warn(fmt::format("passed over: {}", e.what()));
    entry->own = false;
    return nullptr;
  }
}

void PrefixCache::write(const History& history) {
  const std::span<const Token> tokens = history.tokens();
  if (tokens.size() < kLeastGain) return;
  for (const DiskEntry& entry : disk_)
    if (reach(entry, tokens) * kMostOf >= tokens.size() * (kMostOf - 1)) return;
  const uint64_t bytes = snapshot_bytes(history);
  if (bytes > options_.disk_bytes) return;
  try {
    make_room(bytes);
    DiskEntry entry{.path = options_.folder / file_name(maker_, tokens), .bytes = bytes, .own = true};
    save_snapshot(history, entry.path);
    const auto same = std::ranges::find(disk_, entry.path, &DiskEntry::path);
    if (same != disk_.end()) forget(same);  // was damaged, and is no more
    entry.tokens.assign(tokens.begin(), tokens.end());
    entry.checkpoints = history.checkpoints();
    disk_.push_front(std::move(entry));
    disk_bytes_ += bytes;
  } catch (const Error& e) {
    return warn(fmt::format("cannot write: {}", e.what()));
  }
  // Those that it can be gone back to are of no more use.
  for (auto it = std::next(disk_.begin()); it != disk_.end();) {
    const auto next = std::next(it);
    const size_t n = it->tokens.size();
    if (it->own && common(it->tokens, tokens) == n && reach(disk_.front(), it->tokens) == n) remove_file(it);
    it = next;
  }
}

void PrefixCache::remove_file(DiskEntries::iterator entry) {
  std::error_code ec;
  fs::remove(entry->path, ec);
  if (ec) warn(fmt::format("{}: cannot remove: {}", entry->path.string(), ec.message()));
  forget(entry);
}

void PrefixCache::forget(DiskEntries::iterator entry) {
  disk_bytes_ -= entry->bytes;
  disk_.erase(entry);
}

void PrefixCache::make_room(uint64_t bytes) {
  while (!disk_.empty() && disk_bytes_ + bytes > options_.disk_bytes) remove_file(std::prev(disk_.end()));
}

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats s = stats_;
  s.ram_entries = entries_.size();
  s.ram_bytes = ram_.bytes();
  s.disk_entries = disk_.size();
  s.disk_bytes = disk_bytes_;
  return s;
}

}  // namespace moeflux
