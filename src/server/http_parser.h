// Reads one HTTP/1.1 request after another from bytes that come in pieces of any size. Strict where leniency
// would let two readers of the same bytes see two different requests: line ends, lengths, names of headers.
// Knows no sockets and no clock.
#pragma once

#include <string>
#include <string_view>

#include "server/http_message.h"

namespace moeflux {

class HttpParser {
 public:
  enum class State {
    Head,      // request line and headers
    Body,      // the headers are there
    Complete,  // the request can be taken
    Failed     // what follows cannot be understood: the connection must end
  };

  explicit HttpParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes from the beginning of `data` and returns how many: at most up to the end of the headers, and
  // then at most up to the end of the request.
  size_t feed(std::string_view data);

  State state() const { return state_; }
  bool idle() const { return state_ == State::Head && head_.empty(); }  // between requests
  const HttpFault& fault() const { return fault_; }                     // once it has failed
  const HttpRequest& request() const { return request_; }               // from Body on, without the body
  // The client waits for "100 Continue" before it sends the body.
  bool wants_continue() const { return state_ == State::Body && wants_continue_ && !body_begun_; }
  HttpRequest take();  // of a complete one; the next may follow

 private:
  enum class Chunk { Size, Data, DataEnd, Trailer };

  void fail(int status, std::string message);
  size_t feed_head(std::string_view data);
  size_t feed_body(std::string_view data);
  size_t feed_chunked(std::string_view data);
  bool take_line(std::string_view data, size_t& used);  // true: line_ is whole, without its end
  void chunk_size();
  void parse_head();
  bool parse_request_line(std::string_view line);
  bool parse_header(std::string_view line);
  void understand_headers();
  void understand_framing();

  const HttpLimits& limits_;
  State state_ = State::Head;
  std::string head_;
  HttpRequest request_;
  HttpFault fault_;
  bool chunked_ = false, wants_continue_ = false, body_begun_ = false;
  uint64_t remaining_ = 0;  // bytes of the body or of the chunk
  Chunk chunk_ = Chunk::Size;
  std::string line_;
  size_t trailer_bytes_ = 0;
};

}  // namespace moeflux
