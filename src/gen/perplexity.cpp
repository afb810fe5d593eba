#include "gen/perplexity.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/memory.h"
#include "gen/routing_log_tap.h"
#include "gen/verify.h"

namespace moeflux {
namespace {

// One position's logits as log-probabilities, in double.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) : logits_(logits) {
    top_ = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
    const double most = logits[top_];
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x} - most);
    log_sum_ = most + std::log(sum);
  }
  double operator[](size_t token) const { return double{logits_[token]} - log_sum_; }
  size_t size() const { return logits_.size(); }
  size_t top() const { return top_; }

 private:
  std::span<const float> logits_;
  size_t top_;
  double log_sum_;
};

double kl_divergence(const LogSoftmax& p, const LogSoftmax& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return sum;
}

using Picks = std::map<uint64_t, std::vector<float>>;  // layer -> [tokens, top_k]

Tap pick_recorder(Picks& picks) {
  return {[&](const TapTensor& t) {
            auto& layer = picks[t.layer];
            layer.insert(layer.end(), t.values.begin(), t.values.end());
            return false;
          },
          true};
}

// One pass over the documents.
class Measurement {
 public:
  Measurement(Engine& engine, Engine* reference, const Documents& documents,
              const std::function<void(uint64_t)>& on_tokens, const Tap& tap)
      : engine_(engine), reference_(reference), documents_(documents), on_tokens_(on_tokens), tap_(tap) {
    if (!reference) return;
    result_.reference.emplace();
    const ModelConfig &a = engine.config(), &b = reference->config();
    same_experts_ =
        a.n_layers() == b.n_layers() && a.moe.n_experts == b.moe.n_experts && a.moe.top_k == b.moe.top_k;
  }

  PerplexityResult run() {
    const size_t ctx = engine_.plan().ctx;
    for (const Document& d : documents_.list) {
      const std::span<const Token> tokens = d.tokens;
      if (tokens.size() < 2) {
        ++result_.n_skipped;
        continue;
      }
      for (size_t at = 0; at + 1 < tokens.size(); at += ctx - 1)
        window(d, at, tokens.subspan(at, std::min(ctx, tokens.size() - at)));
      ++result_.n_documents;
    }
    if (result_.nll.count() == 0)
      fail(Errc::InvalidArgument, "{}: none of its {} documents has two tokens: there is nothing to predict",
           documents_.source, documents_.list.size());
    for (const auto& [_, routes] : routes_) result_.reference->routes.push_back(routes);
    return std::move(result_);
  }

 private:
  void window(const Document& d, size_t first, std::span<const Token> tokens) {
    const auto sequence = engine_.make_sequence();
    const auto beside = reference_ ? reference_->make_sequence() : nullptr;
    const size_t chunk = engine_.options().chunk, n_fed = tokens.size() - 1;  // the last is only predicted
    for (size_t at = 0; at < n_fed; at += chunk) {
      const size_t n = std::min(chunk, n_fed - at);
      step(d, first + at, *sequence, beside.get(), tokens.subspan(at, n + 1));
      if (on_tokens_) on_tokens_(n);
    }
  }

  // Feeds all tokens but the last and looks at how each predicts the next. `first`: where in the document.
  void step(const Document& d, size_t first, Sequence& sequence, Sequence* beside,
            std::span<const Token> tokens) {
    const size_t n = tokens.size() - 1, vocab = engine_.config().n_vocab;
    Picks mine, theirs;
    const bool compare_picks = reference_ && same_experts_;
    const std::vector<float> logits = engine_.eval(
        sequence, tokens.first(n), n, compare_picks ? chain_taps(tap_, pick_recorder(mine)) : tap_);
    const std::vector<float> wanted =
        reference_
            ? reference_->eval(*beside, tokens.first(n), n, compare_picks ? pick_recorder(theirs) : Tap{})
            : std::vector<float>{};
    for (size_t i = 0; i < n; ++i) {
      const LogSoftmax q{std::span(logits).subspan(i * vocab, vocab)};
      add(result_.nll, -q[tokens[i + 1]], d, first + i);
      if (!reference_) continue;
      const LogSoftmax p{std::span(wanted).subspan(i * vocab, vocab)};
      add(result_.reference->kl, kl_divergence(p, q), d, first + i);
      result_.reference->n_same_top += p.top() == q.top();
    }
    if (compare_picks) compare(mine, theirs);
  }

  // An infinite or undefined logit makes one of these sums so, and would silently spoil the mean.
  void add(Average& average, double value, const Document& d, size_t position) const {
    if (!std::isfinite(value))
      fail(Errc::Corrupt, "{}: line {}: the logits after token {} are not finite", documents_.source, d.line,
           position + 1);
    average.add(value);
  }

  void compare(const Picks& mine, const Picks& theirs) {
    for (const auto& [layer, picks] : mine) {
      const auto other = theirs.find(layer);
      if (other == theirs.end()) continue;  // dense in the reference
      LayerRoutes& r = routes_.try_emplace(layer, LayerRoutes{layer, 0, 0}).first->second;
      r.n_picks += picks.size();
      r.n_different += count_different_picks(picks, other->second, engine_.config().moe.top_k);
    }
  }

  Engine& engine_;
  Engine* reference_;
  const Documents& documents_;
  const std::function<void(uint64_t)>& on_tokens_;
  const Tap& tap_;
  bool same_experts_ = false;
  std::map<uint64_t, LayerRoutes> routes_;
  PerplexityResult result_;
};

void require_context(uint64_t ctx) {
  if (ctx < 2)
    fail(Errc::InvalidArgument, "a context of {} token leaves nothing to predict: --ctx wants 2 or more",
         ctx);
}

void require_vocabulary(const Documents& documents, uint64_t n_vocab) {
  for (const Document& d : documents.list)
    for (const Token t : d.tokens)
      if (t >= n_vocab)
        fail(Errc::InvalidArgument, "{}: line {}: token {} is not in the vocabulary of {}", documents.source,
             d.line, t, n_vocab);
}

EngineOptions model_options(EngineOptions o, bool has_reference, uint64_t memory) {
  if (o.ctx) require_context(o.ctx);  // before a model is loaded in vain
  o.logit_rows = o.chunk;
  if (has_reference && !o.ram) o.max_memory = memory / 2;
  return o;
}

EngineOptions reference_options(EngineOptions o, const MemoryPlan& model, uint64_t memory) {
  o.ctx = model.ctx;
  o.logit_rows = o.chunk;
  o.max_memory = memory > model.host_bytes ? memory - model.host_bytes : 0;
  return o;
}

}  // namespace

void Average::add(double value) {
  ++n_;
  const double before = value - mean_;
  mean_ += before / static_cast<double>(n_);
  squares_ += before * (value - mean_);
  largest_ = std::max(largest_, value);
}

double Average::standard_error() const {
  if (n_ < 2) return std::numeric_limits<double>::quiet_NaN();
  const double n = static_cast<double>(n_);
  return std::sqrt(squares_ / (n - 1) / n);
}

double Divergence::top_agreement() const {
  return static_cast<double>(n_same_top) / static_cast<double>(kl.count());
}

LayerRoutes Divergence::all_routes() const {
  LayerRoutes sum{};
  for (const LayerRoutes& r : routes) sum.n_picks += r.n_picks, sum.n_different += r.n_different;
  return sum;
}

double PerplexityResult::perplexity() const { return std::exp(nll.mean()); }

PerplexityMeter::PerplexityMeter(const Subject& subject, const std::optional<Subject>& reference)
    : memory_(std::min(subject.options.max_memory.value_or(UINT64_MAX), available_memory())),
      engine_(subject.package, model_options(subject.options, reference.has_value(), memory_)) {
  require_context(engine_.plan().ctx);
  if (!reference) return;
  reference_.emplace(reference->package, reference_options(reference->options, engine_.plan(), memory_));
  if (const uint64_t a = engine_.config().n_vocab, b = reference_->config().n_vocab; a != b)
    fail(Errc::InvalidArgument, "{} has a vocabulary of {} and {} one of {}: they cannot be compared",
         subject.package.string(), a, reference->package.string(), b);
}

PerplexityResult PerplexityMeter::measure(const Documents& documents,
                                          const std::function<void(uint64_t)>& on_tokens, const Tap& tap) {
  require_vocabulary(documents, engine_.config().n_vocab);
  return Measurement(engine_, reference_ ? &*reference_ : nullptr, documents, on_tokens, tap).run();
}

}  // namespace moeflux
