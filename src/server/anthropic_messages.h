// POST /v1/messages: the Anthropic API's JSON, in and out.
#pragma once

#include <memory>

#include "server/answer_job.h"
#include "server/model_info.h"

namespace moeflux {

struct AnthropicMessage {
  ChatRequest request;
  bool stream = false;
};

// `counting`: for /v1/messages/count_tokens, where no length is asked for.
AnthropicMessage parse_anthropic_message(const OrderedJson& body, const TextModel& model,
                                         bool counting = false);
std::unique_ptr<AnswerWriter> anthropic_writer(std::shared_ptr<HttpExchange> exchange, const ModelInfo& model,
                                               bool stream);

inline constexpr std::string_view kAnthropicPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

}  // namespace moeflux
