// The tojson filter: JSON as Python's json.dumps writes it.
#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_unicode.h"

namespace moeflux::jinja {
namespace {

class Writer {
 public:
  Writer(Meter& meter, const JsonStyle& style) : meter_(meter), style_(style), out_(meter) {}

  void write(const Value& value, size_t level) {
    meter_.step();
    if (value.is_string())
      write_text(value.text());
    else if (const ListRef* list = value.sequence())
      write_list(**list, level);
    else if (const DictRef* dict = value.dict())
      write_dict(**dict, level);
    else
      out_ += scalar(value);
  }
  std::string finish() { return std::move(out_.text()); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* b = value.boolean()) return *b ? "true" : "false";
    if (value.is_integer()) return to_string(value.integer());
    if (!value.is_float()) refuse("a value of type {} cannot be written as JSON", type_name(value));
    const double d = value.floating();
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_repr(d);
  }

  static std::string key_text(const Value& key) {
    return key.is_string() ? std::string(key.text()) : scalar(key);
  }

  void new_line(size_t level) {
    if (!style_.indent) return;
    out_ += "\n";
    for (size_t i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void write_list(const ListObject& list, size_t level) {
    if (list.size() == 0) {
      out_ += "[]";
      return;
    }
    out_ += "[";
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      write(list.items()[i], level + 1);
    }
    new_line(level);
    out_ += "]";
  }

  void write_dict(const DictObject& dict, size_t level) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    std::vector<const DictObject::Item*> items;
    for (const DictObject::Item& item : dict.items()) items.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [this](const auto* a, const auto* b) { return less(meter_, a->first, b->first); });
    out_ += "{";
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      write_text(key_text(items[i]->first));
      out_ += style_.key_separator;
      write(items[i]->second, level + 1);
    }
    new_line(level);
    out_ += "}";
  }

  void write_text(std::string_view text) {
    meter_.scan(text.size());
    std::string quoted = "\"";
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = next_code_point(text, at);
      if (!append_escape(quoted, c)) quoted += text.substr(begin, at - begin);
    }
    out_ += quoted + "\"";
  }

  bool append_escape(std::string& to, char32_t c) const {
    static constexpr std::string_view kCharacters = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    if (c < 0x80) {
      if (const size_t i = kCharacters.find(static_cast<char>(c)); i != kCharacters.npos) {
        to += '\\';
        to += kLetters[i];
        return true;
      }
    }
    if (c >= 0x20 && (c < 0x7f || !style_.ensure_ascii)) return false;
    if (c == 0x7f) return false;
    if (c >= 0x10000) {
      const auto offset = static_cast<uint32_t>(c - 0x10000);
      append_hex(to += "\\u", 0xd800 + (offset >> 10), 4);
      append_hex(to += "\\u", 0xdc00 + (offset & 0x3ff), 4);
    } else {
      append_hex(to += "\\u", c, 4);
    }
    return true;
  }

  Meter& meter_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

std::string to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  Writer writer(meter, style);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace moeflux::jinja
