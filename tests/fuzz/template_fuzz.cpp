// Any bytes as a template: it renders within its limits or is refused, and a rendering can be repeated.
#include <cstdlib>

#include "base/json.h"
#include "text/jinja_template.h"

namespace {

using namespace moeflux;

const OrderedJson& variables() {
  static const OrderedJson made = OrderedJson::parse(R"({
    "messages": [{"role": "system", "content": "s"},
                 {"role": "user", "content": "h\u00e9llo <b>\n w\u00f6rld"},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"id": "c1", "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, true, null, "x"]}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "t"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "n": 7, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": 2}})");
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jinja::Limits limits;
  limits.steps = 100'000;
  limits.memory_bytes = 8 << 20;
  limits.output_bytes = 1 << 20;
  try {
    const jinja::Template parsed({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = parsed.render(variables(), {}, limits);
    if (text.size() > limits.output_bytes || parsed.render(variables(), {}, limits) != text) std::abort();
  } catch (const jinja::TemplateError&) {
  }
  return 0;
}
