// The values of a template, with the meaning that Python gives them: str is a sequence of code points, bool
// is an int, a dict keeps the order of insertion, a missing thing is undefined and prints as nothing.
//
// Lists, tuples, dicts and strings never change once they have been handed out, and know how deep they are
// nested: so that no value contains itself, and walking one (or destroying it) needs a bounded stack.
// Namespaces and other objects that do change are kept by the interpreter until the end (Object::clear).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_meter.h"

namespace moeflux::jinja {

// Wide enough for every 64-bit number, signed or not; what does not fit is refused. (Python's int has no
// bound.)
using Integer = __int128;
inline constexpr Integer kIntegerMax = static_cast<Integer>((static_cast<unsigned __int128>(1) << 127) - 1);
inline constexpr Integer kIntegerMin = -kIntegerMax - 1;

inline constexpr unsigned kMaxNesting = 128;

class Interpreter;
class Object;
class Value;

class StringObject {
 public:
  StringObject(Meter& meter, std::string text, size_t n_characters, bool is_markup);

  const std::string& text() const { return text_; }
  size_t n_characters() const { return n_characters_; }
  bool is_ascii() const { return n_characters_ == text_.size(); }
  // Marked as safe for HTML: what is joined with it is then escaped, as in Python.
  bool is_markup() const { return is_markup_; }

 private:
  const std::string text_;
  const size_t n_characters_;
  const bool is_markup_;
  const Charge charge_;
};

class ListObject;
class DictObject;
struct UndefinedObject {
  std::string message;  // said when it is used for more than printing and testing
};

using StringRef = std::shared_ptr<const StringObject>;
using ListRef = std::shared_ptr<const ListObject>;
using DictRef = std::shared_ptr<const DictObject>;
using ObjectRef = std::shared_ptr<Object>;
using UndefinedRef = std::shared_ptr<const UndefinedObject>;

struct NoneType {};

class Value {
 public:
  Value() = default;  // none
  Value(NoneType) {}
  explicit Value(bool b) : data_(b) {}
  explicit Value(Integer i) : data_(i) {}
  explicit Value(int i) : data_(Integer{i}) {}
  explicit Value(size_t i) : data_(static_cast<Integer>(i)) {}
  explicit Value(double d) : data_(d) {}
  Value(StringRef s) : data_(std::move(s)) {}
  Value(ListRef l) : data_(std::move(l)) {}
  Value(DictRef d) : data_(std::move(d)) {}
  Value(ObjectRef o) : data_(std::move(o)) {}
  Value(UndefinedRef u) : data_(std::move(u)) {}
  template <class T>
  Value(std::shared_ptr<T> object) : data_(ObjectRef(std::move(object))) {}
  Value(std::shared_ptr<ListObject> l) : data_(ListRef(std::move(l))) {}
  Value(std::shared_ptr<DictObject> d) : data_(DictRef(std::move(d))) {}

  bool is_none() const { return holds<NoneType>(); }
  bool is_undefined() const { return holds<UndefinedRef>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_string() const { return holds<StringRef>(); }
  bool is_float() const { return holds<double>(); }
  bool is_dict() const { return holds<DictRef>(); }
  bool is_sequence() const { return holds<ListRef>(); }  // a list or a tuple
  bool is_list() const;
  bool is_tuple() const;
  bool is_markup() const { return is_string() && (*string())->is_markup(); }
  bool is_number() const { return is_float() || is_integer(); }
  bool is_integer() const { return holds<Integer>() || is_bool(); }  // in Python a bool is an int

  // Null where the value is something else.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const StringRef* string() const { return std::get_if<StringRef>(&data_); }
  const ListRef* sequence() const { return std::get_if<ListRef>(&data_); }
  const DictRef* dict() const { return std::get_if<DictRef>(&data_); }
  const ObjectRef* object() const { return std::get_if<ObjectRef>(&data_); }
  const UndefinedRef* undefined() const { return std::get_if<UndefinedRef>(&data_); }
  template <class T>
  T* object_as() const {
    const ObjectRef* o = object();
    return o ? dynamic_cast<T*>(o->get()) : nullptr;
  }

  Integer integer() const;  // of an integer or bool
  double floating() const;  // of any number
  std::string_view text() const { return (*string())->text(); }

  unsigned depth() const;
  bool is_same(const Value& other) const;  // Python's `is`

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  std::variant<NoneType, UndefinedRef, bool, Integer, double, StringRef, ListRef, DictRef, ObjectRef> data_;
};

class ListObject {
 public:
  enum class Type : uint8_t { List, Tuple, Group };  // Group: a tuple of groupby, whose parts have names

  explicit ListObject(Meter& meter, Type type = Type::List) : type_(type), charge_(meter, kOwnBytes) {}
  void push(Value value);
  void push_all(const std::vector<Value>& values);

  Type type() const { return type_; }
  bool is_tuple() const { return type_ != Type::List; }
  const std::vector<Value>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  unsigned depth() const { return depth_; }

 private:
  static constexpr size_t kOwnBytes = 96;
  const Type type_;
  std::vector<Value> items_;
  unsigned depth_ = 1;
  Charge charge_;
};

class DictObject {
 public:
  using Item = std::pair<Value, Value>;

  explicit DictObject(Meter& meter) : charge_(meter, kOwnBytes) {}
  void set(const Value& key, Value value);  // replaces in place
  void set_all(const DictObject& other);

  const Value* find(const Value& key) const;  // refuses what cannot be hashed
  const Value* find(std::string_view key) const;
  const std::vector<Item>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  unsigned depth() const { return depth_; }

 private:
  static constexpr size_t kOwnBytes = 160, kLinear = 8;
  std::optional<size_t> position(const Value& key) const;
  template <class Same>
  std::optional<size_t> search(uint64_t hash, Same same) const;
  void index(size_t at);

  std::vector<Item> items_;
  std::vector<uint64_t> hashes_;                       // of the keys
  std::unordered_multimap<uint64_t, size_t> by_hash_;  // only where there are more than kLinear items
  unsigned depth_ = 1;
  mutable Charge charge_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(std::string_view name) const;
};

// Everything that is not plain data: callables, namespaces, ranges, views, iterators, loops.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual std::string repr(Meter& meter);
  virtual bool truth() { return true; }
  virtual std::optional<size_t> length() { return {}; }  // nothing: it has none
  virtual ListRef items(Meter&) { return nullptr; }      // null: it cannot be iterated
  virtual bool has_elements() const { return false; }    // can be subscripted
  virtual std::optional<Value> element(Meter&, const Value&) { return {}; }
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return {}; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Interpreter&, const Arguments&);
  virtual bool equals(Meter&, Object& other) { return this == &other; }
  virtual unsigned depth() const { return 0; }
  virtual void clear() {}  // drops what it refers to, since it may refer to itself
};

class RangeObject : public Object {
 public:
  RangeObject(Integer start, Integer stop, Integer step);
  Integer at(size_t i) const { return start_ + static_cast<Integer>(i) * step_; }
  std::shared_ptr<RangeObject> slice(Integer start, Integer step, size_t n) const;
  std::string_view type_name() const override { return "range"; }
  std::string repr(Meter& meter) override;
  bool truth() override { return size_ != 0; }
  std::optional<size_t> length() override { return size_; }
  ListRef items(Meter& meter) override;
  bool has_elements() const override { return true; }
  std::optional<Value> element(Meter& meter, const Value& key) override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  bool equals(Meter& meter, Object& other) override;
  bool contains(Integer value) const;

 private:
  Integer start_, stop_, step_;
  size_t size_;
};

// dict.keys(), .values() and .items().
class DictView : public Object {
 public:
  enum class Part : uint8_t { Keys, Values, Items };
  DictView(DictRef dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string_view type_name() const override;
  std::string repr(Meter& meter) override;
  bool truth() override { return dict_->size() != 0; }
  std::optional<size_t> length() override { return dict_->size(); }
  ListRef items(Meter& meter) override;
  bool equals(Meter& meter, Object& other) override;
  unsigned depth() const override { return dict_->depth() + 1; }

 private:
  DictRef dict_;
  Part part_;
};

// What filters such as map and select give: can be walked once, has no length, cannot be subscripted.
class IteratorObject : public Object {
 public:
  IteratorObject(std::string_view type_name, ListRef items)
      : type_name_(type_name), items_(std::move(items)) {}
  std::string_view type_name() const override { return type_name_; }
  ListRef items(Meter& meter) override;  // what is left; nothing is left after it
  std::optional<Value> next();           // one of them
  unsigned depth() const override { return items_->depth() + 1; }

 private:
  std::string_view type_name_;
  ListRef items_;
  size_t position_ = 0;
};

class NamespaceObject : public Object {
 public:
  explicit NamespaceObject(Meter& meter) : charge_(meter, 160) {}
  void set(std::string_view name, Value value);
  std::string_view type_name() const override { return "Namespace"; }
  std::string repr(Meter& meter) override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  void clear() override { items_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> items_;
  Charge charge_;
};

// A callable of ours: a global, or a method with what it belongs to.
class FunctionObject : public Object {
 public:
  using Body = Value (*)(Interpreter&, const Value& self, const Arguments&);
  FunctionObject(std::string_view name, Body body, Value self = {}, bool is_method = false)
      : name_(name), body_(body), self_(std::move(self)), is_method_(is_method) {}
  std::string_view type_name() const override {
    return is_method_ ? "builtin_function_or_method" : "function";
  }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return body_(interpreter, self_, arguments);
  }
  unsigned depth() const override { return self_.depth() + 1; }

 private:
  std::string_view name_;
  Body body_;
  Value self_;
  bool is_method_;
};

// Text that grows under the meter's eyes.
class TextBuilder {
 public:
  explicit TextBuilder(Meter& meter) : charge_(meter, 0) {}
  TextBuilder& operator+=(std::string_view piece) {
    charge_.grow(piece.size());
    text_ += piece;
    return *this;
  }
  void append(char32_t c);
  std::string& text() { return text_; }
  Value finish(bool is_markup = false);

 private:
  std::string text_;
  Charge charge_;
};

Value make_string(Meter& meter, std::string text, bool is_markup = false);
Value make_undefined(std::string message);
inline std::shared_ptr<ListObject> make_list(Meter& meter) { return std::make_shared<ListObject>(meter); }
inline std::shared_ptr<ListObject> make_tuple(Meter& meter) {
  return std::make_shared<ListObject>(meter, ListObject::Type::Tuple);
}
inline std::shared_ptr<DictObject> make_dict(Meter& meter) { return std::make_shared<DictObject>(meter); }
Value make_pair(Meter& meter, Value first, Value second);
Value make_iterator(std::string_view type_name, ListRef items);

std::string_view type_name(const Value& value);  // as Python calls it
bool truth(const Value& value);
bool equal(Meter& meter, const Value& a, const Value& b);
bool less(Meter& meter, const Value& a, const Value& b);  // refuses what has no order
uint64_t hash(Meter& meter, const Value& key);            // refuses lists and dicts
std::optional<size_t> length(const Value& value);
bool is_iterable(const Value& value);
ListRef items_of(Meter& meter, const Value& value);  // what a for loop sees; refuses what cannot be iterated
bool contains(Meter& meter, const Value& container, const Value& item);

// The same for a range-based for, which would not keep the list of items_of alive.
class Items {
 public:
  Items(Meter& meter, const Value& value) : list_(items_of(meter, value)) {}
  auto begin() const { return list_->items().begin(); }
  auto end() const { return list_->items().end(); }

 private:
  const ListRef list_;
};

std::string to_text(Meter& meter, const Value& value);  // str(value)
std::string repr(Meter& meter, const Value& value);
std::string float_repr(double value);
std::string to_string(Integer value);
std::string repr_of_text(std::string_view text);
// str(value) as a value: a string stays what it is.
Value to_string_value(Meter& meter, const Value& value);
std::string escape_html(std::string_view text);

[[noreturn]] void refuse_undefined(const Value& undefined);

}  // namespace moeflux::jinja
