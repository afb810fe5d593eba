// Where everything of a model goes, and what a token costs in bytes, before anything is loaded.
#pragma once

#include <array>
#include <map>
#include <optional>

#include "model/backend.h"

namespace moeflux {

inline constexpr uint64_t kDefaultContext = 4096;
// A sweep reads nearly all experts whatever its length: the longer, the fewer bytes per token.
inline constexpr uint64_t kDefaultChunk = 2048, kMostChunk = 8192;

struct PlanRequest {
  std::optional<uint64_t> ram, vram;         // bytes of expert slots; absent: what is available
  std::optional<uint64_t> device_free = {};  // memory of a GPU that computes, in place of the processor
  uint64_t ctx = 0;                          // 0: the model's own, at most kDefaultContext
  uint64_t sequences = 1;                    // of that many tokens each
  std::optional<uint64_t> max_memory;        // cap on the host total
  uint64_t available = 0;                    // memory that can be had
  uint64_t chunk = kDefaultChunk;            // tokens of a prefill step
  uint64_t logit_rows = 1;                   // rows of logits that are held at once
  bool refuse = true;                        // a plan that does not fit; otherwise it says so
  KvType kv = KvType::Bf16;
  size_t threads = 1;  // that compute
};

struct MemoryPlan {
  uint64_t ctx = 0;
  bool fits = true;
  std::array<uint64_t, kTensorClasses> class_bytes{};  // of the package, experts included
  uint64_t resident_bytes = 0, kv_bytes = 0, overhead_bytes = 0;
  uint64_t text_kv_bytes = 0;                // of kv_bytes, what the texts' caches hold when they are full
  uint64_t text_state_bytes = 0;             // of these, recurrent state: the same after any number of tokens
  uint64_t expert_bytes = 0, n_experts = 0;  // all of them
  uint64_t vram_slot_bytes = 0, ram_slot_bytes = 0, ssd_only_bytes = 0;
  uint64_t host_bytes = 0;    // resident + KV + overhead + RAM slots; with a GPU, KV and overhead are there
  uint64_t device_bytes = 0;  // resident + KV + overhead + VRAM slots, with a GPU
  uint64_t token_resident_bytes = 0, token_expert_bytes = 0;  // touched per decoded token
  uint64_t token_state_bytes = 0;                             // recurrent state, likewise
  uint64_t token_missed_bytes = 0;                            // of these, read from SSD with uniform routing
  uint64_t params_total = 0, params_active = 0;
};

// Throws Error{OutOfMemory} with the numbers when it cannot fit, Error{InvalidArgument} for a context beyond
// the model's.
MemoryPlan make_plan(const ModelConfig& model, const Manifest& manifest, const PlanRequest& request);

// Working memory of a step of `chunk` tokens: activations, each thread's scratch, rows of logits.
uint64_t step_bytes(const ModelConfig& model, uint64_t chunk, uint64_t logit_rows, size_t threads);

// The class of every tensor that a package of this model may have.
std::map<std::string, TensorClass> tensor_classes(const ModelConfig& model);

}  // namespace moeflux
