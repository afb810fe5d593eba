#include "support/random_schemas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace moeflux::test {
namespace {

size_t code_points(const std::string& text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) == 0x80 ? 0 : 1;
  return n;
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& v) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref") &&
        !valid(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), v))
      return false;
    if (schema.contains("type") && !has_type(schema["type"], v)) return false;
    if (schema.contains("const") && schema["const"] != v) return false;
    if (schema.contains("enum") && std::count(schema["enum"].begin(), schema["enum"].end(), v) == 0)
      return false;
    if (count(schema, "allOf", v) != size_of(schema, "allOf")) return false;
    if (schema.contains("anyOf") && count(schema, "anyOf", v) == 0) return false;
    if (schema.contains("oneOf") && count(schema, "oneOf", v) != 1) return false;
    if (v.is_number()) return valid_number(schema, v.get<double>());
    if (v.is_string()) return valid_string(schema, v.get<std::string>());
    if (v.is_array()) return valid_array(schema, v);
    if (v.is_object()) return valid_object(schema, v);
    return true;
  }

 private:
  static size_t size_of(const Json& schema, const char* key) {
    return schema.contains(key) ? schema[key].size() : 0;
  }
  size_t count(const Json& schema, const char* key, const Json& v) const {
    size_t n = 0;
    if (schema.contains(key))
      for (const Json& part : schema[key]) n += valid(part, v) ? 1 : 0;
    return n;
  }

  static bool has_type(const Json& type, const Json& v) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&v](const Json& each) { return has_type(each, v); });
    const std::string t = type.get<std::string>();
    if (t == "integer") return v.is_number() && v.get<double>() == std::floor(v.get<double>());
    if (t == "number") return v.is_number();
    if (t == "null") return v.is_null();
    if (t == "boolean") return v.is_boolean();
    if (t == "string") return v.is_string();
    return t == "array" ? v.is_array() : v.is_object();
  }

  static bool valid_number(const Json& s, double v) {
    if (s.contains("minimum") && v < s["minimum"].get<double>()) return false;
    if (s.contains("maximum") && v > s["maximum"].get<double>()) return false;
    if (s.contains("exclusiveMinimum") && v <= s["exclusiveMinimum"].get<double>()) return false;
    if (s.contains("exclusiveMaximum") && v >= s["exclusiveMaximum"].get<double>()) return false;
    if (!s.contains("multipleOf")) return true;
    const double quotient = v / s["multipleOf"].get<double>();
    return std::fabs(quotient - std::round(quotient)) <= 1e-9 * std::max(1.0, std::fabs(quotient));
  }

  static bool valid_string(const Json& s, const std::string& v) {
    if (s.contains("minLength") && code_points(v) < s["minLength"].get<size_t>()) return false;
    if (s.contains("maxLength") && code_points(v) > s["maxLength"].get<size_t>()) return false;
    if (s.contains("pattern") && !std::regex_search(v, std::regex(s["pattern"].get<std::string>())))
      return false;
    return !s.contains("format") || valid_format(s["format"], v);
  }

  static bool valid_format(const std::string& format, const std::string& v) {
    if (format == "date") {
      int year = 0, month = 0, day = 0;
      if (std::sscanf(v.c_str(), "%4d-%2d-%2d", &year, &month, &day) != 3 || v.size() != 10) return false;
      const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
      const int days[] = {31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
      return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
    }
    if (format == "uuid")
      return std::regex_match(v, std::regex("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"));
    unsigned a = 0, b = 0, c = 0, d = 0;
    char rest = 0;
    return std::sscanf(v.c_str(), "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &rest) == 4 &&
           std::max({a, b, c, d}) < 256;
  }

  bool valid_array(const Json& s, const Json& v) const {
    if (s.contains("minItems") && v.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<size_t>()) return false;
    const size_t n_prefix = size_of(s, "prefixItems");
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < n_prefix && !valid(s["prefixItems"][i], v[i])) return false;
      if (i >= n_prefix && s.contains("items") && !valid(s["items"], v[i])) return false;
    }
    return true;
  }

  bool valid_object(const Json& s, const Json& v) const {
    if (s.contains("required"))
      for (const Json& name : s["required"])
        if (!v.contains(name.get<std::string>())) return false;
    if (s.contains("minProperties") && v.size() < s["minProperties"].get<size_t>()) return false;
    if (s.contains("maxProperties") && v.size() > s["maxProperties"].get<size_t>()) return false;
    for (const auto& [key, value] : v.items())
      if (!valid_property(s, key, value)) return false;
    return true;
  }

  bool valid_property(const Json& s, const std::string& key, const Json& value) const {
    bool covered = s.contains("properties") && s["properties"].contains(key);
    if (covered && !valid(s["properties"][key], value)) return false;
    if (s.contains("propertyNames") && !valid(s["propertyNames"], key)) return false;
    if (s.contains("patternProperties"))
      for (const auto& [pattern, schema] : s["patternProperties"].items()) {
        if (!std::regex_search(key, std::regex(pattern))) continue;
        covered = true;
        if (!valid(schema, value)) return false;
      }
    return covered || !s.contains("additionalProperties") || valid(s["additionalProperties"], value);
  }

  const Json& root_;
};

class SchemaMaker {
 public:
  explicit SchemaMaker(uint32_t seed) : random_(seed) {}

  OrderedJson make() {
    OrderedJson root = any(3);
    for (int i = 0; i < 2; ++i) root["$defs"][fmt::format("d{}", i)] = any(2);
    return root;
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[below(static_cast<uint32_t>(from.size()))];
  }

  OrderedJson any(int depth) {
    if (depth > 0 && chance(60)) return chance(65) ? object(depth) : array(depth);
    switch (below(depth > 0 ? 10 : 6)) {
      case 0:
        return {{"type", pick<std::string>({"null", "boolean"})}};
      case 1:
      case 2:
        return string();
      case 3:
        return number();
      case 4:
        return listed();
      case 5:
        return chance(50) ? string() : number();
      case 6:
        return {{"anyOf", OrderedJson::array({any(depth - 1), any(depth - 1)})}};
      case 7:
        return {{"oneOf", OrderedJson::array({string(), number(), object(depth)})}};
      case 8:
        return all_of(depth);
      default:
        return {{"anyOf", {{{"$ref", fmt::format("#/$defs/d{}", below(2))}}, {{"type", "null"}}}}};
    }
  }

  OrderedJson listed() {
    std::vector<OrderedJson> values = {1,
                                       -2.5,
                                       "a",
                                       "quote \" and \\ back\n",
                                       nullptr,
                                       true,
                                       "\u00e9\u20ac",
                                       OrderedJson::array({1, "x"}),
                                       {{"k", 1}, {"a", nullptr}}};
    std::shuffle(values.begin(), values.end(), random_);
    values.resize(1 + below(5));
    if (chance(30)) return {{"const", values[0]}};
    return {{"enum", values}};
  }

  OrderedJson string() {
    OrderedJson s{{"type", "string"}};
    if (chance(20)) {
      s["format"] = pick<std::string>({"date", "uuid", "ipv4"});
      return s;
    }
    const bool patterned = chance(35);
    if (patterned)
      s["pattern"] = pick<std::string>({"^[a-z]{2,5}$", "^\\d+$", "x", "^(ab|cd)*$",
                                        "^[A-F0-9]{1,4}(-[a-z]+)?$", "[0-9]$", "^a|b$", "^(\"|\\\\|,)+$"});
    if (chance(40)) s["minLength"] = below(5);
    if (chance(50)) s["maxLength"] = 5 + below(40);
    return s;
  }

  OrderedJson number() {
    const bool integer = chance(60);
    OrderedJson s{{"type", integer ? "integer" : "number"}};
    const int low = static_cast<int>(below(4000)) - 2000;
    const int high = low + 1 + static_cast<int>(below(3000));
    const double scale = integer || chance(30) ? 1 : 0.125;
    if (chance(50)) s[chance(30) ? "exclusiveMinimum" : "minimum"] = low * scale;
    if (chance(50)) s[chance(30) ? "exclusiveMaximum" : "maximum"] = (high + 40) * scale;
    if (integer && chance(20)) s["multipleOf"] = 1 + below(20);
    if (!integer && chance(20)) s["multipleOf"] = 0.01;
    return s;
  }

  OrderedJson array(int depth) {
    OrderedJson s{{"type", "array"}};
    if (chance(30))
      for (uint32_t n = 1 + below(3); n > 0; --n) s["prefixItems"].push_back(any(depth - 1));
    if (chance(80)) s["items"] = chance(10) ? OrderedJson(false) : any(depth - 1);
    if (chance(40)) s["minItems"] = below(3);
    if (chance(60)) s["maxItems"] = 2 + below(20);
    return s;
  }

  OrderedJson object(int depth) {
    OrderedJson s{{"type", "object"}};
    static const std::vector<std::string> kNames = {"name", "a",   "z", "key 1", "\u00fc",
                                                    "q\"",  "n_x", "",  "na"};
    OrderedJson required = OrderedJson::array();
    std::set<std::string> seen;
    for (uint32_t n = below(5); n > 0; --n) {
      const std::string name = pick(kNames);
      if (!seen.insert(name).second) continue;
      s["properties"][name] = any(depth - 1);
      if (chance(50)) required.push_back(name);
    }
    if (chance(10)) required.push_back("extra");
    if (!required.empty()) s["required"] = required;
    if (chance(70)) s["additionalProperties"] = chance(70) ? OrderedJson(false) : any(depth - 1);
    if (chance(15)) s["patternProperties"]["^n_"] = any(0);
    if (chance(10)) s["propertyNames"] = {{"maxLength", 6}};
    if (chance(10)) s["minProperties"] = 1;
    if (chance(15)) s["maxProperties"] = 3 + below(3);
    return s;
  }

  OrderedJson all_of(int depth) {
    if (chance(50)) return {{"allOf", {object(depth), {{"properties", {{"a", any(0)}, {"more", any(0)}}}}}}};
    return {{"allOf", {string(), {{"maxLength", 30}}}}, {"description", "a string"}};
  }

  std::mt19937 random_;
};

}  // namespace

OrderedJson random_schema(uint32_t seed) { return SchemaMaker(seed).make(); }

bool satisfies(const Json& schema, const Json& value) { return Validator(schema).valid(schema, value); }

}  // namespace moeflux::test
