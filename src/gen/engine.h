// A loaded model, ready to evaluate tokens: package, weights, store and backend, put together from options.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/progress.h"
#include "model/model.h"
#include "model/plan.h"

namespace moeflux {

struct EngineOptions {
  std::string backend = "cpu";
  Precision precision = Precision::Fast;
  std::optional<uint64_t> ram = {}, max_memory = {};
  std::optional<uint64_t> vram = {};      // bytes of expert slots on the GPU; absent: what is available
  std::optional<double> vram_share = {};  // in place of vram: of all experts
  uint64_t ctx = 0;
  uint64_t sequences = 1;          // whole contexts that the plan leaves room for
  uint64_t kept_bytes = 0;         // and for states that are kept beside them, where sequences lie
  uint64_t chunk = kDefaultChunk;  // tokens of a prefill step
  uint64_t logit_rows = 1;         // rows of logits that are held at once: the plan leaves room for them
  size_t threads = 0;              // 0: one per core
  std::optional<KvType> kv = {};   // default: f32 in exact precision, bf16 in fast
  std::string isa = "auto";
  bool check_reads = true;
  std::vector<fs::path> stripes = {};  // further folders with expert files
  ReadWishes reads = {};
  std::string policy = policy_names().front();
  std::chrono::milliseconds read_timeout{30'000};
  bool register_memory = true;
  PrefetchOptions prefetch = {};
  ProgressSink progress = {};         // of loading; empty: a bar on stderr
  std::shared_ptr<Trace> trace = {};  // shared: it is written after the engine's last thread is gone
  decltype(StoreOptions::wrap_queue) wrap_queue = {};  // for tests
};

std::vector<std::string> backend_names();  // that there are, whether they can run here or not
// Those that can run on this machine.
std::vector<std::string> runnable_backends();
// The fastest that can run here; says why it is not a GPU, where the program could use one.
std::string best_backend(const LogSink& log);
// The same on another backend; what only the first one has is left out.
EngineOptions on_backend(EngineOptions options, const std::string& backend);
std::vector<std::string> isa_names();  // "auto", and those that this processor can run, best first

class Engine {
 public:
  Engine(const fs::path& package, const EngineOptions& options);

  const EngineOptions& options() const { return options_; }
  const ModelConfig& config() const { return config_; }
  const Package& package() const { return package_; }
  const MemoryPlan& plan() const { return plan_; }
  StoreStats store_stats() const { return store_.stats(); }
  const ExpertStore& store() const { return store_; }
  const Prefetcher& prefetcher() const { return model_.prefetcher(); }
  const DriveSpeed& drive() const { return drive_; }  // how experts are read; a speed of 0: not measured
  // Reads all experts now, where there is memory for all of them; otherwise they come as they are needed.
  void load_experts();
  size_t threads() const;
  KvType kv() const;
  DeviceTierStats device_tier() const { return backend_->device_tier(); }
  std::unique_ptr<Sequence> make_sequence() { return backend_->make_sequence(plan_.ctx); }
  // For steps of the multi-token-prediction layer; null where there is none or the backend cannot compute it.
  std::unique_ptr<Sequence> make_mtp_sequence() { return backend_->make_mtp_sequence(plan_.ctx); }
  bool has_mtp() const { return weights_.mtp.has_value(); }

  // Evaluates tokens of one sequence, chunk by chunk, and returns the logits of the last `rows` of them.
  // final_norm, where not null, gets what the final norm gives for all of them; memory is taken for the
  // result, so that a loop need not ask for it again and again.
  std::vector<float> eval(Sequence& sequence, std::span<const Token> tokens, size_t rows = 1,
                          const Tap& tap = {}, std::vector<float>* final_norm = nullptr,
                          std::vector<float> memory = {});
  // One step: tokens of several sequences, at most options().chunk together; logits:
  // [batch.logit_rows.size(), n_vocab], or nothing where the batch has shortlists.
  void step(const Batch& batch, std::span<float> logits, const Tap& tap = {}) {
    model_.forward(batch, logits, tap);
  }

  // Whether a step may have shortlists in place of logits; and a row of logits of the last step, where
  // that had.
  bool keeps_logits() const { return backend_->keeps_logits(); }
  void read_logits(size_t row, std::span<float> out) { backend_->read_logits(row, out); }

  // Greedy continuation: n tokens, ties to the lower id.
  std::vector<Token> generate_greedy(Sequence& sequence, std::span<const Token> prompt, size_t n,
                                     const std::function<void(Token)>& on_token = {}, const Tap& tap = {});

 private:
  EngineOptions options_;
  Package package_;
  ModelConfig config_;
  MemoryPlan plan_;
  DriveSpeed drive_;
  ResidentWeights resident_;
  ModelWeights weights_;
  ExpertStore store_;
  std::unique_ptr<Backend> backend_;
  Model model_;
};

}  // namespace moeflux
