#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

constexpr size_t kStringOverhead = 80;

unsigned deeper(unsigned depth, const Value& child) {
  const unsigned with_child = std::max(depth, child.depth() + 1);
  if (with_child > kMaxNesting) refuse("a value is nested deeper than {} levels", kMaxNesting);
  return with_child;
}

bool is_whole(double d) { return std::isfinite(d) && d == std::floor(d); }
// Doubles of this size and more may not fit; they are then larger than every Integer.
constexpr double kTwoTo127 = 0x1p127;

// -1, 0, 1, or 2 where one is not a number: exact, as Python compares int with float.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer())
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  if (b.is_integer()) {
    const int swapped = compare_numbers(b, a);
    return swapped == 2 ? 2 : -swapped;
  }
  const double right = b.floating();
  if (std::isnan(right) || (a.is_float() && std::isnan(a.floating()))) return 2;
  if (a.is_float()) return a.floating() < right ? -1 : a.floating() > right ? 1 : 0;
  if (right >= kTwoTo127) return -1;
  if (right < -kTwoTo127) return 1;
  const Integer floor = static_cast<Integer>(std::floor(right));
  if (a.integer() != floor) return a.integer() < floor ? -1 : 1;
  return is_whole(right) ? 0 : -1;
}

bool equal_lists(Meter& meter, const ListObject& a, const ListObject& b) {
  if (a.is_tuple() != b.is_tuple() || a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(meter, a.items()[i], b.items()[i])) return false;
  return true;
}

bool equal_dicts(Meter& meter, const DictObject& a, const DictObject& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const Value* other = b.find(key);
    if (!other || !equal(meter, value, *other)) return false;
  }
  return true;
}

bool less_lists(Meter& meter, const ListObject& a, const ListObject& b) {
  const size_t n = std::min(a.size(), b.size());
  for (size_t i = 0; i < n; ++i)
    if (!equal(meter, a.items()[i], b.items()[i])) return less(meter, a.items()[i], b.items()[i]);
  return a.size() < b.size();
}

uint64_t mix(uint64_t seed, uint64_t value) {
  return (seed ^ (value + 0x9e3779b97f4a7c15 + (seed << 6) + (seed >> 2))) * 0xff51afd7ed558ccd;
}

uint64_t hash_text(std::string_view text) { return mix(1, std::hash<std::string_view>{}(text)); }

uint64_t hash_integer(Integer i) {
  const auto bits = static_cast<unsigned __int128>(i);
  return mix(mix(2, static_cast<uint64_t>(bits)), static_cast<uint64_t>(bits >> 64));
}

void append_repr(TextBuilder& out, Meter& meter, const Value& value);

void append_list(TextBuilder& out, Meter& meter, const ListObject& list) {
  out += list.is_tuple() ? "(" : "[";
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, meter, list.items()[i]);
  }
  if (list.is_tuple() && list.size() == 1) out += ",";
  out += list.is_tuple() ? ")" : "]";
}

void append_dict(TextBuilder& out, Meter& meter, const DictObject& dict) {
  out += "{";
  bool first = true;
  for (const auto& [key, value] : dict.items()) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, meter, key);
    out += ": ";
    append_repr(out, meter, value);
  }
  out += "}";
}

void append_repr(TextBuilder& out, Meter& meter, const Value& value) {
  meter.step();
  if (const StringRef* s = value.string()) {
    meter.scan((*s)->text().size());
    if ((*s)->is_markup())
      out += "Markup(" + repr_of_text((*s)->text()) + ")";
    else
      out += repr_of_text((*s)->text());
  } else if (const ListRef* l = value.sequence()) {
    append_list(out, meter, **l);
  } else if (const DictRef* d = value.dict()) {
    append_dict(out, meter, **d);
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else {
    out += to_text(meter, value);
  }
}

void append_escaped(std::string& out, char32_t c) {
  if (c == '\n')
    out += "\\n";
  else if (c == '\r')
    out += "\\r";
  else if (c == '\t')
    out += "\\t";
  else if (c < 0x100)
    append_hex(out += "\\x", c, 2);
  else if (c < 0x10000)
    append_hex(out += "\\u", c, 4);
  else
    append_hex(out += "\\U", c, 8);
}

ListRef characters_of(Meter& meter, const StringObject& s) {
  meter.scan(s.text().size());
  auto list = make_list(meter);
  const std::string_view text = s.text();
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    next_code_point(text, at);
    list->push(make_string(meter, std::string(text.substr(begin, at - begin)), s.is_markup()));
  }
  return list;
}

}  // namespace

StringObject::StringObject(Meter& meter, std::string text, size_t n_characters, bool is_markup)
    : text_(std::move(text)),
      n_characters_(n_characters),
      is_markup_(is_markup),
      charge_(meter, text_.size() + kStringOverhead) {}

bool Value::is_list() const {
  const ListRef* l = sequence();
  return l && !(*l)->is_tuple();
}

bool Value::is_tuple() const {
  const ListRef* l = sequence();
  return l && (*l)->is_tuple();
}

Integer Value::integer() const {
  if (const bool* b = boolean()) return *b ? 1 : 0;
  return std::get<Integer>(data_);
}

double Value::floating() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

unsigned Value::depth() const {
  if (const ListRef* l = sequence()) return (*l)->depth();
  if (const DictRef* d = dict()) return (*d)->depth();
  if (const ObjectRef* o = object()) return (*o)->depth();
  return 0;
}

bool Value::is_same(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (const bool* b = boolean()) return *b == *other.boolean();
  if (const StringRef* s = string()) return *s == *other.string();
  if (const ListRef* l = sequence()) return *l == *other.sequence();
  if (const DictRef* d = dict()) return *d == *other.dict();
  if (const ObjectRef* o = object()) return *o == *other.object();
  if (const UndefinedRef* u = undefined()) return *u == *other.undefined();
  if (is_float()) return false;
  // Python keeps one object for each small number.
  return integer() == other.integer() && integer() >= -5 && integer() <= 256;
}

void ListObject::push(Value value) {
  depth_ = deeper(depth_, value);
  charge_.grow(2 * sizeof(Value));
  items_.push_back(std::move(value));
}

void ListObject::push_all(const std::vector<Value>& values) {
  for (const Value& v : values) push(v);
}

template <class Same>
std::optional<size_t> DictObject::search(uint64_t hash, Same same) const {
  if (items_.size() <= kLinear) {
    for (size_t i = 0; i < items_.size(); ++i)
      if (hashes_[i] == hash && same(items_[i].first)) return i;
    return {};
  }
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    charge_.meter().step();
    if (same(items_[it->second].first)) return it->second;
  }
  return {};
}

std::optional<size_t> DictObject::position(const Value& key) const {
  Meter& meter = charge_.meter();
  return search(hash(meter, key), [&](const Value& other) { return equal(meter, key, other); });
}

const Value* DictObject::find(const Value& key) const {
  const std::optional<size_t> at = position(key);
  return at ? &items_[*at].second : nullptr;
}

const Value* DictObject::find(std::string_view key) const {
  const std::optional<size_t> at =
      search(hash_text(key), [&](const Value& other) { return other.is_string() && other.text() == key; });
  return at ? &items_[*at].second : nullptr;
}

void DictObject::index(size_t at) { by_hash_.emplace(hashes_[at], at); }

void DictObject::set(const Value& key, Value value) {
  depth_ = std::max(deeper(depth_, value), deeper(depth_, key));
  if (const std::optional<size_t> at = position(key)) {
    items_[*at].second = std::move(value);
    return;
  }
  charge_.grow(4 * sizeof(Value) + 96);
  hashes_.push_back(hash(charge_.meter(), key));
  items_.emplace_back(key, std::move(value));
  if (items_.size() == kLinear + 1)
    for (size_t i = 0; i < items_.size(); ++i) index(i);
  else if (items_.size() > kLinear)
    index(items_.size() - 1);
}

void DictObject::set_all(const DictObject& other) {
  for (const auto& [key, value] : other.items()) set(key, value);
}

const Value* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

std::string Object::repr(Meter&) { return fmt::format("<{} object>", type_name()); }

Value Object::call(Interpreter&, const Arguments&) {
  refuse("a value of type {} cannot be called", type_name());
}

RangeObject::RangeObject(Integer start, Integer stop, Integer step)
    : start_(start), stop_(stop), step_(step), size_(0) {
  if (step > 0 && start < stop) size_ = static_cast<size_t>((stop - start - 1) / step + 1);
  if (step < 0 && start > stop) size_ = static_cast<size_t>((start - stop - 1) / -step + 1);
}

std::shared_ptr<RangeObject> RangeObject::slice(Integer start, Integer step, size_t n) const {
  const Integer first = start_ + start * step_, stride = step * step_;
  return std::make_shared<RangeObject>(first, first + stride * static_cast<Integer>(n), stride);
}

std::string RangeObject::repr(Meter&) {
  std::string text = "range(" + to_string(start_) + ", " + to_string(stop_);
  if (step_ != 1) text += ", " + to_string(step_);
  return text + ")";
}

ListRef RangeObject::items(Meter& meter) {
  auto list = make_list(meter);
  for (size_t i = 0; i < size_; ++i) list->push(Value(at(i)));
  return list;
}

std::optional<Value> RangeObject::element(Meter&, const Value& key) {
  if (!key.is_integer()) return {};
  Integer i = key.integer();
  if (i < 0) i += static_cast<Integer>(size_);
  if (i < 0 || i >= static_cast<Integer>(size_)) return {};
  return Value(at(static_cast<size_t>(i)));
}

std::optional<Value> RangeObject::attribute(Interpreter&, std::string_view name) {
  if (name == "start") return Value(start_);
  if (name == "stop") return Value(stop_);
  if (name == "step") return Value(step_);
  return {};
}

bool RangeObject::equals(Meter&, Object& other) {
  const auto* range = dynamic_cast<RangeObject*>(&other);
  if (!range || range->size_ != size_) return false;
  return size_ == 0 || (range->start_ == start_ && (size_ == 1 || range->step_ == step_));
}

bool RangeObject::contains(Integer value) const {
  if (size_ == 0) return false;
  const Integer offset = value - start_;
  return offset % step_ == 0 && offset / step_ >= 0 && offset / step_ < static_cast<Integer>(size_);
}

std::string_view DictView::type_name() const {
  return part_ == Part::Keys ? "dict_keys" : part_ == Part::Values ? "dict_values" : "dict_items";
}

std::string DictView::repr(Meter& meter) {
  return fmt::format("{}({})", type_name(), jinja::repr(meter, Value(items(meter))));
}

ListRef DictView::items(Meter& meter) {
  auto list = make_list(meter);
  for (const auto& [key, value] : dict_->items())
    list->push(part_ == Part::Keys ? key : part_ == Part::Values ? value : make_pair(meter, key, value));
  return list;
}

bool DictView::equals(Meter& meter, Object& other) {
  if (this == &other) return true;
  const auto* view = dynamic_cast<DictView*>(&other);
  if (!view || view->part_ != part_ || part_ == Part::Values || view->dict_->size() != dict_->size())
    return false;
  for (const auto& [key, value] : dict_->items()) {
    const Value* found = view->dict_->find(key);
    if (!found || (part_ == Part::Items && !equal(meter, value, *found))) return false;
  }
  return true;
}

ListRef IteratorObject::items(Meter& meter) {
  if (position_ == 0) {
    position_ = items_->size();
    return items_;
  }
  auto rest = make_list(meter);
  for (; position_ < items_->size(); ++position_) rest->push(items_->items()[position_]);
  return rest;
}

std::optional<Value> IteratorObject::next() {
  if (position_ == items_->size()) return {};
  return items_->items()[position_++];
}

void NamespaceObject::set(std::string_view name, Value value) {
  charge_.meter().step(items_.size() / 8);
  for (auto& [key, old] : items_)
    if (key == name) {
      old = std::move(value);
      return;
    }
  charge_.grow(name.size() + 2 * sizeof(Value));
  items_.emplace_back(name, std::move(value));
}

std::string NamespaceObject::repr(Meter& meter) {
  const Descent descent(meter);
  auto dict = make_dict(meter);
  for (const auto& [key, value] : items_) dict->set(make_string(meter, key), value);
  return "<Namespace " + jinja::repr(meter, Value(std::move(dict))) + ">";
}

std::optional<Value> NamespaceObject::attribute(Interpreter&, std::string_view name) {
  charge_.meter().step(items_.size() / 8);
  for (const auto& [key, value] : items_)
    if (key == name) return value;
  return {};
}

void TextBuilder::append(char32_t c) {
  charge_.grow(4);
  append_code_point(text_, c);
}

Value TextBuilder::finish(bool is_markup) {
  return make_string(charge_.meter(), std::move(text_), is_markup);
}

Value make_string(Meter& meter, std::string text, bool is_markup) {
  size_t n_characters = 0;
  if (!count_code_points(text, n_characters)) refuse("a string is not valid UTF-8");
  return Value(std::static_pointer_cast<const StringObject>(
      std::make_shared<StringObject>(meter, std::move(text), n_characters, is_markup)));
}

Value make_undefined(std::string message) {
  return Value(UndefinedRef(std::make_shared<UndefinedObject>(UndefinedObject{std::move(message)})));
}

Value make_pair(Meter& meter, Value first, Value second) {
  auto tuple = make_tuple(meter);
  tuple->push(std::move(first));
  tuple->push(std::move(second));
  return tuple;
}

Value make_iterator(std::string_view type_name, ListRef items) {
  return Value(std::make_shared<IteratorObject>(type_name, std::move(items)));
}

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_bool()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.is_markup() ? "Markup" : "str";
  if (value.is_sequence()) return value.is_tuple() ? "tuple" : "list";
  if (value.is_dict()) return "dict";
  return (*value.object())->type_name();
}

bool truth(const Value& value) {
  if (const bool* b = value.boolean()) return *b;
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (value.is_float()) return value.floating() != 0;
  if (const StringRef* s = value.string()) return !(*s)->text().empty();
  if (const ListRef* l = value.sequence()) return (*l)->size() != 0;
  if (const DictRef* d = value.dict()) return (*d)->size() != 0;
  return (*value.object())->truth();
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.is_same(b)) return true;
  if (a.is_undefined() && b.is_undefined()) return true;
  if (a.is_string() && b.is_string()) {
    meter.copy(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.is_sequence() && b.is_sequence()) return equal_lists(meter, **a.sequence(), **b.sequence());
  if (a.is_dict() && b.is_dict()) return equal_dicts(meter, **a.dict(), **b.dict());
  if (a.object() && b.object()) return (*a.object())->equals(meter, **b.object());
  return false;
}

bool less(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_undefined()) refuse_undefined(a);
  if (b.is_undefined()) refuse_undefined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    meter.copy(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // bytes of UTF-8 sort as code points do
  }
  if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple())
    return less_lists(meter, **a.sequence(), **b.sequence());
  refuse("values of types {} and {} have no order", type_name(a), type_name(b));
}

uint64_t hash(Meter& meter, const Value& key) {
  meter.step();
  if (key.is_string()) return hash_text(key.text());
  if (key.is_integer()) return hash_integer(key.integer());
  if (key.is_float()) {
    const double d = key.floating();
    if (is_whole(d) && std::fabs(d) < kTwoTo127) return hash_integer(static_cast<Integer>(d));
    return mix(3, std::hash<double>{}(d));
  }
  if (key.is_none()) return 4;
  if (key.is_undefined()) return 5;
  if (key.is_tuple()) {
    uint64_t sum = 6;
    for (const Value& item : (*key.sequence())->items()) sum = mix(sum, hash(meter, item));
    return sum;
  }
  if (const ObjectRef* o = key.object())
    return mix(7, (*o)->type_name() == "range" ? 0 : std::hash<const Object*>{}(o->get()));
  refuse("a value of type {} cannot be hashed", type_name(key));
}

std::optional<size_t> length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const StringRef* s = value.string()) return (*s)->n_characters();
  if (const ListRef* l = value.sequence()) return (*l)->size();
  if (const DictRef* d = value.dict()) return (*d)->size();
  if (const ObjectRef* o = value.object()) return (*o)->length();
  return {};
}

bool is_iterable(const Value& value) {
  if (value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict()) return true;
  if (!value.object()) return false;
  return value.object_as<RangeObject>() || value.object_as<DictView>() || value.object_as<IteratorObject>();
}

ListRef items_of(Meter& meter, const Value& value) {
  if (const ListRef* l = value.sequence()) return *l;
  if (const StringRef* s = value.string()) return characters_of(meter, **s);
  if (value.is_undefined()) return make_list(meter);
  if (const DictRef* d = value.dict()) return DictView(*d, DictView::Part::Keys).items(meter);
  if (const ObjectRef* o = value.object())
    if (ListRef items = (*o)->items(meter)) return items;
  refuse("a value of type {} cannot be iterated", type_name(value));
}

bool contains(Meter& meter, const Value& container, const Value& item) {
  if (const StringRef* s = container.string()) {
    if (item.is_undefined()) refuse("'in <string>' wants a string, not an undefined value");
    if (!item.is_string()) refuse("'in <string>' wants a string, not {}", type_name(item));
    meter.scan((*s)->text().size() + item.text().size());
    return find_text((*s)->text(), item.text()) != std::string_view::npos;
  }
  if (const DictRef* d = container.dict()) return (*d)->find(item) != nullptr;
  if (const auto* range = container.object_as<RangeObject>(); range && item.is_integer())
    return range->contains(item.integer());
  const ListRef items = items_of(meter, container);
  for (const Value& other : items->items())
    if (other.is_same(item) || equal(meter, other, item)) return true;
  return false;
}

std::string to_text(Meter& meter, const Value& value) {
  if (value.is_string()) {
    meter.copy(value.text().size());
    return std::string(value.text());
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* b = value.boolean()) return *b ? "True" : "False";
  if (value.is_integer()) return to_string(value.integer());
  if (value.is_float()) return float_repr(value.floating());
  if (const ObjectRef* o = value.object()) return (*o)->repr(meter);
  return repr(meter, value);
}

std::string repr(Meter& meter, const Value& value) {
  TextBuilder out(meter);
  append_repr(out, meter, value);
  return std::move(out.text());
}

std::string to_string(Integer value) { return fmt::format("{}", value); }

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int n_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (n_digits > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto point = static_cast<size_t>(exponent + 1);
  if (digits.size() <= point) return out + digits + std::string(point - digits.size(), '0') + ".0";
  return out + digits.substr(0, point) + "." + digits.substr(point);
}

std::string repr_of_text(std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') out += '\\';
    if (is_printable(c))
      append_code_point(out, c);
    else
      append_escaped(out, c);
  }
  return out + quote;
}

Value to_string_value(Meter& meter, const Value& value) {
  if (value.is_string()) return value;
  return make_string(meter, to_text(meter, value));
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '\'')
      out += "&#39;";
    else if (c == '"')
      out += "&#34;";
    else
      out += c;
  }
  return out;
}

void refuse_undefined(const Value& undefined) { throw Refusal((*undefined.undefined())->message); }

}  // namespace moeflux::jinja
