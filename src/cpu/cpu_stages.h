// The cpu backend's class, for the files that implement it: cpu_backend.cpp (embedding, routing, experts,
// logits) and cpu_mixers.cpp (attention of all kinds).
#pragma once

#include "cpu/cpu_backend.h"
#include "cpu/cpu_sequence.h"
#include "cpu/feed_forward.h"

namespace moeflux {

struct CpuStep : Step {
  CpuStep(const Batch& b, const Tap& t) : batch(b), tap(t), n(b.tokens.size()) {}

  Batch batch;
  const Tap& tap;
  size_t n;                                        // tokens
  float* x = nullptr;                              // [n, d_model]: the residual stream
  Panel h{};                                       // [n, d_model]: the normed input of the feed-forward part
  const float *cosine = nullptr, *sine = nullptr;  // [n, rope.dim / 2]: of each token's position
  uint32_t* ids = nullptr;                         // [n, top_k]
  float* weights = nullptr;                        // [n, top_k]
  std::optional<ExpertStore::Demand> demand;       // of the layer whose experts are under way
};

class CpuBackend : public Backend {
 public:
  CpuBackend(const ModelConfig& model, const ModelWeights& weights, const CpuOptions& options);

  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Sequence> make_sequence(size_t capacity) override;
  std::unique_ptr<Sequence> make_mtp_sequence(size_t capacity) override;
  std::unique_ptr<Step> begin(const Batch& batch, const Tap& tap) override;
  void embed(Step& step) override;
  void join_hidden(Step& step) override;
  void attention(Step& step, const LayerWeights& layer) override;
  void route(Step& step, const LayerWeights& layer) override;
  void begin_experts(Step& step, const LayerWeights& layer, ExpertStore& store) override;
  void complete_experts(Step& step, const LayerWeights& layer, ExpertStore& store) override;
  std::span<const uint32_t> chosen(const Step& step) const override;
  std::span<const uint32_t> guess(Step& step, const LayerWeights& later) override;
  void mlp(Step& step, const LayerWeights& layer) override;
  void logits(Step& step, std::span<float> out) override;

 private:
  struct Run {  // consecutive tokens of one sequence
    CpuSequence* sequence;
    size_t first, count, position;  // index in the batch, tokens, position of the first
  };

  static bool tap(const CpuStep& s, std::string_view name, uint64_t layer, float* values, size_t rows,
                  size_t cols);
  Run run_of(const Slice& slice) const;
  void norm(const float* x, size_t n, Vector w, float eps, const Panel& out);
  void product(const Linear& l, const Panel& x, float* out);
  void add_to_residual(CpuStep& s, const float* y);
  // While one token is computed: threads that wait fetch what is multiplied next.
  void fetch_ahead(const CpuStep& s, std::initializer_list<const MatrixView*> together);
  void fetch_next_layer(const CpuStep& s, const LayerWeights& layer);

  // -- mixers: h is the normed input; the result is added to the residual stream
  void grouped_attention(CpuStep& s, const LayerWeights& layer, const Panel& h);
  void latent_attention(CpuStep& s, const LayerWeights& layer, const Panel& h);
  void delta_net(CpuStep& s, const LayerWeights& layer, const Panel& h);
  void delta_head(const Run& run, const LayerWeights& layer, size_t key_head, size_t worker, const float* u,
                  const float* z, const float* b, const float* a, float* out);
  void copy_delta_head(const Run& run, const LayerWeights& layer, size_t key_head, const float* u,
                       size_t position) const;
  void rope(const CpuStep& s, size_t token, float* x) const;

  struct Queries {  // of one run over one layer's cache
    const CpuSequence* sequence;
    const LayerWeights* layer;
    size_t kv_heads, group;  // queries per key/value head and token
    size_t count, position;
    const float* q;  // [count][kv_heads * group][key_dim], rows q_stride apart
    size_t q_stride;
    float* out;  // [count][kv_heads * group][value_dim]
    Vector sinks;
  };
  void attend(const Queries& queries);
  size_t fill_rows(const Queries& q, size_t head, size_t first, size_t n, float* out, float* state,
                   AttendRow* rows, size_t* end) const;
  void attend_part(const KvHead& kv, size_t begin, size_t end, const AttendRow* rows, size_t n,
                   float* scratch) const;
  void attend_parts(const Queries& q, size_t head, size_t first, size_t n, size_t worker);
  void attend_split(const Queries& q, size_t blocks, size_t parts);

  const ModelConfig& m_;
  const ModelConfig mtp_;
  const ModelWeights& w_;
  const Ops& ops_;
  const KvType kv_;
  const std::shared_ptr<KvPagePool> pages_;
  WorkerPool pool_;
  Products products_;
  FeedForward feed_forward_;
  std::vector<std::vector<float>> conv_taps_;  // per layer: [conv_width, channels]

  // Working memory of the step under way.
  Scratch<float> x_, rope_, y_, router_, router_weights_, guess_logits_, each_, shared_, q_, k_, v_, gate_,
      parts_, worker_;
  Scratch<uint32_t> ids_;
  std::vector<uint32_t> first_pick_, picks_, pick_row_;  // of the layer under way, sorted by expert
  std::vector<uint32_t> guess_;
  size_t worker_floats_ = 0;  // of each thread in worker_
  Activations h_, mixed_, hidden_, latent_, wanted_, guess_h_;
};

}  // namespace moeflux
