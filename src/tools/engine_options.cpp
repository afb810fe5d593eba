// The options with which every command that runs a model says how: one place, so that they mean the same.
#include "base/text.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

constexpr uint64_t kLeastPiece = 4 << 10, kMostPiece = 16 << 20;

KvType kv_from_string(const std::string& text) {
  return text == "f32" ? KvType::F32 : text == "bf16" ? KvType::Bf16 : KvType::Q8;
}

PrefetchOptions prefetch_options(const EngineArguments& a) {
  using Mode = PrefetchOptions::Mode;
  return {.mode = a.prefetch == "auto" ? Mode::Auto
                  : a.prefetch == "on" ? Mode::On
                                       : Mode::Off,
          .router = a.guess_by != "previous",
          .previous = a.guess_by != "router"};
}

std::vector<std::string> backend_choices() {
  std::vector<std::string> names = backend_names();
  names.insert(names.begin(), "auto");
  return names;
}

void parse_vram(const std::string& text, EngineArguments& into) {
  try {
    if (text.ends_with('%'))
      into.vram_share = parse_share(text);
    else
      into.vram = parse_bytes(text);
  } catch (const Error& e) {
    throw CLI::ValidationError("--vram", e.what());
  }
}

}  // namespace

std::string backend_from_string(const std::string& text) {
  const auto say = [](LogLevel, std::string_view line) { fmt::print(stderr, "{}\n", line); };
  return text == "auto" ? best_backend(say) : text;
}

EngineOptions EngineArguments::options() const {
  if (read_piece && (*read_piece < kLeastPiece || *read_piece > kMostPiece))
    throw CLI::ValidationError("--read-piece",
                               fmt::format("{} is not between {} and {}", format_bytes(*read_piece),
                                           format_bytes(kLeastPiece), format_bytes(kMostPiece)));
  return {.backend = backend_from_string(backend),
          .precision = precision_from_string(precision),
          .ram = ram,
          .max_memory = max_memory,
          .vram = vram,
          .vram_share = vram_share,
          .ctx = ctx,
          .chunk = chunk,
          .threads = threads,
          .kv = kv.empty() ? std::nullopt : std::optional(kv_from_string(kv)),
          .isa = isa,
          .check_reads = !no_check_reads,
          .stripes = {stripes.begin(), stripes.end()},
          .reads = {.queue = read_queue,
                    .direct = direct == "auto" ? std::nullopt : std::optional(direct == "on"),
                    .piece_bytes = read_piece,
                    .depth = read_depth},
          .policy = policy,
          .read_timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * read_timeout)),
          .register_memory = !no_register_memory,
          .prefetch = prefetch_options(*this),
          .trace = trace ? std::make_shared<Trace>(*trace) : nullptr};
}

namespace {

void add_streaming_options(CLI::App& app, EngineArguments& into) {
  const std::string group = "How experts are read and kept";
  app.add_option("--stripe", into.stripes, "A further folder with the expert files; repeatable")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--policy", into.policy, "Which expert leaves when a slot is needed")
      ->check(CLI::IsMember(policy_names()))
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefetch", into.prefetch,
                 "Read experts before they are asked for; auto: as long as tokens come faster with it")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--guess-by", into.guess_by,
                 "What prefetch goes by: the next layer's router, the previous token's choice, or both")
      ->check(CLI::IsMember({"router", "previous", "both"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--read-queue", into.read_queue, "How reads are made")
      ->check(CLI::IsMember(read_queue_names()))
      ->capture_default_str()
      ->group(group);
  app.add_option("--direct", into.direct, "Read past the page cache; auto: what is faster here")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  add_bytes_option(app, "--read-piece", into.read_piece,
                   "Bytes of one read, 4KiB to 16MiB (default: measured)")
      ->group(group);
  app.add_option("--read-depth", into.read_depth, "Reads in flight (default: measured)")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  app.add_option("--read-timeout", into.read_timeout, "Seconds after which a read is given up")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--no-register-memory", into.no_register_memory,
               "Do not register the slots with the kernel as they fill")
      ->group(group);
  app.add_flag("--no-check-reads", into.no_check_reads,
               "Do not verify the checksum of each expert that is read")
      ->group(group);
  app.add_option("--trace", into.trace, "Record reads, waits and stages for chrome://tracing or Perfetto")
      ->type_name("FILE")
      ->group(group);
}

}  // namespace

void add_engine_options(CLI::App& app, EngineArguments& into) {
  app.add_option("--backend", into.backend,
                 "cpu, cuda (a GPU), cpu-ref (the plain reference); auto: the fastest here")
      ->check(CLI::IsMember(backend_choices()))
      ->capture_default_str();
  app.add_option("--precision", into.precision, "exact: float activations and KV; fast: int8 and bf16")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  add_bytes_option(app, "--ram", into.ram, "Expert slots in RAM (default: what is available)");
  app.add_option_function<std::string>(
         "--vram", [&into](const std::string& text) { parse_vram(text, into); },
         "Expert slots on the GPU: bytes, or a share of all experts (default: what is available)")
      ->type_name("8GiB|25%");
  add_bytes_option(app, "--max-memory", into.max_memory, "Cap on the memory in all");
  app.add_option("--ctx", into.ctx, "Context in tokens (default: the model's, at most 4096)")
      ->check(CLI::PositiveNumber);
  app.add_option("--chunk", into.chunk, "Prompt tokens per step")
      ->check(CLI::Range(uint64_t{1}, kMostChunk))
      ->capture_default_str();
  app.add_option("--threads", into.threads, "Threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--kv", into.kv, "KV cache: f32, bf16 or q8 (default: bf16 in fast, f32 in exact precision)")
      ->check(CLI::IsMember({"f32", "bf16", "q8"}));
  app.add_option("--isa", into.isa, "Instruction set: auto, or one of those that this processor can run")
      ->check(CLI::IsMember(isa_names()))
      ->capture_default_str();
  add_streaming_options(app, into);
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
