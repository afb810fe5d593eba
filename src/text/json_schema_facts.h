// What the keywords of a conjunction come to, type by type: bounds, lengths, patterns, listed values, and the
// schemas that items and properties must satisfy. What is not understood is refused here.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "text/json_schema_document.h"
#include "text/json_schema_numbers.h"

namespace moeflux {

enum Type : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  // comes with kInteger
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

Decimal decimal_of(const OrderedJson& number);
bool share_value(const std::vector<OrderedJson>& a, const std::vector<OrderedJson>& b);
Expression any_text();

struct Range {  // inclusive
  uint32_t least = 0, most = kUnbounded;
  bool empty() const { return least > most; }
  bool unlimited() const { return least == 0 && most == kUnbounded; }
  bool disjoint_from(const Range& other) const { return most < other.least || other.most < least; }
};

struct SchemaText {
  Range length;                         // in code points
  std::vector<SearchPattern> patterns;  // all must match
};

struct KeyClass {  // keys of an object that are not known by name, and what their values must satisfy
  bool any = false;
  ByteGraph graph;  // where not any
  Conjunction value;
};

class SchemaFacts {
 public:
  explicit SchemaFacts(SchemaDocument& document) : document_(document) {}

  // Where no type is stated and infer is set, the types that keywords are about are meant.
  uint32_t types_of(const Schemas& schemas, bool infer);
  void check_formats(const Schemas& schemas, uint32_t types);  // one that is about no type would be ignored
  // The values of enum and const that the other keywords allow.
  std::optional<std::vector<OrderedJson>> listed_values(const Schemas& schemas);
  bool allows(const Schemas& schemas, const OrderedJson& candidate);
  bool none_allowed(const std::vector<OrderedJson>& values, const Schemas& schemas);

  NumberBounds bounds_of(const Schemas& schemas, uint32_t types);
  SchemaText text_of(const Schemas& schemas);
  ByteGraph graph_of(const SchemaText& text);

  Range array_range(const Schemas& schemas);  // in view of items that no value can be
  Conjunction item(const Schemas& schemas, size_t index);
  static size_t prefix_length(const Schemas& schemas);

  Range object_range(const Schemas& schemas) { return range_of(schemas, "minProperties", "maxProperties"); }
  std::vector<std::string> required_names(const Schemas& schemas);
  // In the order of the schema: declared ones first, then those that are only required.
  std::vector<std::string> known_names(const Schemas& schemas);
  Conjunction property(const Schemas& schemas, const std::string& name);
  // Other keys fall into classes, by the patterns that they match; each class has its own schemas.
  std::vector<KeyClass> other_keys(const Schemas& schemas, const std::vector<std::string>& names);

 private:
  static uint32_t types_meant_by(const std::string& name, const OrderedJson& operand);
  uint32_t stated_types(const OrderedJson& schema, const OrderedJson& type);
  uint32_t type_named(const OrderedJson& schema, const OrderedJson& name);
  void keep_common(std::optional<std::vector<OrderedJson>>& values, std::vector<OrderedJson> more);
  bool allows_text(const Schemas& schemas, const std::string& candidate);
  const ByteGraph& pattern_graph(const Schemas& schemas);
  [[noreturn]] void refuse_beside_enum(const Schemas& schemas, const std::string& keyword);
  void refuse_structure_beside_enum(const Schemas& schemas, uint32_t type);
  uint32_t count_of(const OrderedJson& schema, const char* keyword, const OrderedJson& count);
  Range range_of(const Schemas& schemas, const char* least, const char* most);
  uint32_t repetitions(const OrderedJson& schema, const char* keyword, uint32_t count);
  void add_number_format(const OrderedJson& schema, uint32_t types, NumberBounds& bounds);
  void add_format(const OrderedJson& schema, const std::string& format, SchemaText& text);
  SearchPattern pattern_at(const OrderedJson& schema, const std::string& keyword, const std::string& pattern);
  const OrderedJson* object_keyword(const OrderedJson& schema, const char* keyword);
  template <class Matches>
  void add_property(const OrderedJson& schema, const OrderedJson* property, Matches&& matches,
                    Conjunction& out);
  const ByteGraph& key_pattern(const OrderedJson& schema, const std::string& pattern);
  std::vector<std::string> all_key_patterns(const Schemas& schemas);
  std::optional<ByteGraph> property_names(const Schemas& schemas);  // empty: all are allowed
  ByteGraph key_graph(const Conjunction& conjunction);
  ByteGraph other_key(const Schemas& schemas, const std::vector<std::string>& names,
                      const std::vector<std::string>& patterns, const std::set<std::string>& chosen);

  SchemaDocument& document_;
  std::map<std::string, ByteGraph> key_patterns_;
  std::map<Schemas, ByteGraph> pattern_graphs_;
};

}  // namespace moeflux
