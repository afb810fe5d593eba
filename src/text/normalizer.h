// What happens to text before it is split: the `normalizer` of a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_fwd.h"
#include "text/pattern.h"

namespace moeflux {

class Normalizer {
 public:
  // `json` may be null. Throws Error{Unsupported} naming a type that is not known.
  Normalizer(const Json* json, const std::string& where);

  // The normalised text: `text` itself where nothing changes, else `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string with;
  };
  using Step = std::variant<Nfc, Prepend, Replace>;

  void add(const Json& json, const std::string& where, int depth);
  static bool change(const Nfc& step, std::string_view text, std::string& out);
  static bool change(const Prepend& step, std::string_view text, std::string& out);
  bool change(const Replace& step, std::string_view text, std::string& out) const;

  std::string where_;
  std::vector<Step> steps_;
};

// A pattern as tokenizer.json writes it: {"String": ...} or {"Regex": ...}.
Pattern parse_pattern_field(const Json& json, const std::string& where);

}  // namespace moeflux
