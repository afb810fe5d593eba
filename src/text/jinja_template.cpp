#include "text/jinja_template.h"

#include "base/json.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"

namespace moeflux::jinja {
namespace {

Value from_json(Meter& meter, const OrderedJson& json) {
  const Descent descent(meter);
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value(Integer{json.get<int64_t>()});
    case OrderedJson::value_t::number_unsigned:
      return Value(static_cast<Integer>(json.get<uint64_t>()));
    case OrderedJson::value_t::number_float:
      return Value(json.get<double>());
    case OrderedJson::value_t::string:
      return make_string(meter, json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      auto list = make_list(meter);
      for (const OrderedJson& item : json) list->push(from_json(meter, item));
      return list;
    }
    case OrderedJson::value_t::object: {
      auto dict = make_dict(meter);
      for (const auto& [key, value] : json.items())
        dict->set(make_string(meter, key), from_json(meter, value));
      return dict;
    }
    default:
      return {};
  }
}

Limits parse_limits() {
  Limits limits;
  limits.memory_bytes = 64 * kMaxSourceBytes;  // literals: no more than the source, plus what each takes
  return limits;
}

}  // namespace

struct Template::State {
  explicit State(std::string n) : name(std::move(n)), meter(parse_limits()) {}
  const std::string name;
  Meter meter;  // of the literals, which die with the tree
  Tree tree;
};

Template::Template(std::string_view source, std::string name) {
  auto state = std::make_unique<State>(std::move(name));
  try {
    state->tree = parse(source, state->meter);
  } catch (const SyntaxRefusal& e) {
    throw TemplateError(state->name, e.line, e.what());
  } catch (const Refusal& e) {
    throw TemplateError(state->name, 1, e.what());
  }
  state_ = std::move(state);
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const OrderedJson& variables, const LocalTime& now, const Limits& limits) const {
  Interpreter interpreter(state_->tree, limits, now);
  try {
    for (const auto& [name, value] : variables.items())
      interpreter.define(name, from_json(interpreter.meter(), value));
    return interpreter.run();
  } catch (const Refusal& e) {
    throw TemplateError(state_->name, interpreter.line(), e.what());
  }
}

}  // namespace moeflux::jinja
