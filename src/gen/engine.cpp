#include "gen/engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "cpu/cpu_backend.h"
#include "cpu/host_experts.h"
#include "cpu/reference_backend.h"
#include "cuda/cuda_backend.h"
#include "gen/generate.h"

namespace moeflux {
namespace {

ModelConfig matched_config(const Package& package) {
  ModelConfig config = parse_model_config(package.config(), package.config_path());
  match_schema(package.manifest(), config, package.folder().string());
  return config;
}

size_t thread_count(const EngineOptions& o) { return o.threads ? o.threads : usable_cores().size(); }

KvType kv_type(const EngineOptions& o) {
  const bool exact = o.precision == Precision::Exact;
  const KvType type = o.kv.value_or(exact ? KvType::F32 : KvType::Bf16);
  if (exact && type != KvType::F32)
    fail(Errc::InvalidArgument,
         "exact precision keeps its KV cache in f32; for a smaller one use fast (--precision)");
  if (o.backend == "cpu-ref" && type != (exact ? KvType::F32 : KvType::Bf16))
    fail(Errc::Unsupported,
         "the backend cpu-ref has an f32 KV cache in exact precision and bf16 in fast, no other");
  return type;
}

CpuOptions cpu_options(const EngineOptions& o) {
  return {.precision = o.precision, .kv = kv_type(o), .ops = &choose_ops(o.isa), .threads = thread_count(o)};
}

std::unique_ptr<Backend> make_backend(const EngineOptions& o, const ModelConfig& config,
                                      const ModelWeights& weights, const ResidentWeights& resident,
                                      const Manifest& manifest, const MemoryPlan& plan) {
  const std::string& name = o.backend;
  if (name == "cpu") return make_cpu_backend(config, weights, cpu_options(o));
  if (name == "cpu-ref") return make_reference_backend(config, weights, o.precision);
  if (name == "cuda")
    return make_cuda_backend(
        config, weights, resident.memory(), manifest,
        {.precision = o.precision, .kv = kv_type(o), .slot_bytes = plan.vram_slot_bytes, .policy = o.policy},
        plan.vram_slot_bytes == plan.expert_bytes ? nullptr : make_host_experts(config, cpu_options(o)));
  std::string known;
  for (const std::string& b : backend_names()) known += (known.empty() ? "" : ", ") + b;
  fail(Errc::Unsupported, "there is no backend '{}' in this program; there is {}", name, known);
}

PlanRequest plan_request(const EngineOptions& o, const Manifest& manifest) {
  std::optional<uint64_t> vram = o.vram, device_free, max_memory = o.max_memory;
  const auto without_kept = [&](uint64_t bytes) { return bytes - std::min(bytes, o.kept_bytes); };
  if (o.vram_share)
    vram = static_cast<uint64_t>(*o.vram_share * static_cast<double>(manifest.expert_bytes()));
  if (o.backend == "cuda")
    device_free = without_kept(cuda_device().free_bytes);
  else if (vram)
    fail(Errc::InvalidArgument, "--vram is for the backend cuda; this is {}", o.backend);
  else if (o.kept_bytes)
    max_memory = without_kept(max_memory.value_or(available_memory()));
  return {.ram = o.ram,
          .vram = vram,
          .device_free = device_free,
          .ctx = o.ctx,
          .sequences = o.sequences,
          .max_memory = max_memory,
          .available = available_memory(),
          .chunk = o.chunk,
          .logit_rows = o.logit_rows,
          .kv = kv_type(o),
          .threads = thread_count(o)};
}

StoreOptions store_options(const EngineOptions& o, const MemoryPlan& plan, const ReadSettings& reads) {
  return {.budget_bytes = plan.ram_slot_bytes,
          .check_reads = o.check_reads,
          .policy = o.policy,
          .reads = reads,
          .threads = thread_count(o),
          .register_memory = o.register_memory,
          .read_timeout = o.read_timeout,
          .trace = o.trace.get(),
          .progress = o.progress,
          .wrap_queue = o.wrap_queue};
}

}  // namespace

std::vector<std::string> isa_names() {
  std::vector<std::string> names = {"auto"};
  for (const Ops* ops : runnable_ops()) names.emplace_back(ops->name);
  return names;
}

std::vector<std::string> backend_names() { return {"cpu", "cpu-ref", "cuda"}; }

std::vector<std::string> runnable_backends() {
  std::vector<std::string> names = {"cpu", "cpu-ref"};
  try {
    cuda_device();
    names.emplace_back("cuda");
  } catch (const Error&) {  // there is no GPU, which is no failure here
  }
  return names;
}

EngineOptions on_backend(EngineOptions options, const std::string& backend) {
  options.backend = backend;
  if (backend != "cuda") options.vram.reset(), options.vram_share.reset();
  return options;
}

std::string best_backend(const LogSink& log) {
  if (!built_with_cuda()) return "cpu";
  try {
    cuda_device();
    return "cuda";
  } catch (const Error& e) {
    if (log) log(LogLevel::Warning, fmt::format("computing on the CPU: {}", e.what()));
    return "cpu";
  }
}

Engine::Engine(const fs::path& package, const EngineOptions& options)
    : options_(options),
      package_(package, options.stripes),
      config_(matched_config(package_)),
      plan_(make_plan(config_, package_.manifest(), plan_request(options, package_.manifest()))),
      drive_(probe_drive(package_.record_files(), options.reads)),
      resident_(package_, thread_count(options), options.progress),
      weights_(bind_weights(config_, package_.manifest(), resident_)),
      store_(package_, store_options(options, plan_, drive_.settings)),
      backend_(make_backend(options, config_, weights_, resident_, package_.manifest(), plan_)),
      model_(config_, weights_, *backend_, store_, options.prefetch, options.trace.get()) {
  // Where the GPU has room for all experts, a step needs nothing of the host once they are there.
  if (plan_.device_bytes && plan_.vram_slot_bytes == plan_.expert_bytes) load_experts();
}

void Engine::load_experts() { backend_->load_experts(store_); }
size_t Engine::threads() const { return thread_count(options_); }
KvType Engine::kv() const { return kv_type(options_); }

std::vector<float> Engine::eval(Sequence& sequence, std::span<const Token> tokens, size_t rows,
                                const Tap& tap, std::vector<float>* final_norm, std::vector<float> memory) {
  check(rows <= tokens.size(), "logits of tokens that were given");
  if (tokens.size() > sequence.capacity() - sequence.position())
    fail(Errc::InvalidArgument, "{} tokens after {} do not fit in the context of {} (--ctx)", tokens.size(),
         sequence.position(), sequence.capacity());
  std::vector<float>& logits = memory;
  logits.resize(rows * config_.n_vocab);
  const size_t first_row = tokens.size() - rows, d = config_.d_model;
  if (final_norm) final_norm->resize(tokens.size() * d);
  for (size_t at = 0; at < tokens.size(); at += options_.chunk) {
    const size_t n = std::min<size_t>(options_.chunk, tokens.size() - at);
    std::vector<uint32_t> wanted;
    for (size_t i = std::max(at, first_row); i < at + n; ++i) wanted.push_back(static_cast<uint32_t>(i - at));
    const Slice slice{&sequence, 0, n};
    const size_t done = std::max(at, first_row) - first_row;
    model_.forward(
        {tokens.subspan(at, n),
         {&slice, 1},
         wanted,
         {},
         final_norm ? std::span(*final_norm).subspan(at * d, n * d) : std::span<float>()},
        std::span(logits).subspan(done * config_.n_vocab * !wanted.empty(), wanted.size() * config_.n_vocab),
        tap);
  }
  return memory;
}

std::vector<Token> Engine::generate_greedy(Sequence& sequence, std::span<const Token> prompt, size_t n,
                                           const std::function<void(Token)>& on_token, const Tap& tap) {
  GenerateOptions options;
  options.tap = tap;
  options.sampler.temperature = 0;
  options.max_tokens = n;
  const Generated out = generate(*this, sequence, prompt, options, [&](const Sample& sample) {
    if (on_token) on_token(sample.token);
    return Next::Continue;
  });
  if (out.tokens.size() < n)
    fail(Errc::InvalidArgument, "the context of {} (--ctx) is full after {} of {} new tokens",
         sequence.capacity(), out.tokens.size(), n);
  return out.tokens;
}

}  // namespace moeflux
