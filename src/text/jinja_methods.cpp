// Methods and attributes of strings, lists, tuples, dicts and numbers.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text_methods.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

using Table = std::unordered_map<std::string_view, FunctionObject::Body>;

// ---- Cutting texts

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return at;
}

// The characters that strip takes away.
class Stripped {
 public:
  explicit Stripped(std::optional<std::string_view> which) : is_space_(!which) {
    for (size_t at = 0; which && at < which->size();) characters_.insert(next_code_point(*which, at));
  }
  bool has(std::string_view character) const {
    size_t at = 0;
    const char32_t c = next_code_point(character, at);
    return is_space_ ? is_space(c) : characters_.contains(c);
  }

 private:
  const bool is_space_;
  std::unordered_set<char32_t> characters_;
};

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

size_t code_points(std::string_view text) {
  size_t n = 0;
  count_code_points(text, n);
  return n;
}

// The part [start:stop] that methods such as find look at; nothing where start lies behind the end.
struct Part {
  std::string_view text;
  size_t first = 0;  // index of its first character
};
std::optional<Part> part_of(Meter& meter, const Value& self, const Value& start, const Value& stop) {
  const StringObject& s = **self.string();
  meter.scan(s.text().size());
  if (start.is_integer() && start.integer() > static_cast<Integer>(s.n_characters())) return {};
  const Cut c = cut(s.n_characters(), start, stop, Value());
  const auto first = static_cast<size_t>(c.start);
  const size_t begin = byte_offset(s.text(), first), end = byte_offset(s.text(), c.n, begin);
  // [5:2] is empty, yet nothing is found in it, not even the empty string.
  const Cut whole = cut(s.n_characters(), Value(), stop, Value());
  if (first > whole.n) return {};
  return Part{std::string_view(s.text()).substr(begin, end - begin), first};
}

Value text_like(Meter& meter, const Value& self, std::string_view text) {
  return make_string(meter, std::string(text), self.is_markup());
}

// ---- Splitting

std::shared_ptr<ListObject> split_at_space(Meter& meter, const Value& self, Integer most) {
  auto list = make_list(meter);
  std::string_view rest = strip(self.text(), {}, Side::Left);
  while (!rest.empty()) {
    size_t end = 0;
    if (most >= 0 && static_cast<Integer>(list->size()) == most) {
      list->push(text_like(meter, self, rest));
      return list;
    }
    while (end < rest.size()) {
      size_t next = end;
      if (is_space(next_code_point(rest, next))) break;
      end = next;
    }
    list->push(text_like(meter, self, rest.substr(0, end)));
    rest = strip(rest.substr(end), {}, Side::Left);
  }
  return list;
}

std::shared_ptr<ListObject> split_at_space_from_right(Meter& meter, const Value& self, Integer most) {
  std::vector<std::string_view> pieces;
  std::string_view rest = strip(self.text(), {}, Side::Right);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<Integer>(pieces.size()) == most) {
      pieces.push_back(rest);
      break;
    }
    size_t begin = rest.size();
    while (begin > 0) {
      const size_t last = last_character(rest.substr(0, begin));
      size_t at = last;
      if (is_space(next_code_point(rest, at))) break;
      begin = last;
    }
    pieces.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), {}, Side::Right);
    meter.expect_room(pieces.size() * sizeof(std::string_view));
  }
  auto list = make_list(meter);
  for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) list->push(text_like(meter, self, *it));
  return list;
}

std::shared_ptr<ListObject> split_at(Meter& meter, const Value& self, std::string_view separator,
                                     Integer most) {
  if (separator.empty()) refuse("an empty string separates nothing");
  auto list = make_list(meter);
  std::string_view rest = self.text();
  while (most < 0 || static_cast<Integer>(list->size()) < most) {
    const size_t at = find_text(rest, separator);
    if (at == rest.npos) break;
    list->push(text_like(meter, self, rest.substr(0, at)));
    rest.remove_prefix(at + separator.size());
  }
  list->push(text_like(meter, self, rest));
  return list;
}

std::shared_ptr<ListObject> split_at_from_right(Meter& meter, const Value& self, std::string_view separator,
                                                Integer most) {
  if (separator.empty()) refuse("an empty string separates nothing");
  std::vector<std::string_view> pieces;
  std::string_view rest = self.text();
  while (most < 0 || static_cast<Integer>(pieces.size()) < most) {
    meter.scan(separator.size() > 16 ? rest.size() : 0);  // a long one is looked for in a copy
    const size_t at = find_last_text(rest, separator);
    if (at == rest.npos) break;
    pieces.push_back(rest.substr(at + separator.size()));
    rest = rest.substr(0, at);
    meter.expect_room(pieces.size() * sizeof(std::string_view));
  }
  pieces.push_back(rest);
  auto list = make_list(meter);
  for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) list->push(text_like(meter, self, *it));
  return list;
}

template <bool kFromRight>
Value string_split(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p(kFromRight ? "rsplit" : "split", a, {"sep", "maxsplit"}, 0);
  Meter& meter = i.meter();
  meter.scan(self.text().size());
  const Integer most = p.integer(1, -1);
  const Value& separator = p.or_none(0);
  if (separator.is_none())
    return kFromRight ? split_at_space_from_right(meter, self, most) : split_at_space(meter, self, most);
  const std::string_view text = want_text(separator, "split");
  return kFromRight ? split_at_from_right(meter, self, text, most) : split_at(meter, self, text, most);
}

Value string_splitlines(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p("splitlines", a, {"keepends"}, 0);
  return split_lines(i.meter(), self.text(), p.flag(0, false), self.is_markup());
}

template <bool kFromRight>
Value string_partition(Interpreter& i, const Value& self, const Arguments& a) {
  const std::string_view separator = positional("partition", a, 1, 1).text(0, "");
  if (separator.empty()) refuse("an empty string separates nothing");
  const std::string_view text = self.text();
  i.meter().scan(text.size());
  const size_t at = kFromRight ? find_last_text(text, separator) : find_text(text, separator);
  auto parts = make_tuple(i.meter());
  const auto push = [&](std::string_view piece) { parts->push(text_like(i.meter(), self, piece)); };
  if (at != text.npos) {
    push(text.substr(0, at)), push(separator), push(text.substr(at + separator.size()));
  } else if (kFromRight) {
    push(""), push(""), push(text);
  } else {
    push(text), push(""), push("");
  }
  return parts;
}

// ---- Stripping, case, padding

template <Side kSide>
Value string_strip(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("strip", a, 0, 1);
  std::optional<std::string_view> which;
  if (!p.or_none(0).is_none()) which = want_text(p.at(0), "strip");
  i.meter().scan(self.text().size() + (which ? which->size() : 0));
  const std::string_view stripped = strip(self.text(), which, kSide);
  if (stripped.size() == self.text().size()) return self;
  return text_like(i.meter(), self, stripped);
}

template <std::string (*kConvert)(std::string_view)>
Value string_convert(Interpreter& i, const Value& self, const Arguments& a) {
  positional("a conversion of case", a, 0, 0);
  i.meter().expect_room(self.text().size() * 3);
  i.meter().scan(self.text().size());
  return make_string(i.meter(), kConvert(self.text()), self.is_markup());
}

void want_one_character(std::string_view fill) {
  if (code_points(fill) != 1) refuse("a string is filled up with one character");
}

template <Side kSide>  // where the text stands
Value string_justify(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("a justification", a, 1, 2);
  const std::string_view fill = p.text(1, " ");
  want_one_character(fill);
  if (kSide == Side::Both) return center(i.meter(), self, p.integer(0, 0), fill);
  const Integer n = p.integer(0, 0) - static_cast<Integer>((*self.string())->n_characters());
  TextBuilder text(i.meter());
  if (kSide == Side::Left) text += self.text();
  for (Integer k = 0; k < n; ++k) text += fill;
  if (kSide == Side::Right) text += self.text();
  return text.finish(self.is_markup());
}

Value string_zfill(Interpreter& i, const Value& self, const Arguments& a) {
  const Integer width = positional("zfill", a, 1, 1).integer(0, 0);
  const Integer n = width - static_cast<Integer>((*self.string())->n_characters());
  std::string_view rest = self.text();
  TextBuilder text(i.meter());
  if (n > 0 && (rest.starts_with('-') || rest.starts_with('+'))) {
    text += rest.substr(0, 1);
    rest.remove_prefix(1);
  }
  for (Integer k = 0; k < n; ++k) text += "0";
  text += rest;
  return text.finish(self.is_markup());
}

Value string_expandtabs(Interpreter& i, const Value& self, const Arguments& a) {
  const Integer size = Parameters("expandtabs", a, {"tabsize"}, 0).integer(0, 8);
  TextBuilder text(i.meter());
  const std::string_view from = self.text();
  Integer column = 0;
  for (size_t at = 0; at < from.size();) {
    const char32_t c = next_code_point(from, at);
    if (c == '\t') {
      for (Integer n = size > 0 ? size - column % size : 0; n > 0; --n, ++column) text += " ";
    } else {
      text.append(c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return text.finish(self.is_markup());
}

// ---- Searching

Value string_find_at(Interpreter& i, const Value& self, const Arguments& a, bool from_right) {
  const Parameters p = positional("find", a, 1, 3);
  const std::string_view wanted = p.text(0, "");
  const std::optional<Part> part = part_of(i.meter(), self, p.or_none(1), p.or_none(2));
  if (!part) return Value(-1);
  const size_t at = from_right ? find_last_text(part->text, wanted) : find_text(part->text, wanted);
  if (at == part->text.npos) return Value(-1);
  return Value(part->first + code_points(part->text.substr(0, at)));
}

template <bool kFromRight, bool kMustBeThere>
Value string_find(Interpreter& i, const Value& self, const Arguments& a) {
  Value found = string_find_at(i, self, a, kFromRight);
  if (kMustBeThere && found.integer() < 0) refuse("a string does not contain what index looks for");
  return found;
}

Value string_count(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("count", a, 1, 3);
  const std::string_view wanted = p.text(0, "");
  const std::optional<Part> part = part_of(i.meter(), self, p.or_none(1), p.or_none(2));
  if (!part) return Value(0);
  if (wanted.empty()) return Value(code_points(part->text) + 1);
  size_t n = 0;
  for (size_t at = find_text(part->text, wanted); at != part->text.npos;
       at = find_text(part->text, wanted, at + wanted.size()))
    ++n;
  return Value(n);
}

bool matches_end(std::string_view text, const Value& wanted, bool at_end) {
  if (wanted.is_tuple()) {
    for (const Value& one : (*wanted.sequence())->items())
      if (matches_end(text, one, at_end)) return true;
    return false;
  }
  const std::string_view piece = want_text(wanted, at_end ? "endswith" : "startswith");
  return at_end ? text.ends_with(piece) : text.starts_with(piece);
}

template <bool kAtEnd>
Value string_has_end(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional(kAtEnd ? "endswith" : "startswith", a, 1, 3);
  if (!p.get(1)) return Value(matches_end(self.text(), p.at(0), kAtEnd));
  const std::optional<Part> part = part_of(i.meter(), self, p.or_none(1), p.or_none(2));
  const bool matches = matches_end(part ? part->text : std::string_view(), p.at(0), kAtEnd);
  return Value(part && matches);
}

template <bool kSuffix>
Value string_remove_end(Interpreter& i, const Value& self, const Arguments& a) {
  const std::string_view piece = positional(kSuffix ? "removesuffix" : "removeprefix", a, 1, 1).text(0, "");
  const std::string_view text = self.text();
  if (kSuffix && text.ends_with(piece))
    return text_like(i.meter(), self, text.substr(0, text.size() - piece.size()));
  if (!kSuffix && text.starts_with(piece)) return text_like(i.meter(), self, text.substr(piece.size()));
  return self;
}

// ---- Making new texts

Value string_replace(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("replace", a, 2, 3);
  const std::string_view old = p.text(0, ""), replacement = p.text(1, "");
  const Integer count = p.integer(2, -1);
  if (self.is_markup() && !p.at(1).is_markup())
    return replace(i.meter(), self.text(), old, escape_html(replacement), count, true);
  return replace(i.meter(), self.text(), old, replacement, count, self.is_markup());
}

Value string_join(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("join", a, 1, 1);
  const ListRef items = items_of(i.meter(), p.at(0));
  // One safe string makes plain ones around it no safer: only the separator decides.
  TextBuilder text(i.meter());
  bool first = true;
  for (const Value& item : items->items()) {
    if (!first) text += self.text();
    first = false;
    if (self.is_markup())
      text += item.is_markup() ? std::string(item.text()) : escape_html(to_text(i.meter(), item));
    else
      text += want_text(item, "join");
  }
  return text.finish(self.is_markup());
}

Value string_format(Interpreter& i, const Value& self, const Arguments& a) {
  return format_braces(i, self, a);
}

Value string_format_map(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("format_map", a, 1, 1);
  if (!p.at(0).is_dict()) refuse("format_map wants a dict, not {}", type_name(p.at(0)));
  Arguments named;
  for (const auto& [key, value] : (*p.at(0).dict())->items())
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  return format_braces(i, self, named);
}

// ---- Questions

template <bool (*kIs)(char32_t)>
bool all_are(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (!kIs(next_code_point(text, at))) return false;
  return true;
}

bool is_alphanumeric(char32_t c) { return is_alpha(c) || is_numeric(c) || is_digit(c) || is_decimal(c); }

template <bool (*kIs)(char32_t), bool kIfEmpty = false>
Value string_all_are(Interpreter& i, const Value& self, const Arguments& a) {
  positional("a question about a string", a, 0, 0);
  i.meter().scan(self.text().size());
  return Value(self.text().empty() ? kIfEmpty : all_are<kIs>(self.text()));
}

template <bool (*kIs)(std::string_view)>
Value string_is(Interpreter& i, const Value& self, const Arguments& a) {
  positional("a question about a string", a, 0, 0);
  i.meter().scan(self.text().size());
  return Value(kIs(self.text()));
}

bool is_ascii_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
}

bool is_identifier(std::string_view text) {
  if (text.empty()) return false;
  size_t at = 0;
  if (!is_identifier_start(next_code_point(text, at))) return false;
  return all_are<is_identifier_continue>(text.substr(at));
}

bool is_titled(std::string_view text) {
  bool any = false, after_cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper(c) || is_title(c)) {
      if (after_cased) return false;
      any = after_cased = true;
    } else if (is_lower(c)) {
      if (!after_cased) return false;
      any = true;
    } else {
      after_cased = false;
    }
  }
  return any;
}

Value unsupported(Interpreter&, const Value& self, const Arguments&) {
  refuse("this method of {} is not supported", type_name(self));
}

const Table& string_methods() {
  static const Table kTable = {{"split", string_split<false>},
                               {"rsplit", string_split<true>},
                               {"splitlines", string_splitlines},
                               {"partition", string_partition<false>},
                               {"rpartition", string_partition<true>},
                               {"strip", string_strip<Side::Both>},
                               {"lstrip", string_strip<Side::Left>},
                               {"rstrip", string_strip<Side::Right>},
                               {"upper", string_convert<to_upper>},
                               {"lower", string_convert<to_lower>},
                               {"casefold", string_convert<to_folded>},
                               {"capitalize", string_convert<to_capitalized>},
                               {"title", string_convert<to_titled>},
                               {"swapcase", string_convert<to_swapped>},
                               {"center", string_justify<Side::Both>},
                               {"ljust", string_justify<Side::Left>},
                               {"rjust", string_justify<Side::Right>},
                               {"zfill", string_zfill},
                               {"expandtabs", string_expandtabs},
                               {"find", string_find<false, false>},
                               {"rfind", string_find<true, false>},
                               {"index", string_find<false, true>},
                               {"rindex", string_find<true, true>},
                               {"count", string_count},
                               {"startswith", string_has_end<false>},
                               {"endswith", string_has_end<true>},
                               {"removeprefix", string_remove_end<false>},
                               {"removesuffix", string_remove_end<true>},
                               {"replace", string_replace},
                               {"join", string_join},
                               {"format", string_format},
                               {"format_map", string_format_map},
                               {"isalnum", string_all_are<is_alphanumeric>},
                               {"isalpha", string_all_are<is_alpha>},
                               {"isdecimal", string_all_are<is_decimal>},
                               {"isdigit", string_all_are<is_digit>},
                               {"isnumeric", string_all_are<is_numeric>},
                               {"isspace", string_all_are<is_space>},
                               {"isprintable", string_all_are<is_printable, true>},
                               {"isascii", string_is<is_ascii_text>},
                               {"isidentifier", string_is<is_identifier>},
                               {"islower", string_is<is_all_lower>},
                               {"isupper", string_is<is_all_upper>},
                               {"istitle", string_is<is_titled>},
                               {"encode", unsupported},
                               {"translate", unsupported},
                               {"maketrans", unsupported}};
  return kTable;
}

// ---- Lists, tuples, dicts, numbers

Value list_count(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("count", a, 1, 1);
  size_t n = 0;
  for (const Value& item : Items(i.meter(), self))
    if (item.is_same(p.at(0)) || equal(i.meter(), item, p.at(0))) ++n;
  return Value(n);
}

Value list_index(Interpreter& i, const Value& self, const Arguments& a) {
  const Parameters p = positional("index", a, 1, 3);
  const ListRef items = items_of(i.meter(), self);
  const Cut c = cut(items->size(), p.or_none(1), p.or_none(2), Value());
  for (size_t k = 0; k < c.n; ++k) {
    const size_t at = static_cast<size_t>(c.start) + k;
    if (equal(i.meter(), items->items()[at], p.at(0))) return Value(at);
  }
  refuse("a list does not contain what index looks for");
}

Value copy_of(Interpreter&, const Value& self, const Arguments& a) {
  positional("copy", a, 0, 0);
  return self;  // values never change
}

Value dict_get(Interpreter&, const Value& self, const Arguments& a) {
  const Parameters p = positional("get", a, 1, 2);
  const Value* found = (*self.dict())->find(p.at(0));
  return found ? *found : p.or_none(1);
}

template <DictView::Part kPart>
Value dict_view(Interpreter&, const Value& self, const Arguments& a) {
  positional("a view of a dict", a, 0, 0);
  return Value(std::make_shared<DictView>(*self.dict(), kPart));
}

Value dict_fromkeys(Interpreter& i, const Value&, const Arguments& a) {
  const Parameters p = positional("fromkeys", a, 1, 2);
  auto dict = make_dict(i.meter());
  for (const Value& key : Items(i.meter(), p.at(0))) dict->set(key, p.or_none(1));
  return dict;
}

Value float_is_integer(Interpreter&, const Value& self, const Arguments& a) {
  positional("is_integer", a, 0, 0);
  return Value(self.is_integer() ||
               (std::isfinite(self.floating()) && self.floating() == std::floor(self.floating())));
}

Value integer_bit_length(Interpreter&, const Value& self, const Arguments& a) {
  positional("bit_length", a, 0, 0);
  int n = 0;
  for (Integer rest = self.integer(); rest != 0; rest /= 2) ++n;
  return Value(n);
}

const Table& methods_of(const Value& self) {
  static const Table kList = {{"count", list_count}, {"index", list_index}, {"copy", copy_of}};
  static const Table kTuple = {{"count", list_count}, {"index", list_index}};
  static const Table kDict = {{"get", dict_get},
                              {"items", dict_view<DictView::Part::Items>},
                              {"keys", dict_view<DictView::Part::Keys>},
                              {"values", dict_view<DictView::Part::Values>},
                              {"copy", copy_of},
                              {"fromkeys", dict_fromkeys}};
  static const Table kInteger = {{"bit_length", integer_bit_length}};
  static const Table kFloat = {{"is_integer", float_is_integer}};
  static const Table kNothing;
  if (self.is_string()) return string_methods();
  if (self.is_sequence()) return self.is_tuple() ? kTuple : kList;
  if (self.is_dict()) return kDict;
  if (self.is_integer()) return kInteger;
  if (self.is_float()) return kFloat;
  if (self.object_as<RangeObject>()) return kTuple;
  return kNothing;
}

bool is_changing(const Value& self, std::string_view name) {
  static constexpr std::string_view kOfLists[] = {"append", "clear", "pop",    "reverse",
                                                  "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (self.is_list()) return std::ranges::find(kOfLists, name) != std::end(kOfLists);
  return self.is_dict() && std::ranges::find(kOfDicts, name) != std::end(kOfDicts);
}

std::optional<Value> number_attribute(const Value& self, std::string_view name) {
  if (name == "real") return self.is_bool() ? Value(self.integer()) : self;
  if (name == "imag") return self.is_float() ? Value(0.0) : Value(0);
  if (!self.is_integer()) return {};
  if (name == "numerator") return Value(self.integer());
  if (name == "denominator") return Value(1);
  return {};
}

}  // namespace

std::optional<Value> find_method(Meter& meter, const Value& self, std::string_view name) {
  meter.step();
  const Table& table = methods_of(self);
  if (const auto it = table.find(name); it != table.end())
    return Value(std::make_shared<FunctionObject>(it->first, it->second, self, true));
  if (is_changing(self, name))
    return make_undefined(
        fmt::format("'{}' would change a {}, which a template may not", name, type_name(self)));
  if (self.is_number()) return number_attribute(self, name);
  if (const ListRef* list = self.sequence(); list && (*list)->type() == ListObject::Type::Group) {
    if (name == "grouper") return (*list)->items()[0];
    if (name == "list") return (*list)->items()[1];
  }
  return {};
}

std::string_view strip(std::string_view text, std::optional<std::string_view> which, Side side) {
  const Stripped stripped(which);
  while (side != Side::Right && !text.empty()) {
    const size_t end = byte_offset(text, 1);
    if (!stripped.has(text.substr(0, end))) break;
    text.remove_prefix(end);
  }
  while (side != Side::Left && !text.empty()) {
    const size_t begin = last_character(text);
    if (!stripped.has(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::shared_ptr<ListObject> split_lines(Meter& meter, std::string_view text, bool keep_ends, bool is_markup) {
  meter.scan(text.size());
  auto list = make_list(meter);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    list->push(
        make_string(meter, std::string(text.substr(begin, (keep_ends ? at : end) - begin)), is_markup));
    begin = at;
  }
  if (begin < text.size()) list->push(make_string(meter, std::string(text.substr(begin)), is_markup));
  return list;
}

Value replace(Meter& meter, std::string_view text, std::string_view old, std::string_view replacement,
              Integer count, bool is_markup) {
  meter.scan(text.size());
  TextBuilder out(meter);
  size_t at = 0;
  if (old.empty()) {
    for (; count != 0; --count) {
      out += replacement;
      if (at == text.size()) break;
      const size_t end = byte_offset(text, 1, at);
      out += text.substr(at, end - at);
      at = end;
    }
  } else {
    for (; count != 0; --count) {
      const size_t found = find_text(text, old, at);
      if (found == text.npos) break;
      out += text.substr(at, found - at);
      out += replacement;
      at = found + old.size();
    }
  }
  out += text.substr(at);
  return out.finish(is_markup);
}

Value center(Meter& meter, const Value& text, Integer width, std::string_view fill) {
  const Integer n = width - static_cast<Integer>((*text.string())->n_characters());
  const Integer n_left = n / 2 + (n & width & 1);
  TextBuilder out(meter);
  for (Integer k = 0; k < n_left; ++k) out += fill;
  out += text.text();
  for (Integer k = n_left; k < n; ++k) out += fill;
  return out.finish(text.is_markup());
}

bool is_all_lower(std::string_view text) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper(c) || is_title(c)) return false;
    any = any || is_lower(c);
  }
  return any;
}

bool is_all_upper(std::string_view text) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_lower(c) || is_title(c)) return false;
    any = any || is_upper(c);
  }
  return any;
}

}  // namespace moeflux::jinja
