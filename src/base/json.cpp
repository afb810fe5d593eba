#include "base/json.h"

#include <cmath>
#include <unordered_set>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr int kMaxDepth = 64;

std::string shorten(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

// A first pass that builds nothing: refuses depth and duplicate keys before any of it is kept.
class Guard : public nlohmann::json_sax<Json> {
 public:
  explicit Guard(const std::string& where) : where_(where) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return descend();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return descend(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second)
      fail(Errc::Corrupt, "{}: the key '{}' stands twice in one object", where_, name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    fail(Errc::Corrupt, "{}: not valid JSON: {}", where_, e.what());
  }

 private:
  bool descend() {
    if (++depth_ > kMaxDepth) fail(Errc::Corrupt, "{}: nested deeper than {} levels", where_, kMaxDepth);
    return true;
  }

  const std::string& where_;
  std::vector<std::unordered_set<std::string>> keys_;
  int depth_ = 0;
};

template <class Parsed>
Parsed parse_guarded(std::string_view text, const std::string& where) {
  Guard guard(where);
  try {
    Json::sax_parse(text.begin(), text.end(), &guard);
    return Parsed::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    fail(Errc::Corrupt, "{}: not valid JSON: {}", where, e.what());
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) { return parse_guarded<Json>(text, where); }

OrderedJson parse_ordered_json(std::string_view text, const std::string& where) {
  return parse_guarded<OrderedJson>(text, where);
}

JsonObject::JsonObject(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {
  if (!value.is_object()) fail(Errc::Corrupt, "{}: want a JSON object, found {}", where_, shorten(value));
}

const Json* JsonObject::find(const char* key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::has(const char* key) const { return find(key) != nullptr; }

const Json& JsonObject::at(const char* key) const {
  const Json* found = find(key);
  if (!found) fail(Errc::Corrupt, "{}: the field '{}' is missing", where_, key);
  return *found;
}

void JsonObject::wrong(const char* key, std::string_view wanted) const {
  fail(Errc::Corrupt, "{}: '{}' is {}, want {}", where_, key, shorten(at(key)), wanted);
}

JsonObject JsonObject::object(const char* key) const { return {at(key), where_ + ": " + key}; }

uint64_t JsonObject::count(const char* key, uint64_t least, uint64_t most) const {
  const Json& value = at(key);
  // 4096.0 is a whole number that some writers produce; 4096.5 and 1e300 are not.
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && number >= static_cast<double>(least) && number < 0x1p63 &&
        static_cast<uint64_t>(number) <= most)
      return static_cast<uint64_t>(number);
  }
  const bool whole = value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  if (!whole || value.get<uint64_t>() < least || value.get<uint64_t>() > most)
    wrong(key, fmt::format("a whole number from {} to {}", least, most));
  return value.get<uint64_t>();
}

uint64_t JsonObject::count_or(const char* key, uint64_t absent, uint64_t least, uint64_t most) const {
  return has(key) ? count(key, least, most) : absent;
}

double JsonObject::number(const char* key) const {
  const Json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong(key, "a finite number");
  return value.get<double>();
}

double JsonObject::number_or(const char* key, double absent) const { return has(key) ? number(key) : absent; }

bool JsonObject::flag_or(const char* key, bool absent) const {
  const Json* value = find(key);
  if (!value) return absent;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::string JsonObject::string(const char* key) const {
  if (!at(key).is_string()) wrong(key, "a string");
  return at(key).get<std::string>();
}

std::string JsonObject::string_or(const char* key, std::string absent) const {
  return has(key) ? string(key) : std::move(absent);
}

}  // namespace moeflux
