#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"
#include "text/jinja_scopes.h"

namespace moeflux::jinja {
namespace {

constexpr unsigned kMaxRecursion = 400;  // of the parser; a pair of brackets takes three levels
constexpr unsigned kMaxExpressionDepth =
    200;  // of the tree of an expression, which the interpreter walks by recursion

class Parser {
 public:
  Parser(std::string_view source, Meter& meter) : tokens_(tokenize(source)), meter_(meter) {}

  Tree run() {
    Tree tree;
    tree.body = parse_body({});
    if (!unknown_.empty()) throw unknown_.front();
    tree.symbols = std::move(symbols_);
    return tree;
  }

 private:
  using Kind = Token::Kind;

  // Levels of the parser's own recursion.
  class Level {
   public:
    explicit Level(Parser& p) : p_(p) {
      if (++p_.depth_ > kMaxRecursion) p_.fail("it is nested too deep");
    }
    ~Level() { --p_.depth_; }

   private:
    Parser& p_;
  };

  // Whether a macro's body uses a name that the call provides, which decides what the macro accepts. An
  // assignment to the name before its first use makes it an ordinary variable.
  enum class Use : uint8_t { None, Loaded, Assigned };
  struct MacroUse {
    Use caller = Use::None, named = Use::None, rest = Use::None;
    Use* find(std::string_view name) {
      if (name == "caller") return &caller;
      if (name == "kwargs") return &named;
      if (name == "varargs") return &rest;
      return nullptr;
    }
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  static bool is_name(const Token& t, std::string_view name) {
    return t.kind == Kind::Name && t.text == name;
  }
  static bool is_operator(const Token& t, std::string_view op) {
    return t.kind == Kind::Operator && t.text == op;
  }
  bool at_name(std::string_view name) const { return is_name(now(), name); }
  bool at_operator(std::string_view op) const { return is_operator(now(), op); }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    take();
    return true;
  }
  bool skip_operator(std::string_view op) {
    if (!at_operator(op)) return false;
    take();
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxRefusal(now().line, what); }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) fail(fmt::format("expected '{}', found {}", op, describe(now())));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail(fmt::format("expected '{}', found {}", name, describe(now())));
  }
  void expect(Kind kind, std::string_view what) {
    if (now().kind != kind) fail(fmt::format("expected {}, found {}", what, describe(now())));
    take();
  }
  std::string expect_any_name() {
    if (now().kind != Kind::Name) fail(fmt::format("expected a name, found {}", describe(now())));
    return take().text;
  }

  Symbol symbol(const std::string& name) {
    const auto [it, added] = symbol_numbers_.try_emplace(name, static_cast<Symbol>(symbols_.size()));
    if (added) symbols_.push_back(name);
    return it->second;
  }

  void note_use(std::string_view name, Use use) {
    for (MacroUse& macro : macro_uses_)
      if (Use* known = macro.find(name); known && *known == Use::None) *known = use;
  }

  // Sets the depth of a node from its children, which may be null.
  static void settle(Expression& node, std::initializer_list<const Expression*> children) {
    for (const Expression* child : children)
      if (child) node.depth = std::max(node.depth, child->depth + 1);
    if (node.depth > kMaxExpressionDepth)
      throw SyntaxRefusal(node.line,
                          fmt::format("an expression is nested deeper than {} levels", kMaxExpressionDepth));
  }
  static void settle(Expression& node, const CallArguments& arguments) {
    for (const ExpressionPtr& e : arguments.positional) settle(node, {e.get()});
    for (const auto& [name, e] : arguments.named) settle(node, {e.get()});
    settle(node, {arguments.rest.get(), arguments.named_rest.get()});
  }

  // ---- Statements

  // Statements up to one of the tags in `ends`, which is left as the current token; up to the end if there
  // are none.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body body;
    std::unique_ptr<Output> output;
    const auto flush = [&] {
      if (output) body.push_back(std::move(output));
    };
    while (now().kind != Kind::End) {
      if (now().kind == Kind::Data || now().kind == Kind::VariableBegin) {
        if (!output) output = std::make_unique<Output>(now().line);
        output->parts.push_back(parse_output_part());
        continue;
      }
      flush();
      expect(Kind::BlockBegin, "a tag");
      if (now().kind == Kind::Name && std::ranges::find(ends, now().text) != ends.end()) return body;
      if (StatementPtr statement = parse_statement()) body.push_back(std::move(statement));
      expect(Kind::BlockEnd, "'%}'");
    }
    flush();
    if (ends.size() > 0) fail(fmt::format("the tag '{}' is missing", *std::prev(ends.end())));
    return body;
  }

  Output::Part parse_output_part() {
    Output::Part part;
    if (now().kind == Kind::Data) {
      part.text = take().text;
      return part;
    }
    take();
    part.expression = parse_tuple();
    expect(Kind::VariableEnd, "'}}'");
    return part;
  }

  // The body of a tag that is closed by `end`, which is consumed.
  Body parse_block(std::string_view end) {
    Body body = parse_block_until({end});
    take();
    return body;
  }
  Body parse_block_until(std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect(Kind::BlockEnd, "'%}'");
    return parse_body(ends);
  }

  // A body with a scope of its own: filters and tests that do not exist are refused at once in there, unless
  // a condition inside decides whether they are reached.
  template <class Parse>
  auto parse_inner(Parse parse) {
    const size_t n_unknown = unknown_.size();
    auto result = parse();
    if (unknown_.size() > n_unknown) throw unknown_[n_unknown];
    return result;
  }
  // Behind a condition: they are refused only when they are reached.
  void forgive_unknown(size_t n_unknown) {
    if (unknown_.size() > n_unknown)
      unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(n_unknown), unknown_.end());
  }

  StatementPtr parse_statement() {
    if (now().kind != Kind::Name) fail(fmt::format("expected the name of a tag, found {}", describe(now())));
    using Parse = StatementPtr (Parser::*)(uint32_t);
    static const std::unordered_map<std::string_view, Parse> kTags = {
        {"for", &Parser::parse_for},
        {"if", &Parser::parse_if},
        {"set", &Parser::parse_set},
        {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block},
        {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},
        {"print", &Parser::parse_print},
        {"generation", &Parser::parse_generation},
        {"autoescape", &Parser::parse_autoescape},
        {"block", &Parser::parse_named_block},
        {"break", &Parser::parse_loop_control},
        {"continue", &Parser::parse_loop_control}};
    const Token& tag = now();
    for (const std::string_view other : {"include", "import", "from", "extends"})
      if (tag.text == other) fail(fmt::format("'{}' needs other templates, and there are none", tag.text));
    const auto found = kTags.find(tag.text);
    if (found == kTags.end()) fail(fmt::format("there is no tag '{}' here", tag.text));
    if (tag.text != "break" && tag.text != "continue") take();
    return (this->*found->second)(tag.line);
  }

  StatementPtr parse_for(uint32_t line) {
    auto node = std::make_unique<For>(line);
    node->target = parse_target(false);
    expect_name("in");
    node->iterable = parse_tuple(false);
    if (skip_name("if")) node->test = parse_inner([&] { return parse_expression(); });
    node->is_recursive = skip_name("recursive");
    node->body = parse_inner([&] { return parse_loop_body(); });
    if (!is_name(take(), "endfor")) node->otherwise = parse_inner([&] { return parse_block("endfor"); });
    return node;
  }

  Body parse_loop_body() {
    ++n_loops_;
    Body body = parse_block_until({"endfor", "else"});
    --n_loops_;
    return body;
  }

  StatementPtr parse_if(uint32_t line) {
    const size_t n_unknown = unknown_.size();
    auto node = std::make_unique<If>(line);
    for (;;) {
      ExpressionPtr test = parse_tuple(false);
      Body body = parse_block_until({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(test), std::move(body));
      const Token& next = take();
      if (is_name(next, "elif")) continue;
      if (is_name(next, "else")) node->otherwise = parse_block("endif");
      break;
    }
    forgive_unknown(n_unknown);
    return node;
  }

  StatementPtr parse_set(uint32_t line) {
    ExpressionPtr target = parse_target(true);
    if (skip_operator("=")) {
      auto node = std::make_unique<Set>(line);
      node->target = std::move(target);
      node->value = parse_tuple();
      return node;
    }
    auto node = std::make_unique<SetBlock>(line);
    node->target = std::move(target);
    node->filter = parse_filters(nullptr);
    node->body = parse_inner_block("endset");
    return node;
  }

  // The body of a block that Python turns into a function: no loop control reaches out of it.
  Body parse_function_body(std::string_view end) {
    const unsigned n_loops = std::exchange(n_loops_, 0);
    Body body = parse_inner([&] { return parse_block(end); });
    n_loops_ = n_loops;
    return body;
  }
  Body parse_inner_block(std::string_view end) {
    return parse_inner([&] { return parse_block(end); });
  }

  StatementPtr parse_macro(uint32_t line) {
    auto node = std::make_unique<Macro>(line);
    node->name = expect_any_name();
    node->symbol = symbol(node->name);
    parse_macro_rest(*node, "endmacro", true);
    return node;
  }

  void parse_macro_rest(Macro& node, std::string_view end, bool has_signature) {
    macro_uses_.emplace_back();
    if (has_signature) parse_signature(node);
    macro_uses_.back() = {};  // defaults do not count
    node.body = parse_function_body(end);
    const MacroUse use = macro_uses_.back();
    macro_uses_.pop_back();
    const auto has_parameter = [&](std::string_view name) {
      return std::ranges::any_of(node.parameters, [&](const auto& p) { return p.second == name; });
    };
    node.takes_caller = use.caller == Use::Loaded || has_parameter("caller");
    node.takes_named = use.named == Use::Loaded && !has_parameter("kwargs");
    node.takes_rest = use.rest == Use::Loaded && !has_parameter("varargs");
    check_caller_default(node);
  }

  void check_caller_default(const Macro& node) {
    const size_t n_required = node.parameters.size() - node.defaults.size();
    for (size_t i = 0; i < n_required; ++i)
      if (node.parameters[i].second == "caller")
        throw SyntaxRefusal(node.line, "a parameter named 'caller' needs a default");
  }

  void parse_signature(Macro& node) {
    expect_operator("(");
    while (!at_operator(")")) {
      if (!node.parameters.empty()) expect_operator(",");
      const std::string name = expect_any_name();
      if (std::ranges::any_of(node.parameters, [&](const auto& p) { return p.second == name; }))
        fail(fmt::format("the parameter '{}' stands there twice", name));
      if (is_constant_name(name)) fail(fmt::format("'{}' cannot be a parameter", name));
      if (skip_operator("="))
        node.defaults.push_back(parse_expression());
      else if (!node.defaults.empty())
        fail("a parameter without a default follows one that has a default");
      node.parameters.emplace_back(symbol(name), name);
    }
    expect_operator(")");
  }

  static bool is_constant_name(std::string_view name) {
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
      if (name == constant) return true;
    return false;
  }

  StatementPtr parse_call_block(uint32_t line) {
    auto node = std::make_unique<CallBlock>(line);
    node->caller = std::make_unique<Macro>(line);
    const bool has_signature = at_operator("(");
    if (has_signature) parse_signature(*node->caller);
    node->call = parse_expression();
    if (node->call->kind != Expression::Kind::Call) fail("the tag 'call' wants a call");
    parse_macro_rest(*node->caller, "endcall", false);
    return node;
  }

  StatementPtr parse_filter_block(uint32_t line) {
    auto node = std::make_unique<FilterBlock>(line);
    node->filter = parse_one_filter(nullptr);
    node->filter = parse_filters(std::move(node->filter));
    node->body = parse_inner_block("endfilter");
    return node;
  }

  StatementPtr parse_with(uint32_t line) {
    auto node = std::make_unique<With>(line);
    while (now().kind != Kind::BlockEnd && !at_operator(":")) {
      if (!node->assignments.empty()) expect_operator(",");
      ExpressionPtr target = parse_target(false);
      expect_operator("=");
      node->assignments.emplace_back(std::move(target), parse_expression());
    }
    node->body = parse_inner_block("endwith");
    return node;
  }

  StatementPtr parse_print(uint32_t line) {
    auto node = std::make_unique<Output>(line);
    while (now().kind != Kind::BlockEnd) {
      if (!node->parts.empty()) expect_operator(",");
      node->parts.push_back({"", parse_expression()});
    }
    return node;
  }

  StatementPtr parse_generation(uint32_t line) {
    auto node = std::make_unique<Scoped>(line);
    node->body = parse_function_body("endgeneration");
    return node;
  }

  StatementPtr parse_autoescape(uint32_t line) {
    const ExpressionPtr flag = parse_expression();
    if (flag->kind != Expression::Kind::Literal || truth(static_cast<const Literal&>(*flag).value))
      fail("automatic escaping is not supported");
    auto node = std::make_unique<Scoped>(line);
    node->body = parse_inner_block("endautoescape");
    return node;
  }

  StatementPtr parse_named_block(uint32_t line) {
    const std::string name = expect_any_name();
    if (std::ranges::find(block_names_, name) != block_names_.end())
      fail(fmt::format("the block '{}' is defined twice", name));
    block_names_.push_back(name);
    auto node = std::make_unique<Scoped>(line);
    node->sees_root_only = !skip_name("scoped");
    if (at_name("required")) fail("a required block needs other templates, and there are none");
    node->body = parse_function_body("endblock");
    skip_name(name);
    return node;
  }

  StatementPtr parse_loop_control(uint32_t line) {
    const std::string tag = take().text;
    if (n_loops_ == 0) throw SyntaxRefusal(line, fmt::format("'{}' stands outside of a loop", tag));
    if (tag == "break") return std::make_unique<Break>(line);
    return std::make_unique<Continue>(line);
  }

  // ---- Targets of assignments

  ExpressionPtr parse_target(bool with_namespace) {
    const uint32_t line = now().line;
    auto tuple = std::make_unique<ListLiteral>(line);
    tuple->is_tuple = true;
    bool has_comma = false;
    for (;;) {
      if (at_tuple_end()) break;
      tuple->items.push_back(parse_target_part(with_namespace));
      if (!skip_operator(",")) break;
      has_comma = true;
    }
    if (tuple->items.empty()) fail(fmt::format("expected a name to assign to, found {}", describe(now())));
    if (!has_comma) return std::move(tuple->items[0]);
    for (const ExpressionPtr& item : tuple->items) settle(*tuple, {item.get()});
    return tuple;
  }

  ExpressionPtr parse_target_part(bool with_namespace) {
    const Level level(*this);
    const Token& token = take();
    if (is_operator(token, "(")) {
      ExpressionPtr inner = parse_target(false);
      expect_operator(")");
      return inner;
    }
    if (token.kind != Kind::Name || is_constant_name(token.text))
      throw SyntaxRefusal(token.line, fmt::format("cannot assign to {}", describe(token)));
    if (with_namespace && skip_operator(".")) {
      auto node = std::make_unique<NamespaceTarget>(token.line);
      node->symbol = symbol(token.text);
      node->attribute = expect_any_name();
      return node;
    }
    note_use(token.text, Use::Assigned);
    auto node = std::make_unique<Name>(token.line);
    node->symbol = symbol(token.text);
    return node;
  }

  // ---- Expressions

  bool at_tuple_end() const {
    return now().kind == Kind::VariableEnd || now().kind == Kind::BlockEnd || at_operator(")");
  }

  // One expression, or several with commas between them.
  ExpressionPtr parse_tuple(bool with_condition = true, bool in_parentheses = false) {
    auto tuple = std::make_unique<ListLiteral>(now().line);
    tuple->is_tuple = true;
    bool has_comma = false;
    for (;;) {
      if (at_tuple_end()) break;
      tuple->items.push_back(with_condition ? parse_expression() : parse_or());
      if (!skip_operator(",")) break;
      has_comma = true;
    }
    if (!has_comma && !tuple->items.empty()) return std::move(tuple->items[0]);
    if (!has_comma && !in_parentheses) fail(fmt::format("expected an expression, found {}", describe(now())));
    for (const ExpressionPtr& item : tuple->items) settle(*tuple, {item.get()});
    return tuple;
  }

  ExpressionPtr parse_expression() {
    const Level level(*this);
    const size_t n_unknown = unknown_.size();
    ExpressionPtr value = parse_or();
    while (at_name("if")) {
      auto node = std::make_unique<Conditional>(take().line);
      node->test = parse_or();
      node->then = std::move(value);
      if (skip_name("else")) node->otherwise = parse_expression();
      settle(*node, {node->test.get(), node->then.get(), node->otherwise.get()});
      value = std::move(node);
      forgive_unknown(n_unknown);
    }
    return value;
  }

  ExpressionPtr parse_or() { return parse_logical("or", false, &Parser::parse_and); }
  ExpressionPtr parse_and() { return parse_logical("and", true, &Parser::parse_not); }

  ExpressionPtr parse_logical(std::string_view word, bool is_and, ExpressionPtr (Parser::*parse_operand)()) {
    ExpressionPtr left = (this->*parse_operand)();
    while (at_name(word)) {
      auto node = std::make_unique<Logical>(take().line);
      node->is_and = is_and;
      node->left = std::move(left);
      node->right = (this->*parse_operand)();
      settle(*node, {node->left.get(), node->right.get()});
      left = std::move(node);
    }
    return left;
  }

  ExpressionPtr parse_not() {
    const Level level(*this);
    if (!at_name("not")) return parse_compare();
    auto node = std::make_unique<Unary>(take().line);
    node->operand = parse_not();
    settle(*node, {node->operand.get()});
    return node;
  }

  std::optional<CompareOperator> take_compare_operator() {
    static constexpr std::pair<std::string_view, CompareOperator> kOperators[] = {
        {"==", CompareOperator::Equal},  {"!=", CompareOperator::NotEqual},
        {"<", CompareOperator::Less},    {"<=", CompareOperator::LessEqual},
        {">", CompareOperator::Greater}, {">=", CompareOperator::GreaterEqual}};
    for (const auto& [text, op] : kOperators)
      if (skip_operator(text)) return op;
    if (skip_name("in")) return CompareOperator::In;
    if (at_name("not") && is_name(look(), "in")) {
      take();
      take();
      return CompareOperator::NotIn;
    }
    return {};
  }

  ExpressionPtr parse_compare() {
    auto node = std::make_unique<Compare>(now().line);
    node->first = parse_sum();
    while (const std::optional<CompareOperator> op = take_compare_operator())
      node->rest.emplace_back(*op, parse_sum());
    if (node->rest.empty()) return std::move(node->first);
    settle(*node, {node->first.get()});
    for (const auto& [op, operand] : node->rest) settle(*node, {operand.get()});
    return node;
  }

  struct OperatorName {
    std::string_view text;
    BinaryOperator op;
  };

  template <size_t N>
  ExpressionPtr parse_binary(const OperatorName (&operators)[N], ExpressionPtr (Parser::*parse_operand)()) {
    ExpressionPtr left = (this->*parse_operand)();
    for (;;) {
      const auto* found =
          std::find_if(operators, operators + N, [&](const OperatorName& o) { return at_operator(o.text); });
      if (found == operators + N) return left;
      auto node = std::make_unique<Binary>(take().line);
      node->op = found->op;
      node->left = std::move(left);
      node->right = (this->*parse_operand)();
      settle(*node, {node->left.get(), node->right.get()});
      left = std::move(node);
    }
  }

  ExpressionPtr parse_sum() {
    static constexpr OperatorName kOperators[] = {{"+", BinaryOperator::Add},
                                                  {"-", BinaryOperator::Subtract}};
    return parse_binary(kOperators, &Parser::parse_concat);
  }

  ExpressionPtr parse_concat() {
    auto node = std::make_unique<Concat>(now().line);
    node->parts.push_back(parse_product());
    while (skip_operator("~")) node->parts.push_back(parse_product());
    if (node->parts.size() == 1) return std::move(node->parts[0]);
    for (const ExpressionPtr& part : node->parts) settle(*node, {part.get()});
    return node;
  }

  ExpressionPtr parse_product() {
    static constexpr OperatorName kOperators[] = {{"*", BinaryOperator::Multiply},
                                                  {"/", BinaryOperator::Divide},
                                                  {"//", BinaryOperator::FloorDivide},
                                                  {"%", BinaryOperator::Modulo}};
    return parse_binary(kOperators, &Parser::parse_power);
  }

  ExpressionPtr parse_power() {
    static constexpr OperatorName kOperators[] = {{"**", BinaryOperator::Power}};
    return parse_binary(kOperators, &Parser::parse_filtered_unary);
  }

  ExpressionPtr parse_filtered_unary() { return parse_unary(true); }

  ExpressionPtr parse_unary(bool with_filter) {
    const Level level(*this);
    ExpressionPtr node;
    if (at_operator("-") || at_operator("+")) {
      const Token& sign = take();
      auto unary = std::make_unique<Unary>(sign.line);
      unary->op = sign.text == "-" ? Unary::Operator::Minus : Unary::Operator::Plus;
      unary->operand = parse_unary(false);
      settle(*unary, {unary->operand.get()});
      node = std::move(unary);
    } else {
      node = parse_primary();
    }
    node = parse_postfix(std::move(node));
    return with_filter ? parse_filter_expression(std::move(node)) : std::move(node);
  }

  ExpressionPtr literal(uint32_t line, Value value) {
    auto node = std::make_unique<Literal>(line);
    node->value = std::move(value);
    return node;
  }

  ExpressionPtr parse_primary() {
    const Token& token = now();
    switch (token.kind) {
      case Kind::Name:
        take();
        return parse_name(token);
      case Kind::StringLiteral:
        return parse_strings();
      case Kind::IntegerLiteral:
        take();
        return literal(token.line, Value(token.integer));
      case Kind::FloatLiteral:
        take();
        return literal(token.line, Value(token.floating));
      default:
        break;
    }
    if (at_operator("[")) return parse_list();
    if (at_operator("{")) return parse_dict();
    if (!skip_operator("(")) fail(fmt::format("unexpected {}", describe(token)));
    ExpressionPtr inner = parse_tuple(true, true);
    expect_operator(")");
    return inner;
  }

  ExpressionPtr parse_name(const Token& token) {
    if (token.text == "true" || token.text == "True") return literal(token.line, Value(true));
    if (token.text == "false" || token.text == "False") return literal(token.line, Value(false));
    if (token.text == "none" || token.text == "None") return literal(token.line, Value());
    note_use(token.text, Use::Loaded);
    auto node = std::make_unique<Name>(token.line);
    node->symbol = symbol(token.text);
    return node;
  }

  ExpressionPtr parse_strings() {  // neighbours are one string
    const uint32_t line = now().line;
    std::string text;
    while (now().kind == Kind::StringLiteral) text += take().text;
    return literal(line, make_string(meter_, std::move(text)));
  }

  ExpressionPtr parse_list() {
    auto node = std::make_unique<ListLiteral>(take().line);
    while (!at_operator("]")) {
      if (!node->items.empty()) expect_operator(",");
      if (at_operator("]")) break;
      node->items.push_back(parse_expression());
      settle(*node, {node->items.back().get()});
    }
    take();
    return node;
  }

  ExpressionPtr parse_dict() {
    auto node = std::make_unique<DictLiteral>(take().line);
    while (!at_operator("}")) {
      if (!node->items.empty()) expect_operator(",");
      if (at_operator("}")) break;
      ExpressionPtr key = parse_expression();
      expect_operator(":");
      node->items.emplace_back(std::move(key), parse_expression());
      settle(*node, {node->items.back().first.get(), node->items.back().second.get()});
    }
    take();
    return node;
  }

  ExpressionPtr parse_postfix(ExpressionPtr node) {
    for (;;) {
      if (at_operator("."))
        node = parse_attribute(std::move(node));
      else if (at_operator("["))
        node = parse_item(std::move(node));
      else if (at_operator("("))
        node = parse_call(std::move(node));
      else
        return node;
    }
  }

  ExpressionPtr parse_filter_expression(ExpressionPtr node) {
    for (;;) {
      if (at_operator("|"))
        node = parse_filters(std::move(node));
      else if (at_name("is"))
        node = parse_test(std::move(node));
      else if (at_operator("("))
        node = parse_call(std::move(node));
      else
        return node;
    }
  }

  ExpressionPtr parse_attribute(ExpressionPtr object) {
    const uint32_t line = take().line;
    const Token& token = take();
    if (token.kind == Kind::IntegerLiteral) {
      auto node = std::make_unique<Item>(line);
      node->object = std::move(object);
      node->key = literal(line, Value(token.integer));
      settle(*node, {node->object.get()});
      return node;
    }
    if (token.kind != Kind::Name)
      throw SyntaxRefusal(token.line, fmt::format("expected a name or a number, found {}", describe(token)));
    auto node = std::make_unique<Attribute>(line);
    node->object = std::move(object);
    node->name = token.text;
    settle(*node, {node->object.get()});
    return node;
  }

  ExpressionPtr parse_item(ExpressionPtr object) {
    const uint32_t line = take().line;
    auto keys = std::make_unique<ListLiteral>(line);
    keys->is_tuple = true;
    while (!at_operator("]")) {
      if (!keys->items.empty()) expect_operator(",");
      keys->items.push_back(parse_key());
      settle(*keys, {keys->items.back().get()});
    }
    take();
    auto node = std::make_unique<Item>(line);
    node->object = std::move(object);
    if (keys->items.size() == 1)
      node->key = std::move(keys->items[0]);
    else
      node->key = std::move(keys);
    settle(*node, {node->object.get(), node->key.get()});
    return node;
  }

  ExpressionPtr parse_key() {
    const uint32_t line = now().line;
    ExpressionPtr start;
    if (!at_operator(":")) {
      start = parse_expression();
      if (!at_operator(":")) return start;
    }
    take();
    auto slice = std::make_unique<Slice>(line);
    slice->start = std::move(start);
    const auto ends = [&] { return at_operator("]") || at_operator(",") || at_operator(":"); };
    if (!ends()) slice->stop = parse_expression();
    if (skip_operator(":") && !at_operator("]") && !at_operator(",")) slice->step = parse_expression();
    settle(*slice, {slice->start.get(), slice->stop.get(), slice->step.get()});
    return slice;
  }

  ExpressionPtr parse_call(ExpressionPtr callee) {
    auto node = std::make_unique<Call>(now().line);
    node->callee = std::move(callee);
    node->arguments = parse_arguments();
    settle(*node, {node->callee.get()});
    settle(*node, node->arguments);
    return node;
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_operator("(");
    const auto want = [&](bool ok) {
      if (!ok) fail("the arguments of a call are out of order");
    };
    for (bool first = true; !at_operator(")"); first = false) {
      if (!first) {
        expect_operator(",");
        if (at_operator(")")) break;
      }
      if (skip_operator("*")) {
        want(!arguments.rest && !arguments.named_rest);
        arguments.rest = parse_expression();
      } else if (skip_operator("**")) {
        want(!arguments.named_rest);
        arguments.named_rest = parse_expression();
      } else if (now().kind == Kind::Name && is_operator(look(), "=")) {
        want(!arguments.named_rest);
        parse_named_argument(arguments);
      } else {
        want(!arguments.rest && !arguments.named_rest && arguments.named.empty());
        arguments.positional.push_back(parse_expression());
      }
    }
    take();
    return arguments;
  }

  void parse_named_argument(CallArguments& arguments) {
    const std::string name = take().text;
    take();
    for (const auto& [other, value] : arguments.named)
      if (other == name) fail(fmt::format("the argument '{}' is given twice", name));
    arguments.named.emplace_back(name, parse_expression());
  }

  ExpressionPtr parse_filters(ExpressionPtr input) {
    while (skip_operator("|")) input = parse_one_filter(std::move(input));
    return input;
  }

  std::string parse_dotted_name() {
    std::string name = expect_any_name();
    while (skip_operator(".")) {
      name += '.';
      name += expect_any_name();
    }
    return name;
  }

  ExpressionPtr parse_one_filter(ExpressionPtr input) {
    auto node = std::make_unique<Filter>(now().line);
    node->input = std::move(input);
    node->name = parse_dotted_name();
    node->function = find_filter(node->name);
    if (!node->function)
      unknown_.emplace_back(node->line, fmt::format("there is no filter '{}'", node->name));
    if (at_operator("(")) node->arguments = parse_arguments();
    settle(*node, {node->input.get()});
    settle(*node, node->arguments);
    return node;
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    const uint32_t line = take().line;
    const bool is_negated = skip_name("not");
    auto node = std::make_unique<Test>(line);
    node->input = std::move(input);
    node->name = parse_dotted_name();
    node->function = find_test(node->name);
    if (!node->function) unknown_.emplace_back(line, fmt::format("there is no test '{}'", node->name));
    parse_test_arguments(*node);
    settle(*node, {node->input.get()});
    settle(*node, node->arguments);
    if (!is_negated) return node;
    auto negated = std::make_unique<Unary>(line);
    negated->operand = std::move(node);
    settle(*negated, {negated->operand.get()});
    return negated;
  }

  void parse_test_arguments(Test& node) {
    if (at_operator("(")) {
      node.arguments = parse_arguments();
      return;
    }
    const Kind kind = now().kind;
    const bool starts_value = kind == Kind::Name || kind == Kind::StringLiteral ||
                              kind == Kind::IntegerLiteral || kind == Kind::FloatLiteral ||
                              at_operator("[") || at_operator("{");
    if (!starts_value || at_name("else") || at_name("or") || at_name("and")) return;
    if (at_name("is")) fail("tests cannot be chained");
    node.arguments.positional.push_back(parse_postfix(parse_primary()));
  }

  const std::vector<Token> tokens_;
  Meter& meter_;
  size_t at_ = 0;
  unsigned depth_ = 0, n_loops_ = 0;
  std::vector<std::string> symbols_, block_names_;
  std::unordered_map<std::string, Symbol> symbol_numbers_;
  std::vector<MacroUse> macro_uses_;  // of the macros around the current place
  std::vector<SyntaxRefusal>
      unknown_;  // filters and tests that do not exist, where no condition guards them so far
};

}  // namespace

Tree parse(std::string_view source, Meter& meter) {
  Tree tree = Parser(source, meter).run();
  find_hidden_names(tree);
  return tree;
}

}  // namespace moeflux::jinja
