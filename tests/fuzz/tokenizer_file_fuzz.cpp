// Any bytes as a tokenizer.json: refused with an Error, or a tokenizer that encodes and decodes.
#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moeflux;
  try {
    const Tokenizer tokenizer({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = "It's <|start|> the\n\n  caf\u00E9 e\u0301 \u65E5\u672C 1234 \xFF </s>  ";
    const std::vector<Token> ids = tokenizer.encode(text, Markers::Recognised);
    tokenizer.decode(ids);
    tokenizer.decode(tokenizer.encode(text), true);
  } catch (const Error&) {
  }
  return 0;
}
