// Messages of the chat completions API, checked, as a chat template wants them: text in one piece, arguments
// of calls as objects.
#pragma once

#include "server/request_fields.h"

namespace moeflux {

inline constexpr size_t kMostMessages = 10'000;

OrderedJson read_openai_messages(const RequestFields& fields);

// The text of a string or of a list of text parts; other kinds of parts are refused by name.
std::string text_of_content(const OrderedJson& content, const std::string& path,
                            std::initializer_list<const char*> text_types);
// The arguments of a call: JSON in a string, as an object.
OrderedJson parsed_arguments(const std::string& text, const std::string& path);

}  // namespace moeflux
