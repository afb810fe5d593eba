#include <atomic>

#include "base/hash.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/threads.h"
#include "convert/convert.h"
#include "gen/engine_report.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct InspectArguments {
  std::string path, experts = "q4", resident = "q8";
  bool tensors = false, check = false, json = false;
  uint64_t ctx = 0;
  std::optional<uint64_t> ram, vram, max_memory;
};

// A package, or the package that a checkpoint would become.
struct Subject {
  bool is_package = false;
  Json config;
  ModelConfig model;
  Manifest manifest;
  std::map<std::string, uint64_t> ignored;
  std::vector<TensorInfo> tensors;  // of a checkpoint
  uint64_t checkpoint_bytes = 0;
};

Subject open_subject(const InspectArguments& o, bool as_stored) {
  Subject s;
  if (is_package(o.path)) {
    const Package package(o.path);
    s.is_package = true;
    s.config = package.config();
    s.model = parse_model_config(s.config, package.config_path());
    s.manifest = package.manifest();
    match_schema(s.manifest, s.model, o.path);
    return s;
  }
  const WidthOptions width =
      as_stored ? WidthOptions{Width::Keep, Width::Keep, 64}
                : WidthOptions{width_from_string(o.experts), width_from_string(o.resident), 64};
  const OpenSource open = open_source(o.path, {}, false, width.resident == Width::Keep);
  s.config = open.config;
  s.model = open.source->model();
  s.manifest = lay_out_package(*open.source, width, "").manifest;
  s.ignored = open.source->ignored();
  s.checkpoint_bytes = open.checkpoint->bytes();
  for (const auto& [_, t] : open.checkpoint->tensors()) s.tensors.push_back(t.info);
  return s;
}

std::string layer_summary(const ModelConfig& m) {
  std::map<std::string, int> kinds;
  for (const LayerConfig& l : m.layers) {
    const char* mixer = l.mixer == Mixer::DeltaNet ? "gated delta net"
                        : l.mixer == Mixer::Mla    ? "latent attention"
                                                   : "attention";
    ++kinds[l.window ? fmt::format("{} (window {})", mixer, l.window) : mixer];
    if (!l.sparse) ++kinds["dense mlp"];
  }
  std::string text;
  for (const auto& [kind, n] : kinds) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, kind);
  return text;
}

std::string record_summary(const ExpertLayer& l) {
  std::string text;
  for (const StoredTensor& p : l.parts)
    text += fmt::format("{}{} [{}, {}] {}", text.empty() ? "" : " | ", p.name, p.rows, p.cols,
                        p.tiled ? to_string(p.format) : "f32");
  return text;
}

Json describe(const Subject& s, const MemoryPlan& plan) {
  const ModelConfig& m = s.model;
  Json classes = Json::object();
  for (size_t c = 0; c < kTensorClasses; ++c)
    if (plan.class_bytes[c]) classes[to_string(static_cast<TensorClass>(c))] = plan.class_bytes[c];
  Json json = {{"kind", s.is_package ? "package" : "checkpoint"},
               {"family", m.family},
               {"layers", m.n_layers()},
               {"hidden", m.d_model},
               {"vocabulary", m.n_vocab},
               {"heads", m.attention.n_heads},
               {"kv_heads", m.attention.n_kv_heads},
               {"head_dim", m.attention.head_dim},
               {"experts", m.moe.n_experts},
               {"experts_per_token", m.moe.top_k},
               {"expert_width", m.moe.width},
               {"shared_expert_width", m.moe.shared_width},
               {"max_position", m.max_position},
               {"parameters", plan.params_total},
               {"active_parameters", plan.params_active},
               {"bytes", classes},
               {"resident_bytes", plan.resident_bytes},
               {"expert_bytes", plan.expert_bytes}};
  if (!s.manifest.layers.empty()) {
    json["record_bytes"] = s.manifest.layers[0].record_bytes;
    json["record"] = record_summary(s.manifest.layers[0]);
  }
  if (s.is_package)
    json["source"] = s.manifest.source, json["quantisation_error"] = s.manifest.error;
  else
    json["checkpoint_bytes"] = s.checkpoint_bytes, json["left_out"] = s.ignored;
  return json;
}

Json tensor_list(const Subject& s) {
  Json list = Json::array();
  if (!s.is_package) {
    for (const TensorInfo& t : s.tensors)
      list.push_back(
          {{"name", t.name}, {"dtype", to_string(t.type)}, {"shape", t.shape}, {"bytes", t.bytes()}});
    return list;
  }
  const auto add = [&](const std::string& name, const StoredTensor& t) {
    list.push_back({{"name", name},
                    {"dtype", t.tiled ? to_string(t.format) : "f32"},
                    {"shape", {t.rows, t.cols}},
                    {"bytes", t.bytes}});
  };
  for (const ResidentTensor& r : s.manifest.resident) add(r.tensor.name, r.tensor);
  for (const ExpertLayer& l : s.manifest.layers)
    for (const StoredTensor& p : l.parts)
      add(fmt::format("layer {} experts 0..{} {}", l.layer, l.n_experts() - 1, p.name), p);
  return list;
}

void print_description(const Subject& s, const MemoryPlan& plan) {
  const ModelConfig& m = s.model;
  const auto row = [](const char* name, const std::string& value) { fmt::print("{:<20} {}\n", name, value); };
  row("kind", s.is_package ? "package, made from " + s.manifest.source
                           : "checkpoint (moeflux convert makes a package)");
  row("family", m.family);
  row("parameters",
      fmt::format("{} total, {} active per token", format_count(static_cast<double>(plan.params_total)),
                  format_count(static_cast<double>(plan.params_active))));
  row("layers", fmt::format("{}: {}", m.n_layers(), layer_summary(m)));
  row("hidden, vocabulary",
      fmt::format("{}, {}{}", m.d_model, m.n_vocab, m.tied_embeddings ? " (head tied)" : ""));
  row("attention heads", m.has(Mixer::Mla)
                             ? fmt::format("{}, latent {}", m.attention.n_heads, m.mla.kv_rank)
                             : fmt::format("{} query, {} key/value, {} wide", m.attention.n_heads,
                                           m.attention.n_kv_heads, m.attention.head_dim));
  row("experts", fmt::format("{} of {} per token, width {}", m.moe.top_k, m.moe.n_experts, m.moe.width));
  if (m.moe.shared_width) row("shared expert", fmt::format("width {}", m.moe.shared_width));
  row("positions", std::to_string(m.max_position));
  if (!s.manifest.layers.empty()) {
    row("expert record", fmt::format("{} ({} bytes)", format_bytes(s.manifest.layers[0].record_bytes),
                                     s.manifest.layers[0].record_bytes));
    row("", record_summary(s.manifest.layers[0]));
  }
  for (size_t c = 0; c < kTensorClasses; ++c)
    if (plan.class_bytes[c])
      row(c == 0 ? "bytes" : "", fmt::format("{:<16} {:>12}", to_string(static_cast<TensorClass>(c)),
                                             format_bytes(plan.class_bytes[c])));
  for (const auto& [cls, error] : s.manifest.error)
    row("quantisation error", fmt::format("{:<16} {:.3f} % rms", cls, 100 * error));
  for (const auto& [what, n] : s.ignored) row("left out", fmt::format("{} ({} tensors)", what, n));
}

void check_all(const std::string& path) {
  const Package package(path);
  const Manifest& m = package.manifest();
  struct Job {
    const ResidentTensor* tensor;
    const ExpertLayer* layer;
    uint64_t expert;
  };
  std::vector<Job> jobs;
  for (const ResidentTensor& r : m.resident) jobs.push_back({&r, nullptr, 0});
  for (const ExpertLayer& l : m.layers)
    for (uint64_t e = 0; e < l.n_experts(); ++e) jobs.push_back({nullptr, &l, e});
  Progress progress("checking", m.resident_bytes() + m.expert_bytes());
  parallel_for(jobs.size(), hardware_threads(), [&](size_t i) {
    const Job& job = jobs[i];
    std::vector<std::byte> bytes(job.tensor ? job.tensor->tensor.bytes : job.layer->record_bytes);
    if (job.tensor)
      package.read_resident(*job.tensor, bytes);
    else
      package.read_record(*job.layer, job.expert, bytes);
    progress.add(bytes.size());
  });
  fmt::print(stderr, "all checksums are right: {} tensors, {} expert records\n", m.resident.size(),
             jobs.size() - m.resident.size());
}

void inspect(const InspectArguments& o) {
  const Subject s = open_subject(o, true);
  PlanRequest request{
      .ram = s.manifest.expert_bytes(), .vram = {}, .ctx = 1, .max_memory = {}, .available = UINT64_MAX};
  const MemoryPlan plan = make_plan(s.model, s.manifest, request);
  if (o.json) {
    Json json = describe(s, plan);
    if (o.tensors) json["tensors"] = tensor_list(s);
    fmt::print("{}\n", json.dump(1));
  } else {
    print_description(s, plan);
    if (o.tensors)
      for (const Json& t : tensor_list(s))
        fmt::print("{:<60} {:<18} {:<18} {}\n", t["name"].get<std::string>(), t["dtype"].get<std::string>(),
                   t["shape"].dump(), t["bytes"].get<uint64_t>());
  }
  if (!o.check) return;
  if (!s.is_package)
    fail(Errc::InvalidArgument, "{}: --check needs a package: checkpoints have no checksums", o.path);
  check_all(o.path);
}

void plan(const InspectArguments& o) {
  const Subject s = open_subject(o, false);
  // With a budget the plan may be for another machine; without one it is for this one, and a model that does
  // not fit here is still worth a plan.
  const bool budget = o.max_memory || o.ram;
  const uint64_t available = budget ? UINT64_MAX : available_memory();
  const MemoryPlan p = make_plan(s.model, s.manifest,
                                 {.ram = o.ram,
                                  .vram = o.vram,
                                  .ctx = o.ctx,
                                  .max_memory = o.max_memory,
                                  .available = available,
                                  .refuse = budget});
  if (!p.fits)
    fmt::print(stderr, "does not fit here: {} of memory are needed at least, {} are available\n",
               format_bytes(p.host_bytes), format_bytes(available));
  if (o.json) {
    fmt::print("{}\n", to_json(p).dump(1));
    return;
  }
  const auto share = [&](uint64_t bytes) {
    return p.expert_bytes ? 100.0 * static_cast<double>(bytes) / static_cast<double>(p.expert_bytes) : 0.0;
  };
  const auto row = [](const char* name, uint64_t bytes, const std::string& note = {}) {
    fmt::print("{:<28} {:>12}  {}\n", name, format_bytes(bytes), note);
  };
  if (!s.is_package)
    fmt::print("for the package that convert would make (experts {}, resident {})\n", o.experts, o.resident);
  row("resident weights", p.resident_bytes);
  row("KV cache and state", p.kv_bytes, fmt::format("{} tokens, bf16", p.ctx));
  row("overhead", p.overhead_bytes, "activations of a prefill step, logits, program");
  row("expert slots in RAM", p.ram_slot_bytes,
      fmt::format("{:.1f} % of the experts", share(p.ram_slot_bytes)));
  row("host memory", p.host_bytes);
  if (o.vram)
    row("expert slots in VRAM", p.vram_slot_bytes,
        fmt::format("{:.1f} % of the experts", share(p.vram_slot_bytes)));
  row("experts on SSD only", p.ssd_only_bytes,
      fmt::format("{:.1f} % of {} in {} experts", share(p.ssd_only_bytes), format_bytes(p.expert_bytes),
                  p.n_experts));
  row("per token: resident", p.token_resident_bytes);
  row("per token: experts", p.token_expert_bytes);
  row("per token: read from SSD", p.token_missed_bytes, "if routing were uniform");
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("inspect", "Say what a checkpoint or package is");
  auto o = std::make_shared<InspectArguments>();
  cmd->add_option("PATH", o->path, "Folder of a checkpoint or package")->required();
  cmd->add_flag("--tensors", o->tensors, "List all tensors");
  cmd->add_flag("--check", o->check, "Read everything and verify the checksums (packages)");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { inspect(*o); });
}

void add_plan_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("plan", "Say what goes to VRAM, RAM and SSD, and the bytes per token");
  cmd->footer(
      "Prints the memory plan of a package, or of the package that a checkpoint would become.\n\n"
      "--ram and --vram are bytes of expert slots; resident weights, KV cache and overhead come on top and "
      "are printed.\n"
      "A plan that cannot fit is refused with the numbers.");
  auto o = std::make_shared<InspectArguments>();
  cmd->add_option("PATH", o->path, "Folder of a package or checkpoint")->required();
  add_bytes_option(*cmd, "--ram", o->ram, "Expert slots in RAM (default: what is available)");
  add_bytes_option(*cmd, "--vram", o->vram, "Expert slots in VRAM");
  cmd->add_option("--ctx", o->ctx, "Context in tokens (default: the model's, at most 4096)")
      ->check(CLI::PositiveNumber);
  add_bytes_option(*cmd, "--max-memory", o->max_memory, "Cap on the host memory in all");
  cmd->add_option("--experts", o->experts, "For a checkpoint: as in convert")
      ->check(CLI::IsMember({"q4", "q8", "bf16", "mxfp4", "keep"}));
  cmd->add_option("--resident", o->resident, "For a checkpoint: as in convert")
      ->check(CLI::IsMember({"q4", "q8", "bf16", "keep"}));
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { plan(*o); });
}

}  // namespace moeflux
