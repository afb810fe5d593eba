// What must be known of rules before an automaton can be made of them: which can be empty, which can end at
// all, which call themselves, and which may be copied to where they are called.
#pragma once

#include <cstdint>
#include <vector>

#include "text/grammar_expression.h"

namespace moeflux {

struct RuleFacts {
  bool nullable = false;    // matches the empty text
  bool productive = false;  // matches any text at all
  bool recursive = false;   // calls itself, perhaps through others
  bool inlined = false;     // copied to where it is called
  uint64_t size = 0;        // nodes of its automaton, roughly
  uint32_t level = 0;       // rules that are copied into it, one in the other
  uint32_t n_calls = 0;     // places that call it
};

// Throws Error{InvalidArgument} where a rule calls itself before it has matched a byte.
std::vector<RuleFacts> analyse_rules(const GrammarRules& rules);

bool is_nullable(const Expression& expression, const std::vector<RuleFacts>& facts);
uint64_t estimated_size(const Expression& expression, const std::vector<RuleFacts>& facts);

// A part that is repeated so often that it becomes a rule of its own.
bool is_outlined(uint64_t body_size, uint64_t n_copies);

}  // namespace moeflux
