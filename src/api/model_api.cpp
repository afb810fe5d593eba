// Models: opening, what they are, what they have planned and done.
#include "api/handles.h"
#include "api/model_state.h"
#include "base/json.h"
#include "gen/engine_report.h"

namespace {

using namespace moeflux;
using namespace moeflux::api;

template <size_t N>
void copy_name(char (&into)[N], std::string_view name) {
  const size_t n = std::min(name.size(), N - 1);
  std::memcpy(into, name.data(), n);  // the rest is zero
}

}  // namespace

moeflux_status moeflux_open(const char* package, const moeflux_open_options* options, moeflux_model** model) {
  return call([&] {
    moeflux_model*& into = required(model, "model");
    const std::string_view folder = text_argument(package, "package");
    const auto given = read_struct_or_default(options, "moeflux_open_options");
    into = make_handle<moeflux_model>(std::make_shared<ModelState>(folder, given));
  });
}

moeflux_status moeflux_close(moeflux_model* model) {
  return call([&] { remove_handle(model)->callbacks.end(); });
}

moeflux_status moeflux_load_experts(moeflux_model* model) {
  return call([&] {
    const auto state = find_handle(model);
    const std::lock_guard turn(state->turns);
    state->engine.load_experts();
  });
}

moeflux_status moeflux_get_info(moeflux_model* model, moeflux_model_info* info) {
  return call([&] {
    const auto state = find_handle(model);
    const Engine& engine = state->engine;
    const ModelConfig& config = engine.config();
    moeflux_model_info value{};
    value.n_vocab = config.n_vocab;
    value.n_layers = config.n_layers();
    value.d_model = config.d_model;
    value.n_experts = config.moe.n_experts;
    value.top_k = config.moe.top_k;
    value.ctx = engine.plan().ctx;
    value.sequences = engine.options().sequences;
    value.chunk = engine.options().chunk;
    value.threads = engine.threads();
    value.has_tokenizer = state->has_text();
    value.has_template = state->has_template();
    copy_name(value.family, config.family);
    copy_name(value.backend, engine.options().backend);
    copy_name(value.precision, engine.options().precision == Precision::Exact ? "exact" : "fast");
    write_struct(info, value, "moeflux_model_info");
  });
}

moeflux_status moeflux_get_plan(moeflux_model* model, moeflux_plan* plan) {
  return call([&] {
    const auto state = find_handle(model);
    const MemoryPlan& p = state->engine.plan();
    write_struct(plan,
                 {.size = 0,
                  .resident_bytes = p.resident_bytes,
                  .kv_bytes = p.kv_bytes,
                  .overhead_bytes = p.overhead_bytes,
                  .expert_bytes = p.expert_bytes,
                  .vram_slot_bytes = p.vram_slot_bytes,
                  .ram_slot_bytes = p.ram_slot_bytes,
                  .ssd_only_bytes = p.ssd_only_bytes,
                  .host_bytes = p.host_bytes,
                  .device_bytes = p.device_bytes,
                  .token_resident_bytes = p.token_resident_bytes,
                  .token_expert_bytes = p.token_expert_bytes,
                  .token_missed_bytes = p.token_missed_bytes,
                  .parameters = p.params_total,
                  .active_parameters = p.params_active},
                 "moeflux_plan");
  });
}

moeflux_status moeflux_plan_json(moeflux_model* model, char** json) {
  return call([&] {
    const auto state = find_handle(model);
    char*& into = required(json, "json");  // before there is something to lose
    into = give_text(to_json(state->engine.plan()).dump());
  });
}

moeflux_status moeflux_get_stats(moeflux_model* model, moeflux_stats* stats) {
  return call([&] {
    const auto state = find_handle(model);
    const StoreStats s = state->engine.store_stats();
    write_struct(stats,
                 {.size = 0,
                  .hits = s.hits,
                  .misses = s.misses,
                  .reads = s.reads,
                  .bytes_read = s.bytes_read,
                  .stall_seconds = s.stall_s,
                  .stall_bytes = s.stall_bytes,
                  .prefetched = s.prefetched,
                  .prefetch_useful = s.prefetch_useful,
                  .prefetch_late = s.prefetch_late,
                  .prefetch_wasted = s.prefetch_wasted,
                  .failed = s.failed,
                  .steps = state->n_steps,
                  .tokens = state->n_tokens},
                 "moeflux_stats");
  });
}

moeflux_status moeflux_stats_json(moeflux_model* model, char** json) {
  return call([&] {
    const auto state = find_handle(model);
    Json all = to_json(state->engine.store_stats());
    all["steps"] = state->n_steps.load();
    all["tokens"] = state->n_tokens.load();
    all["reads_with"] = describe_reads(state->engine);
    char*& into = required(json, "json");  // before there is something to lose
    into = give_text(all.dump());
  });
}
