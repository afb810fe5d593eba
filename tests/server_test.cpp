// The server with a real model, as clients meet it: the OpenAI APIs, errors, limits, metrics. What the model
// says is compared with `moeflux run`; what it cannot know by itself (calls, JSON) is forced by grammars.
#include <gtest/gtest.h>

#include "io/faulty_queue.h"
#include "support/served_model.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::ClientResponse;
using test::HttpClient;
using test::ServedModel;

constexpr const char* kChat = "/v1/chat/completions";
const char* const kQuestion = "Tell me a story about a dragon and a cake.";

test::ServedModelOptions options() {
  test::ServedModelOptions o;
  o.engine.ctx = 512;
  o.scheduler.parallel = 4;
  return o;
}

Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Json chat(const std::string& text, const Json& more = Json::object()) {
  Json body = {{"model", "storyteller"}, {"messages", user(text)}, {"seed", 7}, {"max_tokens", 40}};
  body.update(more);
  return body;
}

// A streamed chat answer, put together as a client would.
struct Streamed {
  std::map<int, std::string> text, finish;
  std::map<int, Json> calls;
  Json usage;
  size_t n_chunks = 0;
  bool done = false;
};

Streamed collect(const ClientResponse& r) {
  Streamed out;
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_TRUE(r.whole);
  EXPECT_EQ(r.headers.at("content-type"), "text/event-stream");
  for (const auto& event : r.events()) {
    EXPECT_FALSE(out.done);
    if (event.data == "[DONE]") {
      out.done = true;
      continue;
    }
    ++out.n_chunks;
    const Json chunk = parse_json(event.data, "a chunk");
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (chunk.contains("usage") && !chunk["usage"].is_null()) out.usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      const int index = choice["index"];
      const Json& delta = choice["delta"];
      EXPECT_FALSE(out.finish.contains(index));
      if (!out.text.contains(index)) {
        EXPECT_EQ(delta["role"], "assistant");
      }
      out.text[index] += delta.value("content", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        if (call.contains("id")) out.calls[index].push_back(call);
        out.calls[index].at(call["index"].get<size_t>())["function"]["arguments"] =
            out.calls[index].at(call["index"].get<size_t>())["function"].value("arguments", "") +
            call["function"].value("arguments", "");
      }
      if (!choice["finish_reason"].is_null()) out.finish[index] = choice["finish_reason"];
    }
  }
  EXPECT_TRUE(out.done);
  return out;
}

class Server : public testing::Test {
 protected:
  static void SetUpTestSuite() { served = std::make_unique<ServedModel>(test::storyteller(), options()); }
  static void TearDownTestSuite() { served.reset(); }
  static std::unique_ptr<ServedModel> served;

  static Json answer(const Json& body, const std::string& path = kChat) {
    const ClientResponse r = served->post(path, body);
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(r.headers.at("content-type"), "application/json");
    return r.json();
  }
  static void expect_refused(const Json& body, int status, const std::string& param, const std::string& code,
                             const std::string& path = kChat) {
    const ClientResponse r = served->post(path, body);
    EXPECT_EQ(r.status, status) << r.body;
    const Json error = r.json()["error"];
    EXPECT_FALSE(error["message"].get<std::string>().empty());
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], param.empty() ? Json() : Json(param)) << r.body;
    EXPECT_EQ(error["code"], code) << r.body;
  }
};
std::unique_ptr<ServedModel> Server::served;

TEST_F(Server, AnswersWhatTheProgramAnswers) {
  for (const int seed : {1, 2, 3}) {
    const auto run = test::run_program({"run", test::storyteller(), "--chat", kQuestion, "--seed",
                                        std::to_string(seed), "-n", "60", "--ctx", "512", "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::string want = parse_json(run.out, "run")["text"];
    const Json body = chat(kQuestion, {{"seed", seed}, {"max_tokens", 60}});
    const Json got = answer(body);
    EXPECT_EQ(got["choices"][0]["message"]["content"], want);
    EXPECT_GT(want.size(), 50u);
    EXPECT_EQ(got["object"], "chat.completion");
    EXPECT_EQ(got["model"], "storyteller");
    Json streaming = body;
    streaming["stream"] = true;
    EXPECT_EQ(collect(served->post(kChat, streaming)).text[0], want);
    const Json plain =
        answer({{"prompt", "Once upon a time"}, {"seed", seed}, {"max_tokens", 30}}, "/v1/completions");
    const auto text = test::run_program({"run", test::storyteller(), "Once upon a time", "--seed",
                                         std::to_string(seed), "-n", "30", "--ctx", "512", "--json"});
    EXPECT_EQ(plain["choices"][0]["text"], parse_json(text.out, "run")["text"]);
    EXPECT_EQ(plain["object"], "text_completion");
  }
}

TEST_F(Server, ManyAtOnceGetWhatTheyWouldGetAlone) {
  std::vector<std::string> want;
  for (int i = 0; i < 8; ++i)
    want.push_back(answer(chat(kQuestion, {{"seed", i}}))["choices"][0]["message"]["content"]);
  std::vector<std::thread> threads;
  std::vector<std::string> got(want.size());
  for (size_t i = 0; i < want.size(); ++i)
    threads.emplace_back([&, i] {
      got[i] = collect(served->post(kChat, chat(kQuestion, {{"seed", i}, {"stream", true}}))).text[0];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, want);
}

TEST_F(Server, CountsTokensAndSaysWhyItEnded) {
  const Json cut = answer(chat(kQuestion, {{"max_tokens", 5}}));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["usage"]["completion_tokens"], 5);
  const Json counted = served->post("/v1/chat/completions/input_tokens", chat(kQuestion)).json();
  EXPECT_EQ(cut["usage"]["prompt_tokens"], counted["input_tokens"]);
  const Json whole = answer(chat("Hello!", {{"max_tokens", 300}}));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  const std::string text = whole["choices"][0]["message"]["content"];
  ASSERT_GT(text.size(), 10u);
  const std::string word = text.substr(text.find(' ', 5) + 1, 4);
  const Json stopped = answer(chat("Hello!", {{"max_tokens", 300}, {"stop", {word, ""}}}));
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], text.substr(0, text.find(word)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  const Json full = answer({{"messages", user(kQuestion)}, {"seed", 1}, {"ignore_eos", true}});
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length");  // to the end of the context
  EXPECT_GE(full["usage"]["total_tokens"].get<int>(), 512);
}

TEST_F(Server, StreamsUsageProgressAndSeveralChoices) {
  const Json body =
      chat(kQuestion, {{"n", 3}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  Streamed s = collect(served->post(kChat, body));
  ASSERT_EQ(s.text.size(), 3u);
  EXPECT_NE(s.text[0], s.text[1]);
  EXPECT_EQ(s.finish[2], "length");
  EXPECT_EQ(s.usage["completion_tokens"], 120);
  const Json one = answer(chat(kQuestion, {{"seed", 9}}));  // each choice has the next seed
  EXPECT_EQ(s.text[2], one["choices"][0]["message"]["content"]);
  EXPECT_EQ(s.usage["prompt_tokens"], one["usage"]["prompt_tokens"]);
  const Json object = answer(chat(kQuestion, {{"n", 3}}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(object["choices"][i]["index"], i);
    EXPECT_EQ(object["choices"][i]["message"]["content"], s.text[i]);
  }
  const ClientResponse progress =
      served->post(kChat, chat(kQuestion, {{"stream", true}, {"return_progress", true}}));
  EXPECT_NE(progress.body.find("prompt_progress"), std::string::npos);
}

TEST_F(Server, GivesLogprobsOfEveryToken) {
  const Json body =
      chat(kQuestion, {{"max_tokens", 12}, {"temperature", 0}, {"logprobs", true}, {"top_logprobs", 3}});
  const Json choice = answer(body)["choices"][0];
  const Json& entries = choice["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 12u);
  std::string text;
  for (const Json& entry : entries) {
    for (const Json& byte : entry["bytes"]) text += static_cast<char>(byte.get<int>());
    EXPECT_LE(entry["logprob"].get<double>(), 0);
    ASSERT_EQ(entry["top_logprobs"].size(), 3u);
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]);  // the likeliest was taken
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
  }
  EXPECT_EQ(text, choice["message"]["content"]);
  Json streaming = body;
  streaming["stream"] = true;
  Json streamed = Json::array();
  bool first = true;
  for (const auto& event : served->post(kChat, streaming).events()) {
    if (event.data == "[DONE]") continue;
    const Json one = parse_json(event.data, "a chunk")["choices"][0];
    if (std::exchange(first, false)) {
      EXPECT_TRUE(one["logprobs"].is_null());
    }
    if (!one["logprobs"].is_null())
      for (const Json& entry : one["logprobs"]["content"]) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, entries);
  const Json legacy =
      answer({{"prompt", "Once upon a time"}, {"max_tokens", 6}, {"temperature", 0}, {"logprobs", 2}},
             "/v1/completions");
  const Json& lists = legacy["choices"][0]["logprobs"];
  ASSERT_EQ(lists["tokens"].size(), 6u);
  EXPECT_EQ(lists["text_offset"][0], 0);
  EXPECT_EQ(lists["top_logprobs"][5].size(), 2u);
  std::string joined;
  for (const Json& token : lists["tokens"]) joined += token.get<std::string>();
  EXPECT_EQ(joined, legacy["choices"][0]["text"]);
}

TEST_F(Server, CompletesSeveralPromptsInAllTheirForms) {
  const Json ids = served->post("/tokenize", {{"content", "Once upon a time"}}).json()["tokens"];
  const Json text = answer({{"prompt", "Once upon a time"}, {"temperature", 0}}, "/v1/completions");
  EXPECT_EQ(text["usage"]["completion_tokens"], 16);
  EXPECT_EQ(answer({{"prompt", ids}, {"temperature", 0}}, "/v1/completions")["choices"], text["choices"]);
  const Json two =
      answer({{"prompt", {"Once upon a time", "The cat"}}, {"temperature", 0}, {"n", 2}, {"echo", true}},
             "/v1/completions");
  ASSERT_EQ(two["choices"].size(), 4u);
  const std::string continued = text["choices"][0]["text"];
  EXPECT_EQ(two["choices"][1]["text"], "Once upon a time" + continued);
  EXPECT_EQ(two["choices"][3]["index"], 3);
  EXPECT_TRUE(two["choices"][3]["text"].get<std::string>().starts_with("The cat"));
  const ClientResponse stream =
      served->post("/v1/completions",
                   {{"prompt", "Once upon a time"}, {"temperature", 0}, {"stream", true}, {"echo", true}});
  std::string all;
  for (const auto& event : stream.events())
    if (event.data != "[DONE]")
      all += parse_json(event.data, "a chunk")["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(all, "Once upon a time" + continued);
  EXPECT_EQ(answer({{"prompt", "Once"}, {"max_tokens", 0}, {"echo", true}},
                   "/v1/completions")["choices"][0]["text"],
            "Once");
}

TEST_F(Server, HoldsAnswersToAForm) {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", 10}}},
                         {"age", {{"type", "integer"}, {"minimum", 1}, {"maximum", 99}}}}},
                       {"required", {"name", "age"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", schema}}}};
  for (const int seed : {1, 2, 3}) {
    const Json choice = answer(
        chat("Who?", {{"response_format", format}, {"seed", seed}, {"max_tokens", 200}}))["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    const Json person = parse_json(choice["message"]["content"].get<std::string>(), "the answer");
    EXPECT_EQ(person.size(), 2u);
    EXPECT_TRUE(person["age"].is_number_integer());
  }
  const Json any = answer(
      chat("Who?", {{"response_format", {{"type", "json_object"}}}, {"max_tokens", 60}}))["choices"][0];
  EXPECT_EQ(any["message"]["content"].get<std::string>().front(), '{');
  const Json word = answer(chat("Who?", {{"grammar", "root ::= \"yes\" | \"no\""}}))["choices"][0];
  EXPECT_TRUE(word["message"]["content"] == "yes" || word["message"]["content"] == "no");
  expect_refused(
      chat("x", {{"response_format",
                  {{"type", "json_schema"},
                   {"json_schema",
                    {{"name", "x"}, {"schema", {{"type", "object"}, {"unevaluatedProperties", 1}}}}}}}}),
      400, "response_format", "unsupported_value");
  expect_refused(chat("x", {{"grammar", "root ::= ("}}), 400, "grammar", "invalid_value");
}

Json weather_tool(bool strict = false) {
  Json function = {{"name", "get_weather"},
                   {"description", "The weather of a city"},
                   {"parameters",
                    {{"type", "object"},
                     {"properties",
                      {{"city", {{"enum", {"Paris", "Rome"}}}},
                       {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
                     {"required", {"city", "days"}},
                     {"additionalProperties", false}}}};
  if (strict) function["strict"] = true;
  return Json::array({{{"type", "function"}, {"function", function}}});
}

TEST_F(Server, CallsToolsAndTakesTheirResults) {
  const Json body = chat("How is the weather?", {{"tools", weather_tool()},
                                                 {"tool_choice", "required"},
                                                 {"parallel_tool_calls", false},
                                                 {"max_tokens", 200}});
  const Json choice = answer(body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  const Json arguments = parse_json(call["function"]["arguments"].get<std::string>(), "arguments");
  EXPECT_TRUE(arguments["city"] == "Paris" || arguments["city"] == "Rome");
  // The round trip: the call and its result as they came.
  Json next = body;
  next["tool_choice"] = "auto";
  next["messages"].push_back(choice["message"]);
  next["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "sunny"}});
  const std::string prompt = served->post("/apply-template", next).json()["prompt"];
  EXPECT_NE(prompt.find("\"get_weather\""), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("<tool_response>\nsunny"), std::string::npos) << prompt;
  EXPECT_EQ(answer(next)["object"], "chat.completion");
  // Streamed, by name.
  Json named = body;
  named["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  named["stream"] = true;
  Streamed s = collect(served->post(kChat, named));
  EXPECT_EQ(s.finish[0], "tool_calls");
  ASSERT_EQ(s.calls[0].size(), 1u);
  EXPECT_EQ(s.calls[0][0]["type"], "function");
  EXPECT_TRUE(
      parse_json(s.calls[0][0]["function"]["arguments"].get<std::string>(), "arguments").contains("days"));
  // With strict tools text stays free, and calls are not made up.
  EXPECT_EQ(answer(chat(kQuestion, {{"tools", weather_tool(true)}}))["choices"][0]["finish_reason"],
            "length");
}

TEST_F(Server, RefusesWhatItCannotDoByName) {
  expect_refused(chat("x", {{"audio", {{"voice", "x"}}}}), 400, "audio", "unsupported_parameter");
  expect_refused(chat("x", {{"functions", Json::array()}}), 400, "functions", "unsupported_parameter");
  expect_refused(chat("x", {{"model", "other"}}), 404, "model", "model_not_found");
  expect_refused(chat("x", {{"temperature", 3}}), 400, "temperature", "invalid_value");
  expect_refused(chat("x", {{"temperature", "hot"}}), 400, "temperature", "invalid_value");
  expect_refused(chat("x", {{"n", 0}}), 400, "n", "invalid_value");
  expect_refused(chat("x", {{"max_tokens", 1.5}}), 400, "max_tokens", "invalid_value");
  expect_refused(chat("x", {{"top_logprobs", 2}}), 400, "top_logprobs", "invalid_value");
  expect_refused(chat("x", {{"logprobs", true}, {"top_logprobs", 21}}), 400, "top_logprobs", "invalid_value");
  expect_refused(chat("x", {{"logit_bias", {{"99999", 1}}}}), 400, "", "invalid_value");
  expect_refused(chat("x", {{"stream_options", {{"include_usage", true}}}}), 400, "stream_options",
                 "invalid_value");
  expect_refused(chat("x", {{"tool_choice", "required"}}), 400, "tool_choice", "invalid_value");
  expect_refused(chat("x", {{"tools", weather_tool()},
                            {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}}),
                 400, "tool_choice", "invalid_value");
  expect_refused(chat("x", {{"tools", {{{"type", "custom"}}}}}), 400, "tools[0].type",
                 "unsupported_parameter");
  expect_refused({{"messages", Json::array()}}, 400, "messages", "invalid_value");
  expect_refused(Json::object(), 400, "messages", "missing_required_parameter");
  expect_refused({{"messages", {{{"role", "owner"}, {"content", "x"}}}}}, 400, "messages[0].role",
                 "invalid_value");
  expect_refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}, 400,
                 "messages[0].content[0]", "unsupported_value");
  expect_refused({{"prompt", "x"}, {"suffix", "y"}}, 400, "suffix", "unsupported_parameter",
                 "/v1/completions");
  expect_refused({{"prompt", {1, 99999}}}, 400, "prompt", "invalid_value", "/v1/completions");
  expect_refused({{"prompt", ""}}, 400, "prompt", "invalid_value", "/v1/completions");
  std::string lengthy;
  for (int i = 0; i < 600; ++i) lengthy += "one ";
  expect_refused(chat(lengthy), 400, "messages", "context_length_exceeded");
  const ClientResponse bad = served->client().post(kChat, "{\"messages\": [");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json()["error"]["code"], "invalid_json");
  std::string deep(100, '[');
  EXPECT_EQ(served->client().post(kChat, deep).status, 400);
}

TEST_F(Server, TellsOfItselfAndTurnsTextIntoTokens) {
  EXPECT_EQ(served->get("/health").json()["status"], "ok");
  EXPECT_EQ(served->get("/ready").status, 200);
  const Json list = served->get("/v1/models").json();
  EXPECT_EQ(list["data"][0]["id"], "storyteller");
  EXPECT_EQ(served->get("/v1/models/story%74eller").json()["id"], "storyteller");
  EXPECT_EQ(served->get("/v1/models/other").status, 404);
  EXPECT_EQ(served->get("/nowhere").status, 404);
  const ClientResponse wrong = served->get(kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(served->client().request("HEAD", "/health", "", "").status, 200);
  EXPECT_EQ(served->client().request("OPTIONS", kChat, "", "").status, 204);
  const Json props = served->get("/props").json();
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 512);
  EXPECT_EQ(props["eos_token"], "<|im_end|>");
  const Json tokens = served->post("/tokenize", {{"content", "Héllo <|im_end|>"}}).json()["tokens"];
  EXPECT_EQ(tokens.back(), 4095);
  EXPECT_EQ(served->post("/detokenize", {{"tokens", tokens}}).json()["content"], "Héllo <|im_end|>");
  const Json plain = served->post("/tokenize", {{"content", "<|im_end|>"}, {"parse_special", false}}).json();
  EXPECT_GT(plain["tokens"].size(), 1u);
  const Json pieces = served->post("/tokenize", {{"content", "é"}, {"with_pieces", true}}).json()["tokens"];
  EXPECT_TRUE(pieces[0].contains("piece"));
  EXPECT_EQ(served->post("/detokenize", {{"tokens", {99999}}}).status, 400);
  EXPECT_EQ(served->post("/apply-template", chat("Hi")).json()["prompt"],
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Server, MetricsAndTheEngineShowWhatHappened) {
  answer(chat(kQuestion));
  const ClientResponse r = served->get("/metrics");
  EXPECT_EQ(r.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto value = [&](const std::string& name) {
    const size_t at = r.body.find("\n" + name + " ");
    EXPECT_NE(at, r.body.npos) << name;
    return at == r.body.npos ? -1 : std::stod(r.body.substr(at + name.size() + 2));
  };
  EXPECT_GE(value("moeflux_new_tokens_total"), 40);
  EXPECT_GE(value("moeflux_requests_total{route=\"/v1/chat/completions\",status=\"200\"}"), 1);
  EXPECT_GE(value("moeflux_first_token_seconds_count"), 1);
  EXPECT_GT(value("moeflux_experts_asked_total{tier=\"ram\"}"), 0);
  EXPECT_EQ(value("moeflux_queue_seconds_bucket{le=\"+Inf\"}"), value("moeflux_queue_seconds_count"));
  const Json engine = served->get("/v1/engine").json();
  ASSERT_EQ(engine["layers"].size(), 8u);
  EXPECT_EQ(engine["layers"][0]["held"].get<std::string>().size(), 32u);
  EXPECT_NE(engine["layers"][0]["held"].get<std::string>().find('2'), std::string::npos);
  int used = 0;
  for (const Json& share : engine["layers"][7]["used"]) used += share.get<int>();
  EXPECT_GT(used, 0);
}

TEST_F(Server, SendsThePageAsItWasBuilt) {
  const auto web = test::data_folder().parent_path().parent_path() / "web";
  const std::string policy = test::read_file(web / "content_security_policy.txt");
  size_t n_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(web / "dist")) {
    const std::string name = file.path().filename();
    const std::string path = name == "index.html" ? "/" : "/" + name;
    const ClientResponse r = served->get(path);
    EXPECT_EQ(r.status, 200) << path;
    EXPECT_EQ(r.body, test::read_file(file.path())) << path;
    EXPECT_EQ(r.headers.at("content-security-policy") + "\n", policy) << path;
    const ClientResponse again = served->get(path, "If-None-Match: " + r.headers.at("etag") + "\r\n");
    EXPECT_EQ(again.status, 304) << path;
    EXPECT_EQ(again.body, "") << path;
    ++n_files;
  }
  EXPECT_GE(n_files, 3u);
  EXPECT_EQ(served->get("/").headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(served->get("/app.js").headers.at("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(served->get("/index.html").status, 404);
  EXPECT_EQ(served->post("/", {}).status, 405);
}

TEST_F(Server, StopsGeneratingWhenTheClientLeaves) {
  const uint64_t before = served->scheduler().stats().cancelled;
  HttpClient client = served->client();
  const std::string body =
      chat(kQuestion, {{"stream", true}, {"max_tokens", 400}, {"ignore_eos", true}}).dump();
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.receive_until("content");
  client.close();
  ASSERT_TRUE(served->scheduler().wait_idle(std::chrono::seconds(30)));
  EXPECT_EQ(served->scheduler().stats().cancelled, before + 1);
  EXPECT_EQ(served->get("/health").status, 200);
}

// -- servers with settings of their own

TEST(ServerAccess, AsksForAKeyWhereThereIsOne) {
  auto o = options();
  o.server.access.keys = {"secret-key-1", "secret-key-2"};
  o.server.access.cors = {"https://good.example"};
  const ServedModel served(test::storyteller(), o);
  EXPECT_EQ(served.get("/health").status, 200);
  const ClientResponse none = served.get("/v1/models");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(served.get("/v1/models", "Authorization: Bearer secret-key-2\r\n").status, 200);
  EXPECT_EQ(served.get("/v1/models", "x-api-key: secret-key-1\r\n").status, 200);
  EXPECT_EQ(served.get("/v1/models", "x-api-key: secret-key-\r\n").status, 401);
  EXPECT_EQ(served.get("/v1/models", "x-api-key: secret-key-11\r\n").status, 401);
  EXPECT_EQ(served.get("/metrics").status, 401);
  EXPECT_EQ(served.get("/v1/messages").json()["type"], "error");  // in the form of its API
  const ClientResponse good =
      served.client().request("OPTIONS", "/v1/models", "", "Origin: https://good.example\r\n");
  EXPECT_EQ(good.headers.at("access-control-allow-origin"), "https://good.example");
  EXPECT_FALSE(served.client()
                   .request("OPTIONS", "/v1/models", "", "Origin: https://bad.example\r\n")
                   .headers.contains("access-control-allow-origin"));
  EXPECT_EQ(
      served.post(kChat, chat("x"), "Origin: https://bad.example\r\nx-api-key: secret-key-1\r\n").status,
      403);
  EXPECT_EQ(served.get("/health", "Origin: https://bad.example\r\n").status, 200);
  HttpClient rebound = served.client();
  rebound.send("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(rebound.response().status, 421);
}

TEST(ServerLimits, RefusesWhatIsTooMuch) {
  auto o = options();
  o.scheduler.parallel = 1;
  o.scheduler.max_queue = 1;
  o.server.http.limits.body_bytes = 2000;
  const ServedModel served(test::storyteller(), o);
  EXPECT_EQ(served.post(kChat, chat(std::string(3000, 'x'))).status, 413);
  EXPECT_EQ(served.post(kChat, chat(kQuestion, {{"n", 5}})).status, 400);  // there will never be room
  // One is running, one waits, and the third is sent away.
  HttpClient one = served.client(), two = served.client();
  const std::string body =
      chat(kQuestion, {{"stream", true}, {"max_tokens", 450}, {"ignore_eos", true}}).dump();
  const std::string request = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  one.send(request);
  one.receive_until("\"content\":\"");
  one.receive_until("\"content\":\"");
  two.send(request);
  two.receive_until("assistant");
  const ClientResponse third = served.post(kChat, chat(kQuestion));
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(third.headers.at("retry-after"), "1");
  EXPECT_EQ(third.json()["error"]["type"], "rate_limit_error");
}

TEST(ServerLimits, EndsAnAnswerThatTakesTooLong) {
  auto o = options();
  o.server.api.timeout = std::chrono::milliseconds(1);
  const ServedModel served(test::storyteller(), o);
  EXPECT_EQ(served.post(kChat, chat(kQuestion, {{"max_tokens", 400}, {"ignore_eos", true}})).status, 504);
  const ClientResponse stream =
      served.post(kChat, chat(kQuestion, {{"max_tokens", 400}, {"ignore_eos", true}, {"stream", true}}));
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.whole);
  EXPECT_EQ(parse_json(stream.events().back().data, "the last event")["error"]["code"], "timeout");
}

TEST(ServerShutdown, FinishesAnswersAndEndsTheRestCleanly) {
  auto o = options();
  ServedModel served(test::storyteller(), o);
  HttpClient client = served.client();
  const std::string body = chat(kQuestion, {{"stream", true}, {"max_tokens", 30}}).dump();
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.receive_until("assistant");
  served.server().begin_shutdown();
  EXPECT_TRUE(served.server().wait_idle(std::chrono::seconds(30)));
  EXPECT_NE(client.receive_all().find("[DONE]"), std::string::npos);
}

TEST(ServerFaults, AFailedReadEndsOneAnswerAndTheNextWorks) {
  std::atomic<bool> failing = false;
  auto o = options();
  o.engine.ram = 1 << 20;  // a part of the experts: the rest comes from disk
  o.engine.wrap_queue = [&failing](std::unique_ptr<ReadQueue> inner) {
    Faults faults;
    faults.error = [&failing](const ReadRequest&) { return failing ? EIO : 0; };
    return std::make_unique<FaultyQueue>(std::move(inner), faults);
  };
  const ServedModel served(test::storyteller(), o);
  const Json body = chat(kQuestion, {{"max_tokens", 100}, {"ignore_eos", true}});
  const std::string want = served.post(kChat, body).json()["choices"][0]["message"]["content"];
  HttpClient client = served.client();
  Json streaming = body;
  streaming["stream"] = true;
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(streaming.dump().size()) + "\r\n\r\n" + streaming.dump());
  client.receive_until("\"content\":\"");
  client.receive_until("\"content\":\"");
  failing = true;
  const std::string rest = client.receive_all();
  EXPECT_NE(rest.find("\"code\":\"engine_error\""), rest.npos) << rest;
  EXPECT_EQ(rest.find("[DONE]"), rest.npos);
  EXPECT_EQ(served.post(kChat, body).status, 500);
  failing = false;
  EXPECT_EQ(served.post(kChat, body).json()["choices"][0]["message"]["content"], want);
}

TEST(ServerPrefixes, AreFoundAgainAlsoAfterARestart) {
  const test::TempFolder folder;
  auto o = options();
  o.scheduler.prefixes.ram_bytes = 64 << 20;
  o.scheduler.prefixes.folder = folder / "prefixes";
  o.scheduler.prefixes.disk_bytes = 64 << 20;
  std::string lengthy = "Tell me a story about";
  for (int i = 0; i < 60; ++i) lengthy += " a cat and a dog and";
  const Json body = chat(lengthy + " a cake.", {{"max_tokens", 20}});
  const auto cached = [](const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  Json first;
  {
    const ServedModel served(test::storyteller(), o);
    first = served.post(kChat, body).json();
    EXPECT_EQ(cached(first), 0);
    const Json again = served.post(kChat, body).json();
    EXPECT_GT(cached(again), 100);
    EXPECT_EQ(again["choices"], first["choices"]);
  }
  const ServedModel restarted(test::storyteller(), o);
  const Json later = restarted.post(kChat, body).json();
  EXPECT_GT(cached(later), 100);
  EXPECT_EQ(later["choices"], first["choices"]);
}

TEST(ServerPrefixes, AreFoundAgainAfterTheProgramWasKilled) {
  const test::TempFolder folder;
  const std::vector<std::string> command = {"serve", test::storyteller(), "--port",
                                            "0",     "--prefix-cache",    (folder / "prefixes").string()};
  std::string lengthy = "Tell me a story about";
  for (int i = 0; i < 60; ++i) lengthy += " a cat and a dog and";
  const std::string body = chat(lengthy + " a cake.", {{"max_tokens", 20}}).dump();
  const std::string other = chat(lengthy + " a boat.", {{"max_tokens", 400}, {"stream", true}}).dump();
  Json first;
  for (int round = 0; round < 3; ++round) {
    test::RunningProgram program(command);
    const std::string url = program.line();
    const auto port = static_cast<uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
    const Json answer = HttpClient(port).post(kChat, body).json();
    const int cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    if (round == 0) {
      first = answer;
      EXPECT_EQ(cached, 0);
    } else {
      EXPECT_GT(cached, 100);
      EXPECT_EQ(answer["choices"], first["choices"]);
    }
    HttpClient busy(port);
    busy.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(other.size()) + "\r\n\r\n" + other);
    busy.receive_until("\"content\":\"");
    program.end(SIGKILL);
  }
}

}  // namespace
}  // namespace moeflux
