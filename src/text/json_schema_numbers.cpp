#include "text/json_schema_numbers.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr size_t kFreeDigits = 18;      // of a whole number that has no bound
constexpr size_t kMaxDigits = 40;       // of a bound
constexpr size_t kNumberDigits = 15;    // before the point, where numbers have bounds
constexpr size_t kFractionDigits = 10;  // after the point, where numbers have bounds
constexpr uint64_t kMaxMultiple = 10'000;

using E = Expression;

E digits(char low, char high) {
  return E::one_of({{static_cast<uint32_t>(low), static_cast<uint32_t>(high)}});
}

E any_digits(size_t least, size_t most) {
  return E::repeat(digits('0', '9'), static_cast<uint32_t>(least), static_cast<uint32_t>(most));
}

int compare_whole(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
}

int compare_magnitude(const Decimal& a, const Decimal& b) {
  const int whole = compare_whole(a.whole, b.whole);
  return whole != 0 ? whole
                    : a.fraction.compare(b.fraction);  // no trailing zeros: the order of text is theirs
}

std::string plus_one(std::string number) {
  size_t i = number.size();
  while (i > 0 && number[i - 1] == '9') number[--i] = '0';
  if (i == 0) {
    number.insert(number.begin(), '1');
    return number;
  }
  ++number[i - 1];
  return number;
}

std::string minus_one(std::string number) {  // of a number above 0
  size_t i = number.size();
  while (number[i - 1] == '0') number[--i] = '9';
  --number[i - 1];
  return number.size() > 1 && number[0] == '0' ? number.substr(1) : number;
}

// Numbers of as many digits as `low`, from `low` up.
E at_least_digits(const std::string& low) {
  std::vector<E> choices{E::literal(low)};
  for (size_t i = 0; i < low.size(); ++i) {
    if (low[i] == '9') continue;
    const size_t rest = low.size() - i - 1;
    choices.push_back(E::sequence(
        {E::literal(low.substr(0, i)), digits(static_cast<char>(low[i] + 1), '9'), any_digits(rest, rest)}));
  }
  return E::choice(std::move(choices));
}

E at_most_digits(const std::string& high) {
  std::vector<E> choices{E::literal(high)};
  for (size_t i = 0; i < high.size(); ++i) {
    if (high[i] == '0') continue;
    const size_t rest = high.size() - i - 1;
    choices.push_back(E::sequence({E::literal(high.substr(0, i)), digits('0', static_cast<char>(high[i] - 1)),
                                   any_digits(rest, rest)}));
  }
  return E::choice(std::move(choices));
}

E between_digits(const std::string& low, const std::string& high) {  // of equal length
  size_t i = 0;
  while (i < low.size() && low[i] == high[i]) ++i;
  const E same = E::literal(low.substr(0, i));
  if (i == low.size()) return same;
  const size_t rest = low.size() - i - 1;
  std::vector<E> choices;
  const auto edge = [&](const std::string& bound, E tail) {
    choices.push_back(E::sequence({E::literal(bound.substr(i, 1)), std::move(tail)}));
  };
  edge(low, at_least_digits(low.substr(i + 1)));
  edge(high, at_most_digits(high.substr(i + 1)));
  if (high[i] - low[i] > 1)
    choices.push_back(E::sequence(
        {digits(static_cast<char>(low[i] + 1), static_cast<char>(high[i] - 1)), any_digits(rest, rest)}));
  return E::sequence({same, E::choice(std::move(choices))});
}

std::string smallest_of(size_t n_digits) {
  std::string out(n_digits, '0');
  if (n_digits > 1) out[0] = '1';
  return out;
}

// Whole numbers from low to high, neither of them negative.
E whole_range(const std::string& low, const std::string& high) {
  std::vector<E> choices;
  size_t full_from = 0, full_to = 0;  // lengths of which all numbers are in
  for (size_t n = low.size(); n <= high.size(); ++n) {
    const std::string first = n == low.size() ? low : smallest_of(n);
    const std::string last = n == high.size() ? high : std::string(n, '9');
    if (n > 1 && first == smallest_of(n) && last == std::string(n, '9')) {
      full_from = full_from == 0 ? n : full_from;
      full_to = n;
    } else {
      choices.push_back(between_digits(first, last));
    }
  }
  if (full_from != 0)
    choices.push_back(E::sequence({digits('1', '9'), any_digits(full_from - 1, full_to - 1)}));
  return E::choice(std::move(choices));
}

struct Whole {
  bool negative = false;
  std::string digits;
};

Whole nearest_above(const Decimal& d, bool excluded) {
  Whole out{d.negative, d.whole};
  const bool move_on = !d.fraction.empty() ? !d.negative : excluded;
  if (move_on) out.digits = d.negative ? minus_one(d.whole) : plus_one(d.whole);
  if (out.digits == "0") out.negative = false;
  return out;
}

Whole nearest_below(const Decimal& d, bool excluded) {
  Decimal mirrored = d;
  mirrored.negative = !d.negative && !d.is_zero();
  if (d.is_zero()) return excluded ? Whole{true, "1"} : Whole{false, "0"};
  Whole out = nearest_above(mirrored, excluded);
  out.negative = !out.negative && out.digits != "0";
  return out;
}

bool less(const Whole& a, const Whole& b) {
  if (a.negative != b.negative) return a.negative;
  const int order = compare_whole(a.digits, b.digits);
  return a.negative ? order > 0 : order < 0;
}

// An end for a side that has none: 18 digits, or one more than the other side has.
Whole free_end(bool negative, const std::optional<Whole>& other) {
  const size_t n = other && other->negative == negative ? other->digits.size() + 1 : 0;
  return {negative, std::string(std::max(kFreeDigits, n), '9')};
}

// Ends of more digits than a number may have bound nothing, or leave nothing that could be written.
std::optional<Whole> usable(std::optional<Whole> end, bool is_lower) {
  if (!end || end->digits.size() <= kMaxDigits) return end;
  if (end->negative == is_lower) return std::nullopt;
  fail(Errc::Unsupported, "a bound of {} digits is too large", end->digits.size());
}

E whole_between(const Whole& low, const Whole& high) {
  if (less(high, low)) return E::nothing();
  std::vector<E> choices;
  if (low.negative)
    choices.push_back(
        E::sequence({E::literal("-"), whole_range(high.negative ? high.digits : "1", low.digits)}));
  if (!high.negative) choices.push_back(whole_range(low.negative ? "0" : low.digits, high.digits));
  return E::choice(std::move(choices));
}

// multiples

bool divides_one(const Decimal& d) {  // 0.5, 0.01: each whole number is a multiple
  if (d.whole != "0") return d.whole == "1" && d.fraction.empty();
  if (d.fraction.size() > kFreeDigits) return false;
  uint64_t power = 1, part = 0;
  for (const char c : d.fraction) {
    power *= 10;
    part = part * 10 + static_cast<uint64_t>(c - '0');
  }
  return part != 0 && power % part == 0;
}

// Whole numbers whose remainder is 0; leading zeros and signs are left to others.
ByteGraph multiples_of(uint64_t divisor) {
  ByteGraph graph;
  graph.states.resize(divisor + 2);  // the start, after the sign, then one per remainder
  const auto state_of = [](uint64_t remainder) { return static_cast<uint32_t>(remainder + 2); };
  graph.states[0].edges.push_back({'-', '-', 1});
  for (uint32_t state = 0; state < graph.states.size(); ++state) {
    const uint64_t before = state < 2 ? 0 : state - 2;
    for (uint8_t digit = 0; digit < 10; ++digit) {
      const auto byte = static_cast<uint8_t>('0' + digit);
      graph.states[state].edges.push_back({byte, byte, state_of((before * 10 + digit) % divisor)});
    }
  }
  graph.states[state_of(0)].accepting = true;
  return graph;
}

uint64_t divisor_of(const Decimal& multiple) {
  if (!multiple.fraction.empty())
    fail(Errc::Unsupported, "multiples of fractions such as this cannot be expressed");
  uint64_t value = 0;
  const auto result =
      std::from_chars(multiple.whole.data(), multiple.whole.data() + multiple.whole.size(), value);
  if (result.ec != std::errc() || value > kMaxMultiple)
    fail(Errc::Unsupported, "multiples of {} cannot be expressed: it is above {}", multiple.whole,
         kMaxMultiple);
  return value;
}

// numbers with a point

struct FractionDigits {
  size_t most = kFractionDigits;
};

E any_fraction(FractionDigits limit) {
  if (limit.most == 0) return E::empty();
  return E::optional(E::sequence({E::literal("."), any_digits(1, limit.most)}));
}

E digits_above_zero(FractionDigits limit) {
  const auto most = static_cast<uint32_t>(limit.most);
  return E::sequence({E::repeat(E::literal("0"), 0, most), digits('1', '9'), any_digits(0, most)});
}

E fraction_at_least(const std::string& bound, bool excluded, FractionDigits limit) {
  if (bound.empty() && !excluded) return any_fraction(limit);
  std::vector<E> choices;
  for (size_t i = 0; i < bound.size(); ++i)
    if (bound[i] != '9')
      choices.push_back(
          E::sequence({E::literal(bound.substr(0, i)), digits(static_cast<char>(bound[i] + 1), '9'),
                       any_digits(0, limit.most)}));
  choices.push_back(
      E::sequence({E::literal(bound), excluded ? digits_above_zero(limit) : any_digits(0, limit.most)}));
  return E::sequence({E::literal("."), E::choice(std::move(choices))});
}

E fraction_at_most(const std::string& bound, bool excluded, FractionDigits limit) {
  if (bound.empty() && excluded) return E::nothing();
  std::vector<E> choices;
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] != '0')
      choices.push_back(
          E::sequence({E::literal(bound.substr(0, i)), digits('0', static_cast<char>(bound[i] - 1)),
                       any_digits(0, limit.most)}));
    if (i > 0) choices.push_back(E::literal(bound.substr(0, i)));
  }
  const auto most = static_cast<uint32_t>(limit.most);
  if (!excluded)
    choices.push_back(
        E::sequence({E::literal(bound), E::repeat(E::literal("0"), bound.empty() ? 1 : 0, most)}));
  return E::optional(E::sequence({E::literal("."), E::choice(std::move(choices))}));
}

struct Limit {
  Decimal value;
  bool excluded = false;
};

size_t whole_digits(const std::optional<Limit>& a, const std::optional<Limit>& b) {
  size_t n = kNumberDigits;
  for (const std::optional<Limit>* limit : {&a, &b})
    if (*limit) n = std::max(n, (*limit)->value.whole.size() + 1);
  return n;
}

E magnitude_at_least(const Limit& limit, size_t n_whole, FractionDigits fraction) {
  return E::choice({E::sequence({whole_range(plus_one(limit.value.whole), std::string(n_whole, '9')),
                                 any_fraction(fraction)}),
                    E::sequence({E::literal(limit.value.whole),
                                 fraction_at_least(limit.value.fraction, limit.excluded, fraction)})});
}

E magnitude_at_most(const Limit& limit, FractionDigits fraction) {
  std::vector<E> choices{E::sequence(
      {E::literal(limit.value.whole), fraction_at_most(limit.value.fraction, limit.excluded, fraction)})};
  if (limit.value.whole != "0")
    choices.push_back(E::sequence({whole_range("0", minus_one(limit.value.whole)), any_fraction(fraction)}));
  return E::choice(std::move(choices));
}

// Numbers without a sign between two limits.
E magnitude_between(const std::optional<Limit>& low, const std::optional<Limit>& high,
                    FractionDigits fraction, RegularWork& work) {
  const size_t n_whole = whole_digits(low, high);
  std::vector<ByteGraph> graphs;
  graphs.push_back(
      automaton_of(E::sequence({whole_range("0", std::string(n_whole, '9')), any_fraction(fraction)}), work));
  if (low) graphs.push_back(automaton_of(magnitude_at_least(*low, n_whole, fraction), work));
  if (high) graphs.push_back(automaton_of(magnitude_at_most(*high, fraction), work));
  ByteGraph all = graphs[0];
  for (size_t i = 1; i < graphs.size(); ++i) all = intersection(all, graphs[i], work);
  return E::of_graph(std::move(all));
}

std::optional<Limit> usable_limit(const std::optional<Decimal>& bound, bool excluded, bool is_lower) {
  if (!bound) return std::nullopt;
  if (bound->fraction.size() > kMaxDigits)
    fail(Errc::Unsupported, "a bound with {} digits after the point cannot be expressed",
         bound->fraction.size());
  if (bound->whole.size() <= kMaxDigits) return Limit{*bound, excluded};
  if (bound->negative == is_lower) return std::nullopt;
  fail(Errc::Unsupported, "a bound of {} digits is too large", bound->whole.size());
}

E free_number() {
  const E whole =
      E::choice({E::literal("0"), E::sequence({digits('1', '9'), any_digits(0, kFreeDigits - 1)})});
  const E sign = E::optional(E::one_of(normalise({{'+', '+'}, {'-', '-'}})));
  const E exponent = E::sequence({E::one_of(normalise({{'e', 'e'}, {'E', 'E'}})), sign, any_digits(1, 2)});
  return E::sequence(
      {E::optional(E::literal("-")), whole, any_fraction({kFreeDigits}), E::optional(exponent)});
}

// Zero has two spellings, and a limit of zero bounds one side only.
std::optional<Limit> on_side(const std::optional<Limit>& limit, bool negative) {
  if (!limit || (limit->value.negative != negative && !limit->value.is_zero())) return std::nullopt;
  return limit;
}

E bounded_number(const NumberBounds& bounds, FractionDigits fraction, RegularWork& work) {
  const std::optional<Limit> low = usable_limit(bounds.least, bounds.least_excluded, true);
  const std::optional<Limit> high = usable_limit(bounds.most, bounds.most_excluded, false);
  const bool below_zero = !low || low->value.negative;
  const bool above_zero = !high || !high->value.negative;
  std::vector<E> choices;
  if (above_zero)
    choices.push_back(magnitude_between(on_side(low, false), on_side(high, false), fraction, work));
  if (below_zero)
    choices.push_back(E::sequence(
        {E::literal("-"), magnitude_between(on_side(high, true), on_side(low, true), fraction, work)}));
  return E::choice(std::move(choices));
}

}  // namespace

Decimal Decimal::parse(const std::string& text) {
  Decimal out;
  size_t at = text[0] == '-' ? 1 : 0;
  const size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  const size_t point = std::min(text.find('.'), exponent_at);
  std::string all = text.substr(at, point - at);
  const size_t n_whole = all.size();
  if (point < exponent_at) all += text.substr(point + 1, exponent_at - point - 1);
  int64_t shift = static_cast<int64_t>(n_whole);
  if (exponent_at < text.size()) shift += std::stoi(text.substr(exponent_at + 1));
  if (shift < 0) all.insert(0, static_cast<size_t>(-shift), '0');
  const auto cut = static_cast<size_t>(std::max<int64_t>(shift, 0));
  if (all.size() < cut) all.append(cut - all.size(), '0');
  out.whole = all.substr(0, cut);
  out.fraction = all.substr(cut);
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole.push_back('0');
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  out.negative = text[0] == '-' && !out.is_zero();
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? -compare_magnitude(a, b) : compare_magnitude(a, b);
}

void NumberBounds::raise_least(const Decimal& value, bool excluded) {
  const int order = least ? compare(value, *least) : 1;
  if (order > 0) least = value;
  if (order > 0 || (order == 0 && excluded)) least_excluded = excluded;
}

void NumberBounds::lower_most(const Decimal& value, bool excluded) {
  const int order = most ? compare(value, *most) : -1;
  if (order < 0) most = value;
  if (order < 0 || (order == 0 && excluded)) most_excluded = excluded;
}

bool NumberBounds::contains(const Decimal& value) const {
  const int low = least ? compare(value, *least) : 1, high = most ? compare(value, *most) : -1;
  return (low > 0 || (low == 0 && !least_excluded)) && (high < 0 || (high == 0 && !most_excluded));
}

bool NumberBounds::disjoint_from(const NumberBounds& other) const {
  const auto below = [](const NumberBounds& a, const NumberBounds& b) {
    if (!a.most || !b.least) return false;
    const int order = compare(*a.most, *b.least);
    return order < 0 || (order == 0 && (a.most_excluded || b.least_excluded));
  };
  return below(*this, other) || below(other, *this);
}

Expression integer_expression(const NumberBounds& bounds, RegularWork& work) {
  std::optional<Whole> low, high;
  if (bounds.least) low = nearest_above(*bounds.least, bounds.least_excluded);
  if (bounds.most) high = nearest_below(*bounds.most, bounds.most_excluded);
  low = usable(low, true);
  high = usable(high, false);
  const Whole from = low ? *low : free_end(true, high), to = high ? *high : free_end(false, low);
  E out = whole_between(from, to);
  for (const Decimal& multiple : bounds.multiples) {
    if (divides_one(multiple)) continue;
    out = E::of_graph(intersection(automaton_of(out, work), multiples_of(divisor_of(multiple)), work));
  }
  return out;
}

Expression number_expression(const NumberBounds& bounds, RegularWork& work) {
  FractionDigits fraction;
  for (const std::optional<Decimal>* bound : {&bounds.least, &bounds.most})
    if (*bound) fraction.most = std::max(fraction.most, (*bound)->fraction.size());
  for (const Decimal& multiple : bounds.multiples) {
    if (multiple.fraction.empty()) return integer_expression(bounds, work);
    const bool decimal_place = multiple.whole == "0" && multiple.fraction.back() == '1' &&
                               multiple.fraction.find_first_not_of('0') + 1 == multiple.fraction.size();
    if (!decimal_place)
      fail(Errc::Unsupported, "of fractions, only multiples of 0.1, 0.01 and so on can be expressed");
    fraction.most = std::min(fraction.most, multiple.fraction.size());
  }
  if (!bounds.least && !bounds.most && bounds.multiples.empty()) return free_number();
  return bounded_number(bounds, fraction, work);
}

}  // namespace moeflux
