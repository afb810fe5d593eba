// Typed access to a request's JSON. What is absent or null is absent; what has the wrong type or lies outside
// its range is an ApiError that names the field by its path.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api_error.h"

namespace moeflux {

class RequestFields {
 public:
  // `path` of the object itself; empty: the body. Throws unless it is an object.
  explicit RequestFields(const OrderedJson& json, std::string path = "");

  const OrderedJson* find(const char* key) const;  // null where absent or null
  bool has(const char* key) const { return find(key) != nullptr; }
  std::string path_of(const std::string& key) const;
  std::string path_of(const char* key, size_t index) const;  // "key[index]"

  std::optional<std::string> string(const char* key) const;
  std::string required_string(const char* key) const;
  std::optional<double> number(const char* key, double least, double most) const;
  std::optional<uint64_t> count(const char* key, uint64_t least, uint64_t most) const;
  std::optional<bool> flag(const char* key) const;
  std::optional<RequestFields> object(const char* key) const;
  const OrderedJson* array(const char* key) const;          // null where absent
  std::vector<std::string> strings(const char* key) const;  // of one string or a list of them

  [[noreturn]] void wrong(const char* key, const std::string& wanted) const;
  [[noreturn]] void missing(const char* key) const;

 private:
  const OrderedJson* json_;
  std::string path_;
};

}  // namespace moeflux
