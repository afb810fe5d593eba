// Tools for models whose template says nothing of them, and grammars that hold an answer to calls.
//
// Calls are asked for as <tool_call>{"name": ..., "arguments": {...}}</tool_call>, and forced in this form
// too in every model whose calls are tagged, since the parser reads it; in others in the model's own.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "server/chat_request.h"
#include "text/grammar.h"

namespace moeflux {

// Puts the description of the tools into the system message, and calls and their results into the texts of
// turns, so that a template that knows none of these can render them.
void describe_tools_in_text(ChatRequest& request);
// The description alone, for templates of DeepSeek's that write calls and results but never say what tools
// there are. `is_fenced`: as in CallForm.
void describe_deepseek_tools(ChatRequest& request, bool is_fenced);

// Of a form alone; null where any text will do. Throws ApiError.
std::shared_ptr<const Grammar> text_grammar(const AnswerForm& form);

// How the model at hand writes calls.
struct CallForm {
  AnswerFormat format = AnswerFormat::Tagged;
  bool is_fenced = false;  // DeepSeek: the older form, with the arguments in a code fence
  // Whether a tag is a special token of the vocabulary; otherwise it is spelled.
  std::function<bool(std::string_view)> is_special = [](std::string_view) { return false; };
};

// What may be said with tools: nothing but calls (when they are required), or text of the form that is asked
// for and calls. Null where nothing needs to be enforced. Throws ApiError naming the tool at fault.
std::shared_ptr<const Grammar> answer_grammar(const ChatRequest& request, const CallForm& form);

}  // namespace moeflux
