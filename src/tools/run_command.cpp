#include <charconv>
#include <chrono>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct Options {
  std::string package, tokens, backend = "cpu-ref", precision = "fast";
  uint64_t n = 16, ctx = 0, chunk = 512;
  double temp = 0;
  bool no_check_reads = false, json = false;
  std::optional<uint64_t> ram, max_memory;
};

std::vector<Token> parse_tokens(const std::string& text) {
  std::vector<Token> tokens;
  const char *at = text.data(), *end = at + text.size();
  while (at <= end) {
    Token t = 0;
    const auto [next, err] = std::from_chars(at, end, t);
    if (err != std::errc() || (next != end && *next != ','))
      throw CLI::ValidationError("--tokens", fmt::format("'{}' is not a list such as 1,2,3", text));
    tokens.push_back(t);
    at = next + 1;
  }
  return tokens;
}

void run(const Options& o) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Token> prompt = parse_tokens(o.tokens);
  if (o.temp != 0)
    throw CLI::ValidationError("--temp", "only 0 (the likeliest token each time) is supported so far");
  Engine engine(o.package, {.backend = o.backend,
                            .precision = precision_from_string(o.precision),
                            .ram = o.ram,
                            .max_memory = o.max_memory,
                            .ctx = o.ctx,
                            .chunk = o.chunk,
                            .check_reads = !o.no_check_reads});
  const auto sequence = engine.make_sequence();
  if (o.n > sequence->capacity() || prompt.size() + o.n > sequence->capacity() + 1)
    fail(Errc::InvalidArgument, "{} prompt tokens and {} new ones do not fit in the context of {} (--ctx)",
         prompt.size(), o.n, sequence->capacity());
  const auto start = Clock::now();
  auto first = start;
  size_t count = 0;
  const auto out = engine.generate_greedy(*sequence, prompt, o.n, [&](Token t) {
    if (count == 0) first = Clock::now();
    if (!o.json) fmt::print("{}{}", count ? "," : "", t);
    std::fflush(stdout);
    ++count;
  });
  const double prefill = std::chrono::duration<double>(first - start).count();
  const double decode = std::chrono::duration<double>(Clock::now() - first).count();
  const StoreStats& s = engine.store_stats();
  if (o.json)
    fmt::print("{}\n", Json{{"tokens", out},
                            {"prefill_seconds", prefill},
                            {"decode_seconds", decode},
                            {"expert_hits", s.hits},
                            {"expert_misses", s.misses},
                            {"expert_bytes_read", s.bytes_read}}
                           .dump());
  else
    fmt::print("\n");
  fmt::print(
      stderr, "{} prompt tokens in {:.2f} s, {} new ones in {:.2f} s; experts: {} hits, {} misses, {} read\n",
      prompt.size(), prefill, out.size(), prefill + decode, s.hits, s.misses, format_bytes(s.bytes_read));
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("run", "Continue a prompt of token ids");
  cmd->footer("Continues a prompt: token ids in, token ids out, as one comma-separated line on stdout.");
  auto o = std::make_shared<Options>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("--tokens", o->tokens, "Prompt: token ids, separated by commas")
      ->required()
      ->type_name("IDS");
  cmd->add_option("-n", o->n, "Tokens to generate")->check(CLI::PositiveNumber)->capture_default_str();
  cmd->add_option("--temp", o->temp, "Temperature; 0 takes the likeliest token")->capture_default_str();
  cmd->add_option("--backend", o->backend, "Backend")
      ->check(CLI::IsMember(backend_names()))
      ->capture_default_str();
  cmd->add_option("--precision", o->precision, "exact: float activations and KV; fast: int8 and bf16")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  add_bytes_option(*cmd, "--ram", o->ram, "Expert slots in RAM (default: what is available)");
  add_bytes_option(*cmd, "--max-memory", o->max_memory, "Cap on the memory in all");
  cmd->add_option("--ctx", o->ctx, "Context in tokens (default: the model's, at most 4096)")
      ->check(CLI::PositiveNumber);
  cmd->add_option("--chunk", o->chunk, "Prompt tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  cmd->add_flag("--no-check-reads", o->no_check_reads,
                "Do not verify the checksum of each expert that is read");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { run(*o); });
}

}  // namespace moeflux
