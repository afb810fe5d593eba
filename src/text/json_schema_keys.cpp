// The keys of objects: names, patterns, and what is additional.
#include <algorithm>

#include "text/json_schema_facts.h"

namespace moeflux {
namespace {

using E = Expression;

constexpr size_t kMaxKeyPatterns = 4;
constexpr size_t kMaxProperties = 2000;

}  // namespace

const OrderedJson* SchemaFacts::object_keyword(const OrderedJson& schema, const char* keyword) {
  const OrderedJson* found = find(schema, keyword);
  if (found && !found->is_object()) document_.wrong(schema, keyword, "an object");
  return found ? document_.child(schema, keyword, *found) : nullptr;
}

std::vector<std::string> SchemaFacts::required_names(const Schemas& schemas) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* list = find(*schema, "required");
    if (!list) continue;
    if (!list->is_array()) document_.wrong(*schema, "required", "an array of names");
    for (const OrderedJson& name : *list) {
      if (!name.is_string()) document_.wrong(*schema, "required", "an array of names");
      if (seen.insert(name.get<std::string>()).second) names.push_back(name.get<std::string>());
    }
    if (names.size() > kMaxProperties)
      document_.refuse(*schema, "required", fmt::format("more than {} properties", kMaxProperties));
  }
  return names;
}

std::vector<std::string> SchemaFacts::known_names(const Schemas& schemas) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* properties = object_keyword(*schema, "properties");
    if (!properties) continue;
    for (const auto& [name, unused] : properties->items())
      if (seen.insert(name).second) names.push_back(name);
    if (names.size() > kMaxProperties)
      document_.refuse(*schema, "properties", fmt::format("more than {} properties", kMaxProperties));
  }
  for (const std::string& name : required_names(schemas))
    if (seen.insert(name).second) names.push_back(name);
  return names;
}

// What one schema says of a key: its property, the patterns that it matches, or else what is additional.
template <class Matches>
void SchemaFacts::add_property(const OrderedJson& schema, const OrderedJson* property, Matches&& matches,
                               Conjunction& out) {
  bool covered = property != nullptr;
  if (property) document_.add(out, *property);
  if (const OrderedJson* patterns = object_keyword(schema, "patternProperties"))
    for (const auto& [pattern, subschema] : patterns->items()) {
      if (!matches(pattern)) continue;
      document_.add(out, *document_.child(*patterns, pattern, subschema));
      covered = true;
    }
  const OrderedJson* additional = find(schema, "additionalProperties");
  if (!covered && additional)
    document_.add(out, *document_.child(schema, "additionalProperties", *additional));
}

Conjunction SchemaFacts::property(const Schemas& schemas, const std::string& name) {
  Conjunction out;
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* properties = object_keyword(*schema, "properties");
    const OrderedJson* found = properties ? find(*properties, name.c_str()) : nullptr;
    if (found) document_.child(*properties, name, *found);
    add_property(
        *schema, found,
        [&](const std::string& pattern) { return accepts(key_pattern(*schema, pattern), name); }, out);
  }
  if (const std::optional<ByteGraph> names = property_names(schemas))
    out.impossible = out.impossible || !accepts(*names, name);
  return out;
}

const ByteGraph& SchemaFacts::key_pattern(const OrderedJson& schema, const std::string& pattern) {
  const auto found = key_patterns_.find(pattern);
  if (found != key_patterns_.end()) return found->second;
  ByteGraph graph = document_.at(schema, "patternProperties",
                                 [&] { return automaton_of(parse_pattern(pattern), document_.work); });
  return key_patterns_.emplace(pattern, std::move(graph)).first->second;
}

// The keys that propertyNames allows, where it is there.
std::optional<ByteGraph> SchemaFacts::property_names(const Schemas& schemas) {
  std::optional<ByteGraph> out;
  for (const OrderedJson* schema : schemas) {
    const OrderedJson* names = find(*schema, "propertyNames");
    if (!names) continue;
    const Conjunction conjunction =
        document_.conjunction_of({document_.child(*schema, "propertyNames", *names)});
    if (!conjunction.choices.empty())
      document_.refuse(*schema, "propertyNames", "anyOf and oneOf are not supported here");
    ByteGraph graph = document_.at(*schema, "propertyNames", [&] { return key_graph(conjunction); });
    out = out ? intersection(*out, graph, document_.work) : std::move(graph);
  }
  return out;
}

ByteGraph SchemaFacts::key_graph(const Conjunction& conjunction) {
  if (conjunction.impossible || (types_of(conjunction.schemas, false) & kString) == 0) return {};
  const std::optional<std::vector<OrderedJson>> values = listed_values(conjunction.schemas);
  if (!values) return graph_of(text_of(conjunction.schemas));
  std::vector<E> words;
  for (const OrderedJson& each : *values)
    if (each.is_string()) words.push_back(E::literal(each.get<std::string>()));
  return automaton_of(E::choice(std::move(words)), document_.work);
}

std::vector<KeyClass> SchemaFacts::other_keys(const Schemas& schemas, const std::vector<std::string>& names) {
  const std::vector<std::string> patterns = all_key_patterns(schemas);
  std::vector<KeyClass> out;
  for (uint32_t matched = 0; matched < (1u << patterns.size()); ++matched) {
    std::set<std::string> chosen;
    for (size_t i = 0; i < patterns.size(); ++i)
      if ((matched >> i) & 1) chosen.insert(patterns[i]);
    KeyClass keys;
    for (const OrderedJson* schema : schemas)
      add_property(
          *schema, nullptr, [&](const std::string& pattern) { return chosen.count(pattern) > 0; },
          keys.value);
    if (keys.value.impossible) continue;
    keys.any = names.empty() && patterns.empty() && !property_names(schemas);
    if (!keys.any) keys.graph = other_key(schemas, names, patterns, chosen);
    if (keys.any || !keys.graph.states.empty()) out.push_back(std::move(keys));
  }
  return out;
}

std::vector<std::string> SchemaFacts::all_key_patterns(const Schemas& schemas) {
  std::vector<std::string> patterns;
  for (const OrderedJson* schema : schemas)
    if (const OrderedJson* list = object_keyword(*schema, "patternProperties"))
      for (const auto& [pattern, unused] : list->items()) {
        key_pattern(*schema, pattern);
        if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
          patterns.push_back(pattern);
      }
  if (patterns.size() > kMaxKeyPatterns)
    document_.refuse(*schemas[0], "patternProperties", fmt::format("more than {} patterns", kMaxKeyPatterns));
  return patterns;
}

ByteGraph SchemaFacts::other_key(const Schemas& schemas, const std::vector<std::string>& names,
                                 const std::vector<std::string>& patterns,
                                 const std::set<std::string>& chosen) {
  const std::optional<ByteGraph> allowed = property_names(schemas);
  RegularWork& work = document_.work;
  return document_.at(*schemas[0], "additionalProperties", [&] {
    ByteGraph keys = allowed ? *allowed : automaton_of(any_text(), work);
    std::vector<E> words;
    for (const std::string& name : names) words.push_back(E::literal(name));
    if (!words.empty())
      keys = intersection(keys, complement(automaton_of(E::choice(std::move(words)), work), work), work);
    for (const std::string& pattern : patterns) {
      const ByteGraph& matches = key_patterns_.at(pattern);
      keys = intersection(keys, chosen.count(pattern) ? matches : complement(matches, work), work);
    }
    return keys;
  });
}

}  // namespace moeflux
