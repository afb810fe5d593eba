#include "server/http_parser.h"

#include <gtest/gtest.h>

namespace moeflux {
namespace {

using State = HttpParser::State;

struct Parsed {
  State state = State::Head;
  HttpRequest request;
  HttpFault fault;
  size_t used = 0;
};

// In pieces of `cut` bytes.
Parsed parse(const std::string& text, const HttpLimits& limits = {}, size_t cut = 1 << 20) {
  HttpParser parser(limits);
  Parsed out;
  std::string pending;
  for (size_t at = 0;
       at < text.size() && parser.state() != State::Complete && parser.state() != State::Failed; at += cut) {
    pending += text.substr(at, cut);
    for (size_t n = 1; n > 0 && parser.state() != State::Complete;) {
      n = parser.feed(pending);
      pending.erase(0, n);
      out.used += n;
    }
  }
  out.state = parser.state();
  out.fault = parser.fault();
  if (out.state == State::Complete) out.request = parser.take();
  return out;
}

std::string with_headers(const std::string& headers, const std::string& body = "") {
  return "POST /v1/x?a=1&b=c%20d HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n" + body;
}

TEST(HttpParser, ReadsTheSameRequestHoweverItIsCut) {
  const std::string text = with_headers("Content-Length: 5\r\nX-Thing:  a b \t\r\n", "12345");
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    const Parsed p = parse(text, {}, cut);
    ASSERT_EQ(p.state, State::Complete) << cut << ": " << p.fault.message;
    EXPECT_EQ(p.used, text.size());
    EXPECT_EQ(p.request.method, "POST");
    EXPECT_EQ(p.request.path, "/v1/x");
    EXPECT_EQ(p.request.query_value("b"), "c d");
    EXPECT_EQ(p.request.query_value("c"), std::nullopt);
    EXPECT_EQ(p.request.header("x-thing"), "a b");
    EXPECT_EQ(p.request.body, "12345");
    EXPECT_TRUE(p.request.keep_alive);
  }
}

TEST(HttpParser, ReadsChunkedBodiesHoweverTheyAreCut) {
  const std::string text = with_headers("Transfer-Encoding: chunked\r\n",
                                        "5;name=x\r\nhello\r\n1\r\n \r\n6\r\nworld!\r\n0\r\nT: 1\r\n\r\n");
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    const Parsed p = parse(text, {}, cut);
    ASSERT_EQ(p.state, State::Complete) << cut << ": " << p.fault.message;
    EXPECT_EQ(p.used, text.size());
    EXPECT_EQ(p.request.body, "hello world!");
  }
}

TEST(HttpParser, LeavesWhatBelongsToTheNextRequest) {
  const std::string one = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
  const Parsed p = parse(one + "GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(p.state, State::Complete);
  EXPECT_EQ(p.used, one.size());
}

TEST(HttpParser, KnowsWhetherTheConnectionLivesOn) {
  EXPECT_FALSE(parse("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
  EXPECT_TRUE(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").request.keep_alive);
  EXPECT_FALSE(parse("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, close\r\n\r\n").request.keep_alive);
  EXPECT_EQ(parse("GET http://h:1/p?q HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/p");
}

TEST(HttpParser, AsksForTheBodyOnlyOfThoseWhoWait) {
  const HttpLimits limits;
  HttpParser parser(limits);
  const std::string head = with_headers("Expect: 100-continue\r\nContent-Length: 2\r\n");
  EXPECT_EQ(parser.feed(head), head.size());
  EXPECT_TRUE(parser.wants_continue());
  parser.feed("a");
  EXPECT_FALSE(parser.wants_continue());
  parser.feed("b");
  EXPECT_EQ(parser.state(), State::Complete);
}

struct Bad {
  const char* name;
  std::string text;
  int status;
};

class HttpParserRefuses : public testing::TestWithParam<Bad> {};

TEST_P(HttpParserRefuses, WhatIsWrongWithTheRightStatus) {
  HttpLimits limits;
  limits.head_bytes = 600;
  limits.target_bytes = 100;
  limits.headers = 10;
  limits.body_bytes = 20;
  for (const size_t cut : {size_t{1}, size_t{7}, size_t{4096}}) {
    const Parsed p = parse(GetParam().text, limits, cut);
    EXPECT_EQ(p.state, State::Failed);
    EXPECT_EQ(p.fault.status, GetParam().status) << p.fault.message;
    EXPECT_FALSE(p.fault.message.empty());
  }
}

const std::string kGet = "GET / HTTP/1.1\r\nHost: h\r\n";
INSTANTIATE_TEST_SUITE_P(
    All, HttpParserRefuses,
    testing::Values(
        Bad{"NoVersion", "GET /\r\n\r\n", 400},
        Bad{"Binary", std::string("\x16\x03\x01\0\x05\r\n\r\n", 9), 400},
        Bad{"OldVersion", "GET / HTTP/0.9\r\n\r\n", 505}, Bad{"NewVersion", "GET / HTTP/2.0\r\n\r\n", 505},
        Bad{"Lowercase", "GET / http/1.1\r\n\r\n", 400},
        Bad{"BareLineFeeds", "GET / HTTP/1.1\nHost: h\n\n", 400},
        Bad{"NoHost", "GET / HTTP/1.1\r\n\r\n", 400}, Bad{"TwoHosts", kGet + "Host: i\r\n\r\n", 400},
        Bad{"RelativeTarget", "GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Bad{"TargetWithBlank", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Bad{"LongTarget", "GET /" + std::string(200, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n", 414},
        Bad{"LongHead", kGet + "X: " + std::string(700, 'a') + "\r\n\r\n", 431},
        Bad{"EndlessHead", kGet + "X: " + std::string(5000, 'a'), 431},
        Bad{"ManyHeaders",
            kGet + "a:1\r\nb:1\r\nc:1\r\nd:1\r\ne:1\r\nf:1\r\ng:1\r\nh:1\r\ni:1\r\nj:1\r\n\r\n", 431},
        Bad{"NameWithBlank", kGet + "Content-Length : 1\r\n\r\n", 400},
        Bad{"FoldedHeader", kGet + "A: 1\r\n b\r\n\r\n", 400}, Bad{"NoColon", kGet + "Abc\r\n\r\n", 400},
        Bad{"ControlInValue", kGet + "A: b\x01\r\n\r\n", 400},
        Bad{"NegativeLength", kGet + "Content-Length: -1\r\n\r\n", 400},
        Bad{"SignedLength", kGet + "Content-Length: +1\r\n\r\n", 400},
        Bad{"WordLength", kGet + "Content-Length: many\r\n\r\n", 400},
        Bad{"TwoLengths", kGet + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        Bad{"LengthAndChunks", kGet + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        Bad{"LongBody", kGet + "Content-Length: 21\r\n\r\n", 413},
        Bad{"HugeBody", kGet + "Content-Length: 99999999999999999999999\r\n\r\n", 413},
        Bad{"OtherEncoding", kGet + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        Bad{"OtherExpectation", kGet + "Expect: tea\r\n\r\n", 417},
        Bad{"ChunkNotHex", kGet + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
        Bad{"ChunkSigned", kGet + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
        Bad{"ChunkTooLong", kGet + "Transfer-Encoding: chunked\r\n\r\n15\r\n", 413},
        Bad{"ChunksTooLong", kGet + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n10\r\n", 413},
        Bad{"ChunkOverflow", kGet + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 413},
        Bad{"ChunkWithoutEnd", kGet + "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400},
        Bad{"ChunkLineFeed", kGet + "Transfer-Encoding: chunked\r\n\r\n2\nab\r\n", 400},
        Bad{"LongChunkLine", kGet + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(2000, 'x'), 400}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace moeflux
