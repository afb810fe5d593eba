#include "server/chat_request.h"

#include <algorithm>
#include <set>

#include "server/tool_calls.h"

namespace moeflux {
namespace {

// An id as a string of digits, as the APIs have it.
bool is_id(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

void read_logit_bias(const RequestFields& fields, TextSettings& settings) {
  const OrderedJson* bias = fields.find("logit_bias");
  if (!bias) return;
  if (!bias->is_object()) fields.wrong("logit_bias", "an object of token ids and numbers");
  for (const auto& [id, value] : bias->items()) {
    if (!is_id(id) || !value.is_number()) fields.wrong("logit_bias", "an object of token ids and numbers");
    const double number = value.get<double>();
    if (!(number >= -100 && number <= 100)) fields.wrong("logit_bias", "numbers from -100 to 100");
    settings.logit_bias.push_back({id, number});
  }
}

// Every byte of an answer is compared with each of them.
constexpr size_t kMostStopTexts = 64, kMostStopBytes = 4096;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
  });
}

// DeepSeek's older models write arguments in a code fence.
bool writes_fences(const ChatTemplate& chat) { return chat.mentions("```json"); }

// A request as the template at hand can render it.
struct Rendering {
  ChatRequest request;
  AnswerFormat format;
};

Rendering fitted(const ChatRequest& original, const TextModel& model) {
  const ChatTemplate& chat = model.chat_template();
  Rendering out{original, chat.answer_format()};
  ChatRequest& request = out.request;
  if (!chat.mentions("developer"))
    for (OrderedJson& message : request.messages)
      if (message["role"] == "developer") message["role"] = "system";
  if (request.tool_choice.mode == ToolChoice::Mode::None) request.tools = nullptr;
  const bool speaks_of_tools =
      !request.tools.is_null() || std::ranges::any_of(request.messages, [](const OrderedJson& m) {
        return m["role"] == "tool" || m.contains("tool_calls");
      });
  if (speaks_of_tools && out.format == AnswerFormat::Plain) {
    describe_tools_in_text(request);
    out.format = AnswerFormat::Tagged;
  }
  if (out.format == AnswerFormat::DeepSeek && !chat.mentions("tools"))
    describe_deepseek_tools(request, writes_fences(chat));
  return out;
}

ChatPrompt render(const ChatRequest& request, const TextModel& model) {
  Conversation conversation;
  conversation.messages = request.messages;
  conversation.tools = request.tools;
  conversation.extra = request.template_variables;
  conversation.add_generation_prompt = !request.continues;
  ChatPrompt rendered;
  try {
    rendered = render_chat(model.chat_template(), model.tokenizer(), conversation, jinja::local_time_now());
  } catch (const jinja::TemplateError& e) {
    throw ApiError(400, "the model's chat template refuses the messages: " + e.message, "messages",
                   "invalid_value");
  }
  if (!request.continues) return rendered;
  // The text of the last message, and nothing after it: the answer goes on there.
  std::string last = request.messages.back()["content"];
  last.erase(last.find_last_not_of(" \t\r\n") + 1);
  const size_t at = last.empty() ? rendered.text.npos : rendered.text.rfind(last);
  if (at == rendered.text.npos)
    throw ApiError(400,
                   "the last message cannot be continued: the model's template does not show it as it is",
                   "messages", "unsupported_value");
  rendered.text.resize(at + last.size());
  std::erase_if(rendered.written, [&](const TextRange& r) { return r.end > rendered.text.size(); });
  return rendered;
}

}  // namespace

void read_sampling(const RequestFields& fields, TextSettings& settings, double most_temperature) {
  const auto number = [&](const char* key, double least, double most, double& into) {
    if (const auto value = fields.number(key, least, most)) into = *value;
  };
  const auto count = [&](const char* key, uint64_t& into) {
    if (const auto value = fields.count(key, 0, UINT32_MAX)) into = *value;
  };
  SamplerOptions& s = settings.sampler;
  number("temperature", 0, most_temperature, s.temperature);
  number("top_p", 0, 1, s.top_p);
  if (const auto k = fields.number("top_k", -1, UINT32_MAX))
    s.top_k = *k <= 0 ? 0 : static_cast<uint64_t>(*k);  // -1 is "off" in some clients
  number("min_p", 0, 1, s.min_p);
  number("typical_p", 0, 1, s.typical_p);
  number("top_n_sigma", 0, 1000, s.top_n_sigma);
  number("xtc_probability", 0, 1, s.xtc_probability);
  number("xtc_threshold", 0, 1, s.xtc_threshold);
  number("frequency_penalty", -2, 2, s.penalties.frequency);
  number("presence_penalty", -2, 2, s.penalties.presence);
  number("repetition_penalty", 0.01, 100, s.penalties.repetition);
  number("repeat_penalty", 0.01, 100, s.penalties.repetition);
  number("dry_multiplier", 0, 1000, s.penalties.dry.multiplier);
  number("dry_base", 1, 1000, s.penalties.dry.base);
  count("dry_allowed_length", s.penalties.dry.allowed_length);
  if (const OrderedJson* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) fields.wrong("seed", "a whole number");
    settings.seed =
        seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  for (std::string& stop : fields.strings("stop"))
    if (!stop.empty()) settings.stop.push_back(std::move(stop));
  check_stop_texts(settings);
  read_logit_bias(fields, settings);
  if (const auto least = fields.count("min_tokens", 0, UINT32_MAX)) settings.min_tokens = *least;
  settings.ignore_eos = fields.flag("ignore_eos").value_or(settings.ignore_eos);
  if (fields.has("stop_token_ids")) refuse_field(fields.path_of("stop_token_ids"));
}

void check_stop_texts(const TextSettings& settings) {
  const bool short_enough = std::ranges::all_of(
      settings.stop, [](const std::string& text) { return text.size() <= kMostStopBytes; });
  if (settings.stop.size() > kMostStopTexts || !short_enough)
    throw ApiError(400, fmt::format("there may be {} stop texts of {} bytes", kMostStopTexts, kMostStopBytes),
                   "stop", "invalid_value");
}

void set_thinking(ChatRequest& request, bool on) {
  // What the templates of different families call it.
  request.template_variables["enable_thinking"] = on;
  request.template_variables["thinking"] = on;
}

void set_reasoning_effort(ChatRequest& request, const std::string& effort) {
  const std::string word = lower_case(effort);
  if (word == "none") return set_thinking(request, false);
  const bool low = word == "minimal" || word == "low",
             high = word == "high" || word == "xhigh" || word == "max";
  request.template_variables["reasoning_effort"] = low ? "low" : high ? "high" : "medium";
  set_thinking(request, true);
}

void read_template_variables(const RequestFields& fields, const char* key, ChatRequest& request) {
  const OrderedJson* variables = fields.find(key);
  if (!variables) return;
  if (!variables->is_object()) fields.wrong(key, "an object");
  for (const auto& [name, value] : variables->items()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt")
      throw ApiError(400, fmt::format("'{}.{}' has a field of its own", fields.path_of(key), name),
                     fields.path_of(key), "invalid_value");
    request.template_variables[name] = value;
  }
}

AnswerForm read_answer_form(const RequestFields& format, const std::string& param) {
  const std::string type = format.required_string("type");
  if (type == "text") return {};
  AnswerForm form{.param = param};
  // The schema lies in json_schema.schema, or directly in the format.
  const auto inner = format.object("json_schema");
  const RequestFields& holder = inner ? *inner : format;
  const OrderedJson* schema = holder.find("schema");
  if (type == "json_object" && !schema) {
    form.kind = AnswerForm::Kind::AnyJson;
  } else if (type == "json_object" || type == "json_schema") {
    if (!schema) holder.missing("schema");
    form.kind = AnswerForm::Kind::OfSchema;
    form.schema = *schema;
  } else if (type == "grammar") {
    form.kind = AnswerForm::Kind::OfGrammar;
    form.grammar = format.required_string("grammar");
  } else {
    throw ApiError(400,
                   fmt::format("'{}' is \"{}\", want text, json_object, json_schema or grammar",
                               format.path_of("type"), type),
                   format.path_of("type"), "unsupported_value");
  }
  return form;
}

void check_tools(const ChatRequest& request, const std::string& param) {
  std::set<std::string> names;
  const size_t n = request.tools.is_null() ? 0 : request.tools.size();
  for (size_t i = 0; i < n; ++i) {
    const std::string name = request.tools[i]["function"]["name"];
    const std::string where = fmt::format("{}[{}]", param, i);
    if (!is_tool_name(name))
      throw ApiError(
          400, fmt::format("'{}': the name \"{}\" is not of 1 to 64 letters, digits, _ and -", where, name),
          where, "invalid_value");
    if (!names.insert(name).second)
      throw ApiError(400, fmt::format("'{}': there are two tools named \"{}\"", where, name), where,
                     "invalid_value");
  }
  for (const std::string& name : request.tool_choice.names)
    if (!names.contains(name))
      throw ApiError(400, fmt::format("'tool_choice': there is no tool named \"{}\"", name), "tool_choice",
                     "invalid_value");
  if (request.tool_choice.mode == ToolChoice::Mode::Required && names.empty())
    throw ApiError(400, "'tool_choice' wants a call, but there are no tools", "tool_choice", "invalid_value");
}

void check_prompt_length(size_t n_prompt, size_t context, const std::string& param) {
  if (n_prompt < context) return;
  ApiError error(
      400,
      fmt::format("the prompt has {} tokens, which leaves no room in the context of {}", n_prompt, context),
      param, "context_length_exceeded");
  error.more = {{"n_prompt_tokens", n_prompt}, {"n_ctx", context}};
  throw error;
}

ChatPrompt render_request(const ChatRequest& request, const TextModel& model) {
  return render(fitted(request, model).request, model);
}

std::vector<ChoiceSpec> make_choices(const ChatRequest& original, const TextModel& model, size_t context) {
  const auto [request, format] = fitted(original, model);
  const ChatPrompt rendered = render(request, model);
  ChoiceSpec spec;
  spec.prompt = {encode_chat(model.tokenizer(), rendered), rendered.text};
  check_prompt_length(spec.prompt.tokens.size(), context, "messages");
  const bool in_thought = ends_in_thought(rendered.text);
  spec.answer = AnswerOptions{.format = format, .starts_in_thought = in_thought, .tools = request.tools};
  const auto grammar =
      answer_grammar(request, {.format = format,
                               .is_fenced = writes_fences(model.chat_template()),
                               .is_special = [&](std::string_view tag) { return model.is_special(tag); }});
  try {
    check_grammar(model, grammar.get());
  } catch (const Error& e) {
    throw request_error(e, request.form.param.empty() ? "tool_choice" : request.form.param);
  }
  // Without tools, what looks like a call is text.
  if (request.tools.is_null() && format != AnswerFormat::Harmony) spec.answer->format = AnswerFormat::Plain;
  spec.one_call = !request.tool_choice.parallel && !request.tools.is_null();
  std::vector<ChoiceSpec> choices(request.n, spec);
  const uint64_t seed = request.settings.seed.value_or(random_seed());
  for (size_t i = 0; i < request.n; ++i) {
    try {
      choices[i].request = text_request(request.settings, model, seed + i);
    } catch (const Error& e) {
      throw request_error(e);
    }
    choices[i].request.grammar = grammar;
    choices[i].request.grammar_after_thought = in_thought;
    choices[i].request.most_thought_tokens = request.thinking_budget;
    choices[i].request.generate.sampler.logprobs = request.logprobs;
  }
  return choices;
}

}  // namespace moeflux
