#include "store/predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace moeflux {
namespace {

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

// How far the median of these values may be off by chance: one standard error, from distances to the median,
// so that a single wild value does not make it large.
double median_error(const std::vector<double>& v) {
  constexpr double kDeviation = 1.4826;  // of a normal distribution, in median distances
  constexpr double kMedian = 1.2533;     // error of a median, in errors of a mean
  const double centre = median(v);
  std::vector<double> distances;
  for (const double x : v) distances.push_back(std::abs(x - centre));
  return kMedian * kDeviation * median(std::move(distances)) / std::sqrt(static_cast<double>(v.size()));
}

}  // namespace

ExpertPredictor::ExpertPredictor(uint32_t n_layers, uint32_t n_experts)
    : layers_(n_layers), marks_(n_experts) {}

uint32_t ExpertPredictor::next_mark() {
  if (++mark_ == 0) {  // after four billion sets the old marks would mean something again
    std::ranges::fill(marks_, 0u);
    mark_ = 1;
  }
  return mark_;
}

void ExpertPredictor::foresee(uint32_t layer, std::span<const uint32_t> experts) {
  layers_.at(layer).foreseen.assign(experts.begin(), experts.end());
}

void ExpertPredictor::chosen(uint32_t layer, std::span<const uint32_t> experts) {
  Layer& l = layers_.at(layer);
  const uint32_t mark = next_mark();
  for (const uint32_t id : experts) marks_.at(id) = mark;
  const auto judge = [&](PredictorStats& stats, const std::vector<uint32_t>& guessed) {
    stats.guessed += guessed.size();
    for (const uint32_t id : guessed) stats.right += marks_.at(id) == mark;
  };
  judge(foreseen_, l.foreseen);
  judge(repeated_, l.last);
  l.foreseen.clear();
  l.last.clear();
  const uint32_t taken = next_mark();
  for (const uint32_t id : experts)
    if (std::exchange(marks_[id], taken) != taken) l.last.push_back(id);
}

std::span<const uint32_t> ExpertPredictor::guess(uint32_t layer, size_t most) {
  const Layer& l = layers_.at(layer);
  const uint32_t taken = next_mark();
  guess_.clear();
  for (const auto* source : {&l.foreseen, &l.last})
    for (const uint32_t id : *source)
      if (guess_.size() < most && std::exchange(marks_.at(id), taken) != taken) guess_.push_back(id);
  return guess_;
}

void ExpertPredictor::forget() {
  for (Layer& l : layers_) {
    l.foreseen.clear();
    l.last.clear();
  }
}

PrefetchGovernor::PrefetchGovernor(const Options& options)
    : options_(options), n_left_(options.warm_up_tokens) {
  check(options.settle_tokens < options.window_tokens && options.n_pairs > 1,
        "windows in which something is measured");
  if (n_left_ == 0) begin_trial();
}

bool PrefetchGovernor::window_is_on() const {
  const uint32_t pair = n_windows_ / 2, second = n_windows_ % 2;
  return (pair + second) % 2 == 1;  // off on, on off, off on
}

void PrefetchGovernor::begin_trial() {
  phase_ = Phase::Trial;
  n_windows_ = 0;
  ratios_.clear();
  times_.clear();
  n_left_ = options_.window_tokens;
  on_ = window_is_on();
}

void PrefetchGovernor::token_done(double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0) return;  // a clock that stood still says nothing
  if (phase_ == Phase::Trial && options_.window_tokens - n_left_ >= options_.settle_tokens)
    times_.push_back(seconds);
  if (--n_left_ > 0) return;
  phase_ == Phase::Wait ? begin_trial() : end_window();
}

void PrefetchGovernor::end_window() {
  pair_[on_] = median(std::move(times_));
  times_.clear();
  if (++n_windows_ % 2 == 0) ratios_.push_back(std::log(pair_[1] / pair_[0]));
  if (n_windows_ == 2 * options_.n_pairs) return decide();
  on_ = window_is_on();
  n_left_ = options_.window_tokens;
}

void PrefetchGovernor::decide() {
  constexpr double kErrors = 1.5;  // by which a gain must stand out
  const double saved = -median(ratios_);
  gain_ = 1 - std::exp(-saved);
  const bool clear = saved > kErrors * median_error(ratios_);
  kept_ = kept_ ? gain_ >= options_.least_gain / 2 : gain_ >= options_.least_gain && clear;
  on_ = kept_;
  phase_ = Phase::Wait;
  n_left_ = options_.recheck_tokens;
}

}  // namespace moeflux
