// Items of the responses API as messages for a chat template.
#pragma once

#include "server/request_fields.h"

namespace moeflux {

// Appends the messages of one item. What a model said in several items in a row is one turn.
void append_item(const RequestFields& item, OrderedJson& messages);

// A request's input as a list of items: text alone is a message of the user.
OrderedJson input_items(const RequestFields& fields);

}  // namespace moeflux
