// A value must satisfy several schemas at once: those that a reference, allOf or a branch of anyOf adds to
// the one at hand. Such a conjunction is what is compiled, one rule for each that occurs, so that schemas may
// refer to themselves.
#include "text/json_schema.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/json.h"
#include "text/json_schema_disjoint.h"
#include "text/json_schema_facts.h"
#include "text/json_schema_strings.h"

namespace moeflux {
namespace {

using E = Expression;

constexpr size_t kMaxOptionalPrefix = 64;  // each nests in the one before

class Compiler {
 public:
  Compiler(const OrderedJson& root, const JsonSchemaOptions& options)
      : document_(root), facts_(document_), options_(options) {}

  GrammarRules compile() {
    rule_of(document_.conjunction_of({&document_.root()}));
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
  using Key = std::tuple<bool, Schemas, Schemas>;  // impossible, schemas, choices

  E value(Conjunction conjunction) { return E::call(rule_of(std::move(conjunction))); }

  uint32_t rule_of(Conjunction conjunction) {
    Schemas schemas = conjunction.schemas, choices;
    for (const Choices& each : conjunction.choices) choices.push_back(each.branches);
    std::sort(schemas.begin(), schemas.end());
    std::sort(choices.begin(), choices.end());
    const auto [it, is_new] =
        rules_.try_emplace(Key{conjunction.impossible, std::move(schemas), std::move(choices)},
                           static_cast<uint32_t>(out_.rules.size()));
    if (is_new) {
      if (out_.rules.size() == kMaxGrammarRules)
        fail(Errc::Unsupported, "the schema needs more than {} rules", kMaxGrammarRules);
      document_.work.spend(1000);
      const bool named = !conjunction.schemas.empty();
      out_.rules.push_back({named ? document_.path_of(*conjunction.schemas[0]) : "any value", {}});
      unbuilt_.push_back({it->second, std::move(conjunction)});
    }
    return it->second;
  }

  E compile_conjunction(const Conjunction& conjunction) {
    if (conjunction.impossible) return E::nothing();
    if (conjunction.choices.empty()) return compile_schemas(conjunction.schemas);
    const Choices& choices = conjunction.choices.back();
    const std::vector<Conjunction> branches = document_.expand_last_choice(conjunction);
    if (choices.exactly_one) check_disjoint(*choices.branches, branches);
    std::vector<E> parts;
    for (const Conjunction& branch : branches)
      if (!branch.impossible) parts.push_back(value(branch));
    return E::choice(std::move(parts));
  }

  void check_disjoint(const OrderedJson& list, const std::vector<Conjunction>& branches) {
    for (size_t i = 0; i < branches.size(); ++i)
      for (size_t k = i + 1; k < branches.size(); ++k)
        if (!are_disjoint(document_, facts_, branches[i], branches[k]))
          fail(Errc::Unsupported,
               "schema, {}: branches {} and {} may both hold for one value, which a grammar cannot exclude; "
               "use anyOf",
               document_.path_of(list), i, k);
  }

  E compile_schemas(const Schemas& schemas) {
    if (const std::optional<std::vector<OrderedJson>> values = facts_.listed_values(schemas))
      return one_of_values(*values);
    const uint32_t types = facts_.types_of(schemas, true);
    facts_.check_formats(schemas, types);
    std::vector<E> parts;
    if (types & kObject) parts.push_back(object(schemas));
    if (types & kArray) parts.push_back(array(schemas));
    if (types & kString) parts.push_back(string(schemas));
    if (types & (kInteger | kNumber)) parts.push_back(number(schemas, types));
    if (types & kBoolean) parts.push_back(E::choice({E::literal("true"), E::literal("false")}));
    if (types & kNull) parts.push_back(E::literal("null"));
    return E::choice(std::move(parts));
  }

  E one_of_values(const std::vector<OrderedJson>& values) {
    std::vector<E> parts;
    for (const OrderedJson& each : values) parts.push_back(exactly(each));
    return E::choice(std::move(parts));
  }

  E exactly(const OrderedJson& v) {
    if (v.is_string()) return E::literal(quoted_text(v.get_ref<const std::string&>()));
    if (!v.is_structured()) return E::literal(v.dump());
    std::vector<E> parts{E::literal(v.is_array() ? "[" : "{"), space()};
    bool first = true;
    for (const auto& [key, each] : v.items()) {
      if (!first) parts.push_back(comma());
      first = false;
      if (v.is_object()) {
        parts.push_back(E::literal(quoted_text(key) + ":"));
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

  E number(const Schemas& schemas, uint32_t types) {
    const OrderedJson& where = schemas.empty() ? document_.root() : *schemas[0];
    const NumberBounds bounds = facts_.bounds_of(schemas, types);
    return document_.at(where, "type", [&] {
      return types & kNumber ? number_expression(bounds, document_.work)
                             : integer_expression(bounds, document_.work);
    });
  }

  E string(const Schemas& schemas) {
    const SchemaText text = facts_.text_of(schemas);
    if (text.length.empty()) return E::nothing();
    E inner;
    if (text.patterns.empty())
      inner = E::repeat(string_character(), text.length.least, text.length.most);
    else if (is_plain(text))
      inner = spelled(text.patterns[0].text);
    else
      inner =
          E::of_graph(spelled(document_.at(*schemas[0], "pattern", [&] { return facts_.graph_of(text); })));
    return E::sequence({E::literal("\""), std::move(inner), E::literal("\"")});
  }

  // One pattern and nothing else: it can be written as it is, without an automaton.
  static bool is_plain(const SchemaText& text) {
    if (text.patterns.size() != 1 || !text.length.unlimited()) return false;
    const SearchPattern& pattern = text.patterns[0];
    return pattern.required.empty() && pattern.excluded.empty() && !has_assertions(pattern.text);
  }

  E array(const Schemas& schemas) {
    const Range range = facts_.array_range(schemas);
    if (range.empty()) return E::nothing();
    check_unique_items(schemas, range);
    const size_t n_prefix = std::min<size_t>(facts_.prefix_length(schemas), range.most);
    if (n_prefix > range.least + kMaxOptionalPrefix)
      document_.refuse(*schemas[0], "prefixItems",
                       fmt::format("more than {} optional items", kMaxOptionalPrefix));
    E items = range.most == n_prefix ? E::empty() : rest_items(schemas, range, n_prefix);
    for (size_t i = n_prefix; i-- > 0;) {
      const E before = i > 0 ? comma() : E::empty();
      items = i < range.least
                  ? prepend(before, value(facts_.item(schemas, i)), std::move(items))
                  : E::optional(E::sequence({before, value(facts_.item(schemas, i)), std::move(items)}));
    }
    return E::sequence({E::literal("["), space(), std::move(items), space(), E::literal("]")});
  }

  // Keeps required items side by side, so that long tuples do not nest.
  static E prepend(E before, E first, E rest) {
    if (rest.kind != E::Kind::Sequence) rest = E::sequence({std::move(rest), E::empty()});
    rest.parts.insert(rest.parts.begin(), {std::move(before), std::move(first)});
    return rest;
  }

  E rest_items(const Schemas& schemas, const Range& range, size_t n_prefix) {
    const E each = value(facts_.item(schemas, n_prefix));
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

  void check_unique_items(const Schemas& schemas, const Range& range) {
    for (const OrderedJson* schema : schemas) {
      const OrderedJson* unique = find(*schema, "uniqueItems");
      if (!unique) continue;
      if (!unique->is_boolean()) document_.wrong(*schema, "uniqueItems", "true or false");
      if (unique->get<bool>() && range.most > 1)
        document_.refuse(*schema, "uniqueItems",
                         "a grammar cannot compare items; only arrays of at most one are possible");
    }
  }

  E object(const Schemas& schemas) {
    const std::vector<std::string> names = facts_.known_names(schemas),
                                   needs = facts_.required_names(schemas);
    const std::set<std::string> required(needs.begin(), needs.end());
    E list;
    list.kind = E::Kind::List;
    for (const std::string& name : names) {
      const bool needed = required.count(name) > 0;
      Conjunction conjunction = facts_.property(schemas, name);
      if (conjunction.impossible && needed) return E::nothing();
      if (conjunction.impossible) continue;
      list.parts.push_back(
          E::sequence({E::literal(quoted_text(name) + ":"), space(), value(std::move(conjunction))}));
      list.presence.push_back(needed ? E::Presence::Required : E::Presence::Optional);
    }
    const Range range = facts_.object_range(schemas);
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

  [[noreturn]] void refuse_min_properties(const Schemas& schemas) {
    for (const OrderedJson* schema : schemas)
      if (find(*schema, "minProperties"))
        document_.refuse(*schema, "minProperties", "a grammar cannot tell whether additional keys repeat");
    fail(Errc::Unsupported, "schema: minProperties is not supported here");
  }

  std::vector<E> other_properties(const Schemas& schemas, const std::vector<std::string>& names) {
    std::vector<E> out;
    for (KeyClass& keys : facts_.other_keys(schemas, names)) {
      // Keys have one spelling only: a second one for a known name would get past its schema.
      E key = keys.any ? spelled(any_text()) : E::of_graph(spelled(keys.graph));
      out.push_back(E::sequence(
          {E::literal("\""), std::move(key), E::literal("\":"), space(), value(std::move(keys.value))}));
    }
    return out;
  }

  SchemaDocument document_;
  SchemaFacts facts_;
  const JsonSchemaOptions options_;
  GrammarRules out_;
  std::map<Key, uint32_t> rules_;
  std::vector<Unbuilt> unbuilt_;
};

}  // namespace

GrammarRules json_schema_rules(const OrderedJson& schema, const JsonSchemaOptions& options) {
  return Compiler(schema, options).compile();
}

Grammar compile_json_schema(std::string_view text, const JsonSchemaOptions& options) {
  if (text.size() > kMaxGrammarBytes)
    fail(Errc::InvalidArgument, "the schema has {} bytes, more than {}", text.size(), kMaxGrammarBytes);
  parse_json(text, "schema");  // refuses depth and duplicate keys
  const GrammarRules rules = json_schema_rules(OrderedJson::parse(text.begin(), text.end()), options);
  try {
    return Grammar(rules);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("schema: {}", e.what()));
  }
}

}  // namespace moeflux
