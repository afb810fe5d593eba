#include "model/plan.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "ops/linear.h"

namespace moeflux {
namespace {

constexpr uint64_t kProgramBytes = 32u << 20;  // code, tables, stacks
constexpr uint64_t kDeviceReserve = 1u << 30;  // of a GPU: its driver's own, tables, what rounding takes
constexpr uint64_t kDriverBytes = 256u << 20;  // of host memory, that a GPU's driver takes
constexpr uint64_t kPassingBytes = 1u << 30;   // of RAM slots, where all experts are on the GPU

// A panel of vectors as products take it: floats, int8, and the scales of 64 columns.
uint64_t panel_bytes(uint64_t width) { return width * 4 + (width + 63) / 64 * (64 + sizeof(SpanScale)); }

void add_parameters(const ModelConfig& m, const Manifest& manifest, MemoryPlan& plan) {
  uint64_t resident = 0, per_expert = 0;
  for (const ResidentTensor& r : manifest.resident)
    if (!r.tensor.name.starts_with("mtp.")) resident += r.tensor.rows * r.tensor.cols;
  for (const TensorSpec& part : expert_schema(m)) per_expert += part.rows * part.cols;
  uint64_t sparse = 0;
  for (const LayerConfig& l : m.layers) sparse += l.sparse;
  plan.params_total = resident + sparse * m.moe.n_experts * per_expert;
  plan.params_active =
      resident + sparse * m.moe.top_k * per_expert - (m.tied_embeddings ? 0 : m.n_vocab * m.d_model);
}

// For guesses of the multi-token-prediction layer, one text at a time: its cache, and of a step's tokens what
// the final norm gave, as it comes and as it waits, and its product's input; of a GPU, states to go back to.
void add_mtp(const ModelConfig& m, const PlanRequest& r, MemoryPlan& plan) {
  plan.kv_bytes = checked_add(plan.kv_bytes, sequence_bytes(mtp_config(m), plan.ctx, r.kv), "KV cache");
  plan.overhead_bytes += std::min(r.chunk, plan.ctx) * (8 * m.d_model + panel_bytes(2 * m.d_model));
  if (!r.device_free) return;
  const auto delta_nets =
      static_cast<uint64_t>(std::ranges::count(m.layers, Mixer::DeltaNet, &LayerConfig::mixer));
  plan.kv_bytes += kDeviceStatesBack * delta_nets * delta_state_floats(m) * sizeof(float);
}

// A GPU gives back what windows have passed by only when a step is over: the step's positions come on top,
// and a page that is begun in each text but one.
uint64_t window_step_bytes(const ModelConfig& m, const PlanRequest& r, uint64_t ctx) {
  const uint64_t positions = std::min(r.chunk, ctx) + kKvBlock * (r.sequences - 1);
  uint64_t sum = 0;
  for (LayerConfig layer : m.layers)
    if (std::exchange(layer.window, 0) > 0)
      sum = checked_add(sum, kv_bytes(m, layer, positions, r.kv), "KV cache");
  return sum;
}

// With a GPU: weights, KV cache and activations first, then expert slots.
void place_on_device(const PlanRequest& r, const Manifest& manifest, MemoryPlan& plan) {
  const uint64_t fixed = plan.resident_bytes + plan.kv_bytes + plan.overhead_bytes + kDeviceReserve;
  const uint64_t least = ExpertStore::least_budget(manifest);
  const uint64_t left = *r.device_free > fixed ? *r.device_free - fixed : 0;
  plan.vram_slot_bytes = std::min(std::max(r.vram.value_or(left), least), plan.expert_bytes);
  plan.device_bytes = checked_add(fixed, plan.vram_slot_bytes, "memory plan");
  if (plan.device_bytes > *r.device_free && r.refuse)
    fail(
        Errc::OutOfMemory,
        "the GPU has {} free, but {} are needed: resident weights {}, KV cache for {} tokens {}, activations "
        "and reserve {}, expert slots {} (at least {}); a smaller --vram, --ctx or --chunk needs less",
        format_bytes(*r.device_free), format_bytes(plan.device_bytes), format_bytes(plan.resident_bytes),
        plan.ctx, format_bytes(plan.kv_bytes), format_bytes(plan.overhead_bytes + kDeviceReserve),
        format_bytes(plan.vram_slot_bytes), format_bytes(least));
}

void place_experts(const PlanRequest& r, const Manifest& manifest, MemoryPlan& plan) {
  if (r.device_free) place_on_device(r, manifest, plan);
  const uint64_t fixed = r.device_free ? plan.resident_bytes + kProgramBytes + kDriverBytes
                                       : plan.resident_bytes + plan.kv_bytes + plan.overhead_bytes;
  const uint64_t limit = std::min(r.available, r.max_memory.value_or(UINT64_MAX));
  const uint64_t least = ExpertStore::least_budget(manifest);
  if (!r.device_free) plan.vram_slot_bytes = std::min(r.vram.value_or(0), plan.expert_bytes);
  plan.ram_slot_bytes = r.ram ? *r.ram : limit > fixed ? limit - fixed : 0;
  plan.ram_slot_bytes = std::min(plan.ram_slot_bytes, plan.expert_bytes);
  if (r.device_free && !r.ram && plan.vram_slot_bytes == plan.expert_bytes)  // experts only pass through
    plan.ram_slot_bytes = std::min(plan.ram_slot_bytes, std::max(kPassingBytes, least));
  if (!r.refuse) plan.ram_slot_bytes = std::max(plan.ram_slot_bytes, least);
  plan.host_bytes = checked_add(fixed, plan.ram_slot_bytes, "memory plan");
  plan.fits = plan.host_bytes <= limit;
  const std::string parts = fmt::format("resident weights {}, KV cache for {} tokens {}, overhead {}",
                                        format_bytes(plan.resident_bytes), plan.ctx,
                                        format_bytes(plan.kv_bytes), format_bytes(plan.overhead_bytes));
  if (plan.ram_slot_bytes < least)
    fail(Errc::OutOfMemory, "{} of expert slots in RAM are too few: at least {} are needed ({}; {} {})",
         format_bytes(plan.ram_slot_bytes), format_bytes(least), parts,
         r.max_memory && *r.max_memory <= r.available ? "the cap is" : "available are", format_bytes(limit));
  if (!plan.fits && r.refuse)
    fail(Errc::OutOfMemory, "{} are needed ({}, expert slots {}), but {} {}", format_bytes(plan.host_bytes),
         parts, format_bytes(plan.ram_slot_bytes),
         r.max_memory && *r.max_memory <= r.available ? "the cap is" : "available are", format_bytes(limit));
  const uint64_t cached = plan.vram_slot_bytes + plan.ram_slot_bytes;
  plan.ssd_only_bytes = cached < plan.expert_bytes ? plan.expert_bytes - cached : 0;
}

// What a token reads of a delta net's state: all of it as it was at the block's start, and of the block's
// tokens those before, half of them on average.
uint64_t delta_read_floats(const ModelConfig& model) {
  const DeltaConfig& d = model.delta;
  return d.n_value_heads * (d.key_dim * d.value_dim + kDeltaBlock / 2 * (d.key_dim + d.value_dim));
}

}  // namespace

uint64_t step_bytes(const ModelConfig& m, uint64_t chunk, uint64_t logit_rows, size_t threads) {
  const AttentionConfig& a = m.attention;
  const uint64_t heads = a.n_heads, head = a.head_dim, q = heads * head, kv = a.n_kv_heads * head;
  const uint64_t latent = m.mla.kv_rank + m.mla.rope_dim;
  uint64_t mixer = 0, scratch = m.d_model;  // bytes per token, floats per thread
  if (m.has(Mixer::Attention)) {
    mixer = std::max(mixer, 4 * ((a.gated ? 3 : 2) * q + 2 * kv) + panel_bytes(q));
    scratch = std::max(scratch, 64 * head + attend_scratch(head, head, 64));
  }
  if (m.has(Mixer::Mla)) {
    mixer = std::max(mixer, 4 * (heads * (m.mla.nope_dim + m.mla.rope_dim + latent) + latent + m.mla.q_rank) +
                                heads * (panel_bytes(m.mla.kv_rank) + panel_bytes(m.mla.nope_dim)) +
                                panel_bytes(m.mla.q_rank) + panel_bytes(heads * m.mla.value_dim));
    scratch = std::max(scratch, 64 * m.mla.kv_rank + attend_scratch(latent, m.mla.kv_rank, 64));
  }
  if (m.has(Mixer::DeltaNet)) {
    const DeltaConfig& d = m.delta;
    const uint64_t group = d.n_value_heads / d.n_key_heads;
    mixer = std::max(mixer, 4 * (d.conv_channels() + d.value_channels() + 2 * d.n_value_heads) +
                                panel_bytes(d.value_channels()) + panel_bytes(m.d_model));
    scratch = std::max(scratch,
                       kDeltaBlock * (2 * d.key_dim + group * d.value_dim + 2) + delta_scratch(d.value_dim));
  }
  const uint64_t widest = std::max({m.moe.width, m.moe.shared_width, m.dense_width});
  const uint64_t rows = m.moe.top_k + (m.moe.shared_width ? 1 : 0);
  const uint64_t experts =
      rows * (panel_bytes(widest) + 4 * m.d_model) + 4 * (m.moe.n_experts + 4 * m.moe.top_k);
  const uint64_t token = 8 * m.d_model + panel_bytes(m.d_model) + 4 * m.rope.dim + mixer + experts;
  return chunk * token + threads * scratch * sizeof(float) +
         logit_rows * (panel_bytes(m.d_model) + m.n_vocab * sizeof(float));
}

std::map<std::string, TensorClass> tensor_classes(const ModelConfig& model) {
  std::map<std::string, TensorClass> classes;
  for (const bool transposed : {true, false})
    for (const TensorSpec& spec : resident_schema(model, {.mla_key_transposed = transposed, .mtp = true}))
      classes[spec.name] = spec.cls;
  return classes;
}

MemoryPlan make_plan(const ModelConfig& model, const Manifest& manifest, const PlanRequest& r) {
  MemoryPlan plan;
  plan.ctx = r.ctx ? r.ctx : std::min(model.max_position, kDefaultContext);
  if (plan.ctx > model.max_position)
    fail(Errc::InvalidArgument, "a context of {} tokens is more than the model's {}", plan.ctx,
         model.max_position);
  plan.expert_bytes = manifest.expert_bytes();
  for (const ExpertLayer& l : manifest.layers) plan.n_experts += l.n_experts();
  const std::map<std::string, TensorClass> classes = tensor_classes(model);
  for (const ResidentTensor& t : manifest.resident)
    plan.class_bytes[static_cast<size_t>(classes.at(t.tensor.name))] += t.tensor.bytes;
  plan.class_bytes[static_cast<size_t>(TensorClass::Expert)] = plan.expert_bytes;
  plan.resident_bytes = manifest.resident_bytes();
  plan.kv_bytes = plan.text_kv_bytes =
      checked_mul(sequence_bytes(model, plan.ctx, r.kv), r.sequences, "KV cache");
  const auto delta_layers =
      static_cast<uint64_t>(std::ranges::count(model.layers, Mixer::DeltaNet, &LayerConfig::mixer));
  plan.text_state_bytes = delta_layers * delta_state_floats(model) * sizeof(float) * r.sequences;
  plan.token_state_bytes = delta_layers * delta_read_floats(model) * sizeof(float);
  if (r.device_free)
    plan.kv_bytes = checked_add(plan.kv_bytes, window_step_bytes(model, r, plan.ctx), "KV cache");
  plan.overhead_bytes =
      step_bytes(model, std::min(r.chunk, plan.ctx), std::min(r.logit_rows, plan.ctx), r.threads) +
      kProgramBytes;
  add_parameters(model, manifest, plan);
  if (plan.class_bytes[static_cast<size_t>(TensorClass::Mtp)] > 0) add_mtp(model, r, plan);

  // A decoded token touches every resident matrix once, but of the embedding one row.
  plan.token_resident_bytes = plan.resident_bytes - plan.class_bytes[static_cast<size_t>(TensorClass::Mtp)];
  if (!model.tied_embeddings)
    plan.token_resident_bytes -= plan.class_bytes[static_cast<size_t>(TensorClass::Embedding)];
  for (const ExpertLayer& l : manifest.layers)
    if (l.layer < model.n_layers()) plan.token_expert_bytes += model.moe.top_k * l.record_bytes;
  place_experts(r, manifest, plan);
  const double missing = static_cast<double>(plan.ssd_only_bytes) /
                         static_cast<double>(std::max<uint64_t>(plan.expert_bytes, 1));
  plan.token_missed_bytes = static_cast<uint64_t>(missing * static_cast<double>(plan.token_expert_bytes));
  return plan;
}

}  // namespace moeflux
