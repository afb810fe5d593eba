#include "text/json_schema_disjoint.h"

#include <algorithm>

namespace moeflux {
namespace {

constexpr uint32_t kMaxComparedDepth = 8;

class Comparison {
 public:
  Comparison(SchemaDocument& document, SchemaFacts& facts) : document_(document), facts_(facts) {}

  bool disjoint(const Conjunction& a, const Conjunction& b, uint32_t depth) {
    if (a.impossible || b.impossible) return true;
    document_.work.spend(1000);
    if (depth > kMaxComparedDepth) return false;
    if (!a.choices.empty() || !b.choices.empty()) {
      const bool in_a = !a.choices.empty();
      const std::vector<Conjunction> branches = document_.expand_last_choice(in_a ? a : b);
      return std::all_of(branches.begin(), branches.end(), [&](const Conjunction& branch) {
        return disjoint(branch, in_a ? b : a, depth + 1);
      });
    }
    const auto values_a = facts_.listed_values(a.schemas), values_b = facts_.listed_values(b.schemas);
    if (values_a && values_b) return !share_value(*values_a, *values_b);
    if (values_a || values_b)
      return values_a ? facts_.none_allowed(*values_a, b.schemas) : facts_.none_allowed(*values_b, a.schemas);
    const uint32_t shared = facts_.types_of(a.schemas, false) & facts_.types_of(b.schemas, false);
    if (shared & (kNull | kBoolean)) return false;
    if ((shared & kObject) && !disjoint_objects(a.schemas, b.schemas, depth)) return false;
    if ((shared & kArray) && !facts_.array_range(a.schemas).disjoint_from(facts_.array_range(b.schemas)))
      return false;
    if ((shared & kString) && !disjoint_strings(a.schemas, b.schemas)) return false;
    return (shared & (kInteger | kNumber)) == 0 ||
           facts_.bounds_of(a.schemas, kNumber).disjoint_from(facts_.bounds_of(b.schemas, kNumber));
  }

 private:
  bool disjoint_strings(const Schemas& a, const Schemas& b) {
    const SchemaText x = facts_.text_of(a), y = facts_.text_of(b);
    if (x.length.disjoint_from(y.length)) return true;
    if (x.patterns.empty() || y.patterns.empty()) return false;
    return is_empty(intersection(facts_.graph_of(x), facts_.graph_of(y), document_.work));
  }

  // By a property that one needs and that the other cannot have, or has with other values.
  bool disjoint_objects(const Schemas& a, const Schemas& b, uint32_t depth) {
    const std::vector<std::string> in_a = facts_.required_names(a), in_b = facts_.required_names(b);
    std::set<std::string> names(in_a.begin(), in_a.end());
    names.insert(in_b.begin(), in_b.end());
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const bool both = std::find(in_a.begin(), in_a.end(), name) != in_a.end() &&
                        std::find(in_b.begin(), in_b.end(), name) != in_b.end();
      const Conjunction x = facts_.property(a, name), y = facts_.property(b, name);
      return x.impossible || y.impossible || (both && disjoint(x, y, depth + 1));
    });
  }

  SchemaDocument& document_;
  SchemaFacts& facts_;
};

}  // namespace

bool are_disjoint(SchemaDocument& document, SchemaFacts& facts, const Conjunction& a, const Conjunction& b) {
  return Comparison(document, facts).disjoint(a, b, 0);
}

}  // namespace moeflux
