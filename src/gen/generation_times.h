// How long the parts of a generation took, and what the expert store did meanwhile.
#pragma once

#include <chrono>

#include "gen/engine.h"

namespace moeflux {

struct GenerationTimes {
  size_t n_prompt = 0;  // tokens that were evaluated before the first choice
  size_t n_new = 0;     // tokens that were chosen
  double prefill_s = 0, decode_s = 0;
  StoreStats prefill = {}, decode = {};

  // The first new token comes with the prompt; each further one is a step of its own.
  size_t n_steps() const { return n_new > 0 ? n_new - 1 : 0; }
  double tokens_per_s() const { return decode_s > 0 ? static_cast<double>(n_steps()) / decode_s : 0; }
};

class GenerationTimer {
 public:
  GenerationTimer(const Engine& engine, size_t n_prompt) : engine_(engine), n_prompt_(n_prompt) {}

  void token() {
    last_ = Clock::now();
    at_last_ = engine_.store_stats();
    if (n_new_++ == 0) {
      first_ = last_;
      at_first_ = at_last_;
    }
  }

  GenerationTimes times() const {
    if (n_new_ == 0) return {.n_prompt = n_prompt_};
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    return {.n_prompt = n_prompt_,
            .n_new = n_new_,
            .prefill_s = seconds(first_ - start_),
            .decode_s = seconds(last_ - first_),
            .prefill = at_first_ - at_start_,
            .decode = at_last_ - at_first_};
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Engine& engine_;
  size_t n_prompt_, n_new_ = 0;
  Clock::time_point start_ = Clock::now(), first_, last_;
  StoreStats at_start_ = engine_.store_stats(), at_first_, at_last_;
};

}  // namespace moeflux
