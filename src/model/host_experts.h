// Experts that the processor computes for a backend whose own memory does not hold them: often that is
// quicker than to bring them there. The results have the bits that the backend itself would give
// (ops/linear.h).
#pragma once

#include <functional>
#include <span>

#include "model/weights.h"

namespace moeflux {

class HostExperts {
 public:
  virtual ~HostExperts() = default;

  struct Part {  // one expert and the tokens that go through it
    MlpWeights w;
    const uint32_t* pick;  // [n]: tokens
    size_t n;
    float* out;  // [n, d_model]
  };
  // x: [n_tokens, d_model], the normed input. `first` is called once, by the calling thread, when others have
  // begun with the work.
  virtual void compute(std::span<const Part> parts, const float* x, size_t n_tokens,
                       const std::function<void()>& first) = 0;
};

}  // namespace moeflux
