// Thousands of requests that are wrong in some way: each gets the status that it deserves, or nothing where
// it was never finished, and the server neither falls nor grows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/served_model.h"
#include "support/support.h"

namespace moeflux {
namespace {

using namespace std::chrono_literals;
using test::ClientResponse;
using test::HttpClient;
using test::ServedModel;

#ifdef MOEFLUX_SANITIZED
constexpr bool kSanitized = true;  // which keeps what was freed, and takes its time
#else
constexpr bool kSanitized = false;
#endif

double resident_mib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

struct Abuse {
  std::string text;
  int status = 0;  // 0: the client does not wait for an answer
};

std::string post(const std::string& path, const std::string& body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(),
                     body);
}

Abuse abuse(size_t i) {
  static const std::vector<std::string> kPaths = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                                  "/v1/messages", "/tokenize"};
  const std::string& path = kPaths[i / 16 % kPaths.size()];
  const std::string good =
      R"({"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi"})";
  switch (i % 16) {
    case 0:
      return {"GARBAGE\r\n\r\n", 400};
    case 1:
      return {fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path), 405};
    case 2:
      return {fmt::format("GET /nothing/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", i), 404};
    case 3:
      return {post(path, good.substr(0, i % good.size())), 400};  // cut JSON
    case 4:
      return {post(path, std::string(1 + i % 200, i % 2 ? '[' : '{')), 400};
    case 5:
      return {post(path, "{\"content\": \"\xFF\xFE\", \"messages\": \"\xC3\"}"), 400};
    case 6:
      return {post(path, "[1, 2, 3]"), 400};
    case 7:
      return {post(path, "{\"model\": 7, \"max_tokens\": 1e99, \"content\": 5}"), 400};
    case 8:
      return {post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}], "n": -1})"),
              400};
    case 9:
      return {fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", path),
              413};
    case 10:
      return {fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                          path),
              400};
    case 11:
      return {
          fmt::format("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", std::string(70'000, 'x')),
          431};
    case 12:
      return {post(path, good).substr(0, 10 + i % 120), 0};  // and leaves
    case 13:
      return {post(path,
                   R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 400})"),
              0};
    case 14:
      return {"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421};
    default:
      return {fmt::format("GET /health HTTP/9.{}\r\nHost: localhost\r\n\r\n", i % 10), 505};
  }
}

TEST(ServerAbuse, ThousandsOfBadRequestsGetTheRightStatusAndTakeNoMemory) {
  test::ServedModelOptions o;
  o.engine.ctx = 256;
  o.scheduler.max_queue = 1000;
  o.server.http.limits.body_bytes = 1 << 20;
  o.server.http.limits.head = 300ms;
  ServedModel served(test::text_package("qwen3_moe"), o);
  constexpr size_t kAll = kSanitized ? 1'000 : 10'000, kWarm = kAll / 5;
  double warm_mib = 0;
  for (size_t i = 0; i < kAll; ++i) {
    if (i == kWarm) {
      ASSERT_TRUE(served.scheduler().wait_idle(30s));
      warm_mib = resident_mib();
    }
    const Abuse one = abuse(i);
    HttpClient client = served.client();
    client.try_send(one.text);
    if (one.status == 0) continue;
    const ClientResponse r = client.response();
    ASSERT_EQ(r.status, one.status) << one.text.substr(0, 300) << "\n" << r.body;
    ASSERT_TRUE(r.whole);
  }
  // Slow ones, all at once.
  std::vector<HttpClient> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(served.client());
    slow.back().send("POST /v1/chat/completions HTTP/1.1\r\nHo");
  }
  for (HttpClient& client : slow) EXPECT_EQ(client.response().status, 408);
  ASSERT_TRUE(served.scheduler().wait_idle(30s));
  EXPECT_EQ(served.get("/health").status, 200);
  if (!kSanitized) {
    EXPECT_LT(resident_mib() - warm_mib, 16);
  }
}

}  // namespace
}  // namespace moeflux
