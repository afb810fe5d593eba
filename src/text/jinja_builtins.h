// What the language brings along: operators, filters, tests, methods of values, globals. Each is a plain
// function; the tables are looked up by name.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace moeflux::jinja {

FilterFunction find_filter(std::string_view name);  // null where there is none
TestFunction find_test(std::string_view name);
std::optional<Value> find_global(std::string_view name);
// A method or attribute that Python's type has. One that would change the value, or reach into the machinery,
// is given as undefined with a message that says so.
std::optional<Value> find_method(Meter& meter, const Value& self, std::string_view name);

Value apply(Interpreter& interpreter, BinaryOperator op, const Value& a, const Value& b);
Value negate(const Value& value);
bool compare(Meter& meter, CompareOperator op, const Value& a, const Value& b);
Value slice(Meter& meter, const Value& value, const Value& start, const Value& stop, const Value& step);
// What a range of `size` elements gives when it is cut: the first index, and how many follow in steps.
struct Cut {
  Integer start = 0, step = 1;
  size_t n = 0;
  size_t at(size_t i) const { return static_cast<size_t>(start + static_cast<Integer>(i) * step); }
};
Cut cut(size_t size, const Value& start, const Value& stop, const Value& step);

// Integer arithmetic that refuses to overflow.
Integer checked_add(Integer a, Integer b);
Integer checked_multiply(Integer a, Integer b);
Integer floor_of(double value);  // refuses what is not finite or does not fit
std::optional<Integer> parse_integer(std::string_view text, int base);  // as int(text, base)
std::optional<double> parse_float(std::string_view text);               // as float(text)

Value format_percent(Interpreter& interpreter, const Value& format, const Value& values);  // format % values
Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments);
std::string format_value(Interpreter& interpreter, const Value& value, std::string_view specification);
std::string format_fixed(double value, int precision);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(Meter& meter, const Value& value, const JsonStyle& style);

// Binds the arguments of a call to names; refuses what is missing, surplus or unknown.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t n_required);
  const Value* get(size_t i) const { return values_[i]; }  // null: not given
  const Value& at(size_t i) const { return *values_[i]; }  // of a required one
  bool flag(size_t i, bool absent) const { return values_[i] ? truth(*values_[i]) : absent; }
  Integer integer(size_t i, Integer absent) const;
  std::string_view text(size_t i, std::string_view absent) const;
  const Value& or_none(size_t i) const;

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};
// The same where Python takes no names.
Parameters positional(std::string_view function, const Arguments& arguments, size_t n_required,
                      size_t n_most);

Integer want_integer(const Value& value, std::string_view what);
std::string_view want_text(const Value& value, std::string_view what);

}  // namespace moeflux::jinja
