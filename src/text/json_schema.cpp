// A value must satisfy several schemas at once: those that a reference, allOf or a branch of anyOf adds to
// the one at hand. Such a conjunction is what is compiled, one rule for each that occurs, so that schemas may
// refer to themselves.
#include "text/json_schema.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar_regular.h"
#include "text/json_schema_numbers.h"
#include "text/json_schema_strings.h"

namespace moeflux {
namespace {

using E = Expression;

constexpr int kMaxDepth = 100;
constexpr size_t kMaxOptionalPrefix = 64;
constexpr size_t kMaxKeyPatterns = 4;
constexpr uint32_t kMaxDisjointDepth = 8;

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

struct Keyword {
  enum class Use { Annotation, General, OfNumbers, OfStrings, OfArrays, OfObjects, Refused };
  const char* name;
  Use use;
};

constexpr Keyword kKeywords[] = {
    {"$schema", Keyword::Use::Annotation},
    {"$id", Keyword::Use::Annotation},
    {"id", Keyword::Use::Annotation},
    {"$anchor", Keyword::Use::Annotation},
    {"$comment", Keyword::Use::Annotation},
    {"$defs", Keyword::Use::Annotation},
    {"definitions", Keyword::Use::Annotation},
    {"title", Keyword::Use::Annotation},
    {"description", Keyword::Use::Annotation},
    {"default", Keyword::Use::Annotation},
    {"example", Keyword::Use::Annotation},
    {"examples", Keyword::Use::Annotation},
    {"deprecated", Keyword::Use::Annotation},
    {"readOnly", Keyword::Use::Annotation},
    {"writeOnly", Keyword::Use::Annotation},
    {"contentEncoding", Keyword::Use::Annotation},
    {"contentMediaType", Keyword::Use::Annotation},
    {"contentSchema", Keyword::Use::Annotation},
    {"discriminator", Keyword::Use::Annotation},
    {"$ref", Keyword::Use::General},
    {"type", Keyword::Use::General},
    {"enum", Keyword::Use::General},
    {"const", Keyword::Use::General},
    {"allOf", Keyword::Use::General},
    {"anyOf", Keyword::Use::General},
    {"oneOf", Keyword::Use::General},
    {"minimum", Keyword::Use::OfNumbers},
    {"maximum", Keyword::Use::OfNumbers},
    {"exclusiveMinimum", Keyword::Use::OfNumbers},
    {"exclusiveMaximum", Keyword::Use::OfNumbers},
    {"multipleOf", Keyword::Use::OfNumbers},
    {"minLength", Keyword::Use::OfStrings},
    {"maxLength", Keyword::Use::OfStrings},
    {"pattern", Keyword::Use::OfStrings},
    {"format", Keyword::Use::OfStrings},
    {"items", Keyword::Use::OfArrays},
    {"prefixItems", Keyword::Use::OfArrays},
    {"additionalItems", Keyword::Use::OfArrays},
    {"minItems", Keyword::Use::OfArrays},
    {"maxItems", Keyword::Use::OfArrays},
    {"uniqueItems", Keyword::Use::OfArrays},
    {"properties", Keyword::Use::OfObjects},
    {"required", Keyword::Use::OfObjects},
    {"additionalProperties", Keyword::Use::OfObjects},
    {"patternProperties", Keyword::Use::OfObjects},
    {"propertyNames", Keyword::Use::OfObjects},
    {"minProperties", Keyword::Use::OfObjects},
    {"maxProperties", Keyword::Use::OfObjects},
    {"not", Keyword::Use::Refused},
    {"if", Keyword::Use::Refused},
    {"then", Keyword::Use::Refused},
    {"else", Keyword::Use::Refused},
    {"contains", Keyword::Use::Refused},
    {"minContains", Keyword::Use::Refused},
    {"maxContains", Keyword::Use::Refused},
    {"dependencies", Keyword::Use::Refused},
    {"dependentRequired", Keyword::Use::Refused},
    {"dependentSchemas", Keyword::Use::Refused},
    {"unevaluatedItems", Keyword::Use::Refused},
    {"unevaluatedProperties", Keyword::Use::Refused},
    {"$dynamicRef", Keyword::Use::Refused},
    {"$dynamicAnchor", Keyword::Use::Refused},
    {"$recursiveRef", Keyword::Use::Refused},
    {"$recursiveAnchor", Keyword::Use::Refused},
};

const Keyword* find_keyword(std::string_view name) {
  for (const Keyword& keyword : kKeywords)
    if (name == keyword.name) return &keyword;
  return nullptr;
}

// Bounds that the names of number formats stand for.
struct NumberFormat {
  const char* name;
  const char *least, *most;  // null: not bounded
};
constexpr NumberFormat kNumberFormats[] = {
    {"int8", "-128", "127"},
    {"int16", "-32768", "32767"},
    {"int32", "-2147483648", "2147483647"},
    {"int64", "-9223372036854775808", "9223372036854775807"},
    {"uint8", "0", "255"},
    {"uint16", "0", "65535"},
    {"uint32", "0", "4294967295"},
    {"uint64", "0", "18446744073709551615"},
    {"uint", "0", "18446744073709551615"},
    {"float", nullptr, nullptr},
    {"double", nullptr, nullptr},
};

const NumberFormat* find_number_format(std::string_view name) {
  for (const NumberFormat& format : kNumberFormats)
    if (name == format.name) return &format;
  return nullptr;
}

const OrderedJson* find(const OrderedJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

Decimal decimal_of(const OrderedJson& number) {
  return Decimal::parse(number.is_number_float() ? fmt::format("{}", number.get<double>()) : number.dump());
}

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

int depth_of(const OrderedJson& value, int above = 0) {
  if (above > kMaxDepth) fail(Errc::InvalidArgument, "schema: nested deeper than {} levels", kMaxDepth);
  int depth = above;
  if (value.is_structured())
    for (const OrderedJson& part : value) depth = std::max(depth, depth_of(part, above + 1));
  return depth;
}

E any_text() { return E::repeat(E::one_of(any_code_point()), 0, kUnbounded); }

struct Range {
  uint32_t least = 0, most = kUnbounded;
  bool empty() const { return least > most; }
  bool disjoint_from(const Range& other) const { return most < other.least || other.most < least; }
};

struct Choices {  // of an anyOf or oneOf
  const OrderedJson* branches = nullptr;
  bool exactly_one = false;
  // The schemas that lead to it without a step into the value. A branch that leads to one of them again would
  // be its own reason.
  std::vector<const OrderedJson*> path;
};

// Schemas that all hold. References and allOf have been followed; of anyOf and oneOf, one branch is still to
// be added each.
struct Conjunction {
  std::vector<const OrderedJson*> schemas;  // objects
  std::vector<Choices> choices;
  bool impossible = false;
};

class Compiler {
 public:
  Compiler(const OrderedJson& root, const JsonSchemaOptions& options) : root_(root), options_(options) {
    depth_of(root);
    paths_[&root] = "#";
  }

  GrammarRules compile() {
    rule_of(conjunction_of({&root_}));
    while (!unbuilt_.empty()) {
      const Unbuilt next = std::move(unbuilt_.back());
      unbuilt_.pop_back();
      E body = compile_conjunction(next.conjunction);
      out_.rules[next.rule].body = std::move(body);
    }
    return std::move(out_);
  }

 private:
  struct Unbuilt {
    uint32_t rule;
    Conjunction conjunction;
  };

  // messages

  const std::string& path_of(const OrderedJson& schema) { return paths_[&schema]; }

  [[noreturn]] void refuse(const OrderedJson& schema, const std::string& keyword, const std::string& why) {
    fail(Errc::Unsupported, "schema, {}/{}: {}", path_of(schema), keyword, why);
  }
  [[noreturn]] void wrong(const OrderedJson& schema, const std::string& keyword, const std::string& want) {
    fail(Errc::InvalidArgument, "schema, {}/{}: must be {}", path_of(schema), keyword, want);
  }

  // Runs what may throw for reasons that know nothing of the schema, and says where in it that was.
  template <class Work>
  auto at(const OrderedJson& schema, const std::string& keyword, Work&& work) {
    try {
      return work();
    } catch (const Error& e) {
      throw Error(e.code, fmt::format("schema, {}/{}: {}", path_of(schema), keyword, e.what()));
    }
  }

  const OrderedJson* child(const OrderedJson& schema, const std::string& step, const OrderedJson& value) {
    paths_.try_emplace(&value, path_of(schema) + "/" + step);
    return &value;
  }

  // conjunctions

  Conjunction conjunction_of(const std::vector<const OrderedJson*>& schemas) {
    Conjunction out;
    for (const OrderedJson* schema : schemas) add(out, *schema);
    return out;
  }

  void add(Conjunction& out, const OrderedJson& schema) {
    std::vector<const OrderedJson*> path;
    add(out, schema, path);
  }

  void add(Conjunction& out, const OrderedJson& schema, std::vector<const OrderedJson*>& path) {
    if (schema.is_boolean()) {
      out.impossible = out.impossible || !schema.get<bool>();
      return;
    }
    if (!schema.is_object())
      fail(Errc::InvalidArgument, "schema, {}: must be an object, true or false", path_of(schema));
    if (std::find(path.begin(), path.end(), &schema) != path.end())
      fail(Errc::InvalidArgument, "schema, {}: refers to itself and to nothing else", path_of(schema));
    if (std::find(out.schemas.begin(), out.schemas.end(), &schema) != out.schemas.end()) return;
    check_keywords(schema);
    path.push_back(&schema);
    out.schemas.push_back(&schema);
    if (const OrderedJson* ref = find(schema, "$ref")) add(out, resolve(schema, *ref), path);
    if (const OrderedJson* all = find(schema, "allOf")) {
      check_branches(schema, "allOf", *all);
      for (const OrderedJson& part : *all) add(out, part, path);
    }
    for (const bool exactly_one : {false, true}) {
      const char* keyword = exactly_one ? "oneOf" : "anyOf";
      const OrderedJson* branches = find(schema, keyword);
      if (!branches) continue;
      check_branches(schema, keyword, *branches);
      out.choices.push_back({branches, exactly_one, path});
    }
    path.pop_back();
  }

  void check_branches(const OrderedJson& schema, const std::string& keyword, const OrderedJson& branches) {
    if (!branches.is_array() || branches.empty()) wrong(schema, keyword, "an array of schemas");
    child(schema, keyword, branches);
    for (size_t i = 0; i < branches.size(); ++i) child(branches, std::to_string(i), branches[i]);
  }

  void check_keywords(const OrderedJson& schema) {
    if (!checked_.insert(&schema).second) return;
    for (const auto& [name, value] : schema.items()) {
      const Keyword* keyword = find_keyword(name);
      if (!keyword && name.rfind("x-", 0) == 0) continue;
      if (!keyword) refuse(schema, name, "unknown keyword");
      if (keyword->use == Keyword::Use::Refused) refuse(schema, name, "this keyword is not supported");
    }
  }

  const OrderedJson& resolve(const OrderedJson& schema, const OrderedJson& ref) {
    if (!ref.is_string()) wrong(schema, "$ref", "a string");
    const std::string text = ref.get<std::string>();
    if (text.empty() || text[0] != '#')
      refuse(schema, "$ref", fmt::format("'{}' is not in this document", text));
    if (text.size() > 1 && text[1] != '/') refuse(schema, "$ref", "anchors are not supported");
    const OrderedJson* target = &root_;
    size_t from = 2;
    while (from <= text.size() && text.size() > 1) {
      const size_t to = std::min(text.find('/', from), text.size());
      const std::string step = decoded_step(text.substr(from, to - from));
      target = step_into(*target, step);
      if (!target) wrong(schema, "$ref", fmt::format("a place of this document, which '{}' is not", text));
      from = to + 1;
    }
    paths_.try_emplace(target, text);
    return *target;
  }

  static const OrderedJson* step_into(const OrderedJson& value, const std::string& step) {
    if (value.is_object()) return find(value, step.c_str());
    const bool number =
        !step.empty() && step.size() < 7 && step.find_first_not_of("0123456789") == std::string::npos;
    if (!value.is_array() || !number || std::stoul(step) >= value.size()) return nullptr;
    return &value[std::stoul(step)];
  }

  static std::string decoded_step(const std::string& step) {
    std::string out;
    for (size_t i = 0; i < step.size(); ++i) {
      if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')) {
        out += step[++i] == '0' ? '~' : '/';
      } else if (step[i] == '%' && i + 2 < step.size() && std::isxdigit(static_cast<uint8_t>(step[i + 1])) &&
                 std::isxdigit(static_cast<uint8_t>(step[i + 2]))) {
        out += static_cast<char>(std::stoi(step.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        out += step[i];
      }
    }
    return out;
  }

  // rules

  using Key = std::tuple<bool, std::vector<const OrderedJson*>, std::vector<const OrderedJson*>>;

  E value(Conjunction conjunction) { return E::call(rule_of(std::move(conjunction))); }

  uint32_t rule_of(Conjunction conjunction) {
    std::vector<const OrderedJson*> schemas = conjunction.schemas;
    std::vector<const OrderedJson*> choices;
    for (const Choices& each : conjunction.choices) choices.push_back(each.branches);
    std::sort(schemas.begin(), schemas.end());
    std::sort(choices.begin(), choices.end());
    const auto [it, is_new] =
        rules_.try_emplace(Key{conjunction.impossible, std::move(schemas), std::move(choices)},
                           static_cast<uint32_t>(out_.rules.size()));
    if (is_new) {
      if (out_.rules.size() == kMaxGrammarRules)
        fail(Errc::Unsupported, "the schema needs more than {} rules", kMaxGrammarRules);
      const std::string name = conjunction.schemas.empty() ? "any value" : path_of(*conjunction.schemas[0]);
      out_.rules.push_back({name, {}});
      unbuilt_.push_back({it->second, std::move(conjunction)});
    }
    return it->second;
  }

  E compile_conjunction(const Conjunction& conjunction) {
    if (conjunction.impossible) return E::nothing();
    if (conjunction.choices.empty()) return compile_schemas(conjunction.schemas);
    const Choices choices = conjunction.choices.back();
    const std::vector<Conjunction> branches = expand_last_choice(conjunction);
    if (choices.exactly_one) check_disjoint(*choices.branches, branches);
    std::vector<E> parts;
    for (const Conjunction& branch : branches)
      if (!branch.impossible) parts.push_back(value(branch));
    return E::choice(std::move(parts));
  }

  std::vector<Conjunction> expand_last_choice(const Conjunction& conjunction) {
    std::vector<Conjunction> out;
    Conjunction rest = conjunction;
    rest.choices.pop_back();
    for (const OrderedJson& branch : *conjunction.choices.back().branches) {
      out.push_back(rest);
      std::vector<const OrderedJson*> path = conjunction.choices.back().path;
      add(out.back(), branch, path);
    }
    return out;
  }

  E compile_schemas(const std::vector<const OrderedJson*>& schemas) {
    if (const std::optional<std::vector<OrderedJson>> values = listed_values(schemas))
      return one_of_values(*values);
    const uint32_t types = types_of(schemas, true);
    check_formats(schemas, types);
    std::vector<E> parts;
    if (types & kObject) parts.push_back(object(schemas));
    if (types & kArray) parts.push_back(array(schemas));
    if (types & kString) parts.push_back(string(schemas));
    if (types & (kInteger | kNumber)) parts.push_back(number(schemas, types));
    if (types & kBoolean) parts.push_back(E::choice({E::literal("true"), E::literal("false")}));
    if (types & kNull) parts.push_back(E::literal("null"));
    return E::choice(std::move(parts));
  }

  // types

  uint32_t types_of(const std::vector<const OrderedJson*>& schemas, bool infer) {
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
  static uint32_t types_meant_by(const std::string& name, const OrderedJson& operand) {
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

  uint32_t stated_types(const OrderedJson& schema, const OrderedJson& type) {
    if (type.is_string()) return type_named(schema, type);
    if (!type.is_array() || type.empty()) wrong(schema, "type", "a type's name or an array of such");
    uint32_t types = 0;
    for (const OrderedJson& each : type) types |= type_named(schema, each);
    return types;
  }

  uint32_t type_named(const OrderedJson& schema, const OrderedJson& name) {
    static constexpr std::pair<const char*, uint32_t> kTypes[] = {
        {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kNumber},
        {"string", kString}, {"array", kArray},     {"object", kObject}};
    if (name.is_string())
      for (const auto& [known, type] : kTypes)
        if (name.get_ref<const std::string&>() == known) return type;
    wrong(schema, "type", "null, boolean, integer, number, string, array or object");
  }

  // listed values

  std::optional<std::vector<OrderedJson>> listed_values(const std::vector<const OrderedJson*>& schemas) {
    std::optional<std::vector<OrderedJson>> values;
    for (const OrderedJson* schema : schemas) {
      if (const OrderedJson* one = find(*schema, "const")) keep_common(values, {*one});
      if (const OrderedJson* list = find(*schema, "enum")) {
        if (!list->is_array()) wrong(*schema, "enum", "an array");
        keep_common(values, std::vector<OrderedJson>(list->begin(), list->end()));
      }
    }
    if (!values) return values;
    std::vector<OrderedJson> allowed;
    for (const OrderedJson& each : *values)
      if (allows(schemas, each)) allowed.push_back(each);
    return allowed;
  }

  static void keep_common(std::optional<std::vector<OrderedJson>>& values, std::vector<OrderedJson> more) {
    if (!values) {
      values = std::move(more);
      return;
    }
    std::erase_if(*values, [&more](const OrderedJson& each) { return !share_value({each}, more); });
  }

  // Whether the keywords beside an enum allow one of its values.
  bool allows(const std::vector<const OrderedJson*>& schemas, const OrderedJson& candidate) {
    const uint32_t type = type_of(candidate);
    if ((types_of(schemas, false) & type) == 0) return false;
    if (type == kString) {
      const Text text = text_of(schemas);
      const std::string& s = candidate.get_ref<const std::string&>();
      return length_of(s) >= text.length.least && length_of(s) <= text.length.most &&
             std::all_of(text.patterns.begin(), text.patterns.end(),
                         [&s](const E& pattern) { return accepts(automaton_of(pattern), s); });
    }
    if (type == kInteger || type == kNumber) {
      const NumberBounds bounds = bounds_of(schemas, type == kInteger ? kInteger : kNumber);
      if (!bounds.multiples.empty()) refuse_beside_enum(schemas, "multipleOf");
      return bounds.contains(decimal_of(candidate));
    }
    if (type == kArray || type == kObject) refuse_structure_beside_enum(schemas, type);
    return true;
  }

  [[noreturn]] void refuse_beside_enum(const std::vector<const OrderedJson*>& schemas,
                                       const std::string& keyword) {
    for (const OrderedJson* schema : schemas)
      if (find(*schema, keyword.c_str())) refuse(*schema, keyword, "not supported beside enum or const");
    fail(Errc::Unsupported, "schema: {} is not supported beside enum or const", keyword);
  }

  void refuse_structure_beside_enum(const std::vector<const OrderedJson*>& schemas, uint32_t type) {
    for (const OrderedJson* schema : schemas)
      for (const auto& [name, operand] : schema->items())
        if (types_meant_by(name, operand) == type) refuse_beside_enum(schemas, name);
  }

  E one_of_values(const std::vector<OrderedJson>& values) {
    std::vector<E> parts;
    for (const OrderedJson& each : values) parts.push_back(exactly(each));
    return E::choice(std::move(parts));
  }

  E exactly(const OrderedJson& v) {
    if (v.is_string()) return E::literal("\"" + spelled(v.get_ref<const std::string&>()) + "\"");
    if (!v.is_structured()) return E::literal(v.dump());
    std::vector<E> parts{E::literal(v.is_array() ? "[" : "{"), space()};
    bool first = true;
    for (const auto& [key, each] : v.items()) {
      if (!first) parts.push_back(comma());
      first = false;
      if (v.is_object()) {
        parts.push_back(E::literal("\"" + spelled(key) + "\":"));
        parts.push_back(space());
      }
      parts.push_back(exactly(each));
    }
    parts.push_back(space());
    parts.push_back(E::literal(v.is_array() ? "]" : "}"));
    return E::sequence(std::move(parts));
  }

  E space() const {
    return options_.spaces == JsonSchemaOptions::Spaces::Single ? E::optional(E::literal(" ")) : E::empty();
  }
  E comma() const { return E::sequence({E::literal(","), space()}); }

  // counts

  uint32_t count_of(const OrderedJson& schema, const char* keyword, const OrderedJson& count) {
    const bool whole = count.is_number() && decimal_of(count).fraction.empty() && !decimal_of(count).negative;
    if (!whole) wrong(schema, keyword, "a whole number that is not negative");
    const std::string digits = decimal_of(count).whole;
    return digits.size() > 9 ? kUnbounded - 1 : static_cast<uint32_t>(std::stoul(digits));
  }

  // What copies are made for must be possible to copy.
  Range range_of(const std::vector<const OrderedJson*>& schemas, const char* least, const char* most) {
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

  uint32_t repetitions(const OrderedJson& schema, const char* keyword, uint32_t count) {
    if (count > kMaxGrammarRepetitions)
      refuse(schema, keyword, fmt::format("counts above {} are not supported", kMaxGrammarRepetitions));
    return count;
  }

  // numbers

  NumberBounds bounds_of(const std::vector<const OrderedJson*>& schemas, uint32_t types) {
    NumberBounds bounds;
    for (const OrderedJson* schema : schemas) {
      const auto bound = [&](const char* keyword) -> std::optional<Decimal> {
        const OrderedJson* number = find(*schema, keyword);
        if (!number) return std::nullopt;
        if (!number->is_number()) wrong(*schema, keyword, "a number");
        return decimal_of(*number);
      };
      if (const auto least = bound("minimum")) bounds.raise_least(*least, false);
      if (const auto most = bound("maximum")) bounds.lower_most(*most, false);
      if (const auto least = bound("exclusiveMinimum")) bounds.raise_least(*least, true);
      if (const auto most = bound("exclusiveMaximum")) bounds.lower_most(*most, true);
      if (const auto multiple = bound("multipleOf")) {
        if (multiple->negative || multiple->is_zero()) wrong(*schema, "multipleOf", "above 0");
        bounds.multiples.push_back(*multiple);
      }
      add_number_format(*schema, types, bounds);
    }
    return bounds;
  }

  void add_number_format(const OrderedJson& schema, uint32_t types, NumberBounds& bounds) {
    const OrderedJson* format = find(schema, "format");
    if (!format || !format->is_string() || (types & (kInteger | kNumber)) == 0) return;
    const NumberFormat* known = find_number_format(format->get_ref<const std::string&>());
    if (!known || !known->least) return;
    bounds.raise_least(Decimal::parse(known->least), false);
    bounds.lower_most(Decimal::parse(known->most), false);
  }

  E number(const std::vector<const OrderedJson*>& schemas, uint32_t types) {
    const OrderedJson& where = *(schemas.empty() ? &root_ : schemas[0]);
    const NumberBounds bounds = bounds_of(schemas, types);
    return at(where, "type",
              [&] { return types & kNumber ? number_expression(bounds) : integer_expression(bounds); });
  }

  // A format that is about none of the types would be ignored.
  void check_formats(const std::vector<const OrderedJson*>& schemas, uint32_t types) {
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* format = find(*schema, "format");
      if (!format || !format->is_string()) continue;
      const std::string name = format->get<std::string>();
      const bool of_numbers = find_number_format(name) != nullptr;
      if (of_numbers ? (types & (kInteger | kNumber)) == 0 : (types & kString) == 0)
        refuse(*schema, "format", fmt::format("'{}' is not a known format of this type", name));
    }
  }

  // strings

  struct Text {
    Range length;
    std::vector<E> patterns;  // all must match the whole text; may hold assertions
  };

  Text text_of(const std::vector<const OrderedJson*>& schemas) {
    Text text;
    text.length = range_of(schemas, "minLength", "maxLength");
    for (const OrderedJson* schema : schemas) {
      if (const OrderedJson* pattern = find(*schema, "pattern")) {
        if (!pattern->is_string()) wrong(*schema, "pattern", "a string");
        text.patterns.push_back(pattern_at(*schema, "pattern", pattern->get<std::string>()));
      }
      if (const OrderedJson* format = find(*schema, "format")) {
        if (!format->is_string()) wrong(*schema, "format", "a string");
        add_format(*schema, format->get<std::string>(), text);
      }
    }
    return text;
  }

  void add_format(const OrderedJson& schema, const std::string& format, Text& text) {
    if (find_number_format(format)) return;  // says nothing of strings
    const std::optional<std::string> pattern = format_pattern(format);
    if (!pattern)
      refuse(schema, "format", fmt::format("'{}' is not supported; known are {}", format, known_formats()));
    text.patterns.push_back(pattern_at(schema, "format", *pattern));
  }

  E pattern_at(const OrderedJson& schema, const std::string& keyword, const std::string& pattern) {
    return at(schema, keyword, [&] { return search_expression(pattern); });
  }

  E string(const std::vector<const OrderedJson*>& schemas) {
    const Text text = text_of(schemas);
    if (text.length.empty()) return E::nothing();
    E inner;
    if (text.patterns.empty())
      inner = E::repeat(string_character(), text.length.least, text.length.most);
    else if (text.patterns.size() == 1 && !has_assertions(text.patterns[0]) && unlimited(text.length))
      inner = spelled(text.patterns[0]);
    else
      inner = E::of_graph(spelled(at(*schemas[0], "pattern", [&] { return graph_of(text); })));
    return E::sequence({E::literal("\""), std::move(inner), E::literal("\"")});
  }

  static bool unlimited(const Range& range) { return range.least == 0 && range.most == kUnbounded; }

  static ByteGraph graph_of(const Text& text) {
    ByteGraph graph = automaton_of(text.patterns.empty() ? any_text() : text.patterns[0]);
    for (size_t i = 1; i < text.patterns.size(); ++i)
      graph = intersection(graph, automaton_of(text.patterns[i]));
    if (unlimited(text.length)) return graph;
    return intersection(
        graph, automaton_of(E::repeat(E::one_of(any_code_point()), text.length.least, text.length.most)));
  }

  // arrays

  Conjunction item(const std::vector<const OrderedJson*>& schemas, size_t index) {
    Conjunction out;
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* items = find(*schema, "items");
      const OrderedJson* prefix = find(*schema, "prefixItems");
      const bool old_tuple = items && items->is_array();  // before 2020-12, items was prefixItems as well
      if (old_tuple && prefix) wrong(*schema, "items", "a schema beside prefixItems");
      const OrderedJson* rest = old_tuple ? find(*schema, "additionalItems") : items;
      if (old_tuple) prefix = items;
      const char* name = old_tuple ? "items" : "prefixItems";
      if (prefix && !prefix->is_array()) wrong(*schema, name, "an array");
      if (prefix && index < prefix->size()) {
        child(*schema, name, *prefix);
        add(out, *child(*prefix, std::to_string(index), (*prefix)[index]));
      } else if (rest) {
        add(out, *child(*schema, old_tuple ? "additionalItems" : "items", *rest));
      }
    }
    return out;
  }

  static size_t prefix_length(const std::vector<const OrderedJson*>& schemas) {
    size_t longest = 0;
    for (const OrderedJson* schema : schemas)
      for (const char* keyword : {"prefixItems", "items"})
        if (const OrderedJson* list = find(*schema, keyword); list && list->is_array())
          longest = std::max(longest, list->size());
    return longest;
  }

  // How many items there may be, in view of those that no value can be.
  Range array_range(const std::vector<const OrderedJson*>& schemas) {
    Range range = range_of(schemas, "minItems", "maxItems");
    for (size_t i = 0; i <= prefix_length(schemas); ++i)
      if (item(schemas, i).impossible) range.most = std::min(range.most, static_cast<uint32_t>(i));
    return range;
  }

  E array(const std::vector<const OrderedJson*>& schemas) {
    const Range range = array_range(schemas);
    if (range.empty()) return E::nothing();
    check_unique_items(schemas, range);
    const size_t n_prefix = std::min<size_t>(prefix_length(schemas), range.most);
    if (n_prefix > range.least + kMaxOptionalPrefix)
      refuse(*schemas[0], "prefixItems", fmt::format("more than {} optional items", kMaxOptionalPrefix));
    E items = range.most == n_prefix ? E::empty() : rest_items(schemas, range, n_prefix);
    for (size_t i = n_prefix; i-- > 0;) {
      const E before = i > 0 ? comma() : E::empty();
      items = i < range.least ? prepend(before, value(item(schemas, i)), std::move(items))
                              : E::optional(E::sequence({before, value(item(schemas, i)), std::move(items)}));
    }
    return E::sequence({E::literal("["), space(), std::move(items), space(), E::literal("]")});
  }

  // Keeps required items side by side, so that long tuples do not nest.
  static E prepend(E before, E first, E rest) {
    if (rest.kind != E::Kind::Sequence) rest = E::sequence({std::move(rest), E::empty()});
    rest.parts.insert(rest.parts.begin(), {std::move(before), std::move(first)});
    return rest;
  }

  E rest_items(const std::vector<const OrderedJson*>& schemas, const Range& range, size_t n_prefix) {
    const E each = value(item(schemas, n_prefix));
    const auto done = static_cast<uint32_t>(n_prefix);
    const uint32_t least = range.least > done ? range.least - done : 0;
    const uint32_t most = range.most == kUnbounded ? kUnbounded : range.most - done;
    if (n_prefix > 0) return E::repeat(E::sequence({comma(), each}), least, most);
    if (most == 0) return E::empty();
    const E more = E::repeat(E::sequence({comma(), each}), least > 0 ? least - 1 : 0,
                             most == kUnbounded ? kUnbounded : most - 1);
    const E all = most == 1 ? each : E::sequence({each, more});
    return least == 0 ? E::optional(all) : all;
  }

  void check_unique_items(const std::vector<const OrderedJson*>& schemas, const Range& range) {
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* unique = find(*schema, "uniqueItems");
      if (!unique) continue;
      if (!unique->is_boolean()) wrong(*schema, "uniqueItems", "true or false");
      if (unique->get<bool>() && range.most > 1)
        refuse(*schema, "uniqueItems",
               "a grammar cannot compare items; only arrays of at most one are possible");
    }
  }

  // objects

  const OrderedJson* object_keyword(const OrderedJson& schema, const char* keyword) {
    const OrderedJson* found = find(schema, keyword);
    if (found && !found->is_object()) wrong(schema, keyword, "an object");
    return found ? child(schema, keyword, *found) : nullptr;
  }

  std::vector<std::string> required_names(const std::vector<const OrderedJson*>& schemas) {
    std::vector<std::string> names;
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* list = find(*schema, "required");
      if (!list) continue;
      if (!list->is_array()) wrong(*schema, "required", "an array of names");
      for (const OrderedJson& name : *list) {
        if (!name.is_string()) wrong(*schema, "required", "an array of names");
        if (std::find(names.begin(), names.end(), name.get_ref<const std::string&>()) == names.end())
          names.push_back(name.get<std::string>());
      }
    }
    return names;
  }

  // In the order of the schema: declared ones first, then those that are only required.
  std::vector<std::string> known_names(const std::vector<const OrderedJson*>& schemas) {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const OrderedJson* schema : schemas)
      if (const OrderedJson* properties = object_keyword(*schema, "properties"))
        for (const auto& [name, unused] : properties->items())
          if (seen.insert(name).second) names.push_back(name);
    for (const std::string& name : required_names(schemas))
      if (seen.insert(name).second) names.push_back(name);
    return names;
  }

  // Adds what one schema says of a key: its property, the patterns that it matches, or else what is
  // additional.
  template <class Matches>
  void add_property(const OrderedJson& schema, const OrderedJson* property, Matches&& matches,
                    Conjunction& out) {
    bool covered = property != nullptr;
    if (property) add(out, *property);
    if (const OrderedJson* patterns = object_keyword(schema, "patternProperties"))
      for (const auto& [pattern, subschema] : patterns->items()) {
        if (!matches(pattern)) continue;
        add(out, *child(*patterns, pattern, subschema));
        covered = true;
      }
    const OrderedJson* additional = find(schema, "additionalProperties");
    if (!covered && additional) add(out, *child(schema, "additionalProperties", *additional));
  }

  Conjunction property(const std::vector<const OrderedJson*>& schemas, const std::string& name) {
    Conjunction out;
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* properties = object_keyword(*schema, "properties");
      const OrderedJson* found = properties ? find(*properties, name.c_str()) : nullptr;
      if (found) child(*properties, name, *found);
      add_property(
          *schema, found,
          [&](const std::string& pattern) { return accepts(key_pattern(*schema, pattern), name); }, out);
    }
    if (const std::optional<ByteGraph> names = property_names(schemas))
      out.impossible = out.impossible || !accepts(*names, name);
    return out;
  }

  const ByteGraph& key_pattern(const OrderedJson& schema, const std::string& pattern) {
    const auto found = key_patterns_.find(pattern);
    if (found != key_patterns_.end()) return found->second;
    ByteGraph graph =
        at(schema, "patternProperties", [&] { return automaton_of(search_expression(pattern)); });
    return key_patterns_.emplace(pattern, std::move(graph)).first->second;
  }

  // The keys that propertyNames allows, where it is there.
  std::optional<ByteGraph> property_names(const std::vector<const OrderedJson*>& schemas) {
    std::optional<ByteGraph> out;
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* names = find(*schema, "propertyNames");
      if (!names) continue;
      const Conjunction conjunction = conjunction_of({child(*schema, "propertyNames", *names)});
      if (!conjunction.choices.empty())
        refuse(*schema, "propertyNames", "anyOf and oneOf are not supported here");
      ByteGraph graph = at(*schema, "propertyNames", [&] { return key_graph(conjunction); });
      out = out ? intersection(*out, graph) : std::move(graph);
    }
    return out;
  }

  ByteGraph key_graph(const Conjunction& conjunction) {
    if (conjunction.impossible || (types_of(conjunction.schemas, false) & kString) == 0) return {};
    const std::optional<std::vector<OrderedJson>> values = listed_values(conjunction.schemas);
    if (!values) return graph_of(text_of(conjunction.schemas));
    std::vector<E> words;
    for (const OrderedJson& each : *values)
      if (each.is_string()) words.push_back(E::literal(each.get<std::string>()));
    return automaton_of(E::choice(std::move(words)));
  }

  E object(const std::vector<const OrderedJson*>& schemas) {
    const std::vector<std::string> names = known_names(schemas), required = required_names(schemas);
    E list;
    list.kind = E::Kind::List;
    for (const std::string& name : names) {
      const bool needed = std::find(required.begin(), required.end(), name) != required.end();
      Conjunction conjunction = property(schemas, name);
      if (conjunction.impossible && needed) return E::nothing();
      if (conjunction.impossible) continue;
      list.parts.push_back(
          E::sequence({E::literal("\"" + spelled(name) + "\":"), space(), value(std::move(conjunction))}));
      list.presence.push_back(needed ? E::Presence::Required : E::Presence::Optional);
    }
    const Range range = range_of(schemas, "minProperties", "maxProperties");
    if (range.empty()) return E::nothing();
    std::vector<E> others = other_properties(schemas, names);
    if (!others.empty()) {
      if (range.least > std::max<size_t>(required.size(), 1)) refuse_min_properties(schemas);
      list.parts.push_back(E::choice(std::move(others)));
      list.presence.push_back(E::Presence::Many);
    }
    list.least = range.least > required.size() ? range.least : 0;
    list.most = range.most;
    list.parts.push_back(comma());
    return E::sequence({E::literal("{"), space(), std::move(list), space(), E::literal("}")});
  }

  [[noreturn]] void refuse_min_properties(const std::vector<const OrderedJson*>& schemas) {
    for (const OrderedJson* schema : schemas)
      if (find(*schema, "minProperties"))
        refuse(*schema, "minProperties", "a grammar cannot tell whether additional keys repeat");
    fail(Errc::Unsupported, "schema: minProperties is not supported here");
  }

  // Keys that are not known fall into classes, by the patterns that they match; each class has its own
  // schema.
  std::vector<E> other_properties(const std::vector<const OrderedJson*>& schemas,
                                  const std::vector<std::string>& names) {
    std::vector<std::string> patterns;
    for (const OrderedJson* schema : schemas)
      if (const OrderedJson* list = object_keyword(*schema, "patternProperties"))
        for (const auto& [pattern, unused] : list->items()) {
          key_pattern(*schema, pattern);
          if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
            patterns.push_back(pattern);
        }
    if (patterns.size() > kMaxKeyPatterns)
      refuse(*schemas[0], "patternProperties", fmt::format("more than {} patterns", kMaxKeyPatterns));
    std::vector<E> out;
    for (uint32_t matched = 0; matched < (1u << patterns.size()); ++matched) {
      std::set<std::string> chosen;
      for (size_t i = 0; i < patterns.size(); ++i)
        if ((matched >> i) & 1) chosen.insert(patterns[i]);
      Conjunction conjunction;
      for (const OrderedJson* schema : schemas)
        add_property(
            *schema, nullptr, [&](const std::string& p) { return chosen.count(p) > 0; }, conjunction);
      if (conjunction.impossible) continue;
      const std::optional<E> key = other_key(schemas, names, patterns, chosen);
      if (!key) continue;
      out.push_back(
          E::sequence({E::literal("\""), *key, E::literal("\":"), space(), value(std::move(conjunction))}));
    }
    return out;
  }

  // Keys that match these patterns and no others, and are none of the names. Keys have one spelling only: a
  // second one for a known name would get past its schema.
  std::optional<E> other_key(const std::vector<const OrderedJson*>& schemas,
                             const std::vector<std::string>& names, const std::vector<std::string>& patterns,
                             const std::set<std::string>& chosen) {
    const std::optional<ByteGraph> allowed = property_names(schemas);
    if (!allowed && names.empty() && patterns.empty()) return spelled(any_text());
    const OrderedJson& where = *schemas[0];
    ByteGraph graph = at(where, "additionalProperties", [&] {
      ByteGraph keys = allowed ? *allowed : automaton_of(any_text());
      std::vector<E> words;
      for (const std::string& name : names) words.push_back(E::literal(name));
      if (!words.empty()) keys = intersection(keys, complement(automaton_of(E::choice(std::move(words)))));
      for (const std::string& pattern : patterns) {
        const ByteGraph& matches = key_patterns_.at(pattern);
        keys = intersection(keys, chosen.count(pattern) ? matches : complement(matches));
      }
      return keys;
    });
    if (graph.states.empty()) return std::nullopt;
    return E::of_graph(spelled(graph));
  }

  // oneOf

  void check_disjoint(const OrderedJson& branches, const std::vector<Conjunction>& conjunctions) {
    for (size_t i = 0; i < conjunctions.size(); ++i)
      for (size_t k = i + 1; k < conjunctions.size(); ++k)
        if (!disjoint(conjunctions[i], conjunctions[k], 0))
          fail(Errc::Unsupported,
               "schema, {}: branches {} and {} may both hold for one value, which a grammar cannot exclude; "
               "use anyOf",
               path_of(branches), i, k);
  }

  // True where it is certain that no value satisfies both.
  bool disjoint(const Conjunction& a, const Conjunction& b, uint32_t depth) {
    if (a.impossible || b.impossible) return true;
    if (depth > kMaxDisjointDepth) return false;
    if (!a.choices.empty() || !b.choices.empty()) {
      const bool in_a = !a.choices.empty();
      const std::vector<Conjunction> branches = expand_last_choice(in_a ? a : b);
      return std::all_of(branches.begin(), branches.end(), [&](const Conjunction& branch) {
        return disjoint(branch, in_a ? b : a, depth + 1);
      });
    }
    const auto values_a = listed_values(a.schemas), values_b = listed_values(b.schemas);
    if (values_a && values_b) return !share_value(*values_a, *values_b);
    if (values_a || values_b)
      return values_a ? none_allowed(*values_a, b.schemas) : none_allowed(*values_b, a.schemas);
    const uint32_t shared = types_of(a.schemas, false) & types_of(b.schemas, false);
    if (shared & (kNull | kBoolean)) return false;
    if ((shared & kObject) && !disjoint_objects(a.schemas, b.schemas, depth)) return false;
    if ((shared & kArray) && !array_range(a.schemas).disjoint_from(array_range(b.schemas))) return false;
    if ((shared & kString) && !disjoint_strings(a.schemas, b.schemas)) return false;
    return (shared & (kInteger | kNumber)) == 0 ||
           bounds_of(a.schemas, kNumber).disjoint_from(bounds_of(b.schemas, kNumber));
  }

  static bool share_value(const std::vector<OrderedJson>& a, const std::vector<OrderedJson>& b) {
    return std::any_of(a.begin(), a.end(), [&b](const OrderedJson& each) {
      return std::any_of(b.begin(), b.end(), [&each](const OrderedJson& other) { return same(each, other); });
    });
  }

  // Objects are equal whatever the order of their keys.
  static bool same(const OrderedJson& a, const OrderedJson& b) { return Json(a) == Json(b); }

  bool none_allowed(const std::vector<OrderedJson>& values, const std::vector<const OrderedJson*>& schemas) {
    return std::none_of(values.begin(), values.end(), [&](const OrderedJson& each) {
      const uint32_t type = type_of(each);
      if (type != kArray && type != kObject) return allows(schemas, each);
      return (types_of(schemas, false) & type) != 0;
    });
  }

  bool disjoint_strings(const std::vector<const OrderedJson*>& a, const std::vector<const OrderedJson*>& b) {
    const Text x = text_of(a), y = text_of(b);
    if (x.length.disjoint_from(y.length)) return true;
    if (x.patterns.empty() || y.patterns.empty()) return false;
    return is_empty(intersection(graph_of(x), graph_of(y)));
  }

  // By a property that one needs and that the other cannot have, or has with other values.
  bool disjoint_objects(const std::vector<const OrderedJson*>& a, const std::vector<const OrderedJson*>& b,
                        uint32_t depth) {
    const std::vector<std::string> in_a = required_names(a), in_b = required_names(b);
    std::set<std::string> names(in_a.begin(), in_a.end());
    names.insert(in_b.begin(), in_b.end());
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const bool both = std::find(in_a.begin(), in_a.end(), name) != in_a.end() &&
                        std::find(in_b.begin(), in_b.end(), name) != in_b.end();
      const Conjunction x = property(a, name), y = property(b, name);
      return x.impossible || y.impossible || (both && disjoint(x, y, depth + 1));
    });
  }

  const OrderedJson& root_;
  const JsonSchemaOptions options_;
  GrammarRules out_;
  std::map<Key, uint32_t> rules_;
  std::vector<Unbuilt> unbuilt_;
  std::unordered_map<const OrderedJson*, std::string> paths_;
  std::set<const OrderedJson*> checked_;
  std::map<std::string, ByteGraph> key_patterns_;
};

}  // namespace

Grammar compile_json_schema(const OrderedJson& schema, const JsonSchemaOptions& options) {
  const GrammarRules rules = Compiler(schema, options).compile();
  try {
    return Grammar(rules);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("schema: {}", e.what()));
  }
}

Grammar compile_json_schema(std::string_view text, const JsonSchemaOptions& options) {
  if (text.size() > kMaxGrammarBytes)
    fail(Errc::InvalidArgument, "the schema has {} bytes, more than {}", text.size(), kMaxGrammarBytes);
  parse_json(text, "schema");  // refuses depth and duplicate keys
  return compile_json_schema(OrderedJson::parse(text.begin(), text.end()), options);
}

}  // namespace moeflux
