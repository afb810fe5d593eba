#include "text/json_schema_document.h"

#include <algorithm>
#include <cctype>

#include "text/json_schema_keywords.h"

namespace moeflux {
namespace {

constexpr int kMaxSchemaDepth = 100;
constexpr size_t kMaxReferences = 100;  // one after the other, without a step into the value

int depth_of(const OrderedJson& value, int above = 0) {
  if (above > kMaxSchemaDepth)
    fail(Errc::InvalidArgument, "schema: nested deeper than {} levels", kMaxSchemaDepth);
  int depth = above;
  if (value.is_structured())
    for (const OrderedJson& part : value) depth = std::max(depth, depth_of(part, above + 1));
  return depth;
}

}  // namespace

const OrderedJson* find(const OrderedJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

SchemaDocument::SchemaDocument(const OrderedJson& root) : root_(root) {
  depth_of(root);
  paths_.emplace(&root, "#");
}

void SchemaDocument::refuse(const OrderedJson& schema, const std::string& keyword, const std::string& why) {
  fail(Errc::Unsupported, "schema, {}/{}: {}", path_of(schema), keyword, why);
}

void SchemaDocument::wrong(const OrderedJson& schema, const std::string& keyword, const std::string& want) {
  fail(Errc::InvalidArgument, "schema, {}/{}: must be {}", path_of(schema), keyword, want);
}

const OrderedJson* SchemaDocument::child(const OrderedJson& schema, const std::string& step,
                                         const OrderedJson& value) {
  paths_.try_emplace(&value, path_of(schema) + "/" + step);
  return &value;
}

Conjunction SchemaDocument::conjunction_of(const Schemas& schemas) {
  Conjunction out;
  for (const OrderedJson* schema : schemas) add(out, *schema);
  return out;
}

void SchemaDocument::add(Conjunction& out, const OrderedJson& schema) {
  Schemas path;
  add(out, schema, path);
}

void SchemaDocument::add(Conjunction& out, const OrderedJson& schema, Schemas& path) {
  if (schema.is_boolean()) {
    out.impossible = out.impossible || !schema.get<bool>();
    return;
  }
  if (!schema.is_object())
    fail(Errc::InvalidArgument, "schema, {}: must be an object, true or false", path_of(schema));
  if (std::find(path.begin(), path.end(), &schema) != path.end())
    fail(Errc::InvalidArgument, "schema, {}: refers to itself and to nothing else", path_of(schema));
  if (path.size() > kMaxReferences)
    fail(Errc::Unsupported, "schema, {}: more than {} references in a row", path_of(schema), kMaxReferences);
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

void SchemaDocument::check_branches(const OrderedJson& schema, const std::string& keyword,
                                    const OrderedJson& branches) {
  if (!branches.is_array() || branches.empty()) wrong(schema, keyword, "an array of schemas");
  child(schema, keyword, branches);
  for (size_t i = 0; i < branches.size(); ++i) child(branches, std::to_string(i), branches[i]);
}

void SchemaDocument::check_keywords(const OrderedJson& schema) {
  if (!checked_.insert(&schema).second) return;
  for (const auto& [name, value] : schema.items()) {
    const Keyword* keyword = find_keyword(name);
    if (!keyword && name.rfind("x-", 0) == 0) continue;
    if (!keyword) refuse(schema, name, "unknown keyword");
    if (keyword->use == Keyword::Use::Refused) refuse(schema, name, "this keyword is not supported");
  }
}

const OrderedJson& SchemaDocument::resolve(const OrderedJson& schema, const OrderedJson& ref) {
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

const OrderedJson* SchemaDocument::step_into(const OrderedJson& value, const std::string& step) {
  if (value.is_object()) return find(value, step.c_str());
  const bool number =
      !step.empty() && step.size() < 7 && step.find_first_not_of("0123456789") == std::string::npos;
  if (!value.is_array() || !number || std::stoul(step) >= value.size()) return nullptr;
  return &value[std::stoul(step)];
}

std::string SchemaDocument::decoded_step(const std::string& step) {
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

std::vector<Conjunction> SchemaDocument::expand_last_choice(const Conjunction& conjunction) {
  std::vector<Conjunction> out;
  Conjunction rest = conjunction;
  rest.choices.pop_back();
  for (const OrderedJson& branch : *conjunction.choices.back().branches) {
    out.push_back(rest);
    Schemas path = conjunction.choices.back().path;
    add(out.back(), branch, path);
  }
  return out;
}

}  // namespace moeflux
