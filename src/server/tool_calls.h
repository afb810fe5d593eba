// Tools for models whose template says nothing of them, and grammars that hold an answer to calls.
//
// The calls that are asked for or forced here are written <tool_call>{"name": ..., "arguments":
// {...}}</tool_call>, which the parser reads in every model whose calls are tagged.
#pragma once

#include <memory>

#include "server/chat_request.h"
#include "text/grammar.h"

namespace moeflux {

// Puts the description of the tools into the system message, and calls and their results into the texts of
// turns, so that a template that knows none of these can render them.
void describe_tools_in_text(ChatRequest& request);

// Of a form alone; null where any text will do. Throws ApiError.
std::shared_ptr<const Grammar> text_grammar(const AnswerForm& form);

// What may be said with tools: nothing but calls (when they are required), or text of the form that is asked
// for and calls. Null where nothing needs to be enforced. Throws ApiError naming the tool at fault.
std::shared_ptr<const Grammar> answer_grammar(const ChatRequest& request, AnswerFormat format);

}  // namespace moeflux
