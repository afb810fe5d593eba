// Reading JSON that may be hostile: bounded size and depth, no duplicate keys, and typed access whose errors
// name the file, the field and what was found.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace moeflux {

Json parse_json(std::string_view text, const std::string& where);
OrderedJson parse_ordered_json(std::string_view text, const std::string& where);

// One JSON object with a name for error messages ("model/config.json" or "model/config.json: text_config").
// Absent and null count as the same.
class JsonObject {
 public:
  JsonObject(const Json& value, std::string where);  // throws unless value is an object

  bool has(const char* key) const;
  const Json* find(const char* key) const;  // null where absent or null
  const Json& at(const char* key) const;    // throws where absent
  JsonObject object(const char* key) const;

  uint64_t count(const char* key, uint64_t least, uint64_t most) const;
  uint64_t count_or(const char* key, uint64_t absent, uint64_t least, uint64_t most) const;
  double number(const char* key) const;  // finite
  double number_or(const char* key, double absent) const;
  bool flag_or(const char* key, bool absent) const;
  std::string string(const char* key) const;
  std::string string_or(const char* key, std::string absent) const;

  const Json& json() const { return *value_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void wrong(const char* key, std::string_view wanted) const;

 private:
  const Json* value_;
  std::string where_;
};

}  // namespace moeflux
