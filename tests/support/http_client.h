// A client for tests of the server: raw bytes where a test wants to misbehave, and whole answers otherwise.
// Waits are bounded: what does not come within half a minute is a failed test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/owned.h"

namespace moeflux::test {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk framing
  bool whole = false;                          // as long as the headers say

  Json json() const;
  // Of a stream of server-sent events: the data of each, with "event" first where it has a name.
  struct Event {
    std::string name, data;
  };
  std::vector<Event> events() const;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port);

  void send(std::string_view bytes);  // all of them; throws where the server does not take them
  bool try_send(std::string_view bytes);
  void finish_sending();                            // closes this side
  void close() { fd_ = Fd(); }                      // at once
  std::string receive_some();                       // whatever comes next; empty: the connection has ended
  std::string receive_until(std::string_view end);  // up to and with this text, or all
  std::string receive_all();                        // until the connection ends
  ClientResponse response(bool head_only = false);

  ClientResponse get(const std::string& path, const std::string& headers = "");
  ClientResponse post(const std::string& path, const std::string& body, const std::string& headers = "");
  ClientResponse request(const std::string& method, const std::string& path, const std::string& body,
                         const std::string& headers);

 private:
  Fd fd_;
  std::string buffer_;  // received and not yet given out
};

}  // namespace moeflux::test
