// The server over real connections: what a client sends well or badly, and what becomes of it when it leaves.
#include "server/http_server.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "base/error.h"
#include "support/http_client.h"

namespace moeflux {
namespace {

using namespace std::chrono_literals;
using test::ClientResponse;
using test::HttpClient;
using Exchange = std::shared_ptr<HttpExchange>;

constexpr auto kAtMost = 30s;  // that a test waits for what must happen

// Something that another thread says once.
template <class T>
class Said {
 public:
  void say(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    changed_.notify_all();
  }
  std::optional<T> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kAtMost, [&] { return value_.has_value(); });
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

void echo(const Exchange& e) {
  e->reply({.body = e->request().method + " " + e->request().path + " " + e->request().body,
            .content_type = "text/plain"});
}

HttpServerOptions options(HttpLimits limits = {}) {
  HttpServerOptions o;
  o.limits = limits;
  return o;
}

std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n";
}

TEST(HttpServer, AnswersRequestAfterRequestOnOneConnection) {
  const HttpServer server(options(), {.handle = echo});
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    const ClientResponse r = client.post("/x", "body" + std::to_string(i));
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, "POST /x body" + std::to_string(i));
  }
  EXPECT_EQ(server.stats().connections, 1u);
  EXPECT_EQ(server.stats().requests, 3u);
}

TEST(HttpServer, AnswersWhatWasSentAheadInOrder) {
  const HttpServer server(options(), {.handle = echo});
  HttpClient client(server.port());
  std::string all;
  for (int i = 0; i < 2000; ++i) all += get("/" + std::to_string(i));
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(client.response().body, "GET /" + std::to_string(i) + " ");
  sender.join();
}

TEST(HttpServer, ReadsChunkedBodiesAndByteByByte) {
  const HttpServer server(options(), {.handle = echo});
  HttpClient client(server.port());
  const std::string text =
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  for (const char c : text) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.response().body, "POST /c abcde");
}

TEST(HttpServer, SaysContinueToThoseWhoWait) {
  const HttpServer server(options(), {.handle = echo});
  HttpClient client(server.port());
  client.send("POST /c HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.response().status, 100);
  client.send("ok");
  EXPECT_EQ(client.response().body, "POST /c ok");
}

TEST(HttpServer, RefusesBeforeTheBodyIsRead) {
  HttpHandlers handlers{.handle = echo};
  handlers.admit = [](const HttpRequest& r) -> std::optional<HttpResponse> {
    if (r.path == "/no") return HttpResponse{.status = 401, .body = "no"};
    return {};
  };
  const HttpServer server(options(), handlers);
  HttpClient client(server.port());
  client.send("POST /no HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n");
  const ClientResponse r = client.response();
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(r.headers.at("connection"), "close");
  EXPECT_EQ(client.receive_all(), "");
  HttpClient again(server.port());
  EXPECT_EQ(again.get("/no").status, 401);  // nothing was to come: the connection lives on
  EXPECT_EQ(again.get("/yes").status, 200);
  // Very many that are refused on the spot do not pile up.
  std::string all;
  for (int i = 0; i < 20'000; ++i) all += get("/no");
  std::thread sender([&] { again.send(all + get("/end", "Connection: close\r\n")); });
  const std::string answers = again.receive_all();
  sender.join();
  EXPECT_TRUE(answers.ends_with("GET /end ")) << answers.substr(answers.size() - 100);
}

TEST(HttpServer, SendsHeadersAloneForHead) {
  const HttpServer server(options(), {.handle = echo});
  HttpClient client(server.port());
  const ClientResponse r = client.request("HEAD", "/h", "", "");
  EXPECT_EQ(r.headers.at("content-length"), std::to_string(std::string("HEAD /h ").size()));
  EXPECT_EQ(client.get("/g").body, "GET /g ");
}

TEST(HttpServer, ClosesAfterAnHttp10RequestAndStreamsItWithoutChunks) {
  const HttpServer server(options(), {.handle = [](const Exchange& e) {
                            e->begin_stream({.body = "a", .content_type = "text/plain"});
                            e->write("b");
                            e->end();
                          }});
  HttpClient client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const std::string all = client.receive_all();
  EXPECT_TRUE(all.ends_with("\r\n\r\nab")) << all;
  EXPECT_EQ(all.find("chunked"), all.npos);
  HttpClient newer(server.port());
  const ClientResponse r = newer.get("/");
  EXPECT_EQ(r.body, "ab");
  EXPECT_EQ(r.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(newer.get("/").body, "ab");
}

TEST(HttpServer, AnswersAFaultAndEndsTheConnection) {
  HttpLimits limits;
  limits.body_bytes = 100;
  const HttpServer server(options(limits), {.handle = echo});
  for (const auto& [text, status] : std::vector<std::pair<std::string, int>>{
           {"nonsense\r\n\r\n", 400},
           {"GET / HTTP/3.0\r\n\r\n", 505},
           {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n" + std::string(101, 'x'), 413},
           {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" +
                std::string(50'000, 'x'),
            413}}) {
    HttpClient client(server.port());
    client.try_send(text);
    const ClientResponse r = client.response();
    EXPECT_EQ(r.status, status) << text.substr(0, 60);
    EXPECT_TRUE(r.whole);
    EXPECT_EQ(client.receive_all(), "");
  }
  EXPECT_EQ(HttpClient(server.port()).get("/").status, 200);
}

TEST(HttpServer, TurnsAnExceptionIntoAnAnswer) {
  HttpHandlers handlers{.handle = [](const Exchange&) { throw std::runtime_error("broken"); }};
  handlers.fault = [](const HttpFault& f, const HttpRequest& r) {
    return HttpResponse{.status = f.status, .body = r.path + ": " + f.message};
  };
  const HttpServer server(options(), handlers);
  HttpClient client(server.port());
  const ClientResponse r = client.get("/p");
  EXPECT_EQ(r.status, 500);
  EXPECT_EQ(r.body, "/p: broken");
}

TEST(HttpServer, DoesNotWaitForSlowClientsForEver) {
  HttpLimits limits;
  limits.idle = limits.head = limits.body = 100ms;
  const HttpServer server(options(limits), {.handle = echo});
  HttpClient head(server.port()), body(server.port()), idle(server.port());
  head.send("GET / HT");
  body.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na");
  EXPECT_EQ(head.response().status, 408);
  EXPECT_EQ(body.response().status, 408);
  EXPECT_EQ(idle.receive_all(), "");
}

TEST(HttpServer, DripsDoNotProlongTheTimeOfARequest) {
  HttpLimits limits;
  limits.head = 300ms;
  const HttpServer server(options(limits), {.handle = echo});
  HttpClient client(server.port());
  client.send("GET / HTTP/1.1\r\nX: ");
  while (client.try_send("a")) std::this_thread::sleep_for(20ms);  // until the server has had enough
  EXPECT_EQ(HttpClient(server.port()).get("/").status, 200);
}

TEST(HttpServer, RefusesConnectionsBeyondTheLimit) {
  HttpLimits limits;
  limits.connections = 2;
  const HttpServer server(options(limits), {.handle = echo});
  HttpClient one(server.port()), two(server.port());
  EXPECT_EQ(one.get("/").status, 200);
  EXPECT_EQ(two.get("/").status, 200);
  HttpClient three(server.port());
  EXPECT_EQ(three.response().status, 503);
  EXPECT_EQ(server.stats().refused, 1u);
  one.close();
  for (int status = 503; status == 503;) {  // once the server has noticed
    HttpClient four(server.port());
    status = four.try_send(get("/")) ? four.response().status : 503;
    if (status == 200) break;
  }
}

TEST(HttpServer, RefusesMoreBodiesAtOnceThanThereIsMemoryFor) {
  HttpLimits limits;
  limits.all_body_bytes = 1000;
  const HttpServer server(options(limits), {.handle = echo});
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 450\r\n\r\n", most(400, 'x'),
                    rest(50, 'x');
  HttpClient one(server.port()), two(server.port()), three(server.port());
  one.send(head + most);
  two.send(head + most);
  EXPECT_EQ(three.get("/").status, 200);  // by now both have been read
  three.send(head + most);
  EXPECT_EQ(three.response().status, 503);
  one.send(rest);
  EXPECT_EQ(one.response().status, 200);
  two.send(rest);
  EXPECT_EQ(two.response().status, 200);
}

TEST(HttpServer, NoticesAtOnceThatAClientHasLeft) {
  Said<bool> left;
  Said<HttpOutcome> end;
  Said<Exchange> exchange;
  HttpHandlers handlers;
  handlers.handle = [&](const Exchange& e) {
    e->on_leave([&] { left.say(true); });
    e->begin_stream({.content_type = "text/event-stream"});
    e->write("data: 1\n\n");
    exchange.say(e);
  };
  handlers.on_end = [&](const HttpExchange&, HttpOutcome o) { end.say(o); };
  const HttpServer server(options(), handlers);
  HttpClient client(server.port());
  client.send(get("/"));
  client.receive_until("data: 1");
  client.close();
  EXPECT_EQ(left.wait(), true);
  EXPECT_EQ(end.wait(), HttpOutcome::ClientLeft);
  EXPECT_FALSE((*exchange.wait())->write("more"));
}

TEST(HttpServer, AClientThatSendsNoMoreStillGetsAShortAnswer) {
  Said<bool> go;
  const HttpServer server(options(), {.handle = [&](const Exchange& e) {
                            go.wait();
                            e->reply({.body = "short"});
                          }});
  HttpClient client(server.port());
  client.send(get("/"));
  client.finish_sending();
  go.say(true);
  EXPECT_EQ(client.response().body, "short");
}

TEST(HttpServer, DropsAClientThatDoesNotRead) {
  Said<HttpOutcome> end;
  HttpLimits limits;
  limits.stream_bytes = 100'000;
  HttpHandlers handlers;
  handlers.handle = [&](const Exchange& e) {
    e->begin_stream({.content_type = "text/plain"});
    const std::string piece(10'000, 'x');
    while (e->write(piece)) {
    }
  };
  handlers.on_end = [&](const HttpExchange&, HttpOutcome o) { end.say(o); };
  const HttpServer server(options(limits), handlers);
  HttpClient client(server.port());
  client.send(get("/"));
  EXPECT_EQ(end.wait(), HttpOutcome::ClientSlow);
}

TEST(HttpServer, DropsAClientThatTakesNothingForTooLong) {
  Said<HttpOutcome> end;
  HttpLimits limits;
  limits.write = 100ms;
  HttpHandlers handlers;
  handlers.handle = [](const Exchange& e) { e->reply({.body = std::string(64 << 20, 'x')}); };
  handlers.on_end = [&](const HttpExchange&, HttpOutcome o) { end.say(o); };
  const HttpServer server(options(limits), handlers);
  HttpClient client(server.port());
  client.send(get("/"));
  EXPECT_EQ(end.wait(), HttpOutcome::ClientSlow);
}

TEST(HttpServer, PingsWhileNothingElseIsSent) {
  const HttpServer server(options(), {.handle = [](const Exchange& e) {
                            e->begin_stream({.content_type = "text/event-stream"});
                            e->ping(10ms, ": ping\n\n");
                            e->on_deadline(HttpExchange::Clock::now() + 200ms, [weak = std::weak_ptr(e)] {
                              if (const auto exchange = weak.lock()) {
                                exchange->write("data: late\n\n");
                                exchange->end();
                              }
                            });
                          }});
  HttpClient client(server.port());
  const ClientResponse r = client.get("/");
  EXPECT_TRUE(r.whole);
  EXPECT_TRUE(r.body.starts_with(": ping\n\n: ping\n\n")) << r.body;
  EXPECT_TRUE(r.body.ends_with("data: late\n\n"));
}

TEST(HttpServer, FinishesWhatItHasBegunBeforeItStops) {
  Said<Exchange> exchange;
  HttpServer server(options(), {.handle = [&](const Exchange& e) {
                      if (e->request().path == "/idle") return e->reply({});
                      e->begin_stream({.body = "a", .content_type = "text/plain"});
                      exchange.say(e);
                    }});
  HttpClient idle(server.port()), busy(server.port());
  EXPECT_EQ(idle.get("/idle").status, 200);
  busy.send(get("/"));
  const Exchange e = *exchange.wait();
  server.drain();
  EXPECT_EQ(idle.receive_all(), "");  // ended, since nothing was going on
  EXPECT_THROW(HttpClient(server.port()).get("/"), std::runtime_error);
  EXPECT_FALSE(server.wait_idle(0ms));
  e->write("b");
  e->end();
  const ClientResponse r = busy.response();
  EXPECT_EQ(r.body, "ab");
  EXPECT_TRUE(server.wait_idle(kAtMost));
  EXPECT_EQ(busy.receive_all(), "");
}

TEST(HttpServer, SaysWhyItCannotListen) {
  const HttpServer server(options(), {.handle = echo});
  HttpServerOptions same;
  same.port = server.port();
  EXPECT_THROW(HttpServer(same, {.handle = echo}), Error);
  HttpServerOptions nowhere;
  nowhere.host = "no such host.invalid";
  EXPECT_THROW(HttpServer(nowhere, {.handle = echo}), Error);
}

// Many clients at once, good and bad, from several threads: for the thread sanitizer too.
TEST(HttpServerThreads, ServesManyClientsAtOnce) {
  HttpServerOptions o = options();
  o.threads = 3;
  const HttpServer server(o, {.handle = [](const Exchange& e) {
                            if (e->request().path != "/stream") return echo(e);
                            e->on_leave([] {});
                            e->begin_stream({.content_type = "text/plain"});
                            for (int i = 0; i < 50 && e->write("piece "); ++i) {
                            }
                            e->end();
                          }});
  std::vector<std::thread> threads;
  std::atomic<int> n_good = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        HttpClient client(server.port());
        if (i % 5 == 4) {
          client.try_send(get("/stream"));
          client.close();
          continue;
        }
        const bool stream = (i + t) % 2 == 0;
        const ClientResponse r = client.get(stream ? "/stream" : "/echo");
        n_good += stream ? r.body.size() == 300 : r.body == "GET /echo ";
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_good, 4 * 20);
}

}  // namespace
}  // namespace moeflux
