#include "server/tool_calls.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "server/json_text.h"
#include "text/json_schema.h"
#include "text/token_mask.h"

namespace moeflux {
namespace {

using E = Expression;

constexpr std::string_view kOpener = "<tool_call>", kCloser = "</tool_call>";

const OrderedJson kAnyObject = {{"type", "object"}};

std::string call_text(const OrderedJson& function) {
  return fmt::format("{}\n{{\"name\": {}, \"arguments\": {}}}\n{}", kOpener, json_text(function["name"]),
                     json_text(function["arguments"]), kCloser);
}

constexpr const char* kTaggedCall = "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>";

std::string deepseek_call(bool is_fenced) {
  const CallTags& t = kDeepSeekTags;
  const auto [head, body] =
      is_fenced ? std::pair("function", "NAME\n```json\n{}\n```") : std::pair("NAME", "{}");
  return fmt::format("{}{}{}{}{}{}{}", t.section, t.call, head, t.separator, body, t.call_end, t.section_end);
}

// Into the system message.
void tell_tools(OrderedJson& messages, const OrderedJson& tools, const std::string& example) {
  std::string text = "You can call these functions, each described by a JSON object:\n";
  for (const OrderedJson& tool : tools) text += json_text(tool["function"]) + "\n";
  text += "To call one, write its name and its arguments as JSON between tags, and nothing after them:\n" +
          example;
  if (!messages.empty() && messages.front()["role"] == "system")
    messages.front()["content"] = messages.front()["content"].get<std::string>() + "\n\n" + text;
  else
    messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", text}});
}

bool allowed(const OrderedJson& tool, const ToolChoice& choice) {
  const std::string name = tool["function"]["name"];
  return choice.names.empty() || std::ranges::find(choice.names, name) != choice.names.end();
}

bool is_strict(const OrderedJson& tool) {
  const OrderedJson& function = tool["function"];
  return function.contains("strict") && function["strict"] == true;
}

// Any bytes but those of special tokens, in which none of these words occurs.
ByteGraph text_without(std::span<const std::string_view> words) {
  std::map<std::string, uint32_t> states = {{"", 0}};  // beginnings of words, each for a text that ends so
  for (const std::string_view word : words)
    for (size_t n = 1; n < word.size(); ++n) states.try_emplace(std::string(word.substr(0, n)), 0);
  uint32_t n_states = 0;
  for (auto& [text, state] : states) state = n_states++;  // in order: the empty text is state 0
  ByteGraph graph;
  for (const auto& [text, from] : states) {
    ByteGraph::State state{.edges = {}, .accepting = true};
    for (int byte = 0; byte < kSpecialTokenByte; ++byte) {
      std::string seen = text + static_cast<char>(byte);
      if (std::ranges::any_of(words, [&](std::string_view word) { return seen.ends_with(word); })) continue;
      while (!states.contains(seen)) seen.erase(0, 1);
      const uint32_t target = states.at(seen);
      const auto value = static_cast<uint8_t>(byte);
      if (!state.edges.empty() && state.edges.back().target == target && state.edges.back().high + 1 == byte)
        state.edges.back().high = value;
      else
        state.edges.push_back({value, value, target});
    }
    graph.states.push_back(std::move(state));
  }
  return graph;
}

class GrammarOfAnswers {
 public:
  GrammarOfAnswers(const ChatRequest& request, const CallForm& calls) : request_(request), form_(calls) {}

  std::shared_ptr<const Grammar> build() {
    const E root = request_.tool_choice.mode == ToolChoice::Mode::Required ? only_calls() : text_or_calls();
    rules_.root = rules_.add("answer", root);
    return std::make_shared<Grammar>(rules_);
  }

 private:
  E only_calls() { return E::sequence({spaces(), calls()}); }

  E text_or_calls() {
    if (request_.form.kind == AnswerForm::Kind::Free)
      return E::sequence({E::of_graph(text_without(call_openers(form_.format))), E::optional(calls())});
    return E::choice({form(), only_calls()});
  }

  E calls() {
    std::vector<E> each;
    for (const OrderedJson& tool : request_.tools)
      if (allowed(tool, request_.tool_choice)) each.push_back(call(tool["function"], is_strict(tool)));
    const E one = E::call(rules_.add("call", E::choice(std::move(each))));
    const uint32_t most = request_.tool_choice.parallel ? kUnbounded : 0;
    const E several = E::sequence({one, E::repeat(E::sequence({spaces(), one}), 0, most)});
    const CallTags* tags = this->tags();
    return tags ? E::sequence({tag(tags->section), several, tag(tags->section_end)}) : several;
  }

  E call(const OrderedJson& function, bool strict) {
    const E of = E::call(arguments(function, strict));
    const std::string name = function["name"];
    const CallTags* tags = this->tags();
    if (!tags)
      return E::sequence({E::literal(fmt::format("{}\n{{\"name\": {}, \"arguments\": ", kOpener,
                                                 json_text(function["name"]))),
                          of, E::literal(fmt::format("}}\n{}", kCloser))});
    const auto tagged = [&](E head, E body) {
      return E::sequence(
          {tag(tags->call), std::move(head), tag(tags->separator), std::move(body), tag(tags->call_end)});
    };
    if (form_.format == AnswerFormat::Kimi)
      return tagged(E::sequence({E::literal("functions." + name + ":"), index()}), of);
    if (form_.is_fenced)
      return tagged(E::literal("function"),
                    E::sequence({E::literal(name + "\n```json\n"), of, E::literal("\n```")}));
    return tagged(E::literal(name), of);
  }

  const CallTags* tags() const {
    return form_.format == AnswerFormat::DeepSeek ? &kDeepSeekTags
           : form_.format == AnswerFormat::Kimi   ? &kKimiTags
                                                  : nullptr;
  }

  E tag(std::string_view text) const {
    return E::literal(form_.is_special(text) ? special_token_bytes(text) : std::string(text));
  }

  // The call's place among all, which the model counts.
  static E index() {
    const E digits = E::repeat(E::one_of({{'0', '9'}}), 0, 3);
    return E::choice({E::literal("0"), E::sequence({E::one_of({{'1', '9'}}), digits})});
  }

  uint32_t arguments(const OrderedJson& function, bool strict) {
    const bool has_schema = function.contains("parameters") && function["parameters"].is_object();
    if (has_schema && !function["parameters"].empty()) {
      try {
        return rules_.add(json_schema_rules(function["parameters"]));
      } catch (const Error& e) {
        if (strict)
          throw ApiError(
              400, fmt::format("the parameters of '{}': {}", function["name"].get<std::string>(), e.what()),
              "tools", "invalid_function_parameters");
      }
    }
    return rules_.add(json_schema_rules(kAnyObject));  // nobody has promised more
  }

  E form() {
    try {
      if (request_.form.kind == AnswerForm::Kind::OfGrammar)
        return E::call(rules_.add(parse_grammar_rules(request_.form.grammar)));
      const bool schema = request_.form.kind == AnswerForm::Kind::OfSchema;
      return E::call(rules_.add(json_schema_rules(schema ? request_.form.schema : kAnyObject)));
    } catch (const Error& e) {
      throw request_error(e, request_.form.param);
    }
  }

  static E spaces() { return E::repeat(E::one_of({{'\n', '\n'}, {' ', ' '}}), 0, 3); }

  const ChatRequest& request_;
  const CallForm& form_;
  GrammarRules rules_;
};

}  // namespace

void describe_tools_in_text(ChatRequest& request) {
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& message : request.messages) {
    OrderedJson turn = message;
    const std::string role = message["role"];
    if (role == "assistant" && message.contains("tool_calls")) {
      std::string text = message["content"];
      for (const OrderedJson& call : message["tool_calls"]) {
        if (!text.empty()) text += '\n';
        text += call_text(call["function"]);
      }
      turn["content"] = text;
      turn.erase("tool_calls");
    }
    if (role == "tool") {
      const std::string text =
          fmt::format("<tool_response>\n{}\n</tool_response>", message["content"].get<std::string>());
      if (!messages.empty() && messages.back().contains("of_tools")) {
        messages.back()["content"] = messages.back()["content"].get<std::string>() + "\n" + text;
        continue;
      }
      turn = {{"role", "user"}, {"content", text}, {"of_tools", true}};
    }
    messages.push_back(std::move(turn));
  }
  for (OrderedJson& message : messages) message.erase("of_tools");
  if (!request.tools.is_null()) tell_tools(messages, request.tools, kTaggedCall);
  request.messages = std::move(messages);
}

void describe_deepseek_tools(ChatRequest& request, bool is_fenced) {
  if (!request.tools.is_null()) tell_tools(request.messages, request.tools, deepseek_call(is_fenced));
}

std::shared_ptr<const Grammar> text_grammar(const AnswerForm& form) {
  if (form.kind == AnswerForm::Kind::Free) return nullptr;
  try {
    if (form.kind == AnswerForm::Kind::OfGrammar)
      return std::make_shared<Grammar>(Grammar::parse(form.grammar));
    const OrderedJson& schema = form.kind == AnswerForm::Kind::OfSchema ? form.schema : kAnyObject;
    return std::make_shared<Grammar>(compile_json_schema(schema.dump()));
  } catch (const Error& e) {
    throw request_error(e, form.param);
  }
}

std::shared_ptr<const Grammar> answer_grammar(const ChatRequest& request, const CallForm& calls) {
  const AnswerForm& form = request.form;
  const bool tools = !request.tools.is_null() && request.tool_choice.mode != ToolChoice::Mode::None;
  if (!tools) return text_grammar(form);
  const bool required = request.tool_choice.mode == ToolChoice::Mode::Required;
  const bool strict = std::ranges::any_of(request.tools, is_strict);
  if (!required && !strict && form.kind == AnswerForm::Kind::Free) return nullptr;
  constexpr std::array kEnforced = {AnswerFormat::Tagged, AnswerFormat::DeepSeek, AnswerFormat::Kimi};
  if (std::ranges::find(kEnforced, calls.format) == kEnforced.end()) {
    const char* param = required ? "tool_choice" : strict ? "tools" : form.param.c_str();
    refuse_field(param, "this model writes calls in a form to which a grammar cannot be applied");
  }
  try {
    return GrammarOfAnswers(request, calls).build();
  } catch (const Error& e) {
    throw request_error(e, "tools");
  }
}

}  // namespace moeflux
