#include "server/access.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

HttpRequest request(const std::string& method, HttpHeaders headers) {
  HttpRequest r;
  r.method = method;
  r.headers = std::move(headers);
  return r;
}

int status_of(const AccessRules& rules, const HttpRequest& r, bool is_public = false) {
  const auto refusal = refusal_of(rules, r, is_public);
  return refusal ? refusal->status : 0;
}

TEST(Access, ReadsKeysAndRefusesFilesWithoutThem) {
  EXPECT_EQ(read_api_keys("# mine\n  first-key \r\n\nsecond-key", "f"),
            (std::vector<std::string>{"first-key", "second-key"}));
  EXPECT_THROW(read_api_keys("# none\n\n", "f"), Error);
  EXPECT_THROW(read_api_keys("short", "f"), Error);
}

TEST(Access, ComparesWholeKeys) {
  EXPECT_TRUE(equal_in_constant_time("abcabc", "abcabc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcabc"));  // a key repeated is another key
  EXPECT_FALSE(equal_in_constant_time("abcabc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", ""));
  EXPECT_FALSE(equal_in_constant_time("", "a"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
}

TEST(Access, WantsAKeyWhereThereAreSome) {
  const AccessRules rules{.keys = {"first-key"}};
  EXPECT_EQ(status_of(rules, request("GET", {})), 401);
  EXPECT_EQ(status_of(rules, request("GET", {}), true), 0);
  EXPECT_EQ(status_of(rules, request("OPTIONS", {})), 0);
  EXPECT_EQ(status_of(rules, request("GET", {{"authorization", "bearer first-key"}})), 0);
  EXPECT_EQ(status_of(rules, request("GET", {{"authorization", "Basic first-key"}})), 401);
  EXPECT_EQ(status_of(rules, request("GET", {{"authorization", "Bearer "}})), 401);
  EXPECT_EQ(status_of(rules, request("GET", {{"x-api-key", "first-key"}})), 0);
  EXPECT_EQ(status_of({}, request("GET", {})), 0);
}

TEST(Access, KeepsOtherOriginsAndNamesOut) {
  AccessRules rules{.only_loopback_names = true, .host_names = {"box.lan"}};
  for (const char* good :
       {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "app.localhost", "box.lan:80"})
    EXPECT_EQ(status_of(rules, request("GET", {{"host", good}})), 0) << good;
  for (const char* bad : {"evil.example", "localhost.evil.example", "1.2.3.4", "[::2]:8080"})
    EXPECT_EQ(status_of(rules, request("GET", {{"host", bad}})), 421) << bad;
  const auto from = [](const char* origin) {
    return request("POST", {{"host", "localhost:8080"}, {"origin", origin}});
  };
  EXPECT_EQ(status_of(rules, from("http://localhost:8080")), 0);
  EXPECT_EQ(status_of(rules, from("http://localhost:9090")), 403);
  EXPECT_EQ(status_of(rules, from("null")), 403);
  EXPECT_TRUE(cors_headers(rules, from("https://a.example")).empty());
  rules.cors = {"https://a.example"};
  EXPECT_EQ(status_of(rules, from("https://a.example")), 0);
  EXPECT_EQ(status_of(rules, from("https://b.example")), 403);
  EXPECT_EQ(cors_headers(rules, from("https://a.example")).front().second, "https://a.example");
  rules.cors = {"*"};
  EXPECT_EQ(status_of(rules, from("https://b.example")), 0);
}

}  // namespace
}  // namespace moeflux
