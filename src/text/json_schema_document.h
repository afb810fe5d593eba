// A schema as a document: references followed, keywords checked, and the conjunctions that a value must
// satisfy. Knows where in the document each schema stands, for messages.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/grammar_regular.h"
#include "text/json_schema.h"

namespace moeflux {

using Schemas = std::vector<const OrderedJson*>;  // objects, all of which must hold

struct Choices {  // of an anyOf or oneOf
  const OrderedJson* branches = nullptr;
  bool exactly_one = false;
  // The schemas that lead to it without a step into the value. A branch that leads to one of them again would
  // be its own reason.
  Schemas path;
};

// Schemas that all hold. References and allOf have been followed; of anyOf and oneOf, one branch is still to
// be added each.
struct Conjunction {
  Schemas schemas;
  std::vector<Choices> choices;
  bool impossible = false;
};

const OrderedJson* find(const OrderedJson& object, const char* key);  // null where it is not there

class SchemaDocument {
 public:
  explicit SchemaDocument(const OrderedJson& root);

  const OrderedJson& root() const { return root_; }
  const OrderedJson* child(const OrderedJson& schema, const std::string& step, const OrderedJson& value);
  Conjunction conjunction_of(const Schemas& schemas);
  void add(Conjunction& out, const OrderedJson& schema);
  std::vector<Conjunction> expand_last_choice(const Conjunction& conjunction);

  const std::string& path_of(const OrderedJson& schema) { return paths_[&schema]; }
  [[noreturn]] void refuse(const OrderedJson& schema, const std::string& keyword, const std::string& why);
  [[noreturn]] void wrong(const OrderedJson& schema, const std::string& keyword, const std::string& want);

  // Runs what may throw for reasons that know nothing of the schema, and says where in it that was.
  template <class Run>
  auto at(const OrderedJson& schema, const std::string& keyword, Run&& run) {
    try {
      return run();
    } catch (const Error& e) {
      throw Error(e.code, fmt::format("schema, {}/{}: {}", path_of(schema), keyword, e.what()));
    }
  }

  RegularWork work;  // that all parts of one compilation may do together

 private:
  void add(Conjunction& out, const OrderedJson& schema, Schemas& path);
  void check_branches(const OrderedJson& schema, const std::string& keyword, const OrderedJson& branches);
  void check_keywords(const OrderedJson& schema);
  const OrderedJson& resolve(const OrderedJson& schema, const OrderedJson& ref);
  static const OrderedJson* step_into(const OrderedJson& value, const std::string& step);
  static std::string decoded_step(const std::string& step);

  const OrderedJson& root_;
  std::unordered_map<const OrderedJson*, std::string> paths_;
  std::set<const OrderedJson*> checked_;
};

}  // namespace moeflux
