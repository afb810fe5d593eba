// The seam between the model's mathematics and the machine that computes it: a handful of coarse stages. A
// backend owns activations, KV caches and recurrent state; nothing above it sees where they live. Routing
// stays inside the step, so that it may live on a device; `experts` resolves its experts through the store
// itself.
//
// In exact precision a token's bits depend on its sequence's tokens only: not on the batch, the chunk, the
// cache or the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/token.h"
#include "model/sequence.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/delta.h"
#include "ops/router.h"
#include "ops/shortlist.h"
#include "store/expert_store.h"

namespace moeflux {

enum class Precision : uint8_t { Exact, Fast };

// Consecutive tokens of one sequence inside a batch.
struct Slice {
  Sequence* sequence;
  size_t first, count;  // tokens [first, first + count) of the batch
};

struct Batch {
  std::span<const Token> tokens;
  std::span<const Slice> slices;         // together, in order, they cover all tokens
  std::span<const uint32_t> logit_rows;  // the tokens whose logits are wanted
  // Not empty: a step of the multi-token-prediction layer in place of the model's, over sequences of its own;
  // [tokens, d_model], for each token what the final norm gave for the one before.
  std::span<const float> hidden = {};
  std::span<float> final_norm = {};  // where not empty, gets what the final norm gives; [tokens, d_model]
  // Not empty: [logit_rows], for a backend that keeps logits; shortlists get what is wished for, and the
  // logits stay where they are.
  std::span<const ShortlistWish> wishes = {};
  std::span<Shortlist> shortlists = {};

  bool mtp() const { return !hidden.empty(); }

  // It touches nearly all experts for the sake of prompts: keeping them would flush what decoding uses.
  bool sweeps() const {
    size_t n = 0;
    for (const Slice& s : slices) n += s.count > 1 ? s.count : 0;
    return n > kSweepTokens;
  }
};

// A stage's result, row by row, as float. A tap that returns true has changed the values, and the step goes
// on with them: that is how two backends are compared stage by stage on the same inputs.
struct TapTensor {
  std::string_view name;  // embed, attention, router_logits, topk_ids, topk_weights, mlp, final_norm, logits
  uint64_t layer;
  size_t rows, cols;
  std::span<float> values;
};
struct Tap {
  std::function<bool(const TapTensor&)> call = {};
  bool only_routes = false;  // sees topk_ids alone, and the step spends nothing on the rest
  bool late = false;         // changes nothing, and may be told when the step is over

  bool wants(std::string_view name) const { return call && (!only_routes || name == "topk_ids"); }
  explicit operator bool() const { return call && !only_routes; }  // sees everything
};

// Both taps, one after the other: the second sees what the first has changed. An empty one adds nothing.
Tap chain_taps(Tap first, Tap second);

// The activations of one batch on its way through the layers.
class Step {
 public:
  virtual ~Step() = default;
};

// What a backend with memory of its own has done with the experts that steps asked for. Where it holds all
// of them nobody counts.
struct DeviceTierStats {
  bool exists = false, holds_all = false;
  uint64_t found = 0, copied = 0, computed = 0;  // there; brought there; computed by the processor instead
  uint64_t ahead = 0;   // of the copied ones, those whose copy was begun before they were chosen
  uint64_t unused = 0;  // copied so and not chosen: none of the others
  double copy_bytes_per_s = 0, host_bytes_per_s = 0;
  double hit_rate() const {
    const uint64_t all = found + copied + computed;
    return holds_all ? 1 : all ? static_cast<double>(found) / static_cast<double>(all) : 0;
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<Sequence> make_sequence(size_t capacity) = 0;
  // For steps of the multi-token-prediction layer; null where there is none, or the backend cannot compute
  // it.
  virtual std::unique_ptr<Sequence> make_mtp_sequence(size_t) { return nullptr; }

  virtual std::unique_ptr<Step> begin(const Batch& batch, const Tap& tap) = 0;
  virtual void embed(Step& step) = 0;  // x = embedding[token]
  // x = fc (norm(x) || norm(hidden)): before the multi-token-prediction layer.
  virtual void join_hidden(Step&) { check(false, "a backend that has sequences for this layer"); }
  virtual void attention(Step& step,
                         const LayerWeights& layer) = 0;          // x += mix(norm(x)); appends to the caches
  virtual void route(Step& step, const LayerWeights& layer) = 0;  // h = norm(x); top-k per token
  // x += sum of experts(h), in two halves: reads of missing experts are asked for in the first, and the step
  // may do other things than arithmetic of later layers before the second. A step holds at most one such
  // layer; destroying the step discards it.
  virtual void begin_experts(Step& step, const LayerWeights& layer, ExpertStore& store) = 0;
  virtual void complete_experts(Step& step, const LayerWeights& layer, ExpertStore& store) = 0;
  // The experts that route chose, [tokens, top_k], where the host can see them; else empty.
  virtual std::span<const uint32_t> chosen(const Step& step) const = 0;
  // What the router of a later layer would choose for the tokens as they are now, before the experts under
  // way are added: a guess, for reading ahead. May be empty.
  virtual std::span<const uint32_t> guess(Step& step, const LayerWeights& later) = 0;
  // Nearly all experts of `later` will be wanted after those of the layer whose experts have begun: a backend
  // with memory of its own may bring them there once it has what it needs before.
  virtual void expect(Step&, const LayerWeights& /*later*/) {}
  virtual void mlp(Step& step, const LayerWeights& layer) = 0;  // x += mlp(norm(x)): dense layers
  virtual void logits(Step& step, std::span<float> out) = 0;    // [logit_rows, n_vocab]; empty: none or lists
  // Whether logits lie in memory of its own, so that shortlists save something; and a row of the last step,
  // where that had shortlists.
  virtual bool keeps_logits() const { return false; }
  virtual void read_logits(size_t, std::span<float>) { check(false, "a backend that keeps logits"); }

  // Brings experts to where they are computed, as many as there is room for; the others come as they are
  // needed.
  virtual void load_experts(ExpertStore& store) { store.load_all(); }
  // Has this expert in memory of its own: nobody will ask the store for it soon.
  virtual bool holds(ExpertKey) const { return false; }
  virtual bool holds_all() const { return false; }
  virtual DeviceTierStats device_tier() const { return {}; }
};

// Bytes of KV cache and recurrent state of one sequence of `capacity` tokens, and of one attention layer's
// cache.
uint64_t sequence_bytes(const ModelConfig& model, size_t capacity, KvType type);
uint64_t kv_bytes(const ModelConfig& model, const LayerConfig& layer, size_t capacity, KvType type);
// Positions that a layer's KV cache holds, in whole blocks: all, or those that the queries of one block can
// see through its window.
size_t kv_rows(const LayerConfig& layer, size_t capacity);
// KV values per position of a layer (0 for delta-net layers), and floats of recurrent state per delta-net
// layer.
size_t kv_width(const ModelConfig& model, const LayerConfig& layer);
size_t delta_state_floats(const ModelConfig& model);
// The key/value heads of an attention layer.
struct KvShape {
  size_t heads, key_dim, value_dim;
  bool own_values;  // else a value is the beginning of its key
};
KvShape kv_shape(const ModelConfig& model, const LayerConfig& layer);
// The first position that the query at `position` sees.
size_t first_visible(const LayerConfig& layer, size_t position);
// Whether a ring of `rows` positions, written up to `written`, still holds what the query at `position` sees.
bool ring_can_cut(const LayerConfig& layer, size_t rows, size_t written, size_t position);
// How many tokens may be written after `position` before that no longer holds.
size_t ring_removable(const LayerConfig& layer, size_t rows, size_t position);
// Whether a layer's part belongs to what is saved, and the bytes of a saved state. block: tokens of the delta
// nets' block that are saved beside the state.
bool is_saved(const LayerConfig& layer, Saved what);
uint64_t saved_bytes(const ModelConfig& model, size_t position, KvType type, size_t block, Saved what);
// Inputs of a delta net's convolution that are kept: those that the next token needs, and as many before them
// as tokens can be cut off.
inline constexpr size_t kConvSlack = 16;
size_t conv_history(const ModelConfig& model);
// States of delta nets that a GPU keeps of a step of a few tokens, to go back to.
inline constexpr size_t kDeviceStatesBack = 4;

RouterRule router_rule(const MoeConfig& moe, Vector score_bias);

inline constexpr float kMlaNormEps = 1e-6f;  // of the latent norms, whatever rms_norm_eps is
inline constexpr float kUnitEps =
    1e-6f;  // under the root when the delta net's q and k are brought to unit length

}  // namespace moeflux
