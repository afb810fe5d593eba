// Any bytes as HTTP requests: how they are cut into pieces changes nothing, and nothing beyond the limits is
// kept.
#include <algorithm>
#include <cstdlib>

#include "server/http_parser.h"

namespace {

using namespace moeflux;

HttpLimits limits() {
  HttpLimits l;
  l.target_bytes = 64;
  l.head_bytes = 512;
  l.headers = 8;
  l.body_bytes = 256;
  return l;
}

std::string parse(std::string_view bytes, size_t piece) {
  const HttpLimits l = limits();
  HttpParser parser(l);
  std::string seen, pending;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    pending += bytes.substr(at, piece);
    for (size_t used = 1; used > 0;) {
      used = parser.feed(pending);
      pending.erase(0, used);
      if (parser.state() == HttpParser::State::Failed)
        return seen + "failed " + std::to_string(parser.fault().status);
      if (parser.state() != HttpParser::State::Complete) continue;
      const HttpRequest request = parser.take();
      if (request.body.size() > l.body_bytes || request.headers.size() > l.headers ||
          request.path.size() + request.query.size() > l.target_bytes)
        std::abort();
      seen += request.method + ' ' + request.path + '?' + request.query + ' ' + request.body;
      for (const auto& [name, value] : request.headers) seen += '\n' + name + ':' + value;
      seen += request.keep_alive ? "\n\n" : "\nclose\n";
      used = 1;  // the next one may be there
    }
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (parse(bytes, 1 + data[0] % 32) != parse(bytes, std::max<size_t>(bytes.size(), 1))) std::abort();
  return 0;
}
