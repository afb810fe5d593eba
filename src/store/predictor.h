// Guesses at the experts that a layer is about to choose, so that they can be read before they are asked for,
// and the decision whether that pays. Plain code that is fed with choices and times; a wrong guess costs
// time, never a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moeflux {

// How good guesses were, by where they came from.
struct PredictorStats {
  uint64_t guessed = 0, right = 0;  // experts guessed; and of these chosen
  double share_right() const {
    return guessed ? static_cast<double>(right) / static_cast<double>(guessed) : 0.0;
  }
};

// Layers are counted among those with experts, from 0. Guesses for a layer are made of what is known when one
// asks: what a router has said ahead of time, where it has, and the layer's choice for the token before.
class ExpertPredictor {
 public:
  ExpertPredictor(uint32_t n_layers, uint32_t n_experts);

  // What the layer's router says when it is given the state of a layer before it: best first, each expert
  // once. Holds until the layer has chosen.
  void foresee(uint32_t layer, std::span<const uint32_t> experts);
  // What the layer has chosen, for one token or several.
  void chosen(uint32_t layer, std::span<const uint32_t> experts);
  // The layer's next choice, at most `most` experts, each once: what was foreseen first, then what was chosen
  // last.
  std::span<const uint32_t> guess(uint32_t layer, size_t most);
  // Nothing is known any more: another text begins. Stats are kept.
  void forget();

  const PredictorStats& foreseen() const { return foreseen_; }
  const PredictorStats& repeated() const {
    return repeated_;
  }  // of "as for the token before", whether asked or not

 private:
  struct Layer {
    std::vector<uint32_t> foreseen, last;  // `last`: each expert once, in the order of the choice
  };
  uint32_t next_mark();

  std::vector<Layer> layers_;
  std::vector<uint32_t> marks_;  // by expert: equal to mark_ where it is in the set at hand
  uint32_t mark_ = 0;
  std::vector<uint32_t> guess_;
  PredictorStats foreseen_, repeated_;
};

// Whether reading ahead pays, decided from how long tokens take. Where reads already fill the link, guesses
// only get in their way; that cannot be told from the guesses, only from the time.
//
// After a warm-up it runs a trial: windows of tokens with and without, in the order off-on, on-off, off-on,
// ..., so that a steady drift (a growing context) hits both alike. A pair of windows gives one ratio of their
// median times. On wins if the median gain over the pairs is at least `least_gain` and stands out of their
// scatter; in doubt it is off. The winner is kept until the next trial, `recheck_tokens` later. What is on
// stays on down to half of the gain, so that one at the limit does not come and go.
class PrefetchGovernor {
 public:
  struct Options {
    uint32_t warm_up_tokens = 16;
    uint32_t window_tokens = 8;
    uint32_t settle_tokens =
        1;                 // of each window, not counted: they still pay for what the window before has left
    uint32_t n_pairs = 6;  // of windows, in a trial
    uint32_t recheck_tokens = 512;
    double least_gain = 0.02;
  };

  PrefetchGovernor() : PrefetchGovernor(Options{}) {}
  explicit PrefetchGovernor(const Options& options);

  bool on() const { return on_; }   // for the token that comes next
  void token_done(double seconds);  // with on() as it was
  bool in_trial() const { return phase_ == Phase::Trial; }
  double last_gain() const { return gain_; }  // of the last trial: 0.1 is a tenth less time with prefetch

 private:
  enum class Phase { Wait, Trial };
  void begin_trial();
  void end_window();
  void decide();
  bool window_is_on() const;

  const Options options_;
  Phase phase_ = Phase::Wait;
  bool on_ = false, kept_ = false;  // now; what the last trial decided
  uint32_t n_left_;                 // tokens of the phase or the window
  uint32_t n_windows_ = 0;          // of the trial, done
  std::vector<double> times_;       // of the window
  double pair_[2] = {0, 0};         // median times of the pair's windows, off and on
  std::vector<double> ratios_;      // log(on / off), of the pairs so far
  double gain_ = 0;
};

}  // namespace moeflux
