// Any bytes as text: as markers or not, in one go or as a stream, nothing is lost of what was well-formed.
#include <cstdlib>

#include "base/error.h"
#include "text/normalise.h"
#include "text/tokenizer.h"

namespace {

using namespace moeflux;

void require(bool ok) {
  if (!ok) std::abort();
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(MOEFLUX_TEST_DATA "/tokenizers/byte_level");
  return loaded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<Token> ids = tokenizer().encode(text);
  require(tokenizer().decode(ids) == nfc(replace_ill_formed(text)));
  TextStream stream(tokenizer());
  std::string streamed;
  for (const Token id : tokenizer().encode(text, Markers::Recognised)) {
    require(id < tokenizer().end_id());
    streamed += stream.push(id);
    require(well_formed_bytes(streamed) == streamed.size());
  }
  streamed += stream.finish();
  require(streamed == tokenizer().decode(tokenizer().encode(text, Markers::Recognised)));
  return 0;
}
