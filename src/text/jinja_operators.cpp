// Arithmetic, comparison and slicing as Python does them.
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void refuse_operands(BinaryOperator op, const Value& a, const Value& b) {
  refuse("'{}' cannot be applied to {} and {}", kSymbols[static_cast<size_t>(op)], type_name(a),
         type_name(b));
}

[[noreturn]] void refuse_overflow() { refuse("an integer is too large"); }

Integer floor_divide(Integer a, Integer b) {
  if (b == 0) refuse("division by zero");
  if (a == kIntegerMin && b == -1) refuse_overflow();
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Integer floor_modulo(Integer a, Integer b) {
  if (b == 0) refuse("division by zero");
  if (b == -1) return 0;
  const Integer rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
    return rest;
  }
  return std::copysign(0.0, b);
}

double floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value power(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && b.integer() >= 0) {
    Integer result = 1, base = a.integer();
    for (Integer exponent = b.integer(); exponent > 0;) {
      if (base == 0 || base == 1) return Value(exponent > 0 && base == 0 ? Integer{0} : result);
      if (base == -1) return Value(exponent % 2 != 0 ? checked_multiply(result, -1) : result);
      if (exponent % 2 != 0) result = checked_multiply(result, base);
      exponent /= 2;
      if (exponent > 0) base = checked_multiply(base, base);
    }
    return Value(result);
  }
  const double x = a.floating(), y = b.floating();
  if (x == 0 && y < 0) refuse("zero cannot be raised to a negative power");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y))
    refuse("complex numbers are not supported");
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) refuse("a number is too large");
  return Value(result);
}

Value integers(BinaryOperator op, Integer a, Integer b) {
  switch (op) {
    case BinaryOperator::Add:
      return Value(checked_add(a, b));
    case BinaryOperator::Subtract:
      if (b == kIntegerMin) refuse_overflow();
      return Value(checked_add(a, -b));
    case BinaryOperator::Multiply:
      return Value(checked_multiply(a, b));
    case BinaryOperator::FloorDivide:
      return Value(floor_divide(a, b));
    case BinaryOperator::Modulo:
      return Value(floor_modulo(a, b));
    default:
      if (b == 0) refuse("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
  }
}

Value floats(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::Add:
      return Value(a + b);
    case BinaryOperator::Subtract:
      return Value(a - b);
    case BinaryOperator::Multiply:
      return Value(a * b);
    default:
      break;
  }
  if (b == 0) refuse("division by zero");
  if (op == BinaryOperator::Divide) return Value(a / b);
  return Value(op == BinaryOperator::Modulo ? floor_modulo(a, b) : floor_divide(a, b));
}

Value add_strings(Meter& meter, const Value& a, const Value& b) {
  const bool is_markup = a.is_markup() || b.is_markup();
  TextBuilder text(meter);
  for (const Value* part : {&a, &b}) {
    if (is_markup && !part->is_markup())
      text += escape_html(part->text());
    else
      text += part->text();
  }
  return text.finish(is_markup);
}

Value add_lists(Meter& meter, const ListObject& a, const ListObject& b) {
  auto list = a.is_tuple() ? make_tuple(meter) : make_list(meter);
  list->push_all(a.items());
  list->push_all(b.items());
  return list;
}

Value repeat(Meter& meter, const Value& value, Integer count) {
  const size_t n = count > 0 ? static_cast<size_t>(std::min<Integer>(count, 1 << 30)) : 0;
  if (value.is_string()) {
    const std::string_view piece = value.text();
    if (!piece.empty() && n > 0)
      meter.expect_room(piece.size() > (size_t{1} << 32) / n ? ~size_t{0} >> 1 : piece.size() * n);
    std::string text;
    if (piece.size() == 1)
      text.assign(n, piece[0]);
    else
      for (size_t i = 0; i < n && !piece.empty(); ++i) text += piece;
    return make_string(meter, std::move(text), value.is_markup());
  }
  const ListObject& items = **value.sequence();
  auto list = items.is_tuple() ? make_tuple(meter) : make_list(meter);
  for (size_t i = 0; i < n && items.size() > 0; ++i) list->push_all(items.items());
  return list;
}

bool can_repeat(const Value& value) { return value.is_string() || value.is_sequence(); }

std::optional<Integer> slice_index(const Value& value) {
  if (value.is_none()) return {};
  if (!value.is_integer()) refuse("a slice wants integers, not {}", type_name(value));
  return value.integer();
}

}  // namespace

Integer checked_add(Integer a, Integer b) {
  if (b > 0 ? a > kIntegerMax - b : a < kIntegerMin - b) refuse_overflow();
  return a + b;
}

// By division: the compilers' own check of 128-bit products needs a library that is not always there.
Integer checked_multiply(Integer a, Integer b) {
  if (a == 0 || b == 0) return 0;
  const auto magnitude = [](Integer i) {
    return i < 0 ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
  };
  const unsigned __int128 x = magnitude(a), y = magnitude(b);
  if (x > static_cast<unsigned __int128>(kIntegerMax) / y) refuse_overflow();
  const auto product = static_cast<Integer>(x * y);
  return (a < 0) == (b < 0) ? product : -product;
}

Integer floor_of(double value) {
  if (!std::isfinite(value)) refuse("{} is not a whole number", float_repr(value));
  const double floor = std::floor(value);
  if (std::fabs(floor) >= 0x1p126) refuse_overflow();
  return static_cast<Integer>(floor);
}

Value negate(const Value& value) {
  if (value.is_float()) return Value(-value.floating());
  if (value.integer() == kIntegerMin) refuse_overflow();
  return Value(-value.integer());
}

Value apply(Interpreter& interpreter, BinaryOperator op, const Value& a, const Value& b) {
  Meter& meter = interpreter.meter();
  if (a.is_number() && b.is_number()) {
    if (op == BinaryOperator::Power) return power(a, b);
    if (a.is_integer() && b.is_integer()) return integers(op, a.integer(), b.integer());
    return floats(op, a.floating(), b.floating());
  }
  // A string takes every value after %, even an undefined one.
  if (op == BinaryOperator::Modulo && a.is_string()) return format_percent(interpreter, a, b);
  if (a.is_undefined()) refuse_undefined(a);
  if (b.is_undefined()) refuse_undefined(b);
  if (op == BinaryOperator::Add) {
    if (a.is_string() && b.is_string()) return add_strings(meter, a, b);
    if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple())
      return add_lists(meter, **a.sequence(), **b.sequence());
  } else if (op == BinaryOperator::Multiply) {
    if (can_repeat(a) && b.is_integer()) return repeat(meter, a, b.integer());
    if (a.is_integer() && can_repeat(b)) return repeat(meter, b, a.integer());
  }
  refuse_operands(op, a, b);
}

bool compare(Meter& meter, CompareOperator op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOperator::Equal:
      return equal(meter, a, b);
    case CompareOperator::NotEqual:
      return !equal(meter, a, b);
    case CompareOperator::Less:
      return less(meter, a, b);
    case CompareOperator::Greater:
      return less(meter, b, a);
    case CompareOperator::LessEqual:
      return less(meter, a, b) || equal(meter, a, b);
    case CompareOperator::GreaterEqual:
      return less(meter, b, a) || equal(meter, a, b);
    case CompareOperator::In:
      return contains(meter, b, a);
    case CompareOperator::NotIn:
      return !contains(meter, b, a);
  }
  return false;
}

Cut cut(size_t size, const Value& start, const Value& stop, const Value& step) {
  const Integer n = static_cast<Integer>(size);
  const Integer stride = slice_index(step).value_or(1);
  if (stride == 0) refuse("a slice cannot have steps of zero");
  const Integer least = stride > 0 ? 0 : -1, most = stride > 0 ? n : n - 1;
  const auto bound = [&](std::optional<Integer> index, Integer absent) {
    if (!index) return absent;
    if (*index < 0) return std::max(*index < -n ? -n - 1 + n : *index + n, least);
    return std::min(*index, most);
  };
  const Integer first = bound(slice_index(start), stride > 0 ? 0 : n - 1);
  const Integer last = bound(slice_index(stop), stride > 0 ? n : -1);
  Cut result{first, stride, 0};
  if (stride > 0 && first < last) result.n = static_cast<size_t>((last - first - 1) / stride + 1);
  if (stride < 0 && first > last)
    result.n = static_cast<size_t>((first - last - 1) / -std::max(stride, -kIntegerMax) + 1);
  return result;
}

namespace {

Value slice_string(Meter& meter, const StringObject& s, const Cut& c) {
  if (c.n == 0) return make_string(meter, "", s.is_markup());
  if (!s.is_ascii() || c.step != 1) meter.scan(s.text().size());
  const auto first = static_cast<size_t>(c.start);
  if (c.step == 1) {
    const size_t begin = s.is_ascii() ? first : byte_offset(s.text(), first);
    const size_t end = s.is_ascii() ? begin + c.n : byte_offset(s.text(), c.n, begin);
    return make_string(meter, s.text().substr(begin, end - begin), s.is_markup());
  }
  std::vector<std::string_view> characters;
  meter.expect_room(s.n_characters() * sizeof(std::string_view));
  for (size_t from = 0; from < s.text().size();) {
    const size_t begin = from;
    next_code_point(s.text(), from);
    characters.push_back(std::string_view(s.text()).substr(begin, from - begin));
  }
  std::string text;
  for (size_t i = 0; i < c.n; ++i) text += characters[c.at(i)];
  return make_string(meter, std::move(text), s.is_markup());
}

}  // namespace

Value slice(Meter& meter, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) refuse_undefined(value);
  auto* range = value.object_as<RangeObject>();
  if (!value.is_string() && !value.is_sequence() && !range)
    refuse("a value of type {} cannot be sliced", type_name(value));
  const Cut c = cut(*length(value), start, stop, step);
  if (const StringRef* s = value.string()) return slice_string(meter, **s, c);
  if (range) {
    if (c.n == 0) return Value(std::make_shared<RangeObject>(0, 0, 1));
    return Value(range->slice(c.start, c.n > 1 ? c.step : 1, c.n));
  }
  const ListObject& items = **value.sequence();
  auto list = items.is_tuple() ? make_tuple(meter) : make_list(meter);
  for (size_t i = 0; i < c.n; ++i) list->push(items.items()[c.at(i)]);
  return list;
}

}  // namespace moeflux::jinja
