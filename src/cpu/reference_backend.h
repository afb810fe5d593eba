// cpu-ref: the plain scalar backend, one operation after the other in float32. It is the oracle for every
// other backend and therefore kept obvious; speed is not its business.
#pragma once

#include "model/backend.h"

namespace moeflux {

std::unique_ptr<Backend> make_reference_backend(const ModelConfig& model, const ModelWeights& weights,
                                                Precision precision);

}  // namespace moeflux
