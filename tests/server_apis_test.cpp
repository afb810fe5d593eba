// The Anthropic API and the responses API of the server, on a real model: the same answers in their forms,
// events in the order that clients insist on, tools, prefills, stored responses, errors.
#include <gtest/gtest.h>

#include "support/served_model.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::ClientResponse;
using test::ServedModel;

const char* const kStory = "Tell me a story about a dragon and a cake.";

class ServerApis : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::ServedModelOptions o;
    o.engine.ctx = 512;
    served = std::make_unique<ServedModel>(test::storyteller(), o);
  }
  static void TearDownTestSuite() { served.reset(); }
  static std::unique_ptr<ServedModel> served;

  static Json answer(const std::string& path, const Json& body) {
    const ClientResponse r = served->post(path, body);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  static std::string chat_text(int seed, int most = 40) {
    return answer("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", kStory}}}},
                                           {"seed", seed},
                                           {"max_tokens", most}})["choices"][0]["message"]["content"];
  }
};
std::unique_ptr<ServedModel> ServerApis::served;

Json message(const Json& more = Json::object()) {
  Json body = {{"model", "storyteller"},
               {"max_tokens", 40},
               {"seed", 7},
               {"messages", {{{"role", "user"}, {"content", kStory}}}}};
  body.update(more);
  return body;
}

const Json kWeather = {{"name", "get_weather"},
                       {"description", "The weather of a city"},
                       {"input_schema",
                        {{"type", "object"},
                         {"properties", {{"city", {{"enum", {"Paris", "Rome"}}}}}},
                         {"required", {"city"}},
                         {"additionalProperties", false}}}};

// -- messages

TEST_F(ServerApis, MessagesSayTheSameAsChat) {
  const Json m = answer("/v1/messages", message());
  EXPECT_EQ(m["type"], "message");
  EXPECT_EQ(m["role"], "assistant");
  ASSERT_EQ(m["content"].size(), 1u);
  EXPECT_EQ(m["content"][0]["text"], chat_text(7));
  EXPECT_EQ(m["stop_reason"], "max_tokens");
  EXPECT_EQ(m["usage"]["output_tokens"], 40);
  const Json counted = answer("/v1/messages/count_tokens", {{"messages", message()["messages"]}});
  EXPECT_EQ(m["usage"]["input_tokens"].get<int>() + m["usage"]["cache_read_input_tokens"].get<int>(),
            counted["input_tokens"].get<int>());
  const Json blocks = answer(
      "/v1/messages",
      message({{"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", kStory}}}}}}}}));
  EXPECT_EQ(blocks["content"], m["content"]);
  const Json whole =
      answer("/v1/messages",
             message({{"messages", {{{"role", "user"}, {"content", "Hello!"}}}}, {"max_tokens", 300}}));
  EXPECT_EQ(whole["stop_reason"], "end_turn");
  const std::string text = whole["content"][0]["text"];
  const std::string word = text.substr(text.find(' ', 5) + 1, 4);
  const Json cut = answer("/v1/messages", message({{"messages", {{{"role", "user"}, {"content", "Hello!"}}}},
                                                   {"max_tokens", 300},
                                                   {"stop_sequences", {word}}}));
  EXPECT_EQ(cut["stop_reason"], "stop_sequence");
  EXPECT_EQ(cut["stop_sequence"], word);
  const Json full = answer("/v1/messages", message({{"max_tokens", 5000}, {"ignore_eos", true}}));
  EXPECT_EQ(full["stop_reason"], "model_context_window_exceeded");
}

TEST_F(ServerApis, MessageEventsComeInOrder) {
  const ClientResponse r = served->post("/v1/messages", message({{"stream", true}}));
  std::string text, order;
  for (const auto& event : r.events()) {
    const Json data = parse_json(event.data, "an event");
    EXPECT_EQ(data["type"], event.name);
    if (event.name == "content_block_delta") text += data["delta"]["text"];
    if (!order.ends_with(event.name + " ")) order += event.name + " ";
  }
  EXPECT_EQ(text, chat_text(7));
  EXPECT_EQ(
      order,
      "message_start content_block_start content_block_delta content_block_stop message_delta message_stop ");
}

TEST_F(ServerApis, MessagesCallToolsAndTakeResults) {
  const Json body = message({{"tools", {kWeather}},
                             {"tool_choice", {{"type", "tool"}, {"name", "get_weather"}}},
                             {"max_tokens", 200}});
  const Json m = answer("/v1/messages", body);
  EXPECT_EQ(m["stop_reason"], "tool_use");
  ASSERT_EQ(m["content"].size(), 1u);
  const Json& call = m["content"][0];
  EXPECT_EQ(call["type"], "tool_use");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_TRUE(call["input"]["city"] == "Paris" || call["input"]["city"] == "Rome");
  Json streaming = body;
  streaming["stream"] = true;
  std::string partial;
  for (const auto& event : served->post("/v1/messages", streaming).events()) {
    const Json data = parse_json(event.data, "an event");
    if (event.name == "content_block_delta") partial += data["delta"]["partial_json"];
  }
  EXPECT_EQ(parse_json(partial, "the input"), call["input"]);
  Json next = body;
  next["tool_choice"] = {{"type", "auto"}};
  next["messages"].push_back({{"role", "assistant"}, {"content", m["content"]}});
  next["messages"].push_back({{"role", "user"},
                              {"content",
                               {{{"type", "tool_result"},
                                 {"tool_use_id", call["id"]},
                                 {"content", {{{"type", "text"}, {"text", "sunny"}}}}},
                                {{"type", "text"}, {"text", "So?"}}}}});
  EXPECT_EQ(answer("/v1/messages", next)["type"], "message");
}

TEST_F(ServerApis, MessagesGoOnFromABeginning) {
  Json body = message({{"temperature", 0}});
  body["messages"].push_back({{"role", "assistant"}, {"content", "Once upon a time, a dragon"}});
  const std::string text = answer("/v1/messages", body)["content"][0]["text"];
  EXPECT_FALSE(text.empty());
  const Json ids =
      answer("/tokenize",
             {{"content", std::string("<|im_start|>user\n") + kStory +
                              "<|im_end|>\n<|im_start|>assistant\nOnce upon a time, a dragon"}})["tokens"];
  EXPECT_EQ(answer("/v1/completions",
                   {{"prompt", ids}, {"max_tokens", 40}, {"temperature", 0}})["choices"][0]["text"],
            text);
}

TEST_F(ServerApis, MessageErrorsHaveTheirForm) {
  const auto refused = [](const Json& body, const std::string& what) {
    const ClientResponse r = served->post("/v1/messages", body);
    EXPECT_EQ(r.status, 400) << r.body;
    const Json error = r.json();
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_NE(error["error"]["message"].get<std::string>().find(what), std::string::npos) << r.body;
    EXPECT_EQ(error["request_id"], r.headers.at("request-id"));
  };
  refused({{"messages", message()["messages"]}}, "max_tokens");
  refused(message({{"container", "x"}}), "container");
  refused(message({{"temperature", 1.5}}), "temperature");
  refused(message({{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}}), "web_search");
  refused(message({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}), "image");
  refused(message({{"messages", Json::array()}}), "messages");
  EXPECT_EQ(served->post("/v1/messages", message({{"model", "claude"}})).json()["error"]["type"],
            "not_found_error");
}

// -- responses

Json response(const Json& more = Json::object()) {
  Json body = {{"model", "storyteller"}, {"input", kStory}, {"seed", 7}, {"max_output_tokens", 40}};
  body.update(more);
  return body;
}

TEST_F(ServerApis, ResponsesSayTheSameAsChat) {
  const Json r = answer("/v1/responses", response());
  EXPECT_EQ(r["object"], "response");
  EXPECT_EQ(r["status"], "incomplete");
  EXPECT_EQ(r["incomplete_details"]["reason"], "max_output_tokens");
  ASSERT_EQ(r["output"].size(), 1u);
  EXPECT_EQ(r["output"][0]["content"][0]["text"], chat_text(7));
  EXPECT_EQ(r["usage"]["output_tokens"], 40);
  const Json counted = answer("/v1/responses/input_tokens", response());
  EXPECT_EQ(counted["input_tokens"], r["usage"]["input_tokens"]);
  const Json told = answer("/v1/responses", response({{"instructions", "Be kind."}}));
  EXPECT_GT(told["usage"]["input_tokens"], r["usage"]["input_tokens"]);
  const Json likely = answer("/v1/responses", response({{"include", {"message.output_text.logprobs"}},
                                                        {"top_logprobs", 2},
                                                        {"max_output_tokens", 4}}));
  EXPECT_EQ(likely["output"][0]["content"][0]["logprobs"].size(), 4u);
}

TEST_F(ServerApis, ResponseEventsComeInOrder) {
  const ClientResponse r = served->post("/v1/responses", response({{"stream", true}}));
  std::string text, order;
  int sequence = 0;
  Json last;
  for (const auto& event : r.events()) {
    last = parse_json(event.data, "an event");
    EXPECT_EQ(last["type"], event.name);
    EXPECT_EQ(last["sequence_number"], sequence++);
    if (event.name == "response.output_text.delta") text += last["delta"];
    const std::string name = event.name.substr(9);
    if (!order.ends_with(name + " ")) order += name + " ";
  }
  EXPECT_EQ(text, chat_text(7));
  EXPECT_EQ(order,
            "created in_progress output_item.added content_part.added output_text.delta output_text.done "
            "content_part.done output_item.done incomplete ");
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["text"], text);
}

TEST_F(ServerApis, ResponsesAreKeptAndContinued) {
  const Json first = answer("/v1/responses", response());
  const std::string id = first["id"];
  EXPECT_EQ(served->get("/v1/responses/" + id).json(), first);
  EXPECT_EQ(served->get("/v1/responses/" + id + "/input_items").json()["data"].size(), 1u);
  const Json second =
      answer("/v1/responses", response({{"input", "And then?"}, {"previous_response_id", id}}));
  // The same as with the whole conversation.
  Json items = Json::array({{{"role", "user"}, {"content", kStory}}});
  for (const Json& item : first["output"]) items.push_back(item);
  items.push_back({{"role", "user"}, {"content", "And then?"}});
  const Json whole = answer("/v1/responses", response({{"input", items}, {"store", false}}));
  EXPECT_EQ(whole["output"][0]["content"], second["output"][0]["content"]);
  EXPECT_EQ(served->get("/v1/responses/" + whole["id"].get<std::string>()).status, 404);
  EXPECT_EQ(served->client().request("DELETE", "/v1/responses/" + id, "", "").json()["deleted"], true);
  EXPECT_EQ(served->get("/v1/responses/" + id).status, 404);
  const ClientResponse gone = served->post("/v1/responses", response({{"previous_response_id", id}}));
  EXPECT_EQ(gone.status, 400);
  EXPECT_EQ(gone.json()["error"]["code"], "previous_response_not_found");
}

TEST_F(ServerApis, ResponsesCallToolsAndTakeResults) {
  const Json tool = {{"type", "function"},
                     {"name", "get_weather"},
                     {"parameters", kWeather["input_schema"]},
                     {"strict", true}};
  const Json body = response({{"tools", {tool}},
                              {"tool_choice", "required"},
                              {"parallel_tool_calls", false},
                              {"max_output_tokens", 200}});
  const Json r = answer("/v1/responses", body);
  EXPECT_EQ(r["status"], "completed");
  ASSERT_EQ(r["output"].size(), 1u);
  const Json& call = r["output"][0];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_NE(call["id"], call["call_id"]);
  EXPECT_TRUE(parse_json(call["arguments"].get<std::string>(), "arguments").contains("city"));
  Json streaming = body;
  streaming["stream"] = true;
  std::string order, arguments;
  size_t n_pieces = 0;
  for (const auto& event : served->post("/v1/responses", streaming).events()) {
    const std::string name = event.name.substr(9) + " ";
    const Json data = parse_json(event.data, "event");
    if (data.contains("delta")) arguments += data["delta"], ++n_pieces;
    if (!order.ends_with(name)) order += name;
  }
  EXPECT_GT(n_pieces, 3u);
  EXPECT_EQ(parse_json(arguments, "arguments"),
            parse_json(call["arguments"].get<std::string>(), "arguments"));
  EXPECT_EQ(
      order,
      "created in_progress output_item.added function_call_arguments.delta function_call_arguments.done "
      "output_item.done completed ");
  const Json next = answer(
      "/v1/responses",
      response(
          {{"previous_response_id", r["id"]},
           {"input", {{{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "sunny"}}}},
           {"tools", {tool}}}));
  EXPECT_EQ(next["object"], "response");
  const Json format = {
      {"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", kWeather["input_schema"]}}}};
  const Json form = answer("/v1/responses", response({{"text", format}, {"max_output_tokens", 100}}));
  EXPECT_TRUE(
      parse_json(form["output"][0]["content"][0]["text"].get<std::string>(), "the text").contains("city"));
}

TEST_F(ServerApis, ResponsesRefuseWhatTheyCannotDoByName) {
  const auto refused = [](const Json& more, const std::string& param) {
    const ClientResponse r = served->post("/v1/responses", response(more));
    EXPECT_EQ(r.status, 400) << r.body;
    EXPECT_EQ(r.json()["error"]["param"], param) << r.body;
  };
  refused({{"background", true}}, "background");
  refused({{"conversation", "x"}}, "conversation");
  refused({{"truncation", "auto"}}, "truncation");
  refused({{"tools", {{{"type", "web_search"}}}}}, "tools[0].type");
  refused({{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "input[0].type");
  refused({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "input[0].content[0]");
  refused({{"input", Json::array()}}, "input");
}

// -- thoughts, on a model with random weights whose template opens one when it is asked to

TEST(ServerReasoning, IsKeptApartAndLimited) {
  test::ServedModelOptions o;
  o.engine.ctx = 256;
  const ServedModel thinker(test::text_package("qwen3_moe"), o);
  const Json base = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                     {"seed", 5},
                     {"max_tokens", 40},
                     {"ignore_eos", true},
                     {"chat_template_kwargs", {{"think", true}}}};
  const Json all = thinker.post("/v1/chat/completions", base).json();
  EXPECT_EQ(all["choices"][0]["message"]["content"], "");  // it never stops thinking by itself
  EXPECT_FALSE(all["choices"][0]["message"]["reasoning_content"].get<std::string>().empty());
  EXPECT_EQ(all["usage"]["completion_tokens_details"]["reasoning_tokens"], 40);
  Json limited = base;
  limited["reasoning_budget_tokens"] = 6;
  const Json one = thinker.post("/v1/chat/completions", limited).json()["choices"][0]["message"];
  const std::string reasoning = one["reasoning_content"];
  EXPECT_TRUE(all["choices"][0]["message"]["reasoning_content"].get<std::string>().starts_with(reasoning))
      << reasoning;
  EXPECT_FALSE(one["content"].get<std::string>().empty());
  // A form that is asked for is the answer's, not the thought's.
  limited["grammar"] = "root ::= \"yes\" | \"no\"";
  const Json formed = thinker.post("/v1/chat/completions", limited).json()["choices"][0]["message"];
  EXPECT_EQ(formed["reasoning_content"], reasoning);
  EXPECT_TRUE(formed["content"] == "yes" || formed["content"] == "no") << formed.dump();
  // The other forms of the same.
  limited.erase("grammar");
  limited["stream"] = true;
  std::string streamed;
  for (const auto& event : thinker.post("/v1/chat/completions", limited).events())
    if (event.data != "[DONE]")
      streamed += parse_json(event.data, "a chunk")["choices"][0]["delta"].value("reasoning_content", "");
  EXPECT_EQ(streamed, reasoning);
}

}  // namespace
}  // namespace moeflux
