// Filters: what stands after `|`.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text_methods.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

Value text_value(Interpreter& i, std::string text, bool is_markup = false) {
  return make_string(i.meter(), std::move(text), is_markup);
}

Value call_method(Interpreter& i, const Value& self, std::string_view name, const Arguments& a) {
  return i.call(*find_method(i.meter(), self, name), a);
}

// ---- Attributes of items

using Path = std::vector<Value>;  // a.b.0 in parts

Path parse_path(Interpreter& i, const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  Path path;
  std::string_view rest = attribute.text();
  for (;;) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool is_number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    path.push_back(is_number ? Value(parse_integer(part, 10).value_or(0)) : text_value(i, std::string(part)));
    if (dot == rest.size()) return path;
    rest.remove_prefix(dot + 1);
  }
}

Value follow(Interpreter& i, const Value& item, const Path& path, const Value& absent = {}) {
  Value value = item;
  for (const Value& part : path) {
    value = i.item(value, part);
    if (value.is_undefined() && !absent.is_none()) value = absent;
  }
  return value;
}

Value ignoring_case(Interpreter& i, const Value& value) {
  return value.is_string() ? text_value(i, to_lower(value.text()), value.is_markup()) : value;
}

Value key_of(Interpreter& i, const Value& item, const Path& path, bool case_sensitive,
             const Value& absent = {}) {
  const Value value = follow(i, item, path, absent);
  return case_sensitive ? value : ignoring_case(i, value);
}

// Keys beside what they are the keys of, in the order of the keys; equal ones stay in their order.
using Keyed = std::vector<std::pair<Value, Value>>;

void sort_by_key(Interpreter& i, Keyed& items, bool reverse) {
  i.meter().step(items.size());
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(i.meter(), b.first, a.first) : less(i.meter(), a.first, b.first);
  });
}

Value values_of(Interpreter& i, const Keyed& items) {
  auto list = make_list(i.meter());
  for (const auto& item : items) list->push(item.second);
  return list;
}

// ---- Sequences

Value filter_length(Interpreter&, const Value& v, const Arguments& a) {
  positional("length", a, 0, 0);
  const std::optional<size_t> n = length(v);
  if (!n) refuse("a value of type {} has no length", type_name(v));
  return Value(*n);
}

Value filter_first(Interpreter& i, const Value& v, const Arguments& a) {
  positional("first", a, 0, 0);
  if (auto* iterator = v.object_as<IteratorObject>()) {
    std::optional<Value> next = iterator->next();
    return next ? *next : make_undefined("there is no first item: the sequence is empty");
  }
  const ListRef items = items_of(i.meter(), v);
  return items->size() ? items->items().front()
                       : make_undefined("there is no first item: the sequence is empty");
}

void want_reversible(const Value& v) {
  if (v.object_as<IteratorObject>() || (!v.is_undefined() && !is_iterable(v)))
    refuse("a value of type {} cannot be reversed", type_name(v));
}

Value filter_last(Interpreter& i, const Value& v, const Arguments& a) {
  positional("last", a, 0, 0);
  want_reversible(v);
  const ListRef items = items_of(i.meter(), v);
  return items->size() ? items->items().back()
                       : make_undefined("there is no last item: the sequence is empty");
}

Value filter_list(Interpreter& i, const Value& v, const Arguments& a) {
  positional("list", a, 0, 0);
  auto list = make_list(i.meter());
  list->push_all(items_of(i.meter(), v)->items());
  return list;
}

Value filter_reverse(Interpreter& i, const Value& v, const Arguments& a) {
  positional("reverse", a, 0, 0);
  if (v.is_string()) return slice(i.meter(), v, Value(), Value(), Value(-1));
  auto list = make_list(i.meter());
  const ListRef items = items_of(i.meter(), v);
  for (auto it = items->items().rbegin(); it != items->items().rend(); ++it) list->push(*it);
  if (v.object_as<IteratorObject>()) return list;
  return make_iterator("list_reverseiterator", std::move(list));
}

Value filter_join(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("join", a, {"d", "attribute"}, 0);
  const Path path = parse_path(i, p.or_none(1));
  const std::string separator = p.get(0) ? to_text(i.meter(), p.at(0)) : "";
  TextBuilder text(i.meter());
  bool first = true;
  for (const Value& item : Items(i.meter(), v)) {
    if (!first) text += separator;
    first = false;
    text += to_text(i.meter(), follow(i, item, path));
  }
  return text.finish();
}

Value filter_sort(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("sort", a, {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<Path> paths;
  const Value& attribute = p.or_none(2);
  if (attribute.is_string()) {
    std::string_view rest = attribute.text();
    for (size_t comma; (comma = rest.find(',')) != rest.npos; rest.remove_prefix(comma + 1))
      paths.push_back(parse_path(i, text_value(i, std::string(rest.substr(0, comma)))));
    paths.push_back(parse_path(i, text_value(i, std::string(rest))));
  } else {
    paths.push_back(parse_path(i, attribute));
  }
  Keyed items;
  for (const Value& item : Items(i.meter(), v)) {
    auto keys = make_list(i.meter());
    for (const Path& path : paths) keys->push(key_of(i, item, path, p.flag(1, false)));
    items.emplace_back(Value(std::move(keys)), item);
  }
  sort_by_key(i, items, p.flag(0, false));
  return values_of(i, items);
}

Value filter_dictsort(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("dictsort", a, {"case_sensitive", "by", "reverse"}, 0);
  if (v.is_undefined()) refuse_undefined(v);
  if (!v.is_dict()) refuse("dictsort wants a dict, not {}", type_name(v));
  const std::string_view by = p.text(1, "key");
  if (by != "key" && by != "value") refuse("dictsort sorts by 'key' or by 'value'");
  Keyed items;
  for (const auto& [key, value] : (*v.dict())->items()) {
    const Value& sorted_by = by == "key" ? key : value;
    items.emplace_back(p.flag(0, false) ? sorted_by : ignoring_case(i, sorted_by),
                       make_pair(i.meter(), key, value));
  }
  sort_by_key(i, items, p.flag(2, false));
  return values_of(i, items);
}

Value filter_unique(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("unique", a, {"case_sensitive", "attribute"}, 0);
  const Path path = parse_path(i, p.or_none(1));
  auto seen = make_dict(i.meter());
  auto list = make_list(i.meter());
  for (const Value& item : Items(i.meter(), v)) {
    const Value key = key_of(i, item, path, p.flag(0, false));
    if (seen->find(key)) continue;
    seen->set(key, Value());
    list->push(item);
  }
  return make_iterator("generator", std::move(list));
}

template <bool kLargest>
Value filter_extreme(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p(kLargest ? "max" : "min", a, {"case_sensitive", "attribute"}, 0);
  const Path path = parse_path(i, p.or_none(1));
  const ListRef items = items_of(i.meter(), v);
  if (items->size() == 0) return make_undefined("there is no item: the sequence is empty");
  Value best = items->items()[0], best_key = key_of(i, best, path, p.flag(0, false));
  for (size_t k = 1; k < items->size(); ++k) {
    const Value key = key_of(i, items->items()[k], path, p.flag(0, false));
    if (kLargest ? !less(i.meter(), best_key, key) : !less(i.meter(), key, best_key)) continue;
    best = items->items()[k];
    best_key = key;
  }
  return best;
}

Value filter_sum(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("sum", a, {"attribute", "start"}, 0);
  const Path path = parse_path(i, p.or_none(0));
  Value total = p.get(1) ? p.at(1) : Value(0);
  if (total.is_string()) refuse("strings are not summed: join them");
  for (const Value& item : Items(i.meter(), v))
    total = apply(i, BinaryOperator::Add, total, follow(i, item, path));
  return total;
}

Value filter_groupby(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("groupby", a, {"attribute", "default", "case_sensitive"}, 1);
  const Path path = parse_path(i, p.at(0));
  const bool case_sensitive = p.flag(2, false);
  Keyed items;
  for (const Value& item : Items(i.meter(), v))
    items.emplace_back(key_of(i, item, path, case_sensitive, p.or_none(1)), item);
  sort_by_key(i, items, false);
  auto groups = make_list(i.meter());
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    auto members = make_list(i.meter());
    for (end = begin; end < items.size() && equal(i.meter(), items[begin].first, items[end].first); ++end)
      members->push(items[end].second);
    auto group = std::make_shared<ListObject>(i.meter(), ListObject::Type::Group);
    group->push(case_sensitive ? items[begin].first : follow(i, items[begin].second, path, p.or_none(1)));
    group->push(Value(std::move(members)));
    groups->push(Value(std::move(group)));
    if (end == begin) ++end;  // a key that does not equal itself
  }
  return groups;
}

Value filter_batch(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("batch", a, {"linecount", "fill_with"}, 1);
  const Integer size = p.integer(0, 0);
  auto batches = make_list(i.meter());
  auto batch = make_list(i.meter());
  for (const Value& item : Items(i.meter(), v)) {
    if (static_cast<Integer>(batch->size()) == size) {
      batches->push(Value(std::move(batch)));
      batch = make_list(i.meter());
    }
    batch->push(item);
  }
  if (batch->size() > 0) {
    while (!p.or_none(1).is_none() && static_cast<Integer>(batch->size()) < size) batch->push(p.at(1));
    batches->push(Value(std::move(batch)));
  }
  return make_iterator("generator", std::move(batches));
}

Value filter_slice(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("slice", a, {"slices", "fill_with"}, 1);
  const Integer count = p.integer(0, 0);
  if (count == 0) refuse("division by zero");
  const ListRef items = items_of(i.meter(), v);
  auto slices = make_list(i.meter());
  const auto n = static_cast<Integer>(items->size());
  size_t at = 0;
  for (Integer k = 0; k < count; ++k) {
    auto part = make_list(i.meter());
    const bool has_extra = k < n % count;
    for (Integer left = n / count + (has_extra ? 1 : 0); left > 0; --left) part->push(items->items()[at++]);
    if (!p.or_none(1).is_none() && !has_extra) part->push(p.at(1));
    slices->push(Value(std::move(part)));
  }
  return make_iterator("generator", std::move(slices));
}

Value filter_items(Interpreter& i, const Value& v, const Arguments& a) {
  positional("items", a, 0, 0);
  if (v.is_undefined()) return make_iterator("generator", make_list(i.meter()));
  if (!v.is_dict()) refuse("items wants a dict, not {}", type_name(v));
  return make_iterator("generator", DictView(*v.dict(), DictView::Part::Items).items(i.meter()));
}

// ---- Filters that apply others

Arguments without_first(const Arguments& a, size_t n) {
  Arguments rest;
  rest.positional.assign(a.positional.begin() + static_cast<ptrdiff_t>(n), a.positional.end());
  rest.named = a.named;
  return rest;
}

Value map_attribute(Interpreter& i, const Value& v, const Arguments& a) {
  for (const auto& [name, value] : a.named)
    if (name != "attribute" && name != "default") refuse("map takes no argument named '{}'", name);
  const Path path = parse_path(i, *a.find("attribute"));
  const Value absent = a.find("default") ? *a.find("default") : Value();
  auto list = make_list(i.meter());
  for (const Value& item : Items(i.meter(), v)) list->push(follow(i, item, path, absent));
  return make_iterator("generator", std::move(list));
}

Value filter_map(Interpreter& i, const Value& v, const Arguments& a) {
  const Descent descent(i.meter());
  if (!truth(v)) return make_iterator("generator", make_list(i.meter()));
  if (a.positional.empty() && a.find("attribute")) return map_attribute(i, v, a);
  if (a.positional.empty()) refuse("map needs the name of a filter");
  const std::string_view name = want_text(a.positional[0], "map");
  const FilterFunction function = find_filter(name);
  auto list = make_list(i.meter());
  const Arguments rest = without_first(a, 1);
  for (const Value& item : Items(i.meter(), v)) {
    if (!function) refuse("there is no filter '{}'", name);
    i.meter().step();
    list->push(function(i, item, rest));
  }
  return make_iterator("generator", std::move(list));
}

// Whether an item is chosen: by a test, or by being true.
class Chooser {
 public:
  Chooser(Interpreter& i, const Arguments& a, bool by_attribute) : interpreter_(i) {
    const size_t at = by_attribute ? 1 : 0;
    if (a.positional.size() < at) refuse("the name of an attribute is missing");
    if (by_attribute) path_ = parse_path(i, a.positional[0]);
    if (a.positional.size() == at) return;
    const std::string_view name = want_text(a.positional[at], "the name of a test");
    test_ = find_test(name);
    if (!test_) refuse("there is no test '{}'", name);
    rest_ = without_first(a, at + 1);
  }
  bool choose(const Value& item) {
    interpreter_.meter().step();
    const Value value = follow(interpreter_, item, path_);
    return test_ ? test_(interpreter_, value, rest_) : truth(value);
  }

 private:
  Interpreter& interpreter_;
  Path path_;
  TestFunction test_ = nullptr;
  Arguments rest_;
};

template <bool kByAttribute, bool kWanted>
Value filter_choose(Interpreter& i, const Value& v, const Arguments& a) {
  auto list = make_list(i.meter());
  if (!truth(v)) return make_iterator("generator", std::move(list));
  const ListRef items = items_of(i.meter(), v);
  if (items->size() == 0) return make_iterator("generator", std::move(list));
  Chooser chooser(i, a, kByAttribute);
  for (const Value& item : items->items())
    if (chooser.choose(item) == kWanted) list->push(item);
  return make_iterator("generator", std::move(list));
}

Value filter_attr(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("attr", a, {"name"}, 1);
  const std::string_view name = want_text(p.at(0), "attr");
  if (v.is_undefined()) refuse_undefined(v);
  if (v.is_dict() && !find_method(i.meter(), v, name))
    return make_undefined(fmt::format("there is no attribute '{}'", name));
  return i.attribute(v, name);
}

// ---- Texts

Value filter_trim(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("trim", a, {"chars"}, 0);
  Arguments chars;
  if (p.get(0)) chars.positional.push_back(p.at(0));
  return call_method(i, to_string_value(i.meter(), v), "strip", chars);
}

template <std::string (*kConvert)(std::string_view)>
Value filter_convert(Interpreter& i, const Value& v, const Arguments& a) {
  positional("a conversion of case", a, 0, 0);
  const Value text = to_string_value(i.meter(), v);
  i.meter().expect_room(text.text().size() * 3);
  i.meter().scan(text.text().size());
  return text_value(i, kConvert(text.text()), text.is_markup());
}

bool begins_word(char32_t c) {
  return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

// Unlike the method: a word begins after white space, a hyphen or an opening bracket only.
std::string titled_words(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at, first_end = 0;
    bool is_separator = false;
    while (end < text.size()) {
      size_t next = end;
      const bool separates = begins_word(next_code_point(text, next));
      if (end == at) {
        is_separator = separates;
        first_end = next;
      } else if (separates != is_separator) {
        break;
      }
      end = next;
    }
    out += to_upper(text.substr(at, first_end - at));
    out += to_lower(text.substr(first_end, end - first_end));
    at = end;
  }
  return out;
}

Value filter_replace(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("replace", a, {"old", "new", "count"}, 2);
  const Integer count = p.or_none(2).is_none() ? -1 : p.integer(2, -1);
  Meter& meter = i.meter();
  return replace(meter, to_text(meter, v), to_text(meter, p.at(0)), to_text(meter, p.at(1)), count, false);
}

Value filter_string(Interpreter& i, const Value& v, const Arguments& a) {
  positional("string", a, 0, 0);
  return to_string_value(i.meter(), v);
}

Value filter_safe(Interpreter& i, const Value& v, const Arguments& a) {
  positional("safe", a, 0, 0);
  return text_value(i, to_text(i.meter(), v), true);
}

Value filter_escape(Interpreter& i, const Value& v, const Arguments& a) {
  positional("escape", a, 0, 0);
  if (v.is_markup()) return v;
  i.meter().scan(length(v).value_or(0));
  return text_value(i, escape_html(to_text(i.meter(), v)), true);
}

Value filter_forceescape(Interpreter& i, const Value& v, const Arguments& a) {
  positional("forceescape", a, 0, 0);
  return text_value(i, escape_html(to_text(i.meter(), v)), true);
}

Value filter_indent(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("indent", a, {"width", "first", "blank"}, 0);
  if (v.is_undefined()) refuse_undefined(v);
  const std::string_view text = want_text(v, "indent");
  std::string indentation;
  if (p.get(0) && p.at(0).is_string()) {
    indentation = p.at(0).text();
  } else {
    const Integer width = p.integer(0, 4);
    if (width > 0) {
      i.meter().expect_room(static_cast<size_t>(std::min<Integer>(width, Integer{1} << 40)));
      indentation.assign(static_cast<size_t>(width), ' ');
    }
  }
  const auto lines = split_lines(i.meter(), std::string(text) + "\n", false, false);
  TextBuilder out(i.meter());
  for (size_t k = 0; k < lines->size(); ++k) {
    const std::string_view line = lines->items()[k].text();
    if (k > 0) out += "\n";
    if (k > 0 ? p.flag(2, false) || !line.empty() : p.flag(1, false)) out += indentation;
    out += line;
  }
  return out.finish(v.is_markup());
}

Value filter_center(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("center", a, {"width"}, 0);
  return center(i.meter(), to_string_value(i.meter(), v), p.integer(0, 80), " ");
}

Value filter_truncate(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("truncate", a, {"length", "killwords", "end", "leeway"}, 0);
  if (v.is_undefined()) return v;
  const auto n_characters = static_cast<Integer>((want_text(v, "truncate"), (*v.string())->n_characters()));
  const std::string end(p.text(2, "..."));
  size_t n_end = 0;
  count_code_points(end, n_end);
  const Integer most = p.integer(0, 255), leeway = p.or_none(3).is_none() ? 5 : p.integer(3, 5);
  if (most < static_cast<Integer>(n_end)) refuse("truncate to fewer characters than its end has");
  if (leeway < 0) refuse("the leeway of truncate is negative");
  if (n_characters - leeway <= most) return v;
  std::string_view kept = v.text();
  kept = kept.substr(0, byte_offset(kept, static_cast<size_t>(most) - n_end));
  if (!p.flag(1, false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return text_value(i, std::string(kept) + (v.is_markup() ? escape_html(end) : end), v.is_markup());
}

bool is_word_character(char32_t c) { return c == '_' || is_alpha(c) || is_numeric(c) || is_digit(c); }

Value filter_wordcount(Interpreter& i, const Value& v, const Arguments& a) {
  positional("wordcount", a, 0, 0);
  const std::string text = to_text(i.meter(), v);
  i.meter().scan(text.size());
  size_t n = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const bool is_word = is_word_character(next_code_point(text, at));
    if (is_word && !inside) ++n;
    inside = is_word;
  }
  return Value(n);
}

Value filter_format(Interpreter& i, const Value& v, const Arguments& a) {
  const Value format = to_string_value(i.meter(), v);
  if (!a.positional.empty() && !a.named.empty())
    refuse("format takes values with names or without, not both");
  if (!a.named.empty()) {
    auto dict = make_dict(i.meter());
    for (const auto& [name, value] : a.named) dict->set(text_value(i, name), value);
    return format_percent(i, format, Value(std::move(dict)));
  }
  auto values = make_tuple(i.meter());
  values->push_all(a.positional);
  return format_percent(i, format, Value(std::move(values)));
}

std::string url_quoted(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool is_letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && keep_slashes))
      out += c;
    else if (c == ' ' && !keep_slashes)
      out += '+';
    else
      append_hex(out += '%', static_cast<unsigned char>(c), 2, true);
  }
  return out;
}

Value filter_urlencode(Interpreter& i, const Value& v, const Arguments& a) {
  positional("urlencode", a, 0, 0);
  if (v.is_string()) i.meter().step(v.text().size());
  Meter& meter = i.meter();
  if (v.is_string() || !is_iterable(v)) return text_value(i, url_quoted(to_text(meter, v), true));
  const ListRef pairs =
      v.is_dict() ? DictView(*v.dict(), DictView::Part::Items).items(meter) : items_of(meter, v);
  TextBuilder out(meter);
  for (size_t k = 0; k < pairs->size(); ++k) {
    const ListRef pair = items_of(meter, pairs->items()[k]);
    if (pair->size() != 2) refuse("urlencode wants pairs");
    if (k > 0) out += "&";
    out += url_quoted(to_text(meter, pair->items()[0]), false) + "=" +
           url_quoted(to_text(meter, pair->items()[1]), false);
  }
  return out.finish();
}

Value filter_xmlattr(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("xmlattr", a, {"autospace"}, 0);
  if (!v.is_dict()) refuse("xmlattr wants a dict, not {}", type_name(v));
  std::string out;
  for (const auto& [key, value] : (*v.dict())->items()) {
    if (value.is_none() || value.is_undefined()) continue;
    if (want_text(key, "xmlattr").find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos)
      refuse("a name of an attribute has an invalid character");
    const std::string text = to_text(i.meter(), value);
    out += (out.empty() ? "" : " ") + escape_html(key.text()) + "=\"" +
           (value.is_markup() ? text : escape_html(text)) + "\"";
  }
  if (p.flag(0, true) && !out.empty()) out.insert(0, " ");
  return text_value(i, std::move(out));
}

// ---- Numbers

std::optional<Integer> truncated(double d) {
  if (!std::isfinite(d)) return {};
  const Integer magnitude = floor_of(std::fabs(d));
  return d < 0 ? -magnitude : magnitude;
}

Value filter_int(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("int", a, {"default", "base"}, 0);
  const Value absent = p.get(0) ? p.at(0) : Value(0);
  if (v.is_undefined()) refuse_undefined(v);
  if (v.is_integer()) return Value(v.integer());
  if (v.is_float()) {
    if (std::isinf(v.floating())) refuse("infinity is not an integer");
    const std::optional<Integer> whole = truncated(v.floating());
    return whole ? Value(*whole) : absent;
  }
  if (!v.is_string()) return absent;
  i.meter().step(v.text().size());
  if (const auto parsed =
          parse_integer(v.text(), static_cast<int>(std::clamp<Integer>(p.integer(1, 10), -1, 99))))
    return Value(*parsed);
  const std::optional<double> number = parse_float(v.text());
  const std::optional<Integer> whole = number ? truncated(*number) : std::nullopt;
  return whole ? Value(*whole) : absent;
}

Value filter_float(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("float", a, {"default"}, 0);
  if (v.is_undefined()) refuse_undefined(v);
  if (v.is_number()) return Value(v.floating());
  if (v.is_string()) i.meter().step(v.text().size());
  const std::optional<double> number = v.is_string() ? parse_float(v.text()) : std::nullopt;
  return number ? Value(*number) : p.get(0) ? p.at(0) : Value(0.0);
}

Value filter_abs(Interpreter&, const Value& v, const Arguments& a) {
  positional("abs", a, 0, 0);
  if (v.is_undefined()) refuse_undefined(v);
  if (v.is_float()) return Value(std::fabs(v.floating()));
  if (!v.is_integer()) refuse("abs wants a number, not {}", type_name(v));
  return v.integer() < 0 ? negate(v) : Value(v.integer());
}

Integer power_of_ten(Integer exponent) {
  Integer power = 1;
  for (Integer k = 0; k < exponent; ++k) power = checked_multiply(power, 10);
  return power;
}

// To tens, hundreds and so on; a half goes to the even neighbour.
Integer rounded_integer(Integer value, Integer places) {
  if (places > 36) return 0;
  const Integer unit = power_of_ten(places), rest = ((value % unit) + unit) % unit;
  const Integer down = value - rest;
  const bool is_up = rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0);
  return is_up ? checked_add(down, unit) : down;
}

double rounded(double value, Integer precision) {
  if (!std::isfinite(value) || precision > 330) return value;
  if (precision >= 0) return *parse_float(format_fixed(value, static_cast<int>(precision)));
  if (precision < -308) return std::copysign(0.0, value);
  // The exact decimal digits decide, so that a half is a half.
  const double whole = std::floor(std::fabs(value));
  const auto places = static_cast<size_t>(-precision);
  const std::string digits = format_fixed(whole, 0);
  if (digits.size() < places) return std::copysign(0.0, value);
  const std::string kept = "0" + digits.substr(0, digits.size() - places),
                    rest = digits.substr(digits.size() - places);
  const bool has_more = rest.find_first_not_of('0', 1) != rest.npos || whole != std::fabs(value);
  const bool is_up = rest[0] > '5' || (rest[0] == '5' && (has_more || (kept.back() - '0') % 2 != 0));
  std::string up = kept;
  for (size_t k = up.size(); is_up && k-- > 0;) {
    if (up[k] != '9') {
      ++up[k];
      break;
    }
    up[k] = '0';
  }
  return std::copysign(*parse_float(up + std::string(places, '0')), value);
}

Value filter_round(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("round", a, {"precision", "method"}, 0);
  const Integer precision = p.integer(0, 0);
  const std::string_view method = p.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    refuse("round goes 'common', 'ceil' or 'floor'");
  if (v.is_undefined()) refuse_undefined(v);
  if (!v.is_number()) refuse("round wants a number, not {}", type_name(v));
  if (method == "common") {
    if (!v.is_integer()) return Value(rounded(v.floating(), precision));
    return Value(precision >= 0 ? v.integer() : rounded_integer(v.integer(), -precision));
  }
  const Value factor = apply(i, BinaryOperator::Power, Value(10), Value(precision));
  const Value scaled = apply(i, BinaryOperator::Multiply, v, factor);
  Integer whole = 0;
  if (scaled.is_integer())
    whole = scaled.integer();
  else
    whole = method == "floor" ? floor_of(scaled.floating()) : -floor_of(-scaled.floating());
  return apply(i, BinaryOperator::Divide, Value(whole), factor);
}

Value filter_filesizeformat(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("filesizeformat", a, {"binary"}, 0);
  const std::optional<double> number = v.is_number()   ? std::optional(v.floating())
                                       : v.is_string() ? parse_float(v.text())
                                                       : std::nullopt;
  if (!number) refuse("filesizeformat wants a number");
  const bool binary = p.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (*number == 1) return text_value(i, "1 Byte");
  if (*number < base) return text_value(i, to_string(truncated(*number).value_or(0)) + " Bytes");
  static constexpr std::string_view kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  static constexpr std::string_view kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  double unit = base;
  size_t k = 0;
  for (unit *= base; k < 7 && *number >= unit; ++k) unit *= base;
  return text_value(
      i, format_fixed(base * *number / unit, 1) + " " + std::string(binary ? kBinary[k] : kDecimal[k]));
}

// ---- The rest

Value filter_default(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("default", a, {"default_value", "boolean"}, 0);
  if (!v.is_undefined() && !(p.flag(1, false) && !truth(v))) return v;
  return p.get(0) ? p.at(0) : text_value(i, "");
}

Value filter_tojson(Interpreter& i, const Value& v, const Arguments& a) {
  const Parameters p("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = p.flag(0, false);
  style.sort_keys = p.flag(3, false);
  if (const Value& indent = p.or_none(1); !indent.is_none()) {
    const Integer width =
        indent.is_string() ? 0 : std::max<Integer>(want_integer(indent, "the indent of tojson"), 0);
    if (width > 1000) refuse("the indent of tojson is larger than 1000");
    style.indent =
        indent.is_string() ? std::string(indent.text()) : std::string(static_cast<size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (const Value& separators = p.or_none(2); !separators.is_none()) {
    const ListRef two = items_of(i.meter(), separators);
    if (two->size() != 2) refuse("tojson takes two separators");
    style.item_separator = want_text(two->items()[0], "tojson");
    style.key_separator = want_text(two->items()[1], "tojson");
  }
  return text_value(i, to_json(i.meter(), v, style));
}

Value unsupported(Interpreter&, const Value&, const Arguments&) { refuse("this filter is not supported"); }

}  // namespace

FilterFunction find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"abs", filter_abs},
      {"attr", filter_attr},
      {"batch", filter_batch},
      {"capitalize", filter_convert<to_capitalized>},
      {"center", filter_center},
      {"count", filter_length},
      {"d", filter_default},
      {"default", filter_default},
      {"dictsort", filter_dictsort},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"filesizeformat", filter_filesizeformat},
      {"first", filter_first},
      {"float", filter_float},
      {"forceescape", filter_forceescape},
      {"format", filter_format},
      {"groupby", filter_groupby},
      {"indent", filter_indent},
      {"int", filter_int},
      {"items", filter_items},
      {"join", filter_join},
      {"last", filter_last},
      {"length", filter_length},
      {"list", filter_list},
      {"lower", filter_convert<to_lower>},
      {"map", filter_map},
      {"max", filter_extreme<true>},
      {"min", filter_extreme<false>},
      {"reject", filter_choose<false, false>},
      {"rejectattr", filter_choose<true, false>},
      {"replace", filter_replace},
      {"reverse", filter_reverse},
      {"round", filter_round},
      {"safe", filter_safe},
      {"select", filter_choose<false, true>},
      {"selectattr", filter_choose<true, true>},
      {"slice", filter_slice},
      {"sort", filter_sort},
      {"string", filter_string},
      {"sum", filter_sum},
      {"title", filter_convert<titled_words>},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"truncate", filter_truncate},
      {"unique", filter_unique},
      {"upper", filter_convert<to_upper>},
      {"urlencode", filter_urlencode},
      {"wordcount", filter_wordcount},
      {"xmlattr", filter_xmlattr},
      // Known to jinja2, of no use in a prompt: refused only where they are reached.
      {"pprint", unsupported},
      {"random", unsupported},
      {"striptags", unsupported},
      {"urlize", unsupported},
      {"wordwrap", unsupported}};
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

}  // namespace moeflux::jinja
