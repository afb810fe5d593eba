// The keywords of JSON schemas: what each is about, and which are understood.
#pragma once

#include <string_view>

namespace moeflux {

struct Keyword {
  enum class Use { Annotation, General, OfNumbers, OfStrings, OfArrays, OfObjects, Refused };
  const char* name;
  Use use;
};

const Keyword* find_keyword(std::string_view name);  // null where it is not known

// Bounds that the names of number formats stand for.
struct NumberFormat {
  const char* name;
  const char *least, *most;  // null: not bounded
};
const NumberFormat* find_number_format(std::string_view name);  // null where it is not known

}  // namespace moeflux
