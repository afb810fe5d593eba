#include "gen/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "gen/philox.h"

namespace moeflux {
namespace {

using Candidate = Sampler::Candidate;

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kMargin = 0.01;  // of exponents: far above their rounding, far below what would cost time
constexpr double kFirstReach = -4;

void check_range(const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    fail(Errc::InvalidArgument, "{} is {}, want a number from {} to {}", name, value, least, most);
}

void check_token(const char* name, Token token, size_t n_vocab) {
  if (token >= n_vocab)
    fail(Errc::InvalidArgument, "{} names the token {}, but the vocabulary has {}", name, token, n_vocab);
}

uint64_t sum_of(std::span<const Candidate> candidates) {
  uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Where the running sum of weights, by ascending key, is after the keys of the buckets before the one in
// which it reaches `target`; the last bucket where it never does.
struct Bucket {
  size_t index = 0;
  uint64_t before = 0;
};
Bucket find_bucket(std::span<const uint64_t> sums, uint64_t target) {
  Bucket b;
  while (b.index + 1 < sums.size() && b.before + sums[b.index] < target) b.before += sums[b.index++];
  return b;
}

// The first key, in ascending order, at which the running sum of weights reaches `target`; the last one where
// it never does. Sorts by leading bits, and then only what shares those of the answer. Changes the range.
uint64_t weighted_cut(std::span<Candidate> range, uint64_t target) {
  constexpr size_t kSmall = 64, kBuckets = 1024;
  while (range.size() > kSmall) {
    const auto [low, high] = std::ranges::minmax(range, {}, &Candidate::key);
    const uint64_t base = low.key;
    const int shift = std::max(static_cast<int>(std::bit_width(high.key - base)) - 10, 0);
    uint64_t sums[kBuckets] = {};
    for (const Candidate& c : range) sums[(c.key - base) >> shift] += c.weight;
    const Bucket bucket = find_bucket({sums, ((high.key - base) >> shift) + 1}, target);
    size_t n = 0;
    for (const Candidate& c : range)
      if ((c.key - base) >> shift == bucket.index) range[n++] = c;
    range = range.first(n);
    target -= bucket.before;
  }
  std::ranges::sort(range, {}, &Candidate::key);
  uint64_t sum = 0;
  for (const Candidate& c : range)
    if ((sum += c.weight) >= target) return c.key;
  return range.back().key;
}

// The key at which the running sum of weights exceeds `target`, which is below the whole sum.
uint64_t pick(std::span<const Candidate> candidates, uint64_t target) {
  size_t i = 0;
  for (; target >= candidates[i].weight; ++i) target -= candidates[i].weight;
  return candidates[i].key;
}

double log_of_sum(uint64_t sum) {
  return natural_log(static_cast<double>(sum) / static_cast<double>(kWeightOne));
}

}  // namespace

void check_options(const SamplerOptions& o, size_t n_vocab) {
  constexpr double kMostBias = 1e6;
  check_range("temperature", o.temperature, 0, 100);
  check_range("top_p", o.top_p, 0, 1);
  check_range("min_p", o.min_p, 0, 1);
  check_range("typical_p", o.typical_p, 0, 1);
  check_range("top_n_sigma", o.top_n_sigma, 0, 1000);
  check_range("xtc_probability", o.xtc_probability, 0, 1);
  check_range("xtc_threshold", o.xtc_threshold, 0, 1);
  check_range("repetition_penalty", o.penalties.repetition, 0.01, 100);
  check_range("frequency_penalty", o.penalties.frequency, -100, 100);
  check_range("presence_penalty", o.penalties.presence, -100, 100);
  check_range("dry_multiplier", o.penalties.dry.multiplier, 0, 1000);
  check_range("dry_base", o.penalties.dry.base, 1, 1000);
  check_range("mirostat_tau", o.mirostat.target, 0, 100);
  check_range("mirostat_eta", o.mirostat.rate, 0, 1);
  for (const Token t : o.penalties.dry.breakers) check_token("dry_sequence_breakers", t, n_vocab);
  for (const Token t : o.banned) check_token("the list of banned tokens", t, n_vocab);
  for (const TokenBias& b : o.logit_bias) {
    check_token("logit_bias", b.token, n_vocab);
    check_range("logit_bias", b.bias, -kMostBias, kMostBias);
  }
}

namespace {

const SamplerOptions& checked(const SamplerOptions& options, size_t n_vocab) {
  check_options(options, n_vocab);
  return options;
}

// Below this exponent no weight reaches the fraction of the largest one, rounding of weights included.
double exponent_of_min_p(Fraction fraction) {
  if (fraction == 0) return kLeastExponent;
  const double least = (static_cast<double>(fraction) - 0.5) / static_cast<double>(kWeightOne);
  return std::max<double>(natural_log(least), kLeastExponent);
}

// A temperature so small that its inverse would overflow separates all but equal logits anyway.
float inverse(double temperature) { return static_cast<float>(std::min(1 / temperature, 1e30)); }

}  // namespace

Sampler::Sampler(const SamplerOptions& options, size_t n_vocab, const Ops& ops)
    : options_(checked(options, n_vocab)),
      penalties_(options.penalties, n_vocab),
      ops_(ops),
      logits_(n_vocab, ops),
      surprise_limit_(2 * options.mirostat.target) {
  if (options_.logprobs) published_.emplace(n_vocab, ops);
}

void Sampler::read(std::span<const Token> prompt) {
  for (const Token t : prompt)
    if (t >= logits_.n_vocab())
      fail(Errc::InvalidArgument, "token {} is not in the vocabulary of {}", t, logits_.n_vocab());
  penalties_.read(prompt);
}

Sample Sampler::sample(std::span<const float> logits, size_t position, const Allowed& allowed) {
  prepare(logits, position, allowed);
  Sample out{options_.temperature == 0 ? logits_.best() : draw(position)};
  if (options_.logprobs) out.logprobs = logprobs(logits, position, out.token);
  return out;
}

std::span<const Candidate> Sampler::candidates(std::span<const float> logits, size_t position,
                                               const Allowed& allowed) {
  prepare(logits, position, allowed);
  shape(position);
  return candidates_;
}

void Sampler::prepare(std::span<const float> logits, size_t position, const Allowed& allowed) {
  logits_.load(logits, position);
  penalties_.apply(logits_);
  for (const TokenBias& b : options_.logit_bias)
    logits_.set(b.token, logits_[b.token] + static_cast<float>(b.bias));
  for (const Token t : options_.banned) logits_.set(t, LogitBlocks::kNever);
  for (const Token t : allowed.banned)
    if (t < logits_.n_vocab()) logits_.set(t, LogitBlocks::kNever);
  if (!allowed.mask.empty()) logits_.keep_only(allowed.mask);
  logits_.refresh();
  if (logits_.most() == LogitBlocks::kNever)
    fail(Errc::InvalidArgument, "position {}: bans, masks and the model leave no token to choose", position);
  weighing_ = {logits_.most(), options_.temperature == 0 ? 0 : inverse(options_.temperature)};
}

Token Sampler::draw(size_t position) {
  if (options_.mirostat.on) return draw_mirostat(position);
  if (draws_from_all()) {
    const uint64_t total = logits_.weigh(weighing_, sums_);
    return logits_.pick(weighing_, sums_, random_below(draw_at(options_.seed, position).token, total));
  }
  shape(position);
  return draw_candidate(position);
}

Token Sampler::draw_candidate(size_t position) const {
  return token_of(
      pick(candidates_, random_below(draw_at(options_.seed, position).token, sum_of(candidates_))));
}

Token Sampler::draw_mirostat(size_t position) {
  keep_unsurprising();
  const uint64_t sum = sum_of(candidates_);
  const uint64_t key = pick(candidates_, random_below(draw_at(options_.seed, position).token, sum));
  const double surprise = (log_of_sum(sum) - exponent_of(weighing_, logit_of(key))) / kLn2;
  surprise_limit_ -= options_.mirostat.rate * (surprise - options_.mirostat.target);
  return token_of(key);
}

bool Sampler::draws_from_all() const {
  const SamplerOptions& o = options_;
  const bool all_k = o.top_k == 0 || o.top_k >= logits_.n_vocab();
  return all_k && o.top_p == 1 && o.min_p == 0 && o.typical_p == 1 && o.top_n_sigma == 0 &&
         o.xtc_probability == 0;
}

void Sampler::shape(size_t position) {
  if (options_.temperature == 0) return keep_best_only();
  if (options_.mirostat.on) return keep_unsurprising();
  collect();
  keep_typical();
  keep_top_p();
  keep_min_p();
  exclude_top_choices(draw_at(options_.seed, position).xtc);
}

void Sampler::keep_best_only() {
  candidates_.assign(1, {rank_key(logits_.most(), logits_.best()), kWeightOne});
}

// Gathers what top-n-sigma and top-k leave. Where what follows can only keep a prefix of the rank order, no
// more than that prefix need be gathered.
void Sampler::collect() {
  const SamplerOptions& o = options_;
  float floor = floor_at(kLeastExponent);
  if (o.top_n_sigma > 0) {
    const double reach = logits_.most() - o.top_n_sigma * logits_.deviation();
    floor =
        std::max(floor, static_cast<float>(std::max<double>(reach, std::numeric_limits<float>::lowest())));
  }
  if (o.top_k > 0 && o.top_k < logits_.n_vocab()) return collect_top(o.top_k, floor);
  if (o.top_n_sigma == 0 && o.typical_p == 1 && (o.top_p < 1 || o.min_p > 0)) return collect_prefix();
  gather(floor);
  total_ = sum_of(candidates_);
}

void Sampler::collect_top(size_t k, float floor) {
  gather(std::max(floor, logits_.floor_of_best(k)));
  if (candidates_.size() > k) {
    scratch_ = candidates_;
    const auto kth = scratch_.begin() + static_cast<ptrdiff_t>(k - 1);
    std::ranges::nth_element(scratch_, kth, {}, &Candidate::key);
    std::erase_if(candidates_, [cut = kth->key](const Candidate& c) { return c.key > cut; });
  }
  total_ = sum_of(candidates_);
}

// The likeliest tokens, further and further down until top-p has enough or min-p keeps no more.
void Sampler::collect_prefix() {
  const bool top_p = options_.top_p < 1;
  const double end = exponent_of_min_p(to_fraction(options_.min_p));
  if (top_p) total_ = logits_.weigh(weighing_, sums_);
  const uint64_t enough = top_p ? share_of(total_, to_fraction(options_.top_p)) : 0;
  for (double reach = top_p ? kFirstReach : end;; reach *= 1.5) {
    gather(floor_at(std::max(reach, end)));
    if (reach <= end || (top_p && sum_of(candidates_) >= enough)) return;
  }
}

// The logit of that exponent or a little less.
float Sampler::floor_at(double exponent) const {
  const double floor = weighing_.most + (exponent - kMargin) / weighing_.inverse_temperature;
  return static_cast<float>(std::max<double>(floor, std::numeric_limits<float>::lowest()));
}

void Sampler::gather(float floor) {
  logits_.gather(floor, keys_);
  weigh_keys();
}

void Sampler::weigh_keys() {
  gathered_.resize(keys_.size());
  weights_.resize(keys_.size());
  std::ranges::transform(keys_, gathered_.begin(), logit_of);
  ops_.token_weights(gathered_.data(), gathered_.size(), weighing_, weights_.data());
  candidates_.clear();
  for (size_t i = 0; i < keys_.size(); ++i)
    if (weights_[i] > 0) candidates_.push_back({keys_[i], weights_[i]});
}

// -- from a shortlist

std::optional<ShortlistWish> Sampler::wish(const Allowed& allowed) const {
  const SamplerOptions& o = options_;
  if (!allowed.mask.empty() || !o.banned.empty() || !o.logit_bias.empty() || o.logprobs ||
      penalties_.active())
    return {};
  const size_t n_banned = allowed.banned.size();
  const auto best = [&](uint64_t n) -> std::optional<ShortlistWish> {
    if (n + n_banned > kMostWished) return {};
    return ShortlistWish{.best = static_cast<uint32_t>(n + n_banned)};
  };
  if (o.temperature == 0) return best(1);
  if (o.mirostat.on || o.typical_p < 1 || o.top_n_sigma > 0 || draws_from_all()) return {};
  if (o.top_k > 0 && o.top_k < logits_.n_vocab()) return best(o.top_k);
  if (o.top_p == 1 && o.min_p == 0) return {};  // no list is long enough
  if (n_banned > 0) return {};                  // their weights would be part of the total
  // Not more than half of the blocks of logits: a device finds where the list ends by the blocks' maxima.
  const size_t few = std::clamp<size_t>(logits_.n_vocab() / kLogitBlock / 2, 1, kMostWished);
  return ShortlistWish{.best = static_cast<uint32_t>(few),
                       .inverse_temperature = o.top_p < 1 ? inverse(o.temperature) : 0};
}

std::optional<Sample> Sampler::sample(const Shortlist& shortlist, size_t position, const Allowed& allowed) {
  if (!collect_listed(shortlist, allowed)) return {};
  if (options_.temperature == 0) return Sample{token_of(keys_[0])};
  keep_top_p();
  keep_min_p();
  exclude_top_choices(draw_at(options_.seed, position).xtc);
  return Sample{draw_candidate(position)};
}

// What `collect` would, or more that later filters drop, if the list goes down far enough for that.
bool Sampler::collect_listed(const Shortlist& shortlist, const Allowed& allowed) {
  const SamplerOptions& o = options_;
  const std::optional<ShortlistWish> wished = wish(allowed);
  const std::span<const uint64_t> listed = shortlist.listed();
  if (!wished || listed.size() < wished->best) return false;
  keys_.assign(listed.begin(), listed.end());
  std::erase_if(keys_, [&](uint64_t key) {
    return std::ranges::find(allowed.banned, token_of(key)) != allowed.banned.end();
  });
  std::ranges::sort(keys_);
  if (o.temperature == 0) return true;
  const bool top_k = o.top_k > 0 && o.top_k < logits_.n_vocab();
  if (top_k) keys_.resize(o.top_k);
  weighing_ = {logit_of(keys_[0]), inverse(o.temperature)};
  const float last = exponent_of(weighing_, logit_of(keys_.back()));
  std::ranges::sort(keys_, {}, token_of);
  weigh_keys();
  total_ = top_k ? sum_of(candidates_) : shortlist.total;
  return top_k || last < exponent_of_min_p(to_fraction(o.min_p)) - kMargin ||
         (o.top_p < 1 && sum_of(candidates_) >= share_of(total_, to_fraction(o.top_p)));
}

// A token's surprise is log(sum) - exponent, and the mean of that is the entropy: log(sum) cancels in the
// difference. Products are rounded to whole units, so that their sum is exact too.
void Sampler::keep_typical() {
  if (options_.typical_p == 1) return;
  uint64_t products = 0;
  const auto depth = [&](const Candidate& c) {
    return -static_cast<double>(exponent_of(weighing_, logit_of(c.key)));
  };
  for (const Candidate& c : candidates_)
    products += static_cast<uint64_t>(static_cast<double>(c.weight) * depth(c) + 0.5);
  const double mean = static_cast<double>(products) / static_cast<double>(total_);
  const auto deviation_key = [&](const Candidate& c) {
    const auto deviation = static_cast<float>(std::fabs(depth(c) - mean));
    return uint64_t{std::bit_cast<uint32_t>(deviation)} << 32 | token_of(c.key);
  };
  scratch_.clear();
  for (const Candidate& c : candidates_) scratch_.push_back({deviation_key(c), c.weight});
  const uint64_t cut = weighted_cut(scratch_, share_of(total_, to_fraction(options_.typical_p)));
  std::erase_if(candidates_, [&](const Candidate& c) { return deviation_key(c) > cut; });
  total_ = sum_of(candidates_);
}

void Sampler::keep_top_p() {
  if (options_.top_p == 1) return;
  scratch_ = candidates_;
  const uint64_t cut = weighted_cut(scratch_, share_of(total_, to_fraction(options_.top_p)));
  std::erase_if(candidates_, [&](const Candidate& c) { return c.key > cut; });
}

void Sampler::keep_min_p() {
  if (options_.min_p == 0) return;
  const uint64_t most = std::ranges::max_element(candidates_, {}, &Candidate::weight)->weight;
  const uint64_t least = share_of(most, to_fraction(options_.min_p));
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least; });
}

void Sampler::exclude_top_choices(uint32_t random) {
  const Fraction chance = uint64_t{random} << 8;  // from 32 bits to the 40 of a fraction
  if (chance >= to_fraction(options_.xtc_probability)) return;
  const uint64_t least = share_of(sum_of(candidates_), to_fraction(options_.xtc_threshold));
  uint64_t last = 0;  // of those that reach the threshold; it stays
  for (const Candidate& c : candidates_)
    if (c.weight >= least) last = std::max(last, c.key);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight >= least && c.key < last; });
}

// Mirostat: what is more surprising than the limit goes, but never the best.
void Sampler::keep_unsurprising() {
  const double all = log_of_sum(logits_.weigh(weighing_, sums_));
  const double deepest = std::clamp<double>(surprise_limit_ * kLn2 - all, 0, -kLeastExponent);
  gather(floor_at(-deepest));
  const uint64_t best = rank_key(logits_.most(), logits_.best());
  std::erase_if(candidates_, [&](const Candidate& c) {
    return c.key != best && exponent_of(weighing_, logit_of(c.key)) < -deepest;
  });
}

Logprobs Sampler::logprobs(std::span<const float> logits, size_t position, Token chosen) {
  published_->load(logits, position);
  const double most = published_->most();
  const double all = log_of_sum(published_->weigh({published_->most(), 1}, sums_));
  const auto logprob = [&](float x) { return (x - most) - all; };
  Logprobs out{logprob((*published_)[chosen]), {}};
  const size_t n = std::min<size_t>(*options_.logprobs, published_->n_vocab());
  if (n == 0) return out;
  published_->gather(published_->floor_of_best(n), keys_);
  const size_t found = std::min(n, keys_.size());
  std::ranges::partial_sort(keys_, keys_.begin() + static_cast<ptrdiff_t>(found));
  for (const uint64_t key : std::span(keys_).first(found))
    out.top.push_back({token_of(key), logprob(logit_of(key))});
  return out;
}

}  // namespace moeflux
