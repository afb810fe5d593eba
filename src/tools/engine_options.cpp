// The options with which every command that runs a model says how: one place, so that they mean the same.
#include "tools/commands.h"

namespace moeflux {
namespace {

KvType kv_from_string(const std::string& text) {
  return text == "f32" ? KvType::F32 : text == "bf16" ? KvType::Bf16 : KvType::Q8;
}

}  // namespace

EngineOptions EngineArguments::options() const {
  return {.backend = backend,
          .precision = precision_from_string(precision),
          .ram = ram,
          .max_memory = max_memory,
          .ctx = ctx,
          .chunk = chunk,
          .threads = threads,
          .kv = kv.empty() ? std::nullopt : std::optional(kv_from_string(kv)),
          .isa = isa,
          .check_reads = !no_check_reads};
}

void add_engine_options(CLI::App& app, EngineArguments& into) {
  app.add_option("--backend", into.backend, "Backend")
      ->check(CLI::IsMember(backend_names()))
      ->capture_default_str();
  app.add_option("--precision", into.precision, "exact: float activations and KV; fast: int8 and bf16")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  add_bytes_option(app, "--ram", into.ram, "Expert slots in RAM (default: what is available)");
  add_bytes_option(app, "--max-memory", into.max_memory, "Cap on the memory in all");
  app.add_option("--ctx", into.ctx, "Context in tokens (default: the model's, at most 4096)")
      ->check(CLI::PositiveNumber);
  app.add_option("--chunk", into.chunk, "Prompt tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  app.add_option("--threads", into.threads, "Threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--kv", into.kv, "KV cache: f32, bf16 or q8 (default: bf16 in fast, f32 in exact precision)")
      ->check(CLI::IsMember({"f32", "bf16", "q8"}));
  app.add_option("--isa", into.isa, "Instruction set: auto, or one of those that this processor can run")
      ->check(CLI::IsMember(isa_names()))
      ->capture_default_str();
  app.add_flag("--no-check-reads", into.no_check_reads,
               "Do not verify the checksum of each expert that is read");
}

void add_routing_log_option(CLI::App& app, std::optional<std::string>& into) {
  app.add_option("--routing-log", into, "Record which experts each step chooses (for cache-sim)")
      ->type_name("FILE");
}

RoutingLogOption::RoutingLogOption(const std::optional<std::string>& path, const Engine& engine) {
  if (path) log_.emplace(*path, routing_shape(engine.config(), engine.package().manifest()));
}

Tap RoutingLogOption::tap() { return log_ ? routing_log_tap(*log_) : Tap{}; }

void RoutingLogOption::close() {
  if (log_) log_->close();
}

}  // namespace moeflux
