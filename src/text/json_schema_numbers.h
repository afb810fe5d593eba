// Numbers of JSON within bounds, compared as decimals.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/grammar_regular.h"

namespace moeflux {

struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  static Decimal parse(const std::string& json_number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

int compare(const Decimal& a, const Decimal& b);  // below, at or above 0

struct NumberBounds {
  std::optional<Decimal> least, most;
  bool least_excluded = false, most_excluded = false;
  std::vector<Decimal> multiples;  // all above 0

  void raise_least(const Decimal& value, bool excluded);
  void lower_most(const Decimal& value, bool excluded);
  bool contains(const Decimal& value) const;  // does not look at multiples
  bool disjoint_from(const NumberBounds& other) const;
};

// Throw Error{Unsupported} where bounds or multiples cannot be expressed. A side without a bound ends at 18
// digits; numbers without any bound may have an exponent, others not.
Expression integer_expression(const NumberBounds& bounds, RegularWork& work);
Expression number_expression(const NumberBounds& bounds, RegularWork& work);

}  // namespace moeflux
