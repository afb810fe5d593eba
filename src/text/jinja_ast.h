// The tree of a template. Nodes are plain data; the parser bounds their depth, the interpreter walks them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace moeflux::jinja {

using Symbol = uint32_t;  // a name of a variable, numbered by the parser
// Variables that are undefined when a scope begins, even if the caller gave them (jinja_scopes.h).
using HiddenNames = std::vector<Symbol>;

struct Expression {
  enum class Kind : uint8_t {
    Literal,
    Name,
    List,  // or tuple
    Dict,
    Attribute,
    Item,
    Slice,
    Call,
    Filter,
    Test,
    Unary,
    Binary,
    Logical,
    Concat,
    Compare,
    Conditional,
    NamespaceTarget
  };
  Expression(Kind k, uint32_t l) : kind(k), line(l) {}
  virtual ~Expression() = default;

  const Kind kind;
  unsigned depth = 1;
  const uint32_t line;
};
using ExpressionPtr = std::unique_ptr<Expression>;

using FilterFunction = Value (*)(Interpreter&, const Value& input, const Arguments&);
using TestFunction = bool (*)(Interpreter&, const Value& input, const Arguments&);

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr rest, named_rest;  // *rest, **named_rest
};

struct Literal : Expression {
  explicit Literal(uint32_t l) : Expression(Kind::Literal, l) {}
  Value value;
};
struct Name : Expression {
  explicit Name(uint32_t l) : Expression(Kind::Name, l) {}
  Symbol symbol = 0;
};
struct ListLiteral : Expression {
  explicit ListLiteral(uint32_t l) : Expression(Kind::List, l) {}
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictLiteral : Expression {
  explicit DictLiteral(uint32_t l) : Expression(Kind::Dict, l) {}
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Attribute : Expression {
  explicit Attribute(uint32_t l) : Expression(Kind::Attribute, l) {}
  ExpressionPtr object;
  std::string name;
};
struct Item : Expression {
  explicit Item(uint32_t l) : Expression(Kind::Item, l) {}
  ExpressionPtr object, key;
};
struct Slice : Expression {  // only as the key of an Item
  explicit Slice(uint32_t l) : Expression(Kind::Slice, l) {}
  ExpressionPtr start, stop, step;  // null where left out
};
struct Call : Expression {
  explicit Call(uint32_t l) : Expression(Kind::Call, l) {}
  ExpressionPtr callee;
  CallArguments arguments;
};
struct Filter : Expression {
  explicit Filter(uint32_t l) : Expression(Kind::Filter, l) {}
  ExpressionPtr input;  // null: the text of the block that it is applied to
  std::string name;
  FilterFunction function = nullptr;
  CallArguments arguments;
};
struct Test : Expression {
  explicit Test(uint32_t l) : Expression(Kind::Test, l) {}
  ExpressionPtr input;
  std::string name;
  TestFunction function = nullptr;
  CallArguments arguments;
};
struct Unary : Expression {
  explicit Unary(uint32_t l) : Expression(Kind::Unary, l) {}
  enum class Operator : uint8_t { Not, Minus, Plus } op = Operator::Not;
  ExpressionPtr operand;
};
enum class BinaryOperator : uint8_t { Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power };
struct Binary : Expression {
  explicit Binary(uint32_t l) : Expression(Kind::Binary, l) {}
  BinaryOperator op = BinaryOperator::Add;
  ExpressionPtr left, right;
};
struct Logical : Expression {
  explicit Logical(uint32_t l) : Expression(Kind::Logical, l) {}
  bool is_and = false;
  ExpressionPtr left, right;
};
struct Concat : Expression {
  explicit Concat(uint32_t l) : Expression(Kind::Concat, l) {}
  std::vector<ExpressionPtr> parts;
};
enum class CompareOperator : uint8_t { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };
struct Compare : Expression {
  explicit Compare(uint32_t l) : Expression(Kind::Compare, l) {}
  ExpressionPtr first;
  std::vector<std::pair<CompareOperator, ExpressionPtr>> rest;
};
struct Conditional : Expression {
  explicit Conditional(uint32_t l) : Expression(Kind::Conditional, l) {}
  ExpressionPtr test, then, otherwise;  // otherwise may be null
};
struct NamespaceTarget : Expression {  // only as the target of a set
  explicit NamespaceTarget(uint32_t l) : Expression(Kind::NamespaceTarget, l) {}
  Symbol symbol = 0;
  std::string attribute;
};

struct Statement {
  enum class Kind : uint8_t {
    Output,
    If,
    For,
    Set,
    SetBlock,
    Macro,
    CallBlock,
    FilterBlock,
    With,
    Scoped,
    Break,
    Continue
  };
  Statement(Kind k, uint32_t l) : kind(k), line(l) {}
  virtual ~Statement() = default;

  const Kind kind;
  const uint32_t line;
};
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

struct Output : Statement {
  explicit Output(uint32_t l) : Statement(Kind::Output, l) {}
  struct Part {
    std::string text;
    ExpressionPtr expression;  // null: the text
  };
  std::vector<Part> parts;
};
struct If : Statement {
  explicit If(uint32_t l) : Statement(Kind::If, l) {}
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For : Statement {
  explicit For(uint32_t l) : Statement(Kind::For, l) {}
  ExpressionPtr target, iterable, test;  // test may be null
  bool is_recursive = false;
  Body body, otherwise;
  HiddenNames hidden, hidden_otherwise;
};
struct Set : Statement {
  explicit Set(uint32_t l) : Statement(Kind::Set, l) {}
  ExpressionPtr target, value;
};
struct SetBlock : Statement {
  explicit SetBlock(uint32_t l) : Statement(Kind::SetBlock, l) {}
  ExpressionPtr target, filter;  // filter may be null
  Body body;
  HiddenNames hidden;
};
struct Macro : Statement {
  explicit Macro(uint32_t l) : Statement(Kind::Macro, l) {}
  Symbol symbol = 0;
  std::string name;  // empty where it is the block of a call
  std::vector<std::pair<Symbol, std::string>> parameters;
  std::vector<ExpressionPtr> defaults;                                 // of the last parameters
  bool takes_caller = false, takes_named = false, takes_rest = false;  // names that its body uses
  Body body;
  HiddenNames hidden;
};
struct CallBlock : Statement {
  explicit CallBlock(uint32_t l) : Statement(Kind::CallBlock, l) {}
  ExpressionPtr call;             // a Call
  std::unique_ptr<Macro> caller;  // the block, as the called macro sees it
};
struct FilterBlock : Statement {
  explicit FilterBlock(uint32_t l) : Statement(Kind::FilterBlock, l) {}
  ExpressionPtr filter;
  Body body;
  HiddenNames hidden;
};
struct With : Statement {
  explicit With(uint32_t l) : Statement(Kind::With, l) {}
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Body body;
  HiddenNames hidden;
};
struct Scoped : Statement {  // a block that only makes a scope
  explicit Scoped(uint32_t l) : Statement(Kind::Scoped, l) {}
  bool sees_root_only = false;  // a named block does not see the loops around it
  Body body;
  HiddenNames hidden;
};
struct Break : Statement {
  explicit Break(uint32_t l) : Statement(Kind::Break, l) {}
};
struct Continue : Statement {
  explicit Continue(uint32_t l) : Statement(Kind::Continue, l) {}
};

struct Tree {
  Body body;
  HiddenNames hidden;
  std::vector<std::string> symbols;
};

}  // namespace moeflux::jinja
