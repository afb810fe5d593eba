// Tests: what stands after `is`.
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text_methods.h"

namespace moeflux::jinja {
namespace {

void want_none(const Arguments& a) { positional("a test", a, 0, 0); }

template <bool (*kIs)(const Value&)>
bool simple(Interpreter&, const Value& v, const Arguments& a) {
  want_none(a);
  return kIs(v);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && *v.boolean(); }
bool is_false(const Value& v) { return v.is_bool() && !*v.boolean(); }
bool is_integer(const Value& v) { return v.is_integer() && !v.is_bool(); }
bool is_float(const Value& v) { return v.is_float(); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is_dict(); }
bool is_escaped(const Value& v) { return v.is_markup(); }
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() ||
         (v.object() && (*v.object())->has_elements());
}
bool is_callable(const Value& v) { return v.is_undefined() || (v.object() && (*v.object())->is_callable()); }

Integer rest_of(Interpreter& i, const Value& v, const Value& divisor) {
  const Value rest = apply(i, BinaryOperator::Modulo, v, divisor);
  if (rest.is_integer()) return rest.integer();
  return rest.is_float() && rest.floating() == 0 ? 0 : rest.is_float() && rest.floating() == 1 ? 1 : 2;
}

bool is_odd(Interpreter& i, const Value& v, const Arguments& a) {
  want_none(a);
  return rest_of(i, v, Value(2)) == 1;
}
bool is_even(Interpreter& i, const Value& v, const Arguments& a) {
  want_none(a);
  return rest_of(i, v, Value(2)) == 0;
}
bool is_divisible(Interpreter& i, const Value& v, const Arguments& a) {
  return rest_of(i, v, Parameters("divisibleby", a, {"num"}, 1).at(0)) == 0;
}

bool is_lower_text(Interpreter& i, const Value& v, const Arguments& a) {
  want_none(a);
  const std::string text = to_text(i.meter(), v);
  i.meter().scan(text.size());
  return is_all_lower(text);
}
bool is_upper_text(Interpreter& i, const Value& v, const Arguments& a) {
  want_none(a);
  const std::string text = to_text(i.meter(), v);
  i.meter().scan(text.size());
  return is_all_upper(text);
}

bool is_filter(Interpreter&, const Value& v, const Arguments& a) {
  want_none(a);
  return v.is_string() && find_filter(v.text());
}
bool is_test(Interpreter&, const Value& v, const Arguments& a) {
  want_none(a);
  return v.is_string() && find_test(v.text());
}

bool is_same_as(Interpreter&, const Value& v, const Arguments& a) {
  return v.is_same(Parameters("sameas", a, {"other"}, 1).at(0));
}

bool is_in(Interpreter& i, const Value& v, const Arguments& a) {
  return contains(i.meter(), Parameters("in", a, {"seq"}, 1).at(0), v);
}

template <CompareOperator kOperator>
bool compared(Interpreter& i, const Value& v, const Arguments& a) {
  return compare(i.meter(), kOperator, v, positional("a comparison", a, 1, 1).at(0));
}

}  // namespace

TestFunction find_test(std::string_view name) {
  using Op = CompareOperator;
  static const std::unordered_map<std::string_view, TestFunction> kTests = {
      {"defined", simple<is_defined>},
      {"undefined", simple<is_undefined>},
      {"none", simple<is_none>},
      {"boolean", simple<is_boolean>},
      {"true", simple<is_true>},
      {"false", simple<is_false>},
      {"integer", simple<is_integer>},
      {"float", simple<is_float>},
      {"number", simple<is_number>},
      {"string", simple<is_string>},
      {"mapping", simple<is_mapping>},
      {"sequence", simple<is_sequence>},
      {"iterable", simple<is_iterable>},
      {"callable", simple<is_callable>},
      {"escaped", simple<is_escaped>},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"lower", is_lower_text},
      {"upper", is_upper_text},
      {"filter", is_filter},
      {"test", is_test},
      {"sameas", is_same_as},
      {"in", is_in},
      {"==", compared<Op::Equal>},
      {"eq", compared<Op::Equal>},
      {"equalto", compared<Op::Equal>},
      {"!=", compared<Op::NotEqual>},
      {"ne", compared<Op::NotEqual>},
      {"<", compared<Op::Less>},
      {"lt", compared<Op::Less>},
      {"lessthan", compared<Op::Less>},
      {"<=", compared<Op::LessEqual>},
      {"le", compared<Op::LessEqual>},
      {">", compared<Op::Greater>},
      {"gt", compared<Op::Greater>},
      {"greaterthan", compared<Op::Greater>},
      {">=", compared<Op::GreaterEqual>},
      {"ge", compared<Op::GreaterEqual>}};
  const auto it = kTests.find(name);
  return it == kTests.end() ? nullptr : it->second;
}

}  // namespace moeflux::jinja
