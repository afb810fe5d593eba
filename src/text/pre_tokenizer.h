// Cuts normalised text into the pieces that are encoded one by one: the `pre_tokenizer` of a tokenizer.json.
// Each step cuts the pieces of the step before it.
//
// The byte-level step maps bytes to characters of an alphabet in the reference; here the vocabulary is kept
// as bytes instead, so that this step must be the last and leaves text as it is.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_fwd.h"
#include "text/pattern.h"

namespace moeflux {

class PreTokenizer {
 public:
  // `json` may be null: then a text is one piece. Throws Error{Unsupported} naming a type that is not known.
  PreTokenizer(const Json* json, const std::string& where);

  bool byte_level() const { return byte_level_; }

  using Sink = std::function<void(std::string_view piece)>;
  // `at_start`: whether the text is the start of the whole input, where some vocabularies want a space.
  void split(std::string_view text, bool at_start, const Sink& sink) const;

 private:
  enum class Behaviour { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
  struct Split {
    Pattern pattern;
    Behaviour behaviour;
    bool invert;
  };
  struct Metaspace {
    std::string replacement;
    enum class Prepend { First, Never, Always } prepend;
    bool split;
    Pattern pattern;  // of the replacement
  };
  struct PrefixSpace {};
  using Step = std::variant<Split, Metaspace, PrefixSpace>;
  struct Part {
    size_t begin, end;
    bool is_match;
  };
  // A piece on its way through the steps.
  struct Piece {
    std::string_view text;
    bool at_start;
  };

  static Behaviour parse_behaviour(const std::string& name, const std::string& where);
  void add(const Json& json, const std::string& where, int depth);
  void add_byte_level(const Json& json, const std::string& where);
  void add_metaspace(const Json& json, const std::string& where);

  void run(size_t step, Piece piece, const Sink& sink) const;
  void run(const Split& split, size_t step, Piece piece, const Sink& sink) const;
  void run(const Metaspace& metaspace, size_t step, Piece piece, const Sink& sink) const;
  void run(const PrefixSpace&, size_t step, Piece piece, const Sink& sink) const;
  void isolate(const Pattern& pattern, size_t step, Piece piece, const Sink& sink) const;
  static std::vector<Part> find_parts(const Pattern& pattern, std::string_view text);
  static std::vector<Part> join_parts(std::vector<Part> parts, Behaviour behaviour);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace moeflux
