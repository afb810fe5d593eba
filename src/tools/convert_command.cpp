#include <chrono>

#include "base/memory.h"
#include "base/text.h"
#include "convert/convert.h"
#include "convert/synth.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct ConvertArguments {
  std::string source, out, experts = "q4", resident = "q8";
  uint16_t group = 64;
  bool mtp = false, consume = false, dry_run = false, json = false, package = false;
  std::optional<uint64_t> seed, layers;
  size_t threads = 0;

  WidthOptions width() const { return {width_from_string(experts), width_from_string(resident), group}; }
};

void add_width_options(CLI::App& cmd, ConvertArguments& o) {
  cmd.add_option("--experts", o.experts, "Format of the routed experts")
      ->check(CLI::IsMember({"q4", "q8", "bf16", "mxfp4", "keep"}))
      ->capture_default_str();
  cmd.add_option("--resident", o.resident, "Format of the other matrices")
      ->check(CLI::IsMember({"q4", "q8", "bf16", "keep"}))
      ->capture_default_str();
  cmd.add_option("--group", o.group, "Columns that share a scale in q4 and q8")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  cmd.add_option("--threads", o.threads, "Worker threads (default: all cores)");
}

// Bytes per format, in words: "affine4/g64/bf16 16.2 GiB, ...".
std::map<std::string, uint64_t> bytes_by_format(const Manifest& m) {
  std::map<std::string, uint64_t> sum;
  const auto add = [&](const StoredTensor& t, uint64_t times) {
    sum[t.tiled ? to_string(t.format) : "plain-f32"] += t.bytes * times;
  };
  for (const ResidentTensor& r : m.resident) add(r.tensor, 1);
  for (const ExpertLayer& l : m.layers)
    for (const StoredTensor& p : l.parts) add(p, l.n_experts());
  return sum;
}

void report_layout(const Source& source, const PackageLayout& layout) {
  for (const auto& [what, n] : source.ignored()) fmt::print(stderr, "left out: {} ({} tensors)\n", what, n);
  for (const auto& [name, n] : layout.stays_bf16)
    fmt::print(stderr, "stays bf16: {} {} (its width is no multiple of the group)\n", n, name);
}

Json layout_json(const PackageLayout& layout, const Source& source) {
  const Manifest& m = layout.manifest;
  return {{"family", m.family},
          {"resident_bytes", layout.resident_file_bytes},
          {"expert_bytes", m.expert_bytes()},
          {"total_bytes", layout.total_bytes()},
          {"record_bytes", m.layers.empty() ? 0 : m.layers[0].record_bytes},
          {"bytes_by_format", bytes_by_format(m)},
          {"stays_bf16", layout.stays_bf16},
          {"left_out", source.ignored()}};
}

void print_layout(const PackageLayout& layout) {
  const Manifest& m = layout.manifest;
  fmt::print("{:<18} {}\n{:<18} {} ({} bytes)\n{:<18} {} in {} layers\n", "family", m.family, "resident",
             format_bytes(layout.resident_file_bytes), layout.resident_file_bytes, "experts",
             format_bytes(m.expert_bytes()), m.layers.size());
  if (!m.layers.empty())
    fmt::print("{:<18} {} ({} bytes), {} per layer\n", "expert record",
               format_bytes(m.layers[0].record_bytes), m.layers[0].record_bytes, m.layers[0].n_experts());
  for (const auto& [format, bytes] : bytes_by_format(m))
    fmt::print("{:<18} {}\n", "  " + format, format_bytes(bytes));
  fmt::print("{:<18} {} ({} bytes)\n", "total", format_bytes(layout.total_bytes()), layout.total_bytes());
}

void convert(const ConvertArguments& o) {
  if (!o.dry_run && finish_tidying(o.out)) {
    fmt::print(stderr, "{}: was finished already\n", o.out);
    return;
  }
  const OpenSource open = open_source(o.source, o.out, o.mtp, o.resident == "keep");
  const PackageLayout layout = lay_out_package(*open.source, o.width(), "");
  report_layout(*open.source, layout);
  if (o.dry_run) {
    if (o.json)
      fmt::print("{}\n", layout_json(layout, *open.source).dump(1));
    else
      print_layout(layout);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const ConvertResult r = convert_package(
      open, o.out, {.width = o.width(), .mtp = o.mtp, .consume = o.consume, .threads = o.threads});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (r.units_resumed) fmt::print(stderr, "went on from {} finished pieces\n", r.units_resumed);
  const uint64_t read = open.checkpoint->bytes();
  fmt::print(stderr, "{} read, {} written in {:.1f} s ({}/s read), peak memory {}\n", format_bytes(read),
             format_bytes(r.bytes_written), seconds,
             format_bytes(static_cast<uint64_t>(static_cast<double>(read) / std::max(seconds, 1e-3))),
             format_bytes(peak_memory()));
  if (o.json) {
    Json json = layout_json(layout, *open.source);
    json["quantisation_error"] = r.manifest.error;
    json["seconds"] = seconds;
    fmt::print("{}\n", json.dump(1));
    return;
  }
  for (const auto& [cls, error] : r.manifest.error)
    fmt::print("{:<18} {:.3f} % relative RMS quantisation error\n", cls, 100 * error);
  if (r.manifest.error.empty()) fmt::print("nothing was quantised: all weights are as in the checkpoint\n");
}

void synth(const ConvertArguments& o) {
  const SynthOptions options{o.seed, o.layers, o.width(), o.mtp, o.threads};
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  if (o.package) {
    const Manifest m = write_synthetic_package(o.source, o.out, options);
    bytes = m.resident_bytes() + m.expert_bytes();
  } else {
    write_synthetic_checkpoint(o.source, o.out, options);
    for (const auto& entry : fs::directory_iterator(o.out)) bytes += entry.file_size();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(stderr, "{}: {} in {:.1f} s ({}/s)\n", o.out, format_bytes(bytes), seconds,
             format_bytes(static_cast<uint64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-3))));
}

}  // namespace

void add_convert_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("convert", "Make a package from a published checkpoint");
  cmd->footer(
      "Makes a package from a published checkpoint: a folder with config.json and safetensors files (bf16, "
      "f16, f32,\n"
      "FP8 in blocks of 128, gpt-oss MXFP4, MLX 2-6 and 8 bits, packed int4 and int8), as downloaded.\n\n"
      "It may be killed at any time: the same command goes on where it stopped. `keep` loses nothing; norms, "
      "biases\n"
      "and routers are never narrowed.");
  auto o = std::make_shared<ConvertArguments>();
  cmd->add_option("CHECKPOINT", o->source, "Folder of the checkpoint")->required();
  cmd->add_option("PACKAGE", o->out, "Folder to make")->required();
  add_width_options(*cmd, *o);
  cmd->add_flag("--mtp", o->mtp, "Keep the multi-token-prediction layer");
  cmd->add_flag("--consume", o->consume, "Delete each source file once its content is converted and on disk");
  cmd->add_flag("--dry-run", o->dry_run, "Only say what the package would be");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { convert(*o); });
}

void add_synth_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("synth", "Make a synthetic checkpoint or package from a config.json");
  cmd->footer(
      "Makes a model of random weights from a config.json, for tests and benchmarks.\n\n"
      "Without --package: a checkpoint in the published layout whose every value follows from the seed, the "
      "tensor's\n"
      "name and the index. With --package: a package of true size, filled at disk speed with incompressible "
      "bytes.");
  auto o = std::make_shared<ConvertArguments>();
  cmd->add_option("SRC", o->source,
                  "Folder with config.json (and tensors.json, if names and shapes are given)")
      ->required();
  cmd->add_option("OUT", o->out, "Folder to make")->required();
  cmd->add_option("--seed", o->seed, "Seed (default: that of tensors.json, else 17)");
  cmd->add_option("--layers", o->layers, "Cut the model to its first N layers")->check(CLI::PositiveNumber);
  CLI::Option* package = cmd->add_flag("--package", o->package, "Write a package, not a checkpoint");
  add_width_options(*cmd, *o);
  cmd->add_flag("--mtp", o->mtp, "With a multi-token-prediction layer");
  for (const char* name : {"--experts", "--resident", "--group", "--mtp"})
    cmd->get_option(name)->needs(package);
  cmd->callback([o] { synth(*o); });
}

}  // namespace moeflux
