// A request for an answer, as all APIs mean it: each reads its own JSON into this, and this becomes a prompt
// and a generation. Knows no HTTP.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gen/text_session.h"
#include "gen/text_settings.h"
#include "server/request_fields.h"
#include "text/answer_parser.h"

namespace moeflux {

// What the answer's text must be.
struct AnswerForm {
  enum class Kind { Free, AnyJson, OfSchema, OfGrammar };
  Kind kind = Kind::Free;
  OrderedJson schema = {};
  std::string grammar = {};
  std::string param = {};  // the field that asked for it
};

struct ToolChoice {
  enum class Mode { Auto, None, Required };
  Mode mode = Mode::Auto;
  std::vector<std::string> names = {};  // only these may be called; empty: all
  bool parallel = true;                 // more than one call in an answer
};

struct ChatRequest {
  OrderedJson messages = OrderedJson::array();  // as the chat completions API has them, for the template
  OrderedJson tools = {};                       // likewise; null where there are none
  ToolChoice tool_choice = {};
  OrderedJson template_variables = OrderedJson::object();
  std::optional<uint64_t> thinking_budget = {};  // tokens
  AnswerForm form = {};
  TextSettings settings = {};
  std::optional<uint64_t> logprobs = {};  // likeliest tokens to report beside the chosen one
  size_t n = 1;                           // answers
  bool continues = false;                 // the last message is the beginning of the answer
};

// One generation.
struct ChoiceSpec {
  TextPrompt prompt;
  TextRequest request;
  std::optional<AnswerOptions> answer = {};  // how to take the text apart; none: all of it is text
  bool one_call = false;                     // the answer ends with its first call
  size_t prompt_index = 0;                   // choices with the same prompt have the same
};

// Sampling, stop texts and lengths, under the names that all APIs and many servers use. `most_temperature`
// differs between APIs. What is not there stays as it is.
void read_sampling(const RequestFields& fields, TextSettings& settings, double most_temperature = 2);
void check_stop_texts(const TextSettings& settings);
// "none" to "max", for templates that know such a switch.
void set_reasoning_effort(ChatRequest& request, const std::string& effort);
void set_thinking(ChatRequest& request, bool on);
// chat_template_kwargs and such: members become variables of the template.
void read_template_variables(const RequestFields& fields, const char* key, ChatRequest& request);
// {"type": "json_schema", ...} as `response_format` and as the responses API's text.format have it.
AnswerForm read_answer_form(const RequestFields& format, const std::string& param);

// A list of tools in the chat completions form, checked.
void check_tools(const ChatRequest& request, const std::string& param);

// One per answer that is wanted. Throws ApiError.
std::vector<ChoiceSpec> make_choices(const ChatRequest& request, const TextModel& model, size_t context);
ChatPrompt render_request(const ChatRequest& request, const TextModel& model);

// Throws ApiError where the prompt leaves no room in the context.
void check_prompt_length(size_t n_prompt, size_t context, const std::string& param);

}  // namespace moeflux
