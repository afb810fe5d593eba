#include "server/tool_calls.h"

#include <algorithm>

#include "server/json_text.h"
#include "text/json_schema.h"

namespace moeflux {
namespace {

using E = Expression;

constexpr std::string_view kOpener = "<tool_call>", kCloser = "</tool_call>";

const OrderedJson kAnyObject = {{"type", "object"}};

std::string call_text(const OrderedJson& function) {
  return fmt::format("{}\n{{\"name\": {}, \"arguments\": {}}}\n{}", kOpener, json_text(function["name"]),
                     json_text(function["arguments"]), kCloser);
}

std::string tools_text(const OrderedJson& tools) {
  std::string text = "You can call these functions, each described by a JSON object:\n";
  for (const OrderedJson& tool : tools) text += json_text(tool["function"]) + "\n";
  text +=
      "To call one, write its name and its arguments as JSON between tags, and nothing after them:\n"
      "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>";
  return text;
}

bool allowed(const OrderedJson& tool, const ToolChoice& choice) {
  const std::string name = tool["function"]["name"];
  return choice.names.empty() || std::ranges::find(choice.names, name) != choice.names.end();
}

bool is_strict(const OrderedJson& tool) {
  const OrderedJson& function = tool["function"];
  return function.contains("strict") && function["strict"] == true;
}

class GrammarOfAnswers {
 public:
  explicit GrammarOfAnswers(const ChatRequest& request) : request_(request) {}

  std::shared_ptr<const Grammar> build() {
    const E root = request_.tool_choice.mode == ToolChoice::Mode::Required ? only_calls() : text_or_calls();
    rules_.root = rules_.add("answer", root);
    return std::make_shared<Grammar>(rules_);
  }

 private:
  E only_calls() { return E::sequence({spaces(), calls()}); }

  E text_or_calls() {
    if (request_.form.kind == AnswerForm::Kind::Free)
      return E::sequence({E::of_graph(text_without(kOpener)), E::optional(calls())});
    return E::choice({form(), only_calls()});
  }

  E calls() {
    std::vector<E> each;
    for (const OrderedJson& tool : request_.tools)
      if (allowed(tool, request_.tool_choice)) each.push_back(call(tool["function"], is_strict(tool)));
    const E one = E::call(rules_.add("call", E::choice(std::move(each))));
    if (!request_.tool_choice.parallel) return one;
    return E::sequence({one, E::repeat(E::sequence({spaces(), one}), 0, kUnbounded)});
  }

  E call(const OrderedJson& function, bool strict) {
    return E::sequence(
        {E::literal(fmt::format("{}\n{{\"name\": {}, \"arguments\": ", kOpener, json_text(function["name"]))),
         E::call(arguments(function, strict)), E::literal(fmt::format("}}\n{}", kCloser))});
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

  // Any bytes in which these do not occur.
  static ByteGraph text_without(std::string_view word) {
    ByteGraph graph;
    for (size_t matched = 0; matched < word.size(); ++matched) {
      ByteGraph::State state{.edges = {}, .accepting = true};
      for (int byte = 0; byte < 256; ++byte) {
        // The longest beginning of the word that ends what has come.
        const std::string seen = std::string(word.substr(0, matched)) + static_cast<char>(byte);
        size_t n = seen.size();
        while (n > 0 && !seen.ends_with(word.substr(0, n))) --n;
        if (n == word.size()) continue;
        const auto target = static_cast<uint32_t>(n);
        const auto value = static_cast<uint8_t>(byte);
        if (!state.edges.empty() && state.edges.back().target == target &&
            state.edges.back().high + 1 == byte)
          state.edges.back().high = value;
        else
          state.edges.push_back({value, value, target});
      }
      graph.states.push_back(std::move(state));
    }
    return graph;
  }

  const ChatRequest& request_;
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
  if (!request.tools.is_null()) {
    const std::string text = tools_text(request.tools);
    if (!messages.empty() && messages.front()["role"] == "system")
      messages.front()["content"] = messages.front()["content"].get<std::string>() + "\n\n" + text;
    else
      messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", text}});
  }
  request.messages = std::move(messages);
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

std::shared_ptr<const Grammar> answer_grammar(const ChatRequest& request, AnswerFormat format) {
  const AnswerForm& form = request.form;
  const bool tools = !request.tools.is_null() && request.tool_choice.mode != ToolChoice::Mode::None;
  if (!tools) return text_grammar(form);
  const bool required = request.tool_choice.mode == ToolChoice::Mode::Required;
  const bool strict = std::ranges::any_of(request.tools, is_strict);
  if (!required && !strict && form.kind == AnswerForm::Kind::Free) return nullptr;
  if (format != AnswerFormat::Tagged) {
    const char* param = required ? "tool_choice" : strict ? "tools" : form.param.c_str();
    refuse_field(param, "this model writes calls in a form to which a grammar cannot be applied");
  }
  try {
    return GrammarOfAnswers(request).build();
  } catch (const Error& e) {
    throw request_error(e, "tools");
  }
}

}  // namespace moeflux
