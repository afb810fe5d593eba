// Sampling options of the C API as the settings that the engine's parts take.
#pragma once

#include "api/model_state.h"
#include "gen/text_settings.h"

namespace moeflux::api {

// `sampling` may be null: the model's defaults, with a seed of their own. Throws a Failure that names what is
// wrong.
TextSettings read_sampling(const ModelState& model, const moeflux_sampling* sampling);
// With texts turned into tokens, as far as the model has text. The settings' seed is used.
TextRequest request_of(ModelState& model, const TextSettings& settings);

std::vector<std::string> read_texts(const char* const* texts, size_t n, const char* name);

}  // namespace moeflux::api
