#include "text/jinja_interpreter.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja_builtins.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

constexpr Symbol kNoSymbol = ~Symbol{0};

Symbol find_symbol(const Tree& tree, std::string_view name) {
  const auto it = std::ranges::find(tree.symbols, name);
  return it == tree.symbols.end() ? kNoSymbol : static_cast<Symbol>(it - tree.symbols.begin());
}

std::string shortened(std::string_view text) {
  if (text.size() <= 60) return std::string(text);
  size_t end = 57;
  while ((text[end] & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string described_key(const Value& key) {
  if (key.is_string()) return fmt::format("'{}'", shortened(key.text()));
  if (key.is_integer()) return to_string(key.integer());
  return fmt::format("of type {}", type_name(key));
}

bool is_dunder(std::string_view name) { return name.starts_with("__") && name.ends_with("__"); }

std::optional<Value> sequence_element(Meter& meter, const Value& value, Integer index) {
  const auto size = static_cast<Integer>(*length(value));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return {};
  const auto i = static_cast<size_t>(index);
  if (const ListRef* list = value.sequence()) return (*list)->items()[i];
  const StringObject& s = **value.string();
  if (s.is_ascii()) return make_string(meter, s.text().substr(i, 1), s.is_markup());
  meter.scan(s.text().size());
  const size_t begin = byte_offset(s.text(), i), end = byte_offset(s.text(), 1, begin);
  return make_string(meter, s.text().substr(begin, end - begin), s.is_markup());
}

// value[key] as Python has it, without attributes; nothing where Python would raise an error.
std::optional<Value> element(Meter& meter, const Value& value, const Value& key) {
  if (const DictRef* dict = value.dict()) {
    if (key.is_sequence() && !key.is_tuple()) return {};
    if (key.is_dict()) return {};
    const Value* found = (*dict)->find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (value.is_string() || value.is_sequence()) {
    if (!key.is_integer()) return {};
    return sequence_element(meter, value, key.integer());
  }
  if (const ObjectRef* object = value.object()) return (*object)->element(meter, key);
  return {};
}

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  for (const auto& [key, value] : variables)
    if (key == symbol) return &value;
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  charge.meter().step(variables.size() / 8);
  for (auto& [key, old] : variables)
    if (key == symbol) {
      old = std::move(value);
      return;
    }
  charge.grow(2 * sizeof(Value));
  variables.emplace_back(symbol, std::move(value));
}

// Output goes into a buffer of its own while this lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& i)
      : interpreter_(i), buffer_(i.meter_), outer_(std::exchange(i.out_, &buffer_)) {}
  ~Capture() { interpreter_.out_ = outer_; }
  Value finish() { return buffer_.finish(); }
  std::string& text() { return buffer_.text(); }

 private:
  Interpreter& interpreter_;
  TextBuilder buffer_;
  TextBuilder* outer_;
};

// Another scope is the current one while this lives.
class Interpreter::Within {
 public:
  Within(Interpreter& i, ScopePtr scope)
      : interpreter_(i), outer_(std::exchange(i.scope_, std::move(scope))) {}
  ~Within() { interpreter_.scope_ = std::move(outer_); }

 private:
  Interpreter& interpreter_;
  ScopePtr outer_;
};

class MacroObject : public Object {
 public:
  MacroObject(const Macro& macro, ScopePtr closure) : macro_(macro), closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  std::string repr(Meter&) override {
    return macro_.name.empty() ? "<Macro anonymous>" : fmt::format("<Macro {}>", repr_of_text(macro_.name));
  }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return interpreter.run_macro(macro_, closure_, arguments);
  }
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override {
    if (name == "name") return macro_.name.empty() ? Value() : make_string(interpreter.meter(), macro_.name);
    if (name == "catch_kwargs") return Value(macro_.takes_named);
    if (name == "catch_varargs") return Value(macro_.takes_rest);
    if (name == "caller") return Value(macro_.takes_caller);
    if (name != "arguments") return {};
    auto list = make_tuple(interpreter.meter());
    for (const auto& [symbol, parameter] : macro_.parameters)
      list->push(make_string(interpreter.meter(), parameter));
    return Value(std::move(list));
  }

 private:
  const Macro& macro_;
  const ScopePtr closure_;  // kept by the interpreter, which is what breaks the circle through its variables
};

// The items of a for loop, taken one at a time, since a condition may look at what the body changes; and
// `loop`.
class LoopObject : public Object {
 public:
  LoopObject(Interpreter& interpreter, const For& node, ScopePtr outer, ListRef items, unsigned depth)
      : interpreter_(interpreter),
        node_(node),
        outer_(std::move(outer)),
        items_(std::move(items)),
        depth_(depth),
        charge_(interpreter.meter_, 320) {}

  bool advance() {
    std::optional<Value> next = after_ ? std::exchange(after_, {}) : pull();
    if (!next) return false;
    ++index_;
    before_ = std::exchange(current_, std::move(*next));
    return true;
  }
  const Value& current() const { return current_; }

  std::string_view type_name() const override { return "LoopContext"; }
  std::string repr(Meter&) override { return fmt::format("<LoopContext {}/{}>", index_, size()); }
  std::optional<size_t> length() override { return size(); }
  unsigned depth() const override { return items_->depth() + 1; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  void clear() override { last_changed_.reset(); }

 private:
  // The next item that passes the condition.
  std::optional<Value> pull() {
    while (position_ < items_->size()) {
      const Value& item = items_->items()[position_++];
      if (passes(item)) return with_parts_as_tuple(item);
    }
    return {};
  }
  bool passes(const Value& item) {
    if (!node_.test || is_filtered_) return true;
    const Interpreter::Within within(interpreter_, interpreter_.make_scope(outer_));
    interpreter_.assign(*node_.target, item);
    return jinja::truth(interpreter_.evaluate(*node_.test));
  }
  // Behind a condition, what is unpacked into several names is put together again, as a tuple.
  Value with_parts_as_tuple(const Value& item) {
    if (!node_.test || node_.target->kind != Expression::Kind::List) return item;
    auto tuple = make_tuple(interpreter_.meter_);
    tuple->push_all(items_of(interpreter_.meter_, item)->items());
    return tuple;
  }
  const std::optional<Value>& peek() {
    if (!after_) after_ = pull();
    return after_;
  }
  size_t size() {
    if (!node_.test) return items_->size();
    if (!size_) {
      auto rest = make_list(interpreter_.meter_);
      while (std::optional<Value> item = pull()) rest->push(std::move(*item));
      items_ = rest;
      position_ = 0;
      is_filtered_ = true;
      size_ = rest->size() + index_ + (after_ ? 1 : 0);
    }
    return *size_;
  }
  static LoopObject& of(const Value& self) { return *self.object_as<LoopObject>(); }
  static Value cycle(Interpreter&, const Value& self, const Arguments& arguments) {
    if (arguments.positional.empty()) refuse("loop.cycle needs something to choose from");
    return arguments.positional[(of(self).index_ - 1) % arguments.positional.size()];
  }
  static Value changed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
    LoopObject& loop = of(self);
    auto values = make_tuple(interpreter.meter());
    values->push_all(arguments.positional);
    const Value now(std::move(values));
    if (loop.last_changed_ && equal(interpreter.meter(), *loop.last_changed_, now)) return Value(false);
    if (!std::exchange(loop.is_kept_, true)) interpreter.keep(loop.shared_from_this());
    loop.last_changed_ = now;
    return Value(true);
  }

  Interpreter& interpreter_;
  const For& node_;
  const ScopePtr outer_;
  ListRef items_;
  const unsigned depth_;  // of recursion, from 0
  size_t position_ = 0, index_ = 0;
  bool is_filtered_ = false, is_kept_ = false;
  std::optional<size_t> size_;
  Value before_, current_;
  std::optional<Value> after_, last_changed_;
  const Charge charge_;
};

Value LoopObject::call(Interpreter& interpreter, const Arguments& arguments) {
  if (!node_.is_recursive) refuse("loop() needs a loop that is marked 'recursive'");
  const Parameters p("loop", arguments, {"iterable"}, 1);
  const Interpreter::Within within(interpreter, outer_);
  Interpreter::Capture capture(interpreter);
  interpreter.run_loop(
      node_, std::make_shared<LoopObject>(interpreter, node_, outer_, items_of(interpreter.meter(), p.at(0)),
                                          depth_ + 1));
  return capture.finish();
}

std::optional<Value> LoopObject::attribute(Interpreter&, std::string_view name) {
  if (name == "index") return Value(index_);
  if (name == "index0") return Value(static_cast<Integer>(index_) - 1);
  if (name == "first") return Value(index_ == 1);
  if (name == "last") return Value(!peek());
  if (name == "length") return Value(size());
  if (name == "revindex") return Value(static_cast<Integer>(size()) - static_cast<Integer>(index_) + 1);
  if (name == "revindex0") return Value(static_cast<Integer>(size()) - static_cast<Integer>(index_));
  if (name == "depth") return Value(size_t{depth_} + 1);
  if (name == "depth0") return Value(size_t{depth_});
  if (name == "previtem") return index_ > 1 ? before_ : make_undefined("there is no previous item");
  if (name == "nextitem") return peek() ? *peek() : make_undefined("there is no next item");
  if (name == "cycle")
    return Value(std::make_shared<FunctionObject>("cycle", cycle, Value(shared_from_this()), true));
  if (name == "changed")
    return Value(std::make_shared<FunctionObject>("changed", changed, Value(shared_from_this()), true));
  return {};
}

Interpreter::Interpreter(const Tree& tree, const Limits& limits, const LocalTime& now)
    : tree_(tree),
      now_(now),
      meter_(limits),
      loop_symbol_(find_symbol(tree, "loop")),
      caller_symbol_(find_symbol(tree, "caller")),
      named_symbol_(find_symbol(tree, "kwargs")),
      rest_symbol_(find_symbol(tree, "varargs")) {
  const ScopePtr globals = make_scope(nullptr);
  for (Symbol s = 0; s < tree.symbols.size(); ++s)
    if (std::optional<Value> global = find_global(tree.symbols[s])) globals->set(s, std::move(*global));
  root_ = make_scope(globals);
  scope_ = root_;
}

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Object>& object : kept_objects_) object->clear();
  for (const ScopePtr& scope : kept_scopes_) scope->variables.clear();
  root_->variables.clear();
}

void Interpreter::keep(std::shared_ptr<Object> object) {
  meter_.step();
  kept_objects_.push_back(std::move(object));
}

ScopePtr Interpreter::make_scope(ScopePtr parent) {
  return std::make_shared<Scope>(meter_, std::move(parent));
}

ScopePtr Interpreter::make_scope(ScopePtr parent, const HiddenNames& hidden) {
  ScopePtr scope = make_scope(std::move(parent));
  hide(*scope, hidden);
  return scope;
}

// An empty reference stands for a variable that has no value yet.
void Interpreter::hide(Scope& scope, const HiddenNames& names) {
  for (const Symbol name : names) scope.set(name, Value(UndefinedRef()));
}

void Interpreter::define(std::string_view name, Value value) {
  const Symbol symbol = find_symbol(tree_, name);
  if (symbol != kNoSymbol) root_->set(symbol, std::move(value));
}

std::string Interpreter::run() {
  // The caller's variables lie around the outermost scope of the template.
  const Within within(*this, root_ = make_scope(root_, tree_.hidden));
  Capture capture(*this);
  execute(tree_.body);
  return std::move(capture.text());
}

void Interpreter::write(std::string_view text) {
  if (text.size() >
      meter_.limits().output_bytes - std::min(out_->text().size(), meter_.limits().output_bytes))
    refuse("the output is longer than {} bytes", meter_.limits().output_bytes);
  *out_ += text;
}

const Value* Interpreter::lookup(Symbol symbol) {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    meter_.step(scope->variables.size() / 8);
    if (const Value* value = scope->find(symbol))
      return value->is_undefined() && !*value->undefined() ? nullptr : value;
  }
  return nullptr;
}

// ---- Access

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) refuse_undefined(object);
  if (is_dunder(name)) {
    if (const DictRef* dict = object.dict())
      if (const Value* found = (*dict)->find(name)) return *found;
    return make_undefined(
        fmt::format("access to the attribute '{}' of a value of type {} is unsafe", name, type_name(object)));
  }
  if (std::optional<Value> method = find_method(meter_, object, name)) return *method;
  if (const ObjectRef* o = object.object())
    if (std::optional<Value> found = (*o)->attribute(*this, name)) return *found;
  if (const DictRef* dict = object.dict())
    if (const Value* found = (*dict)->find(name)) return *found;
  return make_undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), shortened(name)));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) refuse_undefined(object);
  if (std::optional<Value> found = element(meter_, object, key)) return *found;
  if (key.is_string()) {
    if (is_dunder(key.text())) return attribute(object, key.text());
    if (std::optional<Value> method = find_method(meter_, object, key.text())) return *method;
    if (const ObjectRef* o = object.object())
      if (std::optional<Value> found = (*o)->attribute(*this, key.text())) return *found;
  }
  return make_undefined(fmt::format("'{} object' has no element {}", type_name(object), described_key(key)));
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) refuse_undefined(callee);
  if (!callee.object()) refuse("a value of type {} cannot be called", type_name(callee));
  const ObjectRef object = *callee.object();
  return object->call(*this, arguments);
}

// ---- Expressions

Value Interpreter::evaluate(const Expression& e) {
  const Descent descent(meter_);
  meter_.step();
  line_ = e.line;
  return evaluate_node(e);
}

Value Interpreter::evaluate_node(const Expression& e) {
  switch (e.kind) {
    case Expression::Kind::Literal:
      return static_cast<const Literal&>(e).value;
    case Expression::Kind::Name:
      return evaluate_name(static_cast<const Name&>(e));
    case Expression::Kind::List:
      return evaluate_list(static_cast<const ListLiteral&>(e));
    case Expression::Kind::Dict:
      return evaluate_dict(static_cast<const DictLiteral&>(e));
    case Expression::Kind::Attribute:
      return attribute(evaluate(*static_cast<const Attribute&>(e).object),
                       static_cast<const Attribute&>(e).name);
    case Expression::Kind::Item:
      return evaluate_item(static_cast<const Item&>(e));
    case Expression::Kind::Call:
      return evaluate_call(static_cast<const Call&>(e));
    case Expression::Kind::Filter:
      return evaluate_filter(static_cast<const Filter&>(e));
    case Expression::Kind::Test:
      return evaluate_test(static_cast<const Test&>(e));
    case Expression::Kind::Unary:
      return evaluate_unary(static_cast<const Unary&>(e));
    case Expression::Kind::Binary:
      return evaluate_binary(static_cast<const Binary&>(e));
    case Expression::Kind::Logical:
      return evaluate_logical(static_cast<const Logical&>(e));
    case Expression::Kind::Concat:
      return evaluate_concat(static_cast<const Concat&>(e));
    case Expression::Kind::Compare:
      return evaluate_compare(static_cast<const Compare&>(e));
    case Expression::Kind::Conditional:
      return evaluate_conditional(static_cast<const Conditional&>(e));
    case Expression::Kind::Slice:
      refuse("slices cannot be combined");
    case Expression::Kind::NamespaceTarget:
      break;
  }
  panic("an expression that cannot be evaluated", __FILE__, __LINE__);
}

Value Interpreter::evaluate_name(const Name& e) {
  if (const Value* value = lookup(e.symbol)) return *value;
  return make_undefined(fmt::format("'{}' is undefined", shortened(tree_.symbols[e.symbol])));
}

Value Interpreter::evaluate_list(const ListLiteral& e) {
  auto list = e.is_tuple ? make_tuple(meter_) : make_list(meter_);
  for (const ExpressionPtr& item : e.items) list->push(evaluate(*item));
  return list;
}

Value Interpreter::evaluate_dict(const DictLiteral& e) {
  auto dict = make_dict(meter_);
  for (const auto& [key_node, value_node] : e.items) {
    const Value key = evaluate(*key_node);
    dict->set(key, evaluate(*value_node));
  }
  return dict;
}

Value Interpreter::evaluate_item(const Item& e) {
  const Value object = evaluate(*e.object);
  if (e.key->kind != Expression::Kind::Slice) {
    const Value key = evaluate(*e.key);
    line_ = e.line;
    return item(object, key);
  }
  const auto& node = static_cast<const Slice&>(*e.key);
  const auto part = [&](const ExpressionPtr& p) { return p ? evaluate(*p) : Value(); };
  const Value start = part(node.start), stop = part(node.stop), step = part(node.step);
  return slice(meter_, object, start, stop, step);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& from) {
  Arguments arguments;
  for (const ExpressionPtr& e : from.positional) arguments.positional.push_back(evaluate(*e));
  if (from.rest) {
    const ListRef rest = items_of(meter_, evaluate(*from.rest));
    meter_.step(rest->size());
    arguments.positional.insert(arguments.positional.end(), rest->items().begin(), rest->items().end());
  }
  for (const auto& [name, e] : from.named) arguments.named.emplace_back(name, evaluate(*e));
  if (from.named_rest) {
    const Value rest = evaluate(*from.named_rest);
    if (!rest.is_dict()) refuse("after '**' a dict is wanted, not {}", type_name(rest));
    for (const auto& [key, value] : (*rest.dict())->items()) {
      if (!key.is_string()) refuse("names of arguments are strings, not {}", type_name(key));
      meter_.step(1 + arguments.named.size() / 8);
      if (arguments.find(key.text())) refuse("the argument '{}' is given twice", key.text());
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Call& e) {
  const Value callee = evaluate(*e.callee);
  const Arguments arguments = evaluate_arguments(e.arguments);
  line_ = e.line;
  Value result = call(callee, arguments);
  line_ = e.line;
  return result;
}

Value Interpreter::evaluate_filter(const Filter& e) {
  const Value input = e.input ? evaluate(*e.input) : *block_text_;
  const Arguments arguments = evaluate_arguments(e.arguments);
  line_ = e.line;
  if (!e.function) refuse("there is no filter '{}'", e.name);
  return e.function(*this, input, arguments);
}

Value Interpreter::evaluate_test(const Test& e) {
  const Value input = evaluate(*e.input);
  const Arguments arguments = evaluate_arguments(e.arguments);
  line_ = e.line;
  if (!e.function) refuse("there is no test '{}'", e.name);
  return Value(e.function(*this, input, arguments));
}

Value Interpreter::evaluate_unary(const Unary& e) {
  const Value value = evaluate(*e.operand);
  if (e.op == Unary::Operator::Not) return Value(!truth(value));
  if (value.is_undefined()) refuse_undefined(value);
  if (!value.is_number()) refuse("a value of type {} has no sign", type_name(value));
  if (e.op == Unary::Operator::Minus) return negate(value);
  return value.is_bool() ? Value(value.integer()) : value;
}

Value Interpreter::evaluate_binary(const Binary& e) {
  const Value left = evaluate(*e.left);
  const Value right = evaluate(*e.right);
  line_ = e.line;
  return apply(*this, e.op, left, right);
}

Value Interpreter::evaluate_logical(const Logical& e) {
  Value left = evaluate(*e.left);
  return truth(left) == e.is_and ? evaluate(*e.right) : left;
}

Value Interpreter::evaluate_concat(const Concat& e) {
  TextBuilder text(meter_);
  for (const ExpressionPtr& part : e.parts) {
    const Value value = evaluate(*part);
    if (value.is_string())
      text += value.text();
    else
      text += to_text(meter_, value);
  }
  return text.finish();
}

Value Interpreter::evaluate_compare(const Compare& e) {
  Value left = evaluate(*e.first);
  for (const auto& [op, node] : e.rest) {
    Value right = evaluate(*node);
    line_ = e.line;
    if (!compare(meter_, op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_conditional(const Conditional& e) {
  if (truth(evaluate(*e.test))) return evaluate(*e.then);
  if (e.otherwise) return evaluate(*e.otherwise);
  return make_undefined("the condition is false and there is no 'else'");
}

// ---- Statements

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const StatementPtr& statement : body)
    if (const Flow flow = execute(*statement); flow != Flow::Next) return flow;
  return Flow::Next;
}

Interpreter::Flow Interpreter::execute(const Statement& s) {
  const Descent descent(meter_);
  meter_.step();
  line_ = s.line;
  switch (s.kind) {
    case Statement::Kind::Output:
      execute_output(static_cast<const Output&>(s));
      return Flow::Next;
    case Statement::Kind::If:
      return execute_if(static_cast<const If&>(s));
    case Statement::Kind::For:
      return execute_for(static_cast<const For&>(s));
    case Statement::Kind::Set:
      execute_set(static_cast<const Set&>(s));
      return Flow::Next;
    case Statement::Kind::SetBlock:
      execute_set_block(static_cast<const SetBlock&>(s));
      return Flow::Next;
    case Statement::Kind::Macro:
      execute_macro(static_cast<const Macro&>(s));
      return Flow::Next;
    case Statement::Kind::CallBlock:
      execute_call_block(static_cast<const CallBlock&>(s));
      return Flow::Next;
    case Statement::Kind::FilterBlock:
      execute_filter_block(static_cast<const FilterBlock&>(s));
      return Flow::Next;
    case Statement::Kind::With:
      return execute_with(static_cast<const With&>(s));
    case Statement::Kind::Scoped:
      return execute_scoped(static_cast<const Scoped&>(s));
    case Statement::Kind::Break:
      return Flow::Break;
    case Statement::Kind::Continue:
      return Flow::Continue;
  }
  panic("a statement that cannot be executed", __FILE__, __LINE__);
}

void Interpreter::execute_output(const Output& s) {
  for (const Output::Part& part : s.parts) {
    if (!part.expression) {
      write(part.text);
      continue;
    }
    const Value value = evaluate(*part.expression);
    if (value.is_string())
      write(value.text());
    else
      write(to_text(meter_, value));
  }
}

Interpreter::Flow Interpreter::execute_if(const If& s) {
  for (const auto& [test, body] : s.branches)
    if (truth(evaluate(*test))) return execute(body);
  return execute(s.otherwise);
}

Interpreter::Flow Interpreter::execute_for(const For& s) {
  const ListRef items = items_of(meter_, evaluate(*s.iterable));
  return run_loop(s, std::make_shared<LoopObject>(*this, s, scope_, items, 0));
}

Interpreter::Flow Interpreter::run_loop(const For& s, const std::shared_ptr<LoopObject>& loop) {
  const ScopePtr outer = scope_;
  ScopePtr scope;
  bool has_completed = false;  // a round: one that is cut short does not count
  while (loop->advance()) {
    meter_.step();
    if (!scope || scope.use_count() > 1 || scope->is_kept)
      scope = make_scope(outer);
    else
      scope->variables.clear();
    hide(*scope, s.hidden);
    const Within within(*this, scope);
    if (loop_symbol_ != kNoSymbol) scope->set(loop_symbol_, Value(loop));
    assign(*s.target, loop->current());
    const Flow flow = execute(s.body);
    if (flow == Flow::Break) break;
    has_completed = has_completed || flow == Flow::Next;
  }
  if (has_completed) return Flow::Next;
  const Within within(*this, make_scope(outer, s.hidden_otherwise));
  return execute(s.otherwise);
}

void Interpreter::execute_set(const Set& s) {
  const Value value = evaluate(*s.value);
  line_ = s.line;
  assign(*s.target, value);
}

void Interpreter::assign(const Expression& target, const Value& value) {
  if (target.kind == Expression::Kind::Name) {
    scope_->set(static_cast<const Name&>(target).symbol, value);
  } else if (target.kind == Expression::Kind::List) {
    assign_tuple(static_cast<const ListLiteral&>(target), value);
  } else {
    const auto& node = static_cast<const NamespaceTarget&>(target);
    const Value* found = lookup(node.symbol);
    auto* space = found ? found->object_as<NamespaceObject>() : nullptr;
    if (!space) refuse("'{}' is not a namespace: its attributes cannot be set", tree_.symbols[node.symbol]);
    space->set(node.attribute, value);
  }
}

void Interpreter::assign_tuple(const ListLiteral& target, const Value& value) {
  const ListRef items = items_of(meter_, value);
  if (items->size() != target.items.size())
    refuse("{} values cannot be assigned to {} names", items->size(), target.items.size());
  for (size_t i = 0; i < target.items.size(); ++i) assign(*target.items[i], items->items()[i]);
}

void Interpreter::execute_set_block(const SetBlock& s) {
  Value value;
  {
    const Within within(*this, make_scope(scope_, s.hidden));
    Capture capture(*this);
    execute(s.body);
    value = capture.finish();
    if (s.filter) {
      block_text_ = &value;
      value = evaluate(*s.filter);
    }
  }
  assign(*s.target, value);
}

void Interpreter::execute_filter_block(const FilterBlock& s) {
  Value value;
  {
    const Within within(*this, make_scope(scope_, s.hidden));
    Capture capture(*this);
    execute(s.body);
    value = capture.finish();
    block_text_ = &value;
    value = evaluate(*s.filter);
  }
  write_block(value);
}

// A block's result stands in the output as it is, so that it has to be text.
void Interpreter::write_block(const Value& value) {
  if (!value.is_string()) refuse("a block gives a value of type {} in place of text", type_name(value));
  write(value.text());
}

Interpreter::Flow Interpreter::execute_with(const With& s) {
  const ScopePtr scope = make_scope(scope_, s.hidden);
  for (const auto& [target, expression] : s.assignments) {
    const Value value = evaluate(*expression);
    const Within within(*this, scope);
    assign(*target, value);
  }
  const Within within(*this, scope);
  return execute(s.body);
}

Interpreter::Flow Interpreter::execute_scoped(const Scoped& s) {
  const Within within(*this, make_scope(s.sees_root_only ? root_ : scope_, s.hidden));
  return execute(s.body);
}

// ---- Macros

Value Interpreter::make_macro(const Macro& macro) {
  if (!std::exchange(scope_->is_kept, true)) kept_scopes_.push_back(scope_);
  return Value(std::make_shared<MacroObject>(macro, scope_));
}

void Interpreter::execute_macro(const Macro& s) { scope_->set(s.symbol, make_macro(s)); }

void Interpreter::execute_call_block(const CallBlock& s) {
  const auto& node = static_cast<const Call&>(*s.call);
  const Value callee = evaluate(*node.callee);
  Arguments arguments = evaluate_arguments(node.arguments);
  if (arguments.find("caller")) refuse("the argument 'caller' is given twice");
  arguments.named.emplace_back("caller", make_macro(*s.caller));
  line_ = node.line;
  write_block(call(callee, arguments));
}

// The parameters that got a value; the numbers of the others are left in `missing`.
void Interpreter::bind_macro(const Macro& macro, Scope& scope, const Arguments& arguments,
                             std::vector<size_t>& missing) {
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  const auto take_named = [&named](std::string_view name) -> std::optional<Value> {
    const auto it = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
    if (it == named.end()) return {};
    Value value = std::move(it->second);
    named.erase(it);
    return value;
  };
  bool has_caller = false;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [symbol, name] = macro.parameters[i];
    meter_.step(1 + named.size() / 8);
    has_caller = has_caller || name == "caller";
    if (i < arguments.positional.size())
      scope.set(symbol, arguments.positional[i]);
    else if (std::optional<Value> value = take_named(name))
      scope.set(symbol, std::move(*value));
    else
      missing.push_back(i);
  }
  if (macro.takes_caller && !has_caller) {
    const std::optional<Value> caller = take_named("caller");
    scope.set(caller_symbol_, caller && !caller->is_none() ? *caller : make_undefined("there is no caller"));
  }
  if (!macro.takes_named && !named.empty())
    refuse("the macro '{}' takes no argument named '{}'", macro.name, named.front().first);
  if (!macro.takes_rest && arguments.positional.size() > macro.parameters.size())
    refuse("the macro '{}' takes at most {} arguments", macro.name, macro.parameters.size());
  bind_surplus(macro, scope, arguments, named);
}

// kwargs and varargs, where the macro's body uses them.
void Interpreter::bind_surplus(const Macro& macro, Scope& scope, const Arguments& arguments,
                               const std::vector<std::pair<std::string, Value>>& named) {
  if (macro.takes_named) {
    auto dict = make_dict(meter_);
    for (const auto& [name, value] : named) dict->set(make_string(meter_, name), value);
    scope.set(named_symbol_, Value(std::move(dict)));
  }
  if (macro.takes_rest) {
    auto rest = make_tuple(meter_);
    for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i)
      rest->push(arguments.positional[i]);
    scope.set(rest_symbol_, Value(std::move(rest)));
  }
}

Value Interpreter::run_macro(const Macro& macro, const ScopePtr& closure, const Arguments& arguments) {
  const Descent descent(meter_);
  const ScopePtr scope = make_scope(closure, macro.hidden);
  std::vector<size_t> missing;
  bind_macro(macro, *scope, arguments, missing);
  const Within within(*this, scope);
  const size_t n_required = macro.parameters.size() - macro.defaults.size();
  for (const size_t i : missing) {
    const auto& [symbol, name] = macro.parameters[i];
    scope->set(symbol, i < n_required
                           ? make_undefined(fmt::format("the parameter '{}' was not provided", name))
                           : evaluate(*macro.defaults[i - n_required]));
  }
  Capture capture(*this);
  execute(macro.body);
  return capture.finish();
}

}  // namespace moeflux::jinja
