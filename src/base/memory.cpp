#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace moeflux {
namespace {

std::optional<uint64_t> field_of(const char* path, const std::string& key) {  // "Key:  123 kB"
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::istringstream rest(line.substr(key.size() + 1));
    uint64_t kib;
    if (rest >> kib) return kib * 1024;
  }
  return {};
}

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  if (file >> value) return value;
  return {};
}

// Room under the memory limit of the control group, of either version, that this process is in.
std::optional<uint64_t> group_room() {
  std::ifstream groups("/proc/self/cgroup");
  std::optional<uint64_t> room;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kind = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    std::string folder, limit_name, usage_name;
    if (kind.empty())
      folder = "/sys/fs/cgroup" + path, limit_name = "memory.max", usage_name = "memory.current";
    else if (kind.find("memory") != std::string::npos)
      folder = "/sys/fs/cgroup/memory" + path, limit_name = "memory.limit_in_bytes",
      usage_name = "memory.usage_in_bytes";
    else
      continue;
    const auto limit = number_in(folder + "/" + limit_name), usage = number_in(folder + "/" + usage_name);
    if (limit && usage) room = std::min(room.value_or(UINT64_MAX), *limit > *usage ? *limit - *usage : 0);
  }
  return room;
}

}  // namespace

uint64_t available_memory() {
  const uint64_t free = field_of("/proc/meminfo", "MemAvailable").value_or(UINT64_MAX);
  return std::min(free, group_room().value_or(UINT64_MAX));
}

uint64_t peak_memory() { return field_of("/proc/self/status", "VmHWM").value_or(0); }

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;  // the kernel's word for it
  return file.good();
}

}  // namespace moeflux
