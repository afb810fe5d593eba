// Tokens beside the BPE vocabulary that are looked for in the text itself: markers such as <|im_start|>, and
// what else was added to a vocabulary after training.
//
// Text that a user wrote must not turn into markers, so that recognising them is the caller's choice. Tokens
// of white space only, which some vocabularies add, are no markers: they are always recognised.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace moeflux {

struct AddedToken {
  Token id = 0;
  std::string content;
  std::string pattern;       // what is looked for: the content or, if `normalized`, its normalised form
  bool single_word = false;  // not beside a letter or digit
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for after normalisation
  bool special = false;      // left out of decoded text on request

  bool is_white_space() const;
};

// Finds the tokens of a set in a text: the leftmost match, and of those the longest.
class AddedTokenFinder {
 public:
  // Those of the tokens that are looked for in normalised text, or in the text as it is. They outlive the
  // finder.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized);

  bool empty() const { return nodes_.size() == 1; }
  bool has_white_space() const { return has_white_space_; }

  // Whether a match at these bytes counts. One that does not is text, with all that is inside it.
  using Allowed = std::function<bool(const AddedToken& token, size_t begin, size_t end)>;
  struct Sink {
    std::function<void(size_t begin, size_t end)> text;
    std::function<void(Token id)> token;
  };
  void split(std::string_view text, const Allowed& allowed, const Sink& sink) const;

 private:
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  struct Node {
    const AddedToken* token = nullptr;  // whose content ends here
    std::vector<Edge> edges;
  };
  struct Match {
    const AddedToken* token;
    size_t begin, end;
  };

  void add(const AddedToken& token);
  const uint32_t* child(uint32_t node, unsigned char byte) const;
  bool find(std::string_view text, size_t from, Match& match) const;

  std::vector<Node> nodes_;
  std::vector<bool> starts_;  // by first byte
  bool has_white_space_ = false;
};

}  // namespace moeflux
