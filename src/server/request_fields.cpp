#include "server/request_fields.h"

#include <cmath>

#include "server/json_text.h"

namespace moeflux {
namespace {

std::string shortened(const OrderedJson& value) {
  std::string text = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

}  // namespace

RequestFields::RequestFields(const OrderedJson& json, std::string path)
    : json_(&json), path_(std::move(path)) {
  if (json.is_object()) return;
  throw ApiError(400,
                 fmt::format("{} is {}, want an object", path_.empty() ? "the body" : "'" + path_ + "'",
                             shortened(json)),
                 path_, "invalid_type");
}

const OrderedJson* RequestFields::find(const char* key) const {
  const auto it = json_->find(key);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

std::string RequestFields::path_of(const std::string& key) const {
  return path_.empty() ? key : path_ + "." + key;
}

std::string RequestFields::path_of(const char* key, size_t index) const {
  return fmt::format("{}[{}]", path_of(key), index);
}

void RequestFields::wrong(const char* key, const std::string& wanted) const {
  throw ApiError(400, fmt::format("'{}' is {}, want {}", path_of(key), shortened(*find(key)), wanted),
                 path_of(key), "invalid_value");
}

void RequestFields::missing(const char* key) const {
  throw ApiError(400, fmt::format("the field '{}' is missing", path_of(key)), path_of(key),
                 "missing_required_parameter");
}

std::optional<std::string> RequestFields::string(const char* key) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  if (!value->is_string()) wrong(key, "a string");
  return value->get<std::string>();
}

std::string RequestFields::required_string(const char* key) const {
  std::optional<std::string> value = string(key);
  if (!value) missing(key);
  return *std::move(value);
}

std::optional<double> RequestFields::number(const char* key, double least, double most) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most)) wrong(key, fmt::format("a number from {} to {}", least, most));
  return number;
}

std::optional<uint64_t> RequestFields::count(const char* key, uint64_t least, uint64_t most) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  std::optional<uint64_t> number;
  if (value->is_number_unsigned()) number = value->get<uint64_t>();
  if (value->is_number_float()) {  // some clients write 16.0
    const double real = value->get<double>();
    if (real >= 0 && real < 0x1p63 && real == std::floor(real)) number = static_cast<uint64_t>(real);
  }
  if (!number || *number < least || *number > most)
    wrong(key, fmt::format("a whole number from {} to {}", least, most));
  return number;
}

std::optional<bool> RequestFields::flag(const char* key) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::optional<RequestFields> RequestFields::object(const char* key) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  return RequestFields(*value, path_of(key));
}

const OrderedJson* RequestFields::array(const char* key) const {
  const OrderedJson* value = find(key);
  if (value && !value->is_array()) wrong(key, "a list");
  return value;
}

std::vector<std::string> RequestFields::strings(const char* key) const {
  const OrderedJson* value = find(key);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> all;
  if (!value->is_array()) wrong(key, "a string or a list of strings");
  for (const OrderedJson& item : *value) {
    if (!item.is_string()) wrong(key, "a string or a list of strings");
    all.push_back(item.get<std::string>());
  }
  return all;
}

}  // namespace moeflux
