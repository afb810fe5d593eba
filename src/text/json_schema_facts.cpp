#include "text/json_schema_facts.h"

#include <algorithm>

#include "base/json.h"
#include "text/json_schema_keywords.h"
#include "text/json_schema_strings.h"

namespace moeflux {
namespace {

using E = Expression;

uint32_t type_of(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::null:
      return kNull;
    case OrderedJson::value_t::boolean:
      return kBoolean;
    case OrderedJson::value_t::string:
      return kString;
    case OrderedJson::value_t::array:
      return kArray;
    case OrderedJson::value_t::object:
      return kObject;
    default:
      return decimal_of(value).fraction.empty() ? kInteger : kNumber;
  }
}

size_t length_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Decimal decimal_of(const OrderedJson& number) {
  return Decimal::parse(number.is_number_float() ? fmt::format("{}", number.get<double>()) : number.dump());
}

bool share_value(const std::vector<OrderedJson>& a, const std::vector<OrderedJson>& b) {
  return std::any_of(a.begin(), a.end(), [&b](const OrderedJson& each) {
    // Objects are equal whatever the order of their keys.
    return std::any_of(b.begin(), b.end(),
                       [&each](const OrderedJson& other) { return Json(each) == Json(other); });
  });
}

E any_text() { return E::repeat(E::one_of(any_code_point()), 0, kUnbounded); }

uint32_t SchemaFacts::types_of(const Schemas& schemas, bool infer) {
  uint32_t types = kAnyType, inferred = 0;
  bool stated = false;
  for (const OrderedJson* schema : schemas) {
    if (const OrderedJson* type = find(*schema, "type")) {
      types &= stated_types(*schema, *type);
      stated = true;
    }
    for (const auto& [name, operand] : schema->items()) inferred |= types_meant_by(name, operand);
  }
  return infer && !stated && inferred != 0 ? inferred : types;
}

// Where no type is stated, a keyword that is about some type says that this type is meant.
uint32_t SchemaFacts::types_meant_by(const std::string& name, const OrderedJson& operand) {
  if (name == "format" && operand.is_string() && find_number_format(operand.get_ref<const std::string&>()))
    return kInteger | kNumber;
  const Keyword* keyword = find_keyword(name);
  switch (keyword ? keyword->use : Keyword::Use::Annotation) {
    case Keyword::Use::OfNumbers:
      return kInteger | kNumber;
    case Keyword::Use::OfStrings:
      return kString;
    case Keyword::Use::OfArrays:
      return kArray;
    case Keyword::Use::OfObjects:
      return kObject;
    default:
      return 0;
  }
}

uint32_t SchemaFacts::stated_types(const OrderedJson& schema, const OrderedJson& type) {
  if (type.is_string()) return type_named(schema, type);
  if (!type.is_array() || type.empty()) document_.wrong(schema, "type", "a type's name or an array of such");
  uint32_t types = 0;
  for (const OrderedJson& each : type) types |= type_named(schema, each);
  return types;
}

uint32_t SchemaFacts::type_named(const OrderedJson& schema, const OrderedJson& name) {
  static constexpr std::pair<const char*, uint32_t> kTypes[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  if (name.is_string())
    for (const auto& [known, type] : kTypes)
      if (name.get_ref<const std::string&>() == known) return type;
  document_.wrong(schema, "type", "null, boolean, integer, number, string, array or object");
}

std::optional<std::vector<OrderedJson>> SchemaFacts::listed_values(const Schemas& schemas) {
  std::optional<std::vector<OrderedJson>> values;
  for (const OrderedJson* schema : schemas) {
    if (const OrderedJson* one = find(*schema, "const")) keep_common(values, {*one});
    if (const OrderedJson* list = find(*schema, "enum")) {
      if (!list->is_array()) document_.wrong(*schema, "enum", "an array");
      keep_common(values, std::vector<OrderedJson>(list->begin(), list->end()));
    }
  }
  if (!values) return values;
  document_.work.spend(values->size() * 100);
  std::vector<OrderedJson> allowed;
  for (const OrderedJson& each : *values)
    if (allows(schemas, each)) allowed.push_back(each);
  return allowed;
}

void SchemaFacts::keep_common(std::optional<std::vector<OrderedJson>>& values,
                              std::vector<OrderedJson> more) {
  if (!values) {
    values = std::move(more);
    return;
  }
  document_.work.spend(values->size() * more.size() * 10);
  std::erase_if(*values, [&more](const OrderedJson& each) { return !share_value({each}, more); });
}

// Whether the keywords beside an enum allow one of its values.
bool SchemaFacts::allows(const Schemas& schemas, const OrderedJson& candidate) {
  const uint32_t type = type_of(candidate);
  if ((types_of(schemas, false) & type) == 0) return false;
  if (type == kString) return allows_text(schemas, candidate.get_ref<const std::string&>());
  if (type == kInteger || type == kNumber) {
    const NumberBounds bounds = bounds_of(schemas, type == kInteger ? kInteger : kNumber);
    if (!bounds.multiples.empty()) refuse_beside_enum(schemas, "multipleOf");
    return bounds.contains(decimal_of(candidate));
  }
  if (type == kArray || type == kObject) refuse_structure_beside_enum(schemas, type);
  return true;
}

bool SchemaFacts::allows_text(const Schemas& schemas, const std::string& candidate) {
  const SchemaText text = text_of(schemas);
  if (length_of(candidate) < text.length.least || length_of(candidate) > text.length.most) return false;
  return text.patterns.empty() || accepts(pattern_graph(schemas), candidate);
}

// The automaton of all patterns and formats of these schemas, which many values may be compared with.
const ByteGraph& SchemaFacts::pattern_graph(const Schemas& schemas) {
  const auto found = pattern_graphs_.find(schemas);
  if (found != pattern_graphs_.end()) return found->second;
  SchemaText text = text_of(schemas);
  text.length = {};
  ByteGraph graph = document_.at(*schemas[0], "pattern", [&] { return graph_of(text); });
  return pattern_graphs_.emplace(schemas, std::move(graph)).first->second;
}

void SchemaFacts::refuse_beside_enum(const Schemas& schemas, const std::string& keyword) {
  for (const OrderedJson* schema : schemas)
    if (find(*schema, keyword.c_str()))
      document_.refuse(*schema, keyword, "not supported beside enum or const");
  fail(Errc::Unsupported, "schema: {} is not supported beside enum or const", keyword);
}

void SchemaFacts::refuse_structure_beside_enum(const Schemas& schemas, uint32_t type) {
  for (const OrderedJson* schema : schemas)
    for (const auto& [name, operand] : schema->items())
      if (types_meant_by(name, operand) == type) refuse_beside_enum(schemas, name);
}

uint32_t SchemaFacts::count_of(const OrderedJson& schema, const char* keyword, const OrderedJson& count) {
  const bool whole = count.is_number() && decimal_of(count).fraction.empty() && !decimal_of(count).negative;
  if (!whole) document_.wrong(schema, keyword, "a whole number that is not negative");
  const std::string digits = decimal_of(count).whole;
  return digits.size() > 9 ? kUnbounded - 1 : static_cast<uint32_t>(std::stoul(digits));
}

// What copies are made for must be possible to copy.
Range SchemaFacts::range_of(const Schemas& schemas, const char* least, const char* most) {
  Range range;
  for (const OrderedJson* schema : schemas) {
    if (const OrderedJson* count = find(*schema, least))
      range.least = std::max(range.least, repetitions(*schema, least, count_of(*schema, least, *count)));
    if (const OrderedJson* count = find(*schema, most)) {
      const uint32_t limit = count_of(*schema, most, *count);
      range.most = std::min(range.most, repetitions(*schema, most, limit));
    }
  }
  return range;
}

uint32_t SchemaFacts::repetitions(const OrderedJson& schema, const char* keyword, uint32_t count) {
  if (count > kMaxGrammarRepetitions)
    document_.refuse(schema, keyword,
                     fmt::format("counts above {} are not supported", kMaxGrammarRepetitions));
  return count;
}

NumberBounds SchemaFacts::bounds_of(const Schemas& schemas, uint32_t types) {
  NumberBounds bounds;
  for (const OrderedJson* schema : schemas) {
    const auto bound = [&](const char* keyword) -> std::optional<Decimal> {
      const OrderedJson* number = find(*schema, keyword);
      if (!number) return std::nullopt;
      if (!number->is_number()) document_.wrong(*schema, keyword, "a number");
      return decimal_of(*number);
    };
    if (const auto least = bound("minimum")) bounds.raise_least(*least, false);
    if (const auto most = bound("maximum")) bounds.lower_most(*most, false);
    if (const auto least = bound("exclusiveMinimum")) bounds.raise_least(*least, true);
    if (const auto most = bound("exclusiveMaximum")) bounds.lower_most(*most, true);
    if (const auto multiple = bound("multipleOf")) {
      if (multiple->negative || multiple->is_zero()) document_.wrong(*schema, "multipleOf", "above 0");
      bounds.multiples.push_back(*multiple);
    }
    add_number_format(*schema, types, bounds);
  }
  return bounds;
}

void SchemaFacts::add_number_format(const OrderedJson& schema, uint32_t types, NumberBounds& bounds) {
  const OrderedJson* format = find(schema, "format");
  if (!format || !format->is_string() || (types & (kInteger | kNumber)) == 0) return;
  const NumberFormat* known = find_number_format(format->get_ref<const std::string&>());
  if (!known || !known->least) return;
  bounds.raise_least(Decimal::parse(known->least), false);
  bounds.lower_most(Decimal::parse(known->most), false);
}

// A format that is about none of the types would be ignored.
void SchemaFacts::check_formats(const Schemas& schemas, uint32_t types) {
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* format = find(*schema, "format");
    if (!format || !format->is_string()) continue;
    const std::string name = format->get<std::string>();
    const bool of_numbers = find_number_format(name) != nullptr;
    if (of_numbers ? (types & (kInteger | kNumber)) == 0 : (types & kString) == 0)
      document_.refuse(*schema, "format", fmt::format("'{}' is not a known format of this type", name));
  }
}

SchemaText SchemaFacts::text_of(const Schemas& schemas) {
  SchemaText text;
  text.length = range_of(schemas, "minLength", "maxLength");
  for (const OrderedJson* schema : schemas) {
    if (const OrderedJson* pattern = find(*schema, "pattern")) {
      if (!pattern->is_string()) document_.wrong(*schema, "pattern", "a string");
      text.patterns.push_back(pattern_at(*schema, "pattern", pattern->get<std::string>()));
    }
    if (const OrderedJson* format = find(*schema, "format")) {
      if (!format->is_string()) document_.wrong(*schema, "format", "a string");
      add_format(*schema, format->get<std::string>(), text);
    }
  }
  return text;
}

void SchemaFacts::add_format(const OrderedJson& schema, const std::string& format, SchemaText& text) {
  if (find_number_format(format)) return;  // says nothing of strings
  const std::optional<std::string> pattern = format_pattern(format);
  if (!pattern)
    document_.refuse(schema, "format",
                     fmt::format("'{}' is not supported; known are {}", format, known_formats()));
  text.patterns.push_back(pattern_at(schema, "format", *pattern));
}

SearchPattern SchemaFacts::pattern_at(const OrderedJson& schema, const std::string& keyword,
                                      const std::string& pattern) {
  return document_.at(schema, keyword, [&] { return parse_pattern(pattern); });
}

ByteGraph SchemaFacts::graph_of(const SchemaText& text) {
  RegularWork& work = document_.work;
  ByteGraph graph =
      text.patterns.empty() ? automaton_of(any_text(), work) : automaton_of(text.patterns[0], work);
  for (size_t i = 1; i < text.patterns.size(); ++i)
    graph = intersection(graph, automaton_of(text.patterns[i], work), work);
  if (text.length.unlimited()) return graph;
  const E length = E::repeat(E::one_of(any_code_point()), text.length.least, text.length.most);
  return intersection(graph, automaton_of(length, work), work);
}

Conjunction SchemaFacts::item(const Schemas& schemas, size_t index) {
  Conjunction out;
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* items = find(*schema, "items");
    const OrderedJson* prefix = find(*schema, "prefixItems");
    const bool old_tuple = items && items->is_array();  // before 2020-12, items was prefixItems as well
    if (old_tuple && prefix) document_.wrong(*schema, "items", "a schema beside prefixItems");
    const OrderedJson* rest = old_tuple ? find(*schema, "additionalItems") : items;
    if (old_tuple) prefix = items;
    const char* name = old_tuple ? "items" : "prefixItems";
    if (prefix && !prefix->is_array()) document_.wrong(*schema, name, "an array");
    if (prefix && index < prefix->size()) {
      document_.child(*schema, name, *prefix);
      document_.add(out, *document_.child(*prefix, std::to_string(index), (*prefix)[index]));
    } else if (rest) {
      document_.add(out, *document_.child(*schema, old_tuple ? "additionalItems" : "items", *rest));
    }
  }
  return out;
}

size_t SchemaFacts::prefix_length(const Schemas& schemas) {
  size_t longest = 0;
  for (const OrderedJson* schema : schemas)
    for (const char* keyword : {"prefixItems", "items"})
      if (const OrderedJson* list = find(*schema, keyword); list && list->is_array())
        longest = std::max(longest, list->size());
  return longest;
}

// How many items there may be, in view of those that no value can be.
Range SchemaFacts::array_range(const Schemas& schemas) {
  Range range = range_of(schemas, "minItems", "maxItems");
  for (size_t i = 0; i <= prefix_length(schemas); ++i)
    if (item(schemas, i).impossible) range.most = std::min(range.most, static_cast<uint32_t>(i));
  return range;
}

bool SchemaFacts::none_allowed(const std::vector<OrderedJson>& values, const Schemas& schemas) {
  return std::none_of(values.begin(), values.end(), [&](const OrderedJson& each) {
    const uint32_t type = type_of(each);
    if (type != kArray && type != kObject) return allows(schemas, each);
    return (types_of(schemas, false) & type) != 0;
  });
}

}  // namespace moeflux
