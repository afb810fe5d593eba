#include "cuda/experts.h"
#include "model/weights.h"

namespace moeflux::cuda {

ExpertLayout expert_layout(const MlpWeights& w, float clamp) {
  const auto* base = w.gate.w.data;
  const auto part = [&](const Linear& l) {
    return ExpertLayout::Part{
        l.w.format, l.w.rows, l.w.cols, l.w.data - base,
        l.bias.empty() ? ExpertLayout::kNone : reinterpret_cast<const std::byte*>(l.bias.data()) - base};
  };
  return {part(w.gate), part(w.up), part(w.down), clamp};
}

}  // namespace moeflux::cuda
