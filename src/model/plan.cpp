#include "model/plan.h"

#include <algorithm>

#include "base/checked.h"
#include "base/text.h"

namespace moeflux {
namespace {

// Activations of one prefill step (the widest stages hold a few rows per token at once), logits, and the
// program.
uint64_t overhead(const ModelConfig& m, uint64_t chunk, uint64_t logit_rows) {
  const AttentionConfig& a = m.attention;
  const uint64_t attention = (a.gated ? 5 : 3) * a.n_heads * a.head_dim + 4 * a.n_kv_heads * a.head_dim;
  const uint64_t mla =
      m.attention.n_heads * (m.mla.nope_dim + m.mla.rope_dim + m.mla.value_dim) + m.mla.q_rank;
  const uint64_t delta = m.delta.conv_channels() + 2 * m.delta.value_channels();
  const uint64_t experts =
      m.moe.top_k * m.d_model + 2 * std::max({m.moe.width, m.moe.shared_width, m.dense_width});
  const uint64_t floats = 4 * m.d_model + std::max({attention, mla, delta, experts});
  return chunk * floats * sizeof(float) + logit_rows * m.n_vocab * sizeof(float) + (32u << 20);
}

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

void place_experts(const PlanRequest& r, const Manifest& manifest, MemoryPlan& plan) {
  const uint64_t fixed = plan.resident_bytes + plan.kv_bytes + plan.overhead_bytes;
  const uint64_t limit = std::min(r.available, r.max_memory.value_or(UINT64_MAX));
  const uint64_t least = ExpertStore::least_budget(manifest);
  plan.vram_slot_bytes = std::min(r.vram.value_or(0), plan.expert_bytes);
  plan.ram_slot_bytes = r.ram ? *r.ram : limit > fixed ? limit - fixed : 0;
  plan.ram_slot_bytes = std::min(plan.ram_slot_bytes, plan.expert_bytes);
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

}  // namespace

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
  plan.kv_bytes = sequence_bytes(model, plan.ctx, r.kv_bytes);
  plan.overhead_bytes = overhead(model, std::min(r.chunk, plan.ctx), std::min(r.logit_rows, plan.ctx));
  add_parameters(model, manifest, plan);

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
