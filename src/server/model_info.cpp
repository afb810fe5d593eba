#include "server/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/hash.h"

namespace moeflux {
namespace {

std::string folder_name(const fs::path& package) {
  const fs::path path = fs::absolute(package).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

std::string utc_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace

bool ModelInfo::answers_to(const std::string& name) const {
  return any_name || name == id || std::ranges::find(aliases, name) != aliases.end();
}

OrderedJson ModelInfo::json() const {
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "moeflux"},
          {"type", "model"},
          {"display_name", id},
          {"created_at", utc_time(created)},
          {"max_model_len", context}};
}

ModelInfo describe_model(const Engine& engine, const std::string& version) {
  const EngineOptions& o = engine.options();
  ModelInfo info{.id = folder_name(engine.package().folder())};
  info.context = engine.plan().ctx;
  const auto changed = fs::last_write_time(engine.package().folder() / "moeflux.json");
  info.created = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::file_clock::to_sys(changed).time_since_epoch())
                     .count();
  Hasher hash;
  hash.add(write_manifest(engine.package().manifest()));
  hash.add(fmt::format("{} {} {} {}", version, o.backend, static_cast<int>(o.precision),
                       o.kv ? static_cast<int>(*o.kv) : -1));
  info.fingerprint = "fp_" + to_hex(hash.digest()).substr(0, 10);
  return info;
}

}  // namespace moeflux
