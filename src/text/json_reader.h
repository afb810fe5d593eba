// Reads JSON piece by piece without building anything: for tables with some hundred thousand entries, where a
// tree of values would take most of the time of loading. Everything is checked as it is read; errors name the
// file and the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moeflux {

class JsonReader {
 public:
  // `text` must be well-formed UTF-8 and outlive the reader.
  JsonReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  // Moves past white space and, if it is the next character, `c`.
  bool take(char c);
  void expect(char c);
  char peek();  // the next character that is not white space, 0 at the end
  // The value of a string; valid until the next string is read.
  std::string_view string();
  uint64_t number();        // a whole number
  std::string_view skip();  // any value; returns its text
  void end();               // nothing but white space may follow

  // Calls item() for each element of an array.
  template <class Item>
  void array(Item&& item) {
    expect('[');
    if (take(']')) return;
    do item();
    while (take(','));
    expect(']');
  }
  // Calls member(key) for each member of an object; it reads the value.
  template <class Member>
  void object(Member&& member) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string_view key = string();
      expect(':');
      member(key);
    } while (take(','));
    expect('}');
  }

  [[noreturn]] void wrong(std::string_view what) const;

 private:
  void skip_space();
  void skip_value(int depth);
  std::string_view unescaped(size_t begin);
  uint32_t hexadecimal();
  void append_escape();

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  std::string buffer_;  // of a string with escapes
};

}  // namespace moeflux
