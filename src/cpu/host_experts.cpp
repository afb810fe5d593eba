#include "cpu/host_experts.h"

#include <algorithm>

#include "cpu/feed_forward.h"

namespace moeflux {
namespace {

class CpuExperts : public HostExperts {
 public:
  CpuExperts(const ModelConfig& model, const CpuOptions& options)
      : m_(model),
        ops_(*options.ops),
        pool_(options.threads),
        products_(ops_, pool_, options.precision),
        feed_forward_(model, products_) {}

  void compute(std::span<const Part> parts, const float* x, size_t n_tokens,
               const std::function<void()>& first) override {
    const Panel h = h_.make(n_tokens, m_.d_model);
    for (size_t t = 0; t < n_tokens; ++t) {
      float* to = const_cast<float*>(h.f) + t * h.stride;
      std::copy_n(x + t * m_.d_model, m_.d_model, to);
      if (products_.fast()) ops_.quantise(to, h, t);
    }
    inputs_.clear();
    for (const Part& p : parts) inputs_.push_back({p.w, m_.moe.activation, p.pick, p.n, p.out});
    feed_forward_.run(inputs_, h, first);
  }

 private:
  const ModelConfig& m_;
  const Ops& ops_;
  WorkerPool pool_;
  Products products_;
  FeedForward feed_forward_;
  Activations h_;
  std::vector<ExpertInput> inputs_;
};

}  // namespace

std::unique_ptr<HostExperts> make_host_experts(const ModelConfig& model, const CpuOptions& options) {
  return std::make_unique<CpuExperts>(model, options);
}

}  // namespace moeflux
