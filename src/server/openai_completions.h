// POST /v1/completions: texts to be continued, without a conversation.
#pragma once

#include "server/openai_chat.h"

namespace moeflux {

struct OpenAiCompletion {
  std::vector<ChoiceSpec> choices;  // prompt by prompt
  std::vector<std::string> echo;    // by choice: the prompt's text, where it is to be part of the answer
  std::optional<uint64_t> logprobs = {};
  OpenAiStreaming streaming;
};

OpenAiCompletion parse_openai_completion(const OrderedJson& body, const TextModel& model, size_t context);
std::unique_ptr<AnswerWriter> openai_completion_writer(std::shared_ptr<HttpExchange> exchange,
                                                       const ModelInfo& model,
                                                       const OpenAiCompletion& request);

}  // namespace moeflux
