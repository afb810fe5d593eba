#include "cpu/feed_forward.h"

#include <algorithm>

namespace moeflux {

// Gate, up and activation of all inputs in one region, down in a second one.
void FeedForward::run(std::span<const ExpertInput> inputs, const Panel& h,
                      const std::function<void()>& first) {
  size_t rows = 0, width = 0;
  for (const ExpertInput& in : inputs) {
    rows += in.n;
    width = std::max(width, in.w.gate.w.rows);
  }
  const Panel room = hidden_.make(rows, width);
  std::vector<GatedProduct> up;
  std::vector<Product> down;
  size_t at = 0;
  for (const ExpertInput& in : inputs) {
    const size_t cols = in.w.gate.w.rows, spans = span_count(width);
    const Panel hidden{
        in.n, cols, room.f + at * width, cols, room.q + at * spans * 64, room.scale + at * spans};
    up.push_back({&in.w, in.activation, m_.moe.clamp, h, in.pick, in.n, hidden});
    down.push_back({in.w.down.w, in.w.down.bias, hidden, nullptr, in.n, in.out, m_.d_model});
    at += in.n;
  }
  products_.run(up, first);
  products_.run(down);
}

}  // namespace moeflux
