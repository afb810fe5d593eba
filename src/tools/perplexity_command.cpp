#include "gen/perplexity.h"

#include <chrono>

#include "base/json.h"
#include "base/progress.h"
#include "tools/commands.h"

namespace moeflux {
namespace {

struct PerplexityArguments {
  std::string package, file;
  uint64_t tokens = UINT64_MAX, per_document = UINT64_MAX;
  EngineArguments engine;
  std::optional<std::string> reference, reference_backend, reference_precision, routing_log;
  bool no_special = false, json = false;

  bool has_reference() const { return reference || reference_backend || reference_precision; }
};

double percent(uint64_t part, uint64_t all) {
  return 100 * static_cast<double>(part) / static_cast<double>(all);
}

Json divergence_json(const Divergence& d) {
  Json json = {{"kl", d.kl.mean()},        {"kl_standard_error", d.kl.standard_error()},
               {"kl_max", d.kl.largest()}, {"top1_agreement_percent", 100 * d.top_agreement()},
               {"router_picks", nullptr},  {"router_picks_differ_percent", nullptr}};
  if (d.routes.empty()) return json;
  const LayerRoutes all = d.all_routes();
  json["router_picks"] = all.n_picks;
  json["router_picks_differ_percent"] = percent(all.n_different, all.n_picks);
  for (const LayerRoutes& r : d.routes)
    json["layers"].push_back(
        {{"layer", r.layer}, {"router_picks_differ_percent", percent(r.n_different, r.n_picks)}});
  return json;
}

void print_json(const PerplexityResult& r) {
  Json json = {{"tokens", r.nll.count()},
               {"documents", r.n_documents},
               {"skipped_documents", r.n_skipped},
               {"nll", r.nll.mean()},
               {"nll_standard_error", r.nll.standard_error()},
               {"perplexity", r.perplexity()}};
  if (r.reference) json["reference"] = divergence_json(*r.reference);
  fmt::print("{}\n", json.dump(1));
}

void print_text(const PerplexityResult& r) {
  fmt::print("{:<20} {} predicted in {} documents", "tokens", r.nll.count(), r.n_documents);
  if (r.n_skipped) fmt::print(", {} of fewer than 2 tokens skipped", r.n_skipped);
  fmt::print("\n{:<20} {:.5f} +- {:.5f} nats per token\n", "mean NLL", r.nll.mean(), r.nll.standard_error());
  fmt::print("{:<20} {:.4f}\n", "perplexity", r.perplexity());
  if (!r.reference) return;
  const Divergence& d = *r.reference;
  fmt::print("{:<20} {:.3e} +- {:.1e} nats per token, largest {:.3e}\n", "KL from reference", d.kl.mean(),
             d.kl.standard_error(), d.kl.largest());
  fmt::print("{:<20} {:.3f} % of tokens\n", "top-1 agreement", 100 * d.top_agreement());
  if (const LayerRoutes all = d.all_routes(); all.n_picks)
    fmt::print("{:<20} {:.3f} % of {} picks differ\n", "router choices",
               percent(all.n_different, all.n_picks), all.n_picks);
}

PerplexityMeter make_meter(const PerplexityArguments& o) {
  const PerplexityMeter::Subject subject{o.package, o.engine.options()};
  if (!o.has_reference()) return PerplexityMeter(subject);
  EngineOptions reference =
      on_backend(subject.options, o.reference_backend.value_or(subject.options.backend));
  if (o.reference_precision) reference.precision = precision_from_string(*o.reference_precision);
  if (reference.precision == Precision::Exact)
    reference.kv.reset();  // has f32 only; --kv is what is measured
  return PerplexityMeter(subject, {{o.reference.value_or(o.package), reference}});
}

DocumentOptions document_options(const PerplexityArguments& o) {
  return {.most_tokens = o.tokens,
          .most_per_document = o.per_document,
          .package = o.package,
          .markers = o.no_special ? Markers::AsText : Markers::Recognised};
}

void perplexity(const PerplexityArguments& o) {
  using Clock = std::chrono::steady_clock;
  const Documents documents =
      read_documents(o.file, document_options(o));  // before a model is loaded in vain
  if (documents.n_texts)
    fmt::print(stderr, "{}: {} documents of text, {} tokens of {}'s tokenizer\n", o.file, documents.n_texts,
               documents.n_tokens(), o.package);
  PerplexityMeter meter = make_meter(o);
  RoutingLogOption log(o.routing_log, meter.engine());
  const auto start = Clock::now();
  PerplexityResult result;
  {
    Progress progress("evaluating", documents.n_tokens(), Progress::Unit::Tokens);
    result = meter.measure(
        documents, [&](uint64_t n) { progress.add(n); }, log.tap());
  }
  log.close();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  o.json ? print_json(result) : print_text(result);
  fmt::print(stderr, "context {}, {:.1f} s, {:.1f} tokens/s\n", meter.engine().plan().ctx, seconds,
             static_cast<double>(result.nll.count()) / std::max(seconds, 1e-3));
  if (result.reference && result.reference->routes.empty())
    fmt::print(stderr, "router choices are not compared: the two do not have the same experts\n");
}

}  // namespace

void add_perplexity_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("perplexity", "Say how well a package predicts texts or token ids");
  cmd->footer(
      R"(A FILE that ends in .txt is one document of text. Any other has one document per line: text as a JSON object with
the field text, or as a JSON string; or token ids as a JSON array, as a JSON object with such an array in the field
ids, input_ids, token_ids or tokens, or separated by commas or white space. Text is encoded with PACKAGE's own
tokenizer, markers such as <|im_start|> included, after a token for its beginning where the tokenizer asks for one.

Each document starts from an empty context, and its first token is not predicted. One that is longer than the
context (--ctx) is cut into windows of that many tokens, each from an empty context again; a window starts with
the last token of the one before, so that every other token is predicted once.

With any of the --reference options, the same tokens also go through a second model beside the first; what is not
given for it is as for the first, but an exact reference always has a KV cache in f32. Printed are the mean of
KL(reference || this), the share of tokens for which both find the same token likeliest, and the share of router
picks that the reference did not make. Both models are in memory: --max-memory is for both together, --ram for
each.)");
  auto o = std::make_shared<PerplexityArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("FILE", o->file, "Text or token ids")->required();
  cmd->add_option("--tokens", o->tokens, "Read at most this many tokens of the file (default: all)")
      ->check(CLI::Range(uint64_t{2}, UINT64_MAX).description("2 OR MORE"));
  cmd->add_option("--per-document", o->per_document,
                  "Read at most this many tokens of each document (default: all)")
      ->check(CLI::Range(uint64_t{2}, UINT64_MAX).description("2 OR MORE"));
  cmd->add_flag("--no-special", o->no_special, "Markers in text (<|im_start|> and the like) are text");
  cmd->add_option("--reference", o->reference, "Package to compare with (default: PACKAGE)")
      ->type_name("PACKAGE");
  cmd->add_option("--reference-backend", o->reference_backend, "Its backend (default: as --backend)")
      ->check(CLI::IsMember(backend_names()));
  cmd->add_option("--reference-precision", o->reference_precision, "Its precision (default: as --precision)")
      ->check(CLI::IsMember({"exact", "fast"}));
  o->engine.chunk = 512;  // the logits of every token of a step are held at once
  add_engine_options(*cmd, o->engine);
  add_routing_log_option(*cmd, o->routing_log);
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { perplexity(*o); });
}

}  // namespace moeflux
