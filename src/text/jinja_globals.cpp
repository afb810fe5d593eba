// Global functions, and how functions of ours take their arguments.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"

namespace moeflux::jinja {
namespace {

constexpr size_t kMaxRange = 100'000;  // as the sandbox of jinja2 has it

void merge_pairs(Meter& meter, DictObject& dict, const Value& source) {
  if (const DictRef* other = source.dict()) return dict.set_all(**other);
  const ListRef items = items_of(meter, source);
  for (const Value& item : items->items()) {
    const ListRef pair = items_of(meter, item);
    if (pair->size() != 2) refuse("a dict is made of pairs, not of {} values", pair->size());
    dict.set(pair->items()[0], pair->items()[1]);
  }
}

std::shared_ptr<DictObject> dict_from(Interpreter& interpreter, std::string_view function,
                                      const Arguments& arguments) {
  Meter& meter = interpreter.meter();
  auto dict = make_dict(meter);
  if (arguments.positional.size() > 1) refuse("{} takes at most one argument without a name", function);
  if (!arguments.positional.empty()) merge_pairs(meter, *dict, arguments.positional[0]);
  for (const auto& [name, value] : arguments.named) dict->set(make_string(meter, name), value);
  return dict;
}

Value global_dict(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  return dict_from(interpreter, "dict", arguments);
}

Value global_namespace(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const auto values = dict_from(interpreter, "namespace", arguments);
  auto space = std::make_shared<NamespaceObject>(interpreter.meter());
  for (const auto& [key, value] : values->items())
    space->set(key.is_string() ? std::string(key.text()) : to_text(interpreter.meter(), key), value);
  interpreter.keep(space);
  return Value(std::move(space));
}

Value global_range(Interpreter&, const Value&, const Arguments& arguments) {
  const Parameters p = positional("range", arguments, 1, 3);
  const Integer first = want_integer(p.at(0), "range");
  const bool has_stop = p.get(1) != nullptr;
  const Integer start = has_stop ? first : 0, stop = has_stop ? want_integer(p.at(1), "range") : first;
  const Integer step = p.integer(2, 1);
  if (step == 0) refuse("range cannot have steps of zero");
  constexpr Integer kFar = Integer{1} << 100;
  for (const Integer bound : {start, stop, step})
    if (bound > kFar || bound < -kFar) refuse("an integer is too large");
  const Integer span = step > 0 ? stop - start : start - stop;
  if (span > 0 && (span - 1) / (step > 0 ? step : -step) + 1 > static_cast<Integer>(kMaxRange))
    refuse("a range has more than {} elements", kMaxRange);
  return Value(std::make_shared<RangeObject>(start, stop, step));
}

Value global_raise_exception(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Parameters p("raise_exception", arguments, {"message"}, 1);
  throw Refusal(to_text(interpreter.meter(), p.at(0)));
}

Value global_strftime_now(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Parameters p("strftime_now", arguments, {"format"}, 1);
  return make_string(interpreter.meter(), format_time(interpreter.now(), want_text(p.at(0), "strftime_now")));
}

class JoinerObject : public Object {
 public:
  explicit JoinerObject(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    positional("a joiner", arguments, 0, 0);
    if (std::exchange(is_used_, true)) return separator_;
    return make_string(interpreter.meter(), "");
  }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    if (name == "sep") return separator_;
    if (name == "used") return Value(is_used_);
    return {};
  }
  unsigned depth() const override { return separator_.depth() + 1; }

 private:
  const Value separator_;
  bool is_used_ = false;
};

Value global_joiner(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Parameters p("joiner", arguments, {"sep"}, 0);
  return Value(std::make_shared<JoinerObject>(p.get(0) ? p.at(0) : make_string(interpreter.meter(), ", ")));
}

class CyclerObject : public Object {
 public:
  explicit CyclerObject(ListRef items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    if (name == "current") return current();
    if (name == "pos") return Value(position_);
    if (name == "items") return Value(items_);
    if (name == "next") return method("next", next);
    if (name == "reset") return method("reset", reset);
    return {};
  }
  unsigned depth() const override { return items_->depth() + 1; }

 private:
  const Value& current() const { return items_->items()[position_]; }
  Value method(std::string_view name, FunctionObject::Body body) {
    return Value(std::make_shared<FunctionObject>(name, body, Value(shared_from_this()), true));
  }
  static Value next(Interpreter&, const Value& self, const Arguments&) {
    auto& cycler = *self.object_as<CyclerObject>();
    Value value = cycler.current();
    cycler.position_ = (cycler.position_ + 1) % cycler.items_->size();
    return value;
  }
  static Value reset(Interpreter&, const Value& self, const Arguments&) {
    self.object_as<CyclerObject>()->position_ = 0;
    return {};
  }

  const ListRef items_;
  size_t position_ = 0;
};

Value global_cycler(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  if (arguments.positional.empty()) refuse("cycler needs something to choose from");
  auto items = make_tuple(interpreter.meter());
  items->push_all(arguments.positional);
  return Value(std::make_shared<CyclerObject>(std::move(items)));
}

struct Global {
  std::string_view name;
  FunctionObject::Body body;
};
constexpr Global kGlobals[] = {{"dict", global_dict},
                               {"namespace", global_namespace},
                               {"range", global_range},
                               {"raise_exception", global_raise_exception},
                               {"strftime_now", global_strftime_now},
                               {"joiner", global_joiner},
                               {"cycler", global_cycler}};

}  // namespace

std::optional<Value> find_global(std::string_view name) {
  for (const Global& global : kGlobals)
    if (global.name == name) return Value(std::make_shared<FunctionObject>(global.name, global.body));
  return {};
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names, size_t n_required)
    : function_(function), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size())
    refuse("{} takes at most {} arguments, not {}", function, names.size(), arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || name.empty()) refuse("{} takes no argument named '{}'", function, name);
    const Value*& slot = values_[static_cast<size_t>(found - names.begin())];
    if (slot) refuse("{} gets its argument '{}' twice", function, name);
    slot = &value;
  }
  for (size_t i = 0; i < n_required; ++i)
    if (!values_[i]) refuse("{} needs {} arguments", function, n_required);
}

Parameters positional(std::string_view function, const Arguments& arguments, size_t n_required,
                      size_t n_most) {
  if (!arguments.named.empty())
    refuse("{} takes no argument named '{}'", function, arguments.named.front().first);
  switch (n_most) {
    case 0:
      return {function, arguments, {}, 0};
    case 1:
      return {function, arguments, {""}, n_required};
    case 2:
      return {function, arguments, {"", ""}, n_required};
    default:
      return {function, arguments, {"", "", ""}, n_required};
  }
}

Integer Parameters::integer(size_t i, Integer absent) const {
  return values_[i] ? want_integer(*values_[i], function_) : absent;
}

std::string_view Parameters::text(size_t i, std::string_view absent) const {
  return values_[i] ? want_text(*values_[i], function_) : absent;
}

const Value& Parameters::or_none(size_t i) const {
  static const Value kNone;
  return values_[i] ? *values_[i] : kNone;
}

Integer want_integer(const Value& value, std::string_view what) {
  if (!value.is_integer()) refuse("{} wants an integer, not {}", what, type_name(value));
  return value.integer();
}

std::string_view want_text(const Value& value, std::string_view what) {
  if (!value.is_string()) refuse("{} wants a string, not {}", what, type_name(value));
  return value.text();
}

}  // namespace moeflux::jinja
