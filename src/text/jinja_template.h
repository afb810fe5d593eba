// A Jinja template: parsed once, rendered as often as wanted, by any number of threads. Rendering gives what
// Python's jinja2 gives with the settings that chat templates are written for (a sandbox, trim_blocks,
// lstrip_blocks, loop controls), or refuses where jinja2 would. A template is not trusted: what it may use is
// bounded by Limits.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_fwd.h"
#include "text/jinja_meter.h"
#include "text/jinja_time.h"

namespace moeflux::jinja {

// What a template cannot do, or says itself with raise_exception. what() is "NAME, line N: message".
struct TemplateError : Error {
  TemplateError(std::string_view name, uint32_t line_number, const std::string& text)
      : Error(Errc::InvalidArgument, fmt::format("{}, line {}: {}", name, line_number, text)),
        line(line_number),
        message(text) {}
  uint32_t line;
  std::string message;
};

class Template {
 public:
  // Throws TemplateError. `name` stands in messages.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // `variables` is a JSON object: each of its members is a variable. Members keep their order.
  std::string render(const OrderedJson& variables, const LocalTime& now, const Limits& limits = {}) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace moeflux::jinja
