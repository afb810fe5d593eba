// Walks the tree of a template and writes its output. One object renders once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_time.h"

namespace moeflux::jinja {

// The variables of one block. A macro keeps the scope in which it was defined.
struct Scope {
  Scope(Meter& meter, std::shared_ptr<Scope> p) : parent(std::move(p)), charge(meter, 128) {}
  const Value* find(Symbol symbol) const;  // here, not in the parents
  void set(Symbol symbol, Value value);

  const std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
  bool is_kept = false;
  Charge charge;
};
using ScopePtr = std::shared_ptr<Scope>;

class LoopObject;

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Limits& limits, const LocalTime& now);
  ~Interpreter();

  // Called before run.
  void define(std::string_view name, Value value);
  std::string run();
  uint32_t line() const { return line_; }  // of what was evaluated last

  Meter& meter() { return meter_; }
  const LocalTime& now() const { return now_; }

  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Value call(const Value& callee, const Arguments& arguments);

  // For objects that may come to refer to themselves: kept until the end, then cleared.
  void keep(std::shared_ptr<Object> object);

 private:
  friend class LoopObject;
  friend class MacroObject;
  enum class Flow : uint8_t { Next, Break, Continue };

  class Capture;
  class Within;

  Value evaluate(const Expression& e);
  Value evaluate_node(const Expression& e);
  Value evaluate_name(const Name& e);
  Value evaluate_list(const ListLiteral& e);
  Value evaluate_dict(const DictLiteral& e);
  Value evaluate_item(const Item& e);
  Value evaluate_call(const Call& e);
  Value evaluate_filter(const Filter& e);
  Value evaluate_test(const Test& e);
  Value evaluate_unary(const Unary& e);
  Value evaluate_binary(const Binary& e);
  Value evaluate_logical(const Logical& e);
  Value evaluate_concat(const Concat& e);
  Value evaluate_compare(const Compare& e);
  Value evaluate_conditional(const Conditional& e);
  Arguments evaluate_arguments(const CallArguments& from);

  Flow execute(const Body& body);
  Flow execute(const Statement& s);
  void execute_output(const Output& s);
  Flow execute_if(const If& s);
  Flow execute_for(const For& s);
  void execute_set(const Set& s);
  void execute_set_block(const SetBlock& s);
  void execute_macro(const Macro& s);
  void execute_call_block(const CallBlock& s);
  void execute_filter_block(const FilterBlock& s);
  Flow execute_with(const With& s);
  Flow execute_scoped(const Scoped& s);

  Flow run_loop(const For& s, const std::shared_ptr<LoopObject>& loop);
  Value run_macro(const Macro& macro, const ScopePtr& closure, const Arguments& arguments);
  void bind_macro(const Macro& macro, Scope& scope, const Arguments& arguments, std::vector<size_t>& missing);
  void bind_surplus(const Macro& macro, Scope& scope, const Arguments& arguments,
                    const std::vector<std::pair<std::string, Value>>& named);
  Value make_macro(const Macro& macro);

  const Value* lookup(Symbol symbol);
  void assign(const Expression& target, const Value& value);
  void assign_tuple(const ListLiteral& target, const Value& value);
  void write(std::string_view text);
  void write_block(const Value& value);
  ScopePtr make_scope(ScopePtr parent);
  ScopePtr make_scope(ScopePtr parent, const HiddenNames& hidden);
  static void hide(Scope& scope, const HiddenNames& names);

  const Tree& tree_;
  const LocalTime now_;
  Meter meter_;
  std::vector<std::shared_ptr<Object>> kept_objects_;
  std::vector<ScopePtr> kept_scopes_;
  ScopePtr root_, scope_;
  TextBuilder* out_ = nullptr;
  const Value* block_text_ = nullptr;  // what a filter without input is applied to
  Symbol loop_symbol_, caller_symbol_, named_symbol_, rest_symbol_;
  uint32_t line_ = 1;
};

}  // namespace moeflux::jinja
