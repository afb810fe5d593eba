#include "server/openai_completions.h"

#include <algorithm>
#include <ctime>

#include "server/json_text.h"
#include "server/tool_calls.h"
#include "text/utf8.h"

namespace moeflux {
namespace {

constexpr uint64_t kDefaultTokens = 16, kMostCompletions = 128, kMostPrompts = 128,
                   kMostCompletionLogprobs = 5;

std::vector<Token> token_ids(const OrderedJson& list, const TextModel& model, const std::string& path) {
  std::vector<Token> ids;
  for (const OrderedJson& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() >= model.n_vocab())
      throw ApiError(
          400, fmt::format("'{}' holds {}, want token ids below {}", path, json_text(item), model.n_vocab()),
          path, "invalid_value");
    ids.push_back(static_cast<Token>(item.get<uint64_t>()));
  }
  return ids;
}

TextPrompt text_prompt(const OrderedJson& prompt, const TextModel& model, const std::string& path) {
  TextPrompt out{.tokens = {}, .text = {}, .continued = true};
  if (prompt.is_string()) {
    out.text = prompt.get<std::string>();
    out.tokens = model.encode_text(out.text, Markers::AsText);
  } else {
    if (!prompt.is_array())
      throw ApiError(400, fmt::format("'{}' is neither text nor a list of token ids", path), path,
                     "invalid_type");
    out.tokens = token_ids(prompt, model, path);
    out.text = model.tokenizer().decode(out.tokens);
  }
  if (out.tokens.empty())
    throw ApiError(400, fmt::format("'{}' is empty: there is nothing to continue", path), path,
                   "invalid_value");
  return out;
}

// A string, ids, or a list of either.
std::vector<TextPrompt> read_prompts(const RequestFields& fields, const TextModel& model) {
  const OrderedJson* prompt = fields.find("prompt");
  if (!prompt) fields.missing("prompt");
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return {text_prompt(*prompt, model, "prompt")};
  if (prompt->size() > kMostPrompts)
    throw ApiError(400, fmt::format("there are {} prompts, want at most {}", prompt->size(), kMostPrompts),
                   "prompt", "invalid_value");
  std::vector<TextPrompt> out;
  for (size_t i = 0; i < prompt->size(); ++i)
    out.push_back(text_prompt((*prompt)[i], model, fmt::format("prompt[{}]", i)));
  return out;
}

size_t characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// The older API's lists, which run on over the chunks of a stream.
class LegacyLogprobs {
 public:
  explicit LegacyLogprobs(size_t offset) : offset_(offset) {}

  OrderedJson json(const TokenLogprobs& logprobs) {
    OrderedJson out = {{"tokens", OrderedJson::array()},
                       {"token_logprobs", OrderedJson::array()},
                       {"top_logprobs", OrderedJson::array()},
                       {"text_offset", OrderedJson::array()}};
    for (const TokenLogprob& one : logprobs) {
      const std::string text = replace_ill_formed(one.token.bytes);
      OrderedJson top = OrderedJson::object();
      for (const TokenLogprob::One& other : one.top)
        top[replace_ill_formed(other.bytes)] = finite_logprob(other.logprob);
      top[text] = finite_logprob(one.token.logprob);  // the chosen one is always among them
      out["tokens"].push_back(text);
      out["token_logprobs"].push_back(finite_logprob(one.token.logprob));
      out["top_logprobs"].push_back(std::move(top));
      out["text_offset"].push_back(offset_);
      offset_ += characters(text);
    }
    return out;
  }

 private:
  size_t offset_;
};

OrderedJson frame(const HttpExchange& exchange, const ModelInfo& model) {
  return {{"id", "cmpl-" + exchange.id().substr(4)},
          {"object", "text_completion"},
          {"created", std::time(nullptr)},
          {"model", model.id},
          {"system_fingerprint", model.fingerprint}};
}

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model,
                   const OpenAiCompletion& request)
      : exchange_(std::move(exchange)),
        frame_(frame(*exchange_, model)),
        streaming_(request.streaming),
        with_logprobs_(request.logprobs.has_value()) {
    for (const std::string& echo : request.echo)
      choices_.push_back({echo, {}, LegacyLogprobs(characters(echo)), {}});
  }

  void begin(const AnswerUsage&) override {
    if (!streaming_.stream) return;
    exchange_->begin_stream(sse_head());
    for (size_t i = 0; i < choices_.size(); ++i)
      if (!choices_[i].text.empty()) send(i, choices_[i].text, {}, nullptr);
  }

  void add(size_t choice, const AnswerEvent& event, const TokenLogprobs& logprobs) override {
    Choice& c = choices_[choice];
    if (streaming_.stream) return send(choice, event.text, logprobs, nullptr);
    c.text += event.text;
    c.logprobs.insert(c.logprobs.end(), logprobs.begin(), logprobs.end());
  }

  void end_choice(size_t choice, const ChoiceEnd& end) override {
    choices_[choice].end = end;
    if (streaming_.stream) send(choice, "", {}, openai_finish_reason(end));
  }

  void end(const AnswerUsage& usage) override {
    if (streaming_.stream) {
      OrderedJson chunk = frame_;
      chunk["choices"] = OrderedJson::array();
      chunk["usage"] = openai_usage(usage);
      if (streaming_.include_usage) exchange_->write(sse_event(chunk));
      exchange_->write("data: [DONE]\n\n");
      return exchange_->end();
    }
    OrderedJson body = frame_;
    body["choices"] = OrderedJson::array();
    for (size_t i = 0; i < choices_.size(); ++i)
      body["choices"].push_back(
          choice_json(i, choices_[i].text, choices_[i].logprobs, openai_finish_reason(choices_[i].end)));
    body["usage"] = openai_usage(usage);
    if (streaming_.timings) body["timings"] = openai_timings(usage);
    exchange_->reply({.body = json_text(body) + "\n"});
  }

  void fail(const ApiError& error) override {
    if (!streaming_.stream) return exchange_->reply(error_response(error, ApiStyle::OpenAi, exchange_->id()));
    exchange_->close_after();
    exchange_->write(sse_event(error_json(error, ApiStyle::OpenAi, exchange_->id())));
    exchange_->end();
  }

 private:
  struct Choice {
    std::string text;
    TokenLogprobs logprobs;
    LegacyLogprobs legacy;
    ChoiceEnd end;
  };

  OrderedJson choice_json(size_t index, const std::string& text, const TokenLogprobs& logprobs,
                          OrderedJson finish) {
    OrderedJson list = nullptr;
    if (with_logprobs_ && (!logprobs.empty() || !streaming_.stream))
      list = choices_[index].legacy.json(logprobs);
    return {{"index", index}, {"text", text}, {"logprobs", list}, {"finish_reason", std::move(finish)}};
  }

  void send(size_t index, const std::string& text, const TokenLogprobs& logprobs, OrderedJson finish) {
    OrderedJson chunk = frame_;
    chunk["choices"] = OrderedJson::array({choice_json(index, text, logprobs, std::move(finish))});
    if (streaming_.include_usage) chunk["usage"] = nullptr;
    exchange_->write(sse_event(chunk));
  }

  const std::shared_ptr<HttpExchange> exchange_;
  const OrderedJson frame_;
  const OpenAiStreaming streaming_;
  const bool with_logprobs_;
  std::vector<Choice> choices_;
};

AnswerForm read_form(const RequestFields& fields) {
  if (const auto grammar = fields.string("grammar"))
    return {.kind = AnswerForm::Kind::OfGrammar, .grammar = *grammar, .param = "grammar"};
  if (const OrderedJson* schema = fields.find("json_schema"))
    return {.kind = AnswerForm::Kind::OfSchema, .schema = *schema, .param = "json_schema"};
  if (const auto format = fields.object("response_format"))
    return read_answer_form(*format, "response_format");
  return {};
}

}  // namespace

OpenAiCompletion parse_openai_completion(const OrderedJson& body, const TextModel& model, size_t context) {
  const RequestFields fields(body);
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
    refuse_field("suffix", "text is written forwards only");
  if (fields.count("best_of", 0, 20).value_or(1) > 1)
    refuse_field("best_of", "every answer is returned: use n");
  TextSettings settings = default_settings(model);
  read_sampling(fields, settings);
  settings.max_tokens = fields.count("max_tokens", 0, UINT32_MAX).value_or(kDefaultTokens);
  const uint64_t n = fields.count("n", 1, kMostCompletions).value_or(1);
  OpenAiCompletion out;
  out.streaming = read_openai_streaming(fields);
  out.logprobs = fields.count("logprobs", 0, kMostCompletionLogprobs);
  const bool echo = fields.flag("echo").value_or(false);
  if (echo && out.logprobs) refuse_field("echo", "the tokens of a prompt have no log-probabilities here");
  const auto grammar = text_grammar(read_form(fields));
  const uint64_t seed = settings.seed.value_or(random_seed());
  std::vector<TextPrompt> prompts = read_prompts(fields, model);
  if (prompts.size() * n > kMostCompletions)
    throw ApiError(
        400,
        fmt::format("{} prompts with {} answers each are more than {}", prompts.size(), n, kMostCompletions),
        "n", "invalid_value");
  for (size_t p = 0; p < prompts.size(); ++p) {
    check_prompt_length(prompts[p].tokens.size(), context,
                        prompts.size() > 1 ? fmt::format("prompt[{}]", p) : "prompt");
    for (size_t i = 0; i < n; ++i) {
      ChoiceSpec spec{.prompt = prompts[p], .request = {}, .prompt_index = p};
      try {
        spec.request = text_request(settings, model, seed + i);
      } catch (const Error& e) {
        throw request_error(e);
      }
      spec.request.grammar = grammar;
      spec.request.generate.sampler.logprobs = out.logprobs;
      out.echo.push_back(echo ? prompts[p].text : "");
      out.choices.push_back(std::move(spec));
    }
  }
  return out;
}

std::unique_ptr<AnswerWriter> openai_completion_writer(std::shared_ptr<HttpExchange> exchange,
                                                       const ModelInfo& model,
                                                       const OpenAiCompletion& request) {
  return std::make_unique<CompletionWriter>(std::move(exchange), model, request);
}

}  // namespace moeflux
