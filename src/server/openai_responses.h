// POST /v1/responses: the OpenAI API of items and events, in and out.
#pragma once

#include "server/openai_chat.h"
#include "server/response_store.h"

namespace moeflux {

struct OpenAiResponse {
  ChatRequest request;
  OrderedJson messages;  // of the request, without instructions
  OrderedJson input;     // the items of this request
  OrderedJson frame;     // what the response object says of the request
  bool stream = false, store = true;
};

OpenAiResponse parse_openai_response(const OrderedJson& body, const TextModel& model, ResponseStore& store);
// The store is told of the answer; it must live as long as the server.
std::unique_ptr<AnswerWriter> openai_response_writer(std::shared_ptr<HttpExchange> exchange,
                                                     const ModelInfo& model, const OpenAiResponse& request,
                                                     ResponseStore& store);

}  // namespace moeflux
