// The cuda backend's class, for the files that implement it: cuda_backend.cpp (embedding, routing, logits),
// cuda_mixers.cpp (attention of all kinds) and cuda_experts.cpp (the feed-forward part and its tiers).
#pragma once

#include <deque>
#include <optional>

#include "cuda/attention.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_sequence.h"
#include "cuda/entry.h"
#include "cuda/experts.h"
#include "cuda/scratch.h"
#include "cuda/shortlist.h"
#include "cuda/vram_tier.h"

namespace moeflux::cuda {

constexpr size_t kMostGraphTokens = 32;  // of a step that is recorded

// What a recorded step depends on, beside what lies in device memory.
struct GraphKey {
  size_t n;          // tokens, each of another sequence and each with logits
  size_t positions;  // a power of two above all of theirs
  bool mtp;          // of the multi-token-prediction layer
  bool final_norm;   // which is wanted as well
  bool lists;        // shortlists in place of logits
  bool routes;       // which a tap is told when the step is over
  auto operator<=>(const GraphKey&) const = default;
};

// An expert and its record in device memory.
struct ExpertRecord {
  uint32_t expert;
  std::byte* record;
};

// A layer up to its choice, where the host steers what follows.
struct LayerKey {
  GraphKey step;
  uint64_t layer;  // the store's number
  auto operator<=>(const LayerKey&) const = default;
};

struct CudaStep : Step {
  CudaStep(const Batch& b, const Tap& t) : batch(b), tap(t), n(b.tokens.size()) {}
  ~CudaStep() override;

  // Eager: stages launch kernels. Record: they are captured into a graph, which logits launches. Replay: they
  // do nothing, and logits launches the graph of an earlier step.
  enum class Mode : uint8_t { Eager, Record, Replay } mode = Mode::Eager;
  GraphKey key{};
  cudaStream_t recording = nullptr;   // until the capture has ended
  std::optional<LayerKey> layer_key;  // of the layer under way, where it can be recorded
  Mode layer_mode = Mode::Eager;

  Batch batch;
  const Tap& tap;
  size_t n;                // tokens
  bool each_one() const {  // token is of another sequence
    return batch.slices.size() == n;
  }

  // In device memory:
  const TokenInfo* tokens = nullptr;
  const uint32_t* token_ids = nullptr;
  const SliceInfo* slices = nullptr;
  const uint32_t* logit_rows = nullptr;
  const ShortlistWish* wishes = nullptr;
  const float* hidden = nullptr;  // [n, d_model], of the batch
  float* x = nullptr;             // [n, d_model]: the residual stream
  Vectors h;                      // [n, d_model]: the normed input of the feed-forward part
  Rope rope{};
  uint32_t* ids = nullptr;             // [n, top_k]
  float* weights = nullptr;            // [n, top_k]
  const float* shared_gate = nullptr;  // [n]
  bool told = false;                   // the experts' launch is told of the choice
  // Where the host steers, of a layer:
  std::vector<uint32_t> host_ids;             // the same as ids
  bool grouped = false;                       // group_experts has been launched
  std::vector<ExpertRecord> hits;             // chosen experts on the device
  size_t n_missing = 0;                       // chosen experts that are not, and not handed out yet by
  std::optional<ExpertStore::Demand> demand;  // the store
  const LayerWeights* next = nullptr;         // the layer whose experts are expected after this one's
};
inline CudaStep& own(Step& step) { return static_cast<CudaStep&>(step); }

class CudaBackend : public Backend {
 public:
  CudaBackend(const ModelConfig& model, const ModelWeights& weights, std::span<const std::byte> resident,
              const Manifest& manifest, const CudaOptions& options, std::unique_ptr<HostExperts> host);
  ~CudaBackend() override;

  std::string_view name() const override { return "cuda"; }
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
  void expect(Step& step, const LayerWeights& later) override { own(step).next = &later; }
  void mlp(Step& step, const LayerWeights& layer) override;
  void logits(Step& step, std::span<float> out) override;
  bool keeps_logits() const override { return shortlist_can(m_.n_vocab); }
  void read_logits(size_t row, std::span<float> out) override;
  void load_experts(ExpertStore& store) override;
  bool holds(ExpertKey key) const override { return tier_.find(key) != nullptr; }
  DeviceTierStats device_tier() const override;
  bool holds_all() const override { return tier_.holds_all() && tier_.n_loaded() == tier_.n_experts(); }

 private:
  // -- taps: the stage's result goes to the host and, if the tap has changed it, back
  bool tap(const CudaStep& s, std::string_view name, uint64_t layer, float* values, size_t rows, size_t cols);
  void tap_routes(CudaStep& s, uint64_t layer);
  bool tell_chosen(const CudaStep& s, uint64_t layer, std::span<uint32_t> ids);
  void upload(void* to, const void* from, size_t bytes, const char* what);
  void wait();  // until the device has done all that was asked of it

  // -- graphs
  std::optional<GraphKey> graph_key(const CudaStep& s) const;  // nothing: the step cannot be recorded
  void choose_mode(CudaStep& s);
  void begin_recording(CudaStep& s);
  Graph finish_recording(CudaStep& s);
  void choose_layer_mode(CudaStep& s, const LayerWeights& layer);
  void finish_layer(CudaStep& s);  // launches what was recorded, where it was
  // What the host gets of a step: where it lies in pinned memory, in bytes.
  struct Results {
    size_t norm_at = 0, routes_at = 0, bytes = 0;  // logits or lists come first
  };
  Results results_of(const CudaStep& s) const;
  void compute_logits(CudaStep& s);
  void read_results(CudaStep& s, const float* logits, const float* final_norm);
  void tell_routes(const CudaStep& s, const uint32_t* ids);  // to a tap that may be told late

  // Norm of the residual stream, quantised where the precision wants it.
  Vectors norm(CudaStep& s, Vector w);
  // The same, then products of it.
  void norm_and_multiply(CudaStep& s, Vector w, std::span<Product> products);
  // Norm, small products and choice in one launch, where that can be; false: it cannot, nothing is done.
  bool enter(Entry& entry);
  uint32_t* counters(size_t n);  // zeros, which kernels leave as zeros

  // -- mixers: the result is added to the residual stream
  void grouped_attention(CudaStep& s, const LayerWeights& layer);
  void latent_attention(CudaStep& s, const LayerWeights& layer);
  void delta_net(CudaStep& s, const LayerWeights& layer);
  void attend(const CudaStep& s, Attend a);
  size_t context_bucket(const CudaStep& s) const;  // a power of two above the positions of all tokens
  size_t last_position(const CudaStep& s) const;   // of any token
  const KvPlace& place(const CudaStep& s, const LayerWeights& layer) const {
    return (s.batch.mtp() ? *mtp_memory_ : *memory_).layers[layer.index].kv;
  }
  void add_product(const Linear& l, const Vectors& x, CudaStep& s);

  // -- experts
  ExpertWork expert_work(CudaStep& s, const LayerWeights& layer);
  struct Table;
  Table make_table(std::span<const ExpertRecord> experts, bool sweeps);
  void run_portion(const ExpertWork& work, std::span<const ExpertRecord> experts, bool copied, bool sweeps);
  const std::byte* const* resident_table(uint64_t layer);
  void prepare_misses(ExpertStore& store);
  std::span<uint32_t> chosen_ids(const CudaStep& s);
  bool takes_part(const CudaStep& s) const;  // the processor, in the experts of this step
  void send_chosen(CudaStep& s);
  void read_chosen(CudaStep& s, const LayerWeights& layer);
  void wait_until_told();
  void clear_mail();
  void learn_copy_speed();
  size_t host_part(size_t n);
  Elsewhere compute_chosen(CudaStep& s, const ExpertWork& work, const LayerWeights& layer, ExpertSum& sum);
  void compute_on_host(const CudaStep& s, const ExpertWork& work, const ExpertLayer& stored,
                       std::span<const ExpertStore::Lease> leases, Elsewhere& results,
                       const std::function<void()>& first);
  void add_shared(CudaStep& s, const LayerWeights& layer, ExpertSum& sum);
  void run_mlp(const MlpWeights& w, const Vectors& x, float* out, bool add);
  void copy_to(std::byte* slot, std::span<const std::byte> record);
  bool make_room(uint64_t layer, ExpertStore::Use use);
  Event take_event();
  void end_portion(size_t n_pins);
  void release_portion();
  size_t unlisted_pins() const;
  void copy_ahead(CudaStep& s, ExpertStore& store);
  void take_chosen_ahead(std::vector<bool>& wanted);
  void launch_ahead(CudaStep& s, const LayerWeights& layer);
  size_t portion_of(const CudaStep& s, uint64_t layer) const;
  void forget_failed_step();

  // The same tensor in device memory.
  template <class T>
  const T* on_device(const T* p) const {
    return p ? reinterpret_cast<const T*>(weights_.as<>() +
                                          (reinterpret_cast<const std::byte*>(p) - resident_.data()))
             : nullptr;
  }
  MatrixView on_device(MatrixView m) const {
    m.data = on_device(m.data);
    return m;
  }
  const float* on_device(Vector v) const { return v.empty() ? nullptr : on_device(v.data()); }

  const ModelConfig& m_;
  const ModelConfig mtp_;
  const ModelWeights& w_;  // in host memory: on_device translates
  const std::span<const std::byte> resident_;
  const Manifest& manifest_;
  const bool fast_;
  const KvType kv_;

  Stream stream_, copies_;
  const std::shared_ptr<const SequenceMemory> memory_, mtp_memory_;
  Event copying_, copied_;  // with times
  Event chosen_there_;      // the choice for many tokens has reached the host
  DeviceBuffer weights_, inv_freq_, counters_, mail_, entry_mail_;
  VramTier tier_;
  std::map<uint64_t, DeviceBuffer> tables_;  // by layer: [n_experts] records, where all are on the device

  // Of experts that are not on the device:
  std::unique_ptr<HostExperts> host_experts_;  // null: all of them are copied
  std::vector<PinnedRange> pinned_;            // the store's slots
  std::vector<ExpertStore::Lease> in_flight_;  // their copies may still be under way
  struct Portion {                             // experts whose computation has been launched
    Event computed;
    size_t n_pins;  // of the tier
  };
  std::deque<Portion> portions_;  // of this layer, in the order of their pins
  struct Table {                  // of the experts of a portion
    PinnedBuffer host;
    DeviceBuffer device;
    const std::byte* const* records = nullptr;  // in one of them
  };
  std::vector<Table> used_tables_, spare_tables_;  // used: by this layer
  struct Ahead {  // experts of the next layer, on their way before they are chosen
    Event copied;
    Table table;
    std::vector<uint32_t> experts;           // each has a pin of the tier, after those of portions_
    size_t n_there = 0;                      // of them, the first ones, which were on the device before
    std::vector<ExpertStore::Lease> leases;  // of the others, until they have been copied
  };
  std::vector<Ahead> ahead_;
  std::vector<Event> spare_events_;
  PinnedBuffer chosen_, results_;  // input and ids of a layer; what the processor has computed
  PinnedBuffer told_;              // a number: how often a choice of few tokens or lists were there
  DeviceBuffer told_count_;        // the same, where the device counts
  uint32_t n_told_ = 0;            // and what it must become
  bool settled_ = false;           // the host has all results of the last step
  size_t n_results_ = 0;           // rows of results_ in this layer
  double copy_bytes_per_s_ = 0, host_bytes_per_s_ = 0;
  uint64_t timed_bytes_ = 0;  // copied between copying_ and copied_; 0: nothing is being timed
  uint64_t n_divisions_ = 0;
  uint64_t n_hits_ = 0, n_copied_ = 0, n_computed_ = 0, n_ahead_ = 0, n_unused_ = 0;  // experts of steps

  Moves moves_;
  struct Recorded {
    Graph graph;
    uint64_t moves = 0;  // of scratch memory, when it was recorded or, without a graph, last run
  };
  std::map<GraphKey, Recorded> graphs_;
  std::map<LayerKey, Recorded> layers_;
  PinnedBuffer staging_, host_;
  Scratch<std::byte> info_{moves_, "step"}, expert_scratch_{moves_, "experts"}, mlp_scratch_{moves_, "mlp"};
  Scratch<float> x_{moves_, "residual stream"}, rope_{moves_, "rotary table"}, raw_{moves_, "queries"},
      q_{moves_, "queries"}, k_{moves_, "keys"}, v_{moves_, "values"}, parts_{moves_, "parts of attention"},
      router_{moves_, "router"}, router_weights_{moves_, "router"}, shared_{moves_, "shared expert"},
      logits_{moves_, "logits"}, maxima_{moves_, "logits"}, small_{moves_, "attention"};
  Scratch<Shortlist> lists_{moves_, "shortlists"};
  Scratch<uint32_t> ids_{moves_, "router"};  // [n_layers][n, top_k]
  VectorScratch h_{moves_, "normed input"}, mixed_{moves_, "mixed values"}, latent_{moves_, "latents"},
      nope_{moves_, "latent queries"}, wanted_{moves_, "final norm"};
};

}  // namespace moeflux::cuda
