// POST /v1/chat/completions: its JSON, in and out.
#pragma once

#include <memory>

#include "server/answer_job.h"
#include "server/model_info.h"

namespace moeflux {

struct OpenAiStreaming {
  bool stream = false, include_usage = false, progress = false, timings = false;
};

struct OpenAiChat {
  ChatRequest request;
  OpenAiStreaming streaming;
};

OpenAiChat parse_openai_chat(const OrderedJson& body, const TextModel& model);
std::unique_ptr<AnswerWriter> openai_chat_writer(std::shared_ptr<HttpExchange> exchange,
                                                 const ModelInfo& model, const OpenAiStreaming& streaming,
                                                 size_t n);

// What the chat and completions APIs share.
OpenAiStreaming read_openai_streaming(const RequestFields& fields);
void refuse_unsupported(const RequestFields& fields, std::initializer_list<const char*> names);
// Tools as the template is given them. `flat`: name and parameters lie directly in the tool.
OrderedJson read_openai_tools(const RequestFields& fields, bool flat);
ToolChoice read_openai_tool_choice(const RequestFields& fields);
OrderedJson openai_usage(const AnswerUsage& usage);
OrderedJson openai_timings(const AnswerUsage& usage);
OrderedJson chat_logprobs(const TokenLogprobs& logprobs);  // the list of entries
double finite_logprob(double logprob);                     // minus infinity is no JSON
const char* openai_finish_reason(const ChoiceEnd& end);
std::string new_call_id();
HttpResponse sse_head();  // the beginning of a stream of events

}  // namespace moeflux
